"""Measures a trained model on held-out rows, alone or beside another one."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.command import CommandLine
from runner.command._evaluation import build_sides
from runner.command._evaluation_table import to_table
from runner.command._measure import measure_side
from runner.command._request import PARTS
from runner.command._side import Side
from runner.generate.prediction import prediction_key
from runner.io.files import display_path, to_line, write_json, write_text
from runner.io.terminal import print_visible


def main(line: CommandLine) -> int:
    """Evaluate the model that the command line names, write its figures, and print them."""
    sides = build_sides(line)
    request = sides[0].request
    for word, side in zip(("model", "against"), sides, strict=False):
        print(f"{word:<8}  {side.name}", flush=True)
    began = time.monotonic()
    for side in sides:
        measure_side(side)
    facts = request.facts(PARTS)
    options = request.options
    facts["weights"] = []
    data = request.data
    if options.tasks:
        data = "lm_eval"
        keys = ("lm_eval", "num_fewshot", "include_path", "apply_chat_template", "batch_size")
        facts |= {key: getattr(options, key) for key in keys}
    for side in sides:
        weights = side.request.weights
        facts["weights"].append([side.name, weights.name, weights.seal])
    figures = sides[0].to_json()
    figures["notes"] = sides[0].notes
    comparison: dict[str, Any] = {}
    if len(sides) > 1:
        comparison = _compare(sides, options.seed)
        figures |= {"against": sides[1].to_json(), "comparison": comparison}
    seconds = round(time.monotonic() - began, 2)
    name = f"{data}-{prediction_key(facts)}.json"
    path = Path(options.to or request.folder("evaluations") / name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, figures | {"seconds": seconds, "asked": facts})
    lines = _completion_lines(sides)
    if lines:
        write_text(path.with_suffix(".jsonl"), "".join(lines))
    print_visible("\n".join(to_table(sides, comparison)))
    print(f"to        {display_path(path)}")
    return 0


def _compare(sides: Sequence[Side], seed: int) -> dict[str, Any]:
    """The comparison of the rewards of two sides, for each set with rewards.

    Both sides sample with the same random numbers, which takes chance out of their difference.
    """
    from runner.metric.paired import compare

    first, second = sides
    comparison = {}
    for name, figures in first.sets.items():
        if figures.earned:
            verdict = compare(figures.earned, second.sets[name].earned, seed)
            comparison[name] = verdict | {"draws": "coupled"}
    return comparison


def _completion_lines(sides: Sequence[Side]) -> list[str]:
    """Every completion of both sides as a line of JSON."""
    lines = []
    for side in sides:
        for name, figures in side.sets.items():
            for row in figures.completions:
                lines.append(to_line({"model": side.name, "set": name, **row}))
    return lines
