"""Fingerprints of a run's inputs on this machine: files of rows, models and templates, and code.

The code is that of the user's packages. A file with the size and the time that it had is the same,
and only another one is read. What the hub gives is known by its commit, the rows that came out by
their hash (``training.beginning``), and what ships with the package by its version.
"""

import hashlib
from collections.abc import Iterator, Mapping
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from runner.errors import Fault, FolderError
from runner.io.files import PACKAGE, SHIPPED, read_json, shipped
from runner.run.folder import Run
from runner.run.key import lasting
from runner.run.seal import SEAL, sealed_checkpoints
from runner.schema.code import find_code, packages_of
from runner.schema.text import Config, flatten, last_key, walk

# ends of the keys whose files are read
NAMES = ("path", "file", "files", "template", "deepspeed", "fsdp_config")
# Of a folder these files are inputs ...
SUFFIXES = {
    ".json",
    ".jsonl",
    ".ndjson",
    ".csv",
    ".tsv",
    ".parquet",
    ".gz",
    ".zst",
    ".safetensors",
    ".bin",
    ".model",
    ".txt",
    ".jinja",
    ".tiktoken",
    ".py",
    ".yaml",
    ".yml",
}
# ... but these are not.
NOT_INPUTS = {"training_args.json", "trainer_state.json", SEAL}
CODE = "code"
BASE = "base of"  # an adapter; the key of its path follows
FACTS = ("data", "tokenizer", "model")  # of a manifest
TRAIN_AGAIN = "name=<another name>, to train again with what is there now"
# Of a larger file as many bytes are read, in pieces from all over it.
MAX_BYTES_HASHED_WHOLE = 64 << 20
PIECES = 64
MAX_LETTERS_OF_PATH = 255
Fingerprint = list[int | str]  # size in bytes, time of the last change in ns, digest
Fingerprints = dict[str, dict[str, Fingerprint]]  # by key of the configuration, by file


# --- Fingerprints -------------------------------------------------------------------------------
def read_fingerprints(cfg: Config, known: Fingerprints | None = None) -> Fingerprints:
    """The fingerprints of the files behind each key of a configuration.

    ``known`` ones spare reading files again.
    """
    fingerprints: Fingerprints = {}
    for key, files in _files_of_keys(cfg):
        old_fingerprints = (known or {}).get(key, {})
        for name, file in sorted(files.items()):
            status = file.stat()
            old = old_fingerprints.get(name)
            if old and old[:2] == [status.st_size, status.st_mtime_ns]:
                digest = str(old[2])
            else:
                digest = _digest(file, status.st_size)
            fingerprint: Fingerprint = [status.st_size, status.st_mtime_ns, digest]
            fingerprints.setdefault(key, {})[name] = fingerprint
    return fingerprints


def _files_of_keys(cfg: Config) -> Iterator[tuple[str, dict[str, Path]]]:
    """The files behind each key whose value is a path or a pattern, and of the user's packages."""
    for key, value in walk(lasting(cfg)):
        if not isinstance(value, str):
            continue
        is_read = last_key(key).endswith(NAMES) and not key.startswith("callback.")
        if not is_read:
            continue
        may_be_path = len(value) <= MAX_LETTERS_OF_PATH and "\n" not in value
        # What ships with us is known by its version.
        if may_be_path and not value.startswith(SHIPPED):
            place = Path(shipped(value))
            as_typed = str(Path(value))  # with ~ as it stands there
            files = {}
            for file in _files_at(place, value):
                if file.is_file():
                    files[str(file).replace(str(place), as_typed, 1)] = file
            yield key, files
            # The folder that an adapter belongs on, unless that ships with us.
            adapter = read_json(place / "adapter_config.json") or {}
            base = adapter.get("base_model_name_or_path")
            if base and Path(base).is_dir() and not Path(base).is_relative_to(PACKAGE):
                base_files = list(_files_at(Path(base), ""))
                yield f"{BASE} {key}", {str(file): file for file in base_files}
    for package, sources in find_code(packages_of(cfg)).items():
        yield f"{CODE} {package}", sources


def _files_at(place: Path, pattern: str) -> Iterator[Path]:
    """The files that a pattern matches, or the inputs in a folder, or a file, perhaps missing."""
    if has_magic(pattern) and not place.exists():
        yield from map(Path, glob(str(place), recursive=True))
    elif place.is_dir():
        for folder in (place, place / "data", place / "policy"):
            for file in folder.glob("[!.]*"):
                if file.suffix in SUFFIXES and file.name not in NOT_INPUTS:
                    yield file
    else:
        yield place


def _digest(file: Path, size: int) -> str:
    """The hash of a file's bytes, or of pieces from all over a large one."""
    with open(file, "rb") as content:
        if size <= MAX_BYTES_HASHED_WHOLE:
            return hashlib.file_digest(content, "sha256").hexdigest()
        sha = hashlib.sha256()
        piece_size = MAX_BYTES_HASHED_WHOLE // PIECES
        for piece in range(PIECES):
            content.seek(piece * (size - piece_size) // (PIECES - 1))
            sha.update(content.read(piece_size))
        return sha.hexdigest()


# --- Changes ------------------------------------------------------------------------------------
def check_fingerprints(run: Run) -> list[str]:
    """Raise FolderError where files have changed from which a run's checkpoints or model came.

    Returns a line on each package of the user's that has changed.
    """
    then = run.manifest().get("inputs")
    if not isinstance(then, dict):
        return []
    is_finished = run.status()["state"] == "finished"
    if not is_finished and not sealed_checkpoints(run.checkpoints):
        return []
    return find_changes(run.cfg, then)


def find_changes(cfg: Config, then: Fingerprints) -> list[str]:
    """A line on each package of the user's that has changed since these fingerprints were taken.

    Raises FolderError where any other file behind a configuration has changed.
    """
    now = read_fingerprints(cfg, then)
    faults = []
    notes = []
    for key in {**then, **now}:
        # Runs that an earlier version began have none of them.
        if key.startswith(BASE) and key not in then:
            continue
        lines = _describe_changes(then.get(key, {}), now.get(key, {}))
        if not lines:
            continue
        changes = "; ".join(lines)
        if key.startswith(CODE):
            notes.append(f"{key} has changed since the run began: {changes}")
        else:
            faults.append(
                Fault(
                    where=key,
                    found=changes,
                    expected="the inputs that the run began with",
                    fix=TRAIN_AGAIN,
                )
            )
    FolderError.refuse(faults)
    return notes


def _describe_changes(then: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint]) -> list[str]:
    """A line for each file that is new, gone, or of other bytes."""
    old_files = {shipped(name): fingerprint for name, fingerprint in then.items()}
    new_files = {shipped(name): fingerprint for name, fingerprint in now.items()}
    lines = []
    for file in {**old_files, **new_files}:
        old = old_files.get(file)
        new = new_files.get(file)
        if old is None:
            lines.append(f"{file} is new")
        elif new is None:
            lines.append(f"{file} is gone")
        elif old[0] != new[0]:
            lines.append(f"{file}: {old[0]} -> {new[0]} bytes")
        elif old[2] != new[2]:
            old_digest = str(old[2])[:10]
            new_digest = str(new[2])[:10]
            lines.append(f"{file}: {old_digest} -> {new_digest}")
    return lines


def find_other_facts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Fault]:
    """A fault for each fact of rows, tokenizer and base model in which two manifests differ."""
    old_facts = flatten({key: then.get(key) or {} for key in FACTS})
    new_facts = flatten({key: now.get(key) or {} for key in FACTS})
    old_facts.pop("model.path", None)  # where it was found; the others say what was found there
    faults = []
    for key, old in old_facts.items():
        new = new_facts.get(key)
        if old is None or new is None or old == new:
            continue
        faults.append(
            Fault(
                where=key,
                found=f"{str(old)[:12]} -> {str(new)[:12]}",
                expected="as the checkpoints were trained on",
                fix=TRAIN_AGAIN,
            )
        )
    return faults
