"""A dataset checked before anything loads: its keys, its files, and the fit of its rows.

Rows are read without the datasets library, of large files only the beginning: the rest is checked
when they are loaded. What nobody can know here passes: rows of the hub, streams, and what the
user's own steps and loaders make.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.dataset import LOADER, faults, request, scan
from runner.dataset.convert import RowRequest, holds_chat
from runner.dataset.detect import check_without, read_layout, refuse_media
from runner.dataset.form import FORMS, Row
from runner.dataset.media_source import find_media
from runner.dataset.remote_files import check_remote
from runner.dataset.source_files import PATH_FIX, Files, Paths, find_files, path_text
from runner.errors import DataError, Fault
from runner.io.files import HUB_NAME, SHIPPED
from runner.schema.modality import MODALITIES, UNTRAINED_COLUMNS, Modality, modalities_of
from runner.schema.role import RoleColumns
from runner.schema.text import Node

MIXER = "runner.dataset.mix.mix_rows"
MAX_COLUMNS = 1000  # for each of which the libraries keep a type and a place
# In faults of slices, the share of a training, in which a held-out set of another source has no
# part.
OF_TRAINING = (
    r"dataset\.split\.train=\S+ |, or dataset\.split\.eval=null|(?<=dataset\.split)\.eval\b"
)
SAMPLE_SIZE = 50  # rows of chats that are kept, to see what a template makes of them
# Names of columns of which more is better.
SCORE = re.compile(r"(?i)score|rating|reward|grade|quality")
SHIPPED_ROWS = 3  # rows of what ships, which is good, that show its columns
# Keys of a node that say how its rows are read.
ROW_KEYS = (
    "form",
    "columns",
    "system",
    "bad_rows",
    "without",
    "join_turns",
    "thoughts",
    "context_separator",
)


@dataclass(frozen=True)
class Cut:
    """A slice of a split, and the use of its rows."""

    use: request.Use
    text: str


@dataclass
class DatasetCheck:
    """The faults of a dataset, and what is in its rows."""

    faults: list[Fault] = field(default_factory=list)
    columns: set[str] | None = None
    chats: bool = False
    # The column of each kind of media that is in the rows.
    media: dict[Modality, str] = field(default_factory=dict)
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
    target = str(node.get("_target_"))
    check = DatasetCheck()
    inner: dict[str, Node] = {}  # the sources inside this one, by their keys
    if target == MIXER:
        parts = {}
        for name, part in (node.get("parts") or {}).items():
            if part is not None:
                parts[name] = part
                inner[f"{where}.parts.{name}"] = part
        with check.noting():
            request.check_weights(parts, node.get("weights"))
    elif target == LOADER:
        trains = ".split.eval" not in where
        with _without_warnings():
            _check_source(node, to or "", check, trains=trains)
        check.faults = [_under(where, fault, trains=trains) for fault in check.faults]
        split = node.get("split") or {}
        evals = request.named_sets(split.get("eval"))
        for name, source in evals.items():
            if isinstance(source, Mapping):
                key = f"{where}.split.eval.{name}".removesuffix(".")
                inner[key] = source
    for key, source in inner.items():
        inside = check_dataset(source, to, key)
        check.faults += inside.faults
        check.chats |= inside.chats
        check.media = inside.media | check.media
        check.sample += inside.sample
    return check


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Inside, nothing is logged but errors: the loading says once more what is left out."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _under(where: str, fault: Fault, *, trains: bool) -> Fault:
    """The fault with the keys of its node, which may be a part of another one.

    The path of a whole dataset chooses its option.
    """

    def renamed(text: str) -> str:
        if not trains:
            text = re.sub(OF_TRAINING, "", text)
        text = re.sub(r"\bdataset\.(?=\w)", f"{where}.", text)
        return re.sub(r"^dataset\.path=(?!\[)", "dataset=", text)

    return Fault(
        where=renamed(fault.where),
        found=renamed(fault.found),
        expected=fault.expected,
        fix=renamed(fault.fix),
    )


# --- One source ---------------------------------------------------------------------------------
def _check_source(node: Node, to: str, check: DatasetCheck, *, trains: bool) -> None:
    """Note what is wrong with the keys of a node, its files, and their rows.

    Faults of keys and files are noted all at once; rows are only read where there are none.
    """
    path: Paths = node["path"]
    if not isinstance(path, list):
        path = str(path)
    if node.get("form") not in (None, *FORMS):
        fault = faults.misnamed("dataset.form", node["form"], FORMS, "dataset.form={}")
        check.faults.append(fault)
    with check.noting():
        request.read_limits(node.get("limit"))
    cuts: list[Cut] = []
    with check.noting():
        cuts = _read_cuts(node, check, trains=trains)
    files = None
    with check.noting():
        if check_remote(path):
            return
        files = find_files(path)
        hub_only = {name: node.get(name) for name in ("config", "revision")}
        request.check_words(files, node.get("bad_rows", "refuse"), **hub_only)
    if files is None:
        if not check.faults and not HUB_NAME.fullmatch(path_text(path)):
            fault = Fault(
                where="dataset.path",
                found=f"{path_text(path)!r} is neither a file or folder here nor a possible "
                "name on the hub",
                expected="a file that ends in .jsonl, .json, .csv, .tsv or .parquet, or org/name",
                fix=PATH_FIX,
            )
            check.faults.append(fault)
        return
    _check_files(node, path_text(path), files, cuts, check)
    if check.faults or node.get("map"):
        return
    if to:
        with check.noting():
            _check_columns(node, path_text(path), files, to, check)
    if check.faults or node.get("streaming"):
        return
    if scan.holds_at_most(files, scan.MAX_BYTES_READ):
        _check_slices(node, path_text(path), files, cuts, to, check)


def _read_cuts(node: Node, check: DatasetCheck, *, trains: bool) -> list[Cut]:
    """The slices of a node, that of the training first; a missing one is noted."""
    train, evals = request.read_cuts(node.get("split"))
    cuts = []
    if train:
        cuts.append(Cut("train", train))
    elif trains:
        fault = Fault(
            where="dataset.split.train",
            found="null, but a training needs rows",
            expected="a slice of a split",
            fix="=train",
        )
        check.faults.append(fault)
    for cut in evals.values():
        if isinstance(cut, str):
            cuts.append(Cut("eval", cut))
    return cuts


def _check_files(
    node: Node, path: str, files: Files, cuts: Sequence[Cut], check: DatasetCheck
) -> None:
    """Note slices that the files cannot give, and their bad bytes; what ships is good."""
    streaming = bool(node.get("streaming"))
    for cut in cuts:
        where = f"dataset.split.{cut.use}"
        with check.noting():
            request.check_cut(where, cut.text, files.splits, path, streaming=streaming)
    if not path.startswith(SHIPPED):
        max_bytes = scan.MAX_BYTES_READ
        if streaming:  # as much of all files as of one
            max_bytes //= len(files.paths)
        with check.noting():
            scan.check_files(files, max_bytes)


def _check_columns(node: Node, path: str, files: Files, to: str, check: DatasetCheck) -> None:
    """Note the columns of media.

    Raises DataError for too many columns, and for those that no trainer learns from.
    """
    chosen = node.get("columns") or {}
    columns = scan.read_columns(files, scan.MAX_BYTES_READ)
    if len(columns) > MAX_COLUMNS:
        fault = Fault(
            where=path,
            found=f"{len(columns):,} columns, such as {columns[-1]}",
            expected=f"at most {MAX_COLUMNS:,}",
            fix="store what varies in values, not in column names",
        )
        raise DataError(fault)
    used = (*(node.get("without") or ()), *chosen.values())
    unused = [name for name in columns if name not in used]
    if to != "prompt":  # of which a reward may read the path of a sound
        untrained = [name for name in unused if name in UNTRAINED_COLUMNS]
        refuse_media(untrained)
    for modality in MODALITIES:
        column = chosen.get(modality.column) or modality.find_column(unused)
        if not column:
            continue
        check.media[modality] = column
        if node.get("streaming"):
            raise DataError(faults.stream_of_media(modality, path))


def _check_slices(
    node: Node, path: str, files: Files, cuts: Sequence[Cut], to: str, check: DatasetCheck
) -> None:
    """Note slices whose rows the trainer cannot read, or that have none.

    Of what ships a few rows are enough, because it is good.
    """
    max_rows = SHIPPED_ROWS if path.startswith(SHIPPED) else None
    urls = None if node.get("image_urls") else False  # None: nothing is fetched here
    row_request = RowRequest(
        **{name: node[name] for name in ROW_KEYS if node.get(name)},
        to=to,
        media=find_media(files.paths, node.get("image_folder"), urls),
    )
    limits = request.read_limits(node.get("limit"))
    rows_by_split: dict[str, list[Row]] = {}
    for cut in cuts:
        split = request.split_of(cut.text)
        if split not in rows_by_split:
            rows_by_split[split] = []
            for file in files.splits[split]:
                rows_by_split[split] += scan.read_data_file(Path(file), files.reader, max_rows)
        rows = rows_by_split[split]
        label = f"{node['path']} {cut.text}"
        with check.noting():
            all_used = False
            if max_rows is None:
                count = request.slice_length(cut.text, len(rows))
                all_used = count == len(rows) and count <= (limits[cut.use] or count)
                if count == 0:
                    label_of_none = f"{label} of {len(rows)}"
                    raise DataError(request.no_row(cut.use, cut.text, label_of_none))
            made = _find_columns(row_request, rows, label, check, all_used=all_used)
            if cut.use == "train":
                check.columns = set(made)
                if to == "preference":
                    check.faults += find_swapped_sides(rows, row_request.columns or {})
            for modality in modalities_of(made):
                check.media.setdefault(modality, modality.column)
            check.chats |= holds_chat(made)


def _find_columns(
    row_request: RowRequest, rows: Sequence[Row], label: str, check: DatasetCheck, *, all_used: bool
) -> Row:
    """The columns that the trainer is given, with a value of each.

    A few chats are kept as a sample in ``check``.
    """
    all_columns: dict[str, None] = {}
    for row in rows:
        all_columns |= dict.fromkeys(row)
    check_without(row_request.without, list(all_columns))
    columns = [name for name in all_columns if name not in row_request.without]
    rows = [{name: row.get(name) for name in columns} for row in rows]
    if not row_request.to:
        read_layout(columns, rows[0], form=row_request.form, given=row_request.columns)
        return {}
    modalities = []
    for modality in MODALITIES:
        if any(modality.is_in(row) for row in rows):
            modalities.append(modality)
    conversion = row_request.start_conversion(
        columns, rows[0], label, len(rows), modalities=modalities
    )
    made = conversion.first(rows)
    if all_used:  # else a bad row may be one that nobody asked for
        cells = {name: [row[name] for row in rows] for name in columns}
        conversion.batch(cells, range(len(rows)))
        if not made:
            raise DataError(conversion.nothing_left(len(rows)))
    if not conversion.modalities and holds_chat(made):
        for row in rows[:SAMPLE_SIZE]:
            with contextlib.suppress(DataError):
                check.sample += conversion.one(row) or []
    return dict.fromkeys(conversion.kept) | made


# --- Pairs --------------------------------------------------------------------------------------
def find_swapped_sides(rows: Sequence[Row], columns: RoleColumns) -> Iterator[Fault]:
    """A fault for preferences whose rejected side is the better one in every row.

    The rows tell it by a score for each side, or by their margin.
    """
    if len(rows) < 2:
        return
    chosen = columns.get("chosen", "chosen")
    rejected = columns.get("rejected", "rejected")
    names = rows[0].keys()
    for name in names:
        other = name.replace(chosen, rejected)
        if chosen not in name or other not in names or not SCORE.search(name):
            continue
        if all(_is_less(row.get(name), row.get(other)) for row in rows):
            yield Fault(
                where="dataset",
                found=f"{name} is below {other} in all {len(rows):,} rows",
                expected="the better side as the chosen one",
                fix=f"dataset.columns.chosen={rejected} dataset.columns.rejected={chosen}",
            )
    margins = [row.get("margin") for row in rows]
    if "margin" in names and all(_is_less(margin, 0) for margin in margins):
        yield Fault(
            where="dataset",
            found=f"margin is below 0 in all {len(rows):,} rows",
            expected="how much better the chosen side is",
            fix="mend the column, or dataset.without=[margin]",
        )


def _is_less(first: object, second: object) -> bool:
    """True for two numbers the first of which is less; a label is no number."""
    if isinstance(first, bool):
        return False
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        return False
    return first < second
