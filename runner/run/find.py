"""The folder of the run that a word of the command line means.

A word means a run as its folder, as a name with one run, as ``<name>/<run>``, or as a run's key.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from runner.errors import Fault, FolderError
from runner.io.files import display_path
from runner.run.layout import METADATA
from runner.schema.did_you_mean import best_guess

MIN_LIKENESS = 0.65  # of a word and the name of a run that may be meant


def is_run(folder: Path) -> bool:
    """True for the folder of a run, even of one whose config was lost."""
    for name in METADATA[:3]:
        if os.path.isfile(f"{folder}/{name}"):
            return True
    return False


def find_folders(group: Path) -> list[Path]:
    """The folders of the runs of a name, in the order of their names."""
    folders = []
    for name in sorted(os.listdir(group)):
        path = group / name
        if not name.startswith(".") and is_run(path):
            folders.append(path)
    return folders


def find_group(word: str, root: Path) -> Path | None:
    """The folder around the runs of a name; None for a word that is no such name."""
    for path in (Path(word), root / word):
        if path.is_dir() and any(map(is_run, path.glob("[!.]*"))):
            return path
    return None


def words_below(root: Path, words: Sequence[str]) -> list[str]:
    """The words without the folder of all names, which means the same as no word at all."""
    return [word for word in words if Path(word).absolute() != root.absolute()]


def resolve_word(word: str, verb: str, root: Path) -> Path:
    """The folder around the runs of a name, or that of one run; FolderError where it is none."""
    folder = find_group(word, root) or find_run(word, verb, root)
    if isinstance(folder, Fault):
        raise FolderError(folder)
    return folder


def find_run(word: str, verb: str, root: Path) -> Path | Fault:
    """The folder of the run that a word means, or the fault of a word that means none or several.

    ``verb`` is the command with its words so far, for the fix.
    """
    # As a path from here, or below the folder of all runs.
    places = [path for path in (Path(word), root / word) if path.is_dir()]
    for path in places:
        if is_run(path):
            return path
    candidates: list[Path] = []
    for path in places:
        if not candidates:
            candidates = find_folders(path)
    if word and not places:  # perhaps the key of a run, with which its folder's name ends
        paths = sorted(root.glob(f"*/*-{word}"))
        candidates = [path for path in paths if is_run(path)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        return Fault(
            where=word,
            found=f"{len(candidates)} runs",
            expected="one of them",
            fix=f"python -m runner {verb} {display_path(candidates[-1])}",
        )
    fix = "python -m runner report  (lists the runs)"
    alike = _find_alike(word, root)
    if alike:
        fix = f"python -m runner {verb} {display_path(alike)}"
    return Fault(
        where=word,
        found="it contains no run" if places else "no such folder",
        expected=f"the folder of a run, such as {root}/<name>/<run>",
        fix=fix,
    )


def _find_alike(word: str, root: Path) -> Path | None:
    """The run whose folder or name looks most like a word."""
    folders: list[Path] = []
    for group in sorted(root.glob("[!.]*")):
        if group.is_dir():
            folders += find_folders(group)
    folders_by_name = {str(path.relative_to(root)): path for path in folders}
    folders_by_name |= {path.parent.name: path for path in folders}
    path = Path(word)
    group_and_run = "/".join(path.parts[-2:])
    for tail in (group_and_run, path.name):
        name = best_guess(tail, folders_by_name, cutoff=MIN_LIKENESS)
        if name:
            return folders_by_name[name]
    return None
