"""Tuners choose the weights to train.

A function of ``model`` changes and returns it, or returns a PeftConfig to apply. A class may save
and load what it has put on a model.
"""

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import nn

FILE = "scales.safetensors"


def upper_half(model, also: tuple[str, ...] = ("norm",)):
    """The upper half of the layers, and those with one of the words of ``also`` in their names."""
    depth = model.config.num_hidden_layers
    for name, weight in model.named_parameters():
        number = next((int(part) for part in name.split(".") if part.isdigit()), -1)
        weight.requires_grad_(number >= depth // 2 or any(word in name for word in also))
    return model


def upper_lora(model, task_type, r: int = 8):
    """LoRA on the attention of the upper half of the layers.

    The code may look for modules of this very model.
    """
    depth = model.config.num_hidden_layers
    names = [
        name
        for name, _ in model.named_modules()
        if name.endswith(("q_proj", "v_proj"))
        and int(name.split("layers.")[1].split(".")[0]) >= depth // 2
    ]
    return LoraConfig(r=r, lora_alpha=2 * r, target_modules=names, task_type=task_type)


class Scaled(nn.Module):
    """A layer with a factor for each output."""

    def __init__(self, inner: nn.Linear, start: float):
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.full((inner.out_features,), start))

    def forward(self, states):
        return self.inner(states) * self.scale


class Scales:
    """Trainable factors behind each MLP; all else is frozen.

    Three methods put them on a model, save them, and load them.
    """

    def __init__(self, start: float = 1.0):
        self.start = start

    def prepare_model(self, model):
        model.requires_grad_(False)
        for layer in model.model.layers:
            layer.mlp.down_proj = Scaled(layer.mlp.down_proj, self.start)
        return model

    def save_pretrained(self, model, folder):
        save_file(
            {name: part.data for name, part in model.named_parameters() if name.endswith("scale")},
            folder / FILE,
        )

    def from_pretrained(self, model, folder):
        self.prepare_model(model).load_state_dict(load_file(folder / FILE), strict=False)
        return model
