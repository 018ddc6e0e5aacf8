"""Advice on what to type about a sickness, by the values of a configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.schema.literal import number

# A rate so many times the usual one is high: adapters learn at ten times the rate of all weights.
MANY_TIMES = 30
TINY_CLIP = 1e-6  # a clip below it leaves nothing that Adam, whose epsilon is 1e-8, tells from 0
LOWER = "a lower learning_rate="
CLOSER = "a larger kl_coef="
PREVIEW = "python -m runner preview <the same words>"


@dataclass(frozen=True)
class Facts:
    """Values of a configuration that tell one cause from another; the defaults mean unknown."""

    usual_rate: float | None = None  # the learning rate that the chosen options bring
    max_grad_norm: float = 0.0  # 0 clips nothing
    has_kl_coef: bool = True
    is_half: bool = False  # weights of 16 bits, in which small steps are rounded away
    # A step has taken several updates by the time that its loss is known, as PPO's has.
    steps_within: bool = False
    has_environment: bool = False
    greedy: str = ""  # what to type where all completions of a prompt are sampled alike
    reward_weights: tuple[float, ...] = ()
    # what to type about parts that can make a loss infinite before anything is learnt
    changed: tuple[str, ...] = ()

    def times_usual(self, rate: float | None) -> float:
        """The rate as a multiple of the usual one; 1 where that is not known."""
        if rate is None or not self.usual_rate:
            return 1.0
        return rate / self.usual_rate

    def lower_rate(self, rate: float | None) -> str:
        """The advice to lower the rate, with how high it is where it is above the usual one."""
        if self.times_usual(rate) < 2:
            return LOWER
        return f"{LOWER} ({self._compare_rate(rate)})"

    def higher_rate(self, rate: float | None) -> str:
        """The advice to raise the rate, with how low it is."""
        return f"a higher learning_rate= ({self._compare_rate(rate)})"

    @property
    def easier(self) -> str:
        """The advice where all completions earn the same."""
        if self.has_environment:
            return "easier tasks of the environment"
        return "another reward=, or easier prompts"

    def suspects(self) -> list[str]:
        """The parts that may make a loss or a gradient infinite before any update."""
        suspects = list(self.changed)
        if self.is_half:
            suspects.append("model.dtype=float32")
        return suspects

    @property
    def clips_to_nothing(self) -> bool:
        """True where the clip is so small that it leaves nothing of any gradient."""
        return 0 < self.max_grad_norm < TINY_CLIP

    def larger_clip(self) -> str:
        """The advice to clip less."""
        clip = number(self.max_grad_norm)
        return f"trainer.args.max_grad_norm=1, as {clip} clips every gradient to almost nothing"

    def stay_closer(self, rate: float | None) -> list[str]:
        """The ways to keep a policy near its reference, the rate first where that is high."""
        lower = self.lower_rate(rate)
        if not self.has_kl_coef:
            return [lower]
        if self.times_usual(rate) >= MANY_TIMES:
            return [lower, CLOSER]
        return [CLOSER, lower]

    def sample_apart(self) -> list[str]:
        """The advice to sample completions that differ, where they cannot; else nothing."""
        return [self.greedy] if self.greedy else []

    def width_of(self, rewards: Mapping[str, tuple[float, float, int]]) -> float:
        """The distance between the worst and the best sum of rewards of a completion so far.

        ``rewards`` holds, by its name, the lowest and the highest value of each reward, and how
        many values there were. 0.0 where one of them has none yet.
        """
        widths = [high - low for low, high, count in rewards.values() if count]
        weights = self.reward_weights or (1.0,) * len(rewards)
        if len(widths) != len(weights):
            return 0.0
        total = 0.0
        for weight, width in zip(weights, widths, strict=True):
            total += abs(weight) * width
        return total

    def best_of(self, rewards: Mapping[str, tuple[float, float, int]]) -> float | None:
        """The sum of the best values of each reward so far; None where some has none.

        The best value of a reward with a negative weight is its lowest one.
        """
        weights = self.reward_weights or (1.0,) * len(rewards)
        if not rewards or len(rewards) != len(weights):
            return None
        best = 0.0
        for weight, (low, high, count) in zip(weights, rewards.values(), strict=True):
            if not count:
                return None
            best += max(weight * low, weight * high)
        return best

    def _compare_rate(self, rate: float | None) -> str:
        """The rate beside the usual one, as a text."""
        times = number(self.times_usual(rate), 3)
        rate_text = number(rate, 3)
        usual_text = number(self.usual_rate, 3)
        return f"{rate_text} is {times} times {usual_text}, the usual one here"


def is_curable(fixes: Sequence[str]) -> bool:
    """True where a lower rate may help."""
    return any(fix.startswith(LOWER) for fix in fixes)
