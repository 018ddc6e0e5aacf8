"""Sealed folders: the checkpoints of a run and its model; how a seal is written, verified, found again and removed.

A seal is a file in the folder with the size and the hash of every other file there; what has none was never finished.
A checkpoint is sealed after all callbacks of the user's have seen its save (``training.checkpoint``).
"""

import hashlib
import json
import logging
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner.errors import FolderError, fault
from runner.io.files import LEFT_BY_WRITES, display_path, read_json, remove, sha256, sync, write_json
from runner.run import Run

log = logging.getLogger(__name__)
SEAL = "seal.json"
# The number of the process that wrote a file: of the Trainer, of torch's sharded checkpoints, of DeepSpeed.
OF_A_PROCESS = re.compile(r"(?:^rng_state_|^__|_pp_rank_|^zero_pp_rank_)(\d+)")
THREADS = 8  # that hash the files of a folder: 1.4 GB a second each, where the disk is as fast


def seal(folder: Path, entries: Mapping[str, Sequence[object]] | None = None) -> None:
    """Put every byte of a folder on the disk, then sizes and hashes: own, or ``entries`` that processes put down."""
    files = put_down(folder) if entries is None else entries
    write_json(folder / SEAL, {name: files[name] for name in sorted(files)} | {SEAL: _own_entry(files)})
    sync(folder.parent)


def put_down(folder: Path, process: int = 0, processes: int = 1) -> dict[str, list[object]]:
    """Size and hash of each file of a folder, which others may read and which is on the disk then."""

    def put(path: Path) -> list[object]:
        path.chmod(0o644 if path.stat().st_mode & 0o077 == 0 else path.stat().st_mode)
        sync(path)
        return [path.stat().st_size, sha256(path)]

    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != SEAL]
    numbers = [OF_A_PROCESS.search(path.name) for path in paths]
    own = [path for path, of in zip(paths, numbers, strict=True) if (int(of[1]) if of else 0) % processes == process]
    with ThreadPoolExecutor(THREADS) as threads:
        entries = list(threads.map(put, own))
    return {path.relative_to(folder).as_posix(): entry for path, entry in zip(own, entries, strict=True)}


def sealed_hashes(folder: Path) -> dict[str, str]:
    """The hash of every file of a sealed folder, by its relative name."""
    return {name: digest for name, (_, digest) in (read_json(folder / SEAL) or {}).items()}


def damage_of(folder: Path, *, touched_only: bool = False) -> dict[str, str]:
    """The damage of each file of a sealed folder, by its name; empty where all is as it was sealed."""
    if (files := read_json(folder / SEAL)) is None or SEAL not in files:
        return {SEAL: "cannot be read" if (folder / SEAL).is_file() else "missing"}
    if files.pop(SEAL) != _own_entry(files):
        return {SEAL: "other bytes than were sealed"}
    since = (folder / SEAL).stat().st_mtime_ns if touched_only else 0

    def compare(name: str) -> str:
        path, (size, digest) = folder / name, files[name]
        if not path.is_file():
            return "missing"
        if (now := path.stat()).st_size != size:
            return f"{now.st_size} of {size} bytes"
        return "other bytes than were sealed" if now.st_mtime_ns >= since and sha256(path) != digest else ""

    with ThreadPoolExecutor(1 if touched_only else THREADS) as threads:
        found = list(threads.map(compare, files))
    return {name: wrong for name, wrong in zip(files, found, strict=True) if wrong}


def _own_entry(files: Mapping[str, Sequence[object]]) -> list[object]:
    return [len(files), hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()]


def describe_damage(damage: Mapping[str, str]) -> str:
    """Damage in one line."""
    return "; ".join(f"{name}: {wrong}" for name, wrong in damage.items())


def check_sealed(folder: Path) -> Path:
    """The same sealed folder; FolderError with every file that is not as it was sealed."""
    if damage := damage_of(folder):
        raise FolderError(fault("run.damaged", folder=display_path(folder), damage=describe_damage(damage)))
    return folder


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was taken, by the name of its folder."""
    return int(checkpoint.name.rpartition("-")[2])


def sealed_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder that carry a seal, oldest first."""
    return [path for path in sorted(folder.glob("checkpoint-[0-9]*"), key=step_of) if (path / SEAL).exists()]


def last_checkpoint(run: Run, clean: bool = True) -> Path | None:
    """The newest checkpoint whose every file is as it was sealed; ``clean`` removes what is newer and broken.

    A torn checkpoint must go before training: the next save of the same step would otherwise mix with it. Where there
    were sealed ones and none of them is whole, ``clean`` raises FolderError, since to start over would hide the loss.
    """
    good: Path | None = None
    damaged: dict[Path, dict[str, str]] = {}
    step = run.status().get("sealed")  # the step that was sealed last; its checkpoint may be gone, or its seal
    path = run.checkpoints / f"checkpoint-{step}"
    if step is not None and not (path / SEAL).exists():
        damaged[path] = damage_of(path) if path.is_dir() else {"the folder": "missing"}
    for path in reversed(sealed_checkpoints(run.checkpoints)):
        if not (wrong := damage_of(path)):
            good = path
            break
        damaged[path] = wrong
    for path, wrong in damaged.items():
        log.warning("%s is damaged: %s", path, describe_damage(wrong))
    if clean and damaged and good is None:
        texts = {path: describe_damage(wrong) for path, wrong in damaged.items()}
        raise FolderError(fault("run.no_whole_checkpoint", folder=path, damage=text) for path, text in texts.items())
    step = step_of(good) if good else -1
    for path in run.checkpoints.glob("checkpoint-*") if clean else ():
        number = path.name.rpartition("-")[2]
        if not number.isdigit() or int(number) > step:
            remove(path)
    if clean and damaged:
        run.set_status(sealed=step)
    return good


def remove_unfinished(run: Run) -> None:
    """Delete what a save has begun and not sealed; the caller holds the run."""
    torn = [path for path in run.checkpoints.glob("checkpoint-*") if not (path / SEAL).exists()]
    for path in filter(Path.is_dir, (*torn, run.folder / ".model.new")):
        remove(path)


def remove_leftovers(run: Run) -> None:
    """Delete the half of a file or of a checkpoint that a kill has left; the caller holds the run."""
    for path in run.folder.glob(".*"):
        if LEFT_BY_WRITES.fullmatch(path.name) and path.is_file():
            path.unlink()
    for path in (*run.folder.glob(".*.removed"), *run.checkpoints.glob(".*.removed")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def rotate(folder: Path, keep: int, best: str | None, steps_to_notice: int = 0) -> None:
    """Delete the oldest checkpoints in a folder: before the end of a run, and then with no ``steps_to_notice``.

    At the end the best may stay, beside the newest, from which a run that is killed now goes on. Before, what is newer
    than a sickness takes to be noticed may be sick: the newest older one stays, too, and the oldest newer, its heir.
    """
    sealed = sealed_checkpoints(folder)
    old = [path for path in sealed if step_of(path) <= step_of(sealed[-1]) - steps_to_notice]
    safe = [path for path in sealed if best and path.name == Path(best).name]
    beside = 0 if steps_to_notice or {*safe} & {*sealed[-keep:]} else len(safe)
    safe += [*sealed[-max(1, keep - beside) :], *old[-1:], *sealed[len(old) :][:1]]
    for path in (path for path in sealed if path not in safe):
        remove(path)


def checkpoints_at_once(keep: int, steps_to_notice: int, strategy: str, every: float, max_steps: int | None) -> int:
    """The most checkpoints that a run has at a time: one that is written, and those that ``rotate`` leaves."""
    if strategy == "no":
        return 0
    most = keep + 1 + sum(every >= 1 and count * every < steps_to_notice for count in (keep - 1, keep))
    is_counted = strategy == "steps" and every >= 1
    return min(most, math.ceil(max_steps / every)) if is_counted and max_steps and max_steps > 0 else most
