"""Files of other tools among the words: each is translated, and read as an experiment of ours.

A file is of another tool if it is a script, or has keys that a tool has and we have not. What only
the command line may say has to be typed beside it.
"""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.config.dialect import STRATEGY, find_dialects, read_sections
from runner.config.experiment_file import Translation, keep_translation, read_mapping
from runner.config.groups import GROUPS
from runner.config.override import dotted_key, is_experiment_file
from runner.errors import ConfigError, Fault, FolderError
from runner.importers.draft import IGNORED, MAPPED, NO_EQUIVALENT, SAME, Draft
from runner.importers.experiment_content import content_of, name_of
from runner.importers.foreign_config import FILE_TYPES
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.run import FORMAT
from runner.run.folder import format_fault
from runner.schema.text import flatten
from runner.validate.context import TOP

# Keys that no other tool has, and those of them that are in a file of ours beside mistakes.
OURS = {*TOP, *GROUPS, "defaults", "stages", "format", "hydra", "experiment"}
TELLING = {"trainer", "defaults", "stages", "format", "experiment", "output_root"}
PROCESSES = "launcher.num_processes"


def translate_files(overrides: Sequence[str]) -> list[str]:
    """Translate each file of another tool that is chosen as an experiment.

    Returns lines that say what became of its keys. Raises ConfigError where something has to be
    typed besides.
    """
    lines: list[str] = []
    for word in overrides:
        if dotted_key(word) != "experiment":
            continue
        for name in word.partition("=")[2].strip("'").split(","):
            if is_experiment_file(name) and _is_foreign(Path(name).expanduser()):
                lines += _translate_file(name, overrides)
    return lines


def _is_foreign(file: Path) -> bool:
    """True for a script, and for keys that a tool has and we have not.

    Raises FolderError for the config.yaml of a run of another format.
    """
    if file.suffix not in FILE_TYPES:
        return True
    content = read_mapping(file)
    if content.get("format", FORMAT) != FORMAT:
        raise FolderError(format_fault(file.parent, content["format"]))
    keys = {str(key).partition(".")[0] for key in content}
    strange = keys - OURS
    tables = [*find_dialects().values(), read_sections()[STRATEGY]]
    # Keys that no file of ours has, whatever else it holds.
    if any(strange.intersection(table.get("sure", ())) for table in tables):
        return True
    if keys & TELLING or not strange:
        return False
    for table in tables:
        if strange.intersection(table["marks"]):
            return True
    return False


def _translate_file(name: str, overrides: Sequence[str]) -> Iterator[str]:
    """Have a file read as its translation, and say what became of its keys."""
    typed = {dotted_key(word): word.partition("=")[2] for word in overrides}
    file = Path(name).expanduser()
    try:
        reading = read_file(file)
    except ConfigError as error:
        faults = []
        for fault in error.faults:
            if fault.fix.startswith("dialect="):  # its tool is not known; import has a word for it
                words = shlex.join(["python", "-m", "runner", "import", name])
                fault = replace(fault, fix=f"{words} name={name_of(file)} {fault.fix}")
            faults.append(fault)
        raise ConfigError(faults) from None
    trainer = None if reading.command else typed.get("trainer")
    draft = translate(reading, name_of(file), trainer)
    content = content_of(draft)
    # The number of processes may stand in a file.
    for word in draft.overrides:
        if dotted_key(word) == PROCESSES:
            content["launcher"] = {"num_processes": int(word.partition("=")[2])}
    ConfigError.refuse(_find_missing_words(draft, typed, name))
    flat = flatten(content)
    sources = {}
    for note in draft.notes:
        path = note.target.partition(":")[0]
        if note.kind == MAPPED and path in flat:
            sources[path] = f"default of {note.key}" if note.implied else note.key
    keep_translation(file, Translation(content, sources))
    yield from _describe(draft, name)


def _find_missing_words(draft: Draft, typed: Collection[str], name: str) -> Iterator[Fault]:
    """A fault for all words that have to be typed, and one for each value that is not said."""
    words = []
    for word in draft.overrides:
        key = dotted_key(word)
        if key != PROCESSES and key not in typed:
            words.append(word)
    if words:
        yield Fault(
            where=name,
            found="it asks for what only the command line may say",
            expected="the same command with more words, if you trust what they name",
            fix=" ".join(shlex.quote(word) for word in words),
        )
    for note in draft.notes:
        if note.key in draft.unset and dotted_key(note.target) not in typed:
            yield Fault(
                where=f"{name}: {note.key}",
                found=note.why,
                expected="the same command with a value",
                fix=note.target,
            )


def _describe(draft: Draft, name: str) -> Iterator[str]:
    """Lines that count what became of the keys of a file, and name those that were lost."""
    title = draft.table.sections["title"]
    counts = []
    for kind, text in ((MAPPED, "taken over"), (SAME, "the same by default"), (IGNORED, "ignored")):
        count = sum(note.kind == kind for note in draft.notes)
        if count:
            counts.append(f"{count} {text}")
    lost = dict.fromkeys(note.key for note in draft.notes if note.kind == NO_EQUIVALENT)
    yield f"imported  {name}, of {title}: {', '.join(counts) or 'no keys'}"
    if lost:
        yield f"          no equivalent: {', '.join(lost)}"
    if draft.spread:
        yield f"          on GPUs, type also {' '.join(draft.spread)}"
    words = shlex.join(["import", name])
    yield f"          each key: python -m runner {words}"
