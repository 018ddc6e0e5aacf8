"""Recovery of a run that is sick, or out of memory: it goes on, adjusted, from its last good checkpoint, or ends."""

import logging
from dataclasses import replace
from typing import Any

from transformers import Trainer, TrainingArguments

from runner.errors import EnvironmentFault, RunnerError, SickRun, fault
from runner.generate.batch import TOKENS_PER_PASS
from runner.io.files import remove, write_json
from runner.run import Run, write_manifest
from runner.run.adjustments import FILE, HALVING, ROLLBACK, count_of, in_words, is_out_of_memory, read_adjustments
from runner.run.seal import last_checkpoint, sealed_checkpoints, step_of
from runner.schema import upstream
from runner.schema.text import Node
from runner.training.components.types import Components
from runner.training.held_out import likelihood_share

log = logging.getLogger(__name__)
ATTEMPTS = 4  # of either kind, unless the config says otherwise


def adjust(run: Run, components: Components, error: Exception) -> None:
    """Write down what the next attempt does otherwise; raises the error, with all there is to say, if there is none.

    Of several processes the one that failed writes it, and all end: only new ones, started from outside, can meet.
    """
    trainer = components.trainer
    adjustment: dict[str, Any] | None = None
    if not isinstance(error, RunnerError) and not is_out_of_memory(error):
        # Weights that are no numbers may be behind it; they cannot be sampled from, for one.
        error = components.health.sickness_behind(trainer.state.global_step + 1) or error
    if isinstance(error, SickRun) and error.healthy is not None:
        error, adjustment = _of_sickness(run, error, error.healthy, trainer)
    elif is_out_of_memory(error):
        adjustment = _of_memory(run, error, components)
    if adjustment is None:
        raise error
    if trainer.is_world_process_zero() or adjustment["kind"] == HALVING:
        # What this process knew when it began: another one may have written the same meanwhile.
        write_json(run.folder / FILE, {"adjustments": [*components.adjustments, adjustment]})
        record_adjustments(run)
    log.warning("%s", in_words(adjustment))
    if trainer.args.world_size > 1:
        raise error


def record_adjustments(run: Run) -> None:
    """Note them in the manifest and, in a line each, in the status."""
    if adjustments := read_adjustments(run.folder):
        run.set_status(adjustments=list(map(in_words, adjustments)))
        write_manifest(run, adjustments=adjustments)


def _of_sickness(run: Run, error: SickRun, healthy: int, trainer: Trainer) -> tuple[SickRun, dict[str, Any] | None]:
    """The sickness with what is good, and its rollback if any; checkpoints after the last healthy step are deleted."""
    if trainer.is_world_process_zero():
        for path in sealed_checkpoints(run.checkpoints):
            if step_of(path) > healthy:
                remove(path)
        run.set_status(sealed=max(map(step_of, sealed_checkpoints(run.checkpoints)), default=None))
    good = last_checkpoint(run, clean=False)
    place = f"{run}/checkpoints/{good.name}" if good else "the start"
    faults = [replace(each, found=f"{each.found}; the last good checkpoint is {place}") for each in error.faults]
    error = SickRun(faults, healthy, error.curable)
    rollbacks, most = count_of(read_adjustments(run.folder), ROLLBACK), run.cfg.get("attempts", ATTEMPTS)
    if run.cfg.get("on_sick") != ROLLBACK or not error.curable or rollbacks >= most:
        return error, None
    steps = {"step": trainer.state.global_step, "from_step": step_of(good) if good else 0}
    return error, {"kind": ROLLBACK, **steps, "cause": f"{faults[0].where}: {faults[0].found}"}


def _of_memory(run: Run, error: Exception, components: Components) -> dict[str, Any]:
    args, trainer = components.args, components.trainer
    size = upstream.PER_DEVICE_EVAL_BATCH_SIZE if trainer.is_measuring else upstream.PER_DEVICE_TRAIN_BATCH_SIZE
    smaller = halve_evaluation(args) if trainer.is_measuring else halve_training(run.cfg["trainer"]["args"], args)
    times, rows = sum(size in each.get("args", {}) for each in components.adjustments), getattr(args, size)
    if smaller is None or times >= run.cfg.get("attempts", ATTEMPTS) or run.cfg.get("on_memory") == "stop":
        found = f"{str(error).splitlines()[0] if str(error) else type(error).__name__}, with trainer.args.{size}={rows}"
        found += f", {times} times halved" if times else ""
        first = f"on_memory=halve attempts={times + ATTEMPTS}, or " if rows > 1 else ""
        raise EnvironmentFault(fault("training.no_memory", found=found, first=first)) from error
    good = last_checkpoint(run, clean=False)
    steps = {"step": trainer.state.global_step, "from_step": step_of(good) if good else 0}
    cause = f"out of memory in {'an evaluation' if trainer.is_measuring else 'a step'}"
    halving = {"kind": HALVING, **steps, "cause": cause, "args": smaller}
    term = None if trainer.is_measuring else find_batch_term(trainer)
    return halving | ({"note": f"its steps are others from there: {term}"} if term else {})


def find_batch_term(trainer: Trainer) -> str | None:
    """The part of a loss that a micro-batch has as a whole, so that smaller ones take other steps; None without one."""
    if likelihood_share(trainer) or "sft" in getattr(trainer, "loss_types", ()):
        return "a part of the loss is a mean over the tokens of a micro-batch"
    if any(kind in upstream.SORTED_LOSSES for kind in getattr(trainer, "loss_types", ())):
        return "the loss sorts the pairs of a micro-batch"
    if getattr(trainer, "calculate_KL", False):
        return "the KL of the loss is a mean over the rows of a micro-batch"
    if getattr(trainer, "aux_loss_enabled", False):
        return "the balance of experts is that of a micro-batch"
    has_bonus = bool(getattr(trainer.args, upstream.ENTROPY_COEF, None))
    if has_bonus or getattr(trainer.args, upstream.LOSS_TYPE, None) == "bnpo":
        return "a part of the loss is a mean over the tokens of a micro-batch"
    return None


def halve_training(given: Node, args: TrainingArguments) -> dict[str, int] | None:
    """The arguments of a step in smaller micro-batches that sees the same rows; None where they cannot be smaller.

    ``given`` are those of the config, ``args`` the trainer's own with its defaults. A batch is cut by its smallest
    divisor, into halves where it is even, because only then the rows of a step stay the same. Sampled batches stay
    whole, whose groups of completions must not be torn; PPO also samples and reads fewer rows at a time.
    """
    size = args.per_device_train_batch_size
    parts = next((part for part in range(2, size + 1) if size % part == 0), 1)
    pairs_of_a_batch = hasattr(args, upstream.DESIRABLE_WEIGHT)  # KTO compares the rows of a batch with each other
    if parts == 1 or (pairs_of_a_batch and size // parts < 2):
        return None
    changes = {upstream.PER_DEVICE_TRAIN_BATCH_SIZE: size // parts}
    changes[upstream.GRADIENT_ACCUMULATION_STEPS] = args.gradient_accumulation_steps * parts
    if given.get(upstream.STEPS_PER_GENERATION):
        changes[upstream.STEPS_PER_GENERATION] = args.steps_per_generation * parts
    if hasattr(args, "max_tokens_per_micro_batch"):  # PPO's own passes, which its batches do not rule
        tokens = args.max_tokens_per_micro_batch or (TOKENS_PER_PASS if args.device.type == "cpu" else None)
        passes = {"local_rollout_forward_batch_size": args.local_rollout_forward_batch_size}
        passes |= {"max_tokens_per_micro_batch": tokens} if tokens else {}
        changes |= {name: max(1, size // parts) for name, size in passes.items()}
    return changes


def halve_evaluation(args: TrainingArguments) -> dict[str, int] | None:
    """A smaller batch of evaluation that still holds whole groups of completions; None where there is none."""
    group = getattr(args, upstream.NUM_GENERATIONS_EVAL, None) or getattr(args, upstream.NUM_GENERATIONS, None) or 1
    rows = args.per_device_eval_batch_size
    smaller = [size for size in range(rows // 2, 0, -1) if size * args.world_size % group == 0]
    return {upstream.PER_DEVICE_EVAL_BATCH_SIZE: smaller[0]} if smaller else None
