"""vLLM, as TRL runs it, in the place of the sampler, for PPO's rollouts; it needs a GPU."""

import math
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from transformers import PreTrainedTokenizerBase, TrainingArguments

from runner.errors import ConfigError, Fault, check_library
from runner.generate.sampler import Model, Responses, Sampling, cut


class VLLM:
    """vLLM on the cards of the training or a server, with random numbers and kernels of its own."""

    def __init__(
        self,
        policy: Model,
        accelerator: Accelerator,
        tokenizer: PreTrainedTokenizerBase,
        args: TrainingArguments,
        how: Sampling,
    ):
        """``args`` have the settings of vLLM under the names that GRPOConfig gives them."""
        check_library("vllm", "trainer.args.rollout_engine", "trl[vllm]")
        from trl.generation.vllm_generation import VLLMGeneration

        self.stop_ids = how.stop_ids
        self.step: int | None = None  # of the weights that vLLM has
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
            server = self.generation.vllm_client.get_server_info()
            mode = server["model_config"]["logprobs_mode"]
            if mode != "processed_logprobs":
                raise ConfigError(
                    Fault(
                        where="trainer.args.vllm_mode",
                        found=f"the server runs with {mode}",
                        expected="log-probabilities at the temperature of sampling",
                        fix="vllm serve <model> --logprobs-mode processed_logprobs",
                    )
                )

    @torch.no_grad()
    def sample(self, prompts: Sequence[Sequence[int]], step: int) -> Responses:
        """A completion for each prompt by the weights of a step; all processes ask for as many."""
        if step != self.step:
            self.generation.sync_weights()
            self.step = step
        prompt_ids = [list(prompt) for prompt in prompts]
        _, completions, top_logprobs, _ = self.generation.generate(prompt_ids, None, 1)
        responses = Responses([], [])
        for ids, candidates in zip(completions, top_logprobs, strict=True):
            tokens_R = cut(torch.tensor(ids), self.stop_ids)
            # Of the candidates for a token the first is the one that was sampled.
            logprobs = []
            for first, *_ in candidates:
                logprobs.append(math.nan if first is None else first)
            responses.tokens.append(tokens_R)
            responses.logprobs.append(torch.tensor(logprobs)[: len(tokens_R)])
        return responses
