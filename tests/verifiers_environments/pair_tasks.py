"""An environment of verifiers with two roles."""

import verifiers.v1 as vf

__all__ = ["PairEnv", "PairTaskset"]


class PairConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    user: vf.AgentConfig = vf.AgentConfig()


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task, agents):
        await agents.player.run(task)


class PairTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        yield vf.Task(vf.TaskData(prompt="hello"), self.config.task)
