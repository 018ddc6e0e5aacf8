"""The words of a command -> the verb that they name, which does its work."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from runner.command import WORKING, CommandLine
from runner.command._words import read_command_line
from runner.errors import EnvironmentFault
from runner.io.temporary import kept_uncollected
from runner.launch.compose import sweep_axes


def read_line(words: Sequence[str]) -> CommandLine:
    """The words of a command as they were meant, with a note on each that was corrected."""
    line = read_command_line(words)
    for note in line.notes:
        print(note, file=sys.stderr)
    return line


def is_one_training(line: CommandLine) -> bool:
    """True for a command that trains, and not in a sweep."""
    if line.inspect or line.verb != "train":
        return False
    return not line.multirun and sweep_axes.chosen_sweep(line.overrides) is None


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Take signals and keep what is printed, while runs are composed and trained."""
    # A command that only shows does without these.
    from runner.io.terminal import copied_output
    from runner.launch import signals

    with signals.handle_signals(signals.Stop()), copied_output():
        yield


def do_other(line: CommandLine) -> int:
    """Do what a command says that is not one training, and return the exit code."""
    if line.inspect:
        with kept_uncollected():
            from runner.command._inspect import inspect

            return inspect(line)
    if line.verb != "train":
        return _call_verb(line)
    from runner.launch.start_runs import start_sweep

    report = import_module("runner.command.report").report
    return start_sweep(line.overrides, line.folders, report, dry_run=line.dry_run, debug=line.debug)


def _call_verb(line: CommandLine) -> int:
    """Have another verb than train do its work."""
    from runner.command._versions import check_versions
    from runner.config.environment_variables import find_variable_faults
    from runner.launch import processes

    processes.prepare_environment()
    if line.verb in WORKING:
        EnvironmentFault.refuse(find_variable_faults())
        line = check_versions(line)
    code: int = import_module(f"runner.command.{line.verb}").main(line)
    return code
