"""The score by which runs are ranked, and the scores of one run with this one first.

Runs are ranked by the score that was asked for, or else by the one that the configuration names,
or else by the most telling one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.errors import ConfigError, Fault
from runner.report.score import (
    NO_SCORE,
    ScoreChange,
    change_of,
    informative,
    is_held_out,
    is_more_better,
    metrics_of,
    score_names,
)
from runner.run.history import CLOCK
from runner.run.record import RunRecord
from runner.schema import upstream
from runner.schema.did_you_mean import best_guess
from runner.schema.literal import number
from runner.schema.text import select

# These tell more than a loss, whose size may depend on the very keys that are swept.
LIKELY = ("objective/scores", "reward", "rewards/accuracies", "accuracy", "mean_token_accuracy")
# Reasons for a choice.
ASKED_FOR = "asked for"
TELLING = "the most telling held-out score"
FIRST = "the first held-out score"
LAST = "the last value in training, since no rows were held out"
GUESSES = (TELLING, FIRST, LAST)  # neither the user nor a configuration has named the score


@dataclass(frozen=True)
class SweepObjective:
    """A score by its name, whether more of it is better, and the reason why it was chosen."""

    name: str
    maximise: bool
    why: str

    @property
    def direction(self) -> str:
        """The direction in words."""
        return "higher is better" if self.maximise else "lower is better"


@dataclass(frozen=True)
class Candidate:
    """A score that runs may be ranked by."""

    name: str
    why: str
    maximise: bool | None = None  # None where the configuration does not say


@dataclass(frozen=True)
class ScoreRow:
    """A score before and after training, as text, and its change."""

    name: str
    before: str
    after: str
    change: ScoreChange


def choose_objective(
    runs: Sequence[RunRecord], name: str = "", direction: str = ""
) -> SweepObjective | None:
    """The objective of some runs; None where none of them has a score.

    Raises ConfigError where runs have finished and none of them has the score that was asked for.
    """
    if direction not in ("", "max", "min"):
        raise ConfigError(
            Fault(
                where="direction",
                found=repr(direction),
                expected="max or min",
                fix="direction=max",
            )
        )
    held_out = score_names(runs)
    candidate = Candidate(name, ASKED_FOR) if name else _find_candidate(runs, held_out)
    if candidate is None:
        return None
    score = candidate.name
    if score not in held_out and f"eval_{score}" in held_out:
        score = f"eval_{score}"
    finished = [run for run in runs if run.state == "finished"]
    if name and finished and all(run.score(score) is None for run in finished):
        raise ConfigError(_missing_score(name, held_out, finished))

    maximise = candidate.maximise
    if direction:
        maximise = direction == "max"
    elif maximise is None:
        maximise = is_more_better(runs, score) is not False
    return SweepObjective(score, maximise, candidate.why)


def _missing_score(name: str, held_out: Sequence[str], finished: Sequence[RunRecord]) -> Fault:
    """The fault of an objective that no finished run has, with the scores that there are."""
    logged: set[str] = set()
    for run in finished:
        logged |= {metric for metric in run.logged if not metric.endswith(CLOCK)}
    names = [*held_out, *sorted(logged)]
    telling = list(dict.fromkeys(informative(names)))
    likeliest = best_guess(name, names, *telling, "<one of them>")
    return Fault(
        where="objective",
        found=f"no finished run has {name!r}",
        expected=f"one of {', '.join(telling)}",
        fix=f"objective={likeliest}",
    )


def _find_candidate(runs: Sequence[RunRecord], held_out: Sequence[str]) -> Candidate | None:
    """The score that the first configuration names, or else the most telling one."""
    for run in runs:
        objective = run.experiment.objective
        if isinstance(objective, str):
            return Candidate(objective, "objective of the configuration")
    for run in runs:
        args = select(run.cfg, "trainer.args") or {}
        best = args.get("metric_for_best_model")
        if best:
            why = "trainer.args.metric_for_best_model"
            return Candidate(str(best), why, args.get("greater_is_better"))
    # A score that all runs have comes before a more telling one that only some have.
    finished = [run for run in runs if run.state == "finished"]
    scored = [run for run in finished if run.after]
    shared = [name for name in held_out if all(name in run.after for run in scored)]
    candidate = _most_telling(runs, shared) or _most_telling(runs, held_out)
    if candidate:
        return candidate
    if held_out:
        names = informative(held_out) or held_out
        return Candidate(names[0], FIRST)
    for name in (*LIKELY, "loss"):
        if any(name in run.logged for run in finished):
            return Candidate(name, LAST)
    return None


def _most_telling(runs: Sequence[RunRecord], names: Sequence[str]) -> Candidate | None:
    """The first of some held-out scores that a metric of the configuration or LIKELY names."""
    for metric in metrics_of(runs):
        # By a name of LIKELY figures of the trainer go as well, such as ``eval_min_reward``.
        is_likely = metric in LIKELY
        for name in names:
            if is_held_out(name, metric) and not (is_likely and NO_SCORE.search(name)):
                return Candidate(name, f"metric.{metric} of the configuration")
    for figure in LIKELY:
        for name in names:
            if is_held_out(name, figure) and not NO_SCORE.search(name):
                return Candidate(name, TELLING)
    return None


def headline_of(run: RunRecord) -> SweepObjective | None:
    """The objective of one run, whatever its state."""
    scores = {**run.before, **run.after}
    # Only finished runs have an objective.
    finished = {**run.status, "state": "finished"}
    return choose_objective([replace(run, after=scores, status=finished)])


def score_rows(run: RunRecord) -> list[ScoreRow]:
    """The scores of a run that tell something, the headline first."""
    headline = headline_of(run)
    names = informative({**run.after, **run.before})
    if headline and headline.name in names:
        names.remove(headline.name)
        names.insert(0, headline.name)
    is_ranked_by_loss = upstream.ranking_figure(run.cfg) == "loss"
    rows = []
    for name in names:
        more_is_better = is_more_better([run], name)
        if headline and name == headline.name:
            more_is_better = headline.maximise
        # Some losses rise while a model learns, but not one by which models are ranked.
        if name.endswith("loss") and not is_ranked_by_loss:
            more_is_better = None
        if name.endswith("kl"):  # a model is meant to move away from its start
            more_is_better = None
        before = run.before.get(name)
        after = run.after.get(name)
        change = change_of(more_is_better, before, after)
        rows.append(ScoreRow(name, number(before), number(after), change))
    return rows
