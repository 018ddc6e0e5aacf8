"""A configuration that was read -> the draft of an experiment, by the table of its dialect.

The reader of each tool does what no table can say: datasets, rewards, and the little that follows
from several keys.
"""

from dataclasses import replace

from runner.config.dialect import read_table
from runner.errors import ConfigError
from runner.importers.device_strategy import read_strategy
from runner.importers.draft import SAME, Draft
from runner.importers.follow import follow, follow_rest
from runner.importers.foreign_config import ForeignConfig
from runner.importers.readers import find_reader

VALUE_NONE = ("scale_rewards", "report_to")  # keys of which none is a value


def translate(reading: ForeignConfig, name: str, trainer: str | None = None) -> Draft:
    """The draft of an experiment; ConfigError with every value that cannot be taken.

    ``trainer`` takes the place of the subcommand in the file.
    """
    table = read_table(reading.dialect)
    draft = Draft(name, table, replace(reading, command=trainer or reading.command))
    draft.add(reading.keys)
    draft.keys |= reading.facts
    draft.handled |= reading.facts.keys()
    none_keys = set()
    for key, value in draft.keys.items():
        if value == "none" and key.split(".")[-1] not in VALUE_NONE:
            none_keys.add(key)
            draft.keys[key] = None
    for default in table.defaults:
        if draft.meets(default):
            draft.imply(default.give)
    follow(draft, *table.sections["first"])
    read_strategy(draft)
    read = find_reader(reading.dialect)
    read(draft)
    for key in reading.unknown:
        draft.ask_for_code(key)
    follow_rest(draft)
    noted_keys = {note.key for note in draft.notes}
    for key in sorted(none_keys - noted_keys):
        draft.note(SAME, key, why="as where it is left out")
    for key, remark in reading.overridden.items():
        draft.keys[key] = remark.value
        draft.note(SAME, key, why=remark.why)
    for key, remark in reading.remarks.items():
        draft.keys[key] = remark.value
        draft.no_equivalent(key, remark.why)
    ConfigError.refuse(draft.faults)
    return draft
