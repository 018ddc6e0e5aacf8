"""A report as one HTML page that needs nothing else: no font, no network, light or dark as the reader's.

Of one run, of runs side by side, or of a preview's tokens. What stands on it comes from ``sweep``, ``facts`` and
``tokens``, the pictures from ``plot``; how it looks is in ``template/``. Its script, named by a hash, draws the curves
in place of their pictures, which a live page lacks. What has not changed is not written again, and all is escaped.
"""

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from runner.io.files import write_bytes, write_text
from runner.io.secrets import without_values
from runner.io.visible import to_visible
from runner.report import plot
from runner.report.facts import command_of, count_facts, first_rows, list_facts
from runner.report.number import spread
from runner.report.objective import headline_of, score_rows
from runner.report.render import TEMPLATE, fill_template
from runner.report.sweep import Summary, count_states
from runner.report.table import to_csv, to_jsonl, to_parquet
from runner.report.tokens import Sheet, to_blocks, to_mark, to_thumbnail
from runner.run.read import RunRecord, read_samples

MAX_ROWS = 200  # settings, and runs, that a page shows; all are in the files beside it
MAX_COLUMNS = 6  # settings, or steps of one run, whose completions stand side by side
# What the templates use beside their own figures.
CALLED = (spread, command_of, count_states, to_blocks, to_mark, to_thumbnail, to_visible, os.path.relpath)
GLOBALS: dict[str, Any] = {each.__name__: each for each in CALLED}
GLOBALS |= {"others": plot.OTHERS, "glyphs": plot.GLYPHS}

SCRIPT = Markup("\n".join((TEMPLATE / name).read_text() for name in ("uplot/uPlot.iife.min.js", "page.js")))
PLAIN = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # the policy of a page without it
SCRIPTED = f"{PLAIN}; script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
LIVE = f"{SCRIPTED}; connect-src 'self'"

Differing = Sequence[tuple[str, str, str]] | None  # keys with their values here and by default; None if not known
Row = Mapping[str, Any]  # a sampled completion
Column = tuple[str, str | None, Sequence[Row]]  # a label, its colour, and completions, of which a prompt's first counts
Prompt = tuple[str, Sequence[tuple[str, str | None, Row]]]  # a prompt with the label, colour and row of each column


def write_report(summary: Summary) -> Path:
    """Write ``summary.csv``, ``.jsonl``, ``.parquet``, ``plots/`` and ``report.html`` into the group; returns the page.

    Of runs of any names only ``side_by_side.html``. What is there already as it would be written stays as it is.
    """
    page = summary.group / ("side_by_side.html" if summary.names else "report.html")
    write_text(page, to_sweep_page(summary, plots=None if summary.names else summary.group / "plots"), again=False)
    if not summary.names:
        write_text(page.with_name("summary.csv"), to_csv(summary), again=False)
        write_text(page.with_name("summary.jsonl"), to_jsonl(summary), again=False)
        write_bytes(page.with_name("summary.parquet"), to_parquet(summary), again=False)
    return page


def to_sweep_page(summary: Summary, etag: str = "", plots: Path | None = None) -> str:
    """The page of some runs, whose pictures go into ``plots``, too; live, and without these, if it has an ``etag``."""
    pictures, written = [] if etag else plot.sweep_pictures(summary), set[Path]()
    shown: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
    for number in range(len(pictures)):
        picture = pictures.pop(0)  # one after the other, because a figure that was drawn takes much memory
        svg, name = plot.to_svg(picture, f"p{number}"), picture.name.removeprefix("curve-")
        shown[picture.name.startswith("curve-")].append((picture.caption, svg, name))
        written |= {plot.write_png(picture, plots)} if plots else set()
    for path in set(plots.glob("*.png")) - written if plots else ():
        path.unlink(missing_ok=True)  # another report may have done so
    places = {id(setting): (place, colour) for place, (setting, colour, _) in enumerate(plot.styled(summary))}
    context: dict[str, object] = {"summary": summary, "places": [places[id(each)] for each in summary.listed]}
    context |= {"keys": plot.styled(summary)[: len(plot.COLOURS)], "most": summary.top or MAX_ROWS}
    context |= {"charts": shown[False], "curves": shown[True], "title": ", ".join(summary.names) or summary.group.name}
    context |= {"prompts": side_by_side(summary), "facts": count_facts(run.facts for run in summary.runs)}
    return fill_page("sweep.html", plot.sweep_charts(summary), etag, **context)


def write_run_report(run: RunRecord, differing: Differing) -> Path:
    """Write ``report.html`` and ``plots/`` into the run's folder, where they are not there already."""
    page = run.folder / "report.html"
    plot.write_plots(run)
    write_text(page, to_run_page(run, differing), again=False)
    return page


def to_run_page(run: RunRecord, differing: Differing, etag: str = "") -> str:
    """The page of one run; live, and without pictures, by an ``etag``."""
    context: dict[str, object] = {"run": run, "differing": differing, "scores": score_rows(run)}
    context |= {"rows": first_rows(run.cfg), "steps": over_time(run), "facts": count_facts([list_facts(run)])}
    pictures = enumerate(() if etag else plot.run_pictures(run.lines, headline_of(run)))
    context["curves"] = [(each.caption, plot.to_svg(each, f"p{number}"), each.name) for number, each in pictures]
    return fill_page("run.html", plot.run_charts(run), etag, title=run.folder.name, **context)


def fill_page(template: str, data: Mapping[str, Any], etag: str = "", **context: object) -> str:
    """A template, with the script where that has something to do: to draw curves, or to look at a live page again."""
    policy = LIVE if etag else SCRIPTED if data["charts"] else PLAIN
    context |= {"script": SCRIPT if policy != PLAIN else "", "policy": policy, "data": data, "etag": etag}
    return without_values(fill_template(template, GLOBALS, **context))


def to_preview_page(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets of a preview as one HTML page."""
    return fill_page("tokens.html", {"charts": []}, title=title, sheets=sheets)


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
