"""The parts that a PPO trainer begins with, checked before it trains: policy, agent, rows."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, Trainer

from runner.errors import ConfigError, DataError, Fault
from runner.generate.agent import Agent, build_agent
from runner.generate.completion import context_length
from runner.generate.episode import Environments, Tool
from runner.generate.sampler import Model, Sampling
from runner.model.encoding import encode_prompt, stop_ids
from runner.ppo.config import PPOConfig

TEMPLATE_BYTES = 1024  # more than what a template adds to a prompt


def as_list(value: Any) -> list[Any]:
    """The values of a mapping or a list, a single value as a list, nothing as an empty list."""
    if value is None:
        return []
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    return [value]


def load_policy(model: Model | str | None) -> Model:
    """The policy itself, or that of a path in float32; raises ConfigError without any."""
    if model is None:
        raise ConfigError(
            Fault(
                where="model",
                found="none",
                expected="a causal language model",
                fix="trainer.args.sft_model_path=<model>",
            )
        )
    if isinstance(model, str):
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return model


def find_stop_ids(
    stop_token: str | None,
    stop_token_id: int | None,
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[int, ...]:
    """Every token that ends a completion; raises ConfigError where ``eos`` is none.

    With ``stop_token`` they are those that tokenizer and model declare; ``stop_token_id`` is a
    further one.
    """
    further_ids = [] if stop_token_id is None else [stop_token_id]
    if stop_token is None:
        return tuple(further_ids)
    tokenizer_ids = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = sorted({*further_ids, *tokenizer_ids, *stop_ids(model)})
    if not ids:
        raise ConfigError(
            Fault(
                where="trainer.args.stop_token",
                found="the tokenizer has no end token",
                expected="a token that ends a completion",
                fix="trainer.args.stop_token_id=<id>, or stop_token=null",
            )
        )
    return tuple(ids)


def build_ppo_agent(
    args: PPOConfig,
    stop_token_ids: Sequence[int],
    tools: Sequence[Tool] | None,
    environments: Environments | None,
) -> Agent | None:
    """The agent with the tools or environments; None without any.

    Raises ConfigError where no turn could end.
    """
    agent = build_agent(tools, environments, args.max_tool_calling_iterations)
    if agent and not stop_token_ids:
        raise ConfigError(
            Fault(
                where="trainer.args.stop_token",
                found="null, with tools",
                expected="a token that ends a turn, after which tools are called",
                fix="=eos",
            )
        )
    return agent


def check_datasets(
    args: PPOConfig,
    train_dataset: Dataset | IterableDataset | None,
    eval_dataset: Dataset | IterableDataset | dict[str, Dataset | IterableDataset] | None,
    policy: Model,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Raise DataError for rows that the policy cannot hold, or too few of them for an update."""
    prompts = args.rollout_rows // args.num_generations * args.world_size
    context = max_length(args, policy)
    length = args.response_length
    for rows in as_list(train_dataset):
        _check_rows(rows, context, tokenizer, needed=prompts, length=length)
    for rows in as_list(eval_dataset):
        _check_rows(rows, context, tokenizer, needed=1, length=length)


def max_length(args: PPOConfig, policy: Model) -> int | None:
    """The most tokens that prompt and completion may have together; None where nothing says so.

    A vLLM in this process may hold fewer than the model, and would cut completions short.
    """
    lengths = [context_length(policy)]
    if args.rollout_engine == "vllm" and args.vllm_mode == "colocate":
        lengths.append(args.vllm_max_model_length)
    return min(filter(None, lengths), default=None)


def _check_rows(
    rows: Dataset | IterableDataset,
    context: int | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    needed: int,
    length: int,
) -> None:
    """Raise DataError; ``length`` is that of a response. A stream's rows are not read."""
    if rows.column_names is not None and "prompt" not in rows.column_names:
        names = ", ".join(rows.column_names)
        raise DataError(
            Fault(
                where="dataset",
                found=f"columns {names}",
                expected="a column prompt",
            )
        )
    if not isinstance(rows, IterableDataset):
        DataError.refuse(_find_row_faults(rows, context or math.inf, tokenizer, needed, length))


def _find_row_faults(
    rows: Dataset, context: float, tokenizer: PreTrainedTokenizerBase, needed: int, length: int
) -> Iterator[Fault]:
    room = context - length
    token_counts: dict[int, int] = {}
    for index, prompt in enumerate(rows["prompt"]):
        text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        # A token is at least a byte, so that most prompts need not be tokenized.
        if not text or len(text.encode()) + TEMPLATE_BYTES > room:
            token_counts[index] = len(encode_prompt(tokenizer, prompt, rows[index]))

    too_long = [count for count in token_counts.values() if count > room]
    if too_long:
        yield Fault(
            where="dataset",
            found=f"{len(too_long)} prompts are too long, one of {max(too_long)} tokens",
            expected=f"at most {room}: of {context} tokens the response takes {length}",
            fix="a smaller trainer.args.response_length, or shorter prompts",
        )
    empty = [index for index, count in token_counts.items() if count == 0]
    if empty:
        yield Fault(
            where="dataset",
            found=f"{len(empty)} prompts without a token, the first in row {empty[0]}",
        )
    # With fewer rows the loop of the Trainer would never take a step.
    if len(rows) < needed:
        yield Fault(
            where="dataset",
            found=f"{len(rows)} training rows",
            expected=f"at least the {needed} of one update",
            fix="dataset.limit.train=null, or a smaller trainer.args.per_device_train_batch_size",
        )


def check_distribution(trainer: Trainer) -> None:
    """Raise ConfigError for models that are spread over processes in a way that PPO cannot."""
    if trainer.is_deepspeed_enabled or trainer.accelerator.parallelism_config:
        raise ConfigError(
            Fault(
                where="trainer.args",
                found="DeepSpeed or a parallelism_config",
                expected="whole models in each process, or FSDP2",
                fix="strategy=fsdp2",
            )
        )


def sampling_of(trainer: Trainer) -> Sampling:
    """The distribution of rollouts."""
    args = trainer.args
    return Sampling(
        max_new_tokens=args.response_length,
        stop_ids=trainer.stop_ids,
        temperature=args.temperature,
        rows=args.local_rollout_forward_batch_size,
    )
