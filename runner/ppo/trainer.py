"""Proximal policy optimisation of language models: the trainer, in reading order.

The algorithm is that of Schulman et al. 2017, Ziegler et al. 2019 and Huang et al. 2024. One step
of the stock Trainer is one PPO update: ``training_step`` rolls out completions, computes
log-probabilities, rewards, values and advantages, and takes its optimizer steps. The gradient of
the last mini-batch is left to the Trainer, which clips, steps, schedules, logs, evaluates, saves,
stops early and resumes with its own loop. The equations are in ``arithmetic``. Differences from the
PPOTrainer of TRL 1.12 are listed in README.md.

Optimisations, each behind one function: ``generate.sampler.sample`` (finished rows leave the
cache), ``Rollout.micro_batches`` (little padding), ``make_padding_free`` (on a CPU none),
``TokenLogProbs`` (logits of sampled tokens alone, in chunks), ``_kernels`` (no kernel for each
shape), ``_add_gradients`` (activations of critic or policy, not of both), ``compute_advantages`` (a
critic of its own learns from the first mini-batch while it values it).

Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens, N
response tokens of all rows of a micro-batch, F rewards, G generations of a prompt, P prompts. What
stands behind the end of a response is 0 in every BR tensor.
"""

import dataclasses
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from peft import PeftConfig, get_peft_model
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput, get_last_checkpoint, set_seed
from trl.models import prepare_fsdp

from runner.dataset.loaded_rows import Rows
from runner.errors import ConfigError, Fault
from runner.generate.agent import Environments, Tool
from runner.generate.engines import VLLM
from runner.generate.padding import TOKENS_PER_PASS
from runner.generate.sampler import Model, Sampling, whole
from runner.io.files import write_json
from runner.io.temporary import temporarily
from runner.io.turns import Row
from runner.model.saved import gather_weights
from runner.ppo.actor_critic import (
    ActorCritic,
    build_actor_critic,
    build_reference,
    store_as_autocast,
)
from runner.ppo.arithmetic import (
    RunningStats,
    explained_variance,
    generalised_advantages,
    importance_ratios,
    kl_estimate,
    mean_of_rows,
    whiten,
)
from runner.ppo.batching import MicroBatch, own_kernels
from runner.ppo.config import PPOConfig, adapt_to_loop
from runner.ppo.dynamic_sampling import roll_out_groups
from runner.ppo.figures import importance_figures, rollout_figures, tool_figures, update_figures
from runner.ppo.held_out_prompts import evaluate_held_out, write_samples
from runner.ppo.losses import policy_loss, value_loss
from runner.ppo.preparation import (
    as_list,
    build_ppo_agent,
    check_datasets,
    find_stop_ids,
    load_policy,
)
from runner.ppo.random_numbers import deal_minibatches
from runner.ppo.rollout import Rollout
from runner.ppo.sampling import play_episodes, roll_out_by_function, sample_one_turn
from runner.ppo.scoring import Reward, Rewards, RolloutScores
from runner.ppo.token_logprobs import TokenLogProbs


class PPOTrainer(Trainer):
    """PPO on rows with a ``prompt``, text or chat; every other column goes to the reward functions.

    ``reward_funcs`` are functions as GRPO takes them, sequence classification models, or a list of
    these; a model that is only named is loaded by whoever builds the trainer. A function may give
    one number per completion, or a list with one number per token or per step. ``policy_loss``
    replaces the clipped surrogate: from ``log_probs``, ``old_log_probs``, ``advantages`` and
    ``mask`` [B, R] of some rows it gives a loss for each token [B, R]. The reference is
    ``ref_model``, or else the policy as it comes in: the backbone without the adapter, a frozen
    copy, or none where nothing needs it. ``save_model`` writes the policy, and beside it the critic
    in ``value_model/``.

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
        reward_processing_classes: PreTrainedTokenizerBase
        | list[PreTrainedTokenizerBase | None]
        | None = None,
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
        # First, and about ``args`` itself, so that the check before torch reads it here.
        if args and args.dynamic_sampling and isinstance(train_dataset, IterableDataset):
            raise ValueError(
                "dynamic sampling draws further prompts from stored rows, not from a stream"
            )
        asked = args or PPOConfig()
        self.own_loss = policy_loss
        self.rollout_func = rollout_func
        set_seed(asked.seed)  # for the weights of adapters
        policy = load_policy(model or asked.sft_model_path)
        tokenizer = processing_class or AutoTokenizer.from_pretrained(policy.config._name_or_path)
        self.stop_ids = find_stop_ids(asked.stop_token, asked.stop_token_id, policy, tokenizer)
        self.agent = build_ppo_agent(asked, self.stop_ids, tools, environment_factory)
        self.rewards = Rewards(
            as_list(reward_funcs),
            asked.reward_weights,
            tokenizer,
            as_list(reward_processing_classes),
            asked.step_separator,
            self.agent,
        )
        check_datasets(asked, train_dataset, eval_dataset, policy, tokenizer)
        # The reference is made of the policy before that gets a new adapter.
        self.reference = ref_model if asked.penalises_kl else None
        if asked.penalises_kl and ref_model is None:
            self.reference = build_reference(policy, adapted_later=peft_config is not None)
        if peft_config is not None:
            policy = get_peft_model(policy, peft_config)
        reward_model = self.rewards.model_for_critic()
        actor_critic = build_actor_critic(policy, asked.critic, value_model, reward_model)
        self.running = RunningStats(asked.kl_coef)
        self.rows_per_pass = asked.per_device_train_batch_size
        self.metrics: dict[str, list[float]] = defaultdict(list)
        super().__init__(
            actor_critic,
            adapt_to_loop(asked),
            list,  # a batch is a list of rows
            train_dataset,
            eval_dataset,
            processing_class=tokenizer,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        self.model_accepts_loss_kwargs = False
        self.rewards.autocast = self.accelerator.autocast
        if self.is_deepspeed_enabled or self.accelerator.parallelism_config:
            raise ConfigError(
                Fault(
                    where="trainer.args",
                    found="DeepSpeed or a parallelism_config",
                    expected="whole models in each process, or FSDP2",
                    fix="strategy=fsdp2",
                )
            )
        self.vllm = None
        if asked.rollout_engine == "vllm":
            self.vllm = VLLM(actor_critic.policy, self.accelerator, tokenizer, asked, self.sampling)
        self._prepare_frozen()

    def _prepare_frozen(self) -> None:
        """Put reward models and the reference where the policy is, in the types of their passes."""
        frozen = [*self.rewards.models, *as_list(self.reference)]
        for model in frozen:
            model.requires_grad_(False).eval()
            if not getattr(model, "is_quantized", False):
                model.to(self.args.device)
        self.ref_logprobs = None
        if self.reference is not None:
            self.ref_logprobs = TokenLogProbs(self.reference)
        if self.args.device.type == "cuda" and self.args.bf16 and not self.is_fsdp_enabled:
            scorers = [model.base_model for model in self.rewards.models if hasattr(model, "score")]
            for model in [self.actor_critic.policy, *as_list(self.reference), *scorers]:
                store_as_autocast(model, torch.bfloat16)
        # Where all models of an update can. Measured on a CPU, it saves an eighth of the time with
        # a wider model.
        with self.accelerator.autocast():
            self.padding_free = self.actor_critic.make_padding_free(self.ref_logprobs)
        if self.is_fsdp_enabled:
            for model in frozen:
                prepare_fsdp(model, self.accelerator)

    @property
    def actor_critic(self) -> ActorCritic:
        """Policy and critic without what distributes them."""
        actor_critic: ActorCritic = self.accelerator.unwrap_model(self.model)
        return actor_critic

    @property
    def sampling(self) -> Sampling:
        """The distribution of rollouts."""
        args = self.args
        return Sampling(
            max_new_tokens=args.response_length,
            stop_ids=self.stop_ids,
            temperature=args.temperature,
            rows=args.local_rollout_forward_batch_size,
        )

    def get_train_dataloader(self) -> DataLoader:
        """Batches of whole rollouts; the same argument rules evaluation, which sees every row."""
        with temporarily(self.args, dataloader_drop_last=True):
            return super().get_train_dataloader()

    # --- One update

    def training_step(
        self, model: nn.Module, inputs: list[Row], *_: object, **__: object
    ) -> Tensor:
        """The mean loss of one PPO update, which this takes but for its last optimizer step."""
        self.actor_critic.register_for_shards()
        write_samples(self)
        started = time.perf_counter()
        model.eval()
        rollout = roll_out_groups(self, inputs)
        rolled_out = time.perf_counter()
        self.compute_logprobs(rollout)
        rewards_BR = self.compute_rewards(rollout)
        scored = time.perf_counter()
        # Activations are recomputed only in training mode; dropout is off in any case.
        model.train(bool(self.args.activation_checkpointing))
        loss = self.update(model, rollout, rewards_BR)
        model.eval()
        updated = time.perf_counter()
        episodes = len(rollout.rows) * self.args.world_size
        self.note(
            {
                "time/rollout": rolled_out - started,
                "time/score": scored - rolled_out,
                "time/update": updated - scored,
                "eps": episodes / (updated - started),
            }
        )
        tokens = torch.tensor(float(sum(rollout.lengths)), device=self.args.device)
        self.state.num_input_tokens_seen += int(self.total(tokens).item())
        return loss

    # --- Rollout

    @torch.no_grad()
    def roll_out(self, inputs: Sequence[Row], noise_BR: Tensor) -> Rollout:
        """Sample a completion for each row: by a user's function, with tools or in one turn."""
        args = self.args
        if self.rollout_func:
            sampled = roll_out_by_function(self.rollout_func, inputs, self)
        elif self.agent:
            sampled = play_episodes(self.agent, inputs, noise_BR, self)
        else:
            sampled = sample_one_turn(inputs, noise_BR, self)
        rollout = Rollout(sampled.rows, sampled.completions, args.device)
        # float32 log-probabilities of sampling equal those of the update.
        is_policy = not self.vllm and not self.rollout_func
        is_exact = args.old_logprobs == "auto" and self._in_float32() and is_policy
        if is_exact or args.old_logprobs == "sampled":
            logprobs_N = torch.cat(sampled.logprobs).to(args.device)
            rollout.logprobs_BR[rollout.mask_BR] = logprobs_N
            rollout.has_logprobs = True
        elif self.vllm and args.vllm_importance_sampling_clip_max is not None:
            logprobs_N = torch.cat(sampled.logprobs).to(args.device)
            zeros_BR = torch.zeros_like(rollout.logprobs_BR)
            rollout.sampler_logprobs_BR = zeros_BR.masked_scatter(rollout.mask_BR, logprobs_N)
        return rollout

    @torch.no_grad()
    def compute_logprobs(self, rollout: Rollout) -> None:
        """Fill in the log-probabilities of policy and reference, and the estimate of their KL."""
        args = self.args
        batches = self._micro_batches(rollout)
        with self.accelerator.autocast(), whole(*as_list(self.reference)):
            if not rollout.has_logprobs:
                for batch in batches:
                    logprobs_N = self.actor_critic.logprobs(batch, args.temperature)
                    batch.assign(rollout.logprobs_BR, logprobs_N)
            if args.penalises_kl:
                self._compute_ref_logprobs(rollout, batches)
        if rollout.sampler_logprobs_BR is not None:
            self._weigh_by_importance(rollout, rollout.sampler_logprobs_BR[rollout.mask_BR])
        if args.penalises_kl:
            kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, args.kl_estimator)
            rollout.kl_BR = kl_BR * rollout.mask_BR

    def _compute_ref_logprobs(self, rollout: Rollout, batches: Sequence[MicroBatch]) -> None:
        actor_critic = self.actor_critic
        if self.ref_logprobs:
            reference: Callable[[MicroBatch, float], Tensor] = self.ref_logprobs
            adapter = actor_critic.policy_adapter
        else:
            reference = actor_critic.reference_logprobs
            adapter = actor_critic.start_adapter
        with actor_critic.adapter(adapter):  # once, not for each batch
            for batch in batches:
                batch.assign(rollout.ref_logprobs_BR, reference(batch, self.args.temperature))

    def _weigh_by_importance(self, rollout: Rollout, sampler_logprobs_N: Tensor) -> None:
        """Weight the losses of tokens that another sampler drew by their truncated ratios."""
        ratios_N = importance_ratios(rollout.logprobs_BR[rollout.mask_BR], sampler_logprobs_N)
        weights_N = ratios_N.clamp(max=self.args.vllm_importance_sampling_clip_max)
        zeros_BR = torch.zeros_like(rollout.logprobs_BR)
        rollout.importance_BR = zeros_BR.masked_scatter(rollout.mask_BR, weights_N)
        self.note(importance_figures(ratios_N, self.accelerator.gather))

    # --- Rewards

    @torch.no_grad()
    def compute_rewards(self, rollout: Rollout) -> Tensor:
        """The reward of each token [B, R]: minus its KL, its own rewards, at the end the score."""
        args = self.args
        scores = self.score(rollout)
        self._note_rollout(rollout, scores)
        rewards_BR = self.running.normalise(
            scores.earned_BR, args.score_normalization, args.score_clip, self.total
        )
        rows_B = torch.arange(len(rollout.rows))
        last_B = rollout.mask_BR.sum(1) - 1
        rewards_BR[rows_B, last_B] -= scores.penalty_B
        rewards_BR = rewards_BR - self.running.kl_coef * rollout.kl_BR
        if args.kl_target is not None:  # Ziegler et al. 2019, section 2.2
            kl = mean_of_rows(rollout.kl_BR.sum(1), self.total, self.accelerator.num_processes)
            error = min(max(kl / args.kl_target - 1, -0.2), 0.2)
            self.running.kl_coef *= 1 + error * len(rewards_BR) * args.world_size / args.kl_horizon
        if args.whiten_rewards:
            rewards_BR = whiten(rewards_BR, rollout.mask_BR, shift_mean=False, total=self.total)
        return rewards_BR

    def score(self, rollout: Rollout) -> RolloutScores:
        """The scores of a rollout, whose rewards are asked for once."""
        return self.rewards.score(rollout, self.args, self.state)

    # --- Advantages and optimizer steps

    def update(self, model: nn.Module, rollout: Rollout, rewards_BR: Tensor) -> Tensor:
        """Take the optimizer steps of a rollout but for the last, whose gradient is left."""
        args = self.args
        minibatches = deal_minibatches(args, len(rollout.sequences), self.state.global_step)
        # A mini-batch's loss is a mean over the tokens, or the rows, that all processes have in it.
        if args.loss_average == "token":
            counts = [rollout.count_tokens(rows) for rows in minibatches]
            weights_BR = rollout.mask_BR / 1
        else:
            counts = [len(rows) for rows in minibatches]
            weights_BR = rollout.mask_BR / rollout.mask_BR.sum(1, keepdim=True)
        sizes = self.total(torch.tensor(counts, dtype=torch.float32, device=args.device)).tolist()
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

    def compute_advantages(
        self, rollout: Rollout, rewards_BR: Tensor, first: Sequence[int]
    ) -> None:
        """Fill in the critic's values of all states, the returns, and the advantages, whitened.

        The values of the ``first`` mini-batch are those that its gradient begins with, and the
        returns of a row are known as soon as its values are. So a critic that shares no states with
        the policy takes that gradient in the same pass, which saves one of thirteen.
        """
        others = [row for row in range(len(rollout.sequences)) if row not in first]
        with self.actor_critic.adapter(self.actor_critic.critic_adapter):
            for rows in (first, others):
                learns = rows is first and self.actor_critic.critic != "head"
                for batch in self._micro_batches(rollout, rows):
                    with torch.set_grad_enabled(learns), self.accelerator.autocast():
                        values_N = self.actor_critic.values(batch)
                    batch.assign(rollout.values_BR, values_N.detach())
                    rows_B = batch.rows_B
                    advantages_BR, returns_BR = generalised_advantages(
                        rewards_BR[rows_B],
                        rollout.values_BR[rows_B],
                        rollout.mask_BR[rows_B],
                        self.args.gamma,
                        self.args.lam,
                    )
                    rollout.advantages_BR[rows_B] = advantages_BR
                    rollout.returns_BR[rows_B] = returns_BR
                    if learns:
                        self._backward(value_loss(rollout, batch, values_N, self.args))
        rollout.advantages_BR = whiten(rollout.advantages_BR, rollout.mask_BR, total=self.total)
        returns_N = rollout.returns_BR[rollout.mask_BR]
        values_N = rollout.values_BR[rollout.mask_BR]
        explained = explained_variance(returns_N, values_N, self.total)
        self.note({"val/explained_variance": explained})

    def _add_gradients(
        self, rollout: Rollout, batches: list[MicroBatch], *, critic_has_learned: bool
    ) -> None:
        """Add the gradient of a mini-batch's losses, a micro-batch's share at a time.

        Critic and policy go one after the other, so that the activations of one are held at a time;
        measured, that takes a tenth to a quarter off the memory. A head, which reads the policy's
        states, goes with the policy.
        """
        actor_critic = self.actor_critic
        is_head = actor_critic.critic == "head"
        if not is_head and not critic_has_learned:
            with actor_critic.adapter(actor_critic.critic_adapter):
                for batch in batches:
                    with self.accelerator.autocast():
                        values_N = actor_critic.values(batch)
                    self._backward(value_loss(rollout, batch, values_N, self.args))
        for batch in batches:
            if is_head:
                with self.accelerator.autocast():
                    logprobs_N, values_N = actor_critic(batch, self.args.temperature)
                loss = policy_loss(rollout, batch, logprobs_N, self.args, self.own_loss)
                self._backward(loss + value_loss(rollout, batch, values_N, self.args))
            else:
                with self.accelerator.autocast():
                    logprobs_N = actor_critic.logprobs(batch, self.args.temperature)
                loss = policy_loss(rollout, batch, logprobs_N, self.args, self.own_loss)
                self._backward(loss)

    def _backward(self, loss: Tensor) -> None:
        """Add the gradient of a share of the loss; FSDP2 takes the mean over processes."""
        if self.is_fsdp_enabled:
            loss = loss * self.args.world_size
        self.accelerator.backward(loss)

    # --- Passes and processes

    def _micro_batches(
        self, rollout: Rollout, rows: Sequence[int] | None = None
    ) -> list[MicroBatch]:
        """Some rows of a rollout, else all, as many in each pass as the budget of tokens allows."""
        budget = self.args.max_tokens_per_micro_batch
        if not budget:
            on_cpu = self.args.device.type == "cpu"
            budget = TOKENS_PER_PASS if on_cpu else self.rows_per_pass * max(rollout.lengths)
        if rows is None:
            rows = range(len(rollout.sequences))
        agree = self.largest_count if self.is_fsdp_enabled else None
        return rollout.micro_batches(rows, budget, padding_free=self.padding_free, agree=agree)

    def _in_float32(self) -> bool:
        args = self.args
        has_autocast = args.bf16 or args.fp16
        return not has_autocast and self.actor_critic.policy.dtype == torch.float32

    def kernels(self) -> AbstractContextManager[None]:
        """PyTorch's own kernels where they are the better ones."""
        if self.args.device.type == "cpu" and self._in_float32():
            return own_kernels()
        return nullcontext()

    def _sum_over_processes(self, model: nn.Module) -> None:
        """Add up the gradients of all processes, each of its own share of the mini-batch.

        A weight without a gradient here may have one elsewhere, such as an expert to which no token
        went. FSDP2 has added them up already.
        """
        if self.args.world_size == 1 or self.is_fsdp_enabled:
            return
        for parameter in model.parameters():
            if parameter.requires_grad:
                gradient = parameter.grad
                if gradient is None:
                    gradient = torch.zeros_like(parameter)
                parameter.grad = self.accelerator.reduce(gradient, "sum")

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self.accelerator.reduce(values, "sum")

    def largest_count(self, count: int) -> int:
        """The largest of the counts that the processes have."""
        return int(self.accelerator.gather(torch.tensor([count], device=self.args.device)).max())

    # --- The log

    def note(self, figures: Mapping[str, float]) -> None:
        """Note figures for the next log, which shows the mean of its notes of each."""
        for name, value in figures.items():
            self.metrics[name].append(value)

    def _note_rollout(self, rollout: Rollout, scores: RolloutScores) -> None:
        if self.agent:
            self.note(tool_figures(rollout, self.total))
        kl_coef = self.running.kl_coef
        if self.args.penalises_kl:
            self.note({"objective/kl_coef": kl_coef})
        processes = self.accelerator.num_processes
        self.note(rollout_figures(rollout, scores.figures, kl_coef, self.total, processes))

    def _note_update(self, sums: Mapping[str, Tensor], steps: int) -> Tensor:
        """Note the figures of an update of so many optimizer steps; gives the mean loss."""
        totals = self.total(torch.stack(list(sums.values()))).tolist()
        named_totals = dict(zip(sums, totals, strict=True))
        self.note(update_figures(named_totals, steps))
        loss = named_totals["policy"] + self.args.vf_coef * named_totals["value"]
        return torch.tensor(loss / steps, device=self.args.device)

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        """Add what was noted since the last log to the logs of training."""
        if "loss" in logs:
            for name, values in self.metrics.items():
                logs[name] = sum(values) / len(values)
            prompts = self.args.train_batch_size * self.args.world_size
            logs["episode"] = self.state.global_step * prompts
            logs["lr"] = logs.get("learning_rate", 0.0)
            logs["num_tokens"] = float(self.state.num_input_tokens_seen)
            self.metrics.clear()
        super().log(logs, *args, **kwargs)

    @torch.no_grad()
    def evaluation_loop(
        self, dataloader: DataLoader, *, metric_key_prefix: str = "eval", **_: object
    ) -> EvalLoopOutput:
        """The mean scores of a completion of each held-out prompt."""
        self.model.eval()
        self.actor_critic.register_for_shards()
        return evaluate_held_out(self, dataloader, metric_key_prefix)

    # --- Saving and resuming

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write policy and critic (``value_model/``) for others.

        By ``_internal_call`` it is a checkpoint of the Trainer's, with the policy in ``policy/``.
        """
        folder = Path(output_dir or self.args.output_dir)
        if _internal_call:
            super().save_model(output_dir, _internal_call=True)
        weights = gather_weights(self.actor_critic, keep=self.args.should_save)
        if not self.args.should_save:
            return
        policy_folder = folder / "policy" if _internal_call else folder
        self.actor_critic.save_policy(policy_folder, weights)
        self.processing_class.save_pretrained(policy_folder)
        if _internal_call:
            write_json(folder / "ppo_state.json", dataclasses.asdict(self.running))
        else:
            self.actor_critic.save_value(folder / "value_model", weights)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: object, **kwargs: object
    ) -> TrainOutput:
        """Train as the Trainer does; a resume also continues the KL coefficient and statistics."""
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(self.args.output_dir)
        if path:
            text = (Path(path) / "ppo_state.json").read_text(encoding="utf-8")
            self.running = RunningStats(**json.loads(text))
        with self.kernels():
            return super().train(resume_from_checkpoint, *args, **kwargs)
