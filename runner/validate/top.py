"""The top level of a configuration: its keys, its groups, and the numbers that no key may hold."""

import math
from collections.abc import Iterator

from runner.errors import Fault
from runner.io.visible import to_visible
from runner.schema.did_you_mean import best_guess
from runner.schema.literal import to_text
from runner.schema.text import Node, scalars, short_text
from runner.schema.type import shortened
from runner.validate.context import PLAIN_GROUPS, TOP, ValidationContext, plain_keys
from runner.validate.stray import (
    NAMED_GROUPS,
    explain_below,
    find_stray_faults,
    words_to_type,
)
from runner.validate.values_at_keys import find_setting_faults

NEEDED_GROUPS = ("trainer", "model", "dataset")
# Groups that a frozen configuration may lack; where the key is there, it must choose something.
READ_GROUPS = ("tracker", "launcher")


def find_top_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each key of the top level that is strange, missing, or holds the wrong thing."""
    for key, value in context.cfg.items():
        if key in PLAIN_GROUPS and isinstance(value, dict):
            yield from _find_plain_faults(context, key, value)
        elif key in TOP:
            yield from find_setting_faults(key, TOP[key], value, context.allow)
        elif key in context.groups:
            yield from _find_group_faults(context, key, value)
        else:
            yield from find_stray_faults(context, str(key), value)
    present = [group for group in READ_GROUPS if group in context.cfg]
    for group in (*NEEDED_GROUPS, *present):
        if context.cfg.get(group) in (None, {}):
            yield _nothing_chosen(context, group, "nothing chosen")


def _find_plain_faults(context: ValidationContext, group: str, node: Node) -> Iterator[Fault]:
    """The faults of a group that is read as it is, without anything to build."""
    keys = plain_keys(group)
    for name, value in node.items():
        path = f"{group}.{name}"
        if name in keys:
            yield from find_setting_faults(path, keys[name], value, context.allow)
        elif "_target_" not in node:  # whose arguments are checked with it
            likeliest = best_guess(str(name), keys, *keys)
            fix = words_to_type(context, path, {f"{group}.{likeliest}": value})
            yield Fault(
                where=path,
                found="no such key",
                expected=likeliest,
                fix=fix,
            )


def _find_group_faults(context: ValidationContext, group: str, node: object) -> Iterator[Fault]:
    """The faults of the parts of a group that do not say what to build."""
    parts = {} if node in (None, {}) else {group: node}
    if group in NAMED_GROUPS and isinstance(node, dict):
        parts = context.entries(group)
    for path, part in parts.items():
        if part is None:
            continue
        if to_visible(path) != path:
            yield Fault(
                where=path,
                found=f"the name {path!r}",
                expected="a name that can be read",
                fix=f"leave {path} out",
            )
        target_fix = f"{path}._target_=<module.name>"
        if not isinstance(part, dict) and path == group:
            yield _nothing_chosen(context, group, short_text(part))
        elif not isinstance(part, dict):
            yield Fault(
                where=path,
                found=short_text(part),
                expected="keys with a _target_",
                fix=target_fix,
            )
        elif "_target_" not in part:
            keys = shortened(list(map(str, part)), 40)
            found = f"no _target_ with {keys}"
            answers = explain_below(context, path, part, found)
            yield from filter(None, answers)
            if not all(answers):
                yield Fault(
                    where=path,
                    found=found,
                    expected="what to build from these keys",
                    fix=target_fix,
                )


def _nothing_chosen(context: ValidationContext, group: str, found: str) -> Fault:
    """The fault of a group in which no option is chosen."""
    options = context.menu.get(group, [])
    nothing = [name for name in options if name == "none"]
    likeliest = best_guess(found, options, *nothing, *context.options(group), "<option>")
    expected = f"one of {shortened(options)}" if options else "keys with a _target_"
    return Fault(
        where=group,
        found=found,
        expected=expected,
        fix=f"{group}={likeliest}",
    )


def find_infinite(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each number that is not finite."""
    for path, value in scalars(context.cfg):
        if isinstance(value, float) and not math.isfinite(value):
            where = context.origin(path.removesuffix(".0"), value)
            yield Fault(
                where=where,
                found=to_text(value),
                expected="a finite number",
                fix="=<number>",
            )
