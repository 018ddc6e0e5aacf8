"""Command line -> one composed, resolved, plain configuration; and configuration -> objects.

The door composes (Hydra is met here and nowhere else) and the worker builds from paper. What a key
may be is not
written here: ``validate`` reads that from the signatures of what the config names.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import importlib
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.composition import composition_fault
from runner.config.limits import check_growth
from runner.config.user_folder import refused, use_folders
from runner.errors import ConfigError, Fault
from runner.io.files import MENU
from runner.io.secrets import form_of
from runner.schema import Node, read_signature

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

GROUPS = (
    *("trainer", "model", "dataset", "peft", "quant", "collator", "reward", "loss", "weight", "metric"),
    *("optimizer", "callback", "tracker", "launcher"),
)
OPTIONAL = ("loss", "weight", "optimizer")  # which a configuration without them does not name, nor its key

NUM_PROCESSES = "launcher.num_processes"

# Groups whose options are parts with names of their own, so that several go together: reward=[length,format].
SEVERAL = ("reward", "metric", "callback")
# Each group with the names of its options.
Options = dict[str, list[str]]
Stamps = tuple[tuple[str, int], ...]  # files, and when each was last written


@dataclass(frozen=True)
class Composed:
    """A checked-in or typed experiment, resolved: plain dicts, lists and scalars only.

    ``overrides`` are the command line's words as the user typed them, ``choices`` maps each group
    to its option. Of a stage they are the words that were meant for it; ``words`` are all that
    compose it, those of the experiment's file too. ``command`` are the words of the command line that make this run,
    together with the other stages of the same experiment if it has any.
    """

    cfg: dict[str, Any]
    overrides: list[str]
    choices: dict[str, str] = field(default_factory=dict)
    stage: str = ""
    words: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    @property
    def typed(self) -> set[str]:
        """The dotted keys that the user typed."""
        return {_key(override) for override in self.overrides}


def read_menu(folders: Sequence[Path] = ()) -> Options:
    """Every group with the names of its options, the user's own folders included."""
    options: dict[str, set[str]] = {}
    for root in (*folders, MENU):
        for file in filter(Path.is_file, root.glob("*/*.yaml")):
            options.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(names) for group, names in sorted(options.items())}


def compose(overrides: Sequence[str], folders: Sequence[Path] = ()) -> Composed:
    """The configuration that these overrides make, resolved; raises ConfigError with every fault at once."""
    with _told():
        cfg, choices = compose_unresolved(overrides, folders)
        return resolve(cfg, list(overrides), choices)


def compose_unresolved(overrides: Sequence[str], folders: Sequence[Path] = ()) -> tuple[DictConfig, dict[str, str]]:
    """Hydra's config before any ``${...}`` is read, and the option of each group.

    Hydra composes the choices; values are laid on top, as it would do itself, so that the jobs of a sweep which
    differ in values only are composed once.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    menu = read_menu(folders)
    if faults := _sweeps(overrides) + _missing_options(overrides, menu) + _lists(overrides):
        raise ConfigError(faults)
    words = force(overrides, menu)
    parsed = parse(words)
    cuts = any(override.is_delete() and not _is_group(override.input_line, menu) for override in parsed)
    values = [override for override in parsed if override.is_force_add() and not cuts]
    values = [override for override in values if not override.is_hydra_override()]
    choices = tuple(override.input_line for override in parsed if override not in values)
    with _told():
        cfg = copy.deepcopy(_compose_choices(choices, tuple(folders), _written(folders)))
        for override in values:
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True, force_add=True)
    if folders:
        check_growth(OmegaConf.to_container(cfg, resolve=False))
    HydraConfig.instance().set_config(cfg)
    chosen = dict(OmegaConf.to_container(cfg.hydra.runtime.choices))
    if faults := _lists_in_files(chosen, overrides, folders):
        raise ConfigError(faults)
    return cfg, chosen


@functools.lru_cache(maxsize=256)
def _compose_choices(words: tuple[str, ...], folders: tuple[Path, ...], written: Stamps) -> DictConfig:
    """The config that Hydra makes of these words and of the YAML files as they were ``written``."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    use_folders(folders)
    world = GlobalHydra.instance()
    before = world.hydra  # of a sweeper or launcher that called us
    world.clear()
    try:
        with initialize_config_dir(str(MENU), version_base="1.3", job_name="runner"):
            return hydra_compose("config", list(words), return_hydra_config=True)
    finally:
        world.hydra = before


def _written(folders: Sequence[Path]) -> Stamps:
    """The YAML files that there are, and when each was last written."""
    files = [file for root in (*folders, MENU) for file in sorted(Path(root).resolve().rglob("*.yaml"))]
    return tuple((str(file), file.stat().st_mtime_ns) for file in files)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell what Hydra and OmegaConf refuse as a fault of the configuration."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(composition_fault(error)) from None


def resolve(cfg: DictConfig, overrides: list[str], choices: dict[str, str] | None = None) -> Composed:
    """A Hydra config as plain values; every key that still waits for one is a fault."""
    from omegaconf import OmegaConf, flag_override

    cfg = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    check_growth(OmegaConf.to_container(cfg, resolve=False))
    trainer = (choices or {}).get("trainer")
    unread = [fault for key in ("learning_rate", "kl_coef") for fault in _unread(cfg, key, trainer)]
    if faults := unread + [_missing(key) for key in sorted(OmegaConf.missing_keys(cfg))]:
        raise ConfigError(faults)
    with _told(), flag_override(cfg, "struct", False):
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    # A group that was deleted is a group without a part, and so is an entry that was set to null.
    parts = {group: plain.get(group) for group in GROUPS if group in plain or group not in OPTIONAL}
    for group in ("reward", "metric", "callback"):
        entries = parts[group] or {}
        if isinstance(entries, dict):  # anything else is for the check
            parts[group] = {name: entry for name, entry in entries.items() if entry is not None} or None
    composed = Composed(plain | parts, overrides, choices or {})
    launcher = composed.cfg["launcher"]  # the key must know the processes that somebody else has started
    if isinstance(launcher, dict) and launcher.get("num_processes") == 1 and NUM_PROCESSES not in composed.typed:
        launcher["num_processes"] = world_size()
    return composed


def world_size() -> int:
    """The number of processes that torchrun or its like has started together, of which this is one; else 1."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def force(overrides: Sequence[str], menu: Options) -> list[str]:
    """The same overrides, each ``key=value`` as ``++key=value``, so that Hydra accepts every key.

    Hydra stops at the first key that no YAML names, and would also refuse the many TRL fields that
    ours leave at
    their defaults. The check that follows knows the real names and reports all faults together.
    """
    return [
        f"++{override.lstrip('+')}"
        if "=" in override and not override.startswith("~") and not _is_group(override, menu)
        else override
        for override in overrides
    ]


def quote_text(word: str) -> str:
    """A word as Hydra takes it: a slice of rows or a file's name may need quotes, which the shell has taken away.

    What looks like a list, a mapping, a function or several values is left as it is.

    >>> quote_text("dataset.split.train=train[:500]"), quote_text("dataset.path=rows (1).csv"), quote_text("allow=[a]")
    ("dataset.split.train='train[:500]'", "dataset.path='rows (1).csv'", 'allow=[a]')
    """
    key, _, value = word.partition("=")
    plain = re.fullmatch(r"""[^\[{("',=$][^{}"',=$]*""", value) and not re.fullmatch(r"\w+\(.*\)", value)
    paired = all(value.count(first) == value.count(last) for first, last in ("()", "[]"))
    odd = re.search(r"[()\[\]]|[^\x00-\x7f]", value)
    return f"{key}='{value}'" if plain and paired and odd and value.isprintable() else word


def latest(overrides: Sequence[str]) -> list[str]:
    """The overrides with each key once, as it was given last.

    >>> latest(["seed=1", "kl_coef=0.1", "++seed=2"])
    ['kl_coef=0.1', '++seed=2']
    """
    last: dict[str, str] = {}
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        last.pop(key, None)
        last[key] = override
    return list(last.values())


def locate(target: str) -> Any:
    """The object behind a dotted name, importing the longest part of it that is a module."""
    parts = target.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        return functools.reduce(getattr, parts[cut:], found)
    raise ConfigError(Fault(target, "no such module", "an importable name"))


def build(node: object, **given: object) -> Any:
    """Call what a config node names with its keys as arguments, inner nodes first; ``given`` wins
    over the keys.

    The only place that turns configuration into objects. ``_partial_: true`` gives the callable
    with its arguments
    bound instead. Nodes without ``_target_`` come back as plain values.
    """
    if isinstance(node, Mapping):
        arguments = {key: build(value) for key, value in node.items() if key not in SPECIAL}
        if "_target_" not in node:
            return arguments
        target = locate(node["_target_"])
        if node.get("_partial_") or _waits_for_rows(target, arguments):
            return functools.partial(target, **arguments | given)
        return target(**arguments | given)
    if isinstance(node, list):
        return [build(value) for value in node]
    return node


def _waits_for_rows(target: object, arguments: Mapping[str, object]) -> bool:
    """True for a function of a ``row``, which is called for each row and not now."""
    return inspect.isfunction(target) and "row" in inspect.signature(target).parameters and "row" not in arguments


def serve(node: Node, **offered: object) -> Any:
    """Build a node with those of the offered arguments that its signature names."""
    wanted = asked_for(node["_target_"])
    return build(node, **{name: part for name, part in offered.items() if name in wanted})


def asked_for(target: str) -> set[str]:
    """The names of the arguments that a target takes, also by handing on what it does not name."""
    known = inspect.signature(locate(target)).parameters.values()
    names = {each.name for each in known if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    if any(each.kind == each.VAR_KEYWORD for each in known) and (signature := read_signature(target)):
        names |= set(signature.parameters)
    return names


SPECIAL = ("_target_", "_partial_")


def differences(ours: object, theirs: object, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each leaf where two configs differ, as (dotted key, ours, theirs).

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from differences(ours.get(key), theirs.get(key), inner)
    elif ours != theirs:
        yield path, ours, theirs


def parse(overrides: Iterable[str]) -> list[Override]:
    """Hydra's reading of each override; those that it cannot read are faults, all at once."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed, faults = OverridesParser.create(), [], []
    for override in overrides:
        try:
            (read,) = parser.parse_overrides([override])
            parsed.append(read)
            trouble = "" if read.key_or_group else "no key before the equals sign"
            trouble = trouble or refused(read.key_or_group) or refused(read.package or "")
            if not trouble and read.is_hydra_override() and (form := form_of(override)):
                trouble = f"looks like {form}, which Hydra would write down"
        except (HydraException, ValueError, RecursionError) as error:  # such as a number of 5000 digits
            trouble = str(error).splitlines()[0]
        if trouble:
            found = f"{_short(override)!r}: {_short(trouble)}"
            faults.append(Fault("command line", found, "key=value", f"'{_key(override) or 'key'}=\"<text>\"'"))
    if faults:
        raise ConfigError(faults)
    return parsed


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."


def _key(override: str) -> str:
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def _is_group(override: str, menu: Options) -> bool:
    key = _key(override)
    return key in menu or key.startswith(("hydra/", "hydra."))


def _sweeps(overrides: Sequence[str]) -> list[Fault]:
    """A fault for every override with several values, where one configuration is composed."""
    several = [override for override in parse(overrides) if override.is_sweep_override()]
    return [
        Fault(
            override.key_or_group,
            f"several values in {override.input_line}",
            "one value, or a sweep",
            f"python -m runner -m {override.input_line}" + _or_list(override),
        )
        for override in several
    ]


def _or_list(override: Override) -> str:
    """The list that may be meant by several values, where the key takes one."""
    key = override.key_or_group
    return "" if _takes_one(key) else f", or '{key}=[{','.join(map(str, override.sweep_string_iterator()))}]'"


def _takes_one(group: str) -> bool:
    return group not in SEVERAL and (MENU / group).is_dir()


def _lists(overrides: Sequence[str]) -> list[Fault]:
    """A fault for every list of options of a group that takes one, of which the last would win in silence."""
    chosen = [(override.key_or_group, override.value()) for override in parse(overrides) if not override.is_delete()]
    return [_list(group, names) for group, names in chosen if isinstance(names, list) and _takes_one(group)]


def _lists_in_files(chosen: Mapping[str, object], overrides: Sequence[str], folders: Sequence[Path]) -> list[Fault]:
    """The same for the defaults lists of files: Hydra does not tell the choice of a group that was given a list."""
    known = {*chosen, *(override.key_or_group for override in parse(overrides) if override.is_delete())}
    groups = sorted(path.name for path in MENU.iterdir() if _takes_one(path.name) and path.name not in known)
    layers = read_layers(overrides, folders) if groups else []
    return [_list(group, [file.stem for file, _ in layers if file.parent.name == group]) for group in groups]


def _list(group: str, names: Sequence[object]) -> Fault:
    first, several = [*names, "<one of them>"][0], ",".join(map(str, names))
    others = {
        "dataset": "dataset=mixture, with each under dataset.parts; ",
        "tracker": f"tracker={first} 'tracker.report_to=[{several}]'; ",
    }
    fix = f"{others.get(group, '') if names[1:] else ''}{group}={first}"
    fix += f"; or a sweep: python -m runner -m {group}={several}" if names[1:] else ""
    return Fault(group, f"[{', '.join(map(str, names))}], of which only the last would count", "one option", fix)


def _missing_options(overrides: Sequence[str], menu: Options) -> list[Fault]:
    """A fault for every choice that its group does not offer."""
    faults = []
    for override in parse(overrides):
        group, options = override.key_or_group, menu.get(override.key_or_group)
        if options is None or override.is_delete():
            continue
        chosen = (
            list(override.sweep_string_iterator())
            if override.is_sweep_override()
            else [override.get_value_element_as_str()]
        )
        for name in chosen:
            if name.removesuffix(".yaml") in options or name.startswith("[") or (group, name) == ("experiment", "null"):
                continue
            near = difflib.get_close_matches(name, options, 1)
            faults.append(
                Fault(
                    group,
                    f"no option {name!r} in conf/{group}/",
                    ", ".join(options),
                    f"{group}={near[0]}" if near else f"{group}=<one of them>",
                )
            )
    return faults


def _unread(cfg: DictConfig, key: str, trainer: str | None) -> list[Fault]:
    """A fault where a top-level value is set and the trainer has nothing that would read it."""
    from omegaconf import OmegaConf

    value, reference = OmegaConf.select(cfg, key), f"${{{key}}}"
    readers = [path.stem for path in sorted(MENU.glob("trainer/*.yaml")) if reference in path.read_text("utf-8")]
    # A typed trainer.args.beta takes the place of the reference, and wins; that is no fault.
    if value is None or trainer in readers or reference in OmegaConf.to_yaml(cfg):
        return []
    expected = f"a trainer that has one: {', '.join(readers)}"
    found = f"{key}={value}, but nothing in this configuration reads it"
    return [Fault(key, found, expected, f"trainer=<one of them>, or leave {key} out")]


def _missing(key: str) -> Fault:
    return Fault(key, "no value", "one, it has no default", f"{key}=<value>")


def read_layers(overrides: Sequence[str], folders: Sequence[Path] = ()) -> list[tuple[Path, str]]:
    """The YAML files that these overrides compose, in rising order of precedence, each with where it is laid.

    The place is a dotted key, empty for the top level.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    words = force(overrides, read_menu(folders))
    use_folders(folders)
    world = GlobalHydra.instance()
    before = world.hydra
    world.clear()
    try:
        with _told(), initialize_config_dir(str(MENU), version_base="1.3", job_name="runner"):
            listed = world.hydra.config_loader.compute_defaults_list("config", words, RunMode.RUN).defaults
    finally:
        world.hydra = before
    roots = [*(Path(folder).resolve() for folder in folders), MENU]
    files = [(_first(roots, f"{entry.config_path}.yaml"), entry.package or "") for entry in listed]
    return [(file, place) for file, place in files if file]


def _first(roots: Sequence[Path], name: str) -> Path | None:
    return next((root / name for root in roots if (root / name).is_file()), None)
