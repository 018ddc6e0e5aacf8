"""The run folder: one configuration, one folder, one holder, and a state that tells the truth."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from laid import lay_run, set_status

from runner.__main__ import main
from runner.command.report import report
from runner.config import run_name
from runner.config.composition import compose
from runner.config.experiment import Experiment
from runner.config.frozen_yaml import read_frozen
from runner.config.limits import read_yaml
from runner.config.menu import read_menu
from runner.config.override import expand
from runner.errors import ConfigError, FolderError
from runner.io.files import files_of, write_json
from runner.launch import worker
from runner.launch.__main__ import main as start_worker
from runner.launch.compose.stages import compose_runs
from runner.run import (
    Run,
    check_lines,
    format_fault,
    locked,
    open_run,
    write_config,
    write_manifest,
)
from runner.run.continuation import find_offer
from runner.run.disk import describe_lone_locks
from runner.run.inputs import read_fingerprints
from runner.run.key import folder_of, key_of, label_of
from runner.run.record import find_runs, read_run
from runner.run.seal import last_checkpoint, remove_leftovers, seal


@pytest.fixture
def cfg(tmp_path):
    return {
        "name": "a",
        "seed": 0,
        "output_root": str(tmp_path / "outputs"),
        "trainer": {"args": {"beta": 0.1}},
    }


def test_equal_configurations_share_a_folder_however_typed(cfg):
    first = open_run(cfg, ["seed=0"])
    assert open_run(cfg, ["trainer.args.beta=0.1"]).folder == first.folder
    assert first.folder.name.startswith("seed-0-")
    assert first.status()["state"] == "created"


def test_another_value_opens_another_folder(cfg):
    assert open_run(cfg, []).folder != open_run(cfg | {"seed": 1}, []).folder


@pytest.mark.parametrize(
    "volatile", ["name", "output_root", "launcher", "tracker", "allow", "tolerate", "on_sick"]
)
def test_keys_that_cannot_change_the_result_stay_out_of_the_run_key(cfg, volatile):
    assert key_of(cfg) == key_of(cfg | {volatile: {"x": "other"}})


def test_the_key_of_a_configuration_is_what_it_was():
    """Another key would train every existing run again; then ``FORMAT`` must grow."""
    parts = {
        "model": {"path": "org/name"},
        "dataset": {"path": "runner://dataset/toy"},
        "peft": None,
        "seed": 0,
    }
    args = {"beta": 1.0, "max_steps": 10, "loss_type": ["sigmoid", 0.5, None, True]}
    trainer = {"_target_": "trl.DPOTrainer", "form": "preference", "args": args}
    keys = {
        "name": "a",
        "learning_rate": 1e-6,
        "launcher": {"num_processes": 2},
        "tolerate": {"kl": True},
    }
    assert key_of({**keys, "trainer": trainer, **parts}) == "23bc5037da"


def test_more_processes_are_another_training(cfg):
    assert key_of(cfg) == key_of(cfg | {"launcher": {"num_processes": 1}})
    assert key_of(cfg) != key_of(cfg | {"launcher": {"num_processes": 2}})


def test_a_folder_that_holds_another_run_is_refused(cfg):
    run = open_run(cfg, [])
    write_config(run.folder, {"seed": 5})
    with pytest.raises(FolderError, match="another run"):
        open_run(cfg, [])


LINKED = (
    ".lock",
    "log.txt",
    "metrics.jsonl",
    "checkpoints",
    "checkpoints/checkpoint-1",
    "model",
    "plots",
)


@pytest.mark.parametrize("name", LINKED)
def test_a_link_inside_a_run_folder_is_refused_before_any_write(cfg, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept.txt").write_text("kept")
    run = open_run(cfg, [])
    (run.folder / name).parent.mkdir(exist_ok=True)
    (run.folder / name).unlink(missing_ok=True)
    (run.folder / name).symlink_to(
        elsewhere / "kept.txt" if name.endswith(("lock", "txt", "jsonl")) else elsewhere
    )
    doors = [
        lambda: open_run(cfg, []),
        lambda: report(run.folder),
        lambda: find_runs([str(run)], "export", 1),
    ]
    for door in doors:
        with pytest.raises(FolderError, match=f"rm {run.folder / name}"):
            door()
    assert start_worker([str(run.folder), "--trust"]) == 4
    assert [file.read_text() for file in elsewhere.iterdir()] == ["kept"]


@pytest.mark.parametrize("tracker", ["wandb", "swanlab"])
def test_a_run_folder_may_be_reached_through_links_and_a_tracker_keeps_its_own(
    cfg, tmp_path, tracker
):
    (tmp_path / "disk" / "a").mkdir(parents=True)
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    run = open_run(cfg, [])
    run.folder.rename(tmp_path / "moved")
    run.folder.symlink_to(tmp_path / "moved")
    (run.folder / tracker).mkdir()
    (run.folder / tracker / "latest-run").symlink_to(tmp_path)
    assert open_run(cfg, []).folder == run.folder
    report(run.folder)
    assert (tmp_path / "moved" / "report.html").exists()


@pytest.mark.parametrize("name", ["../elsewhere", "a/../../b", "", ".", "/tmp/x"])
def test_a_name_cannot_lead_out_of_the_root(cfg, name):
    with pytest.raises(FolderError, match="leads out"):
        open_run(cfg | {"name": name}, [])


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        ([], "default"),
        (["trainer=dpo", "model=tiny", "experiment=toy_dpo"], "default"),
        (["model=hub", "model.path=org/Tiny", "dataset=local", "dataset.path=data/toy.jsonl"], ""),
        (["trainer=sft", "model=tuned"], "trainer-sft+model-tuned"),
        (["++kl_coef=0.05", "learning_rate=1e-6"], "kl_coef-0.05+learning_rate-1e-6"),
        (["model.path=/very/long/folder/"], "model-folder"),
        (["model.path=outputs/dpo-tiny-toy/seed-1-0123456789/model"], "model-seed-1-0123456789"),
        (["dataset.split.train=train[:50%]"], "split.train-train-50"),
        (["peft.r=8", "trainer.args.max_steps=9", "seed=1"], "peft.r-8+max_steps-9+seed-1"),
        (["x=" + "y" * 300], "x-" + "y" * 98),
        (["seed=1", "max_steps=" + "9" * 90, "a=2"], "seed-1"),
        (["dataset.path=daten/Größe*.jsonl", "model=数据"], "dataset-Größe-.jsonl+model-数据"),
        (["x=" + "数" * 50, "a=2"], "x-" + "数" * 32),
        (
            ["model.path=${best:outputs/sft}", 'reward.model.path=${run:"é"}'],
            "model-sft+reward.model-é",
        ),
        (
            ["reward._target_=runner.reward.rule.format", "+metric.own._target_=mine.exact"],
            "reward-format+metric.own-exact",
        ),
    ],
)
def test_labels_are_short_and_safe_and_leave_out_what_the_name_says(overrides, label):
    assert label_of(overrides, "toy-dpo-tiny-toy") == (label or "default")


def test_a_folder_with_a_label_of_before_is_found_by_its_key(cfg):
    words = ["reward._target_=runner.reward.rule.format"]
    new = folder_of(cfg, words)
    old = new.with_name(f"_target_-runner.reward.rule.format-{key_of(cfg)}")
    old.mkdir(parents=True)
    assert new.name.startswith("reward-format-")
    assert folder_of(cfg, words) == old


OWN = ("model=Qwen/Qwen2.5-0.5B", "dataset=data/Rows_1.jsonl.gz")


@pytest.mark.parametrize(
    ("words", "name", "former_names"),
    [
        (OWN, "sft-qwen2.5-0.5b-rows_1", ["sft-hub-local"]),
        ((OWN[0], "trainer=dpo"), "dpo-qwen2.5-0.5b-toy", ["dpo-hub-toy"]),
        ((OWN[1],), "sft-tiny-rows_1", ["sft-tiny-local"]),
        (("dataset=data/*.jsonl",), "sft-tiny-data", ["sft-tiny-local"]),
        (("dataset=org/Tiny",), "sft-tiny-tiny", ["sft-tiny-hub"]),
        (("model=outputs/sft/a-01",), "sft-sft-toy", ["sft-hub-toy"]),
        (
            ("dataset=Donne\u0301es.jsonl",),
            "sft-tiny-données",
            ["sft-tiny-local", "sft-tiny-donne-es"],
        ),
        (("dataset=mes/数据.jsonl",), "sft-tiny-数据", ["sft-tiny-local", "sft-tiny-mes"]),
        (
            ("model=org/modèle", "dataset=数据.jsonl"),
            "sft-modèle-数据",
            [
                "sft-hub-数据",
                "sft-mod-le-数据",
                "sft-modèle-local",
                "sft-hub-local",
                "sft-mod-le-local",
            ],
        ),
        (("dataset=" + "数" * 40 + ".jsonl",), "sft-tiny-" + "数" * 20, ["sft-tiny-local"]),
        ((), "sft-tiny-toy", []),
        ((*OWN, "name=mine"), "mine", []),
    ],
)
def test_a_model_or_rows_of_ones_own_are_in_the_default_name_and_old_names_are_found(
    words, name, former_names, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (Run(tmp_path / "outputs" / "sft" / "a-01").model).mkdir(parents=True)
    for file in ("status.json", "config.yaml"):
        (tmp_path / "outputs" / "sft" / "a-01" / file).touch()
    (composed,) = map(compose, [expand(words, read_menu())])
    assert composed.cfg["name"] == name
    assert folder_of(composed.cfg, composed.overrides).parent.name == name
    assert set(former_names) <= set(run_name.former_names(composed.cfg))
    for former_name in former_names:
        cfg = {**composed.cfg, "output_root": str(tmp_path / f"with {former_name}")}
        before = open_run({**cfg, "name": former_name}, ["path=x"])
        run = open_run(cfg, composed.overrides)
        assert run.folder == before.folder
        assert run.folder.parent.name == run.cfg["name"] == former_name
    if name == "mine":
        assert run_name.former_names(composed.cfg) == []


HOLD = """
import sys, time
from runner.run import Run, locked
from pathlib import Path
run = Run(Path(sys.argv[1]))
with locked(run):
    run.set_status("running")
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_held_folder_names_its_holder_and_a_killed_holder_needs_no_unlock(cfg):
    run = open_run(cfg, [])
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderError, match=f"held by pid {holder.pid}"), locked(run):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with locked(run):
        pass


def make_checkpoint(run: Run, step: int, sealed: bool = True):
    folder = run.checkpoints / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(str(step))
    if sealed:
        seal(folder)
    return folder


def test_the_newest_valid_checkpoint_is_used_and_broken_ones_go(cfg):
    run = open_run(cfg, [])
    assert last_checkpoint(run) is None
    good = make_checkpoint(run, 9)
    make_checkpoint(run, 10)
    (run.checkpoints / "checkpoint-10" / "weights").write_text("xx")
    make_checkpoint(run, 20, sealed=False)
    assert last_checkpoint(run) == good
    assert [path.name for path in run.checkpoints.iterdir()] == ["checkpoint-9"]


LINE = b'{"step": 1}\n'


@pytest.mark.parametrize("text", [b"", LINE, LINE + b'{"st', b'{"st', LINE + bytes(9)])
def test_a_log_whose_last_line_was_cut_off_is_right(cfg, text):
    run = open_run(cfg, [])
    run.metrics.write_bytes(text)
    check_lines(run)


@pytest.mark.parametrize(
    ("text", "number"), [(bytes(300), 1), (b"x\n" + LINE, 1), (LINE + b"noise", 2)]
)
def test_a_log_that_holds_something_else_is_refused(cfg, text, number):
    run = open_run(cfg, [])
    run.metrics.write_bytes(text)
    with pytest.raises(FolderError, match=f"line {number} cannot be read"):
        check_lines(run)


@pytest.mark.slow
def test_the_manifest_keeps_its_first_record(cfg):
    run = open_run(cfg, [])
    write_manifest(run, starts=1)
    first = (run.folder / "manifest.json").read_text()
    write_manifest(run, starts=1)
    assert (run.folder / "manifest.json").read_text() == first
    assert ('"trl"' in first and '"commit"' in first) or '"git": null' in first


def test_a_folder_of_a_stranger_runs_nothing_that_is_not_on_the_list(tmp_path, capsys, monkeypatch):
    metric = {"x": {"_target_": "os.system", "command": "touch harm"}}
    model = {"path": "org/name", "trust_remote_code": True}
    write_config(tmp_path, {"metric": metric, "model": model, "allow": ["os"]})
    monkeypatch.chdir(tmp_path)
    assert start_worker([str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert "metric.x._target_" in text
    assert "trust_remote_code" in text
    assert "--trust" in text
    assert not (tmp_path / "status.json").exists()
    assert not (tmp_path / "harm").exists()
    assert start_worker([str(tmp_path / "nowhere")]) == 2


def test_a_world_of_other_processes_than_the_run_is_trained_by_is_refused(cfg, capsys, monkeypatch):
    run = open_run(cfg | {"launcher": {"num_processes": 1}}, [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert start_worker([str(run.folder), "--trust"]) == 2
    assert "a world size of 1, that of the run" in capsys.readouterr().err


RUN = "outputs/old/run"
OTHER = "outputs/old/other"
VERBS = {
    "train": ["trainer=sft", "name=old"],
    "dry run": ["trainer=sft", "name=old", "--dry-run"],
    "sweep": ["-m", "trainer=sft", "name=old", "seed=0,1"],
    "evaluate": ["evaluate", RUN],
    "predict": ["predict", RUN],
    "export": ["export", RUN],
    "report": ["report", RUN],
    "preview": ["preview", RUN],
    "diff": ["diff", RUN, OTHER],
    "reproduce": ["reproduce", RUN],
    "resume": ["trainer=sft", "name=new", f"resume={RUN}"],
    "rehearse resume": ["rehearse", "trainer=sft", "name=new", f"resume={RUN}"],
    "reference": ["trainer=sft", "name=new", "model.path=${run:old/run}"],
    "worker": [RUN],
}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("number", "age"), [(None, "format 1, of an older"), (3, "format 3, of a newer")]
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_of_another_format_is_refused(tmp_path, monkeypatch, capsys, verb, number, age):
    monkeypatch.chdir(tmp_path)
    (composed,) = compose_runs(["trainer=sft", "name=old"])
    lay_run(Path(OTHER))
    own_folder = folder_of(composed.cfg, composed.overrides)
    for folder in (own_folder, Path(RUN)):
        lay_run(folder, words=["trainer=sft", "name=old"])
        (folder / "model").mkdir()
        config = {"format": number} if number else {}
        (folder / "config.yaml").write_text(yaml.safe_dump(config | composed.cfg))
    before = files_of(tmp_path)
    call = start_worker if verb == "worker" else main
    assert call(VERBS[verb]) == 4
    text = capsys.readouterr().err
    assert f"found     {age} runner\n    expected  format 2\n" in text
    assert "type      python -m runner trainer=sft name=old-again  (" in text
    assert files_of(tmp_path) == before


def test_the_format_of_a_folder_is_no_key_and_the_command_against_another_one_works(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (composed,) = compose_runs(["trainer=sft", "name=old"])
    run = open_run(composed.cfg, composed.overrides, composed.command)
    assert (run.folder / "config.yaml").read_text().startswith("format: 2\nname: old\n")
    assert run.cfg == composed.cfg
    assert key_of(run.cfg) == key_of(composed.cfg)
    assert read_run(run.folder).cfg == composed.cfg
    assert main(["format=2", "--dry-run"]) == 2
    assert (
        main([*format_fault(run.folder, 1).fix.partition("  (")[0].split()[3:], "--dry-run"]) == 0
    )
    assert "new       outputs/old-again/" in capsys.readouterr().out


def test_the_command_of_a_strangers_folder_is_offered_with_a_warning(tmp_path):
    lay_run(tmp_path / "a", words=("allow=[theirs]", "a\x1b[2J"))
    fix = format_fault(tmp_path / "a", 1).fix
    assert "(if you trust who wrote its manifest.json)" in fix
    assert "\x1b" not in fix


def test_the_leftovers_of_a_write_that_was_killed_go(tmp_path, monkeypatch):
    remaining = []
    monkeypatch.setattr("os.replace", lambda old, new: remaining.append(Path(old).name))
    write_json(tmp_path / "status.json", {})
    (tmp_path / remaining[0]).write_text("{")
    (tmp_path / ".mine.json.0123").write_text("{}")
    remove_leftovers(Run(tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [".mine.json.0123"]


def test_a_link_is_refused_before_it_is_read(tmp_path, monkeypatch):
    lay_run(tmp_path / "a")
    (tmp_path / "a" / "status.json").unlink()
    (tmp_path / "a" / "status.json").symlink_to(tmp_path / "elsewhere")
    for reader in ("read_frozen", "read_json"):
        monkeypatch.setattr(f"runner.run.record.{reader}", lambda *_: pytest.fail("it was read"))
    for call in (
        lambda: find_runs([str(tmp_path / "a")], "diff", 1),
        lambda: report(tmp_path / "a"),
    ):
        with pytest.raises(FolderError, match="link"):
            call()


def test_a_report_names_a_run_of_another_format_and_shows_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_run(Path(OTHER), after={"eval_loss": 1.5})
    lay_run(Path(RUN), after={"eval_loss": 2.5})
    (Path(RUN) / "config.yaml").write_text("name: old\n")
    assert main(["report", "outputs/old"]) == 0
    text = capsys.readouterr().out
    assert "format 1, of an older runner; expected format 2" in text
    assert "1.5" in text
    assert "2.5" not in text
    assert main(["report"]) == 0
    assert "1 finished, 1 unknown" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["name: old\n", "a: [1\n b: }"])
def test_a_run_starts_beside_one_of_another_format_or_a_torn_one(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    lay_run(Path(RUN))
    (Path(RUN) / "config.yaml").write_text(text)
    set_status(Path(RUN), sealed=4)
    assert find_offer(Experiment.read({"name": "old", "output_root": "outputs"}), Path(OTHER)) == ""


def test_a_signal_that_a_library_retells_as_its_own_error_is_still_a_stop(tmp_path, monkeypatch):
    write_config(tmp_path, {"name": "x"})

    def command(run, stop):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:
            raise ValueError("a fault of the data") from error

    monkeypatch.setattr("runner.command.train.train", command)
    assert worker.work(tmp_path) == 143
    assert Run(tmp_path).status()["state"] == "interrupted"


def test_a_group_is_read_once_for_many_runs_and_anew_when_it_changes(tmp_path, monkeypatch):
    cfg = {"output_root": str(tmp_path), "name": "group"}
    made = folder_of(cfg | {"seed": 1}, ["seed=1"])
    made.with_name(f"other-{key_of(cfg | {'seed': 1})}").mkdir(parents=True)
    # it has changed a moment ago
    assert folder_of(cfg | {"seed": 1}, ["seed=1"]).name.startswith("other-")
    os.utime(tmp_path / "group", (1, 1))
    reads = []
    monkeypatch.setattr(
        os, "listdir", lambda path, real=os.listdir: reads.append(path) or real(path)
    )
    names = [folder_of(cfg | {"seed": seed}, [f"seed={seed}"]).name for seed in range(50)]
    assert len(reads) == 1
    assert names[1].startswith("other-")
    assert names[2].startswith("seed-2-")


def test_inputs_are_the_same_where_another_node_mounts_them_elsewhere(tmp_path, monkeypatch):
    def read(home):
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.chdir(home / "project")
        monkeypatch.syspath_prepend(str(home / "project"))
        importlib.invalidate_caches()
        cfg = {"dataset": {"path": "rows.jsonl"}, "model": {"path": "~/models/own"}}
        return read_fingerprints(cfg | {"reward": {"_target_": "moved_lab.reward.one"}})

    project = tmp_path / "a" / "project"
    for name in (
        "project/rows.jsonl",
        "models/own/config.json",
        "project/moved_lab/inner/reward.py",
    ):
        file = tmp_path / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    (project / "moved_lab" / "__init__.py").write_text("")
    before = read(tmp_path / "a")
    assert {key: [*files] for key, files in before.items()} == {
        "dataset.path": ["rows.jsonl"],
        "model.path": ["~/models/own/config.json"],
        "code moved_lab": ["moved_lab/__init__.py", "moved_lab/inner/reward.py"],
    }
    sys.path.remove(str(project))
    (tmp_path / "a").rename(tmp_path / "b")
    assert read(tmp_path / "b") == before


@pytest.mark.parametrize(
    "mount, finding",
    [
        ("/home nfs4 rw,vers=4.2,local_lock=none", ""),
        ("/home nfs rw,vers=3,nolock", "/home (nfs)"),
        ("/home nfs rw,local_lock=all", "/home (nfs)"),
        ("/home lustre rw,flock,lazystatfs", ""),
        ("/home lustre rw,localflock", "/home (lustre)"),
        ("/home fuse.sshfs rw", "/home (fuse.sshfs)"),
        ("/home fuse.fuse-overlayfs rw", ""),
        ("/home/me nfs rw,nolock", "/home/me (nfs)"),
        ("/homes nfs rw,nolock", ""),
    ],
)
def test_a_disk_whose_locks_no_other_machine_sees_is_named(tmp_path, mount, finding):
    (tmp_path / "mounts").write_text(f"none / ext4 rw 0 0\nserver:/x {mount} 0 0\n")
    assert describe_lone_locks(Path("/home/me/outputs"), tmp_path / "mounts") == finding


@pytest.mark.quick(3)
@pytest.mark.parametrize("place", ["first byte", "in the middle", "mark of UTF-16 before it"])
@pytest.mark.parametrize("content", [[], ["--dry-run"], ["-m", "seed=0,1", "--dry-run"]])
def test_a_config_that_is_no_utf_8_is_refused_by_its_name(tmp_path, capsys, place, content):
    words = ["trainer=sft", "seed=0", f"output_root={tmp_path}", "name=one"]
    run = open_run(compose_runs(words, [])[0].cfg, words)
    text = bytearray((run.folder / "config.yaml").read_bytes())
    if place == "mark of UTF-16 before it":
        text = b"\xff\xfe" + text
    else:
        text[0 if place == "first byte" else text.index(b"trainer")] ^= 0x80
    (run.folder / "config.yaml").write_bytes(text)
    assert main([*words, *content]) == 4
    stderr = capsys.readouterr().err
    assert f"{run.folder}/config.yaml" in stderr
    assert "rm " in stderr
    assert "Traceback" not in stderr
    assert read_run(run.folder).damaged == ("config.yaml",)


def test_configs_that_differ_in_numbers_are_read_as_every_yaml_is(tmp_path):
    text = "format: 2\nname: a\nseed: 1\nshared: &one\n  rate: 1.0e-06\nagain: *one\n"
    text += 'block: |\n  seed: 1\nquoted: "1"\nlist:\n- 1\n- b: 0.5\non: 1\n'
    changes = {
        "seed: 1": ["seed: 7", "seed: -0.5", "seed: 010", "seed: 1:30", "seed: '3'", "seed: 1e5"],
        "rate: 1.0e-06": ["rate: 3.0e-05", "rate: .inf", "rate: 5 # five"],
        "  seed: 1": ["  seed: 2"],
        'quoted: "1"': ['quoted: "2"', "quoted: 2"],
        "- 1\n": ["- 2\n", "- [2]\n"],
        "b: 0.5": ["b: 1.5", "c: 1.5"],
        "on: 1": ["on: 2"],
    }
    texts = [text]
    for old, news in changes.items():
        texts += [text.replace(old, new) for new in news]
    for number, changed in enumerate(texts):
        path = tmp_path / f"{number}.yaml"
        path.write_text(changed)
        first = tmp_path / "0.yaml"
        read_frozen(first, read_yaml)
        try:
            expected = read_yaml(path)
        except ConfigError:
            with pytest.raises(ConfigError):
                read_frozen(path, read_yaml)
            continue
        assert read_frozen(path, read_yaml) == expected
        assert read_frozen(first, read_yaml) == read_yaml(first)
