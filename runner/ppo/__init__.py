"""Proximal policy optimisation: ``PPOTrainer`` and ``PPOConfig``, imported when first asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.ppo.algorithm import PPOConfig, PPOTrainer

__all__ = ["PPOConfig", "PPOTrainer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.ppo import algorithm

    return getattr(algorithm, name)
