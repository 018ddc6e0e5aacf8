"""The words of a configuration that are typed so far: what keys and values may follow them.

Nothing is composed, which takes too long for a key press: the options that count are read from the
words, the list of defaults of the experiment, and that of conf/config.yaml.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from runner.command._editor_schemas import read_option
from runner.command.options import describe
from runner.config.groups import GROUPS
from runner.config.limits import read_yaml
from runner.config.menu import Options, read_menu
from runner.config.override import dotted_key, expand
from runner.io.files import MENU
from runner.schema.description import read_descriptions
from runner.schema.literal import to_text
from runner.schema.read import Parameter, Signature
from runner.schema.text import Node
from runner.validate.context import EXPERIMENT, TOP, ValidationContext, keys_of, plain_keys
from runner.validate.values_at_keys import texts_at

Candidates = dict[str, str]  # words with their descriptions


@dataclass(frozen=True)
class TypedWords:
    """The words ``key=value`` that are typed already, and the folders of groups."""

    overrides: Sequence[str]
    folders: Sequence[Path]

    @cached_property
    def menu(self) -> Options:
        return read_menu(self.folders)

    @cached_property
    def experiment(self) -> Node:
        """The content of the experiment that is chosen; empty for none."""
        return read_option("experiment", self.typed_option("experiment"), self.folders)[0]

    @property
    def stages(self) -> dict[str, list[str]]:
        """The words of the stages of that experiment."""
        return self.experiment.get("stages") or {}

    def typed_option(self, group: str) -> str:
        """The option of a group that was typed, of several the first; empty for none."""
        for word in reversed(expand(self.overrides, self.menu)):
            if dotted_key(word) == group:
                return word.partition("=")[2].strip("[]").split(",")[0]
        return ""

    def option(self, group: str) -> str:
        """The option of a group: that which was typed, of the experiment, or of every run."""
        typed = self.typed_option(group)
        if typed:
            return typed
        for content in (self.experiment, read_yaml(MENU / "config.yaml")):
            for default in content.get("defaults") or ():
                for key in (f"override /{group}", group):
                    if isinstance(default, dict) and key in default:
                        return str(default[key])
        return ""

    def context(self, group: str) -> ValidationContext:
        """A configuration of the part of one group."""
        node, _ = read_option(group, self.option(group), self.folders)
        changes = self.experiment.get(group)
        if isinstance(changes, dict):
            # Unless it names a target, the nodes inside of it have none either.
            is_whole = "_target_" in changes
            node = {**node, **changes} if is_whole else {**changes, **node}
        for word in self.overrides:
            if dotted_key(word) == f"{group}._target_":
                node = {"_target_": word.partition("=")[2]}
        return ValidationContext({group: node})

    def keys(self, beginning: str, groups: Sequence[str] = ()) -> Candidates:
        """The words for keys that begin so, up to the next dot."""
        if "." in beginning:
            return self._inner_keys(beginning)
        candidates: Candidates = {}
        for group in groups or self.menu:
            candidates[f"{group}="] = ", ".join(self.menu[group])
            if group in GROUPS:
                candidates[f"{group}."] = "its keys"
        if not groups:
            texts = read_descriptions(f"{EXPERIMENT}.Experiment")
            for name in TOP:
                candidates[f"{name}="] = texts.get(name, "")
            for stage in self.stages:
                candidates[f"{stage}."] = "a stage"
        return candidates

    def _inner_keys(self, beginning: str) -> Candidates:
        """The words for keys of a group that begin so."""
        owner = beginning.rpartition(".")[0]
        group = owner.partition(".")[0]
        context = self.context(group)
        node = context.mapping(owner)
        texts = read_descriptions(str(node.get("_target_")))
        paths = [f"{group}.{name}" for name in plain_keys(group)]
        candidates: Candidates = {}
        for path in (*paths, *chain(*context.places.values())):
            if not path.startswith(f"{owner}."):
                continue
            name, goes_on, _ = path.removeprefix(f"{owner}.").partition(".")
            end = "="
            if goes_on or isinstance(node.get(name), dict):
                end = "."
            candidates[f"{owner}.{name}{end}"] = texts.get(name, "")
        return candidates

    def values(self, key: str) -> Candidates:
        """The values of a key that can be listed."""
        if key in self.menu:
            return {name: describe(key, name, self.folders) for name in self.menu[key]}
        return dict.fromkeys(self._texts_at(key), "")

    def _texts_at(self, key: str) -> Iterator[str]:
        """The values that the type of a key lists, and those that its trainer knows besides."""
        owner, _, name = key.rpartition(".")
        context = self.context(owner.partition(".")[0])
        signature = context.signature(context.mapping(owner))
        parameters = plain_keys(owner) or TOP
        if signature:
            parameters = keys_of(owner, signature)
        parameter: Parameter | None = parameters.get(name)
        if parameter is None:
            return
        if signature:
            target = str(context.mapping("trainer").get("_target_"))
            # Only its name is asked for; to read its arguments takes long.
            trainer = Signature(target, target)
            yield from texts_at(key, parameter, signature, trainer)
        yield from map(to_text, parameter.type.choices)
        if any(part.kind == "bool" for part in parameter.type.alternatives):
            yield from ("true", "false")
