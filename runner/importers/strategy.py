"""Files of DeepSpeed and accelerate, and keys of FSDP -> words to type, for an experiment has to run anywhere."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.config.dialect import OFF, STRATEGY, read_table
from runner.errors import ConfigError, Fault
from runner.importers.draft import MAPPED, NO_EQUIVALENT, Draft, Note, follow, follow_rest
from runner.importers.read import FILE_TYPES, ForeignConfig, plain, read_named
from runner.schema.text import flatten, last_key, to_override


def read_strategy(draft: Draft) -> None:
    """Have the user type how the training is spread over devices; ConfigError where that is all that a file says."""
    is_all, names = draft.reading.dialect == STRATEGY, read_table(STRATEGY).sections["given"]
    given = {
        key: value
        for key, value in draft.keys.items()
        if (is_all or key in names) and value not in (None, *OFF)
    }
    sizes = [draft.read(key, "whole_number", 1) for key in draft.table.sections.get("copies", ())]
    inner = follow_settings(draft.reading, given, max(1, math.prod(sizes)))
    words = " ".join(inner.overrides) or "strategy=none"
    if is_all:
        odd = "".join(f"; not {note.key}" for note in inner.notes if note.kind == NO_EQUIVALENT)
        raise ConfigError(
            Fault(
                where=f"{draft.reading.path}",
                found=f"how a training is spread over devices, and no training: {words}{odd}",
                expected="a training, with which that is typed",
                fix=f"{words}",
            )
        )
    draft.overrides += [word for word in inner.overrides[-1:] if word[-1].isdigit()]
    draft.spread = inner.overrides if inner.overrides[1:] else []
    rest = {note.key: note for note in inner.notes if note.kind != MAPPED}
    for key in given:
        own = rest.pop(
            key, Note(MAPPED, key, "", words, f"typed; {inner.where}".removesuffix("; "))
        )
        draft.note(own.kind, key, own.target, own.why)
    draft.notes += [replace(note, key=f"{next(iter(given))}.{key}") for key, note in rest.items()]


def follow_settings(reading: ForeignConfig, given: Mapping[str, Any], share: int = 1) -> Draft:
    """A draft of these settings and of those in the files that they name; ``overrides`` are the words to type.

    So many devices as ``share`` hold one copy of the model, where ours hold one each.
    """
    inner = Draft(
        "", read_table(STRATEGY), reading, choices={"trainer": "sft"}, values={"dataset": {}}
    )
    section, waiting, names = inner.table.sections, list(given.items()), []
    while waiting:
        key, value = waiting.pop(0)
        is_name = last_key(key) in section["files"] or str(value).endswith(FILE_TYPES)
        if isinstance(value, str) and is_name and key != "file":
            node = plain(read_named(reading.path, value))
            inner.where = (
                f"read from {value}"
                if node
                else "read from its name, as there is no such file here"
            )
            waiting += node.items() if node and value not in names else [("file", value)]
            names.append(value)
        elif isinstance(value, Mapping) and value:
            waiting += flatten({key: value}).items()
        elif not key.startswith("_"):  # a comment
            inner.keys.setdefault(re.sub(section["short"], "", key).replace(".", "_"), value)
    follow(inner, *inner.table.keys)
    follow_rest(inner)
    counts = inner.values.get("launcher", {})
    machines, processes = counts.get("num_machines", 1), counts.pop("num_processes", 1)
    reading.devices = max(
        1, (processes * machines if "nproc_per_node" in inner.keys else processes) // share
    )
    words = {
        group: name
        for group in ("strategy", "launcher")
        if (name := inner.choices.get(group, "none")) != "none"
    }
    words |= {path: value for path, value in flatten(inner.values).items() if value != {}}
    if words or reading.devices > 1:
        words["launcher.num_processes"] = (
            reading.devices // machines if reading.devices > 1 else "N"
        )
    inner.overrides = [to_override(*word) for word in words.items()]
    return inner
