"""The user's own folders, of modules and of configs: within bounds, and without what would change Hydra itself.

A folder of ``--config-dir`` can come from anybody, and Hydra makes loggers, callbacks, launchers and search paths while
it composes, before any check of ``validate``.
"""

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from runner.config.limits import MAX_DEPTH, MAX_VALUES, check_size, parse_yaml
from runner.config.menu import takes_one
from runner.config.override import list_fault
from runner.errors import ConfigError, EnvironmentFault, Fault, fault
from runner.io.filetype import undecodable
from runner.schema.text import short_text, walk

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.plugins.config_source import ConfigResult

FILE_VALUES = 20  # that a file counts for beside its own, since each is read and merged several times
CHOSEN = re.compile(r"(override )?/?hydra/sweeper(/\w+)*")  # what a file may choose of Hydra's own settings
# What a file may say to a sweeper: others name a function that it calls, or a database.
OF_SWEEPERS = (
    *("params", "direction", "n_trials", "n_jobs", "max_batch_size", "max_failure_rate", "sampler", "study_name"),
    "search_space",
)


def add_working_folder() -> None:
    """Have the user's own modules in the working folder found, as ``python -m`` does.

    A runner.py among them comes last, or whatever starts another Python would find it instead of this package. Raises
    EnvironmentFault where the folder was deleted meanwhile, and on a system that no command of ours works on.
    """
    if not hasattr(os, "fork"):  # as a run of a sweep is, and what nothing could stop inside of this process
        raise EnvironmentFault(fault("config.no_fork", system=platform.system()))
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise EnvironmentFault(fault("config.no_working_folder")) from None
    if not {"", here} & set(sys.path):
        sys.path.insert(len(sys.path) if os.path.exists("runner.py") else 0, here)


def use_folders(folders: Sequence[Path]) -> None:
    """Have Hydra search the user's own config folders before the menu, so that a same-named option of theirs wins."""
    _plugin().folders, _plugin().known = [Path(folder).resolve() for folder in folders], {}


def _count_values(name: str, above: tuple[str, ...], known: dict[str, int]) -> int:
    """The number of values that a file and its lists of defaults lead to; ConfigError where that has no end."""
    if name in above or len(above) > MAX_DEPTH:
        found = " -> ".join((*above[above.index(name) if name in above else -3 :], name))
        raise ConfigError(Fault("defaults", found, "lists of defaults with an end", "mend one of them"))
    if name not in known:
        file = next(filter(os.path.isfile, (root / f"{name}.yaml" for root in _plugin().folders)), None)
        whole = _read_keys(file) if file else {}
        named = _find_named(name, file, whole) if file else ()
        count = FILE_VALUES + sum(1 for _ in walk(whole))
        for each in named:
            count += _count_values(each, (*above, name), known)
            if count > MAX_VALUES:
                raise ConfigError(fault("config.many_defaults", file=file, most=MAX_VALUES, each=FILE_VALUES))
        known[name] = count
    return known[name]


def _read_keys(file: Path) -> Mapping[str, Any]:
    check_size(file)
    text = file.read_bytes()
    try:
        text.decode("utf-8-sig")
    except UnicodeDecodeError:
        finding = undecodable(text, str(file))
        raise ConfigError(Fault(str(file), finding.found, "YAML in UTF-8", finding.fix)) from None
    if (whole := parse_yaml(text, str(file))) is not None and not isinstance(whole, Mapping):
        found = "a list" if isinstance(whole, list) else f"the text {str(whole)[:40]!r}"
        raise ConfigError(Fault(str(file), found, "keys with values", "key: value, one in each line"))
    return whole or {}


def _find_named(name: str, file: Path, content: Mapping[str, Any]) -> Iterator[str]:
    entries, own = content.get("defaults", []), f"{name.rpartition('/')[0]}/".lstrip("/")
    for entry in entries if isinstance(entries, list) else [None]:
        (group, options), *more = entry.items() if isinstance(entry, Mapping) and entry else [("", entry)]
        words = options if isinstance(options, list) else [options or ("" if group else options)]
        if more or not all(isinstance(word, str) for word in (group, *words)):
            raise ConfigError(fault("config.odd_defaults", file=file, entry=short_text(entry or entries)))
        is_override, group = "override " in group, re.sub(r"^(optional |override )+|@.*$", "", group)
        whole = group.lstrip("/") if group.startswith("/") else own + group
        if isinstance(options, list) and takes_one(whole) and not is_override:  # such a list is refused where it counts
            lines = enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1)
            line = next((number for number, text in lines if f"{group}:" in text or f"{group}@" in text), 1)
            listed = list_fault(whole, options)
            fix = f"{'override ' * bool(own)}{group}: {[*options, '<one of them>'][0]}"
            fix = listed.fix if whole == "weight" else fix
            raise ConfigError(replace(listed, where=f"{file}:{line}", fix=fix))
        for word in map(str, words):
            path = f"{group}/{word.partition('@')[0]}" if group else word.partition("@")[0]
            yield path.lstrip("/") if path.startswith("/") else own + path


@cache
def _plugin() -> Any:
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserSource(FileConfigSource):
        @staticmethod
        def scheme() -> str:
            return "user"

        def load_config(self, config_path: str) -> "ConfigResult":
            name = config_path.removesuffix(".yaml")
            file = Path(self.path, f"{name}.yaml")
            _count_values(name, (), _plugin().known)
            try:
                loaded = super().load_config(config_path)
            except ValueError as error:  # of a comment like # @package
                raise ConfigError(fault("config.odd_package", file=file, error=error)) from None
            # A byte order mark keeps Hydra from seeing the package that the first line names.
            if found := re.match(r"\ufeff\s*#\s*@package\s+(\S+)", file.read_text(encoding="utf-8")):
                loaded.header["package"] = found[1]
            ConfigError.refuse(_changes_hydra(config_path, file, loaded))
            return loaded

    class UserFolders(SearchPathPlugin):
        folders: ClassVar[list[Path]] = []
        known: ClassVar[dict[str, int]] = {}

        def manipulate_search_path(self, search_path: "ConfigSearchPath") -> None:
            for folder in reversed(self.folders):
                search_path.prepend("user", f"user://{folder}", anchor="main")

    Plugins.instance().register(UserSource)
    Plugins.instance().register(UserFolders)
    return UserFolders


def _changes_hydra(name: str, file: Path, loaded: "ConfigResult") -> Iterator[Fault]:
    from omegaconf import OmegaConf

    if name.lstrip("/").startswith("hydra/") or "hydra" in str(loaded.header.get("package")).split("."):
        yield fault("config.changes_hydra", file=file, found="it is a setting of Hydra's own")
    config = found if isinstance(found := OmegaConf.to_container(loaded.config, resolve=False), dict) else {}
    for entry in config.get("defaults") or ():
        text = " ".join(map(str, entry)) if isinstance(entry, Mapping) else str(entry)
        if "hydra" in text and not CHOSEN.fullmatch(text):
            yield fault("config.changes_hydra", file=file, found=f"defaults: {text}")
    hydra = config.get("hydra", {})
    for key, entry in hydra.items() if isinstance(hydra, Mapping) else [("", hydra)]:
        if key not in ("sweeper", "mode") or "_target_" in str(entry):
            yield fault("config.changes_hydra", file=file, found=f"hydra.{key}")
        elif key == "sweeper":
            yield from _changes_sweeper(file, entry)


def _changes_sweeper(file: Path, sweeper: object) -> Iterator[Fault]:
    for key, value in sweeper.items() if isinstance(sweeper, Mapping) else ():
        if key not in OF_SWEEPERS:
            found = f"hydra.sweeper.{key}, which may run something or lead elsewhere"
            fix = f"hydra.sweeper.{key}=<value> on the command line  (if you trust it)"
            yield Fault(str(file), found, f"some of {', '.join(OF_SWEEPERS)}", fix)
        axes = value if key == "params" and isinstance(value, Mapping) else ()
        for axis in axes:
            if re.match(r"[+~]*hydra\b", str(axis)):
                found = f"hydra.sweeper.params: {axis}"
                yield fault("config.changes_hydra", file=file, found=found)
