"""Rows of tokens as a person reads them: text in which a mark tells how each token counts.

The rows come from ``training.inspection``; nothing here knows a tokenizer. Their texts come from
other people, so none of their characters may control the terminal. ``page`` shows the same rows as
HTML.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.cells import cell_len, chop_cells

from runner.errors import Fault
from runner.io.visible import to_visible
from runner.report.number import format_value
from runner.schema.modality import Modality

MAX_WIDTH = 80
MAX_STRETCH = 800  # characters that a terminal shows of neighbouring tokens with the same mark


@dataclass(frozen=True)
class Mark:
    """The meaning of a mark, and how a terminal with colours styles the tokens that have it."""

    meaning: str
    style: str  # the numbers of an ANSI escape sequence


UNTRAINED = " "
MARKS = {
    UNTRAINED: Mark("", "2"),
    "^": Mark("trained", "32;4"),
    "+": Mark("weighs more than 1", "1;35;4"),
    "-": Mark("less than 1", "33;4"),
    "0": Mark("nothing", "9;31"),
}


@dataclass(frozen=True)
class TokenRow:
    """One sequence as the model sees it, without padding."""

    number: int  # of its row, which both answers of a pair share
    role: str  # "chosen", "rejected"; "good", "bad" for a label; "prompt" where it is sampled from
    ids: list[int]
    trained: list[bool]  # True where the loss counts the token, or where a score is read
    weights: list[float] | None = None
    whole: int = 0  # the length before it was cut; 0 where it was not
    texts: list[str] = field(default_factory=list)  # of each token; empty if only counts are shown
    media: Sequence[tuple[Modality, Any]] = ()  # those of a kind in the order of their places


@dataclass(frozen=True)
class Sheet:
    """Some rows of one set, with a summary of the set and its faults."""

    title: str
    summary: Sequence[str]
    rows: Sequence[TokenRow]
    scored: bool = False  # a text has one score, so that its tokens are not trained one by one
    faults: Sequence[Fault] = ()

    @property
    def legend(self) -> dict[str, str]:
        """The marks that occur in the rows, each with its meaning."""
        present = set[str]()
        for row in self.rows:
            for index in range(len(row.ids)):
                present.add(to_mark(row, index))
        legend = {}
        for mark, look in MARKS.items():
            if mark in present and mark != UNTRAINED:
                legend[mark] = look.meaning
        if self.scored and "^" in legend:
            legend["^"] = "where the score is read"
        return legend


@dataclass(frozen=True)
class Block:
    """A heading and its tokens; ``side`` is chosen or rejected where two blocks are a pair."""

    heading: str
    row: TokenRow
    side: str = ""


def to_blocks(rows: Iterable[TokenRow], scored: bool = False) -> Iterator[list[Block]]:
    """The blocks of each row: one, or for a pair the prompt that it shares and its two answers."""
    for number, group in groupby(rows, key=lambda row: row.number):
        sequences = list(group)
        name = f"row {number + 1}"
        if len(sequences) == 2 and all(row.role for row in sequences):
            yield _pair_blocks(name, sequences[0], sequences[1], scored)
        else:
            blocks = []
            for row in sequences:
                title = f"{name} {row.role}".strip()
                heading = f"{title}: {_describe_counts(row, scored)}"
                blocks.append(Block(heading, row))
            yield blocks


def _pair_blocks(name: str, chosen: TokenRow, rejected: TokenRow, scored: bool) -> list[Block]:
    """The prompt that a pair shares, if there is one, and the rest of both sequences."""
    # The tokens with which both begin and that neither is trained on.
    shared = 0
    for index in range(min(len(chosen.ids), len(rejected.ids))):
        is_trained = chosen.trained[index] or rejected.trained[index]
        if is_trained or chosen.ids[index] != rejected.ids[index]:
            break
        shared += 1
    blocks = []
    if shared:
        heading = f"{name}: {shared} tokens are shared"
        blocks.append(Block(heading, _part(chosen, 0, shared)))
    for row in (chosen, rejected):
        heading = f"{row.role}: {_describe_counts(row, scored)}"
        rest = _part(row, shared, len(row.ids))
        blocks.append(Block(heading, rest, side=row.role))
    return blocks


def _part(row: TokenRow, start: int, end: int) -> TokenRow:
    """The row with its tokens from ``start`` to ``end`` alone."""
    weights = None
    if row.weights is not None:
        weights = row.weights[start:end]
    return replace(
        row,
        ids=row.ids[start:end],
        trained=row.trained[start:end],
        weights=weights,
        texts=row.texts[start:end],
    )


def _describe_counts(row: TokenRow, scored: bool) -> str:
    """The number of tokens, and how many of them are trained with which weights, as a text."""
    size = len(row.ids)
    notes = ""
    if row.whole:
        notes += f", cut from {row.whole}"
    for modality, medium in row.media:
        notes += f", {modality.part_type} {modality.describe(medium)}"
    if row.role == "prompt" or scored:
        return f"{size} tokens{notes}"
    trained = sum(row.trained)
    share = trained / max(1, size)
    weights = _describe_weights(row)
    return f"{trained} of {size} tokens trained ({share:.0%}){weights}{notes}"


def _describe_weights(row: TokenRow) -> str:
    """The range of the weights of trained tokens; empty where all of them are 1."""
    if not row.weights:
        return ""
    pairs = zip(row.weights, row.trained, strict=True)
    weights = {weight for weight, is_trained in pairs if is_trained}
    if not weights or weights == {1.0}:
        return ""
    lowest = format_value(min(weights))
    if len(weights) == 1:
        return f", weights {lowest}"
    highest = format_value(max(weights))
    word = "to" if len(weights) > 2 else "and"
    return f", weights {lowest} {word} {highest}"


def to_mark(row: TokenRow, index: int) -> str:
    """The mark of MARKS that tells how a token counts."""
    if not row.trained[index]:
        return UNTRAINED
    weight = 1.0 if row.weights is None else row.weights[index]
    if weight == 1:
        return "^"
    if weight == 0:
        return "0"
    return "+" if weight > 1 else "-"


def format_sheet(sheet: Sheet, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """The sheet as text: tokens in colours, or with marks below them where there is no colour."""
    lines = [sheet.title]
    for line in sheet.summary:
        lines.append(f"  {line}")
    names = []
    for mark, meaning in sheet.legend.items():
        name = f"{mark} {meaning}"
        if colour:
            name = _styled(meaning, mark)
        names.append(name)
    if names:
        lines.append(f"  marks: {', '.join(names)}")
    for blocks in to_blocks(sheet.rows, sheet.scored):
        for block in blocks:
            heading = block.heading
            if colour:
                heading = f"\x1b[1m{heading}\x1b[0m"
            lines += ["", heading, *_text_lines(block.row, colour, width - 2)]
    return "\n".join(lines) + "\n"


def _styled(text: str, mark: str) -> str:
    """A text in the style of a mark, for a terminal."""
    style = MARKS[mark].style
    return f"\x1b[{style}m{text}\x1b[0m"


def _text_lines(row: TokenRow, colour: bool, width: int) -> Iterator[str]:
    """The text wrapped at the width, each line with its marks below it where there are any.

    A mark is repeated for a character that takes two cells, or it would not stand below it.
    """
    text, marks = _marked_text(row)
    for paragraph in text.splitlines(keepends=True):
        for line in chop_cells(paragraph.rstrip("\n"), width) or [""]:
            line_marks = marks[: len(line)]
            marks = marks[len(line) :]
            if colour:
                yield f"  {_coloured_line(line, line_marks)}".rstrip()
                continue
            yield f"  {line}".rstrip()
            below = ""
            for character, mark in zip(line, line_marks, strict=True):
                below += mark * cell_len(character)
            if below.strip():
                yield f"  {below}".rstrip()
        if paragraph.endswith("\n"):  # the line break has a mark, too, which is not shown
            marks = marks[1:]


def _marked_text(row: TokenRow) -> tuple[str, str]:
    """The visible text of a row, and a mark for each character; a long stretch loses its middle."""
    marked = []
    for index, text in enumerate(row.texts):
        visible = to_visible(text).replace("↵", "↵\n")
        marked.append((to_mark(row, index), visible))
    text = ""
    marks = ""
    for mark, group in groupby(marked, key=itemgetter(0)):
        stretch = "".join(visible for _, visible in group)
        if len(stretch) > MAX_STRETCH:
            half = MAX_STRETCH // 2
            left_out = len(stretch) - MAX_STRETCH
            beginning = stretch[:half]
            end = stretch[-half:]
            stretch = f"{beginning} [... {left_out} characters ...] {end}"
        text += stretch
        marks += mark * len(stretch)
    return text, marks


def _coloured_line(line: str, marks: str) -> str:
    """A line in which each stretch of equal marks is styled once."""
    styled = ""
    cells = zip(line, marks, strict=True)
    for mark, group in groupby(cells, key=itemgetter(1)):
        characters = [character for character, _ in group]
        styled += _styled("".join(characters), mark)
    return styled
