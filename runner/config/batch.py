"""The batch of all processes: ``batch=64`` becomes the rows and the number of micro-batches.

Any number of processes that divides the batch takes the same steps, apart from rounding; with
``shares_batch`` it may change between the parts of a run.
"""

from collections.abc import Collection
from typing import Any

from runner.config.machines import processes_of
from runner.errors import ConfigError, Fault
from runner.schema.literal import to_list
from runner.schema.source import LIBRARY_PACKAGES
from runner.schema.text import Config, last_key, select, walk
from runner.schema.upstream.resumable_fields import OTHER_STEPS
from runner.schema.upstream.steps import DEFAULT_BATCH_SIZE, setting

ACCUMULATION = "trainer.args.gradient_accumulation_steps"
MADE = ("trainer.args.per_device_train_batch_size", ACCUMULATION)


def spread_batch(cfg: dict[str, Any], typed: Collection[str]) -> None:
    """Write the rows and the number of micro-batches into the trainer's arguments.

    That is done where there is a ``batch``. A micro-batch is never larger than without one. Raises
    ConfigError for a batch that the processes cannot share, and for an accumulation that was typed
    beside it.
    """
    args = select(cfg, "trainer.args")
    if not isinstance(args, dict) or not isinstance(args.get("_target_"), str):
        return
    shares_batch = cfg["trainer"].pop("shares_batch", False)
    cfg["trainer"].pop("reads_once", None)  # what a strategy makes of it is in the arguments
    batch = cfg.get("batch")
    max_rows = setting(args, "per_device_train_batch_size", DEFAULT_BATCH_SIZE)
    # The check of the values refuses anything else.
    if not isinstance(max_rows, int) or max_rows < 1:
        return
    if not isinstance(batch, int) or batch < 0:
        return
    if ACCUMULATION in typed:
        raise ConfigError(
            Fault(
                where=ACCUMULATION,
                found=f"it is set, but batch={batch} decides it",
                expected="one of the two",
                fix=f"leave {ACCUMULATION} out",
            )
        )
    processes = processes_of(cfg)
    share = batch // processes
    if batch % processes or not share:
        near = max(1, round(batch / processes)) * processes
        raise ConfigError(
            Fault(
                where="batch",
                found=f"{batch}, and {processes} processes share it",
                expected=f"a multiple of {processes}",
                fix=f"={near}",
            )
        )
    rows = min(share, max_rows)
    while share % rows:
        rows -= 1
    args["per_device_train_batch_size"] = rows
    args["gradient_accumulation_steps"] = share // rows
    if shares_batch and _steps_are_shared(cfg):
        cfg["trainer"]["shares_batch"] = [last_key(key) for key in MADE]


def _steps_are_shared(cfg: Config) -> bool:
    """True where any number of processes that share a batch take the same steps.

    That is as far as a configuration tells.
    """
    parts = {key: node for key, node in cfg.items() if key not in ("launcher", "tracker")}
    for path, value in walk(parts):
        name = last_key(path)
        # Nobody knows what other code does with the rows of a micro-batch.
        if name == "_target_" and str(value).partition(".")[0] not in LIBRARY_PACKAGES:
            return False
        is_noise_or_balance = "dropout" in name or name == "router_aux_loss_coef"
        if is_noise_or_balance and isinstance(value, float) and value > 0:
            return False
        values = to_list(value)
        if any(part in OTHER_STEPS.get(name, ()) for part in values):
            return False
    # The states of DeepSpeed's optimizers are of a fixed number of shares.
    return not setting(cfg["trainer"]["args"], "deepspeed")
