"""Faults that several modules of this room find."""

from runner.errors import Fault


def long_prompts(*, count: int, row: int, tokens: int, most: int | None) -> Fault:
    """The fault of prompts that leave no room for an answer, the first of them in ``row``."""
    return Fault(
        where="dataset",
        found=f"{count} prompts leave no room for an answer, "
        f"the first in row {row}: {tokens} tokens",
        expected=f"fewer than the {most} that the model holds",
    )
