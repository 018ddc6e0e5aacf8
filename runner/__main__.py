"""The entry point: which verb, which words, and the exit code. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from runner.command import WORKING, CommandLine
from runner.command._ending import print_end
from runner.command._inspect import inspect
from runner.command._versions import blame_versions, check_versions
from runner.command._words import read_command_line
from runner.config.user_folder import add_working_folder
from runner.errors import EnvironmentFault, take_error_file
from runner.io.terminal import copied_output, discard, print_uncaught
from runner.launch.compose import stages, sweep_axes


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    take_error_file(words)
    sys.excepthook = print_uncaught
    try:
        add_working_folder()
        if words[:1] == ["--shell-completion"]:
            from runner.command._completion import answer_shell

            return answer_shell(words[1:])
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
    except KeyboardInterrupt:  # between two runs, where no worker listens
        return 130
    except Exception as error:
        return print_end(blame_versions(error, words), words)
    finally:
        _flush_output()


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


def _flush_output() -> None:
    """Write what is buffered, so that Python does not complain of a broken pipe as it ends."""
    # A shell, or the user's own code, may have closed it.
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout.fileno())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    code = main()
    # Python would look through everything for garbage before it ends, which takes a fifth of a
    # short command's time. But what vLLM has frozen, triton's bindings would report as leaked.
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()
    sys.exit(code)
