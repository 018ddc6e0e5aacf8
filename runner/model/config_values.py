"""Values in the JSON files of a model that cannot be right.

They are judged by limits of ours, and by the types of the class that takes them.

The class that takes a value knows its type, if anything. What neither knows is left to loading.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.errors import Fault
from runner.io.files import JsonObject
from runner.model.model_files import ModelFolder
from runner.schema.literal import to_list
from runner.schema.read import read_signature
from runner.schema.text import Node

# Keys whose mappings are checked key by key.
NESTED = ("text_config", "rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class NumberRange:
    """Numbers from ``least`` to ``most``."""

    least: float
    most: float

    def accepts(self, value: object) -> bool:
        """True for a number in the range."""
        return isinstance(value, int | float) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"{self.least:,} to {self.most:,}"


@dataclass(frozen=True)
class TextChoice:
    """One of some texts."""

    texts: tuple[str, ...]

    def accepts(self, value: object) -> bool:
        """True for one of the texts."""
        return value in self.texts

    def __str__(self) -> str:
        return f"one of {', '.join(self.texts)}"


@dataclass(frozen=True)
class JsonKind:
    """A kind of JSON value, whatever it holds."""

    name: str
    types: tuple[type, ...]

    def accepts(self, value: object) -> bool:
        """True for a value of this kind."""
        return isinstance(value, self.types)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class KeyLimit:
    """The limit of the keys that a regular expression matches.

    It matches a dotted key as a whole, or its last name.
    """

    keys: str
    limit: NumberRange | TextChoice | JsonKind

    def matches(self, key: str) -> bool:
        """True for a key of these, which may have dots."""
        last = key.rpartition(".")[2]
        return bool(re.fullmatch(self.keys, key) or re.fullmatch(self.keys, last))


@dataclass(frozen=True)
class BadValue:
    """A value that cannot be right, as JSON, and what was expected in its place."""

    key: str
    text: str
    expected: str


AN_OBJECT = JsonKind("an object", (Mapping,))
A_LIST = JsonKind("a list", (list,))
A_TEXT = JsonKind("a text", (str,))
TEXT_OR_OBJECT = JsonKind("a text or an object", (str, Mapping))
ROPE = r"rope_(parameters|scaling)"
ROPE_TYPES = (
    "default",
    "linear",
    "dynamic",
    "yarn",
    "longrope",
    "llama3",
    "proportional",
    "axial",
    "mrope",
    "su",
    "ntk_alpha",
    "xdrope",
)
# The first limit whose pattern matches a key counts.
LIMITS = {
    "config.json": (
        KeyLimit(
            "(hidden|intermediate|embedding|ffn_hidden)_size|n_embd|d_model|ffn_dim"
            "|word_embed_proj_dim",
            NumberRange(1, 1_000_000),
        ),
        KeyLimit(
            "num_(hidden_layers|attention_heads|key_value_heads)|n_layer|n_head",
            NumberRange(1, 10_000),
        ),
        KeyLimit("vocab_size", NumberRange(1, 100_000_000)),
        KeyLimit("max_position_embeddings|n_positions", NumberRange(1, 100_000_000_000)),
        KeyLimit("head_dim", NumberRange(0, 1_000_000)),
        KeyLimit("rms_norm_eps|layer_norm_eps(ilon)?", NumberRange(0, 1)),
        KeyLimit("initializer_range", NumberRange(0, 1000)),
        KeyLimit("rope_theta", NumberRange(1.0e-3, 1.0e15)),
        KeyLimit(".*_(dropout|pdrop)", NumberRange(0, 1)),
        KeyLimit("pretraining_tp", NumberRange(1, 10_000)),
        KeyLimit("(bos|pad)_token_id", NumberRange(-1, 100_000_000)),
        KeyLimit("(torch_)?dtype", TextChoice(("float16", "bfloat16", "float32", "float64"))),
        KeyLimit(rf"{ROPE}\.(rope_)?type", TextChoice(ROPE_TYPES)),
        KeyLimit(
            rf"{ROPE}\.((original_max_position_embeddings|factor|attention_factor)"
            r"|(low|high)_freq_factor|beta_\w+)",
            NumberRange(0, 100_000_000_000),
        ),
        KeyLimit(rf"{ROPE}\.((short|long)_factor|mrope_section)", A_LIST),
        KeyLimit(f"{ROPE}|quantization_config|auto_map", AN_OBJECT),
        KeyLimit("layer_types", A_LIST),
    ),
    "generation_config.json": (
        KeyLimit("temperature|repetition_penalty", NumberRange(0, 1_000_000)),
        KeyLimit("top_p|min_p|typical_p", NumberRange(0, 1)),
        KeyLimit("num_beams|num_return_sequences", NumberRange(1, 10_000)),
        KeyLimit("max_length|max_new_tokens", NumberRange(0, 1_000_000_000_000)),
        KeyLimit("(bos|pad|eos)_token_id", NumberRange(-1, 100_000_000)),
    ),
    "adapter_config.json": (
        KeyLimit("r|lora_alpha", NumberRange(1.0e-9, 1_000_000)),
        KeyLimit("lora_dropout", NumberRange(0, 1)),
    ),
    "tokenizer_config.json": (
        KeyLimit("model_max_length", NumberRange(1, 1.0e31)),
        KeyLimit("(padding|truncation)_side", TextChoice(("left", "right"))),
        KeyLimit("tokenizer_class", A_TEXT),
        KeyLimit("(bos|eos|pad|unk)_token", TEXT_OR_OBJECT),
    ),
}


def bad_value(folder: ModelFolder, file: str, key: str, value: str, expected: str) -> Fault:
    """The fault of a value in a file of a model's folder."""
    return Fault(
        where=folder.where,
        found=f"{file} of {folder.source}: {key} is {value}",
        expected=expected,
        fix="=<folder or org/name>",
    )


def find_value_faults(folder: ModelFolder, file: str, target: str = "") -> Iterator[Fault]:
    """A fault for each value in a file of a model's folder that cannot be right.

    ``target`` is the class that takes the values, by its dotted name.
    """
    for bad in _find_bad_values(folder.read(file), file, target):
        yield bad_value(folder, file, bad.key, bad.text, bad.expected)


def find_override_value_faults(folder: ModelFolder, target: str, where: str) -> Iterator[Fault]:
    """A fault for each override of a model's config that cannot be right; ``where`` holds them."""
    for bad in _find_bad_values(folder.overrides, "config.json", target):
        yield Fault(
            where=f"{where}.{bad.key}",
            found=bad.text,
            expected=bad.expected,
            fix="leave it out",
        )


def list_entries(values: Node) -> JsonObject:
    """The values by their keys, followed by those inside of ``NESTED`` mappings by dotted keys."""
    entries = dict(values)
    for key, value in values.items():
        if key in NESTED and isinstance(value, Mapping):
            for inner_key, inner_value in value.items():
                entries[f"{key}.{inner_key}"] = inner_value
    return entries


def _limit_of(key: str, file: str) -> NumberRange | TextChoice | JsonKind | None:
    """The limit of a key of a file, None where it has none."""
    for key_limit in LIMITS[file]:
        if key_limit.matches(key):
            return key_limit.limit
    return None


def _find_bad_values(values: Node, file: str, target: str) -> Iterator[BadValue]:
    """The values of a file that its limits or the types of the ``target`` do not allow.

    Where both refuse a value, the type is what is expected.
    """
    signature = read_signature(target) if target else None
    parameters = signature.parameters if signature else {}
    for key, value in list_entries(values).items():
        if value is None:
            continue
        limit = _limit_of(key, file)
        items = to_list(value)
        # Such as {"__float__": "Infinity"}, which JSON has no number for.
        has_objects = any(isinstance(item, Mapping) for item in items)
        expected = ""
        if isinstance(limit, JsonKind):
            if not limit.accepts(value):
                expected = str(limit)
        elif has_objects:
            continue
        elif limit and not all(limit.accepts(item) for item in items):
            expected = str(limit)
        parameter = parameters.get(key)
        if parameter and not has_objects:
            # JSON may write a whole number as 2.0.
            is_whole = isinstance(value, float) and value.is_integer()
            if not parameter.type.accepts(int(value) if is_whole else value):
                expected = str(parameter.type)
        if expected:
            yield BadValue(key, json.dumps(value)[:40], expected)
