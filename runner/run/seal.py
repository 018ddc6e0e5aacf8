"""Sealed folders, which are the checkpoints of a run and its model.

A seal is a file in the folder with the size and the hash of every other file there; a folder
without one was never finished. A checkpoint is sealed after all callbacks of the user's have seen
its save (``training.checkpoint``).
"""

import hashlib
import json
import logging
import math
import re
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner.errors import Fault, FolderError
from runner.io.files import (
    LEFT_BY_WRITES,
    delete_whole,
    display_path,
    read_json,
    remove,
    sha256,
    sync,
    write_json,
)
from runner.run.folder import Run

log = logging.getLogger(__name__)
SEAL = "seal.json"
# The number of the process that wrote a file: of the Trainer, of torch's sharded checkpoints, of
# DeepSpeed.
OF_A_PROCESS = re.compile(r"(?:^rng_state_|^__|_pp_rank_|^zero_pp_rank_)(\d+)")
THREADS = 8  # that hash the files of a folder: 1.4 GB a second each, where the disk is as fast
Entry = Sequence[object]  # of a file in a seal: its size and its hash


# --- Writing a seal -----------------------------------------------------------------------------
def seal(folder: Path, entries: Mapping[str, Entry] | None = None) -> None:
    """Put every byte of a folder on the disk, then write the sizes and hashes of its files.

    ``entries`` are those that processes have put down, each for its own files.
    """
    if entries is None:
        entries = put_down(folder)
    content = {name: entries[name] for name in sorted(entries)}
    content[SEAL] = _own_entry(entries)
    write_json(folder / SEAL, content)
    sync(folder.parent)


def put_down(folder: Path, process: int = 0, processes: int = 1) -> dict[str, Entry]:
    """The size and hash of each file that a process has written to a folder.

    Each of the files is on the disk then, and others may read it.
    """
    paths = []
    for path in folder.rglob("*"):
        if path.is_file() and path.name != SEAL:
            match = OF_A_PROCESS.search(path.name)
            writer = int(match[1]) if match else 0
            if writer % processes == process:
                paths.append(path)
    with ThreadPoolExecutor(THREADS) as threads:
        entries = list(threads.map(_put_on_disk, paths))
    names = [path.relative_to(folder).as_posix() for path in paths]
    return dict(zip(names, entries, strict=True))


def _put_on_disk(path: Path) -> Entry:
    """Have the system write out a file, and return what its seal holds: its size and its hash.

    A file that nobody else can read, as temporary files are made, becomes readable by all.
    """
    mode = path.stat().st_mode
    is_private = mode & 0o077 == 0
    path.chmod(0o644 if is_private else mode)
    sync(path)
    size = path.stat().st_size
    return [size, sha256(path)]


def _own_entry(entries: Mapping[str, Entry]) -> Entry:
    """The entry of the seal itself: the count of the others, and their hash."""
    text = json.dumps(entries, sort_keys=True)
    return [len(entries), hashlib.sha256(text.encode()).hexdigest()]


# --- Verifying it -------------------------------------------------------------------------------
def sealed_hashes(folder: Path) -> dict[str, str]:
    """The hash of every file of a sealed folder, by its relative name."""
    entries = read_json(folder / SEAL) or {}
    return {name: digest for name, (_, digest) in entries.items()}


def damage_of(folder: Path, *, touched_only: bool = False) -> dict[str, str]:
    """The damage of each file of a sealed folder, by its name; empty where all is as sealed.

    With ``touched_only`` the bytes of a file count as sealed unless it was changed after that.
    """
    entries = read_json(folder / SEAL)
    if entries is None or SEAL not in entries:
        return {SEAL: "cannot be read" if (folder / SEAL).is_file() else "missing"}
    own_entry = entries.pop(SEAL)
    if own_entry != _own_entry(entries):
        return {SEAL: "differs from what was sealed"}
    since = (folder / SEAL).stat().st_mtime_ns if touched_only else 0

    def compare(name: str) -> str:
        """The damage of a file in a few words; empty where it is as it was sealed.

        A file that was not written since the seal is not hashed again with ``touched_only``.
        """
        path = folder / name
        size, digest = entries[name]
        try:
            status = path.stat()
        except OSError:
            return "missing"
        if not stat.S_ISREG(status.st_mode):
            return "missing"
        if status.st_size != size:
            return f"{status.st_size} of {size} bytes"
        if status.st_mtime_ns >= since and sha256(path) != digest:
            return "differs from what was sealed"
        return ""

    if touched_only:  # where hardly a byte is read, threads would take longer
        damages = [compare(name) for name in entries]
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            damages = list(threads.map(compare, entries))
    damage_by_name = zip(entries, damages, strict=True)
    return {name: damage for name, damage in damage_by_name if damage}


def describe_damage(damage: Mapping[str, str]) -> str:
    """Damage in one line."""
    texts = [f"{name}: {wrong}" for name, wrong in damage.items()]
    return "; ".join(texts)


def check_sealed(folder: Path) -> Path:
    """The same sealed folder; FolderError with every file that is not as it was sealed."""
    damage = damage_of(folder)
    if damage:
        raise FolderError(
            Fault(
                where=display_path(folder),
                found=f"damaged: {describe_damage(damage)}",
                expected="the files as they were sealed",
                fix="the command that made the run, which mends it from a checkpoint, or "
                "checkpoint=last",
            )
        )
    return folder


# --- The checkpoints of a run -------------------------------------------------------------------
def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was taken, by the name of its folder."""
    return int(checkpoint.name.rpartition("-")[2])


def sealed_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder that carry a seal, oldest first."""
    paths = sorted(folder.glob("checkpoint-[0-9]*"), key=step_of)
    return [path for path in paths if (path / SEAL).exists()]


def last_checkpoint(run: Run, clean: bool = True) -> Path | None:
    """The newest checkpoint whose every file is as it was sealed.

    ``clean`` removes what is newer and broken: a torn checkpoint must go before training, because
    the next save of the same step would otherwise mix with it. Where there were sealed ones and
    none of them is whole, ``clean`` raises FolderError, since to start over would hide the loss.
    """
    good, damage_by_path = _find_good(run)
    for path, damage in damage_by_path.items():
        log.warning("%s is damaged: %s", path, describe_damage(damage))
    if not clean:
        return good
    if damage_by_path and good is None:
        raise FolderError(
            Fault(
                where=str(path),
                found=describe_damage(damage),
                expected="a complete checkpoint",
                fix="put a complete copy of it back, or name=<another name> to start over",
            )
            for path, damage in damage_by_path.items()
        )
    step = step_of(good) if good else -1
    for path in run.checkpoints.glob("checkpoint-*"):
        number = path.name.rpartition("-")[2]
        if not number.isdigit() or int(number) > step:
            remove(path)
    if damage_by_path:
        run.set_status(sealed=step)
    return good


def _find_good(run: Run) -> tuple[Path | None, dict[Path, dict[str, str]]]:
    """The newest whole checkpoint, and the damage of each newer one."""
    damage_by_path: dict[Path, dict[str, str]] = {}
    # The checkpoint that was sealed last may be gone, or its seal.
    step = run.status().get("sealed")
    last = run.checkpoints / f"checkpoint-{step}"
    if step is not None and not (last / SEAL).exists():
        damage_by_path[last] = damage_of(last) if last.is_dir() else {"the folder": "missing"}
    for path in reversed(sealed_checkpoints(run.checkpoints)):
        damage = damage_of(path)
        if not damage:
            return path, damage_by_path
        damage_by_path[path] = damage
    return None, damage_by_path


def remove_unfinished(run: Run) -> None:
    """Delete what a save has begun and not sealed; the caller holds the run."""
    for path in run.checkpoints.glob("checkpoint-*"):
        if path.is_dir() and not (path / SEAL).exists():
            remove(path)
    model = run.folder / ".model.new"
    if model.is_dir():
        remove(model)


def remove_leftovers(run: Run) -> None:
    """Delete what a kill has left of files and checkpoints; the caller holds the run."""
    for path in run.folder.glob(".*"):
        if LEFT_BY_WRITES.fullmatch(path.name) and path.is_file():
            path.unlink()
    for folder in (run.folder, run.checkpoints):
        for path in folder.glob(".*.removed"):
            delete_whole(path)


def rotate(folder: Path, keep: int, best: str | None, steps_to_notice: int = 0) -> None:
    """Delete the oldest checkpoints in a folder, so that ``keep`` of them stay.

    At the end of a run, without ``steps_to_notice``, the best may stay beside the newest, from
    which a run that is killed now goes on. Before the end, what is newer than a sickness takes to
    be noticed may be sick: the newest older one stays, too, and the oldest newer, its heir.
    """
    sealed = sealed_checkpoints(folder)
    if not sealed:
        return
    trusted_step = step_of(sealed[-1]) - steps_to_notice
    trusted = [path for path in sealed if step_of(path) <= trusted_step]
    untrusted = sealed[len(trusted) :]
    best_ones = [path for path in sealed if best and path.name == Path(best).name]
    newest = sealed[-max(1, keep) :]
    # At the end the best counts as one of those that stay.
    is_best_beside = not set(best_ones) & set(newest)
    if not steps_to_notice and is_best_beside:
        newest = sealed[-max(1, keep - len(best_ones)) :]
    safe = {*best_ones, *newest, *trusted[-1:], *untrusted[:1]}
    for path in sealed:
        if path not in safe:
            remove(path)


def checkpoints_at_once(
    keep: int, steps_to_notice: int, strategy: str, every: float, max_steps: int | None
) -> int:
    """The most checkpoints at a time: one that is being written, and what ``rotate`` leaves."""
    if strategy == "no":
        return 0
    most = keep + 1
    if every >= 1:
        for count in (keep - 1, keep):
            if count * every < steps_to_notice:
                most += 1
        # A short run does not even take so many.
        if strategy == "steps" and max_steps and max_steps > 0:
            return min(most, math.ceil(max_steps / every))
    return most
