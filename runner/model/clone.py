"""Models in the place of large ones: small and random ones to train on a CPU in a second, and those without any data.

Only the config, the generation settings and the tokenizer are read; no weights are. What stays is what code depends on:
the vocabulary, tied embeddings, how many queries share a key, one layer of each kind, experts, windows and rotations;
and where heads allow, how wide the parts of a layer are in proportion.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import get_peft_model
from transformers import AutoConfig, GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from runner.errors import ConfigError, fault
from runner.io.files import shipped
from runner.model import check
from runner.model.encoding import processor_of
from runner.model.folder import PROCESSORS
from runner.model.load import auto_class, fetch, new_model, read_adapter, read_config
from runner.schema.text import read_tables

TABLES = read_tables(__file__)
HEAD_SIZE: int = TABLES["limits"]["head_dim"]  # units of an attention head
# By peft's name of the task; any other is a causal language model's.
CLASSES = {"SEQ_CLS": transformers.AutoModelForSequenceClassification}
CLASSES |= {"TOKEN_CLS": transformers.AutoModelForTokenClassification}
MAX_SHORTENED_WEIGHTS = 200_000_000  # weights of a clone that only has fewer layers


@dataclass(frozen=True)
class Source:
    """The origin of a model: a path, or keys of an architecture; ``head`` is lm or score."""

    path: str = ""
    revision: str | None = None
    trust: bool = False
    head: str = "lm"
    architecture: Mapping[str, Any] | None = None

    def config(self) -> PretrainedConfig:
        """The config of the model, or that of the base of an adapter; only the small file of it is read."""
        if self.architecture is not None:
            return AutoConfig.for_model(**self.architecture)
        return read_config(self.path, self.revision, self.trust)


def write_clone(source: Source, folder: Path) -> str:
    """Write a small random model like this one into a folder, with its tokenizer, and say what it is.

    Of an adapter its base is made small, under a new one of its kind. Raises ConfigError where that cannot be.
    """
    if adapter := read_adapter(source.path, source.revision) if source.path else None:
        base = replace(source, path=adapter.base_model_name_or_path, revision=adapter.revision)
        small = folder.with_name(f"{folder.name}-base")
        described = write_clone(base, small)
        config = copy.deepcopy(adapter)
        config.inference_mode, config.base_model_name_or_path, config.revision = False, str(small), None
        new = copy.deepcopy(TABLES["adapter"])
        vars(config).update({name: value for name, value in new.items() if hasattr(config, name)})
        kind = CLASSES.get(str(config.task_type).rpartition(".")[2], transformers.AutoModelForCausalLM)
        own = {"num_labels": 1} if kind is CLASSES["SEQ_CLS"] else {}
        model = get_peft_model(kind.from_pretrained(small, **own), config)
        model.save_pretrained(str(folder), save_embedding_layers=False)
        _copy_tokenizer(source, folder)
        return f"{described}, with a new adapter"
    if (model := small_model(source.config(), source.trust)) is None:
        raise ConfigError(fault("model.not_made_small", path=source.path, kind=source.config().model_type))
    if source.path:
        with contextlib.suppress(OSError):  # without such a file a model stops at the config's end
            revision = source.revision or "main"
            model.generation_config = GenerationConfig.from_pretrained(shipped(source.path), revision=revision)
        _copy_tokenizer(source, folder)
    model.save_pretrained(folder)
    text, count = model.config.get_text_config(), sum(weight.numel() for weight in model.parameters())
    return f"{text.model_type}, {text.num_hidden_layers} layers of {text.hidden_size}, {count / 1e6:.1f} M weights"


def write_placeholder(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model of a few weights that has a tokenizer's vocabulary, with it; some trainers load it by its path."""
    model, processor = new_model(tokenizer, **TABLES["placeholder"]), processor_of(tokenizer)
    if processor is not tokenizer:  # by which some trainers see that a model sees
        model.config.image_token_id = processor.image_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def count_weights(config: PretrainedConfig, trust: bool = False) -> int:
    """The number of weights that a model of this config has; none is made for that."""
    with torch.device("meta"):
        model = auto_class_of(config).from_config(config, trust_remote_code=trust)
    return sum(weight.numel() for weight in model.parameters())


def auto_class_of(config: PretrainedConfig) -> Any:
    """The class that makes what the config says it is; a causal language model where it says nothing."""
    kind = (getattr(config, "architectures", None) or [""])[0].rpartition("For")[2]
    known = {"SequenceClassification": CLASSES["SEQ_CLS"], "TokenClassification": CLASSES["TOKEN_CLS"]}
    return known.get(kind) or auto_class(config.to_dict(), "lm")


def small_model(config: PretrainedConfig, trust: bool = False) -> PreTrainedModel | None:
    """A random model that can read: small in every way, or else with fewer layers; None if it fails or stays large."""
    # What images are made of has to go together with the processor, which stays as it is.
    for make_small in (shorten,) if check.sees(config.to_dict()) else (shrink, shorten):
        with contextlib.suppress(Exception):  # an architecture with a rule of its own, which only its code knows
            small = make_small(config)
            if make_small is shorten and count_weights(small, trust) > MAX_SHORTENED_WEIGHTS:
                continue
            dtype = getattr(small, "dtype", None) or torch.float32
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = auto_class_of(small).from_config(small, dtype=dtype, trust_remote_code=trust)
            with torch.no_grad():
                model.eval()(input_ids=torch.arange(1, 7).unsqueeze(0))
            return model
    return None


def shrink(config: PretrainedConfig) -> PretrainedConfig:
    """The config of a narrow model of few layers, all of whose sizes still go together."""
    small = shorten(config)
    for part in _parts(small):
        before = getattr(part, "hidden_size", None)
        _set_heads(part)
        for name, limit in TABLES["limits"].items():
            if type(value := _value(part, name)) is int:
                setattr(part, name, min(value, limit))
        for name in [name for name in vars(part) if "intermediate_size" in name or name in TABLES["inner"]]:
            value, share = getattr(part, name), part.hidden_size / before
            listed = isinstance(value, list)
            setattr(part, name, [_narrowed(each, share) for each in value] if listed else _narrowed(value, share))
        if hasattr(part, "word_embed_proj_dim"):
            part.word_embed_proj_dim = part.hidden_size
        if hasattr(part, "qk_head_dim"):
            part.head_dim, part.qk_head_dim = part.qk_rope_head_dim, part.qk_nope_head_dim + part.qk_rope_head_dim
        name = "rope_parameters" if hasattr(part, "rope_parameters") else "rope_scaling"  # else an old name of it
        if isinstance(settings := getattr(part, name, None), dict):
            setattr(part, name, _rotation(settings))
    return small


def shorten(config: PretrainedConfig) -> PretrainedConfig:
    """The config with one layer of each kind, two at least, and without a quantisation, which needs real weights."""
    small = copy.deepcopy(config)
    if hasattr(small, "quantization_config"):
        del small.quantization_config
    for part in _parts(small):
        if not isinstance(depth := getattr(part, "num_hidden_layers", None), int):
            continue
        listed = {name: value for name, value in vars(part).items() if isinstance(value, list | tuple)}
        # Lists that name some layers, such as those with experts, by their rising numbers.
        wholes = {name: value for name, value in listed.items() if all(type(entry) is int for entry in value)}
        numbers = {name: value for name, value in wholes.items() if len(value) > 2 and sorted({*value}) == list(value)}
        settings = {name: value for name, value in listed.items() if len(value) == depth and name not in numbers}
        kinds: dict[str, int] = {}  # the first layer of each, by the settings that the config lists for every layer
        for layer in range(depth):
            kinds.setdefault(repr([value[layer] for value in settings.values()]), layer)
        periods = [value for name in TABLES["periods"] if isinstance(value := getattr(part, name, None), int)]
        least = 2 if settings else max(2, *periods, 0)
        kept = sorted(kinds.values())
        kept = (kept + [layer for layer in range(depth) if layer not in kept])[: max(least, len(kept))]
        for name, value in settings.items():
            setattr(part, name, [value[layer] for layer in kept])
        for name, value in numbers.items():
            setattr(part, name, [layer for layer in value if layer < len(kept)])
        for name in TABLES["layers"]:
            if isinstance(count := getattr(part, name, None), int):
                setattr(part, name, min(count, len(kept)))
    return small


def _parts(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    yield config
    for name in getattr(config, "sub_configs", None) or {}:
        if isinstance(part := getattr(config, name, None), PretrainedConfig):
            yield from _parts(part)


def _value(part: PretrainedConfig, name: str) -> Any:
    return vars(part).get(part.attribute_map.get(name, name))


def _set_heads(part: PretrainedConfig) -> None:
    """Few heads, as many to a key as before; the states as wide as before, measured in all of them."""
    heads = getattr(part, "num_attention_heads", None)
    if not isinstance(heads, int) or not heads:
        return
    keys = _value(part, "num_key_value_heads") or _value(part, "num_kv_heads") or heads
    size = _value(part, "head_dim") or part.hidden_size // heads
    shared = max(1, heads // keys)
    few = 1 if keys == 1 or shared > 4 else 2
    width = few * shared * HEAD_SIZE * part.hidden_size / (size * heads)
    for name, count in (("num_attention_heads", few * shared), ("num_key_value_heads", few), ("num_kv_heads", few)):
        if isinstance(_value(part, name), int):
            setattr(part, name, count)
    part.hidden_size = max(min(2, few * shared) * HEAD_SIZE, 4 * round(width / 4))
    values, queries = (getattr(part, f"linear_num_{kind}_heads", None) for kind in ("value", "key"))
    if values and queries:
        part.linear_num_key_heads, part.linear_num_value_heads = 1, max(1, values // queries)


def _narrowed(width: object, share: float) -> object:
    return max(8, 8 * round(width * share / 8)) if isinstance(width, int) else width


def _rotation(settings: dict[str, Any]) -> dict[str, Any]:
    """Rotations of the smaller heads: as many frequencies as they have pairs of units."""
    pairs = max(1, int(HEAD_SIZE * (settings.get("partial_rotary_factor") or 1.0)) // 2)
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


def _copy_tokenizer(source: Source, folder: Path) -> None:
    own = {"revision": source.revision, "trust_remote_code": source.trust}
    sees = fetch(source.path, revision=source.revision).has(*PROCESSORS)
    kind = transformers.AutoProcessor if sees else transformers.AutoTokenizer
    with contextlib.suppress(OSError, ValueError):
        kind.from_pretrained(shipped(source.path), **own).save_pretrained(folder)
