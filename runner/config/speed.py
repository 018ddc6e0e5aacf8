"""``speed=max``: what makes a run faster here (conf/speed/max.yaml), written into the trainer's arguments."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from runner.errors import ConfigError, fault
from runner.schema import upstream
from runner.schema.text import select, short_text, to_text


def choose_speed(cfg: Mapping[str, Any], listed: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Set each of the listed fields that is sound here; a line of each with the reason, and one of each that is not.

    A field that is set stays as it is. Raises ConfigError for one that is listed without its value.
    """
    args, chosen, left = select(cfg, "trainer.args"), list[str](), list[str]()
    fields = upstream.config_fields(args) if isinstance(args, dict) and isinstance(args.get("_target_"), str) else {}
    for name, node in listed.items() if fields else ():
        if not isinstance(node, Mapping) or not {"value", "why", "needs"} <= node.keys():
            raise ConfigError(fault("config.odd_speed", name=name, found=short_text(node)))
        word = f"{name}={to_text(node['value'])}"
        if name in args:
            left.append(f"{name}={to_text(args[name])}: as it was set")
        elif lack := next(_lacks(cfg, node["needs"]), "") if name in fields else "this trainer has no such field":
            left.append(f"without {word}: {lack}")
        else:
            args[name] = node["value"]
            chosen.append(f"{word}: {node['why']}")
    return chosen, left


def _lacks(cfg: Mapping[str, Any], needs: Mapping[str, Any]) -> Iterator[str]:
    """In words, each thing that a setting needs and this machine or configuration has not."""
    for key, wanted in needs.items():
        if key == "gpu" and (found := compute_capability()) < wanted:
            yield f"it needs a GPU of compute capability {wanted}, and there is {found or 'none'}"
        elif key == "package" and find_spec(wanted) is None:
            yield f"{wanted} is not installed"
        elif isinstance(wanted, list) and (value := select(cfg, key)) not in wanted:
            yield f"{key} is {short_text(value)}, and it needs {' or '.join(map(to_text, wanted))}"


@cache
def compute_capability() -> float:
    """The least of those of this machine's NVIDIA GPUs, by their driver, which wakes none; 0 where torch has none."""
    is_hidden = not os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() or "+cpu" in version("torch")
    words = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):  # where it does not answer
        found = "" if is_hidden else subprocess.check_output(words, text=True, timeout=5, stderr=subprocess.DEVNULL)
        return min(map(float, found.split()), default=0.0)
    return 0.0
