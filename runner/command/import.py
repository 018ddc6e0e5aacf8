"""Turns somebody else's configuration into an experiment, and lists what became of each key."""

import re
import textwrap
from pathlib import Path

from runner.command import CommandLine
from runner.command._import_folder import import_folder
from runner.command._import_text import WIDTH, describe, quoted_words, to_file
from runner.command._imported_experiment import HERE, check_free, faults_of, write_experiment
from runner.command._option import read_options
from runner.command.import_options import Options
from runner.errors import ConfigError, Fault
from runner.importers.draft import Draft
from runner.importers.experiment_content import MAX_NAME_LETTERS, name_of
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.io.files import MENU
from runner.io.terminal import print_visible
from runner.validate.values_at_keys import is_folder_name

PRINTED_ONLY = "none"  # the value of to= with which nothing is written


def main(line: CommandLine) -> int:
    """Translate the file, write or print the experiment, and list what became of each key."""
    options = read_options(line, Options)
    if len(line.runs) != 1:
        found = f"{len(line.runs)} of them" if line.runs else "none"
        raise ConfigError(
            Fault(
                where="FILE",
                found=found,
                expected="one file, or one folder of them",
                fix="python -m runner import <file>",
            )
        )
    source = Path(line.runs[0])
    if source.is_dir():
        import_folder(source, options)
        return 0
    reading = read_file(source, options.dialect, options.branch)
    name = _name_of_experiment(options, reading.path)
    target = None
    if options.to != PRINTED_ONLY:
        target = Path(options.to or HERE / f"{name}.yaml")
        check_free(target, force=options.force)
    draft = translate(reading, name, options.trainer)
    text = to_file(draft)
    if target:
        text = write_experiment(text, target)
        words = _words_to_train(draft, target)
        written = f"written   {target}"
    else:
        words = ["import", *line.runs, f"name={name}"]
        written = "printed only"
    print_visible(text)
    lines = [*describe(draft), "", written, *_describe_next(draft, text, words)]
    print_visible("\n".join(lines))
    return 0


def _name_of_experiment(options: Options, file: Path) -> str:
    """The name that was typed, else that of the file; ConfigError for one that cannot be used.

    It is a part of a path, a line of a comment and a word of the command line.
    """
    name = options.name
    if name is None:
        has_target = options.to not in (None, PRINTED_ONLY)
        name = Path(str(options.to)).stem if has_target else name_of(file)
    if not is_folder_name(f"{name}.yaml") or not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            Fault(
                where="to" if options.name is None else "name",
                found=repr(name),
                expected=f"letters, digits, _, - and dots, up to {MAX_NAME_LETTERS}",
                fix="name=<word>",
            )
        )
    return name


# --- The next command -----------------------------------------------------------------------------
def _words_to_train(draft: Draft, target: Path) -> list[str]:
    """The words that train the experiment where it was written."""
    words = quoted_words(draft)
    folder = target.parent.parent
    if folder.resolve() not in (MENU, HERE.parent.resolve()):
        words += ["--config-dir", str(folder)]
    return words


def _describe_next(draft: Draft, text: str, words: list[str]) -> list[str]:
    """The command to type next, that for GPUs, and the faults that would end both."""
    # No word is broken over two lines.
    unbroken = [word.replace(" ", "\0") for word in ("next      python -m runner", *words)]
    command = textwrap.wrap(
        " ".join(unbroken),
        WIDTH - 2,
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [" \\\n".join(command).replace("\0", " ")]
    faults = faults_of(draft.name, text, draft.overrides)
    if draft.spread:
        lines.append(f"on GPUs   and {' '.join(draft.spread)}")
        spread = [word.replace("=N", "=4") for word in draft.spread]
        faults = faults or faults_of(draft.name, text, [*draft.overrides, *spread])
    if faults:
        lines.append("before it runs:")
        lines += map(str, faults)
    return lines
