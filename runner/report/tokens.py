"""Rows of tokens as a person reads them: what each of them counts for, and marked text for a terminal.

What is shown comes from ``training.inspection``; nothing here knows a tokenizer. The texts are other people's, so that
no character of theirs steers the terminal. The same as a page is in ``page``.
"""

import base64
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.cells import cell_len, chop_cells

from runner.errors import Fault
from runner.io.turns import describe_image
from runner.io.visible import to_visible
from runner.report.number import value

MAX_WIDTH = 80
MAX_STRETCH = 800  # characters of a stretch of equal tokens in the terminal; of a longer one the middle is left out


@dataclass(frozen=True)
class TokenRow:
    """One sequence as the model sees it, without padding."""

    number: int  # of its row, which both of a pair share
    role: str  # chosen or rejected, good or bad of a labelled answer, prompt of what is sampled from, and else empty
    ids: list[int]
    trained: list[bool]  # which tokens the loss counts; of a scored text the one where the score is read
    weights: list[float] | None = None
    whole: int = 0  # the length before it was cut, 0 where it is whole
    texts: list[str] = field(default_factory=list)  # of each token, where they are to be shown
    images: Sequence[Any] = ()  # of Pillow's, in the order of their places


@dataclass(frozen=True)
class Sheet:
    """Some rows of one set, with what is to be said of the set, and with what is wrong with it."""

    title: str
    summary: Sequence[str]
    rows: Sequence[TokenRow]
    scored: bool = False
    faults: Sequence[Fault] = ()

    @property
    def legend(self) -> dict[str, str]:
        """The meaning of each mark that a token of the rows has."""
        marks = {to_mark(row, place) for row in self.rows for place in range(len(row.ids))}
        names = LEGEND | ({"^": "where the score is read"} if self.scored else {})
        return {mark: names[mark] for mark in names if mark in marks}


@dataclass(frozen=True)
class Block:
    """A heading and the tokens below it; ``side`` is chosen or rejected where two blocks belong together."""

    heading: str
    row: TokenRow
    side: str = ""


def to_blocks(rows: Iterable[TokenRow], scored: bool = False) -> Iterator[list[Block]]:
    """The blocks of each row: one, or for a pair its shared prompt and then both answers."""
    for number, group in itertools.groupby(rows, key=lambda row: row.number):
        together, name = list(group), f"row {number + 1}"
        if len(together) != 2 or not all(row.role for row in together):
            yield [Block(f"{f'{name} {row.role}'.strip()}: {_counts(row, scored)}", row) for row in together]
            continue
        chosen, rejected = together
        pairs = zip(chosen.ids, rejected.ids, chosen.trained, rejected.trained, strict=False)
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1] and not (pair[2] or pair[3]), pairs)
        shared = sum(1 for _ in alike)  # untrained tokens that both begin with
        sides = [Block(f"{row.role}: {_counts(row, scored)}", _part(row, shared), row.role) for row in together]
        yield [Block(f"{name}: {shared} tokens are shared", _part(chosen, 0, shared)), *sides] if shared else sides


def _part(row: TokenRow, start: int, end: int | None = None) -> TokenRow:
    cut = slice(start, end)
    weights = None if row.weights is None else row.weights[cut]
    return replace(row, ids=row.ids[cut], trained=row.trained[cut], weights=weights, texts=row.texts[cut])


def _counts(row: TokenRow, scored: bool) -> str:
    size, cut = len(row.ids), f", cut from {row.whole}" if row.whole else ""
    cut += "".join(f", image {describe_image(image)}" for image in row.images)
    if row.role == "prompt" or scored:
        return f"{size} tokens{cut}"
    values = sorted({weight for weight, bit in zip(row.weights or [], row.trained, strict=False) if bit})
    shown = (" to " if len(values) > 2 else " and ").join(map(value, dict.fromkeys(values[:1] + values[-1:])))
    weights = "" if values in ([], [1.0]) else f", weights {shown}"
    trained = sum(row.trained)
    return f"{trained} of {size} tokens trained ({trained / max(1, size):.0%}){weights}{cut}"


def to_thumbnail(image: Any) -> str:
    """A copy of an image, of 96 pixels at most, as the address of data for a page."""
    small = image.copy()
    small.thumbnail((96, 96))
    small.save(written := io.BytesIO(), "PNG")
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"


def to_mark(row: TokenRow, place: int) -> str:
    """One character for how a token counts: blank, ^ trained, + more than 1, - less than 1, 0 nothing."""
    if not row.trained[place]:
        return " "
    weight = 1.0 if row.weights is None else row.weights[place]
    return "^" if weight == 1 else "0" if weight == 0 else "+" if weight > 1 else "-"


STYLES = {" ": "2", "^": "32;4", "+": "1;35;4", "-": "33;4", "0": "9;31"}
LEGEND = {"^": "trained", "+": "weighs more than 1", "-": "less than 1", "0": "nothing"}


def format_sheet(sheet: Sheet, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """The sheet as text: colours where they can be seen, else marks below the tokens."""
    lines = [sheet.title, *(f"  {line}" for line in sheet.summary)]
    if names := [_styled(name, mark) if colour else f"{mark} {name}" for mark, name in sheet.legend.items()]:
        lines.append(f"  marks: {', '.join(names)}")
    for block in itertools.chain.from_iterable(to_blocks(sheet.rows, sheet.scored)):
        heading = f"\x1b[1m{block.heading}\x1b[0m" if colour else block.heading
        lines += ["", heading, *_text_lines(block.row, colour, width - 2)]
    return "\n".join(lines) + "\n"


def _styled(text: str, mark: str) -> str:
    return f"\x1b[{STYLES[mark]}m{text}\x1b[0m"


def _text_lines(row: TokenRow, colour: bool, width: int) -> Iterator[str]:
    """The text wrapped at the width, each line with its marks below it where there are any."""
    whole = marks = ""  # each visible character has its mark
    marked = ((to_visible(text).replace("↵", "↵\n"), to_mark(row, place)) for place, text in enumerate(row.texts))
    for mark, stretch in itertools.groupby(marked, key=lambda cell: cell[1]):
        text, half = "".join(text for text, _ in stretch), MAX_STRETCH // 2
        if len(text) > MAX_STRETCH:
            text = f"{text[:half]} [... {len(text) - MAX_STRETCH} characters ...] {text[-half:]}"
        whole, marks = whole + text, marks + mark * len(text)
    for paragraph in whole.splitlines(keepends=True):
        for line in chop_cells(paragraph.rstrip("\n"), width) or [""]:
            cells, marks = list(zip(line, marks, strict=False)), marks[len(line) :]
            runs = itertools.groupby(cells, key=lambda cell: cell[1]) if colour else ()
            styled = [_styled("".join(character for character, _ in run), mark) for mark, run in runs]
            yield f"  {''.join(styled) or line}".rstrip()
            below = "".join(mark * cell_len(character) for character, mark in cells)
            if not colour and below.strip():
                yield f"  {below}".rstrip()
        marks = marks[paragraph.endswith("\n") :]  # without that of the line break
