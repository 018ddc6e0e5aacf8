"""The notes on a finished run whose training, or the end of it, moved nothing, or moved backwards.

The figure is the loss where a trainer learns from rows, and the reward where it learns from what it
samples, whose losses do not fall. ``verdict`` tells of runs that became worse.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from runner.report.judged_score import judge_score
from runner.report.number import plural
from runner.run.alarms import EARNED, GROUPS_ALIKE, Change
from runner.run.history import curve
from runner.run.record import RunRecord
from runner.schema.literal import number

MIN_VALUES = 15  # logged ones; with fewer, nobody can tell a slow start from none
SIGMAS = 1.5  # a change within so many standard errors may be chance
MIN_SILENT_STEPS = 10  # at the end of a run, without any signal
CERTAIN_SIGMAS = 3.0  # a change beyond so many is none
# A held-out loss that has changed by this share says that the model has learnt something.
HELD_OUT_SHARE = 0.01
# The median of the absolute difference of two normal numbers, as a multiple of their deviation.
MEDIAN_DIFFERENCE = 0.954
FORMS_WITH_LOSS = ("demonstration", "preference", "unpaired")


def describe_standstill(run: RunRecord, held_out: Sequence[Change]) -> str | None:
    """A line on a run that has learnt nothing that can be seen, with what to type; None otherwise.

    The ``held_out`` figures are measured on the same rows before and after. Where a loss among them
    has moved, or the score that judges the run is better, nothing is said.
    """
    name = _progress_figure(run)
    _, values = curve(run.lines, name)
    if len(values) < MIN_VALUES or has_moved(values):
        return None
    score = judge_score(run)
    if score and score.is_better and not score.is_chance:
        return None
    for figure in held_out:
        distance = abs(figure.after - figure.before)
        is_moved = distance > HELD_OUT_SHARE * abs(figure.before)
        if figure.kind == "loss" and is_moved:
            return None
    third = len(values) // 3
    before = number(fmean(values[:third]))
    after = number(fmean(values[-third:]))
    change = f"{before} -> {after}"
    steps = plural(run.status["step"], "step")

    # What to type.
    key = "trainer.args.learning_rate"
    if run.cfg.get("learning_rate") is not None:
        key = "learning_rate"
    rate = run.experiment.trainer.args.get("learning_rate")
    fix = f"a higher {key}="
    if isinstance(rate, int | float):
        fix = f"{key}={number(10 * rate)}, ten times its rate"
    scatter = number(scatter_of(values), 2)
    return (
        f"the {name} has not moved beyond its noise in {steps}, {change} with a scatter of "
        f"{scatter}: {fix}, or more steps"
    )


def describe_silent_end(run: RunRecord) -> str | None:
    """A line on a run whose last steps had no group with a signal, with what to type; else None.

    Nothing is said of a few steps at the end of a longer run.
    """
    steps, shares = curve(run.lines, GROUPS_ALIKE)
    silent = 0
    while silent < len(shares) and shares[-1 - silent] == 1.0:
        silent += 1
    if not silent:
        return None
    alike = "all completions of each prompt earned the same"
    _, earned = curve(run.lines, _progress_figure(run))
    if earned:
        earned_at_end = fmean(earned[-silent:])
        alike += f", {number(earned_at_end)} on average"
    if silent == len(shares):
        all_steps = plural(run.status["step"], "step")
        return f"nothing was learnt in {all_steps}: {alike}: prompts that are solved now and then"
    last_step = steps[-1 - silent]
    count = steps[-1] - last_step
    if count < MIN_SILENT_STEPS:
        return None
    return (
        f"nothing was learnt in the last {plural(count, 'step')}: {alike}: "
        f"trainer.args.max_steps={last_step}, or prompts that are solved now and then"
    )


def describe_worse_steps(run: RunRecord) -> str | None:
    """A line on a run whose own figure became worse beyond its noise; None otherwise.

    It is for runs that no held-out score judges. The end has to be worse than each beginning: a
    loss that falls at once and then rises again may still be lower than it was.
    """
    name = _progress_figure(run)
    _, values = curve(run.lines, name)
    if len(values) < MIN_VALUES:
        return None
    third = len(values) // 3
    direction = 1 if name == "loss" else -1
    eighth = len(values) // 8
    first_eighth = fmean(values[:eighth])
    first_third = fmean(values[:third])
    if direction > 0:
        before = max(first_eighth, first_third)
    else:
        before = min(first_eighth, first_third)
    after = fmean(values[-third:])
    error = scatter_of(values) * math.sqrt(1 / eighth + 1 / third)
    if direction * (after - before) <= CERTAIN_SIGMAS * error:
        return None
    change = f"{name} {number(before)} -> {number(after)}"
    return (
        f"the model seems worse than it was: {change} in training, which no held-out score judges"
    )


def _progress_figure(run: RunRecord) -> str:
    """The name of the logged figure that moves when a run learns; empty where there is none."""
    trainer = run.experiment.trainer
    if trainer.is_online:
        for name in EARNED:
            if name in run.logged:
                return name
    return "loss" if trainer.form in FORMS_WITH_LOSS else ""


def has_moved(values: Sequence[float]) -> bool:
    """True where the last third differs from the beginning by more than chance.

    The beginning is the first two values, the first eighth or the first third, because a loss may
    fall in a few steps and then stay, or all the time.
    """
    scatter = scatter_of(values)
    third = len(values) // 3
    end = fmean(values[-third:])
    eighth = max(1, len(values) // 8)
    for count in (2, eighth, third):
        beginning = fmean(values[:count])
        # The standard error of the difference of two means of so many values.
        error = scatter * math.sqrt(1 / count + 1 / third)
        if abs(beginning - end) > SIGMAS * error:
            return True
    return False


def scatter_of(values: Sequence[float]) -> float:
    """The standard deviation of a value around its trend, which single outliers do not change.

    It is that of the differences of neighbours, in which a trend is nearly nothing.
    """
    differences = [abs(later - earlier) for earlier, later in pairwise(values)]
    return median(differences) / MEDIAN_DIFFERENCE
