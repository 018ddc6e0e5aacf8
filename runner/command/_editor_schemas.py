"""JSON Schemas of experiments and of the options of each group, for editors.

    experiment.json   an experiment, and any other file with ``# @package _global_``: its list of
                      ``defaults`` decides which keys a group has
    own.json          an experiment in a file of one's own, which may name options in its groups,
                      and whose keys may be dotted
    <group>.json      an option of a group; ``$defs`` has the schema of each ``_target_`` in it
    strategy.json     fields of every trainer, to which the schemas of trainers refer

Keys, types, ranges and texts are those of the checks before a start, from the installed libraries.
What only another key or the machine decides is left to those checks.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.groups import GROUPS, LISTED
from runner.config.limits import read_yaml
from runner.config.menu import Options, read_menu
from runner.io.files import MENU
from runner.schema.description import read_comments, read_descriptions
from runner.schema.json_schema import STANDS_FOR_A_VALUE, JsonSchema, to_json_schema
from runner.schema.read import UNKNOWN, Parameter, Signature, read_signature
from runner.schema.text import Node
from runner.schema.upstream.constructor import FROM_GROUP
from runner.validate.context import (
    EXPERIMENT,
    JUDGED,
    PART_CLASSES,
    PLAIN_GROUPS,
    SPECIAL,
    TOP,
    keys_of,
    plain_keys,
)
from runner.validate.values_at_keys import range_at, texts_at

FOLDER = ".schema"  # beside the groups
LINE = "# yaml-language-server: $schema="  # of a file, by which editors find its schema
PACKAGE = re.compile(r"^# @package (\S+)", re.MULTILINE)
FIELDS = "transformers.TrainingArguments"  # which the configs of all trainers have
HAS_TARGET: JsonSchema = {"required": ["_target_"]}
PART: JsonSchema = {"$ref": "#/$defs/part"}
NODE: JsonSchema = {"type": ["object", "null", "string"], "pattern": STANDS_FOR_A_VALUE}
# Keys of an experiment that are not those of a run.
WHOLE: JsonSchema = {
    "defaults": {"$ref": "#/$defs/defaults"},
    "hydra": {"type": "object", "description": "The sweep: mode, and sweeper with its params."},
    "speed": {"$ref": "speed.json"},
    "stages": {
        "description": "Runs that build on each other, each by the words that are typed for it.",
        "type": "object",
        "additionalProperties": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "pattern": r"^(~|\+*\w[^=]*=)"},
        },
    },
}
# Fields of a trainer, each with the value that is faster, the reason, and what it takes.
SPEED: JsonSchema = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["value", "why", "needs"],
        "properties": {"value": {}, "why": {"type": "string"}, "needs": {"type": "object"}},
        "additionalProperties": False,
    },
}


def build_schemas(folders: Sequence[Path] = ()) -> dict[str, JsonSchema]:
    """The schema of each kind of file, by the name of its own file."""
    menu = read_menu(folders)
    fields = PartSchemas("trainer.args")
    fields.add_node("trainer.args", {"_target_": FIELDS})
    places = {}
    for name, schema in fields.definitions[FIELDS]["properties"].items():
        places[name, json.dumps(schema)] = f"strategy.json#/properties/{name}"
    groups = {}
    for group in GROUPS:
        groups[group] = PartSchemas(group, dict(places))
        for name in menu[group]:
            groups[group].add_option(name, folders)
    schemas = {group: parts.to_json() for group, parts in groups.items()}
    for group in set(PLAIN_GROUPS) & set(GROUPS):
        schemas[group] = _keys_schema(group)
    schemas["strategy"] = fields.definitions[FIELDS]
    schemas["speed"] = SPEED
    schemas["experiment"] = _experiment_schema(menu, groups)
    schemas["own"] = _own_file_schema(schemas["experiment"], menu)
    return schemas


def schema_line(text: str, group: str) -> str:
    """The line by which a file of a group names its schema; empty where it has none."""
    package = PACKAGE.search(text)
    if package and package[1] == "_global_":
        group = "experiment"
    elif package and (group, package[1]) != ("strategy", "trainer.args"):
        return ""
    return f"{LINE}../{FOLDER}/{group}.json"


# --- Groups ---------------------------------------------------------------------------------------
@dataclass
class PartSchemas:
    """The schemas of what the options of a group build."""

    group: str
    # Where a key of this name with this schema, as JSON, stands already.
    places: dict[tuple[str, str], str] = field(default_factory=dict)
    definitions: dict[str, JsonSchema] = field(default_factory=dict)  # by the target
    options: dict[str, list[str]] = field(default_factory=dict)  # that build it
    named: dict[str, JsonSchema] = field(default_factory=dict)  # by the name of a part of several

    def add_option(self, name: str, folders: Sequence[Path]) -> None:
        """Add what an option of the group builds."""
        node, comments = read_option(self.group, name, folders)
        if "_target_" in node:
            target = self.add_node(self.group, node, comments)
            self.options.setdefault(target, []).append(name)
            return
        for part_name, part in node.items():
            if isinstance(part, dict) and "_target_" in part:
                target = self.add_node(f"{self.group}.{part_name}", part, comments)
                self.named[part_name] = _part_or(target)

    def add_node(
        self,
        path: str,
        node: Node,
        comments: Mapping[str, str] | None = None,
        trainer: Signature | None = None,
    ) -> str:
        """The target of a node, whose schema and those of the nodes inside of it are added."""
        target = str(node["_target_"])
        signature = read_signature(target)
        if signature is None or target in self.definitions:
            self.definitions.setdefault(target, {})
            return target
        properties: JsonSchema = {}
        if path == self.group:
            properties["defaults"] = True
        self.definitions[target] = {
            "properties": properties,
            "additionalProperties": signature.is_open,
        }
        texts = dict(comments or {})
        texts |= read_descriptions(f"{EXPERIMENT}.{PART_CLASSES.get(self.group)}")
        texts |= read_descriptions(target)
        given = FROM_GROUP if path == "trainer" else JUDGED  # by the runner itself
        for name, parameter in (keys_of(path, signature) | SPECIAL).items():
            key = f"{path}.{name}"
            inner = node.get(name)
            if name in given:
                continue
            if isinstance(inner, dict) and "_target_" in inner:
                owner = signature if path == "trainer" else None
                schema = _part_or(self.add_node(key, inner, comments, owner))
            else:
                schema = _key_schema(key, parameter, signature, trainer)
            schema = _with_notes(schema, parameter, texts.get(name))
            here = f"#/$defs/{target}/properties/{name}"
            place = self.places.setdefault((name, json.dumps(schema)), here)
            properties[name] = schema if place == here else {"$ref": place}
        return target

    def to_json(self) -> JsonSchema:
        """The schema of a file of the group; that of a part in another file is ``group`` in it."""
        rules: list[JsonSchema] = []
        for target in self.definitions:
            is_target = {
                "properties": {"_target_": {"const": target}},
                "required": ["_target_"],
            }
            rule = {
                "if": is_target,
                "then": _definition(target),
            }
            rules.append(rule)
        targets: list[JsonSchema] = [
            {"enum": list(self.definitions)},
            {"type": "string"},
        ]
        part = {
            **NODE,
            "properties": {"_target_": {"anyOf": targets}},
            "allOf": rules,
        }
        group = PART
        if self.named:
            several = {
                **NODE,
                "properties": {"defaults": True, **self.named},
                "additionalProperties": PART,
            }
            group = {
                "if": HAS_TARGET,
                "then": PART,
                "else": several,
            }
        file: list[JsonSchema] = [{"$ref": "#/$defs/group"}]
        for target, names in self.options.items():
            # An option that builds on one of these has its target.
            rule = {
                "if": _defaults_with({"enum": names}) | {"not": HAS_TARGET},
                "then": _definition(target),
            }
            file.append(rule)
        defaults = {"$ref": "experiment.json#/$defs/defaults"}
        return {
            "properties": {"defaults": defaults},
            "allOf": file,
            "$defs": {"part": part, "group": group, **self.definitions},
        }


def read_option(group: str, name: str, folders: Sequence[Path]) -> tuple[Node, dict[str, str]]:
    """The node of an option, and the comments of its keys.

    Those of an option that its list of defaults builds on are among them.
    """
    files = [root / group / f"{name}.yaml" for root in (*folders, MENU)]
    file = next(filter(Path.is_file, files), None)
    content = read_yaml(file) if file else {}
    node = (content or {}).get(group, content)
    if file is None or not isinstance(node, dict):
        return {}, {}
    comments = read_comments(file.read_text(encoding="utf-8"))
    for default in content.get("defaults") or ():
        if isinstance(default, str) and default not in ("_self_", name):
            base, comments_of_base = read_option(group, default.partition("@")[0], folders)
            node = {**base, **node}
            comments = comments_of_base | comments
    return node, comments


# --- Experiments ----------------------------------------------------------------------------------
def _experiment_schema(menu: Options, groups: Mapping[str, PartSchemas]) -> JsonSchema:
    """The schema of a file whose keys are those of the top level."""
    schema = _keys_schema("")
    schema["properties"] |= {"tolerate": _keys_schema("tolerate"), **WHOLE}
    rules = []
    for group, parts in groups.items():
        root = "" if group in PLAIN_GROUPS else "#/$defs/group"
        schema["properties"][group] = {"$ref": f"{group}.json{root}"}
        key = f"override /{group}"
        for target, names in parts.options.items():
            choice = {
                "type": "object",
                "properties": {key: {"enum": names}},
                "required": [key],
            }
            chosen = {
                "if": HAS_TARGET,
                "else": _definition(target, f"{group}.json"),
            }
            rule = {
                "if": _defaults_with(choice),
                "then": {"properties": {group: chosen}},
            }
            rules.append(rule)
    schema["allOf"] = rules
    schema["$defs"] = {"defaults": _defaults_schema(menu)}
    return schema


def _own_file_schema(experiment: JsonSchema, menu: Options) -> JsonSchema:
    """The schema of an experiment that is written as one would type it.

    A dotted key may have any value: only the checks before a start know what it reaches.
    """
    properties = dict(experiment["properties"])
    for group, names in menu.items():
        choices: list[JsonSchema] = [{"enum": names}, {"type": "string"}]
        if group in properties:
            choices.append(properties[group])
        if group in LISTED:
            choices.append({"type": "array", "items": {"type": "string"}})
        properties[group] = {"anyOf": choices}
    dotted: JsonSchema = {r"^\w+(\.[\w-]+)+$": {}}
    return experiment | {"properties": properties, "patternProperties": dotted}


def _defaults_schema(menu: Options) -> JsonSchema:
    """The schema of a list of defaults: options by their groups, and files beside this one."""
    keys: JsonSchema = {}
    patterns: JsonSchema = {r"^((optional|override) )*/?hydra/": {"type": "string"}}
    for group, names in menu.items():
        option: JsonSchema = {"enum": [*names, None]}
        choices: list[JsonSchema] = [
            option,
            {"type": "string", "pattern": STANDS_FOR_A_VALUE},
        ]
        if group in LISTED:
            choices.append({"type": "array", "items": option})
        patterns[rf"^((optional|override) )*/?{group}(@.*)?$"] = {"anyOf": choices}
        # Editors complete no pattern, and look for none where there is a property.
        keys[f"override /{group}"] = {"anyOf": choices}
    entry = {
        "type": ["string", "object"],
        "maxProperties": 1,
        "properties": keys,
        "patternProperties": patterns,
        "additionalProperties": False,
    }
    return {"type": "array", "items": entry}


def _defaults_with(entry: JsonSchema) -> JsonSchema:
    """A condition on a file: its list of defaults has such an entry."""
    return {
        "properties": {"defaults": {"contains": entry}},
        "required": ["defaults"],
    }


# --- Keys -----------------------------------------------------------------------------------------
def _keys_schema(path: str) -> JsonSchema:
    """The schema of a mapping of keys of ours, those of the top level where the path is empty."""
    class_name = {"": "Experiment", "tracker": "Tracking", "tolerate": "Tolerate"}[path]
    target = f"{EXPERIMENT}.{class_name}"
    texts = read_descriptions(target)
    properties: JsonSchema = {"defaults": True}
    parameters = plain_keys(path) if path else TOP
    signature = Signature(target, target)
    for name, parameter in parameters.items():
        key = f"{path}.{name}".lstrip(".")
        schema = _key_schema(key, parameter, signature)
        properties[name] = _with_notes(schema, parameter, texts.get(name))
    return {
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
    }


def _key_schema(
    key: str, parameter: Parameter, signature: Signature, trainer: Signature | None = None
) -> JsonSchema:
    """The schema of a key by its type, its range, and the texts that it may hold."""
    numbers = range_at(key, parameter.name, parameter, signature, trainer)
    texts = texts_at(key, parameter, signature, trainer)
    return to_json_schema(parameter.type, numbers, texts)


def _with_notes(schema: JsonSchema, parameter: Parameter, text: str | None) -> JsonSchema:
    """A schema with the description and the default, which editors show."""
    noted = dict(schema)
    if text:
        noted["description"] = text.replace("``", "`")
    default = parameter.default
    is_infinite = isinstance(default, float) and not math.isfinite(default)
    if not parameter.required and default is not UNKNOWN and not is_infinite:
        noted["default"] = default
    return noted


def _part_or(target: str) -> JsonSchema:
    """The schema of a node that builds the target unless it names another."""
    return {
        "if": HAS_TARGET,
        "then": PART,
        "else": _definition(target),
    }


def _definition(target: str, file: str = "") -> JsonSchema:
    return {"$ref": f"{file}#/$defs/{target}"}


def schema_text(schema: JsonSchema) -> str:
    """A schema as JSON with each key that has keys itself on its own line, to compare versions."""
    return json.dumps(schema, ensure_ascii=False).replace('}, "', '},\n"') + "\n"
