"""The curriculum of a training: it chooses the rows of each step, and is stored in checkpoints.

Letters at the end of a tensor's name are its shape: B completions of this process, P prompts of all
processes, G completions of a prompt.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.utils import gather
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.dataset.curriculum import Curriculum, curriculum_keys
from runner.generate.sampler import seeded_generator
from runner.io.files import read_json, write_text
from runner.io.turns import Row

MEMORY_FILE = "curriculum.json"  # in a checkpoint: the last rewards of each key


@dataclass(eq=False)
class RowCurriculum(TrainerCallback):
    """Draws the rows of all processes by their weights, and takes in what they have earned.

    Every process has the same curriculum, and takes its share of the rows that are drawn.
    """

    column: str
    seed: int
    checkpoint: Path | None = None  # that the training goes on from, if there is one
    curriculum: Curriculum | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.curriculum = None
        self.checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.is_world_process_zero and self.curriculum is not None:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_text(folder / MEMORY_FILE, json.dumps(self.curriculum.rewards))

    def of(self, trainer: Trainer) -> Curriculum:
        """The curriculum of the rows of a trainer, as it was at the checkpoint that it goes on
        from."""
        if self.curriculum is None:
            keys = curriculum_keys(trainer.train_dataset, self.column)
            rewards = read_json(self.checkpoint / MEMORY_FILE) if self.checkpoint else None
            self.curriculum = Curriculum(keys, rewards or {})
        return self.curriculum

    def draw(self, trainer: Trainer, prompts: int, *purpose: object) -> list[int]:
        """The numbers of the rows for so many prompts of this process."""
        args = trainer.args
        generator = seeded_generator(self.seed, "curriculum", *purpose)
        return own_share(self.of(trainer).draw(prompts * args.world_size, generator), args)

    def record(self, trainer: Trainer, numbers: Sequence[int], scores_B: Tensor) -> None:
        """Take in what the completions of rows have earned, NaN where there are none.

        All processes call it together.
        """
        device = trainer.args.device
        numbers_P = gather(torch.tensor(numbers, device=device))
        scores_PG = gather(scores_B.to(device).view(len(numbers), -1))
        for number, scores in zip(numbers_P.tolist(), scores_PG.tolist(), strict=True):
            earned = [score for score in scores if not math.isnan(score)]
            if earned:
                self.of(trainer).record(number, earned)

    @contextmanager
    def choosing(self, trainer: Trainer, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """As many other rows for a step of PPO, which is taken inside."""
        numbers = self.draw(trainer, len(rows), trainer.state.global_step)
        yield [trainer.train_dataset[number] for number in numbers]
        self.record(trainer, numbers, trainer.first_scores_B)


def own_share(numbers: list[int], args: TrainingArguments) -> list[int]:
    """The share of this process in what was drawn for all of them."""
    size = len(numbers) // args.world_size
    first = args.process_index * size
    return numbers[first : first + size]
