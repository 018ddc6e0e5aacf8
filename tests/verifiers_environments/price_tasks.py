"""An environment of verifiers with a tool: the price of a fruit."""

import verifiers.v1 as vf

__all__ = ["PriceTaskset"]

PRICES = {"apple": 3, "banana": 5, "cherry": 8}


class PriceData(vf.TaskData):
    fruit: str


class Prices(vf.Toolset[vf.SharedToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    async def price(self, fruit: str) -> int:
        """The price of a fruit."""
        return PRICES[fruit]


class PriceTask(vf.Task[PriceData]):
    @vf.reward
    async def is_right(self, task, trace) -> float:
        return float(trace.last_reply.strip() == str(PRICES[task.fruit]))


class PriceTaskset(vf.Taskset[PriceTask, vf.TasksetConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Prices(vf.SharedToolsetConfig())]  # one for all episodes

    def load(self):
        for fruit in PRICES:
            yield PriceTask(PriceData(prompt=f"price of {fruit}", fruit=fruit), self.config.task)


if __name__ == "__main__":
    Prices.run()
