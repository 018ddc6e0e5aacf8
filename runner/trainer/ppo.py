"""Proximal policy optimisation of language models (Schulman et al. 2017; Ziegler et al. 2019; Huang et al. 2024).

In reading order: the arithmetic, the arguments, the trainer. One step of the stock Trainer is one PPO update: roll
out, score, advantages, epochs of mini-batches. The gradient of the last mini-batch is left to the Trainer, which
clips, steps, schedules, logs, evaluates, saves, stops early and resumes with its own loop.

Not here: the module of policy and critic (``actor_critic``), sampling (``generate.sampler``), rewards (``score``).

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    set_seed,
)
from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint

from runner.errors import ConfigError, Fault
from runner.files import replace_rows, write_json
from runner.generate.batch import TOKENS_PER_PASS
from runner.generate.engines import build_engine
from runner.generate.sampler import Sampling
from runner.trainer.actor_critic import ActorCritic, TokenLogProbs, build_actor_critic, build_reference
from runner.trainer.batch import MicroBatch, Rollout, without_onednn
from runner.trainer.prompt import check_rows, find_stop_ids, to_prompt_ids
from runner.trainer.score import Completions, Reward, Rewards, Scores

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


def whiten(
    values_BR: Tensor,
    mask_BR: Tensor,
    *,
    shift_mean: bool = True,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
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

    learning_rate: float = 3e-6
    logging_steps: float = 1
    remove_unused_columns: bool | None = False  # rewards may want any column
    bf16: bool | None = None  # None: where the hardware has it and fp16 is off
    fsdp: None = None  # PPO trains whole models in each process, and so refuses what would shard them
    deepspeed: None = None

    # The rollout.
    total_episodes: int | None = None  # prompts in all, in place of max_steps
    response_length: int = 53  # most tokens of a completion
    temperature: float = 0.7  # of sampling and of every log-probability
    stop_token: Literal["eos"] | None = "eos"  # every end token that tokenizer and model declare
    stop_token_id: int | None = None  # a further token that ends a completion
    missing_eos_penalty: float | None = None  # off the score of a completion that was cut off (Huang et al. 2024)
    rollout_engine: Literal["auto", "loop", "generate", "continuous", "vllm"] = "auto"  # the last two need a GPU
    vllm_server_base_url: str = "http://localhost:8000"
    local_rollout_forward_batch_size: int = 64  # rows sampled side by side
    num_sample_generations: int = 10  # times in a training that held-out samples go to completions.jsonl

    # The reward.
    kl_coef: float = 0.05  # weight of the KL in the reward; with 0 there is no reference
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"  # Schulman 2020
    kl_target: float | None = None  # KL per completion that an adaptive kl_coef aims at (Ziegler et al. 2019)
    kl_horizon: float = 10_000  # episodes in which an adaptive kl_coef reacts
    reward_model_path: str | None = None  # a further reward: a sequence classification model
    reward_weights: list[float] | None = None  # one for each reward; None: 1
    step_separator: str = "\n"  # stands between the steps of a completion, where a reward is given per step
    # By the running deviation (Engstrom et al. 2020) of all rewards that were given, be it for completions, steps or
    # tokens (of steps: Shao et al. 2024, section 4.1.3); a token without a reward has none to shift.
    score_normalization: Literal["none", "scale", "whiten"] = "none"
    score_clip: float | None = None  # bound on each reward, normalised, either side
    whiten_rewards: bool = False  # scale rewards per token to variance 1

    # The update.
    num_ppo_epochs: int = 4
    num_mini_batches: int = 1  # optimizer steps in each epoch
    cliprange: float = 0.2  # of the probability ratio (Schulman et al. 2017)
    dual_clip: float | None = None  # bound on the ratio where the advantage is negative (Ye et al. 2020)
    cliprange_value: float = 0.2  # of a value's step in one update
    vf_coef: float = 0.1  # weight of the value loss
    gamma: float = 1.0
    lam: float = 0.95  # Schulman et al. 2016
    loss_average: Literal["token", "sequence"] = "token"  # what counts the same: every token, or every completion
    value_warmup_steps: int = 0  # updates of the critic alone at the start
    old_logprobs: Literal["auto", "sampled", "recompute"] = "auto"  # auto: sampled, where that is float32
    max_tokens_per_micro_batch: int | None = None  # None: 640 on CPU, else per_device_train_batch_size rows

    # The models.
    sft_model_path: str | None = None  # the policy, where no model is given
    critic: Literal["auto", "adapter", "model", "head"] = "auto"  # a head on the policy's states learns worse

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
        return self.kl_coef != 0


def _faults_of(args: PPOConfig) -> Iterator[Fault]:
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
    if args.kl_target is not None and (args.kl_target <= 0 or args.kl_coef <= 0):
        found = f"{args.kl_target} with kl_coef={args.kl_coef}"
        yield Fault("trainer.args.kl_target", found, "both above 0", "trainer.args.kl_target=6.0 kl_coef=0.05")
    if args.remove_unused_columns:
        where = "trainer.args.remove_unused_columns"
        yield Fault(where, "true", "nothing: rewards may want any column", "leave it out")
    if args.dual_clip is not None and args.dual_clip <= 1:
        yield Fault("trainer.args.dual_clip", str(args.dual_clip), "above 1", "trainer.args.dual_clip=3.0")
    if args.missing_eos_penalty is not None and args.stop_token is None and args.stop_token_id is None:
        where, cure = "trainer.args.missing_eos_penalty", "trainer.args.stop_token=eos"
        yield Fault(where, str(args.missing_eos_penalty), "a token that ends a completion", cure)


# --- Trainer ------------------------------------------------------------------------------------


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
        """Of all scores so far; 1 where they were all the same, which says nothing of their scale."""
        return (math.sqrt(self.squares / self.count) if self.count else 0.0) or 1.0


class PPOTrainer(Trainer):
    """PPO on rows with a ``prompt``, text or chat; every other column goes to the reward functions.

    ``reward_funcs`` are functions as GRPO takes them, sequence classification models, or a list of these; a model that
    is only named, who builds the trainer loads. A function may give one number per completion, or a list with one
    number per token or per step. The reference is the policy as it comes in: ``ref_model``, or the backbone without the
    adapter, or a frozen copy, or none where nothing looks at it. ``save_model`` writes the policy, and beside it the
    critic in ``value_model/``.

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
        set_seed(asked.seed)  # for the weights of adapters
        if model is None or isinstance(model, str):
            model = _load_policy(model or asked.sft_model_path)
        tokenizer = processing_class or AutoTokenizer.from_pretrained(model.config._name_or_path)
        self.stop_ids = find_stop_ids(asked.stop_token, asked.stop_token_id, model, tokenizer)
        self.rewards = Rewards(
            _as_list(reward_funcs),
            asked.reward_weights,
            tokenizer,
            _as_list(reward_processing_classes) or None,
            asked.step_separator,
        )
        check = partial(check_rows, model=model, tokenizer=tokenizer, response_length=asked.response_length)
        check(train_dataset, needed=asked.rollout_rows * asked.world_size)
        for rows in eval_dataset.values() if isinstance(eval_dataset, Mapping) else _as_list(eval_dataset):
            check(rows, needed=1)
        self.reference = ref_model if asked.penalises_kl else None
        if ref_model is None and asked.penalises_kl:
            self.reference = build_reference(model, adapted_later=peft_config is not None)
        policy = get_peft_model(model, peft_config) if peft_config is not None else model
        actor_critic = build_actor_critic(policy, asked.critic, value_model, self.rewards.model_for_critic())
        self.memory = Memory(asked.kl_coef)
        self.rows_per_pass = asked.per_device_train_batch_size
        self.engine = build_engine(asked.rollout_engine, policy, asked.vllm_server_base_url)
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
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            found, expected = "FSDP or DeepSpeed, which spread a model's weights", "whole models in each process"
            raise ConfigError(Fault("trainer.args", found, expected, "launcher.num_processes=<n>"))
        _freeze(self.reference, self.args.device)
        for reward in self.rewards.rewards:
            _freeze(reward, self.args.device)
        self.ref_logprobs = TokenLogProbs(self.reference) if self.reference is not None else None
        self.padding_free = self._try_padding_free()

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
        self.look(rollout)
        rewards_BR = self.reward_tokens(rollout, completions)
        scored = time.perf_counter()
        model.train(bool(self.args.activation_checkpointing))  # which only works in this mode; dropout is off
        loss = self.update(model, rollout, rewards_BR)
        model.eval()
        ended = time.perf_counter()
        self._note("time/rollout", rolled_out - began)
        self._note("time/score", scored - rolled_out)
        self._note("time/update", ended - scored)
        self._note("eps", len(inputs) * self.args.world_size / (ended - began))
        return loss

    @torch.no_grad()
    def roll_out(self, inputs: list[dict[str, Any]], noise_BR: Tensor) -> tuple[Rollout, Completions]:
        """Sample a completion for each row."""
        prompt_ids = self._tokenize([row["prompt"] for row in inputs], inputs)
        how = Sampling(
            self.args.response_length,
            self.stop_ids,
            self.args.temperature,
            self.args.local_rollout_forward_batch_size,
        )
        with self.accelerator.autocast():
            samples = self.engine(self.actor_critic.policy, prompt_ids, how, noise_BR)
        tokens = [row.tolist() for row in samples.tokens]
        responses, width = list(map(len, tokens)), max(map(len, tokens))
        mask_BR = torch.arange(width)[None] < torch.tensor(responses)[:, None]
        logprobs_BR, device = None, self.args.device
        if self._keeps_sampled(samples.logprobs):
            logprobs_BR = torch.zeros(mask_BR.shape, device=device)
            logprobs_BR[mask_BR.to(device)] = torch.cat(samples.logprobs).to(device)
        rollout = Rollout(
            sequences=[prompt + response for prompt, response in zip(prompt_ids, tokens, strict=True)],
            prompts=list(map(len, prompt_ids)),
            responses=responses,
            mask_BR=mask_BR.to(device),
            logprobs_BR=logprobs_BR,
            values_BR=torch.zeros(mask_BR.shape, device=device),
        )
        return rollout, self._completions(inputs, prompt_ids, tokens)

    @torch.no_grad()
    def look(self, rollout: Rollout) -> None:
        """Fill in what policy and reference say of the sampled tokens before anything is learned from them."""
        temperature, actor_critic = self.args.temperature, self.actor_critic
        sources = {}
        if rollout.logprobs_BR is None:
            sources[actor_critic.logprobs] = rollout.logprobs_BR = torch.zeros_like(rollout.values_BR)
        if self.args.penalises_kl:
            reference = self.ref_logprobs or actor_critic.reference_logprobs
            sources[reference] = rollout.ref_logprobs_BR = torch.zeros_like(rollout.values_BR)
        with self.accelerator.autocast():
            for batch in self._micro_batches(rollout, range(len(rollout.sequences))):
                for logprobs, found_BR in sources.items():
                    found_BR.view(-1)[batch.places_N] = logprobs(*batch.asked(temperature))

    @torch.no_grad()
    def reward_tokens(self, rollout: Rollout, completions: Completions) -> Tensor:
        """What each token earned [B, R]: its share of the KL, rewards of its own, and the last one the score."""
        args, mask_BR, device = self.args, rollout.mask_BR, self.args.device
        scores, penalty_B = self._score(completions)
        rewards_BR, kl_BR = torch.zeros_like(rollout.values_BR), None
        if rollout.ref_logprobs_BR is not None:
            kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, args.kl_estimator) * mask_BR
            rewards_BR = -self.memory.kl_coef * kl_BR
        self._note_rollout(rollout, scores, penalty_B, kl_BR)
        self._note("val/num_eos_tokens", self._total(torch.tensor(sum(completions.ended), device=device)).item())
        last_B = torch.tensor(rollout.responses, device=device) - 1
        earned_BR = self._normalised(scores.earned_BR)
        earned_BR[torch.arange(len(last_B)), last_B] -= penalty_B
        rewards_BR = rewards_BR + earned_BR
        if args.kl_target is not None:
            self._adapt_kl(self._mean(kl_BR.sum(1)), episodes=len(last_B) * args.world_size)
        if args.whiten_rewards:
            rewards_BR = whiten(rewards_BR, mask_BR, shift_mean=False, total=self._total)
        return rewards_BR

    def update(self, model: Any, rollout: Rollout, rewards_BR: Tensor) -> Tensor:
        """Epochs of mini-batches; the last gradient is left for the Trainer to clip and step."""
        deals = self._deal(len(rollout.sequences))
        sizes = self._total(torch.stack([self._size(rollout, rows) for rows in deals])).tolist()
        ahead = self.value_states(rollout, rewards_BR, deals[0], sizes[0])
        sums: dict[str, Tensor | float] = defaultdict(float)
        parameters = list(model.parameters())
        for number, (rows, size) in enumerate(zip(deals, sizes, strict=True), 1):
            for name, value in self._backward(model, rollout, rows, size, critic=number > 1 or not ahead):
                sums[name] = sums[name] + value
            if self.state.global_step < self.args.value_warmup_steps:
                self.actor_critic.forget_policy_gradient()
            if number < len(deals):
                if self.args.max_grad_norm:
                    self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self._note_update(sums, steps=len(deals))

    def value_states(self, rollout: Rollout, rewards_BR: Tensor, first: list[int], size: float) -> bool:
        """Have the critic value every state, and work out advantages and returns; gives whether it has learned, too.

        The returns of a row are known as soon as its values are, and these are the values that the first mini-batch
        begins with: in the same pass its rows leave the gradient of a critic that shares nothing with the policy.
        """
        args, rows = self.args, range(len(rollout.sequences))
        learns = self.actor_critic.critic != "head" and args.world_size == 1
        rollout.advantages_BR, rollout.returns_BR = torch.zeros_like(rewards_BR), torch.zeros_like(rewards_BR)
        for part in (first, [row for row in rows if row not in first]):
            for batch in self._micro_batches(rollout, part):
                with torch.set_grad_enabled(learns and part is first), self.accelerator.autocast():
                    values_N = self.actor_critic.values(*batch.asked_value)
                old_values_N, width = values_N.detach(), max(rollout.responses[row] for row in batch.rows)
                rollout.values_BR.view(-1)[batch.places_N] = old_values_N
                inside = torch.tensor(batch.rows, device=args.device), slice(width)
                rollout.advantages_BR[inside], rollout.returns_BR[inside] = generalised_advantages(
                    rewards_BR[inside], rollout.values_BR[inside], rollout.mask_BR[inside], args.gamma, args.lam
                )
                if values_N.requires_grad:
                    value_N = value_losses(values_N, old_values_N, batch.of(rollout.returns_BR), args.cliprange_value)
                    self._add_gradient((args.vf_coef * value_N * self._weights(rollout, batch.rows) / size).sum())
        rollout.advantages_BR = whiten(rollout.advantages_BR, rollout.mask_BR, total=self._total)
        self._note_values(rollout)
        return learns

    def _backward(
        self, model: Any, rollout: Rollout, rows: list[int], size: float, critic: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """Add up the gradient of one mini-batch over its micro-batches; gives the sums of what is logged.

        Critic and policy go one after the other, so that the activations of one are held at a time; measured, that
        takes a tenth to a quarter off the memory. They go together where they share them, and in the last pass of
        several processes, which is the one that averages the gradients. The ``critic`` is left out where it has
        valued the same states already.
        """
        args, actor_critic = self.args, self.actor_critic
        batches = self._micro_batches(rollout, rows)
        for batch in batches:
            last = batch is batches[-1]
            old_values_N, weights_N = batch.of(rollout.values_BR), self._weights(rollout, batch.rows) / size
            together = actor_critic.critic == "head" or (last and args.world_size > 1)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(model):
                if together:
                    logprobs_N, values_N = model(*batch.asked(args.temperature))
                elif critic:
                    with self.accelerator.autocast():
                        values_N = actor_critic.values(*batch.asked_value)
                else:
                    values_N = old_values_N
                value_N = value_losses(values_N, old_values_N, batch.of(rollout.returns_BR), args.cliprange_value)
                loss = (args.vf_coef * value_N * weights_N).sum()
                if not together:
                    if critic:
                        self._add_gradient(loss)
                    loss, value_N, values_N = 0.0, value_N.detach(), values_N.detach()
                    with self.accelerator.autocast():
                        logprobs_N = actor_critic.logprobs(*batch.asked(args.temperature))
                log_ratios_N = logprobs_N - batch.of(rollout.logprobs_BR)
                policy_N = policy_losses(log_ratios_N, batch.of(rollout.advantages_BR), args.cliprange, args.dual_clip)
                self._add_gradient(loss + (policy_N * weights_N).sum())
            with torch.no_grad():
                ratios_N = log_ratios_N.exp()
                yield "policy", (policy_N * weights_N).sum()
                yield "value", (value_N * weights_N).sum()
                yield "tokens", torch.ones_like(ratios_N).sum()
                yield "approxkl", log_ratios_N.square().sum() / 2
                yield "clipped", ((ratios_N - 1).abs() > args.cliprange).sum()
                yield "value_clipped", ((values_N - old_values_N).abs() > args.cliprange_value).sum()
                yield "ratio", ratios_N.sum()
                yield "ratio_squared", ratios_N.square().sum()
                yield "entropy", -logprobs_N.sum()
        actor_critic.rest()

    def _add_gradient(self, loss: Tensor) -> None:
        """Each process adds its share of the whole mini-batch; the gradients are averaged over processes."""
        self.accelerator.backward(loss * self.args.world_size)

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

    def _try_padding_free(self) -> bool:
        """Have every model of an update take rows that lie end to end, if all can; on a CPU, where it was measured."""
        if self.args.device.type != "cpu" or not self.actor_critic.try_row_by_row():
            return False
        return self.ref_logprobs is None or self.ref_logprobs.try_row_by_row()

    def _micro_batches(self, rollout: Rollout, rows: Sequence[int]) -> list[MicroBatch]:
        """Some rows of a rollout, as many in each pass as the budget of tokens allows."""
        budget, device = self._budget(rollout), self.args.device
        return rollout.micro_batches(rows, budget, device, padding_free=self.padding_free)

    def _budget(self, rollout: Rollout) -> int:
        """Tokens in one pass; rows that are longer go alone."""
        if self.args.max_tokens_per_micro_batch:
            return self.args.max_tokens_per_micro_batch
        if self.args.device.type == "cpu":
            return TOKENS_PER_PASS
        return self.rows_per_pass * max(rollout.lengths)

    def _keeps_sampled(self, logprobs: Any) -> bool:
        """Whether the log-probabilities of sampling serve as the old ones: float32 ones equal those of the update."""
        if logprobs is None or self.args.old_logprobs == "recompute":
            return False
        return self.args.old_logprobs == "sampled" or self._in_float32()

    def _in_float32(self) -> bool:
        return not (self.args.bf16 or self.args.fp16) and self.actor_critic.policy.dtype == torch.float32

    def _kernels(self) -> contextlib.AbstractContextManager[None]:
        """Within it models run on kernels that suit shapes which never come again."""
        plain = self.args.device.type == "cpu" and self._in_float32()
        return without_onednn() if plain else contextlib.nullcontext()

    def _score(self, completions: Completions) -> tuple[Scores, Tensor]:
        """What the completions earned, and what each loses because it was cut off [B]."""
        budget = self.args.max_tokens_per_micro_batch or TOKENS_PER_PASS * (1 if self.args.device.type == "cpu" else 32)
        with self.accelerator.autocast():
            scores = self.rewards(completions, self.state, budget)
        scores.earned_BR = scores.earned_BR.to(self.args.device)
        cut_off_B = ~torch.tensor(completions.ended, device=self.args.device)
        return scores, (self.args.missing_eos_penalty or 0.0) * cut_off_B

    def _normalised(self, earned_BR: Tensor) -> Tensor:
        """The rewards that were given, scaled by all of them so far and clipped, as the arguments say; 0 elsewhere."""
        given_BR, clip = ~earned_BR.isnan(), self.args.score_clip
        scores_N = earned_BR[given_BR]
        if self.args.score_normalization != "none":
            count = self._total(torch.tensor(float(len(scores_N)), device=scores_N.device, dtype=torch.float64))
            mean = self._total(scores_N.double().sum()) / count
            squares = self._total((scores_N.double() - mean).square().sum())
            self.memory.add(count.item(), mean.item(), squares.item())
            shift = self.memory.mean if self.args.score_normalization == "whiten" else 0.0
            scores_N = (scores_N - shift) / self.memory.deviation
        scores_N = scores_N if clip is None else scores_N.clamp(-clip, clip)
        return torch.zeros_like(earned_BR).masked_scatter(given_BR, scores_N)

    def _adapt_kl(self, kl: float, episodes: int) -> None:
        """Move kl_coef towards its target (Ziegler et al. 2019, section 2.2)."""
        error = min(max(kl / self.args.kl_target - 1, -0.2), 0.2)
        self.memory.kl_coef *= 1 + error * episodes / self.args.kl_horizon

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

    def _note_rollout(self, rollout: Rollout, scores: Scores, penalty_B: Tensor, kl_BR: Tensor | None) -> None:
        """Log what was sampled, before anything is learned from it, under TRL's names."""
        total_B = scores.total_B - penalty_B
        non_score_B = torch.zeros_like(total_B)
        if kl_BR is not None:
            non_score_B = -self.memory.kl_coef * kl_BR.sum(1)
            self._note("objective/kl", self._mean(kl_BR.sum(1)))
            self._note("objective/kl_coef", self.memory.kl_coef)
        self._note("objective/scores", self._mean(total_B))
        self._note("objective/non_score_reward", self._mean(non_score_B))
        self._note("objective/rlhf_reward", self._mean(total_B + non_score_B))
        self._note("objective/entropy", self._mean(-rollout.logprobs_BR.sum(1)))
        self._note("completions/mean_length", self._mean(rollout.mask_BR.sum(1)))
        for name, sums_B in zip(self.rewards.names, scores.each_BF.T.to(self.args.device), strict=True):
            added, count = self._total(torch.stack([sums_B.nansum(), (~sums_B.isnan()).sum()])).tolist()
            if count:
                self._note(f"rewards/{name}/mean", added / count)

    def _note_values(self, rollout: Rollout) -> None:
        """Log how much of the variance of the returns the critic had foreseen."""
        returns_N, values_N = (x_BR[rollout.mask_BR].double() for x_BR in (rollout.returns_BR, rollout.values_BR))
        errors_N = returns_N - values_N
        terms = [torch.ones_like(returns_N), returns_N, returns_N.square(), errors_N, errors_N.square()]
        count, *moments = self._total(torch.stack(terms).sum(1)).tolist()
        one, two, error, squared = (moment / count for moment in moments)
        variance = two - one**2
        self._note("val/explained_variance", 1 - (squared - error**2) / variance if variance > 1e-12 else 0.0)

    def _note_update(self, sums: Mapping[str, Tensor], steps: int) -> Tensor:
        """Log the update under TRL's names: means over all tokens of all mini-batches. Gives the mean loss.

        The entropy is that of the sampled tokens under the policy as it changes: an estimate.
        """
        total = dict(zip(sums, self._total(torch.stack(list(sums.values()))).tolist(), strict=True))
        tokens, ratio = total["tokens"], total["ratio"] / total["tokens"]
        self._note("loss/policy_avg", total["policy"] / steps)
        self._note("loss/value_avg", total["value"] / steps)
        self._note("policy/approxkl_avg", total["approxkl"] / tokens)
        self._note("policy/clipfrac_avg", total["clipped"] / tokens)
        self._note("policy/entropy_avg", total["entropy"] / tokens)
        self._note("val/clipfrac_avg", total["value_clipped"] / tokens)
        self._note("val/ratio", ratio)
        self._note("val/ratio_var", max(total["ratio_squared"] / tokens - ratio**2, 0.0))
        return torch.tensor((total["policy"] + self.args.vf_coef * total["value"]) / steps, device=self.args.device)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add what was noted since the last log to the logs of training."""
        if "loss" in logs:
            logs |= {name: sum(values) / len(values) for name, values in self.metrics.items()}
            logs["episode"] = self.state.global_step * self.args.train_batch_size * self.args.world_size
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
            with self._kernels():
                found, rows = self._sample_held_out(inputs, index, metric_key_prefix)
            table += rows
            for name, values_B in self.accelerator.gather_for_metrics(found).items():
                columns[name].append(values_B)
        means = {name: torch.cat(values).nanmean().item() for name, values in columns.items()}
        count = sum(map(len, columns["objective/scores"]))
        self._write_table(gather_object(table))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in means.items()}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=count)

    def _sample_held_out(
        self, inputs: list[dict[str, Any]], index: int, name: str
    ) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """What the completions of a batch of held-out prompts earned, and the completions as rows of a table."""
        rollout, completions = self.roll_out(inputs, self._noise(len(inputs), at=f"eval {index}"))
        self.look(rollout)
        scores, penalty_B = self._score(completions)
        total_B, each_BF = scores.total_B - penalty_B, scores.each_BF.to(self.args.device)
        found = {"objective/scores": total_B, "completions/mean_length": rollout.mask_BR.sum(1).float()}
        if rollout.ref_logprobs_BR is not None:
            kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, self.args.kl_estimator)
            found["objective/kl"] = (kl_BR * rollout.mask_BR).sum(1)
        found |= {f"rewards/{name}/mean": sums_B for name, sums_B in zip(self.rewards.names, each_BF.T, strict=True)}
        keys = {"step": self.state.global_step, "set": name}
        texts = zip(completions.prompts, completions.completions, total_B.tolist(), strict=True)
        return found, [keys | {"prompt": p, "completion": c, "score": s} for p, c, s in texts]

    def _sample_for_the_table(self) -> None:
        """So many times in a training, write completions of the first held-out prompts, as no evaluation may."""
        times, state = self.args.num_sample_generations, self.state
        if self.eval_dataset is None or state.global_step * times % state.max_steps >= times:
            return
        sets = self.eval_dataset.values() if isinstance(self.eval_dataset, Mapping) else [self.eval_dataset]
        rows = [row for one in sets for row in one.take(self.args.per_device_eval_batch_size)]
        self.model.eval()
        with torch.no_grad():
            self._write_table(self._sample_held_out(rows, 0, "samples")[1])

    def _write_table(self, table: list[dict[str, Any]]) -> None:
        """Put the samples of this step into completions.jsonl, in place of those of an earlier try at it."""
        if self.is_world_process_zero():
            replace_rows(Path(self.args.output_dir) / "completions.jsonl", table, same=["step", "set"])

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
            write_json(folder / "ppo_state.json", dataclasses.asdict(self.memory))
            self._save_policy(folder / "policy")
        else:
            self._save_policy(folder)
            self.actor_critic.save_value(folder / "value_model")

    def _save_policy(self, folder: Path) -> None:
        self.actor_critic.save_policy(folder)
        self.processing_class.save_pretrained(folder)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; on a resume, the adaptive KL and the statistics of scores go on where they were too."""
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(self.args.output_dir)
        if path:
            self.memory = Memory(**json.loads((Path(path) / "ppo_state.json").read_text(encoding="utf-8")))
        with self._kernels():
            return super().train(resume_from_checkpoint, *args, **kwargs)


# --- What the trainer is made of ----------------------------------------------------------------


def _load_policy(path: str | None) -> PreTrainedModel:
    if path is None:
        raise ConfigError(Fault("model", "none", "a causal language model", "trainer.args.sft_model_path=<model>"))
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def _freeze(model: Any, device: torch.device) -> None:
    """Make a model that is only looked at ready for it; functions are left as they are."""
    if isinstance(model, torch.nn.Module):
        model.requires_grad_(False).eval()
        if not getattr(model, "is_quantized", False):
            model.to(device)


def _for_the_loop(asked: PPOConfig) -> PPOConfig:
    """The arguments as the Trainer's loop shall see them: one batch is one rollout, and one step."""
    if asked.reward_model_path:
        where, expected = "trainer.args.reward_model_path", "the model itself, among reward_funcs"
        cure = "reward_funcs=runner.reward.outcome.load_reward_model(<path>)"
        raise ConfigError(Fault(where, asked.reward_model_path, expected, cure))
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
