"""The provenance of a value of a configuration: a file and line, an override, or a default."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

from runner.config.batch import MADE
from runner.config.composition import Layer, read_layers
from runner.config.experiment_file import translation_of
from runner.config.limits import read_yaml
from runner.config.menu import read_menu
from runner.config.override import dotted_key, expand, force, parse, typed_keys
from runner.config.resolution import Composed
from runner.io.fast_yaml import LOADER
from runner.io.files import MENU, PACKAGE, display_path
from runner.schema.literal import to_text
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.source import Definition, find_definition
from runner.schema.text import Config, flatten, select

TYPED = "command line"
# Groups of which a file of the user's own may set dangerous keys, if its name was typed.
TRUSTED_GROUPS = ("launcher", "tracker")
REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")


@dataclass(frozen=True)
class Setting:
    """A place that gives a key a value."""

    key: str
    text: str  # the value as it is written there
    place: str
    note: str = ""  # when it counts, if not always

    @property
    def follows(self) -> list[str]:
        """The keys that this value is taken from."""
        return REFERENCE.findall(self.text)


@dataclass(frozen=True)
class Provenance:
    """The settings of one configuration, in ascending order of precedence."""

    cfg: Config
    settings: Sequence[Setting]

    def of(self, key: str) -> list[Setting]:
        """Every setting of a key, the one that counts first.

        What the runner always sets wins over the user's files and words. These win over what it
        sets by default, which wins over the default of the target's argument.
        """
        settings = [*_runner_settings(key, "ALWAYS", "the runner, always")]
        settings.extend(reversed(self._user_settings(key)))
        settings.extend(_runner_settings(key, "ON_CPU", "the runner, on a machine without a GPU"))
        settings.extend(_runner_settings(key, "BY_DEFAULT", "the runner, unless it is set"))
        node, _, name = key.rpartition(".")
        target_key = f"{node}._target_".lstrip(".")
        target = select(self.cfg, target_key)
        if isinstance(target, str):
            settings.extend(_default_settings(target, name))
        return settings

    def _user_settings(self, key: str) -> list[Setting]:
        """The settings of a key by files and overrides, or by ``speed=``; then by ``batch``."""
        settings = []
        for setting in self.settings:
            if key == setting.key or key.startswith(f"{setting.key}."):
                settings.append(setting)
        # A field that speed= has set is set nowhere else.
        if not settings and select(self.cfg, key) is not None:
            _, _, name = key.rpartition(".")
            speed_key = f"speed.{name}.value"
            for setting in self.settings:
                if setting.key == speed_key:
                    settings.append(replace(setting, key=key, note="speed="))
        if key == "model.merge" and not settings and select(self.cfg, key):
            place = "runner/validate/adapter_start.py"
            settings.append(Setting(key, "true", place, "the runner, as the model is an adapter"))
        if key in MADE and self.cfg.get("batch"):
            text = "${batch}, shared by the processes"
            settings.append(Setting(key, text, "runner/config/batch.py", "the runner"))
        return settings


def _runner_settings(key: str, table: str, note: str) -> Iterator[Setting]:
    """The setting of a key in a table of the fields that the runner gives a trainer's config."""
    for setting in _read_runner_table(table):
        if setting.key == key:
            yield replace(setting, note=note)


@functools.cache
def _read_runner_table(table: str) -> list[Setting]:
    """The settings in a dict of ``training.components.args``, under its name in capitals.

    The source is read, because importing it would import torch.
    """
    settings = []
    file = PACKAGE / "training" / "components" / "args.py"
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.value, ast.Dict):
            continue
        if ast.unparse(statement.target) != table:
            continue
        for name, value in zip(statement.value.keys, statement.value.values, strict=True):
            if isinstance(name, ast.Constant):
                key = f"trainer.args.{name.value!s}"
                constant = ast.literal_eval(value)
                text = constant if isinstance(constant, str) else to_text(constant)
                place = f"{_to_shown(file)}:{name.lineno}"
                settings.append(Setting(key, text, place))
    return settings


def _default_settings(target: str, name: str) -> Iterator[Setting]:
    """The default of an argument of a target, with the line of the installed source."""
    signature = read_signature(target)
    parameter = signature.parameters.get(name) if signature else None
    if signature is None or parameter is None:
        return
    text = to_text(parameter.default)
    if parameter.required:
        text = "required"
    elif parameter.default is UNKNOWN:
        text = "not written down"
    place = signature.home
    found = find_definition(signature.target)
    definition = found if isinstance(found, Definition) else None
    module = parameter.module or (definition and definition.module)
    if module and module.file:
        node = parameter.annotation or (definition and definition.node)
        # The file from the top package down.
        parts = module.file.parts
        depth = len(module.name.split("."))
        if module.file.name == "__init__.py":
            depth += 1
        file = Path(*parts[-depth:]).as_posix()
        line = getattr(node, "lineno", 1)
        place = f"{file}:{line}"
    yield Setting(parameter.name, text, place, f"default of {signature.name}")


def read_provenance(
    cfg: Config,
    words: Sequence[str],
    folders: Sequence[Path] = (),
    typed: Sequence[str] | None = None,
    stage: str = "",
) -> Provenance:
    """The provenance of every value of a configuration that these overrides compose.

    Of the words, the user has ``typed`` these, or all; the others are those of a ``stage``.
    """
    layers = read_layers(words, folders)
    menu = read_menu(folders)
    settings: list[Setting] = []
    lines_by_word: dict[str, str] = {}  # of the stage
    for layer in layers:
        settings.extend(list_settings(layer))
        for word, line in read_stage(layer.file, stage) if stage else ():
            lines_by_word |= dict.fromkeys(expand([word], menu), line)
    # What ``force`` puts before the words only makes way for them.
    overrides = []
    if words:
        forced = parse(force(words, menu))
        overrides = forced[-len(words) :]
    for word, override in zip(words, overrides, strict=True):
        key = override.key_or_group
        if key in menu or override.is_hydra_override():
            continue
        place = TYPED
        if typed is not None and word not in typed:
            place = lines_by_word.get(word, f"the stage {stage}")
        if override.is_delete():
            settings.append(Setting(key, "(deleted)", place))
            continue
        value = override.value()
        if isinstance(value, Mapping) and value:
            for inner_key, inner_value in flatten(value).items():
                text = to_text(inner_value)
                settings.append(Setting(f"{key}.{inner_key}", text, place))
        else:
            _, _, text = override.input_line.partition("=")
            settings.append(Setting(key, text, place))
    return Provenance(cfg, settings)


@dataclass(frozen=True)
class TrustedKeys:
    """The keys that a user has typed, and those set by an option that the user has chosen by name.

    Such an option is one of the menu, or a launcher or a tracker of the user's own whose name the
    menu does not have. A key that another file sets after it has that file's value.
    """

    composed: Composed
    folders: Sequence[Path] = ()

    def __contains__(self, key: object) -> bool:
        return key in self._typed or key in self._of_options

    @cached_property
    def _typed(self) -> set[str]:
        """The keys of the command line, without those that only the file of a sweep sets."""
        return self.composed.typed - self.composed.untyped

    @cached_property
    def _of_options(self) -> set[str]:
        """The keys that have the value of an option which the user has chosen by name.

        It is the last file that counts: a file that nobody chose may set the key after it, and
        then the value is not one that the user has asked for.
        """
        chosen = set(self._chosen_files())
        if not chosen:
            return set()
        words = self.composed.words or self.composed.overrides
        last_files: dict[str, Path] = {}
        for layer in read_layers(words, self.folders):
            for setting in list_settings(layer):
                last_files[setting.key] = layer.file
        untyped = [word for word in words if dotted_key(word) not in self._typed]
        for key in typed_keys(untyped):  # of a stage, or of a sweep
            last_files.pop(key, None)
        return {key for key, file in last_files.items() if file in chosen}

    def _chosen_files(self) -> Iterator[Path]:
        """The files of the options whose names the user has typed."""
        menu = read_menu()
        for word in self.composed.overrides:
            group, _, value = word.lstrip("+").partition("=")
            if group not in menu or group not in self._typed:
                continue
            for name in re.findall(r"[\w-]+", value):
                if name not in menu[group]:
                    if group in TRUSTED_GROUPS:
                        yield from self._files_of(group, name)
                elif self._find_user_file(group, name) is None:
                    yield MENU / group / f"{name}.yaml"

    def _find_user_file(self, group: str, name: str) -> Path | None:
        """The file of an option in a folder of the user's."""
        for folder in self.folders:
            file = Path(folder, group, f"{name}.yaml").resolve()
            if file.is_file():
                return file
        return None

    def _files_of(self, group: str, name: str) -> Iterator[Path]:
        """The file of an option, and those of its group that it begins with."""
        file = self._find_user_file(group, name)
        if file is None:
            yield MENU / group / f"{name}.yaml"
            return
        yield file
        for default in read_yaml(file).get("defaults") or ():
            if isinstance(default, str) and default not in ("_self_", name):
                yield from self._files_of(group, default)


def read_stage(file: Path, stage: str) -> Iterator[tuple[str, str]]:
    """Each word that an experiment's file lists for a stage, with its line."""
    text = file.read_text(encoding="utf-8")
    tree: yaml.Node | None = yaml.compose(text, Loader=LOADER)
    for name in ("stages", stage):
        if not isinstance(tree, yaml.MappingNode):
            return
        nodes = [node for key, node in tree.value if key.value == name]
        tree = nodes[0] if nodes else None
    if isinstance(tree, yaml.SequenceNode):
        shown_file = _to_shown(file)
        for word in tree.value:
            line = word.start_mark.line + 1
            yield str(word.value), f"{shown_file}:{line}"


def list_settings(layer: Layer) -> list[Setting]:
    """Every value that a layer sets, with its line.

    Of an experiment that another tool's file is translated into, the place is the file, and the
    note names the key there.
    """
    if layer.experiment is None:
        return read_settings(layer.file, layer.package)
    translation = translation_of(layer.file)
    sources = translation.sources if translation else {}
    places = {}
    if translation is None:
        places = {setting.key: setting.place for setting in read_settings(layer.file, "")}
    settings = []
    for key, value in flatten(layer.experiment).items():
        if key == "defaults":
            continue
        text = value if isinstance(value, str) else to_text(value)
        place = places.get(key, _to_shown(layer.file))
        note = f"its {sources[key]}" if key in sources else ""
        settings.append(Setting(key, text, place, note))
    return settings


def read_settings(file: Path, package: str) -> list[Setting]:
    """Every value that a YAML file sets, with its line; it is merged at the key ``package``."""
    text = file.read_text(encoding="utf-8")
    tree = yaml.compose(text, Loader=LOADER)
    if not isinstance(tree, yaml.MappingNode):
        return []
    pairs = []
    for key, node in tree.value:
        if key.value not in ("defaults", "hydra"):
            pairs.append((key, node))
    tree.value = pairs
    return list(_find_settings(tree, package, text, _to_shown(file)))


def _find_settings(tree: yaml.MappingNode, path: str, text: str, file: str) -> Iterator[Setting]:
    """The settings of a mapping in the text of a file, and of those inside."""
    for name, node in tree.value:
        key = f"{path}.{name.value}".lstrip(".")
        if isinstance(node, yaml.MappingNode) and node.value:
            yield from _find_settings(node, key, text, file)
            continue
        start = node.start_mark.index
        end = node.end_mark.index
        value = text[start:end].strip()  # as it is written, also where YAML reads it as a number
        if isinstance(node, yaml.SequenceNode):
            value = to_text(yaml.safe_load(value))
        line = name.start_mark.line + 1
        yield Setting(key, value or "null", f"{file}:{line}")


def _to_shown(file: Path) -> str:
    """A file as people know it: from ``conf`` or ``runner`` down, or as they would type it."""
    for root in (MENU, PACKAGE):
        if file.is_relative_to(root):
            inner_path = file.relative_to(root).as_posix()
            return f"{root.name}/{inner_path}"
    return display_path(file)
