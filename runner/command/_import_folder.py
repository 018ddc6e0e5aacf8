"""``import FOLDER``: each file that trains becomes an experiment, and a table says how well."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.command._import_text import WIDTH, to_file
from runner.command._imported_experiment import (
    ALREADY_THERE,
    HERE,
    check_free,
    faults_of,
    write_experiment,
)
from runner.command.import_options import Options
from runner.errors import ConfigError, Fault
from runner.importers.draft import IGNORED, MAPPED, NO_EQUIVALENT, SAME, Draft
from runner.importers.experiment_content import name_of
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.io.filetype import TRAINING_FILES
from runner.io.terminal import print_visible
from runner.report.table import Column, format_table

MAX_FILES = 2000
KIND_TITLES = {MAPPED: "mapped", SAME: "same", NO_EQUIVALENT: "lost", IGNORED: "machine"}
READY = "dry run"
LEGEND = (
    "Keys of a file are mapped, the same by default, lost (no equivalent), or of the machine. "
    "To do: type words that only the command line may say, set values that the file does not hold; "
    "a dry run checks rows and models."
)


@dataclass(frozen=True)
class ImportedFile:
    """An experiment that was written, and what is left to do before it trains."""

    draft: Draft
    to_do: str

    def count(self, kind: str) -> str:
        """The number of keys of a kind."""
        return str(sum(note.kind == kind for note in self.draft.notes))


def import_folder(folder: Path, options: Options) -> None:
    """Write an experiment for each file below a folder that trains, and print the table.

    Raises ConfigError where no file trains, or where an option is for one file only.
    """
    _check_options(options)
    files = _find_files(folder)
    imported: list[ImportedFile] = []
    left_out: dict[Path, str] = {}
    for file, name in _name_files(files, folder).items():
        try:
            imported.append(_import_one(file, name, options))
        except ConfigError as error:
            first = error.faults[0]
            left_out[file] = f"{first.found}; {first.expected} expected"
    if not imported:
        raise ConfigError(_find_nothing_fault(folder, left_out))
    print_visible("\n".join(_describe(folder, imported, left_out)))


def _find_nothing_fault(folder: Path, left_out: dict[Path, str]) -> Fault:
    """The fault of a folder of which nothing was imported."""
    if any(why.startswith(ALREADY_THERE) for why in left_out.values()):
        return Fault(
            where=str(folder),
            found=f"all of its trainings are in {HERE}/ already",
            expected="experiments that are not there yet",
            fix="force=true, which replaces them",
        )
    return Fault(
        where=str(folder),
        found=f"none of its {len(left_out)} files is a training of a tool that is known",
        expected=f"configurations or scripts: {', '.join(TRAINING_FILES)}",
        fix="python -m runner import <a file of it>, which says why",
    )


def _check_options(options: Options) -> None:
    """Raise ConfigError with each option that is for one file only."""
    faults = []
    for key in ("to", "name"):
        if getattr(options, key) is not None:
            faults.append(
                Fault(
                    where=key,
                    found="one name for all files of a folder",
                    expected="experiments that are named as their files",
                    fix=f"leave {key} out",
                )
            )
    ConfigError.refuse(faults)


def _find_files(folder: Path) -> list[Path]:
    """The files below a folder that could be read.

    Those in hidden folders are left out, and experiments that were written here.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        is_written_here = path.resolve().is_relative_to(HERE.resolve())
        is_readable = path.suffix in TRAINING_FILES and path.is_file()
        if is_readable and not is_hidden and not is_written_here:
            files.append(path)
    if len(files) > MAX_FILES:
        raise ConfigError(
            Fault(
                where=str(folder),
                found=f"{len(files):,} files",
                expected=f"up to {MAX_FILES:,}",
                fix=f"python -m runner import {folder}/<a folder in it>",
            )
        )
    return files


def _name_files(files: Sequence[Path], folder: Path) -> dict[Path, str]:
    """A name for each file: its own, with as many of its folders in front as tell it apart."""
    names: dict[Path, str] = {}
    depth = 1
    unnamed = list(files)
    while unnamed:
        by_name: dict[str, list[Path]] = {}
        for file in unnamed:
            parts = file.relative_to(folder).with_suffix("").parts
            name = name_of(Path("_".join(parts[-depth:]) + file.suffix))
            by_name.setdefault(name, []).append(file)
        unnamed = []
        for name, namesakes in by_name.items():
            deepest = max(len(file.relative_to(folder).parts) for file in namesakes)
            if len(namesakes) == 1 and name not in names.values():
                names[namesakes[0]] = name
            elif depth < deepest:
                unnamed += namesakes
            else:  # they differ in nothing but characters that no name has
                for number, file in enumerate(namesakes, start=1):
                    names[file] = f"{name}_{number}"
        depth += 1
    return {file: names[file] for file in files}


def _import_one(file: Path, name: str, options: Options) -> ImportedFile:
    """Write the experiment of a file; ConfigError where it is no training, or is there already."""
    target = HERE / f"{name}.yaml"
    reading = read_file(file, options.dialect)
    draft = translate(reading, name, options.trainer)
    check_free(target, force=options.force)
    text = to_file(draft)
    faults = faults_of(name, text, draft.overrides)
    write_experiment(text, target)
    things = []
    if draft.overrides:
        things.append(f"type {len(draft.overrides)}")
    if faults:
        things.append(f"set {len(faults)}")
    return ImportedFile(draft, ", ".join(things) or READY)


# --- The table ------------------------------------------------------------------------------------


def _describe(
    folder: Path, imported: Sequence[ImportedFile], left_out: dict[Path, str]
) -> Iterator[str]:
    """The table of the experiments, the files that were left out, and the next command."""
    drafts = [file.draft for file in imported]
    columns = [
        Column("experiment", [draft.name for draft in drafts], needed=True, left=True),
        Column("to do", [file.to_do for file in imported], needed=True, left=True),
        Column("trainer", [draft.trainer for draft in drafts], left=True),
    ]
    for kind, title in KIND_TITLES.items():
        columns.append(Column(title, [file.count(kind) for file in imported]))
    tools = [draft.table.sections["title"] for draft in drafts]
    columns.append(Column("tool", tools, left=True))
    yield from format_table(columns, WIDTH)
    yield ""
    yield from textwrap.wrap(LEGEND, WIDTH)
    if left_out:
        yield ""
        yield f"left out ({len(left_out)})"
    for file, why in left_out.items():
        line = f"  {file.relative_to(folder)}: {why}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * 6)
    ready = [file for file in imported if file.to_do == READY]
    yield ""
    count = len(imported) + len(left_out)
    yield f"written   {len(imported)} of {count} files to {HERE}/"
    candidates = ready or imported
    name = candidates[0].draft.name
    yield f"next      python -m runner experiment={name} --dry-run"
