"""The keys whose values may run, send, publish or write something elsewhere, and what they do.

A key is a pattern of the end of a dotted key. It counts wherever it stands, for whatever is inside
of it too. Each needs its own flag on the command line.
"""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from runner.schema.upstream.trackers import QUIET_MODES, TRACKERS
from runner.validate.elsewhere import (
    is_elsewhere,
    is_host_elsewhere,
    is_outside,
    is_page_elsewhere,
    leaves_the_run,
)

RUNS_CODE = "runs code of others"
LOADS_PICKLES = "loads pickles, which can run code"
RUNS_KERNELS = "runs a kernel from the hub"
PUBLISHES_MODEL = "publishes the model"
PUBLISHES_METRICS = "publishes the metrics"
SENDS_FIGURES = "sends the figures to a server"
SENDS_TEXTS = "sends prompts and completions to a server"
WRITES_OUTSIDE = "writes outside of the run"

# Callbacks of transformers and TRL that send nothing by themselves; any other of theirs may.
QUIET_CALLBACKS = frozenset(
    (
        "TrainerCallback",
        "DefaultFlowCallback",
        "EarlyStoppingCallback",
        "PrinterCallback",
        "ProgressCallback",
        "TensorBoardCallback",
        "NotebookProgressCallback",
        "JITCheckpointCallback",
        "BEMACallback",
        "PEFTAdapterEMACallback",
        "LogCompletionsCallback",
        "MergeModelCallback",
        "RichProgressCallback",
        "StepIntervalCallback",
        "SyncRefModelCallback",
        "SyncTeacherModelCallback",
    )
)


@dataclass(frozen=True)
class Risk:
    """Values of some keys that are risky, and what they do."""

    keys: re.Pattern[str]
    is_risky: Callable[[Any], bool]
    danger: str


# --- Conditions -----------------------------------------------------------------------------------
# Where any value that Python takes for true is risky, the condition is ``bool``: a library may not
# look more closely.


def is_off(value: object) -> bool:
    """True for a value that is set, and that Python takes for false."""
    return value is not None and not value


def has_slash(value: object) -> bool:
    """True for a text like the name of a repository of the hub."""
    return isinstance(value, str) and "/" in value


def has_dot(value: object) -> bool:
    """True for a text like the name of a module."""
    return isinstance(value, str) and "." in value


def is_request(value: object) -> bool:
    """True for a revision that anybody may have made, such as that of a pull request."""
    return isinstance(value, str) and value.startswith("refs/")


def is_kernel_config(target: object) -> bool:
    return str(target).endswith(".KernelConfig")


def is_sending_callback(target: object) -> bool:
    """True for a library's callback that may send what a run is, or what it logs, to a server."""
    package, _, name = str(target).rpartition(".")
    is_of_library = package.partition(".")[0] in ("transformers", "trl")
    return is_of_library and name.endswith("Callback") and name not in QUIET_CALLBACKS


def is_sending_mode(mode: object) -> bool:
    """True for a value of tracker.mode with which figures leave this machine."""
    return mode not in QUIET_MODES


def is_address_elsewhere(value: object) -> bool:
    """True for an address of another machine; what is inside of a mapping is judged by itself."""
    return not isinstance(value, dict | list) and is_elsewhere(value)


# --- Tables ---------------------------------------------------------------------------------------
def _risk(danger: str, is_risky: Callable[[Any], bool], *keys: str) -> Risk:
    any_key = "|".join(keys)
    pattern = re.compile(rf"(?:.*\.)?(?:{any_key})")
    return Risk(pattern, is_risky, danger)


RISKS = [
    _risk(RUNS_CODE, bool, "trust_remote_code", "custom_generate", "auto_map", "code_revision"),
    _risk("is what anybody may upload to that repository", is_request, "revision", r"\w+_revision"),
    _risk(LOADS_PICKLES, is_off, "safetensors_only", "use_safetensors", "weights_only"),
    _risk(LOADS_PICKLES, bool, "allow_pickle", "prompt_tuning_init_state_dict_path"),
    _risk("loads adapters that nobody has looked at", bool, r"peft\.adapters"),
    _risk(
        "imports a module",
        bool,
        "megatron_core",
        "megatron_config",
        "auto_mapping",
        "import_allowlist",
    ),
    _risk("imports a module", has_dot, r"deepspeed\.(.*\.)?backend"),
    _risk(
        RUNS_KERNELS,
        bool,
        "use_kernels",
        "allow_all_kernels",
        "use_local_kernel",
        "use_hub_kernels",
        "kernel_config",
        "kernel_mapping",
        "hub_kernels",
    ),
    _risk(
        RUNS_KERNELS,
        has_slash,
        "attention",
        r"_*(attn|experts|mlp|moe)_implementation(_internal)?",
        r"\w+_attn_implementation",
    ),
    _risk(RUNS_KERNELS, is_kernel_config, "_target_"),
    _risk(
        PUBLISHES_MODEL,
        bool,
        r"push_to_hub(_\w+)?",
        "hub_always_push",
        "hub_model_id",
        "hub_revision",
        "hub_organization",
    ),
    _risk(PUBLISHES_MODEL, is_off, "hub_private_repo"),
    _risk("publishes completions", bool, "log_completions_hub_repo"),
    _risk(PUBLISHES_METRICS, bool, r"trackio_\w*id"),
    _risk(SENDS_FIGURES, is_sending_callback, "_target_"),
    _risk(SENDS_FIGURES, is_sending_mode, r"tracker\.mode"),
    _risk(SENDS_FIGURES, bool, r"deepspeed\.(.*\.)?(wandb|comet)\.enabled"),
    _risk("runs a program", bool, r"environment\.command"),
    _risk(
        "imports a module, or leads elsewhere",
        bool,
        r"environment\.config\.(?:.*\.)?(?:id|fn|judges|harness|runtime|client|skills|interception)",
    ),
    _risk(SENDS_TEXTS, bool, "url"),
    _risk(SENDS_TEXTS, is_host_elsewhere, r"\w*server_host"),
    _risk(
        SENDS_TEXTS,
        is_address_elsewhere,
        r"\w+_url",
        r"\w*(?<!image_)urls",
        r"\w*(base_url|endpoint|endpoint_url|uri|webhook)",
        "host",
        "address",
    ),
    _risk("sends a variable of the environment to a server", bool, "token_variable"),
    _risk(
        "sends all that is loaded through another machine", bool, "proxies", "proxy", r"\w+_proxy"
    ),
    _risk(
        "is fetched from a server, which its address may tell something",
        is_page_elsewhere,
        r"dataset\.(.*\.)?(path|image_folder)",
    ),
    _risk("fetches whatever the rows name from other machines", bool, "image_urls"),
    _risk(
        WRITES_OUTSIDE,
        is_outside,
        "folder",
        "(output|cache|offload|logging|log|save|dump|trace|profile|exps|results)"
        "_(dir|folder|path|file|directory)",
        "nvme_path",
        "covariance_file",
    ),
]


def _risks_of_variables() -> Iterator[Risk]:
    """The risks of variables of trackers that only some values have."""
    for tracker in TRACKERS.values():
        if tracker.mode_variable:
            yield _risk(SENDS_FIGURES, tracker.sends_in, tracker.mode_variable)
        if tracker.address_variables:
            yield _risk(SENDS_FIGURES, is_address_elsewhere, *tracker.address_variables)
        if tracker.store_variable:
            danger = f"{SENDS_FIGURES}, or {WRITES_OUTSIDE}"
            yield _risk(danger, leaves_the_run, tracker.store_variable)
        if tracker.space_variable:
            yield _risk(PUBLISHES_METRICS, bool, tracker.space_variable)
        if tracker.code_variables:
            yield _risk(RUNS_CODE, bool, *tracker.code_variables)
        if tracker.folder_variables:
            yield _risk(WRITES_OUTSIDE, is_outside, *tracker.folder_variables)


# The same for the environment variables of a tracker.
VARIABLE_RISKS = tuple(_risks_of_variables())


@functools.lru_cache(maxsize=4096)
def risks_of(key: str) -> tuple[Risk, ...]:
    """The risks of values at a dotted key."""
    return tuple(risk for risk in RISKS if risk.keys.fullmatch(key))
