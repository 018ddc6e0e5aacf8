"""A dataset checked before anything loads: are the files there, can they be read, do their rows fit the trainer.

Rows are read without the datasets library, of large files only the beginning: the rest is checked when they are loaded.
What nobody can know here passes: rows of the hub, streams, and what the user's own steps and loaders make.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.dataset import LOADER, disk
from runner.dataset import request as keys
from runner.dataset.convert import RowRequest
from runner.dataset.detect import MEDIA, check_without, misnamed, read_layout, refuse_media
from runner.dataset.form import FORMS, answer_columns, is_conversation
from runner.dataset.image import COLUMNS, IMAGES, find_images, has_images
from runner.dataset.remote import check_remote
from runner.dataset.step import Row
from runner.errors import DataError, Fault, fault
from runner.io.files import HUB_NAME, SHIPPED
from runner.schema import upstream
from runner.schema.text import Node

MIXER = "runner.dataset.mix.mix_rows"
MAX_COLUMNS = 1000
# In faults of slices, the share of a training, which a held-out set of another source is no part of.
OF_TRAINING = r"dataset\.split\.train=\S+ |, or dataset\.split\.eval=null|(?<=dataset\.split)\.eval\b"
SAMPLE = 50  # rows of chats that are kept, to see what a template makes of them
SCORE = re.compile(r"(?i)score|rating|reward|grade|quality")  # names of columns of which more is better
SHIPPED_ROWS = 3  # rows of what ships, which is good, that show its columns


@dataclass
class DatasetCheck:
    """The faults of a dataset, the columns of its training rows where these are known, and what is in its rows."""

    faults: list[Fault] = field(default_factory=list)
    columns: set[str] | None = None
    chats: bool = False
    images: str = ""  # the column of images, where there are any
    sample: list[Row] = field(default_factory=list)  # chats as the trainer is given them

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Inside, faults of the data are noted and end what is inside."""
        try:
            yield
        except DataError as error:
            self.faults += error.faults


def check_dataset(node: Node, to: str | None, where: str = "dataset") -> DatasetCheck:
    """Check the rows that a node of the configuration names, for a trainer of the form ``to``."""
    target, seen, inner = str(node.get("_target_")), DatasetCheck(), dict[str, Node]()
    trains = ".split.eval" not in where
    if target == MIXER:
        parts = {name: part for name, part in (node.get("parts") or {}).items() if part is not None}
        with seen.noting():
            keys.check_weights(parts, node.get("weights"))
        inner = {f"{where}.parts.{name}": part for name, part in parts.items()}
    elif target == LOADER:
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # the loading will say once more what is left out
        try:
            _check_rows_of(node, to or "", seen, trains=trains)
        finally:
            logging.disable(before)

        # With the keys of this node, which may be a part of another one; the path of a whole one chooses its option.
        def own(text: str) -> str:
            one = text if trains else re.sub(OF_TRAINING, "", text)
            return re.sub(r"^dataset\.path=(?!\[)", "dataset=", re.sub(r"\bdataset\.(?=\w)", f"{where}.", one))

        seen.faults = [Fault(own(at.where), own(at.found), at.expected, own(at.fix)) for at in seen.faults]
        evals = keys.named_sets((node.get("split") or {}).get("eval"))
        sources = {name: each for name, each in evals.items() if isinstance(each, Mapping)}
        inner = {".".join(filter(None, (where, "split.eval", name))): each for name, each in sources.items()}
    for place, part in inner.items():
        inside = check_dataset(part, to, place)
        seen.faults += inside.faults
        seen.chats |= inside.chats
        seen.images = seen.images or inside.images
        seen.sample += inside.sample
    return seen


def find_image_faults(cfg: Node, *, sees: bool, column: str = IMAGES) -> Iterator[Fault]:
    """Faults of a run whose rows have images: a trainer or a model that takes none, and what asks for tokens."""
    if not cfg["trainer"].get("images"):
        kind = str(cfg["trainer"]["_target_"]).rpartition(".")[2]
        yield fault("dataset.trainer_without_images", trainer=kind, column=column)
    elif not sees:
        name = cfg["model"].get("path") or cfg["model"].get("model_type")
        yield fault("dataset.model_without_images", model=name, column=column)
    if cfg.get("weight"):
        yield fault("dataset.weights_of_images")
    if cfg["trainer"]["args"].get(key := upstream.TRAIN_SAMPLING_STRATEGY) in upstream.OTHER_STEPS[key]:
        yield fault("dataset.lengths_of_images", key=key)


def _check_rows_of(node: Node, to: str, seen: DatasetCheck, *, trains: bool) -> None:
    """Note what is wrong with the keys of a node, its files, and their rows; the first two all at once."""
    files, given = None, node["path"] if isinstance(node["path"], list) else str(node["path"])
    path = disk.path_text(given)
    cuts: list[tuple[keys.Use, str]] = []
    if node.get("form") not in (None, *FORMS):
        seen.faults.append(misnamed("dataset.form", node["form"], FORMS, "dataset.form={}"))
    with seen.noting():
        keys.read_limits(node.get("limit"))
    with seen.noting():
        train, evals = keys.read_cuts(node.get("split"))
        cuts = [("eval", cut) for cut in evals.values() if isinstance(cut, str)]
        if train:
            cuts.insert(0, ("train", train))
        elif trains:
            seen.faults.append(fault("dataset.no_training"))
    with seen.noting():
        if check_remote(given):
            return
        files = disk.find_files(given)
        hub_only = {name: node.get(name) for name in ("config", "revision")}
        keys.check_words(files, node.get("bad_rows", "refuse"), **hub_only)
    if files is None:
        if not seen.faults and not HUB_NAME.fullmatch(path):
            seen.faults.append(fault("dataset.no_name_on_the_hub", path=path))
        return
    is_shipped, streaming = path.startswith(SHIPPED), bool(node.get("streaming"))
    for use, cut in cuts:
        with seen.noting():
            keys.check_cut(f"dataset.split.{use}", cut, files.splits, path, streaming=streaming)
    if not is_shipped:
        with seen.noting():
            disk.check_files(files, disk.MAX_BYTES_READ // (len(files.paths) if streaming else 1))  # as of one file
    if seen.faults or node.get("map"):
        return
    if to:
        with seen.noting():
            without, given_roles = node.get("without") or (), node.get("columns") or {}
            columns = disk.read_columns(files, disk.MAX_BYTES_READ)
            if len(columns) > MAX_COLUMNS:  # each of which the libraries keep a type and a place for
                last, count = columns[-1], len(columns)
                raise DataError(fault("dataset.many_columns", path=path, count=count, last=last, most=MAX_COLUMNS))
            left = [name for name in columns if name not in (*without, *given_roles.values())]
            refuse_media(name for name in left if name in MEDIA and to != "prompt")
            seen.images = given_roles.get(IMAGES) or next((name for name in COLUMNS if name in left), "")
            if seen.images and streaming:
                raise DataError(fault("dataset.stream_of_images", label=path))
    if not seen.faults and not streaming and disk.holds_at_most(files, disk.MAX_BYTES_READ):
        _check_slices(node, to, files, cuts, SHIPPED_ROWS if is_shipped else None, seen)


def _check_slices(
    node: Node, to: str, files: disk.Files, cuts: Sequence[tuple[keys.Use, str]], first: int | None, seen: DatasetCheck
) -> None:
    """Note slices whose rows the trainer cannot read, or that have none; of what ships the ``first`` are enough."""
    keys_of_rows = ("form", "columns", "system", "bad_rows", "without", "join_turns", "thoughts")
    how = {name: node[name] for name in keys_of_rows if node.get(name)}
    images = find_images(files.paths, node.get("image_folder"), None if node.get("image_urls") else False)
    request, limits = RowRequest(**how, to=to, images=images), keys.read_limits(node.get("limit"))
    read: dict[str, list[Row]] = {}
    for use, cut in cuts:
        if (name := keys.split_of(cut)) not in read:
            paths = map(Path, files.splits[name])
            read[name] = [row for path in paths for row in disk.read_data_file(path, files.reader, first)]
        rows, label = read[name], f"{node['path']} {cut}"
        count = keys.slice_length(cut, len(rows)) if first is None else None
        all_used = count == len(rows) and count <= (limits[use] or count)
        with seen.noting():
            if count == 0:
                raise DataError(keys.no_row(use, cut, f"{label} of {len(rows)}"))
            made = _find_columns(request, rows, label, seen, all_used=all_used)
            if use == "train" and to == "preference":
                seen.faults += find_swapped_sides(rows, request.columns or {})
            seen.columns = set(made) if use == "train" else seen.columns
            seen.images = seen.images or IMAGES * (IMAGES in made)
            seen.chats |= any(is_conversation(made.get(name)) for name in ("prompt", *answer_columns(made)))


def find_swapped_sides(rows: Sequence[Row], columns: Mapping[Any, str]) -> Iterator[Fault]:
    """A fault for preferences of which every row says itself that the rejected side is the better one."""
    chosen, rejected = columns.get("chosen", "chosen"), columns.get("rejected", "rejected")
    names = rows[0].keys() if len(rows) > 1 else ()
    swap = f"dataset.columns.chosen={rejected} dataset.columns.rejected={chosen}"
    for name in names:
        other = name.replace(chosen, rejected)
        if chosen in name and other in names and SCORE.search(name):
            pairs = [(row.get(name), row.get(other)) for row in rows]
            if all(_is_less(good, bad) for good, bad in pairs):
                found = f"{name} is below {other} in all {len(rows):,} rows"
                yield Fault("dataset", found, "the better side as the chosen one", swap)
    if "margin" in names and all(_is_less(row.get("margin"), 0) for row in rows):
        found = f"margin is below 0 in all {len(rows):,} rows"
        expected, left_out = "how much better the chosen side is", "dataset.without=[margin]"
        yield Fault("dataset", found, expected, f"mend the column, or {left_out}")


def _is_less(first: object, second: object) -> bool:
    numbers = isinstance(first, int | float) and isinstance(second, int | float)
    return numbers and not isinstance(first, bool) and first < second  # type: ignore[operator]


def _find_columns(request: RowRequest, rows: Sequence[Row], label: str, seen: DatasetCheck, *, all_used: bool) -> Row:
    """The columns that the trainer is given, with a value of each; a few rows of chats are kept in ``seen``."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    check_without(request.without, columns)
    columns = [name for name in columns if name not in request.without]
    rows = [{name: row.get(name) for name in columns} for row in rows]
    if not request.to:
        read_layout(columns, rows[0], form=request.form, given=request.columns)
        return {}
    conversion = request.start_conversion(columns, rows[0], label, len(rows), pictured=any(map(has_images, rows)))
    made = conversion.first(rows)
    if all_used:  # else a bad row may be one that nobody asked for
        conversion.batch({name: [row[name] for row in rows] for name in columns}, range(len(rows)))
        if not made:
            raise DataError(conversion.nothing_left(len(rows)))
    if not conversion.pictured and any(is_conversation(made.get(name)) for name in ("prompt", *answer_columns(made))):
        for row in rows[:SAMPLE]:
            with contextlib.suppress(DataError):
                seen.sample += conversion.one(row) or []
    return dict.fromkeys(conversion.kept) | made
