"""Models and datasets of the hub that runs want: asked for once, and else taken from the cache."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.override import is_local
from runner.config.resolution import Composed
from runner.errors import EnvironmentFault, Fault
from runner.io.files import HUB_NAME
from runner.io.hub import OFFLINE, hub_silence, is_cached, is_offline
from runner.run import Run
from runner.run.key import folder_of
from runner.schema.text import Config, nodes
from runner.validate.machine import HERE

GROUPS = ("dataset", "model", "reward", "metric", "trainer")
# Functions of ours that load something of the hub.
LOADERS = ("runner.model.", "runner.dataset.load.", "runner.reward.")


@dataclass(frozen=True)
class HubName:
    """A repository of the hub."""

    name: str
    kind: str  # "datasets" or "models"


def settle_hub(cfgs: Sequence[Config]) -> None:
    """Ask the hub once, if something of it is wanted; without an answer only the cache is used.

    The libraries would ask for each file again and again, half a minute long. Raises
    EnvironmentFault for what is in no cache.
    """
    keys: dict[HubName, str] = {}  # the first key that wants a repository
    for cfg in cfgs:
        for key, repository in _list_hub_names(cfg):
            keys.setdefault(repository, key)
    if not keys:
        return
    silence = f"{OFFLINE} is set" if is_offline() else hub_silence()
    if not silence:
        return
    online = f"unset {OFFLINE}" if is_offline() else "the same command with a network"
    faults = []
    for repository, key in keys.items():
        if not is_cached(repository.name, repository.kind):
            fault = Fault(
                where=key,
                found=f"{repository.name} is not in the cache, and {silence}",
                expected="a connection to the hub",
                fix=f"{online}, or {key}=<a copy here>",
            )
            faults.append(fault)
    EnvironmentFault.refuse(faults)
    if not is_offline():
        print(f"note      {silence}: what is in the cache is used", flush=True)
        os.environ[OFFLINE] = "1"


def settle_hub_here(runs: Sequence[Composed]) -> None:
    """Ask the hub once for what the runs need that train on this machine and are not finished."""
    cfgs = []
    for run in runs:
        if run.choices.get("launcher", "local") in HERE:
            folder = folder_of(run.cfg, run.overrides).absolute()
            if Run(folder).status()["state"] != "finished":
                cfgs.append(run.cfg)
    settle_hub(cfgs)


def _list_hub_names(cfg: Config) -> Iterator[tuple[str, HubName]]:
    """The key of each path in a configuration that is a repository of the hub, with it."""
    groups = {group: cfg.get(group) for group in GROUPS}
    for path, node in nodes(groups):
        target = str(node["_target_"])
        name = str(node.get("path") or "")
        if not target.startswith(LOADERS) or not HUB_NAME.fullmatch(name):
            continue
        if not is_local(name) and not Path(name).exists():
            kind = "datasets" if target.startswith("runner.dataset.") else "models"
            yield f"{path}.path", HubName(name, kind)
