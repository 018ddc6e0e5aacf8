"""A tracker receives the frozen config, tags, the group, and each figure once, in one run even
after a resume.
"""

import itertools
import json
import math
import os
import shutil
import sqlite3
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from laid import lay_run

from runner.__main__ import main
from runner.config.composition import compose
from runner.config.experiment import Tracking
from runner.config.menu import read_options
from runner.errors import ConfigError, EnvironmentFault
from runner.launch import worker
from runner.launch.compose.stages import compose_runs
from runner.run import Run, locked, open_run
from runner.run.key import key_of
from runner.schema.upstream.trackers import QUIET_MODES, TRACKERS
from runner.tracker.mlflow import make_database
from runner.tracker.variable import id_of, note_complete, sent_until, set_variables, variables_of
from runner.validate.libraries import find_missing_libraries, find_unset_variables

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


# --- The trackers of transformers -----------------------------------------------------------------


def test_transformers_knows_exactly_these_trackers_and_each_is_an_option():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    assert set(INTEGRATION_TO_CALLBACK) == set(TRACKERS)
    assert set(read_options("tracker")) == {"none", *TRACKERS}


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_without_its_package_is_refused_with_the_line_that_installs_it(name, monkeypatch):
    monkeypatch.setattr("runner.validate.libraries.find_spec", lambda library: None)
    faults = [*find_missing_libraries({"tracker": {"report_to": name}})]
    assert bool(faults) == bool(TRACKERS[name].library)
    for fault in faults:
        assert fault.found.startswith(f"{name} needs ")
        assert fault.fix.startswith("pip install ")


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """A home folder in which nobody has logged in anywhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for tracker in TRACKERS.values():
        for variable in (tracker.key_variable, tracker.mode_variable, tracker.needed_variable):
            if variable:
                monkeypatch.delenv(variable, raising=False)
    return tmp_path


WITH_KEYS = [name for name, tracker in TRACKERS.items() if tracker.key_variable]


@pytest.mark.parametrize("name", WITH_KEYS)
def test_a_tracker_that_sends_needs_its_secret(name, nobody, monkeypatch):
    tracker = TRACKERS[name]
    if tracker.needed_variable:
        monkeypatch.setenv(tracker.needed_variable, "https://example.org/a/b.mlflow")
    cfg = {"tracker": {"report_to": [name, "tensorboard"], "mode": "online"}}
    (fault,) = find_unset_variables(cfg)
    assert tracker.key_variable in fault.found
    assert f"export {tracker.key_variable}=" in fault.fix
    monkeypatch.setenv(tracker.key_variable, "k" * 40)
    assert not list(find_unset_variables(cfg))
    monkeypatch.delenv(tracker.key_variable)
    for mode in QUIET_MODES:
        if mode in tracker.modes:
            assert not list(find_unset_variables({"tracker": {"report_to": name, "mode": mode}}))
    files = [file for file in tracker.login_files if file.startswith("~/")]
    if files:
        file = nobody / files[0].removeprefix("~/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("machine somewhere\n")
        assert not list(find_unset_variables(cfg))


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("wandb", {"WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_MODE": "offline"}),
        ("swanlab", {"SWANLAB_PROJ_NAME": "p", "SWANLAB_WORKSPACE": "e"}),
        ("comet_ml", {"COMET_PROJECT_NAME": "p", "COMET_WORKSPACE": "e"}),
        ("comet_ml", {"COMET_START_ONLINE": "false"}),
        ("clearml", {"CLEARML_PROJECT": "p", "CLEARML_OFFLINE_MODE": "1"}),
        ("mlflow", {"MLFLOW_EXPERIMENT_NAME": "p"}),
        ("neptune", {"NEPTUNE_PROJECT": "p"}),
    ],
)
def test_project_entity_and_mode_reach_a_tracker_by_its_own_variables(name, variables):
    node = {"report_to": name, "project": "p", "entity": "e", "mode": "offline"}
    assert Tracking.read(node).variables.items() >= variables.items()
    typed = dict.fromkeys(variables, "typed")
    assert Tracking.read(node | {"environment": typed}).variables.items() >= typed.items()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "where", "told"),
    [
        (["tracker=tensorboard", "tracker.project=x"], "tracker.project", "takes no project"),
        (["tracker=mlflow", "tracker.entity=x"], "tracker.entity", "takes no entity"),
        (["tracker=neptune", "tracker.mode=offline"], "tracker.mode", "online or disabled"),
        (["tracker=wandb", "tracker.mode=cloud"], "tracker.mode", "online"),
    ],
)
def test_a_key_that_no_chosen_tracker_takes_is_refused(words, where, told):
    with pytest.raises(ConfigError) as refused:
        compose_runs(words)
    assert where in str(refused.value)
    assert told in str(refused.value)


def test_a_key_that_one_of_several_trackers_takes_is_taken():
    (composed,) = compose_runs(["tracker=[tensorboard,wandb]", "tracker.project=x"])
    assert composed.experiment.tracker.variables["WANDB_PROJECT"] == "x"


@pytest.mark.slow
def test_a_mode_that_sends_is_typed_and_in_no_file_of_others(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [{override /tracker: comet_ml}]\n"
    (tmp_path / "experiment" / "theirs.yaml").write_text(f"{text}tracker: {{mode: online}}\n")
    with pytest.raises(ConfigError, match="sends the figures to a server"):
        compose_runs(["experiment=theirs"], [tmp_path])
    compose_runs(["experiment=theirs", "tracker.mode=offline"], [tmp_path])
    compose_runs(["experiment=theirs", "tracker=comet_ml", "tracker.mode=online"], [tmp_path])


def test_comet_stays_still_unless_it_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr("os.environ", {})
    set_variables(Tracking.read({"report_to": "tensorboard"}), tmp_path, "mine")
    assert os.environ == {"COMET_DISABLE_AUTO_LOGGING": "1"}


def test_two_callbacks_in_a_list_of_trackers_are_refused(tmp_path):
    (tmp_path / "tracker").mkdir()
    for name in ("one", "two"):
        (tmp_path / "tracker" / f"{name}.yaml").write_text(f"_target_: lab.{name.title()}\n")
    with pytest.raises(ConfigError, match="at most one with a _target_"):
        compose(["tracker=[one,tensorboard,two]"], [tmp_path])


class Service(SimpleNamespace):
    """A stand-in for the package of a service, which notes what it is told."""

    def __init__(self, name: str):
        super().__init__(
            __name__=name, __spec__=ModuleSpec(name, None), told=[], config={}, run=None
        )

    def init(self, **options):
        self.told.append(("init", options))
        self.run = self

    def get_run(self):
        if self.run is None:
            raise RuntimeError("No active Run")
        return self

    def log(self, figures, step=None):
        self.told += [(name, step) for name in figures if name != "train/global_step"]

    def finish(self):
        self.told.append("finish")


def test_swanlab_gets_config_and_figures_and_is_closed_after_the_last_scores(tmp_path, monkeypatch):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from runner.tracker.services import SwanLab

    service = Service("swanlab")
    monkeypatch.setitem(sys.modules, "swanlab", service)
    (composed,) = compose_runs(["trainer=sft", "tracker.tags=[mine]"])
    tracker = SwanLab(composed.experiment, tmp_path)
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, run_name="r")
    state, control = TrainerState(global_step=1), TrainerControl()
    tracker.on_train_begin(args, state, control, model=None)
    tracker.on_log(args, state, control, logs={"loss": 1.0})
    tracker.on_log(args, state, control, logs={"loss": 1.0})
    tracker.on_train_end(args, state, control)
    tracker.on_log(args, state, control, logs={"eval_loss": 2.0})
    tracker.close(finished=True)
    begun, *figures, end = service.told
    assert begun[0] == "init"
    assert begun[1]["config"]["runner"] == composed.cfg
    assert begun[1]["tags"][-1] == "mine"
    assert figures == [("train/loss", 1), ("eval/loss", 1)]
    assert end == "finish"


def test_what_a_service_raises_at_its_start_is_told_with_the_way_to_go_on(tmp_path, monkeypatch):
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from runner.tracker.services import SwanLab

    service = Service("swanlab")
    service.init = None
    monkeypatch.setitem(sys.modules, "swanlab", service)
    (composed,) = compose_runs(["trainer=sft"])
    args = TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    tracker = SwanLab(composed.experiment, tmp_path)
    with pytest.raises(EnvironmentFault, match=r"tracker\.mode=offline, or tracker=none"):
        tracker.on_train_begin(args, TrainerState(), TrainerControl(), model=None)


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


# --- Runs that are over ---------------------------------------------------------------------------


@pytest.fixture
def over(tmp_path, monkeypatch):
    """A run of a name that is over, with two logged steps, and what a command prints."""
    monkeypatch.chdir(tmp_path)
    (composed,) = compose_runs(["trainer=sft", "name=x"])
    run = open_run(composed.cfg, composed.overrides, composed.command)
    lines = [{"step": 0, "eval_loss": 2.0, "max_steps": 3}, {"step": 2, "loss": 1.0, "lr": None}]
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run.set_status("interrupted", step=2)
    return run


@pytest.mark.slow
@needs("tensorboard")
def test_sync_sends_a_run_once_and_then_what_it_has_logged_since(over, capfd):
    words = ["sync", "outputs/x", "tracker=tensorboard", "tracker.tags=[late]"]
    assert main(words) == 0
    assert capfd.readouterr().out == f"sent      {over} to tensorboard: 2 logged steps\n"
    assert figures_of(over) == {"eval/loss": [0], "train/loss": [2]}
    assert text_of(over, "tags") == "sft, tiny, toy_sort, full, late"
    assert main(words) == 0
    assert capfd.readouterr().out == f"there     {over} is in tensorboard already\n"
    with over.metrics.open("a") as file:
        file.write(json.dumps({"step": 3, "loss": 0.5, "eval_loss": 1.0}) + "\n")
    over.set_status("finished", step=3)
    assert main(words) == 0
    assert "3 logged steps" in capfd.readouterr().out
    assert {step for step in figures_of(over)["train/loss"]} == {2, 3}
    assert not (over.folder / "model").exists()
    shutil.rmtree(over.folder / "tensorboard")
    (over.folder / "tensorboard").write_text("no folder")
    (over.folder / "tracker.json").unlink()
    assert main(words) == 5
    assert "a tracker that takes it" in capfd.readouterr().err


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["x"], 2, "tracker=wandb"),
        (["x", "tracker=codecarbon"], 2, "gets figures only while a run trains"),
        (["x", "tracker=mlflow", "seed=1"], 2, "sync has no such key"),
        (["x", "tracker=dvclive"], 5, "pip install 'dvclive"),
        (["nowhere", "tracker=tensorboard"], 4, "no such folder"),
    ],
)
def test_what_sync_cannot_send_is_refused(over, capsys, words, code, told):
    assert main(["sync", *words]) == code
    assert told in capsys.readouterr().err


def test_a_run_that_trains_is_not_sent(over, capsys):
    over.set_status("running", step=2)
    with locked(over):
        assert main(["sync", "x", "tracker=tensorboard"]) == 4
    assert "a run that is over" in capsys.readouterr().err


def test_the_trackers_that_take_a_history_are_those_with_a_callback_of_ours():
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    from runner.tracker.replacement import COMPLETE

    ours = {name for name, kind in INTEGRATION_TO_CALLBACK.items() if kind in COMPLETE}
    assert ours == {name for name, tracker in TRACKERS.items() if tracker.takes_history}
    for kind in COMPLETE.values():
        assert (kind.name or kind.__name__.lower()) in TRACKERS


def test_a_tracker_remembers_the_last_step_that_it_has(tmp_path):
    assert sent_until(tmp_path, "wandb") == -1
    note_complete(tmp_path, "wandb", 4)
    assert sent_until(tmp_path, "wandb") == 4
    note_complete(tmp_path, "wandb")
    assert sent_until(tmp_path, "wandb") == math.inf
    (tmp_path / "tracker.json").write_text('{"id": "a-1", "complete": ["mlflow"]}')
    assert sent_until(tmp_path, "mlflow") == math.inf, "of an earlier version"


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
