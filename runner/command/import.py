"""Turns somebody else's configuration into an experiment of ours, and says what became of each of its keys."""

import math
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import yaml

from runner import config
from runner.command import CommandLine, read_options
from runner.config.dialect import to_single_line
from runner.errors import ConfigError, Fault
from runner.importers.draft import KINDS, NO_EQUIVALENT, Draft
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.io.files import MENU, write_text
from runner.io.terminal import print_visible
from runner.io.visible import to_visible, visible_lines
from runner.launch.compose import stages
from runner.schema.text import select
from runner.validate.stray import is_folder_name

WIDTH = 80
HERE = Path("conf/experiment")
MAX_NAME_LETTERS = 95  # with .yaml it is a file


def main(line: CommandLine) -> int:
    """Translate the file, write or print the experiment, and list what became of each key."""
    options = read_options(line.overrides, "import")
    if len(line.runs) != 1:
        found = f"{len(line.runs)} of them" if line.runs else "none"
        raise ConfigError(Fault("FILE", found, "one file", "python -m runner import <file>"))
    reading = read_file(Path(line.runs[0]), options.get("dialect"))
    name = options.get(
        "name", Path(options["to"]).stem if "to" in options else name_of(reading.path)
    )
    # It is a part of a path, a line of a comment and a word of the command line.
    if not (is_folder_name(f"{name}.yaml") and re.fullmatch(r"\w[\w.-]*", name)):
        where, expected = (
            "name" if "name" in options else "to",
            "letters, digits, _, - and dots, up to",
        )
        raise ConfigError(Fault(where, repr(name), f"{expected} {MAX_NAME_LETTERS}", "name=<word>"))
    target = (
        Path(options["to"]) if "to" in options else HERE / f"{name}.yaml" if HERE.is_dir() else None
    )
    draft = translate(reading, name, options.get("trainer"))
    text = to_file(draft)
    if target and target.exists() and not options.get("force"):
        raise ConfigError(
            Fault(
                where=f"{target}",
                found="it already exists",
                expected="a free name",
                fix="name=<another>, or force=true",
            )
        )
    print_visible(text)
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    target_words = (
        [] if target else ["import", *line.runs, *line.overrides, f"to={HERE / name}.yaml"]
    )
    print_visible(
        "\n".join([*describe(draft), "", *_describe_next(draft, text, target, target_words)])
    )
    return 0


def name_of(path: Path) -> str:
    """A name for the experiment of a file: its own, in letters that need no quotes."""
    return (
        re.sub(r"[^A-Za-z0-9]+", "_", path.stem).strip("_").lower()[:MAX_NAME_LETTERS] or "imported"
    )


def to_file(draft: Draft) -> str:
    """The experiment with its header, ready for the menu."""
    head = [
        f"# {draft.table.sections['title']}'s {draft.reading.path.name}, imported.",
        f"# run: {' '.join(['python -m runner', *_overrides(draft)])}",
        f"# cost: not yet timed; {_describe_batch(draft)}",
        "# result: not yet seen",
    ]
    head += [f"# on GPUs: {' '.join(draft.spread)}"] if draft.spread else []
    for note in (note for note in draft.notes if note.key in draft.unset):
        question = f"# open: {note.key}: {to_single_line(note.value)}; {note.why}; {note.target}"
        head += textwrap.wrap(question, WIDTH, subsequent_indent="#   ")
    defaults = [{f"override /{group}": option} for group, option in draft.choices.items()]
    first = {
        key: draft.values[key]
        for key in ("seed", "learning_rate", "kl_coef")
        if key in draft.values
    }
    rest = {key: node for key, node in draft.values.items() if node not in ({}, {"args": {}})}
    whole = {"defaults": [*defaults, "_self_"], "name": draft.name} | first | rest
    # what they wrote may break a line, or hide one
    head = [to_visible(re.sub(r"\s", " ", line)) for line in head]
    how = {"sort_keys": False, "width": 80, "default_flow_style": False}
    text = yaml.safe_dump(whole, allow_unicode=True, **how)
    text = text if visible_lines(text) == text else yaml.safe_dump(whole, **how)
    return "\n".join(["# @package _global_", *head, re.sub(r"\n(?=name:)", "\n\n", text, count=1)])


def _describe_batch(draft: Draft) -> str:
    if "batch" in draft.values:
        return f"{draft.values['batch']} rows a step of all devices together"
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    fields = draft.config.parameters
    counts: list[Any] = [
        select(draft.values, f"trainer.args.{name}") or fields[name].default for name in names
    ]
    if not all(isinstance(count, int) for count in counts):
        return "the number of rows per step is still to be set"
    rows, devices = math.prod(counts), draft.reading.devices
    many = (
        f"; theirs ran on {devices}, so {rows * devices}: launcher.num_processes={devices}"
        if devices > 1
        else ""
    )
    return f"{counts[0]} x {counts[1]} = {rows} rows a step on one device{many}"


def _overrides(draft: Draft) -> list[str]:
    words = [f"experiment={draft.name}", *draft.overrides]
    return [f"'{word}'" if set(word) & set(" []{}$*") else word for word in words]


def faults_of(name: str, text: str, words: list[str]) -> list[Fault]:
    """The faults that keep the experiment from running as it is written, with the words that have to be typed."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / "experiment" / f"{name}.yaml", text)
        try:
            return stages.faults_of(
                config.compose([f"experiment={name}", *words], [Path(folder)]), [Path(folder)]
            )
        except ConfigError as error:
            return error.faults


def describe(draft: Draft) -> list[str]:
    """The list of keys by what became of them, 80 letters wide: beside or below each where it went and why."""
    lines = textwrap.wrap(
        f"{draft.reading.path} is of {draft.table.sections['title']}: {draft.reading.why}", WIDTH
    )
    for kind in KINDS:
        notes = [note for note in draft.notes if note.kind == kind]
        lines += ["", f"{kind} ({len(notes)})"] if notes else []
        for note in notes:
            key = f"  {note.key}" + (
                "" if isinstance(note.value, dict | list) else f": {to_single_line(note.value)}"
            )
            ours = (
                f"nearest: {note.target}" if note.target and kind == NO_EQUIVALENT else note.target
            )
            why = f"({note.why})" if note.why and note.target else note.why
            rest = " ".join(filter(None, ["(their default)" if note.implied else "", ours, why]))
            if rest and len(key) <= 38 and len(rest) <= WIDTH - 40:
                lines.append(f"{key:<40}{rest}")
            else:
                lines.append(key if len(key) <= WIDTH else f"{key[: WIDTH - 3]}...")
                lines += textwrap.wrap(
                    rest, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6
                )
    return lines


def _describe_next(draft: Draft, text: str, target: Path | None, words: list[str]) -> list[str]:
    if target:
        folder = target.parent.parent
        words = [
            *_overrides(draft),
            *([] if folder.resolve() == MENU else ["--config-dir", str(folder)]),
            "--dry-run",
        ]
    # no word is broken
    whole = " ".join(word.replace(" ", "\0") for word in ("next      python -m runner", *words))
    lines = textwrap.wrap(
        whole, WIDTH - 2, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False
    )
    command = " \\\n".join(lines).replace("\0", " ")
    faults = faults_of(draft.name, text, draft.overrides)
    written = f"written   {target}" if target else "printed only: there is no conf/experiment here"
    if spread := [word.replace("=N", "=4") for word in draft.spread]:
        command += f"\non GPUs   and {' '.join(draft.spread)}"
        faults = faults or faults_of(draft.name, text, [*draft.overrides, *spread])
    return [written, command, *(["before it runs:", *map(str, faults)] if faults else [])]
