"""An adapter folded into its base, and any model written in another precision: what loads without peft."""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from runner.errors import ConfigError, SickRun, fault
from runner.model.encoding import processor_of
from runner.model.load import auto_class, load_model, load_tokenizer, read_adapter, read_config
from runner.schema.text import number

PROBE = (2, 48)  # texts and tokens of the random input on which two models are compared
EXACT = 1e-3  # of the largest logit: what float32 sums in another order stay far below


@dataclass(frozen=True)
class WrittenModel:
    """The distance of the written model from the trained one, in the largest difference of a logit."""

    dtype: str
    merged: float | None  # before rounding; None where nothing was merged
    rounded: float
    largest: float  # logit itself


def write_plain(source: Path, folder: Path, *, head: str, dtype: str | None = None, trust: bool) -> WrittenModel:
    """Write the model at ``source`` so that plain transformers loads it, and load it once to see.

    An adapter is merged in float32. Without ``dtype`` the weights have that of the base. Raises ConfigError for an
    adapter that is no change of weights, and SickRun where the merged model is another one.
    """
    tokenizer = load_tokenizer(str(source), trust_remote_code=trust)
    if (adapter := read_adapter(str(source))) is not None and adapter.is_prompt_learning:
        raise ConfigError(fault("model.merged_prompt", source=source, kind=adapter.peft_type.value))
    if not dtype:
        config = read_config(str(source), trust_remote_code=trust)
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    how = {"tokenizer": tokenizer, "head": head, "trust_remote_code": trust}
    # A whole model is only rounded, and that is exact from whatever it is kept in.
    model = load_model(str(source), dtype="float32" if adapter else "auto", **how).eval()
    probe = torch.randint(len(tokenizer), PROBE, generator=torch.Generator().manual_seed(0))
    trained, merged = _logits(model, probe), None
    largest = trained.abs().max().item()
    if isinstance(model, PeftModel):
        model = merge(model)
        merged = (trained - _logits(model, probe)).abs().max().item()
        _check_same(source, merged, largest)
    model.to(getattr(torch, dtype)).save_pretrained(str(folder))
    processor_of(tokenizer).save_pretrained(str(folder))
    del model
    how = {"dtype": getattr(torch, dtype), "trust_remote_code": trust}
    made = auto_class(read_config(str(folder), trust_remote_code=trust).to_dict(), head)
    loaded, report = made.from_pretrained(str(folder), output_loading_info=True, **how)
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    if lacking := sorted(str(name) for kind in kinds for name in report.get(kind, ())):
        raise SickRun(fault("model.written_without", folder=folder, names=", ".join(lacking[:3])))
    apart = (trained - _logits(loaded.eval(), probe)).abs().max().item()
    if dtype == "float32":
        _check_same(folder, apart, largest)
    return WrittenModel(dtype, merged, apart, largest)


def merge(model: PeftModel) -> PreTrainedModel:
    """The base model with its adapter added to its weights.

    An output layer that shares its weights with the embeddings gets its own where the adapter changes either: merged
    into shared weights, the change of one would be a change of both; peft notes in the config that they differ.
    """
    base = model.get_base_model()
    layers = [base.get_input_embeddings(), base.get_output_embeddings()]
    if None not in layers and any(isinstance(layer, BaseTunerLayer) for layer in layers):
        first, second = (layer.base_layer if isinstance(layer, BaseTunerLayer) else layer for layer in layers)
        if first.weight is second.weight:
            second.weight = torch.nn.Parameter(second.weight.detach().clone())
    return model.merge_and_unload(safe_merge=True)


@torch.no_grad()
def _logits(model: torch.nn.Module, probe: torch.Tensor) -> torch.Tensor:
    return model(input_ids=probe, attention_mask=torch.ones_like(probe)).logits.float()


def _check_same(source: Path, apart: float, largest: float) -> None:
    if not apart <= EXACT * max(largest, 1.0):
        logits = {"apart": number(apart, 3), "largest": number(largest, 3)}
        raise SickRun(fault("model.merged_otherwise", source=source, **logits))
