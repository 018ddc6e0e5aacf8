"""Only listed, dead runs of this group are deleted; the rest stays whole, whatever stops it."""

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from laid import lay_run, lay_sweep, set_status, write

from runner.__main__ import main
from runner.command import _deletion, clean
from runner.io.files import files_of
from runner.report import sweep_page
from runner.report.index import INDEX
from runner.run import Run, locked
from runner.run.find import find_folders
from runner.run.record import read_run
from runner.run.seal import last_checkpoint, seal

GROUP = Path("outputs/kl")
RUNS = {(kl, 1e-4, 0): kl for kl in (0.1, 0.2, 0.3)}
FIRST, SECOND, THIRD = (f"kl-{kl}+lr-0.0001+seed-0" for kl in (0.1, 0.2, 0.3))


@pytest.fixture
def group(tmp_path, monkeypatch) -> Path:
    """Two finished runs with a model and a failed one, each with three checkpoints, of which the
    first is best.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_page.plot_sweep, "sweep_pictures", lambda summary: [])
    for run in lay_sweep(GROUP, RUNS).iterdir():
        for step in (2, 3, 4):
            (checkpoint := run / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
            (checkpoint / "model.safetensors").write_bytes(b"0" * 1000 * step)
            write(
                checkpoint / "trainer_state.json",
                {"best_model_checkpoint": str(run / "checkpoints/checkpoint-2")},
            )
            seal(checkpoint)
        (run / "model").mkdir()
        (run / "model" / "model.safetensors").write_bytes(b"1" * 5000)
        seal(run / "model")
        (run / ".lock").touch()
    set_status(GROUP / THIRD, state="failed", cause="gone")
    shutil.rmtree(GROUP / THIRD / "model")
    return GROUP


def checkpoints(name: str) -> list[str]:
    return sorted(os.listdir(GROUP / name / "checkpoints"))


def test_alone_it_shows_which_names_are_large_and_what_to_type(group, capsys):
    lay_run(Path("outputs/small/run"))
    before = files_of(Path("outputs"))
    for words in ([], ["outputs"]):
        assert main(["clean", *words]) == 0
        first, large, small, _, *hints = capsys.readouterr().out.splitlines()
        assert first.split() == ["folder", "size", "checkpoints", "model", "other"]
        assert large.split()[0] == str(group)
        assert 27 < float(large.split()[3]) < 32  # kB: 2 + 3 + 4 of each of three runs, and seals
        assert 10 < float(large.split()[5]) < 12, "of two models"
        assert small.split()[0] == "outputs/small"
    commands = [shlex.split(line.partition("  (asks, and frees ")[0])[4:] for line in hints]
    assert commands == [["clean", str(group), "keep=last"], ["clean", str(group), "keep=model"]]
    after = {name: text for name, text in files_of(Path("outputs")).items() if INDEX not in name}
    assert after == before
    for words in commands:
        assert main(words) == 0
        assert "yes=true  (frees " in capsys.readouterr().out
    assert main(["clean", "keep=last"]) == 2
    assert main(["clean", "output_root=nowhere"]) == 0
    assert "no runs under nowhere/ yet" in capsys.readouterr().out


def test_it_deletes_only_on_request_what_it_lists_first(group, capsys, monkeypatch):
    before = files_of(group.parent)
    assert main(["clean", "kl", "where=state=failed"]) == 0
    stdout = capsys.readouterr().out
    assert f"delete    {group / THIRD}: failed 4/8; all of it, " in stdout
    assert "yes=true  (frees " in stdout
    monkeypatch.setattr(clean, "is_terminal", lambda stream: True)
    for answer, is_there in (("", True), ("n\n", True), ("y\n", False)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert main(["clean", "kl", "where=state=failed"]) == 0
        assert (group / THIRD).exists() is is_there
    assert "? (y/N) freed     " in capsys.readouterr().out
    after = files_of(group.parent)
    assert after.items() <= before.items() | {(f"kl/{INDEX}", after.get(f"kl/{INDEX}"))}
    assert {path.name for path in group.iterdir()} - {INDEX} == {FIRST, SECOND}


def test_a_finished_run_keeps_its_model_and_one_that_is_not_its_newest_checkpoint(group, capsys):
    assert main(["clean", "kl", "keep=model", "yes=true"]) == 0
    assert (
        f"leave     {group / THIRD}: failed 4/8, but has no complete model to keep: keep=last"
        in capsys.readouterr().out
    )
    assert checkpoints(FIRST) == checkpoints(SECOND) == []
    assert len(checkpoints(THIRD)) == 3
    assert main(["report", "kl"]) == 0
    assert "2 finished, 1 failed" in capsys.readouterr().out
    assert main(["clean", "kl", "keep=last", "yes=true"]) == 0
    assert checkpoints(THIRD) == ["checkpoint-2", "checkpoint-4"], "the best one stays, too"
    assert last_checkpoint(Run((group / THIRD).absolute())).name == "checkpoint-4"


def test_the_newest_checkpoint_is_whole_before_others_go(group, capsys):
    (group / THIRD / "checkpoints" / "checkpoint-4" / "model.safetensors").write_bytes(b"1" * 4000)
    assert main(["clean", f"kl/{THIRD}", "keep=last", "yes=true"]) == 0
    stdout = capsys.readouterr().out
    assert "damaged: model.safetensors" in stdout
    assert "freed     0 bytes" in stdout
    assert len(checkpoints(THIRD)) == 3


@pytest.mark.slow
def test_files_that_a_report_can_make_again_are_deleted(group, capsys):
    before = files_of(group)
    assert main(["report", "kl"]) == main(["report", f"kl/{FIRST}"]) == 0
    assert main(["clean", "kl", "keep=runs", "yes=true"]) == 0
    assert files_of(group) == before
    assert not (group / FIRST / "plots").exists()


def test_a_live_run_is_not_touched(group, capsys, monkeypatch):
    set_status(group / FIRST, state="running", host="another")
    set_status(group / SECOND, state="queued")
    before = [files_of(group / name) for name in (FIRST, SECOND, THIRD)]
    with locked(Run(group / THIRD)):
        for words in (["where=run!=x"], ["keep=last"], ["keep=runs"]):
            assert main(["clean", "kl", *words, "yes=true"]) == 0
    assert [files_of(group / name) for name in (FIRST, SECOND, THIRD)] == before
    stdout = capsys.readouterr().out
    assert f"{FIRST}: running 4/8" in stdout
    assert f"{SECOND}: queued 4/8" in stdout
    assert "held by pid" in stdout
    begun = _deletion.locked

    # somebody else locks it between the list and the deletion, and unlocks it again
    def meanwhile(run):
        set_status(run.folder, state="interrupted")
        return begun(run)

    monkeypatch.setattr(_deletion, "locked", meanwhile)
    assert main(["clean", f"kl/{THIRD}", "yes=true"]) == 0
    assert (group / THIRD).exists()
    assert "changed in the meantime" in capsys.readouterr().out


def test_a_run_that_is_named_twice_or_gone_meanwhile_is_not_made_again(group, capsys, monkeypatch):
    assert (
        main(["clean", "kl", f"kl/{THIRD}", str((group / THIRD).absolute()), "where=state=failed"])
        == 0
    )
    assert "in 1 folder)" in capsys.readouterr().out
    sized = clean.sized

    def meanwhile(*kwargs):  # another clean deletes it between the list and the deletion
        shutil.rmtree(group / THIRD, ignore_errors=True)
        return sized(*kwargs)

    monkeypatch.setattr(clean, "sized", meanwhile)
    assert main(["clean", f"kl/{THIRD}", "yes=true"]) == 0
    assert "meantime\nfreed     0 bytes" in capsys.readouterr().out
    assert not (group / THIRD).exists()
    monkeypatch.setattr(
        clean, "sized", lambda *kwargs: shutil.rmtree(group / FIRST / "checkpoints", True) or ""
    )
    assert main(["clean", "kl", "keep=last", "yes=true"]) == 0, (
        "one that is thinned meanwhile keeps no other from it"
    )
    assert "already gone" in capsys.readouterr().out
    assert checkpoints(SECOND) == [
        "checkpoint-2",
        "checkpoint-4",
    ]


def test_a_run_that_builds_on_a_deleted_one_is_named(group, capsys):
    write(
        group / SECOND / "manifest.json", {"uses": {"model.path": str((group / FIRST).absolute())}}
    )
    write(group / THIRD / "manifest.json", {"uses": "a text"})
    told = f"; {group / SECOND} uses it"
    assert main(["clean", f"kl/{FIRST}"]) == main(["clean", "kl", "where=run!=x"]) == 0
    first, both = capsys.readouterr().out.split("next ")[:2]
    assert told in first and "uses it" not in both, "it goes with it"
    assert main(["clean", f"kl/{FIRST}", "keep=last"]) == 0
    assert "uses it" not in capsys.readouterr().out


def test_no_link_is_followed(group, tmp_path, capsys):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "mine").write_text("mine")
    (group / THIRD / "checkpoints" / "checkpoint-1").symlink_to(elsewhere)
    (group / FIRST / "model" / "deep").symlink_to(elsewhere / "mine")
    shutil.move(group / SECOND, tmp_path / "moved")
    (group / SECOND).symlink_to(tmp_path / "moved")
    (group / f".left.{'0' * 16}.removed").symlink_to(elsewhere)
    (group / ".mine.removed").mkdir()
    before = files_of(tmp_path / "moved")
    for words in (["where=run!=x"], ["keep=last"], ["keep=model"], ["keep=runs"]):
        assert main(["clean", "kl", *words, "yes=true"]) == 0
    assert files_of(tmp_path / "moved") == before
    assert (elsewhere / "mine").read_text() == "mine"
    assert {FIRST, SECOND, THIRD, ".mine.removed"} <= set(os.listdir(group))
    stdout = capsys.readouterr().out
    assert "a link, which is not followed" in stdout
    assert "a link to" in stdout


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "swanlab"])
def test_the_folder_of_a_tracker_is_deleted_with_its_run(group, tracker):
    (group / FIRST / tracker).mkdir()
    assert main(["clean", f"kl/{FIRST}", "yes=true"]) == 0
    assert not (group / FIRST).exists()


def test_files_that_no_run_writes_are_not_deleted(group, capsys):
    (group / FIRST / "thesis.tex").write_text("mine")
    (group / SECOND / ".notes").write_text("mine")
    (group / "thesis.tex").write_text("mine")
    assert main(["clean", "kl", "where=run!=x", "yes=true"]) == 0
    assert "thesis.tex in it, which no run writes" in capsys.readouterr().out
    assert [path.name for path in find_folders(group)] == [FIRST, SECOND]
    assert (group / "thesis.tex").exists()


@pytest.mark.quick(7)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["kl"], 2),
        (["kl", "keep=modle"], 2),
        (["kl", "were=state=failed"], 2),
        (["kl", "where=state"], 2),
        (["kl", "where=stat=failed"], 2),
        (["kl", "keep=last", "yes=maybe"], 2),
        (["nothing", "keep=last"], 4),
        (["outputs", "keep=last"], 2),
        (["elsewhere", "keep=last"], 4),
        (["elsewhere/run"], 4),
        (["outputs/../elsewhere", "keep=last"], 4),
        (["outputs/link", "keep=last"], 4),
        ([f"kl/{FIRST}/model"], 4),
    ],
)
def test_wrong_words_and_places_are_refused(group, capsys, words, code):
    lay_run(Path("elsewhere/run"), state="failed")
    (group.parent / "link").symlink_to(Path("elsewhere").absolute())
    before = files_of(Path("."))
    assert main(["clean", *words, *(["yes=true"] if "yes=maybe" not in words else [])]) == code
    stderr = capsys.readouterr().err
    for beat in ("found ", "expected ", "type "):
        assert beat in stderr
    assert {
        name: digest for name, digest in files_of(Path(".")).items() if INDEX not in name
    } == before


KILLED = """
import os, shutil, sys
from runner.__main__ import main
left = int(sys.argv[1])
def counted(call):
    def calling(*given, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return call(*given, **more)
    return calling
for name in ("rename", "replace", "rmdir", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
main(["clean", "kl", *sys.argv[2:], "yes=true"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["where=run!=x"], ["keep=model"]], ids=" ".join)
@pytest.mark.parametrize("step", [1, 4])
def test_a_kill_leaves_nothing_that_looks_like_half_a_run(group, capsys, words, step):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(step), *words], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    folders = find_folders(group)
    for folder in folders:
        run = read_run(folder)
        assert not run.damaged
        assert not run.faults
        assert run.state in ("finished", "failed")
        assert run.state == "failed" or _deletion.damage_of(run.run.model) == {}
        for checkpoint in (folder / "checkpoints").glob("checkpoint-*"):
            assert _deletion.damage_of(checkpoint) == {}, "no torn checkpoint under its own name"
    assert main(["clean", "kl", *words, "yes=true"]) == 0
    assert not list(group.rglob("*.removed")) or words == ["keep=model"]
    assert find_folders(group) == ([] if words != ["keep=model"] else folders)
