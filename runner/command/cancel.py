"""Takes runs out of the queue of a cluster."""

import os
from collections.abc import Sequence
from pathlib import Path

from runner.command import CommandLine
from runner.command._option import read_options
from runner.command.cancel_options import Options
from runner.config.build import build
from runner.errors import ConfigError, Fault
from runner.io.terminal import MAX_LINES
from runner.launch.queue import Place, look, place_of, set_gone
from runner.run.record import RunRecord, find_runs
from runner.schema.text import to_override
from runner.validate.configuration import find_dangers
from runner.validate.elsewhere import is_elsewhere


def main(line: CommandLine) -> int:
    """Cancel the jobs of the runs that the command line names; say what became of each run."""
    options = read_options(line, Options)
    queues: dict[str, list[RunRecord]] = {}
    for run in find_runs(line.runs, "cancel", None, Path(options.output_root)):
        queues.setdefault(repr(run.cfg.get("launcher")), []).append(run)
    for runs in queues.values():
        places = _cancel_jobs(runs, options.launcher_address)
        for number, run in enumerate(runs, 1):
            place = places.get(run.folder)
            text = f"no job    {run}: {run.standing}"
            if place:
                text = f"cancelled {run}: {place.ticket}"
                # A run that has begun says itself how it ends, where it sees this folder.
                when = "" if place.begun else " before it began"
                set_gone(run.run, f"{place.ticket} was cancelled{when}")
            if number <= MAX_LINES:
                print(text, flush=True)
        if len(runs) > MAX_LINES:
            print(f"          and {len(runs) - MAX_LINES} more")
    return 0


def _cancel_jobs(runs: Sequence[RunRecord], typed_address: str | None) -> dict[Path, Place]:
    """Cancel the jobs of runs that have one launcher; returns their places in its queue."""
    launcher = runs[0].cfg.get("launcher") or {}
    if "wait" not in launcher:
        return {}
    fix = "the command of the cluster that cancels its jobs"
    ConfigError.refuse(find_dangers({"launcher": launcher}, fix))
    _check_address(launcher.get("address"), typed_address, str(runs[0]))
    queue = build(launcher)
    queue.check()
    seen = look(queue, [run.folder for run in runs])
    places = {}
    for run in runs:
        place = place_of(run.run.status(), queue, seen)
        if place:
            places[run.folder] = place
    if places:
        queue.cancel([place.ticket for place in places.values()])
    return places


def _check_address(address: object, typed_address: str | None, run: str) -> None:
    """Refuse to reach another machine that a run's folder names and nobody typed.

    The folder may be somebody else's.
    """
    if address in ("auto", "local", typed_address, os.environ.get("RAY_ADDRESS")):
        return
    if not is_elsewhere(address):
        return
    word = to_override("launcher.address", address)
    raise ConfigError(
        Fault(
            where="launcher.address",
            found=f"{address}, which config.yaml of {run} sets, but nobody typed",
            expected="this address on the command line",
            fix=f"{word}  (if you trust where it leads)",
        )
    )
