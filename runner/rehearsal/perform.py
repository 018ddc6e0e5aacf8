"""Acts -> played through, one after the other, each in a folder of its own below one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from runner.config import Composed
from runner.errors import code_of
from runner.files import read_json, write_text
from runner.rehearsal.cast import Act, model_of
from runner.rehearsal.play import Outcome, outcome_of, scores_of
from runner.rehearsal.reduce import Clones, Reduced, reduce
from runner.report.number import number
from runner.run import Run, folder_of, label_of, sealed_checkpoints
from runner.space import sized
from runner.sweep.plan import Task, tasks_of
from runner.sweep.pool import settings_of, train_all

PLAY = "runner.rehearsal.play.play"
TITLES = {"look": "rows read", "begin": "a step, saved", "go on": "resumed, scored", "export": "exported"}


@dataclass(frozen=True)
class Performance:
    """An act with the run in small that was played for it, and how that went."""

    act: Act
    small: Reduced
    run: Run

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.run)

    @property
    def rows(self) -> dict[str, Any]:
        """What was seen of the real run's rows."""
        return read_json(self.run.folder / "rows.json") or {}


class Theatre:
    """Plays acts below a folder, telling each as it ends."""

    def __init__(self, place: Path, debug: bool = False):
        self.place, self.debug = place, debug
        self.clones = Clones(place / "models")
        self.small: dict[str, tuple[Composed, Reduced]] = {}
        self.shown: dict[Path, Performance] = {}
        self.signals: list[int] = []

    def play(self, plays: Sequence[Sequence[Act]]) -> tuple[list[Performance], int]:
        """Every act of these plays once, and the exit code of the first that fails."""
        jobs = [[self._prepared(act) for act in play] for play in plays]
        tasks = tasks_of(jobs)
        for act, (composed, small) in ((act, self.small[act.key]) for play in plays for act in play):
            folder = folder_of(composed.cfg, composed.overrides)
            self.shown.setdefault(folder, Performance(act, small, Run(folder.absolute())))
        settings = settings_of({"jobs": 1}, debug=self.debug)
        codes, self.signals = train_all(tasks, settings, self)
        first = next((code for code in codes.values() if code), 0)
        return list(self.shown.values()), code_of(self.signals[0]) if self.signals else first

    def _prepared(self, act: Act) -> Composed:
        """The act in small, and its model noted for those that build on it."""
        if act.key not in self.small:
            place = self.place / f"{len(self.small)}"
            small = reduce(act.composed.cfg, place, self.clones)
            write_text(place / "sight.yaml", yaml.safe_dump(small.sight, sort_keys=False, allow_unicode=True))
            launcher = {"_target_": PLAY, "sight": str(place / "sight.yaml")}
            small.cfg |= {"launcher": launcher, "output_root": str(self.place / "outputs")}
            composed = replace(act.composed, cfg=small.cfg)
            self.small[act.key] = composed, small
        composed, small = self.small[act.key]
        for run in act.runs:
            self.clones.links[model_of(run)] = model_of(composed)
        return composed

    # What the pool tells.

    def started(self, task: Task) -> None:
        pass

    def ended(self, task: Task, state: str, cause: str = "", seconds: float | None = None) -> None:
        print("\n".join(told(self.shown[task.folder], state, cause)), flush=True)

    def tick(self, live: Sequence[tuple[Task, float]], waiting: int) -> None:
        pass

    def close(self) -> None:
        pass


def name_of(act: Act) -> str:
    """An act as a person knows it: the name of its runs, and its stage."""
    composed = act.composed
    label = label_of(composed.overrides)
    return " ".join(filter(None, (str(composed.cfg["name"]), "" if label == "default" else label)))


def told(shown: Performance, state: str, cause: str) -> list[str]:
    """What was done in an act, and how long each part took."""
    outcome, act = shown.outcome, shown.act
    if state == "finished":
        many = f", for {len(act.runs)} runs that differ in numbers only" if len(act.runs) > 1 else ""
        head = f"ok        {name_of(act)}: {number(outcome.total, 2)} s{many}"
    elif outcome.failed and outcome.seconds:
        head = f"failed    {name_of(act)}: {outcome.failed}"
    else:
        head = f"{state:<9} {name_of(act)}: {cause}"
    parts = [
        f"  {TITLES[part]:<16}{seconds:6.1f} s  {done}".rstrip()
        for (part, seconds), done in zip(outcome.seconds.items(), _done(shown), strict=False)
    ]
    instead = [f"  {'instead' if not place else '':<10}{note}" for place, note in enumerate(shown.small.notes)]
    return [head, *parts, *instead]


def _done(shown: Performance) -> list[str]:
    """What came of each part, in a few words."""
    run = shown.run
    saved, scores = sealed_checkpoints(run), scores_of(run)
    size = sum(file.stat().st_size for file in saved[0].rglob("*") if file.is_file()) if saved else 0
    first = next(iter(scores.items()), None)
    reached = (
        f"{len(scores)} held-out scores, such as {first[0]} {number(first[1], 3)}" if first else "no held-out rows"
    )
    why = (read_json(run.folder / "unexported.json") or {}).get("why")
    return [
        next(iter(shown.rows.get("lines", [])), ""),
        f"{saved[0].name}, {sized(size)}" if saved else "",
        reached if run.status()["state"] == "finished" else "",
        f"not: {why}" if why else "as transformers loads it" if (run.folder / "export").is_dir() else "",
    ]
