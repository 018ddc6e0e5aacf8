"""A summary as text: for a terminal or a log file of 80 columns, as CSV and as JSON lines."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.files import display_path, strict
from runner.report.axis import MISSING, UNREAD, Axis
from runner.report.number import percent, short, spread, value
from runner.report.objective import telling
from runner.report.repeat import command_of
from runner.report.sweep import Setting, Summary
from runner.run.read import RunRecord

MOST = 40  # settings or runs that a terminal is shown
WIDEST = 24  # characters of a value, before its middle is cut


@dataclass(frozen=True)
class Column:
    """A column of a table; ``needed`` ones stay however narrow the terminal is."""

    title: str
    cells: Sequence[str]
    needed: bool = False
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, [self.title, *self.cells]))

    def lines(self) -> list[str]:
        return [text.ljust(self.width) if self.left else text.rjust(self.width) for text in (self.title, *self.cells)]


def table(summary: Summary, width: int = 80) -> str:
    """What a sweep came to, best setting first, with what is not finished and the command of the best."""
    told = [("report", f"{display_path(summary.group)}: {count_line(summary)}")]
    if summary.objective:
        told.append(("ranked", f"by {summary.objective.name}, {summary.objective.direction} ({summary.objective.why})"))
    parts = [_wrapped(*line, width) for line in told]
    if summary.runs:
        parts += ["", *lay_out(_columns(summary), width), *_more(len(summary.settings), "settings"), ""]
    parts += [_unfinished(run, width) for run in summary.unfinished[:MOST]]
    parts += _more(len(summary.unfinished), "that are not finished")
    parts += [_wrapped(*line, width) for line in _best(summary) + _importance(summary)]
    parts += [f"repeat    {best_command(summary)}"] if summary.best else []
    return "\n".join(parts)


def count_line(summary: Summary) -> str:
    """How many runs there are, and how many of them are in which state.

    The settings are counted where seeds make them fewer than the runs.
    """
    parts = [_many(len(summary.runs), "run"), seed_line(summary)]
    parts.append(", ".join(f"{count} {state}" for state, count in summary.states.items()))
    return "; ".join(filter(None, parts))


def seed_line(summary: Summary) -> str:
    """How many settings and seeds there are; nothing where every run has the same seed."""
    both = f"{_many(len(summary.settings), 'setting')}, {_many(len(summary.seeds), 'seed')}"
    return both if summary.seeds else ""


def lay_out(columns: Sequence[Column], width: int) -> list[str]:
    """The lines of a table, without the last columns that do not fit, unless they are needed."""
    kept = list(columns)
    while sum(column.width + 2 for column in kept) > width and (spare := [c for c in kept if not c.needed]):
        kept.remove(spare[-1])
    rows = zip(*(column.lines() for column in kept), strict=True)
    return [f"  {'  '.join(row)}".rstrip() for row in rows]


def to_rows(summary: Summary) -> list[dict[str, Any]]:
    """One row for each run, best setting first: state, values of the axes, seed, and its scores before and after."""
    places = {id(run): index for index, run in enumerate(summary.runs)}
    rows = []
    for setting in summary.settings:
        for run in setting.runs:
            index = places[id(run)]
            rows.append(
                {
                    "run": run.folder.name,
                    "state": run.state,
                    "step": run.status.get("step"),
                    "max_steps": run.status.get("max_steps"),
                    "values": {axis.key: _plain(axis, index) for axis in summary.axes},
                    "seed": run.cfg.get("seed"),
                    "objective": run.score(summary.objective.name) if summary.objective else None,
                    "before": run.before,
                    "after": run.after,
                    "cause": run.cause,
                }
            )
    return rows


def to_csv(summary: Summary) -> str:
    """The runs as comma-separated values, one column for each axis and held-out score; an empty cell is no value."""
    rows = to_rows(summary)
    axes = [axis.key for axis in summary.axes]
    scores = list(dict.fromkeys(name for row in rows for name in row["after"]))
    titled = summary.objective.name if summary.objective else None
    objective = [titled] if titled and titled not in scores else []
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["run", "state", "step", "max_steps", *axes, "seed", *objective, *scores, "cause"])
    for row in rows:
        own = [row["values"][key] for key in axes]
        reached = [row["objective"] for _ in objective] + [row["after"].get(name) for name in scores]
        places = [row[key] for key in ("run", "state", "step", "max_steps")]
        writer.writerow([*places, *own, row["seed"], *reached, row["cause"]])
    return file.getvalue()


def to_jsonl(summary: Summary) -> str:
    """The runs as strict JSON, one a line, with the scores before and after training."""
    return "".join(json.dumps(strict(row), ensure_ascii=False) + "\n" for row in to_rows(summary))


def state_of(setting: Setting) -> str:
    """The states of a setting's runs in a word or two."""
    states = setting.states
    if len(setting.runs) == 1:
        run = setting.runs[0]
        return f"{run.state} {run.progress}".strip() if run.state in ("running", "interrupted", "lost") else run.state
    if len(states) == 1:
        return next(iter(states))
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _columns(summary: Summary) -> list[Column]:
    """The axes, the number of runs, the objective, the states where they differ, and then the other scores."""
    settings = summary.settings[:MOST]
    first = [_axis_column(axis.name, settings) for axis in summary.axes]
    if not first:
        first = [Column("run", [short(setting.label, 40) for setting in settings], True, True)]
    if summary.seeds:
        first.append(Column("n", [f"{setting.finished}/{len(setting.runs)}" for setting in settings], True))
    ranked = [summary.objective.name] if summary.objective else []
    names = list(dict.fromkeys([*ranked, *telling(summary.scores)]))
    scores = [_score_column(name, settings, needed=name in ranked) for name in names]
    if set(summary.states) - {"finished"}:
        scores.insert(1, Column("state", [state_of(setting) for setting in settings], True, True))
    return first + scores


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count - MOST} more {what}, in summary.csv"] if count > MOST else []


def _axis_column(name: str, settings: Sequence[Setting]) -> Column:
    cells = [short(value(setting.values[name]), WIDEST) for setting in settings]
    return Column(short(name, WIDEST), cells, needed=True, left=True)


def _score_column(name: str, settings: Sequence[Setting], needed: bool = False) -> Column:
    cells = [spread(setting.mean(name), setting.sd(name)) for setting in settings]
    return Column(name.removeprefix("eval_"), cells, needed)


def _unfinished(run: RunRecord, width: int) -> str:
    """A run that is not finished and how far it came, and below it why, on one line."""
    room = max(width - 12, 40)
    progress = f" {run.progress}" if run.progress and run.state not in ("created", "unknown") else ""
    name = f"{run.state:<11} {short(run.folder.name, room - len(progress))}{progress}"
    cause = run.cause if len(run.cause) <= room else f"{run.cause[: room - 1]}…"
    return f"{name}\n{'':<11} {cause}" if cause else name


def _wrapped(title: str, text: str, width: int) -> str:
    """A title of ten characters and a text beside it, on as many lines as it takes."""
    beside = {"initial_indent": f"{title:<10}", "subsequent_indent": " " * 10}
    return textwrap.fill(text, max(width, 40), **beside, break_on_hyphens=False)


def _best(summary: Summary) -> list[tuple[str, str]]:
    """The best setting, and how sure that is."""
    best, objective = summary.best, summary.objective
    if best is None or objective is None:
        return [("best", "no finished run has a score yet")] if summary.runs else []
    seeds = f" over {_many(summary.count(best), 'seed')}" if summary.seeds else ""
    reached = spread(best.mean(objective.name), best.sd(objective.name))
    doubt = doubt_of(summary)
    title = "best" if len(summary.settings) > 1 else "result"
    return [(title, f"{best.label}: {objective.name} {reached}{seeds}"), *([("", doubt)] if doubt else [])]


def doubt_of(summary: Summary) -> str:
    """What speaks against taking the best setting for the best, or nothing."""
    parts = []
    if summary.tied:
        parts.append(f"tied with {_many(summary.tied, 'other setting')}")
    if summary.near:
        parts.append(f"{_many(summary.near, 'other setting')} within one standard deviation")
    single = [setting for setting in summary.settings if summary.count(setting) == 1]
    if single and summary.best and summary.count(summary.best) > 1:
        parts.append(f"{_many(len(single), 'setting')} with one finished seed left out")
    return ", ".join(parts)


def best_command(summary: Summary) -> str:
    """The command that makes the finished runs of the best setting again."""
    assert summary.best is not None
    runs = [run for run in summary.best.runs if run.state == "finished"]
    return command_of(runs[0], [run.cfg.get("seed") for run in runs] if summary.seeds else ())


def _importance(summary: Summary) -> list[tuple[str, str]]:
    found = summary.importance
    if found is None:
        return []
    if found.refused:
        return [("matters", f"not stated: {found.refused}")]
    shares = [f"{name} {percent(share)}" for name, share in found.shares.items()]
    shares += [f"seeds {percent(found.seeds)}"] if found.seeds is not None else []
    return [("matters", f"{', '.join(shares)} of the variance over {found.runs} runs")]


def _plain(axis: Axis, index: int) -> Any:
    entry = axis.column[index]
    return None if entry is UNREAD or entry == MISSING else entry


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
