"""The front page of ``watch``: each name with what is trained under it, how well, and how far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from runner.config.run_name import name_of_path
from runner.report.axis import short_target
from runner.report.index import RunOfMany
from runner.report.number import format_duration, format_spread
from runner.report.page import fill_page
from runner.report.score import list_figures
from runner.report.selection import summarise
from runner.run.history import is_finite
from runner.run.record import RunRecord
from runner.schema.text import select

MAX_WORDS = 3  # trainers or models of one name that are listed


@dataclass(frozen=True)
class NameRow:
    """The runs of a name in one row."""

    folder: Path
    runs: Sequence[RunRecord]
    trainers: str
    models: str
    score: str  # of the best setting, or else a figure of the run that was heard of last
    score_name: str
    setting: str  # the best one; empty where there is but one
    share: float  # of the steps that are taken, over all runs
    left: str  # the time until the last of the running runs has taken its steps


def to_front_page(rows: Sequence[NameRow], etag: str, *, several: bool) -> str:
    """The page of all names; ``several`` of them may have a page side by side."""
    context = {"title": "Runs", "rows": rows, "several": several}
    return fill_page("index.html", {"charts": []}, etag, **context)


def describe_name(folder: Path, runs: Sequence[RunOfMany]) -> NameRow:
    """The row of a name."""
    summary = summarise(runs)
    best = summary.best
    objective = summary.objective
    score = ""
    score_name = ""
    setting = ""
    if best and objective:
        score = format_spread(best.mean(objective.name), best.sd(objective.name))
        score_name = objective.name
        if len(summary.settings) > 1:
            setting = best.label
    else:
        last = max(runs, key=lambda run: str(run.status.get("updated") or ""))
        for figure in list_figures(last.logged)[:1]:
            score_name, score = figure.rsplit(maxsplit=1)
            score_name += " so far"
    seconds = [run.logged.get("remaining_seconds") for run in runs if run.state == "running"]
    known = [remaining for remaining in seconds if remaining is not None]
    return NameRow(
        folder=folder,
        runs=runs,
        trainers=_joined(short_target(run.cfg.get("trainer")) for run in runs if run.cfg),
        models=_joined(name_of_path(select(run.cfg, "model.path")) for run in runs),
        score=score,
        score_name=score_name,
        setting=setting,
        share=fmean(map(_share_of, runs)),
        left=format_duration(max(known)) if known else "",
    )


def _joined(words: Iterable[str]) -> str:
    """The different words, in their order; of many only the first."""
    unique = [word for word in dict.fromkeys(words) if word]
    shown = unique[:MAX_WORDS]
    if len(unique) > MAX_WORDS:
        shown.append(f"and {len(unique) - MAX_WORDS} more")
    return ", ".join(shown)


def _share_of(run: RunRecord) -> float:
    """The share of its steps that a run has taken; 0 where that is not known."""
    step = run.status.get("step")
    max_steps = run.status.get("max_steps")
    if run.state == "finished":
        return 1.0
    if not is_finite(step) or not is_finite(max_steps) or max_steps <= 0:
        return 0.0
    return min(max(step / max_steps, 0.0), 1.0)
