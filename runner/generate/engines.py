"""Engines that may stand in for the sampler in PPO: continuous batching of transformers, and a vLLM server.

Both are made for GPUs and draw with random numbers of their own, for which they take a seed from the noise.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate import PartialState
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig

from runner.errors import check_library
from runner.generate.sampler import Model, Responses, Sampling, cut, sample, without_generation_defaults

Engine = Callable[[Model, Sequence[Sequence[int]], Sampling, Tensor], Responses]


def build_engine(name: str, vllm_server_base_url: str) -> Engine:
    """A function of prompts that samples completions: ``engine(policy, prompts, sampling, noise_BR)``.

    ``noise_BR`` are uniform random numbers, one for each token that may be drawn. All but ``vllm`` and ``continuous``
    are engines of :func:`runner.generate.sampler.sample`.
    """
    if name == "vllm":
        return functools.partial(sample_by_server, connect(vllm_server_base_url))
    return sample_by_continuous_batching if name == "continuous" else functools.partial(sample, engine=name)


@torch.no_grad()
def sample_by_continuous_batching(
    policy: Model, prompts: Sequence[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> Responses:
    """Completions by ``model.generate_batch``, where a finished row gives way to the next."""
    model = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    config = GenerationConfig(
        max_new_tokens=how.max_new_tokens,
        do_sample=True,
        temperature=how.temperature,
        top_k=0,
        top_p=1.0,
        eos_token_id=list(how.stop_ids) or None,
        pad_token_id=0,
    )
    with without_generation_defaults(model), torch.random.fork_rng():
        torch.manual_seed(_seed(noise_BR))
        inputs = [list(prompt) for prompt in prompts]
        answers = model.generate_batch(inputs=inputs, generation_config=config, progress_bar=False)
    # Requests are numbered in the order of the prompts; answers come back in any.
    ordered = sorted(answers.values(), key=lambda answer: int(answer.request_id.rpartition("_")[2]))
    return _to_responses([answer.generated_tokens for answer in ordered], how)


def _seed(noise_BR: Tensor) -> int:
    return int(noise_BR.flatten()[0].double() * 2**31)


def _to_responses(completions: Sequence[Sequence[int]], how: Sampling) -> Responses:
    tokens = (torch.tensor(ids)[: how.max_new_tokens] for ids in completions)
    return Responses([cut(tokens_R, how.stop_ids) for tokens_R in tokens])


def connect(base_url: str) -> Any:
    """TRL's client of a running vLLM server, joined with it for sending weights; needs a GPU."""
    check_library("vllm", "trainer.args.rollout_engine", "trl[vllm]")
    from trl.generation.vllm_client import VLLMClient

    client = VLLMClient(base_url=base_url, connection_timeout=60)
    if PartialState().is_main_process:
        client.init_communicator(device=torch.cuda.current_device())
    return client


@torch.no_grad()
def sample_by_server(
    client: Any, policy: Model, prompts: Sequence[Sequence[int]], how: Sampling, noise_BR: Tensor
) -> Responses:
    """Completions by a vLLM server, which is sent the policy before each rollout.

    Its log-probabilities come of other kernels and are left there: PPO computes its own.
    """
    processes = PartialState()
    if processes.is_main_process:
        with client.weight_update():
            for name, weight in merged_weights(policy):
                client.update_named_param(name, weight)
        client.reset_prefix_cache()
    processes.wait_for_everyone()
    answer = client.generate(
        prompts=[list(prompt) for prompt in prompts],
        temperature=how.temperature,
        max_tokens=how.max_new_tokens,
        logprobs=None,
        generation_kwargs={"stop_token_ids": list(how.stop_ids), "ignore_eos": True, "seed": _seed(noise_BR)},
    )
    return _to_responses(answer["completion_ids"], how)


def merged_weights(policy: Model) -> Iterator[tuple[str, Tensor]]:
    """The weights of the policy under the names of its base model, the active adapter added in, one at a time.

    Nothing is changed: to merge an adapter and take it out again would leave rounding in the base.
    """
    own = policy.active_adapter if isinstance(policy, PeftModel) else None
    base = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    layers = {id(layer.weight): layer for layer in policy.modules() if own in getattr(layer, "lora_A", ())}
    for name, weight in base.named_parameters():
        if own and (policy.base_model.prefix in name or "original_module" in name):
            continue
        name = name.replace(".base_layer.", ".").replace(f".modules_to_save.{own}", "")
        layer = layers.get(id(weight))
        yield name, weight if layer is None else weight + layer.get_delta_weight(own).to(weight.dtype)
