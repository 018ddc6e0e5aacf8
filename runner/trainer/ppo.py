"""Proximal policy optimisation of language models (Schulman et al. 2017; Ziegler et al. 2019; Huang et al. 2024).

In reading order: the arithmetic, the arguments, the trainer. One step of the stock Trainer is one PPO update: roll
out, score, advantages, epochs of mini-batches. The gradient of the last mini-batch is left to the Trainer, which
clips, steps, schedules, logs, evaluates, saves, stops early and resumes with its own loop.

Not here: the module of policy and critic (``actor_critic``), sampling (``rollout``), rewards (``score``).

Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens, N response tokens of
all rows of a micro-batch, F rewards. What stands behind the end of a response is 0 in every BR tensor.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate.utils import gather_object
from peft import PeftConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint

from runner.errors import ConfigError, DataError, Fault
from runner.trainer.actor_critic import (
    ActorCritic,
    TokenLogProbs,
    add_reference_adapter,
    build_critic_model,
    disable_dropout,
)
from runner.trainer.batch import split_by_tokens
from runner.trainer.rollout import Sampling, choose_engine, sample
from runner.trainer.score import Completions, Reward, Rewards

# --- Arithmetic ---------------------------------------------------------------------------------


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k1") -> Tensor:
    """An estimate per token of KL(policy, reference) from samples of the policy (Schulman 2020, "Approximating KL").

    k1 is unbiased, k2 has low variance and a small bias, k3 is unbiased, of low variance and never negative.
    """
    log_ratio = ref_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return log_ratio.exp() - 1 - log_ratio


def generalised_advantages(
    rewards_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [B, R] (Schulman et al. 2016, eq. 16); the value after the last token is 0."""
    advantages_BR = torch.zeros_like(rewards_BR)
    following_B = next_value_B = torch.zeros_like(rewards_BR[:, 0])
    for step in reversed(range(rewards_BR.shape[1])):
        inside_B = mask_BR[:, step]
        surprise_B = rewards_BR[:, step] + gamma * next_value_B - values_BR[:, step]
        following_B = torch.where(inside_B, surprise_B + gamma * lam * following_B, following_B)
        next_value_B = torch.where(inside_B, values_BR[:, step], next_value_B)
        advantages_BR[:, step] = torch.where(inside_B, following_B, 0)
    return advantages_BR, torch.where(mask_BR, advantages_BR + values_BR, 0)


def whiten(values_BR: Tensor, mask_BR: Tensor, *, shift_mean: bool = True, total: Any = lambda sums: sums) -> Tensor:
    """Values scaled to variance 1 over what the mask holds, and to mean 0 if ``shift_mean``; 0 elsewhere.

    ``total`` adds a tensor up over all processes, so that the numbers are those of the whole batch.
    """
    inside = values_BR[mask_BR].double()
    count, added = total(torch.stack([torch.tensor(len(inside), device=inside.device), inside.sum()]))
    mean = added / count
    variance = total((inside - mean).square().sum()) / (count - 1).clamp(min=1)
    whitened = (values_BR - mean) * torch.rsqrt(variance + 1e-8)
    return torch.where(mask_BR, whitened if shift_mean else whitened + mean, 0).to(values_BR.dtype)


def policy_losses(
    log_ratios_N: Tensor, advantages_N: Tensor, cliprange: float, dual_clip: float | None = None
) -> Tensor:
    """The clipped surrogate per token, negated (Schulman et al. 2017, eq. 7; dual clip: Ye et al. 2020, eq. 5)."""
    ratios_N = log_ratios_N.exp()
    clipped_N = ratios_N.clamp(1 - cliprange, 1 + cliprange)
    losses_N = torch.maximum(-advantages_N * ratios_N, -advantages_N * clipped_N)
    if dual_clip is None:
        return losses_N
    return torch.where(advantages_N < 0, torch.minimum(losses_N, -advantages_N * dual_clip), losses_N)


def value_losses(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, cliprange_value: float) -> Tensor:
    """Half the larger of the squared errors with and without a clipped step from the old values."""
    clipped_N = old_values_N + (values_N - old_values_N).clamp(-cliprange_value, cliprange_value)
    return torch.maximum((values_N - returns_N).square(), (clipped_N - returns_N).square()) / 2


# --- Arguments ----------------------------------------------------------------------------------


@dataclass
class PPOConfig(TrainingArguments):
    """Arguments of :class:`PPOTrainer`: all of TrainingArguments, and PPO's under the names that TRL gave them.

    A process rolls out ``per_device_train_batch_size * gradient_accumulation_steps`` prompts per update.
    """

    learning_rate: float = field(default=3e-6, metadata={"help": "Of policy and critic."})
    logging_steps: float = field(default=1, metadata={"help": "In updates."})
    remove_unused_columns: bool | None = field(default=False, metadata={"help": "Rewards may want any column."})
    bf16: bool | None = field(default=None, metadata={"help": "None: where the hardware has it and fp16 is off."})

    total_episodes: int | None = field(default=None, metadata={"help": "Prompts in all, in place of max_steps."})
    num_ppo_epochs: int = field(default=4, metadata={"help": "Passes over each rollout."})
    num_mini_batches: int = field(default=1, metadata={"help": "Optimizer steps in each pass."})
    response_length: int = field(default=53, metadata={"help": "Most tokens of a completion."})
    temperature: float = field(default=0.7, metadata={"help": "Of sampling and of every log-probability."})
    stop_token: Literal["eos"] | None = field(default="eos", metadata={"help": "What ends a completion."})
    stop_token_id: int | None = field(default=None, metadata={"help": "Another token that ends a completion."})
    missing_eos_penalty: float | None = field(
        default=None, metadata={"help": "Taken from the score of a completion that was cut off (Huang et al. 2024)."}
    )

    kl_coef: float = field(default=0.05, metadata={"help": "Weight of the KL in the reward; 0: no reference at all."})
    kl_estimator: Literal["k1", "k2", "k3"] = field(default="k1", metadata={"help": "Schulman 2020."})
    kl_target: float | None = field(
        default=None, metadata={"help": "KL per completion that an adaptive kl_coef aims at (Ziegler et al. 2019)."}
    )
    kl_horizon: float = field(default=10_000, metadata={"help": "Episodes in which an adaptive kl_coef reacts."})

    cliprange: float = field(default=0.2, metadata={"help": "Of the probability ratio (Schulman et al. 2017)."})
    dual_clip: float | None = field(
        default=None, metadata={"help": "Bound on the ratio where the advantage is negative, above 1 (Ye et al. 2020)."}
    )
    cliprange_value: float = field(default=0.2, metadata={"help": "Of a value's step in one update."})
    vf_coef: float = field(default=0.1, metadata={"help": "Weight of the value loss."})
    gamma: float = field(default=1.0, metadata={"help": "Discount."})
    lam: float = field(default=0.95, metadata={"help": "Lambda of the advantages (Schulman et al. 2016)."})
    loss_average: Literal["token", "sequence"] = field(
        default="token", metadata={"help": "Every token of a mini-batch counts the same, or every completion."}
    )
    value_warmup_steps: int = field(default=0, metadata={"help": "Updates of the critic alone at the start."})

    whiten_rewards: bool = field(default=False, metadata={"help": "Scale rewards per token to variance 1."})
    score_normalization: Literal["none", "scale", "whiten"] = field(
        default="none",
        metadata={
            "help": "Divide scores by their running deviation, or take their mean off too (Engstrom et al. 2020)."
        },
    )
    score_clip: float | None = field(default=None, metadata={"help": "Bound on the normalised score, either side."})
    reward_weights: list[float] | None = field(default=None, metadata={"help": "One for each reward; None: 1."})
    step_separator: str = field(default="\n", metadata={"help": "Ends a step, where a reward is given per step."})

    critic: Literal["auto", "adapter", "model", "head"] = field(
        default="auto",
        metadata={
            "help": "A second adapter, a model of its own, or a head on the policy's states, which learns worse."
        },
    )
    reward_model_path: str | None = field(default=None, metadata={"help": "A further reward: a score model."})
    sft_model_path: str | None = field(default=None, metadata={"help": "The policy, where no model is given."})

    rollout_engine: Literal["auto", "loop", "generate", "continuous"] = field(
        default="auto", metadata={"help": "How completions are sampled; continuous batching is for GPUs."}
    )
    local_rollout_forward_batch_size: int = field(default=64, metadata={"help": "Rows sampled side by side."})
    old_logprobs: Literal["auto", "sampled", "recompute"] = field(
        default="auto", metadata={"help": "Of the sampling itself, or of another forward; auto: sampled in float32."}
    )
    max_tokens_per_micro_batch: int | None = field(
        default=None,
        metadata={"help": "Padded tokens in one pass; None: 512 on CPU, else per_device_train_batch_size long rows."},
    )
    num_sample_generations: int = field(
        default=10, metadata={"help": "Times in a training at which held-out samples go to completions.jsonl."}
    )

    def __post_init__(self) -> None:
        if self.bf16 is None:
            self.bf16 = not self.fp16 and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        super().__post_init__()
        if faults := list(_faults_of(self)):
            raise ConfigError(faults)

    @property
    def rollout_rows(self) -> int:
        """Prompts that one process rolls out for an update."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def penalises_kl(self) -> bool:
        """Whether a reference is looked at."""
        return self.kl_coef != 0 or self.kl_target is not None


def _faults_of(args: PPOConfig) -> Any:
    """A fault for each number that PPO cannot work with."""
    rows, parts = args.rollout_rows, args.num_mini_batches
    if parts < 1 or rows % parts:
        found = f"{parts} for {rows} prompts per process"
        expected = "a divisor of per_device_train_batch_size * gradient_accumulation_steps"
        yield Fault("trainer.args.num_mini_batches", found, expected, "trainer.args.num_mini_batches=1")
    for name in ("num_ppo_epochs", "response_length", "local_rollout_forward_batch_size"):
        if getattr(args, name) < 1:
            yield Fault(f"trainer.args.{name}", str(getattr(args, name)), "at least 1", f"trainer.args.{name}=1")
    if args.temperature <= 0:
        cure = "trainer.args.temperature=1.0"
        yield Fault("trainer.args.temperature", str(args.temperature), "above 0: PPO samples", cure)
    if args.dual_clip is not None and args.dual_clip <= 1:
        yield Fault("trainer.args.dual_clip", str(args.dual_clip), "above 1", "trainer.args.dual_clip=3.0")
    if args.missing_eos_penalty is not None and args.stop_token is None and args.stop_token_id is None:
        where, cure = "trainer.args.missing_eos_penalty", "trainer.args.stop_token=eos"
        yield Fault(where, str(args.missing_eos_penalty), "a token that ends a completion", cure)


# --- Trainer ------------------------------------------------------------------------------------

# Sums over the tokens of a mini-batch, the first two divided by its size.
LOGGED = (
    "policy",
    "value",
    "tokens",
    "approxkl",
    "clipped",
    "value_clipped",
    "ratio",
    "ratio_squared",
    "entropy",
)


@dataclass
class Memory:
    """What PPO carries from update to update beside weights; it is saved with each checkpoint."""

    kl_coef: float
    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    def add(self, count: float, mean: float, squares: float) -> None:
        """Take in the scores of a batch (Chan et al. 1979)."""
        both, apart = self.count + count, mean - self.mean
        self.squares += squares + apart**2 * self.count * count / both
        self.mean += apart * count / both
        self.count = both

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 1.0


@dataclass
class Rollout:
    """What one process sampled for an update, and what is known of it."""

    sequences: list[list[int]]  # prompt and response
    prompts: list[int]  # their lengths
    responses: list[int]
    mask_BR: Tensor
    logprobs_BR: Tensor
    values_BR: Tensor
    ref_logprobs_BR: Tensor | None = None
    advantages_BR: Tensor | None = None
    returns_BR: Tensor | None = None

    @property
    def lengths(self) -> list[int]:
        return list(map(len, self.sequences))

    def micro_batch(self, rows: Sequence[int], device: torch.device) -> MicroBatch:
        """The rows padded on the right, and where their response tokens are."""
        width, spread = max(len(self.sequences[row]) for row in rows), self.mask_BR.shape[1]
        input_ids = [self.sequences[row] + [0] * (width - len(self.sequences[row])) for row in rows]
        positions, targets, places = [], [], []
        for index, row in enumerate(rows):
            before, count = self.prompts[row], self.responses[row]
            positions += range(index * width + before - 1, index * width + before - 1 + count)
            targets += self.sequences[row][before:]
            places += range(row * spread, row * spread + count)
        return MicroBatch(*(torch.tensor(part, device=device) for part in (input_ids, positions, targets, places)))


@dataclass
class MicroBatch:
    """Rows for one pass through the model."""

    input_ids: Tensor  # [B, T], padded on the right
    positions_N: Tensor  # flat index in input_ids of the token before each response token
    targets_N: Tensor  # the response tokens
    places_N: Tensor  # flat index of each response token in a BR tensor

    @property
    def asked(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.input_ids, self.positions_N, self.targets_N

    def of(self, values_BR: Tensor) -> Tensor:
        """The values of this batch's tokens [N]."""
        return values_BR.flatten()[self.places_N]


class PPOTrainer(Trainer):
    """PPO on rows with a ``prompt``, text or chat; every other column goes to the reward functions.

    ``reward_funcs`` are functions as GRPO takes them, sequence classification models, names of such models, or a list
    of these. A function may give one number per completion, or a list with one number per token or per step. The
    reference is the policy as it comes in: ``ref_model``, or the backbone without the adapter, or a frozen copy, or
    none where nothing looks at it. ``save_model`` writes the policy, and beside it the critic in ``value_model/``.

    Raises ConfigError or DataError, before any training, for what cannot work.
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel | str | None = None,
        reward_funcs: Reward | list[Reward] | None = None,
        args: PPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: Any = None,
        ref_model: PreTrainedModel | None = None,
        value_model: PreTrainedModel | None = None,
        peft_config: PeftConfig | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ):
        asked = args or PPOConfig()
        model = _load_policy(model, asked)
        tokenizer = processing_class or AutoTokenizer.from_pretrained(model.config._name_or_path)
        self.stop_ids = _stop_ids(asked, model, tokenizer)
        self.rewards = Rewards(
            _as_list(reward_funcs) + _as_list(asked.reward_model_path),
            asked.reward_weights,
            tokenizer,
            _as_list(reward_processing_classes) or None,
            asked.step_separator,
        )
        _check_rows(asked, model, tokenizer, train_dataset)
        self.reference = _build_reference(asked, model, ref_model, peft_config)
        policy = get_peft_model(model, peft_config) if peft_config is not None else model
        actor_critic = _build_actor_critic(asked, policy, value_model, self.rewards)
        self.memory = Memory(asked.kl_coef)
        self.rows_per_pass = asked.per_device_train_batch_size
        self.rollout_engine = choose_engine(model) if asked.rollout_engine == "auto" else asked.rollout_engine
        self.metrics: dict[str, list[float]] = defaultdict(list)
        super().__init__(
            model=actor_critic,
            args=_for_the_loop(asked),
            data_collator=list,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = False
        for frozen in (self.reference, *self.rewards.rewards):
            if isinstance(frozen, torch.nn.Module) and not getattr(frozen, "is_quantized", False):
                frozen.to(self.args.device)
        self.ref_logprobs = TokenLogProbs(self.reference) if self.reference is not None else None

    @property
    def actor_critic(self) -> ActorCritic:
        return self.accelerator.unwrap_model(self.model)

    def get_train_dataloader(self) -> Any:
        """Whole rollouts only; evaluation, which the same argument rules, sees every row."""
        asked, self.args.dataloader_drop_last = self.args.dataloader_drop_last, True
        try:
            return super().get_train_dataloader()
        finally:
            self.args.dataloader_drop_last = asked

    # --- One update

    def training_step(self, model: Any, inputs: list[dict[str, Any]], num_items_in_batch: Any = None) -> Tensor:
        """One PPO update but for its last optimizer step; gives the mean loss of its mini-batches."""
        self._sample_for_the_table()
        began = time.perf_counter()
        model.eval()
        rollout, completions = self.roll_out(inputs, self._noise(len(inputs)))
        rolled_out = time.perf_counter()
        with self.accelerator.autocast():
            self.look(rollout)
        self.set_advantages(rollout, completions)
        scored = time.perf_counter()
        model.train(bool(self.args.activation_checkpointing))  # which only works in this mode; dropout is off
        loss = self.update(model, rollout)
        model.eval()
        ended = time.perf_counter()
        self._note("time/rollout", rolled_out - began)
        self._note("time/score", scored - rolled_out)
        self._note("time/update", ended - scored)
        self._note("eps", len(inputs) * self.args.world_size / (ended - began))
        self._note("episode", len(inputs) * self.args.world_size * (self.state.global_step + 1))
        return loss

    @torch.no_grad()
    def roll_out(self, inputs: list[dict[str, Any]], noise_BR: Tensor) -> tuple[Rollout, Completions]:
        """Sample a completion for each row."""
        prompt_ids = self._tokenize([row["prompt"] for row in inputs], inputs)
        policy = self.actor_critic.logprobs.model
        how = Sampling(
            self.args.response_length,
            self.stop_ids,
            self.args.temperature,
            self.args.local_rollout_forward_batch_size,
        )
        with self.accelerator.autocast():
            samples = sample(self.rollout_engine, policy, prompt_ids, how, noise_BR)
        tokens = [row.tolist() for row in samples.tokens]
        responses, width = list(map(len, tokens)), max(map(len, tokens))
        mask_BR = torch.arange(width)[None] < torch.tensor(responses)[:, None]
        logprobs_BR = torch.zeros(mask_BR.shape)
        if self._keeps_sampled(samples.logprobs):
            logprobs_BR[mask_BR] = torch.cat(samples.logprobs)
        else:
            logprobs_BR.fill_(math.nan)  # still to be looked at
        device = self.args.device
        rollout = Rollout(
            sequences=[prompt + response for prompt, response in zip(prompt_ids, tokens, strict=True)],
            prompts=list(map(len, prompt_ids)),
            responses=responses,
            mask_BR=mask_BR.to(device),
            logprobs_BR=logprobs_BR.to(device),
            values_BR=torch.zeros(mask_BR.shape, device=device),
        )
        return rollout, self._completions(inputs, prompt_ids, tokens)

    @torch.no_grad()
    def look(self, rollout: Rollout) -> None:
        """Fill in what policy, critic and reference say of the sampled tokens before anything is learned from them."""
        temperature, actor_critic = self.args.temperature, self.actor_critic
        recompute = bool(rollout.logprobs_BR[0, 0].isnan())
        if recompute:
            rollout.logprobs_BR.zero_()
        if self.args.penalises_kl:
            rollout.ref_logprobs_BR = torch.zeros_like(rollout.logprobs_BR)
        reference = self.ref_logprobs or actor_critic.reference_logprobs
        for rows in split_by_tokens(range(len(rollout.sequences)), rollout.lengths, self._budget(rollout)):
            batch = rollout.micro_batch(rows, self.args.device)
            values_N = actor_critic.values(batch.input_ids, batch.positions_N)
            rollout.values_BR.view(-1)[batch.places_N] = values_N
            if recompute:
                logprobs_N = actor_critic.logprobs(*batch.asked, temperature)
                rollout.logprobs_BR.view(-1)[batch.places_N] = logprobs_N
            if rollout.ref_logprobs_BR is not None:
                rollout.ref_logprobs_BR.view(-1)[batch.places_N] = reference(*batch.asked, temperature)

    def set_advantages(self, rollout: Rollout, completions: Completions) -> None:
        """Score the completions, spread the rewards over tokens, and work out advantages and returns."""
        args, mask_BR, rows = self.args, rollout.mask_BR, len(rollout.sequences)
        scores_B, dense, sums_BF = self._score(completions)
        last_B = torch.tensor(rollout.responses, device=mask_BR.device) - 1
        rewards_BR = torch.zeros_like(rollout.values_BR)
        if rollout.ref_logprobs_BR is not None:
            kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, args.kl_estimator) * mask_BR
            rewards_BR = -self.memory.kl_coef * kl_BR
            self._note("objective/kl", self._mean(kl_BR.sum(1)))
        penalties_B = rewards_BR.sum(1)
        missing_B = torch.tensor([not ended for ended in completions.ended], device=mask_BR.device)
        penalty_B = (args.missing_eos_penalty or 0.0) * missing_B
        rewards_BR[torch.arange(rows), last_B] += self._normalised(scores_B) - penalty_B
        for row, values_R in enumerate(dense):
            if values_R is not None:
                rewards_BR[row, : len(values_R)] += values_R.to(rewards_BR.device)
                scores_B[row] += values_R.sum().to(scores_B.device)
        if args.whiten_rewards:
            rewards_BR = whiten(rewards_BR, mask_BR, shift_mean=False, total=self._total)
        advantages_BR, rollout.returns_BR = generalised_advantages(
            rewards_BR, rollout.values_BR, mask_BR, args.gamma, args.lam
        )
        rollout.advantages_BR = whiten(advantages_BR, mask_BR, total=self._total)
        self._note_rollout(rollout, scores_B - penalty_B, penalties_B, missing_B, sums_BF)
        self._adapt_kl(rows)

    def update(self, model: Any, rollout: Rollout) -> Tensor:
        """Epochs of mini-batches; the last gradient is left for the Trainer to clip and step."""
        deals = self._deal(len(rollout.sequences))
        sizes = self._total(torch.stack([self._size(rollout, rows) for rows in deals])).tolist()
        sums: list[Tensor] = []
        for number, (rows, size) in enumerate(zip(deals, sizes, strict=True), 1):
            sums.append(self._backward(model, rollout, rows, size))
            if number < len(deals):
                if self.args.max_grad_norm:
                    self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self._note_update(torch.stack(sums), rollout)

    def _backward(self, model: Any, rollout: Rollout, rows: list[int], size: float) -> Tensor:
        """Add up the gradient of one mini-batch over its micro-batches; gives the sums of what is logged."""
        groups = split_by_tokens(rows, rollout.lengths, self._budget(rollout))
        sums = torch.zeros(len(LOGGED), device=self.args.device)
        for group in groups:
            batch = rollout.micro_batch(group, self.args.device)
            weights_N = self._weights(rollout, group) / size
            last = group is groups[-1]
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                logprobs_N, values_N = model(*batch.asked, self.args.temperature)
                log_ratios_N = logprobs_N - batch.of(rollout.logprobs_BR)
                policy_N = policy_losses(
                    log_ratios_N, batch.of(rollout.advantages_BR), self.args.cliprange, self.args.dual_clip
                )
                value_N = value_losses(
                    values_N, batch.of(rollout.values_BR), batch.of(rollout.returns_BR), self.args.cliprange_value
                )
                warming_up = self.state.global_step < self.args.value_warmup_steps
                losses_N = (0.0 if warming_up else 1.0) * policy_N + self.args.vf_coef * value_N
                # Each process adds its share of the whole mini-batch, and the gradients are averaged over processes.
                self.accelerator.backward((losses_N * weights_N).sum() * self.args.world_size)
            with torch.no_grad():
                sums += self._sums(batch, rollout, weights_N, policy_N, value_N, log_ratios_N, logprobs_N, values_N)
        self.actor_critic.rest()
        return sums

    def _sums(
        self,
        batch: MicroBatch,
        rollout: Rollout,
        weights_N: Tensor,
        policy_N: Tensor,
        value_N: Tensor,
        log_ratios_N: Tensor,
        logprobs_N: Tensor,
        values_N: Tensor,
    ) -> Tensor:
        """What is logged of a micro-batch, in the order of LOGGED."""
        ratios_N = log_ratios_N.exp()
        moved_N = (values_N - batch.of(rollout.values_BR)).abs() > self.args.cliprange_value
        return torch.stack(
            [
                (policy_N * weights_N).sum(),
                (value_N * weights_N).sum(),
                torch.tensor(float(len(ratios_N)), device=ratios_N.device),
                log_ratios_N.square().sum() / 2,
                ((ratios_N - 1).abs() > self.args.cliprange).sum(),
                moved_N.sum(),
                ratios_N.sum(),
                ratios_N.square().sum(),
                -logprobs_N.sum(),
            ]
        )

    # --- Pieces of an update

    def _noise(self, rows: int, *, at: str = "train") -> Tensor:
        """Uniform numbers for every token of this process's rows: those of all processes, cut out."""
        generator = _generator(self.args.seed, at, self.state.global_step if at == "train" else 0)
        everyone = torch.rand(rows * self.args.world_size, self.args.response_length, generator=generator)
        return everyone[self.args.process_index * rows :][:rows]

    def _deal(self, rows: int) -> list[list[int]]:
        """The rows of this process in each mini-batch of each epoch.

        Neighbouring rows, as many as there are mini-batches, are dealt out one to each, by one shuffle for all
        processes: each holds an equal share of each mini-batch, whose rows do not depend on how many processes there
        are.
        """
        parts, world = self.args.num_mini_batches, self.args.world_size
        generator = _generator(self.args.seed, "deal", self.state.global_step)
        first = self.args.process_index * rows // parts
        deals = []
        for _ in range(self.args.num_ppo_epochs):
            hands = torch.rand(rows * world // parts, parts, generator=generator).argsort(1)[first:][: rows // parts]
            shuffled = hands + torch.arange(0, rows, parts)[:, None]
            deals += shuffled.T.tolist()
        return deals

    def _size(self, rollout: Rollout, rows: list[int]) -> Tensor:
        """What the losses of a mini-batch are divided by: its tokens, or its completions."""
        count = sum(rollout.responses[row] for row in rows) if self.args.loss_average == "token" else len(rows)
        return torch.tensor(float(count), device=self.args.device)

    def _weights(self, rollout: Rollout, rows: list[int]) -> Tensor:
        """How much each token of some rows counts [N], before the division by the size of the mini-batch."""
        lengths_B = torch.tensor([rollout.responses[row] for row in rows], device=self.args.device)
        if self.args.loss_average == "token":
            return torch.ones(int(lengths_B.sum()), device=self.args.device)
        return (1 / lengths_B).repeat_interleave(lengths_B)

    def _budget(self, rollout: Rollout) -> int:
        """Padded tokens in one pass. Measured on CPU: 512 take the least time, and rows that are longer go alone."""
        if self.args.max_tokens_per_micro_batch:
            return self.args.max_tokens_per_micro_batch
        if self.args.device.type == "cpu":
            return 512
        return self.rows_per_pass * max(rollout.lengths)

    def _keeps_sampled(self, logprobs: Any) -> bool:
        """Whether the log-probabilities of sampling serve as the old ones: float32 ones equal those of the update."""
        if logprobs is None or self.args.old_logprobs == "recompute":
            return False
        exact = not (self.args.bf16 or self.args.fp16) and self.actor_critic.policy.dtype == torch.float32
        return self.args.old_logprobs == "sampled" or exact

    def _score(self, completions: Completions) -> tuple[Tensor, list[Tensor | None], Tensor]:
        budget = self.args.max_tokens_per_micro_batch or 512 * (1 if self.args.device.type == "cpu" else 32)
        with self.accelerator.autocast():
            scores_B, dense, sums_BF = self.rewards(completions, self.state, budget)
        return scores_B.to(self.args.device), dense, sums_BF

    def _normalised(self, scores_B: Tensor) -> Tensor:
        """The scores, scaled by what was seen of scores so far and clipped, as the arguments say."""
        if self.args.score_normalization != "none":
            count = self._total(torch.tensor(float(len(scores_B)), device=scores_B.device, dtype=torch.float64))
            mean = self._total(scores_B.double().sum()) / count
            squares = self._total((scores_B.double() - mean).square().sum())
            self.memory.add(count.item(), mean.item(), squares.item())
            shift = self.memory.mean if self.args.score_normalization == "whiten" else 0.0
            scores_B = (scores_B - shift) / (self.memory.deviation + 1e-8)
        clip = self.args.score_clip
        return scores_B if clip is None else scores_B.clamp(-clip, clip)

    def _adapt_kl(self, rows: int) -> None:
        """Move kl_coef towards its target (Ziegler et al. 2019, section 2.2)."""
        if self.args.penalises_kl:
            self._note("objective/kl_coef", self.memory.kl_coef)
        if self.args.kl_target is not None:
            error = self.metrics["objective/kl"][-1] / self.args.kl_target - 1
            episodes = rows * self.args.world_size
            self.memory.kl_coef *= 1 + min(max(error, -0.2), 0.2) * episodes / self.args.kl_horizon

    # --- Rows and completions

    def _tokenize(self, prompts: list[Any], rows: list[dict[str, Any]]) -> list[list[int]]:
        return [to_prompt_ids(self.processing_class, prompt, row) for prompt, row in zip(prompts, rows, strict=True)]

    def _completions(
        self, inputs: list[dict[str, Any]], prompt_ids: list[list[int]], tokens: list[list[int]]
    ) -> Completions:
        texts = self.processing_class.batch_decode(tokens, skip_special_tokens=True)
        chats = isinstance(inputs[0]["prompt"], list)
        own = ("prompt", "prompts", "completions", "completion", "completion_ids")
        return Completions(
            prompts=[row["prompt"] for row in inputs],
            completions=[[{"role": "assistant", "content": text}] for text in texts] if chats else texts,
            prompt_ids=prompt_ids,
            completion_ids=tokens,
            ended=[ids[-1] in self.stop_ids or not self.stop_ids for ids in tokens],
            columns={name: [row[name] for row in inputs] for name in inputs[0] if name not in own},
        )

    # --- What is logged

    def _total(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, "sum")

    def _mean(self, values_B: Tensor) -> float:
        """The mean over the rows of all processes, which have equally many."""
        return self.accelerator.reduce(values_B.float().mean(), "mean").item()

    def _note(self, name: str, value: float) -> None:
        self.metrics[name].append(value)

    def _note_rollout(
        self, rollout: Rollout, scores_B: Tensor, penalties_B: Tensor, missing_B: Tensor, sums_BF: Tensor
    ) -> None:
        self._note("objective/scores", self._mean(scores_B))
        self._note("objective/non_score_reward", self._mean(penalties_B))
        self._note("objective/rlhf_reward", self._mean(scores_B + penalties_B))
        self._note("objective/entropy", self._mean(-rollout.logprobs_BR.sum(1)))
        self._note("val/num_eos_tokens", self._total((~missing_B).sum()).item() if self.stop_ids else 0)
        self._note("completions/mean_length", self._mean(rollout.mask_BR.sum(1)))
        for name, sums_B in zip(self.rewards.names, sums_BF.T.to(self.args.device), strict=True):
            applies_B = ~sums_B.isnan()
            added, count = self._total(torch.stack([sums_B.nansum(), applies_B.sum()])).tolist()
            if count:
                self._note(f"rewards/{name}/mean", added / count)
        inside = rollout.mask_BR
        returns, values = rollout.returns_BR[inside].double(), rollout.values_BR[inside].double()
        moments = torch.stack(
            [torch.ones_like(returns), returns, returns**2, returns - values, (returns - values) ** 2]
        )
        count, one, two, error, squared = self._total(moments.sum(1)).tolist()
        variance = two / count - (one / count) ** 2
        unexplained = squared / count - (error / count) ** 2
        self._note("val/explained_variance", 1 - unexplained / variance if variance > 1e-12 else 0.0)

    def _note_update(self, sums_KS: Tensor, rollout: Rollout) -> Tensor:
        """Log the update under TRL's names: means over all tokens of all mini-batches. Gives the mean loss."""
        sums_KS = self._total(sums_KS)
        totals = dict(zip(LOGGED, sums_KS.sum(0).tolist(), strict=True))
        steps, tokens = len(sums_KS), totals["tokens"]
        ratio = totals["ratio"] / tokens
        self._note("loss/policy_avg", totals["policy"] / steps)
        self._note("loss/value_avg", totals["value"] / steps)
        self._note("policy/approxkl_avg", totals["approxkl"] / tokens)
        self._note("policy/clipfrac_avg", totals["clipped"] / tokens)
        self._note("policy/entropy_avg", totals["entropy"] / tokens)
        self._note("val/clipfrac_avg", totals["value_clipped"] / tokens)
        self._note("val/ratio", ratio)
        self._note("val/ratio_var", max(totals["ratio_squared"] / tokens - ratio**2, 0.0))
        return torch.tensor((totals["policy"] + self.args.vf_coef * totals["value"]) / steps, device=self.args.device)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add what was noted since the last log to the logs of training."""
        if "loss" in logs:
            last = {"episode"}
            logs |= {name: v[-1] if name in last else sum(v) / len(v) for name, v in self.metrics.items()}
            logs["lr"] = logs.get("learning_rate", 0.0)
            self.metrics.clear()
        super().log(logs, *args, **kwargs)

    # --- Held-out prompts

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Sample a completion for each held-out prompt and score it; the same noise at every evaluation."""
        self.model.eval()
        columns: dict[str, list[Tensor]] = defaultdict(list)
        table: list[dict[str, Any]] = []
        for index, inputs in enumerate(dataloader):
            found, rows = self._sample_held_out(inputs, index)
            table += rows
            for name, values_B in self.accelerator.gather_for_metrics(found).items():
                columns[name].append(values_B)
        means = {name: torch.cat(values).nanmean().item() for name, values in columns.items()}
        count = sum(map(len, columns["objective/scores"]))
        self._write_table(table)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in means.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=count)

    def _sample_held_out(
        self, inputs: list[dict[str, Any]], index: int
    ) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        rollout, completions = self.roll_out(inputs, self._noise(len(inputs), at=f"eval {index}"))
        with self.accelerator.autocast():
            self.look(rollout)
        scores_B, dense, sums_BF = self._score(completions)
        scores_B += torch.tensor([0.0 if d is None else float(d.sum()) for d in dense], device=scores_B.device)
        scores_B -= (self.args.missing_eos_penalty or 0.0) * ~torch.tensor(completions.ended, device=scores_B.device)
        found = {"objective/scores": scores_B, "completions/mean_length": rollout.mask_BR.sum(1).float()}
        if rollout.ref_logprobs_BR is not None:
            kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, self.args.kl_estimator)
            found["objective/kl"] = (kl_BR * rollout.mask_BR).sum(1)
        found |= {
            f"rewards/{n}/mean": s.to(scores_B.device) for n, s in zip(self.rewards.names, sums_BF.T, strict=True)
        }
        texts = zip(completions.prompts, completions.completions, scores_B.tolist(), strict=True)
        step = self.state.global_step
        return found, [{"step": step, "prompt": p, "completion": c, "score": s} for p, c, s in texts]

    def _sample_for_the_table(self) -> None:
        """A few times in a training, write completions of the first held-out prompts, which an evaluation may not."""
        times = self.args.num_sample_generations
        if not times or self.eval_dataset is None or self.state.global_step % max(1, self.state.max_steps // times):
            return
        sets = self.eval_dataset.values() if isinstance(self.eval_dataset, Mapping) else [self.eval_dataset]
        rows = [row for one in sets for row in one.take(self.args.per_device_eval_batch_size)]
        self.model.eval()
        self._write_table(self._sample_held_out(rows, 0)[1], everyone=False)

    def _write_table(self, table: list[dict[str, Any]], everyone: bool = True) -> None:
        """Put the samples of this step into completions.jsonl, in place of those of an earlier try at it."""
        table = gather_object(table) if everyone else table
        if not self.is_world_process_zero():
            return
        path = Path(self.args.output_dir) / "completions.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] != self.state.global_step]
        lines = kept + [json.dumps(row, ensure_ascii=False) for row in table]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    # --- Saving and resuming

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the policy as others load it, and the critic in ``value_model/``.

        A checkpoint holds the weights of both in the Trainer's own form, from which it resumes to the bit, and the
        policy for others in ``policy/``.
        """
        folder = Path(output_dir or self.args.output_dir)
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
        if not self.args.should_save:
            return
        if _internal_call:
            (folder / "ppo_state.json").write_text(json.dumps(dataclasses.asdict(self.memory)), encoding="utf-8")
            self._save_policy(folder / "policy")
        else:
            self._save_policy(folder)
            self.actor_critic.save_value(folder / "value_model")

    def _save_policy(self, folder: Path) -> None:
        policy = self.actor_critic.policy
        own = {"selected_adapters": [policy.active_adapter]} if isinstance(policy, PeftModel) else {}
        policy.save_pretrained(folder, **own)
        self.processing_class.save_pretrained(folder)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; on a resume, the adaptive KL and the statistics of scores go on where they were too."""
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(self.args.output_dir)
        if path:
            self.memory = Memory(**json.loads((Path(path) / "ppo_state.json").read_text(encoding="utf-8")))
        return super().train(resume_from_checkpoint, *args, **kwargs)


# --- What the trainer is made of ----------------------------------------------------------------


def _load_policy(model: Any, args: PPOConfig) -> PreTrainedModel | PeftModel:
    model = args.sft_model_path if model is None else model
    if model is None:
        raise ConfigError(Fault("model", "none", "a causal language model", "trainer.args.sft_model_path=<model>"))
    return AutoModelForCausalLM.from_pretrained(model) if isinstance(model, str) else model


def _stop_ids(args: PPOConfig, model: PreTrainedModel | PeftModel, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion: those the tokenizer and the model declare, and a further one."""
    own = [] if args.stop_token_id is None else [args.stop_token_id]
    if args.stop_token is None:
        return tuple(own)
    declared = [tokenizer.eos_token_id, *_as_list(model.generation_config.eos_token_id)]
    ids = sorted({*own, *(token for token in declared if token is not None)})
    if not ids:
        found, cure = "the tokenizer has no end token", "trainer.args.stop_token_id=<id>, or stop_token=null"
        raise ConfigError(Fault("trainer.args.stop_token", found, "a token that ends a completion", cure))
    return tuple(ids)


def _check_rows(args: PPOConfig, model: Any, tokenizer: Any, rows: Any) -> None:
    """Raise DataError for rows that PPO would loop over for ever, or that the model cannot hold."""
    faults = []
    columns = getattr(rows, "column_names", None)
    if columns is not None and "prompt" not in columns:
        faults.append(Fault("dataset", f"columns {', '.join(columns)}", "a column prompt"))
    needed = args.rollout_rows * args.world_size
    if hasattr(rows, "__len__"):
        if len(rows) < needed:
            cure = "dataset.limit.train=null, or a smaller trainer.args.per_device_train_batch_size"
            faults.append(Fault("dataset", f"{len(rows)} training rows", f"at least the {needed} of one update", cure))
        if not faults:
            faults += _faults_of_prompts(args, model, tokenizer, rows)
    if faults:
        raise DataError(faults)


def _faults_of_prompts(args: PPOConfig, model: Any, tokenizer: Any, rows: Any) -> list[Fault]:
    """Prompts without a token, and those that leave no room for the response."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    room = longest - args.response_length
    too_long, empty = [], []
    for index, prompt in enumerate(rows["prompt"]):
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        # A token is at least a byte, so that most prompts need not be counted.
        if text and len(text.encode()) + 256 <= room and isinstance(prompt, str):
            continue
        count = len(to_prompt_ids(tokenizer, prompt, rows[index]))
        too_long += [count] * (count > room)
        empty += [index] * (count == 0)
    faults = []
    if too_long:
        found = f"{len(too_long)} prompts are too long, one of {max(too_long)} tokens"
        expected = f"at most {room}: the model holds {longest}, the response {args.response_length}"
        faults.append(Fault("dataset", found, expected, "a smaller trainer.args.response_length, or shorter prompts"))
    if empty:
        faults.append(Fault("dataset", f"{len(empty)} prompts without a token, the first in row {empty[0]}"))
    return faults


def to_prompt_ids(tokenizer: Any, prompt: Any, row: Mapping[str, Any]) -> list[int]:
    """The token ids of a prompt, a chat opened for the answer with the tools of its row."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(
        prompt,
        tools=row.get("tools"),
        add_generation_prompt=True,
        return_dict=False,
        **row.get("chat_template_kwargs") or {},
    )


def _build_reference(
    args: PPOConfig, model: Any, ref_model: PreTrainedModel | None, peft_config: PeftConfig | None
) -> PreTrainedModel | None:
    """The frozen start model; None where the policy's backbone can show it, or nothing looks at it."""
    if not args.penalises_kl:
        return None
    if ref_model is None and isinstance(model, PeftModel):
        add_reference_adapter(model)
    elif ref_model is None and peft_config is None:
        ref_model = copy.deepcopy(model)
    return None if ref_model is None else ref_model.requires_grad_(False).eval()


def _build_actor_critic(args: PPOConfig, policy: Any, value_model: Any, rewards: Rewards) -> ActorCritic:
    """The policy with the critic that the arguments ask for, without dropout."""
    adapted = isinstance(policy, PeftModel)
    critic = ("adapter" if adapted else "model") if args.critic == "auto" else args.critic
    critic = "model" if value_model is not None else critic
    if critic == "adapter" and not adapted:
        raise ConfigError(Fault("trainer.args.critic", "adapter, without an adapter", "peft=lora", "peft=lora"))
    if adapted and policy.active_peft_config.is_prompt_learning:
        found = f"{policy.active_peft_config.peft_type.value} puts a learnt prompt before the tokens"
        raise ConfigError(Fault("peft", found, "an adapter inside the layers", "peft=lora"))
    if critic == "model" and value_model is None:
        if getattr(policy, "is_quantized", False):
            found = "a model of its own, beside a quantised policy"
            raise ConfigError(Fault("trainer.args.critic", found, "an adapter", "trainer.args.critic=adapter"))
        value_model = build_critic_model(policy, rewards.model_for_critic())
    actor_critic = ActorCritic(policy, critic, value_model)
    disable_dropout(actor_critic)
    return actor_critic


def _for_the_loop(asked: PPOConfig) -> PPOConfig:
    """The arguments as the Trainer's loop shall see them: one batch is one rollout, and one step."""
    args = copy.copy(asked)
    args.per_device_train_batch_size = asked.rollout_rows
    args.gradient_accumulation_steps = 1
    if asked.total_episodes:
        args.max_steps = math.ceil(asked.total_episodes / (asked.rollout_rows * asked.world_size))
    if asked.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # policy and critic use every weight
    return args


def _generator(*of: Any) -> torch.Generator:
    """Random numbers that depend on these alone, so that nothing hidden has to be saved for a resume."""
    digest = hashlib.sha256(repr(of).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
