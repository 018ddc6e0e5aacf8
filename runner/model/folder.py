"""A model's folder, or the snapshot of one from the hub: where it is, and what its config and weights' headers hold.

Nothing is imported that could compute: of a safetensors file the header is read, and everything else is JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, fault
from runner.io.files import HUB_NAME, shipped
from runner.io.filetype import HEAD, sniff, special_file

JsonObject = dict[str, Any]

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"
PROCESSORS = ("processor_config.json", "preprocessor_config.json")  # of a model that sees, beside its tokenizer
CONFIGS = ("config.json", "tokenizer_config.json", "adapter_config.json", *PROCESSORS)  # that a snapshot holds, if any
MAX_JSON_BYTES = 256 << 20  # the largest tokenizers take a tenth of it
# Architectures whose files name each weight as the model does, with the same names in every layer.
PLAIN = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo2", "smollm3", "gpt_neox", "gpt2", "opt", "phi3")


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a model or a tokenizer, and the key that names it; of the hub also the name and the revision."""

    path: Path
    where: str
    repo: str | None = None
    revision: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)  # keys of the config that are set otherwise

    @property
    def source(self) -> str:
        """The path that transformers and peft load from."""
        return self.repo or str(self.path)

    @property
    def commit(self) -> str | None:
        """The commit of the snapshot, so that what is loaded later comes from the same; None for a folder."""
        return self.path.name if self.repo else None

    def read(self, name: str) -> JsonObject:
        """The object in a JSON file of the folder; raises ConfigError where it holds none."""
        path = self.path / name
        if (size := path.stat().st_size) > MAX_JSON_BYTES:
            raise ConfigError(fault("model.too_much_json", path=path, size=size, most=MAX_JSON_BYTES))
        head = path.read_bytes()
        if odd := sniff(head[:HEAD], str(path)):
            raise ConfigError(fault("model.other_bytes", path=path, odd=odd, expected="a JSON file"))
        try:
            value = json.loads(head)
            found = "" if isinstance(value, dict) else f"JSON, and no object: {str(value)[:40]}"
        except (ValueError, RecursionError) as error:
            found = f"no JSON: {error}" if head else "an empty file"
        if found:
            raise ConfigError(fault("model.no_json_object", path=path, found=found))
        return value

    def has(self, *names: str) -> bool:
        """True where one of these files is there."""
        return any((self.path / name).is_file() for name in names)

    @cached_property
    def whole_config(self) -> JsonObject:
        return override(self.read("config.json"), self.overrides)

    @property
    def config(self) -> JsonObject:
        """``config.json``, of a model of several kinds of input that of its text."""
        text = self.whole_config.get("text_config")
        return text if text and isinstance(text, dict) else self.whole_config

    @cached_property
    def adapter(self) -> JsonObject | None:
        """``adapter_config.json``, None where there is a whole model."""
        return self.read("adapter_config.json") if self.has("adapter_config.json") else None

    @property
    def base(self) -> tuple[str, str | None] | None:
        """The model, and its revision, that an adapter belongs on; None of a whole model, or where none is named."""
        name = (self.adapter or {}).get("base_model_name_or_path")
        return (name, (self.adapter or {}).get("revision")) if name else None

    @property
    def is_plain(self) -> bool:
        """True where the files name and shape weights as the model does, and hold only the layers of a text."""
        return self.whole_config.get("model_type") in PLAIN and "quantization_config" not in self.whole_config

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of each weight by its name; raises ConfigError for files that are missing, cut off or none."""
        return {name: shape for file in self._weight_files for name, shape in read_shapes(self.path / file).items()}

    @property
    def rounded(self) -> str:
        """The name of a weight that is stored as whole numbers or in 8 bits, empty where none is."""
        for file in self._weight_files:
            if name := find_rounded(self.path / file):
                return name
        return ""

    @cached_property
    def _weight_files(self) -> list[str]:
        files = [WEIGHTS]
        if not self.has(WEIGHTS):
            index = self.read(INDEX).get("weight_map")
            if not index or not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
                raise ConfigError(fault("model.index_of_nothing", folder=self, index=INDEX))
            files = sorted(set(index.values()))
            if missing := [name for name in files if "/" in name or not self.has(name)]:
                names = ", ".join(missing[:3])
                raise ConfigError(fault("model.index_of_missing", folder=self, index=INDEX, names=names))
        return files


def override(config: JsonObject, overrides: Mapping[str, Any]) -> JsonObject:
    """A config with some keys set otherwise, those of a mapping one by one; what only its text has is set there."""
    config = dict(config)
    for key, value in overrides.items():
        if key not in config and config.get("text_config"):
            key, value = "text_config", {key: value}
        held = config.get(key)
        config[key] = override(held, value) if isinstance(held, dict) and isinstance(value, Mapping) else value
    return config


def find_folder(path: object, where: str) -> ModelFolder | None:
    """The folder behind a path, None for a name on the hub; raises ConfigError for what is neither."""
    path = str(path)
    home = Path(shipped(path))
    if odd := special_file(home):
        raise ConfigError(fault("model.special_file", where=where, path=path, odd=odd))
    if home.is_file():
        fix = f"={home.parent}" if (home.parent / "config.json").is_file() else "=<folder or org/name>"
        raise ConfigError(fault("model.file_for_folder", where=where, path=path, fix=fix))
    if home.is_dir():
        return ModelFolder(home, where)
    if path.startswith(("/", ".", "~", "runner://", "outputs/")) or path.count("/") > 1:
        raise ConfigError(fault("model.no_folder", where=where, home=home))
    if not HUB_NAME.fullmatch(path):
        raise ConfigError(fault("model.no_name_on_the_hub", where=where, path=path))
    return None


def sees_images(node: Mapping[str, Any]) -> bool:
    """True for a tokenizer's node whose folder has a processor of images, or that only loading can tell of."""
    try:
        folder = find_folder(node.get("path"), "model.tokenizer.path")
    except ConfigError:  # which others tell of
        return True
    return folder is None or folder.base is not None or folder.has(*PROCESSORS)


def read_shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each weight of a safetensors file by its name; raises ConfigError where it is none, or not whole."""
    with open(path, "rb") as file:
        first = file.read(HEAD)
    if first[8:9] != b"{" and (odd := sniff(first, str(path))):
        raise ConfigError(fault("model.other_bytes", path=path, odd=odd, expected="weights in safetensors"))
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as weights:
            names = weights.keys()
            return {name: weights.get_slice(name).get_shape() for name in names}
    except SafetensorError as error:
        raise ConfigError(fault("model.cut_weights", path=path, size=path.stat().st_size, error=error)) from None


def find_rounded(path: Path) -> str:
    """The name of the first matrix of a safetensors file that is no floating point number of 16 bits or more."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as weights:
        names = weights.keys()
        for name in names:
            matrix = weights.get_slice(name)
            is_rounded = matrix.get_dtype() in ("I8", "U8", "F8_E4M3", "F8_E5M2")
            if is_rounded and len(matrix.get_shape()) == 2:
                return name
    return ""
