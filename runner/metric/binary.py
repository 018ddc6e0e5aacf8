"""Scores against labels that are right or wrong: accuracy, AUC, and AUC within groups such as users.

The label of a row is its column ``column``: true or false, 1 or 0; with ``positive`` true where the text is that.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.errors import DataError, Fault, fault, read_column
from runner.io.turns import Values, text_of


def accuracy(
    scores: Sequence[float], column: str = "label", positive: str | None = None, threshold: float = 0, **columns: Values
) -> list[float]:
    """1 where a score above ``threshold`` meets a right answer, or another score a wrong one, else 0."""
    labels = read_labels(columns, column, positive)
    return [float((score > threshold) == label) for score, label in zip(scores, labels, strict=True)]


def auc(scores: Sequence[float], column: str = "label", positive: str | None = None, **columns: Values) -> float:
    """The share of pairs of a right and a wrong row whose right one scores higher, ties half; DataError for no pair."""
    labels = read_labels(columns, column, positive)
    if len(set(labels)) < 2:
        found = f"all {len(labels)} labels are {labels[0]}" if labels else "no rows"
        raise DataError(Fault("metric.auc", found, f"right and wrong rows in the column {column}"))
    return area(scores, labels)


def pairs(scores: Sequence[float], label: Sequence[bool]) -> dict[str, float]:
    """The share of pairs whose right answer has the higher score, and as ``margin`` by how much on average."""
    if not label or [bool(one) for one in label] != [True, False] * (len(label) // 2):
        raise DataError(Fault("metric.pairs", "rows that are no pairs", "preferences", "metric=auc"))
    margins = [right - wrong for right, wrong in zip(scores[::2], scores[1::2], strict=True)]
    return {"": sum(margin > 0 for margin in margins) / len(margins), "margin": math.fsum(margins) / len(margins)}


def grouped_auc(
    scores: Sequence[float],
    column: str = "label",
    group: str = "user_id",
    positive: str | None = None,
    weighted: bool = True,
    **columns: Values,
) -> dict[str, float]:
    """The AUC within each group, averaged by the rows of the groups (Zhou et al. 2018), or plainly if not ``weighted``.

    A group with one kind of label has none: ``skipped`` counts those, ``groups`` the others.
    """
    labels = read_labels(columns, column, positive)
    members: dict[Any, list[int]] = defaultdict(list)
    for row, name in enumerate(read_column(columns, group, "metric.<name>.group=<column>")):
        members[name].append(row)
    if not (rows := [each for each in members.values() if len({labels[row] for row in each}) == 2]):
        raise DataError(fault("metric.no_mixed_group", groups=len(members), column=group))
    areas = [area([scores[row] for row in each], [labels[row] for row in each]) for each in rows]
    weights = [len(each) if weighted else 1 for each in rows]
    mean = sum(one * weight for one, weight in zip(areas, weights, strict=True)) / sum(weights)
    return {"": mean, "groups": float(len(rows)), "skipped": float(len(members) - len(rows))}


def area(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """The area under the ROC curve by ranks, equal scores sharing the mean of theirs (Mann and Whitney 1947)."""
    if any(math.isnan(score) for score in scores):
        raise DataError(Fault("metric", "a score that is not a number", "scores that can be ordered"))
    _, level, counts = np.unique(np.asarray(scores, dtype=float), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[level]
    is_right = np.asarray(labels, dtype=bool)
    right, wrong = int(is_right.sum()), int((~is_right).sum())
    return float((ranks[is_right].sum() - right * (right + 1) / 2) / (right * wrong))


def read_labels(columns: dict[str, Any], column: str, positive: str | None) -> list[bool]:
    """The labels of the rows as true and false; raises DataError for one that is neither."""
    labels = read_column(columns, column, "metric.<name>.column=<column>")
    if positive is not None:
        return [text_of(label).strip() == positive.strip() for label in labels]
    if odd := [label for label in labels if label not in (0, 1)]:
        raise DataError(fault("metric.odd_label", label=str(odd[0])[:40], column=column))
    return [bool(label) for label in labels]
