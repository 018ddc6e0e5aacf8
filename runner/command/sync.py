"""Sends runs that are over to trackers, which see a training that goes on after its last step."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from runner.command import CommandLine
from runner.command._option import options_in, split_options, to_record
from runner.command.sync_options import Options
from runner.config.experiment import Tracking
from runner.errors import ConfigError, EnvironmentFault, Fault, FolderError
from runner.launch import processes
from runner.launch.compose.stages import compose_runs
from runner.report.number import plural
from runner.run import locked
from runner.run.record import RunRecord, find_runs
from runner.schema.upstream.trackers import TRACKERS
from runner.training.past_run import PastRun
from runner.validate.libraries import find_missing_libraries, find_unset_variables

UNDER_WAY = ("created", "queued", "running")
KEYS = ("tracker", "allow")  # of a training, which may be typed


def main(line: CommandLine) -> int:
    """Send each run to each tracker that does not have it; 5 where a tracker did not take one."""
    split = split_options(line.overrides, options_in(Options), line.verb, KEYS)
    ConfigError.refuse(split.faults)
    options = to_record(Options, split.options)
    (composed,) = compose_runs(split.overrides, line.folders)
    tracking = composed.experiment.tracker
    ConfigError.refuse(_find_tracker_faults(tracking))
    runs = find_runs(line.runs, line.verb, None, Path(options.output_root))
    FolderError.refuse(_find_unfit(runs))
    chosen = {"tracker": tracking.node}
    missing = []
    for fault in (*find_missing_libraries(chosen), *find_unset_variables(chosen)):
        # Without a tracker there is nothing to send.
        fix, _, _ = fault.fix.partition(", or tracker")
        missing.append(replace(fault, fix=fix))
    EnvironmentFault.refuse(missing)
    return max(_sync(run, tracking) for run in runs)


def _find_tracker_faults(tracking: Tracking) -> list[Fault]:
    """A fault where no tracker is chosen, or one that only a training can tell anything."""
    takers = [name for name, tracker in TRACKERS.items() if tracker.takes_history]
    unable = [library.name for library in tracking.libraries if not library.takes_history]
    is_chosen = tracking.libraries or tracking.target
    if is_chosen and not unable:
        return []
    found = "none"
    if unable:
        found = f"{', '.join(unable)}, which gets figures only while a run trains"
    return [
        Fault(
            where="tracker",
            found=found,
            expected=f"some of {', '.join(takers)}, or one of your own",
            fix="tracker=wandb",
        )
    ]


def _find_unfit(runs: Iterable[RunRecord]) -> Iterator[Fault]:
    """A fault for each run that trains, or that has logged nothing."""
    for run in runs:
        if run.state in UNDER_WAY:
            yield Fault(
                where=str(run),
                found=run.state,
                expected="a run that is over, or was interrupted",
                fix="the command that trains it, with the tracker, when it has ended",
            )
        elif not run.lines:
            yield Fault(
                where=str(run),
                found="no figures",
                expected="a run that has logged a step",
                fix="python -m runner report  (lists the runs)",
            )


def _sync(run: RunRecord, tracking: Tracking) -> int:
    """Send a run to those of the trackers that lack some of it; the exit code.

    The lock keeps the run from being continued meanwhile, which would log steps, too.
    """
    past = PastRun(run, tracking)
    with locked(run.run):
        lacking = past.find_lacking()
        if lacking:
            past.prepare()
            # In a process of its own, because some trackers read where to write only once.
            pid = processes.fork(lambda: past.send(lacking))
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code:
                return code
            steps = plural(len(run.lines), "logged step")
            print(f"sent      {run} to {', '.join(lacking)}: {steps}", flush=True)
    there = [name for name in past.names if name not in lacking]
    if there:
        print(f"there     {run} is in {', '.join(there)} already", flush=True)
    return 0
