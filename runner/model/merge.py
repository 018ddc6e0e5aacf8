"""Models that load without peft: an adapter merged into its base, or another precision."""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TorchAoConfig

from runner.errors import ConfigError, Fault, SickRun
from runner.model.adapter import merge_adapter
from runner.model.architecture import modality_of
from runner.model.encoding import processor_of
from runner.model.load import (
    auto_class,
    fetch,
    load_model,
    load_tokenizer,
    read_adapter,
    read_config,
)
from runner.model.merge_pass import can_merge_in_pass, merge_in_pass
from runner.schema.literal import number

# Texts and tokens of the random input on which two models are compared. Every weight of a layer
# takes part in each token.
PROBE = (2, 8)
EXACT = 1e-3  # of the largest logit: what float32 sums in another order stay far below


@dataclass(frozen=True)
class WrittenModel:
    """The distance of the written model from the trained one.

    It is measured in the largest difference of a logit.
    """

    dtype: str
    merged: float | None  # before rounding; None where nothing was merged
    rounded: float
    largest: float  # the logit with the largest absolute value


def write_plain(
    source: Path, folder: Path, *, head: str, dtype: str | None = None, trust: bool
) -> WrittenModel:
    """Write the model at ``source`` so that plain transformers loads it, and load it once to see.

    An adapter is merged in float32. Without ``dtype`` the weights have that of the base. Raises
    ConfigError for an adapter that is no change of weights, and SickRun where the merged model is
    another one.
    """
    tokenizer = load_tokenizer(str(source), trust_remote_code=trust)
    adapter = read_adapter(str(source))
    if adapter is not None and adapter.is_prompt_learning:
        method = adapter.peft_type.value
        fault = Fault(
            where=str(source),
            found=f"a learnt prompt ({method}), which does not change weights and cannot be merged",
            expected="an adapter of the weights, or a whole model",
            fix=f"PeftModel.from_pretrained(base, '{source}'), which loads it as it is",
        )
        raise ConfigError(fault)
    if not dtype:
        config = read_config(str(source), trust_remote_code=trust)
        dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    goes_layer_by_layer = adapter is not None and _goes_layer_by_layer(source, dtype, trust)
    # A whole model is only rounded, and that is exact from whatever precision it was saved in.
    is_widened = adapter is not None and not goes_layer_by_layer
    model = load_model(
        str(source),
        tokenizer=tokenizer,
        head=head,
        dtype="float32" if is_widened else "auto",
        trust_remote_code=trust,
    ).eval()
    probe = _probe_of(tokenizer)
    merged = None
    if goes_layer_by_layer:
        result = merge_in_pass(model, probe)
        model = result.model
        trained = result.trained_logits
        merged = _largest_difference(trained, result.merged_logits)
        del result
    else:
        trained = _logits(model, probe)
        if isinstance(model, PeftModel):
            model = merge_adapter(model)
            merged = _distance(trained, model, probe)
    largest = trained.abs().max().item()
    if merged is not None:
        _check_same(source, merged, largest)
    torch_dtype = getattr(torch, dtype)
    model.to(torch_dtype).save_pretrained(str(folder))
    processor_of(tokenizer).save_pretrained(str(folder))
    del model  # so that there is room for the one that is loaded
    loaded = _load_written(folder, head, torch_dtype, trust)
    rounded = _distance(trained, loaded, probe)
    if dtype == "float32":
        _check_same(folder, rounded, largest)
    return WrittenModel(dtype, merged, rounded, largest)


def write_fp8(plain: Path, folder: Path, *, trust: bool) -> WrittenModel:
    """Write the model in a folder with its linear layers in FP8, and load it once to see.

    Embeddings and the output layer stay as they are. The difference is that from ``plain``. Raises
    ConfigError where there is no such layer, or vLLM would not find it.
    """
    from torchao.quantization import Float8Tensor, Float8WeightOnlyConfig

    tokenizer = load_tokenizer(str(plain), trust_remote_code=trust)
    model = load_model(str(plain), tokenizer=tokenizer, dtype="auto", trust_remote_code=trust)
    probe = _probe_of(tokenizer)
    exact = _logits(model.eval(), probe)
    dtype = model.dtype
    config = model.config.to_dict()
    del model  # so that there is room for the other one
    model = auto_class(config, "lm").from_pretrained(
        str(plain),
        dtype=dtype,
        quantization_config=TorchAoConfig(Float8WeightOnlyConfig()),
        trust_remote_code=trust,
    )
    is_rounded = any(isinstance(weight.data, Float8Tensor) for weight in model.parameters())
    if modality_of(config) or not is_rounded:
        raise ConfigError(
            Fault(
                where="format=fp8",
                found=f"{type(model).__name__}: only linear layers of a model of text are written",
                expected="a model of text with linear layers",
                fix="leave format out, and vllm serve --quantization fp8 with that folder",
            )
        )
    model.save_pretrained(str(folder))
    processor_of(tokenizer).save_pretrained(str(folder))
    del model
    rounded = _distance(exact, _load_written(folder, "lm", dtype, trust), probe)
    rest = str(dtype).removeprefix("torch.")
    largest = exact.abs().max().item()
    return WrittenModel(f"FP8 (the rest: {rest})", None, rounded, largest)


def _goes_layer_by_layer(source: Path, dtype: str, trust: bool) -> bool:
    """True for an adapter that a pass can merge into a base that is stored as it is written."""
    adapter = fetch(str(source))
    if adapter.base is None:
        return False
    base = fetch(adapter.base.path, "model", adapter.base.revision)
    config = read_config(str(source), trust_remote_code=trust)
    is_loaded_so = getattr(config, "dtype", None) == getattr(torch, dtype)
    return is_loaded_so and can_merge_in_pass(adapter, base, dtype)


def _load_written(folder: Path, head: str, dtype: torch.dtype, trust: bool) -> PreTrainedModel:
    """The model in a folder as plain transformers loads it.

    Raises SickRun where a weight is missing or left over.
    """
    config = read_config(str(folder), trust_remote_code=trust)
    model, report = auto_class(config.to_dict(), head).from_pretrained(
        str(folder), output_loading_info=True, dtype=dtype, trust_remote_code=trust
    )
    wrong: list[str] = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        wrong += map(str, report.get(kind, ()))
    if wrong:
        names = ", ".join(sorted(wrong)[:3])
        raise SickRun(
            Fault(
                where=str(folder),
                found=f"written without {names}",
                expected="every weight of the model",
            )
        )
    return model.eval()


def _probe_of(tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Random texts, the same each time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(len(tokenizer), PROBE, generator=generator)


def _logits(model: nn.Module, probe: Tensor) -> Tensor:
    """The logits of a model for some token ids, float32."""
    with torch.no_grad():
        output = model(input_ids=probe, attention_mask=torch.ones_like(probe))
    return output.logits.float()


def _distance(logits: Tensor, model: nn.Module, probe: Tensor) -> float:
    """The largest difference between these logits and those of a model."""
    return _largest_difference(logits, _logits(model, probe))


def _largest_difference(logits: Tensor, other_logits: Tensor) -> float:
    return float((logits - other_logits).abs().max())


def _check_same(source: Path, distance: float, largest: float) -> None:
    """Raise SickRun where logits are further apart than sums in another order can be.

    Logits that are not finite are, too.
    """
    if not distance <= EXACT * max(largest, 1.0):
        off = f"a logit is off by {number(distance, 3)} of {number(largest, 3)}"
        raise SickRun(
            Fault(
                where=str(source),
                found=f"the merged model gives other answers: {off}",
                expected="the same logits",
                fix="share the adapter in model/ without merging",
            )
        )
