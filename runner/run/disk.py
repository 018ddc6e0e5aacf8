"""Disks: what a run still needs of one, by its manifest, how much is free, and whether other machines see its locks."""

import errno
import shutil
from pathlib import Path

from runner.errors import EnvironmentFault, RunnerError, causes_of, describe, fault
from runner.run import Run
from runner.run.seal import sealed_checkpoints
from runner.schema.text import number

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# In messages of writers that are not Python's own when a write has failed: torch's archives, safetensors, arrow.
WRITE_FAILURES = ["unexpected pos", "PytorchStreamWriter", "iostream", "No space left", "Disk quota"]
WRITE_FAILURES += [f"os error {number}" for number in FULL]
MIN_FREE_BYTES = 1 << 20  # bytes; with less than that left, what failed did so for want of space


def check_space(run: Run) -> None:
    """Raise EnvironmentFault where what the run will keep at the same time cannot fit on its disk."""
    need, description = needed(run)
    if need > (room := free(run.folder)):
        raise EnvironmentFault(fault("run.little_space", run=run, free=sized(room), needed=description))


def needed(run: Run) -> tuple[int, str]:
    """Bytes that the run has yet to write, as far as is known, and what: one checkpoint more than it keeps, a model."""
    disk = {"checkpoints": 0, "checkpoint": 0, "model": 0} | (run.manifest().get("disk") or {})
    more = max(0, disk["checkpoints"] - len(sealed_checkpoints(run.checkpoints)))
    size = more * disk["checkpoint"] + disk["model"]
    parts = f"{more} more checkpoints of {sized(disk['checkpoint'])}, and {sized(disk['model'])} for model/"
    return size, f"{sized(size)}: {parts}"


def free(path: Path) -> int:
    """Bytes that may still be written where a path is or will be."""
    return shutil.disk_usage(next(place for place in (path, *path.absolute().parents) if place.exists())).free


def describe_lone_locks(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The place and kind of a network disk on which no other machine sees that a run is in use; empty for any other.

    ``flock`` reaches the others over NFS, unless it is mounted with ``nolock`` or ``local_lock``, and over Lustre with
    ``flock``. What is mounted through FUSE may keep it to itself.
    """
    if not mounts.exists():
        return ""
    lines = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    whole = path.absolute()
    around = [(place, kind, options.split(",")) for _, place, kind, options, *_ in lines if whole.is_relative_to(place)]
    place, kind, options = max(around, key=lambda mount: len(mount[0]), default=("", "", []))
    is_alone = not {"nolock", "local_lock=flock", "local_lock=all", "localflock"}.isdisjoint(options)
    is_alone = is_alone or (kind == "lustre" and "flock" not in options)
    return f"{place} ({kind})" if is_alone or (kind.startswith("fuse.") and "overlay" not in kind) else ""


def is_full(error: BaseException, folder: Path) -> bool:
    """True for an error that is, or came from, a disk that took no more bytes."""
    chain = causes_of(error)
    text = "\n".join(map(describe, chain))
    if any(sign in text for sign in WRITE_FAILURES) or any(getattr(one, "errno", None) in FULL for one in chain):
        return True
    return not isinstance(error, RunnerError) and free(folder) < MIN_FREE_BYTES


def full(run: Run, error: BaseException) -> EnvironmentFault:
    """A full disk as a fault: where, how much is free there and how much is needed."""
    failed = [one for one in causes_of(error) if isinstance(one, OSError)]
    place = Path(next((one.filename for one in failed if isinstance(one.filename, str)), run.folder))
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    if any(one.errno == errno.EFBIG for one in failed) or "os error 27" in text:
        return EnvironmentFault(fault("run.file_limit", file=place, error=text))
    need, description = needed(run)
    expected = description if need else "free space"
    return EnvironmentFault(fault("run.full_disk", place=place, free=sized(free(place)), error=text, needed=expected))


def sized(count: float, unit: str = "B") -> str:
    """Bytes for people, or another quantity."""
    for prefix, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{number(count / size, 3)} {prefix}{unit}"
    return f"{count:.0f} {'bytes' if unit == 'B' else unit}".rstrip()
