"""The machines and processes that train one run together.

They are known by the configuration, or by the variables of the program that has started them.
"""

import os
import re
from collections.abc import Iterator

from runner.errors import EnvironmentFault, Fault
from runner.schema.text import Config, Node, select

# Variables that hold the number of this machine, the first one that is set counting.
RANKS = ("SLURM_NODEID", "GROUP_RANK", "NODE_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
PORTS = range(20_000, 30_000)  # below those that a system hands out itself


def processes_of(cfg: Config) -> int:
    """The number of processes that train a configuration together, on all machines."""
    machines = select(cfg, "launcher.num_machines")
    if not isinstance(machines, int) or machines < 1:
        machines = 1
    return processes_here(cfg) * machines


def processes_here(cfg: Config) -> int:
    """The number of processes on each machine; 1 for a value that the check of values refuses."""
    count = select(cfg, "launcher.num_processes")
    return count if isinstance(count, int) and count > 0 else 1


def words_for(cfg: Config, count: int) -> str:
    """The words that train a configuration by so many processes.

    They are on as many machines as before where these can share them.
    """
    machines = processes_of(cfg) // processes_here(cfg)
    if count % machines:
        return f"launcher=local launcher.num_processes={count}"
    return f"launcher.num_processes={count // machines}"


def rank_of(launcher: Node) -> tuple[str, str]:
    """The number of this machine as text, and the key or the variable that says so."""
    rank = launcher.get("machine_rank")
    if rank is not None:
        return str(rank), "typed"
    for name in RANKS:
        if os.environ.get(name):
            return os.environ[name], name
    return "0", "the default"


def rendezvous_of(launcher: Node) -> str:
    """``host:port`` of the first machine; empty where nobody says.

    In a job of Slurm, the list of its nodes says which, and the number of the job the port.
    """
    rendezvous = launcher.get("rendezvous")
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    job = os.environ.get("SLURM_JOB_ID", "")
    if rendezvous is not None or not (nodes and job.isdigit()):
        return str(rendezvous or "")
    # node01 of node[01-03,7],gpu1
    first_group = re.split(r",(?![^[]*\])", nodes)[0]
    host = re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first_group)
    return f"{host}:{PORTS[int(job) % len(PORTS)]}"


def find_machine_faults(launcher: Node, machines: int) -> Iterator[Fault]:
    """A fault for each thing that keeps the machines of a run from finding each other."""
    rank, origin = rank_of(launcher)
    if not rank.isdigit() or int(rank) >= machines:
        last = machines - 1
        fix = f"={last}"
        if rank.isdigit():
            fix += f", or launcher.num_machines={int(rank) + 1}"
        yield Fault(
            where="launcher.machine_rank",
            found=f"{rank} ({origin}), and launcher.num_machines is {machines}",
            expected=f"0 to {last}",
            fix=fix,
        )
    place = rendezvous_of(launcher)
    if (place or machines > 1) and not _is_address(place):
        yield Fault(
            where="launcher.rendezvous",
            found=place or f"null, but {machines} machines have to connect",
            expected="host:port of the first machine, which all of them reach",
            fix="=<its name>:29500",
        )
    elif machines == 1 and launcher.get("rendezvous") is not None:
        yield Fault(
            where="launcher.num_machines",
            found="1, but launcher.rendezvous says where several machines connect",
            expected="at least 2",
            fix="=2, or launcher.rendezvous=null",
        )


def _is_address(place: str) -> bool:
    """True for ``host:port``."""
    host, _, port = place.rpartition(":")
    if not re.fullmatch(r"[\w.-]+", host) or not re.fullmatch("[0-9]{1,5}", port):
        return False
    return 0 < int(port) < 65536


def world_size() -> int:
    """The number of processes that torchrun, or its like, started together with this one."""
    return _read_count("WORLD_SIZE", 1)


def rank() -> int:
    """The number of this process among those that were started together."""
    _read_count("LOCAL_RANK", 0)  # accelerate reads it, whatever the world
    if world_size() <= 1:
        return 0
    return _read_count("RANK", 0)


def _read_count(name: str, least: int) -> int:
    """The whole number in a variable of the environment; the least where it is not set."""
    text = os.environ.get(name) or str(least)
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        raise EnvironmentFault(
            Fault(
                where=name,
                found=repr(text),
                expected="a whole number, as torchrun sets it",
                fix=f"unset {name}",
            )
        )
    return int(text)
