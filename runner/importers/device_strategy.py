"""Files of DeepSpeed and accelerate, and keys of FSDP -> words to type.

An experiment has to run anywhere, so its file never says over how many devices it is spread.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from runner.config.conversion import plain, to_whole_number
from runner.config.dialect import OFF, STRATEGY, read_table
from runner.errors import ConfigError, Fault
from runner.importers.draft import MAPPED, NO_EQUIVALENT, SAME, Draft, Note
from runner.importers.follow import follow, follow_rest
from runner.importers.foreign_config import FILE_TYPES, ForeignConfig, Keys, read_named
from runner.schema.text import flatten, last_key, to_override


def read_strategy(draft: Draft) -> None:
    """Have the user type how the training is spread over devices, and note each key that says it.

    Raises ConfigError where a file says nothing else.
    """
    their_keys = _find_their_keys(draft)
    keys: Keys = {name: draft.keys[key] for name, key in their_keys.items()}
    # As many devices hold one copy of the model as the product of these sizes says.
    copy_size = 1
    for key in draft.table.sections.get("copies", ()):
        copy_size *= draft.read(key, to_whole_number, 1)
    strategy = follow_settings(draft.reading, keys, max(1, copy_size))
    words = " ".join(strategy.overrides) or "strategy=none"
    if draft.reading.dialect == STRATEGY:
        lost = [f"; not {note.key}" for note in strategy.notes if note.kind == NO_EQUIVALENT]
        found = f"how a training is spread over devices, and no training: {words}"
        raise ConfigError(
            Fault(
                where=str(strategy.reading.path),
                found=found + "".join(lost),
                expected="a training, with which that is typed",
                fix=words,
            )
        )

    # The number of processes counts on any machine, all other words only where there are GPUs.
    for word in strategy.overrides[-1:]:
        if word[-1].isdigit():
            draft.overrides.append(word)
    if len(strategy.overrides) > 1:
        draft.spread = strategy.overrides
    notes = {note.key: note for note in strategy.notes if note.kind != MAPPED}
    why = f"typed; {strategy.where}".removesuffix("; ")
    for key in keys:
        typed = Note(MAPPED, key, value="", target=words, why=why)
        note = notes.pop(key, typed)
        draft.note(note.kind, their_keys[key], note.target, note.why)
    # Notes that are left are on settings in a file that one of the keys names.
    for key, note in notes.items():
        first_key = next(iter(keys))
        draft.notes.append(replace(note, key=f"{first_key}.{key}"))


def _find_their_keys(draft: Draft) -> dict[str, str]:
    """The keys that say how a training is spread, by the names that our table has for them.

    The section ``spread`` of a dialect has those that it calls otherwise.
    """
    is_strategy_alone = draft.reading.dialect == STRATEGY
    names = read_table(STRATEGY).sections["given"]
    other_names = draft.table.sections.get("spread", {})
    their_keys: dict[str, str] = {}
    for key, value in draft.keys.items():
        name = other_names.get(key, key)
        is_setting = is_strategy_alone or name in names
        if not is_setting or value in (None, *OFF):
            continue
        if name in their_keys:
            draft.note(SAME, key, why=f"{their_keys[name]} counts")
        else:
            their_keys[name] = key
    return their_keys


def follow_settings(
    reading: ForeignConfig, settings: Mapping[str, object], copy_size: int = 1
) -> Draft:
    """A draft of these settings, and of those in the files that they name.

    Its ``overrides`` are the words to type, the number of processes last; ``where`` says which
    file was read. ``copy_size`` devices hold one copy of the model, where ours hold one each. The
    number of devices is set in ``reading``.
    """
    draft = Draft(
        "", read_table(STRATEGY), reading, choices={"trainer": "sft"}, values={"dataset": {}}
    )
    _add_settings(draft, settings)
    follow(draft, *draft.table.keys)
    follow_rest(draft)

    launcher = draft.values.get("launcher", {})
    machines: int = launcher.get("num_machines", 1)
    processes: int = launcher.pop("num_processes", 1)
    # torchrun counts the processes of one machine, accelerate those of all.
    if "nproc_per_node" in draft.keys:
        processes *= machines
    reading.devices = max(1, processes // copy_size)

    words: dict[str, object] = {}
    for group in ("strategy", "launcher"):
        option = draft.choices.get(group, "none")
        if option != "none":
            words[group] = option
    for path, value in flatten(draft.values).items():
        if value != {}:
            words[path] = value
    if reading.devices > 1:
        words["launcher.num_processes"] = max(1, reading.devices // machines)
    elif words:
        words["launcher.num_processes"] = "N"
    draft.overrides = [to_override(path, value) for path, value in words.items()]
    return draft


def _add_settings(draft: Draft, settings: Mapping[str, object]) -> None:
    """Add settings to a draft under their short names, those of files that they name as well.

    What is said first counts. A file that is not there counts by its name.
    """
    section = draft.table.sections
    waiting = list(settings.items())
    files = []
    while waiting:
        key, value = waiting.pop(0)
        is_of_file = last_key(key) in section["files"] or str(value).endswith(FILE_TYPES)
        if isinstance(value, str) and is_of_file and key != "file":
            inner_settings = plain(read_named(draft.reading.path, value))
            draft.where = "read from its name, as there is no such file here"
            if inner_settings:
                draft.where = f"read from {value}"
            # A file may name itself.
            if inner_settings and value not in files:
                waiting += inner_settings.items()
            else:
                waiting.append(("file", value))
            files.append(value)
        elif isinstance(value, Mapping) and value:
            waiting += flatten({key: value}).items()
        elif not key.startswith("_"):  # such a key is a comment
            name = re.sub(section["short"], "", key).replace(".", "_")
            draft.keys.setdefault(name, value)
