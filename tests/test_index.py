"""The index of a group agrees with its files, whatever happens to either; and lost runs."""

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from laid import lay_run, lay_sweep, set_status, write

from runner.__main__ import main
from runner.io.files import files_of, write_bytes
from runner.report import index, sweep_page
from runner.report.selection import choose_runs
from runner.run import Run, locked
from runner.run.record import RunRecord, read_run

SEEDS = {(0.1, 1e-4, 0): 0.5, (0.1, 1e-4, 1): 0.7, (0.5, 1e-4, 0): 0.8, (0.5, 1e-4, 1): 0.9}
FIRST = "kl-0.1+lr-0.0001+seed-0"


@pytest.fixture
def group(tmp_path, monkeypatch) -> Path:
    """Four runs with an index that trusts files after a moment, and reports without pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(index, "SETTLED_NANOSECONDS", 0)
    monkeypatch.setattr(sweep_page.plot_sweep, "sweep_pictures", lambda summary: [])
    laid_group = lay_sweep(tmp_path / "outputs" / "kl", SEEDS, logged=True)
    pause()
    return laid_group


def pause() -> None:
    """Wait until the clock of the file system has gone on."""
    clock = Path("clock")
    clock.touch()
    before = clock.stat().st_mtime_ns
    while clock.stat().st_mtime_ns == before:
        clock.touch()


def told(capsys, *words: str) -> tuple[str, dict[str, str]]:
    """The output of a report and the files that it writes."""
    assert main(["report", "kl", "objective=reward", *words]) == 0
    files = {
        name: digest for name, digest in files_of(Path("outputs/kl")).items() if "/" not in name
    }
    return capsys.readouterr().out, {
        name: digest for name, digest in files.items() if name != index.INDEX
    }


def without_index(group: Path, capsys) -> tuple[str, dict[str, str]]:
    """The same where there is no index; the index is put back."""
    content = (group / index.INDEX).read_bytes()
    (group / index.INDEX).unlink()
    report = told(capsys)
    write_bytes(group / index.INDEX, content)
    return report


def add(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def same_size_and_time(run: Path) -> None:
    path = run / "scores.json"
    about = path.stat()
    text = path.read_text()
    path.write_text(text.replace("0.5", "0.6"))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_size == about.st_size


CHANGES = {
    "a line more": lambda run: add(run / "metrics.jsonl", '{"step": 9, "reward": 77.0}\n'),
    "another state": lambda run: set_status(run, state="failed", cause="gone"),
    "another value": lambda run: write(run / "manifest.json", {"python": "3.12.1"}),
    "a run less": shutil.rmtree,
    "a run more": lambda run: shutil.copytree(run, run.with_name("another")),
    "the same size and time": same_size_and_time,
    "a torn config": lambda run: (run / "config.yaml").write_text("a: [1\n b: }"),
    "a link among its files": lambda run: (run / "model").symlink_to("/etc"),
    "a link deeper": lambda run: (
        (run / "plots").mkdir(),
        (run / "plots" / "loss.png").symlink_to("/etc/passwd"),
    ),
    "a file of another format": lambda run: (run / "config.yaml").write_text(
        "format: 1\nname: kl\n"
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_figures_are_those_of_the_files_whatever_changes(group, capsys, monkeypatch, change):
    before = told(capsys)
    reads = []
    monkeypatch.setattr(
        index, "read_run", lambda folder, **how: (reads.append(folder), read_run(folder, **how))[1]
    )
    assert told(capsys) == before
    assert not reads
    change(group / FIRST)
    pause()
    after = told(capsys)
    assert after != before and len(reads) <= 1, "only what has changed is read"
    assert told(capsys) == after and len(reads) <= 1, "and only once"
    assert without_index(group, capsys) == after


def test_a_link_in_a_run_that_lies_elsewhere_is_noticed(group, capsys, tmp_path):
    (group / FIRST).rename(tmp_path / "elsewhere")
    (group / FIRST).symlink_to(tmp_path / "elsewhere")
    pause()
    before = told(capsys)
    (tmp_path / "elsewhere" / "notes.txt").symlink_to("/etc/passwd")
    pause()
    assert told(capsys) == without_index(group, capsys) != before


def changed_row(path: Path) -> None:
    with sqlite3.connect(path) as rows:
        assert (
            rows.execute(
                f"UPDATE {index.TABLE_NAME} SET record = replace(record, '0.7', '0.9')"
            ).rowcount
            == 4
        )
    rows.close()


def in_place_of(path: Path, place) -> None:
    path.unlink()
    place(path)


def other_version(path: Path) -> None:
    with sqlite3.connect(path) as rows:
        rows.execute("CREATE TABLE others (name TEXT)")
    rows.close()


DAMAGE = {
    "garbage": lambda path: path.write_bytes(os.urandom(5000)),
    "garbage behind the head": lambda path: path.write_bytes(
        path.read_bytes()[:4096] + os.urandom(9000)
    ),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "empty": lambda path: path.write_bytes(b""),
    "another version": other_version,
    "another figure": changed_row,
    "a folder": lambda path: in_place_of(path, Path.mkdir),
    "a link": lambda path: in_place_of(
        path, lambda place: place.symlink_to(place.parents[2] / "mine")
    ),
    "a pipe": lambda path: in_place_of(path, os.mkfifo),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_an_index_that_is_damaged_is_made_again_and_no_link_is_followed(
    group, capsys, tmp_path, monkeypatch, damage
):
    (tmp_path / "mine").write_text("mine")
    before = told(capsys)
    path = group / index.INDEX
    damage(path)
    assert told(capsys) == before
    if not path.is_dir():
        monkeypatch.setattr(
            index, "read_run", lambda *_, **__: pytest.fail("it was not made again")
        )
    assert told(capsys) == before
    assert (tmp_path / "mine").read_text() == "mine"
    assert not path.is_symlink()
    assert not [name for name in os.listdir(group) if name.startswith(".") and name != index.INDEX]


def test_a_report_is_the_same_in_a_read_only_group(group, capsys, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    before = told(capsys)
    (group / index.INDEX).unlink()
    monkeypatch.setattr(index, "write_bytes", refuse)
    assert told(capsys) == before
    assert not (group / index.INDEX).exists()


def test_a_file_written_a_moment_ago_is_not_indexed(group, capsys, monkeypatch):
    monkeypatch.undo()
    monkeypatch.chdir(group.parent.parent)
    index.read_group(group)
    with (
        sqlite3.connect(group / index.INDEX)
        if (group / index.INDEX).exists()
        else sqlite3.connect("") as rows
    ):
        assert not rows.execute(
            "SELECT name FROM sqlite_master WHERE name = ?", [index.TABLE_NAME]
        ).fetchall()
    rows.close()


@pytest.mark.slow
def test_runs_are_chosen_and_ordered_by_what_a_report_shows(group, capsys):
    set_status(group / FIRST, state="failed")
    names = {
        "where=state=failed": [FIRST],
        "where=kl_coef>0.1": ["kl-0.5+lr-0.0001+seed-0", "kl-0.5+lr-0.0001+seed-1"],
        "where=trainer.args.beta<=0.1,state!=failed": ["kl-0.1+lr-0.0001+seed-1"],
        "where=[eval_exact>=0.9,state=finished]": ["kl-0.5+lr-0.0001+seed-1"],
        "where=run=nothing": [],
    }
    for where, wanted in names.items():
        text, _ = told(capsys, where, "sort=run")
        rows = map(json.loads, (group / "summary.jsonl").read_text().splitlines())
        assert [row["run"] for row in rows] == wanted or (
            not wanted and "none run=nothing, of 4 runs" in text
        )
    for words, first in (
        ("kl_coef", 0.1),
        ("kl_coef direction=max", 0.5),
        ("exact", 0.5),
        ("loss direction=max", 0.1),
    ):
        told(capsys, *f"sort={words}".split())
        assert json.loads((group / "summary.jsonl").read_text().splitlines()[0])["values"] == {
            "kl_coef": first
        }
    told(capsys, "top=1", "sort=kl_coef", "direction=max")
    from pyarrow import parquet

    table = parquet.read_table(group / "summary.parquet")
    assert table.num_rows == 4
    assert str(table.schema.field("kl_coef").type) == "double"
    assert table.column("run").to_pylist()[0].startswith("kl-0.5")
    assert str(table.schema.field("seed").type) == "int64"


def test_a_run_that_lacks_a_key_meets_no_order_of_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, peft in {
        "none": None,
        "small": {"r": 4},
        "large": {"r": 16},
        "torn": {"r": 32},
    }.items():
        lay_run(
            tmp_path / "outputs" / "kl" / name, after={"eval_loss": 0.5}, peft=peft, model={"r": 1}
        )
    (tmp_path / "outputs" / "kl" / "torn" / "config.yaml").write_text("a: [1")
    for where, wanted in {
        "peft.r>8": ["large"],
        "peft.r=null": ["none", "torn"],
        "peft.r<8": ["small"],
    }.items():
        runs = index.read_group(Path("outputs/kl"))
        assert [run.folder.name for run in choose_runs(runs, where)] == wanted
    assert main(["clean", "kl", "where=r>8"]) == 2
    assert "type      peft.r in place of r" in capsys.readouterr().err


@pytest.mark.slow
def test_names_that_are_no_utf_8_are_reported(group, capsys):
    (group / FIRST).rename(odd := group / os.fsdecode(b"run\xff"))
    scores = json.loads((odd / "scores.json").read_text())
    write(odd / "scores.json", scores | {"after": scores["after"] | {"eval_\ud800": 1.0}})
    told(capsys)
    assert main(["report", str(odd)]) == 0
    assert (group / "summary.csv").read_text().count("run\\udcff") == 1
    from pyarrow import parquet

    assert "run\\udcff" in parquet.read_table(group / "summary.parquet").column("run").to_pylist()


@pytest.mark.parametrize(
    "word", ["where=stat=failed", "where=failed", "where=", "sort=nothing", "top=0", "top=x"]
)
def test_wrong_words_are_reported_in_four_beats(group, capsys, word):
    assert main(["report", "kl", word]) == 2
    stderr = capsys.readouterr().err
    for beat in ("found ", "expected ", "type "):
        assert beat in stderr


def lay_silent(folder: Path, hours: float, lines: list | None = None) -> Path:
    """A run that says it is running on another machine, whose folder has been silent for hours."""
    lay_run(folder, state="running", lines=lines or [{"step": 1, "elapsed_seconds": 2.0}])
    set_status(folder, pid=1, host="another")
    (folder / ".lock").touch()
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 3600 * hours,) * 2)
    return folder


def test_a_run_elsewhere_is_lost_if_silent_and_unlocked(tmp_path):
    silent = lay_silent(tmp_path / "x" / "silent", 1.1)
    assert read_run(silent).state == "lost"
    assert "process ended without a message" in read_run(silent).cause
    assert read_run(silent).state == "lost", "to look is no sign of life"
    with locked(Run(silent)):
        assert read_run(silent).state == "running"
    assert read_run(lay_silent(tmp_path / "x" / "quiet", 0.9)).state == "running"
    slow = [{"step": step, "elapsed_seconds": 1000.0 * step} for step in range(1, 4)]
    assert read_run(lay_silent(tmp_path / "x" / "slow", 2, slow)).state == "running"
    assert read_run(lay_silent(tmp_path / "x" / "slower", 3, slow)).state == "lost"


@pytest.mark.slow
def test_a_page_of_many_runs_is_bounded_and_says_where_the_rest_is(group):
    text = (group / FIRST / "config.yaml").read_text()
    for number in range(260):
        shutil.copytree(group / FIRST, group / f"copy-{number}")
        changed = text.replace("kl_coef: 0.1", f"kl_coef: {number}").replace(
            "seed: 0", f"seed: {number % 3}"
        )
        (group / f"copy-{number}" / "config.yaml").write_text(changed)
    assert main(["report", "kl"]) == 0
    text = (group / "report.html").read_text()
    assert text.count("<tr data-label") == 200
    assert text.count('<td class="folder"') == 200
    assert "And 62 more, in <code>summary.csv" in text
    assert "And 64 more, in <code>summary.csv" in text
    assert len((group / "summary.csv").read_text().splitlines()) == 265


@pytest.mark.slow
def test_a_group_of_ten_times_the_runs_is_read_again_without_a_file(group, monkeypatch, capsys):
    for number in range(40):
        shutil.copytree(group / FIRST, group / f"copy-{number}")
    pause()
    assert len(index.read_group(group)) == 44
    monkeypatch.setattr(RunRecord, "lines", property(lambda self: pytest.fail("a log was read")))
    monkeypatch.setattr(index, "read_run", lambda *_, **__: pytest.fail("a run was read"))
    assert [run.folder.name for run in index.read_group(group)][:2] == ["copy-0", "copy-1"]
