"""Metrics and rewards on rows: their figures for sampled completions and for known answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, TypeAlias

from torch import Tensor

from runner.generate.answer_reader import AnswerReader, KeepLogits
from runner.generate.completion import Completion, TextGenerator
from runner.generate.held_out_rows import to_columns
from runner.io.files import JsonObject
from runner.io.turns import Columns, Row
from runner.metric.ask import Metric, to_numbers

# Of completions and their rows: the weighted sum of the rewards for each completion, and the values
# of every reward by its name.
Score: TypeAlias = Callable[
    [Sequence[Completion], Sequence[Row]], tuple[list[float], Mapping[str, list[float]]]
]


@dataclass
class Figures:
    """Numbers by name for one set of rows, their standard errors, and the completions."""

    rows: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    completions: list[JsonObject] = field(default_factory=list)  # as rows of a file
    # The weighted sum of the rewards of each row, over its samples.
    earned: list[float] = field(default_factory=list)

    def add(self, metric: Metric, numbers: Sequence[int], columns: Columns) -> None:
        """Ask a metric about the rows with these numbers, of which it takes columns.

        It has a standard error where it gives one value for each row.
        """
        answer = metric.ask(**columns)
        if hasattr(answer, "tolist"):
            answer = answer.tolist()
        values_by_part = to_numbers(metric.name, answer, len(numbers))
        for part, value in values_by_part.items():
            name = f"{metric.name}_{part}" if part else metric.name
            self.scores[name] = value
        if isinstance(answer, list | tuple):
            values = [_to_float(value) for value in answer]
            row_count = max(numbers) + 1
            means = _means_by_row(numbers, values, row_count)
            _, self.errors[metric.name] = _mean_and_error(means)

    def add_rewards(
        self, numbers: Sequence[int], total: list[float], rewards: Mapping[str, list[float]]
    ) -> None:
        """Take in the rewards of completions of the rows with these numbers."""
        for index, completion in enumerate(self.completions):
            values_by_name: dict[str, float | None] = {}
            for name, values in rewards.items():
                value = values[index]
                values_by_name[name] = None if math.isnan(value) else value
            completion["rewards"] = values_by_name
            completion["reward"] = total[index]
        self.earned = _means_by_row(numbers, total, self.rows)

        named_values = {"reward": total}
        for name, values in rewards.items():
            # A single reward with weight 1 is the total.
            if len(rewards) > 1 or values != total:
                named_values[f"reward_{name}"] = values
        for name, values in named_values.items():
            means = _means_by_row(numbers, values, self.rows)
            if all(map(math.isnan, means)):
                continue
            mean, error = _mean_and_error(means)
            self.scores[name] = mean
            self.errors[name] = error


def judge_completions(
    generator: TextGenerator,
    rows: Sequence[Row],
    metrics: Sequence[Metric],
    score: Score | None = None,
) -> Figures:
    """Figures of metrics and rewards on the completions that are sampled for these rows."""
    completions = generator.complete_all(rows)
    figures = Figures(len(rows))
    for completion in completions:
        figures.completions.append(completion.to_row())
    for metric in metrics:
        measured = completions
        if metric.limit is not None:
            measured = [completion for completion in completions if completion.row < metric.limit]
        numbers = [completion.row for completion in measured]
        texts = [completion.text for completion in measured]
        answered_rows = [rows[number] for number in numbers]
        columns = to_columns(answered_rows)
        figures.add(metric, numbers, {**columns, "completions": texts})
    if score is not None:
        numbers = [completion.row for completion in completions]
        answered_rows = [rows[number] for number in numbers]
        total, rewards = score(completions, answered_rows)
        figures.add_rewards(numbers, total, rewards)
    return figures


def judge_answers(
    reader: AnswerReader, rows: Sequence[Row], metrics: Sequence[Metric], *, is_scorer: bool
) -> Figures:
    """Figures of metrics on known answers.

    Reward models, and metrics that ask for it, are shown wrong answers too.
    """
    numbers_by_metric: dict[str, list[int]] = {}
    for metric in metrics:
        takes_all = is_scorer or metric.answers == "all"
        numbers = [index for index, row in enumerate(rows) if takes_all or row["label"]]
        numbers_by_metric[metric.name] = numbers[: metric.limit]
    wanted: set[int] = set()
    for numbers in numbers_by_metric.values():
        wanted.update(numbers)
    wanted_numbers = sorted(wanted)
    wanted_rows = [rows[number] for number in wanted_numbers]

    # What the model thinks of the rows, under the names by which metrics ask for it, and what is
    # kept of the logits for one of them.
    read_columns: dict[str, Sequence[object]] = {}
    kept: dict[str, list[object]] = {}
    if is_scorer:
        read_columns["scores"] = reader.score(wanted_rows)
    else:
        functions = _functions_of_logits(metrics)
        reading = reader.read(wanted_rows, functions)
        read_columns["labels"] = reading.labels
        read_columns["log_probs"] = reading.log_probs
        read_columns["scores"] = list(map(math.fsum, reading.log_probs))
        kept = reading.kept

    figures = Figures(len(rows))
    indices = {number: index for index, number in enumerate(wanted_numbers)}
    for metric in metrics:
        metric_columns = dict(read_columns)
        if metric.name in kept:
            logits = [_to_plain(value) for value in kept[metric.name]]
            metric_columns["logits"] = logits
            if metric.preprocess:
                metric_columns["scores"] = logits
        numbers = numbers_by_metric[metric.name]
        metric_rows = [rows[number] for number in numbers]
        places = [indices[number] for number in numbers]
        columns: dict[str, Sequence[object]] = {}
        columns.update(to_columns(metric_rows))
        for name, values in metric_columns.items():
            columns[name] = [values[index] for index in places]
        figures.add(metric, numbers, columns)
    return figures


def _functions_of_logits(metrics: Sequence[Metric]) -> dict[str, KeepLogits]:
    """For each metric that asks for logits, what it keeps of them: what it preprocesses, or all."""

    def keep_all(logits_TV: Tensor, labels_T: Tensor) -> Tensor:
        return logits_TV.cpu()

    functions: dict[str, KeepLogits] = {}
    for metric in metrics:
        if metric.preprocess or metric.takes_logits:
            functions[metric.name] = metric.preprocess or keep_all
    return functions


def _to_plain(value: Any) -> object:
    """A tensor with a number, or with one per token, as Python's own; whole logits as an array."""
    if not hasattr(value, "ndim"):
        return value
    if hasattr(value, "cpu"):
        value = value.cpu()
    if value.ndim < 2:
        return value.tolist()
    return value.numpy()


def _to_float(value: float | None) -> float:
    if value is None:
        return math.nan
    return float(value)


def _means_by_row(numbers: Sequence[int], values: Sequence[float], rows: int) -> list[float]:
    """The mean of the values of each row, NaN where there is none.

    Samples of one prompt are not independent, so that only the means of rows have a deviation.
    """
    values_by_row: list[list[float]] = [[] for _ in range(rows)]
    for number, value in zip(numbers, values, strict=True):
        if not math.isnan(value):
            values_by_row[number].append(value)
    means = []
    for row_values in values_by_row:
        mean = math.nan
        if row_values:
            mean = fmean(row_values)
        means.append(mean)
    return means


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of the values that are numbers, and its standard error, 0 for a single one."""
    numbers = [value for value in values if not math.isnan(value)]
    error = 0.0
    if len(numbers) > 1:
        error = stdev(numbers) / math.sqrt(len(numbers))
    return fmean(numbers), error
