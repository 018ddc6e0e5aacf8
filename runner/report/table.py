"""Summaries as text: for a terminal or a log file of 80 columns, as CSV and as JSON lines."""

import csv
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from runner.io.files import display_path, to_line
from runner.io.secrets import without_values
from runner.report.axis import MISSING, UNREAD
from runner.report.compare import Section
from runner.report.facts import command_of
from runner.report.number import plural, short, spread, value
from runner.report.objective import score_rows
from runner.report.sweep import Summary, list_states
from runner.run.read import RunRecord

FORMULA = re.compile(r"(?![-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?$)[-=+@\t\r]")  # as spreadsheets begin one; a number is none
MAX_LINES = 40  # settings or runs that a terminal is shown
MAX_VALUE_WIDTH = 24  # characters of a value, before its middle is cut
MAX_SECTION_WIDTH = 34  # characters of a value in a comparison


@dataclass(frozen=True)
class Column:
    """A column of a table; ``needed`` ones stay however narrow the terminal is."""

    title: str
    cells: Sequence[str]
    needed: bool = False
    left: bool = False

    @cached_property
    def width(self) -> int:
        return max(map(len, [self.title, *self.cells]))


def format_table(columns: Sequence[Column], width: int) -> list[str]:
    """The lines of a table, without the last columns that do not fit, unless they are needed, and which those are."""
    kept = list(columns)
    while sum(column.width + 2 for column in kept) > width and (spare := [c for c in kept if not c.needed]):
        kept.remove(spare[-1])
    cells = [[f"{text:{'<' if c.left else '>'}{c.width}}" for text in (c.title, *c.cells)] for c in kept]
    gone = [column.title for column in columns if column not in kept]
    lines = textwrap.wrap(f"no room for {', '.join(gone)}", width - 2) if gone else []
    return [f"  {line}".rstrip() for line in (*map("  ".join, zip(*cells, strict=True)), *lines)]


def table(summary: Summary, width: int = 80) -> str:
    """A sweep as it stands: the settings, best first, what is not finished, and the command of the best."""
    counts = filter(None, [plural(len(summary.runs), "run"), summary.counts, list_states(summary.runs)])
    parts = [_wrapped("report", f"{display_path(summary.group)}: {'; '.join(counts)}", width)]
    parts += [_wrapped("where", summary.chosen, width)] if summary.chosen else []
    if objective := summary.objective:
        parts.append(_wrapped("ranked", f"by {objective.name}, {objective.direction} ({objective.why})", width))
    if summary.runs:
        # The axes, the number of runs, the objective, the states where they differ, and then the other scores.
        settings = summary.listed[: summary.top or MAX_LINES]
        columns = list[Column]()
        for axis in summary.axes:
            cells = [short(value(setting.values[axis.name]), MAX_VALUE_WIDTH) for setting in settings]
            for place, setting in enumerate(settings if not columns else ()):
                cells[place] += "".join(f" {name}={value(entry)}" for name, entry in setting.odd.items())
            columns.append(Column(short(axis.name, MAX_VALUE_WIDTH), cells, not columns, True))
        if not columns:
            columns.append(Column("run", [short(setting.label, 40) for setting in settings], True, True))
        if summary.seeds:
            columns.append(Column("n", [f"{len(setting.finished)}/{len(setting.runs)}" for setting in settings], True))
        scores = []
        for name in summary.shown_scores:
            cells = [spread(setting.mean(name), setting.sd(name)) for setting in settings]
            scores.append(Column(name.removeprefix("eval_"), cells, bool(objective and name == objective.name)))
        if not summary.all_finished:
            scores.insert(1, Column("state", [setting.state for setting in settings], True, True))
        if any(changes := [setting.change(objective) for setting in settings]):
            scores.insert(1, Column("change", changes))
        parts += ["", *format_table(columns + scores, width)]
        alike = [f"{name.removeprefix('eval_')} {text}" for name, text in summary.alike.items()]
        parts += [_wrapped("", f"the same in all runs: {', '.join(alike)}", width)] if alike else []
        parts += [*_more(len(summary.settings) - len(settings), "settings"), ""]
    room, troubled = max(width - 12, 40), summary.troubled[: summary.top or MAX_LINES]
    for run in troubled:
        progress = f" {run.progress}" if run.progress and run.state not in ("created", "unknown") else ""
        parts.append(f"{run.state:<11} {short(run.folder.name, room - len(progress))}{progress}")
        cause = run.cause if len(run.cause) <= room else f"{run.cause[: room - 1]}…"
        parts += [f"{'':<11} {cause}"] if cause else []
    parts += _more(len(summary.troubled) - len(troubled), "that have not finished, or not well")
    if (best := summary.best) and objective:
        seeds = f" over {plural(summary.count(best), 'seed')}" if summary.seeds else ""
        reached = spread(best.mean(objective.name), best.sd(objective.name))
        title = "best" if len(summary.settings) > 1 else "result"
        parts.append(_wrapped(title, f"{best.label}: {objective.name} {reached}{seeds}", width))
        parts += [_wrapped("", doubt, width) for doubt in summary.doubts]
        parts += [f"repeat    {summary.best_command}", f"model     {best.finished[0]}/model"]
    elif summary.runs:
        parts.append(_wrapped("best", summary.why_no_best, width))
    return "\n".join(parts)


def run_table(run: RunRecord, differing: Sequence[tuple[str, str, str]] | None, width: int = 80) -> str:
    """A run as it stands: its state, scores before and after, what differs from the defaults, and its command."""
    parts = [f"report    {run}: {run.standing}"]
    parts += [f"cause     {run.cause}"] if run.cause else []
    parts += ["", *scores, ""] if (scores := score_table(run, width)) else []
    if differing:
        parts += ["differs   from the defaults of what it chose in"]
        parts += [f"          {short(f'{key}={ours} ({theirs})', width - 10)}" for key, ours, theirs in differing]
    return "\n".join([*parts, f"repeat    {command_of(run)}"])


def score_table(run: RunRecord, width: int = 80) -> list[str]:
    """The lines with each score before and after training; none where no rows were held out."""
    if not (rows := score_rows(run)):
        return []
    names, before, after, change = zip(*rows, strict=True)
    columns = [Column("held out", names, True, True), Column("before", before), Column("after", after, True)]
    return format_table([*columns, Column("change", change, True, True)], width)


def section_table(section: Section, width: int = 80) -> list[str]:
    """The lines of one respect in which two runs differ, as a small table."""
    keys, *others = zip(*section.rows, strict=True)
    columns = [Column(section.title, [short(key, 40) for key in keys], True, True)]
    for title, entries in zip(("A", "B", "B - A"), others, strict=False):
        columns.append(Column(title, [short(entry, MAX_SECTION_WIDTH) for entry in entries], True, len(others) == 2))
    return format_table(columns, width)


def to_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """One row for each run, in the order of the settings: state, values of the axes, seed, scores before and after."""
    for setting, run in ((each, run) for each in summary.listed for run in each.runs):
        values = {axis.key: setting.values[axis.name] for axis in summary.axes}
        values |= {axis.key: setting.odd.get(axis.name, axis.usual) for axis in summary.odd}
        yield {
            "run": run.folder.name,
            "state": run.state,
            "step": run.status.get("step"),
            "max_steps": run.status.get("max_steps"),
            "values": {key: None if entry in (UNREAD, MISSING) else entry for key, entry in values.items()},
            "seed": run.cfg.get("seed"),
            "objective": run.score(summary.objective.name) if summary.objective else None,
            "before": run.before,
            "after": run.after,
            "cause": run.cause,
        }


def table_columns(summary: Summary) -> dict[str, list[Any]]:
    """The same rows as columns: one for each axis and held-out score; None is no value."""
    objective = summary.objective.name if summary.objective else ""
    rows = [row | row["values"] | {objective: row["objective"]} | row["after"] for row in to_rows(summary)]
    scores = dict.fromkeys(name for row in rows for name in row["after"])
    first = [objective] if objective and objective not in scores else []
    axes = [axis.key for axis in (*summary.axes, *summary.odd)]
    keys = ["run", "state", "step", "max_steps", *axes, "seed", *first, *scores, "cause"]
    return {key: [row.get(key) for row in rows] for key in keys}


def to_csv(summary: Summary) -> str:
    """The runs as comma-separated values; an empty cell is no value."""
    file, columns = io.StringIO(), table_columns(summary)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(to_cell, columns))
    writer.writerows(map(to_cell, row) for row in zip(*columns.values(), strict=True))
    return file.getvalue()


def to_parquet(summary: Summary) -> bytes:
    """The same columns as Parquet: numbers as numbers, and as text what is of several kinds."""
    import pyarrow
    from pyarrow import parquet

    def typed(column: list[Any]) -> pyarrow.Array:
        column = [without_values(entry) if isinstance(entry, str) else entry for entry in column]
        try:
            return pyarrow.array(column)
        except (pyarrow.ArrowException, OverflowError):
            return pyarrow.array([None if entry is None else value(entry) for entry in column])

    file, columns = io.BytesIO(), table_columns(summary).items()
    parquet.write_table(pyarrow.table({without_values(name): typed(column) for name, column in columns}), file)
    return file.getvalue()


def to_cell(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula; a number stays one."""
    if not isinstance(cell, str):
        return cell
    sign = "'" if FORMULA.match(cell) else ""
    return sign + cell.replace("\r", "␍")  # which csv leaves without quotes, and ends a row


def to_jsonl(summary: Summary) -> str:
    """The runs as strict JSON, one a line, with the scores before and after training."""
    return "".join(map(to_line, to_rows(summary)))


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count} more {what}, in summary.csv"] if count else []


def _wrapped(title: str, text: str, width: int) -> str:
    room, first = max(width, 40), f"{title:<10}"
    return textwrap.fill(text, room, initial_indent=first, subsequent_indent=" " * 10, break_on_hyphens=False)
