"""When a checkpoint is taken, sealed and rotated, and how a finished training is loaded again.

All by public events of the Trainer, whose own save is neither atomic nor synced (of 200 random
kills 72 left a newest checkpoint that could not be loaded). What a seal holds, and which checkpoint
is good, is in ``run.seal``; what is saved beside the trainer's own files in ``moved_models`` and
``prompt_encoder``.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object, wait_for_everyone
from peft import PeftModel
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.errors import Fault, RunnerError
from runner.io.files import display_path, read_json
from runner.model.encoding import tokenizer_of
from runner.model.saved import find_unsaved
from runner.run.seal import checkpoints_at_once, put_down, rotate, seal
from runner.training.moved_models import moved_models
from runner.training.prompt_encoder import load_prompt_encoder

MEET = 10.0  # seconds; far below a third of the shortest ``ddp_timeout`` that anybody sets
# Numbers that an optimizer keeps of each weight, by a part of its name; the first that fits counts.
STATES = {"ademamix": 3, "adam": 2, "lion": 1, "rmsprop": 1, "adagrad": 1, "muon": 1}
BYTES_OF_FLOAT32 = 4


def gather_long(call: Callable[[], list[Any]]) -> list[Any]:
    """The entries that a call gives in each process, of all of them, however long it takes in one.

    Meanwhile the processes meet: one that waited for the hash of a large checkpoint would end after
    ``ddp_timeout``.
    """
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        while True:
            is_done = called in wait([called], MEET).done
            if all(gather_object([is_done])):
                break
    entries: list[Any] = gather_object(called.result())
    return entries


@dataclass(eq=False)
class Seal(TrainerCallback):
    """Seals each checkpoint of the Trainer, and only then deletes the oldest ones beyond ``keep``.

    What is older than a sickness takes to be noticed (``run.alarms``) is good, and the newest of
    that stays. Saves wait for a step from which a resume is exact: online trainers keep the
    rollouts of a generation cycle in memory only. Each save also logs, so that no logged average
    reaches across a step from which a run may resume.
    """

    keep: int
    steps_to_notice: int
    cycle_steps: int = 1
    set_status: Callable[..., None] | None = None
    waiting: bool = field(default=False, init=False)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        processing_class: Any = None,
        **_: object,
    ) -> None:
        self.waiting = self.waiting or control.should_save
        at_boundary = (
            state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps
        )
        control.should_save = self.waiting and at_boundary
        if not control.should_save:
            return
        control.should_log = True
        self.waiting = False
        # A fast tokenizer is saved with the settings of its last call, which differ after a resume.
        backend = getattr(tokenizer_of(processing_class), "backend_tokenizer", None)
        if backend is not None:
            backend.no_padding()
            backend.no_truncation()

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        processing_class: Any = None,
        **_: object,
    ) -> None:
        # So that no step is left out of the averages.
        control.should_log = control.should_log or control.should_training_stop
        self.on_step_end(args, state, control, processing_class)

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        optimizer: Optimizer,
        **_: object,
    ) -> None:
        wait_for_everyone()  # every rank writes a file of its own into the checkpoint
        root = Path(args.output_dir)
        folder = root / f"checkpoint-{state.global_step}"
        self._check_complete(folder, args, model, optimizer)

        def list_files() -> list[Any]:
            return list(put_down(folder, args.process_index, args.world_size).items())

        entries = gather_long(list_files)
        if state.is_world_process_zero:
            seal(folder, dict(entries))
            if self.set_status:
                self.set_status(sealed=state.global_step)
            rotate(root, self.keep, state.best_model_checkpoint, self.steps_to_notice)
        wait_for_everyone()

    def _check_complete(
        self, folder: Path, args: TrainingArguments, model: nn.Module, optimizer: Optimizer
    ) -> None:
        """Raise RunnerError in all processes where a checkpoint lacks a weight that is trained."""
        missing = []
        if args.process_index == 0:
            missing = find_unsaved(model, optimizer, folder)
        missing = gather_object(missing)
        if missing:
            raise RunnerError(
                Fault(
                    where=display_path(folder),
                    found=f"{len(missing)} trained weights are not in it, so no run could continue "
                    f"from it: {', '.join(missing[:3])}",
                    expected="every weight that the optimizer moves",
                    fix="trainer.args.save_strategy=no  (without checkpoints; a run that is "
                    "stopped begins anew)",
                )
            )


class Restored(Exception, TrainerCallback):
    """Ends ``trainer.train`` once the checkpoint is loaded, before a step; it is not an error."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        # A new one: this one would hold the frames of the training, and they it.
        raise Restored


def all_steps_taken(checkpoint: Path) -> bool:
    """True for a checkpoint of the last step; the stock Trainer would take one more from there."""
    state = read_json(checkpoint / "trainer_state.json")
    return state is not None and state["global_step"] >= state["max_steps"]


def restore(trainer: Trainer, checkpoint: Path) -> None:
    """Load a finished training from its last checkpoint, or from its best one if asked to."""
    state = read_json(checkpoint / "trainer_state.json") or {}
    best = state["best_model_checkpoint"] if trainer.args.load_best_model_at_end else None
    loader = Restored()
    callbacks = trainer.callback_handler.callbacks
    # With the best checkpoint it comes first, so that no callback takes its step for the last one.
    callbacks.insert(0 if best else len(callbacks), loader)
    try:
        trainer.train(resume_from_checkpoint=best or str(checkpoint))
    except Restored:
        load_prompt_encoder(trainer, Path(best or checkpoint))
        trainer.state.global_step = state["global_step"]
        if not best:  # it may have been killed before this was logged
            trainer.log({"train_loss": 0.0, "total_flos": trainer.state.total_flos})
    finally:
        callbacks.remove(loader)


def disk_needed(trainer: Trainer, seal: Seal) -> dict[str, int]:
    """The least bytes of one ``checkpoint`` and of the ``model``.

    ``checkpoints`` is the number of those that there are at once.
    """
    args = trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    policy = getattr(model, "policy", model)  # PPO has a critic beside it
    saved = list(policy.parameters())
    if isinstance(policy, PeftModel):
        saved = [weight for weight in saved if weight.requires_grad]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = "" if trainer.hooks.make_optimizer else str(args.optim.value).lower()
    moved = 0
    for moved_model in moved_models(trainer):
        moved += sum(weight.nbytes for weight in moved_model.parameters())
    weights = sum(weight.nbytes for weight in saved)
    return {
        "checkpoint": weights + moved + state_bytes(optimizer, trained),
        "checkpoints": checkpoints_at_once(
            seal.keep, seal.steps_to_notice, args.save_strategy, args.save_steps, args.max_steps
        ),
        "model": weights,
    }


def state_bytes(optimizer: str, trained: Sequence[Tensor]) -> int:
    """Bytes that an optimizer keeps of the weights it trains; 0 where its name is not known.

    The name is in small letters.
    """
    if "adafactor" in optimizer:
        numbers: int = 0
        for weight in trained:
            # One for each row and each column of a matrix.
            numbers += sum(weight.shape) if weight.dim() > 1 else weight.numel()
        return BYTES_OF_FLOAT32 * numbers
    states = 0
    for name, count in STATES.items():
        if name in optimizer:
            states = count
            break
    entries: int = sum(weight.numel() for weight in trained)
    if "4bit" in optimizer:
        return states * entries // 2
    if "8bit" in optimizer:
        return states * entries
    size: int = sum(weight.nbytes for weight in trained)
    return states * size
