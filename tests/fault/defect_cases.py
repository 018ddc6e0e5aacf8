"""The defects that ``defects`` plants.

A plausible mistake, its place, and the tests that notice it.

``why`` says what is broken, so that the same mistake can be made again in code that has moved or
was rewritten. ``old`` stands exactly once in ``file``. Of the tests that fail a few quick ones are
listed, and under ``slow`` those that train whole runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """A mistake, ``new`` in the place of ``old``, and tests each of which fails with it."""

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()


DEFECTS = (
    # --- Files and the run folder -----------------------------------------------------------------
    Defect(
        "write_in_place",
        "A file is written in its place, so that whoever reads, or a kill, meets half of it.",
        "runner/io/files.py",
        "        os.replace(temporary, path)\n",
        "        path.write_bytes(content)\n        os.unlink(temporary)\n",
        tests=("tests/test_files.py::test_a_reader_of_the_old_file_reads_all_of_it",),
    ),
    Defect(
        "seal_trusts_sizes",
        "A sealed file counts as whole when its size is right; its bytes are not hashed again.",
        "runner/run/seal.py",
        "if status.st_mtime_ns >= since and sha256(path) != digest:",
        "if False:",
        tests=("tests/test_seal.py::test_every_damage_to_every_file_is_noticed",),
    ),
    Defect(
        "rows_doubled_on_resume",
        "A row of a step that is logged again is added to "
        "the old one of the same step, not put in its place.",
        "runner/io/files.py",
        "_seek_behind(file, step - 1)",
        "_seek_behind(file, step)",
        tests=(
            "tests/test_callback.py::test_all_that_was_logged_at_one_step_is_one_line",
            "tests/test_callback.py::test_steps_that_are_trained_again_are_written_once",
            "tests/test_callback.py::test_an_evaluation_after_a_resume_joins_the_line_of_its_step",
            "tests/test_files.py::test_rows_replace_those_of_the_same_and_later_steps",
        ),
    ),
    Defect(
        "secret_in_files",
        "Texts are written without masking what the environment holds as a secret.",
        "runner/io/files.py",
        "write_bytes(path, without_values(text).encode(), again=again)",
        "write_bytes(path, text.encode(), again=again)",
        tests=("tests/test_secret.py::test_no_file_of_ours_holds_a_secret_of_the_environment",),
    ),
    Defect(
        "secret_in_base64",
        "A secret that was encoded in base64 is no longer recognised.",
        "runner/io/secrets.py",
        "for shift, first in enumerate((0, 2, 3)):",
        "for shift, first in enumerate(()):",
        tests=("tests/test_secret.py::test_a_secret_is_hidden_by_its_value_however_it_is_spelt",),
    ),
    Defect(
        "key_without_seed",
        "The seed counts among what cannot change a result, so that two seeds are one run.",
        "runner/run/key.py",
        '        "tolerate",\n',
        '        "tolerate",\n        "seed",\n',
        tests=(
            "tests/test_run.py::test_equal_configurations_share_a_folder_however_typed",
            "tests/test_run.py::test_another_value_opens_another_folder",
        ),
    ),
    Defect(
        "key_with_tracker",
        "The tracker counts for the key, "
        "so that a run that is told elsewhere starts again from the first step.",
        "runner/run/key.py",
        '"tracker",',
        "",
        tests=(
            "tests/test_run.py::test_keys_that_cannot_change_the_result_stay_out_of_the_run_key",
        ),
    ),
    Defect(
        "key_without_processes",
        "Two processes have the key of one, off by one.",
        "runner/run/key.py",
        "if processes > 1 and",
        "if processes > 2 and",
        tests=("tests/test_run.py::test_more_processes_are_another_training",),
    ),
    Defect(
        "seal_not_verified",
        "The newest sealed checkpoint is taken without a look at its bytes.",
        "runner/run/seal.py",
        "        damage = damage_of(path)\n        if not damage:\n",
        "        damage = {}\n        if not damage:\n",
        tests=("tests/test_run.py::test_the_newest_valid_checkpoint_is_used_and_broken_ones_go",),
    ),
    Defect(
        "link_in_folder_followed",
        "Only links to files are found in a run folder, "
        "and one to a folder is written and deleted through.",
        "runner/run/layout.py",
        "if entry.is_dir(follow_symlinks=False):",
        "if entry.is_dir():",
        tests=("tests/test_run.py::test_a_link_inside_a_run_folder_is_refused_before_any_write",),
    ),
    Defect(
        "index_trusts_times",
        "A file that has another content under its old "
        "size and time is taken for the one that was read.",
        "runner/report/index.py",
        "stat.st_mtime_ns, stat.st_ctime_ns]\n        times",
        "stat.st_mtime_ns]\n        times",
        tests=("tests/test_index.py::test_figures_are_those_of_the_files_whatever_changes",),
    ),
    Defect(
        "index_keeps_the_unsettled",
        "A file that was written a moment ago is kept in the index, "
        "and may change again without another time.",
        "runner/report/index.py",
        "            if stamp.latest < settled:",
        "            if stamp.latest:",
        tests=("tests/test_index.py::test_a_file_written_a_moment_ago_is_not_indexed",),
    ),
    Defect(
        "silent_is_lost",
        "A run of another machine is lost as soon as its lock can be taken, "
        "which some file systems always allow.",
        "runner/run/record.py",
        "return silence > max(SILENT_SECONDS, 10 * spent)",
        "return True",
        tests=("tests/test_index.py::test_a_run_elsewhere_is_lost_if_silent_and_unlocked",),
    ),
    Defect(
        "clean_without_lock",
        "A run is deleted while another process trains in its folder.",
        "runner/command/_deletion.py",
        "with locked(deletion.run.run) if deletion.run else contextlib.nullcontext():",
        "with contextlib.nullcontext():",
        tests=("tests/test_clean.py::test_a_live_run_is_not_touched",),
    ),
    Defect(
        "clean_in_place",
        "What is deleted keeps its name until its last file is gone, "
        "and a kill leaves half of it under that.",
        "runner/command/_deletion.py",
        "moved.append(set_aside(path))",
        "moved.append(path)",
        tests=("tests/test_clean.py::test_a_kill_leaves_nothing_that_looks_like_half_a_run",),
    ),
    Defect(
        "lock_not_held",
        "The lock of a run folder is made and never taken.",
        "runner/launch/worker.py",
        "held.enter_context(locked(placed, PATIENCE))",
        "locked(placed, PATIENCE)",
        slow=("tests/test_resume.py::test_two_processes_never_train_in_one_folder",),
    ),
    # --- Signatures, composition, checks ----------------------------------------------------------
    Defect(
        "keyword_only_forgotten",
        "Arguments behind a bare * are not read, so that right keys are unknown.",
        "runner/schema/read.py",
        "for argument in [*named, *arguments.kwonlyargs]:",
        "for argument in named:",
        tests=("tests/test_signature.py::test_constructors_are_inherited",),
    ),
    Defect(
        "base_fields_win",
        "Of a dataclass and its base, the default of the base counts.",
        "runner/schema/read.py",
        "for base in reversed(list(bases(cls))):",
        "for base in []:",
        tests=(
            "tests/test_signature.py::test_nothing_heavy_is_imported",
            "tests/test_signature.py::test_types_of_a_trainer_config",
            "tests/test_signature.py::test_dataclasses_across_modules",
        ),
    ),
    Defect(
        "refused_choices_offered",
        "A text that the source compares only to raise counts among those that it takes.",
        "runner/schema/choices.py",
        "isinstance(node, ast.Compare) and id(node) not in refused:",
        "isinstance(node, ast.Compare):",
        tests=("tests/test_signature.py::test_loss_types_that_the_source_knows",),
    ),
    Defect(
        "did_you_mean_lost",
        "The unlikeliest word is offered first for a misspelt one.",
        "runner/schema/did_you_mean.py",
        "return sorted(scores, key=scores.__getitem__, reverse=True)",
        "return sorted(scores, key=scores.__getitem__)",
        tests=(
            "tests/test_check.py::test_likeness",
            "tests/test_check.py::test_a_misspelt_field",
        ),
        slow=("tests/test_check.py::test_misspelt_fields_are_found_and_nearly_all_corrected",),
    ),
    Defect(
        "open_range_closed",
        "An end of a range that is left out is let in: a learning rate of 0.",
        "runner/schema/ranges.py",
        "is_high_enough = value > self.low if self.above else value >= self.low",
        "is_high_enough = value >= self.low",
        tests=(
            "tests/test_check.py::test_a_value_that_does_not_fit",
            "tests/test_check.py::test_a_value_that_does_not_fit_this_trainer",
        ),
    ),
    Defect(
        "schema_without_ranges",
        "The schemas of editors have no ranges, so that a number out of range is not underlined.",
        "runner/command/_editor_schemas.py",
        "    numbers = range_at(key, parameter.name, parameter, signature, trainer)\n",
        "    numbers = None\n",
        slow=("tests/test_editor.py::test_the_schemas_are_those_of_the_installed_libraries",),
    ),
    Defect(
        "completion_forgets_the_experiment",
        "The fields that a shell offers are those of trainer=sft, whatever the experiment chooses.",
        "runner/command/_typed_words.py",
        'for content in (self.experiment, read_yaml(MENU / "config.yaml")):',
        'for content in (read_yaml(MENU / "config.yaml"),):',
        tests=("tests/test_completion.py::test_the_words_that_go_on_are_offered",),
    ),
    Defect(
        "secret_repeated",
        "A fault repeats the value that it refuses, also where that is a secret.",
        "runner/schema/text.py",
        '    if form_of(text):\n        return "..."\n',
        "",
        tests=("tests/test_check.py::test_a_secret_under_a_misspelt_key_is_not_repeated_either",),
    ),
    Defect(
        "allow_by_letters",
        "A package that is allowed opens every other one whose name begins with the same letters.",
        "runner/validate/targets.py",
        'target.startswith(f"{prefix}.")',
        "target.startswith(prefix)",
        tests=("tests/test_check.py::test_reexports_do_not_lead_out",),
    ),
    Defect(
        "faults_one_at_a_time",
        "The check ends at its first fault.",
        "runner/validate/configuration.py",
        "return sorted(faults, key=position)",
        "return sorted(faults, key=position)[:1]",
        tests=(
            "tests/test_check.py::test_keys_and_values_inside_a_typed_mapping",
            "tests/test_check.py::test_all_faults_at_once_in_the_order_of_the_configuration",
        ),
    ),
    Defect(
        "first_word_counts",
        "Of a key that is typed twice the first value counts.",
        "runner/config/override.py",
        "    for override in reversed(overrides):\n",
        "    for override in overrides:\n",
        slow=(
            "tests/test_sweep.py::test_a_sweep_in_a_file_needs_no_flag_and_has_replaceable_axes",
        ),
    ),
    Defect(
        "shipped_file_shadows",
        "A file of the menu is said to win over the one of the user's folder that shadows it.",
        "runner/config/composition.py",
        "roots.append(MENU)",
        "roots.insert(0, MENU)",
        tests=("tests/test_why.py::test_a_folder_of_the_users_own_is_shown_as_one_types_it",),
    ),
    # --- Worker, launchers, sweeps ----------------------------------------------------------------
    Defect(
        "exit_code_of_signal",
        "A stopped run leaves with 128 and the signal's number, "
        "where 143 is promised for all but Ctrl-C.",
        "runner/errors.py",
        "return 130 if signal_number == signal.SIGINT else 143",
        "return 128 + signal_number",
        tests=("tests/test_signals.py::test_the_second_signal_is_not_waited_with",),
    ),
    Defect(
        "stop_in_a_step",
        "A signal stops a training at once and not at the end of its step.",
        "runner/launch/signals.py",
        "if again or not self.listening:",
        "if again or self.listening:",
        tests=(
            "tests/test_signals.py::test_the_second_signal_is_not_waited_with",
            "tests/test_signals.py::test_a_time_limit_saves_the_step_and_is_left_to_who_answers_it",
        ),
    ),
    Defect(
        "last_failure_told",
        "Of several processes the one that failed last is told as the cause.",
        "runner/launch/local.py",
        "own = min(failures, key=order)",
        "own = max(failures, key=order)",
        slow=(
            "tests/test_launcher.py::test_of_several_processes_the_one_that_failed_first_says_why",
        ),
    ),
    Defect(
        "failure_ends_sweep",
        "A job that fails keeps those that wait from being started.",
        "runner/launch/pool.py",
        "while self.live or (self.waiting and not self.signals):",
        "while self.live or (self.waiting and not self.signals and not any(self.codes.values())):",
        slow=("tests/test_launcher.py::test_one_failing_job_does_not_stop_the_others",),
    ),
    Defect(
        "failed_stage_built_on",
        "A run is started although one that it builds on has failed.",
        "runner/launch/pool.py",
        "failed = [folder for folder in task.after if self.codes.get(folder)]",
        "failed = []",
        slow=("tests/test_sweep.py::test_runs_that_build_on_a_failed_one_do_not_start",),
    ),
    Defect(
        "queued_run_submitted_again",
        "What waits in the queue of a cluster is taken for gone.",
        "runner/launch/queue.py",
        'if place and state != "finished":',
        'if place and place.begun and state != "finished":',
        ("tests/test_slurm.py::test_a_run_is_submitted_once_and_its_command_shows_progress",),
    ),
    Defect(
        "submitted_without_a_mark",
        "A job is not found again where the command was killed before it knew its number.",
        "runner/launch/slurm.py",
        "note(task, array.name_of(index))",
        'note(task, f"{index}")',
        slow=(
            "tests/test_slurm.py::test_two_commands_and_one_that_is_killed_submit_nothing_twice",
        ),
    ),
    Defect(
        "sweep_exit_code_lost",
        "A sweep leaves with 0 although a job has failed.",
        "runner/launch/start_runs.py",
        "    return next(filter(None, codes.values()), 0)",
        "    return 0",
        slow=("tests/test_launcher.py::test_one_failing_job_does_not_stop_the_others",),
    ),
    Defect(
        "devices_overlap",
        "Jobs side by side begin at neighbouring devices although each takes several.",
        "runner/launch/pool_settings.py",
        "first = slot * settings.processes",
        "first = slot",
        tests=("tests/test_sweep.py::test_each_job_has_a_device_for_each_of_its_processes",),
    ),
    Defect(
        "doubled_jobs_pass",
        "Two jobs of a sweep that are the same run are not told.",
        "runner/launch/plan.py",
        "        if run in ends:\n",
        "        if run in ():\n",
        slow=("tests/test_sweep.py::test_a_sweep_that_cannot_work_starts_nothing",),
    ),
    # --- Building the parts, callbacks ------------------------------------------------------------
    Defect(
        "built_key_wins",
        "A part that is served is passed over for what the YAML says of the same argument.",
        "runner/config/build.py",
        "return target(**arguments | given)",
        "return target(**given | arguments)",
        tests=("tests/test_config.py::test_build_calls_inner_nodes_first",),
    ),
    Defect(
        "reward_weight_unread",
        "The weights of rewards in the YAML do not reach the trainer.",
        "runner/training/components/rewards.py",
        "weights.append(float(part.weight))",
        "weights.append(1.0)",
        slow=("tests/test_reward_runs.py::test_a_reward_model_by_name_adds_to_those_of_the_group",),
    ),
    Defect(
        "retaken_steps_logged_twice",
        "What was logged behind the checkpoint of a resume stays in the record.",
        "runner/training/callback/step_record.py",
        "forget_rows(self.path.parent / name, state.global_step)",
        "forget_rows(self.path.parent / name, state.max_steps)",
        tests=("tests/test_callback.py::test_a_resume_deletes_what_later_steps_had_written",),
    ),
    Defect(
        "last_sample_missing",
        "No samples are drawn at the last step unless it is one of every so many.",
        "runner/training/callback/samples.py",
        "state.global_step % self.every == 0 or state.global_step >= state.max_steps",
        "state.global_step % self.every == 0",
        tests=(
            "tests/test_samples.py::test_the_same_prompts_at_the_start_on_the_way_and_at_the_end",
            "tests/test_samples.py::test_a_resumed_training_logs_each_step_once",
        ),
    ),
    Defect(
        "slower_for_good",
        "The lower learning rate of a rollback is not taken "
        "back behind the step, and falls with each one.",
        "runner/training/callback/slower.py",
        "        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):\n"
        '            group["lr"] = rate\n',
        "        pass\n",
        tests=("tests/test_heal.py::test_the_schedule_does_not_notice_that_its_steps_are_slower",),
    ),
    Defect(
        "padding_is_learnt",
        "The labels of padding are the pad token and not what no loss counts.",
        "runner/collator.py",
        '"labels": upstream.IGNORED',
        '"labels": pad_token_id',
        tests=("tests/test_collator.py::test_buckets_pad_each_part_with_a_neutral_value",),
    ),
    Defect(
        "margin_sign",
        "The implicit rewards of a pair are compared the wrong way round.",
        "runner/loss.py",
        "return (gap - beta * (chosen - rejected)).clamp(min=0)",
        "return (gap - beta * (rejected - chosen)).clamp(min=0)",
        tests=("tests/test_loss.py::test_margin_with_and_without_a_reference",),
    ),
    Defect(
        "norms_decay",
        "Weight decay is taken from biases and norms, too.",
        "runner/optimizer.py",
        'if not key.is_decayed and "weight_decay" in settings:',
        "if False:",
        tests=(
            "tests/test_optimizer.py::test_without_groups_only_biases_and_norms_escape_the_decay",
        ),
    ),
    # --- Checkpoints, resume, health --------------------------------------------------------------
    Defect(
        "rotated_before_sealed",
        "Old checkpoints are deleted before the new one is sealed, "
        "so that a kill between them leaves none.",
        "runner/training/checkpoint.py",
        "            seal(folder, dict(entries))\n"
        "            if self.set_status:\n"
        "                self.set_status(sealed=state.global_step)\n"
        "            rotate(root, self.keep, state.best_model_checkpoint, self.steps_to_notice)\n",
        "            rotate(root, self.keep, state.best_model_checkpoint, self.steps_to_notice)\n"
        "            seal(folder, dict(entries))\n"
        "            if self.set_status:\n"
        "                self.set_status(sealed=state.global_step)\n",
        tests=(
            "tests/test_checkpoint.py::test_old_checkpoints_go_after_the_new_seal_but_the_best",
        ),
    ),
    Defect(
        "best_rotated_away",
        "The best checkpoint is deleted with the old ones.",
        "runner/run/seal.py",
        "best_ones = [path for path in sealed if best and path.name == Path(best).name]",
        "best_ones: list[Path] = []",
        tests=(
            "tests/test_checkpoint.py::test_a_finished_run_keeps_its_limit_and_the_best_checkpoint",
        ),
    ),
    Defect(
        "saved_inside_a_cycle",
        "A checkpoint is taken between two generations, whose rollouts it does not hold.",
        "runner/training/checkpoint.py",
        "state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps",
        "True",
        tests=(
            "tests/test_checkpoint.py::test_a_save_inside_a_generation_cycle_waits_for_its_end",
        ),
    ),
    Defect(
        "finished_trained_further",
        "A training whose steps are all done takes one more when it is resumed.",
        "runner/training/checkpoint.py",
        'return state is not None and state["global_step"] >= state["max_steps"]',
        'return state is not None and state["global_step"] > state["max_steps"]',
        slow=(
            "tests/test_train.py::test_a_finished_but_unsaved_training_takes_no_more_steps",
            "tests/test_resume.py::test_a_run_killed_after_its_last_step_ends_complete",
        ),
    ),
    Defect(
        "resume_without_optimizer",
        "Checkpoints hold the weights alone, "
        "so that a resume begins with a new optimizer and other random numbers.",
        "runner/training/components/args.py",
        '    "save_total_limit": None,',
        '    "save_only_model": True,\n    "save_total_limit": None,',
        slow=("tests/test_resume.py::test_the_same_command_continues_to_the_same_bits",),
    ),
    Defect(
        "resume_sees_rows_again",
        "A resume does not skip the rows that were trained on before.",
        "runner/training/components/args.py",
        '    "logging_nan_inf_filter": False,',
        '    "ignore_data_skip": True,\n    "logging_nan_inf_filter": False,',
        slow=("tests/test_resume.py::test_the_same_command_continues_to_the_same_bits",),
    ),
    Defect(
        "resume_takes_another_value",
        "A field that every step reads is on the list of those "
        "that may change between a run and one that goes on.",
        "runner/schema/upstream/resumable_fields.py",
        '"hub_revision",',
        '"hub_revision", "weight_decay",',
        tests=(
            "tests/test_continuation.py::test_the_list_is_the_one_that_is_written_down",
            "tests/test_continuation.py::test_every_field_of_a_trainer_is_on_the_list_or_refused",
        ),
    ),
    Defect(
        "changed_rows_pass",
        "A file of the same size with other bytes counts as the one that a run began with.",
        "runner/run/inputs.py",
        "        elif old[2] != new[2]:\n",
        "        elif old[2] is None:\n",
        slow=("tests/test_continuation.py::test_a_changed_file_is_refused",),
    ),
    Defect(
        "whole_step_lost",
        "Micro-batches are halved without as many more of them, so that a step sees fewer rows.",
        "runner/training/recovery.py",
        'changes["gradient_accumulation_steps"] = args.gradient_accumulation_steps * parts',
        'changes["gradient_accumulation_steps"] = args.gradient_accumulation_steps',
        tests=("tests/test_heal.py::test_a_step_sees_the_same_rows_in_smaller_micro_batches",),
    ),
    Defect(
        "alarm_one_step_late",
        "An alarm waits for one step more than its patience.",
        "runner/run/alarms/alarm.py",
        "if self.count < self.patience:",
        "if self.count <= self.patience:",
        tests=(
            "tests/test_health.py::test_not_finite",
            "tests/test_health.py::test_zero_gradient",
            "tests/test_health.py::test_groups_of_equal_rewards_without_gradient_are_no_sickness",
            "tests/test_health.py::test_frozen",
        ),
    ),
    Defect(
        "sick_checkpoint_called_good",
        "The last good step of an alarm that shows a step late is named one step too late.",
        "runner/run/alarms/alarm.py",
        "healthy = max(0, step.number - self.patience - self.lag)",
        "healthy = max(0, step.number - self.patience)",
        tests=("tests/test_health.py::test_each_alarm_names_its_fix_and_the_good_checkpoints",),
    ),
    Defect(
        "infinity_is_healthy",
        "Only NaN is an alarm, and infinity is none.",
        "runner/run/alarms/optimization.py",
        "return value is not None and not math.isfinite(value)",
        "return value is not None and math.isnan(value)",
        tests=(
            "tests/test_health.py::test_not_finite",
            "tests/test_health.py::test_a_sick_training_stops_at_the_step_that_shows_it",
        ),
    ),
    # --- Sampling and held-out rows ---------------------------------------------------------------
    Defect(
        "top_p_off",
        "Top-p leaves every token in.",
        "runner/generate/sampler.py",
        "    if how.top_p < 1:\n",
        "    if how.top_p < 0:\n",
        tests=("tests/test_sampler.py::test_top_k_and_top_p_leave_out_the_unlikely",),
    ),
    Defect(
        "samples_alike",
        "All samples of a prompt are drawn with the same random numbers.",
        "runner/generate/completion.py",
        "self.seed, *draw)",
        "self.seed, draw[0])",
        tests=("tests/test_predict.py::test_other_seeds_rows_and_samples_are_other_completions",),
    ),
    Defect(
        "rollouts_alike",
        "All calls of a step are answered with the same random numbers.",
        "runner/training/trainer_sampler.py",
        "            self.count += rows\n",
        "            self.count += 0\n",
        tests=(
            "tests/test_generate_call.py::"
            "test_noise_follows_from_the_seed_the_step_the_process_and_the_row",
        ),
    ),
    Defect(
        "padding_takes_positions",
        "Positions of a padded prompt begin at its padding.",
        "runner/generate/sampler.py",
        "position_ids = (mask.cumsum(1) - 1).clamp(min=0)",
        "position_ids = torch.ones_like(mask).cumsum(1) - 1",
        tests=(
            "tests/test_sampler.py::test_the_loop_gives_the_log_probabilities_of_unpadded_rows",
        ),
    ),
    Defect(
        "temperature_not_in_logprobs",
        "PPO's sampled log-probabilities are those at temperature 1, and the update's are not.",
        "runner/generate/sampler.py",
        "logprobs_BV = torch.log_softmax(logits_BV / logprob_temperature, -1)",
        "logprobs_BV = torch.log_softmax(logits_BV, -1)",
        tests=(
            "tests/test_sampler.py::test_tokens_are_drawn_as_often_as_their_probability_says",
            "tests/test_sampler.py::test_random_noise_passes_a_chi_square_test",
            "tests/test_sampler.py::test_the_loop_gives_the_log_probabilities_of_unpadded_rows",
            "tests/test_sampler.py::test_an_adapter_takes_part_in_sampling",
        ),
    ),
    Defect(
        "stop_token_dropped",
        "The token that ends a completion is cut off with what stands behind it.",
        "runner/generate/sampler.py",
        "lengths_B[live_B[ended_B]] = step + 1",
        "lengths_B[live_B[ended_B]] = max(step, 1)",
        tests=(
            "tests/test_sampler.py::test_the_loop_gives_the_log_probabilities_of_unpadded_rows",
            "tests/test_sampler.py::test_a_completion_ends_with_any_stop_token_and_only_those",
        ),
    ),
    # --- PPO --------------------------------------------------------------------------------------
    Defect(
        "gae_without_mask",
        "What stands behind the end of a response counts for the advantages of its tokens.",
        "runner/ppo/arithmetic.py",
        "    rewards_BR = torch.where(mask_BR, rewards_BR, 0)\n"
        "    values_BR = torch.where(mask_BR, values_BR, 0)\n",
        "",
        tests=("tests/test_ppo.py::test_padding_after_a_row_does_not_change_its_advantages",),
    ),
    Defect(
        "kl_sign",
        "The first estimate of the KL has the wrong sign, "
        "and the policy is paid for leaving its reference.",
        "runner/loss.py",
        "        return log_probs - ref_log_probs\n",
        "        return ref_log_probs - log_probs\n",
        tests=(
            "tests/test_ppo.py::test_kl_estimates_worked_by_hand",
            "tests/test_ppo.py::test_kl_estimates_have_schulmans_bias_and_spread",
            "tests/test_ppo.py::test_the_kl_is_a_reward_per_token",
            "tests/test_ppo.py::test_the_kl_coefficient_moves_towards_its_target",
        ),
    ),
    Defect(
        "clip_takes_the_better",
        "Of the clipped and the unclipped surrogate the more hopeful one counts.",
        "runner/loss.py",
        "losses = torch.maximum(-advantages * ratios, -advantages * clipped)",
        "losses = torch.minimum(-advantages * ratios, -advantages * clipped)",
        tests=("tests/test_ppo.py::test_policy_loss_worked_by_hand",),
    ),
    Defect(
        "score_one_token_early",
        "A score is earned by the token before the last one.",
        "runner/generate/earned.py",
        "indices = [len(token_ids[row]) - 1]",
        "indices = [max(0, len(token_ids[row]) - 2)]",
        tests=(
            "tests/test_score.py::test_rewards_add_up_with_their_weights_and_none_does_not_apply",
            "tests/test_score.py::test_a_reward_per_token_or_per_step_lands_where_it_was_earned",
            "tests/test_ppo.py::test_a_score_is_earned_by_the_last_token",
            "tests/test_ppo.py::test_a_reward_per_token_is_earned_by_its_token",
        ),
    ),
    Defect(
        "reward_weight_ignored",
        "PPO adds rewards up without their weights.",
        "runner/generate/earned.py",
        "earned = weight * torch.tensor(values, dtype=torch.float32)",
        "earned = torch.tensor(values, dtype=torch.float32)",
        tests=(
            "tests/test_score.py::test_rewards_add_up_with_their_weights_and_none_does_not_apply",
            "tests/test_score.py::test_a_reward_per_token_or_per_step_lands_where_it_was_earned",
        ),
    ),
    Defect(
        "tokens_of_tools_are_learnt",
        "Tokens that tools wrote count as the policy's own.",
        "runner/ppo/rollout.py",
        "if completion.own is None:",
        "if True:",
        tests=(
            "tests/test_rollout.py::test_advantages_of_two_turns_are_those_worked_out_by_hand",
            "tests/test_rollout.py::test_ppo_learns_from_the_tokens_of_the_policy_alone",
        ),
    ),
    Defect(
        "logprob_of_next_token",
        "The log-probability of a token is read one place too late.",
        "runner/ppo/rollout.py",
        "start + position - 1 for",
        "start + position for",
        tests=(
            "tests/test_ppo.py::test_at_first_the_policy_is_its_reference_and_every_ratio_one",
            "tests/test_ppo.py::test_a_reference_of_the_callers_is_looked_at",
            "tests/test_ppo.py::test_an_adapter_that_the_model_came_with_is_the_reference",
            "tests/test_ppo.py::test_a_step_follows_the_gradient_of_the_written_loss",
        ),
    ),
    Defect(
        "values_rounded",
        "Under bf16 autocast the critic's values and the scores of reward models have 8 bits.",
        "runner/reward/reading.py",
        "torch.autocast(states_NH.device.type, enabled=False)",
        "contextlib.nullcontext()",
        tests=("tests/test_ppo.py::test_values_and_scores_are_not_rounded_under_bf16",),
    ),
    Defect(
        "far_is_clipped",
        "A step to the better side counts as clipped, which it is not.",
        "runner/ppo/losses.py",
        "(ratios_N - 1) * advantages_N.sign() > args.cliprange",
        "(ratios_N - 1).abs() > args.cliprange",
        tests=("tests/test_ppo.py::test_tokens_count_as_clipped_as_in_trl",),
    ),
    Defect(
        "words_drawn_in_float32",
        "The sums of probabilities are rounded, which moves the shares of rare words.",
        "runner/generate/sampler.py",
        "dtype=FLOAT64.get(kind, torch.float64))",
        "dtype=torch.float32)",
        tests=("tests/test_sampler.py::test_each_of_150000_words_is_drawn_in_proportion",),
    ),
    Defect(
        "sure_of_a_few_wins",
        "An interval from few prompts is as narrow as one from many.",
        "runner/metric/paired.py",
        "> Z**2 * count * (",
        "> Z**2 * (",
        tests=(
            "tests/test_evaluate.py::test_the_interval_of_wins_is_wilsons_and_ties_narrow_it",
            "tests/test_evaluate.py::test_intervals_cover_the_truth_about_as_often_as_they_say",
        ),
    ),
    Defect(
        "same_noise_each_update",
        "Every rollout is drawn with the random numbers of the first one.",
        "runner/ppo/random_numbers.py",
        "generator = seeded_generator(args.seed, purpose, step)\n    all_rows",
        "generator = seeded_generator(args.seed, purpose, 0)\n    all_rows",
        tests=("tests/test_ppo.py::test_each_update_draws_with_random_numbers_of_its_own",),
    ),
    Defect(
        "memory_not_restored",
        "The adaptive KL coefficient and the statistics of scores begin anew on a resume.",
        "runner/ppo/trainer.py",
        "        if path:\n            self.running = ",
        "        if path is True:\n            self.running = ",
        slow=(
            "tests/test_ppo_training.py::test_the_newest_checkpoint_is_found",
            "tests/test_ppo_training.py::test_a_resumed_training_ends_with_the_same_bits",
        ),
    ),
    Defect(
        "gradient_divided_by_processes",
        "Each process adds its share of a mini-batch, and their average is taken for the sum.",
        "runner/ppo/update.py",
        'trainer.accelerator.reduce(gradient, "sum")',
        'trainer.accelerator.reduce(gradient, "mean")',
        slow=("tests/test_ppo_training.py::test_two_processes_train_as_one",),
    ),
    # --- Data -------------------------------------------------------------------------------------
    Defect(
        "chosen_and_rejected_swapped",
        "Of a pair that is taken apart the rejected answer is called good.",
        "runner/dataset/trainer_row.py",
        '"label": side == "chosen"}',
        '"label": side == "rejected"}',
        tests=(
            "tests/test_convert.py::test_every_raw_form_in_every_trainer_form",
            "tests/test_convert.py::test_nothing_hangs_on_the_order_of_a_set",
        ),
    ),
    Defect(
        "prompt_ends_with_the_assistant",
        "Turns of the assistant that both answers share are left in the prompt.",
        "runner/dataset/canonical_row.py",
        '    while shared and chosen[shared - 1]["role"] == "assistant":\n        shared -= 1\n',
        "",
        tests=("tests/test_convert.py::test_a_prompt_never_ends_with_the_assistant",),
    ),
    Defect(
        "rows_numbered_in_their_batch",
        "A bad row is told by its place in a batch or among the shuffled rows, "
        "and not by that in the source.",
        "runner/dataset/converted_rows.py",
        "numbers_in_source[indices].tolist()",
        "list(range(len(indices)))",
        tests=(
            "tests/test_dataset.py::test_bad_rows_have_the_number_that_they_have_in_the_source",
        ),
    ),
    Defect(
        "csv_line_of_record",
        "A bad record of a csv file is told by the number of records before it, "
        "although one may have several lines.",
        "runner/dataset/scan_csv.py",
        "yield _to_row(record, header, path, begin, records.line_num)",
        "yield _to_row(record, header, path, begin, count + 1)",
        tests=("tests/test_dataset.py::test_bytes_that_hold_no_rows",),
    ),
    Defect(
        "csv_na_is_null",
        "The text NA in a csv file is read as nothing.",
        "runner/dataset/source_files.py",
        '"csv": {"na_filter": False},',
        '"csv": {},',
        tests=("tests/test_dataset.py::test_text_in_csv_stays_unchanged",),
    ),
    Defect(
        "limit_before_shuffle",
        "The first rows are taken and then shuffled, and not drawn from all of them.",
        "runner/dataset/row_source.py",
        "np.random.default_rng(seed).permutation(len(rows))[:count]",
        "np.random.default_rng(seed).permutation(count)",
        tests=("tests/test_dataset.py::test_training_rows_are_shuffled_before_the_limit",),
    ),
    Defect(
        "mixture_stops_early",
        "A mixture ends when its smallest part has been seen, "
        "and throws the rest of the others away.",
        "runner/dataset/mix.py",
        'stopping_strategy="all_exhausted"',
        'stopping_strategy="first_exhausted"',
        tests=(
            "tests/test_dataset.py::test_weights_are_the_shares_and_small_parts_repeat",
            "tests/test_dataset.py::test_streams_mix",
        ),
    ),
    Defect(
        "packed_without_weights",
        "The weights of packed rows stay in the order of the rows that were not packed.",
        "runner/dataset/weighed_rows.py",
        "pack_dataset(rows.select_columns(columns), seq_length, strategy)",
        'pack_dataset(rows.select_columns(["input_ids", "labels"]), seq_length, strategy)\n'
        "    packed = packed.add_column(WEIGHTS, "
        "[[1.0] * len(ids) for ids in packed['input_ids']])",
        tests=("tests/test_weigh.py::test_packed_rows_keep_the_weight_of_each_token",),
    ),
    Defect(
        "weightless_tokens_counted",
        "Tokens that weigh nothing stay in the mask, so that averages are too small.",
        "runner/dataset/weighed_rows.py",
        "beside[name] = batch[name] * (placed != 0)",
        "beside[name] = batch[name]",
        tests=("tests/test_weigh.py::test_tokens_that_weigh_nothing_leave_the_mask",),
    ),
    # --- Models, templates, rewards, metrics, trackers --------------------------------------------
    Defect(
        "template_unlimited",
        "A template is rendered without a limit on the processor's time.",
        "runner/model/jinja.py",
        "signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)",
        "signal.setitimer(signal.ITIMER_PROF, 0)",
        slow=("tests/test_bad_input.py::test_a_growing_template_is_refused_at_little_cost",),
    ),
    Defect(
        "template_without_sandbox",
        "A template is rendered by plain Jinja, in which it can reach any object of Python.",
        "runner/model/jinja.py",
        "from jinja2.sandbox import ImmutableSandboxedEnvironment\n",
        "from jinja2 import Environment as ImmutableSandboxedEnvironment\n",
        tests=("tests/test_template.py::test_a_template_reaches_nothing_of_python",),
    ),
    Defect(
        "answer_without_end",
        "A template that does not close an answer with the end token is taken.",
        "runner/model/jinja.py",
        "if end and end not in behind:",
        "if end and end not in probe.text:",
        tests=("tests/test_model.py::test_a_template_that_does_not_work_is_refused",),
    ),
    Defect(
        "adapter_without_base",
        "An adapter is saved without the name of the base that it belongs on.",
        "runner/model/adapter.py",
        'base_fields = {"base_model_name_or_path": base, "revision": revision}',
        "pass",
        tests=("tests/test_peft.py::test_a_saved_adapter_names_its_base_and_memory_is_unchanged",),
    ),
    Defect(
        "reference_adapter_saved",
        "The copy of an adapter that a trainer keeps as its reference is written beside it.",
        "runner/model/adapter.py",
        'selected_adapters=["default"]',
        "selected_adapters=None",
        tests=(
            "tests/test_peft.py::test_the_copy_that_a_trainer_keeps_as_reference_is_not_written",
        ),
    ),
    Defect(
        "cut_weights_pass",
        "A file of weights that is cut off is taken for whole.",
        "runner/model/model_files.py",
        """except HeaderError as error:
        size =""",
        """except HeaderError as error:
        return {}
        size =""",
        tests=("tests/test_bad_input.py::test_weights_that_are_cut_off_raise_one",),
    ),
    Defect(
        "first_box_counts",
        "The first boxed answer of a solution is judged, and not the last one.",
        "runner/reward/math.py",
        r'start = text.rfind(r"\boxed{")',
        r'start = text.find(r"\boxed{")',
        tests=("tests/test_reward.py::test_values_by_hand",),
    ),
    Defect(
        "infinite_reward_passes",
        "Of rewards that are no finite numbers only NaN is refused.",
        "runner/reward/answer.py",
        "    if not -LARGEST < number < LARGEST:\n",
        "    if number != number:\n",
        tests=(
            "tests/test_reward_panel.py::test_a_wrong_value_is_reported_with_its_row_and_prompt",
        ),
    ),
    Defect(
        "swallowed_time_limit",
        "A reward that swallows the exception of its time limit passes.",
        "runner/reward/time_limit.py",
        "    if limit.has_rung:\n        raise late()\n",
        "",
        tests=("tests/test_reward_panel.py::test_a_hang_is_reported_in_time",),
    ),
    Defect(
        "one_none_is_a_fault",
        "A row is refused where any reward does not apply, and not only where none does.",
        "runner/reward/answer.py",
        "if all(value is None for value in values):",
        "if any(value is None for value in values):",
        tests=(
            "tests/test_reward_panel.py::test_a_row_without_any_reward_is_reported",
            "tests/test_reward_panel.py::test_one_reward_per_row_is_enough_and_batches_do_not_mix",
        ),
    ),
    Defect(
        "none_counts_as_zero",
        "Rows that a metric does not apply to count as 0 in its mean.",
        "runner/metric/ask.py",
        'return {"": math.fsum(values) / len(values)}',
        'return {"": math.fsum(values) / rows}',
        tests=("tests/test_metric.py::test_results_of_a_metric_become_named_numbers",),
    ),
    Defect(
        "ties_are_lost_pairs",
        "Equal scores share the lowest of their ranks, so that a tie counts as a lost pair.",
        "runner/metric/binary.py",
        "counts.cumsum() - (counts - 1) / 2",
        "counts.cumsum() - (counts - 1)",
        tests=(
            "tests/test_metric.py::test_the_area_by_hand",
            "tests/test_metric.py::test_the_area_by_ranks_is_that_over_all_pairs",
            "tests/test_metric.py::test_grouped_auc_leaves_out_and_counts_groups_of_one_kind",
        ),
    ),
    Defect(
        "tracker_keeps_retaken_steps",
        "Figures of steps that are taken again after a "
        "resume are in the event files of TensorBoard twice.",
        "runner/tracker/tensorboard.py",
        "purge_step=first_step)",
        "purge_step=None)",
        slow=("tests/test_tracker.py::test_tensorboard",),
    ),
    Defect(
        "tracker_id_of_each_start",
        "A run has another id for its tracker each time it goes on.",
        "runner/tracker/variable.py",
        '        write_json(path, record | {"id": run_id})\n',
        "",
        tests=("tests/test_tracker.py::test_a_folder_keeps_its_id_and_another_one_has_another",),
    ),
    Defect(
        "unknown_mode_is_quiet",
        "A mode that a tracker does not have, and no mode at all, count as sending nothing.",
        "runner/schema/upstream/trackers.py",
        "return mode not in self.quiet_modes",
        "return mode in self.sending_modes",
        tests=("tests/test_values.py::test_an_experiment_may_choose_a_tracker_that_sends_nothing",),
    ),
    Defect(
        "secret_of_the_hub",
        "Whoever writes the key of a tracker into a file is told to export a token of the hub.",
        "runner/validate/plain_secrets.py",
        "            return tracker.key_variable\n",
        "            continue\n",
        tests=(
            "tests/test_check.py::test_a_secret_is_exported_as_the_variable_that_its_reader_knows",
        ),
    ),
    Defect(
        "folder_of_a_tracker_is_a_stranger",
        "No run can be deleted in which a tracker has written a folder.",
        "runner/command/_deletion.py",
        "    *(tracker.run_folder for tracker in TRACKERS.values() if tracker.run_folder),\n",
        "",
        tests=("tests/test_clean.py::test_the_folder_of_a_tracker_is_deleted_with_its_run",),
    ),
    # --- Reports ----------------------------------------------------------------------------------
    Defect(
        "population_deviation",
        "The deviation over seeds is that of a population, and too small for a few of them.",
        "runner/report/number.py",
        "fsum(squares) / (len(values) - 1)",
        "fsum(squares) / len(values)",
        tests=("tests/test_sweep_report.py::test_seeds_become_a_mean_and_a_spread",),
    ),
    Defect(
        "worst_is_best",
        "Settings are ranked upside down.",
        "runner/report/selection.py",
        "settings = _sort(settings, means, ranked_by.maximise)",
        "settings = _sort(settings, means, not ranked_by.maximise)",
        tests=(
            "tests/test_sweep_report.py::test_ties_and_close_calls_are_reported",
            "tests/test_sweep_report.py::test_one_lucky_seed_does_not_beat_several",
            "tests/test_sweep_report.py::test_the_objective_can_be_chosen_and_turned",
            "tests/test_sweep_report.py::test_the_objective_is_that_of_the_configuration",
        ),
    ),
    Defect(
        "page_without_escape",
        "What stands in a run folder becomes a part of the page of a report.",
        "runner/report/render.py",
        'autoescape=select_autoescape(["html"])',
        "autoescape=False",
        tests=("tests/test_sweep_report.py::test_texts_from_a_folder_are_escaped_in_html",),
    ),
    Defect(
        "lucky_seed_wins",
        "A setting with a single seed competes with those that have several.",
        "runner/report/sweep.py",
        "return repeated or scored",
        "return scored",
        tests=("tests/test_sweep_report.py::test_one_lucky_seed_does_not_beat_several",),
    ),
    # --- Forecast, rehearsal ----------------------------------------------------------------------
    Defect(
        "forecast_forgets_a_moment",
        "The forecast counts one state of Adam and not two.",
        "runner/training/checkpoint.py",
        '"adam": 2,',
        '"adam": 1,',
        tests=(
            "tests/test_estimate.py::test_weights_gradients_and_the_state_of_adam_are_exact",
            "tests/test_estimate.py::test_each_optimizer_keeps_its_own_state",
        ),
    ),
    Defect(
        "forecast_forgets_the_critic",
        "The critic of PPO costs nothing in the forecast.",
        "runner/estimate/memory.py",
        '"critic": self.critic_bytes,',
        '"critic": 0,',
        tests=("tests/test_estimate.py::test_ppo_has_a_critic_and_samples",),
    ),
    Defect(
        "rehearsal_skips_batch_sizes",
        "Runs that differ in a batch size are rehearsed as one.",
        "runner/estimate/case.py",
        "isinstance(value, int) and LENGTHS.search(path)",
        "isinstance(value, int)",
        tests=(
            "tests/test_rehearse.py::test_runs_that_differ_in_batch_size_are_played_separately",
        ),
    ),
    Defect(
        "rehearsal_tells_the_tracker",
        "A run in small is told to the tracker of the real one.",
        "runner/estimate/reduce.py",
        'small.cfg |= {"tracker": {"report_to": "none", "environment": None}, "resume": None}',
        'small.cfg |= {"resume": None}',
        slow=(
            "tests/test_rehearse.py::test_a_run_in_small_tells_no_tracker_and_has_a_narrow_model",
        ),
    ),
    # --- Importers --------------------------------------------------------------------------------
    Defect(
        "importer_drops_a_key",
        "Keys of another tool that nobody has a rule for are passed over without a word.",
        "runner/importers/follow.py",
        "        elif key in draft.implied:\n",
        "        elif key in draft.implied or not has_row:\n",
        tests=("tests/test_import.py::test_an_unknown_key_is_reported",),
    ),
    Defect(
        "imported_alpha_lost",
        "The scale of an adapter is taken over as its rank.",
        "runner/config/dialects/trl.yaml",
        "lora_alpha: [{peft: lora, to: peft.lora_alpha}",
        "lora_alpha: [{peft: lora, to: peft.r}",
        tests=("tests/test_import.py::test_trl_dpo_under_accelerate",),
    ),
    Defect(
        "imported_beta_misplaced",
        "The beta of Axolotl is written as the trainer's "
        "own field where the whole menu sweeps kl_coef.",
        "runner/config/dialects/axolotl.yaml",
        "    - {trainer: [dpo, kto, grpo], convert: number, "
        'to: kl_coef, why: "the beta of {trainer}"}\n',
        "",
        tests=(
            "tests/test_import.py::test_axolotl_dpo",
            "tests/test_import.py::test_axolotl_grpo_leaves_user_code_to_the_command_line",
        ),
    ),
    Defect(
        "imported_secret_written",
        "A secret that is none by its form, and is called one by its key, is taken over.",
        "runner/importers/draft.py",
        "is_token or is_named or form_of(value)",
        "is_token or form_of(value)",
        tests=("tests/test_import.py::test_no_secret_comes_through_whatever_it_is_called",),
        slow=("tests/test_import.py::test_messages_fit_80_columns_and_hold_no_secret",),
    ),
    # --- Commands ---------------------------------------------------------------------------------
    Defect(
        "export_through_a_link",
        "An export is written through a link that stands in its place.",
        "runner/training/exported_model.py",
        "if folder.is_symlink() or (folder.exists() and not is_replaceable):",
        "if folder.exists() and not is_replaceable:",
        tests=("tests/test_export.py::test_a_link_in_the_place_of_an_export_is_left",),
    ),
    Defect(
        "pushed_in_public",
        "An upload makes a public repository unless it is told otherwise.",
        "runner/command/export.py",
        "open_repository(options.push, options.private)",
        "open_repository(options.push, private=False)",
        tests=("tests/test_export.py::test_pushing_is_asked_for_private_and_without_what_is_ours",),
    ),
    Defect(
        "copy_not_compared",
        "The copied files of an export are not compared with what they were copied from.",
        "runner/training/exported_model.py",
        "    if not files_of(new).items() <= files_of(source).items():\n",
        "    if not files_of(new).keys() <= files_of(source).keys():\n",
        tests=("tests/test_export.py::test_a_copy_of_other_bytes_is_no_export",),
    ),
    Defect(
        "other_rows_pass",
        "A resume trains on other rows under the same name.",
        "runner/training/beginning.py",
        "FolderError.refuse(find_other_facts(source.manifest(), facts))",
        "pass",
        slow=("tests/test_train.py::test_a_resume_with_another_tokenizer_is_refused",),
    ),
    Defect(
        "scores_before_lost",
        "The scores of the start model are not kept at the end.",
        "runner/command/_finish.py",
        'scores = (read_json(run.folder / "scores.json") or {}) | {"after"',
        'scores = {"after"',
        slow=("tests/test_train.py::test_a_run_leaves_what_the_design_promises",),
    ),
    Defect(
        "cut_rows_overlooked",
        "A row that is as long as the limit lets it be counts as cut.",
        "runner/training/inspection.py",
        "if self.limit and row.length > self.limit]",
        "if self.limit and row.length >= self.limit]",
        tests=("tests/test_preview.py::test_a_row_as_long_as_the_limit_is_whole",),
    ),
    Defect(
        "another_default",
        "The runner gives a field of TRL's a default of its own, "
        "too near to TRL's for the golden losses to tell.",
        "runner/training/components/args.py",
        '    "project": "runner",  # in trackio; tracker.project names another\n',
        '    "project": "runner",\n    "adam_epsilon": 1.0001e-8,\n',
        slow=("tests/test_train.py::test_losses_of_every_trainer_equal_the_golden_file",),
    ),
    Defect(
        "order_of_nobody",
        "The order of rows that are grouped by length is "
        "drawn from whatever state torch's generator has.",
        "runner/training/components/row_order.py",
        "sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))",
        "sampler.generator = None",
        tests=("tests/test_lengths.py::test_the_order_of_an_epoch_depends_on_no_earlier_draw",),
    ),
    Defect(
        "speed_over_the_user",
        "speed=max takes the place of what the user has set.",
        "runner/config/speed.py",
        "if name in args:",
        "if False:",
        tests=(
            "tests/test_config.py::test_speed_sets_what_is_sound_for_the_trainer_and_the_machine",
        ),
    ),
    Defect(
        "errors_not_doubled",
        "Discounted sums of the errors reach one power of two less far than they should.",
        "runner/ppo/arithmetic.py",
        "        factor = factor**2\n",
        "",
        tests=("tests/test_ppo.py::test_advantages_worked_by_hand",),
    ),
    Defect(
        "blind_graph",
        "A token of a recorded step does not see those that were written before it.",
        "runner/generate/sampler.py",
        "mask_B11T.index_fill_(3, step_1 + length, True)",
        "mask_B11T.index_fill_(3, step_1 * 0 + length, True)",
        tests=("tests/test_sampler.py::test_the_steps_of_a_graph_draw_what_the_loop_draws",),
    ),
    Defect(
        "rounded_embeddings",
        "Weights that autocast reads in float32 are stored in bfloat16 as well.",
        "runner/ppo/actor_critic.py",
        "if type(layer) is not nn.Linear:",
        "if type(layer) not in (nn.Linear, nn.Embedding):",
        tests=(
            "tests/test_ppo.py::test_frozen_weights_in_the_type_of_autocast_give_the_same_bits",
        ),
    ),
    Defect(
        "rows_at_once",
        "Rows of one length that lie end to end attend as if they were one.",
        "runner/model/padding_free.py",
        "parts = [[line.unflatten(0, (-1, length))] for line in lines]",
        "parts = [[line.unflatten(0, (-1, len(line)))] for line in lines]",
        tests=("tests/test_padding_free.py::test_rows_end_to_end_are_as_they_are_alone",),
    ),
)
