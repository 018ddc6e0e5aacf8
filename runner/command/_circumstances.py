"""Differences from the circumstances in which a run was made: versions, code, runs and rows."""

import platform
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.build import serve
from runner.config.experiment import Experiment
from runner.errors import DataError, Fault
from runner.io.secrets import hidden_source
from runner.run import CHANGES, installed_version, run_git
from runner.run.record import RunRecord
from runner.schema.text import Config, flatten


def obstacles(run: RunRecord) -> Iterator[str]:
    """A line for each thing that is no longer as it was, with the fix where that is known."""
    manifest = run.manifest
    python = manifest.get("python")
    if python not in (None, platform.python_version()):
        yield f"python {python}, here {platform.python_version()}"
    versions = _describe_versions(manifest.get("versions") or {})
    if versions:
        yield versions
    code = _describe_code(manifest.get("git"))
    if code:
        yield f"code: {code}"
    for key, folder in (manifest.get("uses") or {}).items():
        if not (Path(folder) / "model").is_dir():
            yield f"{key}: the run {folder} is gone"


def _describe_versions(old_versions: Mapping[str, Any]) -> str:
    """The libraries of other versions, and the words that install those of then.

    What stands behind a plus, such as the build for a version of CUDA, is on no package index.
    """
    described = []
    pinned = []
    for name, old in old_versions.items():
        new = installed_version(name)
        if old == new:
            continue
        then = old or "none"
        now = new or "none"
        described.append(f"{name} {then} (here {now})")
        if old:
            release, _, _ = str(old).partition("+")
            pinned.append(f"{name}=={release}")
    text = ", ".join(described)
    if pinned:
        text += f"; pip install {shlex.join(pinned)}"
    return text


def _describe_code(git: object) -> str:
    """The difference of the code from that of a manifest's ``git``; empty for none."""
    if not isinstance(git, Mapping):
        return "the run was made outside a git repository, so its version is unknown"
    commit = str(git.get("commit"))
    current = run_git("rev-parse", "HEAD")
    if current is None:
        return f"commit {commit[:12]}, but there is no git repository here"
    if current != commit:
        fix = "git fetch"
        if run_git("cat-file", "-e", f"{commit}^{{commit}}") is not None:
            fix = f"git worktree add ../at-{commit[:8]} {commit[:12]}"
        return f"commit {commit[:12]}, here {current[:12]}; {fix}"
    # The diff of the manifest was written without secrets.
    diff = hidden_source(run_git(*CHANGES) or "")
    old_diff = git.get("diff") or ""
    if diff != old_diff:
        return (
            "the same commit with other uncommitted changes; those of then are in manifest.json, "
            "under git.diff"
        )
    return ""


def compare_data(run: RunRecord, cfg: Config) -> None:
    """Load the rows as a training would; DataError with every set that is no longer the same.

    The fingerprints compared are of what the rows hold, so that files may have moved.
    """
    if not run.manifest.get("data"):
        return
    from runner.training.components.token_weights import build_rules, columns_asked_for
    from runner.training.run_facts import describe_rows

    experiment = Experiment.read(cfg)
    keep = columns_asked_for(build_rules(experiment.weights))
    form = experiment.trainer.form
    rows, held_out = serve(
        experiment.dataset.node,
        to=form,
        seed=experiment.seed,
        keep=keep,
        environment=experiment.environment,
    )
    old_data = flatten(run.manifest["data"])
    new_data = flatten({"train": describe_rows(rows), "eval": describe_rows(held_out)})
    faults = []
    for key in dict.fromkeys([*old_data, *new_data]):
        old = old_data.get(key)
        new = new_data.get(key)
        if not key.endswith(".fingerprint") or old == new:
            continue
        name = key.removesuffix(".fingerprint")
        found = "no such rows"
        if new:
            count = new_data[f"{name}.rows"]
            found = f"{count} rows, {new[:12]}"
        expected = "none, as in the run"
        if old:
            old_count = old_data.get(f"{name}.rows")
            expected = f"the {old_count} rows of the run, {old[:12]}"
        faults.append(
            Fault(
                where=f"dataset, {name}",
                found=found,
                expected=expected,
                fix="the data of the run: dataset.path and its files, or its revision",
            )
        )
    DataError.refuse(faults)
