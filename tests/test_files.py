"""Files are whole or absent, and damage is told from health."""

import json
import os
import shutil
from pathlib import Path

import pytest

from runner.io import files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    files.write_json(path, {"step": 1})

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.write_json(path, {"step": 2})
    assert [json.loads(p.read_text()) for p in tmp_path.iterdir()] == [{"step": 1}]


def test_who_reads_the_old_file_reads_all_of_it(tmp_path):
    path, other = tmp_path / "status.json", tmp_path / "other.json"
    path.write_text("old and long")
    other.symlink_to(path)
    with path.open() as reader:
        files.write_text(path, "new")
        assert reader.read() == "old and long"
    files.write_text(other, "another")
    assert (path.read_text(), other.read_text(), other.is_symlink()) == ("new", "another", False)


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
        files.replace_rows(path, [{"step": step, "set": "a"}, {"step": step, "set": "b"}], same=["step", "set"])
    return path


@pytest.fixture
def table(written, tmp_path):
    """A copy of it, to be written on."""
    return Path(shutil.copy(written, tmp_path / "rows.jsonl"))


def said(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_rows_are_added_without_a_look_at_those_of_earlier_steps(table):
    assert [(row["step"], row["set"]) for row in said(table)] == [(n, s) for n in range(1, 901) for s in "ab"]
    before, node = table.read_bytes(), table.stat().st_ino
    table.write_bytes(b"x" + before[1:])
    files.replace_rows(table, [{"step": 901, "set": "é"}], same=["step", "set"])
    assert table.read_bytes() == b"x" + before[1:] + '{"step": 901, "set": "é"}\n'.encode()
    assert table.stat().st_ino == node


@pytest.mark.slow
def test_rows_take_the_place_of_those_of_the_same_step_and_of_later_ones(table):
    files.replace_rows(table, [{"step": 900, "set": "a", "new": 1}], same=["step", "set"])
    assert said(table)[-2:] == [{"step": 900, "set": "b"}, {"step": 900, "set": "a", "new": 1}]
    files.replace_rows(table, [{"step": 100, "set": "b"}], same=["step", "set"])
    assert [row["step"] for row in said(table)[-3:]] == [99, 100, 100] and len(said(table)) == 200
    files.replace_rows(table, [{"step": 1, "set": "c"}])
    assert said(table) == [{"step": 1, "set": "c"}]


@pytest.mark.parametrize("torn", [b"", b'{"step": 901, "set": "a"}\n{"step": 901, "se', b"\0\0\0"])
def test_a_half_row_goes_and_steps_that_are_taken_again_go(table, torn):
    whole = table.read_bytes()
    table.write_bytes(whole + torn)
    files.replace_rows(table, [{"step": 901, "set": "b"}], same=["step", "set"])
    assert said(table)[-1] == {"step": 901, "set": "b"} and said(table)[1799] == {"step": 900, "set": "b"}
    table.write_bytes(whole + torn)
    files.forget_rows(table, 900)
    assert table.read_bytes() == whole
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
