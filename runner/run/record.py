"""The files of a run as plain values, in whatever state they are.

A file that is torn or missing is named and read as empty, because a report of what is there is
better than none.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from runner.config.experiment import Experiment
from runner.config.frozen_yaml import read_frozen
from runner.config.groups import GROUPS, OPTIONAL
from runner.config.limits import read_yaml
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import JsonObject, open_own, read_json
from runner.io.visible import to_visible
from runner.run import faults
from runner.run.find import find_folders, find_group, find_run
from runner.run.folder import FORMAT, Run, format_fault, held
from runner.run.history import is_finite, read_metrics
from runner.run.layout import METADATA, find_foreign_faults
from runner.run.metadata import is_shaped

# what whoever only looks may write in a run folder
NOT_OF_TRAINING = (".lock", "report.html", "plots")
# without any file written, of a run on another machine whose lock can be taken
SILENT_SECONDS = 3600.0
MAX_NOTES = 20  # that are shown
OUTPUT_ROOT = Path(Experiment.output_root)
# in each configuration
NEEDED = ("name", "output_root", "seed", "trainer", "model", "dataset", "launcher")


@dataclass(frozen=True)
class RunRecord:
    """One run folder as it was read, but for files that are ``damaged``.

    Nothing was read of one that has ``faults``.
    """

    folder: Path
    cfg: Mapping[str, Any]
    status: Mapping[str, Any]
    manifest: Mapping[str, Any]
    # the scores before the first step that are numbers
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)  # and those after the last
    damaged: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return str(self.run)

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @cached_property
    def experiment(self) -> Experiment:
        """The configuration as an object, with defaults in place of what could not be read."""
        return Experiment.read(self.cfg)

    @cached_property
    def lines(self) -> list[JsonObject]:
        """The logged lines, in the order of the steps."""
        if self.faults:
            return []
        return read_metrics(self.folder / "metrics.jsonl")

    @cached_property
    def logged(self) -> Mapping[str, float]:
        """The last value of each metric that is a number, in the order of first appearance."""
        # Nearly all last values are numbers, and merging whole lines is fast.
        last: JsonObject = {}
        for line in self.lines:
            last |= line
        logged = {}
        for name, value in last.items():
            number = value if is_finite(value) else self._last_number(name)
            if number is not None:
                logged[name] = number
        return logged

    def _last_number(self, name: str) -> float | None:
        """The last value of a metric that is a finite number; None where none was logged."""
        for line in reversed(self.lines):
            value = line.get(name)
            if is_finite(value):
                return value
        return None

    @cached_property
    def state(self) -> str:
        """The state of ``status.json``, or ``lost`` or ``unknown``.

        A run is lost where its status says running and its process is gone.
        """
        if "status.json" in self.damaged or self.faults:
            return "unknown"
        state = to_visible(str(self.status.get("state") or "created"))
        if state == "running" and self._is_process_gone():
            return "lost"
        return state

    def _is_process_gone(self) -> bool:
        """True where the lock of the folder can be taken, and nothing else says that it is used.

        On this machine there is no such process. Of one on another machine, because some file
        systems keep a lock to each machine, nothing in the folder was written for long.
        """
        try:
            if self.status.get("host") == socket.gethostname():
                os.kill(self.status["pid"], 0)
                return False
            return self._is_silent() and not held(self.run)
        except ProcessLookupError:
            return not held(self.run)
        # A process of somebody else's, or a number that none can have.
        except (OSError, OverflowError, TypeError, KeyError):
            return False

    def _is_silent(self) -> bool:
        """True where nothing was written for an hour, and for ten times what a row takes."""
        depth = len(self.folder.parts)
        paths = self.folder.rglob("*")
        written = [path for path in paths if path.parts[depth] not in NOT_OF_TRAINING]
        last_write = max(path.lstat().st_mtime for path in written)
        silence = time.time() - last_write
        spent = self.logged.get("elapsed_seconds", 0.0) / max(1, len(self.lines))
        return silence > max(SILENT_SECONDS, 10 * spent)

    @property
    def progress(self) -> str:
        """The steps taken, as ``7/10``, or nothing where that is not known."""
        step = self.status.get("step")
        max_steps = self.status.get("max_steps")
        if max_steps:
            return f"{step}/{max_steps}"
        return str(step or "")

    @property
    def standing(self) -> str:
        """The state with the steps taken."""
        return f"{self.state} {self.progress}".strip()

    @property
    def cause(self) -> str:
        """The reason why it is not finished, or finished and worse than it began, in one line."""
        reasons = [f"{name} cannot be read" for name in self.damaged]
        reasons += [f"{fault.found}; expected {fault.expected}" for fault in self.faults]
        heard = f"last heard of {format_time(self.status.get('updated'))}"
        if self.state == "created":
            reasons.append("not started")
        elif self.state == "running":
            started = format_time(self.status.get("started"))
            reasons.append(f"since {started}, {heard}")
        elif self.state == "lost":
            reasons.append(f"its process ended without a message, {heard}")
        elif self.state != "unknown":
            cause = str(self.status.get("cause") or "")
            reasons.append(one_line(cause))
        return "; ".join(filter(None, reasons))

    @property
    def notes(self) -> list[str]:
        """Lines for whoever reads its figures."""
        notes = self.manifest.get("notes")
        if not isinstance(notes, list):
            return []
        return [one_line(note) for note in notes[:MAX_NOTES] if isinstance(note, str)]

    def score(self, name: str) -> float | None:
        """A held-out score of a finished run, or else what it logged last under this name."""
        if self.state != "finished":
            return None
        if name in self.after:
            return self.after[name]
        return self.logged.get(name)


# --- Reading a run ------------------------------------------------------------------------------
def read_run(folder: Path, depth: int | None = None) -> RunRecord:
    """The record of one folder; never raises because of what is in it.

    What does not belong in the folder is looked for down to a depth, or in all of it.
    """
    foreign = find_foreign_faults(folder, depth)
    if foreign:
        return RunRecord(folder, {}, {}, {}, faults=tuple(foreign))
    contents: dict[str, JsonObject] = {}
    damaged = []
    for name in METADATA[:4]:
        content = _read_content(folder / name)
        contents[name] = content or {}
        # Any file may be missing but the config.
        if content is None and (name == "config.yaml" or (folder / name).exists()):
            damaged.append(name)
    cfg = contents["config.yaml"]
    if "config.yaml" not in damaged:
        number = cfg.pop("format", 1)
        if number != FORMAT:
            return RunRecord(folder, {}, {}, {}, faults=(format_fault(folder, number),))
    scores = contents["scores.json"]
    return RunRecord(
        folder,
        cfg=cfg,
        status=contents["status.json"],
        manifest=contents["manifest.json"],
        before=_finite_scores(scores.get("before")),
        after=_finite_scores(scores.get("after")),
        damaged=tuple(damaged),
    )


def _read_content(path: Path) -> JsonObject | None:
    """The content of a file of metadata; None where it is missing or damaged."""
    content: object = None
    with contextlib.suppress(OSError, ConfigError):
        if path.suffix == ".yaml":
            content = read_frozen(path, read_yaml)
        else:
            content = read_json(path)
    return content if is_shaped(content) else None


def _finite_scores(scores: Mapping[str, object] | None) -> dict[str, float]:
    return {name: value for name, value in (scores or {}).items() if is_finite(value)}


def read_state(folder: Path, depth: int | None = 2) -> RunRecord:
    """A record with nothing but the status; a whole one where the folder may not be sound."""
    status = None
    if not find_foreign_faults(folder, depth):
        status = read_json(folder / "status.json")
    # The first line of the config says that the rest can be read as ours. Bytes that are no UTF-8
    # are damage, which the record of the whole folder has.
    with (
        contextlib.suppress(OSError, UnicodeDecodeError),
        open_own(folder / "config.yaml", encoding="utf-8") as file,
    ):
        if file.read().startswith(f"format: {FORMAT}\n") and is_shaped(status):
            return RunRecord(folder, {}, status, {})
    return read_run(folder, depth)


def find_runs(
    words: Sequence[str], verb: str, count: int | None, root: Path = OUTPUT_ROOT
) -> list[RunRecord]:
    """The runs of ``count`` words; without a count of any number, each perhaps the name of several.

    Raises ConfigError for another number of words, and FolderError with all faults at once.
    """
    if count is None:
        words = _expand_names(words, root)
        count = max(1, len(words))
    if len(words) != count:
        run_words = [str(root / "<name>/<run>")] * count
        found = "none"
        if words:
            found = f"{len(words)} of them: {' '.join(words)}"
        expected = "one run"
        if count != 1:
            expected = f"{count} runs"
        raise ConfigError(
            Fault(
                where="RUN",
                found=found,
                expected=expected,
                fix=f"python -m runner {verb} {' '.join(run_words)}",
            )
        )
    runs = []
    wrong_words: list[Fault] = []
    for number, word in enumerate(words):
        words_so_far = " ".join([verb, *words[:number]])
        folder = find_run(word, words_so_far, root)
        if isinstance(folder, Path):
            runs.append(read_run(folder))
            continue
        words_behind = words[number + 1 :]
        # A fix that ends with a remark is another command, without these words.
        if words_behind and not folder.fix.endswith(")"):
            folder = replace(folder, fix=" ".join([folder.fix, *words_behind]))
        wrong_words.append(folder)
    for run in runs:
        wrong_words += run.faults
    FolderError.refuse(wrong_words)
    return runs


def _expand_names(words: Sequence[str], root: Path) -> list[str]:
    """The words with the folders of all runs in the place of their name."""
    expanded: list[str] = []
    for word in words:
        group = find_group(word, root)
        if group:
            expanded += map(str, find_folders(group))
        else:
            expanded.append(word)
    return expanded


def find_names(folders: Iterable[Path]) -> list[tuple[Path, list[RunRecord]]]:
    """The folders in which there are runs, with the states of these, newest first."""
    names = []
    for path in folders:
        if not path.is_dir():
            continue
        runs = [read_state(folder) for folder in find_folders(path)]
        if runs:
            names.append((path, runs))
    return sorted(names, key=_last_update, reverse=True)


def _last_update(name: tuple[Path, list[RunRecord]]) -> str:
    _, runs = name
    return max(str(run.status.get("updated") or "") for run in runs)


def check_whole(run: RunRecord) -> None:
    """Raise FolderError where the configuration of a run lacks what that of every run has."""
    if not run.cfg:
        raise FolderError(faults.no_config(run))
    lacking = [key for key in NEEDED if run.cfg.get(key) in (None, "", {})]
    for group in GROUPS:
        if group not in run.cfg and group not in lacking and group not in OPTIONAL:
            lacking.append(group)
    if lacking:
        raise FolderError(
            Fault(
                where=str(run.folder / "config.yaml"),
                found=f"it lacks {', '.join(lacking)}",
                expected="the configuration of a run",
                fix="the command that made the run, with another name=",
            )
        )


def check_finished(run: RunRecord, verb: str) -> None:
    """Raise FolderError where a run is not finished, or its configuration cannot be read."""
    if not run.cfg:
        raise FolderError(faults.no_config(run))
    if run.state != "finished":
        cause = f": {run.cause}" if run.cause else ""
        raise FolderError(
            Fault(
                where=str(run),
                found=f"{run.standing}{cause}",
                expected=f"a finished run to {verb}",
                fix=f"python -m runner.launch {run}  (to finish it)",
            )
        )


# --- Texts --------------------------------------------------------------------------------------
def one_line(cause: str, heading: bool = True) -> str:
    """A cause of several lines as one: its heading, where it is and what was found.

    >>> one_line("sick run\\n  trainer.loss\\n    found     loss is nan\\n    expected  a number")
    'sick run: trainer.loss: loss is nan'
    """
    lines = [line.strip() for line in cause.splitlines() if line.strip()]
    for number, (where, line) in enumerate(pairwise(lines)):
        if line.startswith("found "):
            parts = []
            if heading and number:
                parts.append(lines[0])
            if heading or not where.endswith("log.txt"):
                parts.append(where)
            parts.append(line.removeprefix("found").strip())
            return to_visible(": ".join(parts))
    if heading:
        return to_visible(" ".join(lines))
    return to_visible(lines[0] if lines else "no cause was recorded")


def format_time(moment: object) -> str:
    """A time as it was written, without its seconds."""
    text = str(moment or "an unknown time")
    if not text.endswith("+00:00"):
        return text
    date = text[:10]
    clock = text[11:16]
    return f"{date} {clock} UTC"
