"""The network that makes a learnt prompt, saved with each checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.model.saved import PROMPT_ENCODER

PREFIX = "prompt_encoder."


@dataclass(eq=False)
class PromptEncoder(TrainerCallback):
    """Saves with each checkpoint the network that makes a learnt prompt.

    peft writes only the prompt that it makes, from which a training would go on with the prompt as
    the network's input.
    """

    trainer: Trainer

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        encoders = _prompt_encoders(self.trainer)
        if encoders is not None and state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / PROMPT_ENCODER
            weights = encoders.state_dict()
            save_file({f"{PREFIX}{name}": weight for name, weight in weights.items()}, path)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if self.trainer.resumed_from:
            load_prompt_encoder(self.trainer, Path(self.trainer.resumed_from))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            load_prompt_encoder(self.trainer, Path(state.best_model_checkpoint))


def _prompt_encoders(trainer: Trainer) -> nn.Module | None:
    """The networks that make the learnt prompts of a model, by adapter; None without any."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return model.prompt_encoder
    return None


def load_prompt_encoder(trainer: Trainer, checkpoint: Path) -> None:
    """Give the network of a learnt prompt its weights of a checkpoint, if that holds them."""
    encoders = _prompt_encoders(trainer)
    path = checkpoint / PROMPT_ENCODER
    if encoders is not None and path.is_file():
        weights = {}
        for name, weight in load_file(path).items():
            weights[name.removeprefix(PREFIX)] = weight
        encoders.load_state_dict(weights)
