"""The runner's sampler in the place of transformers' while a trainer of TRL samples.

Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Trainer

from runner.generate.generate_call import generating
from runner.generate.sampler import seeded_generator, uniform


@dataclass
class TrainerSampler:
    """Answers a trainer's calls of ``model.generate``, in its steps and its evaluations.

    The noise of a completion follows from the seed, the step, the process and the number of the
    completion among those of the step, so that a resume needs no saved state. It is the same in
    each evaluation.
    """

    seed: int
    moment: tuple[str, int] | None = None
    count: int = 0  # of the completions at this moment

    @contextmanager
    def sampling(self, trainer: Trainer, is_evaluation: bool) -> Iterator[None]:
        """Sample inside for a micro-batch of a step, or for an evaluation."""
        moment = ("step", trainer.state.global_step)
        if is_evaluation:
            moment = ("evaluation", 0)
        if is_evaluation or moment != self.moment:
            self.moment = moment
            self.count = 0
        process = trainer.args.process_index

        def draw_noise(rows: int, length: int) -> Tensor:
            noises = []
            for number in range(self.count, self.count + rows):
                generator = seeded_generator(self.seed, *moment, process, number)
                noises.append(uniform(length, generator=generator))
            self.count += rows
            return torch.stack(noises)

        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        with generating(model, draw_noise, trainer.accelerator.autocast):
            yield
