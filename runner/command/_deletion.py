"""Deletions: of a run, or of a part of it, which a kill leaves whole or undone."""

import contextlib
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import Fault, FolderError
from runner.io.files import ASIDE, LEFT_BY_WRITES, delete_whole, display_path, read_json, set_aside
from runner.io.terminal import print_visible
from runner.report.index import INDEX, read_group
from runner.report.selection import choose_runs
from runner.report.sweep_page import SWEEP_FILES
from runner.run import FILES, FOLDERS, find_foreign_faults, is_shaped, locked
from runner.run.disk import sized
from runner.run.find import is_run
from runner.run.record import RunRecord, read_run
from runner.run.seal import check_sealed, damage_of, sealed_checkpoints
from runner.schema.upstream.trackers import TRACKERS

# All that is ever written into a run folder.
WRITTEN = {
    *FILES,
    *FOLDERS,
    "report.html",
    "tracker.json",
    "reproduction.json",
    "predictions",
    "evaluations",
    "export",
    "export-gguf",
    "export-fp8",
    *(tracker.run_folder for tracker in TRACKERS.values() if tracker.run_folder),
}


@dataclass
class Deletion:
    """Paths that are deleted together, of a run or of the folder around some."""

    place: Path
    paths: Sequence[Path]
    run: RunRecord | None = None
    bytes: int = field(init=False)  # of the files that have no second name elsewhere

    def __post_init__(self) -> None:
        self.bytes = 0
        for path in self.paths:
            for file in (path, *path.rglob("*")):
                stat = file.lstat()
                if stat.st_nlink == 1:
                    self.bytes += stat.st_size

    def __str__(self) -> str:
        names = "all of it"
        if self.place not in self.paths:
            names = ", ".join(path.name for path in self.paths)
        standing = f"{self.run.standing}; " if self.run else ""
        place = display_path(self.place)
        return f"{place}: {standing}{names}, {sized(self.bytes)}"


@dataclass
class Listing:
    """The deletions of a command, each once, and what is left with the reasons."""

    deletions: dict[Path, Deletion] = field(default_factory=dict)  # by their resolved places
    left: list[str] = field(default_factory=list)


def find_obstacle(run: RunRecord, keep: str | None) -> str:
    """The reason for which nothing of a run may be deleted; empty where it may."""
    if run.folder.is_symlink() or run.faults:
        faults = "; ".join(fault.found for fault in run.faults)
        return faults or "a link, which is not followed"
    if run.state in ("running", "queued"):
        return run.standing
    strangers = _find_strangers(run.folder)
    if strangers and not keep:
        return f"{', '.join(strangers)} in it, which no run writes: move it elsewhere"
    if keep == "model" and (run.state != "finished" or damage_of(run.run.model, touched_only=True)):
        return f"{run.standing}, but has no complete model to keep: keep=last"
    return ""


def _find_strangers(folder: Path) -> list[str]:
    """The names in a run folder that no run writes there."""
    strangers = []
    for path in folder.iterdir():
        # A deletion or a write that was killed has left it.
        is_remainder = path.match(ASIDE) or LEFT_BY_WRITES.fullmatch(path.name)
        if path.name not in WRITTEN and not is_remainder:
            strangers.append(path.name)
    return sorted(strangers)


def paths_to_delete(run: RunRecord, keep: str | None) -> list[Path]:
    """The paths of a run that are deleted: all of it, unless something is to be kept."""
    if keep is None:
        return [run.folder]
    if keep == "runs":
        drawn = (run.folder / "report.html", run.folder / "plots")
        return [path for path in drawn if path.exists()]
    checkpoints = sealed_checkpoints(run.run.checkpoints)
    kept_names = set()
    if keep == "last" and checkpoints:
        newest = checkpoints[-1]
        state = read_json(newest / "trainer_state.json") or {}
        kept_names = {newest.name, Path(str(state.get("best_model_checkpoint"))).name}
    paths = [path for path in checkpoints if path.name not in kept_names]
    return [*paths, *run.run.checkpoints.glob(ASIDE)]


def list_place(listing: Listing, place: Path, keep: str | None, where: str | None = None) -> None:
    """Add what is deleted, and what is left, of a run or of all runs of a name."""
    is_group = not is_run(place)
    runs: Sequence[RunRecord] = read_group(place) if is_group else [read_run(place)]
    if where is not None:
        runs = choose_runs(runs, where)
    for run in runs:
        obstacle = find_obstacle(run, keep)
        if obstacle:
            listing.left.append(f"{display_path(run.folder)}: {obstacle}")
            continue
        paths = paths_to_delete(run, keep)
        if paths:
            listing.deletions[run.folder.resolve()] = Deletion(run.folder, paths, run)
    if not is_group:
        return
    around = list(place.glob(ASIDE))
    if keep == "runs":
        around = [*(place / name for name in (*SWEEP_FILES, "plots", INDEX)), *around]
    around = [path for path in around if path.exists() and not path.is_symlink()]
    if around:
        listing.deletions[place.resolve()] = Deletion(place, around)


def find_users(root: Path, deletions: Collection[Path]) -> dict[Path, str]:
    """A remark on each run that another one builds on, which names that other run.

    Other runs that are deleted too do not count; ``deletions`` are the resolved folders.
    """
    users = {}
    for path in root.glob("*/*/manifest.json"):
        run = path.parent
        if run.resolve() in deletions:
            continue
        manifest = read_json(path)
        if manifest and is_shaped(manifest):
            for base in (manifest.get("uses") or {}).values():
                users[Path(base).resolve()] = f"; {display_path(run)} uses it"
    return users


def delete(deletion: Deletion) -> int:
    """Delete the paths if nobody has begun with them meanwhile; the bytes that this has freed."""
    moved: list[Path] = []
    try:
        with locked(deletion.run.run) if deletion.run else contextlib.nullcontext():
            if deletion.run:
                _check_unchanged(deletion, deletion.run)
            for path in deletion.paths:
                moved.append(set_aside(path))
    except (FolderError, FileNotFoundError) as error:
        reason = "it is already gone"
        if isinstance(error, FolderError):
            reason = error.faults[0].found
        print_visible(f"leave     {display_path(deletion.place)}: {reason}")
        return 0
    # After the lock is released, because a network file system keeps a file that is open.
    for path in moved:
        delete_whole(path)
    return deletion.bytes


def _check_unchanged(deletion: Deletion, run: RunRecord) -> None:
    """Raise FolderError where a run has changed since it was listed, or would not stay whole.

    The caller has its lock.
    """
    place = deletion.place
    FolderError.refuse(find_foreign_faults(place))
    # Only the lock is there: the run was gone already, and locking it has made its folder anew.
    if os.listdir(place) == [".lock"]:
        shutil.rmtree(set_aside(place))
    if not run.status.items() <= read_run(place).status.items():
        raise FolderError(Fault(str(place), "it has changed in the meantime"))
    checkpoints = place / "checkpoints"
    if any(path.parent == checkpoints for path in deletion.paths):
        for newest in sealed_checkpoints(checkpoints)[-1:]:
            check_sealed(place / "model" if newest in deletion.paths else newest)
