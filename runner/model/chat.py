"""Chat templates for tokenizers: set, tried, and compared with what the rows need.

A template is the tokenizer's own or one of the files in ``template/``.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase, ProcessorMixin

from runner.errors import ConfigError, Fault, describe
from runner.io.files import read_json, shipped
from runner.io.turns import Row, Turns, WriteRow
from runner.model import jinja
from runner.model.encoding import processor_of, render_row, tokenizer_of, write
from runner.model.faults import costly_template
from runner.model.jinja import ANSWER, KEY, PROBE, read_template
from runner.model.reach import Reach, compile_writer, look_at_rows
from runner.schema.text import short_text

OWN = "the tokenizer's own template"

log = logging.getLogger(__name__)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase | ProcessorMixin) -> str:
    """A hash of what a tokenizer makes of any text or chat; equal however it was used before."""
    tokenizer = tokenizer_of(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend:
        parts = json.loads(backend.to_str())
    else:
        parts = {"vocab": tokenizer.get_vocab()}
    # Padding and truncation are set anew by each use.
    parts.pop("truncation", None)
    parts.pop("padding", None)
    words = [parts, tokenizer.special_tokens_map, tokenizer.chat_template]
    text = json.dumps(words, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def set_template(tokenizer: PreTrainedTokenizerBase, name: str | None, where: str = KEY) -> None:
    """Give the tokenizer the named template, or leave it the one it has; either must work.

    ``where`` is the key that names the tokenizer's template, or the tokenizer.
    """
    if name is not None:
        text = read_template(name)
        if tokenizer.chat_template and tokenizer.chat_template != text:
            log.warning("the tokenizer's own chat template is replaced by %s (%s)", name, KEY)
        file = jinja.SHELF / name
        if name.endswith(".jinja"):
            file = Path(shipped(name))
        tokenizer.chat_template = text
        tokenizer.response_template = read_json(file.with_suffix(".response.json"))
    if not tokenizer.chat_template:
        return
    # A faulty template would fail later on, without file or line.
    try:
        text = tokenizer.get_chat_template()
    except ValueError as error:  # several, and none by default
        raise ConfigError(
            Fault(
                where=KEY,
                found=describe(error),
                expected="one template",
                fix="=chatml",
            )
        ) from None
    faults = jinja.find_template_faults(
        text,
        name or OWN,
        tokenizer.eos_token,
        tokenizer.special_tokens_map,
        chosen=bool(name),
        vocabulary=tokenizer.get_vocab(),
    )
    if where != KEY:
        faults = [replace(fault, where=where, fix=f"{where}=<another>") for fault in faults]
    ConfigError.refuse(faults)


def check_template(
    tokenizer: PreTrainedTokenizerBase,
    *,
    chats: bool,
    calls: bool = False,
    answers_only: bool = False,
    weighs: bool = True,
) -> None:
    """Raise ConfigError where chats have no template, or one that lacks what they need.

    ``calls`` need a template that spells them, ``answers_only`` one that marks answers.

    ``weighs`` says that the training may have weights of tokens, which train the answers alone,
    too.
    """
    if chats and not tokenizer.chat_template:
        raise ConfigError(jinja.no_template())
    faults = []
    if calls and not _spells_calls(tokenizer):
        faults.append(
            Fault(
                where=KEY,
                found="the rows call tools, but the template leaves out the calls or their results",
                expected="a template that writes them",
                fix="=hermes, or react",
            )
        )
    if chats and answers_only and not _marks_answers(tokenizer):
        setting = "trainer.args.assistant_only_loss"
        fix = f"{KEY}=<one with marks>, or {setting}=false, which trains the questions too"
        if weighs:  # which finds the same tokens without marks
            fix = f"{setting}=false weight=answers"
        faults.append(
            Fault(
                where=KEY,
                found=f"{setting}, but the template does not mark what the assistant says",
                expected="{% generation %} around each answer",
                fix=fix,
            )
        )
    ConfigError.refuse(faults)


def _spells_calls(tokenizer: PreTrainedTokenizerBase) -> bool:
    from trl.chat_template_utils import supports_tool_calling

    spells_calls: bool = supports_tool_calling(tokenizer)
    return spells_calls


def _marks_answers(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True where the template gives a mask of the assistant's tokens.

    TRL's version of it for training will do, too.
    """
    from trl import chat_template_utils as trl_templates

    template = None
    if not trl_templates.has_generation_markers(tokenizer.chat_template):
        try:
            template = trl_templates.get_training_chat_template(tokenizer)
        except ValueError:  # not one that TRL knows
            return False
    encoded = tokenizer.apply_chat_template(
        PROBE, return_dict=True, return_assistant_tokens_mask=True, chat_template=template
    )
    return any(encoded["assistant_masks"])


def check_calls(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError unless calls can be written, read from an answer, and followed by more.

    They are read by the tokenizer's ``response_template``, or by TRL's where it knows the template.
    """
    from trl import chat_template_utils as trl_templates

    with suppress(ValueError):  # a template that TRL does not know
        if getattr(tokenizer, "response_template", None) is None:
            trl_templates.add_response_schema(tokenizer)
        if _spells_calls(tokenizer):
            if not trl_templates.is_chat_template_prefix_preserving(tokenizer):
                # TRL trains with a version of it that goes on behind calls, where it has one.
                trl_templates.get_training_chat_template(tokenizer)
            return
    raise ConfigError(
        Fault(
            where=KEY,
            found="there are tools, but the template does not write calls, or does not say how "
            "they are read from an answer",
            expected="one that TRL knows, or one with a file <name>.response.json next to it",
            fix="=hermes",
        )
    )


def check_rendering(
    tokenizer: PreTrainedTokenizerBase, rows: Iterator[tuple[Row, Iterable[str]]]
) -> None:
    """Raise ConfigError where a template takes more for one of the rows than is granted.

    Templates that ship are not tried.
    """
    for file in jinja.SHELF.parent.glob("*/*.jinja"):
        if tokenizer.chat_template == file.read_text("utf-8"):
            return
    if isinstance(tokenizer.chat_template, str):
        jinja.compile_template(tokenizer.chat_template)  # once, rather than in each fork
    number = jinja.find_excess(_render_rows(tokenizer, rows))
    if number is not None:
        row, _ = next(islice(rows, number, None))  # only the fork has gone through them
        text = f"the row {short_text(row)}"
        raise ConfigError(costly_template("the template", jinja.GRANTED, text))


def _render_rows(
    tokenizer: PreTrainedTokenizerBase, rows: Iterable[tuple[Row, Iterable[str]]]
) -> Iterator[str]:
    """The texts of rows; whatever a template does for the first of them happens there."""
    template = tokenizer.chat_template
    if processor_of(tokenizer) is tokenizer and isinstance(template, str):
        # It writes a row in a fraction of the time that the tokenizer takes.
        write_turns = compile_writer(template, tokenizer.special_tokens_map)
    else:
        write_turns = _writer_of(tokenizer)
    for row, answers in rows:
        yield render_row(write_turns, row, answers)


def look_at_texts(
    tokenizer: PreTrainedTokenizerBase, rows: Iterable[tuple[Row, Sequence[str]]]
) -> Reach:
    """The part of the rows that the template of a tokenizer writes.

    Each row comes with the columns of its answers.
    """
    special_tokens = tokenizer_of(tokenizer).all_special_tokens
    template = str(tokenizer.chat_template)
    return look_at_rows(rows, _writer_of(tokenizer), template, special_tokens)


def _writer_of(tokenizer: PreTrainedTokenizerBase) -> WriteRow:
    """A function that has the tokenizer write turns with its template."""

    def write_turns(turns: Turns, row: Row, is_opened: bool) -> str:
        text: str = write(tokenizer, turns, row, tokenize=False, add_generation_prompt=is_opened)
        return text

    return write_turns


def turn_end(tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that the template writes after an answer, such as ``<|im_end|>``.

    Empty without a template.
    """
    if not tokenizer.chat_template:
        return ""
    text: str = write(tokenizer, PROBE, {}, tokenize=False)
    return text.rpartition(ANSWER)[2]
