"""Sampling of completions by a trainer: how long they are, and what it may not be asked for.

One more trainer that samples may need another name in COMPLETION_LENGTHS.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.schema.read import Parameter


class Unsampled(NamedTuple):
    """The reason why a key does not go with a trainer, and the one value that changes nothing."""

    reason: str
    harmless: Any = None


# The field of a trainer's arguments that says how many tokens a completion may have, under its
# several names.
COMPLETION_LENGTHS = ["max_completion_length", "response_length", "max_new_tokens"]

# Keys of generation_kwargs with which TRL cannot read what is sampled, or learns from what the
# policy did not sample.
UNSAMPLED = {
    "num_return_sequences": Unsampled(
        "num_generations says how many completions a prompt has", harmless=1
    ),
    "num_beams": Unsampled("a beam is no sample of the policy", harmless=1),
    "return_dict_in_generate": Unsampled("TRL reads only tokens", harmless=False),
    "prompt_lookup_num_tokens": Unsampled("it works with one prompt at a time"),
    "num_beam_groups": Unsampled("a beam is no sample of the policy", harmless=1),
    "penalty_alpha": Unsampled("contrastive search is no sample of the policy"),
    "dola_layers": Unsampled("it is no sample of the policy"),
    "stop_strings": Unsampled("TRL gives no tokenizer to find them with"),
}
# Keys of generation_kwargs for which the trainer has a field of its own. It reads that one for
# log-probabilities, and to tell which completions were cut off.
SAMPLED_BY = {
    "temperature": "temperature",
    "max_new_tokens": "max_completion_length",
    "max_length": "max_completion_length",
}


# Settings of a generation config by which the runner's sampler samples ...
SAMPLED_BY_RUNNER = frozenset(
    {
        "max_new_tokens",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "eos_token_id",
        "pad_token_id",
    }
)
# ... those that change none of its completions: it has a cache of its own, samples with no graph
# that is compiled, and max_new_tokens goes before max_length ...
HARMLESS_TO_RUNNER = frozenset(
    {
        "bos_token_id",
        "max_length",
        "use_cache",
        "disable_compile",
        "return_dict_in_generate",
        "transformers_version",
    }
)
# ... and those that change nothing where they are 1; any other does not where it is 0 or empty.
ONE_IS_NEUTRAL = frozenset(
    {
        "repetition_penalty",
        "encoder_repetition_penalty",
        "length_penalty",
        "typical_p",
        "num_beams",
        "num_beam_groups",
        "num_return_sequences",
    }
)
# What transformers takes where neither the call nor the model says how many tokens to leave in.
DEFAULT_TOP_K = 50


def is_sampled_by_runner(name: str, value: object) -> bool:
    """True for a setting of a generation config with which the runner samples as transformers."""
    if name in SAMPLED_BY_RUNNER or name in HARMLESS_TO_RUNNER or name.startswith("_"):
        return True
    return not value or (name in ONE_IS_NEUTRAL and value == 1)


# Trainers that compare the completions of a prompt, and sample and score them in one way.
SAMPLING_GROUPS = ("GRPOTrainer", "RLOOTrainer", "GMPOTrainer")


def samples_groups(trainer: str) -> bool:
    """True for a trainer of TRL (its target or name) that compares the completions of a prompt."""
    return trainer.rpartition(".")[2] in SAMPLING_GROUPS


def calls_generate(fields: Mapping[str, Parameter]) -> bool:
    """True for a trainer (fields of its config) that trains on what ``model.generate`` gives."""
    has_length = "max_completion_length" in fields or "max_new_tokens" in fields
    only_evaluates = "generate_during_eval" in fields
    asks_server = "vllm_server_base_url" in fields and "use_vllm" not in fields
    return has_length and not only_evaluates and not asks_server


def samples_by_library(trainer: str, fields: Mapping[str, Parameter]) -> bool:
    """True for a trainer (target, fields of its config) that samples with transformers or vLLM."""
    return trainer.startswith("trl.") and any(name in fields for name in COMPLETION_LENGTHS)


def completion_length(args: Mapping[str, Any]) -> int | None:
    """The most tokens of a completion by a trainer's arguments; None where they have no limit."""
    for name in COMPLETION_LENGTHS:
        if args.get(name):
            length: int = args[name]
            return length
    return None
