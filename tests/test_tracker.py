"""A tracker receives the frozen config, tags, the group, and each figure once, in one run even
after a resume.
"""

import itertools
import json
import shutil
import sqlite3
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from laid import lay_run

from runner.config import compose
from runner.config.experiment import Tracking
from runner.launch import worker
from runner.run import Run
from runner.run.key import key_of
from runner.tracker.mlflow import make_database
from runner.tracker.variable import id_of, variables_of
from runner.validate.libraries import find_missing_libraries

FEW = (
    *(
        "trainer=sft",
        "metric=none",
        "dataset.limit.train=64",
        "dataset.limit.eval=8",
        "learning_rate=0.000123",
    ),
    *("trainer.args.max_steps=4", "trainer.args.save_steps=2", "trainer.args.logging_steps=1"),
    *("trainer.args.per_device_train_batch_size=4", "tracker.tags=[mine]"),
)
TAGS = ["sft", "tiny", "toy_sort", "full", "mine"]
LOGGED = [("eval_loss", 0), *(("loss", step) for step in (1, 2, 3, 4)), ("eval_loss", 4)]


def needs(package: str):
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


# --- Variables ------------------------------------------------------------------------------------


def test_the_words_of_variables_are_replaced(tmp_path):
    folder = tmp_path / "outputs" / "mine" / "seed-1-0123456789"
    node = {
        "environment": {
            "WANDB_DIR": "{folder}",
            "WANDB_NAME": "{name} {key} {other}",
            "TRACKIO_DIR": "{root}/t",
        }
    }
    assert variables_of(Tracking.read(node), folder, "mine") == {
        "WANDB_DIR": str(folder),
        "WANDB_NAME": "mine 0123456789 {other}",
        "TRACKIO_DIR": f"{tmp_path}/outputs/t",
    }
    assert not folder.exists(), "only an id is written down"
    assert variables_of(Tracking(), folder, "mine") == {}


def test_a_folder_keeps_its_id_and_another_one_has_another(tmp_path):
    folders = [tmp_path / name / "seed-1-0123456789" for name in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
    first, second = map(id_of, folders)
    assert first.startswith("0123456789-")
    assert first != second
    assert id_of(folders[0]) == first


def test_only_the_first_process_makes_an_id(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert id_of(tmp_path / "seed-1-0123456789") == "0123456789"
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_a_fault_that_says_what_to_install_for_the_worker_too(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda name: None)
    assert not list(find_missing_libraries({"tracker": {"report_to": "none"}}))
    run = lay_run(
        tmp_path / "x" / "run", state="created", tracker={"report_to": ["tensorboard", "wandb"]}
    )
    assert worker.work(run) == 5
    told = capsys.readouterr().err
    assert "pip install 'wandb>=0.19'" in told
    assert "pip install 'tensorboard>=2.18'" in told


@pytest.mark.slow
def test_several_trackers_are_composed_into_one_and_change_no_key(tmp_path):
    (tmp_path / "tracker").mkdir()
    (tmp_path / "tracker" / "ours.yaml").write_text("report_to: [wandb, mlflow]\ntags: [ours]\n")
    (tmp_path / "experiment").mkdir()
    listed = "# @package _global_\ndefaults: [{override /tracker: [tensorboard, ours, none]}]\n"
    (tmp_path / "experiment" / "two.yaml").write_text(listed)
    single = compose(["tracker=wandb"]).cfg
    typed = compose(["tracker=[wandb,tensorboard]"]).cfg
    assert typed["tracker"]["report_to"] == ["wandb", "tensorboard"]
    assert key_of(single) == key_of(typed)
    assert typed["tracker"]["environment"].items() > single["tracker"]["environment"].items()
    node = compose(["experiment=two"], [tmp_path]).cfg["tracker"]
    assert (node["report_to"], node["tags"]) == (["tensorboard", "wandb", "mlflow"], ["ours"])
    assert (
        compose(["experiment=two", "tracker.report_to=none"], [tmp_path]).cfg["tracker"][
            "report_to"
        ]
        == "none"
    )


def events_of(run: Run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(
        str(run.folder / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0}
    ).Reload()


def figures_of(run: Run) -> dict[str, list[int]]:
    events = events_of(run)
    steps = {}
    for name in events.Tags()["scalars"]:
        steps[name] = [event.step for event in events.Scalars(name)]
    return steps


def text_of(run: Run, name: str) -> str:
    (event,) = events_of(run).Tensors(f"{name}/text_summary")
    return event.tensor_proto.string_val[0].decode()


# --- Whole runs -----------------------------------------------------------------------------------


# trackio reads its folder at import, which the waiting process has already done
COLD = {"COLD": "1"}


def trained_twice(runner, tracker: str, *words: str, **variables: str) -> Run:
    """A run that ended, lost its last checkpoint as in a crash, and repeated the steps after the
    first one.
    """
    words = (*FEW, f"tracker={tracker}", "name=group", *words)
    runner(*words, **variables)
    (folder,) = runner.runs("group")
    run = Run(folder)
    shutil.rmtree(run.checkpoints / "checkpoint-4")
    shutil.rmtree(run.model)
    run.set_status("interrupted", step=2)
    done = runner(*words, **variables)
    assert run.status()["state"] == "finished"
    assert "\x1b[" not in done.stdout + done.stderr
    return run


@pytest.mark.dear("two starts of a run, which import the tracker")
@pytest.mark.slow
@needs("tensorboard")
def test_tensorboard(runner):
    run = trained_twice(runner, "tensorboard")
    assert len(list((run.folder / "tensorboard").iterdir())) == 2, "each start writes a file"
    figures = figures_of(run)
    assert figures["train/loss"] == [1, 2, 3, 4]
    assert figures["eval/loss"] == [0, 4]
    # below the format of the folder
    frozen = (run.folder / "config.yaml").read_text().partition("\n")[2]
    assert text_of(run, "config") == f"```yaml\n{frozen}```"
    assert (text_of(run, "tags"), text_of(run, "group")) == (", ".join(TAGS), "group")


@pytest.mark.slow
@needs("wandb")
def test_wandb(runner):
    run = trained_twice(runner, "wandb")
    files = sorted(
        run.folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns
    )
    assert len(files) == 2, "each start writes a file, and wandb sync joins them"
    records = list(itertools.chain(*map(wandb_records, files)))
    starts = [record.run for record in records if record.HasField("run")]
    word = json.loads((run.folder / "tracker.json").read_text())["id"]
    assert {(start.run_id, start.run_group, start.project) for start in starts} == {
        (word, "group", "runner")
    }
    for start in starts:
        assert sorted(start.tags) == sorted(TAGS)
    parts = itertools.chain(*(start.config.update for start in starts))
    configs = [json.loads(part.value_json) for part in parts if part.key == "runner"]
    assert len(configs) == 2
    for config in configs:
        assert config == run.cfg
    figures = []
    for record in records:
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        step = row.get("train/global_step")
        figures += [
            (name, step)
            for key, name in (("train/loss", "loss"), ("eval/loss", "eval_loss"))
            if key in row
        ]
    assert figures == LOGGED
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0, 0]


def test_the_database_of_mlflow_is_made_by_one_run_at_a_time(tmp_path, monkeypatch):
    inside = []
    most = []

    class Client:
        def __init__(self, address):
            assert address == f"sqlite:///{tmp_path}/mlflow.db"

        def search_experiments(self, max_results):
            inside.append(self)
            time.sleep(0.02)
            most.append(len(inside))
            inside.remove(self)

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    make_database()
    assert most == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: make_database(), range(4)))
    assert most == [1, 1, 1, 1]


@pytest.mark.slow
@needs("mlflow")
@needs("trackio")
def test_others_are_those_of_the_library_in_a_database_for_all_runs(runner):
    words = (*FEW, "name=group", "trainer.args.max_steps=1", "tracker=[mlflow,trackio]")
    runner("-m", *words, "seed=0,1", "launcher.jobs=2", **COLD)
    with sqlite3.connect(runner.folder / "outputs" / "mlflow.db") as base:
        assert base.execute(
            "select count(*), count(distinct experiment_id) from runs"
        ).fetchone() == (2, 1)
        assert base.execute("select name from experiments where name != 'Default'").fetchall() == [
            ("group",)
        ]
    with sqlite3.connect(runner.folder / "outputs" / "trackio" / "runner.db") as base:
        assert len({name for (name,) in base.execute("select run_name from metrics")}) == 2
    assert not (Path(runner.environment["HF_HOME"]) / "trackio").exists()


def wandb_records(path: Path):
    """The records of an offline wandb file.

    Blocks of 32 kB of chunks, each with a header of 7 bytes.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    place = 7
    record = b""
    while place + 7 <= len(data):
        remaining = 32768 - place % 32768
        if remaining < 7:
            place += remaining
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record = (b"" if kind in (1, 2) else record) + data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield Record.FromString(record)
