"""Files are whole or absent, and damage is told from health."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.io import files
from runner.io.filetype import undecodable


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    files.write_json(path, {"step": 1})

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"step": 2})
    assert [json.loads(p.read_text()) for p in tmp_path.iterdir()] == [{"step": 1}]


def test_a_reader_of_the_old_file_reads_all_of_it(tmp_path):
    path = tmp_path / "status.json"
    newer = tmp_path / "other.json"
    path.write_text("old and long")
    newer.symlink_to(path)
    with path.open() as reader:
        files.write_text(path, "new")
        assert reader.read() == "old and long"
    files.write_text(newer, "another")
    assert (path.read_text(), newer.read_text(), newer.is_symlink()) == ("new", "another", False)


def test_written_files_can_be_read_by_the_team(tmp_path):
    files.write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_json_is_strict(tmp_path):
    files.write_json(tmp_path / "a.json", {"loss": float("nan"), "inner": [float("inf"), 1.5]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": None, "inner": [None, 1.5]}


def test_a_torn_json_file_reads_as_none(tmp_path):
    (tmp_path / "a.json").write_text('{"step": ')
    assert files.read_json(tmp_path / "a.json") is None
    assert files.read_json(tmp_path / "missing.json") is None


def test_shipped_files_are_named_without_a_machine():
    assert files.shipped("runner://errors.py") == str(files.PACKAGE / "errors.py")
    assert files.shipped("org/name") == "org/name"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Rows of two sets at the steps 1 to 900, more than are read at a time."""
    path = tmp_path_factory.mktemp("table") / "rows.jsonl"
    for step in range(1, 901):
        files.replace_rows(
            path, [{"step": step, "set": "a"}, {"step": step, "set": "b"}], same=["step", "set"]
        )
    return path


@pytest.fixture
def table(written, tmp_path):
    """A copy of it, to write to."""
    return Path(shutil.copy(written, tmp_path / "rows.jsonl"))


def said(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_rows_are_added_without_a_look_at_those_of_earlier_steps(table):
    assert [(row["step"], row["set"]) for row in said(table)] == list(
        itertools.product(range(1, 901), "ab")
    )
    before = table.read_bytes()
    node = table.stat().st_ino
    table.write_bytes(b"x" + before[1:])
    files.replace_rows(table, [{"step": 901, "set": "é"}], same=["step", "set"])
    assert table.read_bytes() == b"x" + before[1:] + '{"step": 901, "set": "é"}\n'.encode()
    assert table.stat().st_ino == node


@pytest.mark.slow
def test_rows_replace_those_of_the_same_and_later_steps(table):
    files.replace_rows(table, [{"step": 900, "set": "a", "new": 1}], same=["step", "set"])
    assert said(table)[-2:] == [{"step": 900, "set": "b"}, {"step": 900, "set": "a", "new": 1}]
    files.replace_rows(table, [{"step": 100, "set": "b"}], same=["step", "set"])
    assert [row["step"] for row in said(table)[-3:]] == [99, 100, 100]
    assert len(said(table)) == 200
    files.replace_rows(table, [{"step": 1, "set": "c"}])
    assert said(table) == [{"step": 1, "set": "c"}]


@pytest.mark.parametrize("torn", [b"", b'{"step": 901, "set": "a"}\n{"step": 901, "se', b"\0\0\0"])
def test_a_half_row_goes_and_steps_that_are_taken_again_go(table, torn):
    content = table.read_bytes()
    table.write_bytes(content + torn)
    files.replace_rows(table, [{"step": 901, "set": "b"}], same=["step", "set"])
    assert said(table)[-1] == {"step": 901, "set": "b"}
    assert said(table)[1799] == {
        "step": 900,
        "set": "b",
    }
    table.write_bytes(content + torn)
    files.forget_rows(table, 900)
    assert table.read_bytes() == content
    files.forget_rows(table, 0)
    assert table.read_bytes() == b""


@pytest.mark.parametrize(
    "write",
    [
        lambda run: files.write_json(run / "scores.json", {}),
        lambda run: files.replace_rows(run / "metrics.jsonl", [{"step": 1}]),
        lambda run: files.write_text(run / "plots" / "loss.svg", ""),
    ],
)
def test_a_folder_that_was_deleted_is_not_made_again_half(tmp_path, write):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "run")
    assert not (tmp_path / "run").exists()


CHINESE = (
    '{"prompt": "中国的首都是哪里？请回答这个问题。", '
    '"completion": "中国的首都是北京，它是一个很大的城市。"}\n'
)


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        (
            (CHINESE * 9).encode("gbk"),
            "it looks like gb18030, which reads them as '中国的首都是哪里？",
            "iconv -f gb18030 ",
        ),
        (
            ("Привет, как дела? Хорошо, спасибо, я приду завтра вечером\n" * 9).encode("koi8-r"),
            "it looks like koi8-r",
            "iconv",
        ),
        (
            "你好，世界".encode("gbk"),
            "0xc4 0xe3 0xac (line 1) are not UTF-8",
            "iconv -f <its encoding> ",
        ),
        (b"text\n" * 5 + b"caf\xe9\n", "0xe9 (line 6) is not UTF-8", "(or mend line 6)"),
        (
            CHINESE.encode() * 3 + CHINESE.encode()[:20] + b"\n",
            "(line 4) is not UTF-8; the rest of it is",
            "sed -n 4p ",
        ),
        (
            CHINESE.encode().replace("城".encode(), b"\x9f"),
            "0x9f (line 1) is not UTF-8; the rest of it is",
            "sed -n 1p ",
        ),
        ("text\n".encode("utf-16"), "probably UTF-16", "iconv -f utf-16 "),
    ],
)
def test_of_bytes_that_are_not_utf_8_an_encoding_is_named_where_it_is_sure(
    tmp_path, text, problem, fix
):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(text)
    finding = undecodable(text, str(file))
    assert problem in finding.found
    assert fix in finding.fix
    if "iconv" in fix and "<" not in fix:
        assert subprocess.run(finding.fix, shell=True).returncode == 0
        assert file.read_text(encoding="utf-8")


def test_without_a_library_that_knows_encodings_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "charset_normalizer", None)
    assert (
        "<its encoding>" in undecodable((CHINESE * 9).encode("gbk"), str(tmp_path / "no file")).fix
    )


@pytest.mark.parametrize("letters", [0, 60_000, 70_000, 300_000])
@pytest.mark.parametrize("tail", ["", '{"step": 3, "text', "\0" * 100_000])
def test_the_last_whole_row_is_found_however_long_it_or_what_was_cut_off_is(
    tmp_path, letters, tail
):
    file = tmp_path / "samples.jsonl"
    rows = [{"step": step, "text": "x" * letters} for step in (1, 2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    assert files.read_last_row(file) == rows[-1]
    file.write_text(tail)
    assert files.read_last_row(file) == {}
