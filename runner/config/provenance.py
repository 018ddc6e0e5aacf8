"""The provenance of each value of a configuration: a file and line, the typed override, or a target's default."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

from runner import config
from runner.config.batch import MADE
from runner.config.limits import LOADER, read_yaml
from runner.config.override import dotted_key, expand, typed_keys
from runner.io.files import MENU, PACKAGE, display_path
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.source import Definition, find_definition
from runner.schema.text import Config, flatten, select, to_text

TYPED = "command line"
# Groups of which a file of the user's own may set what is dangerous, where its name was typed.
TRUSTED_GROUPS = ("launcher", "tracker")
REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")
# The tables of what the runner itself gives a trainer's config, and when each counts.
BY_RUNNER = {"always": "the runner, always", "on_cpu": "the runner, on a machine without a GPU"}
BY_RUNNER["by_default"] = "the runner, unless it is set"


@dataclass(frozen=True)
class Setting:
    """One place that gives a key a value, as it is written there; ``note`` says when it counts, if not always."""

    key: str
    text: str
    place: str
    note: str = ""

    @property
    def follows(self) -> list[str]:
        """The keys that this value is taken from."""
        return REFERENCE.findall(self.text)


@dataclass(frozen=True)
class Provenance:
    """Every setting of one configuration, in rising order of precedence, with the configuration itself."""

    cfg: Config
    settings: Sequence[Setting]

    def of(self, key: str) -> list[Setting]:
        """Whatever gave this key a value, the one that counts first."""
        own = [entry for entry in self.settings if key == entry.key or key.startswith(f"{entry.key}.")]
        if not own:  # what speed= has set is set nowhere else
            listed, is_set = f"speed.{key.rpartition('.')[2]}.value", select(self.cfg, key) is not None
            own = [replace(each, key=key, note="speed=") for each in self.settings if is_set and each.key == listed]
        if key in MADE and self.cfg.get("batch"):
            own.append(Setting(key, "${batch}, shared by the processes", "runner/config/batch.py", "the runner"))
        table = read_settings(PACKAGE / "training" / "components" / "args.yaml", "trainer")
        always, on_cpu, by_default = (
            [replace(each, key=key, note=note) for each in table if each.key.replace(f".{kind}.", ".args.") == key]
            for kind, note in BY_RUNNER.items()
        )
        node, _, name = key.rpartition(".")
        target = select(self.cfg, f"{node}._target_".lstrip("."))
        signature = read_signature(target) if isinstance(target, str) else None
        known = signature.parameters.get(name) if signature else None
        settings = [*always, *reversed(own), *on_cpu, *by_default]
        if signature is None or known is None:
            return settings
        # The default of an argument, and the line of the installed source that says so.
        text = "required" if known.required else "not written down" if known.default is UNKNOWN else None
        found, place = find_definition(signature.target), signature.home
        definition = found if isinstance(found, Definition) else None
        if (module := known.module or (definition.module if definition else None)) and module.file:
            line = getattr(known.annotation or (definition.node if definition else None), "lineno", 1)
            parts = module.file.parts
            start = len(parts) - len(module.name.split(".")) - (module.file.name == "__init__.py")
            place = f"{Path(*parts[max(start, 0) :]).as_posix()}:{line}"
        return [*settings, Setting(known.name, text or to_text(known.default), place, f"default of {signature.name}")]


def read_provenance(
    cfg: Config, words: Sequence[str], folders: Sequence[Path] = (), typed: Sequence[str] | None = None, stage: str = ""
) -> Provenance:
    """The provenance of every value of a configuration that these overrides compose."""
    layers = config.read_layers(words, folders)
    settings = [entry for file, place in layers for entry in read_settings(file, place)]
    menu = config.read_menu(folders)
    listed: dict[str, str] = {}
    for file, _ in layers if stage else ():
        for word, line in read_stage(file, stage):
            listed |= dict.fromkeys(expand([word], menu), line)
    for word, override in zip(words, config.parse(config.force(words, menu)), strict=True):
        if override.key_or_group in menu or override.is_hydra_override():
            continue
        place = TYPED if typed is None or word in typed else listed.get(word, f"the stage {stage}")
        key, given = override.key_or_group, override.value()
        if isinstance(given, Mapping) and given and not override.is_delete():
            settings += (Setting(f"{key}.{inner}", to_text(entry), place) for inner, entry in flatten(given).items())
        else:
            text = "(deleted)" if override.is_delete() else override.input_line.partition("=")[2]
            settings.append(Setting(key, text, place))
    return Provenance(cfg, settings)


@dataclass(frozen=True)
class TrustedKeys:
    """The keys that a user has typed, and those that an option sets which the user has chosen by its name.

    Such an option is one of the menu, or a launcher or a tracker of the user's own that has a name of its own. Of a key
    that another file sets after it, it is that file's value.
    """

    composed: config.Composed
    folders: Sequence[Path] = ()

    def __contains__(self, key: object) -> bool:
        return key in self._typed or key in self._of_options

    @cached_property
    def _typed(self) -> set[str]:
        return self.composed.typed - self.composed.untyped

    @cached_property
    def _of_options(self) -> set[str]:
        words = self.composed.words or self.composed.overrides
        chosen = set(self._chosen_files())
        last: dict[str, Path] = {}
        for file, place in config.read_layers(words, self.folders) if chosen else ():
            last |= {setting.key: file for setting in read_settings(file, place)}
        untyped = [word for word in words if dotted_key(word) not in self._typed]
        for key in typed_keys(untyped):  # of a stage, or of a sweep
            last.pop(key, None)
        return {key for key, file in last.items() if file in chosen}

    def _chosen_files(self) -> Iterator[Path]:
        menu = config.read_menu()
        for word in self.composed.overrides:
            group, _, value = word.lstrip("+").partition("=")
            for name in re.findall(r"[\w-]+", value) if group in menu and group in self._typed else ():
                if name in menu[group]:
                    own = [folder for folder in self.folders if Path(folder, group, f"{name}.yaml").exists()]
                    yield from [] if own else [MENU / group / f"{name}.yaml"]
                elif group in TRUSTED_GROUPS:
                    yield from self._files_of(group, name)

    def _files_of(self, group: str, name: str) -> Iterator[Path]:
        """The file of an option, and those of its group that it begins with."""
        file = next(filter(Path.is_file, (Path(root, group, f"{name}.yaml").resolve() for root in self.folders)), None)
        if file is None:
            yield MENU / group / f"{name}.yaml"
            return
        yield file
        for entry in read_yaml(file).get("defaults") or ():
            if isinstance(entry, str) and entry != "_self_" and entry != name:
                yield from self._files_of(group, entry)


def read_stage(file: Path, stage: str) -> Iterator[tuple[str, str]]:
    """Each word that an experiment's file lists for a stage, with its line."""
    tree: yaml.Node | None = yaml.compose(file.read_text(encoding="utf-8"), Loader=LOADER)
    for path in ("stages", stage):
        entries = tree.value if isinstance(tree, yaml.MappingNode) else []
        tree = next((entry for name, entry in entries if name.value == path), None)
    for word in tree.value if isinstance(tree, yaml.SequenceNode) else []:
        yield str(word.value), f"{_shown(file)}:{word.start_mark.line + 1}"


def read_settings(file: Path, place: str) -> list[Setting]:
    """Every value that a YAML file sets, with its line; ``place`` is the key at which the file is merged."""
    text = file.read_text(encoding="utf-8")
    if not isinstance(tree := yaml.compose(text, Loader=LOADER), yaml.MappingNode):
        return []
    tree.value = [entry for entry in tree.value if entry[0].value not in ("defaults", "hydra")]
    return list(_settings(tree, place, text, _shown(file)))


def _settings(node: yaml.MappingNode, path: str, text: str, file: str) -> Iterator[Setting]:
    for name, entry in node.value:
        key = f"{path}.{name.value}".lstrip(".")
        if isinstance(entry, yaml.MappingNode) and entry.value:
            yield from _settings(entry, key, text, file)
        else:
            value = text[entry.start_mark.index : entry.end_mark.index].strip()
            value = to_text(yaml.safe_load(value)) if isinstance(entry, yaml.SequenceNode) else value
            yield Setting(key, value or "null", f"{file}:{name.start_mark.line + 1}")


def _shown(file: Path) -> str:
    whole = next((root for root in (MENU, PACKAGE) if file.is_relative_to(root)), None)
    return f"{whole.name}/{file.relative_to(whole).as_posix()}" if whole else display_path(file)
