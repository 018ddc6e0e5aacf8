"""Things that only GPUs have: precisions, kernels, and models that are spread over processes; what asks for them.

Accelerate shards on devices alone: on a CPU it trains whole copies instead, without a word.
"""

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from runner.errors import Fault, fault
from runner.schema import upstream

FIELDS = (upstream.FSDP, upstream.DEEPSPEED, upstream.PARALLELISM_CONFIG)
VARIABLES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # as accelerate launch sets them
NOT_RESUMED = "splits layers or rows, whose optimizer accelerate does not load again"
# Nodes of devices: NVIDIA (in WSL too), AMD, Intel and others, Huawei, Habana and TPU.
DEVICES = ("nvidia[0-9]*", "dxg", "kfd", "dri/renderD*", "davinci[0-9]*", "accel/*", "accel[0-9]*", "vfio/[0-9]*")
ON_GPUS = (upstream.FP16, upstream.TF32, upstream.USE_LIGER_KERNEL, upstream.ACTIVATION_OFFLOADING)  # no CPU has


def find_gpu_faults(args: Mapping[str, object], typed: Collection[str] = ()) -> Iterator[Fault]:
    """A fault for each precision, kernel or wish to shard, also by accelerate launch, that only a GPU has."""
    for where in (f"trainer.args.{name}" for name in ON_GPUS if args.get(name) is True):
        yield Fault(where, "true, and there is no GPU here", "a GPU", f"{where}=false")
    if shards_on_cpu():
        return
    fields = {f"trainer.args.{name}": args.get(name) for name in FIELDS}
    requests = {where: (value, unspread(where, typed)) for where, value in fields.items()}
    requests |= {name: (os.environ.get(name, "").lower() in ("1", "true"), f"unset {name}") for name in VARIABLES}
    for where, (value, fix) in requests.items():
        if value:
            text = "set" if isinstance(value, Mapping) else str(value).lower()
            yield fault("config.no_gpus", where=where, value=text, fix=fix)


def split_layers(args: Mapping[str, object]) -> list[str]:
    """The fields that split layers or rows, and not only copies, over processes."""
    sizes = args.get(upstream.PARALLELISM_CONFIG)
    return [name for name in ("tp_size", "cp_size") if isinstance(sizes, Mapping) and (sizes.get(name) or 1) > 1]


def find_lone_faults(args: Mapping[str, object], processes: int) -> Iterator[Fault]:
    """A fault for a model that is to be spread over processes where there is one."""
    for where in [f"trainer.args.{name}" for name in FIELDS if args.get(name) and processes == 1][:1]:
        yield fault("config.lone_process", where=where)


def unspread(where: str, typed: Collection[str]) -> str:
    """The words that take a field back by which a model is spread: itself, or the strategy that was typed."""
    return f"{where}=null" if where in typed or "strategy" not in typed else "strategy=none"


def has_devices() -> bool:
    """True where there may be a GPU or the like, by what the system shows of it; torch alone is sure."""
    return any(any(Path("/dev").glob(pattern)) for pattern in DEVICES)


def shards_on_cpu() -> bool:
    """True for a test that shards on a CPU; accelerate then takes its processes for such with devices.

    RUNNER_TEST_FSDP_ON_CPU=1 is for the tests of this project alone. Accelerate shards for the kinds of processes that
    it lists, and there is no public way to say that those of a CPU are of one.
    """
    if os.environ.get("RUNNER_TEST_FSDP_ON_CPU") != "1":
        return False
    if accelerate := sys.modules.get("accelerate"):
        state, kinds = accelerate.PartialState._shared_state, accelerate.DistributedType
        if state.get("distributed_type") == kinds.MULTI_CPU:
            state["distributed_type"] = kinds.MULTI_GPU
    return True
