"""Reports as HTML pages that need no other file and no network.

A page is of one run, of runs side by side, or of the tokens of a preview; ``template/`` has its
look. Its script draws interactive charts in place of the pictures of curves; a live page has no
pictures. The content policy of the page allows this script alone, by its hash. All texts are
escaped, and a file that would not change is not written again.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from runner.io.files import write_bytes, write_text
from runner.io.secrets import without_values
from runner.io.visible import to_visible
from runner.report import plot_run, plot_sweep
from runner.report.charts import ChartData
from runner.report.compare import ChangedKey
from runner.report.drawing import COLOURS, GREY, LOOKS, PLAIN_LOOK, to_svg, write_png
from runner.report.facts import command_of, count_facts, first_rows, list_facts
from runner.report.number import format_spread
from runner.report.ranking import headline_of, score_rows
from runner.report.render import TEMPLATE, fill_template
from runner.report.samples import (
    MAX_COLUMNS,
    Prompt,
    SampleColumn,
    at_step,
    completions_by_step,
    shared_prompts,
)
from runner.report.sweep import Summary, count_states
from runner.report.table import to_csv, to_jsonl, to_parquet
from runner.report.tokens import Sheet, to_blocks, to_mark
from runner.run.history import read_samples
from runner.run.record import RunRecord

MAX_ROWS = 200  # settings, and runs, that a page shows; the files beside it have all of them
# Functions and values that all templates use.
GLOBALS = {
    "command_of": command_of,
    "count_states": count_states,
    "format_spread": format_spread,
    "glyphs": {colour: look.glyph for colour, look in LOOKS.items()} | {GREY: PLAIN_LOOK.glyph},
    "grey": GREY,
    "relpath": os.path.relpath,
    "to_blocks": to_blocks,
    "to_mark": to_mark,
    "to_visible": to_visible,
}
SCRIPTS = [TEMPLATE / "uplot" / "uPlot.iife.min.js", TEMPLATE / "page.js"]
SCRIPT = Markup("\n".join(path.read_text() for path in SCRIPTS))
SCRIPT_DIGEST = hashlib.sha256(SCRIPT.encode()).digest()
SCRIPT_HASH = base64.b64encode(SCRIPT_DIGEST).decode()
# The content policies of a page without the script, of one with it, and of a live page.
PLAIN = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SCRIPTED = f"{PLAIN}; script-src 'sha256-{SCRIPT_HASH}'"
LIVE = f"{SCRIPTED}; connect-src 'self'"


@dataclass(frozen=True)
class Figure:
    """A picture on a page; where it is a curve, the script replaces it by the chart of its name."""

    caption: str
    svg: Markup
    name: str
    is_curve: bool = True


def write_report(summary: Summary) -> Path:
    """Write the page, tables and pictures of some runs into their group; returns the page.

    These are ``report.html``, ``summary.csv``, ``.jsonl``, ``.parquet`` and ``plots/``; for runs of
    several names only ``side_by_side.html``.
    """
    if summary.names:
        page = summary.group / "side_by_side.html"
        write_text(page, to_sweep_page(summary), again=False)
        return page
    page = summary.group / "report.html"
    write_text(page, to_sweep_page(summary, plots=summary.group / "plots"), again=False)
    write_text(page.with_name("summary.csv"), to_csv(summary), again=False)
    write_text(page.with_name("summary.jsonl"), to_jsonl(summary), again=False)
    write_bytes(page.with_name("summary.parquet"), to_parquet(summary), again=False)
    return page


def to_sweep_page(summary: Summary, etag: str = "", plots: Path | None = None) -> str:
    """The page of some runs; its pictures are also written into the folder ``plots``.

    With an ``etag`` the page is live, and has no pictures.
    """
    figures = []
    if not etag:
        figures = _draw_figures(summary, plots)
    styled_settings = plot_sweep.style_settings(summary)
    place_of = {id(styled.setting): place for place, styled in enumerate(styled_settings)}
    places = [place_of[id(setting)] for setting in summary.listed]
    curves = [figure for figure in figures if figure.is_curve]
    charts = [figure for figure in figures if not figure.is_curve]
    return fill_page(
        "sweep.html",
        plot_sweep.sweep_charts(summary),
        etag,
        title=", ".join(summary.names) or summary.group.name,
        summary=summary,
        styled=styled_settings,
        places=places,
        keys=styled_settings[: len(COLOURS)],
        most=summary.top or MAX_ROWS,
        charts=charts,
        curves=curves,
        prompts=completions_by_setting(summary),
        facts=count_facts(run.facts for run in summary.runs),
    )


def _draw_figures(summary: Summary, plots: Path | None) -> list[Figure]:
    """The pictures of some runs, also written into ``plots``; older ones there are deleted."""
    pictures = plot_sweep.sweep_pictures(summary)
    figures = []
    written = set[Path]()
    for number in range(len(pictures)):
        picture = pictures.pop(0)  # so that the figure is freed; drawn ones take much memory
        is_curve = picture.name.startswith(plot_sweep.CURVE_PREFIX)
        name = picture.name.removeprefix(plot_sweep.CURVE_PREFIX)
        drawing = to_svg(picture, f"p{number}")
        figures.append(Figure(picture.caption, drawing, name, is_curve))
        if plots:
            written.add(write_png(picture, plots))
    if plots:
        for path in set(plots.glob("*.png")) - written:
            path.unlink(missing_ok=True)  # another report may have deleted it
    return figures


def write_run_report(run: RunRecord, changed: Sequence[ChangedKey] | None) -> Path:
    """Write ``report.html`` and ``plots/`` into the folder of a run; returns the page.

    ``changed`` are the keys that differ from the options of the run, None where this is not known.
    """
    page = run.folder / "report.html"
    plot_run.write_plots(run)
    write_text(page, to_run_page(run, changed), again=False)
    return page


def to_run_page(run: RunRecord, changed: Sequence[ChangedKey] | None, etag: str = "") -> str:
    """The page of one run; with an ``etag`` it is live, and has no pictures."""
    figures = []
    if not etag:
        pictures = plot_run.run_pictures(run.lines, headline_of(run))
        for number, picture in enumerate(pictures):
            drawing = to_svg(picture, f"p{number}")
            figures.append(Figure(picture.caption, drawing, picture.name))
    return fill_page(
        "run.html",
        plot_run.run_charts(run),
        etag,
        title=run.folder.name,
        run=run,
        changed=changed,
        scores=score_rows(run),
        rows=first_rows(run.cfg),
        steps=completions_by_step(run),
        facts=count_facts([list_facts(run)]),
        curves=figures,
    )


def fill_page(template: str, data: ChartData, etag: str = "", **context: object) -> str:
    """A page without secrets, which has the script if it has charts or is live."""
    policy = PLAIN
    script = ""
    if etag or data["charts"]:
        policy = LIVE if etag else SCRIPTED
        script = SCRIPT
    page = fill_template(
        template, GLOBALS, script=script, policy=policy, data=data, etag=etag, **context
    )
    return without_values(page)


def to_preview_page(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets of a preview as one HTML page."""
    return fill_page("tokens.html", {"charts": []}, title=title, sheets=sheets)


def completions_by_setting(summary: Summary) -> list[Prompt]:
    """Prompts with the completions of the start model, the best settings and the last one.

    Prompts with the most different completions come first.
    """
    settings = plot_sweep.style_settings(summary)
    shown = [styled for styled in settings if styled.setting.finished]
    # The last setting is shown, too, because it differs most from the best.
    if len(shown) > MAX_COLUMNS:
        shown = [*shown[: MAX_COLUMNS - 1], shown[-1]]
    columns: list[SampleColumn] = []
    for styled in shown:
        samples = read_samples(styled.setting.finished[0].folder)
        if not samples:
            continue
        of_start_model = at_step(samples, 0)
        if of_start_model and not columns:
            columns.append(SampleColumn("start model", None, of_start_model))
        last_step = max(sample["step"] for sample in samples)
        last = at_step(samples, last_step)
        columns.append(SampleColumn(styled.setting.label, styled.colour, last))
    prompts = shared_prompts(columns)
    prompts.sort(key=_count_completions, reverse=True)
    return prompts


def _count_completions(prompt: Prompt) -> int:
    """The number of different completions of a prompt."""
    return len({cell.sample["completion"] for cell in prompt.cells})
