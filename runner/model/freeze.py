"""Training only a part of a model, its last layers or what a pattern fits, without an adapter."""

import re
from collections.abc import Iterator, Sequence

from peft import PeftModel
from peft.utils.constants import SEQ_CLS_HEAD_NAMES
from torch import nn
from transformers import PreTrainedModel

from runner.errors import ConfigError, Fault
from runner.model.adapter import is_quantized
from runner.model.check_tuning import find_depth_faults, find_pattern_faults

PARTS = ("norm", "head")


def train_last_layers(
    model: PreTrainedModel, *, layers: int, also: Sequence[str] = PARTS
) -> PreTrainedModel:
    """The same model, in which only the last ``layers`` transformer blocks are still trained.

    ``also`` names what follows them: ``norm``, the final norm, and ``head``, which turns hidden
    states into logits or a score. A head that shares its weights with the embeddings trains those.
    """
    blocks = _find_blocks(model)
    faults = list(find_depth_faults(layers, len(blocks)))
    unknown = sorted(set(also) - set(PARTS))
    if unknown:
        faults.append(
            Fault(
                where="peft.also",
                found=", ".join(unknown),
                expected=f"any of {PARTS}",
                fix="=[norm,head]",
            )
        )
    if not layers and not also:
        faults.append(
            Fault(
                where="peft",
                found="nothing would be trained",
                expected="a layer, or a head",
            )
        )
    faults += _find_frozen_faults(model)
    ConfigError.refuse(faults)
    trained = list(blocks[len(blocks) - layers :])
    if "norm" in also:
        trained += _find_norms(model, blocks)
    if "head" in also:
        scores = (getattr(model, name) for name in SEQ_CLS_HEAD_NAMES if hasattr(model, name))
        trained.append(model.get_output_embeddings() or next(scores))
    model.requires_grad_(False)
    for module in trained:
        module.requires_grad_(True)
    return model


def _find_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The transformer blocks of a model: the one list of modules as long as the model is deep."""
    depth = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth:
            return module
    raise ConfigError(
        Fault(
            where="peft",
            found=f"no layers found in {type(model).__name__}",
            expected=f"one list of {depth} blocks, as decoders have",
        )
    )


def _find_norms(model: PreTrainedModel, blocks: nn.ModuleList) -> list[nn.Module]:
    """The norms behind the blocks.

    Whatever an architecture calls them, they stand beside the list of blocks.
    """
    for module in model.modules():
        children = list(module.children())
        if any(child is blocks for child in children):
            return [child for child in children if "norm" in type(child).__name__.lower()]
    return []


def train_weights(model: PreTrainedModel, *, matching: Sequence[str]) -> PreTrainedModel:
    """The same model, in which only weights with names that a pattern fits are still trained.

    Shared weights have one name, that of the embeddings. Raises ConfigError for a pattern that fits
    nothing.
    """
    weights = dict(model.named_parameters())
    faults = []
    if not matching:
        faults.append(
            Fault(
                where="peft.matching",
                found="nothing",
                expected="patterns",
                fix="=[norm]",
            )
        )
    faults += _find_frozen_faults(model)
    faults += find_pattern_faults("peft.matching", matching, list(weights))
    ConfigError.refuse(faults)
    for name, weight in weights.items():
        is_trained = any(re.search(pattern, name) for pattern in matching)
        weight.requires_grad_(is_trained)
    return model


def _find_frozen_faults(model: nn.Module) -> Iterator[Fault]:
    """A fault for a model whose own weights cannot be trained."""
    if isinstance(model, PeftModel) or is_quantized(model):
        yield Fault(
            where="peft",
            found="its weights are frozen: it is quantised, or an adapter",
            expected="a whole model",
            fix="peft=none, or quant=none, or model.merge=true",
        )
