"""An environment of verifiers with a single turn: digits that are to be sorted."""

import random

import verifiers.v1 as vf

__all__ = ["SortedTaskset"]


class SortedData(vf.TaskData):
    answer: str


class SortedTask(vf.Task[SortedData]):
    @vf.reward(weight=1.0)
    async def is_sorted(self, task, trace) -> float:
        return float(trace.last_reply.strip() == task.answer)

    @vf.reward(weight=0.5)
    async def has_length(self, task, trace) -> float:
        return float(len(trace.last_reply.strip()) == len(task.answer))


class SortedTaskset(vf.Taskset[SortedTask, vf.TasksetConfig]):
    def load(self):
        numbers = random.Random(0)
        for _ in range(200):
            digits = numbers.choices("0123456789", k=4)
            prompt = f"sort {' '.join(digits)}"
            yield SortedTask(
                SortedData(prompt=prompt, answer=" ".join(sorted(digits))), self.config.task
            )
