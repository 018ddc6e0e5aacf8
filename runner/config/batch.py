"""The batch of all processes together: ``batch=64`` becomes rows of a micro-batch, and how many of them make a step.

So the same step is taken by any number of processes that divides it.
"""

from collections.abc import Collection, Mapping
from typing import Any

from runner.errors import ConfigError, Fault
from runner.schema import upstream

OWN = f"trainer.args.{upstream.GRADIENT_ACCUMULATION_STEPS}"


def spread_batch(cfg: Mapping[str, Any], typed: Collection[str]) -> None:
    """Write both into the trainer's arguments, where there is a ``batch``; a micro-batch is never larger than without.

    Raises ConfigError for a batch that the processes cannot share, and for an accumulation that was typed beside it.
    """
    batch, args, processes = cfg.get("batch"), cfg["trainer"]["args"], cfg["launcher"]["num_processes"]
    if OWN in typed:
        raise ConfigError(Fault(OWN, f"given, and batch={batch} makes it", "one of the two", f"leave {OWN} out"))
    share, rest = divmod(batch, processes)
    if rest or not share:
        found, near = f"{batch}, and {processes} processes share it", max(1, round(batch / processes)) * processes
        raise ConfigError(Fault("batch", found, f"a multiple of {processes}", f"batch={near}"))
    most = min(share, upstream.batch_size(args))
    rows = next(size for size in range(most, 0, -1) if share % size == 0)
    args[upstream.PER_DEVICE_TRAIN_BATCH_SIZE], args[upstream.GRADIENT_ACCUMULATION_STEPS] = rows, share // rows
