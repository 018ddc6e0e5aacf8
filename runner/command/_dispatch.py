"""The words of a command -> the verb that they name, which does its work."""

import sys
from collections.abc import Sequence
from importlib import import_module

from runner.command import WORKING, CommandLine
from runner.command._inspect import inspect
from runner.command._versions import check_versions
from runner.command._words import read_command_line
from runner.errors import EnvironmentFault
from runner.io.terminal import copied_output
from runner.launch.compose import stages, sweep_axes


def do_command(words: Sequence[str]) -> int:
    """Do what the words of a command say and return the exit code."""
    line = read_command_line(words)
    for note in line.notes:
        print(note, file=sys.stderr)
    if line.inspect:
        return inspect(line)
    if line.verb != "train":
        return _call_verb(line)
    # A command that only shows does without these.
    from runner.launch import signals

    if line.multirun or sweep_axes.chosen_sweep(line.overrides) is not None:
        from runner.launch.start_runs import start_sweep

        report = import_module("runner.command.report").report
        return start_sweep(
            line.overrides, line.folders, report, dry_run=line.dry_run, debug=line.debug
        )
    # Nothing has to be saved before the worker begins.
    with signals.handle_signals(signals.Stop()), copied_output():
        runs = stages.compose_runs(line.overrides, line.folders)
        from runner.launch.start_runs import start_runs

        return start_runs(runs, dry_run=line.dry_run, debug=line.debug)


def _call_verb(line: CommandLine) -> int:
    """Have another verb than train do its work."""
    from runner.config.environment_variables import find_variable_faults
    from runner.launch import processes

    processes.prepare_environment()
    if line.verb in WORKING:
        EnvironmentFault.refuse(find_variable_faults())
        line = check_versions(line)
    code: int = import_module(f"runner.command.{line.verb}").main(line)
    return code
