"""What a configuration may run: the list of targets, and the flags that must be typed.

A configuration can come from anybody, so the list is kept here and in no YAML; it grows only by
``allow=[package]`` on the command line. A target is judged by the name that is written and by the
place that really defines it, so that no re-export leads outside (``logging.os.system``).
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from runner.check.known import experimental_names, nodes, scalars
from runner.check.value import nearest, shown
from runner.check.value import typed as typed_word
from runner.errors import Fault
from runner.signature import Definition, find_definition, find_module, last_key, public_names

# The rooms whose public functions are parts of a run. A launcher is one only as the launcher.
ROOMS = "collator|dataset|loss|metric|model|optimizer|reward|trainer"

IN = r"(?:\.\w+)*"  # any submodule
MODEL = r"\w+(?:ForCausalLM|ForSequenceClassification)"
TOKENIZER = r"\w*(?:Tokenizer|TokenizerFast|Processor)"
ALLOWED = [
    re.compile(pattern)
    for pattern in (
        rf"trl{IN}\.\w+(?:Trainer|Config|Callback)",
        rf"trl{IN}\.DataCollator\w+",
        r"trl\.rewards(?:\.\w+)?\.\w+",
        rf"transformers{IN}\.(?:\w+(?:Callback|Config)|{MODEL}|{TOKENIZER})",
        rf"transformers{IN}\.(?:DataCollator\w+|Adafactor|get_\w*schedule\w*)",
        rf"transformers{IN}\.(?:Auto\w+|_BaseAuto\w+|\w+Config|{MODEL}|{TOKENIZER})"
        r"\.from_(?:pretrained|config)",
        r"transformers\.\w+\.(?:PreTrainedModel|PreTrainedTokenizerBase|ProcessorMixin)"
        r"\.from_pretrained",
        rf"peft{IN}\.\w+Config",
        rf"torch\.optim{IN}\.[A-Z]\w*",
        rf"torch\.nn{IN}\.\w+Loss",
        rf"bitsandbytes\.optim{IN}\.[A-Z]\w*",
        rf"accelerate{IN}\.ParallelismConfig",
        rf"runner\.(?:{ROOMS}){IN}\.(?!(?:write|save|copy|remove|push)_|main$)\w+",
        r"runner\.callback\.Samples",  # the others are the runner's own, and write where they are told
    )
]
LAUNCHER = re.compile(rf"runner\.launcher{IN}\.\w+")

# What is never offered as something to allow: the list is there to keep most of it out.
LIBRARIES = {"runner", "trl", "transformers", "torch", "peft", "datasets", "accelerate", "numpy"}
NOT_OFFERED = {*sys.stdlib_module_names, *LIBRARIES, "hydra", "omegaconf", "pandas", "setuptools"}


def find_target_fault(path: str, target: Any, allow: Collection[str] = ()) -> Fault | None:
    """The fault of a target that is no name, does not exist, or may not run; else None."""
    own = f"{path}._target_"
    if not isinstance(target, str):
        return Fault(own, shown(target), "a dotted name", f"{own}=<module.name>")
    found = find_definition(target)
    if isinstance(found, Definition):
        return _refusal(path, target, found.home, allow)
    near = _near_targets(target, allow, path == "launcher")
    expected = near[0] if near else ""
    cure = f"{own}={near[0] if near else '<module.name>'}"
    if found:
        return Fault(own, f"{target} is a module", expected or "a name in it", cure)
    package = target.partition(".")[0]
    if find_module(package) is None:
        hint = "an installed package, or a module in this folder"
        return Fault(own, f"there is no module {package}", hint, cure)
    return Fault(own, f"there is no {target}", expected or "a name that exists", cure)


def _refusal(path: str, target: str, home: str, allow: Collection[str]) -> Fault | None:
    launcher = path == "launcher"
    outside = [name for name in (target, home) if not is_allowed(name, allow, launcher)]
    if not outside:
        return None
    package = outside[0].partition(".")[0]
    elsewhere = home.partition(".")[0] != target.partition(".")[0]
    offered = package.isidentifier() and package not in NOT_OFFERED
    return Fault(
        f"{path}._target_",
        f"{target} may not run" + (f": it is {home}" if elsewhere else ""),
        "what the runner lists of trl, transformers, peft, torch.optim and itself",
        f"allow=[{package}]  (if you trust that package)" if offered else "",
    )


def is_allowed(target: str, allow: Collection[str] = (), launcher: bool = False) -> bool:
    """Whether the list, or what the user allows besides, holds this dotted name."""
    words = target.split(".")
    if any(word.startswith("__") or not word.isidentifier() for word in words):
        return False
    if any(target == prefix or target.startswith(f"{prefix}.") for prefix in allow):
        return True
    if words[0] == "runner" and any(word.startswith("_") for word in words):
        return False
    patterns = [*ALLOWED, LAUNCHER] if launcher else ALLOWED
    return any(pattern.fullmatch(target) for pattern in patterns)


def _near_targets(target: str, allow: Collection[str], launcher: bool) -> list[str]:
    """Targets that may run and look like this one, of its module or of TRL's experimental ones."""
    words = target.split(".")
    known = max((n for n in range(len(words)) if find_definition(".".join(words[:n]))), default=0)
    owner, name, rest = ".".join(words[:known]), words[known : known + 1], words[known + 1 :]
    names = [f"{owner}.{each}" for each in public_names(owner, *name)]
    if words[0] == "trl":
        names += [each for inner in (*experimental_names(), _own_trainers()) for each in inner]
    full = {each.rpartition(".")[2]: ".".join([each, *rest]) for each in reversed(names)}
    full = {each: path for each, path in full.items() if is_allowed(path, allow, launcher)}
    return [full[each] for each in nearest(*name, full, 0.75)] if name else []


def _own_trainers() -> list[str]:
    """The names in this package's trainer room, such as those that TRL no longer has."""
    rooms = [f"runner.trainer.{room}" for room in public_names("runner.trainer")]
    return [f"{room}.{name}" for room in rooms for name in public_names(room)]


def _is_elsewhere(address: Any) -> bool:
    """Whether an address, or a host with or without a port, may be that of another machine.

    Where clients read one differently, as with a backslash or a number of another base, it may be.
    """
    text = str(address or "")
    if not text or text.lower() == "localhost" or _is_loopback(text):
        return False
    try:
        place = urlsplit(text if "://" in text else f"//{text}").netloc.rpartition("@")[2]
    except ValueError:
        return True
    host = re.fullmatch(r"\[([^\[\]]+)\](?::\d*)?|([^\[\]:]+)(?::\d*)?", place)
    name = host[1] or host[2] if host else ""
    return not text.isprintable() or "\\" in text or not (name.lower() == "localhost" or _is_loopback(name))


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _is_outside(path: Any) -> bool:
    """Whether a path leads out of the folder where it begins."""
    return isinstance(path, str) and (path.startswith(("/", "~")) or ".." in path.split("/"))


# Per key: which values are risky, and what they do. Each needs its own flag on the command line.
CODE, PICKLE, KERNEL = "runs code of others", "loads pickles, which can run code", "runs a kernel"
SENDS, TELLS = "sends prompts and completions to a server", "sends the figures to a server"
STAYS = ("offline", "disabled", "dryrun")
UPLOADING = {"all", "wandb", "comet_ml", "neptune", "clearml", "swanlab", "azure_ml", "dagshub", "flyte"}
RISKS = {
    "trust_remote_code": (lambda value: value is True, CODE),
    "custom_generate": (bool, CODE),
    "safetensors_only": (lambda value: value is False, PICKLE),
    "use_safetensors": (lambda value: value is False, PICKLE),
    "weights_only": (lambda value: value is False, PICKLE),
    "use_kernels": (lambda value: value is True, f"{KERNEL} from the hub"),
    **dict.fromkeys(
        ("attention", "attn_implementation", "experts_implementation"),
        (lambda value: "/" in str(value), f"{KERNEL} from the hub"),
    ),
    "push_to_hub": (lambda value: value is True, "publishes the model"),
    "log_completions_hub_repo": (bool, "publishes completions"),
    **dict.fromkeys(
        ("trackio_space_id", "trackio_static_space_id", "trackio_bucket_id", "TRACKIO_SPACE_ID"),
        (bool, "publishes the metrics"),
    ),
    "url": (bool, SENDS),
    **dict.fromkeys(
        ("vllm_server_base_url", "vllm_server_host", "teacher_model_server_url", "teacher_server_urls"),
        (_is_elsewhere, SENDS),
    ),
    "token_variable": (bool, "sends a variable of the environment to a server"),
    "proxies": (bool, "sends all that is loaded through another machine"),
    "folder": (_is_outside, "writes outside of the run"),
    **dict.fromkeys(("cache_dir", "offload_folder", "offload_dir"), (_is_outside, "writes outside of the run")),
}
# The same of the variables of a tracker, of which the choice of one speaks, too.
VARIABLES = {
    "WANDB_MODE": (lambda value: value not in STAYS, TELLS),
    "WANDB_BASE_URL": (_is_elsewhere, TELLS),
    "MLFLOW_TRACKING_URI": (lambda value: not str(value).startswith(("sqlite:", "file:", "{")), TELLS),
    "WANDB__EXECUTABLE": (bool, CODE),
    **dict.fromkeys(
        ("TENSORBOARD_LOGGING_DIR", "TRACKIO_DIR", *(f"WANDB_{of}DIR" for of in ("", "CACHE_", "DATA_", "CONFIG_"))),
        (_is_outside, "writes outside of the run"),
    ),
}


def find_dangers(cfg: Any) -> list[Fault]:
    """What a configuration would run or publish that is not on the list, as if nothing had been typed or allowed."""
    targets = (find_target_fault(path, node["_target_"]) for path, node in nodes(cfg))
    return [*filter(None, targets), *find_risks(scalars(cfg)), *find_uploads(cfg)]


def find_risks(values: Iterable[tuple[str, Any]], typed: Collection[str] = ()) -> Iterator[Fault]:
    """A fault for each value that runs or publishes something and was not typed by the user.

    A flag counts for the nodes inside its own: ``model.trust_remote_code=true`` is also for
    ``model.tokenizer``. So does a fault, which is not said twice.
    """
    said = set(typed)
    for path, value in values:
        key = last_key(path)
        is_risky, danger = RISKS.get(key, (None, ""))
        if is_risky is None or not is_risky(value) or said.intersection(_above(path, key)):
            continue
        said.add(path)
        found = f"{key}: {shown(value)} {danger}, and was not typed"
        cure = f"{typed_word(path, value)}  (if you trust where it leads)"
        yield Fault(path, found, "such a key on the command line only", cure)


def find_uploads(cfg: Any, typed: Collection[str] = ()) -> Iterator[Fault]:
    """A fault for each tracker that would send what it is told, or write elsewhere, and that nobody has typed."""
    node = cfg.get("tracker") if isinstance(cfg, dict) else None
    variables = node.get("environment") if isinstance(node, dict) else None
    variables = variables if isinstance(variables, dict) else {}
    stays = variables.get("WANDB_MODE") in STAYS
    for path, value in scalars(cfg):
        key, where = last_key(path), re.sub(r"\.\d+$", "", path)
        if {"tracker", where} & set(typed):
            continue
        is_risky, danger = VARIABLES.get(key, (None, "")) if path.startswith("tracker.environment.") else (None, "")
        if key == "report_to" and value in UPLOADING and not (value == "wandb" and stays):
            is_risky, danger = bool, TELLS
        if is_risky and is_risky(value):
            found = f"{key}: {value} {danger}, and was not typed"
            cure = f"tracker=<name>, or {where}={value}  (if you want that)"
            yield Fault(path, found, "such a key on the command line only", cure)


def _above(path: str, key: str) -> list[str]:
    """The same key of this node and of those around it."""
    nodes = path.split(".")[:-1]
    return [".".join([*nodes[:depth], key]) for depth in range(1, len(nodes) + 1)]
