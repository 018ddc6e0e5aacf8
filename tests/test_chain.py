"""Runs that build on runs: the run that a word means, and an adapter below another one."""

from pathlib import Path

import pytest

from runner import __main__ as door
from runner.errors import ConfigError
from runner.io.files import write_json
from runner.launch.compose.stages import compose_runs
from runner.run import Run, write_config
from runner.run.key import key_of

TINY = "runner://model/tiny"
LORA = {"_target_": "peft.LoraConfig"}


def composed(*words):
    """The runs of a command line, checked as the command checks them."""
    line = door.read_command_line(words)
    return compose_runs(line.overrides, line.folders)


def fault(*words):
    with pytest.raises(ConfigError) as error:
        composed(*words)
    (one,) = error.value.faults
    return one.where, one.fix


@pytest.fixture
def lay(tmp_path, monkeypatch):
    """Lay a finished run by hand: what others read of it."""
    monkeypatch.chdir(tmp_path)

    def lay(name, folder, *, peft=None, path=TINY, state="finished", **scores):
        run = Run(Path("outputs", name, folder))
        run.model.mkdir(parents=True)
        cfg = {"name": name, "seed": 0, "metric": None, "peft": peft, "model": {"path": path}}
        write_config(run.folder, cfg)
        write_json(run.folder / "status.json", {"state": state, "updated": folder})
        write_json(run.folder / "scores.json", {"before": scores, "after": scores})
        return str(run.model)

    return lay


# --- The run that a word means ------------------------------------------------------------------


def test_a_name_is_its_only_finished_run_or_the_best_of_several(lay):
    lay("sft", "b-02", state="failed")
    only = lay("sft", "a-01", eval_loss=0.3)
    (run,) = composed("trainer=dpo", "model=outputs/sft")
    assert run.cfg["model"]["path"] == run.cfg["model"]["tokenizer"]["path"] == only
    assert run.starts == ["model.path is outputs/sft/a-01, the only finished run"]
    best = lay("sft", "c-03", eval_loss=0.1)
    lay("sft", "d-04", eval_loss=0.2)
    (run,) = composed("trainer=dpo", "model=outputs/sft/")
    assert run.cfg["model"]["path"] == best
    (line,) = run.starts
    assert line.endswith("outputs/sft/c-03, the best of 3 finished runs (eval_loss 0.1)")
    (run,) = composed("trainer=dpo", "model=${run:sft}")
    assert run.cfg["model"]["path"] == "outputs/sft/d-04/model"
    assert run.starts[0].endswith("outputs/sft/d-04, the newest of 3 finished runs")
    lay("new", "e-05", state="failed")
    where, fix = fault("trainer=dpo", "model=outputs/new")
    assert (where, fix.split()[:4]) == (
        "model.path",
        ["python", "-m", "runner.launch", "outputs/new/e-05"],
    )


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("model=${best:judge}",), "model.path"),
        (("model.path=outputs/judge",), "model.path"),
        (("model.tokenizer.path=${run:judge}",), "model.tokenizer.path"),
        (("reward=outputs/judge/a-01",), "reward.model.path"),
        (("reward=outputs/judge",), "reward.model.path"),
        (("reward=${run:judge}",), "reward.model.path"),
        (("reward=model", "reward.model.path=outputs/judge"), "reward.model.path"),
        (("trainer=ppo", "trainer.args.sft_model_path=outputs/judge"), "sft_model_path"),
        (("trainer=gkd", "trainer.teacher_model=${run:judge}"), "trainer.teacher_model.path"),
        (("trainer=gkd", "trainer.teacher_model=outputs/judge"), "trainer.teacher_model.path"),
    ],
)
def test_a_run_may_stand_wherever_a_model_does(lay, words, key):
    judge = lay("judge", "a-01")
    (run,) = composed("trainer=grpo", *words)
    node = run.cfg["trainer"]["args"] if key == "sft_model_path" else run.cfg
    for name in key.split("."):
        node = node[name]
    assert node == judge


# --- An adapter as the start --------------------------------------------------------------------


def test_an_adapter_is_merged_below_another_one_and_trained_further_without_one(lay):
    start = lay("sft", "a-01", peft=LORA)
    (run,) = composed("trainer=dpo", f"model.path={start}", "peft=lora")
    assert run.cfg["model"]["merge"] is True
    (line,) = run.starts
    assert "outputs/sft/a-01 is merged" in line
    assert "peft=none" in line
    (typed,) = composed("trainer=dpo", f"model.path={start}", "peft=lora", "model.merge=true")
    assert key_of(typed.cfg) == key_of(run.cfg), "runs that are there keep their key"
    assert typed.starts == []
    (further,) = composed("trainer=dpo", f"model.path={start}")
    assert "merge" not in further.cfg["model"]
    assert "peft=lora" in further.starts[0]
    (frozen,) = composed("trainer=dpo", f"model.path={start}", "peft=freeze")
    assert frozen.cfg["model"]["merge"] is True
    # One that trains an adapter further leaves one, and one that merges it alone does not.
    further = lay("dpo", "b-02", path=start)
    assert composed("trainer=kto", f"model.path={further}", "peft=lora")[0].cfg["model"]["merge"]
    whole = lay("whole", "c-03")
    (plain,) = composed("trainer=kto", f"model.path={whole}", "peft=lora")
    assert "merge" not in plain.cfg["model"]
    assert plain.starts == []


def test_a_stage_means_the_same_before_the_one_below_it_has_trained(lay, tmp_path):
    path = tmp_path / "mine" / "experiment" / "chain.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "# @package _global_\nname: chain\nstages:\n"
        "  sft: [trainer=sft, peft=lora]\n"
        "  more: [trainer=sft, 'model.path=${run:sft}']\n"
        "  dpo: [trainer=dpo, 'model.path=${run:more}', peft=lora]\n"
    )
    words = ("experiment=chain", "--config-dir", "mine")
    before = composed(*words)
    assert [run.cfg["model"].get("merge") for run in before] == [None, None, True]
    for run in before:
        folder = Path(run.cfg["output_root"], run.cfg["name"])
        name = next(iter(door.stages.folder_of(run.cfg, run.overrides).parts[2:]))
        laid = Run(folder / name)
        laid.model.mkdir(parents=True)
        write_config(laid.folder, run.cfg)
        write_json(laid.folder / "status.json", {"state": "finished"})
    assert [key_of(run.cfg) for run in composed(*words)] == [key_of(run.cfg) for run in before]
