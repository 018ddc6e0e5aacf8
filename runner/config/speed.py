"""``speed=max``: fields that make a run faster here, written into the trainer's arguments.

conf/speed/max.yaml lists them.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec

from runner.errors import ConfigError, Fault
from runner.schema.literal import to_text
from runner.schema.text import Config, Node, select, short_text
from runner.schema.upstream.steps import config_fields


def choose_speed(cfg: Config, listed: Node) -> tuple[list[str], list[str]]:
    """Set each of the listed fields that is sound here, unless it is set already.

    Returns a line for each field that was set, with the reason, and one for each that was not.
    Raises ConfigError for a field that is listed without its value.
    """
    chosen: list[str] = []
    left_out: list[str] = []
    args = select(cfg, "trainer.args")
    if not isinstance(args, dict) or not isinstance(args.get("_target_"), str):
        return chosen, left_out
    fields = config_fields(args)
    for name, node in listed.items() if fields else ():
        if not isinstance(node, Mapping) or not {"value", "why", "needs"} <= node.keys():
            raise ConfigError(
                Fault(
                    where=f"speed.{name}",
                    found=short_text(node),
                    expected="value, why and needs, as in conf/speed/max.yaml",
                    fix=f"trainer.args.{name}=<value>",
                )
            )
        if name in args:
            left_out.append(f"{name}={to_text(args[name])}: as it was set")
            continue
        word = f"{name}={to_text(node['value'])}"
        lack = "this trainer has no such field"
        if name in fields:
            lack = next(_find_lacks(cfg, node["needs"]), "")
        if lack:
            left_out.append(f"without {word}: {lack}")
        else:
            args[name] = node["value"]
            chosen.append(f"{word}: {node['why']}")
    return chosen, left_out


def _find_lacks(cfg: Config, needs: Node) -> Iterator[str]:
    """In words, each thing that a field needs and this machine or configuration does not have."""
    for key, wanted in needs.items():
        if key == "gpu":
            capability = compute_capability()
            if capability < wanted:
                here = capability or "none"
                yield f"it needs a GPU of compute capability {wanted}, but there is {here}"
        elif key == "package":
            if find_spec(wanted) is None:
                yield f"{wanted} is not installed"
        elif isinstance(wanted, list):
            value = select(cfg, key)
            if value not in wanted:
                options = " or ".join(map(to_text, wanted))
                yield f"{key} is {short_text(value)}, but it needs {options}"


@cache
def compute_capability() -> float:
    """The least compute capability of this machine's NVIDIA GPUs; 0 if torch can use none.

    Their driver says so without waking one.
    """
    from importlib.metadata import version

    is_hidden = not os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip()
    if is_hidden or "+cpu" in version("torch"):
        return 0.0
    words = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):  # where it does not answer
        text = subprocess.check_output(words, text=True, timeout=5, stderr=subprocess.DEVNULL)
        return min(map(float, text.split()), default=0.0)
    return 0.0
