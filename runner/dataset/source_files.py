"""The files of a dataset on this machine: those that a path means, and the split of each."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from itertools import chain
from pathlib import Path

from runner.errors import DataError, Fault
from runner.io.files import shipped
from runner.io.filetype import (
    COMPRESSIONS,
    HEAD,
    sniff,
    special_file,
    suffix_of,
    without_compression,
)
from runner.schema.did_you_mean import files_beside, likeness
from runner.schema.text import to_override

# The reader of the datasets library for the files of each suffix.
READERS = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
# The options of each reader.
READER_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "json": {"parse_agent_traces": False},  # rows with certain columns would be taken for logs
    "csv": {"na_filter": False},  # an answer "None" or "NA" would be taken for nothing
    "parquet": {},
}
FILE_EXPECTED = (
    "a file that ends in .jsonl, .ndjson, .json, .csv, .tsv, .parquet; .gz or .zst may follow"
)
PATH_FIX = "dataset.path=<file, folder, pattern, or org/name>"
ENDLESS = ("/", "/proc/", "/sys/", "/dev/")  # below which nobody looks through all folders
MAX_NAMES_LISTED = 12
# Words that make the name of a file that of a split, with the borders of words that datasets
# knows. Where no name in a folder has such a word, all of its files are to train on.
SPLIT_WORD = re.compile(
    r"(?<![^\W\d_])"
    r"(train(ing)?|test(ing)?|val(id(ation)?)?|dev|eval(uation)?|held|hold|(held|hold)_?out|split)"
    r"(set|data|s)?(?![^\W\d_])",
    re.IGNORECASE,
)
# The same inside a word, for names such as trainA and testA, which differ in nothing else.
SPLIT_PART = re.compile(r"train|test|valid|val|dev|eval", re.IGNORECASE)
SAVED_TO_DISK = {"dataset_dict.json", "state.json"}

Paths = str | list[str]  # a file, folder or pattern, or several of them
FilesBySplit = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Files:
    """Files of one kind: the reader that they need, its options, and the files of each split."""

    reader: str
    splits: Mapping[str, list[str]]
    options: Mapping[str, object]

    @property
    def paths(self) -> list[Path]:
        """The files of all splits, each once."""
        names = dict.fromkeys(chain.from_iterable(self.splits.values()))
        return [Path(name) for name in names]

    def only(self, splits: Collection[str]) -> "Files":
        """The files of these splits.

        In a folder without names of splits each file is in ``train`` and in a split of its own
        name. Files that are asked for by their own name, to be held out, are then not trained on.
        """
        count = sum(map(len, self.splits.values()))
        in_several = count > len(self.paths)
        if not in_several or not self.splits.keys() >= set(splits):
            return self
        wanted = {name: self.splits[name] for name in splits}
        if "train" in wanted:
            others = [files for name, files in wanted.items() if name != "train"]
            named = set(chain.from_iterable(others))
            unnamed = [file for file in wanted["train"] if file not in named]
            wanted["train"] = unnamed or wanted["train"]
        return replace(self, splits=wanted)


def path_text(path: Paths) -> str:
    """A path, or several, as one text."""
    if isinstance(path, str):
        return path
    return ", ".join(map(str, path))


def first_bytes(path: Path) -> bytes:
    """The first bytes of a file, which show its type."""
    with open(path, "rb") as file:
        return file.read(HEAD)


def find_files(path: Paths) -> Files | None:
    """The files of a path; None for a name on the hub.

    A path is a file, a folder, a pattern, a list of these, or something that ships (``runner://``).

    A file, or all files of a pattern or a list together, are the split ``train``. In a folder each
    file is the split of its name, shards (``train-00000-of-00002``) being one; where no name is
    that of a split, all are ``train``.
    """
    if not isinstance(path, str):
        return _find_several(path)
    if not path.strip():
        fault = Fault(
            where="dataset.path",
            found="no path",
            expected="a file that ends in .jsonl, .json, .csv, .tsv or .parquet, or a name on the "
            "hub",
            fix=PATH_FIX,
        )
        raise DataError(fault)
    local = Path(shipped(path))
    special = special_file(local)
    if special:
        raise _no_such_file(path, special.found, f"{special.fix}, or dataset.path=<another one>")
    if "**" in str(local) and str(local).partition("*")[0] in ENDLESS:
        raise _no_such_file("dataset.path", f"{path}, which is the whole machine")
    if has_magic(str(local)) and not local.exists():
        matches = map(Path, glob(str(local), recursive=True))
        files = sorted(file for file in matches if file.is_file())
        if not files:
            raise _no_such_file(path, "no file matches the pattern")
        return _to_files(path, {"train": files})
    if local.is_dir():
        return _to_files(path, _splits_in(path, local))
    if local.is_file():
        return _to_files(path, {"train": [local]})
    is_path = local.is_absolute() or path.startswith((".", "~")) or suffix_of(local) in READERS
    if is_path:
        raise _missing_file(path, local)
    return None


def _find_several(paths: list[str]) -> Files:
    """The files of a list of paths, all of them to train on."""
    names: dict[str, None] = {}
    problem = "" if paths else "an empty list"
    for path in map(str, paths):
        files = find_files(path)
        if files and "train" in files.splits:
            names |= dict.fromkeys(files.splits["train"])
        elif not problem:
            problem = f"{path}, which is not a file here"
    if problem:
        fault = Fault(
            where="dataset.path",
            found=problem,
            expected="files of one kind; for several datasets a mixture",
            fix="dataset=mixture, with each under dataset.parts",
        )
        raise DataError(fault)
    named_files = [Path(name) for name in names]
    return _to_files(path_text(paths), {"train": named_files})


def _no_such_file(where: str, found: str, fix: str = PATH_FIX) -> DataError:
    """The error of a path at which there is no file of rows."""
    return DataError(
        Fault(
            where=where,
            found=found,
            expected=FILE_EXPECTED,
            fix=fix,
        )
    )


def _missing_file(path: str, local: Path) -> DataError:
    """The error of a path that does not exist.

    It names the folder that is missing, or the files beside it.
    """
    for folder in reversed(local.parents):
        if not folder.is_dir():
            return _no_such_file(path, f"there is no folder {folder}")
    neighbours = files_beside(local, (*READERS, *COMPRESSIONS))
    if not neighbours:
        return _no_such_file(path, f"there is no {local.name}")
    nearest = neighbours[0]
    fix = "dataset.path=<one of them>"
    if len(neighbours) == 1 or likeness(local.stem, Path(nearest).stem) > 0.5:
        fix = to_override("dataset.path", nearest)
    fault = Fault(
        where=path,
        found=f"there is no {local.name}",
        expected=f"one of {_listed(neighbours)}",
        fix=fix,
    )
    return DataError(fault)


def _splits_in(path: str, folder: Path) -> dict[str, list[Path]]:
    """The files of each split in a folder, or else in the folder ``data`` in it."""
    names = sorted(file.name for file in folder.iterdir())
    if SAVED_TO_DISK & set(names):
        fix = "load_from_disk(folder).to_parquet(file) in Python, then dataset.path=<file>"
        raise _no_such_file(path, "a folder that save_to_disk wrote", fix)
    for inside in (folder, folder / "data"):
        splits: dict[str, list[Path]] = {}
        for file in sorted(inside.glob("*")):
            if suffix_of(file) in READERS:
                stem = Path(without_compression(file.name)).stem
                name = re.sub(r"-\d+-of-\d+$", "", stem)
                split_name = re.sub(r"\W", "_", name)
                splits.setdefault(split_name, []).append(file)
        if splits and not _are_splits(splits):
            all_files = list(chain.from_iterable(splits.values()))
            return {"train": all_files, **splits}
        if splits:
            return splits
    raise _no_such_file(path, f"a folder with {_listed(names)}" if names else "an empty folder")


def _are_splits(names: Collection[str]) -> bool:
    """True for names of files some of which say that they are a split."""
    if any(SPLIT_WORD.search(name) for name in names):
        return True
    rests = [SPLIT_PART.sub("", name) for name in names if SPLIT_PART.search(name)]
    return len(set(rests)) < len(rests)


def _to_files(path: str, splits: FilesBySplit) -> Files:
    """The files of some splits with the reader that all of them need.

    Raises DataError for files of another kind, or of several.
    """
    files = list(chain.from_iterable(splits.values()))
    suffixes = sorted({suffix_of(file) for file in files})
    if not READERS.keys() >= set(suffixes):
        raise _unknown_suffix(path, files[0])
    # Tabs are an option of the reader of csv, so .tsv is a kind of its own.
    kinds = {(READERS[suffix], suffix == ".tsv") for suffix in suffixes}
    if len(kinds) > 1:
        # The fix chooses the files of the first kind.
        if Path(shipped(path)).is_dir():
            fix = f"dataset.path='{path.rstrip('/')}/*{suffixes[0]}'"
        else:
            of_first_kind = [str(file) for file in files if suffix_of(file) == suffixes[0]]
            fix = f"dataset.path=[{','.join(of_first_kind)}]"
            fix += ", or dataset=mixture with each under dataset.parts"
        fault = Fault(
            where=path,
            found=f"{' and '.join(suffixes)} files",
            expected="files of one kind",
            fix=fix,
        )
        raise DataError(fault)
    reader, has_tabs = kinds.pop()
    options = dict(READER_OPTIONS[reader])
    if has_tabs:
        options["sep"] = "\t"
    names = {}
    for name, split_files in splits.items():
        names[name] = list(map(str, split_files))
    return Files(reader, names, options)


def _unknown_suffix(path: str, file: Path) -> DataError:
    """The error of a file that no reader takes; a pickle is named as what it is."""
    found = f"a file of another kind: {file.suffix or 'no suffix'}"
    finding = sniff(first_bytes(file), str(file))
    if finding and "pickle" in finding.found:
        found = finding.found
    return _no_such_file(path, found, f"save its rows as {file.stem}.jsonl or {file.stem}.csv")


def _listed(names: list[str]) -> str:
    """The first names in words."""
    text = ", ".join(names[:MAX_NAMES_LISTED])
    return f"{text}, ..." if len(names) > MAX_NAMES_LISTED else text
