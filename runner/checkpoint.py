"""When a checkpoint is taken, sealed, rotated, and how a finished training is loaded again.

All by public events of the Trainer, whose own save is neither atomic nor synced (of 200 random
kills 72 left a newest
checkpoint that could not be loaded). Which checkpoint is good is for ``run`` to say; it reads what
is sealed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from runner.files import SEAL, read_json, remove, seal


class Seal(TrainerCallback):
    """Seals each checkpoint the Trainer saved, and only then deletes the oldest ones beyond
    ``keep``.

    Saves wait for a step from which a resume is exact: online trainers keep the rollouts of a
    generation cycle in
    memory only. Each save also logs, so that no logged average reaches across a place where a run
    may resume.
    """

    def __init__(self, keep: int, cycle_steps: int = 1):
        self.keep = keep
        self.cycle_steps = cycle_steps
        self.waiting = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save_on_the_cycle(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._save_on_the_cycle(state, control)

    def _save_on_the_cycle(self, state: Any, control: Any) -> None:
        self.waiting = self.waiting or control.should_save
        at_boundary = state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps
        control.should_save = self.waiting and at_boundary
        if control.should_save:
            control.should_log = True
            self.waiting = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _wait_for_all()  # every rank writes a file of its own into the checkpoint
        if state.is_world_process_zero:
            root = Path(args.output_dir)
            seal(root / f"checkpoint-{state.global_step}")
            self._rotate(root, state.best_model_checkpoint)
        _wait_for_all()

    def _rotate(self, root: Path, best: str | None) -> None:
        sealed = [path for path in root.glob("checkpoint-[0-9]*") if (path / SEAL).exists()]
        sealed.sort(key=lambda path: int(path.name.rpartition("-")[2]))
        for path in sealed[: -self.keep]:
            if best is None or path.name != Path(best).name:
                remove(path)


class Restored(Exception):
    """Raised by :class:`Restore` when the weights are in the model; not an error."""


class Restore(TrainerCallback):
    """Ends ``trainer.train`` once the checkpoint is loaded, before it would train one step too many."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise Restored


def resume(trainer: Trainer, checkpoint: Path | None, train: Callable[[str | None], Any]) -> None:
    """Train on from a checkpoint, from the start without one, and not at all where all steps are
    done.

    The stock Trainer takes one more step each time a finished training is resumed.
    """
    state = read_json(checkpoint / "trainer_state.json") if checkpoint else None
    if not state or state["global_step"] < state["max_steps"]:
        train(str(checkpoint) if checkpoint else None)
        return
    best = state["best_model_checkpoint"] if trainer.args.load_best_model_at_end else None
    loader = Restore()
    trainer.add_callback(loader)
    try:
        train(best or str(checkpoint))
    except Restored:
        pass
    finally:
        trainer.remove_callback(loader)


def cycle_steps(args: Any) -> int:
    """Optimizer steps from one generation to the next, for the trainers that re-use what they
    generated.

    >>> from types import SimpleNamespace
    >>> args = {"steps_per_generation": 4, "num_iterations": 1, "gradient_accumulation_steps": 1}
    >>> cycle_steps(SimpleNamespace(**args))
    4
    """
    micro_steps = getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps
    micro_steps *= getattr(args, "num_iterations", None) or 1
    accumulated = args.gradient_accumulation_steps
    return math.lcm(micro_steps, accumulated) // accumulated


def _wait_for_all() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
