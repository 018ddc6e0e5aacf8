"""Trains a run, or goes on with it: run folder -> trained model; measure, save, and say what came out."""

import contextlib
import logging
import math
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from accelerate.utils import broadcast_object_list, gather_object, release_memory, set_seed
from huggingface_hub import RepoUrl
from peft import PeftModel
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.integrations import unset_hf_deepspeed_config
from trl import RichProgressCallback

from runner.command.export import open_repository, push
from runner.config import rank, world_size
from runner.config.menu import read_options
from runner.config.override import dotted_key
from runner.dataset.form import fits
from runner.dataset.loaded_rows import fingerprint, forget_damaged
from runner.errors import ConfigError, DataError, EnvironmentFault, Fault, FolderError, RunnerError
from runner.io.files import read_json, shipped, sync_rows, write_json
from runner.io.temporary import temporarily
from runner.io.terminal import coloured, line_of
from runner.io.visible import to_visible
from runner.model.adapter import write_adapter
from runner.model.chat import tokenizer_hash
from runner.model.encoding import stop_ids
from runner.model.load import read_adapter
from runner.model.saved import find_missing, gather_weights, is_partitioned
from runner.report.facts import split_command, words_of
from runner.report.number import format_duration, plural
from runner.report.page import completions_by_step
from runner.report.plot_run import write_plots
from runner.report.ranking import choose_objective, score_rows
from runner.report.table import score_table
from runner.report.verdict import describe_decline, list_changes
from runner.run import Run, add_notes, write_manifest
from runner.run.continuation import EACH_STEP, ONCE, begin_from, copy_history, other_run
from runner.run.disk import check_space
from runner.run.history import SAMPLE_FILES
from runner.run.inputs import check_fingerprints, find_other_facts, read_fingerprints
from runner.run.key import made_of_batch
from runner.run.record import RunRecord, read_run
from runner.run.seal import last_checkpoint, rotate, seal, sealed_hashes, step_of
from runner.tracker.callback import trackers_closed
from runner.training.callback.at_start import AtStart
from runner.training.callback.stop import StopRequest
from runner.training.checkpoint import all_steps_taken, disk_needed, gather_long, restore
from runner.training.components import build_components
from runner.training.components.evaluation import HeldOutMetrics, check_objective, held_out_scores
from runner.training.components.model import has_base, path_of, policy_of
from runner.training.components.types import Components
from runner.training.inspection import inspect_training
from runner.training.inspection_faults import find_faults, find_notes
from runner.training.recovery import adjust, record_adjustments

log = logging.getLogger(__name__)

SHOWN_SAMPLES = 3  # held-out prompts whose answers before and after are shown at the end
# by one that goes on from it
KEPT = ("model", "dataset", "peft", "quant", "template", "allow", "output_root")


def train(run: Run, stop: StopRequest) -> None:
    """Train, or go on, until the run is finished, if need be as it has adjusted itself; Interrupted after a signal."""
    _open_repository(run)
    while True:
        try:
            components = build_components(run, stop)
        except (pa.ArrowInvalid, OSError):
            if not forget_damaged():
                raise
            components = build_components(run, stop)
        try:
            _check_shared(run)
            _train(run, components, stop)
            return
        except Exception as error:
            if stop.number is not None:
                raise
            adjust(run, components, error)
        del components  # so that its memory is there for the next attempt
        release_memory()


def _check_shared(run: Run) -> None:
    if world_size() == 1:
        return
    marker = run.folder / f".{os.urandom(8).hex()}"
    if rank() == 0:
        marker.touch()
    name, first = broadcast_object_list([marker.name, str(run.folder)])
    is_seen = (run.folder / name).exists()
    lost = gather_object(
        [] if is_seen else [f"{run.folder} on {platform.node()}, which is not {first} of rank 0"]
    )
    if rank() == 0:
        marker.unlink(missing_ok=True)
    if lost:
        raise EnvironmentFault(
            Fault(
                where="output_root",
                found=f"{lost[0]}",
                expected="one folder for all processes",
                fix="=<a folder that all machines see>, and the same command on each",
            )
        )


def _train(run: Run, components: Components, stop: StopRequest) -> None:
    """Train from the newest checkpoint, from one of another run, or from the start model, and finish the run."""
    began = time.monotonic()
    trainer, rows = components.trainer, components.train_rows
    is_first = trainer.is_world_process_zero()
    # one process reads all of it
    (newest,) = gather_long(lambda: [last_checkpoint(run)] if is_first else [])
    other = other_run(run.experiment) if newest is None else None
    source = other or (run if newest else None)
    if is_first and source is None and (step := run.status()["step"]):
        print(
            f"begins    again: it had come to step {step}, and no checkpoint was saved", flush=True
        )
    before = ((source.manifest() if source else {}).get("hardware") or {}).get("processes")
    _start(run, components, source)
    if source is None:
        node, ends = run.cfg["trainer"], stop_ids(policy_of(trainer))
        seen = inspect_training(trainer, rows, form=node["form"], head=node["head"], ends=ends)
        if faults := find_faults(seen, run.experiment.tolerate):
            if not is_first:
                # the first process tells, and ends the others
                trainer.accelerator.wait_for_everyone()
            raise ConfigError(faults)
        if is_first:
            add_notes(run, find_notes(seen))
    with trackers_closed(components.trackers, is_first=is_first):
        checkpoint = newest
        if other:
            checkpoint = begin_from(other, components.seal.cycle_steps)
            if is_first:
                copy_history(run, other)
                print(f"begins    with {checkpoint.name} of {other}", flush=True)
            trainer.accelerator.wait_for_everyone()
        elif newest and is_first:
            print(f"resumes   from step {step_of(newest)} ({newest.name})", flush=True)
        if checkpoint and is_first and before not in (None, world := components.args.world_size):
            add_notes(run, [f"processes: {before} until step {step_of(checkpoint)}, then {world}"])
        if newest and all_steps_taken(newest):
            restore(trainer, newest)
        else:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        # whose bars are closed, also for an evaluation
        trainer.remove_callback(RichProgressCallback)
        if stop.number is not None:
            raise stop.error()
        if trainer.state.global_step == 0:
            raise DataError(_no_steps(run, components.args, len(rows)))
        _finish(run, components, stop, time.monotonic() - began)


def _start(run: Run, components: Components, source: Run | None) -> None:
    """Check rows, room, and that a ``source`` was made of the same; record the start, have the start model measured."""
    args, trainer, rows = components.args, components.trainer, components.train_rows
    if hasattr(rows, "__len__") and len(rows) < _rows_per_step(args):
        raise DataError(_no_steps(run, args, len(rows)))
    if trainer.is_world_process_zero():
        facts, before = _facts(components), run.manifest()
        FolderError.refuse(find_other_facts(source.manifest(), facts) if source else ())
        if source and source != run:
            add_notes(
                run,
                [
                    f"begun with a checkpoint of {source}: {line}"
                    for line in check_fingerprints(source)
                ],
            )
        fingerprints = read_fingerprints(run.cfg, before.get("inputs"))
        reason = find_process_dependence(trainer, run.cfg)
        write_manifest(
            run,
            **facts,
            inputs=fingerprints,
            starts=before.get("starts", 0) + 1,
            of_processes=reason,
        )
        record_adjustments(run)
        check_space(run)

    def measure_before() -> None:
        """Write the scores of the start model; again where a run begins again, or its log would lack them."""
        model, kind = trainer.model_wrapped, type(trainer.model_wrapped).__name__
        is_sharded = {"fsdp": isinstance(model, FSDPModule | FullyShardedDataParallel)}
        is_sharded["deepspeed"] = kind == "DeepSpeedEngine"
        for name in (
            name for name, is_so in is_sharded.items() if getattr(trainer.args, name) and not is_so
        ):
            # the library said no word
            raise RunnerError(
                Fault(
                    where=f"trainer.args.{name}",
                    found=f"set, and the model that was prepared is a {kind}",
                    expected="a model that is sharded",
                    fix="=null",
                )
            )
        if trainer.state.global_step == 0:
            _sample_training(components)
            scores = held_out_scores(trainer)
            check_objective(run.cfg.get("objective"), scores)
            if trainer.is_world_process_zero():
                write_json(run.folder / "scores.json", {"before": scores})
        else:
            forget_other_best(trainer.state, trainer.args)

    trainer.add_callback(AtStart(measure_before))


def forget_other_best(state: TrainerState, args: TrainingArguments) -> None:
    """Drop the best checkpoint so far where another figure chose it, as in runs that an earlier version began."""
    key = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
    if state.best_metric is None or any(key in row for row in state.log_history):
        return
    log.warning(
        "the best checkpoint so far was chosen by another figure than %s, and is forgotten: the best is that of the "
        "steps from here on",
        key,
    )
    state.best_metric = state.best_model_checkpoint = state.best_global_step = None


def _sample_training(components: Components) -> None:
    """Write answers to the first training prompts where no row is held out."""
    measure, trainer = components.trainer.hooks.measure, components.trainer
    if isinstance(measure, HeldOutMetrics) and trainer.eval_dataset is None and measure.is_online:
        measure.sample_training(trainer, components.train_rows)


def _finish(run: Run, components: Components, stop: StopRequest, seconds: float) -> None:
    """Measure again, save what others can load, draw the curves, and only then say finished."""
    trainer = components.trainer
    # Online trainers sample what they measure here; a run that was stopped after its last step has
    # other numbers left.
    set_seed(trainer.args.seed, device_specific=True)
    _sample_training(components)
    scores = (read_json(run.folder / "scores.json") or {}) | {"after": held_out_scores(trainer)}
    run.check_there()
    if trainer.is_world_process_zero():
        write_json(run.folder / "scores.json", scores)
    trainer.accelerator.wait_for_everyone()  # or what another process judges would lack them
    components.health.conclude(trainer.args, trainer.state, list_changes(read_run(run.folder)))
    with contextlib.ExitStack() as stack:
        # else whoever loads the model would generate without a cache
        if trainer.hooks.use_cache is not None:
            stack.enter_context(
                temporarily(policy_of(trainer).config, use_cache=trainer.hooks.use_cache)
            )
        save_model(run, trainer)
    run.check_there()
    if not trainer.is_world_process_zero():
        return
    write_plots(read_run(run.folder))
    write_manifest(run, files=sealed_hashes(run.model))
    if stop.number is not None:  # a library has caught it, and what it left out nobody knows
        raise stop.error()
    rotate(run.checkpoints, components.seal.keep, trainer.state.best_model_checkpoint)
    _push(run, stop)
    sync_rows(run.folder)
    run.set_status(
        "finished", step=trainer.state.global_step, cause=describe_decline(read_run(run.folder))
    )
    print(_closing(run, seconds))


def save_model(run: Run, trainer: Trainer) -> None:
    """Put into ``model/`` what ``from_pretrained`` or PeftModel loads, whole or not at all, without any pickle."""
    new, is_first = run.folder / ".model.new", trainer.is_world_process_zero()
    model, policy = trainer.accelerator.unwrap_model(trainer.model), policy_of(trainer)
    if is_first:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()  # nobody else's: a link there would be followed
    trainer.accelerator.wait_for_everyone()  # or what another process writes would be removed
    # Gathered by all processes, whatever form the checkpoints have; PPO knows the parts of its
    # model.
    weights, saves_itself, tuner = None, policy is not model, getattr(policy, "own_tuner", None)
    if trainer.is_fsdp_enabled and not saves_itself:
        weights = trainer.accelerator.get_state_dict(trainer.model)
    elif trainer.is_fsdp_enabled or (isinstance(policy, PeftModel) and is_partitioned(policy)):
        weights = gather_weights(policy, keep=is_first)
    if saves_itself or (weights is None and not tuner and not isinstance(model, PeftModel)):
        trainer.save_model(str(new))
    # or what another process still writes would not be there
    trainer.accelerator.wait_for_everyone()
    if not is_first:
        return
    if tuner:
        tuner.save_pretrained(policy, new)
    elif isinstance(policy, PeftModel):
        _save_adapter(run, policy, new, weights)
    elif weights is not None and not saves_itself:
        once = {
            name: weight
            for name, weight in weights.items()
            if name not in policy.all_tied_weights_keys
        }
        policy.save_pretrained(new, state_dict=once)
    trainer.processing_class.save_pretrained(new)
    # ZeRO-3 would split what is loaded now over processes that have left
    unset_hf_deepspeed_config()
    missing = [] if tuner else find_missing(policy, new, weights)
    missing += (
        find_missing(critic, new / "value_model")
        if (critic := getattr(model, "value_model", None))
        else []
    )
    if missing:
        names = ", ".join(missing[:3])
        raise RunnerError(
            Fault(
                where=f"{run.model}",
                found=f"{len(missing)} weights were not saved: {names}",
                expected="every weight of the model",
                fix=f"python -m runner.launch {run}  (which saves again what the newest checkpoint "
                "holds)",
            )
        )
    own = ("output_dir", "logging_dir", "run_name")  # of this run alone; transformers masks tokens
    args = {name: value for name, value in trainer.args.to_dict().items() if name not in own}
    (new / "training_args.bin").unlink(missing_ok=True)
    write_json(new / "training_args.json", args)
    seal(new)
    shutil.rmtree(run.model, ignore_errors=True)
    new.rename(run.model)


def _save_adapter(
    run: Run, model: PeftModel, folder: Path, weights: Mapping[str, Any] | None
) -> None:
    """Write the adapter with the base that the config names, so that it loads wherever that can be found."""
    if not has_base(run.experiment):
        for file in folder.glob("adapter_*"):
            file.unlink()
        model.merge_and_unload(adapter_names=["default"]).save_pretrained(folder)
        return
    path, revision = path_of(run.experiment)["path"], run.cfg["model"].get("revision")
    if loaded := read_adapter(path, revision):
        path, revision = loaded.base_model_name_or_path, loaded.revision
    write_adapter(model, folder, base=shipped(path), revision=revision, state_dict=weights)


def _open_repository(run: Run) -> RepoUrl | None:
    """The repository for ``model/`` where ``push_to_hub`` was asked for; private unless the config says otherwise."""
    args = run.cfg["trainer"]["args"]
    if not args.get("push_to_hub") or rank():
        return None
    name = args.get("hub_model_id") or run.folder.parent.name
    try:
        return open_repository(name, private=args.get("hub_private_repo") is not False)
    except EnvironmentFault as error:
        where = "trainer.args.push_to_hub"
        fix = f"hf auth login, then the same words again, or {where}=false"
        raise EnvironmentFault(replace(error.faults[0], where=where, fix=fix)) from error


def _push(run: Run, stop: StopRequest) -> None:
    args = run.cfg["trainer"]["args"]
    try:
        if repository := _open_repository(run):
            push(run.model, repository)
            print(f"pushed to {repository}")
    except EnvironmentFault as error:
        if stop.number is not None:  # that is what the upload failed of
            raise stop.error() from error
        name = args.get("hub_model_id") or run.folder.parent.name
        named = name if "/" in name else f"<your account>/{name}"
        words = " private=false" if args.get("hub_private_repo") is False else ""
        words += " trust_remote_code=true" if run.cfg["model"].get("trust_remote_code") else ""
        fix = f"python -m runner export {shlex.quote(str(run))} push={named}{words}"
        failed = replace(error.faults[0], where="trainer.args.push_to_hub", fix=fix)
        add_notes(run, [f"the run is finished, and its model was not pushed\n{failed}"])


def _facts(components: Components) -> dict[str, Any]:
    trainer, args, model = components.trainer, components.args, policy_of(components.trainer)
    counts = [
        (parameter.numel(), parameter.requires_grad) for parameter in trainer.model.parameters()
    ]
    return {
        "disk": disk_needed(trainer, components.seal),
        "reference": {True: ONCE, False: EACH_STEP, None: None}[
            vars(args).get("precompute_ref_log_probs")
        ],
        "tokenizer": {"fingerprint": tokenizer_hash(components.tokenizer)},
        "data": {
            "train": describe_rows(components.train_rows),
            "eval": describe_rows(components.held_out),
        },
        "model": {
            "path": model.config._name_or_path,
            "commit": getattr(model.config, "_commit_hash", None),
            "parameters": sum(count for count, _ in counts),
            "trainable": sum(count for count, trainable in counts if trainable),
            "dtype": str(model.dtype),
        },
        "hardware": {
            "machine": platform.platform(),
            "processors": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "devices": [
                torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
            ],
            "processes": args.world_size,
        },
    }


def find_process_dependence(trainer: Trainer, cfg: Mapping[str, Any]) -> str:
    """Why another number of processes that share a ``batch`` would take other steps; empty where they would not."""
    # PPO has no dropout, and takes whole batches
    if not made_of_batch(cfg) or cfg["trainer"]["form"] == "prompt":
        return ""
    for name, module in trainer.accelerator.unwrap_model(trainer.model).named_modules():
        for key, value in vars(module).items():
            if (key == "p" or "drop" in key) and isinstance(value, float) and value > 0:
                return f"{name or 'the model'} has a dropout of {value}, which each process draws by itself"
    if getattr(trainer.model.config, "output_router_logits", False):
        return "experts are balanced over a micro-batch"
    rows, batch, args = len(trainer.train_dataset), cfg["batch"], trainer.args
    steps = (
        args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * rows / batch)
    )
    if rows % batch and steps > rows // batch:
        return f"{rows} rows are no multiple of the batch of {batch}, and the last of an epoch are shared otherwise"
    return ""


def describe_rows(rows: Any) -> dict[str, Any] | None:
    """The number and the fingerprint of rows, or of each of several sets; None without any."""
    if rows is None:
        return None
    if isinstance(rows, Mapping):
        return {name: describe_rows(part) for name, part in rows.items()}
    return {
        "rows": len(rows) if hasattr(rows, "__len__") else None,
        "fingerprint": fingerprint(rows),
    }


def _rows_per_step(args: TrainingArguments) -> int:
    generated = getattr(args, "generation_batch_size", None)
    return generated // args.num_generations if generated else 1


def _no_steps(run: Run, args: TrainingArguments, rows: int) -> Fault:
    more = (
        "dataset.limit.train=null, or "
        if (run.cfg["dataset"].get("limit") or {}).get("train")
        else ""
    )
    return Fault(
        where="dataset",
        found=f"{rows} training rows",
        expected=f"at least the {_rows_per_step(args)} that one step needs",
        fix=f"{more}a smaller trainer.args.per_device_train_batch_size",
    )


def _closing(run: Run, seconds: float) -> str:
    record = read_run(run.folder)
    steps = plural(record.status["step"], "step")
    lines = [f"{coloured('finished', 'green', sys.stdout)}  {steps} in {format_duration(seconds)}"]
    objective = choose_objective([record])
    score_lines = score_table(record)
    lines += score_lines[:1]  # the titles
    for line, row in zip(score_lines[1:], score_rows(record), strict=False):
        if objective and row.name == objective.name and row.change not in ("", "0"):
            line = coloured(line, "red" if row.change.endswith("worse") else "green", sys.stdout)
        lines.append(line)
    lines += [f"note      {record.cause}"] if record.cause else []
    width = shutil.get_terminal_size((80, 24)).columns - 10
    for prompt in completions_by_step(record)[:SHOWN_SAMPLES]:
        before = prompt.cells[0]
        after = prompt.cells[-1]
        if before.label == "step 0" and after.label != "step 0":
            lines.append(f"sample    {line_of(prompt.text, width, tail=True)}")
            lines.append(f"  before  {line_of(before.sample['completion'], width)}")
            lines.append(f"  after   {line_of(after.sample['completion'], width)}")
    lines += [f"samples   {run}/{name}" for name in SAMPLE_FILES if (run.folder / name).exists()][
        :1
    ]
    lines += [
        f"model     {run}/model",
        f"curves    {run}/plots",
        f"next      {to_visible(_next_command(record))}",
    ]
    return "\n".join(lines)


def _next_command(record: RunRecord) -> str:
    """The command that trains on from this model with what was chosen for it, or else the one that has it answer.

    Nobody is sent on from a model that is worse than the one it began with, or that has learnt
    nothing.
    """
    node, choices = record.cfg["trainer"], record.manifest.get("choices") or {}
    overrides, folders = split_command(words_of(record) or [])
    typed = {dotted_key(word): word for word in overrides}
    form = record.cfg["dataset"].get("form") or (
        node["form"] if node["form"] == "preference" else ""
    )
    follower, left_out = "grpo", r"model\.(path|revision|merge|tokenizer\.(path|revision))"
    if node["head"] == "score":
        follower, left_out = "ppo", ""
    elif node["form"] == "demonstration" and form and fits(form, "preference"):
        follower = "dpo"
    has_rewards = _brings_rewards(choices.get("dataset")) or (
        "dataset" in typed and follower != "grpo"
    )
    has_prompts = node["form"] != "prompt" and form and fits(form, "prompt")
    own = not any(
        (record.run.model / name).exists() for name in ("config.json", "adapter_config.json")
    )
    is_new = str(choices.get("model", "new")).startswith("new")
    if not (has_rewards and has_prompts) or is_new or own or record.cause:
        rows = [] if (record.manifest.get("data") or {}).get("eval") else ["set=train"]
        # its tuner reads what it wrote
        rows += [typed["allow"]] if own and "allow" in typed else []
        return shlex.join(["python", "-m", "runner", "predict", str(record), *rows])
    left_out += (
        r"|peft(\..*)?" if left_out and (record.run.model / "adapter_config.json").exists() else ""
    )
    words = {
        group: f"{group}={choices[group]}" for group in KEPT if choices.get(group, "none") != "none"
    }
    words = (words if "experiment" in typed else {}) | typed
    kept = [
        word
        for key, word in words.items()
        if key.partition(".")[0] in KEPT and not re.fullmatch(left_out, key)
    ]
    start = f"model.path={record}/model"
    kept += ["reward=model", f"reward.{start}"] if follower == "ppo" else [start]
    flags = [flag for folder in folders for flag in ("--config-dir", str(folder))]
    return shlex.join(["python", "-m", "runner", f"trainer={follower}", *kept, *flags])


def _brings_rewards(dataset: str | None) -> bool:
    entries = read_options("dataset").get(dataset or "", {}).get("defaults", [])
    return any(
        "override /reward" in each if isinstance(each, dict) else _brings_rewards(each)
        for each in entries
    )
