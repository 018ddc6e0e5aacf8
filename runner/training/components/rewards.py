"""Rewards, under the names that the config gives them."""

from dataclasses import dataclass
from itertools import repeat

from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments

from runner.config.experiment import Experiment
from runner.generate.agent import Agent
from runner.generate.call_log import CallLog
from runner.generate.environment.reward import build_environment_rewards
from runner.generate.reward_model import ModelReward
from runner.model.chat import set_template
from runner.reward.outcome import ScoringModel, load_reward_model
from runner.reward.panel import RewardTracker, to_scorer
from runner.reward.reading import REWARD_KEY
from runner.run import Run
from runner.training.components.scorers import Reward, build_scorer
from runner.training.components.tools import has_tools
from runner.training.step_samples import StepSamples


@dataclass(frozen=True)
class BuiltRewards:
    """The rewards as TRL takes them, each checked and named."""

    functions: list[Reward]
    weights: list[float] | None  # None where all are 1
    panel: RewardTracker | None  # of the group of rewards; None without a group


def build_rewards(
    experiment: Experiment,
    args: TrainingArguments | None = None,
    agent: Agent | None = None,
    calls: CallLog | None = None,
) -> BuiltRewards:
    """The rewards of a configuration and of the agent's environment, and ``args``' reward model.

    The latter is taken out of them, and the weights are put in, unless all are 1. Of a trainer,
    only one that knows where steps end can use a reward for each.
    """
    random_head = experiment.tolerate.random_head
    per_step = args is None or hasattr(args, "step_separator")
    environment = experiment.environment
    may_lack = environment is not None and environment.on_error == "skip"
    panel = RewardTracker(has_tools=has_tools(experiment.trainer), may_lack=may_lack)
    rewards: list[Reward] = []
    weights = []
    is_single = "_target_" in (experiment.node.get("reward") or {})
    for name, part in experiment.rewards.items():
        reward = build_scorer(part, random_head=random_head)
        key = "reward" if is_single else f"reward.{name}"
        if isinstance(reward, nn.Module):
            setattr(reward, REWARD_KEY, key)
        _check_template(reward, f"{key}.path")
        if isinstance(reward, nn.Module) and not per_step:  # a ModelReward will ask and watch it
            panel.earned[name] = []
            rewards.append(reward)
        else:
            if calls is not None and callable(reward) and not isinstance(reward, nn.Module):
                reward = calls.reward(reward, key)
            options = {"timeout": part.timeout, "per_step": per_step, "where": key}
            scorer = to_scorer(name, reward, tracker=panel, **options)
            rewards.append(scorer)
        weights.append(float(part.weight))
    for paid in build_environment_rewards(agent, list(experiment.rewards)):
        # What an environment is asked has limits of its own.
        rewards.append(to_scorer(paid.name, paid, timeout=None, tracker=panel))
        weights.append(paid.weight)
    path = getattr(args, "reward_model_path", None)
    if args is not None and path:
        args.reward_model_path = None  # the trainer is given the model itself
        where = "trainer.args.reward_model_path"
        model = load_reward_model(path, random_head=random_head, where=where)
        setattr(model, REWARD_KEY, where)
        rewards.append(model)
        weights.append(1.0)
    are_equal = all(weight == 1.0 for weight in weights)
    if args is not None and not are_equal:
        args.reward_weights = weights
    return BuiltRewards(rewards, None if are_equal else weights, panel if panel.earned else None)


def _check_template(reward: Reward, where: str) -> None:
    """Raise ConfigError where the chat template of a reward's model is not usable."""
    if isinstance(reward, nn.Module):
        path = getattr(reward.config, "_name_or_path", "")
        if path:  # its tokenizer is loaded as whoever asks the model will load it
            set_template(AutoTokenizer.from_pretrained(path), None, where)
    elif isinstance(reward, ScoringModel):
        set_template(reward.tokenizer, None, where)


def to_model_rewards(
    rewards: BuiltRewards, tokenizer: PreTrainedTokenizerBase, args: TrainingArguments
) -> list[ModelReward]:
    """Put the reward models of a group in the form of functions, and return these.

    PPO reads a model itself, so that its rewards stay.
    """
    panel = rewards.panel
    if panel is None or hasattr(args, "step_separator"):
        return []
    template_arguments = getattr(args, "chat_template_kwargs", None) or {}
    models = []
    for index, name in enumerate(panel.earned):
        reward = rewards.functions[index]
        if isinstance(reward, nn.Module):
            model = ModelReward(name, reward, tokenizer, panel, template_arguments)
            rewards.functions[index] = model
            models.append(model)
    return models


def build_samples(
    run: Run, tokenizer: PreTrainedTokenizerBase, rewards: BuiltRewards
) -> StepSamples:
    """The notes from which a few of the completions are written that a run learns from."""
    panel = rewards.panel or RewardTracker()
    weights = dict(zip(panel.earned, rewards.weights or repeat(1.0), strict=False))
    return StepSamples(run.folder / "completions.jsonl", tokenizer, panel.scored, weights)
