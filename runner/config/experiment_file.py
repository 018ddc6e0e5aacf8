"""An experiment in a file that is named by its path: the user's own, or the config.yaml of a run.

It says what an option of ``conf/experiment/`` says, and may be shorter: a text at the key of a
group chooses an option there, as the same word on the command line does, and a key may be dotted.

    trainer: dpo
    model: org/name
    trainer.args.max_steps: 100

A file of another tool is read by ``importers``; what it is translated to is kept here.
"""

import functools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.groups import GROUPS
from runner.config.limits import check_size, encoding_fault, parse_yaml
from runner.config.menu import Options, option_of, read_menu, read_options, takes_one
from runner.config.override import expand, is_experiment_file, parse
from runner.errors import ConfigError, Fault
from runner.schema.literal import to_text
from runner.schema.text import Node, flatten, scalars, select

Content = dict[str, Any]
REFERENCE = re.compile(r"\$\{([\w.]+)\}")  # to one value as a whole
PLAIN_GROUP = re.compile(r"(?:override )?/?(\w+)")  # of a default that chooses an option
BASE = "/experiment/"  # begins the default of another experiment, over which the file is laid
# Keys that the options of a trainer refer to.
REFERRED = ("learning_rate", "kl_coef")
# What says which model, rows or reward a file means; an option that is typed takes its place.
MEANT = {
    "model": ("path", "revision"),
    "dataset": ("path", "config", "revision"),
    "reward": ("model",),
}


@dataclass(frozen=True)
class Translation:
    """An experiment of ours that another tool's file was translated to."""

    content: Content
    sources: Mapping[str, str]  # by a key of ours, the key of theirs that it comes from


_translations: dict[Path, Translation] = {}  # by the resolved path


def translations() -> dict[Path, Translation]:
    """The translations that are kept, by the resolved paths of the files."""
    return dict(_translations)


def keep_translation(file: Path, translation: Translation) -> None:
    """Have a file of another tool read as this translation from now on."""
    _translations[file.expanduser().resolve()] = translation


def translation_of(file: Path) -> Translation | None:
    """The translation of a file of another tool; None for an experiment of ours."""
    return _translations.get(file.expanduser().resolve())


def read_mapping(file: Path) -> Node:
    """The keys of a YAML file, within limits."""
    check_size(file)
    text = file.read_bytes()
    try:
        text.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(encoding_fault(file, text, "YAML in UTF-8")) from None
    content = parse_yaml(text, str(file))
    if content is not None and not isinstance(content, Mapping):
        found = "a list"
        if not isinstance(content, list):
            found = f"the text {str(content)[:40]!r}"
        raise ConfigError(
            Fault(
                where=str(file),
                found=found,
                expected="keys with values",
                fix="key: value, one per line",
            )
        )
    return content or {}


def read_experiment_file(name: str, folders: Sequence[Path], chosen: Collection[str]) -> Content:
    """The experiment in a file, as an option of ``conf/experiment/`` would say it.

    ``chosen`` are the groups of which the command line chooses an option. Raises ConfigError for a
    file that holds no keys.
    """
    from omegaconf import OmegaConf

    file = Path(name).expanduser()
    translation = translation_of(file)
    if translation is not None:
        return _write_out(translation.content, read_menu(folders), name, chosen)
    for key in read_mapping(file):  # within limits, which OmegaConf does not have
        if not isinstance(key, str):
            raise ConfigError(_key_fault(name, f"the key {key}"))
    content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    if not content:
        raise ConfigError(_key_fault(name, "no keys"))
    if "format" in content:
        return _of_run(content, chosen)
    return _write_out(content, read_menu(folders), name, chosen)


def stamp_files(name: str, stamps: dict[str, int] | None = None) -> dict[str, int]:
    """When the file of an experiment, and each one that it begins with, was last written."""
    stamps = stamps if stamps is not None else {}
    file = Path(name).expanduser().resolve()
    if str(file) not in stamps:
        changed = file.stat().st_mtime_ns
        stamps[str(file)] = changed
        for base in _read_bases(name, file, changed):
            stamp_files(base, stamps)
    return stamps


@functools.lru_cache(maxsize=256)
def _read_bases(name: str, file: Path, changed: int) -> list[str]:
    """The paths of the experiments that a file begins with."""
    defaults = read_experiment_file(name, (), ()).get("defaults")
    bases = []
    for default in defaults if isinstance(defaults, list) else ():
        base = str(default).removeprefix(BASE)
        if base != default and is_experiment_file(base):
            bases.append(base)
    return bases


# --- A file of the user's own ---------------------------------------------------------------------
def _write_out(content: Node, menu: Options, name: str, chosen: Collection[str]) -> Content:
    """The content with choices as defaults, and dotted keys as mappings in each other."""
    typed_defaults = content.get("defaults", [])
    if not isinstance(typed_defaults, list):
        return dict(content)  # the check of all files refuses it
    defaults = [_to_absolute(default, menu, name) for default in typed_defaults]
    written: Content = {}
    for key, value in content.items():
        if key == "sweep":
            raise ConfigError(
                Fault(
                    where=f"{name}: sweep",
                    found="a sweep in the file of an experiment",
                    expected="one training in the file, and the sweep beside it",
                    fix=f"python -m runner {name} sweep={to_text(value)}",
                )
            )
        if key == "experiment" and isinstance(value, str):
            defaults.insert(0, _base(name, value))
        elif key in MEANT and isinstance(value, list) and takes_one(key):
            raise ConfigError(
                Fault(
                    where=key,
                    found=f"the list {to_text(value)}",
                    expected="one option",
                    fix=f"{key}: <one of them>  (in {name})",
                )
            )
        elif key in menu and _is_choice(value):
            _add_choice(f"{key}={to_text(value)}", menu, defaults, written)
        elif key != "defaults":
            _put(written, key.split("."), value)
    _leave_to_typed(written, chosen)

    # Hydra wants those that override others behind all others.
    overriding = [default for default in defaults if "override " in str(default)]
    adding = [default for default in defaults if default not in (*overriding, "_self_")]
    return {"defaults": [*adding, *overriding, "_self_"], **written}


def _leave_to_typed(written: Content, chosen: Collection[str]) -> None:
    """Take out which model, rows and reward a file means where the command line chooses another."""
    for group in set(MEANT) & set(chosen):
        node = written.get(group)
        if isinstance(node, dict):
            for key in MEANT[group]:
                node.pop(key, None)


def _is_choice(value: object) -> bool:
    """True for the name of an option, and for several."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(name, str) for name in value)
    return isinstance(value, str)


def _add_choice(word: str, menu: Options, defaults: list[object], written: Content) -> None:
    """Add what the command line makes of a word: the default of an option, perhaps its path."""
    for override in parse(expand([word], menu)):
        key = override.key_or_group
        if override.package:
            defaults.append({f"/{key}@{override.package}": override.value()})
        elif key in menu:
            defaults.append({f"override /{key}": override.value()})
        else:
            _put(written, key.split("."), override.value())


def _to_absolute(default: object, menu: Options, name: str) -> object:
    """A default as it would stand in a file of the menu, which overrides the main choice."""
    if isinstance(default, str) and re.fullmatch(r"(?!_self_$)[^/@][^@]*", default):
        return _base(name, default)
    if isinstance(default, dict) and len(default) == 1:
        ((group, option),) = default.items()
        plain_group = PLAIN_GROUP.fullmatch(str(group))
        if plain_group and plain_group[1] == "experiment":
            return _base(name, str(option))
        if plain_group and plain_group[1] in menu:
            return {f"override /{plain_group[1]}": option}
    return default


def _base(name: str, base: str) -> str:
    """The default of an experiment that a file begins with: of one beside it, or an option."""
    path = os.path.join(os.path.dirname(name), base)
    return f"{BASE}{path if is_experiment_file(path) else base}"


def _put(node: Content, names: Sequence[Any], value: object) -> None:
    """Write a value at a path, into the mapping that may be there already."""
    *outer_names, last_name = names
    for name in outer_names:
        if not isinstance(node.get(name), dict):
            node[name] = {}
        node = node[name]
    if isinstance(value, dict) and isinstance(node.get(last_name), dict):
        for name, inner_value in value.items():
            _put(node[last_name], [name], inner_value)
    else:
        node[last_name] = value


def _key_fault(name: str, found: str) -> Fault:
    """The fault of an experiment's file that has no keys, or keys that are no texts."""
    return Fault(
        where=name,
        found=found,
        expected="keys that are texts, with values",
        fix="key: value, one per line",
    )


# --- The config.yaml of a run ---------------------------------------------------------------------
def _of_run(content: Content, chosen: Collection[str]) -> Content:
    """The frozen configuration of a run, whose nodes take the place of what options would say.

    Values that its options took from others are taken from them again, so that it is enough to
    type ``learning_rate=`` or ``model.path=``.
    """
    frozen = {key: value for key, value in content.items() if key != "format"}
    defaults: list[object] = []
    for group in GROUPS:
        if group in chosen:
            continue
        # Some ask by which launcher it is, and no option of these sets what the node does not.
        option = ""
        if group == "launcher":
            option = option_of(group, select(frozen, "launcher._target_"))
        defaults.append({f"override /{group}": option or None})
    _refer(frozen)
    texts = [text for _, text in scalars(frozen)]
    for key in REFERRED:
        if f"${{{key}}}" not in texts:
            frozen.pop(key, None)
    for group in GROUPS:
        if group in chosen:
            frozen.pop(group, None)
    if "trainer" in chosen:
        for key in REFERRED:
            frozen.pop(key, None)
    return {"defaults": [*defaults, "_self_"], **frozen}


def _refer(frozen: Content) -> None:
    """Write references where an option of the same target has them, and the values agree."""
    leaves = flatten(frozen)
    for group in GROUPS:
        name = option_of(group, select(frozen, f"{group}._target_"))
        option = read_options(group).get(name, {})
        cfg = option if group in option else {group: option}
        for path, text in scalars(cfg):
            reference = REFERENCE.fullmatch(str(text))
            if not reference or path not in leaves or reference[1] not in leaves:
                continue
            if leaves[path] == leaves[reference[1]]:
                _put(frozen, path.split("."), text)
