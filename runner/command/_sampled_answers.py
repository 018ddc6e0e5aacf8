"""The measurement of sampled completions by metrics and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.command._side import Side, metrics_of_set
from runner.io.terminal import progress_bar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.sampler import Model
    from runner.metric.ask import Metric


def measure_sampled(
    side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]
) -> None:
    """Ask metrics and rewards about completions, and add their figures to those of the set."""
    from runner.generate.judge import judge_completions
    from runner.model.chat import check_rendering, check_template
    from runner.training.components.chat_rows import check_texts
    from runner.training.components.reward_score import build_score

    request = side.request
    generator = request.build_generator(model, tokenizer)
    score = None
    if request.experiment.rewards or request.experiment.environment:
        score = build_score(request.experiment, tokenizer, generator.agent)
    if not metrics and score is None:
        return
    for name, rows in request.read_sets("prompt").items():
        is_chat = isinstance(rows[0]["prompt"], list)
        check_template(tokenizer, chats=is_chat)
        if is_chat:
            check_rendering(tokenizer, ((row, ()) for row in rows))
            check_texts(request.experiment, tokenizer, [rows], "prompt")
        count = len(rows) * generator.n
        with progress_bar(f"{name}: completions", count, "answer") as bar:
            generator.on_progress = bar.update
            figures = judge_completions(generator, rows, metrics_of_set(metrics, name), score)
        completions = figures.completions
        stopped = sum(row["finish"] == "stop" for row in completions)
        tokens = sum(row["tokens"] for row in completions)
        figures.scores["ended"] = stopped / len(completions)
        figures.scores["tokens"] = tokens / len(completions)
        if name in side.sets:
            figures.scores = side.sets[name].scores | figures.scores
            figures.errors = side.sets[name].errors | figures.errors
        side.sets[name] = figures
