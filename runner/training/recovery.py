"""Recovery of a run that turned sick, or has no memory left: it adjusts itself and begins again from its last good
checkpoint, or it ends with cause and fix.

How sickness is found is in ``health``, what an adjustment is in ``run.adjustments``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runner.errors import EnvironmentFault, Fault, RunnerError, SickRun
from runner.io.files import remove
from runner.run import Run, last_checkpoint, sealed_checkpoints, write_manifest
from runner.run.adjustments import (
    HALVING,
    ROLLBACK,
    count_of,
    in_words,
    is_out_of_memory,
    read_adjustments,
    write_adjustments,
)

if TYPE_CHECKING:
    from transformers import Trainer

    from runner.training.build import Components
    from runner.training.health.watch import Health

log = logging.getLogger(__name__)
ATTEMPTS = 4  # of either kind, unless the config says otherwise


def adjust(run: Run, components: Components, error: Exception) -> None:
    """Write down what the next attempt does otherwise; raises the error, with all there is to say, if there is none.

    Of several processes the one that failed writes it, and all of them end: only new ones can meet again, and whoever
    started these starts those.
    """
    trainer = components.trainer
    error = _behind(error, components.health, trainer.state.global_step + 1)
    if isinstance(error, SickRun):
        error, adjustment = _of_sickness(run, error, trainer)
    elif is_out_of_memory(error):
        adjustment = _of_memory(run, error, components)
    else:
        raise error
    if adjustment is None:
        raise error
    if trainer.is_world_process_zero() or adjustment["kind"] == HALVING:
        # What this process knew when it began: another one may have written the same meanwhile.
        write_adjustments(run.folder, [*components.adjustments, adjustment])
        record_adjustments(run)
    log.warning("%s", in_words(adjustment))
    if trainer.args.world_size > 1:
        raise error


def _behind(error: Exception, health: Health, step: int) -> Exception:
    """The sickness where an exception comes of it: weights that are no numbers cannot be sampled from, for one."""
    known = isinstance(error, RunnerError) or is_out_of_memory(error)
    return error if known else health.sickness_behind(step) or error


def record_adjustments(run: Run) -> None:
    """Tell them in the manifest and, in a line each, in the status."""
    adjustments = read_adjustments(run.folder)
    if adjustments:
        run.set_status(adjustments=list(map(in_words, adjustments)))
        write_manifest(run, adjustments=adjustments)


def _of_sickness(run: Run, error: SickRun, trainer: Trainer) -> tuple[SickRun, dict[str, Any] | None]:
    """The sickness with what of the run is still good, and the adjustment, if it may have one."""
    if error.healthy is None:
        return error, None
    if trainer.is_world_process_zero():
        _remove_sick(run, error.healthy)
    good = last_checkpoint(run, clean=False)
    error = _with_checkpoint(error, f"{run}/checkpoints/{good.name}" if good else "the start")
    asked, times = run.cfg.get("on_sick") == ROLLBACK, run.cfg.get("attempts", ATTEMPTS)
    if not asked or not error.curable or count_of(read_adjustments(run.folder), ROLLBACK) >= times:
        return error, None
    step = trainer.state.global_step
    fault = error.faults[0]
    from_step = int(good.name.rpartition("-")[2]) if good else 0
    adjustment = {"kind": ROLLBACK, "step": step, "from_step": from_step, "cause": f"{fault.where}: {fault.found}"}
    return error, adjustment


def _remove_sick(run: Run, healthy: int) -> None:
    """Delete the checkpoints that were taken before the sickness was noticed."""
    for path in sealed_checkpoints(run):
        if int(path.name.rpartition("-")[2]) > healthy:
            remove(path)
    left = [int(path.name.rpartition("-")[2]) for path in sealed_checkpoints(run)]
    run.set_status(sealed=max(left, default=None))


def _with_checkpoint(error: SickRun, good: str) -> SickRun:
    faults = [replace(fault, found=f"{fault.found}; the last good checkpoint is {good}") for fault in error.faults]
    return SickRun(faults, error.healthy, error.curable)


def _of_memory(run: Run, error: Exception, components: Components) -> dict[str, Any]:
    """The adjustment that needs less memory; raises EnvironmentFault where there is none."""
    args, trainer = components.args, components.trainer
    measuring = trainer.is_measuring
    size = f"per_device_{'eval' if measuring else 'train'}_batch_size"
    smaller = halve_evaluation(args) if measuring else halve_training(run.cfg["trainer"]["args"], args)
    times = sum(size in each.get("args", {}) for each in components.adjustments)
    if smaller is None or times >= run.cfg.get("attempts", ATTEMPTS) or run.cfg.get("on_memory") == "stop":
        raise EnvironmentFault(_no_memory(error, size, getattr(args, size), times)) from error
    good = last_checkpoint(run, clean=False)
    step, from_step = trainer.state.global_step, int(good.name.rpartition("-")[2]) if good else 0
    cause = f"out of memory in {'an evaluation' if measuring else 'a step'}"
    return {"kind": HALVING, "step": step, "from_step": from_step, "cause": cause, "args": smaller}


def _no_memory(error: Exception, size: str, rows: int, times: int) -> Fault:
    """The end of a run that needs more memory than there is."""
    found = f"{str(error).splitlines()[0] if str(error) else type(error).__name__}, with trainer.args.{size}={rows}"
    fix = "trainer.args.max_length=<less>, peft=lora, model.dtype=bfloat16, or a smaller model="
    if rows > 1:
        fix = f"on_memory=halve attempts={times + ATTEMPTS}, or {fix}"
    return Fault("memory", f"{found}, {times} times halved" if times else found, "a smaller step", fix)


def halve_training(given: Mapping[str, Any], args: Any) -> dict[str, int] | None:
    """The arguments of a step in smaller micro-batches that sees the same rows; None where they cannot be smaller.

    ``given`` are those of the config, ``args`` the trainer's own with its defaults. A batch is cut by its smallest
    divisor, into halves where it is even, because only then the rows of a step stay the same. Sampled batches stay
    whole, whose groups of completions must not be torn; PPO also samples and reads fewer rows at a time.
    """
    parts = _smallest_divisor(args.per_device_train_batch_size)
    rows = args.per_device_train_batch_size // parts
    pairs_of_a_batch = hasattr(args, "desirable_weight")  # KTO compares the rows of a batch with each other
    if parts == 1 or (pairs_of_a_batch and rows < 2):
        return None
    changes = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": args.gradient_accumulation_steps * parts,
    }
    if given.get("steps_per_generation"):
        changes["steps_per_generation"] = args.steps_per_generation * parts
    if hasattr(args, "max_tokens_per_micro_batch"):
        changes |= _halve_passes(args, parts)
    return changes


def _halve_passes(args: Any, parts: int) -> dict[str, int]:
    """The sizes of PPO's own passes, which its batches do not rule."""
    from runner.generate.batch import TOKENS_PER_PASS

    tokens = args.max_tokens_per_micro_batch or (TOKENS_PER_PASS if args.device.type == "cpu" else None)
    passes = {"local_rollout_forward_batch_size": args.local_rollout_forward_batch_size}
    passes |= {"max_tokens_per_micro_batch": tokens} if tokens else {}
    return {name: max(1, size // parts) for name, size in passes.items()}


def halve_evaluation(args: Any) -> dict[str, int] | None:
    """A smaller batch of evaluation that still holds whole groups of completions; None where there is none."""
    group = getattr(args, "num_generations_eval", None) or getattr(args, "num_generations", None) or 1
    rows = args.per_device_eval_batch_size
    smaller = [size for size in range(rows // 2, 0, -1) if size * args.world_size % group == 0]
    return {"per_device_eval_batch_size": smaller[0]} if smaller else None


def _smallest_divisor(number: int) -> int:
    """The smallest divisor of a number but 1; of 1 itself 1.

    >>> [_smallest_divisor(number) for number in (8, 9, 7, 1)]
    [2, 3, 7, 1]
    """
    return next((part for part in range(2, number + 1) if number % part == 0), 1)
