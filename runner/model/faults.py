"""Faults that several modules find. No faults of one module alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import Fault

if TYPE_CHECKING:
    from runner.io.filetype import Finding


def second_adapter() -> Fault:
    """The fault of an adapter that would go on top of another one."""
    return Fault(
        where="peft",
        found="model.path is an adapter, and a second one would be put on top",
        expected="one adapter",
        fix="peft=none, or model.merge=true",
    )


def untrained_tokens(*, kind: str) -> Fault:
    """The fault of new tokens whose rows nothing trains; ``kind`` is the class of the adapter."""
    return Fault(
        where="peft",
        found=f"new tokens, whose rows {kind} does not train",
        expected="LoRA, which trains them in addition to its layers, or all weights",
        fix="=lora",
    )


def costly_template(name: str, granted: str, text: str) -> Fault:
    """The fault of a chat template that takes more than is ``granted`` for a text."""
    return Fault(
        where="model.tokenizer.chat_template",
        found=f"{name} takes more than {granted} for {text}",
        expected="a Jinja template that renders",
        fix="=chatml",
    )


def no_end_token(special_tokens: str) -> Fault:
    """The fault of a tokenizer without an end token.

    ``special_tokens`` are those to choose from.
    """
    marks = special_tokens or "no special token"
    return Fault(
        where="model.tokenizer.eos_token",
        found="the tokenizer has no token that ends a text, so nothing would ever stop",
        expected=f"a token of its vocabulary (it marks {marks})",
        fix="=<token>",
    )


def unknown_architecture(model_type: str) -> Fault:
    """The fault of a new model whose architecture transformers does not know."""
    return Fault(
        where="model.model_type",
        found=model_type,
        expected="an architecture of transformers",
        fix="=qwen2",
    )


def other_bytes(path: Path, finding: Finding, expected: str) -> Fault:
    """The fault of a file that is of another type than expected."""
    return Fault(
        where=str(path),
        found=finding.found,
        expected=expected,
        fix=finding.fix,
    )
