"""Errors of Hydra, OmegaConf and YAML where a configuration cannot be composed, as faults."""

from __future__ import annotations

import re

from runner.config.limits import yaml_fault
from runner.errors import Fault

HELP = "see python -m runner --help"


def composition_fault(error: Exception) -> Fault:
    """The fault of an error that came up while a configuration was composed or its references followed."""
    if mark := getattr(error, "problem_mark", None):
        return yaml_fault(error, mark.name)
    text = " ".join(str(error).split())
    key = re.search(r"full_key: (\S+)", text)
    where, text = key[1] if key else "command line", re.sub(r" full_key: .*", "", text)
    for pattern, to_fault in KNOWN:
        if found := re.search(pattern, text):
            return to_fault(where, found)
    return Fault(where, text, "a configuration that Hydra composes", HELP)


def _missing(where: str, found: re.Match[str]) -> Fault:
    """The fault of a defaults list, in a file or our own, that names what is not there."""
    file, name, options = found[1], found[2], found[3]
    group = name.rpartition("/")[0]
    if file == "config":
        return Fault(group, f"there is no {name}", f"one of {options}", f"{group}=<one of them>, or mend the defaults")
    expected = f"one of {options}" if options else "a group and an option that are there"
    return Fault(f"{file}.yaml", f"its defaults name {name}, and there is none", expected, f"mend {file}.yaml")


KNOWN = (
    (
        r"In '([^']+)': Could not find '([^']+)'(?: Available options in '[^']+': (.*?))?(?: Config search.*)?$",
        _missing,
    ),
    (
        r"Missing mandatory value: (\S+)",
        lambda where, found: Fault(found[1], "no value", "one, it has no default", f"{found[1]}=<value>"),
    ),
    (
        r"Interpolation key '([^']+)' not found",
        lambda where, found: Fault(
            where, f"${{{found[1]}}} refers to nothing", "a key that is there", f"{where}=<value>"
        ),
    ),
    (
        r"Recursive interpolation",
        lambda where, found: Fault(
            where, "it refers to itself, in a circle", "a value at some end", f"{where}=<value>"
        ),
    ),
    (
        r"Unsupported interpolation type (\S+)",
        lambda where, found: Fault(
            where, f"${{{found[1]}:...}}, and there is no such resolver", "oc.env, run, or a key", f"{where}=<value>"
        ),
    ),
    (
        r"Environment variable '([^']+)' not found",
        lambda where, found: Fault(
            where, f"the environment has no {found[1]}", "a variable that is set", f"export {found[1]}=<value>"
        ),
    ),
)
