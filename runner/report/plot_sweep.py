"""Pictures and charts of runs side by side: scores over keys, reward over KL, and curves."""

from bisect import bisect
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, nan
from statistics import fmean

from runner.report.axis import Axis
from runner.report.charts import (
    CLOCKS,
    SCRIPTED,
    ChartCurve,
    ChartData,
    Label,
    to_chart_data,
)
from runner.report.drawing import (
    COLOURS,
    GREY,
    INK,
    LOOKS,
    PLAIN_LOOK,
    Curve,
    Picture,
    draw_curve,
    file_name,
    new_axes,
    set_ticks,
    thinned,
)
from runner.report.number import format_spread, plural, sample_sd, short
from runner.report.ranking import SweepObjective
from runner.report.score import HELD_OUT, is_share
from runner.report.sweep import Summary, SweepSetting
from runner.run.history import curve, is_finite
from runner.run.record import RunRecord
from runner.schema.literal import number

# The metrics whose curves are drawn: the first MAX_CURVES of these that were logged.
CURVES = [
    "reward",
    "objective/scores",
    "eval_reward",
    "eval_objective/scores",
    "rewards/margins",
    "rewards/accuracies",
    "eval_rewards/accuracies",
    "loss",
    "eval_loss",
    "kl",
    "objective/kl",
    "entropy",
    "policy/sampled_entropy_avg",
    "mean_token_accuracy",
    "completions/mean_length",
    "val/explained_variance",
    "grad_norm",
]
# Distances from the start model, each with the reward that a policy trades it for.
TRADES = {"objective/kl": "objective/scores", "kl": "reward"}
CURVE_PREFIX = "curve-"  # of the name of a picture that a chart replaces
HEAT_PREFIX = "heat-"  # of that of a heat map
DARK_INK = "#101010"
LIGHT_INK = "#ffffff"
MAX_AXES = 6  # keys over which the objective is drawn
MAX_CURVES = 8
MAX_POINTS_BESIDE = 120  # of each curve beside others
MAX_POINTS_OF_TRADE = 8
MAX_DRAWN = len(COLOURS) + 40  # settings whose curves are drawn, most of them in one colour
MAX_SEEDS = 20  # runs of a setting whose curves are drawn
MAX_MARKS = 200  # settings beyond the palette that are drawn on an axis
MAX_LEVELS = 60  # values of an axis of a heat map
MAX_CELLS = 160  # of a heat map that has numbers in its cells
MAX_LETTERS = 200  # of the label of a setting


@dataclass(frozen=True)
class StyledSetting:
    """A setting as it is drawn."""

    setting: SweepSetting
    colour: str
    label: str | None  # None where a setting before it has the label of all beyond the palette


def sweep_pictures(summary: Summary) -> Iterator[Picture]:
    """The objective over one axis and over two, reward over KL, and curves over steps.

    Each is drawn when it is asked for, because drawn ones take much memory.
    """
    settings = style_settings(summary)
    # A page has one legend for all pictures.
    keys = [styled.label for styled in settings if styled.label]
    for picture in _draw_pictures(summary, settings):
        yield replace(picture, keys=keys)


def _draw_pictures(summary: Summary, settings: Sequence[StyledSetting]) -> Iterator[Picture]:
    """The pictures, without the labels of their legend."""
    objective = summary.objective
    curves = find_curves(settings, objective)
    if objective and summary.best:
        has_labels = len(summary.axes) > 1
        for axis in summary.axes[:MAX_AXES]:
            yield _axis_picture(settings, objective.name, axis, has_labels)
        short_axes = [axis for axis in summary.axes if len(axis.levels) <= MAX_LEVELS]
        if len(short_axes) > 1:
            across, up, *_ = short_axes
            yield _heat_picture(summary, objective, across, up)
    yield from _trade_pictures(settings)
    for name in curves:
        if name not in SCRIPTED:
            yield _curve_picture(settings, name)


def find_curves(settings: Sequence[StyledSetting], objective: SweepObjective | None) -> list[str]:
    """The metrics whose curves are drawn, those of SCRIPTED last.

    To save memory, the lines of the runs that are drawn lose all figures that are not.
    """
    headline = objective.name if objective else ""
    wanted = dict.fromkeys([headline, *CURVES, *SCRIPTED])
    needed = {"step", *wanted, *CLOCKS.values(), *TRADES, *TRADES.values()}
    logged = set[str]()
    for styled in settings[:MAX_DRAWN]:
        for run in styled.setting.runs[:MAX_SEEDS]:
            for index, line in enumerate(run.lines):
                run.lines[index] = {name: line[name] for name in line if name in needed}
            present = set[str]().union(*run.lines)
            for name in present.intersection(wanted) - logged:
                steps, _ = curve(run.lines, name)
                min_steps = 1 if name == headline else 2
                if len(steps) >= min_steps:
                    logged.add(name)
    curves = [name for name in wanted if name in logged and name not in SCRIPTED]
    scripted = [name for name in SCRIPTED if name in logged]
    return curves[:MAX_CURVES] + scripted


def style_settings(summary: Summary) -> list[StyledSetting]:
    """Each setting, best first, with its colour and label.

    The best settings have a colour of the palette each, and the others share one. When a page is
    drawn again, a setting keeps its colour as long as it is among the best.
    """
    best = summary.settings[: len(COLOURS)]
    colours: list[str] = []
    for setting in best:
        earlier = _earlier_colour(setting, summary)
        colours.append("" if earlier in colours else earlier)
    unused = [colour for colour in COLOURS if colour not in colours]
    settings = []
    for setting, colour in zip(best, colours, strict=True):
        label = short(setting.label, MAX_LETTERS)
        settings.append(StyledSetting(setting, colour or unused.pop(0), label))
    summary.colours.clear()
    for styled in settings:
        for run in styled.setting.runs:
            summary.colours[run.folder] = styled.colour
    label_of_others: str | None = "others"
    for setting in summary.settings[len(COLOURS) :]:
        settings.append(StyledSetting(setting, GREY, label_of_others))
        label_of_others = None
    return settings


def _earlier_colour(setting: SweepSetting, summary: Summary) -> str:
    """The colour that a run of the setting had when it was last drawn; empty without one."""
    for run in setting.runs:
        if run.folder in summary.colours:
            return summary.colours[run.folder]
    return ""


def band(runs: Sequence[RunRecord], name: str) -> Curve:
    """The mean and the deviation of a metric over runs, at each step that any of them logged.

    Of a step that only one of the runs has logged the deviation is 0.
    """
    if len(runs) == 1:  # faster, for pages of many settings
        steps, values = curve(runs[0].lines, name)
        return Curve(steps, values, [0.0] * len(steps))
    values_at: dict[int, list[float]] = defaultdict(list)
    for run in runs[:MAX_SEEDS]:
        for step, value in zip(*curve(run.lines, name), strict=True):
            values_at[step].append(value)
    steps = sorted(values_at)
    means = [fmean(values_at[step]) for step in steps]
    deviations = [sample_sd(values_at[step]) or 0.0 for step in steps]
    return Curve(steps, means, deviations)


def _axis_picture(
    settings: Sequence[StyledSetting], name: str, axis: Axis, has_labels: bool
) -> Picture:
    """A score over a key: at each of its values the means of the settings, side by side."""
    scored = []
    for styled in settings:
        if styled.setting.scores.get(name) and not styled.setting.odd:
            scored.append(styled)
    ranked_at: dict[Hashable, list[tuple[int, StyledSetting]]] = defaultdict(list)
    for rank, styled in enumerate(scored):
        ranked_at[styled.setting.values[axis.name]].append((rank, styled))
    # Of the settings beyond the palette, every n-th is drawn.
    stride = ceil(len(scored) / MAX_MARKS)
    line_places = []
    line_means = []
    with new_axes(name, axis.name) as axes:
        for place, level in enumerate(axis.levels):
            ranked = ranked_at.get(level, [])
            means = []
            for index, (rank, styled) in enumerate(ranked):
                mean = fmean(styled.setting.scores[name])
                means.append(mean)
                if styled.colour in LOOKS or rank % stride == 0:
                    # The settings of one value share 0.3 of the distance between values.
                    position = (index + 0.5) / len(ranked) - 0.5  # around the middle, 0
                    x = place + 0.3 * position
                    sd = styled.setting.sd(name) or 0.0
                    point = Curve([x], [mean], [sd])
                    label = styled.label if has_labels else None
                    draw_curve(axes, point, styled.colour, label)
            if means:
                line_places.append(place)
                line_means.append(fmean(means))
        axes.plot(line_places, line_means, "-", color=INK, alpha=0.45, linewidth=1.1, zorder=0)
        set_ticks(axes, "x", [axis.text_of(level) for level in axis.levels])
        axes.set_xlim(-0.5, len(axis.levels) - 0.5)
        axes.grid(axis="y")
    caption = f"{name} over {axis.name}; the line joins the means, "
    caption += "bars are one standard deviation over seeds"
    return Picture(f"objective-{file_name(axis.name)}", caption, axes.figure)


def _heat_picture(summary: Summary, objective: SweepObjective, across: Axis, up: Axis) -> Picture:
    """The objective over two keys as a heat map, with numbers in its cells if there is room."""
    cells = heat_cells(summary, objective.name, across, up)
    xs = range(len(across.levels))
    ys = range(len(up.levels))
    means = []
    for y in ys:
        row = [cells.get((x, y), [nan]) for x in xs]
        means.append([fmean(scores) for scores in row])
    with new_axes(up.name, across.name) as axes:
        colours = "viridis" if objective.maximise else "viridis_r"
        mesh = axes.pcolormesh(xs, ys, means, cmap=colours, edgecolors="white", lw=3)
        if len(xs) * len(ys) <= MAX_CELLS:
            for x, y in product(xs, ys):
                mean = means[y][x]
                scores = cells.get((x, y), [])
                text = "–"
                ink = GREY
                if scores:
                    text = format_spread(mean, sample_sd(scores)).replace(" ± ", "\n± ")
                    # Low values are dark, unless the colours are reversed.
                    is_dark = (mesh.norm(mean) < 0.5) == objective.maximise
                    ink = LIGHT_INK if is_dark else DARK_INK
                axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=8.5)
        set_ticks(axes, "x", [across.text_of(level) for level in across.levels])
        set_ticks(axes, "y", [up.text_of(level) for level in up.levels])
        axes.tick_params(length=0)
    caption = f"{objective.name}: mean and standard deviation of the runs in each cell"
    if len(summary.axes) > 2:
        caption += ", over all other keys"
    name = f"{HEAT_PREFIX}{file_name(across.name)}-{file_name(up.name)}"
    return Picture(name, f"{caption}; {objective.direction}", axes.figure)


def heat_cells(
    summary: Summary, name: str, across: Axis, up: Axis
) -> dict[tuple[int, int], list[float]]:
    """The scores of the finished runs, by the places of their values along two axes.

    Runs whose config cannot be read are left out, because their values are not known.
    """
    cells: dict[tuple[int, int], list[float]] = defaultdict(list)
    for setting in summary.settings:
        scores = setting.scores.get(name)
        if scores and setting.runs[0].cfg and not setting.odd:
            x = across.levels.index(setting.values[across.name])
            y = up.levels.index(setting.values[up.name])
            cells[x, y].extend(scores)
    return cells


def _trade_pictures(settings: Sequence[StyledSetting]) -> Iterator[Picture]:
    """The reward over the distance from the start model, for each of TRADES that was logged."""
    for kl, reward in TRADES.items():
        with new_axes(reward, kl) as axes:
            for styled in reversed(settings[:MAX_DRAWN]):
                label = styled.label
                for run in styled.setting.runs[:MAX_SEEDS]:
                    path = _trade_of(run, kl, reward)
                    if len(path.steps) < 2:
                        continue
                    path = thinned(path, MAX_POINTS_OF_TRADE)
                    marker = LOOKS.get(styled.colour, PLAIN_LOOK).marker
                    style = {"color": styled.colour, "markersize": 6, "label": label}
                    axes.plot(path.steps, path.values, color=styled.colour, alpha=0.4, linewidth=1)
                    last_distance = path.steps[-1]
                    last_reward = path.values[-1]
                    axes.plot(last_distance, last_reward, marker, **style)
                    label = None  # one for all runs of a setting
            axes.grid()
        if axes.lines:
            caption = (
                f"{reward} over {kl} during the training, averaged to "
                f"{MAX_POINTS_OF_TRADE} points; each dot is the last value of a run"
            )
            yield Picture("reward-kl", caption, axes.figure)


def _trade_of(run: RunRecord, kl: str, reward: str) -> Curve:
    """The rewards of a run over its distances from the start model, in the order of the steps."""
    distances = []
    rewards = []
    for line in run.lines:
        if is_finite(line.get(kl)) and is_finite(line.get(reward)):
            distances.append(line[kl])
            rewards.append(line[reward])
    return Curve(distances, rewards)


def _curve_picture(settings: Sequence[StyledSetting], name: str) -> Picture:
    """The curve of a metric for each setting.

    Settings of more than twice the median length are cut, and a note tells how far they go.
    """
    bands = []
    for styled in settings[:MAX_DRAWN]:
        points = band(styled.setting.runs, name)
        if points.steps:
            bands.append((styled, points))
    ends = sorted(points.steps[-1] for _, points in bands)
    median_end = ends[len(ends) // 2]
    limit = max(end for end in ends if end <= 2 * median_end)
    beyond = [end for end in ends if end > limit]
    centre = (min(len(bands), len(COLOURS)) - 1) / 2
    with new_axes(name, share=is_share(name)) as axes:
        for place, (styled, points) in enumerate(bands):
            points = _cut(thinned(points, MAX_POINTS_BESIDE), limit)
            # Those in colours of the palette are centred; the others follow to their right.
            offset = 7 * (place - centre)
            held_out = name.startswith(HELD_OUT)
            draw_curve(axes, points, styled.colour, styled.label, offset=offset, held_out=held_out)
        axes.grid()
        if beyond:
            start = min(points.steps[0] for _, points in bands)
            axes.set_xlim(start - 0.1 * limit, 1.1 * limit)
            count = plural(len(beyond), "setting")
            farthest = number(max(beyond))
            axes.set_xlabel(f"step ({count} beyond, to {farthest})")
    return Picture(CURVE_PREFIX + file_name(name), name, axes.figure)


def _cut(points: Curve, limit: float) -> Curve:
    """A curve up to a step, with one point beyond it, so that its line runs out of the picture."""
    end = bisect(points.steps, limit)
    if len(points.steps) > 2:
        end += 1
    steps = points.steps[:end]
    values = points.values[:end]
    deviations = points.deviations[:end]
    return Curve(steps, values, deviations)


def sweep_charts(summary: Summary) -> ChartData:
    """The charts of some runs, with a label for each setting: means and deviations over seeds."""
    settings = style_settings(summary)
    labels = []
    for styled in settings[:MAX_DRAWN]:
        labels.append(Label(styled.setting.label, styled.colour, styled.setting.runs))
    charts = {}
    for name in find_curves(settings, summary.objective):
        chart = []
        for place, label in enumerate(labels):
            points = band(label.runs, name)
            if points.steps:
                chart.append(ChartCurve(place, False, points))
        charts[name] = chart
    return to_chart_data(labels, charts)
