"""The place of a run folder while a process works in it, so that one moved away stays whole.

The trainer and its libraries make the folders that they write to, with all around them. What they
have made where the run was before is removed at its end, so that the run can be put back.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# the first and the last file of a run that another command makes there
RUN_BEGINS = ("status.json", "config.yaml")
FolderNumber = tuple[int, int]  # the numbers of a disk and of a folder on it


@dataclass(frozen=True)
class RunPlace:
    """A folder that is held open, and the numbers of those around it."""

    folder: Path
    descriptor: int
    around: Mapping[Path, FolderNumber]

    def is_there(self) -> bool:
        """True where the folder still lies at its path."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.folder))
        return False

    def remove_remainder(self) -> None:
        """Delete what was made at the path since the folder is gone, unless it is another run."""
        is_another_run = any(os.path.lexists(self.folder / name) for name in RUN_BEGINS)
        if self.is_there() or is_another_run:
            return
        if self.folder.is_dir() and not self.folder.is_symlink():
            shutil.rmtree(self.folder, ignore_errors=True)
        for path, number in self.around.items():
            with contextlib.suppress(OSError):  # it is not there, or not empty
                if _number_of(path) != number:
                    path.rmdir()


@contextlib.contextmanager
def hold_place(folder: Path) -> Iterator[RunPlace]:
    """The place of a folder that is there, to be watched inside."""
    folder = folder.absolute()
    around = {path: _number_of(path) for path in folder.parents}
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield RunPlace(folder, descriptor, around)
    finally:
        os.close(descriptor)


def _number_of(path: Path) -> FolderNumber:
    status = os.stat(path)
    return status.st_dev, status.st_ino
