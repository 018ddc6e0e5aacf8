"""Opening a run folder: the one of a configuration, once all in it is what was written there."""

import contextlib
import shlex
from collections.abc import Sequence

from runner.config.experiment import Experiment
from runner.config.run_name import former_names
from runner.errors import Fault, FolderError
from runner.io.files import JsonObject, open_own, read_json, read_step, write_json
from runner.io.secrets import hidden
from runner.run.folder import PATIENCE, Run, locked, write_config
from runner.run.key import canonical_text, folder_of, key_of
from runner.run.layout import METADATA, STATES, find_foreign_faults
from runner.run.metadata import is_shaped
from runner.schema.text import Config

# How a run goes on without a file of its metadata that cannot be read.
WITHOUT_FILE = {
    "status.json": "continues from its newest complete checkpoint",
    "manifest.json": "is recorded again",
    "scores.json": "is measured at its end only",
    "adjustments.json": "continues as its config says",
}


def open_run(
    cfg: Config,
    overrides: Sequence[str],
    command: Sequence[str] = (),
    choices: Config | None = None,
) -> Run:
    """The folder that holds this configuration's key, or a new one in which it is frozen.

    ``overrides`` name a new folder. ``command`` are the words that make this run alone, and
    ``choices`` the options by group; both are recorded in the manifest.
    """
    _check_name(Experiment.read(cfg))
    key = key_of(cfg)
    folder = folder_of(cfg, overrides).absolute()
    if folder.parent.name in former_names(cfg):
        cfg = {**cfg, "name": folder.parent.name}  # it keeps the name that it has begun with
    run = Run(folder)
    options = {group: option for group, option in (choices or {}).items() if "/" not in group}
    words = [hidden(word) for word in command or overrides]
    facts = {"command": ["python", "-m", "runner", *words], "choices": options}
    check_metadata(run)
    if not (folder / "config.yaml").exists():
        _begin(run, cfg, facts)
        return run
    if key_of(run.cfg) != key:
        raise FolderError(
            Fault(
                where=str(folder),
                found="its config.yaml belongs to another run",
                expected=f"the key {key}",
                fix="name=<another name>",
            )
        )
    is_finished = run.status()["state"] == "finished"
    if is_finished or canonical_text(run.cfg) == canonical_text(cfg):
        return run
    # Values that are not part of the key have changed. Who holds the run has read the old ones.
    with contextlib.suppress(FolderError), locked(run):
        write_config(folder, cfg)
        write_json(folder / "manifest.json", run.manifest() | facts)
    return Run(folder)


def _check_name(experiment: Experiment) -> None:
    """Raise FolderError where the name of a run is not that of one folder in the output root."""
    name = str(experiment.name)
    root = experiment.root.resolve()
    group = (root / name).resolve()
    if not name.strip() or not group.is_relative_to(root) or group == root:
        raise FolderError(
            Fault(
                where="name",
                found=f"{experiment.name!r} leads out of {root}",
                expected="a folder name",
                fix="=<letters and digits>",
            )
        )


def _begin(run: Run, cfg: Config, facts: JsonObject) -> None:
    """Make the folder of a run and the files that every run has."""
    folder = run.folder
    is_known = any((folder / name).exists() for name in METADATA[:3])
    if run.checkpoints.is_dir() and not is_known:
        raise FolderError(
            Fault(
                where=str(folder),
                found="checkpoints without a run: its folder was moved away while it saved",
                expected="a complete run, or nothing",
                fix=f"rm -r {shlex.quote(str(folder))}, then put the folder back, or train again",
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Who holds the folder by now has written them.
    with contextlib.suppress(FolderError), locked(run, PATIENCE):
        if not (folder / "status.json").exists():
            run.set_status("created")
        if not (folder / "manifest.json").exists():
            write_json(folder / "manifest.json", facts)
        # The config comes last, because a folder is a run's where this file is.
        if not (folder / "config.yaml").exists():
            write_config(folder, cfg)


def check_metadata(run: Run) -> None:
    """Raise FolderError with each file of the folder that is not what was written there."""
    FolderError.refuse(find_foreign_faults(run.folder))
    found: list[Fault] = []
    config = run.folder / "config.yaml"
    if config.exists():
        key = key_of(run.cfg)
        recorded_key = run.manifest().get("key")
        if recorded_key not in (None, key):
            found.append(
                Fault(
                    where=str(config),
                    found=f"changed since the run began: {key}",
                    expected=str(recorded_key),
                    fix="name=<another name>, and the command with the new values",
                )
            )
    for name, consequence in WITHOUT_FILE.items():
        path = run.folder / name
        content = read_json(path)
        is_whole = is_shaped(content)
        if content is not None and name == "status.json" and content.get("state") not in STATES:
            is_whole = False
        if path.exists() and not is_whole:
            found.append(
                Fault(
                    where=str(path),
                    found="it cannot be read",
                    expected="JSON",
                    fix=f"rm {path}  (the run then {consequence})",
                )
            )
    FolderError.refuse(found)


def check_lines(run: Run) -> None:
    """Raise FolderError where the log of the steps holds anything but lines of steps.

    The last line may be cut off.
    """
    if not run.metrics.exists():
        return
    with open_own(run.metrics, "rb") as file:
        text: bytes = file.read()
    *lines, last = text.split(b"\n")
    bad = []
    for number, line in enumerate(lines, 1):
        if read_step(line + b"\n") is None:
            bad.append(number)
    # Zeros behind whole lines are a last write that never reached the disk.
    remainder = last.strip(b"\0") if lines else last
    if remainder and not last.startswith(b"{"):
        bad.append(len(lines) + 1)
    if bad:
        numbers = ", ".join(map(str, bad[:5]))
        raise FolderError(
            Fault(
                where=str(run.metrics),
                found=f"line {numbers} cannot be read",
                expected="JSON with one step per line",
                fix=f"rm {run.metrics}  (the run continues without the lines so far), or mend them",
            )
        )
