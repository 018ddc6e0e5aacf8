"""An environment of verifiers whose odd tasks fail as ``config.taskset.mood`` says."""

import asyncio
import os
import time

import verifiers.v1 as vf

__all__ = ["FailingEnv", "FailingTaskset"]


class FailingData(vf.TaskData):
    mood: str = ""


class FailingTask(vf.Task[FailingData]):
    @vf.reward
    async def is_good(self, task, trace) -> float:
        return float("nan") if task.mood == "nan" else float(len(trace.last_reply))


class FailingTasksetConfig(vf.TasksetConfig):
    mood: str = ""


class FailingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class FailingEnv(vf.Env[FailingConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
        mood = task.data.mood or segment.last_reply
        if mood == "raises":
            raise RuntimeError("it is spoilt")
        if mood == "hangs":
            await asyncio.sleep(3600)
        if mood == "blocks":
            time.sleep(3600)
        if mood == "dies":
            os._exit(1)
        if mood == "again":
            await agents.player.run(task)


class FailingTaskset(vf.Taskset[FailingTask, FailingTasksetConfig]):
    def load(self):
        for number in range(100):
            mood = getattr(self.config, "mood", "") if number % 2 else ""
            yield FailingTask(FailingData(prompt=f"say {number}", mood=mood), self.config.task)
