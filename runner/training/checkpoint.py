"""When a checkpoint is taken, sealed and rotated, and how a finished training is loaded again.

All by public events of the Trainer, whose own save is neither atomic nor synced (of 200 random kills 72 left a newest
checkpoint that could not be loaded). What a seal holds, and which checkpoint is good, is in ``run.seal``.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object, wait_for_everyone
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import BEMACallback, SyncRefModelCallback

from runner.errors import Fault, RunnerError
from runner.io.files import display_path, read_json
from runner.model.encoding import tokenizer_of
from runner.model.saved import PROMPT_ENCODER, find_unsaved
from runner.run.seal import checkpoints_at_once, put_down, rotate, seal
from runner.schema import upstream

AVERAGES = "averages.safetensors"
PREFIX = "prompt_encoder."
MEET = 10.0  # seconds; far below a third of the shortest ``ddp_timeout`` that anybody sets
STATES = {"ademamix": 3, "adam": 2, "lion": 1, "rmsprop": 1, "adagrad": 1, "muon": 1}  # numbers kept of each weight


def gather_long(call: Callable[[], list[Any]]) -> list[Any]:
    """The entries that a call gives in each process, of all of them, however long it takes in one.

    Meanwhile the processes meet: one that waited for the hash of a large checkpoint would end after ``ddp_timeout``.
    """
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        while not all(gather_object([called in wait([called], MEET).done])):
            pass
    return gather_object(called.result())


@dataclass(eq=False)
class Seal(TrainerCallback):
    """Seals each checkpoint the Trainer saved, and only then deletes the oldest ones beyond ``keep``.

    What is older than a sickness takes to be noticed (``run.alarms``) is good, and the newest of that stays. Saves
    wait for a step from which a resume is exact: online trainers keep the rollouts of a generation cycle in memory
    only. Each save also logs, so that no logged average reaches across a place where a run may resume.
    """

    keep: int
    steps_to_notice: int
    cycle_steps: int = 1
    set_status: Callable[..., None] | None = None
    waiting: bool = field(default=False, init=False)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given) -> None:
        self.waiting = self.waiting or control.should_save
        at_boundary = state.global_step % self.cycle_steps == 0 or state.global_step >= state.max_steps
        control.should_save = self.waiting and at_boundary
        if control.should_save:
            control.should_log = True
            self.waiting = False
            backend = getattr(tokenizer_of(given.get(upstream.PROCESSING_CLASS)), "backend_tokenizer", None)
            if backend is not None:  # the settings of its last call would be saved with it, and differ after a resume
                backend.no_padding()
                backend.no_truncation()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given) -> None:
        control.should_log = control.should_log or control.should_training_stop  # no step is left out of the averages
        self.on_step_end(args, state, control, **given)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given) -> None:
        wait_for_everyone()  # every rank writes a file of its own into the checkpoint
        root = Path(args.output_dir)
        folder = root / f"checkpoint-{state.global_step}"
        self._check_complete(folder, args, given["model"], given["optimizer"])
        entries = gather_long(lambda: [*put_down(folder, args.process_index, args.world_size).items()])
        if state.is_world_process_zero:
            seal(folder, dict(entries))
            if self.set_status:
                self.set_status(sealed=state.global_step)
            rotate(root, self.keep, state.best_model_checkpoint, self.steps_to_notice)
        wait_for_everyone()

    def _check_complete(self, folder: Path, args: TrainingArguments, model: nn.Module, optimizer: Optimizer) -> None:
        """Raise RunnerError in all processes where the files of a checkpoint lack a weight that is trained."""
        is_first = args.process_index == 0
        missing = gather_object(find_unsaved(model, optimizer, folder) if is_first else [])
        if missing:
            found = f"{len(missing)} trained weights are not in it, so that no run could go on from it: "
            expected = "every weight that the optimizer moves"
            fix = f"trainer.args.{upstream.SAVE_STRATEGY}=no  (without checkpoints; a run that is stopped begins anew)"
            raise RunnerError(Fault(display_path(folder), found + ", ".join(missing[:3]), expected, fix))


@dataclass(eq=False)
class MovedModels(TrainerCallback):
    """Saves with each checkpoint the models that follow the trained one: a synced reference, a teacher, and averages.

    The trainer saves none of them. All processes take part, each perhaps with a shard; the first one writes the whole.
    """

    trainer: Trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        for path, model in self._places(Path(args.output_dir) / f"checkpoint-{state.global_step}"):
            weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            if state.is_world_process_zero:
                save_file({name: each.clone() for name, each in weights.items()}, path)  # tied ones share a storage
        if state.is_world_process_zero and (averages := self._averages()):
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / AVERAGES
            save_file({name: each.detach().clone() for name, each in averages.items()}, path)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        for path, model in self._places(Path(self.trainer.resumed_from or "")):
            if path.is_file():
                set_model_state_dict(model, load_file(path), options=StateDictOptions(full_state_dict=True))
        if (path := Path(self.trainer.resumed_from or "", AVERAGES)).is_file():
            averages = self._averages()
            for name, tensor in load_file(path).items():
                averages[name].data.copy_(tensor)

    def _averages(self) -> dict[str, Tensor]:
        found = [each for each in self.trainer.callback_handler.callbacks if isinstance(each, BEMACallback)]
        lists = [(*each.theta0_params, *each.ema_params, *each.running_model.parameters()) for each in found]
        return {f"{number}.{place}": each for number, own in enumerate(lists) for place, each in enumerate(own)}

    def _places(self, folder: Path) -> list[tuple[Path, nn.Module]]:
        return [(folder / f"moved-{number}.safetensors", of) for number, of in enumerate(moved_models(self.trainer))]


@dataclass(eq=False)
class PromptEncoder(TrainerCallback):
    """Saves with each checkpoint the network that makes a learnt prompt; peft writes only the prompt that it makes.

    From that alone a training would go on with the prompt as the network's input.
    """

    trainer: Trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        encoders = _prompt_encoders(self.trainer)
        if encoders is not None and state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / PROMPT_ENCODER
            save_file({f"{PREFIX}{name}": weight for name, weight in encoders.state_dict().items()}, path)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        if self.trainer.resumed_from:
            load_prompt_encoder(self.trainer, Path(self.trainer.resumed_from))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            load_prompt_encoder(self.trainer, Path(state.best_model_checkpoint))


def _prompt_encoders(trainer: Trainer) -> nn.Module | None:
    """The networks that make the learnt prompts of a model, by adapter; None where no prompt is learnt."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return model.prompt_encoder
    return None


def load_prompt_encoder(trainer: Trainer, checkpoint: Path) -> None:
    """Give the network that makes a learnt prompt the weights that it had at a checkpoint, if that holds them."""
    encoders, path = _prompt_encoders(trainer), checkpoint / PROMPT_ENCODER
    if encoders is not None and path.is_file():
        encoders.load_state_dict({name.removeprefix(PREFIX): weight for name, weight in load_file(path).items()})


def moved_models(trainer: Trainer) -> list[nn.Module]:
    """The models that callbacks move towards the trained one."""
    moved = [each for each in trainer.callback_handler.callbacks if isinstance(each, SyncRefModelCallback)]
    return [trainer.accelerator.unwrap_model(each.ref_model) for each in moved if each.ref_model is not None]


class Restored(Exception, TrainerCallback):
    """Ends ``trainer.train`` once the checkpoint is loaded, before it would train one step too many; not an error."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_) -> None:
        raise Restored  # a new one: it would hold the frames of the training, and they it


def all_steps_taken(checkpoint: Path) -> bool:
    """True for a checkpoint of the last step; the stock Trainer would take one more when it resumes from there."""
    state = read_json(checkpoint / "trainer_state.json")
    return state is not None and state["global_step"] >= state["max_steps"]


def restore(trainer: Trainer, checkpoint: Path) -> None:
    """Load a finished training from its last checkpoint, or its best one where the trainer asks for that."""
    state = read_json(checkpoint / "trainer_state.json") or {}
    best = state["best_model_checkpoint"] if trainer.args.load_best_model_at_end else None
    loader, callbacks = Restored(), trainer.callback_handler.callbacks
    callbacks.insert(0 if best else len(callbacks), loader)  # none may take the best step for that of the training
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
    """The least bytes of one ``checkpoint`` and of the ``model``, and how many ``checkpoints`` there are at once."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    policy = getattr(model, "policy", model)  # of PPO, which has a critic beside it
    saved = [each for each in policy.parameters() if each.requires_grad or not isinstance(policy, PeftModel)]
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = "" if trainer.hooks.make_optimizer else str(args.optim.value).lower()
    weights = sum(each.nbytes for each in saved)
    more = sum(each.nbytes for model in moved_models(trainer) for each in model.parameters())
    count = checkpoints_at_once(seal.keep, seal.steps_to_notice, args.save_strategy, args.save_steps, args.max_steps)
    return {"checkpoint": weights + more + state_bytes(optimizer, trained), "checkpoints": count, "model": weights}


def state_bytes(optimizer: str, trained: Sequence[Tensor]) -> int:
    """Bytes that an optimizer keeps of the weights it trains, by its name in small letters; 0 for one not known."""
    if "adafactor" in optimizer:
        return sum(4 * (sum(each.shape) if each.dim() > 1 else each.numel()) for each in trained)
    states = next((count for name, count in STATES.items() if name in optimizer), 0)
    if "8bit" in optimizer or "4bit" in optimizer:
        return states * sum(each.numel() for each in trained) // (2 if "4bit" in optimizer else 1)
    return states * sum(each.nbytes for each in trained)
