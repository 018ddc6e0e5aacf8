"""The manifest of a run: with what it was made, so that it can be repeated."""

import contextlib
import functools
import logging
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.io.files import write_json
from runner.io.secrets import hidden, hidden_source
from runner.run.folder import Run, now
from runner.run.key import key_of
from runner.run.layout import METADATA
from runner.schema.text import walk

log = logging.getLogger(__name__)

# What becomes of the padding of a batch.
SKIPPED = "skipped"
COMPUTED = "computed"
# The words for git that show what is not committed, whatever programs git's settings name.
CHANGES = ("diff", "--no-ext-diff", "--no-textconv", "HEAD")
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


def write_manifest(run: Run, **facts: object) -> None:
    """Record what is needed to repeat this run; what earlier starts recorded stays."""
    commit = run_git("rev-parse", "HEAD")
    diff = run_git(*CHANGES)
    git = None
    if commit is not None and diff is not None:
        git = {"commit": commit, "diff": hidden_source(diff)}
    recorded = {
        "key": key_of(run.cfg),
        "command": ["python", "-m", "runner.launch", str(run)],
        "created": now(),
        "python": platform.python_version(),
        "versions": {name: installed_version(name) for name in LIBRARIES},
        "git": git,
        "seed": run.experiment.seed,
        "uses": uses_of(run.cfg),
        "starts": 0,
    }
    write_json(run.folder / "manifest.json", recorded | run.manifest() | facts)


def add_notes(run: Run, notes: Sequence[str]) -> None:
    """Warn of what readers of a run's figures should know; its manifest keeps each line once."""
    for note in notes:
        log.warning("%s", note)
    if notes:
        old_notes = run.manifest().get("notes", [])
        all_notes = [*old_notes, *map(hidden, notes)]
        write_manifest(run, notes=list(dict.fromkeys(all_notes)))


def uses_of(cfg: Mapping[str, Any]) -> dict[str, str]:
    """The runs that a configuration builds on, by the key whose value is a path in theirs."""
    uses = {}
    for key, value in walk(cfg):
        if not isinstance(value, str) or not os.path.exists(value):
            continue
        for folder in Path(value).parents:
            if all((folder / name).exists() for name in METADATA[:2]):
                uses[key] = str(Run(folder))
                break
    return uses


def installed_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    # The manifest of others may hold any name, which is a ValueError here.
    with contextlib.suppress(ModuleNotFoundError, ValueError):
        return read_version(name)
    return None


@functools.cache
def read_version(name: str) -> str:
    """The version in the metadata of a package, which a start asks for forty times.

    Nothing is remembered of a package that is missing: a notebook may install it.
    """
    version = _version_of_folder(name)
    if version:
        return version
    from importlib import metadata  # a twelfth of the time of a short command

    return metadata.version(name)


def _version_of_folder(name: str) -> str:
    """The version in the name of the folder that pip installs a package's metadata into.

    Empty where there is no such folder, or several, or its version may be spelt otherwise.
    """
    beginning = name.replace("-", "_") + "-"
    for place in sys.path:
        try:
            folders = os.listdir(place or ".")
        except OSError:  # an archive, or no folder at all
            continue
        versions = []
        for folder in folders:
            if not folder.startswith(beginning):
                continue
            version, _, ending = folder.removeprefix(beginning).rpartition(".")
            if ending == "egg-info":  # by another tool
                return ""
            if ending == "dist-info" and os.path.isfile(os.path.join(place, folder, "METADATA")):
                versions.append(version)
        if versions:
            is_plain = len(versions) == 1 and re.fullmatch(r"[0-9a-z.+]+", versions[0])
            return versions[0] if is_plain else ""
    return ""


def run_git(*words: str, text: str | None = None, folder: Path | None = None) -> str | None:
    """The output of git in a folder, or in the working one; None where it fails or is missing."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(
            ("git", *words), capture_output=True, text=True, check=True, input=text, cwd=folder
        )
        return done.stdout.strip()
    return None
