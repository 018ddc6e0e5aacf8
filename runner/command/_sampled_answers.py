"""The measurement of sampled completions by metrics and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.command._side import Request, Side, metrics_of_set
from runner.io.terminal import progress_bar
from runner.io.turns import Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from runner.generate.completion import Completion
    from runner.generate.judge import Score
    from runner.generate.sampler import Model
    from runner.metric.ask import Metric


def measure_sampled(
    side: Side, model: Model, tokenizer: PreTrainedTokenizerBase, metrics: Sequence[Metric]
) -> None:
    """Ask metrics and rewards about completions, and add their figures to those of the set."""
    from runner.generate.judge import judge_completions
    from runner.model.chat import check_rendering, check_template
    from runner.training.components.chat_rows import check_texts

    request = side.request
    score = _build_score(request, tokenizer) if request.experiment.rewards else None
    if not metrics and score is None:
        return
    generator = request.build_generator(model, tokenizer)
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


def _build_score(request: Request, tokenizer: PreTrainedTokenizerBase) -> Score:
    """The rewards of the configuration as one score of completions, with the parts of it."""
    from runner.generate.reward_model import TOKENS_PER_REWARD_PASS
    from runner.ppo.scoring import Rewards
    from runner.reward.outcome import best_device
    from runner.training.components.rewards import build_rewards

    built = build_rewards(request.experiment)
    arguments: Any = request.experiment.trainer.args.get("chat_template_kwargs")
    rewards = Rewards(built.functions, built.weights, tokenizer, template_arguments=arguments)
    rewards.names = list(request.experiment.rewards)
    for model in rewards.models:
        model.requires_grad_(False).to(best_device())

    def score(
        completions: Sequence[Completion], rows: Sequence[Row]
    ) -> tuple[list[float], dict[str, list[float]]]:
        earned_BR, parts_BF = rewards(completions, rows, None, TOKENS_PER_REWARD_PASS)
        parts = dict(zip(rewards.names, parts_BF.T.tolist(), strict=True))
        return earned_BR.nansum(1).tolist(), parts

    return score
