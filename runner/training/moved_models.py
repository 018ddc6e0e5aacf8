"""Models that callbacks move towards the trained one, saved with each checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import BEMACallback, SyncRefModelCallback

AVERAGES = "averages.safetensors"


@dataclass(eq=False)
class MovedModels(TrainerCallback):
    """Saves a synced reference, a teacher that follows, and averages with each checkpoint.

    The trainer saves none of them. All processes take part, each perhaps with a shard; the first
    one writes the whole.
    """

    trainer: Trainer

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        for number, model in enumerate(moved_models(self.trainer)):
            weights = get_model_state_dict(model, options=options)
            if state.is_world_process_zero:
                # Tied weights share a storage, which safetensors refuses.
                copies = {name: weight.clone() for name, weight in weights.items()}
                save_file(copies, _path(checkpoint, number))
        if state.is_world_process_zero:
            averages = {name: tensor.detach().clone() for name, tensor in self._averages()}
            if averages:
                save_file(averages, checkpoint / AVERAGES)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if not self.trainer.resumed_from:
            return
        checkpoint = Path(self.trainer.resumed_from)
        options = StateDictOptions(full_state_dict=True)
        for number, model in enumerate(moved_models(self.trainer)):
            path = _path(checkpoint, number)
            if path.is_file():
                set_model_state_dict(model, load_file(path), options=options)
        if (checkpoint / AVERAGES).is_file():
            averages = dict(self._averages())
            for name, weight in load_file(checkpoint / AVERAGES).items():
                averages[name].data.copy_(weight)

    def _averages(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of each callback that averages weights, named by their places."""
        number = 0
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, BEMACallback):
                tensors = [
                    *callback.theta0_params,
                    *callback.ema_params,
                    *callback.running_model.parameters(),
                ]
                for index, tensor in enumerate(tensors):
                    yield f"{number}.{index}", tensor
                number += 1


def _path(checkpoint: Path, number: int) -> Path:
    return checkpoint / f"moved-{number}.safetensors"


def moved_models(trainer: Trainer) -> list[nn.Module]:
    """The models that callbacks move towards the trained one."""
    models = []
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, SyncRefModelCallback) and callback.ref_model is not None:
            models.append(trainer.accelerator.unwrap_model(callback.ref_model))
    return models
