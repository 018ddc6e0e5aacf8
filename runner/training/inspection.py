"""The tokens that a trainer really trains on, read from its batches, and silent faults that no training may start with.

    inspect_training(trainer, rows, ...)    the tokens of its first rows: trained or not, their weights, what was cut
    find_faults(inspection, tolerate)       no token trained, no end trained, BOS doubled, rows cut, another template

Nothing is prepared a second time: the batches are those of the trainer's own data loader and collator. Only the
lengths before cutting and the prompts of generation, which no batch holds, are made from the rows.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, Trainer

from runner.dataset.form import FORMS, answer_columns
from runner.dataset.image import IMAGES
from runner.errors import Fault, fault
from runner.io.files import shipped
from runner.io.temporary import temporarily
from runner.io.turns import text_of
from runner.model.encoding import EncodedRow, decode, encode_prompt, encode_row, stop_ids, tokenizer_of
from runner.model.load import read_adapter
from runner.report.tokens import TokenRow
from runner.reward.panel import random_state_kept
from runner.schema import upstream
from runner.schema.text import Config

Rows: TypeAlias = Dataset | IterableDataset | list[dict[str, Any]]
Batch: TypeAlias = Mapping[str, Tensor]

SAMPLE = 256  # rows that are looked at before a training starts
TRUNCATED = 0.1  # the share of rows that may be cut or left out, unless ``tolerate.truncated`` says otherwise
SHOWN = 60  # characters of a text in a fault


@dataclass
class Inspection:
    """The first rows of a training as its trainer sees them.

    ``goal`` is what is learnt from them: ``tokens``, a ``score`` of the text, or answers to a ``prompt``. ``encoded``
    holds the rows of the dataset that they came from, and ``comparable`` whether each of them must be among ``rows``.
    Of those of the dataset, ``chats`` are whole conversations, ``glued`` have an answer that follows the prompt without
    a blank, and ``blank`` counts empty answers by their column.
    """

    goal: str
    rows: list[TokenRow]
    encoded: list[EncodedRow]
    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int] = frozenset()
    limit: int | None = None
    comparable: bool = True
    answers_only: bool = False
    chats: int = 0
    glued: int = 0
    blank: Mapping[str, int] = field(default_factory=dict)

    @property
    def trained(self) -> int:
        return sum(map(sum, (row.trained for row in self.rows)))

    @property
    def cut(self) -> list[EncodedRow]:
        """The rows that are longer than the trainer lets them be; it cuts them or leaves them out."""
        return [row for row in self.encoded if self.limit and row.length > self.limit]

    @property
    def ended(self) -> list[TokenRow]:
        """The rows in which an end token is trained."""
        return [row for row in self.rows if self.ends & {*itertools.compress(row.ids, row.trained)}]

    @property
    def longest_cut(self) -> int:
        """The length of the longest row that is cut; 0 where none is."""
        return max((row.length for row in self.cut), default=0)

    @cached_property
    def prompt_mismatches(self) -> list[list[int]]:
        """The prompts of generation, as token ids, that no trained row begins with."""
        if not self.comparable or self.goal != "tokens":
            return []
        whole = [row for row in self.encoded if not self.limit or row.length <= self.limit]
        prompts = [self.without_bos(prompt) for row in whole for prompt in row.prompts]
        sizes = {len(prompt) for prompt in prompts}
        begun = {tuple(self.without_bos(row.ids)[:size]) for row in self.rows for size in sizes}
        return [prompt for prompt in prompts if tuple(prompt) not in begun]

    def without_bos(self, ids: list[int]) -> list[int]:
        """The ids without a begin token, which some trainers set in front of every text."""
        return ids[1:] if ids[:1] == [self.tokenizer.bos_token_id] else ids


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

    ``rows`` are those given to the trainer, ``form`` and ``head`` what it takes and trains, ``ends`` tokens that
    stop generation, ``held_out`` a prepared set to look at instead. No random number is drawn from the training.
    """
    prepared = head_of(trainer.train_dataset if held_out is None else held_out, count)
    images, collate = list[Sequence[Any]](), getattr(trainer, upstream.DATA_COLLATOR, None)

    def seen(examples: list[dict[str, Any]]) -> Any:  # of which the batch itself has pixels alone
        images.extend(example["images"] for example in examples)
        return collate(examples) if collate else examples

    looked_at = {upstream.DATA_COLLATOR: seen} if form != "prompt" and IMAGES in next(iter(prepared), {}) else {}
    with random_state_kept(), temporarily(trainer, **looked_at):  # a run is the same whether it was looked at or not
        if form == "prompt":
            found = list(_sampled_prompts(trainer, prepared))
        elif hasattr(prepared, "__len__") and not len(prepared):
            found = []  # the trainer has left out all of them
        elif held_out is not None:
            found = read_batches(trainer.get_eval_dataloader(prepared), form, head)
        else:
            with temporarily(trainer, train_dataset=prepared):
                found = read_batches(trainer.get_train_dataloader(), form, head)
    found = [replace(row, images=images[row.number]) for row in found] if images else found
    args, tokenizer = trainer.args, tokenizer_of(trainer.processing_class)
    if getattr(args, "world_size", 1) > 1 and form != "prompt":
        found = gather_object(found)  # each process has its part of every batch
    packs = bool(getattr(args, upstream.PACKING, False))
    splits = packs and getattr(args, upstream.PACKING_STRATEGY, "") != "bfd"  # what is too long goes on in the next
    goal = "prompt" if form == "prompt" else "score" if head == "score" else "tokens"
    limit = None if goal == "prompt" or splits else getattr(args, "max_length", None)
    head_rows = [] if goal == "prompt" else list(head_of(rows, count))
    blank = Counter(name for row in head_rows for name in answer_columns(row) if _is_blank(row[name]))
    encoded = [encode_row(tokenizer, row, answer_columns(row)) for row in head_rows]
    whole = [_with_length(row, encoded, limit) for row in found]
    made = Inspection(goal, whole, encoded, tokenizer, frozenset(ends) | {tokenizer.eos_token_id}, limit, blank=blank)
    made.comparable = not packs and not getattr(args, upstream.SHUFFLE_DATASET, False)
    made.answers_only = getattr(args, upstream.ASSISTANT_ONLY_LOSS, False)
    made.chats, made.glued = sum(bool(row.get("messages")) for row in head_rows), sum(map(_is_glued, head_rows))
    return made


def _is_glued(row: Mapping[str, Any]) -> bool:
    prompt, answer = row.get("prompt"), row.get("completion")
    return isinstance(prompt, str) and isinstance(answer, str) and bool(prompt[-1:].strip() and answer[:1].strip())


def _with_length(row: TokenRow, encoded: Sequence[EncodedRow], limit: int | None) -> TokenRow:
    """The row with its length before it was cut; what is as long as the limit may be whole."""
    size = len(row.ids)
    if not limit or size < limit:
        return row
    longer = (text for one in encoded for text in one.texts if len(text) > size)
    return replace(row, whole=next((len(text) for text in longer if row.ids in (text[:size], text[-size:])), 0))


def _is_blank(answer: Any) -> bool:
    return not (isinstance(answer, list) and answer[-1].get("tool_calls")) and not text_of(answer).strip()


def head_of(rows: Rows, count: int) -> Rows:
    """The first rows of a dataset or of a stream, as the same kind of thing."""
    return rows.take(count) if hasattr(rows, "take") else rows[:count]


# --- Batches ------------------------------------------------------------------------------------


def read_batches(batches: Iterable[Batch], form: str, head: str) -> list[TokenRow]:
    """The sequences of all batches in their order, the two of a pair side by side, whatever a collator calls them."""
    rows: list[TokenRow] = []
    sides = FORMS[form].answers if form in FORMS else ()
    if getattr(getattr(batches, "collate_fn", None), "include_reference", False):
        sides = (*sides, "reference")  # below the two of a pair, the one that TPO imitates
    for batch in batches:
        if len(sides) > 1 and f"{sides[0]}_input_ids" in batch:
            names = ("input_ids", "attention_mask", "labels")
            parts = [{name: batch[f"{role}_{name}"] for name in names} for role in sides]
            found = [row for part in parts for row in _sequences(part, head)]
        else:
            found = list(_sequences(batch, head))
        count, first = len(found) // max(1, len(sides)), rows[-1].number + 1 if rows else 0
        for index, row in enumerate(found):
            role = sides[index // count] if len(sides) > 1 else ""
            if form == "unpaired" and "label" in batch:
                role = "good" if batch["label"][index] else "bad"
            found[index] = replace(row, number=first + index % count, role=role)
        rows += sorted(found, key=lambda row: row.number)
    return rows


def _sequences(batch: Batch, head: str) -> Iterator[TokenRow]:
    """Each row of a batch without its padding; a row of packed texts as one sequence for each of them."""
    ids, positions = batch["input_ids"], batch.get("position_ids")
    real = batch.get("attention_mask", torch.ones_like(ids))
    counted = torch.ones_like(ids)
    if "labels" in batch and head != "score":
        counted = batch["labels"] != upstream.IGNORED
    elif "completion_mask" in batch:
        counted = batch["completion_mask"]
    weights = next((part for name, part in batch.items() if name.endswith("weights") and part.ndim == 2), None)
    for number in range(len(ids)):
        places = real[number].nonzero().flatten()
        pieces = [places]
        if positions is not None:  # which begin again with each of packed texts
            pieces = places.tensor_split((positions[number, places] == 0).nonzero().flatten().tolist())[1:]
        for piece in filter(len, pieces):
            trained = counted[number, piece].bool().tolist()
            if head == "score":  # of a causal model it is read at the last token
                trained = [False] * (len(piece) - 1) + [True]
            weighed = None if weights is None else weights[number, piece].float().tolist()
            yield TokenRow(number, "", ids[number, piece].tolist(), trained, weighed)


def _sampled_prompts(trainer: Trainer, rows: Rows) -> Iterator[TokenRow]:
    rows, tokenizer = list(rows), tokenizer_of(trainer.processing_class)
    own = None if any(row.get("images") for row in rows) else getattr(trainer, "_tokenize_prompts", None)
    if several := getattr(trainer, "environment_factories", None):  # a trainer that has begun knows each row's
        vars(trainer)["_batch_environments"] = [None if None in several else row["environment"] for row in rows]
    prompts = own([row["prompt"] for row in rows]) if own and rows else None  # TRL's own, with tools and the template
    prompts = prompts[0] if isinstance(prompts, tuple) else prompts  # beside pictures
    agent = getattr(trainer, "agent", None)
    for number, row in enumerate(rows):
        row = agent.with_tools(row) if agent else row
        ids = list(prompts[number] if prompts else encode_prompt(tokenizer, row["prompt"], row))
        yield TokenRow(number, "prompt", ids, [False] * len(ids), images=row.get("images") or ())


# --- Faults -------------------------------------------------------------------------------------


def find_faults(inspection: Inspection, tolerate: Mapping[str, Any] | None = None) -> list[Fault]:
    """Faults that no training may start with; ``tolerate`` is the node of the configuration that allows them."""
    tolerate, faults = tolerate or {}, list[Fault]()
    longest, count = inspection.longest_cut, len(inspection.encoded)
    if not inspection.rows:
        fix = f"trainer.args.max_length={longest}" if longest else "another dataset"
        faults.append(fault("training.no_row_left", count=count, fix=fix))
    allowed = TRUNCATED if tolerate.get("truncated") is None else tolerate["truncated"]
    if len(inspection.cut) > allowed * count:
        share = len(inspection.cut) / count
        enough = min(1.0, -(-share * 100 // 5) * 0.05)
        faults.append(fault("training.cut_off", seen=inspection, share=share, count=count, most=allowed, enough=enough))
    return faults + [each for name in CHECKS if not tolerate.get(name) for each in CHECKS[name](inspection)]


def _nothing_trained(inspection: Inspection) -> Iterator[Fault]:
    if inspection.goal == "prompt" or inspection.trained or not inspection.rows:
        return
    fix = f"trainer.args.max_length={inspection.longest_cut}" if inspection.cut else "collator=none"
    if inspection.answers_only:
        fix = "trainer.args.assistant_only_loss=false weight=answers"
    yield fault("training.nothing_trained", count=len(inspection.rows), fix=fix)


def _no_end(inspection: Inspection) -> Iterator[Fault]:
    """The fix is a pad token of its own, the mark that the rows end with, or another template."""
    whole = [row for row in inspection.rows if any(row.trained) and not row.whole and row.role != "rejected"]
    if inspection.goal != "tokens" or not whole or inspection.ended:
        return
    tokenizer, ids = inspection.tokenizer, whole[0].ids
    trained = list(itertools.compress(ids, whole[0].trained))
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    marks = [token for token in trained[-3:] if token in special]
    if tokenizer.pad_token_id == tokenizer.eos_token_id and tokenizer.eos_token_id in ids:
        fix = "model.tokenizer.pad_token=<another token>, because the collator hides padding;"
    elif marks:
        fix = f"model.tokenizer.eos_token='{decode(tokenizer, marks[-1:])}',"
    else:
        fix = "model.tokenizer.chat_template=plain,"
    ends = ", ".join(sorted(decode(tokenizer, [end]) for end in inspection.ends))
    yield fault("training.no_end", ends=ends, tail=decode(tokenizer, trained[-4:]), fix=fix)


def _doubled_bos(inspection: Inspection) -> Iterator[Fault]:
    bos, count = inspection.tokenizer.bos_token_id, len(inspection.rows)
    if rows := [row for row in inspection.rows if bos is not None and row.ids[:2] == [bos, bos]]:
        begin = decode(inspection.tokenizer, rows[0].ids[:2])
        yield fault("training.doubled_bos", found=len(rows), count=count, begin=begin)


def _other_template(inspection: Inspection) -> Iterator[Fault]:
    """The fault tells where the row that agrees with a prompt longest leaves it."""
    prompts, tokenizer = inspection.prompt_mismatches, inspection.tokenizer
    if not prompts:
        return
    shared, after = -1, []
    for row in inspection.rows:
        ids = inspection.without_bos(row.ids)
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompts[0], ids, strict=False))
        if (length := sum(1 for _ in same)) > shared:
            shared, after = length, ids[length : length + 20]
    before = decode(tokenizer, prompts[0][:shared])[-SHOWN:]
    rows, asked = (decode(tokenizer, ids)[:SHOWN] for ids in (after, prompts[0][shared:]))
    count = sum(len(row.prompts) for row in inspection.encoded)
    yield fault("training.other_template", found=len(prompts), count=count, before=before, rows=rows, asked=asked)


# By the name that ``tolerate`` takes; ``validate/context.yaml`` lists these names too.
CHECKS = {each.__name__[1:]: each for each in (_nothing_trained, _no_end, _doubled_bos, _other_template)}


def find_notes(inspection: Inspection) -> list[str]:
    """Lines on what a training may well be meant to do, and most often is not."""
    count, blank = len(inspection.encoded), inspection.blank
    notes = [f"dataset: {found} of {count} rows have an empty {name} answer" for name, found in blank.items()]
    rows = inspection.rows
    if inspection.goal == "tokens" and inspection.chats and all(all(row.trained) and not row.weights for row in rows):
        found = f"of {inspection.chats} conversations every token is trained, the questions too"
        words = "trainer.args.assistant_only_loss=true" if any(row.images for row in rows) else "weight=answers"
        notes.append(f"dataset: {found}; {words} trains only what the assistant says")
    if inspection.glued:
        found = f"in {inspection.glued} of {count} rows prompt and answer are one text without a blank between"
        turns = "dataset.columns.input=prompt dataset.columns.target=completion makes turns of a chat of them"
        notes.append(f"dataset: {found}; {turns}")
    return notes


def ends_of(cfg: Config, model: PreTrainedModel) -> list[int]:
    """The tokens that stop the generation of the real model, whose settings are a small file beside its weights."""
    path, revision = cfg["model"].get("path"), cfg["model"].get("revision")
    if not path:
        return stop_ids(model)
    if adapter := read_adapter(path, revision):
        path, revision = adapter.base_model_name_or_path, adapter.revision
    with contextlib.suppress(OSError):  # a model without such a file stops at the tokenizer's end
        ends = GenerationConfig.from_pretrained(shipped(path), revision=revision or "main").eos_token_id
        return ends if isinstance(ends, list) else [] if ends is None else [ends]
    return []


def summary_of(seen: Inspection) -> list[str]:
    """The figures of all rows that were looked at, not only of those that are shown."""
    longest = max((len(row.ids) for row in seen.rows), default=0)
    lines = [f"{len({row.number for row in seen.rows})} rows looked at, the longest of {longest} tokens"]
    if seen.limit:
        lines.append(f"{len(seen.cut)} of {len(seen.encoded)} rows are longer than max_length={seen.limit}")
    if seen.goal == "prompt":
        return [*lines, "completions are sampled after these prompts, and only they are trained"]
    if seen.goal == "score":
        return [*lines, "one score for each text"]
    tokens = sum(len(row.ids) for row in seen.rows)
    lines.append(f"{seen.trained} of {tokens} tokens are trained ({seen.trained / max(1, tokens):.1%})")
    lines.append(f"an end token is trained in {len(seen.ended)} of {len(seen.rows)} texts")
    if (answers := sum(len(row.prompts) for row in seen.encoded)) and seen.comparable:
        right = answers - len(seen.prompt_mismatches)
        lines.append(f"{right} of {answers} answers follow the prompt that generation spells")
    return [*lines, *find_notes(seen)]
