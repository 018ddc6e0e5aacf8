"""Plays a run through in small before it takes days, and forecasts what the real one will need."""

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner.command import CommandLine, options_of, split_options
from runner.config import Composed
from runner.config.override import latest
from runner.errors import ConfigError, Fault, Interrupted
from runner.io.terminal import quiet
from runner.launch.compose import stages, sweep_axes
from runner.launch.compose.grid import compose_jobs
from runner.launch.processes import prepare_environment
from runner.launch.signals import Stop
from runner.run import Run
from runner.run.seal import sealed_checkpoints
from runner.validate.hub_names import settle_hub
from runner.validate.start import check_parts


def main(line: CommandLine) -> int:
    """Play through what the command line means, tell what the real thing will need, and return the exit code."""
    target, overrides, faults = split_options(line.overrides, options_of("rehearse"), "rehearse")
    faults += (
        [
            Fault(
                where="command line",
                found=f"{' '.join(line.runs)}",
                expected="overrides as for a training",
                fix="python -m runner rehearse trainer=dpo",
            )
        ]
        if line.runs
        else []
    )
    ConfigError.refuse(faults)
    jobs = jobs_of(overrides, line.folders, line.multirun)
    check_parts(jobs)
    settle_hub([composed.cfg for runs in jobs for composed in runs])
    prepare_environment()
    from runner.estimate.smoke import group_by_structure, play, print_forecasts

    cases = group_by_structure(jobs)
    if len(jobs) > 1:
        heading = f"rehearsal {len(jobs)} jobs, {len(cases)} of them to play"
        print(f"{heading}: the others differ in numbers only", flush=True)
    folder, code = Path(tempfile.mkdtemp(prefix="rehearsal-")), 0
    try:
        with quiet():
            code = play(cases, folder, line.debug)
            print_forecasts([] if code else cases, target, folder / "measured")
        causes = [
            str(cause) for case in cases if case.code and (cause := case.run.status().get("cause"))
        ]
        print("\n".join(causes), end="\n" if causes else "", file=sys.stderr)
    finally:
        if code:
            print(f"kept      {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def jobs_of(
    overrides: Sequence[str], folders: Sequence[Path], multirun: bool
) -> list[list[Composed]]:
    """The runs of each job; of a search only the first, because it chooses the others by what comes out."""
    if not multirun and sweep_axes.chosen_sweep(overrides) is None:
        return [stages.compose_runs(overrides, folders)]
    axes, plugin = sweep_axes.read_sweep(overrides, folders)
    whole = latest([*axes, *latest(overrides)])
    untyped = sweep_axes.untyped_keys(axes, overrides)
    if plugin:
        return [stages.compose_runs(sweep_axes.first_of(whole), folders, untyped)]
    return compose_jobs(whole, folders, untyped)


def rehearse(run: Run, stop: Stop) -> None:
    """Play the next part of a smoke run, by how far its files say that it came; what the worker calls."""
    from runner.command.train import train
    from runner.estimate.smoke import export_model, inspect_rows, read_lengths

    if not read_lengths(run):
        inspect_rows(run)
        run.set_status("interrupted", cause=None)
        return
    if not (is_resumed := bool(sealed_checkpoints(run.checkpoints))):
        stop = Stop(signal.SIGTERM)  # as soon as it can save a step
    try:
        train(run, stop)
        export_model(run)
    except Interrupted:
        if is_resumed:
            raise
        run.set_status("interrupted", cause=None)
