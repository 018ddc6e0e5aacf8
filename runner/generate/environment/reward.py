"""The rewards of an experiment's environment, as trainers ask rewards: one function for each name.

Where the episodes were played, what they earned is a column. Where a trainer has sampled the
completions itself, each is the whole of an episode of one turn, which is judged here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import ConfigError, Fault
from runner.generate.agent import Agent
from runner.generate.episode import EARNED, Earned, Environment
from runner.io.files import JsonObject
from runner.io.turns import Row
from runner.reward.panel import NOT_COLUMNS


@dataclass(eq=False)
class Judge:
    """The judge of completions of one turn, which is asked once for all rewards."""

    agent: Agent
    completions: Sequence[Any] = ()
    earned: list[Earned | None] = field(default_factory=list)

    def __call__(self, completions: Sequence[Any], columns: Row) -> list[Earned | None]:
        """The rewards of each completion; None where its environment has failed."""
        if completions is not self.completions:
            rows: list[JsonObject] = [{} for _ in completions]
            for name, values in columns.items():
                if name in NOT_COLUMNS or not isinstance(values, list):
                    continue
                for row, value in zip(rows, values, strict=True):
                    row["prompt" if name == "prompts" else name] = value
            messages = [completion[-1] for completion in completions]
            self.earned = self.agent.judge(rows, messages)
            self.completions = completions
        return self.earned


@dataclass(eq=False)
class EnvironmentReward:
    """One of the rewards of an environment, by its name."""

    name: str
    weight: float
    judge: Judge

    def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The reward of this name of each completion; None where it does not apply."""
        earned = columns.get(EARNED)
        if earned is None:
            earned = self.judge(completions, columns)
        return [None if paid is None else paid.get(self.name) for paid in earned]


def build_environment_rewards(agent: Agent | None, taken: Sequence[str]) -> list[EnvironmentReward]:
    """The rewards of the agent's environment, beside rewards whose names are ``taken``."""
    environment = agent.environments if agent else None
    if agent is None or not isinstance(environment, Environment):
        return []
    judge = Judge(agent)
    twice = [name for name in environment.rewards if name in taken]
    if twice:
        raise ConfigError(
            Fault(
                where=f"reward.{twice[0]}",
                found=f"a reward of this name, which the environment gives, too: {twice[0]}",
                expected="each reward once",
                fix=f"reward.{twice[0]}=null, or reward=none",
            )
        )
    weights = environment.rewards.items()
    return [EnvironmentReward(name, weight, judge) for name, weight in weights]
