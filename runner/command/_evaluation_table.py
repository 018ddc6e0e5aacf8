"""The figures of an evaluation as text for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.command._side import Side
from runner.report.table import Column, format_table
from runner.schema.literal import number

if TYPE_CHECKING:
    from runner.generate.judge import Figures

# With fewer prompts what is rare may not have been seen, and no interval can know of it.
FEW_PROMPTS = 100


def to_table(sides: Sequence[Side], comparison: Mapping[str, Any]) -> Iterator[str]:
    """A table for each set, with what the comparison of both sides says of it, and the notes.

    ``sides`` are the model that is evaluated and, where there is one, the model beside it;
    ``comparison`` has the figures of ``metric.paired.compare`` by the names of the sets.
    """
    first = sides[0]
    for name, figures in first.sets.items():
        keys = list(figures.scores)
        title = f"{first.request.data}, {name}, {figures.rows} rows"
        if first.request.options.tasks:
            title = name
        columns = [Column(title, keys, needed=True, left=True)]
        for heading, side in zip(("value", "against"), sides, strict=False):
            side_figures = side.sets[name]
            cells = [_to_cell(side_figures, key) for key in keys]
            columns.append(Column(heading, cells, needed=True))
        yield from format_table(columns, 100)
        if name in comparison:
            yield from _comparison_lines(comparison[name])
    for note in first.notes:
        yield f"note      {note}"


def _to_cell(figures: "Figures", key: str) -> str:
    """A score, with its standard error if it has one."""
    score = number(figures.scores.get(key))
    error = figures.errors.get(key)
    if error is None:
        return score
    return f"{score} ± {number(error, 2)}"


def _comparison_lines(comparison: Mapping[str, Any]) -> Iterator[str]:
    """The win rate and the difference of the rewards with their intervals.

    Both sides draw by the same random numbers, which the line says, because two evaluations apart
    would differ more by chance.
    """
    wins = comparison["wins"]
    ties = comparison["ties"]
    losses = comparison["losses"]
    counts = f"{wins} wins, {ties} ties, {losses} losses"
    win_rate = number(comparison["win_rate"], 3)
    interval = _to_interval(comparison["win_rate_interval"])
    yield f"win rate  {win_rate} {interval}: {counts}; both draw by the same random numbers"
    difference = number(comparison["difference"], 3)
    interval = _to_interval(comparison["difference_interval"])
    yield f"reward    {difference} more {interval}"
    prompts = comparison["prompts"]
    if prompts < FEW_PROMPTS:
        remark = f"intervals from fewer than {FEW_PROMPTS} can be too narrow"
        yield f"note      {prompts} prompts: {remark}"


def _to_interval(ends: Sequence[float]) -> str:
    """The two ends of a 95 % interval, in brackets."""
    low, high = ends
    return f"[{number(low, 3)}, {number(high, 3)}]"
