"""A small environment of verifiers that ships: digits to sort, in several tries.

    python -m runner experiment=verifiers_grpo

After a wrong answer its user asks again. Every training has the same tasks.
"""

import random
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["SortingEnv", "SortingTaskset"]

TASKS = 2000
DIGITS = 4


class SortingData(vf.TaskData):
    """A task: its digits, and how often the model may answer."""

    digits: str
    tries: int


class SortingTask(vf.Task[SortingData]):
    """Digits to sort; the last answer counts."""

    @vf.reward
    async def is_sorted(self, task: SortingData, trace: vf.Trace) -> float:
        """1 where all digits are right."""
        answer = trace.last_reply.split()
        return float(answer == sorted(task.digits.split()))

    @vf.reward(weight=0.5)
    async def places(self, task: SortingData, trace: vf.Trace) -> float:
        """The share of places with the right digit."""
        answer = trace.last_reply.split()
        hits = 0
        for digit, right in zip(answer, sorted(task.digits.split()), strict=False):
            hits += digit == right
        return hits / max(DIGITS, len(answer))


class SortingConfig(vf.EnvConfig):
    """The one role is the model that is trained."""

    player: vf.AgentConfig = vf.AgentConfig()


class SortingEnv(vf.Env[SortingConfig]):
    """The user, who asks for the same digits until they are sorted."""

    async def run(self, task: SortingTask, agents: Any) -> None:
        """Play one task to its end."""
        right = sorted(task.data.digits.split())
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(task.data.tries - 1):
                if segment.terminated or segment.last_reply.split() == right:
                    break
                segment = await interaction.turn(f"No. {task.data.prompt}")


class SortingTasksetConfig(vf.TasksetConfig):
    """``environment.config.taskset``."""

    tries: int = 2


class SortingTaskset(vf.Taskset[SortingTask, SortingTasksetConfig]):
    """The tasks, in a random order that is always the same."""

    def load(self) -> Iterator[SortingTask]:
        """Make the tasks one by one."""
        numbers = random.Random(0)
        for _ in range(TASKS):
            digits = " ".join(numbers.choices("0123456789", k=DIGITS))
            data = SortingData(
                prompt=f"Sort these digits: {digits}",
                digits=digits,
                tries=self.config.tries,
            )
            yield SortingTask(data, self.config.task)
