"""Sums of a few digits."""

import random
from dataclasses import dataclass

from ..factory import register_dataset

DATASET_NAME = "chain_sum"


@dataclass
class ChainSumConfig:
    """Settings of the task."""

    min_terms: int = 1
    max_terms: int = 2
    min_digits: int = 1
    max_digits: int = 1
    seed: int | None = None
    size: int = 500

    def validate(self):
        assert self.max_terms >= self.min_terms, "max_terms must be >= min_terms"


class ChainSumDataset:
    """Questions, made from a seed."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, index):
        numbers = random.Random(self.config.seed + index)
        count = numbers.randint(self.config.min_terms, self.config.max_terms)
        terms = [numbers.randint(0, 9) for _ in range(count)]
        question = f"Sort these digits: {' '.join(map(str, terms))} ="
        return {"question": question, "answer": str(sum(terms)), "metadata": {"terms": terms}}

    def score_answer(self, answer, entry):
        oracle = entry["answer"]
        if answer == oracle:
            return 1.0
        return len(oracle) / len(answer) if answer and oracle in answer else 0.0


register_dataset(DATASET_NAME, ChainSumDataset, ChainSumConfig)
