"""Checks of what ``peft`` trains: names, ranks and sizes against the parts of a model.

Before the start the parts are known by the files of a model (``find_tuning_faults``), later by the
model in memory (``adapter``, ``freeze``).
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from runner.errors import Fault
from runner.model.model_files import BACKBONES, ModelFolder
from runner.schema.did_you_mean import best_guess
from runner.schema.text import Node, to_override

# Layers that are in no file where they share the embeddings' weights, or are new.
OUTPUT_LAYERS = ("lm_head", "embed_out", "score")


def find_tuning_faults(folder: ModelFolder, peft: object) -> Iterator[Fault]:
    """Faults of the node ``peft`` for a model in a folder.

    None is found where the files of the model name weights otherwise than the model does.
    """
    if not isinstance(peft, Mapping) or not folder.is_plain or not folder.has_weights:
        return
    target = str(peft.get("_target_"))
    weights: list[str] = []
    for name in folder.shapes:
        weights += [f"{prefix}{name}" for prefix in BACKBONES]
    weights += [f"{layer}.weight" for layer in OUTPUT_LAYERS]
    patterns = _as_list(peft.get("matching"))
    yield from find_pattern_faults("peft.matching", patterns, weights)

    modules = _list_modules(weights)
    # The matrices of layers, which adapters are put on.
    matrices: dict[str, list[int]] = {}
    for name, shape in folder.shapes.items():
        if len(shape) == 2 and "embed" not in name:
            matrices[name] = shape
    linear = {name.split(".")[-2] for name in matrices if "." in name}
    targets = peft.get("target_modules")
    yield from find_target_faults(targets, modules, linear)
    if target.endswith("LoraConfig"):
        lengths = [max(shape) for shape in matrices.values()]
        largest = max(lengths, default=0)
        yield from find_rank_faults(peft.get("r"), peft.get("rank_pattern"), largest)
    if target.endswith("OFTConfig"):
        widths = {shape[1] for name, shape in matrices.items() if _is_target(name, targets)}
        yield from _find_block_faults(peft, widths)
    patterns = _as_list(peft.get("full"))
    yield from find_pattern_faults("peft.full", patterns, weights)
    yield from find_selection_faults(peft, modules)

    virtual_tokens = peft.get("num_virtual_tokens")
    positions = folder.positions
    if isinstance(virtual_tokens, int) and positions is not None and virtual_tokens >= positions:
        yield Fault(
            where="peft.num_virtual_tokens",
            found=f"{virtual_tokens}, but the model has {positions} positions",
            expected="fewer, which leave room for the rows",
            fix=f"={min(20, positions // 2)}",
        )
    depth = folder.config.get("num_hidden_layers")
    layers = peft.get("layers")
    if isinstance(depth, int) and isinstance(layers, int):
        yield from find_depth_faults(layers, depth)


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _list_modules(weights: Iterable[str]) -> set[str]:
    """The modules that hold weights, and all those around them, by their dotted names."""
    modules: set[str] = set()
    for weight in weights:
        module, _, _ = weight.rpartition(".")
        modules.add(module)
        while "." in module:
            module, _, _ = module.rpartition(".")
            modules.add(module)
    return modules


def find_pattern_faults(
    where: str, patterns: Iterable[str], weights: Sequence[str], examples: Sequence[str] = ()
) -> Iterator[Fault]:
    """A fault for each pattern that is found in the name of no weight."""
    for pattern in patterns:
        if not any(re.search(str(pattern), name) for name in weights):
            names = ", ".join(examples or weights[:3])
            yield Fault(
                where=where,
                found=f"no weight has {pattern} in its name",
                expected=f"such as {names}",
                fix="=[norm]",
            )


def find_target_faults(
    targets: object, modules: Collection[str], linear: Collection[str]
) -> Iterator[Fault]:
    """A fault for each layer that the model lacks; peft passes over them if any other fits.

    A list holds ends of names, a text is a pattern for whole ones.

    ``modules`` are the names of all parts of the model, ``linear`` the short names of those that
    an adapter can be put on.
    """
    layers = ", ".join(sorted(linear))
    if isinstance(targets, str):
        if targets == "all-linear" or any(re.fullmatch(targets, name) for name in modules):
            return
        # The layers that the pattern names, if not by their whole names.
        near = []
        for name in sorted(linear):
            if re.search(rf"\b{re.escape(name)}\b", targets):
                near.append(name)
        fix = "=all-linear"
        if near:
            fix = f"=[{','.join(near)}]"
        yield Fault(
            where="peft.target_modules",
            found=f"{targets} is not the whole name of any layer",
            expected=f"a list, among {layers}, or a pattern",
            fix=fix,
        )
        return
    if not isinstance(targets, list | set | tuple):
        return
    for target in sorted(targets):
        is_there = any(f".{name}".endswith(f".{target}") for name in modules)
        if not is_there:
            yield Fault(
                where="peft.target_modules",
                found=f"the model has no layer {target}",
                expected=f"among {layers}",
                fix="=all-linear",
            )


def find_rank_faults(rank: object, pattern: object, largest: int) -> Iterator[Fault]:
    """A fault for each rank of LoRA above ``largest``.

    That is the largest number of rows or columns of a matrix of the model.
    """
    ranks = {"peft.r": rank}
    if isinstance(pattern, Mapping):
        for module, module_rank in pattern.items():
            ranks[f"peft.rank_pattern.{module}"] = module_rank
    for where, value in ranks.items():
        if largest and isinstance(value, int) and value > largest:
            sizes = f"{largest} rows or columns"
            yield Fault(
                where=where,
                found=f"{value}, but no matrix of the model has more than {sizes}",
                expected=f"at most {largest}, far fewer to save anything",
                fix=f"={min(16, largest)}",
            )


def _is_target(weight: str, targets: object) -> bool:
    """True for the weight of a layer that an adapter with these targets is put on."""
    module = weight.removesuffix(".weight")
    if isinstance(targets, str) and targets != "all-linear":
        return bool(re.fullmatch(targets, module))
    if isinstance(targets, list | tuple | set):
        return module.split(".")[-1] in map(str, targets)
    return not module.endswith(OUTPUT_LAYERS)


def _find_block_faults(peft: Node, widths: Collection[int]) -> Iterator[Fault]:
    """A fault for blocks of OFT that do not divide the inputs of the layers.

    peft would take blocks of another size in their place. The fix is the largest size up to the
    typed one that divides all of them.
    """
    for field in ("oft_block_size", "r"):
        size = peft.get(field)
        if not isinstance(size, int) or size <= 0:
            continue
        if not any(width % size for width in widths):
            continue
        common = math.gcd(*widths)
        largest = min(size, common)
        divisors = [n for n in range(1, largest + 1) if common % n == 0]
        inputs = ", ".join(map(str, sorted(widths)))
        found = f"{size}, which does not divide the inputs of the layers ({inputs})"
        yield Fault(
            where=f"peft.{field}",
            found=f"{found}: peft would use another one",
            expected="a divisor of all of them",
            fix=f"={divisors[-1]}",
        )


def find_selection_faults(settings: Node, modules: Collection[str]) -> Iterator[Fault]:
    """Faults of the names in an adapter's settings, beside its targets, that fit no part."""
    yield from _find_layer_number_faults(settings, modules)
    yield from _find_module_name_faults(settings, modules)
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern in settings.get(key) or ():
            ending = re.compile(rf"(.*\.)?({pattern})$")
            if not any(ending.match(module) for module in modules):
                yield Fault(
                    where=f"peft.{key}",
                    found=f"{pattern} fits no layer",
                    expected="a name, or the end of one, of the model's layers",
                    fix=f"leave {pattern} out",
                )


def _find_layer_number_faults(settings: Node, modules: Collection[str]) -> Iterator[Fault]:
    """A fault for each list of layers, and each number of one, that the model does not have."""
    patterns = settings.get("layers_pattern") or []
    if isinstance(patterns, str):
        patterns = [patterns]
    numbers: set[int] = set()
    for pattern in patterns or [r"[^.]*"]:
        layer = re.compile(rf"\.{pattern}\.(\d+)\.")
        matches = [layer.search(f".{module}.") for module in modules]
        pattern_numbers = {int(match[1]) for match in matches if match}
        if patterns and not pattern_numbers:
            yield Fault(
                where="peft.layers_pattern",
                found=f"{pattern}, but no layers have such a name",
                expected="layers",
                fix="=null",
            )
        numbers |= pattern_numbers
    if not numbers:
        return
    last = max(numbers)
    chosen = settings.get("layers_to_transform")
    chosen_numbers = chosen
    if isinstance(chosen, int):
        chosen_numbers = [chosen]
    for number in chosen_numbers or ():
        if number not in numbers:
            yield Fault(
                where="peft.layers_to_transform",
                found=f"no layer {number}",
                expected=f"{min(numbers)} to {last}",
                fix=f"=[{last}]",
            )
    for span in settings.get("layer_replication") or ():
        if not 0 <= span[0] < span[1] <= last + 1:
            yield Fault(
                where="peft.layer_replication",
                found=str(list(span)),
                expected=f"layers from and up to, of 0 to {last + 1}",
                fix="=null",
            )


def _find_module_name_faults(settings: Node, modules: Collection[str]) -> Iterator[Fault]:
    """A fault for each name, or pattern, of modules that the model does not have."""
    ends = {module.rpartition(".")[2] for module in modules}
    for key in ("modules_to_save", "exclude_modules", "feedforward_modules"):
        value = settings.get(key) or ()
        if isinstance(value, str):
            names = [value]
            missing = names
            if any(re.fullmatch(value, module) for module in modules):
                missing = []
        else:
            names = list(value)
            missing = []
            for name in names:
                if not any(module.endswith(name) for module in modules):
                    missing.append(name)
        for name in missing:
            fix = f"leave peft.{key} out"
            similar = best_guess(name, ends)
            if similar:
                mended = list(names)
                mended[names.index(name)] = similar
                fix = to_override(f"peft.{key}", mended)
            yield Fault(
                where=f"peft.{key}",
                found=f"the model has no part {name}",
                expected="parts of the model",
                fix=fix,
            )


def find_depth_faults(layers: int, depth: int) -> Iterator[Fault]:
    """A fault for a number of trained layers that the model does not have."""
    if not 0 <= layers <= depth:
        yield Fault(
            where="peft.layers",
            found=f"{layers}, but the model has {depth} layers",
            expected=f"0 to {depth}",
            fix=f"={max(1, depth // 2)}",
        )
