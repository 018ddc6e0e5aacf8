"""The defects that ``defects`` plants: what a developer would have got wrong, where, and the tests that notice.

``why`` says what is broken, so that the same mistake can be made again in code that has moved or was rewritten. ``old``
stands exactly once in ``file``. Of the tests that fail a few quick ones are listed, and under ``slow`` those that train
whole runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """A mistake: ``new`` in the place of ``old``, and tests of which each fails with it."""

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
        "seal_trusts_sizes",
        "A sealed file counts as whole when its size is right; its bytes are not hashed again.",
        "runner/files.py",
        'return "other bytes than were sealed" if now.st_mtime_ns >= since and sha256(path) != digest else ""',
        'return ""',
        tests=("tests/test_files.py::test_every_damage_to_every_file_is_noticed",),
    ),
    Defect(
        "rows_doubled_on_resume",
        "A row of a step that is logged again is added to the old one of the same step, not put in its place.",
        "runner/files.py",
        "_seek_behind(file, step - 1) if row",
        "_seek_behind(file, step) if row",
        tests=(
            "tests/test_callback.py::test_all_that_was_logged_at_one_step_is_one_line",
            "tests/test_callback.py::test_steps_that_are_trained_again_are_written_once",
            "tests/test_callback.py::test_an_evaluation_after_a_resume_joins_the_line_of_its_step",
            "tests/test_files.py::test_rows_take_the_place_of_those_of_the_same_step_and_of_later_ones",
        ),
    ),
    Defect(
        "key_without_seed",
        "The seed counts among what cannot change a result, so that two seeds are one run.",
        "runner/run.py",
        '    | {"on_memory", "attempts", "on_sick", "tolerate"}\n',
        '    | {"on_memory", "attempts", "on_sick", "tolerate", "seed"}\n',
        tests=(
            "tests/test_run.py::test_the_same_configuration_opens_the_same_folder_however_it_was_typed",
            "tests/test_run.py::test_another_value_opens_another_folder",
        ),
    ),
    Defect(
        "key_with_tracker",
        "The tracker counts for the key, so that a run that is told elsewhere starts again from the first step.",
        "runner/run.py",
        '"launcher", "tracker", "allow"',
        '"launcher", "allow"',
        tests=("tests/test_run.py::test_what_cannot_change_the_result_stays_out_of_the_key",),
    ),
    Defect(
        "key_without_processes",
        "Two processes have the key of one, off by one.",
        "runner/run.py",
        "if (processes := processes_of(cfg)) > 1:",
        "if (processes := processes_of(cfg)) > 2:",
        tests=("tests/test_run.py::test_more_processes_are_another_training",),
    ),
    Defect(
        "seal_not_verified",
        "The newest sealed checkpoint is taken without a look at its bytes.",
        "runner/run.py",
        "        if not (wrong := damage_of(path)):\n",
        "        if not (wrong := {}):\n",
        tests=("tests/test_run.py::test_the_newest_checkpoint_that_verifies_is_used_and_broken_newer_ones_go",),
    ),
    Defect(
        "link_in_folder_followed",
        "Only links to files are found in a run folder, and one to a folder is written and deleted through.",
        "runner/files.py",
        "for name in (*folders, *names) if",
        "for name in names if",
        tests=("tests/test_run.py::test_a_link_inside_a_run_folder_is_refused_before_anything_is_written_or_deleted",),
    ),
    # --- Signatures, composition, checks ----------------------------------------------------------
    Defect(
        "keyword_only_forgotten",
        "Arguments behind a bare * are not read, so that right keys are unknown.",
        "runner/signature/read.py",
        "    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)\n",
        "",
        tests=("tests/test_signature.py::test_constructors_are_inherited",),
    ),
    Defect(
        "base_fields_win",
        "Of a dataclass and its base, the default of the base counts.",
        "runner/signature/read.py",
        "for base in reversed(list(bases(found))):",
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
        "runner/signature/read.py",
        "isinstance(node, ast.Compare) and id(node) not in refused:",
        "isinstance(node, ast.Compare):",
        tests=("tests/test_signature.py::test_loss_types_that_the_source_knows",),
    ),
    Defect(
        "did_you_mean_lost",
        "The unlikeliest word is offered first for a misspelt one.",
        "runner/check/value.py",
        "key=lambda each: -scores[each])",
        "key=lambda each: scores[each])",
        tests=(
            "tests/test_check.py::test_likeness",
            "tests/test_check.py::test_a_misspelt_field",
        ),
        slow=("tests/test_check.py::test_every_misspelt_field_is_found_and_nearly_every_one_is_corrected",),
    ),
    Defect(
        "open_range_closed",
        "An end of a range that is left out is let in: a learning rate of 0.",
        "runner/check/value.py",
        "enough = value > self.low if self.above else value >= self.low",
        "enough = value >= self.low",
        tests=(
            "tests/test_check.py::test_a_value_that_does_not_fit",
            "tests/test_check.py::test_a_value_that_does_not_fit_this_trainer",
        ),
    ),
    Defect(
        "secret_repeated",
        "A fault repeats the value that it refuses, also where that is a secret.",
        "runner/check/value.py",
        '    if looks_secret(text):\n        return "..."\n',
        "",
        tests=("tests/test_check.py::test_a_secret_under_a_misspelt_key_is_not_repeated_either",),
    ),
    Defect(
        "faults_one_at_a_time",
        "The check ends at its first fault.",
        "runner/check/__init__.py",
        "    return _in_order(faults, cfg)\n",
        "    return _in_order(faults, cfg)[:1]\n",
        tests=(
            "tests/test_check.py::test_keys_and_values_inside_a_typed_mapping",
            "tests/test_check.py::test_all_faults_at_once_in_the_order_of_the_configuration",
        ),
    ),
    Defect(
        "shipped_file_shadows",
        "A file of the menu is said to win over the one of the user's folder that shadows it.",
        "runner/config/__init__.py",
        "roots = [*(Path(folder).resolve() for folder in folders), MENU]",
        "roots = [MENU, *(Path(folder).resolve() for folder in folders)]",
        tests=("tests/test_why.py::test_a_folder_of_the_users_own_is_shown_as_one_types_it",),
    ),
    # --- Worker, launchers, sweeps ----------------------------------------------------------------
    Defect(
        "exit_code_of_signal",
        "A stopped run leaves with 128 and the signal's number, where 143 is promised for all but Ctrl-C.",
        "runner/errors.py",
        "return 130 if signal_number == signal.SIGINT else 143",
        "return 128 + signal_number",
        tests=("tests/test_signals.py::test_the_second_signal_is_not_waited_with",),
    ),
    Defect(
        "devices_overlap",
        "Jobs side by side begin at neighbouring devices although each takes several.",
        "runner/sweep/pool.py",
        "first, last = slot * settings.processes, (slot + 1) * settings.processes",
        "first, last = slot, slot + settings.processes",
        tests=("tests/test_sweep.py::test_each_job_has_a_device_for_each_of_its_processes",),
    ),
    Defect(
        "doubled_jobs_pass",
        "Two jobs of a sweep that are the same run are not told.",
        "runner/sweep/plan.py",
        "        if run in ends:\n",
        "        if run in ():\n",
        slow=("tests/test_sweep.py::test_a_sweep_that_cannot_work_starts_nothing",),
    ),
    # --- Building the parts, callbacks ------------------------------------------------------------
    Defect(
        "built_key_wins",
        "A part that is served is passed over for what the YAML says of the same argument.",
        "runner/config/__init__.py",
        "return target(**arguments | given)",
        "return target(**given | arguments)",
        tests=("tests/test_config.py::test_build_calls_inner_nodes_first",),
    ),
    Defect(
        "last_sample_missing",
        "No samples are drawn at the last step unless it is one of every so many.",
        "runner/callback.py",
        "state.global_step % self.every == 0 or state.global_step >= state.max_steps",
        "state.global_step % self.every == 0",
        tests=(
            "tests/test_samples.py::test_the_same_prompts_at_the_start_on_the_way_and_at_the_end",
            "tests/test_samples.py::test_a_resumed_training_has_each_step_once",
        ),
    ),
    Defect(
        "slower_for_good",
        "The lower learning rate of a rollback is not taken back behind the step, and falls with each one.",
        "runner/callback.py",
        "        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):\n"
        '            group["lr"] = rate\n',
        "        pass\n",
        tests=("tests/test_heal.py::test_the_schedule_does_not_notice_that_its_steps_are_slower",),
    ),
    Defect(
        "padding_is_learnt",
        "The labels of padding are the pad token and not what no loss counts.",
        "runner/collator.py",
        '"labels": IGNORED',
        '"labels": pad_token_id',
        tests=("tests/test_collator.py::test_buckets_pad_each_part_with_what_means_nothing",),
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
        'undecayed = {} if is_decayed or "weight_decay" not in settings else {"weight_decay": 0.0}',
        "undecayed = {}",
        tests=("tests/test_optimizer.py::test_without_groups_only_biases_and_norms_escape_the_decay",),
    ),
    # --- Checkpoints, resume, health --------------------------------------------------------------
    Defect(
        "rotated_before_sealed",
        "Old checkpoints are deleted before the new one is sealed, so that a kill between them leaves none.",
        "runner/checkpoint.py",
        '            seal(root / f"checkpoint-{state.global_step}")\n'
        "            if self.tell:\n"
        "                self.tell(sealed=state.global_step)\n"
        "            self.rotate(root, state.best_model_checkpoint)\n",
        "            self.rotate(root, state.best_model_checkpoint)\n"
        '            seal(root / f"checkpoint-{state.global_step}")\n'
        "            if self.tell:\n"
        "                self.tell(sealed=state.global_step)\n",
        tests=("tests/test_checkpoint.py::test_older_checkpoints_go_after_the_new_one_is_sealed_and_the_best_stays",),
    ),
    Defect(
        "best_rotated_away",
        "The best checkpoint is deleted with the old ones.",
        "runner/checkpoint.py",
        "safe = [path for path in sealed if best and path.name == Path(best).name]",
        "safe = []",
        tests=(
            "tests/test_checkpoint.py::test_a_finished_run_has_no_more_checkpoints_than_it_may_and_the_best_of_them",
        ),
    ),
    Defect(
        "saved_inside_a_cycle",
        "A checkpoint is taken between two generations, whose rollouts it does not hold.",
        "runner/checkpoint.py",
        "at_boundary = state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps",
        "at_boundary = True",
        tests=("tests/test_checkpoint.py::test_a_save_inside_a_generation_cycle_waits_for_its_end",),
    ),
    Defect(
        "resume_takes_another_value",
        "A field that every step reads is on the list of those that may change between a run and one that goes on.",
        "runner/resume/continuation.py",
        '*("hub_revision", "dataloader_pin_memory"',
        '*("hub_revision", "weight_decay", "dataloader_pin_memory"',
        tests=(
            "tests/test_continuation.py::test_the_list_is_the_one_that_is_written_down",
            "tests/test_continuation.py::test_every_field_of_a_trainer_is_on_the_list_or_refused",
        ),
    ),
    Defect(
        "whole_step_lost",
        "Micro-batches are halved without as many more of them, so that a step sees fewer rows.",
        "runner/resume/amendment.py",
        '"gradient_accumulation_steps": args.gradient_accumulation_steps * parts,',
        '"gradient_accumulation_steps": args.gradient_accumulation_steps,',
        tests=("tests/test_heal.py::test_a_step_sees_the_same_rows_in_smaller_micro_batches",),
    ),
    Defect(
        "alarm_one_step_late",
        "An alarm waits for one step more than its patience.",
        "runner/health.py",
        "if self.count >= self.patience:",
        "if self.count > self.patience:",
        tests=(
            "tests/test_health.py::test_not_finite",
            "tests/test_health.py::test_zero_gradient",
            "tests/test_health.py::test_no_gradient_of_groups_that_are_each_alike_is_no_sickness",
            "tests/test_health.py::test_frozen",
        ),
    ),
    Defect(
        "sick_checkpoint_called_good",
        "The last good step of an alarm that shows a step late is told one step too late.",
        "runner/health.py",
        "healthy=max(0, number - self.patience - self.lag)",
        "healthy=max(0, number - self.patience)",
        tests=("tests/test_health.py::test_each_alarm_says_what_to_type_and_which_checkpoints_are_good",),
    ),
    Defect(
        "infinity_is_healthy",
        "Only NaN is an alarm, and infinity is none.",
        "runner/health.py",
        "for name, value in seen.items() if value is not None and not math.isfinite(value)]",
        "for name, value in seen.items() if value is not None and math.isnan(value)]",
        tests=(
            "tests/test_health.py::test_not_finite",
            "tests/test_health.py::test_a_sick_training_stops_at_the_step_that_shows_it",
        ),
    ),
    # --- Sampling and held-out rows ---------------------------------------------------------------
    Defect(
        "top_p_off_by_one",
        "Top-p leaves out the token that reaches the share.",
        "runner/model/sample.py",
        "probs_BV.cumsum(-1) - probs_BV >= how.top_p",
        "probs_BV.cumsum(-1) >= how.top_p",
        tests=("tests/test_predict.py::test_top_k_and_top_p_leave_out_the_unlikely",),
    ),
    Defect(
        "samples_alike",
        "All samples of a prompt are drawn with the same random numbers.",
        "runner/model/sample.py",
        "default_rng([how.seed, ask.row, ask.sample])",
        "default_rng([how.seed, ask.row])",
        tests=("tests/test_predict.py::test_other_seeds_and_samples_are_other_completions",),
    ),
    Defect(
        "temperature_not_in_logprobs",
        "PPO's sampled log-probabilities are those at temperature 1, and the update's are not.",
        "runner/trainer/rollout.py",
        "logprobs_BV = torch.log_softmax(logits_BV.float() / temperature, -1)",
        "logprobs_BV = torch.log_softmax(logits_BV.float(), -1)",
        tests=(
            "tests/test_rollout.py::test_tokens_are_drawn_as_often_as_their_probability_says",
            "tests/test_rollout.py::test_random_noise_passes_a_chi_square_test",
            "tests/test_rollout.py::test_the_loop_gives_the_log_probabilities_of_unpadded_rows",
            "tests/test_rollout.py::test_an_adapter_takes_part_in_sampling",
        ),
    ),
    Defect(
        "stop_token_dropped",
        "The token that ends a completion is cut off with what stands behind it.",
        "runner/trainer/rollout.py",
        "lengths_B[live[ended]] = step + 1",
        "lengths_B[live[ended]] = max(step, 1)",
        tests=(
            "tests/test_rollout.py::test_the_loop_gives_the_log_probabilities_of_unpadded_rows",
            "tests/test_rollout.py::test_a_completion_ends_with_any_of_the_stop_tokens_and_only_those",
        ),
    ),
    # --- PPO --------------------------------------------------------------------------------------
    Defect(
        "kl_sign",
        "The first estimate of the KL has the wrong sign, and the policy is paid for leaving its reference.",
        "runner/ppo/algorithm.py",
        "        return -log_ratio\n",
        "        return log_ratio\n",
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
        "runner/ppo/algorithm.py",
        "losses_N = torch.maximum(-advantages_N * ratios_N, -advantages_N * clipped_N)",
        "losses_N = torch.minimum(-advantages_N * ratios_N, -advantages_N * clipped_N)",
        tests=("tests/test_ppo.py::test_policy_loss_worked_by_hand",),
    ),
    Defect(
        "score_one_token_early",
        "A score is earned by the token before the last one.",
        "runner/ppo/scoring.py",
        "else [len(tokens) - 1]",
        "else [max(0, len(tokens) - 2)]",
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
        "runner/ppo/scoring.py",
        "earned = weight * torch.tensor(values, dtype=torch.float32)",
        "earned = torch.tensor(values, dtype=torch.float32)",
        tests=(
            "tests/test_score.py::test_rewards_add_up_with_their_weights_and_none_does_not_apply",
            "tests/test_score.py::test_a_reward_per_token_or_per_step_lands_where_it_was_earned",
        ),
    ),
    Defect(
        "logprob_of_next_token",
        "The log-probability of a token is read one place too late.",
        "runner/ppo/batching.py",
        "range(start + prompt - 1, start + prompt - 1 + count)",
        "range(start + prompt, start + prompt + count)",
        tests=(
            "tests/test_ppo.py::test_at_first_the_policy_is_its_reference_and_every_ratio_one",
            "tests/test_ppo.py::test_a_reference_of_the_callers_is_looked_at",
            "tests/test_ppo.py::test_an_adapter_that_the_model_came_with_is_the_reference",
            "tests/test_ppo.py::test_a_step_follows_the_gradient_of_the_loss_as_it_is_written",
        ),
    ),
    Defect(
        "memory_not_restored",
        "The adaptive KL coefficient and the statistics of scores begin anew on a resume.",
        "runner/ppo/algorithm.py",
        "        if path:\n            self.running = RunningStats(",
        "        if path is True:\n            self.running = RunningStats(",
        slow=(
            "tests/test_ppo_training.py::test_the_newest_checkpoint_is_found",
            "tests/test_ppo_training.py::test_a_resumed_training_ends_with_the_same_bits",
        ),
    ),
    # --- Data -------------------------------------------------------------------------------------
    Defect(
        "chosen_and_rejected_swapped",
        "Of a pair that is taken apart the rejected answer is called good.",
        "runner/dataset/convert.py",
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
        "runner/dataset/convert.py",
        '    while shared and chosen[shared - 1]["role"] == "assistant":\n        shared -= 1\n',
        "",
        tests=("tests/test_convert.py::test_a_prompt_never_ends_with_the_assistant",),
    ),
    Defect(
        "rows_numbered_in_their_batch",
        "A bad row is told by its place in a batch or among the shuffled rows, and not by that in the source.",
        "runner/dataset/load.py",
        "[places[number] for number in numbers]",
        "list(range(len(numbers)))",
        tests=("tests/test_dataset.py::test_bad_rows_have_the_number_that_they_have_in_the_source",),
    ),
    Defect(
        "csv_na_is_null",
        "The text NA in a csv file is read as nothing.",
        "runner/dataset/disk.py",
        '"csv": {"na_filter": False},',
        '"csv": {},',
        tests=("tests/test_dataset.py::test_text_in_csv_stays_as_it_is_written",),
    ),
    Defect(
        "limit_before_shuffle",
        "The first rows are taken and then shuffled, and not drawn from all of them.",
        "runner/dataset/load.py",
        "np.random.default_rng(seed).permutation(len(rows))[:count]",
        "np.random.default_rng(seed).permutation(count)",
        tests=("tests/test_dataset.py::test_training_rows_are_shuffled_before_the_limit",),
    ),
    Defect(
        "mixture_stops_early",
        "A mixture ends when its smallest part has been seen, and throws the rest of the others away.",
        "runner/dataset/mix.py",
        'stopping_strategy="all_exhausted"',
        'stopping_strategy="first_exhausted"',
        tests=(
            "tests/test_dataset.py::test_weights_are_the_shares_and_small_parts_repeat",
            "tests/test_dataset.py::test_streams_mix",
        ),
    ),
    Defect(
        "weightless_tokens_counted",
        "Tokens that weigh nothing stay in the mask, so that averages are too small.",
        "runner/dataset/weigh.py",
        "new[name] = batch[name] * (placed != 0)",
        "new[name] = batch[name]",
        tests=("tests/test_weigh.py::test_tokens_that_weigh_nothing_leave_the_mask",),
    ),
    # --- Models, templates, rewards, metrics, trackers --------------------------------------------
    Defect(
        "adapter_without_base",
        "An adapter is saved without the name of the base that it belongs on.",
        "runner/model/adapter.py",
        "    if base is not None:\n        config.base_model_name_or_path, config.revision = base, revision\n",
        "",
        tests=("tests/test_peft.py::test_the_written_adapter_names_its_base_and_the_one_in_memory_keeps_its_own",),
    ),
    Defect(
        "reference_adapter_saved",
        "The copy of an adapter that a trainer keeps as its reference is written beside it.",
        "runner/model/adapter.py",
        '"selected_adapters": ["default"]',
        '"selected_adapters": None',
        tests=("tests/test_peft.py::test_the_copy_that_a_trainer_keeps_as_reference_is_not_written",),
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
        "runner/reward/panel.py",
        "if number is not None and not math.isfinite(number):",
        "if number is not None and math.isnan(number):",
        tests=("tests/test_reward_panel.py::test_what_is_no_reward_is_told_with_its_row_and_prompt",),
    ),
    Defect(
        "swallowed_time_limit",
        "A reward that swallows the exception of its time limit passes.",
        "runner/reward/limit.py",
        "    if limit.rung:\n        raise late()\n",
        "",
        tests=("tests/test_reward_panel.py::test_a_hang_is_told_in_time",),
    ),
    Defect(
        "one_none_is_a_fault",
        "A row is refused where any reward does not apply, and not only where none does.",
        "runner/reward/panel.py",
        "if all(value is None for value in values)]",
        "if any(value is None for value in values)]",
        tests=(
            "tests/test_reward_panel.py::test_a_row_that_no_reward_applies_to_is_told",
            "tests/test_reward_panel.py::test_one_reward_that_applies_is_enough_and_batches_are_not_mixed_up",
        ),
    ),
    Defect(
        "ties_are_lost_pairs",
        "Equal scores share the lowest of their ranks, so that a tie counts as a lost pair.",
        "runner/metric/binary.py",
        "(start + 1 + stop) / 2",
        "(start + 1)",
        tests=(
            "tests/test_metric.py::test_the_area_by_hand",
            "tests/test_metric.py::test_the_area_by_ranks_is_that_over_all_pairs",
            "tests/test_metric.py::test_grouped_auc_leaves_out_and_counts_groups_of_one_kind",
        ),
    ),
    Defect(
        "tracker_id_of_each_start",
        "A run has another id for its tracker each time it goes on.",
        "runner/tracker/variable.py",
        "        write_json(path, known)\n",
        "",
        tests=("tests/test_tracker.py::test_a_folder_keeps_its_id_and_another_one_has_another",),
    ),
    # --- Reports ----------------------------------------------------------------------------------
    Defect(
        "population_deviation",
        "The deviation over seeds is that of a population, and too small for a few of them.",
        "runner/report/sweep.py",
        "from statistics import fmean, stdev\n",
        "from statistics import fmean\nfrom statistics import pstdev as stdev\n",
        tests=("tests/test_sweep_report.py::test_seeds_become_a_mean_and_a_spread",),
    ),
    Defect(
        "worst_is_best",
        "Settings are ranked upside down.",
        "runner/report/sweep.py",
        "(-mean if objective.maximise else mean)",
        "(mean if objective.maximise else -mean)",
        tests=(
            "tests/test_sweep_report.py::test_ties_and_close_calls_are_told",
            "tests/test_sweep_report.py::test_one_lucky_seed_does_not_beat_several",
            "tests/test_sweep_report.py::test_the_objective_can_be_chosen_and_turned",
            "tests/test_sweep_report.py::test_the_objective_is_that_of_the_configuration",
        ),
    ),
    Defect(
        "page_without_escape",
        "What stands in a run folder becomes a part of the page of a report.",
        "runner/report/page.py",
        "autoescape=True",
        "autoescape=False",
        tests=("tests/test_sweep_report.py::test_nothing_from_a_folder_is_taken_for_html",),
    ),
    Defect(
        "lucky_seed_wins",
        "A setting with a single seed competes with those that have several.",
        "runner/report/sweep.py",
        "return several or scored",
        "return scored",
        tests=("tests/test_sweep_report.py::test_one_lucky_seed_does_not_beat_several",),
    ),
    # --- Forecast, rehearsal ----------------------------------------------------------------------
    Defect(
        "rehearsal_skips_batch_sizes",
        "Runs that differ in a batch size are rehearsed as one.",
        "runner/rehearsal/cast.py",
        r'isinstance(value, int) and re.search(rf"\.({LENGTHS})$", path)',
        r"isinstance(value, int)",
        tests=("tests/test_rehearse.py::test_a_batch_size_is_no_mere_number",),
    ),
    # --- Importers --------------------------------------------------------------------------------
    Defect(
        "importer_drops_a_key",
        "Keys of another tool that nobody has a rule for are passed over without a word.",
        "runner/dialect/draft.py",
        "yield key, self.take(key) if value is not None else None",
        "yield key, None",
        tests=(
            "tests/test_import.py::test_axolotl_qlora",
            "tests/test_import.py::test_axolotl_dpo",
            "tests/test_import.py::test_axolotl_grpo_leaves_code_of_the_users_own_to_the_command_line",
            "tests/test_import.py::test_axolotl_chats",
        ),
    ),
    Defect(
        "imported_beta_misplaced",
        "The beta of Axolotl is written as the trainer's own field where the whole menu sweeps kl_coef.",
        "runner/dialect/axolotl.py",
        'if draft.choices["trainer"] in ("dpo", "kto", "grpo"):',
        "if not draft.choices:",
        tests=(
            "tests/test_import.py::test_axolotl_dpo",
            "tests/test_import.py::test_axolotl_grpo_leaves_code_of_the_users_own_to_the_command_line",
        ),
    ),
    # --- Commands ---------------------------------------------------------------------------------
    Defect(
        "export_through_a_link",
        "An export is written through a link that stands in its place.",
        "runner/command/export.py",
        "if folder.is_symlink() or (folder.exists() and not _is_replaceable(folder)):",
        "if folder.exists() and not _is_replaceable(folder):",
        tests=("tests/test_export.py::test_a_link_in_the_place_of_an_export_is_left",),
    ),
    Defect(
        "pushed_in_public",
        "An upload makes a public repository unless it is told otherwise.",
        "runner/command/export.py",
        'private = is_yes(options, "private", default=True)',
        'private = is_yes(options, "private", default=False)',
        tests=("tests/test_export.py::test_pushing_is_asked_for_private_and_without_what_is_ours",),
    ),
    Defect(
        "cut_rows_overlooked",
        "A row that is as long as the limit lets it be counts as cut.",
        "runner/inspection.py",
        "if self.limit and row.length > self.limit]",
        "if self.limit and row.length >= self.limit]",
        tests=("tests/test_preview.py::test_a_row_as_long_as_the_limit_is_whole",),
    ),
)
