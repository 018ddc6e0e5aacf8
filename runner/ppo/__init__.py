"""Proximal policy optimisation: ``PPOTrainer`` and ``PPOConfig``, imported when first asked for."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.ppo.config import PPOConfig
    from runner.ppo.trainer import PPOTrainer

__all__ = ["PPOConfig", "PPOTrainer"]


def __getattr__(name: str) -> object:
    """The class of this name, whose module imports torch."""
    if name == "PPOConfig":
        from runner.ppo.config import PPOConfig

        return PPOConfig
    if name == "PPOTrainer":
        from runner.ppo.trainer import PPOTrainer

        return PPOTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
