"""The tokens that a trainer really trains on, read from its batches.

``inspect_training`` gives the tokens of its first rows: trained or not, their weights, and what was
cut. Nothing is prepared a second time: the batches are those of the trainer's own data loader and
collator. Only the lengths before cutting and the prompts of generation, which no batch holds, are
made from the rows. ``inspection_faults`` judges what is found here.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer

from runner.dataset.form import FORMS, answer_columns
from runner.io.files import JsonObject
from runner.io.temporary import temporarily
from runner.io.turns import Completion, Row, text_of
from runner.model.encoding import EncodedRow, encode_prompt, encode_row, tokenizer_of
from runner.report.tokens import TokenRow
from runner.reward.isolation import random_state_kept
from runner.schema import upstream
from runner.schema.modality import Modality, list_media, modalities_of

Rows: TypeAlias = Dataset | IterableDataset | list[JsonObject]
Batch: TypeAlias = Mapping[str, Tensor]
Goal: TypeAlias = Literal["tokens", "score", "prompt"]

SAMPLE = 256  # rows that are looked at before a training starts


@dataclass
class Inspection:
    """The first rows of a training as its trainer sees them."""

    goal: Goal  # what is learnt: tokens, a score of the text, or answers to a prompt
    rows: list[TokenRow]
    encoded: list[EncodedRow]  # the rows of the dataset that `rows` came from
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int] = frozenset()  # tokens that stop generation
    limit: int | None = None  # tokens of the longest row that is not cut
    comparable: bool = True  # whether each encoded row must be among `rows`
    answers_only: bool = False
    chats: int = 0  # rows of the dataset that are whole conversations
    glued: int = 0  # rows whose answer follows the prompt without a blank
    blank: Mapping[str, int] = field(default_factory=dict)  # empty answers by their column

    @property
    def trained(self) -> int:
        return sum(sum(row.trained) for row in self.rows)

    @property
    def cut(self) -> list[EncodedRow]:
        """The rows that are longer than the trainer allows; it cuts them or leaves them out."""
        return [row for row in self.encoded if self.limit and row.length > self.limit]

    @property
    def ended(self) -> list[TokenRow]:
        """The rows in which an end token is trained."""
        return [row for row in self.rows if not self.ends.isdisjoint(trained_ids(row))]

    @property
    def longest_cut(self) -> int:
        """The length of the longest row that is cut; 0 where none is."""
        return max((row.length for row in self.cut), default=0)

    @cached_property
    def prompt_mismatches(self) -> list[list[int]]:
        """The prompts of generation, as token ids, that no trained row begins with."""
        if not self.comparable or self.goal != "tokens":
            return []
        prompts = []
        for encoded in self.encoded:
            if not self.limit or encoded.length <= self.limit:
                prompts += [self.without_bos(prompt) for prompt in encoded.prompts]
        # Compared by sets of the first ids, because there may be many rows and many prompts.
        sizes = {len(prompt) for prompt in prompts}
        openings = set[tuple[int, ...]]()
        for row in self.rows:
            ids = self.without_bos(row.ids)
            openings.update(tuple(ids[:size]) for size in sizes)
        return [prompt for prompt in prompts if tuple(prompt) not in openings]

    def without_bos(self, ids: list[int]) -> list[int]:
        """The ids without a begin token, which some trainers set in front of every text."""
        return ids[1:] if ids[:1] == [self.tokenizer.bos_token_id] else ids


def trained_ids(row: TokenRow) -> list[int]:
    """The ids of the tokens of a row that are trained."""
    return list(itertools.compress(row.ids, row.trained))


# --- From the trainer ---------------------------------------------------------------------------


def inspect_training(
    trainer: Trainer,
    rows: Rows,
    *,
    form: str,
    head: str,
    ends: Collection[int] = (),
    count: int = SAMPLE,
    held_out: Rows | None = None,
) -> Inspection:
    """The first ``count`` rows of a training, as its own data loader gives them to the loss.

    ``rows`` are those given to the trainer, ``form`` and ``head`` what it takes and trains,
    ``ends`` tokens that stop generation, ``held_out`` a prepared set to look at instead. No random
    number is drawn from the training.
    """
    args = trainer.args
    tokenizer = tokenizer_of(trainer.processing_class)
    goal: Goal = "tokens"
    if form == "prompt":
        goal = "prompt"
    elif head == "score":
        goal = "score"
    prepared = head_of(trainer.train_dataset if held_out is None else held_out, count)
    token_rows = _read_rows(trainer, prepared, form, head, is_held_out=held_out is not None)
    if getattr(args, "world_size", 1) > 1 and goal != "prompt":
        token_rows = gather_object(token_rows)  # each process has its part of every batch

    # A packing that splits texts cuts none of them: the rest goes on in the next row.
    packs = bool(getattr(args, "packing", False))
    splits_texts = packs and getattr(args, "packing_strategy", "") != "bfd"
    limit = None
    first_rows: list[JsonObject] = []
    if goal != "prompt":
        first_rows = list(head_of(rows, count))
        if not splits_texts:
            limit = getattr(args, "max_length", None)
    encoded = []
    blank = Counter[str]()
    for row in first_rows:
        columns = answer_columns(row)
        encoded.append(encode_row(tokenizer, row, columns))
        blank.update(name for name in columns if _is_blank(row[name]))
    return Inspection(
        goal,
        [_with_length(row, encoded, limit) for row in token_rows],
        encoded,
        tokenizer,
        frozenset(ends) | {tokenizer.eos_token_id},
        limit,
        comparable=not packs and not getattr(args, "shuffle_dataset", False),
        answers_only=getattr(args, "assistant_only_loss", False),
        chats=sum(bool(row.get("messages")) for row in first_rows),
        glued=sum(_is_glued(row) for row in first_rows),
        blank=blank,
    )


def _read_rows(
    trainer: Trainer, prepared: Rows, form: str, head: str, *, is_held_out: bool
) -> list[TokenRow]:
    """The sequences of prepared rows, as the data loader of this process gives them to the loss."""
    collate = getattr(trainer, "data_collator", None)
    media = list[Sequence[tuple[Modality, Any]]]()

    def collate_and_note_media(examples: list[JsonObject]) -> Any:
        media.extend(map(list_media, examples))
        return collate(examples) if collate else examples

    # A batch has only the tensors of media, so that they are taken before they are collated.
    changes = {}
    if form != "prompt" and modalities_of(next(iter(prepared), {})):
        changes["data_collator"] = collate_and_note_media
    # A run has the same random numbers whether it was looked at or not.
    with random_state_kept(), temporarily(trainer, **changes):
        if form == "prompt":
            return list(_sampled_prompts(trainer, prepared))
        if hasattr(prepared, "__len__") and not len(prepared):
            return []  # the trainer has left out all of them
        if is_held_out:
            token_rows = read_batches(trainer.get_eval_dataloader(prepared), form, head)
        else:
            with temporarily(trainer, train_dataset=prepared):
                token_rows = read_batches(trainer.get_train_dataloader(), form, head)
    if not media:
        return token_rows
    return [replace(row, media=media[row.number]) for row in token_rows]


def _is_glued(row: Row) -> bool:
    """True for texts of which neither has a blank where the answer follows the prompt."""
    prompt = row.get("prompt")
    answer = row.get("completion")
    if not isinstance(prompt, str) or not isinstance(answer, str):
        return False
    return bool(prompt[-1:].strip() and answer[:1].strip())


def _with_length(row: TokenRow, encoded: Sequence[EncodedRow], limit: int | None) -> TokenRow:
    """The row with its length before it was cut; what is as long as the limit may be whole."""
    size = len(row.ids)
    if not limit or size < limit:
        return row
    for encoded_row in encoded:
        for text in encoded_row.texts:
            if len(text) > size and row.ids in (text[:size], text[-size:]):
                return replace(row, whole=len(text))
    return replace(row, whole=0)


def _is_blank(answer: Completion) -> bool:
    """True for an answer without a text and without a call of a tool."""
    if isinstance(answer, list) and answer[-1].get("tool_calls"):
        return False
    return not text_of(answer).strip()


def head_of(rows: Rows, count: int) -> Rows:
    """The first rows of a dataset or of a stream, as the same kind of thing."""
    return rows.take(count) if hasattr(rows, "take") else rows[:count]


# --- Batches ------------------------------------------------------------------------------------


def read_batches(batches: Iterable[Batch], form: str, head: str) -> list[TokenRow]:
    """The sequences of all batches in their order, the two of a pair side by side.

    Whatever names a collator gives to the two, their rows have one number.
    """
    sides = list(FORMS[form].answers) if form in FORMS else []
    collate = getattr(batches, "collate_fn", None)
    if getattr(collate, "include_reference", False):
        sides.append("reference")  # below the two of a pair, the one that TPO imitates
    rows: list[TokenRow] = []
    for batch in batches:
        sequences = _read_batch(batch, sides, head)
        first = rows[-1].number + 1 if rows else 0
        count = len(sequences) // max(1, len(sides))  # rows of the dataset
        numbered = []
        for index, row in enumerate(sequences):
            role = ""
            if form == "unpaired" and "label" in batch:
                role = "good" if batch["label"][index] else "bad"
            elif len(sides) > 1:
                role = sides[index // count]
            numbered.append(replace(row, number=first + index % count, role=role))
        rows += sorted(numbered, key=lambda row: row.number)
    return rows


def _read_batch(batch: Batch, sides: Sequence[str], head: str) -> list[TokenRow]:
    """The sequences of a batch, all of one side before those of the next."""
    if len(sides) < 2 or f"{sides[0]}_input_ids" not in batch:
        return list(_sequences(batch, head))
    sequences = list[TokenRow]()
    for side in sides:
        part = {
            "input_ids": batch[f"{side}_input_ids"],
            "attention_mask": batch[f"{side}_attention_mask"],
            "labels": batch[f"{side}_labels"],
        }
        sequences += _sequences(part, head)
    return sequences


def _sequences(batch: Batch, head: str) -> Iterator[TokenRow]:
    """Each row of a batch without its padding; a row of packed texts as one sequence a text."""
    ids = batch["input_ids"]
    positions = batch.get("position_ids")
    is_real = batch.get("attention_mask", torch.ones_like(ids))
    is_trained = torch.ones_like(ids)
    if "labels" in batch and head != "score":
        is_trained = batch["labels"] != upstream.IGNORED
    elif "completion_mask" in batch:
        is_trained = batch["completion_mask"]
    weights = _token_weights(batch)
    for number in range(len(ids)):
        indices = is_real[number].nonzero().flatten()
        pieces = [indices]
        if positions is not None:  # they begin at 0 again with each of packed texts
            starts = (positions[number, indices] == 0).nonzero().flatten().tolist()
            pieces = indices.tensor_split(starts)[1:]
        for piece in pieces:
            if len(piece) == 0:
                continue
            trained = is_trained[number, piece].bool().tolist()
            if head == "score":  # a causal model's score is read at the last token
                trained = [False] * (len(piece) - 1) + [True]
            piece_weights = None
            if weights is not None:
                piece_weights = weights[number, piece].float().tolist()
            yield TokenRow(number, "", ids[number, piece].tolist(), trained, piece_weights)


def _token_weights(batch: Batch) -> Tensor | None:
    """The weights of a batch's tokens; None where it has none."""
    for name, part in batch.items():
        if name.endswith("weights") and part.ndim == 2:
            return part
    return None


def _sampled_prompts(trainer: Trainer, prepared: Rows) -> Iterator[TokenRow]:
    """The prompts that completions are sampled after, with the tools and media of their rows."""
    rows = list(prepared)
    has_media = any(map(list_media, rows))
    factories = getattr(trainer, "environment_factories", None)
    if factories:
        # A trainer that has begun knows the environment of each row.
        is_only_one = None in factories
        environments = [None if is_only_one else row["environment"] for row in rows]
        vars(trainer)["_batch_environments"] = environments
    # TRL's own way of writing prompts knows tools and the template, and no media.
    tokenize = None if has_media else getattr(trainer, "_tokenize_prompts", None)
    prompts = None
    if tokenize is not None and rows:
        prompts = tokenize([row["prompt"] for row in rows])
        if isinstance(prompts, tuple):  # ids, and media
            prompts = prompts[0]
    tokenizer = tokenizer_of(trainer.processing_class)
    agent = getattr(trainer, "agent", None)
    for number, row in enumerate(rows):
        if agent:
            row = agent.with_tools(row)
        if prompts:
            ids = list(prompts[number])
        else:
            ids = list(encode_prompt(tokenizer, row["prompt"], row))
        untrained = [False] * len(ids)
        yield TokenRow(number, "prompt", ids, untrained, media=list_media(row))
