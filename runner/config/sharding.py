"""Features that only GPUs have: precisions, kernels, and models that are spread over processes.

Accelerate shards on devices alone: on a CPU it trains whole copies instead, and does not say so.
"""

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from runner.errors import Fault

FIELDS = ("fsdp", "deepspeed", "parallelism_config")
VARIABLES = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # as accelerate launch sets them
NOT_RESUMED = "splits layers or rows, and accelerate cannot load their optimizer again"
# Nodes of devices: NVIDIA (in WSL too), AMD, Intel and others, Huawei, Habana and TPU.
DEVICES = (
    "nvidia[0-9]*",
    "dxg",
    "kfd",
    "dri/renderD*",
    "davinci[0-9]*",
    "accel/*",
    "accel[0-9]*",
    "vfio/[0-9]*",
)
ON_GPUS = ("fp16", "tf32", "use_liger_kernel", "activation_offloading")  # fields that no CPU has


def find_gpu_faults(args: Mapping[str, object], typed: Collection[str] = ()) -> Iterator[Fault]:
    """A fault for each precision, kernel or request to shard that only a GPU can meet.

    Accelerate launch may have made the request.
    """
    for name in ON_GPUS:
        if args.get(name) is True:
            yield Fault(
                where=f"trainer.args.{name}",
                found="true, but there is no GPU here",
                expected="a GPU",
                fix="=false",
            )
    yield from _find_transfer_faults(args)
    if shards_on_cpu():
        return
    if args.get("vllm_enable_sleep_mode") is True:
        yield Fault(
            where="trainer.args.vllm_enable_sleep_mode",
            found="true, but there is no GPU here",
            expected="a GPU, whose memory vLLM frees while it sleeps",
            fix="=false",
        )
    for name in FIELDS:
        value = args.get(name)
        if value:
            where = f"trainer.args.{name}"
            text = "set"
            if not isinstance(value, Mapping):
                text = str(value).lower()
            yield _shard_fault(where, text, unspread(where, typed))
    for name in VARIABLES:
        if os.environ.get(name, "").lower() in ("1", "true"):
            yield _shard_fault(name, "true", f"unset {name}")


def _find_transfer_faults(args: Mapping[str, object]) -> Iterator[Fault]:
    """A fault for each way of new weights to a vLLM server that leads from card to card alone."""
    if args.get("use_vllm") is True and args.get("vllm_mode") == "server":
        yield Fault(
            where="trainer.args.vllm_mode",
            found="server, but there is no GPU here",
            expected="a GPU: TRL sends new weights to a server by NCCL alone",
            fix="=colocate",
        )
    if args.get("vllm_weight_transfer") == "nccl":
        yield Fault(
            where="trainer.args.vllm_weight_transfer",
            found="nccl, but there is no GPU here",
            expected="a way that needs none",
            fix="=folder",
        )


def _shard_fault(where: str, text: str, fix: str) -> Fault:
    """The fault of a request to shard on a machine without GPUs."""
    return Fault(
        where=where,
        found=f"{text}, but there is no GPU here",
        expected="GPUs: on a CPU each process would train a whole copy",
        fix=fix,
    )


def split_layers(args: Mapping[str, object]) -> list[str]:
    """The fields that split layers or rows over processes, and not only copies of the model."""
    sizes = args.get("parallelism_config")
    if not isinstance(sizes, Mapping):
        return []
    return [name for name in ("tp_size", "cp_size") if (sizes.get(name) or 1) > 1]


def find_lone_faults(args: Mapping[str, object], processes: int) -> Iterator[Fault]:
    """A fault for a model that is to be spread over processes where there is only one."""
    fields = [name for name in FIELDS if args.get(name)]
    if fields and processes == 1:
        yield Fault(
            where=f"trainer.args.{fields[0]}",
            found="one process, but the model is shared among several",
            expected="several processes, each with its own GPU",
            fix="launcher.num_processes=2",
        )


def unspread(where: str, typed: Collection[str]) -> str:
    """The words that take back a field by which a model is spread.

    They name the field, or the strategy if that was typed.
    """
    return f"{where}=null" if where in typed or "strategy" not in typed else "strategy=none"


def has_devices() -> bool:
    """True where there may be a GPU or the like, by the files of the system; only torch is sure."""
    return any(any(Path("/dev").glob(pattern)) for pattern in DEVICES)


def shards_on_cpu() -> bool:
    """True for a test that shards on a CPU; accelerate then takes it for a device.

    RUNNER_TEST_FSDP_ON_CPU=1 is for the tests of this project alone. Accelerate shards for the
    kinds of processes that it lists, and there is no public way to say that those of a CPU are of
    such a kind.
    """
    if os.environ.get("RUNNER_TEST_FSDP_ON_CPU") != "1":
        return False
    accelerate = sys.modules.get("accelerate")
    if accelerate:
        state = accelerate.PartialState._shared_state
        kinds = accelerate.DistributedType
        if state.get("distributed_type") == kinds.MULTI_CPU:
            state["distributed_type"] = kinds.MULTI_GPU
    return True
