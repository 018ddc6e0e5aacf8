"""Scores and logged figures by their names: which way is better, which are shown, how they read.

A metric says by ``better`` in its YAML whether more or less of it is better. LOW and HIGH are
guesses for all other scores.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.io.visible import to_visible
from runner.report.number import format_difference
from runner.run.history import CLOCK, MACHINE, is_finite
from runner.run.record import RunRecord
from runner.schema.literal import number
from runner.schema.text import Node, named, select

LOW = re.compile(
    r"(^|[_/])(loss|cross_entropy|perplexity|ppl|kl|nll|error|wer|cer|repetition|toxicity)($|[_/])"
)
HIGH = re.compile(r"(^|[_/])(scores|reward|margins|accuracy|accuracies|rewards/.+/mean)$")
HELD_OUT = "eval_"  # begins the name of a figure of held-out rows
SHARE = re.compile(r"(^|[_/])(accuracy|accuracies|exact|auc|f1|win_rate)$")
# The mean or extreme outputs of a reward model, and rewards that a policy computes from its own
# probabilities: neither more nor less of these is better.
NO_SCORE = re.compile(r"(^|_)(min|max|mean|implicit)_reward$")
# The figures of a logged step that the terminal shows.
SHOWN = (
    "objective/scores",
    "reward",
    "loss",
    "rewards/margins",
    "objective/kl",
    "kl",
    "grad_norm",
    "learning_rate",
)
# Parts of the names of figures that say little about what was learned; only files have them.
QUIET = (
    "logits/",
    "logps/",
    "_length",
    "clip",
    "min_reward",
    "max_reward",
    "frac_reward",
    "/std",
    "_std",
)


@dataclass(frozen=True)
class ScoreChange:
    """The change of a score by training."""

    text: str = ""  # empty unless the score is known before and after
    is_visible: bool = False  # the two scores differ as they are shown
    is_worse: bool = False  # they do, and it is known which way is better


def is_held_out(name: str, figure: str) -> bool:
    """True for a name of a figure on held-out rows: ``eval_``, perhaps the set, and the figure."""
    return bool(re.fullmatch(rf"eval_(.+_)?{re.escape(figure)}", name))


def is_share(name: str) -> bool:
    """True for a figure that lies between 0 and 1 by its nature, as the share of right answers."""
    return bool(SHARE.search(name))


def score_names(runs: Sequence[RunRecord]) -> list[str]:
    """The names of the held-out scores of the finished runs, in the order of their files."""
    names: dict[str, None] = {}
    for run in runs:
        if run.state == "finished":
            names |= dict.fromkeys(run.after)
    return list(names)


def informative(names: Iterable[str]) -> list[str]:
    """The names of figures that tell whether something was learned."""
    return [name for name in names if not _is_quiet(name)]


def _is_quiet(name: str) -> bool:
    """True for a figure of the machine, and for one that says little of what was learned."""
    if name.endswith(CLOCK) or name.removeprefix("eval_").startswith(MACHINE):
        return True
    return any(word in name for word in QUIET)


def metrics_of(runs: Sequence[RunRecord]) -> dict[str, Node]:
    """The metrics in the configurations of some runs, by name."""
    metrics: dict[str, Node] = {}
    for run in runs:
        group = run.cfg.get("metric")
        if isinstance(group, dict):
            metrics |= named(group, "metric")
    return metrics


def is_more_better(runs: Sequence[RunRecord], name: str) -> bool | None:
    """True where more of a score is better, False where less is, None where neither is known."""
    metrics = metrics_of(runs)
    matching = [metric for metric in metrics if is_held_out(name, metric)]
    if matching:
        longest = max(matching, key=len)
        better = select(metrics[longest], "better")
        if better:
            return bool(better == "higher")
    if NO_SCORE.search(name):
        return None
    if LOW.search(name):
        return False
    if HIGH.search(name):
        return True
    return None


def change_of(
    more_is_better: bool | None, before: float | None, after: float | None
) -> ScoreChange:
    """The change of a score; its text ends with "worse" where it is."""
    if before is None or after is None:
        return ScoreChange()
    text = format_difference(before, after)
    is_visible = number(before) != number(after)
    is_worse = is_visible and (after < before) == more_is_better
    if is_worse:
        text += " worse"
    return ScoreChange(text, is_visible, is_worse)


def list_figures(line: Mapping[str, object]) -> list[str]:
    """The figures of a logged step as a terminal shows them: those of SHOWN, then held-out scores.

    >>> list_figures({"loss": 0.25, "learning_rate": 1e-6, "eval_exact": 0.5, "eval_runtime": 3.0})
    ['loss 0.25', 'learning_rate 1e-6', 'eval_exact 0.5']
    >>> list_figures({"eval_\\x1b[31m": 1.0})
    ['eval_␛[31m 1']
    """
    held_out = [name for name in line if name.startswith("eval_")]
    texts = {}
    for name in [*SHOWN, *informative(held_out)]:
        value = line.get(name)
        if is_finite(value):
            title = to_visible(name.removeprefix("objective/"))
            texts[title] = f"{title} {number(value)}"
    return list(texts.values())
