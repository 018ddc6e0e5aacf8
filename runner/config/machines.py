"""The machines that train one run together, by its configuration or by the variables of whoever has started them."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runner.errors import Fault, fault
from runner.schema.text import select

RANKS = ("SLURM_NODEID", "GROUP_RANK", "NODE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PORTS = (20_000, 30_000)  # below those that a system gives to whoever asks for any


def processes_of(cfg: Mapping[str, Any]) -> int:
    """The number of processes that train a configuration together, on all machines."""
    counts = (processes_here(cfg), select(cfg, "launcher.num_machines"))
    return math.prod(count for count in counts if isinstance(count, int) and count > 0)


def processes_here(cfg: Mapping[str, Any]) -> int:
    """The number of those on each machine."""
    count = select(cfg, "launcher.num_processes")
    return count if isinstance(count, int) and count > 0 else 1  # the check of the values says what is wrong


def words_for(cfg: Mapping[str, Any], count: int) -> str:
    """The words that train a configuration by so many processes, on as many machines where these can share them."""
    each, rest = divmod(count, processes_of(cfg) // processes_here(cfg))
    return f"launcher=local launcher.num_processes={count}" if rest else f"launcher.num_processes={each}"


def rank_of(launcher: Mapping[str, Any]) -> tuple[str, str]:
    """The number of this machine as text, and the key or the variable that says so."""
    if (given := launcher.get("machine_rank")) is not None:
        return str(given), "typed"
    return next(((os.environ[name], name) for name in RANKS if os.environ.get(name)), ("0", "the default"))


def rendezvous_of(launcher: Mapping[str, Any]) -> str:
    """``host:port`` of the first machine, of a job of Slurm by its number; empty where nobody says."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    job = os.environ.get("SLURM_JOB_ID", "")
    if (given := launcher.get("rendezvous")) is not None or not (nodes and job.isdigit()):
        return str(given or "")
    first = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodes)[0])  # node01 of node[01-03,7],gpu1
    return f"{first}:{PORTS[0] + int(job) % (PORTS[1] - PORTS[0])}"


def find_machine_faults(launcher: Mapping[str, Any], machines: int) -> Iterator[Fault]:
    """A fault for each thing that keeps the machines of a run from finding each other."""
    (rank, origin), place = rank_of(launcher), rendezvous_of(launcher)
    if not rank.isdigit() or int(rank) >= machines:
        more = f", or launcher.num_machines={int(rank) + 1}" if rank.isdigit() else ""
        yield fault("config.no_such_machine", rank=rank, source=origin, machines=machines, last=machines - 1, more=more)
    host, _, port = place.rpartition(":")
    is_place = re.fullmatch(r"[\w.-]+", host) and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536
    if (place or machines > 1) and not is_place:
        yield fault("config.no_rendezvous", found=place or f"null, and {machines} machines have to meet")
    elif machines == 1 and launcher.get("rendezvous") is not None:
        yield fault("config.nobody_to_meet")
