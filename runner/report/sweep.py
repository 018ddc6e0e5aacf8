"""The runs of a name side by side: settings with mean and spread over seeds, ranked by one score.

A sweep is nothing but its run folders, so a report can be made at any time. How it looks is in
``table``, ``plot_sweep`` and ``page``; which runs are in it, and in which order, in ``selection``.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean

from runner.io.secrets import hidden
from runner.report.axis import Axis, axes_of
from runner.report.facts import choices_of, command_of, typed_numbers
from runner.report.index import RunOfMany
from runner.report.number import plural, sample_sd, short
from runner.report.ranking import ASKED_FOR, SweepObjective
from runner.report.score import ScoreChange, change_of, informative
from runner.run.record import RunRecord
from runner.schema.literal import number

STATES = (
    "finished",
    "running",
    "queued",
    "interrupted",
    "failed",
    "lost",
    "created",
    "unknown",
)
MAX_RIVALS = 3  # settings that a doubt about the best one names
MAX_RIVAL_LETTERS = 60


@dataclass(frozen=True)
class SweepSetting:
    """The runs that differ in nothing but the seed, with the scores of those that finished."""

    values: Mapping[str, Hashable]  # by the names of the axes
    runs: Sequence[RunRecord]
    scores: Mapping[str, list[float]] = field(default_factory=dict)  # of the runs, by name
    odd: Mapping[str, Hashable] = field(default_factory=dict)  # values that no other setting has
    texts: Mapping[str, str] = field(default_factory=dict)  # all these values as they are shown

    @property
    def odd_texts(self) -> dict[str, str]:
        """The values that no other setting has, as they are shown."""
        return {name: self.texts[name] for name in self.odd}

    def mean(self, name: str) -> float | None:
        """The mean of a score over seeds; None where no run has it."""
        scores = self.scores.get(name)
        return fmean(scores) if scores else None

    def sd(self, name: str) -> float | None:
        """The sample standard deviation over seeds; None with fewer than two."""
        return sample_sd(self.scores.get(name, []))

    def change(self, objective: SweepObjective | None) -> ScoreChange:
        """The mean change of the objective by training, over the runs that have both scores."""
        if objective is None:
            return ScoreChange()
        name = objective.name
        before = []
        after = []
        for run in self.finished:
            if name in run.before and name in run.after:
                before.append(run.before[name])
                after.append(run.after[name])
        if not before:
            return ScoreChange()
        return change_of(objective.maximise, fmean(before), fmean(after))

    @property
    def state(self) -> str:
        """The states of its runs in a word or two."""
        first = self.runs[0]
        if len(count_states(self.runs)) > 1:
            return list_states(self.runs)
        if len(self.runs) == 1 and first.state in ("running", "interrupted", "lost"):
            return first.standing
        return first.state

    @property
    def finished(self) -> list[RunRecord]:
        """Its runs that have finished; only these have scores."""
        return [run for run in self.runs if run.state == "finished"]

    @property
    def label(self) -> str:
        """The setting as one would type it."""
        if self.texts:
            words = [f"{name}={text}" for name, text in self.texts.items()]
            return " ".join(words)
        if len(self.runs) > 1:
            return "all seeds"
        return self.runs[0].folder.name


@dataclass(frozen=True)
class Summary:
    """A group of runs as it is now; ``settings`` come best first, those without a score last."""

    group: Path  # the folder of the name, or the folder around several names
    runs: Sequence[RunOfMany]
    axes: Sequence[Axis]
    seeds: Sequence[Hashable]
    settings: Sequence[SweepSetting]
    score_names: Sequence[str]  # the objective first
    objective: SweepObjective | None
    listed: Sequence[SweepSetting]  # the settings in the order in which they are shown
    top: int = 0  # settings to show; 0 for as many as there is room for
    condition: str = ""  # what ``where`` asked for, and of how many runs
    odd: Sequence[Axis] = ()  # keys that are no axes, because all but a few runs share one value
    names: Sequence[str] = ()  # of the groups, where runs of several are compared
    colours: dict[Path, str] = field(default_factory=dict)  # of the runs when they were last drawn

    @property
    def all_finished(self) -> bool:
        """True where a table needs no column of states."""
        return all(run.state == "finished" for run in self.runs)

    @property
    def troubled(self) -> list[RunRecord]:
        """The runs that have not finished, are damaged, or ended worse than they began."""
        return [run for run in self.runs if run.state != "finished" or run.cause]

    @cached_property
    def alike(self) -> dict[str, str]:
        """The scores, beside the objective, that are the same in all runs that have them."""
        alike: dict[str, str] = {}
        if self.objective is None:
            return alike
        for name in informative(self.score_names):
            if name == self.objective.name:
                continue
            scores = [run.score(name) for run in self.runs]
            texts = [number(score) for score in scores if score is not None]
            if len(texts) > 1 and len(set(texts)) == 1:
                alike[name] = texts[0]
        return alike

    @property
    def shown_scores(self) -> list[str]:
        """The objective, and the other scores that tell something."""
        names = informative(self.score_names)
        if self.objective:
            names = [self.objective.name, *names]
        return [name for name in dict.fromkeys(names) if name not in self.alike]

    @property
    def counts(self) -> str:
        """The number of settings and seeds; empty where every run has the same seed."""
        if not self.seeds:
            return ""
        settings = plural(len(self.settings), "setting")
        seeds = plural(len(self.seeds), "seed")
        return f"{settings}, {seeds}"

    @cached_property
    def best(self) -> SweepSetting | None:
        """The first of the settings that compete.

        None where no setting has a score, or only one of several has it and nobody asked for it.
        """
        if not self.competing:
            return None
        if len(self.competing) == 1 and self.unranked and not self.was_asked_for:
            return None
        return self.competing[0]

    @property
    def was_asked_for(self) -> bool:
        """True where the user has named the objective."""
        return self.objective is not None and self.objective.why == ASKED_FOR

    @cached_property
    def unranked(self) -> list[SweepSetting]:
        """The settings that have finished without the objective."""
        unranked = []
        for setting in self.settings:
            if setting.finished and not self.count(setting):
                unranked.append(setting)
        return unranked

    @property
    def why_no_best(self) -> str:
        """The reason why there is no best setting."""
        if not self.competing or self.objective is None:
            if self.objective is not None and self.unranked:
                return f"no finished run has {self.objective.name}"
            return "no finished run has a score yet"
        label = self.competing[0].label
        return f"no score compares all of them: only {label} has {self.objective.name}"

    @property
    def best_command(self) -> str:
        """The command that makes the finished runs of the best setting again; empty without one."""
        if self.best is None or not self.best.finished:
            return ""
        runs = self.best.finished
        seeds = []
        if self.seeds:
            seeds = [run.experiment.seed for run in runs]
        return command_of(runs[0], seeds)

    @cached_property
    def competing(self) -> list[SweepSetting]:
        """The settings with a score; those with one seed only where no setting has several."""
        scored = [setting for setting in self.settings if self.count(setting)]
        repeated = [setting for setting in scored if self.count(setting) > 1]
        return repeated or scored

    @property
    def doubts(self) -> list[str]:
        """Reasons to doubt that the best setting is the best, each naming the rival settings."""
        if self.best is None or self.objective is None:
            return []
        name = self.objective.name
        best_mean = self.best.mean(name) or 0.0
        best_sd = self.best.sd(name) or 0.0
        tied = []
        near = []
        # The best is the first to compete. A rival is tied if its mean is written the same.
        for setting in self.competing[1:]:
            mean = setting.mean(name) or 0.0
            sd = setting.sd(name) or 0.0
            if number(mean) == number(best_mean):
                tied.append(setting)
            elif abs(mean - best_mean) <= max(best_sd, sd):
                near.append(setting)
        # One seed may be lucky, so settings with one do not compete with settings with several.
        lone = []
        if self.count(self.best) > 1:
            lone = [setting for setting in self.settings if self.count(setting) == 1]
        doubts = [
            _doubt(f"tied with {_others(tied)}", tied),
            _doubt(f"within one standard deviation of {_others(near)}", near),
            _doubt("left out with one seed", lone),
            _doubt(f"not compared with {_others(self.unranked)} without {name}", self.unranked),
        ]
        return [doubt for doubt in doubts if doubt]

    def count(self, setting: SweepSetting) -> int:
        """The number of runs from which the setting has its objective."""
        if self.objective is None:
            return 0
        return len(setting.scores.get(self.objective.name, ()))


def _others(settings: Sequence[SweepSetting]) -> str:
    return plural(len(settings), "other")


def _doubt(reason: str, settings: Sequence[SweepSetting]) -> str:
    """A reason with the first of the settings that it is about; empty without any."""
    if not settings:
        return ""
    labels = [short(setting.label, MAX_RIVAL_LETTERS) for setting in settings[:MAX_RIVALS]]
    if len(settings) > MAX_RIVALS:
        labels.append("...")
    return f"{reason}: {', '.join(labels)}"


def count_states(runs: Sequence[RunRecord]) -> dict[str, int]:
    """The number of runs in each state, in the order of STATES."""
    counts = Counter(run.state for run in runs)
    ordered = dict.fromkeys([*STATES, *counts])
    return {state: counts[state] for state in ordered if state in counts}


def list_states(runs: Sequence[RunRecord]) -> str:
    """The number of runs in each state as a text."""
    texts = [f"{count} {state}" for state, count in count_states(runs).items()]
    return ", ".join(texts)


def find_axes(runs: Sequence[RunRecord]) -> list[Axis]:
    """The keys in which some runs differ; the name comes first if they have several.

    Options are shown without secrets.
    """
    hide = cache(hidden)  # most runs share a few options
    typed = []
    for run in runs:
        choices = choices_of(run)
        typed.append({group: hide(option) for group, option in choices.items()})
    configs = [run.cfg for run in runs]
    axes = []
    texts = [typed_numbers(run) for run in runs]
    for axis in axes_of(configs, typed):
        typed_texts: dict[Hashable, str] = {}
        for value, texts_of_run in zip(axis.column, texts, strict=True):
            for key in (axis.key, *axis.also):
                if key in texts_of_run:
                    typed_texts.setdefault(value, texts_of_run[key])
        axes.append(replace(axis, typed=typed_texts))
    names = tuple(run.folder.parent.name for run in runs)
    if len(set(names)) > 1:
        axes.insert(0, Axis("name", "name", names))
    return axes
