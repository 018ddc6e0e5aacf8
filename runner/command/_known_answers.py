"""The measurement of known answers: their likelihood, or the scores that a reward model gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.command._side import READ_METRICS, Side, metrics_of_set
from runner.dataset.form import fits
from runner.errors import DataError
from runner.generate.held_out_rows import Rows
from runner.io.terminal import progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.sampler import Model
    from runner.metric.ask import Metric


def measure_answers(
    side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]
) -> None:
    """Ask metrics about the likelihood of known answers, or a reward model about its scores.

    A reward model and some metrics read every answer; the others only those that are right.
    """
    from runner.generate.answer_reader import AnswerReader
    from runner.generate.completion import context_length
    from runner.generate.judge import judge_answers
    from runner.training.components.chat_rows import check_texts

    request = side.request
    is_scorer = request.head == "score"
    form = "preference" if is_scorer else "answer"
    if not fits(request.experiment.dataset.form, form):
        metrics = _configured(metrics, request.head)
    sets = _read_answers(side, metrics) if metrics else {}
    for name, rows in sets.items():
        if tokenizer.chat_template:
            check_texts(request.experiment, tokenizer, [rows], "answer")
        set_metrics = metrics_of_set(metrics, name)
        reads_all = is_scorer or any(metric.answers == "all" for metric in set_metrics)
        good_rows = [row for row in rows if row["label"]]
        count = len(rows if reads_all else good_rows)
        with progress_bar(f"{name}: known answers", count, "answer") as bar:
            reader = AnswerReader(
                model,
                tokenizer,
                context_length(model),
                request.options.batch_size,
                bar.update,
            )
            side.sets[name] = judge_answers(reader, rows, set_metrics, is_scorer=is_scorer)


def _configured(metrics: Sequence[Metric], head: str) -> list[Metric]:
    """The metrics of the configuration, without those that every evaluation adds."""
    return [metric for metric in metrics if metric.name not in READ_METRICS[head]]


def _read_answers(side: Side, metrics: Sequence[Metric]) -> dict[str, Rows]:
    """The rows with known answers; none, and a note, where only the added metrics need them."""
    request = side.request
    try:
        return request.read_sets("answer", ["*"])
    except DataError as error:
        if request.head == "score" or _configured(metrics, request.head):
            raise
        side.notes.append(f"no known answers to read: {error.faults[0].found}")
    return {}
