"""The arguments of PPO, their checks, and their form for the loop of the stock Trainer."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from transformers.training_args import TrainingArguments

from runner.errors import ConfigError, Fault
from runner.schema.ranges import Count, Fraction, MoreThanOne, Natural, NotNegative, Positive


@dataclass
class PPOConfig(TrainingArguments):
    """Arguments of :class:`PPOTrainer`: those of TrainingArguments, and PPO's under TRL's names.

    A process rolls out ``per_device_train_batch_size * gradient_accumulation_steps`` completions
    per update.
    """

    learning_rate: float = 3e-6
    logging_steps: float = 1
    remove_unused_columns: bool | None = False  # rewards may want any column
    bf16: bool | None = None  # None: where the hardware has it and fp16 is off
    # Models are whole in each process or sharded by FSDP2. The environment can still turn on what
    # these two fields rule out (two optimizers in one engine, layers in parts): PPOTrainer refuses.
    deepspeed: None = None
    parallelism_config: None = None
    torch_compile: Literal[False] = False  # would compile a forward pass that no update takes

    # The rollout.
    total_episodes: Count | None = None  # prompts in all, in place of max_steps
    response_length: Count = 53  # most tokens of a completion
    num_generations: Count = 1  # completions of each prompt
    # Turns of a completion that may call tools. None: while it has room.
    max_tool_calling_iterations: Natural | None = None
    # How often prompts whose completions all earn the same are exchanged (Yu et al. 2025, 3.2).
    dynamic_sampling: Natural = 0
    temperature: float = 0.7  # of sampling and of every log-probability
    stop_token: Literal["eos"] | None = "eos"  # every end token that tokenizer and model declare
    stop_token_id: Natural | None = None  # a further token that ends a completion
    # Subtracted from the score of a completion that was cut off (Huang et al. 2024).
    missing_eos_penalty: NotNegative | None = None
    # The sampler: vLLM, or one of the runner's own, of which auto takes the fastest that fits.
    rollout_engine: Literal["auto", "loop", "graph", "generate", "vllm"] = "auto"
    # colocate: vLLM in this process, on the card of the training. server: one that was started.
    vllm_mode: Literal["colocate", "server"] = "colocate"
    vllm_server_base_url: str = "http://localhost:8000"  # of the server
    # Seconds until the server is up, and without a sign of life of it.
    vllm_server_timeout: Positive = 240.0
    # The way of new weights to the server. auto: nccl between cards, else as files in a folder of
    # the run, which the server reads.
    vllm_weight_transfer: Literal["auto", "nccl", "folder"] = "auto"
    # The next four are of a colocated vLLM.
    vllm_gpu_memory_utilization: float = 0.3  # share of a card
    vllm_max_model_length: Count | None = None  # tokens of prompt and completion; None: the model's
    vllm_tensor_parallel_size: Count = 1  # cards that share the model
    vllm_enable_sleep_mode: bool = False  # frees the card for the update
    # Bound on the weight of a token's loss, which is the ratio of the policy's probability to
    # vLLM's. None: losses are not weighted.
    vllm_importance_sampling_clip_max: float | None = 3.0
    local_rollout_forward_batch_size: Count = 64  # rows sampled side by side
    # How often in a training held-out samples are written to completions.jsonl.
    num_sample_generations: Natural = 10

    # The reward.
    kl_coef: NotNegative = 0.05  # weight of the KL in the reward; with 0 there is no reference
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"  # Schulman 2020
    # KL per completion that an adaptive kl_coef aims at (Ziegler et al. 2019).
    kl_target: Positive | None = None
    kl_horizon: Positive = 10_000  # episodes in which an adaptive kl_coef reacts
    reward_model_path: str | None = None  # a further reward: a sequence classification model
    reward_weights: list[float] | None = None  # one for each reward; None: 1
    # Stands between the steps of a completion, where a reward is given per step.
    step_separator: str = "\n"
    # By the running deviation (Engstrom et al. 2020) of all rewards that were given, be it to
    # completions, steps (Shao et al. 2024, section 4.1.3) or tokens. A token without a reward is
    # not shifted.
    score_normalization: Literal["none", "scale", "whiten"] = "none"
    score_clip: Positive | None = None  # bound on each normalised reward, on either side
    whiten_rewards: bool = False  # scale rewards per token to variance 1

    # The update.
    num_ppo_epochs: Count = 4
    num_mini_batches: Count = 1  # optimizer steps in each epoch
    cliprange: Positive = 0.2  # of the probability ratio (Schulman et al. 2017)
    # Bound on the ratio where the advantage is negative (Ye et al. 2020).
    dual_clip: MoreThanOne | None = None
    cliprange_value: Positive = 0.2  # of a value's step in one update
    vf_coef: NotNegative = 0.1  # weight of the value loss
    gamma: Fraction = 1.0  # discount of later rewards
    lam: Fraction = 0.95  # Schulman et al. 2016
    # The unit of equal weight in the loss: every token, or every completion.
    loss_average: Literal["token", "sequence"] = "token"
    value_warmup_steps: Natural = 0  # updates of the critic alone at the start
    # auto: sampled where everything is float32, else recompute.
    old_logprobs: Literal["auto", "sampled", "recompute"] = "auto"
    # None: 640 on a CPU, else per_device_train_batch_size rows.
    max_tokens_per_micro_batch: Count | None = None

    # The models.
    sft_model_path: str | None = None  # the policy, where no model is given
    # auto: adapter beside an adapted policy, else model. A head on the policy's states is worse.
    critic: Literal["auto", "adapter", "model", "head"] = "auto"

    def __post_init__(self) -> None:
        if self.bf16 is None:
            has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
            self.bf16 = not self.fp16 and has_bf16
        # Before super(), which would divide by what is no number of mini-batches.
        rows = self.per_device_train_batch_size * self.gradient_accumulation_steps
        if self.num_mini_batches < 1 or rows % self.num_mini_batches:
            raise ValueError(
                f"num_mini_batches is {self.num_mini_batches}, "
                f"which does not divide the {rows} rows of a process"
            )
        super().__post_init__()
        ConfigError.refuse(_find_faults(self))

    @property
    def rollout_rows(self) -> int:
        """Completions that one process rolls out for an update."""
        rows: int = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return rows

    @property
    def penalises_kl(self) -> bool:
        """True where the reward holds a KL, and so a reference is needed."""
        return self.kl_coef != 0


@dataclass(frozen=True)
class _Requirement:
    """A condition on one argument."""

    name: str
    holds: bool
    expected: str
    value: str  # one that would do


def _find_faults(args: PPOConfig) -> Iterator[Fault]:
    """The requirements that the arguments do not meet, also where no configuration was read."""
    can_end = args.stop_token is not None or args.stop_token_id is not None
    requirements = [
        _Requirement("num_ppo_epochs", args.num_ppo_epochs >= 1, "at least 1", "1"),
        _Requirement(
            "dynamic_sampling",
            args.num_generations > 1 or not args.dynamic_sampling,
            "0 with one completion per prompt",
            "0",
        ),
        _Requirement(
            "num_generations",
            args.rollout_rows % args.num_generations == 0,
            f"a divisor of {args.rollout_rows} completions",
            "1",
        ),
        _Requirement("response_length", args.response_length >= 1, "at least 1", "1"),
        _Requirement(
            "local_rollout_forward_batch_size",
            args.local_rollout_forward_batch_size >= 1,
            "at least 1",
            "1",
        ),
        _Requirement("temperature", args.temperature > 0, "above 0: PPO samples", "1.0"),
        _Requirement("dual_clip", args.dual_clip is None or args.dual_clip > 1, "above 1", "3.0"),
        _Requirement("kl_target", args.kl_target is None or args.kl_target > 0, "above 0", "6.0"),
        _Requirement(
            "kl_coef",
            args.kl_target is None or args.kl_coef > 0,
            "above 0, with kl_target",
            "0.05",
        ),
        _Requirement(
            "remove_unused_columns",
            not args.remove_unused_columns,
            "false, because rewards may need any column",
            "false",
        ),
        _Requirement(
            "missing_eos_penalty",
            can_end or args.missing_eos_penalty is None,
            "a stop_token or a stop_token_id",
            "null",
        ),
    ]
    for requirement in requirements:
        if not requirement.holds:
            yield Fault(
                where=f"trainer.args.{requirement.name}",
                found=str(getattr(args, requirement.name)),
                expected=requirement.expected,
                fix=f"={requirement.value}",
            )


def adapt_to_loop(asked: PPOConfig) -> PPOConfig:
    """The arguments for the loop of the Trainer, where one batch is one rollout and one step.

    Raises ConfigError for a reward model that is only named, which the trainer's builder loads.
    """
    if asked.reward_model_path:
        raise ConfigError(
            Fault(
                where="trainer.args.reward_model_path",
                found=asked.reward_model_path,
                expected="the model itself, among reward_funcs",
                fix="reward_funcs=runner.reward.outcome.load_reward_model(<path>)",
            )
        )
    args = copy.copy(asked)
    prompts = asked.rollout_rows // asked.num_generations
    args.per_device_train_batch_size = prompts
    args.gradient_accumulation_steps = 1
    # A batch is a list of rows with texts, which accelerate cannot send from one process to others.
    args.accelerator_config = dataclasses.replace(asked.accelerator_config, dispatch_batches=False)
    if asked.total_episodes:
        args.max_steps = math.ceil(asked.total_episodes / (prompts * asked.world_size))
    if asked.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # policy and critic use every weight
    return args
