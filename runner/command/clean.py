"""Deletes runs, their checkpoints, or what is drawn of them, after it has listed them and asked.

Without runs it shows which names are large.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from runner.command import CommandLine
from runner.command._deletion import Listing, delete, find_users, list_place
from runner.command._option import read_options
from runner.command._sizes import list_sizes
from runner.command.clean_options import Options
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import display_path
from runner.io.terminal import MAX_LINES, is_terminal, print_visible
from runner.report.number import plural
from runner.run.disk import sized
from runner.run.find import is_run, resolve_word, words_below


def main(line: CommandLine) -> int:
    """List what goes, ask, and delete it; 0 also where nothing is deleted."""
    options = read_options(line, Options)
    root = Path(options.output_root)
    words = words_below(root, line.runs)
    if not words:
        if options.keep or options.yes or options.where is not None:
            raise ConfigError(
                Fault(
                    where="RUN",
                    found="none",
                    expected="the folder of some runs",
                    fix=f"python -m runner clean {root}/<name> where=state=failed",
                )
            )
        print_visible("\n".join(list_sizes(root)))
        return 0
    listing = Listing()
    for place in [resolve_word(word, "clean", root) for word in words]:
        _check_place(place, root, options)
        list_place(listing, place, options.keep, options.where)
    deletions = listing.deletions
    # A run that is deleted whole may be the base of one elsewhere.
    users = {} if options.keep else find_users(root, deletions)
    described = []
    for path, deletion in deletions.items():
        user = users.get(path, "")
        described.append(f"{deletion}{user}")
    _print_list("delete", described)
    _print_list("leave", listing.left)
    total = sized(sum(deletion.bytes for deletion in deletions.values()))
    question = f"{total} in {plural(len(deletions), 'folder')}"
    if deletions and _is_agreed(question, is_typed=options.yes):
        freed = 0
        for deletion in deletions.values():
            freed += delete(deletion)
        print(f"freed     {sized(freed)}")
    return 0


def _check_place(place: Path, root: Path, options: Options) -> None:
    """Refuse a folder that is not among the runs, and all runs of a name without any condition."""
    if root.resolve() not in place.resolve().parents:
        raise FolderError(
            Fault(
                where=display_path(place),
                found=f"it is not in {root}",
                expected="runs of ours, in a folder below output_root",
                fix="output_root=<the folder around the name>",
            )
        )
    if not is_run(place) and not options.keep and options.where is None:
        folder = display_path(place)
        raise ConfigError(
            Fault(
                where=folder,
                found="all runs of a name, without where or keep",
                expected="which runs to delete, or which parts to keep",
                fix=f"python -m runner clean {folder} where=state=failed, or keep=last",
            )
        )


def _print_list(word: str, texts: Sequence[str]) -> None:
    """Print the first of some texts behind a word, and how many more there are."""
    shown = texts[:MAX_LINES] or ["nothing"]
    lines = [f"{word:<9} {text}" for text in shown]
    more = len(texts) - MAX_LINES
    if more > 0:
        lines.append(f"          and {more} more")
    print_visible("\n".join(lines))


def _is_agreed(question: str, *, is_typed: bool) -> bool:
    """True where somebody has typed yes, before or now; else it is said how to."""
    if is_typed:
        return True
    if not is_terminal(sys.stdin):
        print(f"next      the same words and yes=true  (frees {question})")
        return False
    print(f"delete {question}? (y/N) ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
