"""Rewards, under the names that the config gives them."""

from torch import nn
from transformers import AutoTokenizer, TrainingArguments

from runner.model.chat import set_template
from runner.reward.outcome import ScoringModel, load_reward_model
from runner.reward.panel import TIMEOUT, RewardTracker, to_scorer
from runner.reward.reading import REWARD_KEY
from runner.schema import upstream
from runner.schema.text import Config, named
from runner.training.components.scorers import Reward, build_scorer


def build_rewards(
    cfg: Config, args: TrainingArguments | None = None
) -> tuple[list[Reward], list[float] | None, RewardTracker | None]:
    """The rewards as TRL takes them, each checked and named, their weights unless all are 1, and the group's panel.

    The reward model that ``args`` name is loaded as those of the group are, and taken out of them. Of a trainer,
    only one that knows where steps end can use a reward for each.
    """
    random_head = bool((cfg.get("tolerate") or {}).get("random_head"))
    per_step = not args or hasattr(args, "step_separator")
    panel = RewardTracker(has_tools=any(map(cfg.get("trainer", {}).get, upstream.FUNCTIONS[:2])))
    rewards: list[Reward] = []
    entries = named(cfg["reward"] or {}, "reward")
    for name, entry in entries.items():
        call, timeout = build_scorer(entry, random_head=random_head), entry.get("timeout", TIMEOUT)
        if isinstance(call, nn.Module):
            setattr(call, REWARD_KEY, "reward" if "_target_" in cfg["reward"] else f"reward.{name}")
        if isinstance(call, nn.Module) and (path := getattr(call.config, "_name_or_path", "")):
            set_template(AutoTokenizer.from_pretrained(path), None, f"reward.{name}.path")  # as whoever asks it will
        elif isinstance(call, ScoringModel):
            set_template(call.tokenizer, None, f"reward.{name}.path")
        if isinstance(call, nn.Module) and not per_step:  # which a ModelReward will ask and watch
            panel.earned[name] = []
            rewards.append(call)
        else:
            rewards.append(to_scorer(name, call, timeout=timeout, per_step=per_step, tracker=panel))
    weights = [float(entry.get("weight", 1.0)) for entry in entries.values()]
    if args is not None and (path := getattr(args, upstream.REWARD_MODEL_PATH, None)):
        args.reward_model_path = None  # the trainer is given the model
        where = f"trainer.args.{upstream.REWARD_MODEL_PATH}"
        model = load_reward_model(path, random_head=random_head, where=where)
        setattr(model, REWARD_KEY, where)
        rewards.append(model)
        weights.append(1.0)
    return rewards, weights if set(weights) - {1.0} else None, panel if entries else None
