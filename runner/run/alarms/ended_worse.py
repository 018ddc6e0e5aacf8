"""The alarm of a whole training: a model that ended far worse than it began."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from runner.errors import SickRun
from runner.run.alarms.advice import is_curable
from runner.run.alarms.alarm import UNKNOWN, Alarm
from runner.run.alarms.observation import EARNED, MARGINS, TOKENS_RIGHT, Change, Kind, Step


@dataclass
class EndedWorse(Alarm):
    """A model that ended far worse than it began, on rows of the training and on held-out ones.

    Asked once, after the last step, because a loss may rise and fall again. An over-fitted model is
    worse on held-out rows alone, and rows of another kind make the loss of the training rise alone.
    The thresholds are in :class:`Change`.
    """

    name = "ended_worse"
    expected = "a model about as good as the start model, or better"

    STEPS = 5
    online: bool = False
    over: bool = False
    first: dict[str, float] = field(default_factory=dict)  # the first step is the start model's
    last: dict[str, list[float]] = field(default_factory=dict)
    width: float = 0.0  # between the worst and the best reward of a completion

    def suspect(self, step: Step) -> str | None:
        """Remember the first and the last values of each figure; no step alone is sick."""
        figures: dict[str, float | None] = {}
        if self.online:
            for name in EARNED:
                figures[name] = step.noted.get(name)
        else:
            figures["loss"] = step.loss
            if MARGINS[0] not in step.noted:  # the tokens of pairs need not be those of an answer
                figures[TOKENS_RIGHT] = step.noted.get(TOKENS_RIGHT)
        for name, figure in figures.items():
            if figure is not None and not self.over:
                self.first.setdefault(name, figure)
                last_figures = [*self.last.get(name, []), figure]
                self.last[name] = last_figures[-self.STEPS :]
        self.width = max(self.width, self.facts.width_of(step.rewards))
        return UNKNOWN

    def conclude(self, step: Step, held_out: Sequence[Change]) -> SickRun | None:
        """The end of a run that is far worse on held-out rows and in training."""
        if self.online:  # the losses of sampled completions do not fall when the model learns
            held_out = [change for change in held_out if not change.name.endswith("loss")]
        worse_held_out = self._first_far_worse(held_out)
        worse_in_training = self._first_far_worse(self.changes())
        if worse_held_out is None or worse_in_training is None:
            return None
        symptom = f"{worse_held_out} on held-out rows, and in training {worse_in_training}"
        fixes = self.fixes(step)
        return SickRun(self.fault(step, symptom, fixes), curable=is_curable(fixes))

    def fixes(self, step: Step) -> list[str]:
        if self.online:
            return self.facts.stay_closer(step.rate)
        return [self.facts.lower_rate(step.rate)]

    def changes(self) -> list[Change]:
        """The figures of the training, in its first step and as means of its last ones."""
        changes = []
        for name, before in self.first.items():
            kind: Kind = "reward"
            if name == "loss":
                kind = "loss"
            elif name == TOKENS_RIGHT:
                kind = "share"
            after = fmean(self.last[name])
            changes.append(Change(name, before, after, kind=kind))
        return changes

    def _first_far_worse(self, changes: Sequence[Change]) -> Change | None:
        """The first figure that is far worse than at the begin; None where none is."""
        for change in changes:
            if change.is_far_worse(self.width):
                return change
        return None
