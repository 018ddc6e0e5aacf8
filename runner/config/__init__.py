"""Command line -> one composed, resolved, plain configuration. Hydra is met here and nowhere else."""

import contextlib
import copy
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runner.config.batch import spread_batch
from runner.config.limits import check_growth, read_yaml, yaml_fault
from runner.config.machines import processes_here, processes_of
from runner.config.menu import GROUPS, LISTED, OPTIONAL, SEVERAL, read_menu, takes_one
from runner.config.override import dotted_key, find_choice_faults, force, list_fault, parse, typed_keys
from runner.config.rows import write_out_functions, write_out_rows
from runner.config.speed import choose_speed
from runner.config.user_folder import use_folders
from runner.errors import ConfigError, EnvironmentFault, Fault, fault, to_fault
from runner.io.distribution import to_install
from runner.io.files import MENU, shipped
from runner.io.temporary import temporarily
from runner.schema.text import nearest, nodes, read_tables, scalars, select

if TYPE_CHECKING:
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig

MAX_RUNS = 16  # one after the other, each trained on from the one before
NO_VALUE = "no value"  # of a key that has no default
NUM_PROCESSES = "launcher.num_processes"
Starts = Mapping[str, str]
Stamps = tuple[tuple[str, int], ...]  # files, and when each was last written


@dataclass(frozen=True)
class Composed:
    """A checked-in or typed experiment, resolved: plain dicts, lists and scalars only.

    ``overrides`` are those that the user typed, of a stage those for it; ``words`` are all that compose it, those of
    the experiment's file too. ``choices`` maps each group to its option. ``command`` are the arguments that make this
    run, with the other stages of its experiment. ``note`` says what is left out of the option of the model, where
    another one is trained, ``speed`` what was set because of ``speed=``, and what was not. ``untyped`` are the keys of
    those overrides that no user typed, but the file of a sweep.
    """

    cfg: dict[str, Any]
    overrides: list[str]
    choices: dict[str, str] = field(default_factory=dict)
    stage: str = ""
    words: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    note: str = ""
    speed: list[str] = field(default_factory=list)
    untyped: frozenset[str] = frozenset()

    @property
    def typed(self) -> set[str]:
        """The dotted keys that the user typed, or a sweep that was typed."""
        return typed_keys(self.overrides)

    @property
    def machines(self) -> int:
        """The machines that are each given the same command; other launchers reach theirs themselves."""
        return processes_of(self.cfg) // processes_here(self.cfg) if self.choices.get("launcher") == "accelerate" else 1


def compose(overrides: Sequence[str], folders: Sequence[Path] = (), starts: Starts = MappingProxyType({})) -> Composed:
    """The configuration that these overrides make, resolved; raises ConfigError with every fault at once.

    What an option of the model brings for its own one, such as a learning rate, is left out for any other that does not
    come from it by training. ``starts`` are the models that runs begin with which are not there yet, by their own.
    """
    with _as_config_errors():
        cfg, choices = compose_unresolved(overrides, folders)
        composed = resolve(cfg, list(overrides), choices)
        option, path = choices.get("model"), str(select(composed.cfg, "model.path"))
        files = [file for root in (*folders, MENU) if (file := Path(root, "model", f"{option}.yaml")).is_file()]
        lines = files[0].read_text(encoding="utf-8").splitlines() if files else ()
        if option == "hub" or not lines or f"path: {path}" in map(str.strip, lines):  # as for nearly all
            return composed
        own = compose_unresolved([f"model={option}"], folders)[0].model.get("path")
        if _root_of(path, starts) == _root_of(str(own), starts):
            return composed
        words = [word for word in overrides if dotted_key(word) != "model"]
        bare, choices = compose_unresolved([*words, "model=hub"], folders)
        bare.model = cfg.model
        plain = resolve(bare, list(overrides), choices)
        changed = [(key, value) for key, value, _ in differences(composed.cfg, plain.cfg) if key != "name"]
        lost = ", ".join(dict.fromkeys(f"{key.rpartition('.')[2]}={value}" for key, value in changed))
        note = f"{path} is another model than that of model={option}: without its {lost}"
        return replace(plain, note=note) if lost else composed


def _root_of(path: str, starts: Starts) -> str:
    """The model that was there before any training: where a path is in the folder of a run, what that began with."""
    for _ in range(MAX_RUNS):
        folders = (folder for folder in (Path(path), *Path(path).parents) if (folder / "status.json").is_file())
        with contextlib.suppress(OSError, ConfigError, LookupError, TypeError):  # of a folder whose config is lost
            path = starts.get(path) or str(read_yaml(next(folders, Path(path)) / "config.yaml")["model"]["path"])
    return os.path.abspath(shipped(path))


def compose_unresolved(overrides: Sequence[str], folders: Sequence[Path] = ()) -> "tuple[DictConfig, dict[str, str]]":
    """Hydra's config before any ``${...}`` is read, and the option of each group.

    Hydra composes the choices; values are laid on top, so that jobs of a sweep which differ in them are composed once.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    menu = read_menu(folders)
    ConfigError.refuse(find_choice_faults(parse(overrides), menu))
    parsed = parse(force(overrides, menu))
    values = [override for override in parsed if override.is_force_add() and not override.is_hydra_override()]
    deleted = [f"{key}." for override in parsed if override.is_delete() and (key := override.key_or_group) not in menu]
    given = [f"{override.key_or_group}." for override in values]
    if any(key.startswith(cut) or cut.startswith(key) for cut in deleted for key in given):
        values = []  # in what order they are typed matters
    choices = tuple(override.input_line for override in parsed if override not in values)
    files = [file for root in (*folders, MENU) for file in sorted(Path(root).resolve().rglob("*.yaml"))]
    written = tuple((str(file), file.stat().st_mtime_ns) for file in files)
    with _as_config_errors():
        cfg = copy.deepcopy(_compose_choices(choices, tuple(folders), written))
        for override in values:
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True, force_add=True)
    if cfg.get("experiment"):
        name = f"experiment/{cfg.hydra.runtime.choices.experiment}"
        raise ConfigError(to_fault(read_tables(__file__)["not_global"], file=name))
    if folders:
        check_growth(OmegaConf.to_container(cfg, resolve=False))
    HydraConfig.instance().set_config(cfg)
    chosen = dict(OmegaConf.to_container(cfg.hydra.runtime.choices))
    # Hydra does not report the choice of a group that was given a list in the defaults list of a file.
    known = {*chosen, *(override.key_or_group for override in parsed if override.is_delete())}
    if unknown := sorted(path.name for path in MENU.iterdir() if takes_one(path.name) and path.name not in known):
        layers = read_layers(overrides, folders)
        lists = {group: [file.stem for file, _ in layers if file.parent.name == group] for group in unknown}
        raise ConfigError(list_fault(group, names) for group, names in lists.items())
    return cfg, chosen


def as_yaml(overrides: Sequence[str], folders: Sequence[Path] = ()) -> str:
    """The text that ``--cfg job`` shows of these overrides."""
    from omegaconf import OmegaConf

    cfg, _ = compose_unresolved(overrides, folders)
    return OmegaConf.to_yaml(OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"]))


def call_hydra(
    task: Callable[[object], object], flags: Sequence[str], overrides: Sequence[str], folders: Sequence[Path]
) -> None:
    """Have Hydra call a task with what it composes, with every key forced; it reads its words from ``sys.argv``."""
    from hydra import main as hydra_main

    use_folders(folders)
    with temporarily(sys, argv=["runner", *flags, *force(overrides, read_menu(folders))]):
        hydra_main(version_base="1.3", config_path=str(MENU), config_name="config")(task)()


@functools.lru_cache(maxsize=256)
def _compose_choices(words: tuple[str, ...], folders: tuple[Path, ...], written: Stamps) -> "DictConfig":
    """The config that Hydra makes of these words and of the YAML files as they were ``written``."""
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    with _fresh_hydra(folders):
        cfg = hydra_compose("config", list(words), return_hydra_config=True)
    if cfg.get("tracker") and "tracker" not in cfg.hydra.runtime.choices:  # a list of options, as [wandb, mlflow]
        files = [read_yaml(file) for file, _ in read_layers(words, folders) if file.parent.name == "tracker"]
        for key in ("report_to", "tags"):  # of which the last file's would be the only ones
            lists = [entry if isinstance(entry, list) else [entry] for file in files if (entry := file.get(key))]
            if joined := list(dict.fromkeys(name for entry in lists for name in entry if name != "none")):
                OmegaConf.update(cfg, f"tracker.{key}", joined, force_add=True)
    return cfg


@contextlib.contextmanager
def _fresh_hydra(folders: Sequence[Path]) -> "Iterator[GlobalHydra]":
    """Hydra with these folders beside the menu; afterwards it is again that of a sweeper or launcher that called us."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    use_folders(folders)
    hydra = GlobalHydra.instance()
    with temporarily(hydra, hydra=None), initialize_config_dir(str(MENU), version_base="1.3", job_name="runner"):
        yield hydra


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        yield
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(_composition_fault(error)) from None
    except RecursionError:
        raise ConfigError(fault("config.many_levels")) from None


def _composition_fault(error: Exception) -> Fault:
    """The fault of an error that came up while a configuration was composed or its references followed."""
    if mark := getattr(error, "problem_mark", None):
        return yaml_fault(error, mark.name)
    text = " ".join(str(error).split())
    key = re.search(r"full_key: (\S+)", text)
    where, text = key[1] if key else "command line", re.sub(r" full_key: .*", "", text)
    tables = read_tables(__file__)
    if found := re.search(tables["missing_default"], text):
        file, name, options = found.groups()
        group, _, option = name.rpartition("/")
        if package := tables["plugins"].get(option):
            raise EnvironmentFault(fault("config.no_plugin", group=group, package=package, fix=to_install(package)))
        if group in ("hydra/launcher", "hydra/sweeper"):
            known = str(options).split()
            near = [*nearest(option, known), *known][0]
            return Fault(group, f"no plugin {option!r} is installed", f"one of {', '.join(known)}", f"{group}={near}")
        if file == "config":
            return fault("config.no_option", group=group, name=name, options=options)
        expected = f"one of {options}" if options else "a group and an option that are there"
        return Fault(f"{file}.yaml", f"its defaults name {name}, and there is none", expected, f"mend {file}.yaml")
    said = ((beats, re.search(pattern, text)) for pattern, beats in tables["messages"].items())
    return next(to_fault(beats, **found.groupdict(), where=where, text=text) for beats, found in said if found)


def _with_words(value: Any) -> Any:
    """The value with each key ``on`` or ``off`` as that word, which YAML reads as true or false."""
    if isinstance(value, list):
        return list(map(_with_words, value))
    if not isinstance(value, dict):
        return value
    return {("on" if key else "off") if isinstance(key, bool) else key: _with_words(v) for key, v in value.items()}


def resolve(cfg: "DictConfig", overrides: list[str], choices: dict[str, str] | None = None) -> Composed:
    """A Hydra config as plain values; every key that still waits for one is a fault."""
    from omegaconf import OmegaConf, flag_override

    cfg = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    check_growth(unread := OmegaConf.to_container(cfg, resolve=False))
    trainer, faults = (choices or {}).get("trainer"), list[Fault]()
    texts = [entry for _, entry in scalars(unread) if isinstance(entry, str)]
    for key in ("learning_rate", "kl_coef"):  # set although nothing reads it: no trainer, or not any more
        reference = f"${{{key}}}"
        if unread.get(key) is None or any(reference in text for text in texts):
            continue
        files = [path for path in sorted(MENU.glob("trainer/*.yaml")) if reference in path.read_text("utf-8")]
        readers = {path.stem: path for path in files}
        if trainer not in readers:
            faults.append(fault("config.read_by_nothing", key=key, readers=", ".join(readers)))
        elif key in map(dotted_key, overrides):  # else what is typed wins over what the option brings: no fault
            place = next(path for path, entry in scalars(read_yaml(readers[trainer])) if entry == reference)
            faults.append(fault("config.given_twice", key=key, place=place))
    gone = [key for key in ("name", "output_root", "seed") if choices and key not in cfg]  # else it is a part of one
    faults += [Fault(key, "deleted, and every run needs it", "a value", f"leave ~{key} out") for key in gone]
    missing = sorted(key for key, value in scalars(unread) if value == "???")
    faults += [Fault(key, NO_VALUE, "one, it has no default", _find_example(key, choices or {})) for key in missing]
    ConfigError.refuse(faults)
    OmegaConf.clear_resolver("oc.create")  # it reads YAML of others, whose aliases nobody has counted
    with _as_config_errors(), flag_override(cfg, "struct", False):
        plain = _with_words(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    # A group that was deleted is a group without a part, and so is an entry that was set to null.
    parts = {group: plain.get(group) for group in GROUPS if group in plain or group not in OPTIONAL}
    for group in SEVERAL:
        if isinstance(entries := parts[group] or {}, dict):  # anything else is for the check
            parts[group] = {name: entry for name, entry in entries.items() if entry is not None} or None
    composed = Composed(plain | parts, overrides, choices or {})
    for group in (group for group in parts if composed.choices.get(group) == "none" and group not in LISTED):
        is_left = isinstance(parts[group], dict) and not any(nodes(parts[group]))
        if is_left and not any(key.startswith(f"{group}.") for key in composed.typed):
            composed.cfg[group] = None  # what an experiment sets of its own option says nothing of none
    launcher = composed.cfg["launcher"]  # the key must know the processes that somebody else has started
    if isinstance(launcher, dict) and launcher.get("num_processes") == 1 and NUM_PROCESSES not in composed.typed:
        launcher["num_processes"] = world_size()
    write_out_rows(composed.cfg.get("dataset"))
    write_out_functions(composed.cfg.get("trainer"))
    chosen, left = choose_speed(composed.cfg, composed.cfg.pop("speed", None) or {})
    spread_batch(composed.cfg, composed.typed)
    return replace(composed, speed=chosen + left)


def _find_example(key: str, choices: Mapping[str, str]) -> str:
    """The word for a key in the line with which its option says how it is run, or another of its group."""
    files = sorted(MENU.glob("*/*.yaml"), key=lambda file: (file.stem != choices.get(file.parent.name), file))
    lines = [line for file in files for line in re.findall("^# run: (.*)", file.read_text("utf-8"), re.MULTILINE)]
    words = (word for line in lines for word in shlex.split(line))
    return next((shlex.quote(word) for word in words if dotted_key(word) == key), f"{key}=<value>")


def world_size() -> int:
    """The number of processes that torchrun or its like has started together, of which this is one; else 1."""
    return _read_count("WORLD_SIZE", 1)


def rank() -> int:
    """The number of this process among those that were started together."""
    _read_count("LOCAL_RANK", 0)  # accelerate reads it, whatever the world
    return _read_count("RANK", 0) if world_size() > 1 else 0


def _read_count(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < default:
        raise EnvironmentFault(Fault(name, repr(text), "a whole number, as torchrun sets it", f"unset {name}"))
    return int(text)


def read_layers(overrides: Sequence[str], folders: Sequence[Path] = ()) -> list[tuple[Path, str]]:
    """The YAML files that these overrides compose, in rising order of precedence, each with its package."""
    from hydra.types import RunMode

    words = force(overrides, read_menu(folders))
    with _as_config_errors(), _fresh_hydra(folders) as hydra:
        listed = hydra.config_loader().compute_defaults_list("config", words, RunMode.RUN).defaults
    roots = [*(Path(folder).resolve() for folder in folders), MENU]
    places = [[root / f"{entry.config_path}.yaml" for root in roots] for entry in listed]
    files = [next(filter(Path.is_file, each), None) for each in places]
    return [(file, entry.package or "") for file, entry in zip(files, listed, strict=True) if file]


def differences(first: object, second: object, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each leaf where two configs differ, as (dotted key, its first value, its second value).

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *(key for key in second if key not in first)]:
            yield from differences(first.get(key), second.get(key), f"{path}.{key}" if path else str(key))
    elif first != second:
        yield path, first, second
