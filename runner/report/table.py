"""Summaries as text for a terminal or a log file, and as CSV, JSON lines and Parquet."""

import csv
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runner.io.files import display_path, to_line
from runner.io.secrets import each_without_values, without_values
from runner.io.terminal import MAX_LINES
from runner.report.axis import MISSING, UNREAD
from runner.report.compare import ChangedKey, Section
from runner.report.facts import command_of
from runner.report.number import format_spread, format_value, plural, short
from runner.report.ranking import score_rows
from runner.report.sweep import Summary, SweepSetting, list_states
from runner.run.record import RunRecord

if TYPE_CHECKING:
    import pyarrow

# The beginning of a text that a spreadsheet takes for a formula.
FORMULA = re.compile(r"(?![-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?$)[-=+@\t\r]")
MAX_VALUE_WIDTH = 24  # characters of a value, before its middle is cut
MAX_SECTION_WIDTH = 34  # characters of a value in a comparison
MAX_NAME_WIDTH = 40  # characters of a run or a key
INDENT = 10  # of what stands to the right of a title
STATE_WIDTH = 11


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    cells: Sequence[str]
    needed: bool = False  # stays however narrow the terminal is
    left: bool = False  # is aligned to the left, as texts are

    @cached_property
    def width(self) -> int:
        """The number of characters of its longest text."""
        return max(map(len, [self.title, *self.cells]))

    def lines(self) -> list[str]:
        """The title and the cells, each as wide as the column."""
        texts = [self.title, *self.cells]
        if self.left:
            return [text.ljust(self.width) for text in texts]
        return [text.rjust(self.width) for text in texts]


def format_table(columns: Sequence[Column], width: int) -> list[str]:
    """The lines of a table.

    Columns that do not fit are left out from the right, unless they are needed, and named below.
    """
    shown = list(columns)
    # Each column has two blanks before it.
    while sum(column.width + 2 for column in shown) > width:
        spare = [column for column in shown if not column.needed]
        if not spare:
            break
        shown.remove(spare[-1])
    texts_by_column = [column.lines() for column in shown]
    lines = []
    for texts in zip(*texts_by_column, strict=True):
        lines.append("  ".join(texts))
    dropped = [column.title for column in columns if column not in shown]
    if dropped:
        remark = f"no room for {', '.join(dropped)}"
        lines += textwrap.wrap(remark, width - 2)
    return [f"  {line}".rstrip() for line in lines]


def sweep_table(summary: Summary, width: int = 80) -> str:
    """The runs of a name: settings, unfinished runs, and the command of the best setting."""
    group = display_path(summary.group)
    counts = [plural(len(summary.runs), "run")]
    if summary.counts:
        counts.append(summary.counts)
    states = list_states(summary.runs)
    if states:
        counts.append(states)
    heading = f"{group}: {'; '.join(counts)}"
    lines = [_wrapped("report", heading, width)]
    if summary.condition:
        lines.append(_wrapped("where", summary.condition, width))
    objective = summary.objective
    if objective:
        ranked = f"by {objective.name}, {objective.direction} ({objective.why})"
        lines.append(_wrapped("ranked", ranked, width))
    if summary.runs:
        lines += _setting_lines(summary, width)
    lines += _troubled_lines(summary, width)
    lines += _best_lines(summary, width)
    return "\n".join(lines)


def _setting_lines(summary: Summary, width: int) -> list[str]:
    """The table of the settings, and the scores that are the same in all of them."""
    settings = summary.listed[: summary.top or MAX_LINES]
    columns = _setting_columns(summary, settings)
    lines = ["", *format_table(columns, width)]
    alike = []
    for name, text in summary.alike.items():
        short_name = name.removeprefix("eval_")
        alike.append(f"{short_name} {text}")
    if alike:
        remark = f"the same in all runs: {', '.join(alike)}"
        lines.append(_wrapped("", remark, width))
    remaining = len(summary.settings) - len(settings)
    lines += _rest(remaining, "settings")
    lines.append("")
    return lines


def _setting_columns(summary: Summary, settings: Sequence[SweepSetting]) -> list[Column]:
    """The axes, the number of runs, the objective, its change, the states, and the other scores."""
    columns = []
    for axis in summary.axes:
        cells = []
        for setting in settings:
            cells.append(short(setting.texts[axis.name], MAX_VALUE_WIDTH))
        title = short(axis.name, MAX_VALUE_WIDTH)
        columns.append(Column(title, cells, left=True))
    # Odd values are written behind the first value of their setting.
    if columns:
        cells = []
        for cell, setting in zip(columns[0].cells, settings, strict=True):
            text = cell
            for name, odd_text in setting.odd_texts.items():
                text += f" {name}={odd_text}"
            cells.append(text)
        columns[0] = replace(columns[0], cells=cells, needed=True)
    else:
        labels = [short(setting.label, MAX_NAME_WIDTH) for setting in settings]
        columns.append(Column("run", labels, needed=True, left=True))
    if summary.seeds:
        counts = []
        for setting in settings:
            finished = len(setting.finished)
            counts.append(f"{finished}/{len(setting.runs)}")
        columns.append(Column("n", counts, needed=True))

    scores = _score_columns(summary, settings)
    columns += scores[:1]
    changes = [setting.change(summary.objective).text for setting in settings]
    if any(changes):
        columns.append(Column("change", changes))
    if not summary.all_finished:
        states = [setting.state for setting in settings]
        columns.append(Column("state", states, needed=True, left=True))
    return columns + scores[1:]


def _score_columns(summary: Summary, settings: Sequence[SweepSetting]) -> list[Column]:
    """The mean and the spread of each score that is shown, the objective first."""
    objective = summary.objective
    columns = []
    for name in summary.shown_scores:
        cells = []
        for setting in settings:
            mean = setting.mean(name)
            sd = setting.sd(name)
            cells.append(format_spread(mean, sd))
        title = name.removeprefix("eval_")
        is_objective = objective is not None and name == objective.name
        columns.append(Column(title, cells, needed=is_objective))
    return columns


def _troubled_lines(summary: Summary, width: int) -> list[str]:
    """The runs that have not finished or went wrong, each with its cause."""
    room = max(width - STATE_WIDTH - 1, 40)
    shown = summary.troubled[: summary.top or MAX_LINES]
    lines = []
    for run in shown:
        state = run.state.ljust(STATE_WIDTH)
        progress = ""
        if run.progress and run.state not in ("created", "unknown"):
            progress = f" {run.progress}"
        name = short(run.folder.name, room - len(progress))
        lines.append(f"{state} {name}{progress}")
        cause = run.cause
        if len(cause) > room:
            cause = f"{cause[: room - 1]}…"
        if cause:
            indent = " " * STATE_WIDTH
            lines.append(f"{indent} {cause}")
    remaining = len(summary.troubled) - len(shown)
    return lines + _rest(remaining, "that are not finished, or ended badly")


def _best_lines(summary: Summary, width: int) -> list[str]:
    """The best setting with its command, or the reason why there is none."""
    best = summary.best
    objective = summary.objective
    if not summary.runs:
        return []
    if best is None or objective is None:
        return [_wrapped("best", summary.why_no_best, width)]
    mean = best.mean(objective.name)
    sd = best.sd(objective.name)
    score = format_spread(mean, sd)
    text = f"{best.label}: {objective.name} {score}"
    if summary.seeds:
        seeds = plural(summary.count(best), "seed")
        text += f" over {seeds}"
    title = "best" if len(summary.settings) > 1 else "result"
    lines = [_wrapped(title, text, width)]
    for doubt in summary.doubts:
        lines.append(_wrapped("", doubt, width))
    lines.append(f"repeat    {summary.best_command}")
    lines.append(f"model     {best.finished[0]}/model")
    return lines


def run_table(run: RunRecord, changed: Sequence[ChangedKey] | None, width: int = 80) -> str:
    """One run: its state, its scores, its ``changed`` keys, and its command."""
    lines = [f"report    {run}: {run.standing}"]
    if run.cause:
        lines.append(f"cause     {run.cause}")
    scores = score_table(run, width)
    if scores:
        lines += ["", *scores, ""]
    if changed:
        lines.append("differs   from the defaults of its options in")
        for key in changed:
            text = f"{key.key}={key.ours} ({key.default})"
            lines.append(" " * INDENT + short(text, width - INDENT))
    lines.append(f"repeat    {command_of(run)}")
    return "\n".join(lines)


def score_table(run: RunRecord, width: int = 80) -> list[str]:
    """The table of scores before and after training; empty where no rows were held out."""
    rows = score_rows(run)
    if not rows:
        return []
    names = [row.name for row in rows]
    before = [row.before for row in rows]
    after = [row.after for row in rows]
    changes = [row.change.text for row in rows]
    columns = [
        Column("held out", names, needed=True, left=True),
        Column("before", before),
        Column("after", after, needed=True),
        Column("change", changes, needed=True, left=True),
    ]
    return format_table(columns, width)


def section_table(section: Section, width: int = 80) -> list[str]:
    """The table of one subject in which two runs differ."""
    names = [short(row.name, MAX_NAME_WIDTH) for row in section.rows]
    ours = [short(row.ours, MAX_SECTION_WIDTH) for row in section.rows]
    theirs = [short(row.theirs, MAX_SECTION_WIDTH) for row in section.rows]
    is_text = not section.is_numeric
    columns = [
        Column(section.title, names, needed=True, left=True),
        Column("A", ours, needed=True, left=is_text),
        Column("B", theirs, needed=True, left=is_text),
    ]
    if section.is_numeric:
        differences = [row.difference for row in section.rows]
        columns.append(Column("B - A", differences, needed=True))
    return format_table(columns, width)


def to_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    """One row for each run, in the order of the settings.

    It holds the state, the values of the axes, the seed, and the scores before and after.
    """
    objective = summary.objective
    for setting in summary.listed:
        values: dict[str, object] = {}
        for axis in summary.axes:
            values[axis.key] = setting.values[axis.name]
        for axis in summary.odd:
            values[axis.key] = setting.odd.get(axis.name, axis.usual)
        for key, value in values.items():
            if value in (UNREAD, MISSING):
                values[key] = None
        for run in setting.runs:
            yield {
                "run": run.folder.name,
                "state": run.state,
                "step": run.status.get("step"),
                "max_steps": run.status.get("max_steps"),
                "values": values,
                "seed": run.experiment.seed if run.cfg else None,
                "objective": run.score(objective.name) if objective else None,
                "before": run.before,
                "after": run.after,
                "cause": run.cause,
            }


def table_columns(summary: Summary) -> dict[str, list[Any]]:
    """The rows of :func:`to_rows` as columns, with one for each axis and each held-out score."""
    objective = summary.objective.name if summary.objective else ""
    flat_rows = []
    scores: dict[str, None] = {}
    for row in to_rows(summary):
        scores |= dict.fromkeys(row["after"])
        flat_row = dict(row)
        flat_row.update(row["values"])
        flat_row[objective] = row["objective"]
        flat_row.update(row["after"])
        flat_rows.append(flat_row)
    names = ["run", "state", "step", "max_steps"]
    for axis in (*summary.axes, *summary.odd):
        names.append(axis.key)
    names.append("seed")
    if objective and objective not in scores:
        names.append(objective)
    names += scores
    names.append("cause")
    columns = {}
    for name in names:
        columns[name] = [row.get(name) for row in flat_rows]
    return columns


def to_csv(summary: Summary) -> str:
    """The runs as comma-separated values; a missing value is an empty cell."""
    columns = table_columns(summary)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(to_cell, columns))
    for row in zip(*columns.values(), strict=True):
        writer.writerow(map(to_cell, row))
    return file.getvalue()


def to_parquet(summary: Summary) -> bytes:
    """The runs as Parquet; a column that mixes types is text."""
    import pyarrow
    from pyarrow import parquet

    arrays = {}
    for name, values in table_columns(summary).items():
        arrays[without_values(name)] = _to_array(values)
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(arrays), file)
    return file.getvalue()


def _to_array(values: Sequence[object]) -> "pyarrow.Array":
    """A column without secrets, as text where its values have several types."""
    import pyarrow

    texts_without = iter(each_without_values(value for value in values if isinstance(value, str)))
    public = []
    for value in values:
        public.append(next(texts_without) if isinstance(value, str) else value)
    try:
        return pyarrow.array(public)
    except (pyarrow.ArrowException, OverflowError):
        texts = []
        for value in public:
            text = None
            if value is not None:
                text = format_value(value)
            texts.append(text)
        return pyarrow.array(texts)


def to_cell(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula.

    A name of a run or an answer may come from anybody, and a formula may send what it finds.
    """
    if not isinstance(cell, str):
        return cell
    sign = "'" if FORMULA.match(cell) else ""
    # csv does not quote a carriage return, which would end the row.
    return sign + cell.replace("\r", "␍")


def to_jsonl(summary: Summary) -> str:
    """The runs as JSON lines, with their scores before and after training."""
    return "".join(map(to_line, to_rows(summary)))


def _rest(count: int, what: str) -> list[str]:
    """The line on what a table leaves out; empty where it leaves out nothing."""
    if not count:
        return []
    return [f"  and {count} more {what}, in summary.csv"]


def _wrapped(title: str, text: str, width: int) -> str:
    """A title with a text beside it, wrapped at the width."""
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=title.ljust(INDENT),
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
