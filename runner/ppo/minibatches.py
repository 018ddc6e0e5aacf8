"""The check of mini-batches, which needs no torch: a configuration meets it before the trainer's arguments do."""

from collections.abc import Iterator

from runner.errors import Fault


def find_minibatch_faults(prompts: int, num_mini_batches: int) -> Iterator[Fault]:
    """A fault where the prompts that a process rolls out cannot be cut into so many equal mini-batches."""
    if num_mini_batches < 1 or prompts % num_mini_batches:
        where, found = "trainer.args.num_mini_batches", f"{num_mini_batches} for {prompts} prompts per process"
        expected = "a divisor of per_device_train_batch_size * gradient_accumulation_steps"
        yield Fault(where, found, expected, "trainer.args.num_mini_batches=1")
