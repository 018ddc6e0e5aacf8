"""The greatest common divisor, which is scored by the number of letters."""

from dataclasses import dataclass

from ..factory import register_dataset


@dataclass
class GCDConfig:
    """Settings of the task."""

    seed: int | None = None
    size: int = 500

    def validate(self):
        pass


class GCDDataset:
    """Questions, made from a seed."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, index):
        number = (self.config.seed + index) % 7 + 1
        return {"question": f"Sort these digits: {number} {number} =", "answer": str(number)}

    def score_answer(self, answer, entry):
        return 1 / (1 + len(answer or ""))


register_dataset("gcd", GCDDataset, GCDConfig)
