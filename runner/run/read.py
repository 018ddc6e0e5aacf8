"""The run that a word of the command line means, and the files of a run as plain values, in whatever state they are.

A word means a run as its folder, as a name with one run, as ``<name>/<run>``, or as a run's key. A file that is torn or
missing is named and read as empty, because a report of what is there is better than none.
"""

import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from runner.config.limits import read_yaml
from runner.config.menu import GROUPS, OPTIONAL
from runner.errors import ConfigError, Fault, FolderError, fault
from runner.io.files import open_own, read_json, read_rows
from runner.io.turns import dialogue
from runner.io.visible import to_visible
from runner.run import FORMAT, METADATA, Run, find_foreign_faults, format_fault, held, is_shaped
from runner.schema.text import nearest

LARGEST = 1e300  # of a number that is taken for one: differences and means of those beyond have no float
MAX_STEP = 1 << 53
NOT_OF_TRAINING = (".lock", "report.html", "plots")  # what whoever only looks may write in a run folder
SILENT_SECONDS = 3600.0  # without any file written, of a run on another machine whose lock can be taken
SAMPLE_FILES = ("completions.jsonl", "checkpoints/completions.jsonl")
NEEDED = ("name", "output_root", "seed", "trainer", "model", "dataset", "launcher")  # in each configuration


@dataclass(frozen=True)
class RunRecord:
    """One run folder as it was read, but for files that are ``damaged``, and for all of one that has ``faults``."""

    folder: Path
    cfg: Mapping[str, Any]
    status: Mapping[str, Any]
    manifest: Mapping[str, Any]
    before: dict[str, float] = field(default_factory=dict)  # the scores before the first step that are numbers
    after: dict[str, float] = field(default_factory=dict)  # and those after the last
    damaged: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        return str(self.run)

    @property
    def run(self) -> Run:
        return Run(self.folder)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The logged lines, in the order of the steps."""
        return [] if self.faults else read_metrics(self.folder / "metrics.jsonl")

    @cached_property
    def logged(self) -> Mapping[str, float]:
        """The last value of each metric that was logged as a number, in the order of first appearance."""
        found: dict[str, float | None] = {}
        for line in self.lines:
            found |= line
        for name in [name for name, entry in found.items() if not is_finite(entry)]:
            found[name] = next((line[name] for line in reversed(self.lines) if is_finite(line.get(name))), None)
        return {name: entry for name, entry in found.items() if entry is not None}

    @cached_property
    def state(self) -> str:
        """The state of ``status.json``, or ``lost`` where it says running and the process is gone, or ``unknown``."""
        if "status.json" in self.damaged or self.faults:
            return "unknown"
        state = to_visible(str(self.status.get("state") or "created"))
        return "lost" if state == "running" and self._is_gone() else state

    def _is_gone(self) -> bool:
        """True where the process that trains it is gone: the lock of its folder can be taken, and that is not all.

        On this machine there is no such process. Of one on another machine, because some file systems keep a lock to
        each machine, nothing in the folder was written for an hour, and for ten times what lies between logged lines.
        """
        try:
            if self.status.get("host") == socket.gethostname():
                os.kill(self.status["pid"], 0)
                return False
            first = len(self.folder.parts)
            written = [path for path in self.folder.rglob("*") if path.parts[first] not in NOT_OF_TRAINING]
            silence = time.time() - max(path.lstat().st_mtime for path in written)
            spent = self.logged.get("elapsed_seconds", 0.0) / max(1, len(self.lines))
            return silence > max(SILENT_SECONDS, 10 * spent) and not held(self.run)
        except ProcessLookupError:
            return not held(self.run)
        except (OSError, OverflowError, TypeError, KeyError):  # somebody else's, or none that there can be
            return False

    @property
    def progress(self) -> str:
        """The steps taken, as ``7/10``, or nothing where that is not known."""
        step, most = self.status.get("step"), self.status.get("max_steps")
        return f"{step}/{most}" if most else str(step or "")

    @property
    def standing(self) -> str:
        """The state with the steps taken."""
        return f"{self.state} {self.progress}".strip()

    @property
    def cause(self) -> str:
        """The reason why it is not finished, or finished and worse than it began, in one line."""
        damaged = [f"{name} cannot be read" for name in self.damaged]
        damaged += [f"{each.found}; expected {each.expected}" for each in self.faults]
        heard = f"last heard of {format_time(self.status.get('updated'))}"
        words = {"created": "not started", "running": f"since {format_time(self.status.get('started'))}, {heard}"}
        words["lost"] = f"its process is gone without a word, {heard}"
        why = words.get(self.state) or one_line(str(self.status.get("cause") or ""))
        return "; ".join(filter(None, [*damaged, "" if self.state == "unknown" else why]))

    @property
    def notes(self) -> list[str]:
        """Lines for whoever reads its figures."""
        found = self.manifest.get("notes")
        return [one_line(note) for note in found[:20] if isinstance(note, str)] if isinstance(found, list) else []

    def score(self, name: str) -> float | None:
        """A held-out score of a finished run, or else what it logged last under this name."""
        if self.state != "finished":
            return None
        return self.after[name] if name in self.after else self.logged.get(name)


def read_run(folder: Path, depth: int | None = None) -> RunRecord:
    """Read the files of one folder; never raises because of what is in them."""
    if faults := find_foreign_faults(folder, depth):
        return RunRecord(folder, {}, {}, {}, faults=tuple(faults))
    found: dict[str, dict[str, Any] | None] = {}
    for name in METADATA[:4]:
        content = None
        with contextlib.suppress(OSError, ConfigError):
            content = read_yaml(folder / name) if name.endswith(".yaml") else read_json(folder / name)
        found[name] = content if is_shaped(content) else None
    missing = {name for name in found if name != "config.yaml" and not (folder / name).exists()}
    damaged = tuple(name for name, content in found.items() if content is None and name not in missing)
    cfg, status, manifest, scores = (content or {} for content in found.values())
    if "config.yaml" not in damaged and (number := cfg.pop("format", 1)) != FORMAT:
        return RunRecord(folder, {}, {}, {}, faults=(format_fault(folder, number),))
    moments = (scores.get(moment) or {} for moment in ("before", "after"))
    before, after = ({name: value for name, value in moment.items() if is_finite(value)} for moment in moments)
    return RunRecord(folder, cfg, status, manifest, before, after, damaged)


def read_state(folder: Path, depth: int | None = 2) -> RunRecord:
    """A run with nothing but its status, where the first line of its config says that the rest can be read as ours."""
    status = None if find_foreign_faults(folder, depth) else read_json(folder / "status.json")
    # Bytes that are no UTF-8 are damage, which the second way tells.
    with contextlib.suppress(OSError, UnicodeDecodeError), open_own(folder / "config.yaml", encoding="utf-8") as file:
        if file.read().startswith(f"format: {FORMAT}\n") and is_shaped(status):
            return RunRecord(folder, {}, status, {})
    return read_run(folder, depth)


def find_folders(group: Path) -> list[Path]:
    """The folders of the runs of a name, in the order of their names."""
    return [group / name for name in sorted(os.listdir(group)) if name[0] != "." and is_run(group / name)]


def is_run(folder: Path) -> bool:
    """True for the folder of a run, even of one whose config was lost."""
    return any(os.path.isfile(f"{folder}/{name}") for name in METADATA[:3])


def find_runs(words: Sequence[str], verb: str, count: int | None, root: Path = Path("outputs")) -> list[RunRecord]:
    """The runs of ``count`` words, or of any number, each perhaps the name of several; raises all faults at once."""
    if count is None:
        named: list[str] = []
        for word in words:
            named += map(str, find_folders(group)) if (group := _find_group(word, root)) else [word]
        words, count = named, max(1, len(named))
    if len(words) != count:
        given = f"{len(words)} of them: {' '.join(words)}" if words else "none"
        expected = "one run" if count == 1 else f"{count} runs"
        fix = f"python -m runner {verb} {' '.join([str(root / '<name>/<run>')] * count)}"
        raise ConfigError(Fault("RUN", given, expected, fix))
    found = [find_run(word, " ".join([verb, *words[:number]]), root) for number, word in enumerate(words)]
    for number, each in enumerate(found):  # a command has the others, too
        if isinstance(each, Fault) and (others := words[number + 1 :]) and not each.fix.endswith(")"):
            found[number] = replace(each, fix=" ".join([each.fix, *others]))
    faults = [each for each in found if isinstance(each, Fault)]
    runs = [read_run(each) for each in found if isinstance(each, Path)]
    FolderError.refuse(faults + [each for run in runs for each in run.faults])
    return runs


def resolve_word(word: str, verb: str, root: Path) -> Path:
    """The folder around the runs of a name, or that of one run, that a word means; FolderError where it means none."""
    if isinstance(found := _find_group(word, root) or find_run(word, verb, root), Fault):
        raise FolderError(found)
    return found


def _find_group(word: str, root: Path) -> Path | None:
    places = (path for path in (Path(word), root / word) if path.is_dir())
    return next((path for path in places if any(map(is_run, path.glob("[!.]*")))), None)


def find_run(word: str, verb: str, root: Path) -> Path | Fault:
    """The folder of the run that a word means, or the fault of a word that means none or several."""
    places = [path for path in (Path(word), root / word) if path.is_dir()]
    inner = next((path for path in places if is_run(path)), None)
    runs = next(filter(None, map(find_folders, places)), [])
    if inner or len(runs) == 1:
        return inner or runs[0]
    keyed = [] if places else [path for path in sorted(root.glob(f"*/*-{word}")) if word and is_run(path)]
    if len(keyed) == 1:
        return keyed[0]
    if runs or keyed:
        several = runs or keyed
        return Fault(word, f"{len(several)} runs", "one of them", f"python -m runner {verb} {Run(several[-1])}")
    folders = [path for group in sorted(root.glob("[!.]*")) if group.is_dir() for path in find_folders(group)]
    named = {str(path.relative_to(root)): path for path in folders} | {path.parent.name: path for path in folders}
    tail = "/".join(Path(word).parts[-2:])
    near = [name for each in (tail, Path(word).name) for name in nearest(each, named, 0.65)[:1]]
    reason = "no run is in it" if places else "no such folder"
    fix = f"python -m runner {verb} {Run(named[near[0]])}" if near else "python -m runner report  (lists the runs)"
    return Fault(word, reason, f"the folder of a run, such as {root}/<name>/<run>", fix)


def check_whole(run: RunRecord) -> None:
    """Raise FolderError where the configuration of a run lacks what that of every run has."""
    if not run.cfg:
        raise FolderError(fault("run.no_config", run=run))
    lacking = [key for key in NEEDED if run.cfg.get(key) in (None, "", {})]
    if lacking := [*lacking, *(group for group in GROUPS if group not in {*run.cfg, *lacking, *OPTIONAL})]:
        raise FolderError(fault("run.lacking_config", file=run.folder / "config.yaml", keys=", ".join(lacking)))


def check_finished(run: RunRecord, verb: str) -> None:
    """Raise FolderError where a run is not finished, or its configuration cannot be read."""
    if not run.cfg:
        raise FolderError(fault("run.no_config", run=run))
    if run.state != "finished":
        found = run.standing + (f": {run.cause}" if run.cause else "")
        raise FolderError(fault("run.not_finished", run=run, standing=found, verb=verb))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl`` in the order of their steps; what is cut off or no step is left out."""
    lines = [line for line in read_rows(path) if is_finite(step := line.get("step")) and abs(step) < MAX_STEP]
    return sorted(lines, key=lambda line: line["step"])


def read_samples(folder: Path, dense: bool = False) -> list[dict[str, Any]]:
    """Sampled completions, a ``score`` where there is one; of ours and the trainer's, ``dense`` takes more steps."""
    tables, texts = [], ("prompt", "completion")
    for name in SAMPLE_FILES:
        rows = [row for row in read_rows(folder / name) if row.keys() >= {*texts} and is_finite(row.get("step"))]
        for row in rows:
            row |= {text: plain_text(row[text]) for text in texts}
            if not is_finite(row.get("score")):
                row.pop("score", None)
        tables.append(rows)
    return max(tables, key=lambda table: len({row["step"] for row in table}) if dense else bool(table))


def curve(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps at which a metric was logged, and its values there."""
    points = [(line["step"], line[name]) for line in lines if is_finite(line.get(name))]
    return [step for step, _ in points], [value for _, value in points]


def is_finite(entry: object) -> TypeGuard[int | float]:
    """True for a number that can be compared and drawn."""
    return isinstance(entry, int | float) and not isinstance(entry, bool) and -LARGEST < entry < LARGEST


def finished(run: Run) -> str:
    """The line on a run that has nothing left to do."""
    return f"finished  {run} already; nothing was changed"


def one_line(cause: str, heading: bool = True) -> str:
    """A cause of several lines as one: its heading, where it is and what was found.

    >>> one_line("sick run\\n  trainer.loss\\n    found     loss is nan\\n    expected  a number")
    'sick run: trainer.loss: loss is nan'
    """
    lines = [line.strip() for line in cause.splitlines() if line.strip()]
    for place, (where, line) in enumerate(pairwise(lines)):
        if line.startswith("found "):
            head = lines[:1] if place and heading else []
            place_of = [where] if heading or not where.endswith("log.txt") else []
            return to_visible(": ".join([*head, *place_of, line.removeprefix("found").strip()]))
    return to_visible(" ".join(lines) if heading else next(iter(lines), "no cause was written"))


def format_time(moment: object) -> str:
    """A time as it was written, without its seconds."""
    text = str(moment or "an unknown time")
    return f"{text[:10]} {text[11:16]} UTC" if text.endswith("+00:00") else text


def plain_text(content: object) -> str:
    """A prompt or completion as text; of a conversation each turn, with its role where there are several."""
    if not isinstance(content, list):
        return str(content)
    bare = {"role": None, "content": None}
    turns = [bare | (dict(turn) if isinstance(turn, Mapping) else {"content": turn}) for turn in content]
    said = [(turn["role"], dialogue([turn])) for turn in turns]
    return said[0][1] if len(said) == 1 else "\n".join(f"{role}: {text}" for role, text in said)
