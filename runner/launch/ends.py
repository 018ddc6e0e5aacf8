"""The end of a command that has trained runs: reports, a count, and a check of the objective."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner.errors import ConfigError
from runner.io.files import display_path
from runner.io.terminal import print_visible
from runner.report.ranking import choose_objective
from runner.run.record import RunRecord

# Turns the folder that holds the runs of a sweep into the text that ends it.
Report = Callable[[Path], str]


def print_end(folders: Sequence[Path], finished: int, report: Report, runs: str = "runs") -> None:
    """Print a report of each group of these runs, and how many of them have finished."""
    groups = []
    for group in dict.fromkeys(folder.parent for folder in folders):
        if group.is_dir():
            groups.append(group)
            print_visible(report(group))
    print(f"{finished} of {len(folders)} {runs} finished")
    if finished != len(folders):
        return
    from runner.report.index import read_group

    wanted = {folder.absolute() for folder in folders}
    records = []
    for group in groups:
        for run in read_group(group):
            if run.folder.absolute() in wanted:
                records.append(run)
    check_ranking_score(records)


def check_ranking_score(records: Sequence[RunRecord]) -> None:
    """Raise ConfigError where finished runs lack the score that they are to be ranked by.

    Only their logs tell: nobody knows before what a trainer, a reward or a callback will log.
    """
    runs = [run for run in records if run.state == "finished"]
    names = [run.experiment.objective for run in runs if run.experiment.objective]
    if not names:
        return
    try:
        choose_objective(runs, names[0])
    except ConfigError as error:
        (missing,) = error.faults
        group = display_path(runs[0].folder.parent)
        fix = f"python -m runner report {group} {missing.fix}"
        raise ConfigError(replace(missing, fix=fix)) from error
