"""References to other runs: ``${run:...}`` in a configuration -> the folder of a model.

``${run:sft}`` is the model of an earlier stage of the same experiment; elsewhere ``${run:my-sft}``
is that of the newest finished run of this name, and ``${run:my-sft/<folder>}`` that of one run.
``${best:my-sft}`` is that of its best finished run, by the score that a report would rank by.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.composition import compose
from runner.config.resolution import Composed
from runner.errors import ConfigError, Fault, FolderError
from runner.run import Run
from runner.schema.did_you_mean import best_guess
from runner.schema.literal import number
from runner.schema.type import shortened
from runner.validate.adapter_start import settle_start

if TYPE_CHECKING:
    from omegaconf import DictConfig, Node


class References:
    """The meaning of ``${run:...}`` while configurations are composed.

    A name that nothing is found for becomes a fault, and a placeholder in the configuration.
    ``untyped`` are the keys that the file of a sweep gives values to.
    """

    def __init__(self, untyped: Collection[str] = ()) -> None:
        from omegaconf import OmegaConf

        self.untyped = untyped
        self.models: dict[str, str] = {}  # of the stages so far
        self.starts: dict[str, str] = {}  # by a model, the first one below it
        self.adapters: set[str] = set()  # of these models those that will be adapters
        self.ahead: list[str] = []  # the stage that is composed, and those after it
        self.faults: list[Fault] = []
        self.of_other_formats: list[Fault] = []  # of run folders that are meant
        self.notes: dict[Path, str] = {}  # a line on each run that a name means
        OmegaConf.register_new_resolver("run", self.find, replace=True)
        OmegaConf.register_new_resolver("best", self.find_best, replace=True)

    def find(self, name: object, *, _node_: "Node", _root_: "DictConfig") -> str:
        """The folder of the model that a name means."""
        name = str(name)
        if name in self.models:
            return self.models[name]
        key = str(_node_._get_full_key(None))
        root = Path(str(_root_.output_root))
        if name in self.ahead:
            self.faults.append(self._later_stage(key, name))
            return f"<model of {name}>"
        return self._newest(key, root, name)

    def find_best(self, name: object, *, _node_: "Node", _root_: "DictConfig") -> str:
        """The folder of the model of the best run of a name, or of those in a folder."""
        from runner.report.ranking import choose_objective
        from runner.run.record import read_run

        key = str(_node_._get_full_key(None))
        group = Path(str(name)).expanduser()
        if not group.is_dir():
            group = Path(str(_root_.output_root), str(name))
        records = []
        for folder in finished_runs(group.parent, group.name):
            record = read_run(folder)
            if not record.faults:
                records.append(record)
        objective = choose_objective(records)
        scores: dict[Path, float] = {}
        if objective is not None:
            for record in records:
                score = record.score(objective.name)
                if score is not None:
                    scores[record.folder] = score
        if objective is None or len(scores) < 2:  # there is nothing to choose by
            return self._newest(key, group.parent, group.name)
        ascending = sorted(scores, key=scores.__getitem__, reverse=objective.maximise)
        best = ascending[0]
        reason = f"the best of {len(records)} finished runs"
        score_text = number(scores[best])
        self.notes[best] = f"{key} is {best}, {reason} ({objective.name} {score_text})"
        return str(best / "model")

    def _newest(self, key: str, root: Path, name: str) -> str:
        """The folder of the model of the newest finished run that a name means.

        Where none of the runs that are meant can be read, because they are of another format, that
        is the fault, and not that there is no model.
        """
        from runner.run.record import read_run

        finished = finished_runs(root, name)
        meant = finished[-1:] or run_folders(root, name)
        faults = [read_run(folder).faults for folder in meant]
        if meant and all(faults):
            self.of_other_formats += faults[-1]
        elif finished:
            newest = finished[-1]
            reason = "the only finished run"
            if len(finished) > 1:
                reason = f"the newest of {len(finished)} finished runs"
            if "/" not in name:
                self.notes.setdefault(newest, f"{key} is {newest}, {reason}")
            return str(newest / "model")
        else:
            self.faults.append(self._missing_model(key, name, root))
        return f"<model of {name}>"

    def _later_stage(self, key: str, name: str) -> Fault:
        """The fault of a reference to a stage that trains no earlier than the one that has it."""
        stage = "this stage itself" if name == self.ahead[0] else "a later stage"
        expected = "a run that exists before this stage"
        if self.models:
            expected = f"an earlier stage: {', '.join(self.models)}"
        return Fault(
            where=key,
            found=f"${{run:{name}}} is {stage}",
            expected=expected,
            fix=self._fix(key, name, []),
        )

    def _missing_model(self, key: str, name: str, root: Path) -> Fault:
        """The fault of a reference to runs that are not there, or of which none has finished."""
        begun = [Run(folder) for folder in run_folders(root, name)]
        if begun:
            states = [f"{run} is {run.status()['state']}" for run in begun]
            listed_states = ", ".join(states)
            return Fault(
                where=key,
                found=f"${{run:{name}}} has no finished model: {listed_states}",
                expected="a finished run",
                fix=f"python -m runner.launch {begun[-1]}  (to finish it)",
            )
        finished = _finished_names(root, name)
        found = f"no run is called {name}"
        if self.ahead:
            found = f"no stage and no run is called {name}"
        expected = f"a finished run under {root}/"
        if finished:
            expected += f" ({shortened(finished)})"
        if self.models:
            expected = f"an earlier stage ({', '.join(self.models)}), or {expected}"
        return Fault(
            where=key,
            found=found,
            expected=expected,
            fix=self._fix(key, name, finished),
        )

    def _fix(self, key: str, name: str, finished: list[str]) -> str:
        """The word to type: the stage or run that looks most like the name, else the last stage."""
        stages = list(self.models)
        last_stage = stages[-1:]
        likeliest = best_guess(name, [*stages, *finished], *last_stage)
        if likeliest:
            return f"{key}='${{run:{likeliest}}}'"
        return f"{key}=<org/name, or a folder>"


def draft(overrides: Sequence[str], folders: Sequence[Path] = ()) -> Composed:
    """The configuration of these overrides, unchecked, for use of some of its parts.

    References are followed; ConfigError where that cannot be.
    """
    references = References()
    composed = compose(overrides, folders)
    FolderError.refuse(references.of_other_formats)
    ConfigError.refuse(references.faults)
    return settle_start(composed)


def _finished_names(root: Path, name: str) -> list[str]:
    """The names of finished runs in the group of a name, or else those of groups that have some."""
    group, slash, _ = name.partition("/")
    if slash:
        names = [f"{group}/{folder.name}" for folder in finished_runs(root, group)]
        if names:
            return names
    groups = sorted(root.glob("[!.]*"))
    return [folder.name for folder in groups if finished_runs(root, folder.name)]


def run_folders(root: Path, name: str) -> list[Path]:
    """The run folders that ``<group>`` or ``<group>/<folder>`` means, in alphabetical order."""
    group, _, wanted = name.partition("/")
    is_group = bool(group) and not group.startswith(".")
    is_outside = "/" in wanted or wanted in (".", "..")
    if not is_group or is_outside:
        return []
    folders = []
    for path in sorted((root / group).glob("*/config.yaml")):
        if wanted in ("", path.parent.name):
            folders.append(path.parent)
    return folders


def finished_runs(root: Path, name: str) -> list[Path]:
    """The folders of finished runs that a name means and that have a model, the newest last.

    Runs that ended in the same second are ordered by when their status was written.
    """
    ends: dict[Path, tuple[str, int]] = {}
    for folder in run_folders(root, name):
        status = Run(folder).status()
        has_model = (folder / "model").is_dir()
        if status["state"] == "finished" and has_model:
            updated = status.get("updated", "")
            written = (folder / "status.json").stat().st_mtime_ns
            ends[folder] = (updated, written)
    return sorted(ends, key=ends.__getitem__)
