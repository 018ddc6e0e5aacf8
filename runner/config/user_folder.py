"""The user's own folders of configs, within limits and without power over Hydra.

A folder of ``--config-dir``, or the file of an experiment, can come from anybody, and Hydra makes
loggers, callbacks, launchers and search paths while it composes, before any check of ``validate``.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from runner.config.choice import list_fault
from runner.config.experiment_file import read_experiment_file, read_mapping
from runner.config.limits import MAX_DEPTH, MAX_VALUES
from runner.config.menu import takes_one
from runner.config.override import is_experiment_file
from runner.errors import ConfigError, Fault
from runner.schema.literal import to_list
from runner.schema.text import Node, short_text, walk

if TYPE_CHECKING:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.plugins.config_source import ConfigResult

# Counted for a file beside its own values, since each file is read and merged several times.
FILE_VALUES = 20
OF_EXPERIMENTS = "experiment/"  # begins the name by which Hydra asks for an experiment
# The settings of Hydra's own that a file may choose.
CHOSEN = re.compile(r"(override )?/?hydra/sweeper(/\w+)*")
# The keys that a file may set of a sweeper: others name a function that it calls, or a database.
OF_SWEEPERS = (
    "params",
    "direction",
    "n_trials",
    "n_jobs",
    "max_batch_size",
    "max_failure_rate",
    "sampler",
    "study_name",
    "search_space",
)


def use_folders(folders: Sequence[Path], chosen: Collection[str] = ()) -> None:
    """Have Hydra search the user's own config folders before the menu.

    A same-named option of theirs wins. ``chosen`` are the groups of which the command line chooses
    an option, whatever the config.yaml of a run says of them.
    """
    plugin = _plugin()
    plugin.folders = [Path(folder).resolve() for folder in folders]
    plugin.chosen = chosen
    plugin.counts = {}


# --- How much a folder stands for -----------------------------------------------------------------
def _count_values(name: str, above: tuple[str, ...], counts: dict[str, int]) -> int:
    """The number of values that a file and its lists of defaults lead to.

    Raises ConfigError if these lists have no end. ``counts`` are those of the files so far.
    """
    if name in above or len(above) > MAX_DEPTH:
        start = -3
        if name in above:
            start = above.index(name)
        circle = (*above[start:], name)
        raise ConfigError(
            Fault(
                where="defaults",
                found=" -> ".join(circle),
                expected="lists of defaults that end",
                fix="mend one of them",
            )
        )
    if name in counts:
        return counts[name]
    file, content = _find_content(name)
    count = FILE_VALUES
    if file:
        count += sum(1 for _ in walk(content))
        for default in _find_defaults(name, file, content):
            count += _count_values(default, (*above, name), counts)
            if count > MAX_VALUES:
                total = f"more than {MAX_VALUES:,} values"
                raise ConfigError(
                    Fault(
                        where=str(file),
                        found=f"defaults that lead to {total}, {FILE_VALUES} for each file",
                        expected="what a person could have written",
                        fix="fewer of them",
                    )
                )
    counts[name] = count
    return count


def _find_content(name: str) -> tuple[Path | None, Node]:
    """The file of the user's that Hydra means by a name, if any, and the keys in it."""
    plugin = _plugin()
    path = name.removeprefix(OF_EXPERIMENTS)
    if path != name and is_experiment_file(path):
        return Path(path), read_experiment_file(path, plugin.folders, plugin.chosen)
    for root in plugin.folders:
        file = root / f"{name}.yaml"
        if file.is_file():
            return file, read_mapping(file)
    return None, {}


def _find_defaults(name: str, file: Path, content: Node) -> Iterator[str]:
    """The names of the files that the defaults list of a file names."""
    defaults = content.get("defaults", [])
    entries = defaults if isinstance(defaults, list) else [None]
    folder = f"{name.rpartition('/')[0]}/".lstrip("/")
    for default in entries:
        pairs: list[tuple[str, Any]] = [("", default)]
        if isinstance(default, Mapping) and default:
            pairs = list(default.items())
        group, options = pairs[0]
        if group and not options and not isinstance(options, list):
            options = ""
        words = to_list(options)
        are_words = all(isinstance(word, str) for word in (group, *words))
        if len(pairs) > 1 or not are_words:
            raise ConfigError(
                Fault(
                    where=str(file),
                    found=f"defaults: {short_text(default or defaults)}",
                    expected="a list such as [/peft: lora, _self_]",
                    fix="mend it, or leave it out",
                )
            )
        is_override = "override " in group
        group = re.sub(r"^(optional |override )+|@.*$", "", group)
        full_group = group.lstrip("/") if group.startswith("/") else folder + group
        if isinstance(options, list) and not is_override and takes_one(full_group):
            raise ConfigError(_file_list_fault(file, group, full_group, options, bool(folder)))
        for word in words:
            path = word.partition("@")[0]
            if group:
                path = f"{group}/{path}"
            yield path.lstrip("/") if path.startswith("/") else folder + path


def _file_list_fault(
    file: Path, group: str, full_group: str, options: list[str], is_inner: bool
) -> Fault:
    """The fault of a defaults list in a file with several options of a group that takes one.

    Such a list that overrides another is refused where it counts.
    """
    line = 1
    for number, text in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), 1):
        if f"{group}:" in text or f"{group}@" in text:
            line = number
            break
    fault = list_fault(full_group, options)
    fix = fault.fix
    if full_group != "weight":
        override = "override " if is_inner else ""
        first = options[0] if options else "<one of them>"
        fix = f"{override}{group}: {first}"
    return replace(fault, where=f"{file}:{line}", fix=fix)


# --- What a file may say to Hydra -----------------------------------------------------------------
def _experiment_source() -> Any:
    """The plugin by which Hydra reads the file of an experiment that is named by its path."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import OmegaConf

    class ExperimentFiles(FileConfigSource):  # type: ignore[misc]
        @staticmethod
        def scheme() -> str:
            return "path"

        def is_group(self, config_path: str) -> bool:
            return False

        def is_config(self, config_path: str) -> bool:
            path = config_path.removeprefix(OF_EXPERIMENTS)
            return path != config_path and is_experiment_file(path)

        def load_config(self, config_path: str) -> "ConfigResult":
            """The experiment that a file of the user's holds, as one of the menu."""
            _count_values(config_path, (), _plugin().counts)
            file, content = _find_content(config_path)
            loaded = ConfigResult(
                config=OmegaConf.create(dict(content)),
                path=self.full_path(),
                provider=self.provider,
                header={"package": "_global_"},
            )
            ConfigError.refuse(_find_hydra_faults(config_path, Path(str(file)), loaded))
            return loaded

    return ExperimentFiles


@cache
def _plugin() -> Any:
    """The plugin by which Hydra finds the user's folders, which are its attribute, registered."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserSource(FileConfigSource):  # type: ignore[misc]
        @staticmethod
        def scheme() -> str:
            return "user"

        def is_config(self, config_path: str) -> bool:
            # The conf/ of another application of Hydra's has a config.yaml that is none of ours.
            return "/" in config_path and bool(super().is_config(config_path))

        def load_config(self, config_path: str) -> "ConfigResult":
            """An option of the user's, with faults where Hydra would raise errors of its own."""
            name = config_path.removesuffix(".yaml")
            file = Path(self.path, f"{name}.yaml")
            _count_values(name, (), _plugin().counts)
            try:
                loaded = super().load_config(config_path)
            except ValueError as error:  # of a comment like # @package
                raise ConfigError(
                    Fault(
                        where=str(file),
                        found=str(error),
                        expected="# @package and one word",
                        fix="mend the comment in front",
                    )
                ) from None
            # A byte order mark keeps Hydra from seeing the package that the first line names.
            package = re.match(r"\ufeff\s*#\s*@package\s+(\S+)", file.read_text(encoding="utf-8"))
            if package:
                loaded.header["package"] = package[1]
            ConfigError.refuse(_find_hydra_faults(config_path, file, loaded))
            return loaded

    class UserFolders(SearchPathPlugin):  # type: ignore[misc]
        folders: ClassVar[list[Path]] = []
        chosen: ClassVar[Collection[str]] = ()
        counts: ClassVar[dict[str, int]] = {}  # of values, by the name of a file

        def manipulate_search_path(self, search_path: "ConfigSearchPath") -> None:
            search_path.prepend("path", "path://", anchor="main")
            for folder in reversed(self.folders):
                search_path.prepend("user", f"user://{folder}", anchor="main")

    Plugins.instance().register(UserSource)
    Plugins.instance().register(_experiment_source())
    Plugins.instance().register(UserFolders)
    return UserFolders


def _find_hydra_faults(name: str, file: Path, loaded: "ConfigResult") -> Iterator[Fault]:
    """A fault for each setting of Hydra's own in a file that is not for files."""
    from omegaconf import OmegaConf

    packages = str(loaded.header.get("package")).split(".")
    if name.lstrip("/").startswith("hydra/") or "hydra" in packages:
        yield _hydra_fault(file, "it is a setting of Hydra's own")
    content = OmegaConf.to_container(loaded.config, resolve=False)
    if not isinstance(content, dict):
        return
    for default in content.get("defaults") or ():
        text = str(default)
        if isinstance(default, Mapping):
            text = " ".join(map(str, default))
        if "hydra" in text and not CHOSEN.fullmatch(text):
            yield _hydra_fault(file, f"defaults: {text}")
    settings = content.get("hydra", {})
    if not isinstance(settings, Mapping):
        yield _hydra_fault(file, "hydra.")
        return
    for key, value in settings.items():
        if key not in ("sweeper", "mode") or "_target_" in str(value):
            yield _hydra_fault(file, f"hydra.{key}")
        elif key == "sweeper" and isinstance(value, Mapping):
            yield from _find_sweeper_faults(file, value)


def _find_sweeper_faults(file: Path, sweeper: Node) -> Iterator[Fault]:
    """A fault for each key of a sweeper that a file may not set, and each axis of Hydra's own."""
    for key, value in sweeper.items():
        if key not in OF_SWEEPERS:
            yield Fault(
                where=str(file),
                found=f"hydra.sweeper.{key}, which may run something or lead elsewhere",
                expected=f"some of {', '.join(OF_SWEEPERS)}",
                fix=f"hydra.sweeper.{key}=<value> on the command line  (if you trust it)",
            )
        if key != "params" or not isinstance(value, Mapping):
            continue
        for axis in value:
            if re.match(r"[+~]*hydra\b", str(axis)):
                yield _hydra_fault(file, f"hydra.sweeper.params: {axis}")


def _hydra_fault(file: Path, found: str) -> Fault:
    """The fault of a file that would change Hydra itself."""
    return Fault(
        where=str(file),
        found=found,
        expected="of Hydra's settings only hydra.sweeper and hydra.mode",
        fix="leave it out, or type it",
    )
