"""The texts of ``import``: the file of the experiment, and the list of what became of each key."""

import math
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from runner.config.dialect import to_single_line
from runner.importers.draft import KINDS, NO_EQUIVALENT, Draft, Note
from runner.importers.experiment_content import content_of
from runner.io.visible import to_visible, visible_lines
from runner.schema.text import select

WIDTH = 80
KEY_WIDTH = 40  # of the list of keys


# --- The file -------------------------------------------------------------------------------------
def to_file(draft: Draft) -> str:
    """The experiment with its header, ready for the menu."""
    header = []
    for line in _header_lines(draft):
        # A value of theirs may break a line, or hide one.
        single_line = re.sub(r"\s", " ", line)
        header.append(to_visible(single_line))
    text = _to_yaml(draft)
    text = re.sub(r"\n(?=name:)", "\n\n", text, count=1)
    return "\n".join(["# @package _global_", *header, text])


def _header_lines(draft: Draft) -> Iterator[str]:
    """The comments at the top of the file: where it is from, how to run it, and what is open.

    ``run``, ``cost`` and ``result`` stand in each file of the menu.
    """
    title = draft.table.sections["title"]
    words = " ".join(quoted_words(draft))
    yield f"# {title}'s {draft.reading.path.name}, imported."
    yield f"# run: python -m runner {words}"
    yield f"# cost: not yet timed; {_describe_batch(draft)}"
    yield "# result: not yet seen"
    if draft.spread:
        yield f"# on GPUs: {' '.join(draft.spread)}"
    for note in draft.notes:
        if note.key in draft.unset:
            value = to_single_line(note.value)
            question = f"# open: {note.key}: {value}; {note.why}; {note.target}"
            yield from textwrap.wrap(question, WIDTH, subsequent_indent="#   ")


def _to_yaml(draft: Draft) -> str:
    """The content of the experiment, with visible characters only.

    YAML escapes what is beyond ASCII only where the text has characters that nobody would see.
    """
    content = content_of(draft)
    text = _dump(content, allow_unicode=True)
    if visible_lines(text) != text:
        text = _dump(content, allow_unicode=False)
    return text


def _dump(content: dict[str, Any], *, allow_unicode: bool) -> str:
    """The content as YAML in the order in which it was read, one key a line."""
    text: str = yaml.safe_dump(
        content,
        allow_unicode=allow_unicode,
        sort_keys=False,
        width=WIDTH,
        default_flow_style=False,
    )
    return text


def _describe_batch(draft: Draft) -> str:
    """The number of rows of a step, as far as it is known."""
    if "batch" in draft.values:
        return f"{draft.values['batch']} rows a step of all devices together"
    counts: list[Any] = []
    for name in ("per_device_train_batch_size", "gradient_accumulation_steps"):
        count = select(draft.values, f"trainer.args.{name}")
        counts.append(count or draft.config.parameters[name].default)
    if not all(isinstance(count, int) for count in counts):
        return "the number of rows per step is still to be set"
    rows = math.prod(counts)
    text = f"{counts[0]} x {counts[1]} = {rows} rows a step on one device"
    devices = draft.reading.devices
    if devices > 1:
        rows_of_all = rows * devices
        word = f"launcher.num_processes={devices}"
        text += f"; theirs ran on {devices}, so {rows_of_all}: {word}"
    return text


def quoted_words(draft: Draft) -> list[str]:
    """The words that choose the experiment and give it what has to be typed, for a shell."""
    words = [f"experiment={draft.name}", *draft.overrides]
    return [shlex.quote(word) for word in words]


# --- The list of keys -----------------------------------------------------------------------------
def describe(draft: Draft) -> list[str]:
    """The list of keys by what became of them, with where each went and why."""
    title = draft.table.sections["title"]
    reading = draft.reading
    heading = f"{reading.path} is of {title}: {reading.why}"
    lines = textwrap.wrap(heading, WIDTH)
    for kind in KINDS:
        notes = [note for note in draft.notes if note.kind == kind]
        if notes:
            lines += ["", f"{kind} ({len(notes)})"]
        for note in notes:
            name = reading.written_names.get(note.key, note.key)
            lines += _describe_note(replace(note, key=name))
    return lines


def _describe_note(note: Note) -> list[str]:
    """A key and what became of it, beside it or in the lines below."""
    key = f"  {note.key}"
    if not isinstance(note.value, dict | list | tuple):
        key += f": {to_single_line(note.value)}"
    parts = []
    if note.implied:
        parts.append("(their default)")
    if note.target and note.kind == NO_EQUIVALENT:
        parts.append(f"nearest: {note.target}")
    elif note.target:
        parts.append(note.target)
    if note.why:
        parts.append(f"({note.why})" if note.target else note.why)
    text = " ".join(parts)
    fits_beside = len(key) <= KEY_WIDTH - 2 and len(text) <= WIDTH - KEY_WIDTH
    if text and fits_beside:
        return [f"{key:<{KEY_WIDTH}}{text}"]
    if len(key) > WIDTH:
        key = f"{key[: WIDTH - 3]}..."
    indent = " " * 6
    return [key, *textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)]
