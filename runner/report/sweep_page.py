"""The page, tables and pictures of runs side by side.

A file that would not change is not written again.
"""

from pathlib import Path

from runner.errors import FolderError
from runner.io.files import write_bytes, write_text
from runner.report import plot_sweep
from runner.report.drawing import COLOURS, to_svg, write_png
from runner.report.facts import count_facts
from runner.report.page import Figure, fill_page
from runner.report.samples import MAX_COLUMNS, Prompt, SampleColumn, at_step, shared_prompts
from runner.report.sweep import Summary
from runner.report.table import to_csv, to_jsonl, to_parquet
from runner.run import foreign_faults
from runner.run.history import read_samples

# The files that a report of several runs writes, beside its plots.
SWEEP_FILES = ("report.html", "summary.csv", "summary.jsonl", "summary.parquet")
MAX_ROWS = 200  # settings, and runs, that a page shows; the files beside it have all of them


def refuse_foreign_files(group: Path) -> None:
    """Raise FolderError where a report would write through a link, or over what is none of its own.

    The runs of the group may be links to where they are.
    """
    foreign = []
    for name in SWEEP_FILES:
        path = group / name
        if path.is_dir() and not path.is_symlink():
            foreign.append(path)
    plots = group / "plots"
    if plots.is_symlink() or (plots.exists() and not plots.is_dir()):
        foreign.append(plots)
    FolderError.refuse(foreign_faults(foreign))


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
    figures = []
    written = set[Path]()
    for number, picture in enumerate(plot_sweep.sweep_pictures(summary)):
        is_curve = picture.name.startswith(plot_sweep.CURVE_PREFIX)
        name = picture.name.removeprefix(plot_sweep.CURVE_PREFIX)
        drawing = to_svg(picture, f"p{number}", has_numbers=is_curve)
        figures.append(Figure(picture.caption, drawing, name, is_curve))
        if plots:
            title = summary.group.name
            if picture.name.startswith(plot_sweep.HEAT_PREFIX) and summary.objective:
                title += f": {summary.objective.name}"  # which no axis names
            written.add(write_png(picture, plots, title, has_numbers=is_curve))
    if plots:
        for path in set(plots.glob("*.png")) - written:
            path.unlink(missing_ok=True)  # another report may have deleted it
    return figures


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
