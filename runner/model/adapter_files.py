"""Checks of an adapter's files before anything heavy is imported.

Its config is checked by itself; its weights are compared with the config and with the base.

Of weights the headers are read. What a base of another architecture makes of an adapter, loading it
tells (``load``).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from runner.errors import ConfigError, Fault
from runner.model.config_values import find_value_faults
from runner.model.model_files import ADAPTER, BACKBONES, ModelFolder, find_folder, read_shapes
from runner.schema.text import Node

Shapes = Mapping[str, list[int]]  # of weights, by their names or by those of their modules

TASKS = {"lm": "CAUSAL_LM", "score": "SEQ_CLS"}  # peft's names of the heads
# The trainers for an adapter's task, as they begin a fix.
TRAINERS = {"SEQ_CLS": "trainer=reward, or ", "CAUSAL_LM": "a trainer of language models, or "}
PREFIX = "base_model.model."
PARTS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
SCORE_HEADS = frozenset(("score", "classifier"))
LORA_WEIGHT = re.compile(rf"(.+)\.({'|'.join(PARTS)})(?:\.weight)?")
# The part of a module's name that is the same with a head and without.
IN_LAYER = re.compile(r"(?:^|\.)((?:layers|h)\.(\d+)\..+)")


@dataclass
class LoraModule:
    """The parts of LoRA at one module, by their names with the shape of each."""

    name: str
    parts: dict[str, list[int]] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        """The name of the module from its layer on."""
        return _short_name(self.name)

    @property
    def rank(self) -> int | None:
        """The rank that its weights have."""
        matrix = self.parts.get("lora_A") or self.parts.get("lora_embedding_A")
        return matrix[0] if matrix else None


# --- Its config ---------------------------------------------------------------------------------


def find_adapter_faults(
    folder: ModelFolder, head: str, *, is_safe: bool, merges: bool = False
) -> Iterator[Fault]:
    """Faults of the config of an adapter for a head.

    ``is_safe`` says that its weights are in safetensors, or need not be. One of a language model
    can be merged below any head.
    """
    if not is_safe:
        yield Fault(
            where=folder.where,
            found=f"{folder.source} has no {ADAPTER}",
            expected="an adapter in a safetensors file",
            fix="model.safetensors_only=false",
        )
    config = folder.adapter or {}
    kind = "LoraConfig" if config.get("peft_type") == "LORA" else "PeftConfig"
    yield from find_value_faults(folder, "adapter_config.json", f"peft.{kind}")
    task = config.get("task_type")
    is_merged_below = merges and task == TASKS["lm"]
    # Another trainer helps the model that is trained, no reward.
    trainer = TRAINERS.get(str(task), "") if folder.where == "model.path" else ""
    if task != TASKS.get(head, task) and not is_merged_below:
        yield Fault(
            where=folder.where,
            found=f"{folder.source} is an adapter for {task}",
            expected=f"{TASKS[head]}, which this trainer trains",
            fix=f"{trainer}another {folder.where}",
        )
    if not folder.base:
        yield Fault(
            where=folder.where,
            found=f"adapter_config.json of {folder.source} names no base_model_name_or_path",
            expected="the model that it belongs on",
            fix=f"copy or download it again: {folder.source}",
        )


# --- Its weights --------------------------------------------------------------------------------


def find_adapter_weight_faults(folder: ModelFolder) -> Iterator[Fault]:
    """Faults of weights that an adapter lacks, that fit no layer of its base, or of another rank.

    For LoRA in modules alone it is known here what there must be; in which modules, where the base
    is on this machine.
    """
    config = folder.adapter or {}
    is_lora = config.get("peft_type") == "LORA" and not config.get("target_parameters")
    if not is_lora or not folder.has(ADAPTER):
        return
    shapes = read_shapes(folder.path / ADAPTER)
    modules = _read_modules(shapes)
    other_ranks = _list_other_ranks(config, modules)
    if other_ranks:
        yield Fault(
            where=folder.where,
            found=f"{folder.source}: {other_ranks[0]}, but its adapter_config.json gives another "
            "rank",
            expected="the config that the weights were saved with",
            fix="=<another folder>",
        )
    lacking = _list_missing_parts(config, modules) + _list_missing_layers(config, shapes)
    extra: list[str] = []
    base_shapes = _read_base(folder)
    if base_shapes:
        # Without target_modules peft knows them by the architecture.
        names_targets = config.get("target_modules") is not None
        for module in [module for module in modules if IN_LAYER.search(module.name)]:
            fits = module.short_name in base_shapes
            if names_targets and not _is_adapted(module.short_name, config):
                fits = False
            if not fits:
                extra.append(module.name)
        lacking += _list_missing_modules(config, modules, base_shapes)
        yield from _find_shape_faults(folder, modules, base_shapes)
    if lacking:
        yield fault_of_lacking(folder, lacking)
    if extra:
        yield fault_of_extra(folder, extra)


def fault_of_lacking(folder: ModelFolder, names: list[str]) -> Fault:
    """The fault of an adapter without some of its weights."""
    found = f"{folder.source} lacks {len(names)} weights of its adapter, such as {names[0]}"
    return Fault(
        where=folder.where,
        found=f"{found}; they would be random",
        expected="weights for the whole of adapter_config.json",
        fix="=<another folder>",
    )


def fault_of_extra(folder: ModelFolder, names: list[str]) -> Fault:
    """The fault of an adapter with weights for what its base does not have."""
    found = f"{folder.source} has {len(names)} weights that fit nothing in its base"
    return Fault(
        where=folder.where,
        found=f"{found}, such as {names[0]}",
        expected="an adapter of the base that it names",
        fix="=<another folder>",
    )


def _read_base(folder: ModelFolder) -> dict[str, list[int]]:
    """The shapes of the base's weights by the short names of their modules.

    Empty where the base is not on this machine, or names its weights in a way of its own.
    """
    if not folder.base:
        return {}
    try:
        base = find_folder(folder.base.path, folder.where)
        if not base or not base.has("config.json") or not base.is_plain or not base.has_weights:
            return {}
        shapes = base.shapes
    except ConfigError:  # which is reported where the base is checked
        return {}
    short_shapes = {}
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        short_shapes[_short_name(module)] = shape
    return short_shapes


def _read_modules(shapes: Shapes) -> list[LoraModule]:
    """The modules that an adapter's file has weights for."""
    modules: dict[str, LoraModule] = {}
    for name, shape in shapes.items():
        match = LORA_WEIGHT.fullmatch(name.removeprefix(PREFIX))
        if match:
            module_name, part = match.groups()
            module = modules.setdefault(module_name, LoraModule(module_name))
            module.parts[part] = shape
    return list(modules.values())


def _list_other_ranks(config: Node, modules: list[LoraModule]) -> list[str]:
    """The modules whose weights have another rank than the config says, in words."""
    patterns = config.get("rank_pattern")
    if not isinstance(patterns, Mapping):
        patterns = {}
    lines = []
    for module in modules:
        rank = config.get("r")
        for pattern, pattern_rank in patterns.items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module.name):
                rank = pattern_rank
                break
        if module.rank is not None and isinstance(rank, int) and module.rank != rank:
            lines.append(f"{module.name} has rank {module.rank}, not {rank}")
    return lines


def _list_missing_parts(config: Node, modules: list[LoraModule]) -> list[str]:
    """The weights that modules lack, given the other weights that they have."""
    if not modules:
        return ["lora_A of any module"]
    missing = []
    for module in modules:
        parts = ["lora_A", "lora_B"]
        if any(part.startswith("lora_embedding") for part in module.parts):
            parts = ["lora_embedding_A", "lora_embedding_B"]
        if config.get("use_dora"):
            parts.append("lora_magnitude_vector")
        missing += [f"{module.name}.{part}" for part in parts if part not in module.parts]
    return missing


def _list_missing_layers(config: Node, shapes: Shapes) -> list[str]:
    """The layers that the config has trained whole and the file does not hold."""
    layers = config.get("modules_to_save")
    names = []
    if isinstance(layers, list):
        names = [str(name) for name in layers]
    saved: set[str] = set()
    for name in names:
        if any(f".{name}." in f".{weight}" for weight in shapes):
            saved.add(name)
    if config.get("ensure_weight_tying") and saved:
        return []  # one of them stands for those that share its weights
    # peft lists all names that a score head can have, and a model has one of them.
    has_score_head = not SCORE_HEADS.isdisjoint(saved)
    missing = []
    for name in names:
        if name not in saved and not (has_score_head and name in SCORE_HEADS):
            missing.append(f"{name}, which it has trained whole")
    return missing


def _list_missing_modules(
    config: Node, modules: list[LoraModule], base_shapes: Shapes
) -> list[str]:
    """The weights of those modules of the base that the config adapts and the file does not."""
    saved = {module.short_name for module in modules}
    missing = []
    for name, shape in base_shapes.items():
        is_matrix = len(shape) == 2 and IN_LAYER.search(name)
        if is_matrix and name not in saved and _is_adapted(name, config):
            missing.append(f"{name}.lora_A")
    return missing


def _is_adapted(name: str, config: Node) -> bool:
    """True for the short name of a module in a layer that an adapter of this config is put on."""
    targets = config.get("target_modules")
    if targets is None:
        return False
    layers = config.get("layers_to_transform")
    if isinstance(layers, int):
        layers = [layers]
    match = IN_LAYER.search(name)
    if layers is not None and match and int(match[2]) not in layers:
        return False
    return _is_among(name, targets) and not _is_among(name, config.get("exclude_modules"))


def _is_among(name: str, modules: object) -> bool:
    """True for the short name of a module that a list of names, or a pattern, is about."""
    if modules == "all-linear":
        return True
    if isinstance(modules, str):
        return any(re.fullmatch(modules, f"{backbone}{name}") for backbone in BACKBONES)
    if not isinstance(modules, list):
        return False
    for module in map(str, modules):
        if name == _short_name(module) or name.endswith(f".{module}"):
            return True
    return False


def _find_shape_faults(
    folder: ModelFolder, modules: list[LoraModule], base_shapes: Shapes
) -> Iterator[Fault]:
    """A fault for the first module that adapts a matrix of another shape than the base has."""
    for module in modules:
        base_shape = base_shapes.get(module.short_name)
        first = module.parts.get("lora_A")
        second = module.parts.get("lora_B")
        if base_shape is None or first is None or second is None or len(base_shape) != 2:
            continue
        shape = [second[0], first[-1]]
        # Some architectures store their matrices transposed.
        if sorted(shape) != sorted(base_shape):
            found = f"{folder.source} adapts a matrix of {shape} in {module.name}"
            yield Fault(
                where=folder.where,
                found=f"{found}, but that of its base is {base_shape}",
                expected="an adapter of the base that it names",
                fix="=<another folder>",
            )
            return


def _short_name(module: str) -> str:
    """The name of a module from its layer on, as ``layers.0.mlp.up_proj``; else its last part."""
    match = IN_LAYER.search(module)
    if match:
        return match[1]
    return module.rpartition(".")[2]
