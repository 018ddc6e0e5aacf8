"""Proximal policy optimisation of language models (Schulman et al. 2017; Ziegler et al. 2019; Huang et al. 2024).

In reading order: arithmetic, arguments, and the trainer, whose update samples, computes log-probabilities, rewards,
values and advantages, and takes its steps. One step of the stock Trainer is one PPO update. The gradient of the last
mini-batch is left to the Trainer, which clips, steps, schedules, logs, evaluates, saves, stops early and resumes with
its own loop. Differences from the PPOTrainer of TRL 1.12 are listed in README.md.

Optimisations, each behind one function: ``generate.sampler.sample`` (finished rows leave the cache),
``Rollout.micro_batches`` (little padding), ``make_padding_free`` (on a CPU none), ``TokenLogProbs`` (logits of sampled
tokens alone, in chunks), ``_kernels`` (no kernel for each shape), ``_add_gradients`` (activations of critic or policy,
not of both), ``compute_advantages`` (a critic of its own learns from the first mini-batch while it values it).

Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens, N response tokens of
all rows of a micro-batch, F rewards. What stands behind the end of a response is 0 in every BR tensor.
"""

import contextlib
import copy
import dataclasses
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from accelerate.utils import gather_object
from datasets import IterableDataset
from peft import PeftConfig, get_peft_model
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput, get_last_checkpoint, set_seed
from transformers.training_args import TrainingArguments
from trl.models import prepare_fsdp

from runner.dataset.load import Rows
from runner.errors import ConfigError, Fault, fault
from runner.generate.agent import Agent, Environments, Tool, build_agent
from runner.generate.batch import TOKENS_PER_PASS
from runner.generate.completion import context_length, of_episode, to_completions
from runner.generate.engines import VLLM
from runner.generate.rows import Row
from runner.generate.sampler import Model, Sampling, sample, seeded_generator, uniform, whole
from runner.io.files import replace_rows, write_json
from runner.io.temporary import temporarily
from runner.model.encoding import encode_prompt
from runner.model.saved import gather_weights
from runner.ppo.actor_critic import ActorCritic, TokenLogProbs, build_actor_critic, build_reference, store_as_autocast
from runner.ppo.batching import MicroBatch, Rollout, check_rows, find_stop_ids, roll_out_by_function
from runner.ppo.scoring import Reward, Rewards
from runner.schema import upstream

Sum: TypeAlias = Callable[[Tensor], Tensor]  # over all processes

# --- Arithmetic ---------------------------------------------------------------------------------


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k1") -> Tensor:
    """An estimate per token of KL(policy, reference) from samples of the policy (Schulman 2020, "Approximating KL").

    k1 is unbiased, k2 has low variance and a small bias, k3 is unbiased, of low variance and never negative.
    """
    log_ratio = ref_logprobs - logprobs
    if estimator == "k1":
        return -log_ratio
    return log_ratio.square() / 2 if estimator == "k2" else log_ratio.exp() - 1 - log_ratio


def generalised_advantages(
    rewards_BR: Tensor, values_BR: Tensor, mask_BR: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns [B, R] (Schulman et al. 2016, eq. 16); the value after the last token is 0."""
    rewards_BR, values_BR = torch.where(mask_BR, rewards_BR, 0), torch.where(mask_BR, values_BR, 0)
    next_values_BR = pad(values_BR[:, 1:], (0, 1))
    advantages_BR = (rewards_BR + gamma * next_values_BR - values_BR).double()
    # Discounted sums of the errors by doubling: not a step for each token, but for each power of two of them.
    reach, factor = 1, gamma * lam
    while reach < advantages_BR.shape[1]:
        advantages_BR = advantages_BR + factor * pad(advantages_BR[:, reach:], (0, reach))
        reach, factor = 2 * reach, factor**2
    advantages_BR = advantages_BR.to(values_BR.dtype)
    return advantages_BR, advantages_BR + values_BR


def whiten(values_BR: Tensor, mask_BR: Tensor, *, shift_mean: bool = True, total: Sum = lambda part: part) -> Tensor:
    """Values scaled to variance 1 in the mask (mean 0 if ``shift_mean``), 0 elsewhere; ``total`` is over processes."""
    inside = values_BR[mask_BR].double()
    count, added = total(torch.stack([torch.tensor(len(inside), device=inside.device), inside.sum()]))
    mean = added / count
    variance = total((inside - mean).square().sum()) / (count - 1).clamp(min=1)
    whitened = (values_BR - mean) * torch.rsqrt(variance + 1e-8)
    return torch.where(mask_BR, whitened if shift_mean else whitened + mean, 0).to(values_BR.dtype)


def explained_variance(returns_N: Tensor, values_N: Tensor, total: Sum) -> float:
    """The share of the variance of the returns, over all processes, that the critic had foreseen."""
    errors_N = returns_N.double() - values_N.double()
    terms = [torch.ones_like(errors_N), returns_N.double(), returns_N.double().square(), errors_N, errors_N.square()]
    count, *moments = total(torch.stack(terms).sum(1)).tolist()
    one, two, error, squared = (moment / count for moment in moments)
    variance = two - one**2
    return 1 - (squared - error**2) / variance if variance > 1e-12 else 0.0


def policy_losses(log_ratios_N: Tensor, advantages_N: Tensor, clip: float, dual_clip: float | None = None) -> Tensor:
    """The clipped surrogate per token, negated (Schulman et al. 2017, eq. 7; dual clip: Ye et al. 2020, eq. 5)."""
    ratios_N = log_ratios_N.exp()
    clipped_N = ratios_N.clamp(1 - clip, 1 + clip)
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

    A process rolls out ``per_device_train_batch_size * gradient_accumulation_steps`` completions per update.
    """

    learning_rate: float = 3e-6
    logging_steps: float = 1
    remove_unused_columns: bool | None = False  # rewards may want any column
    bf16: bool | None = None  # None: where the hardware has it and fp16 is off
    # Models are whole in each process or sharded by FSDP2. An environment can bring the others, too, which
    # :class:`PPOTrainer` refuses: two optimizers in one engine, and layers in parts.
    deepspeed: None = None
    parallelism_config: None = None
    torch_compile: Literal[False] = False  # would compile a forward pass that no update takes

    # The rollout.
    total_episodes: int | None = None  # prompts in all, in place of max_steps
    response_length: int = 53  # most tokens of a completion
    num_generations: int = 1  # completions of each prompt
    max_tool_calling_iterations: int | None = None  # turns of a completion that may call tools; None: while it has room
    dynamic_sampling: int = 0  # times that prompts whose completions earn the same give way (Yu et al. 2025, sec. 3.2)
    temperature: float = 0.7  # of sampling and of every log-probability
    stop_token: Literal["eos"] | None = "eos"  # every end token that tokenizer and model declare
    stop_token_id: int | None = None  # a further token that ends a completion
    missing_eos_penalty: float | None = None  # off the score of a completion that was cut off (Huang et al. 2024)
    rollout_engine: Literal["auto", "loop", "graph", "generate", "vllm"] = "auto"  # the last needs a GPU
    vllm_mode: Literal["colocate", "server"] = "colocate"
    vllm_server_base_url: str = "http://localhost:8000"
    vllm_server_timeout: float = 240.0  # seconds to wait for it
    vllm_gpu_memory_utilization: float = 0.3  # of a card, where it is colocated, as all below
    vllm_max_model_length: int | None = None
    vllm_tensor_parallel_size: int = 1
    vllm_enable_sleep_mode: bool = False  # leaves the card to the update
    # Losses times the ratio of the policy's probability of a token to vLLM's, at most this; None: they are as they are.
    vllm_importance_sampling_clip_max: float | None = 3.0
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
        rows = self.per_device_train_batch_size * self.gradient_accumulation_steps
        if self.num_mini_batches < 1 or rows % self.num_mini_batches:
            raise ValueError(f"num_mini_batches is {self.num_mini_batches}, and no divisor of a process's {rows} rows")
        super().__post_init__()
        ConfigError.refuse(_find_faults(self))

    @property
    def rollout_rows(self) -> int:
        """Completions that one process rolls out for an update."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def penalises_kl(self) -> bool:
        """True where the reward holds a KL, and so a reference is needed."""
        return self.kl_coef != 0


def _find_faults(args: PPOConfig) -> Iterator[Fault]:
    penalised, groups = args.missing_eos_penalty is not None, upstream.NUM_GENERATIONS
    can_end = args.stop_token is not None or args.stop_token_id is not None
    checks = [
        ("num_ppo_epochs", args.num_ppo_epochs >= 1, "at least 1", "1"),
        ("dynamic_sampling", args.num_generations > 1 or not args.dynamic_sampling, "0 beside one completion", "0"),
        (groups, not args.rollout_rows % args.num_generations, f"a divisor of {args.rollout_rows} completions", "1"),
        ("response_length", args.response_length >= 1, "at least 1", "1"),
        ("local_rollout_forward_batch_size", args.local_rollout_forward_batch_size >= 1, "at least 1", "1"),
        ("temperature", args.temperature > 0, "above 0: PPO samples", "1.0"),
        ("dual_clip", args.dual_clip is None or args.dual_clip > 1, "above 1", "3.0"),
        ("kl_target", args.kl_target is None or args.kl_target > 0, "above 0", "6.0"),
        ("kl_coef", args.kl_target is None or args.kl_coef > 0, "above 0, beside kl_target", "0.05"),
        (upstream.REMOVE_UNUSED_COLUMNS, not args.remove_unused_columns, "false: rewards may want any column", "false"),
        (upstream.MISSING_EOS_PENALTY, can_end or not penalised, "a stop_token or a stop_token_id", "null"),
    ]
    for name, holds, expected, fix in checks:
        if not holds:
            yield Fault(f"trainer.args.{name}", str(getattr(args, name)), expected, f"={fix}")


# --- Trainer ------------------------------------------------------------------------------------


@dataclass
class RunningStats:
    """The adaptive KL coefficient and the statistics of all scores so far, which each checkpoint holds."""

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
    number per token or per step. ``policy_loss`` replaces the clipped surrogate: from ``log_probs``, ``old_log_probs``,
    ``advantages`` and ``mask`` [B, R] of some rows it gives a loss for each token [B, R]. The reference is the policy
    as it comes in: ``ref_model``, or the backbone without the adapter, or a frozen copy, or none where nothing needs
    it. ``save_model`` writes the policy, and beside it the critic in ``value_model/``.

    Raises ConfigError or DataError, before any training, for what cannot work.
    """

    drops_filled_rows = True  # its evaluation gathers the figures of each row

    def __init__(
        self,
        model: Model | str | None = None,
        reward_funcs: Reward | list[Reward] | None = None,
        args: PPOConfig | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | dict[str, Rows] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        reward_processing_classes: PreTrainedTokenizerBase | list[PreTrainedTokenizerBase | None] | None = None,
        ref_model: PreTrainedModel | None = None,
        value_model: PreTrainedModel | None = None,
        peft_config: PeftConfig | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Optimizer | None, LRScheduler | None] = (None, None),
        policy_loss: Callable[..., Tensor] | None = None,
        tools: list[Tool] | None = None,
        environment_factory: Environments | None = None,
        rollout_func: Callable[[list[Any], "PPOTrainer"], Mapping[str, Any]] | None = None,
    ):
        if args is not None and args.dynamic_sampling and isinstance(train_dataset, IterableDataset):
            raise ValueError("dynamic sampling draws further prompts from rows that are there, and not from a stream")
        given, self.own_loss, self.rollout_func = args or PPOConfig(), policy_loss, rollout_func
        set_seed(given.seed)  # for the weights of adapters
        policy = _load_policy(model or given.sft_model_path)
        tokenizer = processing_class or AutoTokenizer.from_pretrained(policy.config._name_or_path)
        self.stop_ids = find_stop_ids(given.stop_token, given.stop_token_id, policy, tokenizer)
        self.agent = _build_agent(given, self.stop_ids, tools, environment_factory)
        rewards, further = _as_list(reward_funcs), (given.step_separator, self.agent)
        self.rewards = Rewards(rewards, given.reward_weights, tokenizer, _as_list(reward_processing_classes), *further)
        prompts = given.rollout_rows // given.num_generations * given.world_size
        for dataset, needed in ((train_dataset, prompts), (eval_dataset, 1)):
            for rows in _as_list(dataset):
                check_rows(rows, policy, tokenizer, needed=needed, length=given.response_length)
        self.reference = ref_model if given.penalises_kl else None
        if ref_model is None and given.penalises_kl:
            self.reference = build_reference(policy, adapted_later=peft_config is not None)
        policy = policy if peft_config is None else get_peft_model(policy, peft_config)
        actor_critic = build_actor_critic(policy, given.critic, value_model, self.rewards.model_for_critic())
        self.running = RunningStats(given.kl_coef)
        self.rows_per_pass = given.per_device_train_batch_size
        self.metrics: dict[str, list[float]] = defaultdict(list)
        parts = actor_critic, _adapt_to_loop(given), list, train_dataset, eval_dataset
        super().__init__(*parts, processing_class=tokenizer, callbacks=callbacks, optimizers=optimizers)
        self.model_accepts_loss_kwargs = False
        self.rewards.autocast = self.accelerator.autocast
        if self.is_deepspeed_enabled or self.accelerator.parallelism_config:
            raise ConfigError(fault("ppo.shards"))
        self.vllm = None
        if given.rollout_engine == "vllm":
            self.vllm = VLLM(actor_critic.policy, self.accelerator, tokenizer, given, self.sampling)
        self._prepare_frozen([*self.rewards.models, *_as_list(self.reference)])

    def _prepare_frozen(self, models: Sequence[torch.nn.Module]) -> None:
        for model in models:
            model.requires_grad_(False).eval()
            if not getattr(model, "is_quantized", False):
                model.to(self.args.device)
        self.ref_logprobs = TokenLogProbs(self.reference) if self.reference is not None else None
        if self.args.device.type == "cuda" and self.args.bf16 and not self.is_fsdp_enabled:
            scorers = [model.base_model for model in self.rewards.models if hasattr(model, "score")]
            for model in [self.actor_critic.policy, *_as_list(self.reference), *scorers]:
                store_as_autocast(model, torch.bfloat16)
        # Where every model of an update can: an eighth of the time with a wider model, measured on a CPU.
        with self.accelerator.autocast():
            self.padding_free = self.actor_critic.make_padding_free(self.ref_logprobs)
        for model in models if self.is_fsdp_enabled else []:
            prepare_fsdp(model, self.accelerator)

    @property
    def actor_critic(self) -> ActorCritic:
        return self.accelerator.unwrap_model(self.model)

    @property
    def sampling(self) -> Sampling:
        """The distribution of rollouts."""
        args = self.args
        return Sampling(args.response_length, self.stop_ids, args.temperature, args.local_rollout_forward_batch_size)

    def get_train_dataloader(self) -> DataLoader:
        """Whole rollouts only; evaluation, which the same argument rules, sees every row."""
        with temporarily(self.args, dataloader_drop_last=True):
            return super().get_train_dataloader()

    # --- One update

    def training_step(self, model: torch.nn.Module, inputs: list[Row], *_: object, **__: object) -> Tensor:
        """One PPO update but for its last optimizer step; gives the mean loss of its mini-batches."""
        self.actor_critic.register_for_shards()
        self._write_samples()
        began = time.perf_counter()
        model.eval()
        rollout = self._roll_out_groups(inputs)
        rolled_out = time.perf_counter()
        self.compute_logprobs(rollout)
        rewards_BR = self.compute_rewards(rollout)
        scored = time.perf_counter()
        model.train(bool(self.args.activation_checkpointing))  # which only works in this mode; dropout is off
        loss = self.update(model, rollout, rewards_BR)
        model.eval()
        ended = time.perf_counter()
        self._note({"time/rollout": rolled_out - began, "time/score": scored - rolled_out})
        seconds, tokens = ended - began, self._total(torch.tensor(float(sum(rollout.lengths)), device=self.args.device))
        self._note({"time/update": ended - scored, "eps": len(rollout.rows) * self.args.world_size / seconds})
        self.state.num_input_tokens_seen += int(tokens.item())
        return loss

    def _roll_out_groups(self, prompts: Sequence[Row]) -> Rollout:
        """Sample the completions of each prompt; prompts whose completions all earn the same give way to others."""
        args, size, step = self.args, self.args.num_generations, self.state.global_step

        def roll_out(rows: Sequence[Row], at: str) -> Rollout:
            return self.roll_out([row for row in rows for _ in range(size)], self._noise(len(rows) * size, at=at))

        def tell_apart(rollout: Rollout) -> list[bool]:
            groups_PG = self._score(rollout)[2]["objective/scores"].view(-1, size)
            return (groups_PG.amax(1) > groups_PG.amin(1)).tolist()

        rollout, exchanged = roll_out(prompts, "train"), 0
        for number in range(args.dynamic_sampling):
            differ = tell_apart(rollout)
            if not self._most(differ.count(False)):
                break
            # Each may give way to the one in its place, so that it does not matter which process has which.
            generator = seeded_generator(args.seed, f"further {number}", step)
            drawn = torch.randint(len(self.train_dataset), (len(prompts) * args.world_size,), generator=generator)
            own = drawn[args.process_index * len(prompts) :][: len(prompts)].tolist()
            further = roll_out([self.train_dataset[row] for row in own], f"further {number}")
            places = [not old and new for old, new in zip(differ, tell_apart(further), strict=True)]
            exchanged += sum(places)
            picked = [further if is_better else rollout for is_better in places for _ in range(size)]
            rollout = Rollout.joined([(of, row) for row, of in enumerate(picked)])
        if args.dynamic_sampling:
            count = self._total(torch.tensor(float(exchanged), device=args.device))
            self._note({"sampling/prompts_exchanged": count.item()})
        return rollout

    @torch.no_grad()
    def roll_out(self, inputs: Sequence[Row], noise_BR: Tensor) -> Rollout:
        """Sample a completion for each row: by a function of the user's, with tools, or in one turn."""
        args, tokenizer, policy = self.args, self.processing_class, self.actor_critic.policy
        if self.rollout_func:
            inputs, completions, logprobs = roll_out_by_function(self.rollout_func, inputs, self)
        elif self.agent:
            agree = self._most if self.is_fsdp_enabled else int
            with self.accelerator.autocast(), whole(self.actor_critic):
                how = replace(self.sampling, max_length=context_length(policy))
                options = {"agree": agree, "engine": args.rollout_engine}
                episodes = self.agent.play(policy, tokenizer, inputs, how, noise_BR, **options)
            completions = [of_episode(each, self.stop_ids) for each in episodes]
            logprobs = [torch.tensor(each.logprobs) for each in episodes]
        else:
            prompts = [encode_prompt(tokenizer, row["prompt"], row) for row in inputs]
            if self.vllm:
                samples = self.vllm.sample(prompts, self.state.global_step)
            else:
                with self.accelerator.autocast(), whole(self.actor_critic):
                    samples = sample(policy, prompts, self.sampling, noise_BR, engine=args.rollout_engine)
            logprobs, ends = samples.logprobs, self.stop_ids
            completions = to_completions(tokenizer, inputs, prompts, samples, ends, whole=not ends)
        rollout = Rollout(inputs, completions, args.device)
        # float32 log-probabilities of sampling equal those of the update.
        exact = args.old_logprobs == "auto" and self._in_float32() and not self.vllm and not self.rollout_func
        if exact or args.old_logprobs == "sampled":
            rollout.logprobs_BR[rollout.mask_BR] = torch.cat(logprobs).to(args.device)
            rollout.has_logprobs = True
        elif self.vllm and args.vllm_importance_sampling_clip_max is not None:
            sampled_N = torch.cat(logprobs).to(args.device)
            zeros_BR = torch.zeros_like(rollout.logprobs_BR)
            rollout.sampler_logprobs_BR = zeros_BR.masked_scatter(rollout.mask_BR, sampled_N)
        return rollout

    @torch.no_grad()
    def compute_logprobs(self, rollout: Rollout) -> None:
        """Fill in the log-probabilities of sampled tokens under policy and reference, and the estimate of the KL."""
        actor_critic, temperature, batches = self.actor_critic, self.args.temperature, self._micro_batches(rollout)
        with self.accelerator.autocast(), whole(*_as_list(self.reference)):
            for batch in [] if rollout.has_logprobs else batches:
                batch.assign(rollout.logprobs_BR, actor_critic.logprobs(batch, temperature))
            if self.args.penalises_kl:
                adapter = actor_critic.policy_adapter if self.ref_logprobs else actor_critic.start_adapter
                reference = self.ref_logprobs or actor_critic.reference_logprobs
                with actor_critic.adapter(adapter):
                    for batch in batches:
                        batch.assign(rollout.ref_logprobs_BR, reference(batch, temperature))
        if rollout.sampler_logprobs_BR is not None:
            self._weigh_by_importance(rollout, rollout.sampler_logprobs_BR[rollout.mask_BR])
        if self.args.penalises_kl:
            kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, self.args.kl_estimator)
            rollout.kl_BR = kl_BR * rollout.mask_BR

    def _weigh_by_importance(self, rollout: Rollout, sampler_logprobs_N: Tensor) -> None:
        """Have the losses weighted for tokens that another sampler drew, by truncated ratios (Espeholt et al. 2018)."""
        ratios_N = (rollout.logprobs_BR[rollout.mask_BR] - sampler_logprobs_N).exp()
        ratios_N = torch.where(ratios_N.isnan(), 1.0, ratios_N)
        weights_N = ratios_N.clamp(max=self.args.vllm_importance_sampling_clip_max)
        rollout.importance_BR = torch.zeros_like(rollout.logprobs_BR).masked_scatter(rollout.mask_BR, weights_N)
        every_N = self.accelerator.gather(torch.stack([ratios_N.min(), ratios_N.mean(), ratios_N.max()])).view(-1, 3)
        figures = {"min": every_N[:, 0].min(), "mean": every_N[:, 1].mean(), "max": every_N[:, 2].max()}
        self._note({f"sampling/importance_sampling_ratio/{name}": each.item() for name, each in figures.items()})

    @torch.no_grad()
    def compute_rewards(self, rollout: Rollout) -> Tensor:
        """The reward of each token [B, R]: its share of the KL, rewards of its own, and for the last one the score."""
        args = self.args
        earned_BR, penalty_B, figures = self._score(rollout)
        self._note_rollout(rollout, figures)
        rewards_BR = self._normalise(earned_BR)
        rewards_BR[torch.arange(len(penalty_B)), rollout.mask_BR.sum(1) - 1] -= penalty_B
        rewards_BR = rewards_BR - self.running.kl_coef * rollout.kl_BR
        if args.kl_target is not None:  # Ziegler et al. 2019, section 2.2
            error = min(max(self._mean(rollout.kl_BR.sum(1)) / args.kl_target - 1, -0.2), 0.2)
            self.running.kl_coef *= 1 + error * len(rewards_BR) * args.world_size / args.kl_horizon
        if args.whiten_rewards:
            rewards_BR = whiten(rewards_BR, rollout.mask_BR, shift_mean=False, total=self._total)
        return rewards_BR

    def update(self, model: torch.nn.Module, rollout: Rollout, rewards_BR: Tensor) -> Tensor:
        """Advantages, then epochs of mini-batches; the last gradient is left for the Trainer to clip and step."""
        args = self.args
        minibatches = self._permute(len(rollout.sequences))
        by_token = args.loss_average == "token"
        counts = [sum(rollout.responses[row] for row in rows) if by_token else len(rows) for rows in minibatches]
        sizes = self._total(torch.tensor(counts, dtype=torch.float32, device=args.device)).tolist()
        weights_BR = rollout.mask_BR / (1 if by_token else rollout.mask_BR.sum(1, keepdim=True))
        rollout.weights_BR = weights_BR / sizes[0]
        self.compute_advantages(rollout, rewards_BR, minibatches[0])
        for number, (rows, size) in enumerate(zip(minibatches, sizes, strict=True), 1):
            batches = self._micro_batches(rollout, rows)
            rollout.weights_BR = weights_BR / size
            self._add_gradients(rollout, batches, critic_has_learned=number == 1)
            self.actor_critic.restore_policy_adapter()
            self._sum_over_processes(model)
            if self.state.global_step < args.value_warmup_steps:
                self.actor_critic.drop_policy_gradient()
            if number < len(minibatches):
                if args.max_grad_norm:
                    self.accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        return self._note_update(rollout.sums, steps=len(minibatches))

    def compute_advantages(self, rollout: Rollout, rewards_BR: Tensor, first: Sequence[int]) -> None:
        """Fill in the critic's values of all states, the returns, and the advantages, whitened.

        The values of the ``first`` mini-batch are those that its gradient begins with, and the returns of a row are
        known as soon as its values are. So a critic that shares no states with the policy takes that gradient in the
        same pass, one of thirteen less.
        """
        others = [row for row in range(len(rollout.sequences)) if row not in first]
        with self.actor_critic.adapter(self.actor_critic.critic_adapter):
            for rows in (first, others):
                learns = rows is first and self.actor_critic.critic != "head"
                for batch in self._micro_batches(rollout, rows):
                    with torch.set_grad_enabled(learns), self.accelerator.autocast():
                        values_N = self.actor_critic.values(batch)
                    batch.assign(rollout.values_BR, values_N.detach())
                    own = batch.rows_B
                    rollout.advantages_BR[own], rollout.returns_BR[own] = generalised_advantages(
                        rewards_BR[own], rollout.values_BR[own], rollout.mask_BR[own], self.args.gamma, self.args.lam
                    )
                    if learns:
                        self._backward(self._value_loss(rollout, batch, values_N))
        rollout.advantages_BR = whiten(rollout.advantages_BR, rollout.mask_BR, total=self._total)
        returns_N, values_N = (x_BR[rollout.mask_BR] for x_BR in (rollout.returns_BR, rollout.values_BR))
        self._note({"val/explained_variance": explained_variance(returns_N, values_N, self._total)})

    def _add_gradients(self, rollout: Rollout, batches: list[MicroBatch], *, critic_has_learned: bool) -> None:
        """Add the gradient of a mini-batch's losses, a micro-batch's share at a time.

        Critic and policy go one after the other, so that the activations of one are held at a time; measured, that
        takes a tenth to a quarter off the memory. A head, which reads the policy's states, goes with the policy.
        """
        actor_critic, temperature = self.actor_critic, self.args.temperature
        with_policy = actor_critic.critic == "head"
        with actor_critic.adapter(actor_critic.critic_adapter):
            for batch in [] if critic_has_learned or with_policy else batches:
                with self.accelerator.autocast():
                    values_N = actor_critic.values(batch)
                self._backward(self._value_loss(rollout, batch, values_N))
        for batch in batches:
            with self.accelerator.autocast():
                if with_policy:
                    logprobs_N, values_N = actor_critic(batch, temperature)
                else:
                    logprobs_N = actor_critic.logprobs(batch, temperature)
            loss = self._policy_loss(rollout, batch, logprobs_N)
            if with_policy:
                loss = loss + self._value_loss(rollout, batch, values_N)
            self._backward(loss)

    def _backward(self, loss: Tensor) -> None:
        """Add the gradient of a share of the loss, of which FSDP2 will take the mean over processes, not the sum."""
        self.accelerator.backward(loss * self.args.world_size if self.is_fsdp_enabled else loss)

    def _policy_loss(self, rollout: Rollout, batch: MicroBatch, logprobs_N: Tensor) -> Tensor:
        sums, log_ratios_N = rollout.sums, logprobs_N - batch.select(rollout.logprobs_BR)
        advantages_N = batch.select(rollout.advantages_BR)
        if self.own_loss:
            losses_N = self._own_losses(self.own_loss, rollout, batch, logprobs_N)
        else:
            losses_N = policy_losses(log_ratios_N, advantages_N, self.args.cliprange, self.args.dual_clip)
        if rollout.importance_BR is not None:
            losses_N = losses_N * batch.select(rollout.importance_BR)
        loss = (losses_N * batch.select(rollout.weights_BR)).sum()
        log_ratios_N = log_ratios_N.detach()
        ratios_N = log_ratios_N.exp()
        sums["policy"] += loss.detach()
        sums["tokens"] += len(ratios_N)
        sums["approxkl"] += log_ratios_N.square().sum() / 2
        sums["clipped"] += ((ratios_N - 1) * advantages_N.sign() > self.args.cliprange).sum()
        sums["ratio"] += ratios_N.sum()
        sums["ratio_squared"] += ratios_N.square().sum()
        sums["entropy"] -= logprobs_N.detach().sum()
        return loss

    def _own_losses(self, loss: Callable[..., Any], rollout: Rollout, batch: MicroBatch, logprobs_N: Tensor) -> Tensor:
        """The user's loss of each token [N], from rows [B, R] that it sees whole."""
        mask_BR, old_BR = rollout.mask_BR[batch.rows_B], rollout.logprobs_BR[batch.rows_B]
        log_probs_BR = torch.zeros_like(old_BR).masked_scatter(mask_BR, logprobs_N)
        given = {"log_probs": log_probs_BR, "old_log_probs": old_BR, "mask": mask_BR}
        losses_BR = loss(**given, advantages=rollout.advantages_BR[batch.rows_B])
        if not isinstance(losses_BR, Tensor) or losses_BR.shape != mask_BR.shape:
            shape = tuple(getattr(losses_BR, "shape", ()))
            raise ConfigError(fault("ppo.shape_of_loss", shape=shape, expected=tuple(mask_BR.shape)))
        return losses_BR[mask_BR]

    def _value_loss(self, rollout: Rollout, batch: MicroBatch, values_N: Tensor) -> Tensor:
        old_values_N, returns_N = batch.select(rollout.values_BR), batch.select(rollout.returns_BR)
        losses_N = value_losses(values_N, old_values_N, returns_N, self.args.cliprange_value)
        loss = (losses_N * batch.select(rollout.weights_BR)).sum()
        rollout.sums["value"] += loss.detach()
        rollout.sums["value_clipped"] += (losses_N > (values_N - returns_N).square() / 2).sum()
        return self.args.vf_coef * loss

    # --- Pieces of an update

    def _noise(self, rows: int, *, at: str = "train") -> Tensor:
        generator = seeded_generator(self.args.seed, at, self.state.global_step)
        everyone = uniform(rows * self.args.world_size, self.args.response_length, generator=generator)
        return everyone[self.args.process_index * rows :][:rows]

    def _noise_of_held_out(self, first: int, rows: int) -> Tensor:
        """The noise of held-out rows from the ``first`` on: that of a row in every evaluation, batch and process."""
        generators = [seeded_generator(self.args.seed, "eval", number) for number in range(first, first + rows)]
        return torch.cat([uniform(1, self.args.response_length, generator=generator) for generator in generators])

    def _permute(self, rows: int) -> list[list[int]]:
        """The rows of this process in each mini-batch of each epoch.

        Neighbouring rows, as many as there are mini-batches, go one to each, by one permutation for all processes: each
        holds an equal share of each mini-batch, whose rows do not depend on how many processes there are.
        """
        parts, world = self.args.num_mini_batches, self.args.world_size
        generator = seeded_generator(self.args.seed, "deal", self.state.global_step)  # another word draws otherwise
        first = self.args.process_index * rows // parts
        minibatches = []
        for _ in range(self.args.num_ppo_epochs):
            permutation = torch.rand(rows * world // parts, parts, generator=generator).argsort(1)
            own = permutation[first:][: rows // parts]
            minibatches += (own + torch.arange(0, rows, parts)[:, None]).T.tolist()
        return minibatches

    def _sum_over_processes(self, model: torch.nn.Module) -> None:
        """Add up the gradients of all processes, each of its own share of the mini-batch.

        A weight that has none here may have one elsewhere, such as an expert to which no token went. FSDP2 has done it.
        """
        if self.args.world_size > 1 and not self.is_fsdp_enabled:
            for parameter in filter(lambda each: each.requires_grad, model.parameters()):
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.accelerator.reduce(gradient, "sum")

    def _micro_batches(self, rollout: Rollout, rows: Sequence[int] | None = None) -> list[MicroBatch]:
        """Some rows of a rollout, else all, as many in each pass as the budget of tokens allows; a longer row alone."""
        budget, on_cpu = self.args.max_tokens_per_micro_batch, self.args.device.type == "cpu"
        budget = budget or (TOKENS_PER_PASS if on_cpu else self.rows_per_pass * max(rollout.lengths))
        rows = range(len(rollout.sequences)) if rows is None else rows
        agree = self._most if self.is_fsdp_enabled else None
        return rollout.micro_batches(rows, budget, padding_free=self.padding_free, agree=agree)

    def _most(self, count: int) -> int:
        """The largest of the numbers that the processes have; they gather each other's shards in each pass."""
        return int(self.accelerator.gather(torch.tensor([count], device=self.args.device)).max())

    def _in_float32(self) -> bool:
        return not (self.args.bf16 or self.args.fp16) and self.actor_critic.policy.dtype == torch.float32

    def _kernels(self) -> contextlib.AbstractContextManager[None]:
        """Within it float32 on a CPU runs on PyTorch's own kernels.

        oneDNN compiles one for each shape that it meets, 0.3 ms and 24 kB, and keeps a thousand. Batches of unlike rows
        hardly ever have a shape twice, and what it keeps lies between the activations, which then need new room:
        measured, a quarter to a half of the peak memory of PPO on small models.
        """
        if self.args.device.type != "cpu" or not self._in_float32():
            return contextlib.nullcontext()
        return torch.backends.mkldnn.flags(enabled=False, deterministic=None, allow_tf32=None, fp32_precision=None)

    def _score(self, rollout: Rollout) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The reward of each token [B, R], NaN where none was given, and what completions lose that were cut off [B].

        Third, figures of each completion [B] under TRL's names; NaN where a reward does not apply.
        """
        args = self.args
        if not rollout.scores:
            budget = args.max_tokens_per_micro_batch or TOKENS_PER_PASS * (1 if args.device.type == "cpu" else 32)
            with whole(*self.rewards.models):
                scores = self.rewards(rollout.completions, rollout.rows, self.state, budget)
            rollout.scores = scores[0].to(args.device), scores[1].to(args.device)
        earned_BR, each_BF = rollout.scores
        cut_off_B = torch.tensor([each.finish == "length" for each in rollout.completions], device=args.device)
        penalty_B = (args.missing_eos_penalty or 0.0) * cut_off_B
        figures = {"objective/scores": earned_BR.nansum(1) - penalty_B}
        figures["completions/mean_length"] = rollout.mask_BR.sum(1).float()
        if args.penalises_kl:
            figures["objective/kl"] = rollout.kl_BR.sum(1)
        figures |= {f"rewards/{name}/mean": each_BF[:, index] for index, name in enumerate(self.rewards.names)}
        return earned_BR, penalty_B, figures

    def _normalise(self, earned_BR: Tensor) -> Tensor:
        """The rewards that were given, scaled by all of them so far and clipped, as the arguments say; 0 elsewhere."""
        given_BR, clip, running = ~earned_BR.isnan(), self.args.score_clip, self.running
        scores_N = earned_BR[given_BR]
        if self.args.score_normalization != "none":
            count = self._total(torch.tensor(float(len(scores_N)), device=scores_N.device, dtype=torch.float64))
            mean = self._total(scores_N.double().sum()) / count
            squares = self._total((scores_N.double() - mean).square().sum())
            running.add(count.item(), mean.item(), squares.item())
            shift = running.mean if self.args.score_normalization == "whiten" else 0.0
            scores_N = (scores_N - shift) / running.deviation
        scores_N = scores_N if clip is None else scores_N.clamp(-clip, clip)
        return torch.zeros_like(earned_BR).masked_scatter(given_BR, scores_N)

    # --- What is logged

    def _total(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, "sum")

    def _mean(self, values_B: Tensor) -> float:
        return self._total(values_B.float().mean()).item() / self.accelerator.num_processes

    def _note(self, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.metrics[name].append(value)

    def _note_rollout(self, rollout: Rollout, figures: dict[str, Tensor]) -> None:
        if self.agent:
            counts = [len(rollout.rows), *map(sum, zip(*(each.calls for each in rollout.completions), strict=True))]
            rows, turns, calls, failed = self._total(torch.tensor(counts, device=self.args.device)).tolist()
            self._note({"tools/call_frequency": calls / rows, "tools/failure_frequency": failed / max(calls, 1)})
            self._note({"tools/turns": turns / rows})
        if self.args.penalises_kl:
            self._note({"objective/kl_coef": self.running.kl_coef})
        non_score_B = -self.running.kl_coef * rollout.kl_BR.sum(1)
        figures["objective/non_score_reward"] = non_score_B
        figures["objective/rlhf_reward"] = figures["objective/scores"] + non_score_B
        figures["objective/entropy"] = -rollout.logprobs_BR.sum(1)
        for name, values_B in figures.items():
            if not name.startswith("rewards/"):
                self._note({name: self._mean(values_B)})  # NaN too, which the alarms must see
                continue
            added, count = self._total(torch.stack([values_B.nansum(), (~values_B.isnan()).sum()])).tolist()
            if count:  # else the reward applies to no row
                self._note({name: added / count})
        ended = torch.tensor(sum(each.finish == "stop" for each in rollout.completions), device=self.args.device)
        self._note({"val/num_eos_tokens": self._total(ended).item()})

    def _note_update(self, sums: Mapping[str, Tensor], steps: int) -> Tensor:
        """Log the update: means over all tokens of all mini-batches. Gives the mean loss.

        Names of TRL mean what they mean there: clipped is where the clipped loss is the larger one. Names of our own
        have the entropy, which is estimated from sampled tokens alone, and the variance of ratios, which is that of
        tokens and not of the means of micro-batches.
        """
        total = dict(zip(sums, self._total(torch.stack(list(sums.values()))).tolist(), strict=True))
        tokens, ratio = total["tokens"], total["ratio"] / total["tokens"]
        self._note({"loss/policy_avg": total["policy"] / steps, "loss/value_avg": total["value"] / steps})
        means = {"policy/approxkl_avg": "approxkl", "policy/clipfrac_avg": "clipped"}
        means |= {"policy/sampled_entropy_avg": "entropy", "val/clipfrac_avg": "value_clipped"}
        self._note({name: total[key] / tokens for name, key in means.items()})
        self._note({"val/ratio": ratio, "val/token_ratio_var": max(total["ratio_squared"] / tokens - ratio**2, 0.0)})
        return torch.tensor((total["policy"] + self.args.vf_coef * total["value"]) / steps, device=self.args.device)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add what was noted since the last log to the logs of training."""
        if "loss" in logs:
            logs |= {name: sum(values) / len(values) for name, values in self.metrics.items()}
            logs["episode"] = self.state.global_step * self.args.train_batch_size * self.args.world_size
            logs |= {"lr": logs.get("learning_rate", 0.0), "num_tokens": float(self.state.num_input_tokens_seen)}
            self.metrics.clear()
        super().log(logs, *args, **kwargs)

    # --- Held-out prompts

    @torch.no_grad()
    def evaluation_loop(self, dataloader: DataLoader, *, metric_key_prefix: str = "eval", **_: Any) -> EvalLoopOutput:
        """Sample a completion for each held-out prompt and score it; the same noise at every evaluation."""
        self.model.eval()
        self.actor_critic.register_for_shards()
        columns: dict[str, list[Tensor]] = defaultdict(list)
        table: list[dict[str, Any]] = []
        for index, inputs in enumerate(dataloader):
            # Batches go to the processes in turn.
            first = (index * self.args.world_size + self.args.process_index) * self.args.eval_batch_size
            with self._kernels():
                found, rows = self._sample_held_out(inputs, first, metric_key_prefix)
            table += rows
            for name, values_B in self.accelerator.gather_for_metrics(found).items():
                columns[name].append(values_B)
        means = {name: torch.cat(values).nanmean().item() for name, values in columns.items()}
        self._write_table(gather_object(table))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in means.items()}
        count = sum(map(len, columns["objective/scores"]))
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=count)

    def _sample_held_out(
        self, inputs: Sequence[Row], first: int, set_name: str
    ) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        rollout = self.roll_out(inputs, self._noise_of_held_out(first, len(inputs)))
        self.compute_logprobs(rollout)
        _, _, figures = self._score(rollout)
        keys = {"step": self.state.global_step, "set": set_name}
        scored = zip(rollout.completions, figures["objective/scores"].tolist(), strict=True)
        table = [keys | {"prompt": each.prompt, "completion": each.answer, "score": score} for each, score in scored]
        return figures, table

    def _write_samples(self) -> None:
        """So many times in a training, write completions of the first held-out prompts, as no evaluation may."""
        times, state = self.args.num_sample_generations, self.state
        if self.eval_dataset is None or state.global_step * times % state.max_steps >= times:
            return
        rows = [row for one in _as_list(self.eval_dataset) for row in one.take(self.args.per_device_eval_batch_size)]
        self.model.eval()
        with torch.no_grad():
            self._write_table(self._sample_held_out(rows, 0, "samples")[1])

    def _write_table(self, table: list[dict[str, Any]]) -> None:
        if self.is_world_process_zero():
            replace_rows(Path(self.args.output_dir) / "completions.jsonl", table, same=["step", "set"])

    # --- Saving and resuming

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write policy and critic (``value_model/``) for others; a checkpoint is the Trainer's, with a ``policy/``."""
        folder = Path(output_dir or self.args.output_dir)
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
        weights = gather_weights(self.actor_critic, keep=self.args.should_save)
        if not self.args.should_save:
            return
        policy = folder / "policy" if _internal_call else folder
        self.actor_critic.save_policy(policy, weights)
        self.processing_class.save_pretrained(policy)
        if _internal_call:
            write_json(folder / "ppo_state.json", dataclasses.asdict(self.running))
        else:
            self.actor_critic.save_value(folder / "value_model", weights)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As the Trainer's; on a resume, the adaptive KL and the statistics of scores go on where they were too."""
        path = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        if path:
            self.running = RunningStats(**json.loads((Path(path) / "ppo_state.json").read_text(encoding="utf-8")))
        with self._kernels():
            return super().train(resume_from_checkpoint, *args, **kwargs)


# --- What the trainer is made of ----------------------------------------------------------------


def _load_policy(model: Model | str | None) -> Model:
    if model is None:
        raise ConfigError(fault("ppo.no_policy"))
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32) if isinstance(model, str) else model


def _build_agent(
    given: PPOConfig, stop_ids: Sequence[int], tools: list[Tool] | None, environments: Environments | None
) -> Agent | None:
    """The agent that has tools or environments; ConfigError where no turn could end, or be asked for alone."""
    agent = build_agent(tools, environments, given.max_tool_calling_iterations)
    if agent and given.rollout_engine == "vllm":
        raise ConfigError(fault("ppo.tools_by_vllm"))
    if agent and not stop_ids:
        raise ConfigError(fault("ppo.tools_without_end"))
    return agent


def _adapt_to_loop(given: PPOConfig) -> PPOConfig:
    """The arguments as the Trainer's loop shall see them: one batch is one rollout, and one step."""
    if given.reward_model_path:
        raise ConfigError(fault("ppo.path_of_a_reward", path=given.reward_model_path))
    args = copy.copy(given)
    args.per_device_train_batch_size = given.rollout_rows // given.num_generations
    args.gradient_accumulation_steps = 1
    args.accelerator_config = dataclasses.replace(given.accelerator_config, dispatch_batches=False)  # rows are texts
    if given.total_episodes:
        args.max_steps = math.ceil(given.total_episodes / (args.per_device_train_batch_size * given.world_size))
    if given.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # policy and critic use every weight
    return args


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]
