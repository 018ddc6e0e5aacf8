"""Staged experiments: each stage is a run like any other; a change reruns what depends on it."""

import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from runner import __main__ as door
from runner.command._words import read_command_line
from runner.config import composition
from runner.errors import ConfigError
from runner.io.files import MENU, files_of, read_json, write_json
from runner.launch import pool
from runner.launch.compose.stages import compose_runs
from runner.run import Run, open_run, uses_of, write_config
from runner.run.key import folder_of

CHAIN = {
    "sft": ["trainer=sft", "learning_rate=1e-3"],
    "judge": ["experiment=toy_reward", "model.path=${run:sft}"],
    "rl": [
        "trainer=grpo",
        "model.path=${run:sft}",
        "reward=model",
        "reward.model.path=${run:judge}",
    ],
}
QUICK = (
    "metric=none",
    "dataset.limit.train=16",
    "dataset.limit.eval=4",
    "trainer.args.per_device_train_batch_size=8",
    "rl.trainer.args.max_completion_length=8",
)


def write_stages(folder, stages, name="chain", **keys):
    """Write a user's staged experiment in a config folder."""
    path = folder / "experiment" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    node = {"defaults": [{"override /dataset": "toy_sort"}], "name": name, "stages": stages} | keys
    path.write_text("# @package _global_\n" + yaml.safe_dump(node, sort_keys=False))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a staged experiment in the working folder; return the words that choose it."""
    monkeypatch.chdir(tmp_path)

    def write(stages, name="chain", **keys):
        write_stages(tmp_path / "mine", stages, name, **keys)
        return (f"experiment={name}", "--config-dir", "mine")

    return write


@pytest.fixture(scope="module")
def folder_of_the_chain(tmp_path_factory):
    """One folder for all tests, so that Hydra composes its stages once."""
    folder = tmp_path_factory.mktemp("chain")
    write_stages(folder, CHAIN)
    return folder


@pytest.fixture
def chain(folder_of_the_chain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return ("experiment=chain", "--config-dir", str(folder_of_the_chain))


def composed(*words):
    """Each stage's configuration by its name, checked as the command checks it."""
    line = read_command_line(words)
    return {run.stage: run.cfg for run in compose_runs(line.overrides, line.folders)}


def faults(*words):
    with pytest.raises(ConfigError) as error:
        composed(*words)
    return error.value.faults


def make_run(root, name, folder, updated="2026-01-01T00:00:00+00:00", state="finished"):
    run = Run(root / name / folder)
    run.model.mkdir(parents=True)
    write_config(run.folder, {"seed": 1})
    write_json(run.folder / "status.json", {"state": state, "updated": updated})
    return run


def new_lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("new ")]


@pytest.mark.slow
def test_a_dry_run_prints_every_stage_in_order_and_makes_nothing(chain, tmp_path, capsys):
    assert door.main([*chain, "--dry-run"]) == 0
    lines = new_lines(capsys)
    assert [line[:32].split("/")[:2] for line in lines] == [
        ["new       outputs", f"chain-{stage}"] for stage in ("sft", "judge", "rl")
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_stage_knows_the_folder_of_an_earlier_one_before_that_has_trained(chain, capsys):
    door.main([*chain, "--dry-run"])
    sft, judge, _ = (line.split()[1] for line in new_lines(capsys))
    cfg = composed(*chain)["rl"]
    assert (cfg["model"]["path"], cfg["reward"]["model"]["path"]) == (
        f"{sft}/model",
        f"{judge}/model",
    )
    assert cfg["model"]["tokenizer"]["path"] == f"{sft}/model"


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("sft.seed=1", [False, False, False]),
        ("judge.seed=1", [True, False, False]),
        ("rl.seed=1", [True, True, False]),
        ("seed=0", [True, True, True]),  # as it is anyway
        ("launcher.num_processes=1", [True, True, True]),
    ],
)
@pytest.mark.slow
def test_a_changed_stage_and_those_that_depend_on_it_are_other_runs(chain, word, same):
    line = read_command_line(chain)
    folders = [
        open_run(run.cfg, run.overrides).folder
        for run in compose_runs(line.overrides, line.folders)
    ]
    line = read_command_line([*chain, word])
    now = [folder_of(run.cfg, run.overrides) for run in compose_runs(line.overrides, line.folders)]
    assert [
        folder == same_folder.absolute() for folder, same_folder in zip(folders, now, strict=True)
    ] == same


@pytest.mark.slow
def test_a_word_goes_to_every_stage_unless_it_names_one(chain):
    cfgs = composed(*chain, "rl.seed=5", "seed=3", "rl.kl_coef=0.2", "sft.peft=lora", "name=mine")
    assert {stage: cfg["seed"] for stage, cfg in cfgs.items()} == {"sft": 3, "judge": 3, "rl": 5}
    assert {stage: cfg["kl_coef"] for stage, cfg in cfgs.items()} == {
        "sft": None,
        "judge": None,
        "rl": 0.2,
    }
    assert {stage: bool(cfg["peft"]) for stage, cfg in cfgs.items()} == {
        "sft": True,
        "judge": False,
        "rl": False,
    }
    assert [cfg["name"] for cfg in cfgs.values()] == ["mine-sft", "mine-judge", "mine-rl"]


@pytest.mark.slow
def test_typed_words_win_over_the_file_and_name_the_folder(chain, capsys):
    assert composed(*chain, "sft.learning_rate=5e-4")["sft"]["learning_rate"] == 5e-4
    assert composed(*chain, "learning_rate=5e-4")["rl"]["learning_rate"] == 5e-4
    door.main([*chain, "rl.kl_coef=0.2", "--dry-run"])
    sft, _, rl = new_lines(capsys)
    assert "chain-sft/default-" in sft
    assert "chain-rl/kl_coef-0.2-" in rl


@pytest.mark.slow
def test_keys_beside_the_stages_are_shared_and_an_inner_experiment_overrides_them(write):
    cfgs = composed(*write(CHAIN, seed=7, learning_rate=9e-4))
    assert {cfg["seed"] for cfg in cfgs.values()} == {7}
    rates = {stage: cfg["learning_rate"] for stage, cfg in cfgs.items()}
    # of its words, of toy_reward, of the file
    assert rates == {"sft": 1e-3, "judge": 1e-3, "rl": 9e-4}
    assert cfgs["judge"]["trainer"]["args"]["max_steps"] == 200
    assert cfgs["judge"]["name"] == "chain-judge"


@pytest.mark.slow
def test_a_word_for_every_stage_keeps_references_to_earlier_ones(chain):
    before = composed(*chain)
    after = composed(*chain, "model.path=org/name", "model.dtype=float32")
    assert after["sft"]["model"]["path"] == "org/name"
    assert "outputs/chain-sft/" in after["rl"]["model"]["path"] != before["rl"]["model"]["path"]
    assert composed(*chain, "rl.model.path=org/name")["rl"]["model"]["path"] == "org/name"
    assert "sft.reward.model.path" in {
        fault.where for fault in faults(*chain, "reward.model.path=x")
    }


@pytest.mark.slow
def test_tuned_settings_stay_with_their_model_and_its_descendants(write, tmp_path, capsys):
    field = "per_device_train_batch_size"
    words = write(CHAIN)
    settings = [cfg["trainer"]["args"].get(field) for cfg in composed(*words).values()]
    lost = [
        cfg["trainer"]["args"].get(field) for cfg in composed(*words, "model.path=runner").values()
    ]
    assert (settings, lost) == ([32] * 3, [None] * 3)
    for name, path in {
        "base": "runner://model/tiny",
        "next": "outputs/base/default-01/model",
        "other": "x/y",
    }.items():
        run = make_run(tmp_path / "outputs", name, "default-01")
        write_config(run.folder, {"model": {"path": path}})
    of_runs = [
        composed(f"model.path=${{run:{name}}}")[""]["learning_rate"]
        for name in ("base", "next", "other")
    ]
    assert of_runs == [1e-4, 1e-4, 2e-5]
    assert composed("model.path=outputs/next/default-01/model")[""]["name"] == "sft-tiny-toy"
    write_option = (tmp_path / "mine" / "model" / "own.yaml").write_text
    (tmp_path / "mine" / "model").mkdir()
    mine = {
        "learning_rate": 7e-4,
        "model": {"path": "a/b", "dtype": "bfloat16"},
        "dataset": {"limit": {"train": 9}},
    }
    write_option(f"# @package _global_\ndefaults: [hub@model, _self_]\n{yaml.safe_dump(mine)}")
    mine = ("model=own", "--config-dir", "mine")
    before = composed(*mine)[""]
    after = composed(*mine, "model.path=c/d", "trainer.args.max_steps=3")[""]
    assert (before["learning_rate"], before["name"], before["dataset"]["limit"]["train"]) == (
        7e-4,
        "sft-own-toy",
        9,
    )
    assert (after["learning_rate"], after["name"], after["dataset"]["limit"]["train"]) == (
        2e-5,
        "sft-d-toy",
        None,
    )
    assert after["model"]["dtype"] == "bfloat16"
    assert after["trainer"]["args"]["max_steps"] == 3
    capsys.readouterr()
    Path("copy").symlink_to(MENU.parent / "runner" / "model" / "tiny")
    assert door.main(["-m", "model.path=copy", "learning_rate=1,2", "--dry-run"]) == 0
    note = "note      copy is not the model of model=tiny: left out are its max_steps=80, "
    assert capsys.readouterr().out.count(note) == 1
    words = ["experiment=zephyr_dpo", "model=tiny"]
    fix = "; model.path=runner://model/tiny trains the model of model=tiny"
    (note,) = {composed.note for composed in compose_runs(words)}
    assert note.endswith(fix)
    assert {composed.note for composed in compose_runs([*words, fix[2:].split()[0]])} == {""}


@pytest.mark.slow
def test_many_stages_are_composed_by_hydra_once_and_know_the_model_that_they_began_with(write):
    words = write(
        {f"s{n}": [f"seed={n}", *([f"model.path=${{run:s{n - 1}}}"] * (n > 0))] for n in range(30)}
    )
    composition._compose_choices.cache_clear()
    assert {cfg["learning_rate"] for cfg in composed(*words).values()} == {1e-4}
    assert composition._compose_choices.cache_info().misses <= 4


@pytest.mark.slow
def test_a_word_that_no_stage_takes_is_a_fault(write, tmp_path):
    words = write({"one": CHAIN["sft"], "two": ["model.path=${run:one}"]}, name="two")
    assert composed(*words, "model.path=org/name")["one"]["model"]["path"] == "org/name"
    make_run(tmp_path / "outputs", "base", "default-0123456789")
    words = write({"one": ["model.path=${run:base}"], "two": ["model.path=${run:one}"]}, name="two")
    (fault,) = faults(*words, "model.path=org/name")
    assert (fault.where, fault.fix) == ("model.path", "two.model.path=org/name")


@pytest.mark.slow
def test_faults_of_all_stages_are_reported_at_once_and_nothing_starts(chain, tmp_path, capsys):
    words = (
        *chain,
        "sft.trainer.args.lerning_rate=1",
        "rl.trainer=gropo",
        "rll.seed=1",
        "modle.path=x",
    )
    assert door.main([*words]) == 2
    stderr = capsys.readouterr().err
    for part in (
        "4 faults",
        "sft.trainer.args.learning_rate=1",
        "rl.trainer=grpo",
        "rl.seed=1",
        "model.path=x",
    ):
        assert part in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_common_fault_is_reported_once_and_others_name_the_right_stages(chain):
    (fault,) = faults(*chain, "trainer.args.lerning_rate=1")
    assert (fault.where, fault.fix) == ("trainer.args.lerning_rate", "trainer.args.learning_rate=1")
    faults_found = faults(*chain, "kl_coef=0.1")
    assert [fault.where for fault in faults_found] == ["sft.kl_coef", "judge.kl_coef"]
    assert all(fault.fix.startswith("rl.kl_coef=0.1") for fault in faults_found)


@pytest.mark.grid(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "finding", "fix"),
    [
        ("judge.model.path='${run:rl}'", "a later stage", "judge.model.path='${run:sft}'"),
        ("judge.model.path='${run:judge}'", "this stage itself", "judge.model.path='${run:sft}'"),
        ("rl.model.path='${run:sfft}'", "no stage and no run", "rl.model.path='${run:sft}'"),
        ("rll.seed=1", "no stage and no key", "rl.seed=1"),
        ("rl=1", "rl=1", "rl.<key>=<value>"),
        ("~rl.peft", "~rl.peft", "rl.peft=null"),
        (
            "stages.rl=[seed=1]",
            "on the command line",
            "experiment=<one with stages> <stage>.seed=1",
        ),
        ("rl.experiment=chain", "stages of its own", "rl.experiment=<another>"),
        ("sft.experiment=toy_sf", "no option", "sft.experiment=toy_sft"),
    ],
)
def test_a_wrong_word_is_answered_with_a_fix(chain, word, finding, fix):
    (fault,) = faults(*chain, word)
    assert finding in fault.found
    assert fault.fix == fix
    assert fault.expected


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("stages", "where", "message"),
    [
        ({"reward": ["trainer=reward"]}, "stages.reward", "reward_model"),
        ({"seed": ["trainer=sft"]}, "stages.seed", "another name"),
        ({"a.b": ["trainer=sft"]}, "stages.a.b", "letters"),
        ({"a": []}, "stages.a", "a list of words"),
        ({"a": "trainer=sft"}, "stages.a", "a list of words"),
        ({"a": [{"trainer": "sft"}]}, "stages.a", "key=value"),
        ({"a": ["-m"]}, "stages.a", "key=value"),
        ({"a": ["hydra.run.dir=/tmp"]}, "stages.a", "leave it out"),
        ({}, "stages", "their words"),
        ({"a": ["trainer=sft", "kl_coef=0.1,0.2"]}, "a.kl_coef", "one value"),
    ],
)
def test_stages_that_cannot_work_are_refused(write, stages, where, message):
    (fault,) = faults(*write(stages))
    assert fault.where == where
    assert message in f"{fault.expected} {fault.fix}"


@pytest.mark.slow
def test_stages_outside_of_an_experiment_are_not_overlooked(tmp_path):
    group = tmp_path / "callback"
    group.mkdir()
    (group / "mine.yaml").write_text("# @package _global_\nstages: {a: [trainer=sft]}\n")
    assert "stages" in {fault.where for fault in faults("callback=mine", "-cd", str(tmp_path))}


@pytest.mark.slow
def test_keys_in_a_file_do_not_count_as_typed(write):
    unsafe = {
        "a": [
            "trainer=sft",
            "model=hub",
            "model.path=org/name",
            "model.trust_remote_code=true",
            "allow=[pack]",
        ]
    }
    words = write(unsafe)
    faults_found = faults(*words)
    assert {"a.allow", "a.model.trust_remote_code"} == {fault.where for fault in faults_found}
    typed = composed(*words, "a.model.trust_remote_code=true", "allow=[pack]")
    assert typed["a"]["model"]["trust_remote_code"] is True


@pytest.mark.slow
def test_the_configuration_of_each_stage_is_printed(chain, capsys):
    assert door.main([*chain, "rl.kl_coef=0.2", "--cfg", "job", "--resolve"]) == 0
    printed = capsys.readouterr().out
    headings = [line for line in printed.splitlines() if line.startswith("# stage")]
    assert [line.split()[2] for line in headings] == ["sft:", "judge:", "rl:"]
    documents = []
    for part in printed.split("# stage ")[1:]:
        _, _, document = part.partition("\n")
        documents.append(yaml.safe_load(document))
    assert documents[2]["kl_coef"] == 0.2
    assert "stages" not in documents[2]
    assert (
        documents[2]["model"]["path"] == composed(*chain, "rl.kl_coef=0.2")["rl"]["model"]["path"]
    )
    assert door.main([*chain, "rl.kl_coef=0.2", "--help"]) == 0


@pytest.mark.slow
def test_outside_stages_a_reference_is_the_newest_finished_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, day, state in (
        ("new-01", 3, "finished"),
        ("old-01", 2, "finished"),
        ("x-01", 4, "interrupted"),
    ):
        make_run(tmp_path / "outputs", "my-sft", folder, f"2026-01-0{day}T00:00:00+00:00", state)
    make_run(tmp_path / "elsewhere", "my-sft", "there-01")

    def path(reference, *words):
        return composed("trainer=dpo", f"model.path=${{run:{reference}}}", *words)[""]["model"][
            "path"
        ]

    assert path("my-sft") == "outputs/my-sft/new-01/model"
    assert path("my-sft/old-01") == "outputs/my-sft/old-01/model"
    assert path("my-sft", "output_root=elsewhere") == "elsewhere/my-sft/there-01/model"
    (fault,) = faults("model.path=${run:my-stf}")
    assert "my-sft" in fault.expected
    assert fault.fix == "model.path='${run:my-sft}'"
    (fault,) = faults("model.path=${run:my-sft/new}")
    assert fault.fix == "model.path='${run:my-sft/new-01}'"
    (fault,) = faults("model.path=${run:my-sft/x-01}")
    assert "interrupted" in fault.found
    assert "runner.launch outputs/my-sft/x-01" in fault.fix
    (fault,) = faults("model.path=${run:../outputs/my-sft}")
    assert fault.where == "model.path"


@pytest.mark.slow
def test_a_stage_can_begin_where_another_run_ended(write, tmp_path):
    make_run(tmp_path / "outputs", "base", "default-0123456789")
    words = write({"one": ["model.path=${run:base}"], "two": ["model.path=${run:one}"]}, name="two")
    assert composed(*words)["one"]["model"]["path"] == "outputs/base/default-0123456789/model"


def test_a_run_records_the_runs_that_it_uses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "outputs", "base", "default-01")
    (tmp_path / "rows.jsonl").write_text("")
    cfg = {
        "model": {"path": "outputs/base/default-01/model"},
        "dataset": [str(run.metrics), "rows.jsonl"],
        "seed": 1,
    }
    assert uses_of(cfg) == {"model.path": "outputs/base/default-01"}
    run.metrics.write_text("")
    assert uses_of(cfg)["dataset.0"] == "outputs/base/default-01"


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), ("-m", "rl.seed=1,2")], ids=["alone", "sweep"])
def test_a_stop_starts_no_other_stage(chain, monkeypatch, tmp_path, kind):

    def launch(run, debug):
        if run.folder.parent.name.endswith("judge"):
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)
        run.set_status("finished")
        return 0

    monkeypatch.setattr(pool, "warm_up", lambda runs: None)
    monkeypatch.setattr(pool, "launch", launch)
    assert door.main([*chain, *kind]) == 130
    folders = [
        path.parent.parent.name for path in sorted((tmp_path / "outputs").glob("*/*/config.yaml"))
    ]
    assert folders == ["chain-judge", "chain-sft"]


@pytest.mark.slow
def test_without_a_name_each_stage_is_named_after_its_parts_and_itself(write, tmp_path):
    words = write({"one": ["trainer=sft"], "two": ["trainer=dpo", "model.path=${run:one}"]})
    path = tmp_path / "mine" / "experiment" / "chain.yaml"
    path.write_text(path.read_text().replace("name: chain\n", ""))
    assert [cfg["name"] for cfg in composed(*words).values()] == [
        "sft-tiny-toy_sort-one",
        "dpo-tiny-toy_sort-two",
    ]


def states(runner, name="chain"):
    states_of = {}
    for stage in CHAIN:
        runs = [Run(folder) for folder in runner.runs(f"{name}-{stage}")]
        states_of[stage] = [run.status()["state"] for run in runs]
    return states_of


@pytest.mark.dear("four trainings")
@pytest.mark.slow
def test_each_stage_trains_as_it_would_alone_and_again_changes_no_byte(runner, chain):
    words = (*chain, *QUICK, "trainer.args.max_steps=1")
    done = runner(*words)
    options = [
        line for line in done.stdout.splitlines() if line.startswith(("stage", "run ", "finished"))
    ]
    assert [line.split()[0] for line in options] == ["stage", "run", "finished"] * 3
    assert states(runner) == {stage: ["finished"] for stage in CHAIN}
    rl = Run(runner.runs("chain-rl")[0])
    assert "${" not in (rl.folder / "config.yaml").read_text()
    sft, judge = (
        str(runner.runs(f"chain-{stage}")[0].relative_to(runner.folder))
        for stage in ("sft", "judge")
    )
    uses = read_json(rl.folder / "manifest.json")["uses"]
    assert (uses["model.path"], uses["reward.model.path"]) == (sft, judge)
    stage = Run(runner.runs("chain-judge")[0])
    quick = [word for word in QUICK if not word.startswith("rl.")]
    runner(
        "experiment=toy_reward",
        *quick,
        "trainer.args.max_steps=1",
        f"model.path={sft}/model",
        "name=alone",
    )
    alone = Run(runner.runs("alone")[0])
    assert alone.folder.name[-10:] == stage.folder.name[-10:]
    assert files_of(alone.model) == files_of(stage.model)
    before = files_of(runner.folder / "outputs")
    assert runner(*words).stdout.count("nothing was changed") == 3
    assert files_of(runner.folder / "outputs") == before
    again = runner(*words, "judge.seed=1", "--dry-run").stdout
    assert [line.split()[0] for line in again.splitlines() if "outputs/" in line] == [
        "finished",
        "new",
        "new",
    ]


STOPS = """
import os, signal, time
from transformers import TrainerCallback


class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and os.path.exists("stops"):
            os.remove("stops")
            heard = []
            handler = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *how: (heard.append(how), handler(*how)))
            os.kill(os.getppid(), signal.SIGTERM)  # the command, which hands it on
            while not heard:
                time.sleep(0.005)
"""


@pytest.mark.dear("three trainings, of which one starts twice")
@pytest.mark.slow
def test_a_stop_ends_the_command_and_the_same_command_resumes(runner, chain):
    (runner.folder / "callbacks.py").write_text(STOPS)
    stops = runner.folder / "stops"
    stops.touch()
    held_words = (
        "judge.callback.stops._target_=callbacks.Stops",
        "allow=[callbacks]",
        "judge.trainer.args.logging_steps=1",
    )
    words = (
        "-m",
        "rl.seed=1",
        *chain,
        *QUICK,
        "trainer.args.max_steps=1",
        "judge.trainer.args.max_steps=3",
        *held_words,
    )
    runner(*words, code=143)
    assert not stops.exists()
    assert states(runner) == {"sft": ["finished"], "judge": ["interrupted"], "rl": []}
    runner(*words)
    assert states(runner) == {stage: ["finished"] for stage in CHAIN}
    starts = [
        read_json(runner.runs(f"chain-{stage}")[0] / "manifest.json")["starts"] for stage in CHAIN
    ]
    assert starts == [1, 2, 1]


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [(), ("-m", "rl.seed=1,2")], ids=["alone", "sweep"])
def test_a_stage_that_fails_ends_the_command_with_its_code(runner, chain, kind):
    done = runner(
        *kind, *chain, *QUICK, "trainer.args.max_steps=2", "judge.trainer.args.max_length=8", code=2
    )
    assert states(runner) == {"sft": ["finished"], "judge": ["failed"], "rl": []}
    # The jobs of a sweep share the stage, and it is tried once.
    assert done.stdout.count("start     judge" if kind else "run       outputs/chain-judge") == 1


@pytest.mark.slow
def test_a_stage_takes_rows_and_mappings_as_the_command_line_does(write, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1", "completion": "2"}\n')
    stage = ["trainer=sft", "dataset=rows.jsonl", "model.config={attention_dropout: 0.1}"]
    words = write({"sft": stage, "again": ["trainer=sft", "model.path=${run:sft}"]})
    rules = "sft.weight=[answers,tool_calls]"
    cfg = composed(*words, "sft.model.config={rms_norm_eps: 1e-5}", rules)["sft"]
    assert [*cfg["weight"]] == ["answers", "tool_calls"]
    assert cfg["dataset"]["path"] == "rows.jsonl"
    assert cfg["model"]["config"] == {"attention_dropout": 0.1, "rms_norm_eps": 1e-5}


@pytest.mark.slow
def test_the_number_of_stages_is_limited(write):
    words = write({f"s{number}": ["trainer=sft"] for number in range(3000)})
    (fault,) = faults(*words)
    assert fault.where == "stages"
    assert fault.found == "3,000 stages"
