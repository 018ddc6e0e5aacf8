"""An environment of verifiers with several turns: its user answers a guess by higher or lower."""

import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    @vf.reward
    async def is_found(self, task, trace) -> float:
        return float(trace.last_reply.strip() == str(task.number))

    @vf.reward(weight=0.1)
    async def turns(self, task, trace) -> float:
        return float(trace.num_turns)


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and segment.last_reply != str(task.data.number):
                guess = segment.last_reply.strip()
                is_low = guess.isdecimal() and int(guess) < task.data.number
                segment = await interaction.turn("higher" if is_low else "lower")


class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self):
        for number in range(10):
            data = GuessData(prompt="guess a digit", system_prompt="one digit", number=number)
            yield GuessTask(data, self.config.task)
