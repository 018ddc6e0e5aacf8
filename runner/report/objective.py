"""The score by which the runs of a name are ranked, and its direction: asked for, configured, or the likeliest.

A metric says by ``better`` in its YAML which way is up; ``LOW`` and ``HIGH`` are guesses for what says nothing.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.errors import ConfigError, Fault
from runner.io.visible import to_visible
from runner.report.number import difference
from runner.run.alarms import EARNED, Change, Kind
from runner.run.read import RunRecord, is_finite
from runner.schema import upstream
from runner.schema.text import flatten, named, nearest, number, select

LOW = re.compile(r"(^|[_/])(loss|cross_entropy|perplexity|ppl|kl|nll|error|wer|cer|repetition|toxicity)($|[_/])")
HIGH = re.compile(r"(^|[_/])(scores|reward|margins|accuracy|accuracies|rewards/.+/mean)$")
# What tells more than a loss, whose size may depend on the very keys that are swept.
LIKELY = ("objective/scores", "reward", "rewards/accuracies", "accuracy", "mean_token_accuracy")
ONLINE = r"(^|_)(objective/scores|reward)$"  # the reward of what a trainer samples
# What a reward model gives on average or at most, and a policy by its own ratios: more of it is no better.
NO_SCORE = re.compile(r"(^|_)(min|max|mean|implicit)_reward$")
ASKED_FOR = "asked for"
TELLING, FIRST = "the most telling held-out score", "the first held-out score"
LAST = "the last value in training, since no rows were held out"
# What the terminal shows of a logged step.
SHOWN = ("objective/scores", "reward", "loss", "rewards/margins", "objective/kl", "kl", "grad_norm", "learning_rate")
# Figures that stay in the files, because they say little about whether something was learned.
QUIET = ("logits/", "logps/", "memory/", "_length", "clip", "min_reward", "max_reward", "frac_reward", "/std", "_std")
CLOCK = ("_runtime", "_per_second", "_seconds", "epoch", "num_tokens", "max_steps", "percentage", "total_flos", "step")


@dataclass(frozen=True)
class SweepObjective:
    """A score by its name, whether more of it is better, and why it was taken."""

    name: str
    maximise: bool
    why: str

    @property
    def direction(self) -> str:
        return "higher is better" if self.maximise else "lower is better"


def choose_objective(runs: Sequence[RunRecord], name: str = "", direction: str = "") -> SweepObjective | None:
    """The objective of some runs; None where none of them has a score.

    Raises ConfigError where runs have finished and none of them has the score that was asked for.
    """
    if direction not in ("", "max", "min"):
        raise ConfigError(Fault("direction", repr(direction), "max or min", "direction=max"))
    known, finished = score_names(runs), [run for run in runs if run.state == "finished"]
    found, why, more = (name, ASKED_FOR, None) if name else _found(runs, known)
    if found is None:
        return None
    whole = next((each for each in (found, f"eval_{found}") if each in known), found)
    if name and finished and all(run.score(whole) is None for run in finished):
        logged = sorted({each for run in finished for each in run.logged if not each.endswith(CLOCK)})
        expected, near = dict.fromkeys(informative([*known, *logged])), nearest(name, [*known, *logged])
        fix = f"objective={[*near, *expected, '<one of them>'][0]}"
        raise ConfigError(Fault("objective", f"no finished run has {name!r}", f"one of {', '.join(expected)}", fix))
    more = direction == "max" if direction else is_more_better(runs, whole) is not False if more is None else more
    return SweepObjective(whole, more, why)


def headline_of(run: RunRecord) -> SweepObjective | None:
    """The objective of one run, in whatever state it is."""
    scores, finished = {**run.before, **run.after}, {**run.status, "state": "finished"}
    return choose_objective([replace(run, after=scores, status=finished)])


def describe_decline(run: RunRecord) -> str | None:
    """The line on a run whose rewards were all the same, or whose model ended worse than it began, by more than chance.

    Judged by what its configuration names, or else by the held-out loss or what tells more than this loss, or by the
    reward of a trainer that samples.
    Chance is twice the standard error of a difference of two means over as many rows, where one deviates by what was
    logged, by that of a share, or by the size of the figure: too much, as both are over the same rows.
    """
    earned = [line["reward"] for line in run.lines if "reward" in line]
    spreads = [line["reward_std"] for line in run.lines if "reward_std" in line]
    if earned[1:] and len(set(earned)) == 1 and spreads and not any(spreads):
        return f"every completion earned {number(earned[0])}, so there was nothing to prefer: look at the reward"
    objective = headline_of(run)
    # The held-out rows of the smallest set, or those that the metric with the lowest limit looks at.
    held_out = flatten(select(run.manifest, "data.eval") or {})
    counts = [count for key, count in held_out.items() if f".{key}".endswith(".rows")]
    counts += [node.get("limit") for node in _metrics([run]).values() if isinstance(node, dict)]
    rows = min((count for count in counts if isinstance(count, int)), default=0)
    if objective and objective.why in (TELLING, FIRST, LAST) and not re.search(ONLINE, objective.name):
        measure = _measure_of(run)
        if measure is not None or objective.why != TELLING:
            objective = measure
    if objective is None or not rows:
        return None
    name = objective.name
    before, after = run.before.get(name), run.after.get(name)
    if before is None or after is None or (after > before) == objective.maximise:
        return None
    error = math.hypot(_deviation(run.before, name), _deviation(run.after, name)) / math.sqrt(rows)
    change = f"{name} {number(before)} -> {number(after)} on {rows} held-out rows, {objective.direction}"
    return f"the model ended worse than it began: {change}" if abs(after - before) > 2 * error else None


def list_changes(run: RunRecord) -> list[Change]:
    """The held-out figures that may show that a training has spoilt its model, with what they were before.

    These are the score that its configuration names, losses that measure a model, shares of right tokens or pairs, and
    the reward of what it samples.
    """
    changes = list[Change]()
    objective = headline_of(run)
    losses = "loss|cross_entropy" if upstream.ranking_figure(run.cfg) == "loss" else "cross_entropy"
    for name in run.before.keys() & run.after.keys():
        kind: Kind | None = None
        if re.fullmatch(rf"eval_(.+_)?({losses})", name):
            kind = "loss"
        elif name.endswith(EARNED) and not NO_SCORE.search(name):
            kind = "reward"
        elif name.endswith(("accuracy", "accuracies")):
            kind = "share"
        elif objective and name == objective.name and objective.why not in (TELLING, FIRST, LAST):
            kind = "share" if objective.maximise else "loss"
        if kind:
            changes.append(Change(name, run.before[name], run.after[name], kind))
    return sorted(changes, key=lambda change: change.name)


def _measure_of(run: RunRecord) -> SweepObjective | None:
    """The held-out figure of a run that ranks its models; None where its evaluations have not had it."""
    figure = upstream.ranking_figure(run.cfg)
    names = [name for name in run.after if re.fullmatch(rf"eval_(.+_)?{re.escape(figure)}", name)]
    if not names:
        return None
    return SweepObjective(names[0], is_more_better([run], names[0]) is not False, "the figure that ranks models")


def _deviation(scores: Mapping[str, float], name: str) -> float:
    value = scores[name]
    usual = math.sqrt(value * (1 - value)) if 0 <= value <= 1 and not LOW.search(name) else abs(value)
    return scores.get(f"{name}_std", usual)


def _metrics(runs: Sequence[RunRecord]) -> dict[str, Any]:
    groups = [group for run in runs if isinstance(group := run.cfg.get("metric"), dict)]
    return {name: node for group in groups for name, node in named(group, "metric").items()}


def is_more_better(runs: Sequence[RunRecord], name: str) -> bool | None:
    """True where more of a score is better, False where less is, None where that is neither said nor likely."""
    metrics = _metrics(runs)
    behind = [metric for metric in metrics if re.fullmatch(rf"eval_(.+_)?{re.escape(metric)}", name)]
    better = select(metrics.get(max(behind, key=len, default="")), "better")
    if not better and NO_SCORE.search(name):
        return None
    return better == "higher" if better else False if LOW.search(name) else True if HIGH.search(name) else None


def score_names(runs: Sequence[RunRecord]) -> list[str]:
    """Every held-out score of the finished runs, in the order in which they were written."""
    return list(dict.fromkeys(name for run in runs if run.state == "finished" for name in run.after))


def informative(found: Sequence[str]) -> list[str]:
    """The scores without those that say little."""
    return [name for name in found if not any(word in name for word in QUIET) and not name.endswith(CLOCK)]


def score_rows(run: RunRecord) -> list[tuple[str, str, str, str]]:
    """The name of each score that says something, before and after training, and the change; the headline first."""
    headline, rows = headline_of(run), list[tuple[str, str, str, str]]()
    first, names = headline.name if headline else "", informative(list({**run.after, **run.before}))
    is_ranked_by_loss = upstream.ranking_figure(run.cfg) == "loss"
    for name in sorted(names, key=lambda name: name != first):
        ends = run.before.get(name), run.after.get(name)
        more = headline.maximise if headline and name == first else is_more_better([run], name)
        if name.endswith("loss") and not is_ranked_by_loss:
            more = None
        change = describe_change(None if name.endswith("kl") else more, *ends)  # a model is to go away from its start
        rows.append((name, number(ends[0]), number(ends[1]), change))
    return rows


def describe_change(more_is_better: bool | None, before: float | None, after: float | None) -> str:
    """The way from one score to another, with a word where it is the wrong way; nothing where one is missing."""
    if before is None or after is None:
        return ""
    is_worse = number(before) != number(after) and (after < before) == more_is_better
    return difference(before, after) + (" worse" if is_worse else "")


def list_figures(line: Mapping[str, Any]) -> list[str]:
    """The figures of a logged step for a terminal, the most telling first, and those of an evaluation.

    >>> list_figures({"loss": 0.25, "learning_rate": 1e-6, "epoch": 1.0, "eval_exact": 0.5, "eval_runtime": 3.0})
    ['loss 0.25', 'learning_rate 1e-6', 'eval_exact 0.5']
    >>> list_figures({"eval_\\x1b[31m": 1.0})
    ['eval_␛[31m 1']
    """
    shown = [*SHOWN, *informative([name for name in line if name.startswith("eval_")])]
    found = {to_visible(name.removeprefix("objective/")): line[name] for name in shown if is_finite(line.get(name))}
    return [f"{name} {number(value)}" for name, value in found.items()]


def _found(runs: Sequence[RunRecord], known: Sequence[str]) -> tuple[str | None, str, bool | None]:
    if name := next((run.cfg["objective"] for run in runs if isinstance(run.cfg.get("objective"), str)), None):
        return name, "objective of the configuration", None
    for run in runs:
        args = select(run.cfg, "trainer.args") or {}
        if best := args.get(upstream.METRIC_FOR_BEST_MODEL):
            return str(best), f"trainer.args.{upstream.METRIC_FOR_BEST_MODEL}", args.get(upstream.GREATER_IS_BETTER)
    # A score that all runs have comes before a more telling one of some.
    for names in (_shared_scores(runs, known), known):
        if likely := _likeliest(runs, names):
            return *likely, None
    if known:
        return (informative(known) or known)[0], FIRST, None
    logged = {name for run in runs if run.state == "finished" for name in run.logged}
    return next((name for name in (*LIKELY, "loss") if name in logged), None), LAST, None


def _likeliest(runs: Sequence[RunRecord], names: Sequence[str]) -> tuple[str, str] | None:
    """The one of some held-out scores to rank runs by, and why; None for none."""
    reasons = {re.escape(metric): f"metric.{metric} of the configuration" for metric in _metrics(runs)}
    for pattern, why in (reasons | dict.fromkeys(LIKELY, TELLING)).items():
        for name in names:
            is_score = pattern not in LIKELY or not NO_SCORE.search(name)
            if is_score and re.fullmatch(rf"eval_(.+_)?{pattern}", name):
                return name, why
    return None


def _shared_scores(runs: Sequence[RunRecord], known: Sequence[str]) -> list[str]:
    """The held-out scores that all finished runs have which have any."""
    scored = [run for run in runs if run.state == "finished" and run.after]
    return [name for name in known if all(name in run.after for run in scored)]
