"""The learning rate with an adapter: a multiple of the trainer's, as its option says.

A rate that is typed or swept, or that a model, an experiment or a file of the user's own brings, is
left as it is. ``composition`` knows which file has set it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runner.schema.literal import to_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

KEY = "learning_rate"
FACTOR = "learning_rate_factor"
FACTOR_KEY = f"peft.{FACTOR}"
REFERENCE = "${learning_rate}"
DIGITS = 6  # significant ones, or ten times 3e-6 would be 2.9999999999999997e-05


@dataclass(frozen=True)
class AdapterRate:
    """A learning rate that an adapter has multiplied."""

    usual: float  # the trainer's, for all weights
    factor: float
    adapter: str  # the option of the group peft
    begun: str = ""  # the folder of a run that began with the usual rate, and goes on with it

    @property
    def value(self) -> float:
        """The rate for the adapter."""
        return float(f"{self.usual * self.factor:.{DIGITS}g}")

    @property
    def product(self) -> str:
        """The two numbers that are multiplied."""
        return f"{to_text(self.factor)} x {to_text(self.usual)}"

    def __str__(self) -> str:
        value = to_text(self.value)
        usual = to_text(self.usual)
        if self.begun:
            return (
                f"{usual}, with which {self.begun} began; {KEY}={value}, today's for "
                f"peft={self.adapter}, is another run"
            )
        return (
            f"{value}, {to_text(self.factor)} times the {usual} of all weights, for "
            f"peft={self.adapter}; {KEY}= sets another"
        )

    def as_begun(self, folder: str) -> "AdapterRate":
        """The same where the run of a folder has begun without the factor."""
        return replace(self, begun=folder)


def apply_factor(cfg: "DictConfig", adapter: str) -> AdapterRate | None:
    """Multiply the rate of a configuration by the factor of its adapter, if it has one.

    None, and no change, where the trainer takes its rate from elsewhere. A value that is no number
    is left to the check of the values.
    """
    from omegaconf import OmegaConf

    usual = cfg.get(KEY)
    factor = OmegaConf.select(cfg, FACTOR_KEY)
    are_numbers = isinstance(usual, int | float) and isinstance(factor, int | float)
    if not are_numbers or isinstance(factor, bool) or factor <= 0:
        return None
    if REFERENCE not in OmegaConf.to_yaml(cfg.trainer):
        return None
    rate = AdapterRate(usual, factor, adapter)
    cfg[KEY] = rate.value
    return rate
