"""The model of a run as a folder.

Plain transformers computes the same logits, and its card is true.
"""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from laid import lay_run, write

from runner.__main__ import main
from runner.config.composition import compose
from runner.errors import ConfigError, FolderError
from runner.io.files import files_of
from runner.report.card import base_of, to_card
from runner.run import write_config
from runner.run.record import read_run
from runner.run.seal import damage_of, seal

SECRET = "hf_" + "a1" * 15


# --- From paper ---------------------------------------------------------------------------------


def lay_model(folder, **cfg):
    """A finished run with a whole model of a few bytes, laid by hand."""
    words = ["trainer=dpo", "dataset=toy_sort", "kl_coef=0.3", "name=x"]
    run = lay_run(folder, after={"eval_exact": 0.5}, words=words)
    write_config(run, compose(words).cfg | cfg)
    (run / "model" / "value_model").mkdir(parents=True)
    for name, text in {
        "config.json": '{"dtype": "float32"}',
        "model.safetensors": "weights",
        "tokenizer.json": "{}",
        "chat_template.jinja": "x",
        "generation_config.json": "{}",
        "README.md": "of TRL",
        "value_model/model.safetensors": "critic",
    }.items():
        (run / "model" / name).write_text(text)
    seal(run / "model")
    (run / "plots").mkdir()
    (run / "plots" / "loss.png").write_bytes(b"png")
    return run


@pytest.fixture
def laid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay_model(tmp_path / "outputs" / "x" / "run")


@pytest.mark.slow
def test_a_whole_model_is_copied_with_its_card_and_without_its_critic(laid, capsys):
    before = files_of(laid)
    assert main(["export", "x"]) == 0
    folder = laid / "export"
    assert "copied to the byte" in capsys.readouterr().out
    assert not damage_of(folder)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    copied = {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    assert names == copied | {"README.md", "seal.json", "plots/loss.png"}
    for name in copied:
        assert (folder / name).read_bytes() == (laid / "model" / name).read_bytes()
    assert {
        name: digest for name, digest in files_of(laid).items() if not name.startswith("export/")
    } == before


@pytest.mark.slow
def test_an_earlier_export_is_replaced_and_nothing_else(laid, tmp_path, capsys):
    for _ in range(2):
        assert main(["export", "x", "to=out/there"]) == 0
    (tmp_path / "out" / "there" / "README.md").write_text("mine now")
    assert main(["export", "x", "to=out/there"]) == 4
    assert "to=<another folder>" in capsys.readouterr().err
    assert (tmp_path / "out" / "there" / "README.md").read_text() == "mine now"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["there"]


def test_a_link_in_the_place_of_an_export_is_left(laid, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert main(["export", str(laid), f"to={tmp_path / 'link'}"]) == 4
    assert "to=<another folder>" in capsys.readouterr().err
    assert (tmp_path / "link").is_symlink()


def test_a_copy_of_other_bytes_is_no_export(laid, monkeypatch, capsys):
    monkeypatch.setattr(
        "shutil.copyfile",
        lambda source, new: Path(new).write_bytes(Path(source).read_bytes()[::-1]),
    )
    assert main(["export", "x"]) == 5
    assert "the copied files differ" in capsys.readouterr().err
    assert not (laid / "export").exists()


def test_nothing_half_made_is_left(laid, monkeypatch):
    monkeypatch.setattr("runner.training.exported_model.to_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["export", "x"])
    assert not (laid / "export").exists()
    assert not list(laid.glob(".export*"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "python -m runner export outputs/<name>/<run>"),
        (["y"], 4, "no such folder"),
        (["x", "dtyp=float32"], 2, "type      dtype=float32"),
        (["x", "dtype=int4", "push=name"], 2, "2 faults"),
        (["x", "dtype=int4"], 2, "type      dtype=float32"),
        (["x", "private=perhaps"], 2, "true or false"),
    ],
)
def test_a_run_that_cannot_be_exported_is_reported(laid, words, code, message, capsys):
    assert main(["export", *words]) == code
    assert message in capsys.readouterr().err


def test_a_run_that_is_not_finished_has_no_export(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_run(tmp_path / "outputs" / "x" / "run", state="interrupted")
    assert main(["export", "x"]) == 4
    error = capsys.readouterr().err
    assert "interrupted 4/8" in error
    assert "python -m runner.launch outputs/x/run" in error


def test_a_pickle_is_never_copied(laid, capsys):
    (laid / "model" / "pytorch_model.bin").write_text("x")
    assert main(["export", "x"]) == 4
    assert "a pickle" in capsys.readouterr().err


@pytest.mark.slow
def test_a_base_that_brings_code_needs_the_word_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = compose(["model=tiny"]).cfg["model"] | {"trust_remote_code": True}
    lay_model(tmp_path / "outputs" / "x" / "run", model=model)
    assert main(["export", "x"]) == 2
    assert "trust_remote_code=true" in capsys.readouterr().err
    assert main(["export", "x", "trust_remote_code=false"]) == 0


def test_the_card_tells_what_the_model_is_and_how_to_get_it_again(laid):
    card = to_card(read_run(laid), ["as trained"], "mit", ["plots/loss.png"])
    _, head, text = card.split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields["license"] == "mit"
    assert fields["pipeline_tag"] == "text-generation"
    assert "dpo" in fields["tags"]
    assert "| exact | 0 | 0.5 |" in text
    assert "How it was made" not in text
    (result,) = ModelCard(card).data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == (
        "exact",
        0.5,
        "toy_sort",
    )
    assert "| `kl_coef` | `0.3` | `0.1` |" in text
    assert "python -m runner trainer=dpo dataset=toy_sort kl_coef=0.3 name=x" in text
    assert "![loss](plots/loss.png)" in text
    assert "beta: 0.3" in text


def test_the_card_holds_no_path_of_this_machine_and_no_secret(tmp_path):
    run = lay_model(
        tmp_path / "outputs" / "x" / "run",
        dataset={"_target_": "runner.dataset.load.load_rows", "path": str(tmp_path / "rows.jsonl")},
        tracker={"environment": {"WANDB_API_KEY": SECRET}},
        note=f"mail {SECRET} to ~/box/x or /home/alice",
    )
    manifest = json.loads((run / "manifest.json").read_text())
    command = [*manifest["command"], f"output_root={tmp_path}", f"model.revision={SECRET}"]
    write(run / "manifest.json", manifest | {"command": command})
    card = to_card(read_run(run), ["as trained"])
    assert "<folder>/rows.jsonl" in card
    assert "output_root=<folder>" in card
    for hidden in (str(tmp_path), SECRET, "alice", "~/box", os.uname().nodename):
        assert hidden not in card
    assert "runner://model/tiny" in card
    assert "</details>" in card


def test_the_base_model_is_followed_through_the_runs_below(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = lay_run(tmp_path / "outputs" / "sft" / "run", model={"path": "org/base"})
    (first / "model").mkdir()
    second = lay_run(tmp_path / "outputs" / "dpo" / "run", model={"path": "outputs/sft/run/model"})
    assert base_of(read_run(second)) == "org/base"
    assert (
        base_of(
            read_run(lay_run(tmp_path / "outputs" / "own" / "run", model={"path": "/elsewhere/m"}))
        )
        is None
    )


def test_the_card_tells_the_runs_below_and_all_of_their_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "outputs"
    lay_run(
        root / "sft" / "run",
        after={"eval_loss": 0.25},
        words=["trainer=sft", "name=sft"],
        model={"path": "org/base"},
        dataset={"parts": {"a": {"path": "org/one"}, "b": {"path": "rows.jsonl"}}},
        trainer={"_target_": "trl.SFTTrainer"},
        peft={"_target_": "peft.LoraConfig"},
    )
    lay_run(
        root / "judge" / "run",
        words=["trainer=reward", "name=judge"],
        model={"path": "outputs/sft/run/model"},
        dataset={"path": "org/two"},
        trainer={"_target_": "trl.RewardTrainer"},
    )
    for name in ("sft", "judge"):
        (root / name / "run" / "model").mkdir()
    last = lay_run(
        root / "ppo" / "run",
        words=["trainer=ppo", "name=ppo"],
        model={"path": "outputs/sft/run/model"},
        dataset={"path": "org/one"},
        reward={"model": {"path": "outputs/judge/run/model"}},
        trainer={"_target_": "runner.ppo.PPOTrainer"},
    )
    _, head, text = to_card(read_run(last), ["as trained"]).split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields["datasets"] == ["org/one", "org/two"]
    assert (fields["base_model"], fields["base_model_relation"]) == ("org/base", "finetune")
    assert "| sft | SFT with Lora | org/base | rows of its own | loss 0 -> 0.25 |" in text
    assert "| judge | Reward | sft | org/two |" in text
    assert "| ppo | PPO | sft | org/one |" in text
    commands = [line for line in text.splitlines() if line.startswith("python -m runner")]
    assert [line.split("name=")[1] for line in commands] == ["sft", "judge", "ppo"]


def test_runs_that_build_on_each_other_have_a_card(tmp_path, monkeypatch):
    """Somebody may have edited a folder, or trained again what another run began with."""
    monkeypatch.chdir(tmp_path)
    for name, below in (("first", "second"), ("second", "first")):
        folder = tmp_path / "outputs" / name / "run"
        lay_run(folder, words=[f"name={name}"], model={"path": f"outputs/{below}/run/model"})
        (folder / "model").mkdir()
    card = to_card(read_run(folder), ["as trained"])
    assert card.count("\npython -m runner name=") == 2


@pytest.mark.slow
def test_pushing_is_asked_for_private_and_without_what_is_ours(laid, monkeypatch, capsys):
    calls = []

    class Hub:
        def create_repo(self, name, **how):
            calls.append((name, how["private"]))
            return type("Url", (str,), {"repo_id": name})(f"https://hub/{name}")

        def upload_folder(self, **how):
            calls.append((how["repo_id"], how["ignore_patterns"]))

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert main(["export", "x"]) == 0
    assert calls == []
    assert main(["export", "x", "push=org/name"]) == 0
    assert calls == [("org/name", True), ("org/name", ["seal.json"])]
    assert "pushed    https://hub/org/name" in capsys.readouterr().out
    assert main(["export", "x", "push=org/name", "private=false"]) == 0
    assert calls[2] == (
        "org/name",
        False,
    )


def test_an_unreachable_hub_is_reported_before_anything_is_written(laid, capsys):
    assert main(["export", "x", "push=org/name"]) == 5
    assert "push=org/name" in capsys.readouterr().err
    assert not list(laid.rglob("export"))


# --- With weights -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied:UserWarning")
@pytest.mark.filterwarnings("ignore:Model .* .tie_word_embeddings=True.:UserWarning")
def test_an_adapter_on_tied_embeddings_is_merged_into_one_of_the_two(tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    from runner.io.files import shipped
    from runner.model.load import load_model, load_tokenizer
    from runner.model.merge import write_plain

    tokenizer = load_tokenizer("runner://model/tiny")
    model = load_model("runner://model/tiny", tokenizer=tokenizer)
    assert model.config.tie_word_embeddings
    adapted = get_peft_model(model, LoraConfig(target_modules=["lm_head"], init_lora_weights=False))
    adapted.peft_config["default"].base_model_name_or_path = shipped("runner://model/tiny")
    adapted.peft_config["default"].task_type = "CAUSAL_LM"
    adapted.save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=False)
    tokenizer.save_pretrained(tmp_path / "adapter")
    written = write_plain(tmp_path / "adapter", tmp_path / "whole", head="lm", trust=False)
    assert written.merged < 1e-4
    assert written.rounded < 1e-4 < written.largest
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert torch.is_grad_enabled()


@pytest.mark.slow
@pytest.mark.parametrize("has_dora", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_pass_merges_what_sums_in_float32_are(tmp_path, dtype, has_dora):
    """As peft merges the whole model in float32, rounded once."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from runner.model.load import load_model, load_tokenizer
    from runner.model.merge import write_plain

    base = tmp_path / "base"
    tokenizer = load_tokenizer("runner://model/tiny")
    model = load_model("runner://model/tiny", tokenizer=tokenizer).to(getattr(torch, dtype))
    model.save_pretrained(base)
    before = (base / "model.safetensors").read_bytes()
    torch.manual_seed(0)
    config = LoraConfig(
        target_modules="all-linear",
        init_lora_weights=False,
        use_dora=has_dora,
    )
    adapted = get_peft_model(model, config)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.peft_config["default"].task_type = "CAUSAL_LM"
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    written = write_plain(tmp_path / "adapter", tmp_path / "whole", head="lm", trust=False)
    assert written.dtype == dtype
    assert written.merged < 1e-4 < written.largest

    wide = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    wide = PeftModel.from_pretrained(wide, tmp_path / "adapter").merge_and_unload()
    expected = wide.to(getattr(torch, dtype)).state_dict()
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    changed = 0
    for name, weight in load_file(base / "model.safetensors").items():
        is_same = torch.isclose(weights[name].float(), expected[name].float(), rtol=1e-6, atol=1e-7)
        # A sum in another order can be rounded to the neighbour.
        assert is_same.float().mean() > 0.999, name
        torch.testing.assert_close(weights[name], expected[name], rtol=8e-3, atol=1e-6)
        changed += not torch.equal(weights[name], weight)
    assert changed > 10
    assert (base / "model.safetensors").read_bytes() == before, "what a file backs stays"


@pytest.mark.slow
def test_a_learnt_prompt_is_no_change_of_weights(tmp_path):
    from peft import PrefixTuningConfig

    from runner.model.load import load_tokenizer
    from runner.model.merge import write_plain

    load_tokenizer("runner://model/tiny").save_pretrained(tmp_path)
    PrefixTuningConfig(
        task_type="CAUSAL_LM", base_model_name_or_path="x", num_virtual_tokens=2
    ).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="PREFIX_TUNING"):
        write_plain(tmp_path, tmp_path / "whole", head="lm", trust=False)


QUICK = (
    "trainer.args.max_steps=2",
    "trainer.args.per_device_train_batch_size=4",
    "learning_rate=1e-2",
    "metric=none",
)
ROWS = ("dataset=toy_sort", "dataset.limit.train=64", "dataset.limit.eval=4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A call that trains a run of these words once, and returns its folder."""
    root = tmp_path_factory.mktemp("export") / "outputs"
    trained_runs = {}

    def call(*words):
        if words not in trained_runs:
            place = [
                f"output_root={root}",
                f"name=run{len(trained_runs)}",
                "tolerate.ended_worse=true",
            ]
            assert main([*words, *QUICK, *ROWS, *place]) == 0
            (trained_runs[words],) = [
                path.parent for path in root.glob(f"run{len(trained_runs)}/*/config.yaml")
            ]
        return trained_runs[words]

    return call


def logits(model):
    import torch

    probe = torch.randint(40, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.eval()(input_ids=probe, attention_mask=torch.ones_like(probe)).logits


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "reward"])
def test_a_merged_adapter_gives_the_logits_that_were_trained(trained, trainer, capsys):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    from runner.model.load import load_model, load_tokenizer

    run = trained(f"trainer={trainer}", "peft=lora")
    capsys.readouterr()
    assert main(["export", str(run)]) == 0
    told = capsys.readouterr().out
    assert float(re.search(r"no logit differs by more than ([\d.e-]+)", told)[1]) < 1e-4
    cls, head = (
        (AutoModelForCausalLM, "lm")
        if trainer == "sft"
        else (AutoModelForSequenceClassification, "score")
    )
    plain = cls.from_pretrained(run / "export")
    adapted = load_model(
        str(run / "model"), tokenizer=load_tokenizer(str(run / "model")), head=head
    )
    base = load_model(
        "runner://model/tiny", tokenizer=load_tokenizer("runner://model/tiny"), head=head
    )
    torch.testing.assert_close(logits(plain), logits(adapted), atol=1e-4, rtol=1e-4)
    assert (logits(plain) - logits(base)).abs().max() > 1e-2, "or nothing was merged"
    assert not list((run / "export").glob("adapter*"))
    assert type(plain).__name__ == plain.config.architectures[0]
    tokenizer = AutoTokenizer.from_pretrained(run / "export")
    assert tokenizer.chat_template
    assert tokenizer.pad_token_id == plain.config.pad_token_id
    if head == "lm":
        assert plain.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.slow
def test_full_weights_stay_or_are_rounded_and_ppo_exports_its_policy(trained, tmp_path, capsys):
    import torch
    from transformers import AutoModelForCausalLM

    run = trained("trainer=ppo", "trainer.args.response_length=8")
    assert (run / "model" / "value_model").is_dir()
    assert main(["export", str(run)]) == 0
    assert main(["export", str(run), "dtype=bfloat16", f"to={tmp_path / 'half'}"]) == 0
    assert "as bfloat16, read back" in capsys.readouterr().out
    exact, half = (
        AutoModelForCausalLM.from_pretrained(path) for path in (run / "export", tmp_path / "half")
    )
    policy = AutoModelForCausalLM.from_pretrained(run / "model")
    assert torch.equal(logits(exact), logits(policy))
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(logits(half).float(), logits(policy), atol=0.3, rtol=0.1)
    assert not list((run / "export").glob("value*"))
    weights = [
        path.stat().st_size
        for path in (run / "export" / "model.safetensors", tmp_path / "half" / "model.safetensors")
    ]
    assert weights[1] < 0.6 * weights[0]


def test_only_folders_of_runs_are_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from runner.run.record import check_finished

    run = lay_run(tmp_path / "outputs" / "x" / "run")
    (run / "config.yaml").unlink()
    with pytest.raises(FolderError, match="missing or truncated"):
        check_finished(read_run(run), "export")
