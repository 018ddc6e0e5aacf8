"""An environment of verifiers that does to itself what the model says."""

import asyncio

import verifiers.v1 as vf

__all__ = ["FailingEnv", "FailingTaskset"]


class FailingTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def is_good(self, task, trace) -> float:
        return float("nan") if trace.last_reply.startswith("nan") else 1.0


class FailingConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class FailingEnv(vf.Env[FailingConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
        if segment.last_reply == "raise":
            raise RuntimeError("it is spoilt")
        if segment.last_reply == "hang":
            await asyncio.sleep(3600)
        if segment.last_reply == "again":
            await agents.player.run(task)


class FailingTaskset(vf.Taskset[FailingTask, vf.TasksetConfig]):
    def load(self):
        for number in range(10):
            yield FailingTask(vf.TaskData(prompt=f"say {number}"), self.config.task)
