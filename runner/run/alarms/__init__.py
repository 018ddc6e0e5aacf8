"""Alarms: small classes that each watch every optimizer step for one way to be sick.

An alarm's name, thresholds, patience and texts stand in its class. Where a sickness has several
causes, the class puts the advice in order, by what the steps have shown and by the :class:`Facts`
of the configuration. Step numbers are those of the whole training, also after a resume.

    observation     what alarms look at: a Step, and a Change from before to after the training
    advice          what to type, by values of the configuration
    alarm           the class that all alarms extend
    optimization    losses, gradients and weights
    preference      pairs of a chosen and a rejected answer
    sampled         rewards of sampled completions, and their distance from the reference
    ended_worse     the model after the last step

``training.health`` fills in each :class:`Step` and says for what kind of training alarms are built.
"""

import math

from runner.config.experiment import Tolerate
from runner.run.alarms.advice import Facts
from runner.run.alarms.alarm import Alarm
from runner.run.alarms.ended_worse import EndedWorse
from runner.run.alarms.observation import (
    CHOSEN,
    EARNED,
    GROUPS_ALIKE,
    NOTED,
    Change,
    Kind,
    Step,
)
from runner.run.alarms.optimization import (
    Diverged,
    Exploded,
    Frozen,
    GradientAscent,
    HighLoss,
    NotFinite,
    ZeroGradient,
)
from runner.run.alarms.preference import ChosenLost, FirstMargin, PreferencesInverted
from runner.run.alarms.sampled import KL, ConstantReward, NoSignal

__all__ = [
    "ALARMS",
    "CHOSEN",
    "EARNED",
    "GROUPS_ALIKE",
    "KL",
    "NOTED",
    "Alarm",
    "Change",
    "ChosenLost",
    "ConstantReward",
    "Diverged",
    "EndedWorse",
    "Exploded",
    "Facts",
    "FirstMargin",
    "Frozen",
    "GradientAscent",
    "HighLoss",
    "Kind",
    "NoSignal",
    "NotFinite",
    "PreferencesInverted",
    "Step",
    "ZeroGradient",
    "build_alarms",
    "steps_to_notice",
]

# The names that ``tolerate`` takes: true switches an alarm off, and a number is for how many steps
# in a row its sickness may last (of ``loss`` it is the highest loss).
ALARMS = (
    NotFinite.name,
    ZeroGradient.name,
    Frozen.name,
    GradientAscent.name,
    Exploded.name,
    Diverged.name,
    HighLoss.name,
    KL.name,
    PreferencesInverted.name,
    ChosenLost.name,
    ConstantReward.name,
    NoSignal.name,
    EndedWorse.name,
    FirstMargin.name,
)


def steps_to_notice(tolerate: Tolerate | None = None) -> int:
    """The most steps from the last healthy one until a sickness is noticed, of any training."""
    alarms = [
        *build_alarms(tolerate, online=True),
        *build_alarms(tolerate, online=False),
    ]
    spans = [alarm.patience + alarm.lag for alarm in alarms]
    return max(spans, default=1)


def build_alarms(
    tolerate: Tolerate | None = None,
    *,
    online: bool = False,
    anchored: bool = False,
    pairs: int = 1,
    rounding: float | None = None,
    length: int | None = None,
    resumed: bool = False,
) -> list[Alarm]:
    """The alarms of one kind of training, as ``tolerate`` leaves them.

    ``online`` is learning from rewarded samples of at most ``length`` tokens, ``anchored`` is
    learning beside a reference, from ``pairs`` in each step. ``rounding`` is by how much the first
    margin may differ from 0; None where it need not be 0.
    """
    tolerate = tolerate or Tolerate()
    alarms: list[Alarm] = [NotFinite(), Frozen(), Exploded()]
    alarms.append(ZeroGradient(online=online, first_loss=math.inf if resumed else None))
    alarms.append(GradientAscent(over=resumed))
    if online:
        alarms += [ConstantReward(), NoSignal(over=resumed), KL(length=length)]
    else:
        alarms += [PreferencesInverted(anchored=anchored, pairs=pairs), ChosenLost(), Diverged()]
    alarms.append(EndedWorse(online=online, over=resumed))
    if rounding is not None:
        alarms.append(FirstMargin(tolerance=rounding))
    for alarm in alarms:
        patience = tolerate.alarm(alarm.name)
        if patience and patience is not True:
            alarm.patience = int(patience)

    if tolerate.loss:
        alarms.append(HighLoss(patience=tolerate.loss_steps, most=tolerate.loss))
    return [alarm for alarm in alarms if tolerate.alarm(alarm.name) is not True]
