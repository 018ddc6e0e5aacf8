"""The outcome of a case in lines of text, read from the files that its smoke run has left."""

import copy
from collections.abc import Sequence

from runner.config.menu import read_options
from runner.config.speed import choose_speed
from runner.estimate.case import UNEXPORTED, Case, read_lengths
from runner.io.files import read_json
from runner.run import Run
from runner.run.disk import sized
from runner.run.seal import sealed_checkpoints
from runner.schema.literal import number


def describe_case(case: Case) -> list[str]:
    """The outcome of a case in lines: the parts that were played, and what was changed."""
    summary = read_lengths(case.run).get("lines")
    outcomes = {
        "reading rows": summary[0] if summary else "",
        "training, saving": _describe_checkpoint(case.run),
        "resuming, scoring": _describe_scores(case.run),
        "exporting": _describe_export(case.run),
    }
    if case.code:
        missing = [part for part, outcome in outcomes.items() if not outcome]
        part = missing[0] if missing else "exporting"
        step = case.run.status()["step"]
        lines = [f"failed    {case.name}: {part}, after step {step}"]
    else:
        lines = [f"ok        {case.name}: {number(case.seconds, 2)} s"]
        if len(case.runs) > 1:
            lines[0] += f", for {len(case.runs)} runs that differ in numbers only"
    for part, outcome in outcomes.items():
        if outcome:
            lines.append(f"  {part:<19}{outcome}")
    lines += _with_title("instead", case.small.notes)
    speed = case.composed.speed
    if not speed:  # nothing was asked for
        cfg = copy.deepcopy(case.composed.cfg)
        chosen, _ = choose_speed(cfg, read_options("speed")["max"])
        speed = [f"speed=max would set {line}" for line in chosen]
    return lines + _with_title("speed", speed)


def _with_title(title: str, texts: Sequence[str]) -> list[str]:
    """Indented lines with a title before the first."""
    lines: list[str] = []
    for text in texts:
        heading = "" if lines else title
        lines.append(f"  {heading:<10}{text}")
    return lines


def _describe_checkpoint(run: Run) -> str:
    """The name and the size of the first checkpoint; empty where none was written."""
    checkpoints = sealed_checkpoints(run.checkpoints)
    if not checkpoints:
        return ""
    first = checkpoints[0]
    size = 0
    for path in first.rglob("*"):
        if path.is_file():
            size += path.stat().st_size
    return f"{first.name}, {sized(size)}"


def _describe_scores(run: Run) -> str:
    """The number of scores after the training, and one of them; empty where it came to no end."""
    if not run.model.is_dir():
        return ""
    all_scores = read_json(run.folder / "scores.json") or {}
    scores = all_scores.get("after")
    if not scores:
        return "no held-out rows"
    name, score = next(iter(scores.items()))
    return f"{len(scores)} held-out scores, such as {name} {number(score, 3)}"


def _describe_export(run: Run) -> str:
    """The outcome of the export; empty where there was none to try."""
    reason = read_json(run.folder / UNEXPORTED) or {}
    why = reason.get("why")
    if why:
        return f"not: {why}"
    if (run.folder / "export").is_dir():
        return "as transformers loads it"
    return ""
