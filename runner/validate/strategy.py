"""A model that is spread over processes: what goes with FSDP, DeepSpeed and accelerate's sizes."""

import math
from collections.abc import Iterator, Mapping

from runner.config import sharding
from runner.config.machines import processes_of, words_for
from runner.errors import Fault
from runner.model.node import overrides_answers
from runner.validate.context import ARGS, ValidationContext

PARALLELISM = f"{ARGS}parallelism_config"


def _list_spreading_fields(context: ValidationContext) -> list[str]:
    """The fields that spread the model over processes."""
    return [name for name in sharding.FIELDS if context.args.get(name)]


def find_spread_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each setting that no model has that is spread over processes."""
    fsdp = context.mapping("trainer.args.fsdp_config")
    if context.has_field("critic") and fsdp.get("cpu_ram_efficient_loading"):
        yield Fault(
            where="trainer.args.fsdp_config.cpu_ram_efficient_loading",
            found="true, but accelerate cannot fill a policy and a critic from those of the first "
            "process",
            expected="false for a trainer that has a critic",
            fix="=false",
        )
    if _list_spreading_fields(context) and context.mapping("model").get("device_map"):
        yield Fault(
            where="model.device_map",
            found="set, but the processes spread the model themselves",
            expected="one of the two",
            fix="=null",
        )
    split = sharding.split_layers(context.args)
    if split and context.cfg.get("resume"):
        yield Fault(
            where="resume",
            found=f"a run, but {split[0]} {sharding.NOT_RESUMED}",
            expected="a model of whole layers",
            fix="=null",
        )


def find_sharded_adapter_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for an adapter that no process could save, or merge, from its shard."""
    signature = context.signature(context.cfg.get("peft"))
    if signature is None or "fsdp" not in _list_spreading_fields(context):
        return
    model = context.mapping("model")
    if "num_virtual_tokens" in signature.parameters:
        yield Fault(
            where="peft",
            found=f"{signature.name} on a sharded model, where no process has all of its tokens "
            "to save them",
            expected="an adapter inside the layers",
            fix="=lora",
        )
    if model.get("merge") or overrides_answers(model):
        yield Fault(
            where="model.merge",
            found="true, or a model.config, but no process has the whole model to merge the new "
            "adapter into it",
            expected="neither, or no adapter",
            fix="peft=none",
        )


def find_split_quantised_faults(context: ValidationContext) -> Iterator[Fault]:
    """The fault of quantised weights that a strategy would split."""
    spread_by = _list_spreading_fields(context)
    quant = context.mapping("quant")
    for name in spread_by:
        if quant.get("load_in_8bit") or (quant and name == "deepspeed"):
            where = f"{ARGS}{name}"
            yield Fault(
                where="quant",
                found=f"set, and {where} would split its rounded weights",
                expected="whole copies",
                fix=sharding.unspread(where, context.typed),
            )
            return
    has_bytes = quant.get("load_in_4bit") and not quant.get("bnb_4bit_quant_storage")
    if has_bytes and "fsdp" in spread_by:
        yield Fault(
            where="quant.bnb_4bit_quant_storage",
            found="bytes, which FSDP does not split together with other weights",
            expected="the type of the other weights",
            fix="=bfloat16",
        )


def find_group_size_faults(context: ValidationContext) -> Iterator[Fault]:
    """The fault of sizes of groups of processes that do not make up the processes there are."""
    node: Mapping[str, object] = context.mapping(PARALLELISM)
    sizes: dict[str, int] = {}
    for name, size in node.items():
        if name.endswith("_size") and isinstance(size, int):
            sizes[name] = size
    processes = processes_of(context.cfg)
    total = math.prod(sizes.values())
    # Groups of sp_size are DeepSpeed's own.
    if total <= 1 or sizes.get("sp_size", 1) > 1:
        return
    sharded = sizes.get("dp_shard_size", 1)
    if total != processes:
        fix = words_for(context.cfg, total)
        shards, remainder = divmod(processes, total // sharded)
        if not remainder and shards >= 2:
            fix += f", or {PARALLELISM}.dp_shard_size={shards}"
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        yield Fault(
            where=PARALLELISM,
            found=f"{product} = {total}, but {processes} train",
            expected=f"sizes that multiply to {processes}",
            fix=fix,
        )
    if context.args.get("fsdp") and sharded * sizes.get("cp_size", 1) == 1:
        shards = processes // sizes.get("tp_size", 1)
        yield Fault(
            where=f"{PARALLELISM}.dp_shard_size",
            found="1, so FSDP has no processes that could share a model",
            expected="at least 2",
            fix=f"{PARALLELISM}.dp_replicate_size=1 {PARALLELISM}.dp_shard_size={shards}",
        )
