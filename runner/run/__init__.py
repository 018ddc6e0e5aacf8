"""The run folder: its format, its lock, its states and its manifest.

The folder is the contract between the command line, the worker and every command that comes after.

    config.yaml     the format, and the run      status.json     created, running, interrupted, ...
    manifest.json   what it was made with        metrics.jsonl   one line per logged step
    scores.json     held-out, before and after   log.txt         everything that was said
    checkpoints/    sealed one by one            model/          what others can load
"""

import contextlib
import logging
import os
import platform
import shlex
import socket
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from runner.config.limits import read_yaml
from runner.config.menu import GROUPS
from runner.errors import ConfigError, Fault, FolderError, fault
from runner.io.files import ROWS, display_path, open_own, read_json, read_last_row, read_step, write_json, write_text
from runner.io.secrets import hidden, hidden_source
from runner.io.visible import to_visible
from runner.run.key import canonical_text, folder_of, key_of
from runner.run.place import RunPlace
from runner.schema.text import Config, walk

log = logging.getLogger(__name__)

# Of a run folder. It grows where a file in it, or what a key of its config means, is no longer what it was; a folder of
# another format is refused by everything that reads it.
FORMAT = 2
METADATA = ("config.yaml", "status.json", "manifest.json", "scores.json", "metrics.jsonl")
FILES = (*METADATA, *ROWS, "log.txt", "adjustments.json", ".lock")
FOLDERS = ("checkpoints", "model", "plots", ".model.new")
STATES = ("created", "queued", "running", "interrupted", "failed", "finished")
CHANGES = ("diff", "--no-ext-diff", "--no-textconv", "HEAD")  # uncommitted, whatever programs git's settings name
# The types of what is read again of the files of a run, of a mapping or a list those of what is in it.
SHAPES: dict[str, Any] = {
    **dict.fromkeys(("step", "max_steps", "starts"), int),
    **dict.fromkeys(("state", "cause", "started", "updated", "python", "key"), str),
    **{key: [str] for key in ("command", "notes")},
    **{key: {"": str} for key in ("versions", "uses", "files")},
    **{key: {"": object} for key in ("choices", "hardware", "git", "queued", "before", "after", *GROUPS)},
    **{"disk": {"": int}, "inputs": {"": {"": [(int, str)]}}},
    **{"adjustments": [(dict, str)], "data": {"": {"": object}}},
}
TRUSTING = ("allow=", "--config-dir", "-cd")  # words of a command that let files or code of somebody run
LIBRARIES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "bitsandbytes", "hydra-core")
PATIENCE = 1.0  # seconds: who only looks whether a folder is held has let go by then, who holds it has said who it is


@dataclass(frozen=True)
class Run:
    """One folder under ``outputs/<name>/`` and the files in it; with a ``place`` where this process trains in it."""

    folder: Path
    place: RunPlace | None = field(default=None, compare=False, repr=False)

    @cached_property
    def cfg(self) -> dict[str, Any]:
        """The frozen configuration, whatever YAML files say today; FolderError for garbage, or another format."""
        path = self.folder / "config.yaml"
        fix = f"rm {path}  (and the command that made the run, which writes it again)"
        try:
            found = read_yaml(path)
        except ConfigError as error:
            raise FolderError(replace(each, fix=fix) for each in error.faults) from None
        if not is_shaped(found):
            raise FolderError(Fault(str(path), "it cannot be read", "the configuration of the run", fix))
        if (number := found.pop("format", 1)) != FORMAT:
            raise FolderError(format_fault(self.folder, number))
        return found

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

    def status(self) -> dict[str, Any]:
        """The last state that was written; that of a run which was only created where none was, or none can be read."""
        found = read_json(self.folder / "status.json") or {}
        is_sound = found.get("state") in STATES and isinstance(found.get("queued") or {}, dict)
        return {"state": "created", "step": 0, "max_steps": 0} | (found if is_sound else {})

    def manifest(self) -> dict[str, Any]:
        """The manifest of the run; empty where nothing was, or nothing can be read."""
        return read_json(self.folder / "manifest.json") or {}

    def check_there(self) -> None:
        """Raise FolderError where the folder was moved or deleted while somebody worked in it."""
        is_moved = self.place is not None and not self.place.is_there()
        if is_moved or not os.path.exists(f"{self.folder}/config.yaml"):
            raise FolderError(fault("run.gone", folder=self.folder))

    def set_status(self, state: str | None = None, **changes: object) -> None:
        """Replace the state atomically, keeping what is not named; in a folder that is there."""
        now = _now()
        status = self.status()
        status |= {"cause": status.get("cause"), "started": status.get("started", now)} | changes
        status |= {"pid": os.getpid(), "host": socket.gethostname(), "updated": now}
        if state:
            status["state"] = state
        if state in ("failed", "interrupted"):  # how far it is, is written once in a while
            status["step"] = read_last_row(self.metrics).get("step", status.get("step"))
        if state == "running":
            status["since"] = now
        if state != "created":
            self.check_there()
        write_json(self.folder / "status.json", status)


def format_fault(folder: Path, number: object) -> Fault:
    """The fault of a run folder of another format, with the command that trains the same run in a new folder."""
    age = "an older" if number in range(FORMAT) else "a newer"
    command = Run(folder).manifest().get("command")
    fix = "name=<another name>, and the words of the command that made it"
    if isinstance(command, list) and command[:3] == ["python", "-m", "runner"]:
        words = [str(word) for word in command if not str(word).startswith("name=")]
        fix = to_visible(shlex.join([*words, f"name={folder.parent.name}-again"]))
        if any(word.startswith(TRUSTING) or "trust" in word for word in words):
            fix += "  (if you trust who wrote its manifest.json)"
    return fault("run.other_format", folder=display_path(folder), number=number, age=age, own=FORMAT, fix=fix)


def write_config(folder: Path, cfg: Mapping[str, Any]) -> None:
    """Freeze a configuration in a run folder, below the format of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"format": FORMAT} | dict(cfg)
    write_text(folder / "config.yaml", yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))


def open_run(cfg: Config, overrides: Sequence[str], command: Sequence[str] = (), choices: Config | None = None) -> Run:
    """The folder that holds this configuration's key, or a new one with it frozen; ``command`` makes this run alone."""
    root = Path(str(cfg["output_root"])).resolve()
    group = (root / str(cfg["name"])).resolve()
    if not str(cfg["name"]).strip() or not group.is_relative_to(root) or group == root:
        raise FolderError(fault("run.name_leads_out", name=cfg["name"], root=root))
    key, folder = key_of(cfg), folder_of(cfg, overrides).absolute()
    run, options = Run(folder), {group: option for group, option in (choices or {}).items() if "/" not in group}
    recorded = {"command": ["python", "-m", "runner", *map(hidden, command or overrides)], "choices": options}
    check_metadata(run)
    if not (folder / "config.yaml").exists():
        if run.checkpoints.is_dir() and not any((folder / name).exists() for name in METADATA[:3]):
            found = "checkpoints without a run: its folder was moved away while it saved"
            fix = f"rm -r {shlex.quote(str(folder))}, then put the folder back, or train again"
            raise FolderError(Fault(str(folder), found, "a whole run, or nothing", fix))
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FolderError), locked(run, PATIENCE):  # who holds it by now has written them
            if not (folder / "status.json").exists():
                run.set_status("created")
            if not (folder / "manifest.json").exists():
                write_json(folder / "manifest.json", recorded)
            if not (folder / "config.yaml").exists():
                write_config(folder, cfg)  # last, because a folder is a run's where this file is
    elif key_of(run.cfg) != key:
        raise FolderError(fault("run.of_another_run", folder=folder, key=key))
    elif run.status()["state"] != "finished" and canonical_text(run.cfg) != canonical_text(cfg):
        with contextlib.suppress(FolderError), locked(run):  # who holds it has read the old one
            write_config(folder, cfg)
            write_json(folder / "manifest.json", run.manifest() | recorded)
        return Run(folder)
    return run


def check_metadata(run: Run) -> None:
    """Raise FolderError with each file of metadata in the folder that is not what was written there."""
    FolderError.refuse(find_foreign_faults(run.folder))
    faults: list[Fault] = []
    if (run.folder / "config.yaml").exists():
        key, known = key_of(run.cfg), run.manifest().get("key")
        if known not in (None, key):
            faults.append(fault("run.changed_config", file=run.folder / "config.yaml", key=key, known=known))
    after = {"status.json": "goes on from its newest whole checkpoint", "manifest.json": "is recorded again"}
    after |= {"scores.json": "is measured at its end only", "adjustments.json": "goes on as its config says"}
    for name, consequence in after.items():
        path = run.folder / name
        found = read_json(path)
        if path.exists() and not (is_shaped(found) and (name != "status.json" or found.get("state") in STATES)):
            faults.append(fault("run.torn_metadata", file=path, consequence=consequence))
    FolderError.refuse(faults)


def is_shaped(content: object, shape: Any = None) -> TypeGuard[dict[str, Any]]:
    """True for the content of a file of a run in which each key that is read again holds what is written there."""
    if isinstance(content, dict) and isinstance(shape, dict | None):
        inner = SHAPES if shape is None else dict.fromkeys(content, shape[""])
        args = content.get("args") or {} if shape else {}
        return isinstance(args, dict) and all(is_shaped(content[key], inner[key]) for key in content if key in inner)
    if isinstance(content, list) and isinstance(shape, list):
        return all(is_shaped(entry, shape[0]) for entry in content)
    return shape is not None and (content is None or (isinstance(shape, type | tuple) and isinstance(content, shape)))


def find_foreign_faults(folder: Path, depth: int | None = None) -> list[Fault]:
    """The faults of a run folder, so deep if not as a whole, in which something does not belong in its place.

    Links to it are the user's. One inside it would have files elsewhere overwritten, deleted or shown, and a pipe would
    have us wait for ever. wandb makes links in its own folder, where we neither write nor delete.
    """
    return list(foreign_faults(map(Path, sorted(_find_foreign(str(folder), depth)))))


def _find_foreign(folder: str, depth: int | None, inside: str = "") -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if inside + entry.name in FILES:
                    yield entry.path
                if entry.name != "wandb" and depth != 1:
                    yield from _find_foreign(entry.path, depth and depth - 1, f"{inside}{entry.name}/")
            elif inside + entry.name in FOLDERS or not entry.is_file(follow_symlinks=False):
                yield from [entry.path] if os.path.lexists(entry.path) else []  # it was there only for a moment


def foreign_faults(paths: Iterable[Path]) -> Iterator[Fault]:
    """A fault for each thing in a folder of ours that does not belong in its place: nothing goes through it."""
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    expected = {"a folder": "a file", "a file": "a folder"}
    usual = "a file or a folder; what is on another disk is the whole run, by output_root=<folder>"
    for path in paths:
        found = f"a link to {os.readlink(path)}" if path.is_symlink() else ""
        found = found or kinds.get(stat.S_IFMT(path.stat().st_mode), "a device")
        yield Fault(str(path), found, expected.get(found, usual), f"rm {'-r ' if found == 'a folder' else ''}{path}")


def check_lines(run: Run) -> None:
    """Raise FolderError where the log of the steps holds anything but lines of steps; the last may be cut off."""
    if not run.metrics.exists():
        return
    with open_own(run.metrics, "rb") as file:
        text = file.read()
    *lines, last = text.split(b"\n")
    bad = [number for number, line in enumerate(lines, 1) if read_step(line + b"\n") is None]
    if not (last.startswith(b"{") or not last.strip(b"\0" if lines else b"")):
        bad.append(len(lines) + 1)  # after whole lines, zeros are a last write that never reached the disk
    if bad:
        raise FolderError(fault("run.torn_lines", file=run.metrics, lines=", ".join(map(str, bad[:5]))))


@contextlib.contextmanager
def locked(run: Run, patience: float = 0.0) -> Iterator[None]:
    """Hold the folder until this process ends, however; FolderError where another has it after ``patience`` seconds."""
    from filelock import FileLock, Timeout

    lock = run.folder / ".lock"
    if not run.folder.is_dir():  # the lock's library would make it
        raise FolderError(fault("run.gone", folder=run.folder))
    if os.path.lexists(lock) and (lock.is_symlink() or not lock.is_file()):
        raise FolderError(foreign_faults([lock]))
    try:
        with FileLock(lock, timeout=patience):
            yield
    except Timeout:
        holder = run.status()
        pid, host, since = holder.get("pid"), holder.get("host"), holder.get("since", holder.get("started"))
        raise FolderError(fault("run.held", folder=run.folder, pid=pid, host=host, since=since)) from None


def held(run: Run) -> bool:
    """True where a process trains in this folder now, or where that cannot be known because nobody may write there."""
    with contextlib.suppress(FolderError, OSError), locked(run):
        return False
    return run.folder.is_dir()


def write_manifest(run: Run, **facts: object) -> None:
    """Record what is needed to repeat this run, keeping what earlier starts recorded."""
    commit, diff = run_git("rev-parse", "HEAD"), run_git(*CHANGES)
    known = {
        "key": key_of(run.cfg),
        "command": ["python", "-m", "runner.launch", str(run)],
        "created": _now(),
        "python": platform.python_version(),
        "versions": {name: installed_version(name) for name in LIBRARIES},
        "git": None if commit is None or diff is None else {"commit": commit, "diff": hidden_source(diff)},
        "seed": run.cfg.get("seed"),
        "uses": uses_of(run.cfg),
        "starts": 0,
    }
    known |= run.manifest()
    write_json(run.folder / "manifest.json", known | facts)


def add_notes(run: Run, notes: Sequence[str]) -> None:
    """Warn of what whoever reads the figures of a run should know, and keep it in its manifest, each line once."""
    for note in notes:
        log.warning("%s", note)
    if notes:
        write_manifest(run, notes=[*dict.fromkeys((*run.manifest().get("notes", []), *map(hidden, notes)))])


def uses_of(cfg: Mapping[str, Any]) -> dict[str, str]:
    """The runs that a configuration builds on, by the key whose value is a file or a folder of theirs."""
    found = {}
    for key, value in walk(cfg):
        folders = Path(value).parents if isinstance(value, str) and os.path.exists(value) else ()
        if run := next((folder for folder in folders if all((folder / name).exists() for name in METADATA[:2])), None):
            found[key] = str(Run(run))
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def installed_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError):  # a run of others names any
        return metadata.version(name)
    return None


def run_git(*words: str, text: str | None = None, folder: Path | None = None) -> str | None:
    """The output of git in a folder, or in the working one; None where it refuses or is not there."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        words = ("git", *words)
        return subprocess.run(words, capture_output=True, text=True, check=True, input=text, cwd=folder).stdout.strip()
    return None
