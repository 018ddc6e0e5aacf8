"""The runs of a folder as Python code sees them: a list, with a table of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.command._trained_run import TrainedRun, read_trained
from runner.errors import Fault, FolderError
from runner.io.files import shipped
from runner.report.index import read_runs
from runner.report.selection import summarise
from runner.report.table import table_columns
from runner.run.find import find_folders, is_run

if TYPE_CHECKING:
    from pandas import DataFrame


class TrainedRuns(list[TrainedRun]):
    """Some runs, with a table of them."""

    def table(self) -> DataFrame:
        """A row for each run as it is now, the best first, with the columns of ``summary.csv``.

        These are its name and state, the keys in which the runs differ, and their scores.
        """
        import pandas

        if not self:
            return pandas.DataFrame()
        summary = summarise(read_runs([run.folder for run in self]))
        return pandas.DataFrame(table_columns(summary))

    def _repr_html_(self) -> str:
        return str(self.table().to_html(index=False, border=0, na_rep=""))


def runs(folder: str | Path = "outputs") -> TrainedRuns:
    """The runs of a folder, whatever their state, the newest last.

    The folder is ``outputs/<name>``, or that of every name; ``table()`` of the list is a DataFrame.
    Raises FolderError where there is none.
    """
    place = Path(shipped(str(folder))).absolute()
    if not place.is_dir():
        place = Path("outputs", folder).absolute()
    if not place.is_dir():
        raise FolderError(
            Fault(
                where=str(folder),
                found="no such folder",
                expected="a folder of runs",
                fix="python -m runner report",
            )
        )
    folders = [place] if is_run(place) else find_folders(place)
    if not folders:
        for group in place.iterdir():
            if group.is_dir():
                folders += find_folders(group)
    return TrainedRuns(sorted(map(read_trained, folders), key=_start_of))


def _start_of(run: TrainedRun) -> tuple[str, str]:
    return str(run.status.get("started")), str(run.status.get("updated"))
