"""The run folder: its name, its lock, its states, its manifest, and its newest sealed checkpoint.

The folder is the contract between the door, the worker and every command that comes after. Nothing
here trains, and nothing heavy is imported.

    config.yaml     frozen and resolved          status.json     created, running, interrupted, ...
    manifest.json   what it was made with        metrics.jsonl   one line per logged step
    scores.json     held-out, before and after   log.txt         everything that was said
    checkpoints/    sealed one by one            model/          what others can load
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from runner.errors import Fault, FolderError
from runner.files import SEAL, read_json, remove, verify, write_json, write_text

# What names, places or launches a run but cannot change its result stays out of its key; so do the two settings that
# act only through what the trainer calls them.
VOLATILE = frozenset({"name", "output_root", "launcher", "tracker", "allow", "objective", "learning_rate", "kl_coef"})
IN_THE_NAME = frozenset(
    {"trainer", "model", "dataset", "experiment", "sweep", "objective", "name", "output_root", "launcher", "tracker"}
)
LIBRARIES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "bitsandbytes",
    "hydra-core",
)


@dataclass(frozen=True)
class Run:
    """One folder under ``outputs/<name>/`` and the papers in it."""

    folder: Path

    @cached_property
    def cfg(self) -> dict[str, Any]:
        """The frozen configuration; what the run is, whatever YAML files say today."""
        return yaml.safe_load((self.folder / "config.yaml").read_text(encoding="utf-8"))

    def __str__(self) -> str:
        """The folder as a user would type it from here."""
        return os.path.relpath(self.folder) if self.folder.is_relative_to(Path.cwd()) else str(self.folder)

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
        """The last state that was written; ``{"state": "created"}`` where none was."""
        return read_json(self.folder / "status.json") or {
            "state": "created",
            "step": 0,
            "max_steps": 0,
        }

    def set_status(self, state: str | None = None, **changes: Any) -> None:
        """Replace the state atomically, keeping what is not named."""
        now = _now()
        status = {
            "state": "created",
            "step": 0,
            "max_steps": 0,
            "cause": None,
            "started": now,
        } | self.status()
        status |= changes | {"pid": os.getpid(), "host": socket.gethostname(), "updated": now}
        if state:
            status["state"] = state
        write_json(self.folder / "status.json", status)


def key_of(cfg: Mapping[str, Any]) -> str:
    """Ten hex digits that name a configuration: equal where the result must be equal.

    >>> key_of({"seed": 1, "name": "a"}) == key_of({"name": "b", "seed": 1.0})
    True
    """
    lasting = _alike({key: value for key, value in cfg.items() if key not in VOLATILE})
    # More processes make a larger batch, and that is another training.
    launcher = cfg.get("launcher") or {}
    if (processes := launcher.get("num_processes", 1) * launcher.get("num_machines", 1)) > 1:
        lasting["processes"] = processes
    return hashlib.sha256(json.dumps(lasting, sort_keys=True, default=str).encode()).hexdigest()[:10]


def _alike(value: Any) -> Any:
    """The same value, with 1.0 written as 1 wherever it is."""
    if isinstance(value, Mapping):
        return {key: _alike(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_alike(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def label_of(overrides: Sequence[str]) -> str:
    """The overrides as a short folder name, without what the name of the run says already.

    Only characters that neither a shell nor Hydra's grammar reads as their own, because people type
    ``model.path=outputs/...``.

    >>> label_of(["trainer=dpo", "kl_coef=0.05", "trainer.args.max_steps=3"])
    'kl_coef-0.05+max_steps-3'
    """
    words = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key not in IN_THE_NAME and not key.startswith(("hydra", "launcher.", "tracker.", "~")):
            text = f"{key.rpartition('.')[2]}-{value.rstrip('/').rpartition('/')[2]}"
            words.append(re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-."))
    return "+".join(words)[:80].strip("-.+") or "default"


def folder_of(cfg: Mapping[str, Any], overrides: Sequence[str]) -> Path:
    """Where a configuration is trained: the folder that holds its key, or else the one that will.

    >>> str(folder_of({"output_root": "outputs", "name": "a"}, ["seed=1"]))
    'outputs/a/seed-1-44136fa355'
    """
    key, group = key_of(cfg), Path(str(cfg["output_root"])) / str(cfg["name"])
    known = sorted(group.glob(f"*-{key}"))
    return known[0] if known else group / f"{label_of(overrides)}-{key}"


def open_run(cfg: Mapping[str, Any], overrides: Sequence[str], command: Sequence[str] = ()) -> Run:
    """The folder of this configuration: the one that holds its key already, or a new one with the config frozen.

    ``command`` are the words of the command line that make this run alone, for whoever wants to repeat it.
    """
    key = key_of(cfg)
    _check_name(cfg)
    folder = folder_of(cfg, overrides).absolute()
    run = Run(folder)
    if not (folder / "config.yaml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "config.yaml", yaml.safe_dump(dict(cfg), sort_keys=False, allow_unicode=True))
        run.set_status("created")
        write_json(folder / "manifest.json", {"command": ["python", "-m", "runner", *(command or overrides)]})
    elif key_of(run.cfg) != key:
        raise FolderError(
            Fault(
                str(folder),
                "its config.yaml is that of another run",
                f"the key {key}",
                "name=<another name>",
            )
        )
    return run


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets go when the process ends, however it ends."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(run.folder / ".lock", timeout=0):
            yield
    except Timeout:
        holder = run.status()
        found = f"held by pid {holder.get('pid')} on {holder.get('host')}"
        raise FolderError(
            Fault(
                str(run.folder),
                f"{found} since {holder.get('started')}",
                "a folder that no other process trains in",
                "wait for it, or start another run: name=<another name>",
            )
        ) from None


def held(run: Run) -> bool:
    """Whether a process trains in this folder now."""
    try:
        with locked(run):
            return False
    except FolderError:
        return True


def sealed_checkpoints(run: Run) -> list[Path]:
    """The checkpoints that carry a seal, oldest first."""
    found = [(int(path.name.rpartition("-")[2]), path) for path in run.checkpoints.glob("checkpoint-[0-9]*")]
    return [path for _, path in sorted(found) if (path / SEAL).exists()]


def last_checkpoint(run: Run, clean: bool = True) -> Path | None:
    """The newest checkpoint whose every file is as it was sealed; ``clean`` removes what is newer and broken.

    A torn checkpoint must go before training: the next save of the same step would otherwise mix with it.
    """
    good = next((path for path in reversed(sealed_checkpoints(run)) if verify(path)), None)
    step = int(good.name.rpartition("-")[2]) if good else -1
    for path in run.checkpoints.glob("checkpoint-*") if clean else ():
        number = path.name.rpartition("-")[2]
        if not number.isdigit() or int(number) > step:
            remove(path)
    return good


def write_manifest(run: Run, **facts: Any) -> None:
    """Record what is needed to repeat this run, keeping what earlier starts recorded."""
    known = {
        "key": key_of(run.cfg),
        "command": ["python", "-m", "runner.work", str(run)],
        "created": _now(),
        "python": platform.python_version(),
        "versions": _versions(),
        "git": _git(),
        "seed": run.cfg.get("seed"),
        "uses": uses_of(run.cfg),
        "starts": 0,
    }
    known |= read_json(run.folder / "manifest.json") or {}
    write_json(run.folder / "manifest.json", known | facts)


def uses_of(cfg: Any, path: str = "") -> dict[str, str]:
    """The runs that a configuration builds on, by the key whose value is a file or a folder of theirs."""
    if isinstance(cfg, Mapping | list):
        entries = cfg.items() if isinstance(cfg, Mapping) else enumerate(cfg)
        found = (uses_of(value, f"{path}.{key}".lstrip(".")) for key, value in entries)
        return {key: run for inner in found for key, run in inner.items()}
    if not isinstance(cfg, str) or not os.path.exists(cfg):
        return {}
    papers = ("config.yaml", "status.json")
    runs = [folder for folder in Path(cfg).parents if all((folder / paper).exists() for paper in papers)]
    return {path: str(Run(runs[0]))} if runs else {}


def _check_name(cfg: Mapping[str, Any]) -> None:
    """Raise FolderError where ``<output_root>/<name>`` leads out of the root."""
    root = Path(str(cfg["output_root"])).absolute()
    group = (root / str(cfg["name"])).resolve()
    if not str(cfg["name"]).strip() or not group.is_relative_to(root.resolve()) or group == root.resolve():
        raise FolderError(
            Fault(
                "name",
                f"{cfg['name']!r} leads out of {root}",
                "a folder name",
                "name=<letters and digits>",
            )
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str | None]:
    def version(name: str) -> str | None:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
        return None

    return {name: version(name) for name in LIBRARIES}


def _git() -> dict[str, str] | None:
    """The commit of the working folder and its uncommitted changes, or None outside a repository."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "diff": git("diff", "HEAD")}
    except (OSError, subprocess.CalledProcessError):
        return None
