"""Values that run, send, publish, write elsewhere or reveal something, which the user must type."""

import contextlib
import json
import os
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from runner.config.experiment import Tracking
from runner.config.groups import SEVERAL
from runner.errors import Fault
from runner.io.secrets import names_secret
from runner.schema.text import Config, last_key, select, short_text, to_override, walk
from runner.schema.upstream.trackers import TRACKERS, TrackerLibrary
from runner.validate.elsewhere import is_outside, leaves_the_run
from runner.validate.risks import SENDS_FIGURES, VARIABLE_RISKS, risks_of

VARIABLE = "tracker.environment."
HARMLESS_VARIABLES = {name for tracker in TRACKERS.values() for name in tracker.harmless_variables}
MODE_VARIABLES = {tracker.mode_variable for tracker in TRACKERS.values() if tracker.mode_variable}
# Fields of a trainer's config that may name a file of JSON, in which the same keys count.
FILES = ("deepspeed", "fsdp_config", "accelerator_config")
# Keys of a launcher that say how much, how long and where on the user's own machines. Any other one
# is typed.
HARMLESS_OF_LAUNCHERS = frozenset(
    (
        "_target_",
        "_partial_",
        "num_processes",
        "num_machines",
        "machine_rank",
        "rendezvous_seconds",
        "jobs",
        "timeout_seconds",
        "grace_seconds",
        "devices",
        "wait",
        "partition",
        "account",
        "qos",
        "time",
        "gpus_per_node",
        "cpus_per_task",
        "mem",
        "constraint",
        "nodelist",
        "signal_seconds",
        "max_requeues",
        "num_cpus",
        "num_gpus",
        "resources",
        "start_seconds",
        "max_restarts",
        "accelerators",
        "cpus",
        "memory",
        "disk_size",
        "use_spot",
    )
)
# Words of sbatch that do the same, with underscores.
HARMLESS_OF_SBATCH = frozenset(
    (
        "begin",
        "comment",
        "contiguous",
        "core_spec",
        "cores_per_socket",
        "cpus_per_gpu",
        "deadline",
        "distribution",
        "exclude",
        "exclusive",
        "gpu_bind",
        "gpu_freq",
        "gpus",
        "gpus_per_socket",
        "gpus_per_task",
        "gres",
        "hint",
        "hold",
        "licenses",
        "mail_type",
        "mem_bind",
        "mem_per_cpu",
        "mem_per_gpu",
        "mincpus",
        "nice",
        "oversubscribe",
        "overcommit",
        "prefer",
        "priority",
        "reservation",
        "requeue",
        "sockets_per_node",
        "spread_job",
        "switches",
        "thread_spec",
        "threads_per_core",
        "time_min",
        "tmp",
        "use_min_nodes",
    )
)
# What only the command that starts a run reads: of a run that is there it does nothing any more.
AT_START = re.compile(r"output_root|launcher\.(?!_target_$|rendezvous$).*")


def find_risks(cfg: Config, trusted: Container[str] = ()) -> Iterator[Fault]:
    """A fault for each value that does something elsewhere and that the user has not typed.

    ``trusted`` are the keys that the user typed. A key counts in any depth: ``attn_implementation``
    may be a mapping, whose values are those of the key. A flag that was typed counts for the nodes
    inside its own: ``model.trust_remote_code=true`` is also for ``model.tokenizer``. So does a
    fault, which is not given twice.
    """
    reported: set[str] = set()
    for path, value in _leaves(cfg):
        danger = _danger_at(cfg, path, value)
        if not danger or _is_trusted(cfg, path, value, trusted):
            continue
        if reported.isdisjoint(_places_around(path)):
            reported.add(path)
            yield _to_fault(cfg, path, value, danger)


def _leaves(cfg: Config) -> Iterator[tuple[str, object]]:
    """Each value that holds no other with its dotted key, those of files of JSON too."""
    for path, value in walk(cfg):
        if not isinstance(value, dict | list) or not value:
            yield path, value
        if last_key(path) in FILES and isinstance(value, str):
            # Whoever reads the file reports what is wrong with it.
            with contextlib.suppress(OSError, ValueError, RecursionError):
                content = json.loads(Path(value).read_bytes())
                yield from _leaves({path: content})


# --- What a value does ----------------------------------------------------------------------------
def _danger_at(cfg: Config, path: str, value: object) -> str:
    """The words for what a value does; empty for one that a file of somebody else's may hold."""
    if path.startswith(VARIABLE):
        return _danger_of_variable(path, value)
    if path == "output_root":
        return "writes outside of the working folder" if is_outside(value) else ""
    if last_key(path) == "report_to" and isinstance(value, str):
        if value == "all":
            return SENDS_FIGURES
        if value in TRACKERS and TRACKERS[value].may_send:
            return _danger_of_tracker(cfg, TRACKERS[value])
    danger = ""
    if path.startswith("launcher."):
        danger = _danger_of_launcher(path, value)
    return danger or _danger_of_key(cfg, path, value)


def _danger_of_variable(path: str, value: object) -> str:
    """The words for what a variable of a tracker does."""
    name = path.removeprefix(VARIABLE)
    if name in HARMLESS_VARIABLES or names_secret(name):
        return ""
    # An empty variable leads nowhere, but an empty mode may be that in which figures are sent.
    if not value and name not in MODE_VARIABLES:
        return ""
    for risk in (*VARIABLE_RISKS, *risks_of(name)):
        if risk.keys.fullmatch(name):
            return risk.danger if risk.is_risky(value) else ""
    return "may lead the tracker elsewhere"


def _danger_of_tracker(cfg: Config, tracker: TrackerLibrary) -> str:
    """The words for what a tracker does by itself, or where a variable of the user's leads it."""
    environment = Tracking.read(cfg.get("tracker")).variables
    if tracker.uploads:
        mode = environment.get(tracker.mode_variable)
        return SENDS_FIGURES if tracker.sends_in(mode) else ""
    variable = tracker.space_variable or tracker.store_variable
    destination = ""
    if variable not in environment:
        destination = os.environ.get(variable, "")
    is_away = bool(destination) and (bool(tracker.space_variable) or leaves_the_run(destination))
    return f"sends the figures where {variable} leads" if is_away else ""


def _danger_of_launcher(path: str, value: object) -> str:
    """The words for a key of a launcher that is not on the lists."""
    key, *inner = path.removeprefix("launcher.").split(".")
    if key == "parameters" and inner and inner[0].replace("-", "_") in HARMLESS_OF_SBATCH:
        return ""
    if key in HARMLESS_OF_LAUNCHERS or value in (None, "", False, [], {}):
        return ""
    return "is what the launcher runs, or where it leads"


def _danger_of_key(cfg: Config, path: str, value: object) -> str:
    """The words for what a value does by its key, or by one around it."""
    words = [word for word in path.split(".") if not word.isdigit()]
    # The name of one of several parts is the user's own word.
    group = cfg.get(words[0])
    is_single = isinstance(group, Mapping) and "_target_" in group
    first = 2 if words[0] in SEVERAL and not is_single else 1
    is_in_list = path.rpartition(".")[2].isdigit()
    for depth in range(min(first, len(words) - 1), len(words)):
        is_around = depth < len(words) - 1 or is_in_list
        # A mapping or a list around a value is not empty, so that it is true.
        judged = True if is_around and not value else value
        for risk in risks_of(".".join(words[: depth + 1])):
            if risk.is_risky(judged):
                return risk.danger
    return ""


# --- Whether it was typed -------------------------------------------------------------------------
def _is_trusted(cfg: Config, path: str, value: object, trusted: Container[str]) -> bool:
    """True where the user typed this value, the list around it, or the same flag further out."""
    words = path.split(".")
    for size in range(len(words), 0, -1):
        place = ".".join(words[:size])
        if place in trusted and not isinstance(select(cfg, place), dict):
            return True
    for place in _places_around(path):
        if place in trusted and select(cfg, place) == value:
            return True
    return False


def _places_around(path: str) -> list[str]:
    """The dotted keys at which the same key could stand in the nodes around."""
    key = last_key(path)
    owners = path.split(".")[:-1]
    places = []
    for depth in range(1, len(owners) + 1):
        places.append(".".join([*owners[:depth], key]))
    return places or [key]


def _to_fault(cfg: Config, path: str, value: object, danger: str) -> Fault:
    """The fault of a dangerous value; a list is typed as a whole."""
    where = re.sub(r"(\.\d*)+$", "", path)
    typed_value = select(cfg, where)
    fix = f"leave {where} out"
    is_key = re.fullmatch(r"[\w-]+(\.[\w-]+)*", where)
    if is_key and typed_value is not None and not isinstance(typed_value, dict):
        fix = f"{to_override(where, typed_value)}  (if you trust where it leads)"
    setting = f"{last_key(where)}: {short_text(value)}"
    return Fault(
        where=where,
        found=f"{setting} {danger}, and was not typed",
        expected="such a key on the command line only",
        fix=fix,
    )
