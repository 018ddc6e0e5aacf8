"""Rows of several datasets at once, each in the trainer's form (``load``) before they meet."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import (
    Dataset,
    Features,
    IterableDataset,
    Json,
    Value,
    concatenate_datasets,
    interleave_datasets,
)

from runner.dataset.converted_rows import STREAM_BUFFER, mix_labels
from runner.dataset.faults import misnamed
from runner.dataset.form import Row
from runner.dataset.loaded_rows import HeldOut, Rows, list_columns
from runner.dataset.mark import Marks
from runner.dataset.media_source import MediaSource
from runner.dataset.request import Use, check_weights, read_limits
from runner.errors import DataError, Fault
from runner.io.turns import TEMPLATE_ARGUMENTS
from runner.schema.modality import Modality, modalities_of

log = logging.getLogger(__name__)

Part = Callable[..., tuple[Rows | None, HeldOut]]
RowsByPart = dict[str, Rows]


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

    ``parts`` are functions such as a partial of ``load_rows``. With ``weights`` each row is drawn
    from a part with that share, and small parts repeat until every part was seen whole: nothing is
    thrown away, and the shares hold to the end. Without, every row comes once. ``limit`` counts
    mixed rows, and the rows of each held-out set.
    """
    check_weights(parts, weights)
    limits = read_limits(limit)
    # Every part hands over what it has, because a reward may concern the rows of one part only.
    kept = None if to == "prompt" else keep
    trains: RowsByPart = {}
    evals: dict[str, HeldOut] = {}
    for name, load in parts.items():
        train, evals[name] = load(to=to, keep=kept, seed=seed)
        if train is not None:
            trains[name] = train
    media_types = _media_types(trains)
    for name, rows in trains.items():
        trains[name] = _with_room_for_media(rows, media_types)
    if to == "prompt" and keep is not None:
        trains = _select_columns(trains, keep)
    trains = _with_template_arguments(trains)
    _check_parts(parts, trains, to)
    mixed = _mix(trains, weights, seed)
    if to == "unpaired" and isinstance(mixed, Dataset):
        mixed = mix_labels(mixed, seed, "mixture")
    if limits["train"]:
        mixed = mixed.take(limits["train"])
    held_out = _name_held_out(evals)
    for name, rows in held_out.items():
        held_out[name] = _with_room_for_media(rows, media_types)
        if limits["eval"]:
            held_out[name] = held_out[name].take(limits["eval"])
    return mixed, held_out or None


def _name_held_out(evals: Mapping[str, HeldOut]) -> RowsByPart:
    """The held-out sets by the name of their part, and their own behind it where they have one."""
    named = {}
    for part, sets in evals.items():
        if isinstance(sets, Mapping):
            for name, rows in sets.items():
                named[f"{part}_{name}" if name else part] = rows
        elif sets is not None:
            named[part] = sets
    return named


# --- Parts that go together ---------------------------------------------------------------------


def _media_types(trains: RowsByPart) -> Features | None:
    """The types of the columns of the first part with media; None where no part has any."""
    for rows in trains.values():
        if modalities_of(list_columns(rows)):
            return rows.features
    return None


def _with_room_for_media(rows: Rows, like: Features | None) -> Rows:
    """Rows of text in the form of those of another part, which have media; a batch may hold both.

    ``like`` has the types of that part; without it the rows stay as they are.
    """
    if not like or modalities_of(list_columns(rows)) or not rows.features:
        return rows
    no_columns: dict[Modality, tuple[str, ...]] = {}
    types = {column: like.get(column, kind) for column, kind in rows.features.items()}
    for modality in modalities_of(like):
        types[modality.column] = like[modality.column]
        no_columns[modality] = ()
    source = MediaSource()

    def place(row: Row) -> Row:
        return Marks(row, no_columns).place(row, source)

    return rows.map(place, features=Features(types))


def _select_columns(trains: RowsByPart, keep: Sequence[str]) -> RowsByPart:
    """The parts with the columns that a reward asks for.

    Raises DataError for a column that no part has; one part may lack it.
    """
    all_columns = set()
    for rows in trains.values():
        all_columns.update(list_columns(rows))
    faults = []
    for column in keep:
        if column not in all_columns:
            faults.append(misnamed("reward", column, sorted(all_columns)))
    DataError.refuse(faults)
    wanted = {"prompt", "reference", TEMPLATE_ARGUMENTS, *keep}
    selected = {}
    for name, rows in trains.items():
        columns = [column for column in list_columns(rows) if column in wanted]
        selected[name] = rows.select_columns(columns)
    return selected


def _with_template_arguments(trains: RowsByPart) -> RowsByPart:
    """The parts with arguments for the template in all rows, or in none.

    Else they would be null in some rows.
    """
    lacking = [
        name for name, rows in trains.items() if TEMPLATE_ARGUMENTS not in list_columns(rows)
    ]
    if len(lacking) == len(trains):
        return trains
    completed = dict(trains)
    for name in lacking:
        rows = trains[name]
        types = rows.features and Features(rows.features | {TEMPLATE_ARGUMENTS: Json()})
        completed[name] = rows.map(lambda row: {TEMPLATE_ARGUMENTS: {}}, features=types)
    return completed


def _check_parts(parts: Mapping[str, Part], trains: RowsByPart, to: str | None) -> None:
    """Raise DataError for parts that have no rows to train on, or do not go together."""
    for name in parts:
        if name not in trains:
            fault = Fault(
                where=f"dataset.parts.{name}.split.train",
                found="null",
                expected="rows to mix",
            )
            raise DataError(fault)
    _check_types(trains)
    if to != "preference":
        return
    with_margin = [name for name, rows in trains.items() if "margin" in list_columns(rows)]
    without = [name for name in trains if name not in with_margin]
    if with_margin and without:  # of preferences a batch has all margins or none
        where = f"dataset.parts.{with_margin[0]}"
        fault = Fault(
            where=where,
            found=f"a margin here, but none in {without[0]}",
            expected="margins in all parts, or in none",
            fix=f"{where}.without=[margin]",
        )
        raise DataError(fault)


@dataclass(frozen=True)
class FirstType:
    """The type of a column in the first part that has something in it."""

    part: str
    kind: Any


def _check_types(trains: RowsByPart) -> None:
    """Raise DataError for a column that has another type in another part.

    One part may have conversations where the other has text.
    """
    first_types: dict[str, FirstType] = {}
    for part, rows in trains.items():
        for column, kind in (rows.features or {}).items():
            if kind == Value("null"):  # which goes with everything
                continue
            first = first_types.setdefault(column, FirstType(part, kind))
            if first.kind != kind:
                where = f"dataset.parts.{part}"
                fault = Fault(
                    where=where,
                    found=f"{column} is {kind} here and {first.kind} in {first.part}",
                    expected="one type in all parts",
                    fix=f"{where}.columns.<role>=<column>, or form, to read both alike",
                )
                raise DataError(fault)


def _mix(trains: RowsByPart, weights: Mapping[str, float] | None, seed: int) -> Rows:
    """The rows of all parts in one shuffled order."""
    rows = list(trains.values())
    if weights:
        total = sum(weights.values())
        shares = [weights[name] / total for name in trains]
        mixed = interleave_datasets(
            rows, probabilities=shares, seed=seed, stopping_strategy="all_exhausted"
        )
    elif isinstance(rows[0], IterableDataset):
        mixed = concatenate_datasets(rows).shuffle(seed, buffer_size=STREAM_BUFFER)
    else:
        mixed = concatenate_datasets(rows).shuffle(seed)
    if isinstance(mixed, Dataset):
        counts = [f"{name} {len(part)}" for name, part in trains.items()]
        log.info("mixture of %d rows, from %s", len(mixed), ", ".join(counts))
    return mixed
