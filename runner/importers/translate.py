"""A configuration that was read -> the draft of an experiment, and its text."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import yaml

from runner.errors import ConfigError
from runner.importers.draft import SAME, Draft
from runner.importers.entry import write_rows
from runner.importers.follow import follow, follow_rest, holds
from runner.importers.read import ForeignConfig
from runner.importers.table import read_table
from runner.importers.tools import READERS

VALUE_NONE = ("scale_rewards", "report_to")  # keys of which none is a value


def translate(reading: ForeignConfig, name: str, trainer: str | None = None) -> Draft:
    """The draft of an experiment; ConfigError with every value that cannot be taken."""
    table = read_table(reading.tool)
    draft = Draft(name, table, replace(reading, command=trainer or reading.command))
    draft.add(reading.keys)
    nones = {key for key, value in draft.keys.items() if value == "none" and key.split(".")[-1] not in VALUE_NONE}
    draft.keys |= dict.fromkeys(nones)
    for default in table.defaults:
        if holds(draft, default):
            draft.imply(default.give)
    read_nodes, finish = READERS[reading.tool]
    follow(draft, *table.sections["first"])
    write_rows(draft, read_nodes(draft))
    follow(draft, *table.sections["then"])
    finish(draft)
    follow_rest(draft)
    for key in sorted(nones - {note.key for note in draft.notes}):
        draft.note(SAME, key, why="as where it is left out")
    if draft.faults:
        raise ConfigError(dict.fromkeys(draft.faults))
    draft.overrides += [f"launcher.num_processes={reading.devices}"] if reading.devices > 1 else []
    return draft


def to_yaml(draft: Draft, head: str) -> str:
    """The experiment as a file of the menu, under a header."""
    defaults = [{f"override /{group}": option} for group, option in draft.choices.items()]
    first = {key: draft.values[key] for key in ("seed", "learning_rate", "kl_coef") if key in draft.values}
    rest = {key: node for key, node in draft.values.items() if node not in ({}, {"args": {}})}
    whole = {"defaults": [*defaults, "_self_"], "name": draft.name} | first | rest
    text = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=80, default_flow_style=False)
    text = re.sub(r"\n(?=name:)", "\n\n", text, count=1)
    return f"# @package _global_\n{head}{text}"


def describe_batch(draft: Draft) -> str:
    """The number of rows that a step takes here, and took there."""
    fields, counts = draft.config.parameters, []
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        count = draft.get(f"trainer.args.{name}") or fields[name].default
        if not isinstance(count, int):
            return "how many rows a step takes is still to be said"
        counts.append(count)
    rows, devices = math.prod(counts), draft.reading.devices
    many = f"; theirs ran on {devices}, so {rows * devices}: launcher.num_processes={devices}" if devices > 1 else ""
    return f"{counts[0]} x {counts[1]} = {rows} rows a step on one device{many}"
