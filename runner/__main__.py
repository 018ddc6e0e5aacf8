"""The door: command line -> composed -> checked -> run folder -> launcher. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from runner import config
from runner.command import VERBS
from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError, code_of
from runner.io.files import MENU
from runner.io.secrets import hidden
from runner.io.terminal import print_uncaught
from runner.launch import axis, stages
from runner.launch.plan import Plan, tasks_of
from runner.launch.plugin import Job, failed_since
from runner.launch.pool import Settings, confine, idle_devices, settings_of, train_all
from runner.launch.progress import LiveProgress, Stages
from runner.launch.worker import Stop, finished, is_finished, launch, prepare_environment
from runner.run import Run, folder_of, open_run, sealed_checkpoints
from runner.run.continuation import find_offer
from runner.run.disk import full, is_full
from runner.run.read import one_line
from runner.validate.start import check_ahead

# What a system says of a place where no folder can be made, however much room there is.
CLOSED = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


@dataclass(frozen=True)
class CommandLine:
    """The user's words, sorted: the verb, run folders, overrides, our flags, and what only Hydra understands."""

    verb: str
    overrides: list[str]
    runs: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    multirun: bool = False
    dry_run: bool = False
    debug: bool = False
    inspect: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    sys.excepthook = print_uncaught
    try:
        if not {"", here := _working_folder()} & set(sys.path):
            sys.path.insert(0, here)  # `python -m` does so too, and the user's own modules are there
        line = read_command_line(words)
        if line.verb != "train" and {"--help", "-h"} & set(line.inspect):
            print((import_module(f"runner.command.{line.verb}").__doc__ or "").strip())
            return 0
        if line.inspect:
            return inspect(line)
        if line.verb != "train":
            prepare_environment()
            return import_module(f"runner.command.{line.verb}").main(line)
        if is_sweep(line):
            return sweep(line)
        with Stop().installed():  # there is nothing to save before the worker begins
            return start_all(compose(line, line.overrides), line)
    except RunnerError as error:
        print(hidden(traceback.format_exc()) if "--debug" in words else error, file=sys.stderr)
        return error.code
    except KeyboardInterrupt:  # between two runs, where no worker listens
        return 130
    except BrokenPipeError:  # whoever read along has seen enough
        return 0
    finally:
        _leave_output()


def _leave_output() -> None:
    """Write what is still to be said; where nobody reads it any more, Python would complain when it leaves."""
    try:
        if sys.stdout is not None:  # as it is where a shell has closed it
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _working_folder() -> str:
    """The working folder; raises EnvironmentFault where it was deleted meanwhile."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        found, fix = "the folder that this shell is in was deleted", "cd <a folder that is there>"
        raise EnvironmentFault(Fault("working folder", found, "a folder", fix)) from None


def read_command_line(words: Sequence[str]) -> CommandLine:
    """Sort the words; an unknown verb or flag is a ConfigError that offers the nearest known one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", type=Path, default=[])
    try:
        known, rest = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(Fault("command line", str(error), "see python -m runner --help")) from None
    inspect, rest = _hydra_flags(rest)
    plain = [word for word in rest if "=" not in word and not word.startswith("~")]
    verb = plain.pop(0) if plain and plain[0] in VERBS else "train"
    if faults := [_unknown(word) for word in plain if verb == "train"] + _no_folder(known.config_dir):
        raise ConfigError(faults)
    overrides = [config.override.quote_text(word) for word in rest if "=" in word or word.startswith("~")]
    return CommandLine(
        verb,
        overrides,
        plain,
        known.config_dir,
        known.multirun,
        known.dry_run,
        known.debug,
        inspect,
    )


def compose(line: CommandLine, overrides: Sequence[str]) -> list[config.Composed]:
    """The runs that these overrides make, checked: one, or stages; raises ConfigError with all faults of all."""
    return stages.compose_runs(overrides, line.folders)


def compose_all(line: CommandLine) -> list[list[config.Composed]]:
    """The runs of each job of a sweep, in Hydra's order; raises ConfigError with the faults of all."""
    return stages.compose_jobs(line.overrides, line.folders)


def start_all(runs: Sequence[config.Composed], line: CommandLine) -> int:
    """Train one run here, or several stages each in a process of its own, and return the exit code.

    Stages train like the jobs of a sweep, so that each is what it would be alone.
    """
    check_ahead([runs], starts=not line.dry_run)
    if line.dry_run:
        print("\n".join(Plan(tasks_of([runs])).lines()))
        return 0
    with in_a_folder(runs[0]):
        launcher = runs[0].cfg["launcher"]
        settings = settings_of(launcher | {"jobs": 1}, runs, attached=True, debug=line.debug)
        print(idle_devices(settings, runs[0].cfg), end="")
        if not runs[0].stage and not launcher.get("timeout_seconds"):
            return start(runs[0], settings)
        _refuse_in_a_world("stages" if runs[0].stage else "launcher.timeout_seconds")
        tasks = tasks_of([runs])
        codes, signals = train_all(tasks, settings, Stages(tasks))
        return code_of(signals[0]) if signals else next((code for code in codes.values() if code), 0)


def _refuse_in_a_world(what: str) -> None:
    """Raise ConfigError where somebody else has started several of us, and each would start all of the same runs."""
    if (world := config.world_size()) > 1:
        found = f"in each of {world} processes that torchrun or its like has started"
        fix = f"python -m runner <the same words> {config.NUM_PROCESSES}={world}"
        raise ConfigError(Fault(what, found, "one process, which starts those of each run", fix))


def start(composed: config.Composed, settings: Settings) -> int:
    """Lay the run folder and launch the worker in it, unless it is finished."""
    run = open_run(composed.cfg, composed.overrides, composed.command)
    if is_finished(run):
        print(finished(run))
        return 0
    if offer := find_offer(composed.cfg, run.folder) if not sealed_checkpoints(run) else "":
        print(f"note      {offer}")
    print(f"run       {run}", flush=True)
    confine(0, settings, run.cfg)
    return launch(run, settings.debug)


@contextlib.contextmanager
def in_a_folder(composed: config.Composed) -> Iterator[None]:
    """Tell what keeps us from making run folders as a fault of the environment."""
    try:
        yield
    except OSError as error:
        where = f"{composed.cfg['output_root']}/{composed.cfg['name']}"
        if error.errno not in CLOSED and is_full(error, Path(where)):
            raise full(Run(Path(where)), error) from error
        fix = "output_root=<a folder that you may write>"
        raise EnvironmentFault(Fault(where, str(error), "a folder", fix)) from error


def is_sweep(line: CommandLine) -> bool:
    """True where several jobs are meant: by ``-m``, or by a checked-in sweep."""
    return line.multirun or axis.chosen_sweep(line.overrides) is not None


def sweep(line: CommandLine) -> int:
    """Check every job before the first one starts, say what there is to do, and do it; 0 when all finished."""
    _refuse_in_a_world("a sweep")
    axes, plugin = axis.read_sweep(line.overrides, line.folders)
    line = replace(line, overrides=config.override.latest(line.overrides))
    if plugin:
        return sweep_by_plugin(line, axes)
    line = replace(line, overrides=config.override.latest([*axes, *line.overrides]))
    jobs = compose_all(line)
    tasks = tasks_of(jobs)
    check_ahead(jobs, starts=not line.dry_run)
    plan = Plan(tasks, axis.axes(line.overrides))
    print(plan)
    if line.dry_run:
        print("\n".join(plan.lines()))
        return 0
    launcher = jobs[0][0].cfg["launcher"]
    with in_a_folder(jobs[0][0]):
        settings = settings_of(launcher, [run for runs in jobs for run in runs], debug=line.debug)
        print(idle_devices(settings, jobs[0][0].cfg), end="")
        codes, signals = train_all(tasks, settings, LiveProgress(plan, settings.jobs))
    return conclude(jobs, codes, signals)


def sweep_by_plugin(line: CommandLine, axes: Sequence[str]) -> int:
    """Let a launcher or sweeper of Hydra's own start the jobs, each of which is a run like ours."""
    from hydra import main as hydra_main

    (first, *_) = runs = compose(line, axis.first_of([*axes, *line.overrides]))
    check_ahead([runs], starts=not line.dry_run, elsewhere=True)
    if line.dry_run:
        raise ConfigError(Fault("--dry-run", "a plugin chooses the jobs, one after the other", "a sweep of ours"))
    group, began = folder_of(first.cfg, []).parent, time.time()
    try:
        _hydra(line, ["--multirun"], hydra_main, Job(line.folders, line.debug))
    except KeyboardInterrupt:
        return 130
    failed = failed_since(group, began)
    for run, cause in failed:
        print(f"failed    {run}: {one_line(cause, heading=False)}")
    return 1 if failed else 0


def conclude(jobs: Sequence[Sequence[config.Composed]], codes: Mapping[Path, int], signals: Sequence[int]) -> int:
    """Report what came out, say how many jobs finished, and return the exit code: that of the first failure."""
    ends = [folder_of(runs[-1].cfg, runs[-1].overrides) for runs in jobs]
    for group in dict.fromkeys(folder.parent for folder in ends):
        if group.is_dir():
            print(import_module("runner.command.report").report(group))
    finished = sum(codes.get(folder) == 0 for folder in ends)
    print(f"{finished} of {len(jobs)} {'staged runs' if jobs[0][0].stage else 'runs'} finished")
    return code_of(signals[0]) if signals else next((code for code in codes.values() if code), 0)


def inspect(line: CommandLine) -> int:
    """Print the configuration or the help, as Hydra does it, after the same check of the keys; of stages, each."""
    from hydra import main as hydra_main

    shows_config = any(flag in line.inspect for flag in ("--cfg", "-c"))
    runs = compose(line, line.overrides) if shows_config and not line.multirun else []
    try:
        for composed in runs if any(composed.stage for composed in runs) else [None]:
            if composed:
                print(f"# stage {composed.stage}: {folder_of(composed.cfg, composed.overrides)}", flush=True)
            _hydra(replace(line, overrides=composed.words) if composed else line, line.inspect, hydra_main, _nothing)
    except SystemExit as ended:  # how Hydra leaves after its help
        return int(ended.code or 0)
    return 0


def _nothing(cfg: Any) -> None:
    """The task where Hydra is only to print."""


def _hydra(line: CommandLine, flags: list[str], hydra_main: Any, task: Any) -> None:
    """Hand the command line to Hydra with every key already forced; Hydra reads it from ``sys.argv``."""
    config.use_folders(line.folders)
    before = sys.argv
    sys.argv = ["runner", *flags, *config.force(line.overrides, config.read_menu(line.folders))]
    try:
        hydra_main(version_base="1.3", config_path=str(MENU), config_name="config")(task)()
    finally:
        sys.argv = before


def _hydra_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """Split off the flags that only make Hydra print something."""
    valued = {"--cfg", "-c", "--package", "-p", "--info", "-i"}
    alone = {"--help", "-h", "--hydra-help", "--version", "--resolve", "--shell-completion", "-sc"}
    flags, rest = [], []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word in valued:
            flags += [word, *([queue.pop(0)] if queue else [])]
        elif word in alone:
            flags.append(word)
        else:
            rest.append(word)
    return flags, rest


def _unknown(word: str) -> Fault:
    near = difflib.get_close_matches(word, VERBS, 1)
    expected = f"a verb ({', '.join(VERBS)}), key=value, or a flag"
    return Fault("command line", f"{word!r}", expected, f"python -m runner {near[0] if near else '--help'}")


def _no_folder(folders: list[Path]) -> list[Fault]:
    missing = [folder for folder in folders if not folder.is_dir()]
    expected, fix = "a folder of config groups", "--config-dir <folder>"
    return [Fault("--config-dir", f"{folder} is not a folder", expected, fix) for folder in missing]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
