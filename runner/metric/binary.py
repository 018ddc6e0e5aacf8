"""Scores compared with labels that are right or wrong: accuracy, AUC, and AUC within groups.

The label of a row is its column ``column``: true or false, 1 or 0; with ``positive`` true where the
text is that.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from runner.errors import DataError, Fault, read_column
from runner.io.turns import Columns, Values, text_of


def accuracy(
    scores: Sequence[float],
    column: str = "label",
    positive: str | None = None,
    threshold: float = 0,
    **columns: Values,
) -> list[float]:
    """1 where a row is right and its score above ``threshold``, or neither is so, else 0."""
    labels = read_labels(columns, column, positive)
    return [
        float((score > threshold) == label) for score, label in zip(scores, labels, strict=True)
    ]


def auc(
    scores: Sequence[float], column: str = "label", positive: str | None = None, **columns: Values
) -> float:
    """The share of pairs of a right and a wrong row in which the right one scores higher.

    Equal scores count half. Raises DataError where there is no such pair.
    """
    labels = read_labels(columns, column, positive)
    if len(set(labels)) < 2:
        found = "no rows"
        if labels:
            found = f"all {len(labels)} labels are {labels[0]}"
        raise DataError(
            Fault(
                where="metric.auc",
                found=found,
                expected=f"right and wrong rows in the column {column}",
            )
        )
    return area(scores, labels)


def pairs(scores: Sequence[float], label: Sequence[bool]) -> dict[str, float]:
    """The share of pairs whose right answer has the higher score, and as ``margin`` the mean lead.

    Rows are pairs of a right and a wrong answer, in this order.
    """
    labels = [bool(is_right) for is_right in label]
    if not labels or labels != [True, False] * (len(labels) // 2):
        raise DataError(
            Fault(
                where="metric.pairs",
                found="rows that are not pairs",
                expected="preferences",
                fix="metric=auc",
            )
        )
    pairs = zip(scores[::2], scores[1::2], strict=True)
    margins = [right - wrong for right, wrong in pairs]
    wins = sum(margin > 0 for margin in margins)
    return {"": wins / len(margins), "margin": math.fsum(margins) / len(margins)}


def grouped_auc(
    scores: Sequence[float],
    column: str = "label",
    group: str = "user_id",
    positive: str | None = None,
    weighted: bool = True,
    **columns: Values,
) -> dict[str, float]:
    """The AUC within each group, averaged (Zhou et al. 2018).

    ``weighted`` by the rows of a group, or each group alike. A group with one kind of label has no
    AUC: ``skipped`` counts those, ``groups`` the others.
    """
    labels = read_labels(columns, column, positive)
    groups: dict[object, list[int]] = defaultdict(list)  # the rows of each
    for row, name in enumerate(read_column(columns, group, "metric.<name>.group=<column>")):
        groups[name].append(row)
    areas = []
    weights = []
    for rows in groups.values():
        group_labels = [labels[row] for row in rows]
        if len(set(group_labels)) < 2:
            continue
        group_scores = [scores[row] for row in rows]
        areas.append(area(group_scores, group_labels))
        weights.append(len(rows) if weighted else 1)
    if not areas:
        raise DataError(
            Fault(
                where="metric.grouped_auc",
                found=f"none of {len(groups)} groups has right and wrong rows",
                expected=f"a column {group} that groups several rows",
            )
        )
    total = sum(value * weight for value, weight in zip(areas, weights, strict=True))
    return {
        "": total / sum(weights),
        "groups": float(len(areas)),
        "skipped": float(len(groups) - len(areas)),
    }


def area(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """The area under the ROC curve by ranks (Mann and Whitney 1947).

    Equal scores share the mean of their ranks.
    """
    if any(math.isnan(score) for score in scores):
        raise DataError(
            Fault(
                where="metric",
                found="a score that is not a number",
                expected="scores that can be ordered",
            )
        )
    values = np.asarray(scores, dtype=float)
    _, level, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[level]
    is_right = np.asarray(labels, dtype=bool)
    right = int(is_right.sum())
    wrong = len(is_right) - right
    lowest_sum = right * (right + 1) / 2  # of the ranks, if all right rows came last
    return float((ranks[is_right].sum() - lowest_sum) / (right * wrong))


def read_labels(columns: Columns, column: str, positive: str | None) -> list[bool]:
    """The labels of the rows as true and false; raises DataError for one that is neither."""
    labels = read_column(columns, column, "metric.<name>.column=<column>")
    if positive is not None:
        return [text_of(label).strip() == positive.strip() for label in labels]
    for label in labels:
        if label not in (0, 1):
            label_text = str(label)[:40]
            raise DataError(
                Fault(
                    where="metric",
                    found=f"the label {label_text!r} in {column}",
                    expected="true or false, 1 or 0",
                    fix="metric.<name>.positive=<the right text>",
                )
            )
    return [bool(label) for label in labels]
