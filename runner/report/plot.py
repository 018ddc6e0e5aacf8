"""Pictures of one run and of runs side by side; as PNG files, and as SVG that takes the colours of the ``page``."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import warnings
from bisect import bisect
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from runner.io.files import write_bytes
from runner.report.axis import Axis
from runner.report.number import plural, short, spread, value
from runner.report.objective import SweepObjective, headline_of
from runner.report.sweep import Summary, SweepSetting
from runner.run.read import RunRecord, curve, is_finite
from runner.schema.text import number, read_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLE = read_tables(__file__)
PICTURES, COLOURS, STYLE = TABLE["pictures"], TABLE["colours"], TABLE["style"]
MARKERS, GLYPHS, DASHES = (dict(zip(COLOURS, TABLE[look], strict=True)) for look in ("markers", "glyphs", "dashes"))
LOOKS = {colour: [GLYPHS[colour], DASHES[colour]] for colour in COLOURS}
SCRIPTED, CLOCKS = TABLE["scripted"], TABLE["clocks"]
INK, OTHERS = STYLE["text.color"], STYLE["grid.color"]
MAX_CURVES = 8
MAX_POINTS = 300  # of a curve; longer ones are averaged to as many, which also keeps the page light
MAX_POINTS_BESIDE = 120  # of each of many
MAX_DRAWN = len(COLOURS) + 40  # settings whose curves are drawn, those beyond the palette in one colour
MAX_SEEDS = 20  # runs of a setting whose curves are drawn
MAX_MARKS = 200  # settings beyond the palette that are drawn on an axis
MAX_TICKS = 24  # values that are written on an axis
MAX_LEVELS = 60  # values of an axis of a heat map
MAX_CELLS = 160  # of a heat map with their numbers in them
MAX_LETTERS = 200  # of the label of a setting
MAX_NUMBERS, MAX_POINTS_OF_SCRIPT, CLOCK_POINTS = 60_000, 1000, 100  # for the script of a page: some 600 kB

Points = Sequence[Sequence[float]]
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Picture:
    """A drawn figure with the name of its file; ``keys`` are the labels of its legend where a page has one for all."""

    name: str
    caption: str
    figure: Figure
    keys: Sequence[str] = ()


def write_plots(run: RunRecord) -> list[Path]:
    """Draw one PNG for each kind of metric that the run logged, training and held-out curves together."""
    drawn = run_pictures(run.lines, headline_of(run), title=run.folder.parent.name)
    return [write_png(picture, run.folder / "plots", of_numbers=True) for picture in drawn]


def run_pictures(lines: Lines, headline: SweepObjective | None = None, title: str = "") -> Iterator[Picture]:
    """A picture for each kind of metric, that of the headline first; held-out curves are dashed and hollow."""
    for name, metrics in pictured(lines, PICTURES, headline).items():
        shown = name.replace("_", " ") if name in PICTURES else name
        with _axes(shown, title=title) as (figure, axes):
            for metric, (colour, *points) in reversed(metrics.items()):
                _draw(axes, thinned(*points), colour, metric, hollow=metric.startswith("eval_"))
            axes.grid()
        yield Picture(file_name(name), shown, figure)


def pictured(
    lines: Lines, pictures: Mapping[str, Sequence[str]], headline: SweepObjective | None
) -> dict[str, dict[str, Any]]:
    """Those pictures of a run for which there are metrics, the headline's first; each with colour, steps and values."""
    found, first = dict[str, dict[str, Any]](), headline.name if headline else ""
    names = dict.fromkeys(name for line in lines for name in line)
    logged = {name: points for name in names if (points := curve(lines, name))[0]}
    for picture, wanted in pictures.items():
        held_out = tuple(f"_{end}" for end in wanted)
        drawn = sorted(m for m in logged if m in wanted or (m.startswith("eval_") and m.endswith(held_out)))
        own = dict.fromkeys(metric.removeprefix("eval_") for metric in drawn)
        colours = dict(zip(own, itertools.cycle(COLOURS), strict=False))
        found[picture] = {metric: (colours[metric.removeprefix("eval_")], *logged[metric]) for metric in drawn}
    if first in logged and not any(first in metrics for metrics in found.values()):
        found[first] = {first: (COLOURS[0], *logged[first])}
    ranked = sorted(found.items(), key=lambda picture: first not in picture[1])
    return {picture: metrics for picture, metrics in ranked if metrics}


def sweep_pictures(summary: Summary) -> list[Picture]:
    """The objective against each axis and over two, reward against KL, and curves with bands over seeds."""
    pictures: list[Picture] = []
    if (objective := summary.objective) and summary.best:
        pictures += [_axis_picture(summary, objective.name, axis) for axis in summary.axes[:6]]
        few = [axis for axis in summary.axes if len(axis.levels) <= MAX_LEVELS]
        pictures += [_heat_picture(summary, objective, *few[:2])] if len(few) > 1 else []
    curves = find_curves(summary)
    pictures += _trade_pictures(summary)
    pictures += [_curve_picture(summary, name) for name in curves if name not in SCRIPTED]
    return [replace(picture, keys=[label for *_, label in styled(summary) if label]) for picture in pictures]


def find_curves(summary: Summary) -> list[str]:
    """The metrics whose curves are drawn, SCRIPTED last; of the runs nothing else is kept, so that they take little."""
    headline = summary.objective.name if summary.objective else ""
    wanted, logged = dict.fromkeys([headline, *TABLE["curves"], *SCRIPTED]), set[str]()
    kept = {"step", *wanted, *CLOCKS.values(), *itertools.chain.from_iterable(TABLE["trades"])}
    for run in (run for setting, *_ in styled(summary)[:MAX_DRAWN] for run in setting.runs[:MAX_SEEDS]):
        vars(run)["lines"] = lines = [{name: at for name, at in line.items() if name in kept} for line in run.lines]
        logged |= {name for name in set().union(*lines) - logged if len(curve(lines, name)[0]) > (name != headline)}
    found = [name for name in wanted if name in logged and name not in SCRIPTED]
    return found[:MAX_CURVES] + [name for name in SCRIPTED if name in logged]


def styled(summary: Summary) -> list[tuple[SweepSetting, str, str | None]]:
    """Each setting, best first, with its colour and label; beyond the palette all share one, labelled once.

    Who watches finds a setting in the colour that it had before, as long as it is among the best.
    """
    held, best = summary.held, summary.settings[: len(COLOURS)]
    before = [next((held[run.folder] for run in each.runs if run.folder in held), "") for each in best]
    free = [colour for colour in COLOURS if colour not in before]
    kept = [c if c and c not in before[:place] else free.pop(0) for place, c in enumerate(before)]
    held.clear()
    held.update({run.folder: colour for each, colour in zip(best, kept, strict=True) for run in each.runs})
    colours = [*kept, *[OTHERS] * len(summary.settings)]
    labels = [*(short(setting.label, MAX_LETTERS) for setting in summary.settings[: len(COLOURS)]), "others"]
    return list(zip(summary.settings, colours, [*labels, *[None] * len(summary.settings)], strict=False))


def to_svg(picture: Picture, prefix: str) -> Markup:
    """The figure as SVG for the inside of a page: its ink is that of the page, its ids start with ``prefix``."""
    file = io.StringIO()
    with _style():
        if not picture.keys:
            _add_legend(picture)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        picture.figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()[file.getvalue().index("<svg") :]
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true">', text, count=1)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    # Hundredths of a point are enough for a place; what is written there stays as it is.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    return Markup(re.sub(r"\s*\n\s*", " ", text.replace(INK, "currentColor")))


def write_png(picture: Picture, folder: Path, *, of_numbers: bool = False) -> Path:
    """Write the figure as ``<name>.png`` into a folder, whole or not at all; on its axes may be words, or numbers."""
    path, file = folder / f"{picture.name}.png", io.BytesIO()
    with _style():
        _add_legend(picture)
        figure, height = picture.figure, picture.figure.get_figheight()
        if of_numbers:  # which fit between these margins; to measure them, all would be drawn three times
            figure.set_layout_engine(None)
            figure.subplots_adjust(left=0.19, right=0.975, top=1 - 0.32 / height, bottom=1 - 2.65 / height)
            figure.axes[0].xaxis.set_label_coords(0.5, -0.12)
            figure.axes[0].yaxis.set_label_coords(-0.17, 0.5)
        figure.savefig(file, format="png", dpi=160, facecolor="white", pil_kwargs={"compress_level": 1})
    write_bytes(path, file.getvalue(), again=False)
    return path


def thinned(*columns: Sequence[float], most: int = MAX_POINTS) -> Points:
    """Columns of a curve, of at most so many points, each the mean of equally many neighbours."""
    if (count := len(columns[0])) <= most:
        return columns
    size = -(-count // most)
    return tuple([fmean(column[cut : cut + size]) for cut in range(0, count, size)] for column in columns)


def band(runs: Sequence[RunRecord], name: str) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Steps, means over the runs that logged a metric there, and standard deviations, 0 where only one did."""
    if len(runs) == 1:  # which a page of many settings asks for often
        return *(own := curve(runs[0].lines, name)), [0.0] * len(own[0])
    points = sorted(point for run in runs[:MAX_SEEDS] for point in zip(*curve(run.lines, name), strict=True))
    groups = itertools.groupby(points, key=lambda point: point[0])
    found = {step: [entry for _, entry in group] for step, group in groups}
    sds = [stdev(entries) if len(entries) > 1 else 0.0 for entries in found.values()]
    return list(found), list(map(fmean, found.values())), sds


@contextlib.contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # that the font lacks: a name in another script
        yield


@contextlib.contextmanager
def _axes(ylabel: str, xlabel: str = "step", title: str = "") -> Iterator[tuple[Figure, Axes]]:
    with _style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda entry, _: number(entry, 6))
        if xlabel == "step":
            axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        yield figure, axes
        axes.set(xlabel=axes.get_xlabel() or xlabel, ylabel=ylabel, title=title)
        low, high = axes.get_ylim()
        if high - low < 1e-4 * abs(high):  # the same as it is written
            axes.set_ylim(low - 0.01 * abs(low), high + 0.01 * abs(high))
        axes.spines[["top", "right"]].set_visible(False)


def _add_legend(picture: Picture) -> None:
    figure = picture.figure
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) < 2 or figure.legends:
        return
    named = dict(zip(labels, handles, strict=True))
    order = [label for label in picture.keys or sorted(labels) if label in named]
    columns = 1 if max(map(len, labels)) > 26 else 2
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
    style = {"loc": "outside lower center", "frameon": False, "ncols": columns, "fontsize": 8.5}
    figure.legend([named[label] for label in order], order, **style)


def _axis_picture(summary: Summary, name: str, axis: Axis) -> Picture:
    looks = [look for look in styled(summary) if look[0].scores.get(name) and not look[0].odd]
    at = [[(n, *look) for n, look in enumerate(looks) if look[0].values[axis.name] == level] for level in axis.levels]
    means = [(spot, fmean(fmean(each.scores[name]) for _, each, *_ in here)) for spot, here in enumerate(at) if here]
    with _axes(name, axis.name) as (figure, axes):
        for spot, here in enumerate(at):
            for turn, (rank, setting, colour, label) in enumerate(here):
                place, shown = spot + 0.3 * ((turn + 0.5) / len(here) - 0.5), label if len(summary.axes) > 1 else None
                if colour in MARKERS or rank % -(-len(looks) // MAX_MARKS) == 0:
                    points = [[place], [fmean(setting.scores[name])], [setting.sd(name) or 0.0]]
                    _draw(axes, points, colour, shown)
        axes.plot(*zip(*means, strict=True), "-", color=INK, alpha=0.45, linewidth=1.1, zorder=0)
        _ticks(axes, "x", axis.levels)
        axes.set_xlim(-0.5, len(axis.levels) - 0.5)
        axes.grid(axis="y")
    caption = f"{name} against {axis.name}; the line joins the means, bars are one standard deviation over seeds"
    return Picture(f"objective-{file_name(axis.name)}", caption, figure)


def _heat_picture(summary: Summary, objective: SweepObjective, across: Axis, up: Axis) -> Picture:
    cells = heat_cells(summary, objective.name, across, up)
    places = range(len(across.levels)), range(len(up.levels))
    means = [[fmean(cells.get((x, y), [nan])) for x in places[0]] for y in places[1]]
    with _axes(up.name, across.name) as (figure, axes):
        colours = "viridis" if objective.maximise else "viridis_r"
        mesh = axes.pcolormesh(*places, means, cmap=colours, edgecolors="white", lw=3)
        for x, y in itertools.product(*places) if len(across.levels) * len(up.levels) <= MAX_CELLS else ():
            found = cells.get((x, y), [])
            is_dark = (mesh.norm(means[y][x]) < 0.5) == objective.maximise
            ink = OTHERS if not found else "#ffffff" if is_dark else "#101010"
            sd = stdev(found) if len(found) > 1 else None
            text = spread(means[y][x], sd).replace(" ± ", "\n± ") if found else "–"
            axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=8.5)
        _ticks(axes, "x", across.levels)
        _ticks(axes, "y", up.levels)
        axes.tick_params(length=0)
    others = "" if len(summary.axes) == 2 else ", over all other keys"
    caption = f"{objective.name}: mean and standard deviation of the runs in each cell{others}; {objective.direction}"
    return Picture(f"heat-{file_name(across.name)}-{file_name(up.name)}", caption, figure)


def heat_cells(summary: Summary, name: str, across: Axis, up: Axis) -> dict[tuple[int, int], list[float]]:
    """The scores of the finished runs whose config can be read, by the places of their values on two axes."""
    cells: dict[tuple[int, int], list[float]] = defaultdict(list)
    columns, rows = ({level: spot for spot, level in enumerate(axis.levels)} for axis in (across, up))
    for setting in summary.settings:
        if (found := setting.scores.get(name)) and setting.runs[0].cfg and not setting.odd:
            cells[columns[setting.values[across.name]], rows[setting.values[up.name]]].extend(found)
    return cells


def _trade_pictures(summary: Summary) -> Iterator[Picture]:
    for kl, reward in TABLE["trades"]:
        with _axes(reward, kl) as (figure, axes):
            for setting, colour, label in reversed(styled(summary)[:MAX_DRAWN]):
                for run in setting.runs[:MAX_SEEDS]:
                    both = [line for line in run.lines if is_finite(line.get(kl)) and is_finite(line.get(reward))]
                    if len(both) > 1:
                        xs, ys = thinned([line[kl] for line in both], [line[reward] for line in both], most=8)
                        axes.plot(xs, ys, "-", color=colour, alpha=0.4, linewidth=1)
                        axes.plot(xs[-1], ys[-1], MARKERS.get(colour, "."), color=colour, markersize=6, label=label)
                        label = None
            axes.grid()
        if axes.lines:
            caption = f"{reward} against {kl} while training, averaged to 8 points; each dot is where a run is last"
            yield Picture("reward-kl", caption, figure)


def _curve_picture(summary: Summary, name: str) -> Picture:
    bands = [(band(setting.runs, name), colour, label) for setting, colour, label in styled(summary)[:MAX_DRAWN]]
    drawn = [each for each in bands if each[0][0]]
    # The picture ends where most settings do, and those that come not much further.
    ends = sorted(steps[-1] for (steps, *_), *_ in drawn)
    limit = max(end for end in ends if end <= 2 * ends[len(ends) // 2])
    beyond = [end for end in ends if end > limit]
    with _axes(name) as (figure, axes):
        for place, (whole, colour, label) in enumerate(drawn):
            points = thinned(*whole, most=MAX_POINTS_BESIDE)
            cut = bisect(points[0], limit) + (len(points[0]) > 2)
            aside = 7 * (place - (min(len(drawn), len(COLOURS)) - 1) / 2)
            _draw(axes, [each[:cut] for each in points], colour, label, aside)
        axes.grid()
        if beyond:
            axes.set_xlim(min(points[0][0] for points, *_ in drawn) - 0.1 * limit, 1.1 * limit)
            axes.set_xlabel(f"step ({plural(len(beyond), 'setting')} beyond, to {number(max(beyond))})")
    return Picture(f"curve-{file_name(name)}", name, figure)


def _draw(axes: Axes, points: Points, colour: str, label: str | None, aside: float = 0, hollow: bool = False) -> None:
    """A curve of steps, values and deviations; of two steps as points, moved ``aside`` from those of others.

    A hollow one of two steps is a dashed line, too, as its legend says: before and after a training.
    """
    inside, (steps, values, sds) = "none" if hollow else colour, (*points, [0.0] * len(points[0]))[:3]
    style: dict[str, Any] = {"color": colour, "label": label, "marker": MARKERS.get(colour, ".")}
    style["ms"] = 6.5 - 0.5 * COLOURS.index(colour) if colour in MARKERS else 3  # smaller ones lie on larger ones
    low, high = ([value + side * sd for value, sd in zip(values, sds, strict=True)] for side in (-1, 1))
    if len(steps) < (2 if hollow else 3):
        from matplotlib.transforms import ScaledTranslation

        style["transform"] = axes.transData + ScaledTranslation(aside / 72, 0, axes.figure.dpi_scale_trans)
        axes.errorbar(steps, values, sds if any(sds) else None, capsize=3, ls="", mfc=inside, **style)
        axes.update_datalim([*zip(steps, low, strict=True), *zip(steps, high, strict=True)])
        axes.margins(x=0.1)
    elif colour in MARKERS:
        every = 1 if len(steps) < 30 else (0.04 * COLOURS.index(colour), 0.3)
        dashes = [4, 2] if hollow else DASHES[colour]
        axes.plot(steps, values, dashes=dashes, markevery=every, mfc=inside, **style)
        axes.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)
    else:  # beyond the palette
        axes.plot(steps, values, **style | {"linewidth": 0.7, "zorder": 1, "marker": ""})


def _ticks(axes: Axes, side: str, levels: Sequence[Hashable]) -> None:
    shown = range(0, len(levels), -(-len(levels) // MAX_TICKS) or 1)
    texts = [short(value(levels[spot]), 18) for spot in shown]
    turned = {"rotation": 30, "ha": "right"} if side == "x" and sum(map(len, texts)) > 50 else {}
    getattr(axes, f"set_{side}ticks")(shown, texts, **turned)


def file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name)


def run_charts(run: RunRecord) -> dict[str, Any]:
    """The charts of one run, whose labels are its metrics; as ``_to_data`` has them."""
    pictures = pictured(run.lines, PICTURES | {name: [name] for name in SCRIPTED}, headline_of(run))
    labels = [(name, colour, [run]) for each in pictures.values() for name, (colour, _, _) in each.items()]
    places, charts = {name: place for place, (name, *_) in enumerate(labels)}, dict[str, list[Any]]()
    for picture, each in pictures.items():
        charts[picture] = [(places[name], name.startswith("eval_"), x, y, ()) for name, (_, x, y) in each.items()]
    return _to_data(labels, charts)


def sweep_charts(summary: Summary) -> dict[str, Any]:
    """The charts of some runs, whose labels are the settings in their order: means, and deviations over seeds."""
    drawn, charts = styled(summary)[:MAX_DRAWN], dict[str, list[Any]]()
    for name in find_curves(summary):
        bands = (band(setting.runs, name) for setting, *_ in drawn)
        charts[name] = [(place, False, *points) for place, points in enumerate(bands) if points[0]]
    return _to_data([(setting.label, colour, setting.runs) for setting, colour, _ in drawn], charts)


def _to_data(labels: Sequence[tuple[str, str, Any]], charts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """``labels`` are hidden and shown, each with colour and clocks: tokens and time of steps of its longest run.

    A chart is ``[name, title, curves]``, and a curve ``[label, dashed, place in steps, values, deviations]``.
    """
    known: dict[tuple[float, ...], int] = {}  # the steps of curves, which many share, with their places
    most = min(MAX_POINTS_OF_SCRIPT, max(100, MAX_NUMBERS // max(1, sum(map(len, charts.values())))))

    def thin(steps: Sequence[float], values: Sequence[float], count: int = most) -> list[Any]:
        fewer, means = thinned(steps, values, most=count)
        place = known.setdefault(tuple(round(step, 2) for step in fewer), len(known))
        return [place, [int(each) if each == int(each) else float(f"{each:.7g}") for each in means]]

    data: dict[str, Any] = {"labels": [], "charts": []}
    for text, colour, runs in labels:
        lines = max((run.lines for run in runs), key=len)
        clocks = [(clock, *curve(lines, name)) for clock, name in CLOCKS.items()]
        found = {clock: thin(at, values, CLOCK_POINTS) for clock, at, values in clocks if len(at) > 1}
        data["labels"].append([text, colour, found])
    for name, curves in charts.items():
        rows = [[*of, *thin(at, values), any(sds) and thin(at, sds)[1]] for *of, at, values, sds in curves]
        data["charts"].append([file_name(name), name, rows])
    return data | {"steps": list(known), "looks": LOOKS}
