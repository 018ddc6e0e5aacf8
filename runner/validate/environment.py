"""The machine around a run: libraries that are missing or of a version that was not tried, processes, places to write.

Libraries are only looked for, never imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.config import NUM_PROCESSES, Composed, world_size
from runner.config.sharding import find_unshardable, has_devices
from runner.errors import Fault
from runner.io.files import PACKAGE, hub_home
from runner.run.key import processes_of
from runner.schema import upstream
from runner.schema.text import Config, nodes, select
from runner.validate.context import ARGS

# The keys of a configuration that need a library, by which values, and what installs it.
WANTED = (
    ("quant._target_", r".*BitsAndBytesConfig", "bitsandbytes", "'runner[quant]'"),
    (f"{ARGS}{upstream.OPTIM}", r"(?!galore|adamw_torch).*8bit|paged_.*", "bitsandbytes", "'runner[quant]'"),
    (f"{ARGS}{upstream.OPTIM}", r"(?!.*8bit)(?:lion_|ademamix|rmsprop_bnb).*", "bitsandbytes", "'runner[quant]'"),
    (f"{ARGS}{upstream.OPTIM}", r"adamw_torch_[48]bit", "torchao", "torchao"),
    (f"{ARGS}{upstream.OPTIM}", r"galore_.*", "galore_torch", "galore-torch"),
    (f"{ARGS}{upstream.OPTIM}", r"apollo_.*", "apollo_torch", "apollo-torch"),
    (f"{ARGS}{upstream.OPTIM}", r"lomo|adalomo", "lomo_optim", "lomo-optim"),
    (f"{ARGS}{upstream.OPTIM}", r"grokadamw", "grokadamw", "grokadamw"),
    (f"{ARGS}{upstream.OPTIM}", r"schedule_free_.*", "schedulefree", "schedulefree"),
    (f"{ARGS}{upstream.OPTIM}", r"stable_adamw", "optimi", "torch-optimi"),
    (f"{ARGS}{upstream.USE_LIGER_KERNEL}", "True", "liger_kernel", "liger-kernel"),
    (f"{ARGS}{upstream.USE_VLLM}", "True", "vllm", "'runner[vllm]'"),
    (f"{ARGS}{upstream.DEEPSPEED}", r".+", upstream.DEEPSPEED, upstream.DEEPSPEED),
    ("model.attention", "flash_attention_2", "flash_attn", "flash-attn"),
    *(("tracker.report_to", name, name, f"'runner[{name}]'") for name in ("tensorboard", "wandb", "trackio", "mlflow")),
)
# Which rewards and metrics need a library, and what installs it.
OF_TARGETS = {
    "runner.reward.math.boxed_answer": ("math_verify", "'runner[math]'"),
    "runner.metric.reference.bleu": ("sacrebleu", "'runner[text]'"),
    "runner.metric.reference.chrf": ("sacrebleu", "'runner[text]'"),
    "runner.metric.reference.rouge": ("rouge_score", "'runner[text]'"),
}
# What serves instead of a library, where it is there.
INSTEAD = {"flash_attn": ("kernels", "torch_npu"), "tensorboard": ("tensorboardX",)}
OTHER_VALUES = {
    upstream.OPTIM: "adamw_torch",
    "attention": "sdpa",
    "report_to": "none",
    upstream.USE_LIGER_KERNEL: "false",
}


def find_environment_faults(to_do: Sequence[Composed], elsewhere: bool) -> Iterator[Fault]:
    """A fault for each library that is missing or was not tried, and each place that must take files and does not."""
    for composed in to_do:
        args = composed.cfg["trainer"]["args"]
        yield from find_missing_libraries(composed.cfg)
        is_here = not elsewhere and composed.choices.get("launcher", "local") == "local"
        if args.get(upstream.USE_CPU) or (is_here and not has_devices()):
            yield from find_unshardable(args)
    if not all((composed.cfg.get("tolerate") or {}).get("versions") for composed in to_do):
        yield from find_other_versions()
    yield from _closed_caches()


def find_other_worlds(composed: Composed) -> Iterator[Fault]:
    """A fault where another launcher has started other processes than the configuration says, or none in silence."""
    world, own = world_size(), processes_of(composed.cfg)
    expected, fix = "one program that starts the processes", "python -m runner <the same words>"
    if world > 1 and (own != world or NUM_PROCESSES in composed.typed):
        found = f"{own}, in one of {world} processes that torchrun or its like has started"
        yield Fault(NUM_PROCESSES, found, expected, f"{fix}, or the same line without {NUM_PROCESSES}={own}")
    # The launcher that accelerate has for a CPU starts one process, whatever --num_processes says.
    if "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        found = "one process, though its --num_processes is more than 1"
        yield Fault("accelerate launch", found, expected, f"{fix} {NUM_PROCESSES}={own if own > 1 else 2}")


def find_missing_libraries(cfg: Config) -> Iterator[Fault]:
    """A fault for each library that a key of the configuration asks for and that is not there."""
    for path, pattern, library, package in WANTED:
        value = select(cfg, path)
        values = value if isinstance(value, list) else [value]
        found = [one for one in values if one not in (None, False) and re.fullmatch(pattern, str(one))]
        if found and not any(map(find_spec, (library, *INSTEAD.get(library, ())))):
            other = OTHER_VALUES.get(path.rpartition(".")[2])
            fix = f"pip install {package}" + (f", or {path}={other}" if other else "")
            needs = f"{found[0]} needs {library}, which is not installed"
            yield Fault(path.removesuffix("._target_"), needs, f"the package {library}", fix)
    for path, node in nodes({"reward": cfg.get("reward"), "metric": cfg.get("metric")}):
        library, package = OF_TARGETS.get(str(node["_target_"]), ("", ""))
        if library and find_spec(library) is None:
            needs = f"{node['_target_']} needs {library}, which is not installed"
            yield Fault(path, needs, f"the package {library}", f"pip install {package}")


def find_other_versions() -> Iterator[Fault]:
    """A fault for each library that the runner needs in another version than the installed one."""
    from packaging.requirements import Requirement

    for required in map(Requirement, read_requirements()):
        if required.marker and not required.marker.evaluate({"extra": ""}):
            continue
        name, fix = required.name, f"pip install '{required}', or tolerate.versions=true"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Fault(name, "not installed", str(required), fix)
            continue
        if not is_within(version, str(required.specifier)):
            yield Fault(name, f"{name} {version}, which was not tried", str(required), fix)


def read_project() -> dict[str, Any]:
    """The project's entries in pyproject.toml in a checkout; empty where the package is a wheel's."""
    file = PACKAGE.parent / "pyproject.toml"
    if not file.is_file():
        return {}
    import tomllib

    project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    return project if project.get("name") == "runner" else {}  # some packages leave such a file beside ours


def read_requirements() -> list[str]:
    """The requirements of the runner: from pyproject.toml in a checkout, else from the installed wheel."""
    if project := read_project():
        return list(project["dependencies"])
    try:
        return metadata.requires("runner") or []
    except metadata.PackageNotFoundError:  # a copy of the package alone
        return []


def is_within(version: str | None, required: str) -> bool:
    """True for a version that is required, by its numbers: builds of a machine's own and what comes before a release
    count as that release. True where nobody can tell.

    >>> [is_within(version, ">=2.9.0,<2.14") for version in ("2.13.0+cpu", "2.9", "2.9.0a0+nv25", "2.14")]
    [True, True, True, False]
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version or "").base_version in SpecifierSet(required)
    except InvalidVersion:
        return True


def _closed_caches() -> Iterator[Fault]:
    """A fault where converted rows could not be kept, as they are for every run."""
    variable = "HF_DATASETS_CACHE" if os.environ.get("HF_DATASETS_CACHE") else "HF_HOME"
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or hub_home() / "datasets").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        closed = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written"
    except OSError as error:
        closed = str(error)
    if closed:
        fix = f"export {variable}=<a folder that you may write>"
        yield Fault(variable, f"{folder}: {closed}", "a folder for rows and models", fix)
