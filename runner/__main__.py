"""The entry point: which verb, which words, and the exit code. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

import gc
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from runner.command import CommandLine
from runner.command._words import read_command_line
from runner.command.options import help_text, version_text
from runner.config.batch import MADE
from runner.config.composition import as_yaml, call_hydra
from runner.config.override import latest, parse
from runner.config.user_folder import add_working_folder
from runner.errors import (
    EnvironmentFault,
    Fault,
    RunnerError,
    describe,
    find_process_limit,
    hand_on,
    take_error_file,
)
from runner.io.secrets import hidden
from runner.io.terminal import copied_output, print_error, print_uncaught
from runner.launch.compose import stages, sweep_axes
from runner.run.key import folder_of
from runner.schema.text import select

# The name of a file before it is whole.
TEMPORARY = re.compile(r"""(?:^|(?<=[/'"]))\.([^/'"]+)\.[0-9a-f]{16}(?=$|['"])""")
# Verbs that begin a training or load a model.
WORKING = ("predict", "evaluate", "export", "rehearse", "preview", "reproduce")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    take_error_file(words)
    sys.excepthook = print_uncaught
    try:
        add_working_folder()
        line = read_command_line(words)
        if line.inspect:
            return _inspect(line)
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
        return _print_end(error, words)
    finally:
        _flush_output()


def _call_verb(line: CommandLine) -> int:
    """Have another verb than train do its work."""
    from runner.config.environment_variables import find_variable_faults
    from runner.launch import processes

    processes.prepare_environment()
    if line.verb in WORKING:
        EnvironmentFault.refuse(find_variable_faults())
    code: int = import_module(f"runner.command.{line.verb}").main(line)
    return code


def _inspect(line: CommandLine) -> int:
    """Print the help, the version, or the configuration as Hydra does it, of stages that of each.

    The keys are checked before.
    """
    if "--help" in line.inspect:
        print(help_text(line.verb, line.folders))
        return 0
    if "--version" in line.inspect:
        print(version_text())
        return 0
    parse(line.overrides)  # Hydra would raise errors of its own
    shows_config = any(flag.startswith("--cfg=") for flag in line.inspect)
    try:
        if not shows_config or line.multirun:
            call_hydra(lambda cfg: None, line.inspect, line.overrides, line.folders)
            return 0
        for composed in stages.compose_runs(line.overrides, line.folders):
            if composed.stage:
                folder = folder_of(composed.cfg, composed.overrides)
                print(f"# stage {composed.stage}: {folder}", flush=True)
            words = [f"name={composed.cfg['name']!r}", *(composed.words or line.overrides)]
            if composed.note:  # Hydra would take the values of the model's option
                words.append("model=hub")
            if composed.cfg.get("batch"):
                words.extend(f"{key}={select(composed.cfg, key)}" for key in MADE)
            if line.inspect == ["--cfg=job"]:  # without composing it once more
                print(as_yaml(latest(words), line.folders), end="")
            else:
                call_hydra(lambda cfg: None, line.inspect, latest(words), line.folders)
    except SystemExit as ended:  # Hydra leaves so after its help
        return int(ended.code or 0)
    return 0


# --- How it ends ----------------------------------------------------------------------------------
def _print_end(error: Exception, words: Sequence[str]) -> int:
    """Print the error that has ended a command, and return its exit code.

    An exception that is no fault of the user's is raised again; with ``--debug``, each that is not
    one of ours.
    """
    if isinstance(error, BrokenPipeError):  # whoever reads the output has seen enough
        return 0
    is_debugged = "--debug" in words
    if not isinstance(error, RunnerError):
        fault = None
        if isinstance(error, OSError):
            fault = _find_typed_fault(words, error) or _file_fault(error)
        elif isinstance(error, MemoryError | RuntimeError | ImportError):
            fault = find_process_limit(error)
        if fault is None or is_debugged:
            raise error
        error = EnvironmentFault(fault)
    hand_on(error)
    print_error(hidden(traceback.format_exc()) if is_debugged else error)
    return error.code


def _find_typed_fault(words: Sequence[str], error: OSError) -> Fault | None:
    """The fault of a word that names the file of an error, or what is around or beside it."""
    if not isinstance(error.filename, str | bytes):
        return None
    file_name = os.fsdecode(error.filename)
    file = Path(file_name).absolute()
    for word in words:
        key, _, value = word.partition("=")
        place = Path(value).absolute()
        # As a temporary file is, or a lock.
        is_beside = place.parent == file.parent and place.stem in file.name
        is_around = place == file or place in file.parents or file in place.parents
        if value and (is_beside or is_around):
            blocked = file_name if os.path.lexists(file_name) else value
            return Fault(
                where=key,
                found=f"{blocked}: {error.strerror or describe(error)}",
                expected="a place that can be written, or read",
                fix="=<another place>",
            )
    return None


def _file_fault(error: OSError) -> Fault:
    """The fault of a file that cannot be read or written."""
    where = TEMPORARY.sub(r"\1", str(error.filename2 or error.filename or "system"))
    fix = "the same words with --debug"
    if error.filename:
        paths = [Path(where), *Path(where).parents]
        existing = next(filter(os.path.lexists, paths), where)
        fix = f"ls -ld {shlex.quote(str(existing))}  (shows what is there)"
    return Fault(
        where=where,
        found=TEMPORARY.sub(r"\1", describe(error)),
        expected="what can be read, or written there",
        fix=fix,
    )


def _flush_output() -> None:
    """Write what is buffered, so that Python does not complain of a broken pipe as it ends."""
    # A shell, or the user's own code, may have closed it.
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    code = main()
    # Python would look through everything for garbage before it ends, which takes a fifth of a
    # short command's time.
    gc.freeze()
    sys.exit(code)
