"""The rows of a script: the calls that load, cut and change a dataset -> keys of a dataset.

What a function of the user's own makes of the rows is a remark: it is code, which nobody runs here.
The exception is a function that has the chat template write the turns, which is done here as well.
"""

from ast import (
    Attribute,
    Constant,
    Name,
    walk,
)
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runner.importers.foreign_config import Keys
from runner.importers.python_values import (
    CallValue,
    Function,
    Value,
    is_constant,
)

# What loads files, by the name that datasets gives their format. The files themselves are named by
# data_files then, and are looked for from the working directory.
FILE_FORMATS = ("json", "csv", "parquet", "text", "arrow", "pandas")
# Functions that only rename what is read by name here as well.
STANDARDISING = ("standardize_sharegpt", "standardize_data_formats", "standardize_dataset")
# Methods that change no row, or only leave out columns that nobody reads.
UNCHANGED = (
    "remove_columns",
    "select_columns",
    "with_format",
    "set_format",
    "with_transform",
    "flatten_indices",
    "to_list",
    "to_pandas",
    "to_iterable_dataset",
    "repeat",
    "sort",
)
TEMPLATE_CALL = "apply_chat_template"
STEP = "dataset.map._target_=<function of a row>"


# Each step of a dataset's way is one call, from the one that loads it to the one that the trainer
# gets; steps that change no row, such as shuffling, are passed over without a remark.
@dataclass(frozen=True)
class RowRemark:
    """Something that is done to the rows, and what to do about it."""

    name: str
    value: str
    why: str


# The parts of a dataset's way through a script, in the order of this module: it is loaded, and then
# changed by the steps that stand below.
@dataclass
class ScriptRows:
    """One dataset of a script, or several that are joined."""

    path: str = ""
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    streaming: bool = False
    limit: int | None = None
    held_out: float | None = None  # the share or number of rows that train_test_split cuts off
    part: str = ""  # of the two that it makes
    is_text: bool = False  # a function of the user's writes the rows as text
    rendered_by: str = ""  # the call by which it has the chat template write them
    others: list["ScriptRows"] = field(default_factory=list)
    remarks: list[RowRemark] = field(default_factory=list)

    def note(self, call: CallValue, why: str) -> None:
        """Note what a call does to the rows."""
        name = f"{call.last}, line {call.line}"
        self.remarks.append(RowRemark(name, call.text, why))

    @property
    def slice(self) -> str | None:
        """The split, with its first rows only where a number of them is taken."""
        if self.limit is None:
            return self.split
        split = self.split or "train"
        return split if "[" in split else f"{split}[:{self.limit}]"

    def to_keys(self) -> Keys:
        """The keys of TRL's command line for these rows."""
        if self.others:
            entries = []
            for rows in [self, *self.others]:
                entry = {"path": rows.path or "???", "config": rows.config, "split": rows.slice}
                entries.append({key: value for key, value in entry.items() if value is not None})
            return {"datasets": entries}
        keys: Keys = {"dataset_name": self.path or "???"}
        if self.config is not None:
            keys["dataset_config"] = self.config
        if self.slice not in (None, "train"):
            keys["dataset_train_split"] = self.slice
        if self.revision is not None:
            keys["dataset_revision"] = self.revision
        if self.streaming:
            keys["dataset_streaming"] = True
        return keys

    def held_out_keys(self, held_out: "ScriptRows") -> Keys:
        """The keys of the rows that are held out of these."""
        if not held_out.path:
            return {}
        if held_out.path != self.path or held_out.config != self.config:
            return {"eval_dataset": held_out.path}
        if held_out.held_out is not None:
            return {"test_split_size": held_out.held_out}
        if held_out.slice and held_out.slice != self.slice:
            return {"dataset_test_split": held_out.slice}
        return {}


def read_script_rows(value: Value) -> ScriptRows:
    """The rows that a value holds, with remarks on what has been done to them."""
    rows = ScriptRows()
    steps: list[CallValue] = []
    while isinstance(value, CallValue):
        steps.append(value)
        value = _source_of(value)
    for call in reversed(steps):
        _follow_step(rows, call)
    return rows


def _source_of(call: CallValue) -> Value:
    """The rows that a call takes: its receiver, or its first argument."""
    if isinstance(call.receiver, CallValue):
        return call.receiver
    if call.last in LOADERS:
        return None
    for value in [*call.positional, *call.keywords.values()]:
        if isinstance(value, CallValue):
            return value
        if isinstance(value, list) and value and isinstance(value[0], CallValue):
            return value[0]
    return None


def _follow_step(rows: ScriptRows, call: CallValue) -> None:
    """Take in what one call does to the rows."""
    if call.last in LOADERS:
        LOADERS[call.last](rows, call)
    elif call.last in STEPS:
        STEPS[call.last](rows, call)
    elif call.last not in (*STANDARDISING, *UNCHANGED):
        if rows.path:
            rows.note(call, f"code of the script's own: {STEP}")


# --- Loading --------------------------------------------------------------------------------------


def load_named(rows: ScriptRows, call: CallValue) -> None:
    """Rows of the hub, or files of a format."""
    path = call.argument("path", 0)
    files = call.argument("data_files")
    if path in FILE_FORMATS and files is not None:
        path = _first_file(files)
    elif files is not None:
        rows.note(call, "files of a dataset of the hub: dataset.config=<subset>")
    _set_path(rows, path, call)
    config = call.argument("name", 1)
    split = call.argument("split")
    revision = call.argument("revision")
    rows.config = config if isinstance(config, str) else None
    rows.split = split if isinstance(split, str) else None
    rows.revision = revision if isinstance(revision, str) else None
    rows.streaming = call.argument("streaming") is True
    if split is not None and rows.split is None:
        rows.note(call, "a split that is no constant: dataset.split.train=<split>")


def load_file(rows: ScriptRows, call: CallValue) -> None:
    """Rows of one file, as pandas and datasets read it."""
    for index, name in enumerate(("path_or_paths", "filepath_or_buffer", "path")):
        value = call.argument(name, 0 if index == 0 else None)
        if value is not None:
            _set_path(rows, value, call)
            return
    _set_path(rows, None, call)


def make_rows(rows: ScriptRows, call: CallValue) -> None:
    """Rows that the script makes by itself, perhaps of others that it has loaded."""
    source = call.positional[0] if call.positional else None
    if isinstance(source, CallValue):
        inner = read_script_rows(source)
        if inner.path:
            vars(rows).update(vars(inner))
            return
    rows.note(call, "rows that code of the script makes: save them, and dataset.path=rows.jsonl")


def _set_path(rows: ScriptRows, path: Value, call: CallValue) -> None:
    """Note where rows come from, or that only a run would tell."""
    if isinstance(path, str):
        rows.path = path
    else:
        rows.note(call, "a path that is no constant: dataset.path=<org/name or file>")


def _first_file(files: Value) -> Value:
    """The file that rows come from; of several the first, of a mapping that of the training."""
    if isinstance(files, dict):
        files = files.get("train", next(iter(files.values()), None))
    if isinstance(files, list) and len(files) == 1:
        return files[0]
    return files


LOADERS: Mapping[str, Callable[[ScriptRows, CallValue], None]] = {
    "load_dataset": load_named,
    "load_from_disk": load_file,
    "from_json": load_file,
    "from_csv": load_file,
    "from_parquet": load_file,
    "read_json": load_file,
    "read_csv": load_file,
    "read_parquet": load_file,
    "from_list": make_rows,
    "from_dict": make_rows,
    "from_pandas": make_rows,
    "from_generator": make_rows,
}


# --- Steps ----------------------------------------------------------------------------------------


def take_part(rows: ScriptRows, call: CallValue) -> None:
    """One split of several, or one of the two that a split was cut into."""
    key = call.positional[0] if call.positional else None
    if not isinstance(key, str):
        return
    if rows.held_out is not None:
        rows.part = key
    elif rows.split is None:
        rows.split = key


def cut_in_two(rows: ScriptRows, call: CallValue) -> None:
    """The two parts of rows of which a share, drawn at random, is held out."""
    size = call.argument("test_size", 0)
    if isinstance(size, int | float) and not isinstance(size, bool):
        rows.held_out = size
    else:
        rows.held_out = 0.25  # which datasets takes where none is said
        if size is not None:
            rows.note(call, "a share that is no constant: dataset.split.eval=<slice>")


def select_rows(rows: ScriptRows, call: CallValue) -> None:
    """The first rows, where their number is a constant."""
    indices = call.positional[0] if call.positional else None
    is_range = isinstance(indices, CallValue) and indices.last == "range"
    bounds = indices.positional if isinstance(indices, CallValue) and is_range else ()
    if len(bounds) == 2 and bounds[0] == 0:
        bounds = bounds[1:]
    if len(bounds) == 1 and isinstance(bounds[0], int):
        rows.limit = bounds[0]
    else:
        rows.note(call, "rows by number: dataset.split.train=<slice>")


def take_first(rows: ScriptRows, call: CallValue) -> None:
    """The first rows."""
    count = call.positional[0] if call.positional else None
    if isinstance(count, int):
        rows.limit = count
    else:
        rows.note(call, "a number that is no constant: dataset.limit.train=<rows>")


def take_slice(rows: ScriptRows, call: CallValue) -> None:
    """The rows up to a number, as a slice of Python's."""
    start, end = call.positional
    if start in (None, 0) and isinstance(end, int):
        rows.limit = end
    else:
        rows.note(call, "rows by number: dataset.split.train=<slice>")


def change_rows(rows: ScriptRows, call: CallValue) -> None:
    """A function of the user's own, but for one that writes turns as the template does."""
    function = call.argument("function", 0)
    if isinstance(function, Function) and _names_in(function) & {TEMPLATE_CALL}:
        rows.is_text = True
        rows.rendered_by = call.text
        return
    rows.is_text = rows.is_text or _writes_text(function)
    why = f"code of the script's own: {STEP}"
    if _writes_text(function):
        why += ", or template=<name> for rows of instruction, input and output"
    rows.note(call, why)


def _names_in(function: Function) -> set[str]:
    """The names and texts that the code of a function holds."""
    names = set()
    for node in walk(function.node):
        if isinstance(node, Attribute):
            names.add(node.attr)
        elif isinstance(node, Name):
            names.add(node.id)
        elif isinstance(node, Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _writes_text(function: Value) -> bool:
    """True for a function that makes a column ``text``."""
    return isinstance(function, Function) and "text" in _names_in(function)


def leave_rows_out(rows: ScriptRows, call: CallValue) -> None:
    """Rows that code of the script leaves out."""
    rows.note(call, f"rows are left out by code of the script: {STEP}")


def read_new_names(rows: ScriptRows, call: CallValue) -> None:
    """Columns with other names; a role is read from the column that has its name now."""
    old = call.argument("original_column_name", 0)
    new = call.argument("new_column_name", 1)
    renamed = old if isinstance(old, dict) else {old: new}
    if is_constant(renamed) and all(isinstance(name, str) for name in renamed):
        for name, role in renamed.items():
            words = f"dataset.columns.{role}={name}"
            rows.note(call, f"a column with another name: {words}")
        return
    rows.note(call, "columns with other names: dataset.columns.<role>=<column>")


def join_datasets(rows: ScriptRows, call: CallValue) -> None:
    """Several datasets, each row once."""
    parts = call.positional[0] if call.positional else call.argument("dsets")
    if not isinstance(parts, list):
        rows.note(call, "datasets that are joined: dataset=mixture, with a part for each")
        return
    for part in parts[1:]:
        other = read_script_rows(part)
        rows.others.append(other)
        rows.remarks += other.remarks
    if call.last == "interleave_datasets":
        rows.note(call, "rows in turn: dataset.weights")


def comprehend(rows: ScriptRows, call: CallValue) -> None:
    """Rows that a comprehension makes of each row."""
    rows.note(call, f"code of the script's own for each row: {STEP}")


def shuffle_rows(rows: ScriptRows, call: CallValue) -> None:
    """Rows are shuffled here as well, with the seed of the training."""


STEPS: Mapping[str, Callable[[ScriptRows, CallValue], None]] = {
    "[]": take_part,
    "[:]": take_slice,
    "for": comprehend,
    "train_test_split": cut_in_two,
    "select": select_rows,
    "take": take_first,
    "head": take_first,
    "map": change_rows,
    "filter": leave_rows_out,
    "rename_column": read_new_names,
    "rename_columns": read_new_names,
    "concatenate_datasets": join_datasets,
    "interleave_datasets": join_datasets,
    "shuffle": shuffle_rows,
    "sample": shuffle_rows,
}
