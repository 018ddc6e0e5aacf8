"""A report as one HTML page that needs nothing else: no script, no font, no network, light or dark as the reader's.

What stands on it comes from ``sweep`` and ``single``; how it looks is in ``template/``. The page holds a hash of all it
is made from, so that it is written again only where something has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.io.files import write_text
from runner.report.importance import METHOD
from runner.report.number import number, percent, short, spread, value
from runner.report.plot import (
    MAX_POINTS_BESIDE,
    OTHERS,
    Picture,
    colours_of,
    run_pictures,
    sweep_pictures,
    to_svg,
    write_plots,
    write_png,
)
from runner.report.repeat import command_of
from runner.report.single import RunView
from runner.report.sweep import Summary
from runner.report.table import to_csv, to_jsonl
from runner.run.read import RunRecord, format_time, read_samples

MAX_PROMPTS = 6  # on a page
MAX_COLUMNS = 6  # settings, or steps of one run, whose completions stand side by side
MAX_CHARACTERS = 700  # of a prompt or completion


def write_report(summary: Summary) -> Path:
    """Write ``summary.csv``, ``summary.jsonl``, ``plots/`` and ``report.html`` into the group; returns the page.

    Where nothing has changed since they were written, nothing is.
    """
    page = summary.group / "report.html"
    rows = {page.with_name("summary.csv"): to_csv, page.with_name("summary.jsonl"): to_jsonl}
    linked = [(run.folder / "report.html").exists() for run in summary.runs]
    mark = fingerprint_of(summary.runs, summary.objective, linked)
    if not _is_written(page, mark) or not all(path.exists() for path in rows):
        for path, to_rows in rows.items():
            write_text(path, to_rows(summary))
        write_text(page, _sweep_page(summary, mark, plots=page.with_name("plots")))
    return page


def write_run_report(view: RunView) -> Path:
    """Write ``report.html`` and ``plots/`` into the run's folder; nothing, where nothing has changed."""
    folder, page = view.run.folder, view.run.folder / "report.html"
    mark = fingerprint_of([view.run], view.differing)
    if not _is_written(page, mark):
        write_plots(folder / "metrics.jsonl", folder / "plots", title=folder.parent.name)
        svgs = _to_svgs(list(run_pictures(view.run.lines)))
        steps, facts = over_time(view.run), count_facts([view.run])
        context = {"title": folder.name, "view": view, "run": view.run, "curves": svgs, "steps": steps, "facts": facts}
        write_text(page, render_page("run.html", mark=mark, **context))
    return page


def fingerprint_of(runs: Iterable[RunRecord], *asked: object) -> str:
    """A hash of the files of some runs, their states, what was asked for, and of the code that makes the report."""
    sha = hashlib.sha256(repr(asked).encode())
    own = sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in (".py", ".html", ".css"))
    for path in own:
        sha.update(path.read_bytes())
    for run in runs:
        sha.update(f"{run.folder.name} {run.state}\n".encode())
        for path in run.data:
            sha.update(f"{path.name} {path.stat().st_size}\n".encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()[:32]


def _is_written(page: Path, mark: str) -> bool:
    """True where a page carries this hash."""
    if not page.exists():
        return False
    with open(page, encoding="utf-8", errors="replace") as file:
        return f'content="{mark}"' in file.read(1000)


def _sweep_page(summary: Summary, mark: str, plots: Path) -> str:
    """The page of a group; draws its pictures on the way, and leaves exactly these in ``plots`` as PNG too."""
    pictures = list(sweep_pictures(summary))
    svgs = _to_svgs(pictures)
    written = {write_png(picture, plots) for picture in pictures}
    for path in set(plots.glob("*.png")) - written:
        path.unlink(missing_ok=True)  # another report may have done so
    return render_page(
        "sweep.html",
        title=summary.group.name,
        mark=mark,
        summary=summary,
        best=summary.best,
        objective=summary.objective,
        colours=colours_of(summary),
        others=OTHERS,
        method=METHOD,
        points=MAX_POINTS_BESIDE,
        charts=[svg for svg in svgs if not svg["name"].startswith("curve-")],
        curves=[svg for svg in svgs if svg["name"].startswith("curve-")],
        prompts=side_by_side(summary),
        facts=count_facts(summary.runs),
    )


def side_by_side(summary: Summary) -> list[dict[str, Any]]:
    """Completions of the last models of some settings to the same prompts, those first on which they differ most.

    The settings are the best ones and the last, each with one finished run; before them stands the start model.
    """
    colours = colours_of(summary)
    ranked = [(place, s) for place, s in enumerate(summary.settings) if s.finished]
    if len(ranked) > MAX_COLUMNS:
        ranked = [*ranked[: MAX_COLUMNS - 1], ranked[-1]]
    columns: list[dict[str, Any]] = []
    for place, setting in ranked:
        table = read_samples(setting.finished[0].folder)
        if table and not columns and (first := min(row["step"] for row in table)) == 0:
            columns.append({"label": "start model", "colour": None, "said": _said(table, first)})
        if table:
            said = _said(table, max(row["step"] for row in table))
            columns.append({"label": setting.label, "colour": colours[place], "said": said})
    return _prompts(columns, sort=True)


def over_time(run: RunRecord) -> list[dict[str, Any]]:
    """Completions of a run to the same prompts at some of its steps, the first and the last among them."""
    table = read_samples(run.folder, dense=True)
    steps = sorted({row["step"] for row in table})
    places = {round(place * (len(steps) - 1) / (MAX_COLUMNS - 1)) for place in range(MAX_COLUMNS)} if steps else set()
    picked = [steps[place] for place in sorted(places)]
    columns = [{"label": f"step {step}", "colour": None, "said": _said(table, step)} for step in picked]
    return _prompts(columns, sort=False)


def count_facts(runs: Sequence[RunRecord]) -> list[tuple[str, dict[str, int]]]:
    """The facts of the manifests on software, data, model and machine, each with the number of runs of each value."""
    found: dict[str, dict[str, int]] = {}
    for run in runs:
        for name, fact in _facts(run.manifest) if run.manifest else ():
            values = found.setdefault(name, {})
            values[fact] = values.get(fact, 0) + 1
    return list(found.items())


def _facts(manifest: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The facts of one run; what the manifest does not have is left out."""
    git = manifest.get("git") or {}
    yield from ((name, str(manifest[name])) for name in ("python",) if manifest.get(name))
    for library, version in (manifest.get("versions") or {}).items():
        yield library, str(version or "not installed")
    if git:
        yield "commit", f"{str(git.get('commit'))[:10]}{' with uncommitted changes' if git.get('diff') else ''}"
    for part, facts in (manifest.get("data") or {}).items():
        if isinstance(facts, Mapping) and "fingerprint" in facts:
            yield f"{part} rows", f"{facts.get('rows')} ({str(facts['fingerprint'])[:10]})"
    model = manifest.get("model") or {}
    if model:
        counts = [f"{count:,}" for count in (model.get("trainable"), model.get("parameters")) if count is not None]
        yield "trained weights", " of ".join(counts)
        yield "model", " ".join(str(model[key]) for key in ("path", "commit", "dtype") if model.get(key))
    hardware = manifest.get("hardware") or {}
    if hardware:
        yield "devices", ", ".join(hardware.get("devices") or []) or "CPU only"
        yield "machine", f"{hardware.get('machine')}, {hardware.get('processors')} processors"
        yield "processes", str(hardware.get("processes"))


def _prompts(columns: Sequence[Mapping[str, Any]], sort: bool) -> list[dict[str, Any]]:
    """The prompts that every column has, each with what was written to it."""
    shared = [prompt for prompt in columns[0]["said"] if all(prompt in c["said"] for c in columns)] if columns else []
    if sort:
        shared.sort(key=lambda prompt: -len({column["said"][prompt]["completion"] for column in columns}))

    def cell(label: str, colour: str | None, row: Mapping[str, Any]) -> dict[str, Any]:
        text, score = _clipped(row["completion"]), number(row.get("score"))
        return {"label": label, "colour": colour, "text": text, "score": score}

    return [
        {"prompt": _clipped(prompt), "cells": [cell(c["label"], c["colour"], c["said"][prompt]) for c in columns]}
        for prompt in shared[:MAX_PROMPTS]
    ]


def _said(table: Sequence[Mapping[str, Any]], step: float) -> dict[str, Mapping[str, Any]]:
    """The first completion of each prompt at one step."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in table:
        if row["step"] == step:
            found.setdefault(row["prompt"], row)
    return found


def _to_svgs(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    from markupsafe import Markup

    drawn = ((picture, Markup(to_svg(picture, f"p{place}"))) for place, picture in enumerate(pictures))
    return [{"name": picture.name, "caption": picture.caption, "svg": svg} for picture, svg in drawn]


def render_page(template: str, **context: Any) -> str:
    """A template of the folder ``template`` filled in; whatever comes from run files is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent / "template")
    jinja = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"breakable": breakable, "clipped": _clipped, "number": number, "percent": percent}
    jinja.filters |= {"format_time": format_time, "cell": lambda entry: short(value(entry), 40)}
    jinja.globals |= {"spread": spread, "command_of": command_of}
    return jinja.get_template(template).render(context)


def breakable(name: str) -> Any:
    """A name as HTML that may be broken after its dashes and slashes.

    >>> str(breakable("a_b/<c>"))
    'a_<wbr>b/<wbr>&lt;c&gt;'
    """
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[_/+])", name)
    return Markup("<wbr>").join(map(escape, parts))


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"
