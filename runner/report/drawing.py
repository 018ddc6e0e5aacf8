"""Pictures with matplotlib: palette, axes, curves and legends, as PNG and SVG.

``plot_run`` and ``plot_sweep`` decide what is drawn.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from runner.io.files import write_bytes
from runner.io.visible import to_visible
from runner.report.number import short
from runner.schema.literal import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Look:
    """The marker and the dashes of a curve, which distinguish it without its colour."""

    marker: str  # the name that matplotlib has for it
    glyph: str  # the same marker on a page
    dashes: tuple[int, ...]
    marker_size: float  # later looks are smaller, so that earlier ones show behind them


# The palette, which colour-blind people can tell apart, on white as well as on black.
LOOKS = {
    "#3b7fc4": Look("o", "●", (), 6.5),
    "#d9702b": Look("s", "■", (6, 2), 6.0),
    "#2b9a66": Look("^", "▲", (4, 3), 5.5),
    "#c2508c": Look("D", "◆", (6, 2, 1, 2), 5.0),
    "#8a6fd0": Look("v", "▼", (2, 2), 4.5),
    "#9a8420": Look("P", "✚", (2, 3), 4.0),
    "#2a97ad": Look("X", "✖", (1, 2), 3.5),
    "#b5544d": Look("*", "★", (1, 3), 3.0),
}
COLOURS = list(LOOKS)
PLAIN_LOOK = Look(".", "·", (), 3.0)  # of all settings beyond the palette
WIDTH = 5.2  # of a figure, in inches
HEIGHT = 3.2  # without a legend
INK = "#1f2329"
GREY = "#8c939c"  # of the grid, and of all settings beyond the palette
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,  # a pattern may hold two dollar signs
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.7,
    "axes.titley": 1.0,  # to let matplotlib search for a place takes time
    "grid.linewidth": 0.7,
    "grid.color": GREY,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "runner",
}
MAX_POINTS = 300  # of a curve; a longer one is averaged, which also keeps a page small
MAX_TICKS = 24  # values that are written on an axis
MAX_TICK_LETTERS = 18
MAX_SHARE = 2  # above it lies a percentage, and below it a deviation may still lie
MAX_TITLE_LETTERS = 56


@dataclass(frozen=True)
class Curve:
    """The values of a metric at some steps, with their deviations where there are any."""

    steps: Sequence[float]
    values: Sequence[float]
    deviations: Sequence[float] = ()


@dataclass(frozen=True)
class Picture:
    """A drawn figure."""

    name: str  # of its file, without the suffix
    caption: str
    figure: Figure
    keys: Sequence[str] = ()  # the labels of a legend that a page shows once for all its pictures


def file_name(name: str) -> str:
    """A name in which an underscore replaces what does not suit a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name)


def thinned(curve: Curve, max_points: int = MAX_POINTS) -> Curve:
    """A curve of at most ``max_points``, each the mean of equally many neighbouring points."""
    count = len(curve.steps)
    if count <= max_points:
        return curve
    size = ceil(count / max_points)

    def averaged(column: Sequence[float]) -> list[float]:
        means = []
        for start in range(0, len(column), size):
            means.append(fmean(column[start : start + size]))
        return means

    return Curve(averaged(curve.steps), averaged(curve.values), averaged(curve.deviations))


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """A context in which matplotlib draws in STYLE."""
    import matplotlib

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The font lacks the letters of some scripts.
        warnings.filterwarnings("ignore", "Glyph")
        yield


@contextlib.contextmanager
def new_axes(
    ylabel: str, xlabel: str = "step", *, share: bool = False, used: Axes | None = None
) -> Iterator[Axes]:
    """The axes of a new figure to draw on; labels and limits are set at the end of the context.

    A ``share`` is drawn from 0 to 1, where no small change looks large. ``used`` axes of a picture
    that is written by now are taken again: to make others takes a third of the time of a picture.
    """
    with _style():
        axes = used or _make_axes(xlabel)
        if used:
            _wipe(used)
        yield axes
        axes.set(xlabel=axes.get_xlabel() or xlabel, ylabel=ylabel)
        low, high = axes.get_ylim()
        if share and high < MAX_SHARE:
            axes.set_ylim(-0.03, 1.03)  # with room for the marks of 0 and 1
        elif high - low < 1e-4 * abs(high):  # values that read as the same number
            room_below = 0.01 * abs(low)
            room_above = 0.01 * abs(high)
            axes.set_ylim(low - room_below, high + room_above)
        axes.spines[["top", "right"]].set_visible(False)


def _make_axes(xlabel: str) -> Axes:
    """The axes of a new figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: number(value, 6))
    if xlabel == "step":
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return axes


def _wipe(axes: Axes) -> None:
    """Take the curves and the legend of a picture away, so that another one can be drawn there."""
    import matplotlib

    figure = axes.figure
    for points in list(axes.containers):
        points.remove()  # with their lines
    for drawn in (*axes.lines, *axes.collections, *figure.legends):
        drawn.remove()
    figure.set_figheight(HEIGHT)
    axes.relim()
    axes.margins(matplotlib.rcParams["axes.xmargin"], matplotlib.rcParams["axes.ymargin"])
    axes.autoscale()


def draw_curve(
    axes: Axes,
    curve: Curve,
    colour: str,
    label: str | None,
    *,
    offset: float = 0,
    hollow: bool = False,
    held_out: bool = False,
) -> None:
    """Draw a curve with its band: as a line, or as points where it has few steps.

    Points are moved to the right by ``offset`` points of print, so that those of several curves do
    not hide each other. Of held-out rows, two steps, before and after training, are enough for a
    line. Where it is drawn beside that of the training, it is hollow and dashed.
    """
    look = LOOKS.get(colour, PLAIN_LOOK)
    face = "none" if hollow else colour
    min_steps = 2 if hollow or held_out else 3  # of a line
    steps = curve.steps
    values = curve.values
    deviations = curve.deviations or [0.0] * len(steps)
    low = [value - sd for value, sd in zip(values, deviations, strict=True)]
    high = [value + sd for value, sd in zip(values, deviations, strict=True)]
    style: dict[str, Any] = {
        "color": colour,
        "label": label,
        "marker": look.marker,
        "markersize": look.marker_size,
    }
    if len(steps) < min_steps:
        from matplotlib.transforms import ScaledTranslation

        # An offset in points, whatever the scale of the axis; there are 72 to an inch.
        shift = ScaledTranslation(offset / 72, 0, axes.figure.dpi_scale_trans)
        style["transform"] = axes.transData + shift
        errors = deviations if any(deviations) else None
        axes.errorbar(steps, values, errors, capsize=3, linestyle="", markerfacecolor=face, **style)
        axes.update_datalim([*zip(steps, low, strict=True)])
        axes.update_datalim([*zip(steps, high, strict=True)])
        axes.margins(x=0.1)
    elif look is PLAIN_LOOK:
        style |= {"linewidth": 0.7, "zorder": 1, "marker": ""}
        axes.plot(steps, values, **style)
    else:
        dashes = (4, 2) if hollow else look.dashes
        marked: object = 1  # every point
        if len(steps) >= 30:  # a few points, which begin elsewhere on each curve
            marked = (0.04 * COLOURS.index(colour), 0.3)
        axes.plot(steps, values, dashes=dashes, markevery=marked, markerfacecolor=face, **style)
        axes.fill_between(steps, low, high, color=colour, alpha=0.16, linewidth=0)


def set_ticks(axes: Axes, side: str, levels: Sequence[str]) -> None:
    """Write the levels of an axis at 0, 1, 2 ... along a ``side``, which is x or y."""
    stride = max(1, ceil(len(levels) / MAX_TICKS))
    places = range(0, len(levels), stride)
    texts = [short(levels[place], MAX_TICK_LETTERS) for place in places]
    if side == "y":
        axes.set_yticks(places, texts)
    elif sum(map(len, texts)) > 50:
        axes.set_xticks(places, texts, rotation=30, ha="right")
    else:
        axes.set_xticks(places, texts)


def _add_legend(picture: Picture) -> None:
    """Write a legend below the axes if there are several labels, and make the figure taller."""
    figure = picture.figure
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) < 2 or figure.legends:
        return
    handle_of = dict(zip(labels, handles, strict=True))
    ordered = [label for label in picture.keys or sorted(labels) if label in handle_of]
    # Two columns of up to 26 letters fit; each line takes 0.19 inches.
    columns = 1 if max(map(len, labels)) > 26 else 2
    lines = ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * lines)
    handles = [handle_of[label] for label in ordered]
    figure.legend(
        handles,
        ordered,
        loc="outside lower center",
        frameon=False,
        ncols=columns,
        fontsize=8.5,
    )


def _fix_margins(figure: Figure) -> None:
    """Give a figure whose axes have numbers margins that have room for them.

    To measure them, matplotlib would draw everything three times.
    """
    height = figure.get_figheight()
    figure.set_layout_engine(None)
    top = 1 - 0.32 / height
    bottom = 1 - 2.65 / height
    figure.subplots_adjust(left=0.19, right=0.975, top=top, bottom=bottom)
    figure.axes[0].xaxis.set_label_coords(0.5, -0.12)
    figure.axes[0].yaxis.set_label_coords(-0.17, 0.5)


def to_svg(picture: Picture, prefix: str, *, has_numbers: bool = False) -> Markup:
    """The figure as inline SVG in the text colour of a page; ``prefix`` begins its ids.

    Where both axes have numbers, the margins are fixed.
    """
    file = io.StringIO()
    with _style():
        if not picture.keys:
            _add_legend(picture)
        if has_numbers:
            _fix_margins(picture.figure)
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        picture.figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    text = file.getvalue()
    # The head of an XML file does not belong in a page.
    text = text[text.index("<svg") :]
    head = r'<svg viewBox="\1" aria-hidden="true">'
    text = re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', head, text, count=1)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"<[^>]*>", _rounded_places, text)
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = text.replace(INK, "currentColor")
    return Markup(re.sub(r"\s*\n\s*", " ", text))


def _rounded_places(tag: re.Match[str]) -> str:
    """A tag with coordinates to a hundredth of a point; texts are outside of tags."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0])


def write_png(
    picture: Picture, folder: Path, title: str = "", *, has_numbers: bool = False
) -> Path:
    """Write the figure as ``<name>.png`` into a folder, whole or not at all; returns the file.

    The ``title`` says which runs it shows, since the file may lie anywhere. Where both axes have
    numbers, the margins are fixed.
    """
    path = folder / f"{picture.name}.png"
    figure = picture.figure
    file = io.BytesIO()
    with _style():
        _add_legend(picture)
        if title:
            title = to_visible(title)
            if len(title) > MAX_TITLE_LETTERS:
                title = f"{title[: MAX_TITLE_LETTERS - 1]}…"
            figure.axes[0].set_title(title, loc="left", fontsize=8.5)
        if has_numbers:
            _fix_margins(figure)
        compression = {"compress_level": 1}
        figure.savefig(file, format="png", dpi=160, facecolor="white", pil_kwargs=compression)
    write_bytes(path, file.getvalue(), again=False)
    return path
