"""When a checkpoint is taken, sealed, rotated, and how a finished training is loaded again.

All by public events of the Trainer, whose own save is neither atomic nor synced (of 200 random kills 72 left a newest
checkpoint that could not be loaded). Which checkpoint is good is for ``run`` to say; it reads what is sealed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.io.files import SEAL, read_json, remove, seal

NOTICED = 6  # steps after which a sickness has been noticed; what was saved before is good (``health``)


class Seal(TrainerCallback):
    """Seals each checkpoint the Trainer saved, and only then deletes the oldest ones beyond ``keep``.

    Saves wait for a step from which a resume is exact: online trainers keep the rollouts of a generation cycle in
    memory only. Each save also logs, so that no logged average reaches across a place where a run may resume.
    """

    def __init__(self, keep: int, cycle_steps: int = 1, tell: Callable[..., None] | None = None):
        self.keep = keep
        self.cycle_steps = cycle_steps
        self.tell = tell
        self.waiting = False

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._save_on_the_cycle(state, control, kwargs.get("processing_class"))

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        control.should_log = control.should_log or control.should_training_stop  # no step is left out of the averages
        self._save_on_the_cycle(state, control, kwargs.get("processing_class"))

    def _save_on_the_cycle(self, state: TrainerState, control: TrainerControl, tokenizer: Any = None) -> None:
        self.waiting = self.waiting or control.should_save
        at_boundary = state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps
        control.should_save = self.waiting and at_boundary
        if control.should_save:
            control.should_log = True
            self.waiting = False
            _forget_use(tokenizer)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        _wait_for_all()  # every rank writes a file of its own into the checkpoint
        if state.is_world_process_zero:
            root = Path(args.output_dir)
            seal(root / f"checkpoint-{state.global_step}")
            if self.tell:
                self.tell(sealed=state.global_step)
            self.rotate(root, state.best_model_checkpoint)
        _wait_for_all()

    def rotate(self, root: Path, best: str | None, healthy: bool = False) -> None:
        """Delete the oldest checkpoints; ``healthy`` is what is known of a run that has come to its end.

        Then the best is one of those that may stay, beside the newest, from which a run that is killed now goes on.
        Before, what is newer than a sickness takes to be noticed may be sick: the newest that is older stays as well,
        and the oldest that is newer, which will be that one.
        """
        sealed = [path for path in root.glob("checkpoint-[0-9]*") if (path / SEAL).exists()]
        sealed.sort(key=_step)
        old = [path for path in sealed if _step(path) <= _step(sealed[-1]) - NOTICED]
        safe = [path for path in sealed if best and path.name == Path(best).name]
        beside = len(safe) if healthy and not {*safe} & {*sealed[-self.keep :]} else 0
        safe += sealed[-max(1, self.keep - beside) :] + ([] if healthy else [*old[-1:], sealed[len(old)]])
        for path in sealed:
            if path not in safe:
                remove(path)


def _forget_use(tokenizer: Any) -> None:
    """Undo what the last call left in a tokenizer, which would be saved with it and differ after a resume."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_padding()
        backend.no_truncation()


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


class Restored(Exception):
    """Raised by :class:`Restore` when the weights are in the model; not an error."""


class Restore(TrainerCallback):
    """Ends ``trainer.train`` once the checkpoint is loaded, before it would train one step too many."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        raise Restored


def resume(trainer: Trainer, checkpoint: Path | None) -> None:
    """Train on from a checkpoint, from the start without one, and not at all where all steps are done.

    The stock Trainer takes one more step each time a finished training is resumed.
    """
    state = read_json(checkpoint / "trainer_state.json") if checkpoint else None
    if not state or state["global_step"] < state["max_steps"]:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        return
    best = state["best_model_checkpoint"] if trainer.args.load_best_model_at_end else None
    loader, callbacks = Restore(), trainer.callback_handler.callbacks
    callbacks.insert(0 if best else len(callbacks), loader)  # none may take the best step for that of the training
    try:
        trainer.train(resume_from_checkpoint=best or str(checkpoint))
    except Restored:
        trainer.state.global_step = state["global_step"]
        if not best:  # it may have been killed before this was logged
            trainer.log({"train_loss": 0.0, "total_flos": trainer.state.total_flos})
    finally:
        callbacks.remove(loader)


def cycle_steps(args: TrainingArguments) -> int:
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


def disk_needed(trainer: Trainer, keep: int) -> dict[str, int]:
    """Bytes of one ``checkpoint`` and of the ``model`` at the end, and how many ``checkpoints`` there are at once.

    The least that can be: an optimizer that is not known counts as one without a state.
    """
    from peft import PeftModel

    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    policy = getattr(model, "policy", model)  # of PPO, which has a critic beside it
    saved = [each for each in policy.parameters() if each.requires_grad or not isinstance(policy, PeftModel)]
    weights = sum(map(_bytes, saved))
    trained = sum(_bytes(each) * _states(trainer, each) for each in model.parameters() if each.requires_grad)
    early = isinstance(args.save_steps, int) and (keep - 1) * args.save_steps < NOTICED  # then one more stays
    saves = 0 if args.save_strategy == "no" else keep + 1 + early
    if args.save_strategy == "steps" and args.max_steps > 0 and args.save_steps >= 1:
        saves = min(saves, math.ceil(args.max_steps / args.save_steps))
    return {"checkpoint": int(weights + trained), "checkpoints": saves, "model": weights}


def _bytes(weights: torch.Tensor) -> int:
    return weights.numel() * weights.element_size()


def _states(trainer: Trainer, weights: torch.Tensor) -> float:
    """The size of what an optimizer keeps for a weight, in sizes of the weight."""
    own = trainer.hooks.make_optimizer
    name = "" if own else str(getattr(trainer.args.optim, "value", trainer.args.optim)).lower()
    if "8bit" in name:
        return 2 / weights.element_size()
    return 2 if "adam" in name else 0


def _wait_for_all() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
