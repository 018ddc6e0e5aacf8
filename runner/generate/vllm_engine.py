"""vLLM in the place of the sampler, in this process.

The random numbers of a completion are vLLM's own, seeded by the first noise of the completion. So
one prompt gets the same completion whatever stands beside it, but for the rounding of the kernels.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from runner.errors import ConfigError, EnvironmentFault, Fault, check_library, reason_of
from runner.generate.padding import Prompts, media_inputs_of
from runner.generate.sampler import Model, Responses, Sampling, cut
from runner.model.current_weights import (
    current_weights,
    shares_adapted_embeddings,
    write_current_weights,
)
from runner.reward.isolation import contained, random_state_kept

SHARE_OF_FREE_MEMORY = 0.9
BATCHED_TOKENS = 4096
SEEDS = 1 << 48  # as many as there are values of the noise


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine in this process."""

    dtype: torch.dtype
    # raw_logprobs are those at temperature 1, processed_logprobs of what is sampled from.
    logprobs_mode: str = "raw_logprobs"
    gpu_memory_utilization: float = 0.9  # share of a card
    max_model_length: int | None = None  # tokens of prompt and completion; None: the model's
    enable_sleep_mode: bool = False  # frees the card while nothing is sampled
    tensor_parallel_size: int = 1  # processes that share one model


class VLLMEngine:
    """A vLLM of this process, which begins with the weights that ``model`` has."""

    def __init__(self, model: Model, settings: EngineSettings, adapter: str | None = None):
        """Raises ConfigError for a model that vLLM cannot be given, and EnvironmentFault."""
        check_library("vllm", "engine")
        check_model(model)
        # The engine lives in this process, where it can be handed new weights.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import vllm

        import runner.generate.vllm_worker  # noqa: F401  before the engine packs any weight

        self.settings = settings
        self.group = _tensor_parallel_group(settings.tensor_parallel_size)
        further: dict[str, Any] = {}
        if torch.accelerator.is_available():
            # As in TRL: by its default vLLM sets aside memory for many more.
            further["max_num_batched_tokens"] = BATCHED_TOKENS
        else:
            # What compiling saves is less than the half minute that it takes.
            further["enforce_eager"] = True
            # After a part of a prompt vLLM steps the completion's random numbers back, which those
            # of a CPU cannot do.
            further["enable_chunked_prefill"] = False
        with (
            tempfile.TemporaryDirectory(prefix="vllm-") as folder,
            contained(),
            random_state_kept(),
            _failures_told(),
        ):
            write_current_weights(model, Path(folder), adapter)
            self.llm = vllm.LLM(
                model=folder,
                use_tqdm_on_load=False,
                skip_tokenizer_init=True,  # it is asked by token ids and answers with them
                dtype=str(settings.dtype).removeprefix("torch."),
                logprobs_mode=settings.logprobs_mode,
                gpu_memory_utilization=settings.gpu_memory_utilization,
                max_model_len=settings.max_model_length,
                enable_sleep_mode=settings.enable_sleep_mode,
                tensor_parallel_size=settings.tensor_parallel_size,
                # Its processes are those that are there; they meet at a port, not in a file.
                distributed_executor_backend="external_launcher",
                **further,
            )
        self._sleep()

    def load_weights(self, model: Model, adapter: str | None = None) -> None:
        """Sample from the weights that ``model`` has now."""
        with self._awake():
            weights = current_weights(model, adapter)
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self.llm.reset_prefix_cache()

    def sample(self, prompts: Prompts, how: Sampling, noise_BR: Tensor) -> Responses:
        """A completion for each prompt; the processes of one tensor-parallel group ask together."""
        check_prompts(prompts)
        questions = []
        for prompt, seed in zip(prompts, seeds_of(noise_BR), strict=True):
            questions.append((list(prompt), seed))
        first = 0
        asked = questions
        if self.group is not None:
            everyones: list[Any] = [None] * self.settings.tensor_parallel_size
            torch.distributed.all_gather_object(everyones, questions, group=self.group)
            rank = torch.distributed.get_rank(self.group)
            first = sum(len(theirs) for theirs in everyones[:rank])
            asked = [question for theirs in everyones for question in theirs]
        with self._awake():
            answers = self._generate(asked, how)
        mine = answers[first : first + len(questions)]
        return Responses([tokens for tokens, _ in mine], [logprobs for _, logprobs in mine])

    def _generate(
        self, questions: Sequence[tuple[list[int], int]], how: Sampling
    ) -> list[tuple[Tensor, Tensor]]:
        from vllm import SamplingParams

        settings = []
        prompts = []
        for prompt, seed in questions:
            settings.append(
                SamplingParams(
                    temperature=how.temperature,
                    top_k=how.top_k,
                    top_p=how.top_p,
                    max_tokens=how.limit(prompt),
                    seed=seed,
                    stop_token_ids=list(how.stop_ids),
                    ignore_eos=True,
                    logprobs=0,
                    detokenize=False,
                )
            )
            prompts.append({"prompt_token_ids": prompt})
        outputs = self.llm.generate(prompts, settings, use_tqdm=False)
        answers = []
        for output in outputs:
            (completion,) = output.outputs
            tokens_R = torch.tensor(completion.token_ids)
            logprobs = []
            for token, candidates in zip(completion.token_ids, completion.logprobs, strict=True):
                logprobs.append(candidates[token].logprob)
            answers.append(cut_answer(tokens_R, torch.tensor(logprobs), how))
        return answers

    @contextlib.contextmanager
    def _awake(self) -> Iterator[None]:
        if self.settings.enable_sleep_mode:
            self.llm.wake_up()
        yield
        self._sleep()

    def _sleep(self) -> None:
        if self.settings.enable_sleep_mode:
            self.llm.sleep(level=1)  # the weights wait in the memory of the machine


@contextlib.contextmanager
def _failures_told() -> Iterator[None]:
    """Raise as EnvironmentFault what vLLM says where it does not start."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise EnvironmentFault(
            Fault(
                where="vllm",
                found=reason_of(error),
                expected="a model, settings and memory with which vLLM starts",
                fix="what it says, or another engine",
            )
        ) from error


def start_engine(model: Model) -> VLLMEngine:
    """An engine beside a model that stays as it is.

    Its log-probabilities are those at temperature 1, however it samples.
    """
    share = SHARE_OF_FREE_MEMORY
    if model.device.type == "cuda":  # of the whole card, a part of which the model itself takes
        free, total = torch.cuda.mem_get_info()
        share *= free / total
    _set_place(0, 0, 1)
    settings = EngineSettings(model.dtype, gpu_memory_utilization=share)
    return VLLMEngine(model, settings)


def start_training_engine(
    model: Model, accelerator: Accelerator, adapter: str | None = None, **settings: Any
) -> VLLMEngine:
    """An engine in each process of a training, in the precision that this computes in."""
    _set_place(
        accelerator.process_index, accelerator.local_process_index, accelerator.num_processes
    )
    dtype = model.dtype
    if accelerator.mixed_precision == "bf16":
        dtype = torch.bfloat16
    elif accelerator.mixed_precision == "fp16":
        dtype = torch.float16
    return VLLMEngine(model, EngineSettings(dtype=dtype, **settings), adapter)


def _set_place(rank: int, local_rank: int, count: int) -> None:
    """Set what vLLM reads in each of the processes that have an engine."""
    os.environ["RANK"] = str(rank)
    os.environ["LOCAL_RANK"] = str(local_rank)
    os.environ["WORLD_SIZE"] = str(count)
    set_meeting_point()


def set_meeting_point() -> None:
    """Name a port at which the processes of a vLLM meet; that of a launcher stays.

    TRL and vLLM take the same few ports in every run, where two runs that start at once collide.
    """
    os.environ.setdefault("MASTER_ADDR", "localhost")
    if "MASTER_PORT" not in os.environ:
        with socket.create_server(("localhost", 0)) as server:
            os.environ["MASTER_PORT"] = str(server.getsockname()[1])


def check_model(model: Model) -> None:
    """Raise ConfigError for a model whose weights cannot be handed to vLLM."""
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            Fault(
                where="quant",
                found="a model of 4 or 8 bits, whose weights vLLM cannot be given",
                expected="a whole model",
                fix="quant=none, or another engine",
            )
        )
    if shares_adapted_embeddings(model):
        raise ConfigError(
            Fault(
                where="peft",
                found="an adapter of embeddings that the output layer shares",
                expected="an adapter of other layers, as vLLM must be given the sum of both",
                fix="peft.target_modules=all-linear peft.modules_to_save=null, or another engine",
            )
        )


def check_prompts(prompts: Prompts) -> None:
    """Raise ConfigError for prompts that are more than text."""
    if any(media_inputs_of(prompt) for prompt in prompts):
        raise ConfigError(
            Fault(
                where="engine",
                found="vllm, and prompts with pictures or other media",
                expected="another engine for them",
                fix="=auto",
            )
        )


def seeds_of(noise_BR: Tensor) -> list[int]:
    """A seed for each completion, from its first noise."""
    return [int(value * SEEDS) for value in noise_BR[:, 0].tolist()]


def cut_answer(tokens_R: Tensor, logprobs_R: Tensor, how: Sampling) -> tuple[Tensor, Tensor]:
    """The tokens up to and with the first stop token, and their log-probabilities."""
    tokens_R = cut(tokens_R, how.stop_ids)
    return tokens_R, logprobs_R[: len(tokens_R)]


def _tensor_parallel_group(size: int) -> Any:
    """The processes that share one model with this one; None for a model of one process."""
    if size == 1:
        return None
    count = torch.distributed.get_world_size()
    if count % size:
        raise ConfigError(
            Fault(
                where="trainer.args.vllm_tensor_parallel_size",
                found=f"{size}, with {count} processes",
                expected=f"a divisor of {count}",
                fix="=1",
            )
        )
    ranks = []
    for first in range(0, count, size):
        ranks.append(list(range(first, first + size)))
    group, _ = torch.distributed.new_subgroups_by_enumeration(ranks)
    return group
