"""Runs that build on runs: the run that a word means, and an adapter below another one."""

import shutil
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM

from runner import __main__ as door
from runner.command._trained_run import read_trained
from runner.command._words import read_command_line
from runner.errors import ConfigError, FolderError
from runner.io.files import read_json, write_json
from runner.launch.compose.stages import compose_runs
from runner.run import Run, write_config
from runner.run.inputs import check_fingerprints, read_fingerprints
from runner.run.key import folder_of, key_of

TINY = "runner://model/tiny"
LORA = {"_target_": "peft.LoraConfig"}


def composed(*words):
    """The runs of a command line, checked as the command checks them."""
    line = read_command_line(words)
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


@pytest.mark.slow
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


def test_a_run_whose_name_has_letters_beyond_ascii_is_found(lay):
    only = lay("données", "a-01")
    for word in ("outputs/données", "${run:données}", "outputs/données/a-01"):
        (run,) = composed("trainer=dpo", f"model={word}")
        assert run.cfg["model"]["path"] == only


@pytest.mark.quick(3)
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


def test_a_run_among_options_is_refused_as_it_was_typed(lay):
    """A sweep over options takes no paths; the fault has neither a reference nor its quoting."""
    lay("judge", "a-01")
    lay("judge", "b-02")
    for words in (
        ("model=tiny,outputs/judge",),
        ("trainer=grpo", "reward=sorted_digits,outputs/judge"),
    ):
        with pytest.raises(ConfigError) as error:
            composed(*words)
        *_, told = error.value.faults
        assert told.found.startswith("no option 'outputs/judge'")
        assert "best" not in str(error.value)
        composed(*words[:-1], *told.fix.split())


# --- An adapter as the start --------------------------------------------------------------------


@pytest.mark.slow
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
    where, fix = fault("trainer=async_grpo", f"model.path={start}", "peft=lora")
    assert (where, fix) == ("model.merge", "model.path=<that folder>")
    # One that trains an adapter further leaves one, and one that merges it alone does not.
    further = lay("dpo", "b-02", path=start)
    assert composed("trainer=kto", f"model.path={further}", "peft=lora")[0].cfg["model"]["merge"]
    whole = lay("whole", "c-03")
    (plain,) = composed("trainer=kto", f"model.path={whole}", "peft=lora")
    assert "merge" not in plain.cfg["model"]
    assert plain.starts == []


def test_the_merge_that_nobody_typed_is_explained(lay, capsys):
    words = ("trainer=dpo", f"model.path={lay('sft', 'a-01', peft=LORA)}", "peft=lora")
    assert door.main(["why", "model.merge", *words]) == 0
    assert "the model is an adapter" in capsys.readouterr().out
    assert door.main([*words, "--cfg", "job"]) == 0
    assert "merge: true" in capsys.readouterr().out


@pytest.mark.slow
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
        name = next(iter(folder_of(run.cfg, run.overrides).parts[2:]))
        laid = Run(folder / name)
        laid.model.mkdir(parents=True)
        write_config(laid.folder, run.cfg)
        write_json(laid.folder / "status.json", {"state": "finished"})
    assert [key_of(run.cfg) for run in composed(*words)] == [key_of(run.cfg) for run in before]


def test_the_base_of_an_adapter_is_an_input_too(lay, tmp_path):
    start = lay("sft", "a-01", peft=LORA)
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_text("then")
    (base / "notes").write_text("no input")
    write_json(Path(start, "adapter_config.json"), {"base_model_name_or_path": str(base)})
    cfg = {"model": {"path": start}, "name": "dpo"}
    run = Run(tmp_path / "outputs" / "dpo" / "b-02")
    run.folder.mkdir(parents=True)
    write_config(run.folder, cfg)
    fingerprints = read_fingerprints(cfg)
    assert list(fingerprints["base of model.path"]) == [str(base / "model.safetensors")]
    write_json(run.folder / "status.json", {"state": "finished"})
    write_json(run.folder / "manifest.json", {"inputs": fingerprints})
    assert check_fingerprints(run) == []
    (base / "model.safetensors").write_text("now!")
    with pytest.raises(FolderError, match=r"base of model\.path"):
        check_fingerprints(run)
    # A run that an earlier version began knows its adapter only.
    del fingerprints["base of model.path"]
    write_json(run.folder / "manifest.json", {"inputs": fingerprints})
    assert check_fingerprints(run) == []


# --- Trained ------------------------------------------------------------------------------------

FEW = (
    *("metric=none", "dataset.limit.train=24", "dataset.limit.eval=4", "trainer.args.max_steps=3"),
    *("trainer.args.per_device_train_batch_size=4", "trainer.args.logging_steps=1"),
    *("learning_rate=5e-3", "peft=lora"),
)
IDS = torch.arange(3, 15).unsqueeze(0)


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=IDS).logits


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """SFT, DPO, and KTO, each with LoRA on the one before."""
    root = tmp_path_factory.mktemp("chain") / "outputs"
    start = ()
    for trainer in ("sft", "dpo", "kto"):
        words = [f"trainer={trainer}", *FEW, *start, f"name={trainer}", f"output_root={root}"]
        assert door.main(words) == 0
        start = (f"model.path={root / trainer}",)
    return [read_trained(next((root / name).glob("*-*"))) for name in ("sft", "dpo", "kto")]


@pytest.mark.dear("three trainings, for all tests below")
@pytest.mark.slow
def test_the_first_step_on_a_merged_adapter_is_at_its_reference(trained):
    for run in trained[1:]:
        assert run.before["eval_rewards/margins"] == 0.0
        assert run.after["eval_rewards/margins"] != 0.0
        assert run.cfg["model"]["merge"] is True
    uses = trained[1].manifest["uses"]
    assert uses["model.path"].endswith(str(trained[0].folder)[-20:])


@pytest.mark.slow
def test_an_adapter_on_a_merged_one_loads_elsewhere_as_one_on_the_base(trained, capsys):
    for number, run in enumerate(trained):
        config = read_json(run.folder / "model" / "adapter_config.json")
        assert config["r"] == 16 * (number + 1)
        assert config["base_model_name_or_path"].endswith("model/tiny")
        ours = logits(run.model())
        elsewhere = logits(AutoPeftModelForCausalLM.from_pretrained(run.folder / "model"))
        torch.testing.assert_close(elsewhere, ours, atol=1e-4, rtol=0)
        if number:
            assert (ours - logits(trained[number - 1].model())).abs().max() > 1e-2
    assert door.main(["export", str(trained[2].folder)]) == 0
    export = AutoModelForCausalLM.from_pretrained(trained[2].folder / "export")
    torch.testing.assert_close(logits(export), ours, atol=1e-4, rtol=0)
    capsys.readouterr()


@pytest.mark.slow
def test_the_start_of_a_chained_run_has_the_bits_of_the_export_before_it(trained, tmp_path, capsys):
    first, second, _ = trained
    assert door.main(["export", str(first.folder), f"to={tmp_path / 'export'}"]) == 0
    export = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert torch.equal(logits(second.model("checkpoint=start")), logits(export))
    capsys.readouterr()


@pytest.mark.slow
def test_the_end_of_a_chain_outlives_its_beginning(trained, tmp_path):
    last = trained[1]
    ours = logits(last.model())
    shutil.copytree(last.folder, tmp_path / "alone")
    shutil.move(trained[0].folder / "model", tmp_path / "model")
    try:
        alone = logits(read_trained(tmp_path / "alone").model())
    finally:
        shutil.move(tmp_path / "model", trained[0].folder / "model")
    torch.testing.assert_close(alone, ours, atol=1e-4, rtol=0)
