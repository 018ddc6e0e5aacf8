"""``model.generate``, by which TRL's trainers sample, answered by the runner's sampler.

    with generating(model, draw_noise, precision): trainer.training_step(...)

It is a public method, which every online trainer of TRL calls. So one seam serves them all, and
what comes before and after it, such as tools, stays TRL's. What the sampler cannot do, transformers
does; ``find_lack`` tells why.

Letters at the end of a tensor's name are its shape: B rows, P prompt tokens, R response tokens.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from runner.generate.sampler import Model, Sampling, choose_engine, sample
from runner.model.adapted import is_adapted
from runner.schema import upstream
from runner.schema.literal import to_list
from runner.schema.text import short_text

ARGUMENTS = {"input_ids", "attention_mask", "generation_config", "return_dict_in_generate"}

# From a number of rows and of tokens to the noise [B, R] of their completions.
DrawNoise: TypeAlias = Callable[[int, int], Tensor]
Precision: TypeAlias = Callable[[], AbstractContextManager[object]]

log = logging.getLogger(__name__)


@contextmanager
def generating(model: Model, draw_noise: DrawNoise, precision: Precision) -> Iterator[None]:
    """Have ``model.generate`` sample by the runner's sampler inside.

    The forward passes are taken inside of ``precision``, as those of the training are.
    """
    model.generate = GenerateCall(model, model.generate, draw_noise, precision)
    try:
        yield
    finally:
        del model.generate  # below it is the method of the class


@dataclass
class GenerateCall:
    """The method ``generate`` of a model: from padded prompts to the same with completions."""

    model: Model
    library: Callable[..., Any]  # the method of transformers or peft
    draw_noise: DrawNoise
    precision: Precision

    def __call__(self, *args: object, **kwargs: Any) -> Any:
        """Token ids [B, P + R], or where they are asked for so, as an output of transformers."""
        lack = find_lack(self.model, args, kwargs)
        if lack:
            _note_once(lack)
            return self.library(*args, **kwargs)
        settings = generation_settings(self.model, kwargs["generation_config"])
        sequences = self._sample(kwargs["input_ids"], kwargs["attention_mask"], settings)
        if kwargs.get("return_dict_in_generate") or settings.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)
        return sequences

    def _sample(self, ids_BP: Tensor, mask_BP: Tensor, settings: GenerationConfig) -> Tensor:
        how = to_sampling(settings, rows=len(ids_BP))
        prompts = []
        for ids_P, mask_P in zip(ids_BP.cpu(), mask_BP.cpu(), strict=True):
            prompts.append(ids_P[mask_P.bool()].tolist())
        noise_BR = self.draw_noise(len(prompts), how.max_new_tokens)
        with self.precision():
            responses = sample(self.model, prompts, how, noise_BR, halves=True)
        padding = settings.pad_token_id
        if padding is None:
            padding = (*how.stop_ids, 0)[0]
        tokens_BR = pad_sequence(responses.tokens, batch_first=True, padding_value=padding)
        return torch.cat([ids_BP, tokens_BR.to(ids_BP.device)], 1)


def find_lack(model: Model, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> str:
    """In words, the first thing in a call of ``generate`` that keeps the sampler from answering it.

    It is empty where the sampler draws from the same distribution as transformers.
    """
    further = sorted(name for name in kwargs.keys() - ARGUMENTS if kwargs[name] is not None)
    if args or further:
        return f"it is called with {', '.join(further) or 'arguments by their places'}"
    mask_BP = kwargs.get("attention_mask")
    config = kwargs.get("generation_config")
    if mask_BP is None or config is None or kwargs.get("input_ids") is None:
        return "it is called without prompts, their mask or a generation config"
    if not mask_BP.any(1).all():
        return "a prompt has no token"
    settings = generation_settings(model, config)
    if settings.max_new_tokens is None:
        return "max_new_tokens is not set"
    for name, value in settings.to_dict().items():
        if not upstream.is_sampled_by_runner(name, value):
            return f"{name} is {short_text(value)}"
    if is_adapted(model) and _is_invoked(model):
        return "its adapter works only behind tokens that invoke it"
    if choose_engine(model) == "generate":
        return "the cache of this model or adapter is a matter of its own"
    return ""


def _is_invoked(model: Model) -> bool:
    return bool(getattr(model.active_peft_config, "alora_invocation_tokens", None))


def generation_settings(model: Model, config: GenerationConfig) -> GenerationConfig:
    """The settings by which transformers would sample: those of a call, then those of the model."""
    settings = copy.deepcopy(config)
    own = model.generation_config.to_dict()
    settings.update(**own, defaults_only=True, allow_custom_entries=True)
    return settings


def to_sampling(settings: GenerationConfig, rows: int) -> Sampling:
    """The distribution that settings describe, for so many rows at a time."""
    temperature = 1.0 if settings.temperature is None else settings.temperature
    top_k = upstream.DEFAULT_TOP_K if settings.top_k is None else settings.top_k
    stop_ids = [] if settings.eos_token_id is None else to_list(settings.eos_token_id)
    return Sampling(
        max_new_tokens=settings.max_new_tokens,
        stop_ids=tuple(stop_ids),
        temperature=temperature if settings.do_sample else 0.0,
        rows=rows,
        top_k=top_k,
        top_p=1.0 if settings.top_p is None else settings.top_p,
        min_p=settings.min_p or 0.0,
        shares_prefill=True,
    )


_noted: set[str] = set()


def _note_once(lack: str) -> None:
    """Say once in a process why transformers samples."""
    if lack not in _noted:
        _noted.add(lack)
        log.warning("trainer.sampler=runner: transformers samples, because %s", lack)
