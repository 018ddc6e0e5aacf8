"""The door: command line -> composed -> checked -> run folder -> launcher. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from runner import config, stage
from runner.check import check
from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError
from runner.files import PACKAGE
from runner.run import folder_of, open_run
from runner.work import finished

STOPPED = (130, 138, 143)  # a run of a sweep that a signal stopped; the user wants the others stopped too
VERBS = sorted(path.stem for path in (PACKAGE / "command").glob("[a-z]*.py"))


@dataclass(frozen=True)
class CommandLine:
    """What the user typed, sorted: the verb, run folders, overrides, our flags, and what only Hydra understands."""

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
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())  # `python -m` does so too, and the user's own modules are there
    try:
        line = read_command_line(words)
        if line.inspect:
            return inspect(line)
        if line.verb != "train":
            return import_module(f"runner.command.{line.verb}").main(line)
        return sweep(line) if line.multirun else start_all(compose(line, line.overrides), line)
    except RunnerError as error:
        print(traceback.format_exc() if "--debug" in words else error, file=sys.stderr)
        return error.code
    except KeyboardInterrupt:  # between two runs, where no worker listens
        return 130


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
    overrides = [config.quote_slice(word) for word in rest if "=" in word or word.startswith("~")]
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
    """What these overrides make, checked: one run, or the stages of one; raises ConfigError with all faults of all."""
    return stage.compose(overrides, line.folders, lambda composed: faults_of(composed, line))


def compose_all(line: CommandLine) -> list[list[config.Composed]]:
    """What each job of a sweep makes, in Hydra's order; raises ConfigError with the faults of all."""
    jobs, faults = [], []
    for overrides in config.combinations(line.overrides):
        try:
            jobs.append(compose(line, overrides))
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(dict.fromkeys(faults))
    return jobs


def faults_of(composed: config.Composed, line: CommandLine) -> list[Fault]:
    """What is wrong with a configuration: key by key, and then part against part."""
    allow = tuple(composed.cfg.get("allow") or ()) if "allow" in composed.typed else ()
    menu = config.read_menu(line.folders)
    faults = check(composed.cfg, menu=menu, allow=allow, typed=composed.typed)
    return faults or import_module("runner.command.train").mismatches(composed.cfg, menu)


def start_all(
    runs: Sequence[config.Composed], line: CommandLine, isolated: bool = False, failed: dict[Path, int] | None = None
) -> int:
    """Start each of them when the one before has finished, and return the exit code of the first that has not.

    Stages train in a process of their own each, like the runs of a sweep, so that each is what it would be alone.
    ``failed`` keeps a stage that many jobs of a sweep share from failing in each of them.
    """
    failed = {} if failed is None else failed
    for number, composed in enumerate(runs, 1):
        folder = folder_of(composed.cfg, composed.overrides)
        if composed.stage and not line.dry_run:
            print(f"stage     {composed.stage}, {number} of {len(runs)}", flush=True)
        if folder in failed:
            print(f"failed    {folder} already in this sweep; not started again")
        elif code := start(composed, line, isolated or bool(composed.stage)):
            failed[folder] = code
        if folder in failed:
            return failed[folder]
    return 0


def start(composed: config.Composed, line: CommandLine, isolated: bool = False) -> int:
    """Lay the run folder and launch the worker in it, unless it is finished or this is a dry run."""
    if line.dry_run:
        print(plan(composed))
        return 0
    try:
        run = open_run(composed.cfg, composed.overrides)
    except OSError as error:
        where = f"{composed.cfg['output_root']}/{composed.cfg['name']}"
        cure = "output_root=<a folder that you may write>"
        raise EnvironmentFault(Fault(where, str(error), "a folder", cure)) from error
    if run.status()["state"] == "finished":
        print(finished(run))
        return 0
    print(f"run       {run}", flush=True)
    return config.serve(composed.cfg["launcher"], folder=run.folder, isolated=isolated, debug=line.debug)


def plan(composed: config.Composed) -> str:
    """The folder that a configuration would train in, and what is in it today."""
    folder = folder_of(composed.cfg, composed.overrides)
    if not folder.exists():
        return f"new       {folder}"
    run = open_run(composed.cfg, composed.overrides)
    return f"{run.status()['state']:<9} {run}"


def sweep(line: CommandLine) -> int:
    """Check every job before the first one starts, then let Hydra's sweeper start them; 0 when all finished."""
    from hydra import main as hydra_main
    from hydra.core.hydra_config import HydraConfig

    line = replace(line, overrides=config.latest(line.overrides))
    jobs = compose_all(line)
    if line.dry_run:
        print("\n".join(dict.fromkeys(plan(composed) for job in jobs for composed in job)))
        return 0
    codes: list[int] = []
    failed: dict[Path, int] = {}

    def job(cfg: Any) -> None:
        # What was checked is what starts, even if a newer run than ``${run:...}`` found has finished meanwhile.
        runs = jobs[HydraConfig.get().job.num]
        try:
            codes.append(start_all(runs, line, isolated=True, failed=failed))
        except RunnerError as error:
            print(error, file=sys.stderr)
            codes.append(error.code)
        if codes[-1] in STOPPED:
            raise KeyboardInterrupt

    try:
        _hydra(line, ["--multirun"], hydra_main, job)
    except KeyboardInterrupt:
        codes.append(130)
    what = "staged runs" if any(runs[0].stage for runs in jobs) else "runs"
    print(f"{codes.count(0)} of {len(jobs)} {what} finished")
    return next((code for code in codes if code), 0)


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
        hydra_main(version_base="1.3", config_path=str(config.MENU), config_name="config")(task)()
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
    return [Fault("--config-dir", f"{folder} is not a folder", "a folder of config groups") for folder in missing]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
