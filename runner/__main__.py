"""The entry point: which verb, which words, and the exit code. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

import argparse
import gc
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from runner.command import VERBS, CommandLine
from runner.command._words import find_flag_faults, find_sweep_faults, find_word_faults, take_flags
from runner.command.options import help_text, version_text
from runner.config import as_yaml, call_hydra
from runner.config.batch import MADE
from runner.config.menu import read_menu
from runner.config.override import expand, latest, parse
from runner.config.user_folder import add_working_folder
from runner.errors import ConfigError, EnvironmentFault, RunnerError, describe, fault
from runner.io.secrets import hidden
from runner.io.terminal import copied_output, print_error, print_uncaught
from runner.launch import axis, stages
from runner.run.key import folder_of
from runner.schema.text import select

# Flags with which Hydra only prints something; others of that kind take a value.
PRINTING = (("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--shell-completion", "-sc"))


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    sys.excepthook = print_uncaught
    try:
        add_working_folder()
        line = read_command_line(words)
        if "--help" in line.inspect:
            print(help_text(line.verb, line.folders))
            return 0
        if "--version" in line.inspect:
            print(version_text())
            return 0
        if line.inspect:
            return _inspect(line)
        from runner.launch import worker  # of which, as of what follows, a command that only shows does without

        if line.verb != "train":
            from runner.validate.start import find_variable_faults

            worker.prepare_environment()
            if line.verb in ("predict", "evaluate", "export", "rehearse", "preview", "reproduce"):
                EnvironmentFault.refuse(find_variable_faults())
            return import_module(f"runner.command.{line.verb}").main(line)
        how = {"dry_run": line.dry_run, "debug": line.debug}
        if line.multirun or axis.chosen_sweep(line.overrides) is not None:
            from runner.launch.start import start_sweep

            report = import_module("runner.command.report").report
            return start_sweep(line.overrides, line.folders, report, **how)
        with worker.handle_signals(worker.Stop()), copied_output():  # nothing is to be saved before the worker begins
            runs = stages.compose_runs(line.overrides, line.folders)
            from runner.launch.start import start_runs

            return start_runs(runs, **how)
    except RunnerError as error:
        print_error(hidden(traceback.format_exc()) if "--debug" in words else error)
        return error.code
    except BrokenPipeError:  # whoever read along has seen enough
        return 0
    except OSError as error:
        if "--debug" in words:
            raise
        where = str(error.filename or "system")
        fix = f"ls -ld {shlex.quote(where)}  (shows what is there)" if error.filename else "the same words with --debug"
        print_error(EnvironmentFault(fault("command.system", where=where, error=describe(error), fix=fix)))
        return EnvironmentFault.code
    except KeyboardInterrupt:  # between two runs, where no worker listens
        return 130
    finally:
        try:
            if sys.stdout is not None and not sys.stdout.closed:  # by a shell, or by code of the user's
                sys.stdout.flush()
        except BrokenPipeError:  # of which Python would complain when it leaves
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def read_command_line(words: Sequence[str]) -> CommandLine:
    """Sort the words; an unknown verb or flag is a ConfigError that offers the nearest known one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", type=Path, default=[], dest="folders")
    for names in PRINTING:
        parser.add_argument(*names, action="append_const", const=names[0], default=[], dest="inspect")
    shown = [f"--cfg={each}" for each in ("job", "hydra", "all")]
    parser.add_argument("--cfg", "-c", action="append", type="--cfg={}".format, dest="inspect", choices=shown)
    parser.add_argument("--package", "-p", action="append", type="--package={}".format, dest="inspect")
    kinds = [f"--info={each}" for each in ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")]
    info = parser.add_argument("--info", "-i", nargs="?", const="all", action="append", dest="inspect", choices=kinds)
    info.type = "--info={}".format
    try:
        known, rest = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(fault("command.odd_flag", error=error)) from None
    menu, (rest, flags) = read_menu(known.folders), take_flags(rest)
    overrides = [word for word in rest if "=" in word or word.startswith("~")]
    plain = [word for word in rest if "=" not in word and not word.startswith("~")]
    verb = plain.pop(0) if plain and plain[0] in VERBS else "train"
    line = CommandLine(verb, expand(overrides, menu), plain, **vars(known))
    faults = list(find_word_faults(line, rest, menu)) or list(find_sweep_faults(line))
    for folder in known.folders:
        if not folder.is_dir():
            faults.append(fault("command.no_config_folder", folder=folder))
    ConfigError.refuse(faults + list(find_flag_faults(line, flags, menu) if flags else ()))
    return line


def _inspect(line: CommandLine) -> int:
    """Print the configuration or the help, as Hydra does it, after the same check of the keys; of stages, each."""
    parse(line.overrides)  # of which Hydra would raise
    shows_config = any(flag.startswith("--cfg=") for flag in line.inspect)
    runs = stages.compose_runs(line.overrides, line.folders) if shows_config and not line.multirun else []
    try:
        for composed in runs:
            if composed.stage:
                print(f"# stage {composed.stage}: {folder_of(composed.cfg, composed.overrides)}", flush=True)
            # Hydra alone would leave the name open.
            more = ["model=hub"] if composed.note else []
            more += [f"{name}={select(composed.cfg, name)}" for name in MADE if composed.cfg.get("batch")]
            words = latest([f"name={composed.cfg['name']!r}", *(composed.words or line.overrides), *more])
            if line.inspect == ["--cfg=job"]:  # without composing it once more
                print(as_yaml(words, line.folders), end="")
            else:
                call_hydra(lambda cfg: None, line.inspect, words, line.folders)
        if not runs:
            call_hydra(lambda cfg: None, line.inspect, line.overrides, line.folders)
    except SystemExit as ended:  # how Hydra leaves after its help
        return int(ended.code or 0)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    code = main()
    gc.freeze()  # Python would look through all of it for garbage before it ends: a fifth of a short command's time
    sys.exit(code)
