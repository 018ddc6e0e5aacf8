"""Pictures and charts of one run: one for each kind of metric that it logged."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from runner.report.charts import SCRIPTED, ChartCurve, ChartData, Label, to_chart_data
from runner.report.drawing import (
    COLOURS,
    Curve,
    Picture,
    draw_curve,
    file_name,
    new_axes,
    thinned,
    write_png,
)
from runner.report.ranking import SweepObjective, headline_of
from runner.report.score import HELD_OUT, is_share
from runner.run.history import curve
from runner.run.record import RunRecord

# The pictures of a run by name, each with the metrics that share it.
PICTURES: dict[str, Sequence[str]] = {
    "loss": ["loss", "loss/policy_avg", "loss/value_avg"],
    "kl": ["kl", "objective/kl"],
    "entropy": ["entropy", "policy/sampled_entropy_avg"],
    "reward": [
        "reward",
        "rewards/margins",
        "rewards/chosen",
        "rewards/rejected",
        "margin",
        "objective/scores",
        "objective/rlhf_reward",
    ],
    "critic": ["val/explained_variance"],
    "accuracy": ["mean_token_accuracy", "accuracy", "rewards/accuracies"],
    "length": ["completions/mean_length"],
    "learning_rate": ["learning_rate"],
    "grad_norm": ["grad_norm"],
}

Lines = Sequence[Mapping[str, Any]]  # of a log


@dataclass(frozen=True)
class MetricCurve:
    """The curve of a metric; on held-out rows the same metric has the same colour."""

    metric: str
    colour: str
    points: Curve

    @property
    def is_held_out(self) -> bool:
        """True for a metric of held-out rows, whose curve is dashed and hollow."""
        return self.metric.startswith(HELD_OUT)


def write_plots(run: RunRecord) -> list[Path]:
    """Write a PNG for each kind of metric that the run logged; returns their paths."""
    title = f"{run.folder.parent.name}/{run.folder.name}"
    paths = []
    for picture in run_pictures(run.lines, headline_of(run), one_by_one=True):
        paths.append(write_png(picture, run.folder / "plots", title, has_numbers=True))
    return paths


def run_pictures(
    lines: Lines, headline: SweepObjective | None = None, *, one_by_one: bool = False
) -> Iterator[Picture]:
    """A picture for each kind of metric, that of the headline first.

    Those that are written ``one_by_one`` share a figure: each is gone when the next one is asked
    for.
    """
    used = None
    for name, curves in curves_by_picture(lines, PICTURES, headline).items():
        caption = name
        if name in PICTURES:
            caption = name.replace("_", " ")
        with new_axes(caption, share=is_share(name), used=used) as axes:
            for metric_curve in reversed(curves):
                points = thinned(metric_curve.points)
                draw_curve(
                    axes,
                    points,
                    metric_curve.colour,
                    metric_curve.metric,
                    hollow=metric_curve.is_held_out,
                )
            axes.grid(True)
        yield Picture(file_name(name), caption, axes.figure)
        used = axes if one_by_one else None


def curves_by_picture(
    lines: Lines, pictures: Mapping[str, Sequence[str]], headline: SweepObjective | None
) -> dict[str, list[MetricCurve]]:
    """The curves of each picture that has any, the picture of the headline first.

    A headline that is in none of ``pictures`` gets one of its own.
    """
    logged = _read_curves(lines)
    curves_of: dict[str, list[MetricCurve]] = {}
    for picture, endings in pictures.items():
        metrics = sorted(metric for metric in logged if _belongs(metric, endings))
        bare_names = dict.fromkeys(metric.removeprefix(HELD_OUT) for metric in metrics)
        colour_of = dict(zip(bare_names, cycle(COLOURS), strict=False))
        curves = []
        for metric in metrics:
            colour = colour_of[metric.removeprefix(HELD_OUT)]
            curves.append(MetricCurve(metric, colour, logged[metric]))
        if curves:
            curves_of[picture] = curves
    if headline is None or headline.name not in logged:
        return curves_of

    first_pictures = {}
    for picture, curves in curves_of.items():
        metrics = [metric_curve.metric for metric_curve in curves]
        if headline.name in metrics:
            first_pictures[picture] = curves
    if not first_pictures:
        points = logged[headline.name]
        first_pictures[headline.name] = [MetricCurve(headline.name, COLOURS[0], points)]
    return first_pictures | curves_of


def _read_curves(lines: Lines) -> dict[str, Curve]:
    """The curve of each metric in a log, in the order in which they appear."""
    metrics: dict[str, None] = {}
    for line in lines:
        metrics |= dict.fromkeys(line)
    curves = {}
    for metric in metrics:
        steps, values = curve(lines, metric)
        if steps:
            curves[metric] = Curve(steps, values)
    return curves


def _belongs(metric: str, endings: Sequence[str]) -> bool:
    """True for a metric of training by its whole name, for one of held-out rows by its ending."""
    if metric in endings:
        return True
    if not metric.startswith(HELD_OUT):
        return False
    return any(metric.endswith(f"_{ending}") for ending in endings)


def run_charts(run: RunRecord) -> ChartData:
    """The charts of one run, whose labels are its metrics."""
    pictures = {**PICTURES, **{name: [name] for name in SCRIPTED}}
    labels: list[Label] = []
    charts = {}
    for picture, curves in curves_by_picture(run.lines, pictures, headline_of(run)).items():
        chart = []
        for metric_curve in curves:
            chart.append(ChartCurve(len(labels), metric_curve.is_held_out, metric_curve.points))
            labels.append(Label(metric_curve.metric, metric_curve.colour, [run]))
        charts[picture] = chart
    return to_chart_data(labels, charts)
