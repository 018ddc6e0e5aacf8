"""A critic as a model of its own: how it is made from the reward model or the policy, and saved."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.models.auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from runner.generate.sampler import Model
from runner.model.reference_model import copy_reference
from runner.model.trunk import find_backbone


class ValueModel(nn.Module):
    """A backbone with a value for each state, where transformers has no classifier for it."""

    def __init__(self, base_model: PreTrainedModel, score: nn.Linear):
        super().__init__()
        self.base_model = base_model
        self.score = score

    def save_pretrained(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write the backbone as AutoModel loads it, and the head beside it."""
        self.base_model.save_pretrained(folder, state_dict=part_of(state_dict, "base_model"))
        write_value_head(part_of(state_dict, "score") or self.score.state_dict(), folder)


Critic: TypeAlias = PreTrainedModel | ValueModel


def build_critic_model(policy: Model, reward_model: PreTrainedModel | PeftModel | None) -> Critic:
    """A copy of the reward model where there is one, else of the policy's backbone with a new head.

    From the reward model values start near the scores they predict (Stiennon et al. 2020; Huang et
    al. 2024). The new head starts at zero, so that the first advantages are the rewards.
    """
    if reward_model is not None:
        return copy_reference(reward_model).to(policy.dtype).requires_grad_(True)
    source = copy_reference(policy) if isinstance(policy, PeftModel) else policy
    model: Critic | None = _build_classifier(source)
    if model is None:
        # The head alone takes the type: buffers such as the angles of positions stay float32.
        head = zero_head(source).to(source.dtype)
        model = ValueModel(copy.deepcopy(find_backbone(source)), head)
    return model.to(source.device).requires_grad_(True)


def _build_classifier(source: PreTrainedModel) -> PreTrainedModel | None:
    """A classifier of one label on a copy of the backbone; None where transformers has none.

    Its random weights are drawn beside the stream of random numbers, which stays as it is, so that
    the kind of critic does not change what the policy samples.
    """
    config = copy.deepcopy(source.config)
    config.num_labels = 1
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return None
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForSequenceClassification.from_config(config, dtype=source.dtype)
    weights = find_backbone(source).state_dict()
    has_same_backbone = model.base_model.state_dict().keys() == weights.keys()
    if not hasattr(model, "score") or not has_same_backbone:
        return None
    model.base_model.load_state_dict(weights)
    model.score.weight.data.zero_()
    return model


def zero_head(policy: Model) -> nn.Linear:
    """A linear head that gives 0 for every state of the policy."""
    model = policy
    if isinstance(policy, PeftModel):
        model = policy.get_base_model()
    hidden_size = model.config.get_text_config().hidden_size
    head = nn.Linear(hidden_size, 1, device=model.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def part_of(weights: Mapping[str, Tensor] | None, name: str) -> dict[str, Tensor] | None:
    """The weights of a part by their names in it; None where none were gathered."""
    if weights is None:
        return None
    prefix = f"{name}."
    return {
        key.removeprefix(prefix): weight
        for key, weight in weights.items()
        if key.startswith(prefix)
    }


def write_value_head(head: Mapping[str, Tensor], folder: Path) -> None:
    """Write the weights of a value head into a folder as ``value_head.safetensors``."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {f"score.{name}": weight.contiguous() for name, weight in head.items()}
    save_file(state, folder / "value_head.safetensors", metadata={"format": "pt"})
