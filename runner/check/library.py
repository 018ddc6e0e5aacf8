"""Libraries that a configuration needs and that are not installed, or of a version that was not tried.

Only looked for, never imported; what a training would find out after all others were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from runner.errors import Fault
from runner.files import PACKAGE

A = "trainer.args."
# Where in a configuration a library is asked for, by which values, and what installs it.
WANTED = (
    ("quant._target_", r".*BitsAndBytesConfig", "bitsandbytes", "'runner[quant]'"),
    (f"{A}optim", r"(?!galore).*8bit|(?:paged_|lion_|ademamix|rmsprop_bnb).*", "bitsandbytes", "'runner[quant]'"),
    (f"{A}optim", r"adamw_torch_[48]bit", "torchao", "torchao"),
    (f"{A}optim", r"galore_.*", "galore_torch", "galore-torch"),
    (f"{A}optim", r"apollo_.*", "apollo_torch", "apollo-torch"),
    (f"{A}optim", r"lomo|adalomo", "lomo_optim", "lomo-optim"),
    (f"{A}optim", r"grokadamw", "grokadamw", "grokadamw"),
    (f"{A}optim", r"schedule_free_.*", "schedulefree", "schedulefree"),
    (f"{A}optim", r"stable_adamw", "optimi", "torch-optimi"),
    (f"{A}use_liger_kernel", "True", "liger_kernel", "liger-kernel"),
    (f"{A}use_vllm", "True", "vllm", "'runner[vllm]'"),
    (f"{A}deepspeed", r".+", "deepspeed", "deepspeed"),
    ("model.attention", "flash_attention_2", "flash_attn", "flash-attn"),
    *((("tracker.report_to", name, name, f"'runner[{name}]'")) for name in ("tensorboard", "wandb", "trackio")),
    ("tracker.report_to", "mlflow", "mlflow", "'runner[mlflow]'"),
)
# What serves instead of a library, where it is there.
INSTEAD = {"flash_attn": ("kernels", "torch_npu"), "tensorboard": ("tensorboardX",)}
OTHER = {"optim": "adamw_torch", "attention": "sdpa", "report_to": "none", "use_liger_kernel": "false"}


def find_missing_libraries(cfg: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each library that a key of the configuration asks for and that is not there."""
    for path, pattern, library, package in WANTED:
        value = _at(cfg, path)
        values = value if isinstance(value, list) else [value]
        asked = [one for one in values if one not in (None, False) and re.fullmatch(pattern, str(one))]
        if path.endswith(".optim") and library == "bitsandbytes" and any("adamw_torch" in str(one) for one in asked):
            continue
        if asked and not any(map(find_spec, (library, *INSTEAD.get(library, ())))):
            other, key = OTHER.get(path.rpartition(".")[2]), path.removesuffix("._target_")
            cure = f"pip install {package}" + (f", or {path}={other}" if other else "")
            yield Fault(key, f"{asked[0]} needs {library}, which is not installed", f"the package {library}", cure)


def _at(cfg: Any, path: str) -> Any:
    for word in path.split("."):
        cfg = cfg.get(word) if isinstance(cfg, Mapping) else None
    return cfg


def find_other_versions() -> Iterator[Fault]:
    """A fault for each library that the runner needs in another version than the installed one."""
    from packaging.requirements import Requirement

    for asked in map(Requirement, read_requirements()):
        if asked.marker and not asked.marker.evaluate({"extra": ""}):
            continue
        name, cure = asked.name, f"pip install '{asked}', or tolerate.versions=true"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Fault(name, "not installed", str(asked), cure)
            continue
        if not is_within(version, str(asked.specifier)):
            yield Fault(name, f"{name} {version}, which was not tried", str(asked), cure)


def read_project() -> dict[str, Any]:
    """What pyproject.toml says of the project in a checkout; empty where the package is a wheel's."""
    file = PACKAGE.parent / "pyproject.toml"
    if not file.is_file():
        return {}
    import tomllib

    project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    return project if project.get("name") == "runner" else {}  # some packages leave such a file beside ours


def read_requirements() -> list[str]:
    """What the runner needs: from pyproject.toml in a checkout, else from the installed wheel."""
    if project := read_project():
        return project["dependencies"]
    try:
        return metadata.requires("runner") or []
    except metadata.PackageNotFoundError:  # a copy of the package alone
        return []


def is_within(version: str | None, asked: str) -> bool:
    """Whether a version is one that was asked for, by its numbers: builds of a machine's own and what comes before a
    release count as that release. True where nobody can tell.

    >>> [is_within(version, ">=2.9.0,<2.14") for version in ("2.13.0+cpu", "2.9", "2.9.0a0+nv25", "2.14")]
    [True, True, True, False]
    """
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).base_version in SpecifierSet(asked)
    except (InvalidVersion, TypeError):
        return True
