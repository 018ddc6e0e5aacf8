"""The rewards of a configuration as one score of completions, for a model that is not trained."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from runner.config.experiment import Experiment
from runner.generate.agent import Agent
from runner.generate.completion import Completion
from runner.generate.earned import Rewards
from runner.generate.judge import Score
from runner.generate.reward_model import TOKENS_PER_REWARD_PASS
from runner.io.turns import Row
from runner.reward.outcome import best_device
from runner.training.components.rewards import build_rewards


def build_score(
    experiment: Experiment, tokenizer: PreTrainedTokenizerBase, agent: Agent | None
) -> Score:
    """The rewards of a configuration as one score of completions, with the parts of it."""
    built = build_rewards(experiment, agent=agent)
    arguments: Any = experiment.trainer.args.get("chat_template_kwargs")
    rewards = Rewards(built.functions, built.weights, tokenizer, template_arguments=arguments)
    rewards.names = list(experiment.rewards)
    rewards.names += [paid.__name__ for paid in rewards.rewards[len(rewards.names) :]]
    for model in rewards.models:
        model.requires_grad_(False).to(best_device())

    def score(
        completions: Sequence[Completion], rows: Sequence[Row]
    ) -> tuple[list[float], dict[str, list[float]]]:
        earned_BR, parts_BF = rewards(completions, rows, None, TOKENS_PER_REWARD_PASS)
        parts = dict(zip(rewards.names, parts_BF.T.tolist(), strict=True))
        return earned_BR.nansum(1).tolist(), parts

    return score
