"""Steps of a training by its arguments: how many rows each has, and how often rows are read."""

import math
from collections.abc import Mapping
from typing import Any

from runner.schema.read import Parameter, read_signature

DEFAULT_BATCH_SIZE = 8  # rows of a micro-batch, as transformers has it


def config_fields(args: Mapping[str, Any]) -> Mapping[str, Parameter]:
    """The fields of a trainer's config object by name."""
    signature = read_signature(args["_target_"])
    return signature.parameters if signature else {}


def setting(args: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """The value of a field of the trainer's config: as set, or its default if that is plain."""
    if args.get(name) is not None:
        return args[name]
    field = config_fields(args).get(name)
    if field is not None and isinstance(field.default, bool | int | float | str):
        return field.default
    return otherwise


def batch_size(args: Mapping[str, Any]) -> int:
    """Rows of a micro-batch."""
    return int(setting(args, "per_device_train_batch_size", DEFAULT_BATCH_SIZE))


def cycle_steps(args: Mapping[str, Any]) -> int:
    """Optimizer steps from one generation to the next, where generated rows are used repeatedly.

    TRL counts a generation in micro-batches, and an optimizer step takes several of these too: it
    is after a common multiple of both that a generation begins together with an optimizer step.
    """
    accumulated: int = args["gradient_accumulation_steps"]
    steps_per_generation = args.get("steps_per_generation") or accumulated
    iterations = args.get("num_iterations") or 1
    generation_micro_steps = steps_per_generation * iterations
    cycle_micro_steps = math.lcm(generation_micro_steps, accumulated)
    return cycle_micro_steps // accumulated


def passes(args: Mapping[str, Any], rows: float, processes: int) -> float:
    """The number of times that a training reads each of its rows; ``args`` must hold all fields.

    As in the Trainer, ``max_steps`` wins over ``num_train_epochs`` where it is positive.
    """
    max_steps: int = args["max_steps"]
    if max_steps <= 0:
        epochs = args["num_train_epochs"]
        return float(epochs)
    accumulated: int = args["gradient_accumulation_steps"]
    rows_per_micro_step = batch_size(args) * processes
    rows_per_step = rows_per_micro_step * accumulated
    rows_read = max_steps * rows_per_step
    return float(rows_read / max(1, rows))
