"""The page of one run. A file that would not change is not written again."""

import secrets
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from runner.io.files import write_text
from runner.io.secrets import without_values
from runner.report import plot_run
from runner.report.compare import ChangedKey
from runner.report.drawing import to_svg
from runner.report.facts import count_facts, first_rows, list_facts
from runner.report.number import format_duration
from runner.report.page import Figure, fill_page
from runner.report.ranking import headline_of, score_rows
from runner.report.render import fill_template
from runner.report.samples import completions_by_step, rollouts_by_step
from runner.run.record import RunRecord

MAX_CELL_CURVES = 4  # pictures in the cell of a notebook


def write_run_report(run: RunRecord, changed: Sequence[ChangedKey] | None) -> Path:
    """Write ``report.html`` and ``plots/`` into the folder of a run; returns the page.

    ``changed`` are the keys that differ from the options of the run, None where this is not known.
    """
    page = run.folder / "report.html"
    plot_run.write_plots(run)
    write_text(page, to_run_page(run, changed), again=False)
    return page


def to_cell_html(run: RunRecord) -> str:
    """The state, scores and first curves of a run as HTML for the cell of a notebook."""
    figures = []
    pictures = plot_run.run_pictures(run.lines, headline_of(run))
    # The ids of two cells of one notebook must differ.
    prefix = f"c{secrets.token_hex(4)}"
    for number, picture in enumerate(islice(pictures, MAX_CELL_CURVES)):
        drawing = to_svg(picture, f"{prefix}p{number}")
        figures.append(Figure(picture.caption, drawing, picture.name))
    share = None
    remaining = ""
    max_steps = run.status.get("max_steps")
    if run.state == "running" and max_steps:
        # The status is written once in a while, and a line for each logged step.
        step = run.lines[-1]["step"] if run.lines else 0
        share = step / max_steps
        if "remaining_seconds" in run.logged:
            remaining = format_duration(run.logged["remaining_seconds"])
    html = fill_template(
        "cell.html",
        run=run,
        share=share,
        remaining=remaining,
        scores=score_rows(run),
        curves=figures,
    )
    return without_values(html)


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
        rollouts=rollouts_by_step(run),
        facts=count_facts([list_facts(run)]),
        curves=figures,
    )
