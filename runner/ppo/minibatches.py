"""The check of mini-batches, which needs no torch: a configuration meets it before the trainer's arguments do."""

from collections.abc import Iterator

from runner.errors import Fault, fault


def find_minibatch_faults(prompts: int, num_mini_batches: int) -> Iterator[Fault]:
    """A fault where the prompts that a process rolls out cannot be cut into so many equal mini-batches."""
    if num_mini_batches < 1 or prompts % num_mini_batches:
        yield fault("ppo.minibatches", count=num_mini_batches, prompts=prompts)
