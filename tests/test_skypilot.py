"""``launcher=skypilot`` and the store by which runs travel: on machines that share nothing."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

from runner.__main__ import main
from runner.errors import ConfigError, EnvironmentFault, FolderError
from runner.io.files import files_of, read_json
from runner.launch import queue
from runner.launch.skypilot import SkyPilot
from runner.launch.store import CONTENTS, Store
from runner.run import Run
from runner.run.find import find_folders
from runner.run.record import read_run

STAND_IN = Path(__file__).parent / "sky_stand_in" / "sky.py"
TRAINING = ("metric=none", "trainer.args.max_steps=120", "trainer.args.save_steps=12")


class Cloud:
    """The stand-in for SkyPilot, and the command in this process."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.store = folder / "store"
        (folder / "bin").mkdir()
        (folder / "cloud").mkdir()
        (folder / "bin" / "sky").write_text(f"#!{sys.executable}\n{STAND_IN.read_text()}")
        (folder / "bin" / "sky").chmod(0o755)

    def __call__(self, *words: str) -> int:
        launcher = ["launcher=skypilot", f"launcher.store={self.store}"]
        return main([*launcher, f"launcher.python={sys.executable}", *words])

    def mode(self, text: str) -> None:
        (self.folder / "cloud" / "mode").write_text(text)

    @property
    def jobs(self) -> list[dict]:
        path = self.folder / "cloud" / "jobs.json"
        return json.loads(path.read_text()) if path.exists() else []


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SKY_STAND_IN", str(tmp_path / "cloud"))
    monkeypatch.setattr(queue, "PAUSE", 0.2)
    monkeypatch.setattr(queue, "POLL", 0.2)
    return Cloud(tmp_path)


def run_of(name: str):
    (folder,) = find_folders(Path("outputs", name))
    return read_run(folder)


@pytest.mark.slow
def test_a_run_whose_machine_was_taken_away_ends_as_if_it_had_not_been(cloud):
    """The machines have copies of the working folder, without outputs, and the store alone."""
    Path("rows.jsonl").write_text('{"prompt": "2+2?", "completion": "4"}\n' * 7)
    words = [*TRAINING, "trainer.args.save_strategy=steps", "dataset=rows.jsonl"]
    cloud.mode("preempts")
    assert cloud(*words, "name=away", "launcher.wait=true") == 0
    assert [job["status"] for job in cloud.jobs] == ["SUCCEEDED"]
    first, second = sorted(Path("cloud/machines").iterdir())
    assert not (first / "outputs/away" / run_of("away").folder.name / "model").exists()
    log = (second / "log").read_text()
    assert "finished" in log and not re.search(r"step +12/120", log)  # it went on
    assert main([*words, "name=here"]) == 0
    away = files_of(run_of("away").folder / "model")
    here = files_of(run_of("here").folder / "model")
    assert away["model.safetensors"] == here["model.safetensors"]
    rows = (run_of("away").folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == sorted(
        {json.loads(row)["step"] for row in rows}
    )
    assert cloud(*words, "name=away") == 0 and len(cloud.jobs) == 1  # it is finished


@pytest.mark.slow
def test_a_run_waits_is_cancelled_and_is_submitted_once(cloud, capsys):
    cloud.mode("held")
    words = ("-m", "seed=0,1", *TRAINING, "name=held", "launcher.jobs=1")
    assert cloud(*words) == 0
    assert len(cloud.jobs) == 1
    name = cloud.jobs[0]["job_name"]
    assert f"sky jobs logs -n {name}" in capsys.readouterr().out
    assert cloud(*words) == 0 and len(cloud.jobs) == 1
    assert f"{name} PENDING" in capsys.readouterr().out
    assert main(["cancel", "outputs/held"]) == 0
    assert [job["status"] for job in cloud.jobs] == ["CANCELLED"]
    cloud.mode("setup")
    assert cloud(*words, "launcher.wait=true") == 5
    printed = capsys.readouterr().out
    assert "FAILED_SETUP: pip: no such package" in printed
    error = read_json(next(Path("outputs/held").glob("*/status.json")))["error"]
    assert error["code"] == 5


@pytest.mark.slow
def test_the_task_is_shown_as_skypilot_reads_it(cloud, capsys):
    keys = {"accelerators": "H100", "num_processes": 2, "use_spot": "true", "infra": "aws"}
    keys |= {"setup": "[pip install -e .]", "parameters": "{disk_tier: best}", "max_restarts": 3}
    words = [f"launcher.{key}={value}" for key, value in keys.items()]
    assert cloud(*words, "launcher.variables=[HF_TOKEN]", "--dry-run", "name=a b") == 0
    (run,) = [line for line in capsys.readouterr().out.split("\n\n") if line.startswith("# sky")]
    command, _, task = run.partition("\n")
    folder = "outputs/a b/default-"
    assert command.startswith("# sky jobs launch --yes --detach-run --name r-a-b-")
    assert "--secret HF_TOKEN" in command
    assert f"'{folder}" in task and "--trust" in task
    for line in ("accelerators: H100:2", "use_spot: true", "infra: aws", "disk_tier: best"):
        assert f"  {line}\n" in task
    assert "max_restarts_on_errors: 3" in task and "setup: pip install -e ." in task
    assert not Path("outputs").exists()


def test_what_skypilot_could_not_run_is_refused(cloud, monkeypatch):
    with pytest.raises(ConfigError) as caught:
        SkyPilot(parameters={"use_spot": True})
    fixes = [fault.fix for fault in caught.value.faults]
    assert fixes == ["launcher.store=s3://my-bucket/runs", "launcher.use_spot=True"]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(EnvironmentFault) as caught:
        SkyPilot(store="store", variables=["NOT_SET_HERE"]).check()
    assert [fault.where for fault in caught.value.faults] == ["launcher", "launcher.variables"]


# --- The store ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path) -> Run:
    folder = tmp_path / "here" / "name" / "label-0123456789"
    (folder / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (folder / "checkpoints" / "checkpoint-2" / "seal.json").write_text("{}")
    (folder / "config.yaml").write_text("seed: 0\n")
    run = Run(folder)
    run.set_status("running", step=2)
    return run


def there(tmp_path: Path) -> Path:
    return tmp_path / "there" / "name" / "label-0123456789"


def test_a_folder_that_was_given_is_fetched_as_it_was(run, tmp_path):
    store = Store(str(tmp_path / "store"))
    store.give(run.folder)
    assert Store(store.url).fetch(there(tmp_path))
    assert files_of(there(tmp_path)).keys() - {".lock"} == files_of(run.folder).keys() - {".lock"}
    # What is deleted here is deleted there, so that an old checkpoint is not the newest one.
    shutil.rmtree(run.checkpoints / "checkpoint-2")
    (run.folder / "metrics.jsonl").write_text('{"step": 3}\n')
    store.give(run.folder)
    assert store.fetch(there(tmp_path))
    assert not (there(tmp_path) / "checkpoints" / "checkpoint-2").exists()
    assert (there(tmp_path) / "metrics.jsonl").read_text() == '{"step": 3}\n'
    assert not Store(store.url).fetch(tmp_path / "there" / "name" / "another-0123456789")


def test_only_what_has_changed_is_sent(run, tmp_path):
    store = Store(str(tmp_path / "store"))
    store.give(run.folder)
    copy = Path(store.place_of(run.folder))
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*") if path.is_file()}
    run.set_status(step=3)
    Store(store.url).give(run.folder)
    changed = {path.name for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {"status.json", CONTENTS}


def test_a_folder_that_has_gone_further_keeps_its_steps(run, tmp_path):
    store = Store(str(tmp_path / "store"))
    store.give(run.folder)
    run.set_status("interrupted", step=5)
    store.fetch(run.folder, is_newest=False)
    assert run.status()["step"] == 5
    store.fetch(run.folder, is_newest=True)
    assert run.status()["step"] == 2


def test_a_copy_that_is_finished_is_fetched_though_it_is_of_the_same_step(run, tmp_path):
    store = Store(str(tmp_path / "store"))
    run.set_status("finished", step=2)
    store.give(run.folder)
    run.set_status("running", step=2)
    store.fetch(run.folder, is_newest=False)
    assert run.status()["state"] == "finished"


def test_a_copy_that_leads_out_of_its_folder_is_not_fetched(run, tmp_path):
    store = Store(str(tmp_path / "store"))
    store.give(run.folder)
    contents = Path(store.place_of(run.folder)) / CONTENTS
    listed = json.loads(contents.read_text())
    listed["files"]["../../evil"] = listed["files"]["config.yaml"]
    contents.write_text(json.dumps(listed))
    assert not store.fetch(there(tmp_path))
    assert not there(tmp_path).exists()
    store.give(run.folder)
    store.fetch(there(tmp_path))
    (there(tmp_path) / "metrics.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError):
        store.fetch(there(tmp_path))


def test_a_file_that_changes_meanwhile_is_left_out(run, tmp_path):
    store = Store(str(tmp_path / "store"))
    store.give(run.folder)
    (Path(store.place_of(run.folder)) / "config.yaml").write_text("seed: 1\n")
    store.fetch(there(tmp_path), is_live=True)
    assert not (there(tmp_path) / "config.yaml").exists()
    assert (there(tmp_path) / "status.json").exists()
    assert not [path for path in there(tmp_path).iterdir() if path.name.startswith(".config")]


def test_rows_that_a_job_gave_before_it_was_killed_are_kept(run, tmp_path):
    """It was killed before it could write the contents that go with them."""
    store = Store(str(tmp_path / "store"))
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    store.give(run.folder)
    rows = '{"step": 1}\n{"step": 2}\n'
    (Path(store.place_of(run.folder)) / "metrics.jsonl").write_text(rows)
    store.fetch(there(tmp_path))
    assert (there(tmp_path) / "metrics.jsonl").read_text() == rows


def test_a_store_that_is_not_there_is_said_in_words(run):
    with pytest.raises(EnvironmentFault) as caught:
        Store("nowhere://bucket/runs").give(run.folder)
    (fault,) = caught.value.faults
    assert fault.where == "launcher.store" and "nowhere" in fault.found


def test_a_bucket_that_is_not_there_is_not_taken_for_a_file_that_was_deleted(
    run, tmp_path, monkeypatch
):
    def put_file(system, *paths):
        raise FileNotFoundError("The specified bucket does not exist")

    monkeypatch.setattr(LocalFileSystem, "put_file", put_file)
    with pytest.raises(EnvironmentFault, match="bucket does not exist"):
        Store(str(tmp_path / "store")).give(run.folder)
