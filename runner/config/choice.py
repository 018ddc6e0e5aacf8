"""Faults of choices: several values where one is composed, and options that are not on the menu."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.dialect import Meaning, find_meanings
from runner.config.groups import GROUPS
from runner.config.menu import Options, takes_one
from runner.config.override import HELD, find_place, is_experiment_file
from runner.errors import Fault
from runner.io.files import HUB_NAME
from runner.io.filetype import EXPERIMENT_FILES, TRAINING_FILES
from runner.schema.did_you_mean import best_guess, files_beside, nearest
from runner.schema.read import read_signature
from runner.schema.source import public_names
from runner.schema.text import as_typed

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Keys that may hold a list of texts.
OF_TEXTS = re.compile(r"(s|allow|without|matching|report_to)$")
MAX_VALUES = 100  # that are read of a key where no sweep was meant
NOT_CHOSEN = "<one of them>"
A_FILE = "<the path of a file>"


def find_choice_faults(overrides: "Iterable[Override]", menu: Options) -> Iterator[Fault]:
    """A fault for each override with several values where one is composed, or off the menu."""
    for override in overrides:
        group = override.key_or_group
        if override.is_sweep_override():
            yield _sweep_fault(override, menu)
        if override.is_delete():
            continue
        value = override.value()
        if isinstance(value, list) and takes_one(group):
            yield list_fault(group, value)
        if group not in menu:
            continue
        nodes = []
        if isinstance(value, list):
            nodes = [part for part in value if not isinstance(part, str)]
        if nodes:
            yield _node_fault(override, nodes[0], menu)
            continue
        for name in _chosen_names(override):
            is_option = name.removesuffix(".yaml") in menu[group] or name.startswith("[")
            is_none_or_file = name == "null" or is_experiment_file(name)
            is_experiment = group == "experiment" and is_none_or_file
            if not is_option and not is_experiment:
                yield option_fault(group, name, menu)


def _chosen_names(override: "Override") -> list[str]:
    """The names that an override chooses, of a sweep the first ones."""
    if override.is_sweep_override():
        return list(islice(override.sweep_string_iterator(), MAX_VALUES))
    value = override.value()
    if isinstance(value, list):
        return list(map(str, value))
    if isinstance(value, str):
        return [value]
    return [override.get_value_element_as_str()]


def _sweep_fault(override: "Override", menu: Options) -> Fault:
    """The fault of several values where one configuration is composed.

    The fix is a sweep; of a key that may hold a list, the list may be what was meant.
    """
    group = override.key_or_group
    names = _chosen_names(override)
    fix = "python -m runner -m <the same words>"
    if len(names) == MAX_VALUES:
        fix = f"{group}={names[0]}"
    if menu.get(group):
        is_list = not takes_one(group)
    else:
        has_numbers = any(map(str.isdigit, names))
        is_list = bool(OF_TEXTS.search(group)) and not has_numbers
    if is_list:
        joined = ",".join(names)
        fix += f", or '{group}=[{joined}]'"
    return Fault(
        where=group,
        found=f"several values in {override.input_line}",
        expected="one value, or a sweep",
        fix=fix,
    )


def _node_fault(override: "Override", node: object, menu: Options) -> Fault:
    """The fault of a list of options that holds something else, such as a node."""
    group = override.key_or_group
    target = ""
    if isinstance(node, dict):
        target = str(node.get("_target_", ""))
    fix = f"{group}={NOT_CHOSEN}"
    if target:
        name = target.rpartition(".")[2].lower()
        fix = f"{group}.{name}._target_={target}"
    return Fault(
        where=group,
        found=override.get_value_element_as_str(),
        expected=f"some of {', '.join(menu[group])}",
        fix=fix,
    )


def option_fault(group: str, name: str, menu: Options) -> Fault:
    """The fault of an option that is not on the menu: another name of one, a file, or misspelt."""
    found = f"no option {name!r} in conf/{group}/"
    for file in (Path(name), Path("conf", group, f"{name}.yaml")):
        if file.is_file() and file.parent.name in menu:
            folder = shlex.quote(str(file.parent.parent))
            return Fault(
                where=group,
                found=found,
                expected=f"its folder, as there is {file}",
                fix=f"{file.parent.name}={file.stem} --config-dir {folder}",
            )
    files = _find_files_meant(name) if group == "experiment" else []
    has_ending = group == "experiment" and name.endswith(TRAINING_FILES)
    if files or has_ending:
        typed_file = shlex.quote(files[0]) if files else A_FILE
        found = f"there is neither an option nor a file {name!r}"
        if os.path.isdir(name):
            found = f"{name!r} is a folder"
        return Fault(
            where=group,
            found=found,
            expected="an option, or the path of a file",
            fix=f"experiment={typed_file}",
        )
    meanings = list(find_meanings(group, name))
    for meaning in meanings:
        if meaning.final:
            return Fault(
                where=group,
                found=found,
                expected=meaning.why,
                fix=meaning.fix,
            )
    return Fault(
        where=group,
        found=found,
        expected=", ".join(menu[group]),
        fix=_meant_option(group, name, menu, meanings),
    )


def _find_files_meant(name: str) -> list[str]:
    """The files that may be meant by a name that is no option: with an ending, or like it."""
    files = [f"{name}{ending}" for ending in EXPERIMENT_FILES]
    found = list(filter(is_experiment_file, files))
    if name.endswith(EXPERIMENT_FILES):
        beside = files_beside(Path(name), EXPERIMENT_FILES)
        stems = {Path(file).stem: file for file in reversed(beside)}
        found += [stems[stem] for stem in nearest(Path(name).stem, stems)]
        if len(beside) == 1:
            found += beside
    return found


def _meant_option(group: str, name: str, menu: Options, meanings: Sequence[Meaning]) -> str:
    """The words to type for an option that is not on the menu.

    In this order it is another tool's word for one of ours, runs of this name, a path, the user's
    own code, and an option that is spelt like it.
    """
    options = menu[group]
    if group not in HELD and name.lower() not in options:
        for meaning in meanings:
            if meaning.words:
                return as_typed(meaning.words)
    if group == "model" and os.path.isdir(f"outputs/{name}"):  # runs of this name
        return f"model.path='${{run:{name}}}'"
    option, _ = find_place(group, name, menu)
    near = best_guess(name, options)
    if group in HELD and not near and HUB_NAME.fullmatch(name):
        option = option or "hub"
    if option:
        inner_key = "model.path" if group == "reward" else "path"
        return f"{group}={option} {group}.{inner_key}={name}"
    target = _find_target(name) if group in GROUPS else ""
    if target:
        package = target.partition(".")[0]
        return f"{group}._target_={target} 'allow=[{package}]'"
    if near:
        return f"={near}"
    parts = [part for part in options if part != "none"]
    if len(parts) == 1:
        return f"={parts[0]}"
    return f"={NOT_CHOSEN}"


def _find_target(name: str) -> str:
    """The dotted name of the user's code that a name means, of a module its first reward.

    Empty if it means none.
    """
    if name.endswith(EXPERIMENT_FILES):
        return ""
    dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
    is_module = name.endswith(".py") or os.path.isfile(f"{name}.py")
    is_dotted = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", dotted)
    if not is_dotted or not (is_module or "." in name):
        return ""
    if not is_module:
        return dotted
    targets = [f"{dotted}.{public_name}" for public_name in public_names(dotted)]
    for target in targets:
        signature = read_signature(target)
        if signature and "completions" in signature.parameters:
            return target
    return targets[0] if targets else f"{dotted}.function"


def list_fault(group: str, names: Sequence[object]) -> Fault:
    """The fault of a list of options of a group that takes one; Hydra would use the last."""
    first = names[0] if names else NOT_CHOSEN
    joined = ",".join(map(str, names))
    if group == "weight":  # its rules multiply, each under a name; a list that is typed is expanded
        return Fault(
            where=group,
            found=f"a list, [{joined}]: only the last one would count",
            expected="each rule under a name of its own",
            fix=f"/weight@weight.{first}: {first}  "
            "(in the defaults of the file, and so for each rule)",
        )
    fix = f"{group}={first}"
    if len(names) > 1:
        if group == "dataset":
            fix = f"dataset=mixture, with each one under dataset.parts; {fix}"
        fix += f"; or a sweep: python -m runner -m {group}={joined}"
    listed = ", ".join(map(str, names))
    return Fault(
        where=group,
        found=f"[{listed}]: only the last one would count",
        expected="one option",
        fix=fix,
    )
