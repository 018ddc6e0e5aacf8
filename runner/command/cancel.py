"""Takes runs out of the queue of a cluster."""

from pathlib import Path

from runner.command import CommandLine, read_options
from runner.config.build import build
from runner.errors import ConfigError
from runner.launch.queue import Queue, place_of, set_gone
from runner.run.read import RunRecord, find_all_runs
from runner.validate import find_dangers


def main(line: CommandLine) -> int:
    """Cancel the jobs of the runs that the command line names, and say of each what became of it."""
    root = Path(read_options(line.overrides, "cancel").get("output_root", "outputs"))
    runs = find_all_runs(line.runs, "cancel", root)
    queues: dict[str, list[RunRecord]] = {}
    for run in runs:
        launcher = run.cfg.get("launcher") or {}
        if run.status.get("queued") and "wait" in launcher:
            queues.setdefault(repr(launcher), []).append(run)
        else:
            print(f"no job    {run}: {run.standing}")
    for members in queues.values():
        launcher = members[0].cfg["launcher"]
        ConfigError.refuse(find_dangers({"launcher": launcher}, "what the cluster itself has to cancel its jobs"))
        queue: Queue = build(launcher)
        queue.check()
        seen = queue.look()
        found = [(run, place_of(run.run, queue, seen)) for run in members]
        if tickets := [place.ticket for _, place in found if place]:
            queue.cancel(tickets)
        for run, place in found:
            if not (place and place.begun):
                set_gone(run.run, "cancelled before it began" if place else "it is in the queue of the cluster no more")
            state = run.run.status()["state"]
            print(f"cancelled {run}: {place.ticket}" if place else f"no job    {run}: {state}", flush=True)
    return 0
