"""Somebody else's configuration -> an experiment of ours, and what became of
each of its keys.

python -m runner import axolotl.yml
python -m runner import train.sh name=mine         conf/experiment/mine.yaml
python -m runner import train.sh to=my/experiment/mine.yaml force=true
python -m runner import dpo.yaml dialect=trl trainer=dpo

Reads YAML, JSON and shell scripts of Axolotl, LLaMA-Factory, ms-swift and TRL's
command line. Whose it is follows from its keys, or from dialect=axolotl,
llama_factory, swift or trl; trainer= is for files of TRL that do not say.

It is written into conf/experiment/ of this folder, where there is such a
folder, and is printed in any case. Nothing that is there is overwritten without
force=true. Each key is listed as mapped, as the same by default, as without
equivalent, or as being of the machine and not of the experiment.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from runner import config
from runner.check import check
from runner.check.top import is_folder_name
from runner.command import is_yes, read_options
from runner.dialect.draft import KINDS, NOTHING, Draft, Note, shown, without_secrets
from runner.dialect.read import DIALECTS, Reading, read_file
from runner.dialect.rule import apply, rows_per_step, settle
from runner.errors import ConfigError, Fault
from runner.files import MENU, write_text
from runner.match import find_mismatches

WIDTH = 80
OPTIONS = ("to", "name", "dialect", "force", "trainer")
HERE = Path("conf/experiment")
LONGEST = 95  # letters of a name; with .yaml it is a file


def main(line: Any) -> int:
    """Translate the file, write or print the experiment, and list what became of each key."""
    options = read_options(line.overrides, OPTIONS, "import")
    if len(line.runs) != 1:
        found = f"{len(line.runs)} of them" if line.runs else "none"
        raise ConfigError(Fault("FILE", found, "one file", "python -m runner import <file>"))
    reading = read_file(Path(line.runs[0]), options.get("dialect"))
    target = _target(options, reading.path)
    name = options.get("name", target.stem if target else name_of(reading.path))
    # It is a part of a path, a line of a comment and a word of the command line.
    if not (is_folder_name(f"{name}.yaml") and re.fullmatch(r"\w[\w.-]*", name)):
        where, expected = "name" if "name" in options else "to", f"letters, digits, _, - and dots, up to {LONGEST}"
        raise ConfigError(Fault(where, repr(name), expected, "name=<word>"))
    draft = translate(reading, name, options.get("trainer"))
    text = to_file(draft, reading)
    if target and target.exists() and not is_yes(options, "force"):
        raise ConfigError(
            Fault(str(target), "it is there already", "a name that is free", "name=<another>, or force=true")
        )
    print(text)
    if target:
        write_text(target, text)
    print("\n".join(told(draft, reading)))
    print("\n".join(_closing(draft, text, target)))
    return 0


def translate(reading: Reading, name: str, trainer: str | None = None) -> Draft:
    """The draft of an experiment from the keys of a file."""
    dialect = import_module(f"runner.dialect.{reading.dialect}").DIALECT
    keys = without_secrets(reading.keys)
    nones = [key for key, value in keys.items() if value == "none" and key not in ("scale_rewards", "report_to")]
    keys |= dict.fromkeys(nones)
    if trainer:
        reading.command = trainer
    theirs = {key: value for key, value in dialect.defaults(keys).items() if keys.get(key) is None}
    draft = Draft(name, keys | theirs, frozenset(theirs))
    dialect.begin(draft, reading)
    apply(draft, dialect)
    for key in sorted(set(nones) - {note.key for note in draft.notes}):
        draft.same(key, "as where it is left out")
    settle(draft, reading.devices)
    return draft


def to_file(draft: Draft, reading: Reading) -> str:
    """The experiment with its header, ready for the menu."""
    words = " ".join(_quoted(word) for word in draft.words)
    head = [
        f"# {DIALECTS[reading.dialect]}'s {reading.path.name}, imported.",
        f"# run: python -m runner experiment={draft.name} {words}".rstrip(),
        *textwrap.wrap(
            f"# cost: not yet timed; {rows_per_step(draft, reading.devices)}", WIDTH, subsequent_indent="#   "
        ),
        "# result: not yet seen",
    ]
    for note in draft.notes:
        if note.key in draft.opened:
            told = f"# open: {note.key}: {shown(note.value)}; {note.why}; {note.ours}"
            head += textwrap.wrap(told, WIDTH, subsequent_indent="#   ")
    return draft.to_yaml("\n".join(head) + "\n")


def name_of(path: Path) -> str:
    """A name for the experiment of a file: its own, in letters that need no quotes."""
    return re.sub(r"[^A-Za-z0-9]+", "_", path.stem).strip("_").lower()[:LONGEST] or "imported"


def faults_of(name: str, text: str, words: list[str]) -> list[Fault]:
    """What keeps the experiment from running as it is written, with the words that still have to be typed."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "experiment" / f"{name}.yaml", text)
        try:
            composed = config.compose([f"experiment={name}", *words], [Path(folder)])
        except ConfigError as error:
            return error.faults
        menu = config.read_menu([Path(folder)])
        allow = tuple(composed.cfg.get("allow") or ())
        faults = check(composed.cfg, menu=menu, allow=allow, typed=composed.typed)
        return faults or find_mismatches(composed.cfg, menu)


# --- What is told ---------------------------------------------------------------------------------


def told(draft: Draft, reading: Reading) -> list[str]:
    """The list of keys by what became of them, 80 letters wide."""
    lines = [f"{reading.path} is of {DIALECTS[reading.dialect]}: {reading.why}"]
    for kind in KINDS:
        notes = [note for note in draft.notes if note.kind == kind]
        if notes:
            lines += ["", f"{kind} ({len(notes)})", *(text for note in notes for text in _lines(note))]
    return [part for text in lines for part in (textwrap.wrap(text, WIDTH) if len(text) > WIDTH else [text])]


def _lines(note: Note) -> list[str]:
    """A note: the key with its value, and below it where it went and why."""
    value = "" if isinstance(note.value, dict | list) else f": {shown(note.value)}"
    said = "(their default) " if note.implied else ""
    first = f"  {note.key}{value}"
    rest = " ".join(filter(None, [said.strip(), _where(note), f"({note.why})" if note.why and note.ours else note.why]))
    if not rest:
        return [_cut(first)]
    if len(first) <= 38 and len(rest) <= WIDTH - 40:
        return [f"{first:<40}{rest}"]
    return [_cut(first), *textwrap.wrap(rest, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)]


def _where(note: Note) -> str:
    return f"nearest: {note.ours}" if note.ours and note.kind == NOTHING else note.ours


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _closing(draft: Draft, text: str, target: Path | None) -> list[str]:
    """Where it is, what to type, and what is missing before it runs."""
    faults = faults_of(draft.name, text, draft.words)
    lines = [
        "",
        f"written   {target}" if target else "printed only: there is no conf/experiment here; to=<file> writes",
    ]
    folder = target.parent.parent if target else Path("<folder>")
    words = [f"experiment={draft.name}", *map(_quoted, draft.words)]
    menu = [] if folder.resolve() == MENU else [f"--config-dir {folder}"]
    lines += _command(["next      python -m runner", *words, *menu, "--dry-run"])
    if faults:
        lines += ["before it runs:", *(str(fault) for fault in faults)]
    return lines


def _command(words: list[str]) -> list[str]:
    """A command on lines of 80 letters, which a shell takes for one."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append(" " * 11 + word)
        else:
            lines[-1] += f" {word}"
    return lines


def _quoted(word: str) -> str:
    return f"'{word}'" if set(word) & set(" []{}$*") else word


def _target(options: dict[str, str], path: Path) -> Path | None:
    """The file to write: the one that is named, or one of the menu of this folder, if there is one."""
    if "to" in options:
        return Path(options["to"])
    return HERE / f"{options.get('name', name_of(path))}.yaml" if HERE.is_dir() else None
