"""Plays a run through in small before it takes days, and forecasts what the real one will need."""

import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from runner.command import CommandLine
from runner.command._jobs import compose_command
from runner.command._option import options_in, split_options, to_record
from runner.command.rehearse_options import Options
from runner.errors import ConfigError, Fault, Interrupted
from runner.io.terminal import quiet
from runner.launch.processes import prepare_environment
from runner.launch.signals import Stop
from runner.run import Run
from runner.run.seal import sealed_checkpoints
from runner.validate.hub_names import settle_hub
from runner.validate.start import check_parts


def main(line: CommandLine) -> int:
    """Play through what the command line means, and forecast what the real thing will need."""
    split = split_options(line.overrides, options_in(Options), "rehearse")
    faults = list(split.faults)
    if line.runs:
        faults.append(
            Fault(
                where="command line",
                found=" ".join(line.runs),
                expected="overrides as for a training",
                fix="python -m runner rehearse trainer=dpo",
            )
        )
    ConfigError.refuse(faults)
    jobs = compose_command(split.overrides, line.folders, line.multirun)
    check_parts(jobs)
    settle_hub([composed.cfg for runs in jobs for composed in runs])
    prepare_environment()
    from runner.estimate.smoke import group_by_structure, play, print_forecasts

    cases = group_by_structure(jobs)
    if len(jobs) > 1:
        heading = f"rehearsal {len(jobs)} jobs, {len(cases)} of them to play"
        print(f"{heading}: the others differ in numbers only", flush=True)
    options = to_record(Options, split.options)
    device = {name: value for name, value in asdict(options).items() if value is not None}
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    code = 0
    try:
        with quiet():
            code = play(cases, folder, line.debug)
            print_forecasts([] if code else cases, device, folder / "measured")
        for case in cases:
            cause = case.run.status().get("cause") if case.code else None
            if cause:
                print(cause, file=sys.stderr)
    finally:
        if code:
            print(f"kept      {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def rehearse(run: Run, stop: Stop) -> None:
    """Play the next part of a smoke run, by how far its files say that it came.

    The worker calls it, once for each part.
    """
    from runner.command.train import train
    from runner.estimate.smoke import export_model, inspect_rows, read_lengths

    if not read_lengths(run):
        inspect_rows(run)
        run.set_status("interrupted", cause=None)
        return
    is_resumed = bool(sealed_checkpoints(run.checkpoints))
    if not is_resumed:
        # It stops as soon as it can save a step.
        stop = Stop(signal.SIGTERM)
    try:
        train(run, stop)
        export_model(run)
    except Interrupted:
        if is_resumed:
            raise
        run.set_status("interrupted", cause=None)
