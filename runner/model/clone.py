"""A model of any size -> a folder with a random one of the same architecture that a CPU trains in a second.

Only the config, the generation settings and the tokenizer are read; no weights are. What stays is what code depends on:
the vocabulary, tied embeddings, how many queries share a key, one layer of each kind, experts, windows and rotations.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from runner.files import shipped
from runner.model.load import read_adapter, read_config

HEAD = 8  # units of an attention head
WIDTH = 32  # of the states, where heads do not decide it
LIMITS = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rotary_dim"), HEAD),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "global_head_dim", "head_dim", "d_kv"), HEAD),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 32),
    **dict.fromkeys(("num_kv_shared_layers", "num_nextn_predict_layers"), 0),
}
INNER = ("ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "decoder_ffn_dim")
LAYERS = ("num_hidden_layers", "max_window_layers", "decoder_layers", "encoder_layers")
# The number of layers that some patterns take to come round.
PERIODS = ("sliding_window_pattern", "full_attention_interval", "attn_layer_period", "interleave_moe_layer_step")
RANK = 4  # of the adapter of an adapter's clone
MOST = 200_000_000  # weights of a clone that only has fewer layers


def write_clone(
    path: str, folder: Path, *, revision: str | None = None, trust_remote_code: bool = False, seed: int = 0
) -> str | None:
    """Write a small random model like the one at ``path`` into a folder, with its tokenizer, and say what it is.

    Of an adapter its base is made small, and it gets a new adapter of the same kind. None, and nothing written, where
    the architecture cannot be made small.
    """
    if adapter := read_adapter(path, revision):
        base = folder.with_name(f"{folder.name}-base")
        how = {"revision": adapter.revision, "trust_remote_code": trust_remote_code, "seed": seed}
        told = write_clone(adapter.base_model_name_or_path, base, **how)
        if told is None:
            return None
        _write_adapter(adapter, base, folder)
        _copy_tokenizer(path, revision, trust_remote_code, folder)
        return f"{told}, with a new adapter"
    config = read_config(path, revision, trust_remote_code)
    model = next(_small_models(config, seed, trust_remote_code), None)
    if model is None:
        return None
    with contextlib.suppress(OSError):  # without such a file a model stops at the config's end
        model.generation_config = GenerationConfig.from_pretrained(shipped(path), revision=revision or "main")
    model.save_pretrained(folder)
    _copy_tokenizer(path, revision, trust_remote_code, folder)
    return describe(model)


def count_weights(config: PretrainedConfig, trust_remote_code: bool = False) -> int:
    """How many weights a model of this config has; none is made for that."""
    with torch.device("meta"):
        model = kind_of(config).from_config(config, trust_remote_code=trust_remote_code)
    return sum(weight.numel() for weight in model.parameters())


def kind_of(config: PretrainedConfig) -> Any:
    """The class that makes what the config says it is; a causal language model where it says nothing."""
    named = (getattr(config, "architectures", None) or [""])[0]
    if named.endswith("ForSequenceClassification"):
        return AutoModelForSequenceClassification
    return AutoModelForTokenClassification if named.endswith("ForTokenClassification") else AutoModelForCausalLM


def describe(model: PreTrainedModel) -> str:
    """What a clone is, in a line."""
    text, count = model.config.get_text_config(), sum(weight.numel() for weight in model.parameters())
    return f"{text.model_type}, {text.num_hidden_layers} layers of {text.hidden_size}, {count / 1e6:.1f} M weights"


# --- Making it small ----------------------------------------------------------------------------


def _small_models(config: PretrainedConfig, seed: int, trust: bool) -> Iterator[PreTrainedModel]:
    """Models that answer: made small in every way; else only with fewer layers, if that is small enough."""
    for shrink_it in (shrink, shorten):
        with contextlib.suppress(Exception):  # an architecture with a rule of its own, which only its code knows
            small = shrink_it(config)
            if shrink_it is shrink or count_weights(small, trust) <= MOST:
                yield _answering(small, seed, trust)


def _answering(config: PretrainedConfig, seed: int, trust: bool) -> PreTrainedModel:
    """A random model of this config that has read a few tokens; raises whatever keeps it from that."""
    dtype = getattr(config, "dtype", None) or torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind_of(config).from_config(config, dtype=dtype, trust_remote_code=trust)
    with torch.no_grad():
        model.eval()(input_ids=torch.arange(1, 7).unsqueeze(0))
    return model


def shrink(config: PretrainedConfig) -> PretrainedConfig:
    """The config of a narrow model of few layers, all of whose sizes still go together."""
    small = shorten(config)
    for part in _parts(small):
        _set_heads(part)
        for name, limit in LIMITS.items():
            if type(value := _value(part, name)) is int:
                setattr(part, name, min(value, limit))
        for name in [name for name in vars(part) if "intermediate_size" in name or name in INNER]:
            _set_inner(part, name)
        if hasattr(part, "word_embed_proj_dim"):
            part.word_embed_proj_dim = part.hidden_size
        if hasattr(part, "qk_head_dim"):
            part.head_dim, part.qk_head_dim = part.qk_rope_head_dim, part.qk_nope_head_dim + part.qk_rope_head_dim
        _set_rotation(part)
    return small


def shorten(config: PretrainedConfig) -> PretrainedConfig:
    """The config with one layer of each kind, two at least, and without a quantisation, which needs real weights."""
    small = copy.deepcopy(config)
    if hasattr(small, "quantization_config"):
        del small.quantization_config
    for part in _parts(small):
        depth = getattr(part, "num_hidden_layers", None)
        if not isinstance(depth, int):
            continue
        kept = _kept_layers(part, depth)
        for name, value in _lists(part, depth).items():
            setattr(part, name, [value[layer] for layer in kept])
        for name, value in vars(part).items():
            if _is_numbers_of_layers(value):
                setattr(part, name, [layer for layer in value if layer < len(kept)])
        for name in LAYERS:
            if isinstance(value := getattr(part, name, None), int):
                setattr(part, name, min(value, len(kept)))
    return small


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """The config itself and those inside it, such as that of the text of a model with pictures."""
    yield config
    for name in getattr(config, "sub_configs", None) or {}:
        if isinstance(part := getattr(config, name, None), PretrainedConfig):
            yield from _parts(part)


def _kept_layers(part: PretrainedConfig, depth: int) -> list[int]:
    """The first layer of each kind, by whatever the config lists for every layer."""
    lists = _lists(part, depth)
    kinds: dict[str, int] = {}
    for layer in range(depth):
        kinds.setdefault(repr([value[layer] for value in lists.values()]), layer)
    periods = [value for name in PERIODS if isinstance(value := getattr(part, name, None), int)]
    least = max(2, *periods, 0) if not lists else 2
    kept = sorted(kinds.values())
    return (kept + [layer for layer in range(depth) if layer not in kept])[: max(least, len(kept))]


def _lists(part: PretrainedConfig, depth: int) -> dict[str, list[Any]]:
    """What the config says of each layer, by its name."""
    listed = {name: value for name, value in vars(part).items() if isinstance(value, list | tuple)}
    return {name: value for name, value in listed.items() if len(value) == depth and not _is_numbers_of_layers(value)}


def _is_numbers_of_layers(value: Any) -> bool:
    """Whether a list names some layers, such as those with experts, by their rising numbers."""
    whole = isinstance(value, list | tuple) and len(value) > 2 and all(type(entry) is int for entry in value)
    return whole and sorted(set(value)) == list(value)


def _value(part: PretrainedConfig, name: str) -> Any:
    """What a config holds under a name; None where it holds nothing."""
    return vars(part).get(part.attribute_map.get(name, name))


def _set_heads(part: PretrainedConfig) -> None:
    """Few heads, as many to a key as before; the states as wide as all of them, if they were so before."""
    heads = getattr(part, "num_attention_heads", None)
    if not isinstance(heads, int) or not heads:
        return
    keys = _value(part, "num_key_value_heads") or _value(part, "num_kv_heads") or heads
    size = _value(part, "head_dim") or part.hidden_size // heads
    shared = max(1, heads // keys)
    few = 1 if keys == 1 or shared > 4 else 2
    spans = size * heads == part.hidden_size
    for name, count in (("num_attention_heads", few * shared), ("num_key_value_heads", few), ("num_kv_heads", few)):
        if isinstance(_value(part, name), int):
            setattr(part, name, count)
    part.hidden_size = few * shared * HEAD if spans else WIDTH
    values, queries = (getattr(part, f"linear_num_{kind}_heads", None) for kind in ("value", "key"))
    if values and queries:
        part.linear_num_key_heads, part.linear_num_value_heads = 1, max(1, values // queries)


def _set_inner(part: PretrainedConfig, name: str) -> None:
    """A narrow feed-forward layer, or as many as the config lists."""
    value = getattr(part, name)
    if isinstance(value, list | tuple):
        setattr(part, name, [2 * part.hidden_size] * len(value))
    elif isinstance(value, int):
        setattr(part, name, 2 * part.hidden_size)


def _set_rotation(part: PretrainedConfig) -> None:
    """Rotations of the smaller heads: as many frequencies as they have pairs of units."""
    # Where there is the one, the other is an old name of it.
    name = "rope_parameters" if hasattr(part, "rope_parameters") else "rope_scaling"
    if isinstance(settings := getattr(part, name, None), dict):
        setattr(part, name, _rotation(settings))


def _rotation(settings: dict[str, Any]) -> dict[str, Any]:
    share = settings.get("partial_rotary_factor") or 1.0
    pairs = max(1, int(HEAD * share) // 2)
    small = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = _rotation(value)
        elif name == "mrope_section":
            value = [1, 1, pairs - 2] if pairs > 2 else [pairs, 0, 0]
        elif isinstance(value, list) and len(value) > pairs:
            value = value[:pairs]
        small[name] = value
    return small


# --- What stands beside it ----------------------------------------------------------------------


def _write_adapter(adapter: Any, base: Path, folder: Path) -> None:
    """A new adapter of the same kind on a small base."""
    config = copy.deepcopy(adapter)
    config.inference_mode, config.base_model_name_or_path, config.revision = False, str(base), None
    for name, value in {"r": RANK, "layers_to_transform": None, "rank_pattern": {}, "alpha_pattern": {}}.items():
        if hasattr(config, name):
            setattr(config, name, value)
    if hasattr(config, "init_lora_weights"):
        config.init_lora_weights = True
    kinds = {"SEQ_CLS": AutoModelForSequenceClassification, "TOKEN_CLS": AutoModelForTokenClassification}
    kind = kinds.get(str(config.task_type).rpartition(".")[2], AutoModelForCausalLM)
    own = {"num_labels": 1} if kind is AutoModelForSequenceClassification else {}
    model = get_peft_model(kind.from_pretrained(base, **own), config)
    model.save_pretrained(str(folder), save_embedding_layers=False)


def _copy_tokenizer(path: str, revision: str | None, trust: bool, folder: Path) -> None:
    """The real tokenizer beside the clone, where there is one: trainers look for a reward model's there."""
    with contextlib.suppress(OSError, ValueError):
        AutoTokenizer.from_pretrained(shipped(path), revision=revision, trust_remote_code=trust).save_pretrained(folder)
