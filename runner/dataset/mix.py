"""Rows of several datasets at once, each in the trainer's form (``load``) before they meet."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, IterableDataset, Json, Value, concatenate_datasets, interleave_datasets

from runner.dataset.detect import misnamed
from runner.dataset.image import IMAGES, ImageSource, Marks
from runner.dataset.load import STREAM_BUFFER, Rows, list_columns, mix_labels
from runner.dataset.request import Use, check_weights, read_limits
from runner.errors import DataError, fault
from runner.io.turns import TEMPLATE_ARGUMENTS

log = logging.getLogger(__name__)

Part = Callable[..., tuple[Rows | None, Any]]


def mix_rows(
    parts: Mapping[str, Part],
    weights: Mapping[str, float] | None = None,
    *,
    limit: Mapping[Use, int | None] | None = None,
    seed: int = 0,
    to: str | None = None,
    keep: Sequence[str] | None = None,
) -> tuple[Rows, dict[str, Rows] | None]:
    """The training rows of all parts in one shuffled order, and their held-out rows by part.

    ``parts`` are functions such as a partial of ``load_rows``. With ``weights`` each row is drawn from a part with that
    share, and small parts repeat until every part was seen whole: nothing is thrown away, and the shares hold to the
    end. Without, every row comes once. ``limit`` counts mixed rows, and the rows of each held-out set.
    """
    check_weights(parts, weights)
    limits = read_limits(limit)
    # Every part hands over what it has, because a reward may concern the rows of one part only.
    loaded = {name: load(to=to, keep=None if to == "prompt" else keep, seed=seed) for name, load in parts.items()}
    seeing = [rows.features for rows, _ in loaded.values() if rows is not None and IMAGES in list_columns(rows)]
    see = functools.partial(_with_room_for_images, next(iter(seeing), None))
    trains = {name: see(train) for name, (train, _) in loaded.items() if train is not None}
    if to == "prompt" and keep is not None:
        columns = {name: list_columns(rows) for name, rows in trains.items()}
        there = {column for part in columns.values() for column in part}
        DataError.refuse([misnamed("reward", column, sorted(there)) for column in keep if column not in there])
        wanted = {"prompt", "reference", TEMPLATE_ARGUMENTS, *keep}
        for name, rows in trains.items():
            trains[name] = rows.select_columns([column for column in columns[name] if column in wanted])
    lacking = [name for name, rows in trains.items() if TEMPLATE_ARGUMENTS not in list_columns(rows)]
    for name in lacking if len(lacking) < len(trains) else ():  # in all, or it would be null in some
        kinds = trains[name].features and Features(trains[name].features | {TEMPLATE_ARGUMENTS: Json()})
        trains[name] = trains[name].map(lambda row: {TEMPLATE_ARGUMENTS: {}}, features=kinds)
    if len(trains) < len(parts):
        raise DataError(fault("dataset.part_without_rows", part=next(name for name in parts if name not in trains)))
    # No column may hold conversations in one part and text in another, or other types.
    seen: dict[str, tuple[str, Any]] = {}
    for part, rows in trains.items():
        for column, kind in (rows.features or {}).items():
            # Nothing in it goes with everything.
            first, other = seen.setdefault(column, (part, kind)) if kind != Value("null") else (part, kind)
            if other != kind:
                unlike = {"part": part, "kind": kind, "other": other, "first": first}
                raise DataError(fault("dataset.unlike_parts", column=column, **unlike))
    with_margin = [part for part, rows in trains.items() if to == "preference" and "margin" in list_columns(rows)]
    without = [part for part in trains if part not in with_margin]
    if with_margin and without:  # of preferences a batch has all margins or none
        raise DataError(fault("dataset.margin_in_one_part", part=with_margin[0], other=without[0]))
    mixed = _mix(trains, weights, seed)
    if to == "unpaired" and isinstance(mixed, Dataset):
        mixed = mix_labels(mixed, seed, "mixture")
    evals, most = dict[str, Any](), limits["eval"]
    for part, (_, held_out) in loaded.items():
        named = held_out if isinstance(held_out, Mapping) else {} if held_out is None else {"": held_out}
        held = {"_".join(filter(None, (part, name))): see(rows) for name, rows in named.items()}
        evals |= {name: rows.take(most) if most else rows for name, rows in held.items()}
    return mixed.take(limits["train"]) if limits["train"] else mixed, evals or None


def _with_room_for_images(like: Features | None, rows: Rows) -> Rows:
    """Rows of text in the form of those of another part, which have images; a batch may hold both."""
    if not like or IMAGES in list_columns(rows) or not rows.features:
        return rows
    kinds = {column: like.get(column, kind) for column, kind in rows.features.items()} | {IMAGES: like[IMAGES]}
    return rows.map(lambda row: Marks(row, ()).place(row, ImageSource()), features=Features(kinds))


def _mix(trains: Mapping[str, Rows], weights: Mapping[str, float] | None, seed: int) -> Rows:
    rows = list(trains.values())
    if weights:
        shares = [weights[name] / sum(weights.values()) for name in trains]
        mixed = interleave_datasets(rows, probabilities=shares, seed=seed, stopping_strategy="all_exhausted")
    else:
        buffer = {"buffer_size": STREAM_BUFFER} if isinstance(rows[0], IterableDataset) else {}
        mixed = concatenate_datasets(rows).shuffle(seed, **buffer)
    if isinstance(mixed, Dataset):
        counts = ", ".join(f"{name} {len(part)}" for name, part in trains.items())
        log.info("mixture of %d rows, from %s", len(mixed), counts)
    return mixed
