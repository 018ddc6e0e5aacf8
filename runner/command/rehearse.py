"""Plays a run through in small before it takes days, and forecasts what the real one will need."""

import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from runner.command import CommandLine
from runner.command._jobs import compose_command
from runner.command._option import options_in, split_options, to_record
from runner.command.rehearse_options import Options
from runner.errors import ConfigError, Fault
from runner.launch.processes import prepare_environment
from runner.launch.signals import Stop
from runner.run import Run
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
    from runner.estimate.case import group_by_structure
    from runner.estimate.needs import print_forecasts
    from runner.estimate.smoke import play

    cases = group_by_structure(jobs)
    if len(jobs) > 1:
        heading = f"rehearsal {len(jobs)} jobs, {len(cases)} of them to play"
        print(f"{heading}: the others differ in numbers only", flush=True)
    options = to_record(Options, split.options)
    device = {name: value for name, value in asdict(options).items() if value is not None}
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    code = 0
    try:
        code = play(cases, folder, line.debug)
        if not code:
            print_forecasts(cases, device, folder / "measured")
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
    from runner.estimate.smoke_parts import play_next_part

    play_next_part(run, stop, train)
