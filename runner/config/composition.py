"""Command line -> one composed configuration. Hydra composes here, and nowhere else."""

import contextlib
import copy
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.config.adapter_rate import FACTOR_KEY, KEY, AdapterRate, apply_factor
from runner.config.choice import find_choice_faults, list_fault
from runner.config.experiment_file import read_experiment_file, stamp_files
from runner.config.hydra_errors import as_config_errors, not_global
from runner.config.limits import check_growth, read_yaml
from runner.config.menu import Options, read_menu, read_options, takes_one
from runner.config.override import (
    dotted_key,
    experiment_files,
    force,
    is_experiment_file,
    parse,
    set_values,
)
from runner.config.resolution import Composed, resolve
from runner.config.run_name import register_short_name
from runner.config.user_folder import use_folders
from runner.errors import ConfigError, Fault
from runner.io.files import MENU, shipped
from runner.io.temporary import temporarily, uncollected
from runner.schema.literal import to_list, to_text
from runner.schema.text import Node, select

if TYPE_CHECKING:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

MAX_RUNS = 16  # in a chain, each trained on from the one before
Starts = Mapping[str, str]
Stamps = tuple[tuple[str, int], ...]  # files, and when each was last written


def compose(
    overrides: Sequence[str], folders: Sequence[Path] = (), starts: Starts = MappingProxyType({})
) -> Composed:
    """The configuration that these overrides make, resolved; ConfigError has every fault at once.

    An option of the model may bring values for its own model, such as a learning rate. They are
    left out for any other model that was not trained from that one. ``starts`` maps the models that
    are not trained yet to those that they begin with.
    """
    with as_config_errors():
        cfg, choices = compose_unresolved(overrides, folders)
        rate = _multiply_rate(cfg, overrides, folders)
        composed = replace(resolve(cfg, list(overrides), choices), rate=rate)
        option = choices.get("model")
        path = str(select(composed.cfg, "model.path"))
        lines = _read_option_lines(f"model/{option}.yaml", folders)
        if option == "hub" or not lines or f"path: {path}" in lines:
            return composed
        option_cfg, _ = compose_unresolved([f"model={option}"], folders)
        own_path = str(option_cfg.model.get("path"))
        if _root_of(path, starts) == _root_of(own_path, starts):
            return composed

        words = [word for word in overrides if dotted_key(word) != "model"]
        words.append("model=hub")
        bare_cfg, choices = compose_unresolved(words, folders)
        bare_cfg.model = cfg.model
        rate = _multiply_rate(bare_cfg, words, folders)
        bare = replace(resolve(bare_cfg, list(overrides), choices), rate=rate)
        lost: dict[str, None] = {}
        for key, value, _ in differences(composed.cfg, bare.cfg):
            if key != "name":
                lost[f"{key.rpartition('.')[2]}={value}"] = None
        if not lost:
            return composed
        note = f"{path} is not the model of model={option}: left out are its {', '.join(lost)}"
        keys = set(map(dotted_key, overrides))
        if "model" in keys and "model.path" not in keys:  # an experiment sets the path
            note += f"; model.path={own_path} trains the model of model={option}"
        return replace(bare, note=note)


def _multiply_rate(
    cfg: "DictConfig", overrides: Sequence[str], folders: Sequence[Path]
) -> AdapterRate | None:
    """Multiply the learning rate by the factor of the adapter, if it is that of a trainer of ours.

    Any other was chosen for this run, or for the size of its model.
    """
    from omegaconf import OmegaConf

    has_factor = OmegaConf.select(cfg, FACTOR_KEY) is not None
    if not has_factor or KEY in map(dotted_key, overrides):
        return None
    if not _is_of_trainer(cfg, overrides, folders):
        return None
    return apply_factor(cfg, str(cfg.hydra.runtime.choices.get("peft")))


def _is_of_trainer(cfg: "DictConfig", overrides: Sequence[str], folders: Sequence[Path]) -> bool:
    """True where the learning rate is that of a file in our conf/trainer/."""
    # Of our options, those of trainers, models and experiments alone set one.
    choices = cfg.hydra.runtime.choices
    trainer = read_options("trainer").get(choices.get("trainer"), {})
    if trainer.get(KEY) and not folders:
        if cfg.get(KEY) != float(trainer[KEY]):
            return False
        model = read_options("model").get(choices.get("model"), {})
        if KEY not in model and not choices.get("experiment"):
            return True
    # Hydra tells which files it has composed, but that takes nearly as long as to compose them.
    menu = read_menu(folders)
    words = [word for word in overrides if dotted_key(word) in menu]
    file = _find_rate_file(tuple(words), tuple(folders), _read_stamps(folders, words))
    return file is not None and file.parent == MENU / "trainer"


@functools.lru_cache(maxsize=256)
def _find_rate_file(
    words: tuple[str, ...], folders: tuple[Path, ...], stamps: Stamps
) -> Path | None:
    """The file whose learning rate counts among those that these options compose."""
    for layer in reversed(read_layers(words, folders)):
        content = layer.experiment or read_yaml(layer.file) or {}
        if not layer.package and KEY in content:
            return layer.file
    return None


def _read_option_lines(name: str, folders: Sequence[Path]) -> list[str]:
    """The lines of an option's file, without blanks around them; none if it has no file."""
    for root in (*folders, MENU):
        file = Path(root, name)
        if file.is_file():
            return [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return []


def _root_of(path: str, starts: Starts) -> str:
    """The model that was there before any training, where a path may be that of a run's model."""
    for _ in range(MAX_RUNS):
        start = starts.get(path)
        if not start:
            folders = (Path(path), *Path(path).parents)
            runs = [folder for folder in folders if (folder / "status.json").is_file()]
            try:
                run = [*runs, Path(path)][0]
                start = str(read_yaml(run / "config.yaml")["model"]["path"])
            except (OSError, ConfigError, LookupError, TypeError):  # no run, or its config is lost
                break
        path = start
    return os.path.abspath(shipped(path))


def compose_unresolved(
    overrides: Sequence[str], folders: Sequence[Path] = ()
) -> "tuple[DictConfig, dict[str, str]]":
    """Hydra's config before any ``${...}`` is read, and the option of each group.

    Hydra composes the choices; values are laid on top, so that jobs of a sweep which differ in them
    are composed once.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    menu = read_menu(folders)
    ConfigError.refuse(find_choice_faults(parse(overrides), menu))
    parsed = parse(force(overrides, menu))
    values = _find_values(parsed, menu)
    with as_config_errors():
        cfg = copy.deepcopy(_compose_groups(parsed, values, folders))
        set_values(cfg, values)
    if cfg.get("experiment"):
        raise ConfigError(not_global(f"experiment/{cfg.hydra.runtime.choices.experiment}"))
    if folders:
        check_growth(OmegaConf.to_container(cfg, resolve=False))
    HydraConfig.instance().set_config(cfg)
    register_short_name()

    choices = dict(OmegaConf.to_container(cfg.hydra.runtime.choices))
    # Hydra reports no choice of a group that is given a list in the defaults list of a file.
    deleted = [override.key_or_group for override in parsed if override.is_delete()]
    groups = [group for group in menu if takes_one(group)]
    listed = [group for group in groups if group not in choices and group not in deleted]
    if listed:
        files = [layer.file for layer in read_layers(overrides, folders)]
        faults = []
        for group in listed:
            names = [file.stem for file in files if file.parent.name == group]
            faults.append(list_fault(group, names))
        raise ConfigError(faults)
    return cfg, choices


def _compose_groups(
    parsed: "Sequence[Override]", values: "Sequence[Override]", folders: Sequence[Path]
) -> "DictConfig":
    """The config that Hydra makes of all overrides but those values; others have it, too."""
    words = [override.input_line for override in parsed if override not in values]
    stamps = _read_stamps(folders, words)
    return _compose_choices(tuple(words), tuple(folders), stamps)


def _read_stamps(folders: Sequence[Path], words: Sequence[str]) -> Stamps:
    """The YAML files that words may compose; one that was written since is composed anew."""
    stamps = []
    for root in (*folders, MENU):
        for folder, _, names in os.walk(os.path.realpath(root)):
            for name in names:
                if name.endswith(".yaml"):
                    file = os.path.join(folder, name)
                    stamps.append((file, os.stat(file).st_mtime_ns))
    for file_name in experiment_files(words):
        stamps.extend(stamp_files(file_name).items())
    return tuple(sorted(stamps))


def _find_values(parsed: "Sequence[Override]", menu: Options) -> "list[Override]":
    """The overrides whose values can be laid on top of what the others compose."""
    values = []
    for override in parsed:
        if override.is_force_add() and not override.is_hydra_override():
            values.append(override)
    keys = [f"{override.key_or_group}." for override in values]
    for override in parsed:
        if not override.is_delete() or override.key_or_group in menu:
            continue
        deleted = f"{override.key_or_group}."
        if any(key.startswith(deleted) or deleted.startswith(key) for key in keys):
            return []  # the order in which they are typed matters
    return values


@functools.lru_cache(maxsize=256)
@uncollected()  # nearly all that is made stays
def _compose_choices(
    words: tuple[str, ...], folders: tuple[Path, ...], stamps: Stamps
) -> "DictConfig":
    """The config that Hydra makes of these words and of the YAML files with these ``stamps``."""
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    with _fresh_hydra(folders, words):
        cfg = hydra_compose("config", list(words), return_hydra_config=True)
    if not cfg.get("tracker") or "tracker" in cfg.hydra.runtime.choices:
        return cfg
    # A list of options, such as [wandb, mlflow]: Hydra would keep only the lists of the last file.
    layers = read_layers(words, folders)
    nodes = [read_yaml(layer.file) for layer in layers if layer.file.parent.name == "tracker"]
    targets = [to_text(node["_target_"]) for node in nodes if "_target_" in node]
    if len(targets) > 1:
        raise ConfigError(
            Fault(
                where="tracker",
                found=f"{len(targets)} callbacks: {', '.join(targets)}",
                expected="at most one with a _target_ in a list of trackers",
                fix="tracker=<one of them>, and callback.<name>._target_=... for the other",
            )
        )
    for key in ("report_to", "tags"):
        joined: dict[str, None] = {}
        for node in nodes:
            names = to_list(node.get(key) or [])
            joined |= dict.fromkeys(names)
        joined.pop("none", None)
        if joined:
            OmegaConf.update(cfg, f"tracker.{key}", list(joined), force_add=True)
    return cfg


@contextlib.contextmanager
def _fresh_hydra(folders: Sequence[Path], words: Sequence[str]) -> "Iterator[GlobalHydra]":
    """Hydra with these folders beside the menu, to compose these words.

    Afterwards it is again that of a sweeper or a launcher that called us.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    use_folders(folders, set(map(dotted_key, words)))
    hydra = GlobalHydra.instance()
    with (
        temporarily(hydra, hydra=None),
        initialize_config_dir(str(MENU), version_base="1.3", job_name="runner"),
    ):
        yield hydra


def as_yaml(overrides: Sequence[str], folders: Sequence[Path] = ()) -> str:
    """The text that ``--cfg job`` shows of these overrides."""
    from omegaconf import OmegaConf

    menu = read_menu(folders)
    parsed = parse(force(overrides, menu))
    values = _find_values(parsed, menu)
    composed = _compose_groups(parsed, values, folders)
    keys = [key for key in composed if key != "hydra"]
    cfg = OmegaConf.masked_copy(composed, keys)
    set_values(cfg, values)
    text: str = OmegaConf.to_yaml(cfg)
    return text


def call_hydra(
    task: Callable[[object], object],
    flags: Sequence[str],
    overrides: Sequence[str],
    folders: Sequence[Path],
) -> None:
    """Have Hydra call a task with what it composes, with every key forced.

    Hydra reads its words from ``sys.argv``.
    """
    from hydra import main as hydra_main

    use_folders(folders, set(map(dotted_key, overrides)))
    words = ["runner", *flags, *force(overrides, read_menu(folders))]
    with temporarily(sys, argv=words):
        hydra_main(version_base="1.3", config_path=str(MENU), config_name="config")(task)()


class Layer(NamedTuple):
    """A file that is composed."""

    file: Path
    package: str  # the key at which it is merged
    experiment: Node | None = None  # what it says, if it is an experiment named by its path


def read_layers(overrides: Sequence[str], folders: Sequence[Path] = ()) -> list[Layer]:
    """The files that these overrides compose, in ascending order of precedence."""
    from hydra.types import RunMode

    words = force(overrides, read_menu(folders))
    with as_config_errors(), _fresh_hydra(folders, words) as hydra:
        listed = hydra.config_loader().compute_defaults_list("config", words, RunMode.RUN).defaults
    roots = [Path(folder).resolve() for folder in folders]
    roots.append(MENU)
    layers = []
    chosen = set(map(dotted_key, words))
    for default in listed:
        path = str(default.config_path)
        files = [root / f"{path}.yaml" for root in roots if "/" in path or root == MENU]
        file = next(filter(Path.is_file, files), None)
        path = path.removeprefix("experiment/")
        if is_experiment_file(path):
            layers.append(Layer(Path(path), "", read_experiment_file(path, folders, chosen)))
        elif file:
            layers.append(Layer(file, default.package or ""))
    return layers


class Difference(NamedTuple):
    """A leaf in which two configs differ."""

    key: str
    first: Any
    second: Any


def differences(first: object, second: object, path: str = "") -> Iterator[Difference]:
    """Each leaf in which two configs differ.

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [Difference(key='a.b', first=1, second=3)]
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in {**first, **second}:
            inner_path = f"{path}.{key}" if path else str(key)
            yield from differences(first.get(key), second.get(key), inner_path)
    elif first != second:
        yield Difference(path, first, second)
