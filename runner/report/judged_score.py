"""The held-out score that judges a run: before and after the training, and what may be chance."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from runner.report.ranking import GUESSES, TELLING, SweepObjective, headline_of
from runner.report.score import LOW, is_held_out, is_more_better, metrics_of
from runner.run.record import RunRecord
from runner.schema import upstream
from runner.schema.text import flatten, select

ONLINE = re.compile(r"(^|_)(objective/scores|reward)$")  # the reward of what a trainer samples


@dataclass(frozen=True)
class JudgedScore:
    """The score that judges a run, before and after the training."""

    objective: SweepObjective
    before: float
    after: float
    rows: int  # held out
    standard_error: float

    @property
    def is_better(self) -> bool:
        """True where the change is in the better direction."""
        return (self.after > self.before) == self.objective.maximise

    @property
    def is_chance(self) -> bool:
        """True for a change of up to two standard errors.

        The error is that of the difference of two independent means over the held-out rows. It is
        too large, because both means are over the same rows; in doubt, it is chance.
        """
        return abs(self.after - self.before) <= 2 * self.standard_error


def judge_score(run: RunRecord) -> JudgedScore | None:
    """The judging score of a run; None without one, and where no rows were held out."""
    objective = _judging_objective(run)
    rows = _count_held_out_rows(run)
    if objective is None or not rows:
        return None
    name = objective.name
    before = run.before.get(name)
    after = run.after.get(name)
    if before is None or after is None:
        return None
    deviation = math.hypot(_deviation(run.before, name), _deviation(run.after, name))
    return JudgedScore(objective, before, after, rows, deviation / math.sqrt(rows))


def _judging_objective(run: RunRecord) -> SweepObjective | None:
    """The score that tells whether a run has made its model worse.

    It is the one that the configuration names, or the reward of a trainer that samples, or the
    held-out figure that ranks models, or the most telling score.
    """
    headline = headline_of(run)
    if headline is None or headline.why not in GUESSES or ONLINE.search(headline.name):
        return headline
    figure = upstream.ranking_figure(run.cfg)
    for name in run.after:
        if is_held_out(name, figure):
            maximise = is_more_better([run], name) is not False
            return SweepObjective(name, maximise, "the figure that ranks models")
    return headline if headline.why == TELLING else None


def _count_held_out_rows(run: RunRecord) -> int:
    """The size of the smallest held-out set, or the smallest limit of a metric if that is less."""
    counts = []
    held_out = select(run.manifest, "data.eval") or {}
    for key, count in flatten(held_out).items():
        if key.rpartition(".")[2] == "rows":
            counts.append(count)
    for metric in metrics_of([run]).values():
        if isinstance(metric, dict):
            counts.append(metric.get("limit"))
    whole_counts = [count for count in counts if isinstance(count, int)]
    return min(whole_counts, default=0)


def _deviation(scores: Mapping[str, float], name: str) -> float:
    """The standard deviation of one row: the logged one, or an estimate from the mean."""
    logged = scores.get(f"{name}_std")
    if logged is not None:
        return logged
    mean = scores[name]
    if 0 <= mean <= 1 and not LOW.search(name):  # a share, of rows that are each 0 or 1
        return math.sqrt(mean * (1 - mean))
    return abs(mean)
