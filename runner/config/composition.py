"""Errors of Hydra, OmegaConf and YAML where a configuration cannot be composed, as faults."""

from __future__ import annotations

import re

from runner.config.limits import yaml_fault
from runner.errors import Fault

# A defaults list, in a file or our own, that names what is not there.
MISSING_DEFAULT = (
    r"In '([^']+)': Could not find '([^']+)'(?: Available options in '[^']+': (.*?))?(?: Config search.*)?$"
)
# The messages of OmegaConf, each with its fault: {0} is what the pattern captures, {where} the key.
KNOWN = (
    (r"Missing mandatory value: (\S+)", "{0}", "no value", "one, it has no default", "{0}=<value>"),
    (
        *(r"Interpolation key '([^']+)' not found", "{where}", "${{{0}}} refers to nothing", "a key that is there"),
        "{where}=<value>",
    ),
    (
        "Recursive interpolation",
        "{where}",
        "it refers to itself, in a circle",
        "a value at some end",
        "{where}=<value>",
    ),
    (
        *(r"Unsupported interpolation type (\S+)", "{where}", "${{{0}:...}}, and there is no such resolver"),
        *("oc.env, run, or a key", "{where}=<value>"),
    ),
    (
        *(r"Environment variable '([^']+)' not found", "{where}", "the environment has no {0}"),
        *("a variable that is set", "export {0}=<value>"),
    ),
)


def composition_fault(error: Exception) -> Fault:
    """The fault of an error that came up while a configuration was composed or its references followed."""
    if mark := getattr(error, "problem_mark", None):
        return yaml_fault(error, mark.name)
    text = " ".join(str(error).split())
    key = re.search(r"full_key: (\S+)", text)
    where, text = key[1] if key else "command line", re.sub(r" full_key: .*", "", text)
    if found := re.search(MISSING_DEFAULT, text):
        file, name, options = found.groups()
        group = name.rpartition("/")[0]
        if file == "config":
            fix = f"{group}=<one of them>, or mend the defaults"
            return Fault(group, f"there is no {name}", f"one of {options}", fix)
        expected = f"one of {options}" if options else "a group and an option that are there"
        return Fault(f"{file}.yaml", f"its defaults name {name}, and there is none", expected, f"mend {file}.yaml")
    for pattern, *beats in KNOWN:
        if found := re.search(pattern, text):
            return Fault(*(beat.format(*found.groups(), where=where) for beat in beats))
    return Fault(where, text, "a configuration that Hydra composes", "see python -m runner --help")
