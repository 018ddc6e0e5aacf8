"""Takes runs out of the queue of a cluster."""

import os
from pathlib import Path

from runner.command import CommandLine, read_options
from runner.config.build import build
from runner.errors import ConfigError, Fault
from runner.launch.queue import place_of, set_gone
from runner.report.table import MAX_LINES
from runner.run.record import RunRecord, find_runs
from runner.schema.text import to_override
from runner.validate import find_dangers
from runner.validate.elsewhere import is_elsewhere


def _check_address(address: object, typed: object, run: str) -> None:
    """Refuse to reach another machine that a run's folder names, which may be somebody else's, and nobody typed."""
    if address in ("auto", "local", typed, os.environ.get("RAY_ADDRESS")) or not is_elsewhere(
        address
    ):
        return
    found = f"{address}, which config.yaml of {run} sets, but nobody typed"
    fix = f"{to_override('launcher.address', address)}  (if you trust where it leads)"
    raise ConfigError(Fault("launcher.address", found, "this address on the command line", fix))


def main(line: CommandLine) -> int:
    """Cancel the jobs of the runs that the command line names, and say of each what became of it."""
    options = read_options(line.overrides, "cancel")
    root = Path(options.get("output_root", "outputs"))
    queues: dict[str, list[RunRecord]] = {}
    for run in find_runs(line.runs, "cancel", None, root):
        queues.setdefault(repr(run.cfg.get("launcher")), []).append(run)
    for runs in queues.values():
        launcher, places = runs[0].cfg.get("launcher") or {}, {}
        if "wait" in launcher:
            ConfigError.refuse(
                find_dangers(
                    {"launcher": launcher}, "the command of the cluster that cancels its jobs"
                )
            )
            _check_address(launcher.get("address"), options.get("launcher.address"), str(runs[0]))
            queue = build(launcher)
            queue.check()
            seen = queue.look()
            places = {
                run.folder: place for run in runs if (place := place_of(run.run, queue, seen))
            }
        if places:
            queue.cancel([place.ticket for place in places.values()])
        for number, run in enumerate(runs, 1):
            if place := places.get(run.folder):
                # else it says so itself
                set_gone(run.run, f"{place.ticket} was cancelled before it began")
            if number <= MAX_LINES:
                print(
                    f"cancelled {run}: {place.ticket}"
                    if place
                    else f"no job    {run}: {run.standing}",
                    flush=True,
                )
        print(
            f"          and {len(runs) - MAX_LINES} more\n" if len(runs) > MAX_LINES else "", end=""
        )
    return 0
