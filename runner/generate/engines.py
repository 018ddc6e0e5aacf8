"""vLLM by TRL in the place of the sampler, for PPO's rollouts; it needs a GPU."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase

from runner.errors import ConfigError, check_library, fault
from runner.generate.sampler import Model, Responses, Sampling, cut


class VLLM:
    """vLLM by TRL's generation, on the training's cards or a server; random numbers and kernels are its own."""

    def __init__(
        self, policy: Model, accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase, args: Any, how: Sampling
    ):
        """``args`` have the settings of vLLM under the names that GRPOConfig gives them."""
        check_library("vllm", "trainer.args.rollout_engine", "trl[vllm]")
        from trl.generation.vllm_generation import VLLMGeneration

        self.stop_ids = how.stop_ids
        self.sent: int | None = None  # the step of the weights that it has
        self.generation = VLLMGeneration(
            policy,
            accelerator,
            tokenizer,
            mode=args.vllm_mode,
            server_base_url=args.vllm_server_base_url,
            server_timeout=args.vllm_server_timeout,
            tensor_parallel_size=args.vllm_tensor_parallel_size,
            gpu_memory_utilization=args.vllm_gpu_memory_utilization,
            max_model_length=args.vllm_max_model_length,
            enable_sleep_mode=args.vllm_enable_sleep_mode,
            temperature=how.temperature,
            max_completion_length=how.max_new_tokens,
            generation_kwargs={"stop_token_ids": list(how.stop_ids), "ignore_eos": True},
        )
        if args.vllm_mode == "server" and accelerator.is_main_process:
            mode = self.generation.vllm_client.get_server_info()["model_config"]["logprobs_mode"]
            if mode != "processed_logprobs":
                raise ConfigError(fault("generate.other_logprobs", mode=mode))

    @torch.no_grad()
    def sample(self, prompts: Sequence[Sequence[int]], step: int) -> Responses:
        """A completion for each prompt under the weights of a step; all processes ask for as many."""
        if step != self.sent:
            self.generation.sync_weights()
            self.sent = step
        _, completions, found, _ = self.generation.generate(list(map(list, prompts)), None, 1)
        tokens = [cut(torch.tensor(ids), self.stop_ids) for ids in completions]
        logprobs = [[math.nan if of[0] is None else of[0] for of in each] for each in found]
        return Responses(tokens, [torch.tensor(each)[: len(ids)] for each, ids in zip(logprobs, tokens, strict=True)])
