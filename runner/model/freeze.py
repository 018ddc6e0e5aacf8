"""Training only a part of a model, its last layers or what a pattern fits, without an adapter."""

import re
from collections.abc import Sequence

from peft import PeftModel
from peft.utils.constants import SEQ_CLS_HEAD_NAMES
from torch import nn
from transformers import PreTrainedModel

from runner.errors import ConfigError, Fault, fault
from runner.model.adapter import is_quantized
from runner.model.check import find_depth_faults, find_pattern_faults

PARTS = ("norm", "head")


def train_last_layers(model: PreTrainedModel, *, layers: int, also: Sequence[str] = PARTS) -> PreTrainedModel:
    """The same model, in which only the last ``layers`` transformer blocks are still trained.

    ``also`` names what follows them: ``norm``, the final norm, and ``head``, which turns hidden
    states into logits or a score. A head that shares its weights with the embeddings trains those.
    """
    # The transformer blocks are the one list of modules as long as the model is deep.
    depth = model.config.get_text_config().num_hidden_layers
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == depth]
    if not lists:
        raise ConfigError(fault("model.no_blocks", model=type(model).__name__, depth=depth))
    blocks = lists[0]
    faults = list(find_depth_faults(layers, len(blocks)))
    if strangers := sorted(set(also) - set(PARTS)):
        faults.append(fault("model.unknown_parts", names=", ".join(strangers), parts=PARTS))
    if not layers and not also:
        faults.append(fault("model.nothing_trained"))
    ConfigError.refuse([*faults, *_whole_faults(model)])
    trained = list(blocks[len(blocks) - layers :])
    if "norm" in also:  # whatever the architecture calls it, it stands beside the list of blocks
        owner = next(part for part in model.modules() if any(child is blocks for child in part.children()))
        trained += [child for child in owner.children() if "norm" in type(child).__name__.lower()]
    if "head" in also:
        scores = (getattr(model, name) for name in SEQ_CLS_HEAD_NAMES if hasattr(model, name))
        trained.append(model.get_output_embeddings() or next(scores))
    model.requires_grad_(False)
    for part in trained:
        part.requires_grad_(True)
    return model


def train_weights(model: PreTrainedModel, *, matching: Sequence[str]) -> PreTrainedModel:
    """The same model, in which only those weights are still trained in whose names a pattern is found.

    Shared weights have one name, that of the embeddings. Raises ConfigError for a pattern that fits nothing.
    """
    weights = dict(model.named_parameters())
    faults = [] if matching else [fault("model.no_patterns")]
    faults += [*_whole_faults(model), *find_pattern_faults("peft.matching", matching, [*weights])]
    ConfigError.refuse(faults)
    for name, weight in weights.items():
        weight.requires_grad_(any(re.search(pattern, name) for pattern in matching))
    return model


def _whole_faults(model: nn.Module) -> list[Fault]:
    return [fault("model.frozen_already")] if isinstance(model, PeftModel) or is_quantized(model) else []
