"""Turns somebody else's configuration into an experiment, and lists what became of each key."""

import re
import tempfile
import textwrap
from pathlib import Path

from runner.command import CommandLine
from runner.command._editor_schemas import FOLDER, schema_line
from runner.command._import_text import WIDTH, describe, quoted_words, to_file
from runner.command._option import read_options
from runner.command.import_options import Options
from runner.config.composition import compose
from runner.errors import ConfigError, Fault
from runner.importers.draft import Draft
from runner.importers.foreign_file import read_file
from runner.importers.translate import MAX_NAME_LETTERS, name_of, translate
from runner.io.files import MENU, write_text
from runner.io.terminal import print_visible
from runner.launch.compose import stages
from runner.validate.values_at_keys import is_folder_name

HERE = Path("conf/experiment")


def main(line: CommandLine) -> int:
    """Translate the file, write or print the experiment, and list what became of each key."""
    options = read_options(line, Options)
    if len(line.runs) != 1:
        found = f"{len(line.runs)} of them" if line.runs else "none"
        raise ConfigError(
            Fault(
                where="FILE",
                found=found,
                expected="one file",
                fix="python -m runner import <file>",
            )
        )
    reading = read_file(Path(line.runs[0]), options.dialect)
    name = _name_of_experiment(options, reading.path)
    target = None
    if options.to is not None:
        target = Path(options.to)
    elif HERE.is_dir() or options.name is not None:
        target = HERE / f"{name}.yaml"
    draft = translate(reading, name, options.trainer)
    text = to_file(draft)
    if target and (target.parent.parent / FOLDER / "experiment.json").is_file():
        text = text.replace("\n# cost:", f"\n{schema_line(text, 'experiment')}\n# cost:", 1)
    if target and target.exists() and not options.force:
        raise ConfigError(
            Fault(
                where=str(target),
                found="it already exists",
                expected="a free name",
                fix="name=<another>, or force=true",
            )
        )
    print_visible(text)
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
        words = _words_to_check(draft, target)
    else:
        words = ["import", *line.runs, *line.overrides, f"to={HERE / name}.yaml"]
    written = "printed only: there is no conf/experiment here; name=<word> makes it"
    if target:
        written = f"written   {target}"
    lines = [*describe(draft), "", written, *_describe_next(draft, text, words)]
    print_visible("\n".join(lines))
    return 0


def _name_of_experiment(options: Options, file: Path) -> str:
    """The name that was typed, else that of the file; ConfigError for one that cannot be used.

    It is a part of a path, a line of a comment and a word of the command line.
    """
    name = options.name
    if name is None:
        name = name_of(file) if options.to is None else Path(options.to).stem
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


def faults_of(name: str, text: str, words: list[str]) -> list[Fault]:
    """The faults that keep an experiment from running; ``words`` have to be typed with it."""
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        write_text(folder / "experiment" / f"{name}.yaml", text)
        try:
            composed = compose([f"experiment={name}", *words], [folder])
            return stages.faults_of(composed, [folder])
        except ConfigError as error:
            return error.faults


# --- The next command -----------------------------------------------------------------------------
def _words_to_check(draft: Draft, target: Path) -> list[str]:
    """The words that check the experiment where it was written."""
    words = quoted_words(draft)
    folder = target.parent.parent
    if folder.resolve() not in (MENU, HERE.parent.resolve()):
        words += ["--config-dir", str(folder)]
    return [*words, "--dry-run"]


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
