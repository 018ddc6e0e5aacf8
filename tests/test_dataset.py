"""Rows from files and from the hub: their content, their order, refusals and the cache."""

import csv
import functools
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import datasets
import pyarrow
import pytest
import yaml
from datasets import Audio, Dataset, Features, Image, IterableDataset, List, Value
from pyarrow import parquet

from runner.dataset import scan, scan_lines
from runner.dataset.convert import Conversion, RowRequest
from runner.dataset.converted_rows import convert_rows
from runner.dataset.dataset_check import LOADER, check_dataset
from runner.dataset.load import load_rows
from runner.dataset.loaded_rows import fingerprint
from runner.dataset.mix import mix_rows
from runner.dataset.remote_files import check_remote
from runner.dataset.row_source import RowSource
from runner.errors import DataError, EnvironmentFault, RunnerError
from runner.io.files import read_rows

ROOT = Path(__file__).parent.parent
SORT = "runner://dataset/toy_sort"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, and no progress bars."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder))
    datasets.disable_progress_bars()
    return folder


def exchange(number):
    return {"prompt": f"{number}+1=", "completion": f" {number + 1}"}


def pair(number):
    return {"prompt": f"{number}+1=", "chosen": f" {number + 1}", "rejected": f" {number}"}


def turns(number):
    chat = [{"role": "user", "content": f"{number}+1?"}]
    return {"messages": [*chat, {"role": "assistant", "content": str(number + 1)}]}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def file(tmp_path):
    """A hundred exchanges in a file."""
    return write(tmp_path / "rows.jsonl", map(exchange, range(100)))


def numbers(rows):
    return [int(row["prompt"].split("+")[0]) for row in rows]


def faults(path, error=DataError, **how):
    with pytest.raises(error) as caught:
        load_rows(str(path), **how)
    return caught.value.faults


# --- Files ----------------------------------------------------------------------------------------


def write_csv(path, rows, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


WRITERS = {
    "rows.jsonl": lambda path, rows: write(path, rows),
    "rows.ndjson": lambda path, rows: write(path, rows),
    "rows.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "lines.json": lambda path, rows: write(path, rows),
    "rows.csv": write_csv,
    "rows.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "rows.parquet": lambda path, rows: Dataset.from_list(rows).to_parquet(path),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_every_kind_of_file(tmp_path, name, packed):
    rows = [exchange(number) | {"note": 'a "quoted", word\nand a line'} for number in range(3)]
    path = tmp_path / name
    WRITERS[name](path, rows)
    if packed and path.suffix != ".parquet":
        path = path.rename(path.with_name("unpacked"))
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / f"{name}.gz"
    train, evals = load_rows(str(path), shuffle=False)
    assert list(train) == rows
    assert evals is None


def test_a_packed_file_may_end_in_the_zeros_of_a_tape(tmp_path):
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(LINE * 3) + bytes(512))
    train, _ = load_rows(str(tmp_path / "rows.jsonl.gz"), shuffle=False)
    assert len(train) == 3


def test_text_in_csv_stays_unchanged(tmp_path):
    text = 'prompt,completion,label\n1+1=, 02,true\nand?,NA,FALSE\n"say ""hi""",None,1\n'
    (tmp_path / "rows.csv").write_text(text)
    train, _ = load_rows(str(tmp_path / "rows.csv"), shuffle=False)
    assert train["completion"][:] == [" 02", "NA", "None"]
    judged, _ = load_rows(str(tmp_path / "rows.csv"), to="demonstration", shuffle=False)
    assert judged["prompt"][:] == ["1+1=", 'say "hi"']


def test_a_folder_has_a_split_for_each_file_name(tmp_path):
    write(tmp_path / "train-00000-of-00002.jsonl", [exchange(0)])
    write(tmp_path / "train-00001-of-00002.jsonl", [exchange(1)])
    write(tmp_path / "my-eval.jsonl", [exchange(2)])
    (tmp_path / "README.md").write_text("About.")
    split = {"train": "train", "eval": "my_eval"}
    train, evals = load_rows(str(tmp_path), split=split, shuffle=False)
    assert (numbers(train), numbers(evals)) == ([0, 1], [2])


def test_a_file_that_is_held_out_by_its_name_is_not_trained_on(tmp_path):
    for number, name in enumerate(("a", "b", "c")):
        write(tmp_path / f"{name}.jsonl", [exchange(number)])
    train, evals = load_rows(str(tmp_path), split={"train": "train", "eval": "b"}, shuffle=False)
    assert (numbers(train), numbers(evals)) == ([0, 2], [1])
    assert numbers(load_rows(str(tmp_path), shuffle=False)[0]) == [0, 1, 2]


def test_a_pattern_is_one_split(tmp_path):
    for number in range(3):
        write(tmp_path / "deep" / f"{number}.jsonl", [exchange(number)])
    train, _ = load_rows(f"{tmp_path}/**/*.jsonl", shuffle=False)
    assert numbers(train) == [0, 1, 2]


@pytest.mark.slow
def test_shipped_rows_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train, evals = load_rows(SORT, split={"train": "train", "eval": "eval"})
    assert len(train) > len(evals) > 0
    assert "chosen" in train.column_names


def test_a_missing_file_names_the_nearest(tmp_path):
    path = write(tmp_path / "rows.jsonl", [exchange(0)])
    (fault,) = faults(tmp_path / "row.jsonl")
    assert "there is no row.jsonl" in fault.found
    assert fault.fix == f"dataset.path={path}"
    (fault,) = faults(tmp_path / "nowhere" / "rows.jsonl")
    assert fault.found == f"there is no folder {tmp_path / 'nowhere'}"
    (fault,) = faults(tmp_path / "*.csv")
    assert "no file matches" in fault.found


def test_folders_that_hold_no_rows(tmp_path):
    assert faults(tmp_path)[0].found == "an empty folder"
    write(tmp_path / "a.jsonl", [exchange(0)])
    (tmp_path / "b.csv").write_text("prompt,completion\n1,2\n")
    assert "/*.csv" in faults(tmp_path)[0].fix
    Dataset.from_list([exchange(0)]).save_to_disk(tmp_path / "saved")
    assert "save_to_disk" in faults(tmp_path / "saved")[0].found
    (tmp_path / "rows.xlsx").write_text("x")
    assert ".jsonl" in faults(tmp_path / "rows.xlsx")[0].expected


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"
LINE = b'{"prompt": "1+1=", "completion": " 2"}\n'
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def turned_parquet():
    """A parquet file with other bytes in its rows."""
    with io.BytesIO() as file:
        parquet.write_table(
            pyarrow.Table.from_pylist([exchange(number) for number in range(99)]), file
        )
        data = bytearray(file.getvalue())
    data[4:200] = bytes(byte ^ 0x5A for byte in data[4:200])
    return bytes(data)


BROKEN = [
    # name, bytes, where behind the path, found
    ("empty.jsonl", b"", "", "no rows"),
    ("blank.jsonl", b"\n \n\n", "", "no rows"),
    ("null.jsonl", b"null\n" + LINE, ":1", "'null'"),
    ("later.jsonl", LINE + b"\nnull\n", ":3", "'null'"),
    ("broken.jsonl", LINE + b'{"prompt": \n' + LINE, ":2", "no JSON"),
    ("torn.jsonl", LINE + LINE[:20], ":2", "no JSON"),
    ("strings.jsonl", b'"a"\n', ":1", "'\"a\"'"),
    ("page.jsonl", b"<!DOCTYPE html>\n", "", "a web page"),
    ("latin.jsonl", LINE + '{"prompt": "é"}'.encode("latin-1"), ":2", "not UTF-8"),
    ("wide.jsonl", '{"prompt": "a"}'.encode("utf-16"), "", "text in UTF-16"),
    ("pointer.jsonl", POINTER, "", "git-lfs"),
    ("pointer.parquet", POINTER, "", "git-lfs"),
    ("torn.parquet", b"PAR1 and no more", "", "a broken footer"),
    ("list.json", b'[null, {"prompt": "a"}]', " row 0", "null"),
    ("torn.json", b'[{"prompt": "a"},\n{"pro', ":2", "no JSON"),
    ("nested.json", b'{\n"data": [{"prompt": "a"}]}', "", "one object with the keys data"),
    ("none.json", b"[]", "", "no rows"),
    ("deep.json", b"[\n" + DEEP + b"]", "", "no JSON"),
    ("deep.jsonl", DEEP + b"\n", ":1", "no JSON"),
    ("half.json", b'[{"prompt": "a"}, {"prompt": "\\ud83d"}]', " row 1", "half a surrogate pair"),
    ("empty.json", b"", "", "no rows"),
    ("ragged.csv", b"prompt,completion\na,b\na,b,c\n", ":3", "3 fields"),
    ("short.csv", b"prompt,completion\na\n", ":2", "1 fields"),
    ("lines.csv", b'prompt,completion\n"a\nof\nthree",b\na\n', ":5", "1 fields"),
    ("head.csv", b"prompt,completion\n", "", "no rows"),
    ("twice.csv", b"prompt,prompt\na,b\n", ":1", "the column 'prompt' twice"),
    ("latin.csv", "prompt,completion\né,b\n".encode("latin-1"), "", "not UTF-8"),
    # Without a modification time, which would give this case another id in each process.
    ("torn.jsonl.gz", gzip.compress(LINE * 50, mtime=0)[:-12], "", "broken gzip"),
    ("plain.jsonl.gz", LINE, "", "broken gzip"),
    ("turned.parquet", turned_parquet(), "", "broken rows"),
]


@pytest.mark.quick(23)
@pytest.mark.parametrize(
    ("name", "content", "where", "finding"), BROKEN, ids=lambda value: str(value)[:20]
)
@pytest.mark.parametrize("streaming", [False, True], ids=["read", "streamed"])
def test_bytes_that_hold_no_rows(tmp_path, name, content, where, finding, streaming):
    path = tmp_path / name
    path.write_bytes(content)
    fault = faults(path, streaming=streaming)[0]
    assert fault.where == f"{path}{where}"
    assert finding in fault.found


def test_only_the_first_faults_of_a_file_are_shown(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"null\n" * 100)
    assert len(faults(path)) == 5


def find_faults(path, **how):
    """The faults that the check before anything loads finds in a file."""
    return check_dataset({"_target_": LOADER, "path": str(path), **how}, "demonstration").faults


def packed(suffix, data):
    if suffix == ".zst":
        return pytest.importorskip("zstandard").compress(data)
    return gzip.compress(data, 1) if suffix else data


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_record_in_which_the_look_at_a_file_ends_is_no_fault(tmp_path, suffix):
    lines = "é" * 700_000 + "\n"  # of two bytes each; the look ends inside the third line
    to_json = functools.partial(json.dumps, ensure_ascii=False)
    short = {"prompt": lines, "completion": " 2"}
    long = {"prompt": lines * 4, "completion": " 2"}
    texts = {
        "rows.csv": f'prompt,completion\n1+1=, 2\n"{lines * 4}", 3\n',
        "head.csv": f'prompt,"{lines * 4}"\n1+1=, 2\n',
        "rows.jsonl": to_json(exchange(1)) + "\n" + to_json({"prompt": lines * 4}) + "\n",
        "one.jsonl": to_json(long) + "\n",
        "rows.json": to_json([short] * 4, indent=1),
        "line.json": to_json([long]),
    }
    for name, text in texts.items():
        path = tmp_path / (name + suffix)
        path.write_bytes(packed(suffix, text.encode()))
        assert find_faults(path) == [], path.name
    broken = tmp_path / f"broken.csv{suffix}"
    broken.write_bytes(packed(suffix, f"prompt,completion\n1\n{lines * 4}\n".encode()))
    assert next(fault.where for fault in find_faults(broken)) == f"{broken}:2"


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["line.jsonl", "lines.jsonl", "rows.json", "rows.csv"])
def test_the_look_at_a_packed_file_takes_little_memory(tmp_path, monkeypatch, name, suffix):
    monkeypatch.setattr(scan, "MAX_BYTES_READ", 1 << 20)
    monkeypatch.setattr(scan_lines, "MAX_BYTES_ROW", 2 << 20)
    row = json.dumps({"prompt": "1+1=" * 50, "completion": " 2"}).encode() + b"\n"
    size = 16 * scan.MAX_BYTES_READ
    parts = {
        "line.jsonl": (b'{"prompt": "', b"a", b'"}\n'),
        "lines.jsonl": (b"", row, b""),
        "rows.json": (b"[", row[:-1] + b",\n", row + b"]"),
        "rows.csv": (b"prompt,completion\n", b'1,"%s\n"\n' % (b"a" * 200), b""),
    }
    start, middle, end = parts[name]
    path = tmp_path / (name + suffix)
    path.write_bytes(packed(suffix, start + middle * (size // len(middle)) + end))
    tracemalloc.start()
    try:
        findings = [fault.found for fault in find_faults(path)]
        assert findings == (["a line of more than 2,097,152 bytes"] if name == "line.jsonl" else [])
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()


def test_a_mark_of_byte_order_is_no_fault(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + LINE)
    assert len(load_rows(str(path))[0]) == 1


def test_keys_for_the_hub_are_refused_for_files(file):
    where = [fault.where for fault in faults(file, config="main", revision="v1")]
    assert where == ["dataset.config", "dataset.revision"]


# --- Splits, order and limits ---------------------------------------------------------------------


def test_slices(file):
    split = {"train": "train[:90%]", "eval": "train[90%:]"}
    train, evals = load_rows(file, split=split, shuffle=False)
    assert numbers(train) == list(range(90))
    assert numbers(evals) == list(range(90, 100))
    train, evals = load_rows(file, split={"train": "train[5:7]+train[-2:]"}, shuffle=False)
    assert numbers(train) == [5, 6, 98, 99]
    assert evals is None


@pytest.mark.quick(2)
@pytest.mark.parametrize("cut", ["train[:0]", "train[:0%]", "train[200:]"])
@pytest.mark.parametrize("use", ["train", "eval"])
def test_a_slice_without_rows_is_refused(file, cut, use):
    split = {"train": "train"} | {use: cut}
    for to in (None, "demonstration"):
        (fault,) = faults(file, split=split, to=to)
        assert fault.where == f"dataset.split.{use}"
        assert fault.found.startswith("no row: ")
        words = dict(re.findall(r"dataset.split.(\w+)='(.*?)'", fault.fix))
        assert use in words
        assert load_rows(file, split=split | words, to=to)


def test_a_stream_without_rows_is_refused():
    stream = IterableDataset.from_generator(lambda: iter(()))
    with pytest.raises(DataError, match="no row"):
        RowSource("rows", None, ("train",), {"train": stream}).read(
            "train", "train", None, 0, RowRequest(to="demonstration")
        )


def test_named_sets_and_no_training_rows(file):
    split = {"train": None, "eval": {"low": "train[:2]", "high": "train[-2:]"}}
    train, evals = load_rows(file, split=split, limit={"eval": 1})
    assert train is None
    assert {name: numbers(rows) for name, rows in evals.items()} == {
        "low": [0],
        "high": [98],
    }
    _, evals = load_rows(file, split={"train": "train", "eval": {"only": "train[:2]"}})
    assert list(evals) == ["only"]


def test_a_missing_split_lists_those_there(tmp_path):
    for name in ("train", "validation"):
        write(tmp_path / f"{name}.jsonl", [exchange(0)])
    (fault,) = faults(tmp_path, split={"train": "train", "eval": "validaton[:5]"})
    assert fault.where == "dataset.split.eval"
    assert "train" in fault.expected
    assert fault.fix == "dataset.split.eval=validation"
    path = write(tmp_path / "one" / "rows.jsonl", [exchange(0)])
    (fault,) = faults(path, split={"train": "train", "eval": "test"})
    assert fault.fix == "dataset.split.train='train[:90%]' dataset.split.eval='train[90%:]'"
    (fault,) = faults(path, split={"train": "tain", "eval": None})
    assert fault.fix == "dataset.split.train=train"
    for cut, share in ((0.2, "80%"), (50, "90%"), (["a"], "90%")):
        (fault,) = faults(path, split={"train": "train", "eval": cut})
        assert (
            fault.fix
            == f"dataset.split.train='train[:{share}]' dataset.split.eval='train[{share}:]'"
        )
    (fault,) = faults(path, split={"train": "train", "valid": "train"})
    assert fault.where == "dataset.split"
    for cut in ("train[1:]", "train[1:x]", "train[:"):
        (fault,) = faults(path, split={"train": cut})
        assert fault.where == "dataset.split.train"
        assert cut in fault.found


def test_training_rows_are_shuffled_before_the_limit(file):
    split = {"train": "train[:50]", "eval": "train[50:]"}
    load = functools.partial(load_rows, file, split=split, limit={"train": 20, "eval": 5})
    train, evals = load(seed=1)
    assert len(train) == 20
    assert max(numbers(train)) > 20
    assert max(numbers(train)) < 50
    assert numbers(evals) == [50, 51, 52, 53, 54]
    assert numbers(load(seed=1)[0]) == numbers(train) != numbers(load(seed=2)[0])
    assert numbers(load(shuffle=False)[0]) == list(range(20))


def test_an_unknown_use_of_a_source_of_its_own_is_refused(file):
    """The words to type are shown, whatever braces they contain."""
    (fault,) = faults(file, split={"evals": {"_target_": "x", "path": "y"}})
    assert fault.where == "dataset.split"
    assert fault.fix.startswith("dataset.split.eval=")


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_limits_are_whole_numbers(file, count):
    (fault,) = faults(file, limit={"eval": count})
    assert fault.where == "dataset.limit.eval"


def test_held_out_rows_that_are_trained_on_are_reported(tmp_path, caplog):
    rows = [exchange(number % 8) for number in range(10)]
    path = write(tmp_path / "rows.jsonl", rows)
    load_rows(path, split={"train": "train[:8]", "eval": "train[7:]"}, to="demonstration")
    assert "3 of 3 held-out rows are also trained on" in caplog.text
    caplog.clear()
    load_rows(path, split={"train": "train[:7]", "eval": "train[7:8]"}, to="demonstration")
    assert caplog.text == ""


# --- Conversion -----------------------------------------------------------------------------------


def test_rows_come_in_the_form_of_the_trainer(file):
    train, evals = load_rows(file, split={"train": "train", "eval": "train[:2]"}, to="messages")
    assert train.column_names == evals.column_names == ["messages"]
    assert evals[1]["messages"] == [
        {"role": "user", "content": "1+1="},
        {"role": "assistant", "content": "2"},
    ]
    assert load_rows(file)[0].column_names == ["prompt", "completion"]


def test_bad_rows_have_the_number_that_they_have_in_the_source(tmp_path):
    rows = [exchange(number) for number in range(40)]
    rows[33]["completion"] = None
    path = write(tmp_path / "rows.jsonl", rows)
    summary, fault = faults(path, to="demonstration", seed=3)
    assert summary.found == "1 of 40 rows are bad"
    assert fault.where == f"{path} train row 33, completion"
    _, fault = faults(path, split={"train": "train[30:]"}, to="demonstration")
    assert fault.where == f"{path} train[30:] row 3, completion"
    # Nothing half-good was cached: the second time it is refused again.
    assert len(faults(path, to="demonstration", seed=3)) == 2
    train, _ = load_rows(path, to="demonstration", bad_rows="drop")
    assert len(train) == 39
    assert faults(path, bad_rows="keep")[0].where == "dataset.bad_rows"


def test_no_row_left_is_a_fault(tmp_path):
    path = write(tmp_path / "rows.jsonl", [exchange(0) | {"completion": ""}] * 2)
    assert faults(path, to="demonstration")[0].found == "2 of 2 rows are bad"
    rows = [exchange(0) | {"label": False}] * 2
    path = write(tmp_path / "judged.jsonl", rows)
    assert (
        faults(path, to="demonstration")[0].found
        == "none of 2 rows is left, 2 because the label is false"
    )


def test_columns_whose_first_batch_is_null(tmp_path):
    rows = [exchange(number) | {"label": number > 1200} for number in range(1300)]
    path = write(tmp_path / "rows.jsonl", rows)
    train, _ = load_rows(path, to="prompt", shuffle=False)
    assert train["reference"][0] is None
    assert train["reference"][-1] == " 1300"


def test_rewards_get_their_columns(tmp_path):
    rows = [{"question": "1+1?", "answer": "#### 2", "level": 1}] * 2
    path = write(tmp_path / "rows.jsonl", rows)
    train, _ = load_rows(path, to="prompt")
    prompt = [{"role": "user", "content": "1+1?"}]
    row = {"prompt": prompt, "reference": "#### 2", "answer": "#### 2", "level": 1}
    assert train[0] == row | {"question": "1+1?"}
    train, _ = load_rows(path, to="prompt", keep=("answer",))
    assert train[0] == {"prompt": prompt, "reference": "#### 2", "answer": "#### 2"}


PICTURED = {"picture": Image(), "sounds": List(Audio())}


@pytest.mark.parametrize("name", PICTURED)
def test_unnamed_pictures_and_sounds_are_refused_by_name_and_by_type(tmp_path, monkeypatch, name):
    # after a stream that is left early
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)
    features = Features({"text": Value("string"), name: PICTURED[name]})
    Dataset.from_dict({"text": ["1"], name: [None]}, features=features).to_parquet(
        tmp_path / "rows.parquet"
    )
    for streaming in (False, True):
        (fault,) = faults(tmp_path / "rows.parquet", to="demonstration", streaming=streaming)
        assert f"dataset.without=[{name}]" in fault.fix
        rows, _ = load_rows(
            str(tmp_path / "rows.parquet"), to="demonstration", streaming=streaming, without=[name]
        )
        assert list(rows) == [{"text": "1"}]
    assert faults(tmp_path / "rows.parquet", without=["txt"])[0].fix == "dataset.without=[text]"


def test_calls_of_tools_survive_with_their_own_arguments(tmp_path):
    def call(**arguments):
        return [{"type": "function", "function": {"name": "f", "arguments": arguments}}]

    rows = [
        {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "tool_calls": call(**arguments)},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": arguments}}],
        }
        for arguments in ({"x": 1}, {"y": "z"})
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    train, _ = load_rows(path, to="demonstration", shuffle=False)
    assert [row["messages"][1]["tool_calls"] for row in train] == [call(x=1), call(y="z")]
    assert [row["tools"] for row in train] == [row["tools"] for row in rows]


def test_a_text_that_looks_like_json_stays_a_text_beside_turns_in_parts(tmp_path):
    texts = ["2", "null", '"quoted"', '{"a": 1}', "[1]", "plain"]
    turns = [{"role": "user", "content": [{"type": "text", "text": "7"}]}]
    rows = [{"messages": [*turns, {"role": "assistant", "content": text}]} for text in texts]
    train, _ = load_rows(str(write(tmp_path / "rows.jsonl", rows)), to="messages", shuffle=False)
    assert [[turn["content"] for turn in row["messages"]] for row in train] == [
        ["7", text] for text in texts
    ]


DATE = "2020-01-02"
AS_WRITTEN = {
    "dates": [DATE, "2020-01-03"],
    "moments": ["2020-01-02 03:04", "2020-01-02T03:04:05Z", "2020-01-02T03:04:05+02:00"],
    "times": ["03:04:05", "12:30", "P1D", "20200102"],
    "numbers": ["007", "1e5", "12345678901234567890", "true", "null", "NaN"],
    "null first": [None, DATE],
    "text between": [DATE, "soon", None],
    "list": [[DATE], [], ["2020-01-03"]],
    "in objects": [{"at": [{"day": DATE, "share": 0.12345678901234567}]}] * 2,
    "several types": [DATE, 3, "3", {"day": DATE}],
}
WRITERS_OF_VALUES = {
    "rows.jsonl": lambda path, rows: write(path, rows),
    "rows.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "rows.jsonl.gz": lambda path, rows: path.write_bytes(
        gzip.compress("\n".join(map(json.dumps, rows)).encode())
    ),
}


@pytest.mark.quick(12)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("file", WRITERS_OF_VALUES)
@pytest.mark.parametrize("values", AS_WRITTEN)
def test_a_text_of_json_stays_the_text_that_it_is(tmp_path, values, file, streaming):
    rows = [
        {"prompt": str(number), "value": value} for number, value in enumerate(AS_WRITTEN[values])
    ]
    WRITERS_OF_VALUES[file](tmp_path / file, rows)
    how = {"to": "prompt", "keep": ["value"], "shuffle": False, "streaming": streaming}
    train, _ = load_rows(str(tmp_path / file), **how)
    assert [row["value"] for row in train] == AS_WRITTEN[values]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "rows.parquet"])
def test_a_date_stays_a_text_in_other_files(tmp_path, name):
    table = pyarrow.table({"prompt": ["1", "2"], "value": [DATE, "2020-01-03"]})
    if name == "rows.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        comma = "," if name == "rows.csv" else "\t"
        lines = [comma.join(row.values()) for row in table.to_pylist()]
        (tmp_path / name).write_text("\n".join([comma.join(table.column_names), *lines]))
    train, _ = load_rows(str(tmp_path / name), to="prompt", keep=["value"], shuffle=False)
    assert train["value"][:] == [DATE, "2020-01-03"]


@pytest.mark.parametrize(
    "files", [("one.jsonl", "two.jsonl"), ("two.jsonl", "one.jsonl"), ("one.json", "two.json")]
)
def test_dates_in_one_file_and_other_texts_in_the_next_stay_what_they_are(tmp_path, files):
    texts = {"one": [DATE, "2020-01-03"], "two": ["soon", "2020-01-04"]}
    for name in files:
        rows = [{"prompt": "1", "value": value} for value in texts[name.partition(".")[0]]]
        WRITERS_OF_VALUES["rows.jsonl" if name.endswith("l") else "rows.json"](
            tmp_path / name, rows
        )
    paths = [str(tmp_path / name) for name in files]
    train, _ = load_rows(paths, to="prompt", keep=["value"], shuffle=False)
    assert train["value"][:] == [text for name in files for text in texts[name.partition(".")[0]]]


@pytest.mark.slow
def test_texts_that_look_like_dates_further_down_in_a_large_file_stay_what_they_are(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("runner.dataset.exact.ONE_BLOCK", 0)
    rows = [{"prompt": "1", "value": value} for value in ["n/a"] * 6 + [DATE] * 6]
    path = write(tmp_path / "rows.jsonl", [row | {"pad": "x" * (2 << 20)} for row in rows])
    train, _ = load_rows(path, to="prompt", keep=["value"], shuffle=False)
    assert train["value"][:] == [row["value"] for row in rows]


def test_a_key_that_only_later_rows_have_is_not_lost_where_rows_are_read_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("runner.dataset.exact.BATCH", 1)
    write(tmp_path / "one.jsonl", [{"prompt": "1", "value": {"day": DATE}}])
    write(tmp_path / "two.jsonl", [{"prompt": "2", "value": {"day": DATE, "hour": "3"}}])
    with pytest.raises(DataError, match="value has a key that the first rows do not have: hour"):
        load_rows(
            [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")], to="prompt", keep=["value"]
        )


@pytest.mark.slow
def test_rows_whose_answers_are_dates_train_and_a_reward_gets_them_as_text(runner):
    rows = [{"question": f"{number}?", "answer": f"2020-01-0{number}"} for number in range(1, 9)]
    write(runner.folder / "rows.jsonl", 2 * rows)
    (runner.folder / "mine.py").write_text(
        "def dated(completions, reference, **columns):\n"
        "    assert all(isinstance(text, "
        "str) and text.startswith('2020-01-0') for text in reference)\n"
        "    return [float(len(str(text))) for text in completions]\n"
    )
    assert "2020-01-0" in runner("preview", "trainer=sft", "dataset=rows.jsonl").stdout
    words = ("trainer=grpo", "dataset=rows.jsonl", "metric=none", "trainer.args.max_steps=1")
    small = ("num_generations=2", "max_completion_length=4", "per_device_train_batch_size=4")
    words_of_reward = ("reward._target_=mine.dated", "allow=[mine]")
    small_words = (f"trainer.args.{setting}" for setting in (*small, "logging_steps=1"))
    runner(*words, *small_words, *words_of_reward)
    (metrics,) = runner.folder.glob("outputs/*/*/metrics.jsonl")
    logged = {name for line in read_rows(metrics) for name in line}
    assert {name for name in logged if name.startswith("rewards/") and "mean" in name} == {
        "rewards/dated/mean"
    }


@pytest.mark.parametrize("batch", [2, 8])
def test_every_batch_of_judged_answers_holds_good_and_bad_ones(tmp_path, batch):
    path = write(tmp_path / "rows.jsonl", map(pair, range(40)))
    train, evals = load_rows(path, split={"train": "train", "eval": "train"}, to="unpaired")
    for rows in (train, evals):
        labels = rows["label"][:]
        assert len(labels) == 80
        assert sum(labels) == 40
        for start in range(0, 80, batch):
            assert sum(labels[start : start + batch]) == batch // 2
    # A batch of two compares answers to different questions, as the KL term of KTO needs.
    prompts = numbers(train)
    same = sum(first == second for first, second in zip(prompts[::2], prompts[1::2], strict=True))
    assert same < 8
    sorted_by_label = [exchange(n) | {"label": n < 30} for n in range(40)]
    path = write(tmp_path / "judged.jsonl", sorted_by_label)
    labels = load_rows(path, to="unpaired")[0]["label"][:]
    assert [sum(labels[start : start + 4]) for start in range(0, 40, 4)] == [3] * 10


def test_labels_that_are_all_the_same_are_reported(tmp_path, caplog):
    path = write(tmp_path / "rows.jsonl", [exchange(n) | {"label": True} for n in range(4)])
    load_rows(path, to="unpaired")
    assert "all labels are the same" in caplog.text


def test_a_stream_is_converted_batch_by_batch(tmp_path):
    rows = [exchange(number) | {"extra": 1} for number in range(30)]
    path = write(tmp_path / "rows.jsonl", rows)
    train, evals = load_rows(
        path,
        split={"train": "train", "eval": "train"},
        limit={"train": 10, "eval": 5},
        streaming=True,
        to="demonstration",
    )
    assert isinstance(train, IterableDataset)
    assert [row["prompt"] for row in evals] == [f"{number}+1=" for number in range(5)]
    shown = list(train)
    assert len(shown) == 10
    assert list(shown[0]) == ["prompt", "completion"]
    assert shown == list(train)
    assert numbers(shown) != sorted(numbers(shown))
    assert fingerprint(train) == "stream"
    (fault,) = faults(path, split={"train": "train[:5]"}, streaming=True)
    assert "dataset.limit.train" in fault.fix


def test_a_stream_tells_its_bad_rows(tmp_path):
    path = write(tmp_path / "rows.jsonl", [exchange(0), exchange(1) | {"completion": None}])
    train, _ = load_rows(path, streaming=True, shuffle=False, to="demonstration")
    with pytest.raises(DataError) as caught:
        list(train)
    assert caught.value.faults[1].where == f"{path} train row 1, completion"


# --- The cache ------------------------------------------------------------------------------------

AGAIN = """
import json, sys
from runner.dataset import load, loaded_rows
from runner.dataset.convert import Conversion
seen = []
batch = Conversion.batch
Conversion.batch = lambda self, *how: seen.append(1) or batch(self, *how)
how = json.loads(sys.argv[2])
train, evals = load.load_rows(sys.argv[1], split={"train": "train", "eval": "train[:9]"}, **how)
print(json.dumps([len(seen), train._fingerprint, loaded_rows.fingerprint(train), train[0]]))
"""


def again(path, home, **how):
    """The work of a new process: batches converted, cache key, content hash, first row."""
    home.mkdir(exist_ok=True)
    variables = {"HF_HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(len(how))}
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, path, json.dumps(how)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_second_process_finds_the_rows_converted(tmp_path):
    path = write(tmp_path / "rows.jsonl", map(turns, range(50)))
    home = tmp_path / "home"
    how = {"to": "messages", "seed": 4}
    batches, *made = again(path, home, **how)
    files = sorted(home.rglob("*.arrow"))
    assert (batches, *made) == (2, *made)
    assert again(path, home, **how) == [0, *made]
    assert sorted(home.rglob("*.arrow")) == files
    for change in ({"to": "prompt"}, {"system": "Count."}):
        batches, key, *_ = again(path, home, **how | change)
        assert batches > 0
        assert key != made[0]


def test_the_fingerprint_is_of_the_rows_alone(tmp_path):
    rows = [turns(number) for number in range(20)]
    first = write(tmp_path / "a" / "rows.jsonl", rows)
    second = write(tmp_path / "b.jsonl", rows)
    load = functools.partial(load_rows, shuffle=False, to="messages")
    print_of = fingerprint(load(first)[0])
    assert fingerprint(load(second)[0]) == print_of
    assert fingerprint(Dataset.from_list(rows)) == print_of
    assert fingerprint(load_rows(first, to="messages", seed=1)[0]) != print_of
    rows[7]["messages"][1]["content"] = "9"
    assert fingerprint(load(write(tmp_path / "c.jsonl", rows))[0]) != print_of


def test_an_edited_file_is_read_anew(tmp_path):
    path = write(tmp_path / "rows.jsonl", [exchange(1)])
    assert numbers(load_rows(path, to="demonstration")[0]) == [1]
    write(tmp_path / "rows.jsonl", [exchange(2), exchange(2)])
    assert numbers(load_rows(path, to="demonstration")[0]) == [2, 2]


def test_rows_in_memory_convert_too():
    rows = convert_rows(Dataset.from_list([pair(0)]), RowRequest(to="demonstration"), "rows")
    assert list(rows) == [exchange(0)]


def load_as_one_of_two(words):
    """The work of each of two processes: report who converts, and the rows."""
    from accelerate import PartialState

    batch = Conversion.batch
    rank = os.environ["RANK"]

    def noted(self, *how):
        print("converted by", rank, flush=True)
        return batch(self, *how)

    Conversion.batch = noted
    train, _ = load_rows(words[0], to="demonstration")
    print("rows", rank, len(train), train._fingerprint, flush=True)
    PartialState().destroy_process_group()


@pytest.mark.slow
def test_of_two_processes_one_converts(file, runner):
    both = [
        started.wait() for started in runner.start_two(file, door="test_dataset:load_as_one_of_two")
    ]
    assert [done.returncode for done in both] == [0, 0], both
    stdout = "".join(done.stdout for done in both)
    lines = [line.split() for line in stdout.splitlines()]
    assert [line for line in lines if line[0] == "converted"] == [["converted", "by", "0"]]
    rows = [line[2:] for line in lines if line[0] == "rows"]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert rows[0][0] == "100"


# --- Mixtures -------------------------------------------------------------------------------------


def part(path, **how):
    return functools.partial(load_rows, str(path), **how)


@pytest.fixture
def parts(tmp_path):
    """Forty exchanges from 0, and ten pairs from 1000, each with two rows held out."""
    few = write(tmp_path / "few.jsonl", map(pair, range(1000, 1010)))
    many = write(tmp_path / "many.jsonl", map(exchange, range(40)))
    split = {"train": "train", "eval": "train[:2]"}
    return {"many": part(many, split=split), "few": part(few, split=split)}


@pytest.mark.slow
def test_without_weights_every_row_comes_once_and_shuffled(parts):
    train, evals = mix_rows(parts, to="demonstration", seed=1)
    assert sorted(numbers(train)) == [*range(40), *range(1000, 1010)]
    assert numbers(train) != sorted(numbers(train))
    assert {name: numbers(rows) for name, rows in evals.items()} == {
        "many": [0, 1],
        "few": [1000, 1001],
    }
    assert numbers(mix_rows(parts, to="demonstration", seed=1)[0]) == numbers(train)


@pytest.mark.slow
def test_weights_are_the_shares_and_small_parts_repeat(parts):
    train, _ = mix_rows(parts, {"many": 1, "few": 1}, to="demonstration")
    drawn = numbers(train)
    assert set(drawn) == {*range(40), *range(1000, 1010)}
    assert 0.35 < sum(number >= 1000 for number in drawn) / len(drawn) < 0.65
    limited, evals = mix_rows(
        parts, {"many": 3, "few": 1}, limit={"train": 20, "eval": 1}, to="prompt"
    )
    assert len(limited) == 20
    assert [len(rows) for rows in evals.values()] == [1, 1]


def test_a_mixture_of_judged_answers_stays_even(parts):
    del parts["many"]
    train, _ = mix_rows(parts | {"again": parts["few"]}, to="unpaired")
    labels = train["label"][:]
    assert len(labels) == 40
    for n in range(0, 40, 2):
        assert sum(labels[n : n + 2]) == 1


@pytest.mark.slow
def test_a_reward_may_concern_one_part_only(tmp_path, parts):
    path = write(
        tmp_path / "own.jsonl", [exchange(n) | {"answer": "x", "noise": n} for n in range(3)]
    )
    none = write(tmp_path / "none.jsonl", [exchange(n) | {"answer": None} for n in range(2)])
    parts |= {"none": part(none), "own": part(path)}
    train, _ = mix_rows(parts, to="prompt", keep=("answer",), seed=2)
    assert set(train.column_names) == {"prompt", "reference", "answer"}
    assert train["answer"][:].count("x") == 3
    assert train["answer"][:].count(None) == 52
    with pytest.raises(DataError) as caught:
        mix_rows(parts, to="prompt", keep=("anser",))
    assert caught.value.faults[0].where == "reward"


def test_sets_of_a_part_are_named_by_both(tmp_path, file):
    split = {"train": "train", "eval": {"low": "train[:2]", "high": "train[-2:]"}}
    _, evals = mix_rows({"digits": part(file, split=split), "none": part(file)}, to="prompt")
    assert list(evals) == ["digits_low", "digits_high"]
    assert mix_rows({"none": part(file)})[1] is None


def test_parts_that_do_not_go_together(tmp_path, parts):
    chat = part(write(tmp_path / "chat.jsonl", map(turns, range(3))))
    with pytest.raises(DataError) as caught:
        mix_rows({"few": parts["few"], "chat": chat}, to="prompt")
    assert caught.value.faults[0].where == "dataset.parts.chat"
    assert "prompt is" in caught.value.faults[0].found
    for weights in ({"many": 1}, {"many": 1, "few": 0}, {"many": 1, "few": 1, "fewer": 1}):
        with pytest.raises(DataError) as caught:
            mix_rows(parts, weights)
        assert caught.value.faults[0].where.startswith("dataset.weights")
    with pytest.raises(DataError):
        mix_rows({})
    with pytest.raises(DataError):
        mix_rows(parts | {"held": part(tmp_path / "few.jsonl", split={"train": None})})


def test_margins_are_in_all_parts_or_in_none(tmp_path):
    far = part(write(tmp_path / "far.jsonl", [pair(1) | {"margin": 2}]))
    plain = part(write(tmp_path / "plain.jsonl", [pair(2)]))
    assert mix_rows({"far": far}, to="preference")[0]["margin"][:] == [2.0]
    with pytest.raises(DataError) as caught:
        mix_rows({"plain": plain, "far": far}, to="preference")
    assert caught.value.faults[0].fix == "dataset.parts.far.without=[margin]"


@pytest.mark.slow
def test_streams_mix(tmp_path, file):
    second = write(tmp_path / "other.jsonl", map(exchange, range(100, 120)))
    streams = {"one": part(file, streaming=True), "two": part(second, streaming=True)}
    for weights in (None, {"one": 1, "two": 2}):
        train, _ = mix_rows(streams, weights, to="demonstration", limit={"train": 30})
        drawn = numbers(train)
        assert len(drawn) == 30
        assert min(drawn) < 100 <= max(drawn)


# --- The hub --------------------------------------------------------------------------------------


def test_a_name_that_neither_the_cache_nor_the_folder_has():
    (fault,) = faults("nobody/nothing", EnvironmentFault)
    assert "neither a file or folder here nor in the cache" in fault.found
    assert "nobody/nothing" in fault.found
    assert "HF_HUB_OFFLINE" in fault.fix
    (fault,) = faults("rows/of/nobody")
    assert fault.where == "dataset.path"
    assert "a name on the hub" in fault.expected
    assert faults(" ")[0].found == "no path"


MENU = ROOT / "conf" / "dataset"


def option(name):
    """The arguments that a file of the menu passes to load_rows.

    Its own keys over those of hub.yaml.
    """
    keys = yaml.safe_load((MENU / "hub.yaml").read_text())
    keys |= yaml.safe_load((MENU / f"{name}.yaml").read_text())["dataset"]
    return {key: value for key, value in keys.items() if key not in ("_target_", "defaults")}


ON_THE_HUB = {
    "tldr": ("demonstration", 600, 500),
    "ultrafeedback": ("preference", 600, 220),
    "descriptiveness": ("preference", 540, 60),
    "sentiment": ("unpaired", 1080, 120),
    "firefly": ("messages", 100, 500),
    "gsm8k": ("prompt", 600, 220),
}


def tell_rows(words):
    """Print what load_rows gives for each job."""
    for how in json.loads(words[0]):
        try:
            train, evals = load_rows(**how)
            print(json.dumps([len(train), len(evals), evals[0]]))
        except RunnerError as error:
            print(json.dumps([error.code, str(error)]))


def tell_first(words):
    """Print the first row that load_rows gives."""
    train, _ = load_rows(**json.loads(words[0]))
    print(json.dumps(next(iter(train))))


def load_from(online_runner, jobs, **variables):
    """The result of load_rows for each job, in a process that knows the hub."""
    done = online_runner(json.dumps(jobs), door="test_dataset:tell_rows", **variables)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.dear("it may be the first to start the process from which commands are forked")
@pytest.mark.slow
def test_the_menu_against_a_hub_and_then_without_it(online_runner):
    jobs = [option(name) | {"to": to} for name, (to, _, _) in ON_THE_HUB.items()]
    loaded = load_from(online_runner, jobs)
    assert [counts for *counts, _ in loaded] == [counts for _, *counts in ON_THE_HUB.values()]
    tldr, ultrafeedback, descriptiveness, _, firefly, gsm8k = [row for *_, row in loaded]
    assert tldr["prompt"].endswith("TL;DR:")
    assert tldr["completion"].startswith(" ")
    assert set(ultrafeedback) == {"prompt", "chosen", "rejected"}
    for row in (ultrafeedback, descriptiveness):
        assert [turn["role"] for turn in row["prompt"] + row["chosen"]] == ["user", "assistant"]
    assert [turn["role"] for turn in firefly["messages"]] == ["user", "assistant"]
    assert gsm8k["reference"] == gsm8k["answer"]
    assert "####" in gsm8k["answer"]
    assert load_from(online_runner, jobs, HF_HUB_OFFLINE="1") == loaded


@pytest.mark.slow
def test_dates_in_json_of_the_hub_are_texts_and_so_they_are_without_it(hub, online_runner):
    rows = [{"prompt": str(number), "completion": DATE} for number in range(4)]
    hub.add_files(
        "dataset", "some/dates", {"train.jsonl": "\n".join(map(json.dumps, rows)).encode()}
    )
    jobs = [
        {"path": "some/dates", "split": {"train": "train", "eval": "train"}, "to": "demonstration"}
    ]
    assert load_from(online_runner, jobs) == [[4, 4, rows[0]]]
    assert load_from(online_runner, jobs, HF_HUB_OFFLINE="1") == [[4, 4, rows[0]]]
    stream = jobs[0] | {"streaming": True, "split": {"train": "train", "eval": None}}
    done = online_runner(json.dumps(stream), door="test_dataset:tell_first")
    assert json.loads(done.stdout)["completion"] == DATE


@pytest.mark.slow
def test_missing_repositories_configs_and_splits_are_named(online_runner):
    gsm8k = option("gsm8k")
    jobs = [
        gsm8k | {"config": None},
        gsm8k | {"split": {"train": "train", "eval": "validation"}},
        gsm8k | {"path": "openai/gsm9k"},
    ]
    (config, config_fault), (split, two), (name, three) = load_from(online_runner, jobs)
    assert (config, split, name) == (2, 2, 2)
    assert "socratic" in config_fault
    assert "dataset.config=<name>" in config_fault
    assert "dataset.split.eval" in two
    assert "one of train, test" in two
    assert "openai/gsm9k" in three
    assert "a name on the hub" in three


@pytest.mark.slow
def test_the_mixture_of_the_menu():
    keys = yaml.safe_load((MENU / "mixture.yaml").read_text())["dataset"]
    for node in keys["parts"].values():
        assert node.pop("_target_") == "runner.dataset.load.load_rows"
        assert node.pop("_partial_")
    parts = {name: functools.partial(load_rows, **node) for name, node in keys["parts"].items()}
    train, evals = mix_rows(parts, keys["weights"], limit={"train": 300}, to="preference")
    sorting = sum("Sort" in row["prompt"][0]["content"] for row in train)
    assert 150 < sorting < 250
    assert list(evals) == ["sort", "reviews"]


# --- What TRL makes of the rows -------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|start|>assistant\n' }}"
    "{% generation %}{{ m.content + '<|end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|start|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|pad|>", "<|start|>", "<|end|>", "<|other|>"]
WORDS = [*SPECIAL, "user", "assistant", "system", "Be", "brief."]
WORDS += ["hi", "hello", "2+2?", "2+2=", "4", "5", "6"]


@pytest.fixture(scope="module")
def tokenizer():
    """One token for each word, ignoring blanks, so that ids can be written as words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, "<|other|>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<|pad|>", eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def spelt(ids):
    """Token ids as words, a dash for what the loss leaves out."""
    return " ".join("-" if id == -100 else WORDS[id] for id in ids)


@pytest.fixture
def prepared(tmp_path, tokenizer):
    """The rows of a file as a trainer tokenises them."""
    import trl
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def prepare(trainer, rows, to, how=None, **reading):
        path = write(tmp_path / "rows.jsonl", rows)
        train, _ = load_rows(path, to=to, shuffle=False, **reading)
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": len(WORDS)}
        args = getattr(trl, f"{trainer}Config")(
            output_dir=str(tmp_path / "out"),
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            report_to="none",
            **how or {},
        )
        make = functools.partial(Qwen2ForCausalLM, Qwen2Config(**sizes, **heads))
        parts = {} if trainer == "SFT" else {"ref_model": make()}
        made = getattr(trl, f"{trainer}Trainer")(
            make(), args=args, train_dataset=train, processing_class=tokenizer, **parts
        )
        return made.train_dataset

    return prepare


@pytest.mark.slow
def test_the_loss_of_a_completion_in_turns(prepared):
    (row,) = prepared(
        "SFT", [{"input": "2+2?", "target": "4"}], "demonstration", system="Be brief."
    )
    lead = "<|start|> system Be brief. <|end|> <|start|> user 2+2? <|end|> <|start|> assistant"
    assert spelt(row["input_ids"]) == f"{lead} 4 <|end|>"
    assert spelt(row["labels"]) == "- " * len(lead.split()) + "4 <|end|>"


def test_the_loss_of_a_completion_in_text(prepared):
    (row,) = prepared("SFT", [{"prompt": "2+2=", "completion": " 4"}], "demonstration")
    assert spelt(row["input_ids"]) == "2+2= 4 <|end|>"
    assert spelt(row["labels"]) == "- 4 <|end|>"


def test_the_loss_of_several_turns(prepared):
    chat = [("user", "hi"), ("assistant", "hello"), ("user", "2+2?"), ("assistant", "4")]
    rows = [{"prompt": "hi", "messages": [{"role": role, "content": text} for role, text in chat]}]
    (row,) = prepared("SFT", rows, "demonstration", {"assistant_only_loss": True})
    assert spelt(row["input_ids"]) == (
        "<|start|> user hi <|end|> <|start|> assistant hello <|end|> "
        "<|start|> user 2+2? <|end|> <|start|> assistant 4 <|end|>"
    )
    assert spelt(row["labels"]) == ("- - - - - - hello <|end|> - - - - - - 4 <|end|>")


def test_answers_judged_bad_are_not_imitated(prepared):
    rows = [
        {"prompt": "2+2=", "completion": completion, "label": completion == " 4"}
        for completion in (" 5", " 4", " 6")
    ]
    assert [spelt(row["labels"]) for row in prepared("SFT", rows, "demonstration")] == [
        "- 4 <|end|>"
    ]


ASKED = "<|start|> user 2+2? <|end|> <|start|> assistant"


@pytest.mark.slow
def test_a_text_prompt_beside_whole_conversations_is_read_once(prepared):
    asked = [{"role": "user", "content": "2+2?"}]
    rows = [
        {
            "prompt": "2+2?",
            "chosen": [*asked, {"role": "assistant", "content": "4"}],
            "rejected": [*asked, {"role": "assistant", "content": text}],
        }
        for text in ("5", "4")
    ]
    (row,) = prepared("DPO", rows, "preference")
    ids = {name: spelt(row[name]) for name in ("prompt_ids", "chosen_ids", "rejected_ids")}
    assert ids == {"prompt_ids": ASKED, "chosen_ids": "4 <|end|>", "rejected_ids": "5 <|end|>"}
    good, bad = prepared("KTO", rows, "unpaired", {"per_device_train_batch_size": 2})
    assert [spelt(row["prompt_ids"]) for row in (good, bad)] == [ASKED] * 2
    assert (good["label"], spelt(good["completion_ids"])) == (True, "4 <|end|>")
    assert (bad["label"], spelt(bad["completion_ids"])) == (False, "5 <|end|>")


# --- Several files, and files elsewhere ---


def test_files_without_the_name_of_a_split_are_one_to_train_on(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / "both" / f"{name}.jsonl", [exchange(ord(name))])
    both = str(tmp_path / "both")
    rows, _ = load_rows(both, shuffle=False)
    assert rows["prompt"] == ["97+1=", "98+1="]
    rows, held_out = load_rows(both, split={"train": "a", "eval": "b"})
    assert (rows["prompt"], held_out["prompt"]) == (["97+1="], ["98+1="])
    write(tmp_path / "both" / "test.jsonl", [exchange(0)])
    # for the rows of the test must not be trained on
    with pytest.raises(DataError, match="'train' in"):
        load_rows(both)


@pytest.mark.parametrize(
    "names", ["latest devices household retrieval", "contest", "upheld developer", "pretrain b"]
)
def test_the_name_of_a_split_inside_a_word_is_none(tmp_path, names):
    for number, name in enumerate(names.split()):
        write(tmp_path / f"{name}.jsonl", [exchange(number)])
    train, evals = load_rows(str(tmp_path), shuffle=False)
    assert len(train) == len(names.split())
    assert evals is None


@pytest.mark.parametrize(
    "name", ["test", "my-test", "test_2", "a.dev", "Validation", "testset", "heldout", "eval 3"]
)
def test_a_split_that_is_not_to_train_on_is_known_by_a_word_of_its_name(tmp_path, name):
    write(tmp_path / "a.jsonl", [exchange(0)])
    write(tmp_path / f"{name}.jsonl", [exchange(1)])
    with pytest.raises(DataError, match="'train' in"):
        load_rows(str(tmp_path))


def test_files_whose_names_differ_in_the_split_alone_are_splits(tmp_path):
    for number, name in enumerate(("trainA", "testA")):
        write(tmp_path / f"{name}.jsonl", [exchange(number)])
    train, evals = load_rows(str(tmp_path), split={"train": "trainA", "eval": "testA"})
    assert (numbers(train), numbers(evals)) == ([0], [1])
    with pytest.raises(DataError, match="'train' in"):
        load_rows(str(tmp_path))


def test_a_list_of_files_is_one_to_train_on(tmp_path):
    files = [write(tmp_path / f"{name}.jsonl", [exchange(ord(name))]) for name in "ab"]
    node = {"_target_": LOADER, "path": files}
    assert check_dataset(node, "demonstration").faults == []
    assert load_rows(files, shuffle=False, to="demonstration")[0]["prompt"] == ["97+1=", "98+1="]
    third = tmp_path / "c.csv"
    third.write_text("prompt,completion\na,b\n")
    for odd, problem in (
        (str(third), ".csv and .jsonl files"),
        ("org/name", "not a file here"),
        (f"{files[0]}x", "there is no"),
    ):
        (fault,) = check_dataset(node | {"path": [*files, odd]}, "demonstration").faults
        assert problem in fault.found


def test_rows_behind_an_address_are_copied_once_and_again_when_they_have_changed(
    tmp_path, monkeypatch, capsys
):
    import fsspec

    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    memory = fsspec.filesystem("memory")
    line = json.dumps(exchange(1)).encode() + b"\n"
    memory.pipe({"/there/a.jsonl": line, "/there/deep/b.jsonl": line * 2})
    for path, count in (("a.jsonl", 1), ("", 3), ("**/*.jsonl", 3)):
        node = {"_target_": LOADER, "path": f"memory://there/{path}"}
        assert check_dataset(node, "demonstration").faults == []
        assert len(load_rows(node["path"])[0]) == count
    capsys.readouterr()
    load_rows("memory://there/a.jsonl")
    assert capsys.readouterr().out == ""
    memory.pipe("/there/a.jsonl", line * 4)
    assert len(load_rows("memory://there/a.jsonl")[0]) == 4
    assert "fetch     /there/a.jsonl" in capsys.readouterr().out
    with pytest.raises(DataError, match="no rows at"):
        load_rows("memory://there/c.jsonl")
    memory.pipe("/there/a.jsonl", b"null\n")
    with pytest.raises(DataError, match="a JSON object"):
        load_rows("memory://there/a.jsonl")
    with pytest.raises(DataError, match="nowhere:// is unknown"):
        check_remote("nowhere://bucket/rows.jsonl")


@pytest.mark.parametrize(
    ("path", "package"), [("s3://b/r.jsonl", "s3fs"), ("gs://b/r.jsonl", "gcsfs")]
)
def test_an_address_whose_library_is_missing_names_it(path, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvironmentFault) as missing:
        check_dataset({"_target_": LOADER, "path": path}, "demonstration")
    assert package in missing.value.faults[0].fix
    assert f"the extra {path[:2]}" in missing.value.faults[0].fix


def test_calls_of_tools_keep_arguments_of_any_kind():
    calls = [
        {"name": "add", "arguments": {"of": [1, 2]}},
        {"name": "name", "arguments": {"of": "x", "short": True}},
    ]
    turns = [
        [{"from": "human", "value": "?"}, {"from": "function_call", "value": json.dumps(call)}]
        for call in calls
    ]
    for names in ({}, {"from": "role", "value": "content"}):
        named = [
            {
                "conversations": [
                    {names.get(key, key): turn[key] for key in turn} for turn in turn_of_row
                ]
            }
            for turn_of_row in turns
        ]
        rows = convert_rows(Dataset.from_list(named), RowRequest(to="messages"), "rows")
        assert [row["messages"][1]["tool_calls"][0]["function"] for row in rows] == calls


def test_turns_by_either_names_mix(tmp_path):
    told = [
        {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": str(n)}]}
        for n in range(4)
    ]
    turns = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": str(n)}]}
        for n in range(4)
    ]
    parts = {
        "told": part(write(tmp_path / "told.jsonl", told)),
        "said": part(write(tmp_path / "said.jsonl", turns)),
    }
    train, _ = mix_rows(parts, to="messages")
    assert sorted(row["messages"][1]["content"] for row in train) == [*"00112233"]
