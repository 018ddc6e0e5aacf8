"""A store of run folders, for machines that share no disk: a run is fetched and given back.

A store is a folder that ``fsspec`` can reach (``s3://bucket/runs``, ``gs://...``, a path). In it, a
run lies under the name and the label of its folder, file by file, as it does in ``outputs``. Beside
the files, ``.contents.json`` has their sizes and hashes, and the step that they are of. It is
written last, so a copy that was cut off half-way is seen as it was before.

The job of a run is the only one that gives; whoever waits for it only fetches. That it is the only
one is for the queue to see to: a store has no locks.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from runner.errors import (
    ConfigError,
    EnvironmentFault,
    Fault,
    FolderError,
    RunnerError,
    code_of,
    describe,
)
from runner.io.files import LEFT_BY_WRITES, sha256
from runner.io.terminal import print_error
from runner.launch import processes, signals
from runner.run import Run, locked
from runner.run.layout import find_foreign_faults
from runner.run.seal import SEAL

CONTENTS = ".contents.json"
PAUSE = 20.0  # seconds between two times that a job gives its folder back ...
POLL = 0.5  # ... unless a checkpoint was sealed, for which it looks this often
ATTEMPTS = 5  # of the last time, each PAUSE seconds after the one before
# Files of a run that are of this machine alone.
NOT_GIVEN = {".lock", CONTENTS}
# These go last, in this order: they say that what stands beside them is whole.
LAST = (SEAL, "status.json")


@dataclass(frozen=True)
class Digest:
    """The size and the hash of a file."""

    size: int
    sha256: str


@dataclass
class Store:
    """The copies of run folders under a URL."""

    url: str
    # By the path of a file: its size and time of change, and the digest that it had then.
    digests: dict[Path, tuple[tuple[int, int], Digest]] = field(default_factory=dict)

    @cached_property
    def _remote(self) -> tuple[Any, str]:
        """The file system of the store, and its root; EnvironmentFault where it is not known."""
        import fsspec

        try:
            remote, root = fsspec.url_to_fs(os.path.expanduser(self.url))
        except Exception as error:
            raise self._unreachable(error) from error
        return remote, root.rstrip("/")

    def place_of(self, folder: Path) -> str:
        """The path of the copy of a run folder in the file system of the store."""
        return f"{self._remote[1]}/{folder.parent.name}/{folder.name}"

    def give(self, folder: Path) -> None:
        """Make the copy in the store equal to a run folder; what has not changed is not sent.

        Raises EnvironmentFault where the store cannot be written.
        """
        remote, _ = self._remote
        place = self.place_of(folder)
        status = Run(folder).status()
        before = self.contents_of(folder)
        names = _files_of(folder)
        try:
            # The status first: where it says that the run is finished, all else is as it remains.
            files = {name: self._digest(folder / name) for name in reversed(names)}
            for name in names:
                digest = files[name]
                if before.files.get(name) != digest:
                    if "file" in remote.protocol:
                        remote.makedirs(f"{place}/{PurePosixPath(name).parent}", exist_ok=True)
                    remote.put_file(str(folder / name), f"{place}/{name}")
            contents = Contents(
                state=str(status["state"]),
                step=int(status["step"]),
                updated=str(status.get("updated", "")),
                files=files,
            )
            if contents != before:
                remote.pipe_file(f"{place}/{CONTENTS}", contents.to_json())
            for name in before.files.keys() - files:
                with contextlib.suppress(FileNotFoundError):
                    remote.rm_file(f"{place}/{name}")
        except Exception as error:
            is_missing = isinstance(error, FileNotFoundError)
            if is_missing and not all((folder / name).exists() for name in names):
                return  # deleted while it was read, as an old checkpoint: the next time is whole
            raise self._unreachable(error) from error

    def fetch(self, folder: Path, is_newest: bool = True, is_live: bool = False) -> bool:
        """Make a run folder equal to its copy in the store; True where there is one.

        A folder that is further than the copy stays as it is, unless ``is_newest`` says that only
        the copy can have gone on. One in which a process trains is left alone. While the job of the
        run ``is_live``, a file that has changed since the contents were written comes the next
        time, and so does a finished copy, whose last files are about to be given back. Of a job
        that is gone such a file is newer than the contents, and is taken: nothing else has its
        rows.
        """
        contents = self.contents_of(folder)
        if not contents.files:
            return False
        if is_live and contents.state == "finished":
            return True
        run = Run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        FolderError.refuse(find_foreign_faults(folder))
        with contextlib.ExitStack() as lock:
            try:
                lock.enter_context(locked(run))
            except FolderError:
                return True
            status = run.status()
            is_finished = status["state"] == "finished"
            progress = (is_finished, int(status["step"]), str(status.get("updated", "")))
            there = (contents.state == "finished", contents.step, contents.updated)
            is_ahead = there > progress
            if is_newest or is_ahead or not (folder / "config.yaml").exists():
                self._fetch_files(folder, contents, is_live)
        return True

    def _fetch_files(self, folder: Path, contents: "Contents", is_live: bool) -> None:
        """Fetch the files that differ from those here, each beside its place and then renamed.

        Of a live run, a file may be newer in the store than the list of its contents: such a one
        is left for the next time.
        """
        remote, _ = self._remote
        place = self.place_of(folder)
        local = {name: self._digest(folder / name) for name in _files_of(folder)}
        for name, digest in contents.files.items():
            if local.get(name) == digest:
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            random_ending = os.urandom(8).hex()
            part = target.with_name(f".{target.name}.{random_ending}")
            try:
                remote.get_file(f"{place}/{name}", str(part))
                if not is_live or self._digest(part) == digest:
                    os.replace(part, target)
            except FileNotFoundError:
                continue  # deleted since the contents were written
            except Exception as error:
                raise self._unreachable(error) from error
            finally:
                part.unlink(missing_ok=True)
                self.digests.pop(part, None)
        # A checkpoint that its job has deleted is not to be the newest one here.
        for name in local.keys() - contents.files:
            if name.startswith("checkpoints/"):
                (folder / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    (folder / name).parent.rmdir()

    def contents_of(self, folder: Path) -> "Contents":
        """The contents of a copy; empty where there is none."""
        remote, _ = self._remote
        try:
            text = remote.cat_file(f"{self.place_of(folder)}/{CONTENTS}")
        except FileNotFoundError:
            return Contents()
        except Exception as error:
            raise self._unreachable(error) from error
        return Contents.read(text)

    def _digest(self, path: Path) -> Digest:
        """The digest of a file, read again only where its size or time has changed."""
        status = path.lstat()
        stamp = (status.st_size, status.st_mtime_ns)
        known = self.digests.get(path)
        if known and known[0] == stamp:
            return known[1]
        digest = Digest(status.st_size, sha256(path))
        self.digests[path] = (stamp, digest)
        return digest

    def _unreachable(self, error: Exception) -> EnvironmentFault:
        """The error of a store that cannot be read or written, with what its library says."""
        return EnvironmentFault(
            Fault(
                where="launcher.store",
                found=f"{self.url}: {describe(error)[:200]}",
                expected="a folder that can be read and written from here, as s3://bucket/runs "
                "with the package s3fs and its credentials",
                fix="the same command where it can be reached, or launcher.store=<another>",
            )
        )


@dataclass(frozen=True)
class Contents:
    """The files of a copy, with the state, step and time of the status that they belong to."""

    state: str = ""
    step: int = 0
    updated: str = ""
    files: Mapping[str, Digest] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The content of the file in the store."""
        files = {}
        for name, digest in self.files.items():
            files[name] = [digest.size, digest.sha256]
        content = {
            "state": self.state,
            "step": self.step,
            "updated": self.updated,
            "files": files,
        }
        return json.dumps(content).encode()

    @classmethod
    def read(cls, text: bytes) -> "Contents":
        """The contents that a file holds; empty where it is torn, or names files elsewhere."""
        try:
            values = json.loads(text)
            files = {}
            for name, (size, sha256) in values["files"].items():
                path = PurePosixPath(name)
                if path.is_absolute() or ".." in path.parts or path.name in NOT_GIVEN:
                    raise ValueError(name)
                files[str(path)] = Digest(int(size), str(sha256))
            return cls(
                state=str(values["state"]),
                step=int(values["step"]),
                updated=str(values["updated"]),
                files=files,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()


def _files_of(folder: Path) -> list[str]:
    """The files of a run folder as they are to be sent; those that seal others come last."""
    names = []
    for parent, _, files in os.walk(folder):
        for file in files:
            path = Path(parent, file)
            is_left = LEFT_BY_WRITES.fullmatch(file)
            if file not in NOT_GIVEN and not is_left and path.is_file() and not path.is_symlink():
                names.append(path.relative_to(folder).as_posix())
    return sorted(names, key=_rank)


def _rank(name: str) -> tuple[int, str]:
    file = PurePosixPath(name).name
    return (LAST.index(file) if file in LAST else -1, name)


# --- The job --------------------------------------------------------------------------------------


def train_from_store(folder: Path, url: str, debug: bool = False) -> int:
    """Fetch a run and what it builds on, train it, give it back meanwhile; returns the exit code.

    A signal that asks to stop is passed on, and what was saved then is given back as well.
    """
    store = Store(url)
    words = [*processes.python_words("runner.launch"), str(folder), "--trust", "--launch"]
    if debug:
        words.append("--debug")
    try:
        if not store.fetch(folder):
            raise ConfigError(
                Fault(
                    where="--store",
                    found=f"no copy of {folder} in {store.url}",
                    expected="the run that a command with launcher.store has put there",
                    fix="the same command again, which puts it there",
                )
            )
        for used in used_folders(folder):
            store.fetch(used, is_newest=False)
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        with signals.handle_signals(lambda number, _: process.send_signal(number)):
            _give_meanwhile(store, folder, process)
            _give_at_last(store, folder)
        code = process.returncode
        return code if code >= 0 else code_of(-code)
    except RunnerError as error:
        print_error(error)
        return error.code


def used_folders(folder: Path) -> set[Path]:
    """The folders of the runs that a run builds on."""
    return set(map(Path, Run(folder).manifest().get("uses", {}).values()))


def _give_meanwhile(store: Store, folder: Path, process: "subprocess.Popen[bytes]") -> None:
    """Give a run back until its process ends: each checkpoint at once, all else now and then."""
    run = Run(folder)
    seals = list(run.checkpoints.glob(f"*/{SEAL}"))
    due = time.monotonic() + PAUSE
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL)
        new_seals = list(run.checkpoints.glob(f"*/{SEAL}"))
        if new_seals == seals and time.monotonic() < due:
            continue
        # What cannot be given now is given the next time.
        with contextlib.suppress(EnvironmentFault):
            store.give(folder)
            seals = new_seals
        due = time.monotonic() + PAUSE


def _give_at_last(store: Store, folder: Path) -> None:
    """Give the store a run that has ended; what fails is tried again, as this is the last time.

    The machine may be gone a moment later, and with it all that is not in the store.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            store.give(folder)
            return
        except EnvironmentFault as error:
            if attempt == ATTEMPTS:
                raise
            found = error.faults[0].found
            print(f"store     {found}; once more in {PAUSE:g} s", file=sys.stderr)
            time.sleep(PAUSE)
