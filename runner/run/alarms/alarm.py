"""The class that all alarms extend: it counts sick steps in a row, and ends the run.

Checkpoints of the last ``patience + lag`` steps are not trusted when an alarm rings, and none is
removed before so many steps have passed. An alarm that may notice a sickness later than that must
say so by its lag. The lag is 1 where a step shows what the one before it has done, as a loss does,
and every figure of samples. An alarm that takes the first steps for healthy needs none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from runner.errors import Fault, SickRun
from runner.run.alarms.advice import Facts, is_curable
from runner.run.alarms.observation import Change, Step

# What ``suspect`` returns beside a symptom.
HEALTHY: Final = ""
UNKNOWN: Final = None


@dataclass
class Alarm:
    """One way to be sick: something is wrong with ``patience`` steps in a row.

    Each subclass is a dataclass. Its fields are what it remembers; they are stored in checkpoints
    as JSON by their names (``training.health``).
    """

    name: ClassVar[str]
    expected: ClassVar[str]
    fix: ClassVar[str] = ""  # where it is the same for every cause
    lag: ClassVar[int] = 0

    patience: int = 1
    count: int = 0  # of sick steps in a row, so far
    facts: Facts = field(default_factory=Facts, kw_only=True)

    def suspect(self, step: Step) -> str | None:
        """The symptom of a step, HEALTHY, or UNKNOWN where it lacks what the alarm looks at."""
        raise NotImplementedError

    def fixes(self, step: Step) -> list[str]:
        """The ways out, the likeliest first: of all causes those that the step leaves possible."""
        return [self.fix]

    def observe(self, step: Step) -> SickRun | None:
        """Take a step into account, and return the end of the run where it is time."""
        symptom = self.suspect(step)
        if symptom is None:  # UNKNOWN neither adds to a row of sick steps nor ends it
            return None
        if symptom == HEALTHY:
            self.count = 0
            return None
        self.count += 1
        if self.count < self.patience:
            return None
        return self.sickness(step, symptom)

    def conclude(self, step: Step, held_out: Sequence[Change]) -> SickRun | None:
        """The end of a run whose last step is taken; None for one that is well."""
        return None

    def sickness(self, step: Step, symptom: str) -> SickRun:
        """The end of a run, whose checkpoints are good up to the step before the first sick one."""
        healthy = max(0, step.number - self.patience - self.lag)
        fixes = self.fixes(step)
        fault = self.fault(step, symptom, fixes)
        return SickRun(fault, healthy=healthy, curable=is_curable(fixes))

    def fault(self, step: Step, symptom: str, fixes: Sequence[str]) -> Fault:
        """The four beats of a sickness."""
        ways = list(fixes)
        if is_curable(fixes):
            ways.append("on_sick=rollback")
        ways.append(f"tolerate.{self.name}=true")
        return Fault(
            where=f"{self.name} at step {step.number}",
            found=symptom,
            expected=self.expected,
            fix="; or ".join(ways),
        )
