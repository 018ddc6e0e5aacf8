"""Recovery of a run that is sick, or out of memory.

It goes on, adjusted, from its last good checkpoint, or ends.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from transformers import Trainer, TrainingArguments

from runner.config.experiment import Experiment
from runner.errors import EnvironmentFault, Fault, RunnerError, SickRun
from runner.generate.padding import TOKENS_PER_PASS
from runner.io.files import JsonObject, remove, write_json
from runner.run import Run, write_manifest
from runner.run.adjustments import (
    FILE,
    HALVING,
    ROLLBACK,
    count_halvings,
    count_of,
    in_words,
    is_out_of_memory,
    read_adjustments,
)
from runner.run.seal import last_checkpoint, sealed_checkpoints, step_of
from runner.schema import upstream
from runner.schema.trainer_args import TrainerArgs
from runner.training.components.types import Components
from runner.training.micro_batch import likelihood_share

log = logging.getLogger(__name__)
TRAIN_SIZE = "per_device_train_batch_size"
EVAL_SIZE = "per_device_eval_batch_size"
Adjustment: TypeAlias = JsonObject  # as the run folder holds it


def adjust(run: Run, components: Components, error: Exception) -> None:
    """Write down what the next attempt does otherwise; raise the error where there is none.

    Of several processes the one that failed writes it, and all end: only new ones, started from
    outside, can meet.
    """
    trainer = components.trainer
    if not isinstance(error, RunnerError) and not is_out_of_memory(error):
        # Weights that are no numbers may be behind it; they cannot be sampled from, for one.
        error = components.health.sickness_behind(trainer.state.global_step + 1) or error
    adjustment: Adjustment | None = None
    if isinstance(error, SickRun) and error.healthy is not None:
        if trainer.is_world_process_zero():
            _delete_unhealthy(run, error.healthy)
        good = last_checkpoint(run, clean=False)
        sickness = _with_good_checkpoint(run, error, good)
        if _may_roll_back(run, sickness):
            first = sickness.faults[0]
            adjustment = _adjustment(ROLLBACK, trainer, good, f"{first.where}: {first.found}")
        error = sickness
    elif is_out_of_memory(error):
        adjustment = _halve(run, error, components)
    if adjustment is None:
        raise error
    if trainer.is_world_process_zero() or adjustment["kind"] == HALVING:
        # With what this process knew when it began: another may have written the same meanwhile.
        write_json(run.folder / FILE, {"adjustments": [*components.adjustments, adjustment]})
        record_adjustments(run)
    log.warning("%s", in_words(adjustment))
    if trainer.args.world_size > 1:
        raise error


def record_adjustments(run: Run) -> None:
    """Note them in the manifest and, in a line each, in the status."""
    adjustments = read_adjustments(run.folder)
    if adjustments:
        run.set_status(adjustments=[in_words(adjustment) for adjustment in adjustments])
        write_manifest(run, adjustments=adjustments)


def _delete_unhealthy(run: Run, healthy: int) -> None:
    """Delete the checkpoints after the last healthy step."""
    good_steps = []
    for path in sealed_checkpoints(run.checkpoints):
        if step_of(path) > healthy:
            remove(path)
        else:
            good_steps.append(step_of(path))
    run.set_status(sealed=max(good_steps, default=None))


def _with_good_checkpoint(run: Run, error: SickRun, good: Path | None) -> SickRun:
    """The sickness, with the last good checkpoint in its faults."""
    place = f"{run}/checkpoints/{good.name}" if good else "the start"
    faults = []
    for fault in error.faults:
        found = f"{fault.found}; the last good checkpoint is {place}"
        faults.append(replace(fault, found=found))
    return SickRun(faults, error.healthy, error.curable)


def _may_roll_back(run: Run, error: SickRun) -> bool:
    rollbacks = count_of(read_adjustments(run.folder), ROLLBACK)
    wanted = run.experiment.on_sick == ROLLBACK and error.curable
    return wanted and rollbacks < run.experiment.attempts


def _adjustment(kind: str, trainer: Trainer, good: Path | None, cause: str) -> Adjustment:
    """An adjustment of a run that goes on from its last good checkpoint, or from the start."""
    return {
        "kind": kind,
        "step": trainer.state.global_step,
        "from_step": step_of(good) if good else 0,
        "cause": cause,
    }


def _halve(run: Run, error: Exception, components: Components) -> Adjustment:
    """The halving of a batch that did not fit; EnvironmentFault where it cannot be halved."""
    args = components.args
    trainer = components.trainer
    if trainer.is_measuring:
        size = EVAL_SIZE
        smaller = halve_evaluation(args)
    else:
        size = TRAIN_SIZE
        smaller = halve_training(run.experiment.trainer.args, args)
    halvings = count_halvings(components.adjustments, size)
    has_attempts = halvings < run.experiment.attempts
    if smaller is None or not has_attempts or run.experiment.on_memory == "stop":
        raise EnvironmentFault(
            _out_of_memory(error, size, getattr(args, size), halvings)
        ) from error
    good = last_checkpoint(run, clean=False)
    what = "an evaluation" if trainer.is_measuring else "a step"
    halving = _adjustment(HALVING, trainer, good, f"out of memory in {what}")
    halving["args"] = smaller
    term = None if trainer.is_measuring else find_batch_term(trainer)
    if term:
        halving["note"] = f"its steps differ from there on: {term}"
    return halving


def _out_of_memory(error: Exception, size: str, rows: int, halvings: int) -> Fault:
    """The fault of a batch that does not fit and is not halved once more."""
    text = str(error)
    cause = text.splitlines()[0] if text else type(error).__name__
    found = f"{cause}, with trainer.args.{size}={rows}"
    if halvings:
        found += f", {halvings} times halved"
    fix = "trainer.args.max_length=<less>, peft=lora, model.dtype=bfloat16, or a smaller model="
    if rows > 1:
        fix = f"on_memory=halve attempts={halvings + Experiment.attempts}, or {fix}"
    return Fault(
        where="memory",
        found=found,
        expected="a smaller step",
        fix=fix,
    )


def find_batch_term(trainer: Trainer) -> str | None:
    """The part of a loss that belongs to a micro-batch as a whole; None without one.

    With it, smaller micro-batches take other steps.
    """
    loss_types = getattr(trainer, "loss_types", ())
    mean_over_tokens = "a part of the loss is a mean over the tokens of a micro-batch"
    if likelihood_share(trainer) or "sft" in loss_types:
        return mean_over_tokens
    if any(loss_type in upstream.SORTED_LOSSES for loss_type in loss_types):
        return "the loss sorts the pairs of a micro-batch"
    if getattr(trainer, "calculate_KL", False):
        return "the KL of the loss is a mean over the rows of a micro-batch"
    if getattr(trainer, "aux_loss_enabled", False):
        return "the balance of experts is that of a micro-batch"
    has_bonus = bool(getattr(trainer.args, "entropy_coef", None))
    if has_bonus or getattr(trainer.args, "loss_type", None) == "bnpo":
        return mean_over_tokens
    return None


def halve_training(configured: TrainerArgs, args: TrainingArguments) -> dict[str, int] | None:
    """The arguments of a step that sees the same rows in smaller micro-batches.

    None where they cannot be smaller.
    ``configured`` are those of the config, ``args`` the trainer's own with its defaults. A batch is
    cut by its smallest divisor, into halves where it is even, because only then the rows of a step
    stay the same. Sampled batches stay whole, because groups of completions must not be torn; PPO
    also samples and reads fewer rows at a time.
    """
    size = args.per_device_train_batch_size
    parts = _smallest_divisor(size)
    # KTO compares the rows of a batch with each other.
    min_rows = 2 if hasattr(args, "desirable_weight") else 1
    if parts == 1 or size // parts < min_rows:
        return None
    changes: dict[str, int] = {}
    changes["per_device_train_batch_size"] = size // parts
    changes["gradient_accumulation_steps"] = args.gradient_accumulation_steps * parts
    if configured.get("steps_per_generation"):
        changes["steps_per_generation"] = args.steps_per_generation * parts
    if hasattr(args, "max_tokens_per_micro_batch"):  # PPO, whose passes have sizes of their own
        passes = {"local_rollout_forward_batch_size": args.local_rollout_forward_batch_size}
        tokens = args.max_tokens_per_micro_batch
        if not tokens and args.device.type == "cpu":
            tokens = TOKENS_PER_PASS
        if tokens:
            passes["max_tokens_per_micro_batch"] = tokens
        for name, pass_size in passes.items():
            changes[name] = max(1, pass_size // parts)
    return changes


def _smallest_divisor(size: int) -> int:
    """The smallest divisor of a size above 1; 1 for the size 1."""
    for divisor in range(2, size + 1):
        if size % divisor == 0:
            return divisor
    return 1


def halve_evaluation(args: TrainingArguments) -> dict[str, int] | None:
    """A smaller batch of evaluation that holds whole groups of completions; None without one."""
    of_evaluation = getattr(args, "num_generations_eval", None)
    group = of_evaluation or getattr(args, "num_generations", None) or 1
    for size in range(args.per_device_eval_batch_size // 2, 0, -1):
        if size * args.world_size % group == 0:
            return {EVAL_SIZE: size}
    return None
