"""Held-out rows shared by several processes, so that no row counts more than another."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import broadcast_object_list
from torch.utils.data import DataLoader
from transformers import Trainer

from runner.io.files import JsonObject
from runner.io.temporary import temporarily
from runner.schema import upstream

# The arguments of a loader that the one with even batches takes over.
LOADER_ARGUMENTS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "multiprocessing_context",
)


class EvenBatches:
    """The batches of one of several processes, each with as many rows as those of the others.

    ``copies`` says for each batch how often all processes together have its rows: once, but for the
    few at the end that cannot be shared evenly. Groups of ``group`` neighbours stay in one batch
    of all processes.
    """

    def __init__(
        self, order: Sequence[int], size: int, processes: int, process: int, group: int = 1
    ):
        self.processes = processes
        self.process = process
        self.batches = list[list[int]]()
        self.copies = list[int]()
        # Full batches, then one that is smaller and still can be shared.
        rows_of_all = size * processes
        smallest = math.lcm(processes, group)
        full = len(order) // rows_of_all * rows_of_all
        shared = len(order) // smallest * smallest
        self._deal(order[:full], rows_of_all, copies=1)
        self._deal(order[full:shared], rows_of_all, copies=1)
        # The rest is repeated until it can be shared.
        rest = list(order[shared:])
        if rest:
            copies = smallest // math.gcd(len(rest), smallest)
            self._deal(rest * copies, rows_of_all // smallest * smallest, copies)

    def _deal(self, rows: Sequence[int], max_rows: int, copies: int) -> None:
        for start in range(0, len(rows), max_rows):
            batch = rows[start : start + max_rows]
            share = len(batch) // self.processes
            first = self.process * share
            self.batches.append(list(batch[first : first + share]))
            self.copies.append(copies)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def deal_evenly(loader: DataLoader, accelerator: Accelerator, size: int, group: int) -> DataLoader:
    """The loader of one of several processes, with batches in which no row fills up another's."""
    order = list(loader.batch_sampler.batch_sampler.sampler)
    (order,) = broadcast_object_list([order])
    batches = EvenBatches(order, size, accelerator.num_processes, accelerator.process_index, group)
    arguments = {name: getattr(loader, name) for name in LOADER_ARGUMENTS}
    return DataLoaderShard(loader.dataset, device=loader.device, batch_sampler=batches, **arguments)


class OneProcess:
    """An accelerator that gathers from one process alone, which judges its own rows."""

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: Any) -> Any:
        return tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        return input_data


@contextlib.contextmanager
def judged_by_row(trainer: Trainer) -> Iterator[None]:
    """Have a trainer judge each row by itself, without other processes and the rest of its batch.

    Left out are the balance of experts and KTO's KL, which is an estimate from the batch. AOT sorts
    the pairs of a batch; here it is what it is for a single pair. Trainers whose completions form
    groups judge those of all processes together.
    """
    changes: JsonObject = {}
    if group_size(trainer) == 1:
        alone = OneProcess(trainer.accelerator)
        changes["accelerator"] = alone
        changes["gather_function"] = alone.gather_for_metrics
    for name in ("aux_loss_enabled", "calculate_KL"):
        if getattr(trainer, name, False):
            changes[name] = False
    loss_types = list(getattr(trainer, "loss_types", ()))
    if not set(loss_types).isdisjoint(upstream.SORTED_LOSSES):
        for index, loss_type in enumerate(loss_types):
            if loss_type in upstream.SORTED_LOSSES:
                loss_types[index] = "sigmoid"
        changes["loss_types"] = loss_types
    with temporarily(trainer, **changes):
        yield


def group_size(trainer: Trainer) -> int:
    """Completions of one held-out prompt, which stay together; 1 where they form no groups."""
    for name in ("num_generations_eval", "num_generations"):
        size: int | None = getattr(trainer.args, name, None)
        if size:
            return size
    return 1
