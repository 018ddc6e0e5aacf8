"""When a checkpoint is taken, sealed, rotated, and how a finished training is loaded again.

All by public events of the Trainer, whose own save is neither atomic nor synced (of 200 random kills 72 left a newest
checkpoint that could not be loaded). Which checkpoint is good is for ``run`` to say; it reads what is sealed here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from accelerate.utils import wait_for_everyone
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.io.files import SEAL, read_json, remove, seal
from runner.run import step_of
from runner.run.disk import STEPS_TO_NOTICE, checkpoints_at_once
from runner.schema import upstream


class Seal(TrainerCallback):
    """Seals each checkpoint the Trainer saved, and only then deletes the oldest ones beyond ``keep``.

    Saves wait for a step from which a resume is exact: online trainers keep the rollouts of a generation cycle in
    memory only. Each save also logs, so that no logged average reaches across a place where a run may resume.
    """

    def __init__(self, keep: int, cycle_steps: int = 1, set_status: Callable[..., None] | None = None):
        self.keep = keep
        self.cycle_steps = cycle_steps
        self.set_status = set_status
        self.waiting = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given) -> None:
        self.waiting = self.waiting or control.should_save
        at_boundary = state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps
        control.should_save = self.waiting and at_boundary
        if control.should_save:
            control.should_log = True
            self.waiting = False
            backend = getattr(given.get(upstream.PROCESSING_CLASS), "backend_tokenizer", None)
            if backend is not None:  # the settings of its last call would be saved with it, and differ after a resume
                backend.no_padding()
                backend.no_truncation()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given) -> None:
        control.should_log = control.should_log or control.should_training_stop  # no step is left out of the averages
        self.on_step_end(args, state, control, **given)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        wait_for_everyone()  # every rank writes a file of its own into the checkpoint
        if state.is_world_process_zero:
            root = Path(args.output_dir)
            seal(root / f"checkpoint-{state.global_step}")
            if self.set_status:
                self.set_status(sealed=state.global_step)
            self.rotate(root, state.best_model_checkpoint)
        wait_for_everyone()

    def rotate(self, root: Path, best: str | None, healthy: bool = False) -> None:
        """Delete the oldest checkpoints; ``healthy`` is what is known of a run that has come to its end.

        Then the best is one of those that may stay, beside the newest, from which a run that is killed now goes on.
        Before, what is newer than a sickness takes to be noticed may be sick: the newest that is older stays as well,
        and the oldest that is newer, which will be that one.
        """
        sealed = [path for path in root.glob("checkpoint-[0-9]*") if (path / SEAL).exists()]
        sealed.sort(key=step_of)
        old = [path for path in sealed if step_of(path) <= step_of(sealed[-1]) - STEPS_TO_NOTICE]
        safe = [path for path in sealed if best and path.name == Path(best).name]
        beside = len(safe) if healthy and not {*safe} & {*sealed[-self.keep :]} else 0
        safe += sealed[-max(1, self.keep - beside) :] + ([] if healthy else [*old[-1:], sealed[len(old)]])
        for path in sealed:
            if path not in safe:
                remove(path)


class Restored(Exception):
    """Raised by :class:`Restore` when the weights are in the model; not an error."""


class Restore(TrainerCallback):
    """Ends ``trainer.train`` once the checkpoint is loaded, before it would train one step too many."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        raise Restored


def all_steps_taken(checkpoint: Path) -> bool:
    """True for a checkpoint of the last step; the stock Trainer would take one more when it resumes from there."""
    state = read_json(checkpoint / "trainer_state.json")
    return state is not None and state["global_step"] >= state["max_steps"]


def restore(trainer: Trainer, checkpoint: Path) -> None:
    """Load a finished training from its last checkpoint, or its best one where the trainer asks for that."""
    state = read_json(checkpoint / "trainer_state.json") or {}
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


def disk_needed(trainer: Trainer, keep: int) -> dict[str, int]:
    """Bytes of one ``checkpoint`` and of the ``model`` at the end, and how many ``checkpoints`` there are at once.

    The least that can be: an optimizer that is not known counts as one without a state.
    """
    from peft import PeftModel

    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    policy = getattr(model, "policy", model)  # of PPO, which has a critic beside it
    saved = [each for each in policy.parameters() if each.requires_grad or not isinstance(policy, PeftModel)]
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = "" if trainer.hooks.make_optimizer else str(args.optim.value).lower()
    state = sum(each.numel() if "8bit" in optimizer else each.nbytes for each in trained)
    state *= 2 if "adam" in optimizer or "8bit" in optimizer else 0
    weights = sum(each.nbytes for each in saved)
    count = checkpoints_at_once(keep, args.save_strategy, args.save_steps, args.max_steps)
    return {"checkpoint": weights + state, "checkpoints": count, "model": weights}
