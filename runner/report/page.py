"""A report as one HTML page that needs nothing else: no script, no font, no network, light or dark as the reader's.

Of one run, of the runs of a name, or of a preview's tokens. What stands on it comes from ``sweep``, ``facts`` and
``tokens``, the pictures from ``plot``; how it looks is in ``template/``. The page of a report holds a hash of all it is
made from, so that it is written again only where something has changed. Whatever comes from run files is escaped.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from runner.io.files import open_own, write_text
from runner.io.visible import to_visible
from runner.report.facts import command_of, count_facts, first_rows, score_rows
from runner.report.importance import METHOD
from runner.report.number import short, spread, value
from runner.report.plot import (
    MAX_POINTS_BESIDE,
    OTHERS,
    Picture,
    run_pictures,
    styled,
    sweep_pictures,
    to_svg,
    write_plots,
    write_png,
)
from runner.report.sweep import Summary, count_states
from runner.report.table import to_csv, to_jsonl
from runner.report.tokens import CLASSES, Sheet, to_blocks, to_mark
from runner.run.read import RunRecord, format_time, read_samples
from runner.schema.text import number

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_PROMPTS = 6  # on a page
MAX_COLUMNS = 6  # settings, or steps of one run, whose completions stand side by side
# What the templates use beside their own figures.
GLOBALS = {
    **{"spread": spread, "command_of": command_of, "count_states": count_states, "others": OTHERS, "method": METHOD},
    **{"max_points": MAX_POINTS_BESIDE, "max_prompts": MAX_PROMPTS},
    **{"to_blocks": to_blocks, "to_mark": to_mark, "to_visible": to_visible, "classes": CLASSES},
}

Row = Mapping[str, Any]  # a sampled completion
Column = tuple[str, str | None, Mapping[str, Row]]  # a label, its colour, and the completion of each prompt
Prompt = tuple[str, Sequence[tuple[str, str | None, Row]]]  # a prompt with the label, colour and row of each column


def write_report(summary: Summary) -> Path:
    """Write ``summary.csv``, ``summary.jsonl``, ``plots/`` and ``report.html`` into the group; returns the page.

    Where nothing has changed since they were written, nothing is.
    """
    page, plots = summary.group / "report.html", summary.group / "plots"
    rows = {page.with_name("summary.csv"): to_csv, page.with_name("summary.jsonl"): to_jsonl}
    linked = [(run.folder / "report.html").exists() for run in summary.runs]
    mark = fingerprint_of(summary.runs, summary.objective, linked)
    if _is_written(page, mark) and all(path.exists() for path in rows):
        return page
    for path, to_rows in rows.items():
        write_text(path, to_rows(summary))
    pictures = sweep_pictures(summary)
    svgs = _to_svgs(pictures)
    written = {write_png(picture, plots) for picture in pictures}
    for path in set(plots.glob("*.png")) - written:
        path.unlink(missing_ok=True)  # another report may have done so
    context = {
        "summary": summary,
        "colours": [colour for _, colour, _ in styled(summary)],
        "charts": [(picture, svg) for picture, svg in svgs if not picture.name.startswith("curve-")],
        "curves": [(picture, svg) for picture, svg in svgs if picture.name.startswith("curve-")],
        "prompts": side_by_side(summary),
        "facts": count_facts(summary.runs),
    }
    write_text(page, _render("sweep.html", title=summary.group.name, mark=mark, **context))
    return page


def write_run_report(run: RunRecord, differing: Sequence[tuple[str, str, str]] | None) -> Path:
    """Write ``report.html`` and ``plots/`` into the run's folder; nothing, where nothing has changed."""
    folder, page = run.folder, run.folder / "report.html"
    mark = fingerprint_of([run], differing)
    if not _is_written(page, mark):
        write_plots(folder / "metrics.jsonl", folder / "plots", title=folder.parent.name)
        context = {
            "run": run,
            "differing": differing,
            "config": yaml.safe_dump(dict(run.cfg), sort_keys=False, allow_unicode=True) if run.cfg else "",
            "scores": score_rows(run),
            "rows": first_rows(run.cfg),
            "curves": _to_svgs(run_pictures(run.lines)),
            "steps": over_time(run),
            "facts": count_facts([run]),
        }
        write_text(page, _render("run.html", title=folder.name, mark=mark, **context))
    return page


def to_preview_page(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets of a preview as one HTML page."""
    return _render("tokens.html", title=title, sheets=sheets)


def _render(template: str, **context: object) -> str:
    """A template filled in; a name that it does not know is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent / "template")
    jinja = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"breakable": breakable, "number": number, "format_time": format_time}
    jinja.filters["cell"] = lambda entry: short(value(entry), 40)
    jinja.globals |= GLOBALS
    return jinja.get_template(template).render(context)


def breakable(name: str) -> Markup:
    """A name as HTML that may be broken after its dashes and slashes.

    >>> str(breakable("a_b/<c>"))
    'a_<wbr>b/<wbr>&lt;c&gt;'
    """
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(map(escape, re.split(r"(?<=[_/+])", name)))


def fingerprint_of(runs: Iterable[RunRecord], *asked: object) -> str:
    """A hash of the files of some runs, their states, what was asked for, and of the code that makes the report."""
    sha = hashlib.sha256(repr(asked).encode())
    for path in sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".html", ".css")):
        sha.update(path.read_bytes())
    for run in runs:
        sha.update(f"{run.folder.name} {run.state}\n".encode())
        for path in run.data:
            sha.update(f"{path.name} {path.stat().st_size}\n".encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:32]


def _is_written(page: Path, mark: str) -> bool:
    """True where a page carries this hash."""
    with contextlib.suppress(OSError), open_own(page, encoding="utf-8", errors="replace") as file:
        return f'content="{mark}"' in file.read(1000)
    return False


def side_by_side(summary: Summary) -> list[Prompt]:
    """Completions of the last models of some settings to the same prompts, those first on which they differ most.

    The settings are the best ones and the last, each with one finished run; before them stands the start model.
    """
    ranked = [(setting, colour) for setting, colour, _ in styled(summary) if setting.finished]
    if len(ranked) > MAX_COLUMNS:
        ranked = [*ranked[: MAX_COLUMNS - 1], ranked[-1]]
    columns: list[Column] = []
    for setting, colour in ranked:
        table = read_samples(setting.finished[0].folder)
        steps = [row["step"] for row in table]
        if table and not columns and min(steps) == 0:
            columns.append(("start model", None, _completions(table, 0)))
        if table:
            columns.append((setting.label, colour, _completions(table, max(steps))))
    return sorted(_shared(columns), key=lambda prompt: -len({row["completion"] for _, _, row in prompt[1]}))


def over_time(run: RunRecord) -> list[Prompt]:
    """Completions of a run to the same prompts at some of its steps, the first and the last among them."""
    table = read_samples(run.folder, dense=True)
    steps = sorted({row["step"] for row in table})
    spread_out = {round(column * (len(steps) - 1) / (MAX_COLUMNS - 1)) for column in range(MAX_COLUMNS)}
    picked = [steps[index] for index in sorted(spread_out)] if steps else []
    return _shared([(f"step {step}", None, _completions(table, step)) for step in picked])


def _completions(table: Sequence[Row], step: float) -> dict[str, Row]:
    """The first completion of each prompt at one step."""
    found: dict[str, Row] = {}
    for row in table:
        if row["step"] == step:
            found.setdefault(row["prompt"], row)
    return found


def _shared(columns: Sequence[Column]) -> list[Prompt]:
    """The prompts that every column has, each with what was written to it."""
    prompts = [prompt for prompt in columns[0][2] if all(prompt in rows for *_, rows in columns)] if columns else []
    return [(prompt, [(label, colour, rows[prompt]) for label, colour, rows in columns]) for prompt in prompts]


def _to_svgs(pictures: Iterable[Picture]) -> list[tuple[Picture, Markup]]:
    from markupsafe import Markup

    return [(picture, Markup(to_svg(picture, f"p{index}"))) for index, picture in enumerate(pictures)]
