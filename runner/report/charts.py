"""The data from which the script of a page draws curves, as JSON.

``plot_run`` and ``plot_sweep`` decide which curves these are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from runner.report.drawing import LOOKS, Curve, file_name, thinned
from runner.report.score import is_share
from runner.run.history import curve
from runner.run.record import RunRecord

SCRIPTED = ["tokens_per_second", "memory/peak_gb"]  # metrics that only the script draws
# Other metrics than the step that it draws curves over, by the name of the clock.
CLOCKS = {"tokens": "num_tokens", "time": "elapsed_seconds"}
MAX_NUMBERS = 60_000  # in a page, which are some 600 kB
MIN_POINTS = 100  # of each curve, however many curves there are
MAX_POINTS = 1000
MAX_CLOCK_POINTS = 100

Steps = dict[tuple[float, ...], int]  # different lists of steps, each with its index


class ChartData(TypedDict, total=False):
    """The object that ``page.js`` reads, made by :func:`to_chart_data`."""

    labels: list[list[object]]  # [text, colour, clocks]
    charts: list[list[object]]  # [file name, title, curves, whether they show a share]
    steps: list[tuple[float, ...]]
    looks: dict[str, list[object]]  # [glyph, dashes] by the colour


@dataclass(frozen=True)
class Label:
    """The label of some curves; its clocks are those of the longest of its runs."""

    text: str
    colour: str
    runs: Sequence[RunRecord]


@dataclass(frozen=True)
class ChartCurve:
    """A curve with the index of its label."""

    label: int
    is_dashed: bool
    points: Curve


def to_chart_data(labels: Sequence[Label], charts: Mapping[str, Sequence[ChartCurve]]) -> ChartData:
    """The data of the charts by their titles.

    A curve is ``[label, dashed, index in steps, values, deviations]`` with false for no deviations;
    a clock is ``[index in steps, values]``.
    """
    # The more curves there are, the fewer points each of them has.
    count = sum(map(len, charts.values()))
    share = MAX_NUMBERS // max(1, count)
    max_points = min(max(share, MIN_POINTS), MAX_POINTS)
    steps: Steps = {}
    data: ChartData = {"labels": [], "charts": []}
    for label in labels:
        lines_by_run = [run.lines for run in label.runs]
        lines = max(lines_by_run, key=len)
        clocks = {}
        for clock, metric in CLOCKS.items():
            clock_curve = Curve(*curve(lines, metric))
            if len(clock_curve.steps) > 1:
                points = thinned(clock_curve, MAX_CLOCK_POINTS)
                clocks[clock] = [_index_in(steps, points), _to_numbers(points.values)]
        data["labels"].append([label.text, label.colour, clocks])
    for title, curves in charts.items():
        rows = []
        for chart_curve in curves:
            points = thinned(chart_curve.points, max_points)
            index = _index_in(steps, points)
            values = _to_numbers(points.values)
            has_band = any(points.deviations)
            deviations = _to_numbers(points.deviations) if has_band else False
            rows.append([chart_curve.label, chart_curve.is_dashed, index, values, deviations])
        largest = max((max(row.points.values) for row in curves), default=0)
        shows_share = is_share(title) and largest <= 1
        data["charts"].append([file_name(title), title, rows, shows_share])
    data["steps"] = list(steps)
    data["looks"] = {}
    for colour, look in LOOKS.items():
        data["looks"][colour] = [look.glyph, look.dashes]
    return data


def _index_in(steps: Steps, points: Curve) -> int:
    """The index of the steps of a curve, which are added to ``steps`` if they are new.

    Most curves of a page have the same steps, which would be half of its numbers.
    """
    rounded = tuple(round(step, 2) for step in points.steps)
    return steps.setdefault(rounded, len(steps))


def _to_numbers(values: Sequence[float]) -> list[float]:
    """The values as short JSON numbers: integers where they are whole, others of 7 digits."""
    numbers: list[float] = []
    for value in values:
        if value == int(value):
            numbers.append(int(value))
        else:
            numbers.append(float(f"{value:.7g}"))
    return numbers
