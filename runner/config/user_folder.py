"""The user's own config folders, as Hydra reads them: within bounds, and without what would change Hydra itself.

A folder of ``--config-dir`` can come from anybody. ``validate`` checks what a run may be; but loggers, callbacks,
launchers and search paths are made by Hydra while it composes, before any check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from runner.config.limits import check_size, parse_yaml
from runner.errors import ConfigError, Fault
from runner.io.filetype import undecodable

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.plugins.config_source import ConfigResult

OFFERED = "hydra.sweeper and hydra.mode"
# What a file may choose of Hydra's own settings.
CHOSEN = re.compile(r"(override )?/?hydra/sweeper(/\w+)*")


def use_folders(folders: Sequence[Path]) -> None:
    """Have Hydra search the user's own config folders before the menu, so that a same-named option of theirs wins."""
    _plugin().folders = [Path(folder).resolve() for folder in folders]


def find_circle() -> list[str]:
    """Files of the user's own folders whose defaults lists name one another in a circle; empty where none do."""
    roots = _plugin().folders
    files = {file.relative_to(root).with_suffix("").as_posix(): file for root in roots for file in root.rglob("*.yaml")}
    read = {name: parse_yaml(file.read_bytes(), str(file)) for name, file in files.items()}
    named = {name: sorted({*_find_named(name, whole)} & files.keys()) for name, whole in read.items()}
    try:
        TopologicalSorter(named).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def _find_named(name: str, whole: object) -> Iterator[str]:
    """The files that the defaults list of a file names, whichever of its forms an entry has."""
    own = f"{name.rpartition('/')[0]}/".lstrip("/")
    for entry in (whole.get("defaults") or ()) if isinstance(whole, Mapping) else ():
        pairs = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        for group, option in pairs:
            group = re.sub(r"^(optional |override )+|@.*$", "", str(group))
            for word in option if isinstance(option, list) else [option]:
                path = f"{group}/{str(word).partition('@')[0]}" if group else str(word).partition("@")[0]
                yield path.lstrip("/") if path.startswith("/") else own + path


@cache
def _plugin() -> Any:
    """The plugin that Hydra asks for its search path; it stays registered for the life of the process."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserSource(FileConfigSource):
        @staticmethod
        def scheme() -> str:
            return "user"

        def load_config(self, config_path: str) -> ConfigResult:
            file = Path(self.path, config_path if config_path.endswith(".yaml") else f"{config_path}.yaml")
            if file.is_file():
                _check_keys(file)
            loaded = super().load_config(config_path)
            # A byte order mark keeps Hydra from seeing the package that the first line names.
            with open(file, encoding="utf-8") as text:
                found = re.match(r"\ufeff\s*#\s*@package\s+(\S+)", text.readline())
            if found:
                loaded.header["package"] = found[1]
            ConfigError.refuse(_changes_hydra(config_path, file, loaded))
            return loaded

    class UserFolders(SearchPathPlugin):
        folders: ClassVar[list[Path]] = []

        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in reversed(self.folders):
                search_path.prepend("user", f"user://{folder}", anchor="main")

    Plugins.instance().register(UserSource)
    Plugins.instance().register(UserFolders)
    return UserFolders


def _check_keys(file: Path) -> None:
    """Raise ConfigError for a file that is no YAML, or holds something else than keys with values."""
    check_size(file)
    text = file.read_bytes()
    try:
        text.decode("utf-8-sig")
    except UnicodeDecodeError:
        finding = undecodable(text, str(file))
        raise ConfigError(Fault(str(file), finding.found, "YAML in UTF-8", finding.fix)) from None
    whole = parse_yaml(text, str(file))
    if whole is not None and not isinstance(whole, Mapping):
        found = "a list" if isinstance(whole, list) else f"the text {str(whole)[:40]!r}"
        raise ConfigError(Fault(str(file), found, "keys with values", "key: value, one in each line"))


def _changes_hydra(name: str, file: Path, loaded: ConfigResult) -> Iterator[Fault]:
    """A fault for each way in which a file would change more of Hydra than the axes of a sweep."""
    from omegaconf import OmegaConf

    if name.lstrip("/").startswith("hydra/") or str(loaded.header.get("package", "")).startswith("hydra"):
        yield _fault(file, "it is a setting of Hydra's own")
    config = OmegaConf.to_container(loaded.config, resolve=False)
    config = config if isinstance(config, dict) else {}
    for entry in config.get("defaults") or ():
        text = " ".join(map(str, entry)) if isinstance(entry, Mapping) else str(entry)
        if "hydra" in text and not CHOSEN.fullmatch(text):
            yield _fault(file, f"defaults: {text}")
    hydra = config.get("hydra")
    for key, entry in hydra.items() if isinstance(hydra, Mapping) else [("", hydra)] if hydra else ():
        if key not in ("sweeper", "mode") or "_target_" in str(entry):
            yield _fault(file, f"hydra.{key}")


def _fault(file: Path, found: str) -> Fault:
    return Fault(str(file), found, f"of Hydra's settings only {OFFERED}", "leave it out, or type it")
