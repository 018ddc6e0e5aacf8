"""Configs of models made narrow and shallow, with all of their sizes still going together.

What stays is what code depends on: the vocabulary, tied embeddings, how many queries share a key,
one layer of each kind, experts, windows and rotations; and where heads allow, how wide the parts of
a layer are in proportion.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PretrainedConfig

HEAD_SIZE = 8  # units of an attention head
# The most of each that a narrow model has.
LIMITS = {
    # Experts, and those that a token is given to.
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "moe_num_experts": 8,
    "num_experts_per_tok": 8,
    "top_k_experts": 8,
    "moe_topk": 8,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    # Tokens that attention looks back at.
    "sliding_window": 32,
    "attention_chunk_size": 32,
    # Layers beside the usual ones, or that share their keys.
    "num_kv_shared_layers": 0,
    "num_nextn_predict_layers": 0,
    # Ranks.
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "hidden_size_per_layer_input": 16,
    # Units of a head, and parts of it.
    "qk_nope_head_dim": HEAD_SIZE,
    "qk_rope_head_dim": HEAD_SIZE,
    "v_head_dim": HEAD_SIZE,
    "rotary_dim": HEAD_SIZE,
    "head_dim": HEAD_SIZE,
    "global_head_dim": HEAD_SIZE,
    "linear_key_head_dim": HEAD_SIZE,
    "linear_value_head_dim": HEAD_SIZE,
    "d_kv": HEAD_SIZE,
}
# The width inside a layer, beside every name with intermediate_size in it.
INNER_WIDTHS = ("ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "decoder_ffn_dim")
LAYER_COUNTS = ("num_hidden_layers", "max_window_layers", "decoder_layers", "encoder_layers")
# The number of layers after which a pattern of layers begins again.
PERIODS = (
    "sliding_window_pattern",
    "full_attention_interval",
    "attn_layer_period",
    "interleave_moe_layer_step",
)


def shrink(config: PretrainedConfig) -> PretrainedConfig:
    """The config of a narrow model of few layers, all of whose sizes still go together."""
    small = shorten(config)
    for part in _list_parts(small):
        width_before = getattr(part, "hidden_size", None)
        _narrow_heads(part)
        for name, limit in LIMITS.items():
            value = _value(part, name)
            if type(value) is int:
                setattr(part, name, min(value, limit))
        for name in list(vars(part)):
            if "intermediate_size" in name or name in INNER_WIDTHS:
                share = part.hidden_size / width_before
                setattr(part, name, _narrow_width(getattr(part, name), share))
        if hasattr(part, "word_embed_proj_dim"):
            part.word_embed_proj_dim = part.hidden_size
        if hasattr(part, "qk_head_dim"):
            part.head_dim = part.qk_rope_head_dim
            part.qk_head_dim = part.qk_nope_head_dim + part.qk_rope_head_dim
        # The config of a repository's own code may have the second name.
        name = "rope_parameters" if hasattr(part, "rope_parameters") else "rope_scaling"
        settings = getattr(part, name, None)
        if isinstance(settings, dict):
            setattr(part, name, _narrow_rotation(settings))
    return small


def shorten(config: PretrainedConfig) -> PretrainedConfig:
    """The config with one layer of each kind, two at least.

    It has no quantisation, which needs real weights.
    """
    small = copy.deepcopy(config)
    if hasattr(small, "quantization_config"):
        del small.quantization_config
    for part in _list_parts(small):
        depth = getattr(part, "num_hidden_layers", None)
        if isinstance(depth, int):
            _remove_layers(part, depth)
    return small


def _list_parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """A config and those of its parts, such as of text and of images."""
    yield config
    for name in getattr(config, "sub_configs", None) or {}:
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig):
            yield from _list_parts(part)


# --- Fewer layers -------------------------------------------------------------------------------


def _remove_layers(part: PretrainedConfig, depth: int) -> None:
    """Leave one layer of each kind, as many as a pattern needs to begin again, and two at least."""
    numbers: dict[str, Sequence[int]] = {}  # lists of some layers by their numbers
    settings: dict[str, Sequence[Any]] = {}  # lists with one value for every layer
    for name, value in vars(part).items():
        if not isinstance(value, list | tuple):
            continue
        if _are_layer_numbers(value):
            numbers[name] = value
        elif len(value) == depth:
            settings[name] = value
    layers = _first_of_each_kind(settings, depth)
    count = max(2, len(layers))
    if not settings:  # without a list of kinds a period may say where they come
        periods = [getattr(part, name, None) for name in PERIODS]
        whole_periods = [period for period in periods if isinstance(period, int)]
        count = max([count, *whole_periods])
    others = [layer for layer in range(depth) if layer not in layers]
    layers = (layers + others)[:count]

    for name, value in settings.items():
        remaining_values = [value[layer] for layer in layers]
        setattr(part, name, remaining_values)
    for name, value in numbers.items():
        remaining_layers = [layer for layer in value if layer < len(layers)]
        setattr(part, name, remaining_layers)
    for name in LAYER_COUNTS:
        value = getattr(part, name, None)
        if isinstance(value, int):
            setattr(part, name, min(value, len(layers)))


def _first_of_each_kind(settings: Mapping[str, Sequence[Any]], depth: int) -> list[int]:
    """The first layer of each kind; layers with equal settings are of one kind."""
    first_layers: dict[str, int] = {}
    for layer in range(depth):
        kind = [value[layer] for value in settings.values()]
        first_layers.setdefault(repr(kind), layer)
    return list(first_layers.values())


def _are_layer_numbers(values: Sequence[Any]) -> bool:
    """True for a list that names some layers, such as those with experts, by ascending numbers."""
    if len(values) <= 2:
        return False
    if any(type(value) is not int for value in values):
        return False
    return sorted(set(values)) == list(values)


# --- Narrow layers ------------------------------------------------------------------------------


def _value(part: PretrainedConfig, name: str) -> Any:
    """The value of a key that a config holds itself, under whichever name."""
    return vars(part).get(part.attribute_map.get(name, name))


def _narrow_heads(part: PretrainedConfig) -> None:
    """Make heads few, as many to a key as before.

    The hidden states stay as wide as before, measured in all heads.
    """
    heads = getattr(part, "num_attention_heads", None)
    if not isinstance(heads, int) or not heads:
        return
    keys = _value(part, "num_key_value_heads") or _value(part, "num_kv_heads") or heads
    size = _value(part, "head_dim") or part.hidden_size // heads
    heads_per_key = max(1, heads // keys)
    small_keys = 1 if keys == 1 or heads_per_key > 4 else 2
    small_heads = small_keys * heads_per_key
    width = small_heads * HEAD_SIZE * part.hidden_size / (size * heads)
    counts = {
        "num_attention_heads": small_heads,
        "num_key_value_heads": small_keys,
        "num_kv_heads": small_keys,
    }
    for name, count in counts.items():
        if isinstance(_value(part, name), int):
            setattr(part, name, count)
    # A multiple of 4, and room for the heads.
    width_of_heads = min(2, small_heads) * HEAD_SIZE
    part.hidden_size = max(width_of_heads, 4 * round(width / 4))
    # Layers of linear attention count their heads apart.
    linear_values = getattr(part, "linear_num_value_heads", None)
    linear_keys = getattr(part, "linear_num_key_heads", None)
    if linear_values and linear_keys:
        part.linear_num_key_heads = 1
        part.linear_num_value_heads = max(1, linear_values // linear_keys)


def _narrow_width(width: object, share: float) -> object:
    """A share of a width, or of the width of each layer, as a multiple of 8."""
    if isinstance(width, list):
        return [_narrow_width(layer_width, share) for layer_width in width]
    if not isinstance(width, int):
        return width
    return max(8, 8 * round(width * share / 8))


def _narrow_rotation(settings: dict[str, Any]) -> dict[str, Any]:
    """Rotations of the smaller heads: as many frequencies as they have pairs of units."""
    factor = settings.get("partial_rotary_factor") or 1.0
    pairs = max(1, int(HEAD_SIZE * factor) // 2)
    small = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = _narrow_rotation(value)
        elif name == "mrope_section":
            value = [1, 1, pairs - 2] if pairs > 2 else [pairs, 0, 0]
        elif isinstance(value, list) and len(value) > pairs:
            value = value[:pairs]
        small[name] = value
    return small
