"""The verdict on the training of one run: whether it did harm, or nothing."""

from runner.report.judged_score import judge_score
from runner.report.ranking import GUESSES, headline_of
from runner.report.score import NO_SCORE, is_held_out
from runner.report.standstill import (
    describe_silent_end,
    describe_standstill,
    describe_worse_steps,
)
from runner.run.alarms import EARNED, Change, Kind
from runner.run.record import RunRecord
from runner.schema import upstream
from runner.schema.literal import number


def describe_outcome(run: RunRecord) -> str | None:
    """A line on a run that did harm, or moved nothing; None for one that is well."""
    line = describe_decline(run) or describe_silent_end(run)
    return line or describe_standstill(run, list_changes(run))


def describe_decline(run: RunRecord) -> str | None:
    """A line on a run whose rewards were all the same or whose model became worse; None otherwise.

    Of a change that may be chance, nothing is said.
    """
    rewards = [line["reward"] for line in run.lines if "reward" in line]
    spreads = [line["reward_std"] for line in run.lines if "reward_std" in line]
    are_means_equal = len(rewards) > 1 and len(set(rewards)) == 1
    # Equal means may hide rewards that differ within a step.
    are_all_equal = are_means_equal and spreads and not any(spreads)
    if are_all_equal:
        reward = number(rewards[0])
        return (
            f"every completion earned {reward}, so there was nothing to prefer: look at the reward"
        )
    change = judge_score(run)
    if change is None:
        return describe_worse_steps(run)
    if change.is_chance or change.is_better:
        return None
    name = change.objective.name
    figures = f"{name} {number(change.before)} -> {number(change.after)}"
    return (
        f"the model ended worse than it began: {figures} on {change.rows} held-out rows, "
        f"{change.objective.direction}"
    )


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
