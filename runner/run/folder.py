"""A run folder: its format, its frozen configuration, its state and its lock."""

import contextlib
import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from runner.config.experiment import Experiment
from runner.config.frozen_yaml import read_frozen
from runner.config.limits import read_yaml
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import (
    JsonObject,
    display_path,
    read_json,
    read_last_row,
    write_json,
    write_text,
)
from runner.io.visible import to_visible
from runner.run import faults
from runner.run.layout import STATES, foreign_faults
from runner.run.metadata import is_shaped
from runner.run.place import RunPlace

# The format of a run folder. It grows where a file in it, or what a key of its config means, is no
# longer what it was; a folder of another format is refused by everything that reads it.
FORMAT = 2
# words of a command that let files or code of somebody run
TRUSTING = ("allow=", "--config-dir", "-cd")
# Seconds after which a process that only looked whether a folder is held has freed it again, and
# one that holds it has written into the status who it is.
PATIENCE = 1.0


@dataclass(frozen=True)
class Run:
    """One folder under ``outputs/<name>/`` and the files in it.

    It has a ``place`` where this process trains in it.
    """

    folder: Path
    place: RunPlace | None = field(default=None, compare=False, repr=False)

    @cached_property
    def cfg(self) -> JsonObject:
        """The frozen configuration, whatever YAML files say today.

        Raises FolderError for garbage, and for a folder of another format.
        """
        path = self.folder / "config.yaml"
        fix = f"rm {path}  (and the command that made the run, which writes it again)"
        try:
            content = read_frozen(path, read_yaml)
        except ConfigError as error:
            raise FolderError(replace(fault, fix=fix) for fault in error.faults) from None
        if not is_shaped(content):
            raise FolderError(
                Fault(
                    where=str(path),
                    found="it cannot be read",
                    expected="the configuration of the run",
                    fix=fix,
                )
            )
        number = content.pop("format", 1)
        if number != FORMAT:
            raise FolderError(format_fault(self.folder, number))
        return content

    @cached_property
    def experiment(self) -> Experiment:
        """The frozen configuration as an object; the same errors as for ``cfg``."""
        return Experiment.read(self.cfg)

    def __str__(self) -> str:
        """The folder as a user would type it from here."""
        return display_path(self.folder)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def status(self) -> JsonObject:
        """The last state that was written; where none can be read, that of a run just created."""
        created = {"state": "created", "step": 0, "max_steps": 0}
        status = read_json(self.folder / "status.json") or {}
        queued = status.get("queued") or {}
        if status.get("state") not in STATES or not isinstance(queued, dict):
            return created
        return created | status

    def manifest(self) -> JsonObject:
        """The manifest of the run; empty where nothing was written, or nothing can be read."""
        return read_json(self.folder / "manifest.json") or {}

    def check_there(self) -> None:
        """Raise FolderError where the folder was moved or deleted while somebody worked in it."""
        is_moved = self.place is not None and not self.place.is_there()
        if is_moved or not os.path.exists(f"{self.folder}/config.yaml"):
            raise FolderError(faults.gone(self.folder))

    def set_status(self, state: str | None = None, **changes: object) -> None:
        """Change the status atomically; what is not named stays.

        Raises FolderError where the folder of a run that has begun is gone.
        """
        time = now()
        status = self.status()
        status.setdefault("cause", None)
        status.setdefault("started", time)
        if "cause" in changes:
            status.pop("error", None)  # it was that of the old cause
        status |= changes
        status |= {"pid": os.getpid(), "host": socket.gethostname(), "updated": time}
        if state:
            status["state"] = state
        if state in ("failed", "interrupted"):
            # The step in the status is written once in a while; that of the last row is exact.
            status["step"] = read_last_row(self.metrics).get("step", status.get("step"))
        if state == "running":
            status["since"] = time
        if state != "created":
            self.check_there()
        write_json(self.folder / "status.json", status)


def now() -> str:
    """The time as status and manifest hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def format_fault(folder: Path, number: object) -> Fault:
    """The fault of a run folder of another format.

    Its fix is the command that trains the same run in a new folder, by the manifest.
    """
    age = "an older" if number in range(FORMAT) else "a newer"
    command = Run(folder).manifest().get("command")
    fix = "name=<another name>, and the words of the command that made it"
    if isinstance(command, list) and command[:3] == ["python", "-m", "runner"]:
        words = [str(word) for word in command if not str(word).startswith("name=")]
        other_name = f"name={folder.parent.name}-again"
        fix = to_visible(shlex.join([*words, other_name]))
        if any(word.startswith(TRUSTING) or "trust" in word for word in words):
            fix += "  (if you trust who wrote its manifest.json)"
    return Fault(
        where=display_path(folder),
        found=f"format {number}, of {age} runner",
        expected=f"format {FORMAT}",
        fix=f"{fix}  (trains it again, in a new folder)",
    )


def write_config(folder: Path, cfg: Mapping[str, Any]) -> None:
    """Freeze a configuration in a run folder, below the format of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, **cfg}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_text(folder / "config.yaml", text)


# --- One process at a time ----------------------------------------------------------------------
@contextlib.contextmanager
def locked(run: Run, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder until this process ends, however that happens.

    Raises FolderError where another process still has it after ``patience`` seconds.
    """
    from filelock import FileLock, Timeout

    lock = run.folder / ".lock"
    if not run.folder.is_dir():  # the lock's library would make it
        raise FolderError(faults.gone(run.folder))
    if os.path.lexists(lock) and (lock.is_symlink() or not lock.is_file()):
        raise FolderError(foreign_faults([lock]))
    try:
        with FileLock(lock, timeout=patience):
            yield
    except Timeout:
        status = run.status()
        since = status.get("since", status.get("started"))
        raise FolderError(
            Fault(
                where=str(run.folder),
                found=f"held by pid {status.get('pid')} on {status.get('host')} since {since}",
                expected="a folder that no other process trains in",
                fix="wait for it, or start another run: name=<another name>",
            )
        ) from None


def held(run: Run) -> bool:
    """True where a process trains in this folder now, or nobody may write there to find out."""
    with contextlib.suppress(FolderError, OSError), locked(run):
        return False
    return run.folder.is_dir()
