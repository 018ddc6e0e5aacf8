"""Checks of an adapter's files before anything heavy is imported: its weights against its config and its base.

Of weights the headers are read. What a base of another architecture makes of an adapter, loading it tells (``load``).
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.errors import ConfigError, Fault
from runner.model.folder import ADAPTER, INDEX, WEIGHTS, ModelFolder, find_folder, read_shapes

PREFIX = "base_model.model."
PARTS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
SCORE_HEADS = frozenset(("score", "classifier"))
BACKBONES = ("", "model.", "transformer.", "gpt_neox.")  # what modules of layers begin with
LORA_WEIGHT = re.compile(rf"(.+)\.({'|'.join(PARTS)})(?:\.weight)?")
# The part of a module's name that is the same with a head and without.
IN_LAYER = re.compile(r"(?:^|\.)((?:layers|h)\.(\d+)\..+)")


@dataclass
class LoraModule:
    """The parts of LoRA at one module, by their names with the shape of each."""

    name: str
    parts: dict[str, list[int]] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """The rank that its weights have."""
        if "lora_A" in self.parts:
            return self.parts["lora_A"][0]
        return self.parts["lora_embedding_A"][0] if "lora_embedding_A" in self.parts else None


def find_adapter_weight_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for weights that an adapter lacks, that fit no layer of its base, or that have another rank.

    Of LoRA in modules alone it is known here what there must be; in which modules, where the base is on this machine.
    """
    config = folder.adapter or {}
    if not folder.has(ADAPTER) or config.get("peft_type") != "LORA" or config.get("target_parameters"):
        return
    shapes = read_shapes(folder.path / ADAPTER)
    modules = _read_modules(shapes)
    if others := _find_other_ranks(config, modules):
        yield Fault(
            folder.where,
            f"{folder.source}: {others[0]}, and its adapter_config.json says another rank",
            "the config that the weights were saved with",
            "=<another folder>",
        )
    lacking = _find_lacking(config, shapes, modules)
    extra: list[str] = []
    if there := _read_base(folder):
        names_all = config.get("target_modules") is not None  # else peft knows them by the architecture
        for name in filter(IN_LAYER.search, modules):
            short = _short_name(name)
            if short not in there or (names_all and not _is_adapted(short, config)):
                extra.append(name)
        lacking += _find_modules_lacking(config, modules, there)
        yield from _find_other_shapes(folder, modules, there)
    if lacking:
        yield fault_of_lacking(folder, lacking)
    if extra:
        yield fault_of_extra(folder, extra)


def fault_of_lacking(folder: ModelFolder, names: list[str]) -> Fault:
    """The fault of an adapter without some of its weights."""
    found = f"{folder.source} lacks {len(names)} weights of its adapter, such as {names[0]}; they would be random"
    return Fault(folder.where, found, "weights for the whole of adapter_config.json", "=<another folder>")


def fault_of_extra(folder: ModelFolder, names: list[str]) -> Fault:
    """The fault of an adapter with weights for what its base does not have."""
    found = f"{folder.source} has {len(names)} weights that fit nothing in its base, such as {names[0]}"
    return Fault(folder.where, found, "an adapter of the base that it names", "=<another folder>")


def _read_base(folder: ModelFolder) -> dict[str, list[int]]:
    """The shapes of the base's weights by the short names of their modules; empty where nobody can tell."""
    with contextlib.suppress(ConfigError):  # which is reported where the base is looked at
        base = find_folder(folder.base[0], folder.where) if folder.base else None
        if base and base.has("config.json") and base.is_plain and base.has(WEIGHTS, INDEX):
            return {_short_name(name.removesuffix(".weight")): shape for name, shape in base.shapes.items()}
    return {}


def _read_modules(shapes: Mapping[str, list[int]]) -> dict[str, LoraModule]:
    modules: dict[str, LoraModule] = {}
    for name, shape in shapes.items():
        if found := LORA_WEIGHT.fullmatch(name.removeprefix(PREFIX)):
            module = modules.setdefault(found[1], LoraModule(found[1]))
            module.parts[found[2]] = shape
    return modules


def _find_other_ranks(config: Mapping[str, Any], modules: Mapping[str, LoraModule]) -> list[str]:
    pattern = config.get("rank_pattern") or {}
    others = []
    for module in modules.values():
        wanted = config.get("r")
        for key, rank in pattern.items() if isinstance(pattern, Mapping) else ():
            if re.fullmatch(rf"(.*\.)?({key})", module.name):
                wanted = rank
                break
        if module.rank is not None and isinstance(wanted, int) and module.rank != wanted:
            others.append(f"{module.name} has rank {module.rank} and not {wanted}")
    return others


def _find_lacking(
    config: Mapping[str, Any], shapes: Mapping[str, list[int]], modules: Mapping[str, LoraModule]
) -> list[str]:
    """The weights that the file lacks by what else it holds, and by what its config says."""
    lacking = [] if modules else ["lora_A of any module"]
    for module in modules.values():
        is_embedding = any(part.startswith("lora_embedding") for part in module.parts)
        wanted = ["lora_embedding_A", "lora_embedding_B"] if is_embedding else ["lora_A", "lora_B"]
        wanted += ["lora_magnitude_vector"] if config.get("use_dora") else []
        lacking += [f"{module.name}.{part}" for part in wanted if part not in module.parts]
    whole = config.get("modules_to_save")
    names = [str(name) for name in whole] if isinstance(whole, list) else []
    held = [name for name in names if any(f".{name}." in f".{weight}" for weight in shapes)]
    has_head = not SCORE_HEADS.isdisjoint(held)  # of which peft lists all names, and a model has one
    for name in names:
        is_tied = config.get("ensure_weight_tying") and bool(held)
        if name not in held and not is_tied and not (has_head and name in SCORE_HEADS):
            lacking.append(f"{name}, which it has trained whole")
    return lacking


def _find_modules_lacking(
    config: Mapping[str, Any], modules: Mapping[str, LoraModule], there: Mapping[str, list[int]]
) -> list[str]:
    """The weights of those modules of the base that the config adapts and the file does not."""
    held = {_short_name(name) for name in modules}
    matrices = [name for name, shape in there.items() if len(shape) == 2 and IN_LAYER.search(name)]
    return [f"{name}.lora_A" for name in matrices if name not in held and _is_adapted(name, config)]


def _is_adapted(name: str, config: Mapping[str, Any]) -> bool:
    """True for the short name of a module in a layer that an adapter of this config is put on."""
    targets, layers = config.get("target_modules"), config.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) else layers
    inside = IN_LAYER.search(name)
    if targets is None or (layers is not None and inside and int(inside[2]) not in layers):
        return False
    return _is_among(name, targets) and not _is_among(name, config.get("exclude_modules"))


def _is_among(name: str, modules: object) -> bool:
    """True for the short name of a module that a list of names, or a pattern, is about."""
    if isinstance(modules, str):
        return modules == "all-linear" or any(re.fullmatch(modules, f"{start}{name}") for start in BACKBONES)
    names = map(str, modules) if isinstance(modules, list) else ()
    return any(name == _short_name(other) or name.endswith(f".{other}") for other in names)


def _find_other_shapes(
    folder: ModelFolder, modules: Mapping[str, LoraModule], there: Mapping[str, list[int]]
) -> Iterator[Fault]:
    for module in modules.values():
        shape, parts = there.get(_short_name(module.name)), module.parts
        if shape is None or not {"lora_A", "lora_B"} <= parts.keys():
            continue
        own = [parts["lora_B"][0], parts["lora_A"][-1]]
        if len(shape) == 2 and sorted(own) != sorted(shape):
            found = f"{folder.source} adapts a matrix of {own} in {module.name}, and that of its base is {shape}"
            yield Fault(folder.where, found, "an adapter of the base that it names", "=<another folder>")
            return


def _short_name(module: str) -> str:
    inside = IN_LAYER.search(module)
    return inside[1] if inside else module.rpartition(".")[2]
