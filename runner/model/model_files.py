"""The folder of a model: its config, and the headers of its weights.

It may be a snapshot of the hub.

Nothing is imported that could compute: of a safetensors file the header is read, and everything
else is JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from runner.errors import ConfigError, Fault
from runner.io.files import HUB_NAME, JsonObject, shipped
from runner.io.filetype import HEAD, sniff, special_file
from runner.model import faults
from runner.model.safetensors_header import HeaderError, StoredWeight, read_header
from runner.schema.did_you_mean import best_guess

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
# In a ``model/``: what was trained on a base with an earlier adapter merged into it, for ourselves.
OWN_ADAPTER = "adapter"
# A model of media and text has one of these beside its tokenizer.
PROCESSORS = ("processor_config.json", "preprocessor_config.json")
# The files that a snapshot holds, where the model has them.
CONFIGS = ("config.json", "tokenizer_config.json", "adapter_config.json", *PROCESSORS)
MAX_JSON_BYTES = 256 << 20  # the largest tokenizers take a tenth of it
# Data types in which weights are rounded, by their names in safetensors.
ROUNDED_TYPES = ("I8", "U8", "F8_E4M3", "F8_E5M2")
# Architectures whose files name each weight as the model does, with the same names in every layer.
PLAIN_ARCHITECTURES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "olmo2",
    "smollm3",
    "gpt_neox",
    "gpt2",
    "opt",
    "phi3",
)
# The beginnings of the full names of modules in layers. Files that were saved without a head lack
# them.
BACKBONES = ("", "model.", "transformer.", "gpt_neox.")
MODEL_PATHS = "a folder of this machine, runner://..., or org/name on the hub"  # that are expected


@dataclass(frozen=True)
class AdapterBase:
    """The model that an adapter belongs on, as its config names it."""

    path: str
    revision: str | None


@dataclass(frozen=True)
class ModelFolder:
    """The folder of a model or a tokenizer, and the key that names it.

    A snapshot of the hub has the name and the revision, too.
    """

    path: Path
    where: str
    repo: str | None = None
    revision: str | None = None
    # Keys of config.json that the user sets to other values.
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The path that transformers and peft load from."""
        return self.repo or str(self.path)

    @property
    def commit(self) -> str | None:
        """The commit of the snapshot, so that what is loaded later comes from the same.

        None for a folder that is no snapshot.
        """
        return self.path.name if self.repo else None

    def read(self, name: str) -> JsonObject:
        """The object in a JSON file of the folder; raises ConfigError where it holds none."""
        path = self.path / name
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ConfigError(
                Fault(
                    where=str(path),
                    found=f"{size:,} bytes of JSON",
                    expected=f"at most {MAX_JSON_BYTES:,}",
                    fix=f"copy or download it again: {path}",
                )
            )
        data = path.read_bytes()
        finding = sniff(data[:HEAD], str(path))
        if finding:
            raise ConfigError(faults.other_bytes(path, finding, "a JSON file"))
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            found = f"no JSON: {error}" if data else "an empty file"
        else:
            if isinstance(value, dict):
                return value
            found = f"JSON, but not an object: {str(value)[:40]}"
        raise ConfigError(
            Fault(
                where=str(path),
                found=found,
                expected="a JSON file that holds an object",
                fix=f"copy or download it again: {path}",
            )
        )

    def has(self, *names: str) -> bool:
        """True where one of these files is there."""
        return any((self.path / name).is_file() for name in names)

    @property
    def has_weights(self) -> bool:
        """True where there is a whole model in safetensors files."""
        return self.has(WEIGHTS, INDEX)

    @cached_property
    def whole_config(self) -> JsonObject:
        """``config.json`` with the overrides."""
        return override(self.read("config.json"), self.overrides)

    @property
    def config(self) -> JsonObject:
        """``config.json``, or its part for text where the model takes several kinds of input."""
        text = self.whole_config.get("text_config")
        return text if text and isinstance(text, dict) else self.whole_config

    @property
    def positions(self) -> int | None:
        """The number of positions that the model has room for; None where the config has none."""
        positions = self.config.get("max_position_embeddings") or self.config.get("n_positions")
        return positions if isinstance(positions, int) else None

    @cached_property
    def adapter(self) -> JsonObject | None:
        """``adapter_config.json``, None where there is a whole model."""
        if not self.has("adapter_config.json"):
            return None
        return self.read("adapter_config.json")

    @property
    def base(self) -> AdapterBase | None:
        """The model that an adapter belongs on; None of a whole model, or where none is named."""
        adapter = self.adapter or {}
        path = adapter.get("base_model_name_or_path")
        if not path:
            return None
        return AdapterBase(str(path), adapter.get("revision"))

    @property
    def is_plain(self) -> bool:
        """True where the files name and shape weights as the model does.

        They hold nothing but the layers of a language model.
        """
        return (
            self.whole_config.get("model_type") in PLAIN_ARCHITECTURES
            and "quantization_config" not in self.whole_config
        )

    @cached_property
    def shapes(self) -> dict[str, list[int]]:
        """The shape of each weight by its name.

        Raises ConfigError for files that are missing, cut off or of another type.
        """
        return {name: weight.shape for name, weight in self._weights.items()}

    @property
    def dtypes(self) -> set[str]:
        """The data types of the weights, as safetensors calls them."""
        return {weight.dtype for weight in self._weights.values()}

    @property
    def rounded_weight(self) -> str:
        """The name of a matrix that is stored as whole numbers or in 8 bits.

        Empty where there is none.
        """
        for name, weight in self._weights.items():
            if weight.dtype in ROUNDED_TYPES and len(weight.shape) == 2:
                return name
        return ""

    @cached_property
    def _weights(self) -> dict[str, StoredWeight]:
        """The weights in all files, by their names there; only the headers are read."""
        weights: dict[str, StoredWeight] = {}
        for file in self._weight_files:
            weights |= read_weights(self.path / file)
        return weights

    @cached_property
    def _weight_files(self) -> list[str]:
        """The files of the weights: a single one, or those that the index names.

        Raises ConfigError for an index that cannot be read or names a file that is not there.
        """
        if self.has(WEIGHTS):
            return [WEIGHTS]
        index = self.read(INDEX).get("weight_map")
        files = list(index.values()) if isinstance(index, dict) else []
        if not files or not all(isinstance(file, str) for file in files):
            raise ConfigError(
                Fault(
                    where=self.where,
                    found=f"{INDEX} has no weight_map",
                    expected="the file of each weight by its name",
                    fix=f"copy or download it again: {INDEX}",
                )
            )
        files = sorted(set(files))
        missing = [file for file in files if "/" in file or not self.has(file)]
        if missing:
            names = ", ".join(missing[:3])
            raise ConfigError(
                Fault(
                    where=self.where,
                    found=f"{INDEX} names {names}, but there is no such file",
                    expected="every file of the index",
                    fix=f"copy or download it again: {INDEX} and its files",
                )
            )
        return files

    def blame_overrides(self) -> tuple[str, str]:
        """The key that holds the overrides of the config, and the fix that leaves them out."""
        where = f"{self.where.removesuffix('.path')}.config"
        keys = [f"{where}.{key}" for key in self.overrides]
        return where, f"leave {' or '.join(keys)} out"


def override(config: JsonObject, overrides: Mapping[str, object]) -> JsonObject:
    """A config with some keys set to other values, those of a mapping one by one.

    A key that the config of a model of media and text does not have is set in the part for text.
    """
    config = dict(config)
    for key, value in overrides.items():
        if key not in config and config.get("text_config"):
            value = {key: value}
            key = "text_config"
        held = config.get(key)
        if isinstance(held, dict) and isinstance(value, Mapping):
            value = override(held, value)
        config[key] = value
    return config


def find_folder(path: object, where: str) -> ModelFolder | None:
    """The folder behind a path, None for a name on the hub.

    Raises ConfigError for what is neither.
    """
    path = str(path)
    home = Path(shipped(path))
    if home.is_dir():
        return ModelFolder(home, where)
    finding = special_file(home)
    expected = MODEL_PATHS
    fix = "=<folder or org/name>"
    if finding:
        found = f"{path} is {finding.found}"
    elif home.is_file():
        found = f"{path} is a file"
        expected = "the folder of a model"
        if (home.parent / "config.json").is_file():
            fix = f"={home.parent}"
    elif path.startswith(("/", ".", "~", "runner://", "outputs/")) or path.count("/") > 1:
        found = f"there is no folder {home}"
        siblings = [folder.name for folder in home.parent.glob("*") if folder.is_dir()]
        near = best_guess(home.name, siblings)
        if near:
            fix = f"={path.rstrip('/').removesuffix(home.name)}{near}"
    elif not HUB_NAME.fullmatch(path):
        found = f"{path!r} is neither a folder nor a name on the hub"
    else:
        return None
    raise ConfigError(
        Fault(
            where=where,
            found=found,
            expected=expected,
            fix=fix,
        )
    )


def has_processor(node: Mapping[str, object]) -> bool:
    """True for a tokenizer's node whose folder has a processor of media.

    True, too, where only loading can tell.
    """
    try:
        folder = find_folder(node.get("path"), "model.tokenizer.path")
    except ConfigError:  # which is reported where the tokenizer is checked
        return True
    return folder is None or folder.base is not None or folder.has(*PROCESSORS)


def read_shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each weight of a safetensors file by its name.

    Raises ConfigError where the file is of another type, or not whole.
    """
    return {name: weight.shape for name, weight in read_weights(path).items()}


def read_weights(path: Path) -> dict[str, StoredWeight]:
    """The data type and the shape of each weight of a safetensors file by its name.

    Raises ConfigError where the file is of another type, or not whole.
    """
    with open(path, "rb") as file:
        head = file.read(HEAD)
    # The header is a JSON object behind its length of eight bytes.
    if head[8:9] != b"{":
        finding = sniff(head, str(path))
        if finding:
            raise ConfigError(faults.other_bytes(path, finding, "weights in safetensors"))
    try:
        return read_header(path)
    except HeaderError as error:
        size = path.stat().st_size
        raise ConfigError(
            Fault(
                where=str(path),
                found=f"the weights are truncated, or not safetensors: {size:,} bytes ({error})",
                expected="a whole file",
                fix=f"copy or download it again: {path}",
            )
        ) from None
