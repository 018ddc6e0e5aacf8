"""Fingerprints of a run's inputs on this machine: files of rows, models, templates, and the user's code.

A file with the size and the time that it had is the same, and only another one is read. What the hub gives is known by
its commit, the rows that came out by their hash (``command.train``), and what ships with the package by its version.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from runner.errors import Fault, FolderError
from runner.io.files import SHIPPED, shipped
from runner.run import Run
from runner.run.key import lasting
from runner.run.seal import SEAL, sealed_checkpoints
from runner.schema import upstream
from runner.schema.code import find_code, packages_of
from runner.schema.text import flatten, last_key, walk

NAMES = ("path", "file", "files", "template", upstream.DEEPSPEED, upstream.FSDP_CONFIG)  # ends of keys that are read
SUFFIXES = {".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".gz", ".zst", ".safetensors", ".bin", ".model"}
SUFFIXES |= {".txt", ".jinja", ".tiktoken", ".py", ".yaml", ".yml"}
NOT_INPUTS = {"training_args.json", "trainer_state.json", SEAL}
CODE = "code"
FACTS = ("data", "tokenizer", "model")  # of a manifest
TRAIN_AGAIN = "name=<another name>, to train again with what is there now"
MAX_BYTES_HASHED_WHOLE = 64 << 20  # bytes; of a larger file as many are read, in pieces from all over it
Fingerprint = list[int | str]  # size in bytes, time of the last change in ns, digest
Fingerprints = dict[str, dict[str, Fingerprint]]  # by key of the configuration, by file


def read_fingerprints(cfg: Mapping[str, Any], known: Fingerprints | None = None) -> Fingerprints:
    """The fingerprints of the files behind each key of a configuration; ``known`` ones spare reading files again."""
    found: Fingerprints = {}
    for key, files in _files_of_keys(cfg):
        before = (known or {}).get(key, {})
        for name, file in sorted(files.items()):
            now, old = file.stat(), before.get(name)
            same = old and old[:2] == [now.st_size, now.st_mtime_ns]
            digest = str(old[2]) if old and same else _digest(file, now.st_size)
            found.setdefault(key, {})[name] = [now.st_size, now.st_mtime_ns, digest]
    return found


def check_fingerprints(run: Run) -> list[str]:
    """Raise FolderError where a run's files have changed and its checkpoints or its model came from the old ones."""
    if not isinstance(then := run.manifest().get("inputs"), dict):
        return []
    now = read_fingerprints(run.cfg, then)
    changes: dict[str, list[str]] = {}  # for each key of the configuration a line per file
    for key in {**then, **now}:
        before, after = ({shipped(name): each for name, each in found.get(key, {}).items()} for found in (then, now))
        for file in {**before, **after}:
            old, new = before.get(file), after.get(file)
            if old is None or new is None:
                line = f"{file} is {'new' if old is None else 'gone'}"
            elif old[0] != new[0]:
                line = f"{file}: {old[0]} -> {new[0]} bytes"
            elif old[2] != new[2]:
                line = f"{file}: {str(old[2])[:10]} -> {str(new[2])[:10]}"
            else:
                continue
            changes.setdefault(key, []).append(line)
    if not changes or not (run.status()["state"] == "finished" or sealed_checkpoints(run.checkpoints)):
        return []
    faults = [Fault(key, "; ".join(lines), "as the run began with", TRAIN_AGAIN) for key, lines in changes.items()]
    FolderError.refuse([fault for fault in faults if not fault.where.startswith(CODE)])
    return [f"{fault.where} has changed since the run began: {fault.found}" for fault in faults]


def find_other_facts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Fault]:
    """A fault for each fact of the rows, the tokenizer and the base model that two manifests tell differently."""
    old, new = (flatten({key: facts.get(key) or {} for key in FACTS}) for facts in (then, now))
    old.pop("model.path", None)  # where it was found; the others say what was found there
    keys = [key for key in old if None not in (old[key], new.get(key)) and old[key] != new[key]]
    texts = {key: f"{str(old[key])[:12]} -> {str(new[key])[:12]}" for key in keys}
    return [Fault(key, text, "as the checkpoints were trained on", TRAIN_AGAIN) for key, text in texts.items()]


def _files_of_keys(cfg: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Path]]]:
    """Each key whose value is a file, a folder or a pattern here, and each package of the user's, with the files."""
    for path, value in walk(lasting(cfg)):
        is_path = isinstance(value, str) and len(value) < 256 and "\n" not in value
        is_read = is_path and last_key(path).endswith(NAMES) and not value.startswith(SHIPPED)
        if is_read and not path.startswith("callback."):
            place = Path(shipped(value))
            files: Iterable[Path] = [place]
            if has_magic(value) and not place.exists():
                files = map(Path, glob(str(place), recursive=True))
            elif place.is_dir():
                inner = (file for folder in (place, place / "data", place / "policy") for file in folder.glob("[!.]*"))
                files = (file for file in inner if file.suffix in SUFFIXES and file.name not in NOT_INPUTS)
            named = str(Path(value))  # with ~ as it stands there
            yield path, {str(file).replace(str(place), named, 1): file for file in files if file.is_file()}
    for package, sources in find_code(packages_of(cfg)).items():
        yield f"{CODE} {package}", sources


def _digest(file: Path, size: int) -> str:
    sha = hashlib.sha256()
    with open(file, "rb") as bytes_:
        if size <= MAX_BYTES_HASHED_WHOLE:
            return hashlib.file_digest(bytes_, "sha256").hexdigest()
        for piece in range(64):
            bytes_.seek(piece * (size - (MAX_BYTES_HASHED_WHOLE >> 6)) // 63)
            sha.update(bytes_.read(MAX_BYTES_HASHED_WHOLE >> 6))
    return sha.hexdigest()
