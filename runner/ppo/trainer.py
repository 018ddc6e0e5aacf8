"""Proximal policy optimisation of language models: the trainer.

The algorithm is that of Schulman et al. 2017, Ziegler et al. 2019 and Huang et al. 2024. One step
of the stock Trainer is one PPO update: ``training_step`` rolls out completions, computes
log-probabilities, rewards, values and advantages, and takes its optimizer steps. The gradient of
the last mini-batch is left to the Trainer, which clips, steps, schedules, logs, evaluates, saves,
stops early and resumes with its own loop. The phases of an update are, in reading order,
``dynamic_sampling``, ``rollout_logprobs``, ``token_rewards`` and ``update``; the equations are in
``arithmetic``. Differences from the PPOTrainer of TRL 1.12 are listed in README.md.

Optimisations, each behind one function: ``generate.sampler.sample`` (finished rows leave the
cache), ``Rollout.micro_batches`` (little padding), ``make_padding_free`` (on a CPU none),
``leave_out_unread`` (little of prompt tokens in the last layer), ``TokenLogProbs``
(logits of sampled tokens alone, in chunks), ``passes.kernels`` (no kernel for each shape),
``update._add_gradients`` (activations of critic or policy, not of both),
``update.compute_advantages`` (a critic of its own learns from the first mini-batch while it values
it).

Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens. What
stands behind the end of a response is 0 in every BR tensor.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from peft import PeftConfig, get_peft_model
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Trainer
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, TrainOutput, get_last_checkpoint, set_seed
from trl.models import prepare_fsdp

from runner.generate.earned import Reward, Rewards
from runner.generate.episode import Environments, Tool
from runner.generate.sampler import Model, Sampler
from runner.io.temporary import temporarily
from runner.ppo.actor_critic import ActorCritic, build_actor_critic, build_reference, place_frozen
from runner.ppo.config import PPOConfig, adapt_to_loop
from runner.ppo.dynamic_sampling import roll_out_groups
from runner.ppo.engine import build_rollout_engine
from runner.ppo.held_out_prompts import evaluate_held_out, write_samples
from runner.ppo.passes import kernels
from runner.ppo.preparation import (
    as_list,
    build_ppo_agent,
    check_datasets,
    check_distribution,
    find_stop_ids,
    load_policy,
)
from runner.ppo.rollout_logprobs import compute_logprobs
from runner.ppo.saving import read_running_stats, save_models
from runner.ppo.token_rewards import RunningStats, compute_rewards
from runner.ppo.update import update


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
    # It does so by itself. False where a run goes on whose steps computed all of the last layer.
    skips_padding: bool | None = True
    # What the completions of a batch's own prompts earned, also of those that are exchanged.
    first_scores_B: Tensor

    def __init__(
        self,
        model: Model | str | None = None,
        reward_funcs: Reward | list[Reward] | None = None,
        args: PPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset
        | IterableDataset
        | dict[str, Dataset | IterableDataset]
        | None = None,
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
        self.sampled: list[dict[str, object]] = []  # the completions of the last update
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
        check_distribution(self)
        self.vllm = build_rollout_engine(self)
        self.ref_logprobs = place_frozen(self)
        # Where all models can; on a CPU it saved an eighth of the time with a wider model.
        with self.accelerator.autocast():
            make_free = self.actor_critic.make_padding_free
            self.padding_free = make_free(self.ref_logprobs, bool(self.skips_padding))
        if self.is_fsdp_enabled:
            for frozen in [*self.rewards.models, *as_list(self.reference)]:
                prepare_fsdp(frozen, self.accelerator)

    @property
    def actor_critic(self) -> ActorCritic:
        """Policy and critic without what distributes them."""
        actor_critic: ActorCritic = self.accelerator.unwrap_model(self.model)
        return actor_critic

    def get_train_dataloader(self) -> DataLoader:
        """Batches of whole rollouts; the same argument rules evaluation, which sees every row."""
        with temporarily(self.args, dataloader_drop_last=True):
            return super().get_train_dataloader()

    # --- One update

    def training_step(
        self, model: nn.Module, inputs: list[dict[str, Any]], *_: object, **__: object
    ) -> Tensor:
        """The mean loss of one PPO update, which this takes but for its last optimizer step."""
        self.actor_critic.register_for_shards()
        write_samples(self)
        started = time.perf_counter()
        model.eval()
        rollout = roll_out_groups(self, inputs)
        rolled_out = time.perf_counter()
        compute_logprobs(self, rollout)
        rewards_BR = compute_rewards(self, rollout)
        scored = time.perf_counter()
        # Activations are recomputed only in training mode; dropout is off in any case.
        model.train(bool(self.args.activation_checkpointing))
        loss = update(self, model, rollout, rewards_BR)
        model.eval()
        self.sampled = rollout.to_rows(self.rewards.names)
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

    def engine_sampler(self) -> Sampler | None:
        """The vLLM that samples in the policy's place, with the weights of now; None without one.

        All processes ask for it together.
        """
        if self.vllm is None:
            return None
        self.vllm.refresh(self)
        return self.vllm.sample

    # --- Figures of all processes

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return self.accelerator.reduce(values, "sum")

    def largest_count(self, count: int) -> int:
        """The largest of the counts that the processes have."""
        own_count = torch.tensor([count], device=self.args.device)
        return int(self.accelerator.gather(own_count).max())

    # --- The log

    def note(self, figures: Mapping[str, float]) -> None:
        """Note figures for the next log, which shows the mean of its notes of each."""
        for name, value in figures.items():
            self.metrics[name].append(value)

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
        save_models(self, folder, in_checkpoint=_internal_call)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: object, **kwargs: object
    ) -> TrainOutput:
        """Train as the Trainer does; a resume also continues the KL coefficient and statistics."""
        path = resume_from_checkpoint
        if path is True:
            path = get_last_checkpoint(self.args.output_dir)
        if path:
            self.running = read_running_stats(Path(path))
        with kernels(self):
            return super().train(resume_from_checkpoint, *args, **kwargs)
