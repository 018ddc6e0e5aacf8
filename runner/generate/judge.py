"""Metrics and rewards on rows: what they say of completions, and of how a model takes known answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from runner.generate.completion import Completion, TextGenerator
from runner.generate.likelihood import AnswerReader
from runner.generate.rows import Row, to_columns
from runner.metric.ask import Metric, to_numbers

# Completions with their rows -> the weighted sum of the rewards for each, and every reward's own by its name.
Score = Callable[[Sequence[Completion], Sequence[Row]], tuple[list[float], Mapping[str, list[float]]]]


@dataclass
class Figures:
    """Numbers by name for one set of rows, their standard errors, and each completion as a row of a file."""

    rows: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    completions: list[dict[str, Any]] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)  # the weighted sum of the rewards of each row, over its samples

    def add(self, metric: Metric, numbers: Sequence[int], **given: Any) -> None:
        """Ask a metric about the rows with these numbers; the standard error where it gives one value for each."""
        answer = metric.ask(**given)
        answer = answer.tolist() if hasattr(answer, "tolist") else answer
        for part, value in to_numbers(metric.name, answer, len(numbers)).items():
            self.scores["_".join(filter(None, (metric.name, part)))] = value
        if isinstance(answer, list | tuple):
            values = [math.nan if value is None else float(value) for value in answer]
            self.errors[metric.name] = _mean_and_error(_means_by_row(numbers, values, max(numbers) + 1))[1]


def judge_completions(
    generator: TextGenerator, rows: Sequence[Row], metrics: Sequence[Metric], score: Score | None = None
) -> Figures:
    """Figures of metrics and rewards on the completions that are sampled for these rows."""
    completions = generator.complete_all(rows)
    figures = Figures(len(rows), completions=[each.to_row() for each in completions])
    for metric in metrics:
        measured = [each for each in completions if metric.limit is None or each.row < metric.limit]
        columns = to_columns([rows[each.row] for each in measured])
        figures.add(metric, [each.row for each in measured], completions=[each.text for each in measured], **columns)
    if score is not None:
        numbers = [each.row for each in completions]
        total, rewards = score(completions, [rows[number] for number in numbers])
        for index, row in enumerate(figures.completions):
            given = {name: values[index] for name, values in rewards.items()}
            row["rewards"] = {name: None if math.isnan(value) else value for name, value in given.items()}
            row["reward"] = total[index]
        figures.earned = _means_by_row(numbers, total, len(rows))
        named = {f"reward_{name}": values for name, values in rewards.items() if len(rewards) > 1 or values != total}
        for name, values in ({"reward": total} | named).items():
            means = _means_by_row(numbers, values, len(rows))
            if not all(map(math.isnan, means)):
                figures.scores[name], figures.errors[name] = _mean_and_error(means)
    return figures


def judge_answers(reader: AnswerReader, rows: Sequence[Row], metrics: Sequence[Metric], *, is_scorer: bool) -> Figures:
    """Figures of metrics on known answers; reward models, and metrics that ask for it, are shown wrong ones too."""
    figures, chosen = Figures(len(rows)), {}
    for metric in metrics:
        everything = is_scorer or metric.answers == "all"
        chosen[metric.name] = [n for n, row in enumerate(rows) if everything or row["label"]][: metric.limit]
    wanted = sorted(set().union(*chosen.values()))
    indices = {number: index for index, number in enumerate(wanted)}
    # What the model thinks of the rows, under the names by which metrics ask for it, and what is kept for one of them.
    found: dict[str, Sequence[object]] = {}
    kept: dict[str, list[Any]] = {}
    if is_scorer:
        found["scores"] = reader.score([rows[number] for number in wanted])
    else:
        asking = [metric for metric in metrics if metric.preprocess or metric.takes_logits]
        keep = {metric.name: metric.preprocess or (lambda logits, labels: logits.cpu()) for metric in asking}
        reading = reader.read([rows[number] for number in wanted], keep)
        found |= {"labels": reading.labels, "log_probs": reading.log_probs}
        found["scores"] = [math.fsum(values) for values in reading.log_probs]
        kept = reading.kept
    for metric in metrics:
        own = dict(found)
        if metric.name in kept:
            own["logits"] = [_to_plain(value) for value in kept[metric.name]]
            own["scores"] = own["logits"] if metric.preprocess else found["scores"]
        numbers = chosen[metric.name]
        given = to_columns([rows[number] for number in numbers])
        given |= {key: [values[indices[number]] for number in numbers] for key, values in own.items()}
        figures.add(metric, numbers, **given)
    return figures


def _to_plain(value: Any) -> Any:
    """A tensor with one number, or with one per token, as Python's own; whole logits as an array."""
    if not hasattr(value, "ndim"):
        return value
    value = value.cpu() if hasattr(value, "cpu") else value
    return value.tolist() if value.ndim < 2 else value.numpy()


def _means_by_row(numbers: Sequence[int], values: Sequence[float], rows: int) -> list[float]:
    """The mean of the values of each row, NaN where there is none: samples of one prompt are no independent draws."""
    gathered: list[list[float]] = [[] for _ in range(rows)]
    for number, value in zip(numbers, values, strict=True):
        if not math.isnan(value):
            gathered[number].append(value)
    return [fmean(values) if values else math.nan for values in gathered]


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    values = [value for value in values if not math.isnan(value)]
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
