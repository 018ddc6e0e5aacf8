"""A report as one HTML page that needs nothing else: no script, no font, no network, light or dark as the reader's.

What stands on it comes from ``sweep`` and ``single``; how it looks is in ``template/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.files import display_path
from runner.report.importance import METHOD
from runner.report.number import number, percent, short, spread, value
from runner.report.objective import telling
from runner.report.plot import (
    OTHERS,
    POINTS_BESIDE,
    Picture,
    colours_of,
    run_pictures,
    sweep_pictures,
    to_svg,
    write_png,
)
from runner.report.repeat import command_of
from runner.report.single import RunView
from runner.report.sweep import Summary
from runner.report.table import best_command, doubt_of, seed_line, state_of
from runner.run.read import RunRecord, clock, read_samples

PROMPTS = 6  # on a page
SIDES = 6  # settings whose completions stand side by side
STEPS = 6  # of one run, whose completions do
LONGEST = 700  # characters of a prompt or completion


def sweep_page(summary: Summary, mark: str, plots: Path) -> str:
    """The page of a group; draws its pictures on the way, and leaves them in ``plots`` as PNG too."""
    pictures = list(sweep_pictures(summary))
    svgs = _to_svgs(pictures)
    _write_pngs(pictures, plots)
    charts = [svg for svg, picture in zip(svgs, pictures, strict=True) if not picture.name.startswith("curve-")]
    curves = [svg for svg, picture in zip(svgs, pictures, strict=True) if picture.name.startswith("curve-")]
    return _render(
        "sweep.html",
        title=summary.group.name,
        mark=mark,
        summary=summary,
        seeds=seed_line(summary),
        best=_best(summary),
        ranking=_ranking(summary),
        keys=_keys(summary),
        importance=_importance(summary),
        method=METHOD,
        points=POINTS_BESIDE,
        charts=charts,
        curves=curves,
        prompts=side_by_side(summary),
        runs=_runs(summary),
        facts=facts_of(summary.runs),
        unfinished=[_unfinished(run) for run in summary.unfinished],
    )


def run_page(view: RunView, mark: str) -> str:
    """The page of one run."""
    return _render(
        "run.html",
        title=view.run.folder.name,
        mark=mark,
        view=view,
        run=view.run,
        command=command_of(view.run),
        curves=_to_svgs(list(run_pictures(view.run.lines))),
        steps=over_time(view.run),
        rows=[[(name, _clipped(text)) for name, text in row] for row in view.rows],
        facts=facts_of([view.run]),
    )


def side_by_side(summary: Summary) -> list[dict[str, Any]]:
    """What the last models of some settings wrote to the same prompts, those first on which they differ most.

    The settings are the best ones and the last, each with one finished run; before them stands the start model.
    """
    colours = colours_of(summary)
    ranked = [(place, s) for place, s in enumerate(summary.settings) if s.finished]
    if len(ranked) > SIDES:
        ranked = [*ranked[: SIDES - 1], ranked[-1]]
    columns: list[dict[str, Any]] = []
    for place, setting in ranked:
        run = next(run for run in setting.runs if run.state == "finished")
        table = read_samples(run.folder)
        if table and not columns and (first := min(row["step"] for row in table)) == 0:
            columns.append({"label": "start model", "colour": None, "said": _said(table, first)})
        if table:
            said = _said(table, max(row["step"] for row in table))
            columns.append({"label": setting.label, "colour": colours[place], "said": said})
    return _prompts(columns, sort=True)


def over_time(run: RunRecord) -> list[dict[str, Any]]:
    """What a run wrote to the same prompts at some of its steps, the first and the last among them."""
    table = read_samples(run.folder, dense=True)
    steps = sorted({row["step"] for row in table})
    picked = sorted({steps[round(place * (len(steps) - 1) / (STEPS - 1))] for place in range(STEPS)}) if steps else []
    columns = [{"label": f"step {step}", "colour": None, "said": _said(table, step)} for step in picked]
    return _prompts(columns, sort=False)


def facts_of(runs: Sequence[RunRecord]) -> list[tuple[str, dict[str, int]]]:
    """What the manifests say of software, data, model and machine: each fact, with how many runs have which value."""
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
    if not columns:
        return []
    shared = [prompt for prompt in columns[0]["said"] if all(prompt in column["said"] for column in columns)]
    if sort:
        shared.sort(key=lambda prompt: -len({column["said"][prompt]["completion"] for column in columns}))
    return [
        {
            "prompt": _clipped(prompt),
            "cells": [
                {
                    "label": column["label"],
                    "colour": column["colour"],
                    "text": _clipped(column["said"][prompt]["completion"]),
                    "score": number(column["said"][prompt].get("score")),
                }
                for column in columns
            ],
        }
        for prompt in shared[:PROMPTS]
    ]


def _said(table: Sequence[Mapping[str, Any]], step: float) -> dict[str, Mapping[str, Any]]:
    """The first completion of each prompt at one step."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in table:
        if row["step"] == step:
            found.setdefault(row["prompt"], row)
    return found


def _best(summary: Summary) -> dict[str, Any] | None:
    best, objective = summary.best, summary.objective
    if best is None or objective is None:
        return None
    finished = [run for run in best.runs if run.state == "finished"]
    return {
        "label": best.label,
        "score": spread(best.mean(objective.name), best.sd(objective.name)),
        "count": summary.count(best),
        "doubt": doubt_of(summary),
        "command": best_command(summary),
        "model": f"{display_path(finished[0].folder)}/model",
    }


def _ranking(summary: Summary) -> dict[str, Any]:
    """The table of settings, each with its colour, the values of its axes and its scores."""
    colours, names = colours_of(summary), _score_names(summary)
    rows = [
        {
            "colour": colours[place],
            "values": [short(value(entry), 40) for entry in setting.values.values()],
            "runs": f"{setting.finished}/{len(setting.runs)}",
            "scores": [spread(setting.mean(name), setting.sd(name)) for name in names],
            "states": setting.states,
            "state": state_of(setting),
            "folder": setting.runs[0].folder.name,
        }
        for place, setting in enumerate(summary.settings)
    ]
    return {"names": names, "rows": rows, "partial": bool(set(summary.states) - {"finished"})}


def _score_names(summary: Summary) -> list[str]:
    first = [summary.objective.name] if summary.objective else []
    return list(dict.fromkeys([*first, *telling(summary.scores)]))


def _keys(summary: Summary) -> list[dict[str, str]]:
    """The settings with their colours, for beside the curves."""
    colours = colours_of(summary)
    own = [(colour, s.label) for colour, s in zip(colours, summary.settings, strict=True) if colour != OTHERS]
    others = [(OTHERS, "others")] if len(own) < len(summary.settings) else []
    return [{"colour": colour, "label": label} for colour, label in own + others]


def _importance(summary: Summary) -> dict[str, Any] | None:
    found = summary.importance
    if found is None:
        return None
    bars = [(name, share, percent(found.chance[name])) for name, share in found.shares.items()]
    if found.seeds is not None:
        bars.append(("seeds (noise)", found.seeds, ""))
    if found.shares and len(found.shares) > 1 and found.even:
        bars.append(("keys together", found.rest, ""))
    rows = [{"name": n, "width": f"{100 * s:.1f}", "share": percent(s), "chance": c} for n, s, c in bars]
    return {"rows": rows, "refused": found.refused, "runs": found.runs, "even": found.even}


def _runs(summary: Summary) -> list[dict[str, Any]]:
    """Every run, in the order of the settings, with a link to its own page where there is one."""
    names = _score_names(summary)
    return [
        {
            "folder": run.folder.name,
            "link": f"{run.folder.name}/report.html" if (run.folder / "report.html").exists() else None,
            "state": run.state,
            "progress": run.progress,
            "values": [short(value(entry), 40) for entry in setting.values.values()],
            "seed": value(run.cfg.get("seed")) if run.cfg else "?",
            "scores": [number(run.score(name)) for name in names],
        }
        for setting in summary.settings
        for run in setting.runs
    ]


def _unfinished(run: RunRecord) -> dict[str, str]:
    return {
        "folder": run.folder.name,
        "state": run.state,
        "progress": run.progress,
        "cause": run.cause,
        "command": command_of(run) if run.cfg and run.state not in ("finished", "running") else "",
    }


def _to_svgs(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    from markupsafe import Markup

    drawn = ((picture, to_svg(picture, f"p{place}")) for place, picture in enumerate(pictures))
    return [{"svg": Markup(svg), "caption": picture.caption} for picture, svg in drawn]


def _write_pngs(pictures: Sequence[Picture], folder: Path) -> None:
    """Leave exactly these pictures in a folder, not those of an earlier report."""
    written = {write_png(picture, folder) for picture in pictures}
    for path in set(folder.glob("*.png")) - written:
        path.unlink(missing_ok=True)  # another report may have done so


def _render(name: str, **context: Any) -> str:
    """A template filled in; whatever comes from run files is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent / "template")
    jinja = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"clock": clock, "breakable": breakable}
    return jinja.get_template(name).render(context)


def breakable(name: str) -> Any:
    """A name as HTML that may be broken after its dashes and slashes.

    >>> str(breakable("a_b/<c>"))
    'a_<wbr>b/<wbr>&lt;c&gt;'
    """
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[_/+])", name)
    return Markup("<wbr>").join(map(escape, parts))


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
