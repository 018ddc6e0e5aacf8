"""The papers of a run as plain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl`` in the order of their steps; a cut-off last line is left out."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return sorted(lines, key=lambda line: line["step"])


def curve(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps at which a metric was logged, and its values there.

    >>> curve([{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": None}], "loss")
    ([1], [2.0])
    """
    points = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]
    return [step for step, _ in points], [value for _, value in points]


def names(lines: list[dict[str, Any]]) -> list[str]:
    """Every metric that was logged as a number, in the order of first appearance."""
    found = {name: None for line in lines for name, value in line.items() if isinstance(value, int | float)}
    return list(found)
