"""The rows of a training: loaded, limited, and in the form that its trainer takes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase, TrainingArguments

from runner.config.build import serve
from runner.config.experiment import Experiment
from runner.dataset.loaded_rows import HeldOut, Rows, list_columns
from runner.generate.budget import prompts_answered
from runner.io.files import JsonObject
from runner.io.turns import TEMPLATE_ARGUMENTS, Row
from runner.model.encoding import write_prompt
from runner.training.precompute import map_sets, sets_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingRows:
    """The rows to train on, and those that are held out."""

    train: Dataset
    held_out: HeldOut

    @property
    def sets(self) -> list[Rows]:
        """Every set of rows, that of the training first."""
        return [self.train, *sets_of(self.held_out)]

    def map(self, change: Callable[[Dataset], Dataset]) -> "TrainingRows":
        """Each set of rows changed."""
        return TrainingRows(change(self.train), map_sets(change, self.held_out))


def load_training_rows(experiment: Experiment, columns: list[str] | None) -> TrainingRows:
    """The rows of an experiment in its trainer's form, with these columns beside it."""
    trainer = experiment.trainer
    train, held_out = serve(
        experiment.dataset.node,
        to=trainer.form,
        seed=experiment.seed,
        keep=columns,
        environment=experiment.environment,
    )
    rows = TrainingRows(train, held_out)
    reference = trainer.reference_column
    if not reference:
        return rows

    def with_reference(part: Dataset) -> Dataset:
        if reference in list_columns(part):
            return part
        return part.rename_column("reference", reference)

    return rows.map(with_reference)


def limit_held_out(experiment: Experiment, held_out: HeldOut) -> HeldOut | DatasetDict:
    """The held-out rows without those that an evaluation that samples would not answer."""
    max_prompts = prompts_answered(experiment)
    if max_prompts:
        held_out = map_sets(lambda rows: rows.take(max_prompts), held_out)
    if isinstance(held_out, dict):
        if all(isinstance(rows, Dataset) for rows in held_out.values()):
            return DatasetDict(held_out)  # some trainers map over all sets as if they were one
    return held_out


def write_prompts(
    tokenizer: PreTrainedTokenizerBase, args: TrainingArguments, rows: Dataset
) -> Dataset:
    """Rows with prompts as texts, where each has arguments of its own for the template.

    The trainer would ignore these arguments.
    """
    if TEMPLATE_ARGUMENTS not in list_columns(rows):
        return rows
    log.warning(
        "each prompt is written with its own %s: rewards receive texts instead of chats",
        TEMPLATE_ARGUMENTS,
    )
    of_trainer = args.chat_template_kwargs or {}

    def write(row: Row) -> JsonObject:
        arguments = of_trainer | row[TEMPLATE_ARGUMENTS]
        return {"prompt": write_prompt(tokenizer, {**row, TEMPLATE_ARGUMENTS: arguments})}

    return rows.map(write, remove_columns=[TEMPLATE_ARGUMENTS])
