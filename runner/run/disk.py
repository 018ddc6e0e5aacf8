"""Disks: how much space a run still needs, how much is free, and errors of a full disk.

Here is also whether other machines see the locks on a disk, and the errors of a folder on it.
"""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.errors import EnvironmentFault, Fault, RunnerError, causes_of, describe
from runner.run.folder import Run
from runner.run.seal import sealed_checkpoints
from runner.schema.literal import number

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The errors of a place where no folder can be made, however much room there is.
NO_FOLDER = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
)
# In messages of writers that are not Python's own when a write has failed: torch's archives,
# safetensors, arrow.
WRITE_FAILURES = [
    "unexpected pos",
    "PytorchStreamWriter",
    "iostream",
    "No space left",
    "Disk quota",
    *(f"os error {code}" for code in FULL),
]
# Where less than this is free, what failed did so for want of space.
MIN_FREE_BYTES = 1 << 20
UNITS = {"T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3}
# Options of a mount by which its locks stay on this machine.
LOCAL_LOCKS = {"nolock", "local_lock=flock", "local_lock=all", "localflock"}


@dataclass(frozen=True)
class SpaceNeeded:
    """The bytes that a run has yet to write, as far as is known."""

    size: int
    description: str


@dataclass(frozen=True)
class Mount:
    """A disk as the system has mounted it."""

    place: str
    kind: str
    options: list[str]


# --- Space --------------------------------------------------------------------------------------
def check_space(run: Run) -> None:
    """Raise EnvironmentFault where what a run will have at one time cannot fit on its disk."""
    need = needed(run)
    room = free(run.folder)
    if need.size > room:
        raise EnvironmentFault(
            Fault(
                where=str(run),
                found=f"{sized(room)} free",
                expected=need.description,
                fix="free some, trainer.args.save_total_limit=1, or output_root=<a folder on a "
                "larger disk>",
            )
        )


def needed(run: Run) -> SpaceNeeded:
    """The space for the checkpoints that a run has yet to write, and for its model."""
    disk = run.manifest().get("disk") or {}
    checkpoint_size = disk.get("checkpoint", 0)
    model_size = disk.get("model", 0)
    # One more than it keeps, because a new one is written before an old one is deleted.
    checkpoints = disk.get("checkpoints", 0)
    sealed = sealed_checkpoints(run.checkpoints)
    more = max(0, checkpoints - len(sealed))
    size = more * checkpoint_size + model_size
    return SpaceNeeded(
        size,
        f"{sized(size)}: {more} more checkpoints of {sized(checkpoint_size)}, "
        f"and {sized(model_size)} for model/",
    )


def free(path: Path) -> int:
    """Bytes that may still be written where a path is or will be."""
    while not path.exists():
        path = path.absolute().parent
    return shutil.disk_usage(path).free


def sized(count: float, unit: str = "B") -> str:
    """Bytes for people, or another quantity."""
    for prefix, size in UNITS.items():
        if count >= size:
            return f"{number(count / size, 3)} {prefix}{unit}"
    name = "bytes" if unit == "B" else unit
    return f"{count:.0f} {name}".rstrip()


# --- A full disk --------------------------------------------------------------------------------
def is_full(error: BaseException, folder: Path) -> bool:
    """True for an error that is, or came from, a disk that took no more bytes."""
    for cause in causes_of(error):
        if getattr(cause, "errno", None) in FULL:
            return True
        text = describe(cause)
        if any(sign in text for sign in WRITE_FAILURES):
            return True
    return not isinstance(error, RunnerError) and free(folder) < MIN_FREE_BYTES


def full(run: Run, error: BaseException) -> EnvironmentFault:
    """A full disk as a fault: where, how much is free there and how much is needed."""
    errors_of_system = [cause for cause in causes_of(error) if isinstance(cause, OSError)]
    files = [cause.filename for cause in errors_of_system if isinstance(cause.filename, str)]
    place = Path(files[0]) if files else run.folder
    lines = str(error).splitlines()
    text = lines[0] if lines and lines[0] else type(error).__name__
    is_too_large = any(cause.errno == errno.EFBIG for cause in errors_of_system)
    if is_too_large or "os error 27" in text:
        return EnvironmentFault(
            Fault(
                where=str(place),
                found=text,
                expected="a file as large as it needs to be",
                fix="ulimit -f unlimited, and the same command again",
            )
        )
    need = needed(run)
    return EnvironmentFault(
        Fault(
            where=str(place),
            found=f"the disk is full: {sized(free(place))} free ({text})",
            expected=need.description if need.size else "free space",
            fix="free some and run the same command again",
        )
    )


@contextlib.contextmanager
def folder_errors(folder: str) -> Iterator[None]:
    """Turn an error of the system into one that says whether the disk or the folder is to blame."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_FOLDER and is_full(error, Path(folder)):
            raise full(Run(Path(folder)), error) from error
        raise EnvironmentFault(
            Fault(
                where=folder,
                found=str(error),
                expected="a folder",
                fix="output_root=<a folder that you may write>",
            )
        ) from error


# --- Network disks ------------------------------------------------------------------------------
def describe_lone_locks(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The place and kind of a network disk whose locks no other machine sees; empty for any other.

    ``flock`` reaches other machines over NFS, unless it is mounted with ``nolock`` or
    ``local_lock``, and over Lustre with ``flock``. What is mounted through FUSE may hide it from
    them.
    """
    if not mounts.exists():
        return ""
    absolute = path.absolute()
    innermost: Mount | None = None
    for line in mounts.read_text(errors="replace").splitlines():
        _, place, kind, options, *_ = line.split()
        if absolute.is_relative_to(place) and (
            innermost is None or len(place) > len(innermost.place)
        ):
            innermost = Mount(place, kind, options.split(","))
    if innermost is None:
        return ""
    kind = innermost.kind
    is_local = not LOCAL_LOCKS.isdisjoint(innermost.options)
    is_lustre = kind == "lustre" and "flock" not in innermost.options
    is_fuse = kind.startswith("fuse.") and "overlay" not in kind
    if is_local or is_lustre or is_fuse:
        return f"{innermost.place} ({kind})"
    return ""
