"""The verdict on the training of one run: whether its scores show that it did harm."""

import math
import re
from collections.abc import Mapping

from runner.report.ranking import GUESSES, TELLING, SweepObjective, headline_of
from runner.report.score import LOW, NO_SCORE, is_held_out, is_more_better, metrics_of
from runner.run.alarms import EARNED, Change, Kind
from runner.run.record import RunRecord
from runner.schema import upstream
from runner.schema.literal import number
from runner.schema.text import flatten, select

ONLINE = re.compile(r"(^|_)(objective/scores|reward)$")  # the reward of what a trainer samples


def describe_decline(run: RunRecord) -> str | None:
    """A line on a run whose rewards were all the same or whose model became worse; None otherwise.

    A change of up to two standard errors may be chance. The error is that of the difference of two
    independent means over the held-out rows. It is too large, because both means are over the same
    rows; in doubt, nothing is said.
    """
    rewards = [line["reward"] for line in run.lines if "reward" in line]
    spreads = [line["reward_std"] for line in run.lines if "reward_std" in line]
    if len(rewards) > 1 and len(set(rewards)) == 1 and spreads and not any(spreads):
        reward = number(rewards[0])
        return (
            f"every completion earned {reward}, so there was nothing to prefer: look at the reward"
        )
    objective = _judging_objective(run)
    rows = _count_held_out_rows(run)
    if objective is None or not rows:
        return None
    name = objective.name
    before = run.before.get(name)
    after = run.after.get(name)
    if before is None or after is None or (after > before) == objective.maximise:
        return None
    deviation = math.hypot(_deviation(run.before, name), _deviation(run.after, name))
    standard_error = deviation / math.sqrt(rows)
    if abs(after - before) <= 2 * standard_error:
        return None
    change = f"{name} {number(before)} -> {number(after)}"
    return (
        f"the model ended worse than it began: {change} on {rows} held-out rows, "
        f"{objective.direction}"
    )


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


def list_changes(run: RunRecord) -> list[Change]:
    """The changes of held-out figures by which a training may be seen to have spoilt its model.

    These are the score that its configuration names, losses that measure a model, shares of right
    tokens or pairs, and the reward of what it samples.
    """
    headline = headline_of(run)
    losses = ["cross_entropy"]
    if upstream.ranking_figure(run.cfg) == "loss":
        losses.append("loss")
    changes = []
    for name in sorted(run.before.keys() & run.after.keys()):
        kind: Kind | None = None
        if any(is_held_out(name, loss) for loss in losses):
            kind = "loss"
        elif name.endswith(EARNED) and not NO_SCORE.search(name):
            kind = "reward"
        elif name.endswith(("accuracy", "accuracies")):
            kind = "share"
        elif headline and name == headline.name and headline.why not in GUESSES:
            kind = "share" if headline.maximise else "loss"
        if kind:
            changes.append(Change(name, run.before[name], run.after[name], kind))
    return changes
