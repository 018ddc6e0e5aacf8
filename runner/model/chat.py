"""Chat templates: giving a tokenizer one that works, its own or one of the files in ``template/``."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase, ProcessorMixin
from trl import chat_template_utils as trl_templates

from runner.errors import ConfigError, describe, fault
from runner.io.files import read_json, shipped
from runner.io.turns import Turns
from runner.model import jinja
from runner.model.encoding import Row, render_row, write
from runner.model.jinja import ANSWER, KEY, PROBE, read_template
from runner.model.reach import MAX_ROWS, Reach, look_at_rows
from runner.schema.text import short_text

OWN = "the tokenizer's own template"

log = logging.getLogger(__name__)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> str:
    """A hash of what a tokenizer makes of any text or chat; equal however it was used before."""
    inner = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
    backend = getattr(inner, "backend_tokenizer", None)
    parts = json.loads(backend.to_str()) if backend else {"vocab": inner.get_vocab()}
    lasting = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    words = [lasting, inner.special_tokens_map, inner.chat_template]
    return hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()


def set_template(tokenizer: PreTrainedTokenizerBase, name: str | None, where: str = KEY) -> None:
    """Give the tokenizer the named template, or leave it the one it has; either must work."""
    if name is not None:
        chosen = read_template(name)
        if tokenizer.chat_template and tokenizer.chat_template != chosen:
            log.warning("the tokenizer's own chat template is replaced by %s (%s)", name, KEY)
        file = Path(shipped(name)) if name.endswith(".jinja") else jinja.SHELF / name
        tokenizer.chat_template, tokenizer.response_template = chosen, read_json(file.with_suffix(".response.json"))
    if tokenizer.chat_template:
        try:  # a faulty template would fail later on, without file or line
            text, end, tokens = tokenizer.get_chat_template(), tokenizer.eos_token, tokenizer.special_tokens_map
        except ValueError as error:  # several, and none by default
            raise ConfigError(fault("model.several_templates", error=describe(error))) from None
        known = tokenizer.get_vocab()
        faults = jinja.find_template_faults(text, name or OWN, end, tokens, chosen=bool(name), vocabulary=known)
        another = {} if where == KEY else {"where": where, "fix": f"{where}=<another>"}
        ConfigError.refuse(replace(fault, **another) for fault in faults)


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    *,
    chats: bool,
    calls: bool = False,
    answers_only: bool = False,
    weighs: bool = True,
) -> None:
    """Raise ConfigError where chats have no template, or one without the ``calls`` or answers' marks that they need.

    ``weighs`` says that the training may have weights of tokens, which train the answers alone, too.
    """
    if chats and not tokenizer.chat_template:
        raise ConfigError(jinja.no_template())
    faults = []
    if calls and not trl_templates.supports_tool_calling(tokenizer):
        faults.append(fault("model.template_without_tools"))
    if chats and answers_only and not _marks_answers(tokenizer):
        fix = "trainer.args.assistant_only_loss=false weight=answers"  # which finds the same tokens without marks
        if not weighs:
            fix = f"{KEY}=<one with marks>, or trainer.args.assistant_only_loss=false, which trains the questions too"
        faults.append(fault("model.template_without_marks", fix=fix))
    ConfigError.refuse(faults)


def check_calls(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError unless the template spells calls, they can be read from an answer, and it goes on behind them.

    They are read by the tokenizer's ``response_template``, or by TRL's where it knows the template.
    """
    with suppress(ValueError):  # a template that TRL does not know
        if getattr(tokenizer, "response_template", None) is None:
            trl_templates.add_response_schema(tokenizer)
        if trl_templates.supports_tool_calling(tokenizer):
            if not trl_templates.is_chat_template_prefix_preserving(tokenizer):
                trl_templates.get_training_chat_template(tokenizer)  # which does, where there is one
            return
    raise ConfigError(fault("model.calls_not_read"))


def check_rendering(tokenizer: PreTrainedTokenizerBase, rows: Iterator[tuple[Row, Iterable[str]]]) -> None:
    """Raise ConfigError where a template that does not ship takes more for one of the rows than is granted."""
    if tokenizer.chat_template in (file.read_text("utf-8") for file in jinja.SHELF.parent.glob("*/*.jinja")):
        return
    number = jinja.find_excess(render_row(tokenizer, row, answers) for row, answers in rows)
    if number is not None:
        row, _ = next(islice(rows, number, None))  # only the fork has gone through them
        text = f"the row {short_text(row)}"
        raise ConfigError(fault("model.costly_template", name="the template", granted=jinja.GRANTED, text=text))


def look_at_texts(
    tokenizer: PreTrainedTokenizerBase, rows: Iterable[tuple[Row, Sequence[str]]], count: int = MAX_ROWS
) -> Reach:
    """The part of the rows, each with the columns of its answers, that the template of a tokenizer writes."""

    def write_turns(turns: Turns, row: Row, is_opened: bool) -> str:
        text: str = write(tokenizer, turns, row, tokenize=False, add_generation_prompt=is_opened)
        return text

    special = getattr(tokenizer, "tokenizer", tokenizer).all_special_tokens
    return look_at_rows(rows, write_turns, str(tokenizer.chat_template), count, special)


def _marks_answers(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True where the template, or TRL's version of it for training, gives a mask of the assistant's tokens."""
    template = None
    if not trl_templates.has_generation_markers(tokenizer.chat_template):
        try:
            template = trl_templates.get_training_chat_template(tokenizer)
        except ValueError:  # not one that TRL knows
            return False
    how = {"return_dict": True, "return_assistant_tokens_mask": True, "chat_template": template}
    return any(tokenizer.apply_chat_template(PROBE, **how)["assistant_masks"])


def turn_end(tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that the template writes after an answer, such as ``<|im_end|>``; empty without one."""
    return write(tokenizer, PROBE, {}, tokenize=False).rpartition(ANSWER)[2] if tokenizer.chat_template else ""
