"""Optimizers with their groups of parameters, and the regular expressions of a configuration."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.errors import Fault
from runner.schema.did_you_mean import best_guess
from runner.schema.library_ranges import range_in_group
from runner.schema.read import Signature, read_signature
from runner.schema.source import Definition, find_definition
from runner.schema.text import Node, last_key, nodes, scalars, short_text
from runner.schema.type import shortened
from runner.validate.context import ValidationContext
from runner.validate.values import misfit_number

GROUPS = "optimizer.groups"
# Arguments of an optimizer that are no settings of a group.
NO_SETTINGS = ("params", "groups", "scheduler")


def find_optimizer_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for an optimizer that no trainer can step, and for each bad group of parameters."""
    signature = context.signature(context.cfg.get("optimizer"))
    if not signature:
        return
    step = read_signature(f"{signature.target}.step")
    if step and "closure" in step.required:
        yield Fault(
            where="optimizer._target_",
            found=f"{signature.name}, whose step needs a closure, but the trainer passes none",
            expected="an optimizer that needs only gradients",
            fix="optimizer=adamw",
        )
    groups = context.mapping(GROUPS)
    if groups and "named_parameters" in signature.parameters:
        yield Fault(
            where=GROUPS,
            found=f"given, and {signature.name} is handed names and weights, of which it makes "
            "its groups",
            expected="none",
            fix="=null",
        )
        return
    for pattern, settings in groups.items():
        if isinstance(settings, dict):
            yield from _find_setting_faults(pattern, settings, signature)
        else:
            yield Fault(
                where=f"{GROUPS}.{pattern}",
                found=short_text(settings),
                expected="settings of the optimizer, or lr_ratio",
                fix=f"{GROUPS}={{{pattern}: {{lr_ratio: 0.1}}}}",
            )


def _find_setting_faults(pattern: str, settings: Node, signature: Signature) -> Iterator[Fault]:
    """A fault for each setting of a group that the optimizer does not have, or refuses."""
    names = [name for name in signature.parameters if name not in NO_SETTINGS]
    names.append("lr_ratio")
    # Its code may read more of a group than its constructor takes.
    definition = find_definition(signature.target)
    source = ""
    if isinstance(definition, Definition):
        source = definition.module.text.replace("'", '"')
    for key in settings:
        if key not in names and f'"{key}"' not in source:
            likeliest = best_guess(key, names, "lr_ratio")
            yield Fault(
                where=f"{GROUPS}.{pattern}.{key}",
                found=f"{signature.name} has no such setting",
                expected=shortened(names),
                fix=f"{GROUPS}={{{pattern}: {{{likeliest}: <value>}}}}",
            )
    for key, value in settings.items():
        numbers = range_in_group("optimizer", key)
        misfit = misfit_number(f"{GROUPS}.{pattern}.{key}", value, numbers)
        if misfit:
            yield replace(misfit, fix=f"{GROUPS}={{{pattern}: {{{key}: <number>}}}}")


@dataclass(frozen=True)
class Pattern:
    """A regular expression of a configuration, the key that holds it, and how to type another."""

    where: str
    text: object
    fix: str


def find_expression_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each regular expression, or address of a server of rewards, that is none."""
    scored = {"reward": context.cfg.get("reward"), "metric": context.cfg.get("metric")}
    for path, node in nodes(scored):
        url = node.get("url")
        if node["_target_"] == "runner.reward.remote.Remote" and isinstance(url, str):
            from runner.reward.remote import find_address_faults  # with all that asks servers

            yield from find_address_faults(url, f"{path}.url")
    for pattern in _list_patterns(context):
        try:
            re.compile(pattern.text if isinstance(pattern.text, str) else "")
        except re.error as error:
            yield Fault(
                where=pattern.where,
                found=f"{pattern.text!r}: {error}",
                expected="a regular expression",
                fix=pattern.fix,
            )


def _list_patterns(context: ValidationContext) -> Iterator[Pattern]:
    for text in context.mapping(GROUPS):
        yield Pattern(f"{GROUPS}.{text}", text, f"{GROUPS}={{<pattern>: {{lr_ratio: 0.1}}}}")
    groups = {name: context.cfg.get(name) for name in ("reward", "metric", "peft")}
    for path, value in scalars(groups):
        names = ["pattern"]
        if path.startswith("peft."):
            names = ["matching", "full", "target_modules"]
        if last_key(path) in names:
            owner, _, index = path.rpartition(".")
            if index.isdigit():
                yield Pattern(owner, value, "=['<pattern>']")
            else:
                yield Pattern(path, value, "='<pattern>'")
