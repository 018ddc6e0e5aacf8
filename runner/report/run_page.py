"""The page of one run. A file that would not change is not written again."""

from collections.abc import Sequence
from pathlib import Path

from runner.io.files import write_text
from runner.report import plot_run
from runner.report.compare import ChangedKey
from runner.report.drawing import to_svg
from runner.report.facts import count_facts, first_rows, list_facts
from runner.report.page import Figure, fill_page
from runner.report.ranking import headline_of, score_rows
from runner.report.samples import completions_by_step
from runner.run.record import RunRecord


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
