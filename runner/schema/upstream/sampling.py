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
