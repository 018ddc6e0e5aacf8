"""Rows that are chats, checked as the template of the tokenizer writes them."""

import functools
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainingArguments

from runner.config.experiment import Experiment, TrainerPart
from runner.dataset.conversation import is_conversation
from runner.dataset.converted_rows import fit_rows, iterate
from runner.dataset.form import answer_columns
from runner.dataset.media_faults import find_media_faults
from runner.errors import ConfigError, DataError, Fault
from runner.generate.agent import Agent
from runner.io.turns import Columns, Row, habits_of
from runner.model.chat import check_calls, check_rendering, check_template, look_at_texts
from runner.model.encoding import processor_of
from runner.schema import upstream
from runner.schema.modality import Modality, modalities_of
from runner.training.components.tools import check_environments
from runner.training.components.trainer_parts import loss_interface_of
from runner.training.components.training_rows import TrainingRows

log = logging.getLogger(__name__)
FIRST_ROWS = 100  # that are looked at before all are


def check_chats(
    experiment: Experiment, tokenizer: PreTrainedTokenizerBase, rows: TrainingRows
) -> TrainingRows:
    """The same chats, which the template writes whole and within bounds."""
    bound = functools.partial(check_bounds, experiment.trainer, tokenizer)
    rows = rows.map(bound)
    check_texts(experiment, tokenizer, rows.sets, experiment.trainer.form)
    return rows.map(functools.partial(fit_rows, habits=habits_of(processor_of(tokenizer))))


def are_chats(
    experiment: Experiment,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
    agent: Agent | None = None,
) -> bool:
    """True for chats; ConfigError or DataError where the template cannot write the first rows.

    Warns of a column that is not used.
    """
    trainer = experiment.trainer
    answers_only = getattr(args, "assistant_only_loss", False)
    first_rows = list(itertools.islice(rows, FIRST_ROWS))
    first = first_rows[0] if first_rows else {}
    modalities = modalities_of(first)
    for modality in modalities:
        is_read = modality.is_read_by(processor_of(tokenizer))
        DataError.refuse(find_media_faults(experiment.node, modality, is_read=is_read))
        if answers_only and "messages" not in first:
            fault = Fault(
                where="trainer.args.assistant_only_loss",
                found=f"true, for {modality.many} with a prompt and its answer; TRL takes it for "
                f"{modality.many} in whole conversations",
                expected="false; only the answer is trained in any case",
                fix="=false",
            )
            raise ConfigError(fault)
    is_policy_of_pairs = trainer.form == "preference" and trainer.head != "score"
    if is_policy_of_pairs and "margin" in first:
        log.warning("the column `margin` is not used: only the loss of a reward model uses margins")
    columns = ("prompt", *answer_columns(first))
    chats = any(is_conversation(first.get(name)) for name in columns)
    check_template(
        tokenizer,
        chats=chats,
        calls=any(map(_calls_tools, first_rows)),
        answers_only=answers_only,
        weighs=not modalities and loss_interface_of(trainer) in upstream.WEIGHED,
    )
    if agent:
        if not chats:
            raise DataError(
                Fault(
                    where="dataset",
                    found="prompts that are texts, but tools are called in conversations",
                    expected="prompts that consist of turns",
                    fix="dataset.columns.input=prompt",
                )
            )
        if agent.calls_tools:
            check_calls(tokenizer)
    return chats


def _calls_tools(row: Row) -> bool:
    """True for a row in which a turn calls a tool."""
    for part in row.values():
        if is_conversation(part):
            for turn in part:
                if isinstance(turn, Mapping) and turn.get("tool_calls"):
                    return True
    return False


def check_texts(
    experiment: Experiment, tokenizer: PreTrainedTokenizerBase, parts: Sequence[Any], form: str
) -> None:
    """Raise DataError where a text of the rows does not reach the model; warn of what may not.

    The rows are in a trainer's form.
    """
    is_tolerated = experiment.tolerate.lost_text
    mixed = experiment.dataset.mixed
    faults = list[Fault]()
    notes: dict[str, None] = {}  # in their order, each once
    for part in parts:
        if isinstance(part, Dataset):
            part = _without_media(part)
        columns = _no_columns if form == "prompt" else answer_columns
        reach = look_at_texts(tokenizer, ((row, columns(row)) for row in part))
        faults += reach.faults(mixed, tolerated=is_tolerated)
        notes |= dict.fromkeys(reach.notes(tolerated=is_tolerated))
    DataError.refuse(faults)
    for note in notes:
        log.warning(note)


def _no_columns(row: Row) -> tuple[str, ...]:
    """The columns of a row that hold answers, where it has only a prompt."""
    return ()


def check_bounds(trainer: TrainerPart, tokenizer: PreTrainedTokenizerBase, part: Any) -> Any:
    """Rows that the template is seen to write within bounds, those of a stream as they flow."""
    check_environments(trainer, part)

    def are_bounded(columns: Columns) -> list[bool]:
        rows = []
        for cells in zip(*columns.values(), strict=True):
            rows.append(dict(zip(columns, cells, strict=True)))
        check_rendering(tokenizer, ((row, answer_columns(row)) for row in rows))
        return [True] * len(rows)

    if not isinstance(part, Dataset):
        return part.filter(are_bounded, batched=True, batch_size=100)
    texts = _without_media(part)
    check_rendering(tokenizer, ((row, answer_columns(row)) for row in iterate(texts)))
    # Trainers that call tools read media out of turns, and TRL fails where a row of a batch has
    # none beside rows that have some.
    calls_tools = "max_tool_calling_iterations" in upstream.config_fields(trainer.args)
    for modality in modalities_of(part.column_names) if calls_tools else ():
        lacking = sum(not modality.is_in(row) for row in texts)
        if 0 < lacking < len(texts):
            raise DataError(_in_some_rows(modality, lacking))
    return part


def _in_some_rows(modality: Modality, lacking: int) -> Fault:
    """The fault of media that some rows have and ``lacking`` others lack."""
    many = modality.many
    return Fault(
        where="dataset",
        found=f"{lacking} rows without {modality.one}, among rows with {many}",
        expected=f"{many} in each row, or in none; this trainer cannot sample for a batch of both",
        fix=f"dataset.without=[<the column of {many}>]  (to train on the text alone), or leave "
        "these rows out",
    )


def _without_media(rows: Dataset) -> Dataset:
    """The rows without their media, which would be decoded for nothing."""
    return rows.remove_columns([modality.column for modality in modalities_of(rows.column_names)])
