"""A trainer's rows and batches with weights of tokens beside the tokens."""

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from datasets import Dataset
from torch import Tensor
from trl import pack_dataset

from runner.dataset.convert import Batch
from runner.dataset.form import Cells, Row
from runner.dataset.loaded_rows import Rows, cache_key
from runner.dataset.weigh import SEEN_OF_STREAM
from runner.dataset.weigher import PAIR, WEIGHTS, Weigher
from runner.errors import ConfigError, DataError, Fault
from runner.schema.text import short_text

log = logging.getLogger(__name__)

# Of the key under which weighed rows are cached: count up when weights come out otherwise.
WEIGH_VERSION = 2
SEEN_FOR_RULES = 1000  # rows in which each rule of weights should find something
IGNORED = -100  # the label of a token that is not learnt

Collate: TypeAlias = Callable[[list[Row]], Row]


def weigh_rows(rows: Rows, weigher: Weigher, key: str, workers: int | None = None) -> Rows:
    """A trainer's rows with weights of tokens, without rows that teach nothing.

    ``key`` names the rules in the cache. Raises DataError where no row is left.
    """
    if not isinstance(rows, Dataset):
        return rows.map(lambda row: weigh_row(row, weigher)).filter(_teaches)
    names = list(next(iter(rows)))
    tokenizer = weigher.tokenizer
    encoding = cache_key(
        tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.eos_token
    )
    weighed_key = cache_key(WEIGH_VERSION, rows._fingerprint, key, encoding)
    weighed = rows.map(
        lambda row, index: weigh_row(row, weigher, index),
        with_indices=True,
        num_proc=workers,
        new_fingerprint=weighed_key,
        desc="weights of tokens",
    )
    teaching = weighed
    if "labels" in names:
        teaching = weighed.filter(_teaches, new_fingerprint=cache_key(weighed_key, "teaching"))
    idle = len(weighed) - len(teaching)
    if idle:
        text = "%d of %d rows left out: all their trained tokens have weight 0"
        log.warning(text, idle, len(weighed))
    if not len(teaching):
        fault = Fault(
            where="weight",
            found=f"{len(weighed)} rows, all of whose tokens have weight 0",
            expected="rules that leave some weight",
        )
        raise DataError(fault)
    # Columns that a trainer still needs when its rows are weighed.
    kept = []
    for name in names:
        if name.endswith(("_ids", "_logps")) or name in ("label", "labels"):
            kept.append(name)
    weights = [name for name in weighed.column_names if name.endswith("_weights")]
    return teaching.select_columns([*kept, *weights])


def _teaches(row: Cells) -> bool:
    """True for a row in which a token is learnt."""
    return any(label != IGNORED for label in row.get("labels", [0]))


def warn_of_idle_rules(rows: Rows, weigher: Weigher) -> None:
    """Log each rule that makes no difference in the first rows.

    An example is a pattern that nothing matches.
    """
    count = SEEN_FOR_RULES if isinstance(rows, Dataset) else SEEN_OF_STREAM
    for rule in weigher.find_idle_rules(itertools.islice(rows, count)):
        function: Callable[..., object] = rule
        settings = ""
        if isinstance(rule, functools.partial):
            function = rule.func
            words = [f"{name}={short_text(value)}" for name, value in rule.keywords.items()]
            settings = ", ".join(words)
        log.warning(
            "not used: the weights of %s(%s), which are the same in all rows checked, at most %d",
            getattr(function, "__name__", type(function).__name__),
            settings,
            count,
        )


def weigh_row(row: Cells, weigher: Weigher, index: int | None = None) -> Batch:
    """Weights by their names, and labels without the tokens that weigh nothing.

    Raises DataError where the trainer's tokens are others than the weigher's.
    """
    weighed: Batch = {}
    try:
        for name, (ids, weights) in weigher(row).items():
            weighed[name] = _fit_weights(row, name, ids, weights)
    except DataError as error:
        if index is None:
            raise
        place = f"row {index} of the trainer, "
        faults = [replace(fault, where=f"{place}{fault.where}") for fault in error.faults]
        raise DataError(faults) from error
    if "labels" in row:
        labels = []
        for label, weight in zip(row["labels"], weighed[WEIGHTS], strict=True):
            labels.append(label if weight else IGNORED)
        weighed["labels"] = labels
    return weighed


def _fit_weights(row: Cells, name: str, ids: list[int], weights: list[float]) -> list[float]:
    """The weights of the tokens that a trainer has left of a sequence.

    It cuts off the end, or the beginning.
    """
    columns = ["input_ids"]
    if "input_ids" not in row:
        answer = "completion" if name == WEIGHTS else name.removesuffix("_weights")
        columns = ["prompt_ids", f"{answer}_ids"]
    kept: list[int] = []
    for column in columns:
        kept += row[column]
    for part in (slice(len(kept)), slice(len(ids) - len(kept), None)):
        if list(ids[part]) == kept:
            return weights[part]
    fault = Fault(
        where="weight",
        found="the trainer tokenises the row differently",
        expected="the same tokens",
        fix="=none",
    )
    raise DataError(fault)


def rotate_weights(rows: Dataset, size: int) -> Dataset:
    """KTO's rows with the weights of the answers of others.

    TRL pairs each prompt with the answer of the row before, within ``size`` rows.
    """

    def rotate(batch: Batch) -> dict[str, list[list[float]]]:
        answers = batch["completion_ids"]
        if [answers[-1], *answers[:-1]] != batch["KL_completion_ids"]:
            fault = Fault(
                where="weight",
                found="TRL pairs prompts with other answers in a different order than before",
                expected="the order of TRL 1.16",
                fix="trainer.args.loss_type=apo_zero_unpaired",
            )
            raise ConfigError(fault)
        prompt_weights = []
        answer_weights = []
        for weights, ids in zip(batch[WEIGHTS], batch["prompt_ids"], strict=True):
            prompt_weights.append(weights[: len(ids)])
            answer_weights.append(weights[len(ids) :])
        moved = [answer_weights[-1], *answer_weights[:-1]]
        pairs = zip(prompt_weights, moved, strict=True)
        return {f"KL_{WEIGHTS}": [prompt + answer for prompt, answer in pairs]}

    return rows.map(rotate, batched=True, batch_size=size)


def pack_rows(
    rows: Dataset, seed: int, *, seq_length: int, strategy: str, shuffle: bool
) -> Dataset:
    """Weighed rows packed as TRL packs them, several to a sequence.

    The weights stay beside their tokens.
    """
    columns = ["input_ids", "labels", WEIGHTS]
    packed = pack_dataset(rows.select_columns(columns), seq_length, strategy)
    return packed.shuffle(seed=seed) if shuffle else packed


class WeightCollator:
    """Adds weights to a collator's batch.

    What weighs nothing leaves the masks, so that means count what is trained.
    """

    def __init__(self, inner: Collate):
        self.inner = inner
        self.from_end = getattr(inner, "truncation_mode", "keep_start") == "keep_end"

    def __call__(self, rows: list[Row]) -> Row:
        batch = self.inner(rows)
        if PAIR[0] in rows[0]:
            # The chosen sides of all rows come before the rejected ones, as in the batch.
            weights = []
            for name in PAIR:
                weights += [row[name] for row in rows]
            return batch | self._beside(batch, weights)
        weights = [row[WEIGHTS] for row in rows]
        batch |= self._beside(batch, weights)
        if f"KL_{WEIGHTS}" in rows[0]:
            weights = [row[f"KL_{WEIGHTS}"] for row in rows]
            batch |= self._beside(batch, weights, "KL_")
        return batch

    def _beside(
        self, batch: Mapping[str, Tensor], weights: Sequence[list[float]], prefix: str = ""
    ) -> dict[str, Tensor]:
        """The weights in the shape of the tokens, padded with ones.

        The mask of the completions comes with them, without the tokens that weigh nothing.
        """
        placed = torch.ones_like(batch[f"{prefix}input_ids"], dtype=torch.float32)
        mask = batch.get(f"{prefix}attention_mask")
        if mask is None:  # all sequences in one row, without padding
            flat = list(itertools.chain.from_iterable(weights))
            placed[0, : len(flat)] = torch.tensor(flat)
        else:
            for placed_row, is_token, sequence in zip(placed, mask.bool(), weights, strict=True):
                count = int(is_token.sum())
                kept = sequence[:count]
                if self.from_end:
                    kept = sequence[len(sequence) - count :]
                placed_row[is_token] = torch.tensor(kept)
        beside = {f"{prefix}{WEIGHTS}": placed}
        name = f"{prefix}completion_mask"
        if name in batch:
            beside[name] = batch[name] * (placed != 0)
        return beside
