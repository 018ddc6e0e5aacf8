"""Variables of the environment that would spoil a run.

They would end an import with a traceback, or change a training in silence. Any other variable is
left alone.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runner.errors import Fault
from runner.io.secrets import hidden
from runner.schema.upstream.trackers import TRACKERS, TrackerLibrary

MAX_LETTERS = 80  # of a value that a fault repeats
FALSE = "f|false|n|no|off|0"
TRUE = "t|true|y|yes|on|1"
COUNT = "[0-9]{1,6}"
# What TORCH_LOGS=help lists.
TORCH_LOGS = (
    "all|help|annotation|aot|aot_(graphs(_effects)?|joint_graph)|async_compile|autograd|autotuning"
    "|benchmarking|bytecode|c10d|cache|caching|compiled_autograd(_verbose)?|cudagraphs|ddp"
    "|ddp_graphs|distributed|dtensor|dynamic|dynamo|export|fake_tensor|fsdp|fusion|graph"
    "|graph_(breaks|code|code_verbose|sizes)|guards|hierarchical_compile|inductor|kernel_code"
    "|not_implemented|onnx|onnx_diagnostics|output_code|overlap|perf_hints|post_grad_graphs|pp"
    "|pre_grad_graphs|recompiles|recompiles_verbose|schedule|side_effects|sym_node|torch"
    r"|trace_(bytecode|call|source)|verbose_guards|\w+\.[\w.]+"
)


@dataclass(frozen=True)
class VariableRule:
    """The values that some variables may have."""

    names: str  # a pattern
    values: str  # a pattern of those that work, in capitals or not
    expected: str  # these values in words


RULES = [
    # A precision, a device or a compiler that no configuration names, so that no key of a run
    # knows of it.
    VariableRule(
        names="ACCELERATE_MIXED_PRECISION",
        values="no",
        expected="no; a precision is asked for by trainer.args.bf16=true",
    ),
    VariableRule(
        names="ACCELERATE_USE_CPU",
        values=FALSE,
        expected="false; a training on the CPU is asked for by trainer.args.use_cpu=true",
    ),
    VariableRule(
        names="ACCELERATE_TORCH_DEVICE",
        values="(?!)",
        expected="no value; devices are chosen by CUDA_VISIBLE_DEVICES or launcher.devices",
    ),
    VariableRule(
        names="ACCELERATE_DYNAMO_BACKEND",
        values="no",
        expected="no; compiling is asked for by trainer.args.torch_compile=true",
    ),
    VariableRule(
        names="ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        values="1",
        expected="1; it is asked for by trainer.args.gradient_accumulation_steps",
    ),
    VariableRule(
        names="ACCELERATE_USE_(MEGATRON_LM|PARALLELISM_CONFIG|SAGEMAKER)",
        values=FALSE,
        expected="false; it is not supported here",
    ),
    VariableRule(
        names="(PMI|OMPI_COMM_WORLD|MV2_COMM_WORLD)_SIZE",
        values="1",
        expected="1; several processes are asked for by launcher.num_processes or num_machines",
    ),
    VariableRule(
        names="CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES",
        values=r"( ?(-?[0-9]+|(GPU|MIG)-[\w/-]+) ?(,|$))*|NoDevFiles",
        expected="numbers or names of devices with commas",
    ),
    # A pickle could run code.
    VariableRule(
        names="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
        values=f"{FALSE}|",
        expected="no value; with it any pickle that torch reads can run code",
    ),
    # Values that raise where they are read.
    VariableRule(
        names="RANK|(PMI|OMPI_COMM_WORLD|MV2_COMM_WORLD)_RANK|MASTER_PORT",
        values=COUNT,
        expected="a whole number, as torchrun sets it",
    ),
    VariableRule(
        names="(MPI_LOCALRANKID|OMPI_COMM_WORLD_LOCAL_RANK|MV2_COMM_WORLD_LOCAL_RANK)",
        values=COUNT,
        expected="a whole number",
    ),
    VariableRule(
        names="HF_HUB_(ETAG|DOWNLOAD)_TIMEOUT|HF_PARALLEL_LOADING_WORKERS",
        values="[1-9][0-9]{0,8}",
        expected="a whole number above 0",
    ),
    VariableRule(
        names="HF_ENDPOINT",
        values="(https?://[!-~]+)?",
        expected="an address that begins with http:// or https://",
    ),
    VariableRule(
        names="HF_DATASETS_IN_MEMORY_MAX_SIZE",
        values=r"[0-9]+(\.[0-9]+)?",
        expected="a number of bytes",
    ),
    VariableRule(
        names="ACCELERATE_LOG_LEVEL",
        values="debug|info|warning|error|critical",
        expected="debug, info, warning, error or critical",
    ),
    VariableRule(
        names="PYTORCH_(CUDA_|HIP_)?ALLOC_CONF",
        values=r"(\w+:[^,]+(,|$))*",
        expected="pairs as max_split_size_mb:128",
    ),
    VariableRule(
        names="ACCELERATE_(USE_FSDP|USE_DEEPSPEED|DEBUG_MODE|CPU_AFFINITY|BYPASS_DEVICE_MAP"
        "|ALLOW_CP_STANDALONE)|FORK_LAUNCHED",
        values=f"{TRUE}|{FALSE}",
        expected="true or false",
    ),
    VariableRule(
        names="TORCH_LOGS",
        values=f"([+-]?({TORCH_LOGS})(,|$))*",
        expected="names that TORCH_LOGS=help lists, with commas",
    ),
]


def _rule_of_mode(tracker: TrackerLibrary) -> VariableRule:
    """The rule for the variable that decides whether a tracker sends anything."""
    modes = (*tracker.quiet_modes, *tracker.sending_modes)
    return VariableRule(
        names=tracker.mode_variable,
        values="|".join(modes),
        expected=tracker.usual_modes,
    )


RULES += [_rule_of_mode(tracker) for tracker in TRACKERS.values() if tracker.mode_variable]


def find_variable_faults(machines: int = 1) -> Iterator[Fault]:
    """A fault for each variable with a value that does not work.

    MPI may count ``machines`` processes, one on each of them.
    """
    for name in sorted(os.environ):
        value = os.environ[name]
        is_one_a_machine = name.endswith("_SIZE") and value == str(machines)
        for rule in RULES:
            is_about_it = re.fullmatch(rule.names, name) is not None
            if not is_about_it or is_one_a_machine:
                continue
            if not re.fullmatch(rule.values, value, re.IGNORECASE):
                shown = hidden(repr(value))[:MAX_LETTERS]
                yield Fault(
                    where=name,
                    found=shown,
                    expected=rule.expected,
                    fix=f"unset {name}",
                )
