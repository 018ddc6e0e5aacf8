"""A report as one HTML page that needs nothing else: no script, no font, no network, light or dark as the reader's.

Of one run, of the runs of a name, or of a preview's tokens. What stands on it comes from ``sweep``, ``facts`` and
``tokens``, the pictures from ``plot``; how it looks is in ``template/``. What has not changed is not written again, and
whatever comes from run files is escaped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.io.files import write_bytes, write_text
from runner.io.visible import to_visible
from runner.report import plot
from runner.report.facts import command_of, count_facts, first_rows, list_facts
from runner.report.number import spread
from runner.report.objective import headline_of, score_rows
from runner.report.render import fill_template
from runner.report.sweep import Summary, count_states
from runner.report.table import to_csv, to_jsonl, to_parquet
from runner.report.tokens import Sheet, to_blocks, to_mark, to_thumbnail
from runner.run.read import RunRecord, read_samples

MAX_ROWS = 200  # settings, and runs, that a page shows; all are in the files beside it
MAX_COLUMNS = 6  # settings, or steps of one run, whose completions stand side by side
# What the templates use beside their own figures.
CALLED = (spread, command_of, count_states, to_blocks, to_mark, to_thumbnail, to_visible)
GLOBALS: dict[str, Any] = {each.__name__: each for each in CALLED}
GLOBALS |= {"others": plot.OTHERS, "glyphs": plot.GLYPHS, "max_points": plot.MAX_POINTS_BESIDE}

Row = Mapping[str, Any]  # a sampled completion
Column = tuple[str, str | None, Sequence[Row]]  # a label, its colour, and completions, of which a prompt's first counts
Prompt = tuple[str, Sequence[tuple[str, str | None, Row]]]  # a prompt with the label, colour and row of each column


def write_report(summary: Summary) -> Path:
    """Write ``summary.*``, ``plots/`` and ``report.html`` into the group where they are not so; returns the page."""
    page, plots = summary.group / "report.html", summary.group / "plots"
    write_text(page.with_name("summary.csv"), to_csv(summary), again=False)
    write_text(page.with_name("summary.jsonl"), to_jsonl(summary), again=False)
    write_bytes(page.with_name("summary.parquet"), to_parquet(summary), again=False)
    pictures, written = plot.sweep_pictures(summary), set[Path]()
    shown: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for number in range(len(pictures)):
        picture = pictures.pop(0)  # one after the other, because a figure that was drawn takes much memory
        shown[picture.name.startswith("curve-")].append((picture.caption, plot.to_svg(picture, f"p{number}")))
        written.add(plot.write_png(picture, plots))
    for path in set(plots.glob("*.png")) - written:
        path.unlink(missing_ok=True)  # another report may have done so
    colours = {id(setting): colour for setting, colour, _ in plot.styled(summary)}
    context: dict[str, object] = {"summary": summary, "colours": [colours[id(each)] for each in summary.listed]}
    context |= {"keys": plot.styled(summary)[: len(plot.COLOURS)], "most": summary.top or MAX_ROWS}
    context |= {"charts": shown[False], "curves": shown[True], "prompts": side_by_side(summary)}
    context["facts"] = count_facts(run.facts for run in summary.runs)
    write_text(page, fill_template("sweep.html", GLOBALS, title=summary.group.name, **context), again=False)
    return page


def write_run_report(run: RunRecord, differing: Sequence[tuple[str, str, str]] | None) -> Path:
    """Write ``report.html`` and ``plots/`` into the run's folder, where they are not there already."""
    folder, page = run.folder, run.folder / "report.html"
    plot.write_plots(run)
    context: dict[str, object] = {"run": run, "differing": differing, "scores": score_rows(run)}
    context |= {"rows": first_rows(run.cfg), "steps": over_time(run), "facts": count_facts([list_facts(run)])}
    pictures = enumerate(plot.run_pictures(run.lines, headline_of(run)))
    context["curves"] = [(picture.caption, plot.to_svg(picture, f"p{number}")) for number, picture in pictures]
    write_text(page, fill_template("run.html", GLOBALS, title=folder.name, **context), again=False)
    return page


def to_preview_page(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets of a preview as one HTML page."""
    return fill_template("tokens.html", GLOBALS, title=title, sheets=sheets)


def side_by_side(summary: Summary) -> list[Prompt]:
    """Completions of the last models of some settings to the same prompts, those first on which they differ most."""
    ranked = [(setting, colour) for setting, colour, _ in plot.styled(summary) if setting.finished]
    ranked = [*ranked[: MAX_COLUMNS - 1], ranked[-1]] if len(ranked) > MAX_COLUMNS else ranked
    columns: list[Column] = []
    for setting, colour in ranked:
        table = read_samples(setting.finished[0].folder)
        last = max((row["step"] for row in table), default=0)
        if (begun := [row for row in table if row["step"] == 0]) and not columns:
            columns.append(("start model", None, begun))
        if table:
            columns.append((setting.label, colour, [row for row in table if row["step"] == last]))
    return sorted(_shared(columns), key=lambda prompt: -len({row["completion"] for _, _, row in prompt[1]}))


def over_time(run: RunRecord) -> list[Prompt]:
    """Completions of a run to the same prompts at some of its steps, the first and the last among them."""
    table = read_samples(run.folder, dense=True)
    steps = sorted({row["step"] for row in table})
    spread_out = {round(column * (len(steps) - 1) / (MAX_COLUMNS - 1)) for column in range(MAX_COLUMNS)}
    picked = [steps[index] for index in sorted(spread_out)] if steps else []
    return _shared([(f"step {step}", None, [row for row in table if row["step"] == step]) for step in picked])


def _shared(columns: Sequence[Column]) -> list[Prompt]:
    known = [(label, colour, {row["prompt"]: row for row in reversed(rows)}) for label, colour, rows in columns]
    first = [row["prompt"] for row in columns[0][2]] if columns else []
    prompts = [prompt for prompt in dict.fromkeys(first) if all(prompt in rows for *_, rows in known)]
    return [(prompt, [(label, colour, rows[prompt]) for label, colour, rows in known]) for prompt in prompts]
