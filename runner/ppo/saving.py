"""The models of PPO and its running statistics, as they are written and read again."""

import json
from dataclasses import asdict
from pathlib import Path

from transformers import Trainer

from runner.io.files import write_json
from runner.model.saved import gather_weights
from runner.ppo.token_rewards import RunningStats

STATE = "ppo_state.json"  # in a checkpoint: the running statistics


def save_models(trainer: Trainer, folder: Path, *, in_checkpoint: bool) -> None:
    """Write policy and tokenizer, and the critic in ``value_model/``.

    ``in_checkpoint`` the policy is in ``policy/``, and the running statistics take the place of the
    critic, which the checkpoint holds.
    """
    actor_critic = trainer.actor_critic
    weights = gather_weights(actor_critic, keep=trainer.args.should_save)
    if not trainer.args.should_save:
        return
    policy_folder = folder / "policy" if in_checkpoint else folder
    actor_critic.save_policy(policy_folder, weights)
    trainer.processing_class.save_pretrained(policy_folder)
    if in_checkpoint:
        write_json(folder / STATE, asdict(trainer.running))
    else:
        actor_critic.save_value(folder / "value_model", weights)


def read_running_stats(checkpoint: Path) -> RunningStats:
    """The KL coefficient and the statistics with which a checkpoint was left."""
    return RunningStats(**json.loads((checkpoint / STATE).read_text(encoding="utf-8")))
