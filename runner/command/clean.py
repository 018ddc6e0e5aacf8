"""Deletes runs, their checkpoints, or what is drawn of them, once it has listed them and somebody has agreed."""

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.command import CommandLine, read_options
from runner.command.report import PAGES
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import ASIDE, LEFT_BY_WRITES, display_path, read_json, set_aside
from runner.io.terminal import is_terminal, print_visible
from runner.report.index import INDEX, read_group
from runner.report.number import plural
from runner.report.selection import choose_runs
from runner.report.table import MAX_LINES
from runner.run import FILES, FOLDERS, find_foreign_faults, is_shaped, locked
from runner.run.disk import sized
from runner.run.find import is_run, resolve_word
from runner.run.record import RunRecord, read_run
from runner.run.seal import check_sealed, damage_of, sealed_checkpoints

WRITTEN = {
    *FILES,
    *FOLDERS,
    "report.html",
    "tracker.json",
    "reproduction.json",
    "predictions",
    "evaluations",
    "export",
}
WRITTEN |= {"wandb", "tensorboard"}  # by trackers, and all that is ever written into a run folder


@dataclass
class Deletion:
    """Paths that go together, of a run or of the folder around some, and the bytes that this frees."""

    place: Path
    paths: Sequence[Path]
    run: RunRecord | None = None
    bytes: int = field(init=False)  # of the files that have no second name elsewhere

    def __post_init__(self) -> None:
        every = (file.lstat() for path in self.paths for file in (path, *path.rglob("*")))
        self.bytes = sum(about.st_size for about in every if about.st_nlink == 1)

    def __str__(self) -> str:
        names = (
            ", ".join(path.name for path in self.paths)
            if self.place not in self.paths
            else "all of it"
        )
        return f"{display_path(self.place)}: {f'{self.run.standing}; ' if self.run else ''}{names}, {sized(self.bytes)}"


def main(line: CommandLine) -> int:
    """List what goes, ask, and delete it; 0 also where nothing is deleted."""
    options = read_options(line.overrides, "clean")
    root, keep, where = (
        Path(options.get("output_root", "outputs")),
        options.get("keep"),
        options.get("where"),
    )
    found, kept = dict[Path, Deletion](), list[str]()  # each once, however many words mean it
    if not line.runs:
        raise ConfigError(
            Fault(
                where="RUN",
                found="none",
                expected="the folder of some runs",
                fix=f"python -m runner clean {root}/<name> where=state=failed",
            )
        )
    for place in [resolve_word(word, "clean", root) for word in line.runs]:
        if root.resolve() not in place.resolve().parents:
            raise FolderError(
                Fault(
                    where=f"{display_path(place)}",
                    found=f"it is not in {root}",
                    expected="runs of ours, in a folder below output_root",
                    fix="output_root=<the folder around the name>",
                )
            )
        many = not is_run(place)
        if many and not keep and where is None:
            folder = display_path(place)
            raise ConfigError(
                Fault(
                    where=f"{folder}",
                    found="all runs of a name, without where or keep",
                    expected="which runs to delete, or which parts to keep",
                    fix=f"python -m runner clean {folder} where=state=failed, or keep=last",
                )
            )
        runs: Sequence[RunRecord] = read_group(place) if many else [read_run(place)]
        for run in runs if where is None else choose_runs(runs, where):
            if reason := _obstacle(run, keep):
                kept.append(f"{display_path(run.folder)}: {reason}")
            elif paths := _paths_of(run, keep):
                found[run.folder.resolve()] = Deletion(run.folder, paths, run)
        around = (
            [place / name for name in (*PAGES, "plots", INDEX)] if many and keep == "runs" else []
        )
        around += place.glob(ASIDE) if many else []
        if around := [path for path in around if path.exists() and not path.is_symlink()]:
            found[place.resolve()] = Deletion(place, around)
    # Each run that one elsewhere than in these places builds on is listed with that one.
    others = [
        path
        for path in root.glob("*/*/manifest.json")
        if not keep and path.parent.resolve() not in found
    ]
    facts = {path.parent: read for path in others if (read := read_json(path)) and is_shaped(read)}
    uses = (
        (run, path) for run, read in facts.items() for path in (read.get("uses") or {}).values()
    )
    users = {Path(path).resolve(): f"; {display_path(run)} uses it" for run, path in uses}
    for word, texts in (
        ("delete", [f"{each}{users.get(at, '')}" for at, each in found.items()]),
        ("leave", kept),
    ):
        more = [f"          and {len(texts) - MAX_LINES} more"] if len(texts) > MAX_LINES else []
        print_visible(
            "\n".join([*(f"{word:<9} {text}" for text in texts[:MAX_LINES] or ["nothing"]), *more])
        )
    total = f"{sized(sum(each.bytes for each in found.values()))} in {plural(len(found), 'folder')}"
    agreed = options.get("yes", False)
    if found and not agreed and is_terminal(sys.stdin):
        print(f"delete {total}? (y/N) ", end="", flush=True)
        agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    elif found and not agreed:
        print(f"next      the same words and yes=true  (frees {total})")
    if found and agreed:
        print(f"freed     {sized(sum(map(_delete, found.values())))}")
    return 0


def _obstacle(run: RunRecord, keep: str | None) -> str:
    left = {
        path.name
        for path in run.folder.glob(".*")
        if path.match(ASIDE) or LEFT_BY_WRITES.fullmatch(path.name)
    }
    others = sorted({path.name for path in run.folder.iterdir()} - WRITTEN - left)
    if run.folder.is_symlink() or run.faults:
        return "; ".join(each.found for each in run.faults) or "a link, which is not followed"
    if run.state in ("running", "queued"):
        return run.standing
    if others and not keep:
        return f"{', '.join(others)} in it, which no run writes: move it elsewhere"
    if keep == "model" and (run.state != "finished" or damage_of(run.run.model, touched_only=True)):
        return f"{run.standing}, but has no complete model to keep: keep=last"
    return ""


def _paths_of(run: RunRecord, keep: str | None) -> list[Path]:
    if keep is None:
        return [run.folder]
    if keep == "runs":
        return [
            path for path in (run.folder / "report.html", run.folder / "plots") if path.exists()
        ]
    sealed = sealed_checkpoints(run.run.checkpoints)
    best = [
        (read_json(path / "trainer_state.json") or {}).get("best_model_checkpoint")
        for path in sealed[-1:]
    ]
    kept = (
        {path.name for path in map(Path, map(str, [*best, *sealed[-1:]]))}
        if keep == "last"
        else set()
    )
    return [*(path for path in sealed if path.name not in kept), *run.run.checkpoints.glob(ASIDE)]


def _delete(each: Deletion) -> int:
    """Delete it, if nobody has begun with it meanwhile, and give the bytes that this has freed."""
    aside: list[Path] = []
    try:
        with locked(each.run.run) if each.run else contextlib.nullcontext():
            if each.run:
                FolderError.refuse(find_foreign_faults(each.place))
                # it was gone, and to lock it has made it again
                if os.listdir(each.place) == [".lock"]:
                    shutil.rmtree(set_aside(each.place))
                if not each.run.status.items() <= read_run(each.place).status.items():
                    raise FolderError(Fault(str(each.place), "it has changed in the meantime"))
                if each.place / "checkpoints" in {path.parent for path in each.paths}:
                    for newest in sealed_checkpoints(each.place / "checkpoints")[-1:]:
                        check_sealed(each.place / "model" if newest in each.paths else newest)
            aside += map(set_aside, each.paths)
    except (FolderError, FileNotFoundError) as error:
        why = error.faults[0].found if isinstance(error, FolderError) else "it is already gone"
        print_visible(f"leave     {display_path(each.place)}: {why}")
        return 0
    for path in aside:  # when the lock is let go, because a network's disk keeps what is open
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return each.bytes
