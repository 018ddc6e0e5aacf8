"""The names under which ``training_args.bin`` in older run folders holds the arguments of PPO."""

from runner.ppo.config import PPOConfig
from runner.ppo.trainer import PPOTrainer

__all__ = ["PPOConfig", "PPOTrainer"]
