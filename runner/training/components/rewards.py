"""Rewards, under the names that the config gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Trainer, TrainingArguments
from trl.models import prepare_deepspeed

from runner.generate.completion import Completion
from runner.model.chat import set_template
from runner.model.encoding import encode_prompt
from runner.ppo.scoring import TOKENS_PER_REWARD_PASS, Rewards
from runner.reward.outcome import ScoringModel, load_reward_model
from runner.reward.panel import TIMEOUT, RewardTracker, to_scorer
from runner.schema import upstream
from runner.schema.text import Config, named
from runner.training.components.scorers import Reward, build_scorer


@dataclass(eq=False)
class ModelReward:
    """A reward model in the form of a function, for trainers that would write texts of their own for a model.

    TRL's show it a text without the begin and the end token that it was trained with. This one reads what PPO and
    ``evaluate`` read: the same score for the same completion.
    """

    name: str
    model: nn.Module
    tokenizer: PreTrainedTokenizerBase  # the policy's
    tracker: RewardTracker
    template_arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.__name__ = self.name
        self.rewards = Rewards([self.model], None, self.tokenizer, template_arguments=self.template_arguments)
        self.rewards.names = [self.name]
        self.tracker.earned[self.name] = []

    def place(self, trainer: Trainer) -> None:
        """Put the model where the trainer computes."""
        if trainer.is_deepspeed_enabled:
            self.rewards.rewards = [prepare_deepspeed(self.model, trainer.accelerator)]
        elif not getattr(self.model, "is_quantized", False):
            self.model.to(trainer.accelerator.device)
        self.rewards.autocast = trainer.accelerator.autocast

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: object
    ) -> list[float]:
        """The score of each completion."""
        made = []
        for row, (prompt, completion, ids) in enumerate(zip(prompts, completions, completion_ids, strict=True)):
            end = self.tokenizer.eos_token_id
            is_whole = end in ids
            token_ids = [*ids[: ids.index(end) + 1]] if is_whole else [*ids]  # some give the padding, too
            is_text = isinstance(prompt, str)
            text, turns = (completion, None) if is_text else ("", completion)
            prompt_ids = encode_prompt(self.tokenizer, prompt, {}) if is_text else []
            finish = "stop" if is_whole else "length"
            made.append(Completion(row, 0, prompt, prompt_ids, text, token_ids, finish, turns=turns))
        _, scores_BF = self.rewards(made, [{}] * len(made), None, TOKENS_PER_REWARD_PASS)
        scores = scores_BF[:, 0].tolist()
        self.tracker.record(self.name, scores)
        return scores


def build_rewards(
    cfg: Config, args: TrainingArguments | None = None, tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[list[Reward], list[float] | None, RewardTracker | None]:
    """The rewards as TRL takes them, each checked and named, their weights unless all are 1, and the group's panel.

    The reward model that ``args`` name is loaded as those of the group are, and taken out of them. Of a trainer,
    only one that knows where steps end can use a reward for each, and reads models as :class:`ModelReward` does; the
    others, with the policy's ``tokenizer``, are given that.
    """
    random_head = bool((cfg.get("tolerate") or {}).get("random_head"))
    per_step = not args or hasattr(args, "step_separator")
    panel = RewardTracker(has_tools=any(map(cfg.get("trainer", {}).get, upstream.FUNCTIONS[:2])))
    rewards: list[Reward] = []
    entries = named(cfg["reward"] or {}, "reward")
    for name, entry in entries.items():
        call, timeout = build_scorer(entry, random_head=random_head), entry.get("timeout", TIMEOUT)
        if isinstance(call, nn.Module) and (path := getattr(call.config, "_name_or_path", "")):
            set_template(AutoTokenizer.from_pretrained(path), None, f"reward.{name}.path")  # as whoever asks it will
        elif isinstance(call, ScoringModel):
            set_template(call.tokenizer, None, f"reward.{name}.path")
        if isinstance(call, nn.Module) and tokenizer is not None and not per_step:
            arguments = getattr(args, upstream.CHAT_TEMPLATE_KWARGS, None) or {}
            rewards.append(ModelReward(name, call, tokenizer, panel, arguments))
        else:
            rewards.append(to_scorer(name, call, timeout=timeout, per_step=per_step, tracker=panel))
    weights = [float(entry.get("weight", 1.0)) for entry in entries.values()]
    if args is not None and (path := getattr(args, upstream.REWARD_MODEL_PATH, None)):
        args.reward_model_path = None  # the trainer is given the model
        where = f"trainer.args.{upstream.REWARD_MODEL_PATH}"
        rewards.append(load_reward_model(path, random_head=random_head, where=where))
        weights.append(1.0)
    return rewards, weights if set(weights) - {1.0} else None, panel if entries else None
