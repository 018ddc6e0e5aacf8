"""The batch of all processes together: ``batch=64`` becomes rows of a micro-batch, and how many of them make a step.

Any number of processes that divides it takes the same step, but for rounding; with ``shares_batch`` it may change.
"""

from collections.abc import Collection, Mapping
from typing import Any

from runner.config.machines import processes_of
from runner.errors import ConfigError, Fault
from runner.schema import upstream
from runner.schema.source import LIBRARY_PACKAGES
from runner.schema.text import last_key, select, walk

OWN = f"trainer.args.{upstream.GRADIENT_ACCUMULATION_STEPS}"
MADE = (f"trainer.args.{upstream.PER_DEVICE_TRAIN_BATCH_SIZE}", OWN)


def spread_batch(cfg: Mapping[str, Any], typed: Collection[str]) -> None:
    """Write both into the trainer's arguments, where there is a ``batch``; a micro-batch is never larger than without.

    Raises ConfigError for a batch that the processes cannot share, and for an accumulation that was typed beside it.
    """
    batch, processes, args = cfg.get("batch"), processes_of(cfg), select(cfg, "trainer.args")
    if not isinstance(args, dict) or not isinstance(args.get("_target_"), str):
        return
    shares = cfg["trainer"].pop("shares_batch", False)
    cfg["trainer"].pop("reads_once", None)  # what a strategy makes of it is in the arguments
    most = upstream.setting(args, upstream.PER_DEVICE_TRAIN_BATCH_SIZE, 8)
    if not isinstance(most, int) or most < 1 or not isinstance(batch, int) or batch < 0:
        return
    if OWN in typed:
        raise ConfigError(Fault(OWN, f"given, and batch={batch} makes it", "one of the two", f"leave {OWN} out"))
    share, rest = divmod(batch, processes)
    if rest or not share:
        found, near = f"{batch}, and {processes} processes share it", max(1, round(batch / processes)) * processes
        raise ConfigError(Fault("batch", found, f"a multiple of {processes}", f"batch={near}"))
    rows = next(size for size in range(min(share, most), 0, -1) if share % size == 0)
    args[upstream.PER_DEVICE_TRAIN_BATCH_SIZE], args[upstream.GRADIENT_ACCUMULATION_STEPS] = rows, share // rows
    if shares and _steps_are_shared(cfg):
        cfg["trainer"]["shares_batch"] = list(map(last_key, MADE))


def _steps_are_shared(cfg: Mapping[str, Any]) -> bool:
    """True where any number of processes that share a batch take the same steps, as far as a configuration tells."""
    for path, value in walk({key: value for key, value in cfg.items() if key not in ("launcher", "tracker")}):
        if (name := last_key(path)) == "_target_" and str(value).partition(".")[0] not in LIBRARY_PACKAGES:
            return False  # nobody knows what it does with the rows of a micro-batch
        is_noise_or_balance = "dropout" in name or name == upstream.ROUTER_AUX_LOSS_COEF
        if is_noise_or_balance and isinstance(value, float) and value > 0:
            return False
        values = value if isinstance(value, list) else [value]
        if any(part in upstream.OTHER_STEPS.get(name, ()) for part in values):
            return False
    return not upstream.setting(cfg["trainer"]["args"], upstream.DEEPSPEED)  # whose optimizers are of so many shares
