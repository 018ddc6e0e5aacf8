"""Trains a finished run again and compares the two."""

from pathlib import Path

from runner.command import CommandLine
from runner.command._circumstances import compare_data, obstacles
from runner.command._option import read_options
from runner.command._verdict import judge_reproduction
from runner.command.reproduce_options import Options
from runner.errors import ConfigError, Fault
from runner.io.files import CALLS
from runner.io.terminal import print_visible
from runner.launch.by_launcher import launch
from runner.report.facts import split_command, words_of
from runner.run import COMPUTED, open_run, write_manifest
from runner.run.adjustments import read_adjustments
from runner.run.record import RunRecord, check_finished, check_whole, find_runs, read_run
from runner.validate.configuration import find_dangers, find_frozen_faults
from runner.validate.values_at_keys import MAX_NAME_LETTERS, is_folder_name


def main(line: CommandLine) -> int:
    """Train the run that the command line names again, and compare.

    Returns the exit code of the training if that failed.
    """
    options = read_options(line, Options)
    (run,) = find_runs(line.runs, "reproduce", 1, Path(options.output_root))
    check_finished(run, "reproduce")
    _check_options(options, run)
    check_whole(run)
    ConfigError.refuse(find_frozen_faults(run.cfg, f"{run}/config.yaml"))
    unmatched = list(obstacles(run))
    for text in unmatched:
        print_visible(f"not alike {text}")
    group = run.folder.parent
    cfg = dict(run.cfg)
    cfg["name"] = options.name or f"{group.name}-again"
    cfg["output_root"] = str(group.parent)
    compare_data(run, cfg)
    overrides, _ = split_command(words_of(run) or [])
    again = open_run(cfg, overrides, ["reproduce", str(run)])
    if again.folder.resolve() == run.folder.resolve():
        raise ConfigError(
            Fault(
                where="name",
                found=cfg["name"],
                expected="another name than that of the run",
                fix="leave name out",
            )
        )
    if again.status()["state"] == "finished":
        print(f"finished  {again} already; it is compared as it is")
    else:
        print(f"run       {again}", flush=True)
        replays = None if options.live else _calls_to_play(run)
        # The log-probabilities of the reference may not be kept here, or no longer.
        write_manifest(
            again,
            reference=run.manifest.get("reference"),
            padding=run.manifest.get("padding", COMPUTED),
            replays=replays,
        )
        code = launch(again, line.debug)
        if code:
            return code
    verdict = judge_reproduction(run, read_run(again.folder), unmatched, options.tolerance)
    print_visible(verdict)
    return 0


def _calls_to_play(run: RunRecord) -> str | None:
    """The folder whose calls of tools and environments are played back, if it has all of them.

    A run that went back to an earlier step has those of its last try alone.
    """
    if not (run.folder / CALLS).exists() or read_adjustments(run.folder):
        return None
    print(f"plays     the calls of {run} back, live=true calls anew")
    return str(run.folder.resolve())


def _check_options(options: Options, run: RunRecord) -> None:
    """Raise ConfigError for a name that is no folder, and where the run is not to be trusted."""
    faults = []
    if options.name is not None and not is_folder_name(options.name):
        expected = f"a plain folder name, up to {MAX_NAME_LETTERS} characters"
        faults.append(
            Fault(
                where="name",
                found=options.name,
                expected=expected,
                fix="name=<word>",
            )
        )
    if not options.trust:
        words = f"python -m runner reproduce {run} trust=true"
        faults += find_dangers(run.cfg, f"{words}  (if you trust who wrote its config.yaml)")
    ConfigError.refuse(faults)
