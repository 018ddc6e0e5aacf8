"""A look at a model's folder before anything loads: its config, the headers of its weights, its tokenizer.

Nothing is imported that could compute: a safetensors file begins with the names, shapes and places of what it holds,
and everything else is JSON. What only loading can show is told by ``fault``; a name on the hub passes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.content import HEAD, foreign, irregular
from runner.errors import ConfigError, Fault
from runner.files import shipped
from runner.model import jinja
from runner.signature import read_signature

LOADER = "runner.model.load.load_model"
NEW = "runner.model.load.new_model"
TOKENIZER = "runner.model.load.load_tokenizer"
LOCATION = "a folder of this machine, runner://..., or org/name on the hub"
HUB_NAME = re.compile(r"(?:[\w.-]+/)?[\w.-]{1,96}")
WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
LARGEST_HEADER = 100 << 20  # bytes; the safetensors library allows no more
LARGEST_JSON = 4 << 20  # of a larger tokenizer only both ends are looked at
MAPPINGS = {"lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "score": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"}
TASKS = {"lm": "CAUSAL_LM", "score": "SEQ_CLS"}  # what peft calls the heads
# Architectures whose files name each weight as the model does, with the same names in every layer.
PLAIN = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo2", "smollm3", "gpt_neox", "gpt2", "opt", "phi3")
HEADS = ("lm_head", "embed_out", "score")  # not in the file where they share the embeddings' weights, or are new
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model")
VOCABULARIES += ("sentencepiece.bpe.model", "tekken.json", "vocab.bpe", "encoder.json")
BYTES = ("ByT5", "MyT5", "Canine", "Perceiver")  # tokenizers without a vocabulary
NO_END = ("", "TokenizersBackend", "PreTrainedTokenizerFast")  # classes that bring no end token of their own
AGAIN = "copy or download it again"


@dataclass(frozen=True)
class Place:
    """Where a model or a tokenizer is: the folder, and the key that names it."""

    folder: Path
    where: str

    def fault(self, found: str, expected: str, cure: str = "") -> Fault:
        return Fault(self.where, found, expected, cure or f"{self.where}=<folder or org/name>")

    def read(self, name: str) -> dict[str, Any]:
        """What a JSON file of the folder holds; raises ConfigError where it is no object."""
        path = self.folder / name
        head = path.read_bytes()
        if odd := foreign(head[:HEAD], str(path)):
            raise ConfigError(Fault(str(path), odd.found, "a JSON file", odd.cure))
        try:
            value = json.loads(head)
        except (ValueError, RecursionError) as error:
            found = f"no JSON: {error}" if head else "an empty file"
            raise ConfigError(Fault(str(path), found, "a whole JSON file", f"{AGAIN}: {path}")) from None
        if not isinstance(value, dict):
            found = f"JSON, and no object: {str(value)[:40]}"
            raise ConfigError(Fault(str(path), found, "an object with keys", f"{AGAIN}: {path}"))
        return value

    def there(self, name: str) -> bool:
        return (self.folder / name).is_file()

    @cached_property
    def whole_config(self) -> dict[str, Any]:
        return self.read("config.json")

    @property
    def config(self) -> dict[str, Any]:
        """``config.json``, of a model of several kinds of input that of its text."""
        return self.whole_config.get("text_config") or self.whole_config

    @property
    def is_plain(self) -> bool:
        """Whether the files name and shape weights as the model does, and hold nothing beside the layers of a text."""
        return self.whole_config.get("model_type") in PLAIN and "quantization_config" not in self.whole_config

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of each weight by its name; raises ConfigError for files that are missing, cut off or none."""
        files = [WEIGHTS]
        if not self.there(WEIGHTS):
            files = sorted(set(self.read(INDEX).get("weight_map", {}).values()))
            if missing := [name for name in files if not self.there(name)]:
                found = f"{INDEX} names {', '.join(missing[:3])}, and there is no such file"
                raise ConfigError(self.fault(found, "every file of the index", f"{AGAIN}: {missing[0]}"))
        headers = [read_header(self.folder / name) for name in files]
        return {name: entry["shape"] for header in headers for name, entry in header.items()}


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of a safetensors file by name; raises ConfigError where it is none, or not whole."""
    size, again = path.stat().st_size, f"{AGAIN}: {path}"
    with open(path, "rb") as file:
        first = file.read(HEAD)
        if odd := foreign(first, str(path)) if not first[8:9] == b"{" else None:
            raise ConfigError(Fault(str(path), odd.found, "weights in safetensors", odd.cure))
        length = struct.unpack("<Q", first[:8])[0] if len(first) >= 8 else 0
        if length > LARGEST_HEADER or (first[8:9] not in (b"{", b"")):
            found = "a file that is no safetensors"
            raise ConfigError(Fault(str(path), found, "weights in safetensors", again))
        file.seek(8)
        header = file.read(length)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        whole = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = -1
    if whole != size:
        told = f", and {whole:,} were written" if whole > size else ""
        raise ConfigError(Fault(str(path), f"the weights are cut off: {size:,} bytes{told}", "a whole file", again))
    return entries


# --- The model ------------------------------------------------------------------------------------


def look_at_model(node: Mapping[str, Any], head: str, length: Any = None, peft: Any = None) -> list[Fault]:
    """What is wrong with the model that a node names; rows of this length, and what ``peft`` changes of it."""
    if node.get("_target_") == NEW:
        return list(_design_faults(node))
    if node.get("_target_") != LOADER:
        return []
    faults = []
    try:
        place = locate(node["path"], "model.path")
        if place and place.there("adapter_config.json"):
            faults += _adapter_faults(place, node, head, peft)
        elif place:
            found, cure = f"true, and {node['path']} is no adapter", "model.merge=false"
            faults += [Fault("model.merge", found, "an adapter", cure)] if node.get("merge") else []
            faults += _model_faults(place, node, head)
            faults += [] if faults else [*_length_faults(place, length), *_tuning_faults(place, peft)]
    except ConfigError as error:
        faults += error.faults
    return faults


def rows_of(node: Mapping[str, Any]) -> int | None:
    """How many tokens a model has room for, where its folder tells."""
    try:
        place = locate(node["path"], "model.path") if node.get("_target_") == LOADER else None
        return place.config.get("vocab_size") if place and place.there("config.json") else None
    except ConfigError:
        return None


def locate(path: Any, where: str) -> Place | None:
    """The folder behind a path, None for a name on the hub; raises ConfigError for what is neither."""
    path, cure = str(path), f"{where}=<folder or org/name>"
    home = Path(shipped(path)).expanduser()
    if odd := irregular(home):
        raise ConfigError(Fault(where, f"{path} is {odd.found}", LOCATION, cure))
    if home.is_file():
        raise ConfigError(Fault(where, f"{path} is a file", "the folder that it is in", f"{where}={home.parent}"))
    if home.is_dir():
        return Place(home, where)
    if path.startswith(("/", ".", "~", "runner://")) or path.count("/") > 1:
        raise ConfigError(Fault(where, f"there is no folder {home}", LOCATION, cure))
    if not HUB_NAME.fullmatch(path):
        raise ConfigError(Fault(where, f"{path!r} is neither a folder nor a name on the hub", LOCATION, cure))
    return None


def look_at_scorer(path: Any, where: str) -> Iterator[Fault]:
    """A fault for a model that is to score texts and has no weights to do so, as far as its folder tells."""
    try:
        place = locate(path, where)
        if place is None or not place.there("config.json") or not place.is_plain:
            return
        if (place.there(WEIGHTS) or place.there(INDEX)) and "score.weight" not in place.shapes:
            cure = f"python -m runner trainer=reward, then {where}=<its model folder>; or tolerate.random_head=true"
            yield place.fault(f"{path}: it has no weights for score.weight", "a trained reward model", cure)
    except ConfigError as error:
        yield from error.faults


def _model_faults(place: Place, node: Mapping[str, Any], head: str) -> Iterator[Fault]:
    """What is wrong with a folder that holds a whole model."""
    if not place.there("config.json"):
        names = sorted(path.name for path in place.folder.iterdir())
        yield place.fault(f"{place.folder} has no config.json, but {', '.join(names[:6]) or 'nothing'}", LOCATION)
        return
    if faults := list(_architecture_faults(place, node, head)):
        yield from faults
        return
    if place.there(WEIGHTS) or place.there(INDEX):
        yield from _missing_weights(place)
        yield from _other_shapes(place)
    elif node.get("safetensors_only", True) or not any(map(place.there, PICKLES)):
        yield _no_weights(place)


def _architecture_faults(place: Place, node: Mapping[str, Any], head: str) -> Iterator[Fault]:
    """A fault for a model that transformers does not know, that brings code, or that has no head for the trainer."""
    whole = place.whole_config
    kind = whole.get("model_type")
    if whole.get("auto_map") and not knows(kind):
        if not node.get("trust_remote_code"):
            found = f"{place.folder} brings Python code of its own"
            cure = "model.trust_remote_code=true  (if you trust it)"
            yield Fault("model.trust_remote_code", found, "leave to run it, from you", cure)
    elif not isinstance(kind, str):
        yield place.fault(f"config.json of {place.folder} has no model_type", "the config.json of a model")
    elif not knows(kind):
        found = f"the architecture {kind} is unknown to the installed transformers"
        yield place.fault(found, "an architecture that it knows", "pip install --upgrade transformers")
    elif not knows(kind, head):
        found = f"the architecture {kind} has no head for this trainer in transformers"
        yield place.fault(found, f"a {'decoder, as language models are' if head == 'lm' else 'model that can score'}")


def knows(kind: Any, head: str | None = None) -> bool:
    """Whether the installed transformers lists an architecture, with a head where one is named; True where nobody
    can tell.
    """
    text = _listed("modeling_auto.py") + ("" if head else _listed("auto_mappings.py"))
    if head:
        text = text.partition(f"\n{MAPPINGS.get(head, '?')} = ")[2].partition("\n)\n")[0]
    return '("llama", ' not in text or f'("{kind}", ' in text


def _config_of(kind: Any) -> str:
    """The class of an architecture's config."""
    found = re.search(rf'\("{re.escape(str(kind))}", "(\w+Config)"\)', _listed("auto_mappings.py"))
    return found[1] if found else ""


@cache
def _listed(name: str) -> str:
    """A list of architectures in the installed transformers; empty where there is none of this name."""
    spec = find_spec("transformers")
    file = Path(spec.origin).parent / "models" / "auto" / name if spec and spec.origin else None
    return file.read_text(encoding="utf-8") if file and file.is_file() else ""


def _no_weights(place: Place) -> Fault:
    pickles = [name for name in PICKLES if place.there(name)]
    if pickles:
        expected = "safetensors; a .bin file is a pickle, which can run code when it is read"
        return place.fault(f"{place.folder} has its weights as {pickles[0]}", expected, "model.safetensors_only=false")
    return place.fault(f"{place.folder} has no weights", f"{WEIGHTS}, or {INDEX} and its files")


def _missing_weights(place: Place) -> Iterator[Fault]:
    """A fault where the config has more layers than there are weights for, which would be random."""
    depth, layers = place.config.get("num_hidden_layers"), {}
    for name in place.shapes if place.is_plain else ():
        if found := re.search(r"(?:^|\.)(?:layers|h)\.(\d+)\.(.+)", name):
            layers.setdefault(int(found[1]), set()).add(found[2])
    if not isinstance(depth, int) or not layers.get(0):
        return
    lacking = [(n, part) for n in range(depth) for part in sorted(layers[0] - layers.get(n, set()))]
    if lacking:
        found = f"{place.folder} lacks {len(lacking)} weights, such as {lacking[0][1]} of layer {lacking[0][0]}"
        yield place.fault(f"{found}; they would be random", "weights for the whole of config.json")


def _other_shapes(place: Place) -> Iterator[Fault]:
    """A fault where config.json tells other sizes than the weights have."""
    config = place.config
    width = "word_embed_proj_dim" if "word_embed_proj_dim" in config else "hidden_size"  # of some OPT, they differ
    sizes = {
        "embed_tokens.weight": ("vocab_size", width),
        "mlp.up_proj.weight": ("intermediate_size", "hidden_size"),
    }
    for part, keys in sizes.items() if place.is_plain else ():
        shape = next((shape for name, shape in place.shapes.items() if name.endswith(part)), None)
        wanted = [config.get(key) for key in keys]
        if shape and None not in wanted and shape != wanted:
            found = f"config.json does not fit the shapes of its weights: {part} is {shape}, and {keys} are {wanted}"
            yield place.fault(found, "the config that the weights were saved with")
            return


def _length_faults(place: Place, length: Any) -> Iterator[Fault]:
    """A fault where rows may be longer than the positions that the model was trained with."""
    config = place.config
    most = config.get("max_position_embeddings") or config.get("n_positions")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if (
        isinstance(length, int)
        and isinstance(most, int)
        and length > most
        and rope.get("rope_type") in (None, "default")
    ):
        where = "trainer.args.max_length"
        found = f"{length}, and the model has {most} positions"
        yield Fault(where, found, f"at most {most}", f"{where}={most}, or tolerate.beyond_positions=true")


def _design_faults(node: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for an architecture to be made anew that does not exist, and for what looks like one of its keys."""
    kind = node.get("model_type")
    if not knows(kind):
        expected = "an architecture of transformers"
        yield Fault("model.model_type", str(kind), expected, "model.model_type=qwen2")
        return
    signature = read_signature(f"transformers.{_config_of(kind)}")
    known = set(signature.parameters) if signature else set()
    for key in sorted(set(node) - known - {"_target_", "tokenizer", "dtype", "seed", "head", "model_type"}):
        if close := get_close_matches(key, known, 1, 0.9):
            yield Fault(f"model.{key}", f"{kind} has no {key}", "a key of its config", f"model.{close[0]}={node[key]}")


# --- What is trained of it, and adapters ------------------------------------------------------------


def _tuning_faults(place: Place, peft: Any) -> Iterator[Fault]:
    """A fault for each layer that an adapter is to be put on, or pattern of what is trained, that the model lacks."""
    if not isinstance(peft, Mapping) or not place.is_plain or not (place.there(WEIGHTS) or place.there(INDEX)):
        return
    # Files that were saved without a head lack the first part of each name.
    weights = [f"{prefix}{name}" for name in place.shapes for prefix in ("", "model.", "transformer.", "gpt_neox.")]
    weights += [f"{head}.weight" for head in HEADS]
    patterns = peft.get("matching")
    for pattern in patterns if isinstance(patterns, list) else ():
        if not any(re.search(str(pattern), name) for name in weights):
            found, some = f"no weight has {pattern} in its name", ", ".join(list(place.shapes)[:3])
            yield Fault("peft.matching", found, f"such as {some}", "peft.matching=[norm]")
    modules = {name.rpartition(".")[0] for name in weights}
    modules |= {".".join(name.split(".")[:end]) for name in modules for end in range(1, name.count(".") + 1)}
    linear = sorted({name.rpartition(".")[2] for name, shape in _matrices(place).items() if len(shape) == 2})
    targets = peft.get("target_modules")
    for target in sorted(targets) if isinstance(targets, list) else ():
        known = any(name == target or name.endswith(f".{target}") for name in modules)
        if not known:
            found, where = f"the model has no layer {target}", "peft.target_modules"
            yield Fault(where, found, f"among {', '.join(linear)}", f"{where}=all-linear")
    depth, layers = place.config.get("num_hidden_layers"), peft.get("layers")
    if isinstance(depth, int) and isinstance(layers, int) and layers > depth:
        found = f"{layers}, and the model has {depth} layers"
        yield Fault("peft.layers", found, f"0 to {depth}", f"peft.layers={max(1, depth // 2)}")


def _matrices(place: Place) -> dict[str, list[int]]:
    return {name.rpartition(".")[0]: shape for name, shape in place.shapes.items() if "embed" not in name}


def _adapter_faults(place: Place, node: Mapping[str, Any], head: str, peft: Any) -> Iterator[Fault]:
    """What is wrong with a folder that holds an adapter, and with its base."""
    adapter, where = place.read("adapter_config.json"), place.where
    base = adapter.get("base_model_name_or_path")
    if not place.there(ADAPTER) and node.get("safetensors_only", True):
        found = f"{place.folder} has no {ADAPTER}"
        yield Fault(where, found, "an adapter in a safetensors file", "model.safetensors_only=false")
    task = adapter.get("task_type")
    if task and task != TASKS.get(head, task):
        trainer = "trainer=reward" if task == "SEQ_CLS" else "a trainer of language models"
        found = f"{place.folder} is an adapter for {task}"
        yield Fault(where, found, f"{TASKS[head]}, which this trainer trains", f"{trainer}, or another model.path")
    own_way = isinstance(peft, Mapping) and str(peft.get("_target_")).startswith("runner.model.freeze.")
    if peft and not own_way and not node.get("merge"):
        found = "model.path is an adapter, and a second one would go on top"
        yield Fault("peft", found, "one adapter", "peft=none, or model.merge=true")
    if not base:
        found = f"adapter_config.json of {place.folder} names no base_model_name_or_path"
        yield Fault(where, found, "the model that it belongs on", f"{AGAIN}: {place.folder}")
        return
    try:
        below = locate(base, where)
        yield from _model_faults(below, node, head) if below else ()
    except ConfigError as error:
        for fault in error.faults:
            yield Fault(where, f"the base of the adapter: {fault.found}", fault.expected, fault.cure)


# --- The tokenizer --------------------------------------------------------------------------------


def look_at_tokenizer(node: Any, rows: int | None) -> list[Fault]:
    """What is wrong with the tokenizer that a node names, and its template; ``rows`` are the model's embeddings."""
    if not isinstance(node, Mapping) or node.get("_target_") != TOKENIZER:
        return []
    faults = []
    try:
        place = _home(locate(node["path"], "model.tokenizer.path"))
        tokens = Tokens(place) if place else None
        if tokens:
            faults += tokens.faults(node, rows)
        faults += [] if faults else _template_faults(node, tokens)
    except ConfigError as error:
        faults += error.faults
    return faults


def _home(place: Place | None) -> Place | None:
    """Where the tokenizer is: an adapter without one stands for its base model."""
    if place is None or place.there("tokenizer_config.json") or not place.there("adapter_config.json"):
        return place
    base = place.read("adapter_config.json").get("base_model_name_or_path")
    return locate(base, place.where) if base else None


class Tokens:
    """The tokens of a tokenizer, as far as its files tell."""

    def __init__(self, place: Place):
        self.place = place
        self.config = place.read("tokenizer_config.json") if place.there("tokenizer_config.json") else {}

    def named(self, node: Mapping[str, Any], key: str) -> str | None:
        """A special token: that which was asked for, or the tokenizer's own."""
        own = node.get(key) or self.config.get(key)
        return own.get("content") if isinstance(own, Mapping) else own

    @cached_property
    def vocabulary(self) -> set[str] | None:
        """Every token; None where the file is large, or of another kind."""
        path = self.place.folder / "tokenizer.json"
        if not path.is_file():
            return None
        if path.stat().st_size > LARGEST_JSON:
            _check_ends(path)
            return None
        entries = (self.whole.get("model") or {}).get("vocab") or {}
        names = entries if isinstance(entries, Mapping) else (entry[0] for entry in entries)
        return {*names, *(entry["content"] for entry in self.added)}

    @cached_property
    def whole(self) -> Mapping[str, Any]:
        return self.place.read("tokenizer.json")

    @property
    def added(self) -> Sequence[Mapping[str, Any]]:
        """Tokens beside those that were learnt from text."""
        return self.whole.get("added_tokens") or ()

    def faults(self, node: Mapping[str, Any], rows: int | None) -> list[Fault]:
        return [*self._no_vocabulary(), *self._no_end(node), *self._strange(node), *self._too_many(rows)]

    def _no_vocabulary(self) -> Iterator[Fault]:
        kind = str(self.config.get("tokenizer_class"))
        if any(map(self.place.there, VOCABULARIES)) or kind.startswith(BYTES) or self.config.get("auto_map"):
            return
        if not any(self.place.folder.glob("*.tiktoken")):
            expected = "tokenizer.json, or the files of a slow tokenizer"
            yield self.place.fault(f"{self.place.folder} holds no tokenizer", expected)

    def _no_end(self, node: Mapping[str, Any]) -> Iterator[Fault]:
        end, kind = self.named(node, "eos_token"), str(self.config.get("tokenizer_class") or "")
        if end or kind not in NO_END or self.place.there("special_tokens_map.json") or not self.vocabulary:
            return
        found = "the tokenizer has no token that ends a text, so nothing would ever stop"
        where = "model.tokenizer.eos_token"
        yield Fault(where, found, "a token of its vocabulary", f"{where}=<token>")

    def _strange(self, node: Mapping[str, Any]) -> Iterator[Fault]:
        for key in ("eos_token", "pad_token"):
            token, where = node.get(key), f"model.tokenizer.{key}"
            if token and self.vocabulary and token not in self.vocabulary:
                marks = [mark for mark in map(str, self.vocabulary) if re.fullmatch(r"[<\[]\S+[>\]]", mark)]
                expected = f"such as {', '.join(sorted(marks)[:5])}" if marks else "one of its tokens"
                yield Fault(where, f"{token} is not in the vocabulary", expected, f"{where}=<token>")

    def _too_many(self, rows: int | None) -> Iterator[Fault]:
        if not rows or not self.vocabulary:
            return
        unwritten = {entry["content"] for entry in self.added if entry.get("special") and entry["id"] >= rows}
        if len(self.vocabulary - unwritten) > rows:  # of the others loading knows whether they are met
            found = f"the tokenizer has {len(self.vocabulary)} tokens, the model {rows}"
            cure = "model.tokenizer.path=${model.path}"
            yield self.place.fault(found, "the tokenizer that the model was trained with", cure)


def _check_ends(path: Path) -> None:
    """Raise ConfigError where a large JSON file does not begin and end as an object does."""
    with open(path, "rb") as file:
        first = file.read(1)
        file.seek(-64, 2)
        last = file.read().rstrip()[-1:]
    if (first, last) != (b"{", b"}"):
        raise ConfigError(Fault(str(path), "the file is cut off", "a whole JSON file", f"{AGAIN}: {path}"))


def _template_faults(node: Mapping[str, Any], tokens: Tokens | None) -> list[Fault]:
    """What is wrong with the template that was chosen, or else with the tokenizer's own."""
    name, end = node.get("chat_template"), tokens.named(node, "eos_token") if tokens else None
    marks = {key: tokens.named(node, key) or "" for key in ("bos_token", "eos_token", "pad_token")} if tokens else {}
    if name:
        text = jinja.read_template(str(name))
        if not str(name).endswith(".jinja"):  # those that ship work
            return []
        return jinja.find_template_faults(text, str(name), end, marks, chosen=True)
    own = tokens.place.folder / "chat_template.jinja" if tokens else None
    if own and own.is_file() and not str(node["path"]).startswith("runner://"):
        text = own.read_text(encoding="utf-8", errors="replace")
        return jinja.find_template_faults(text, own.name, None, marks, chosen=False)
    inside = tokens.config.get("chat_template") if tokens else None
    if isinstance(inside, str):
        return jinja.find_template_faults(inside, "tokenizer_config.json", None, marks, chosen=False)
    return []
