"""The trained part of a model, whole or beside an adapter.

Each kind of tuner is saved, loads elsewhere, and comes back as the best checkpoint.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
)

from runner.__main__ import main
from runner.command._trained_run import read_trained
from runner.config.experiment import AdapterPart
from runner.errors import ConfigError
from runner.io.files import files_of, read_json, shipped, write_json
from runner.launch.local import local
from runner.model.adapter import train_beside, write_adapter
from runner.model.freeze import train_weights
from runner.model.joined_adapter import can_join, join_adapters
from runner.model.load import load_model, load_tokenizer
from runner.model.merge import write_plain
from runner.model.reference_model import copy_reference
from runner.training.components.model import build_tuner

TINY = "runner://model/tiny"
LORA = {"_target_": "peft.LoraConfig", "r": 4, "target_modules": "all-linear"}


def load(path=TINY, **how):
    return load_model(str(path), tokenizer=load_tokenizer(str(path)), **how)


def trained(model) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


# --- By pattern ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_only_what_a_pattern_fits_is_trained():
    model = train_weights(load(), matching=[r"layers\.1\..*norm", "^model.norm"])
    assert trained(model) == {
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.post_attention_layernorm.weight",
        "model.norm.weight",
    }


@pytest.mark.slow
def test_every_pattern_without_a_match_is_reported():
    with pytest.raises(ConfigError) as caught:
        train_weights(load(), matching=["norm", "nrom", "layer9"])
    assert [fault.where for fault in caught.value.faults] == ["peft.matching"] * 2
    with pytest.raises(ConfigError, match="nothing"):
        train_weights(load(), matching=[])


@pytest.mark.slow
def test_layers_are_fully_trained_beside_an_adapter():
    model, config = build_tuner(
        AdapterPart.read_chosen(LORA | {"full": [r"layers\.0\.mlp", "model.norm"]}), load(), "lm"
    )
    adapted = get_peft_model(model, config)
    whole_layers = {name for name in trained(adapted) if "modules_to_save" in name}
    assert {
        name.split("model.model.model.")[1].split(".modules_to_save")[0] for name in whole_layers
    } == {
        *(f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")),
        "norm",
    }
    low_rank = {name for name in trained(adapted) if "lora_" in name}
    assert whole_layers | low_rank == trained(adapted)
    assert any("layers.1.mlp" in name for name in low_rank)
    for name in low_rank:
        assert "layers.0.mlp" not in name


@pytest.mark.parametrize("kind", ["llama4_text", "phimoe", "falcon"])
def test_all_linear_leaves_layers_alone_that_are_more_than_linear(kind, tmp_path):
    """A router returns two tensors; Falcon's layers have a class of their own but are linear."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    sizes |= (
        {}
        if kind == "falcon"
        else {"num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 2}
    )
    config = AutoConfig.for_model(
        kind, vocab_size=24, **sizes, pad_token_id=None, bos_token_id=None, eos_token_id=2
    )
    model = AutoModelForCausalLM.from_config(config)
    adapted = get_peft_model(*build_tuner(AdapterPart.read_chosen(LORA), model, "lm"))
    assert adapted(torch.arange(4)[None]).logits.isfinite().all()
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in trained(adapted)}
    assert names == (
        {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
        if kind == "falcon"
        else names
    )
    assert len(names) >= 4
    assert "router" not in names
    adapted.save_pretrained(tmp_path)
    assert LoraConfig.from_pretrained(str(tmp_path)).exclude_modules == (
        None if kind == "falcon" else {"router"}
    )


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["lm_head", "embed_tokens"])
def test_embeddings_that_are_shared_stay_shared(pattern):
    model = load()
    assert model.config.tie_word_embeddings
    _, config = build_tuner(AdapterPart.read_chosen(LORA | {"full": [pattern]}), model, "lm")
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        next(
            weight for name, weight in adapted.named_parameters() if "modules_to_save" in name
        ).add_(1.0)
    tokens = adapted.get_input_embeddings().weight
    words = adapted.get_output_embeddings().weight
    assert torch.equal(tokens, words)
    assert tokens.mean() > 0.5


@pytest.mark.slow
def test_layers_that_cannot_be_fully_trained_are_reported():
    with pytest.raises(ConfigError) as caught:
        train_beside(load(), LoraConfig(), ["embd", "norm", "x{9}"])
    assert [fault.where for fault in caught.value.faults] == ["peft.full"] * 2
    assert "embed_tokens" in caught.value.faults[0].expected
    with pytest.raises(ConfigError, match="PromptTuningConfig"):
        train_beside(load(), PromptTuningConfig(num_virtual_tokens=2), ["norm"])


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["peft=pattern", "peft.matching=['*']"], "peft.matching"),
        (["peft=lora", "peft.full=['(']"], "peft.full"),
        (["peft=freeze", "peft.full=[norm]"], "peft.full"),
        (["peft=lora", "peft.full=norm"], "peft.full"),
    ],
)
def test_a_slip_is_reported_before_anything_loads(capsys, words, where):
    assert main([*words, "metric=none"]) == 2
    assert where in capsys.readouterr().err


# --- Tuners of a user's own ---------------------------------------------------------------------

MINE = """
from peft import LoraConfig, get_peft_model

def biases(model):
    for name, weight in model.named_parameters():
        weight.requires_grad_("bias" in name or "norm" in name)
    return model

def shallow(model, task_type, r):
    ending = "layers.0.self_attn.q_proj"
    names = [name for name, _ in model.named_modules() if name.endswith(ending)]
    return LoraConfig(r=r, target_modules=names, task_type=task_type)

def load_adapter_weights(model, task_type):
    return get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type=task_type))

def forgetful(model):
    model.requires_grad_(False)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_tuners.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_tuners", None)


@pytest.mark.slow
def test_a_user_tuner_changes_the_model_or_returns_an_adapter(mine):
    model, config = build_tuner(
        AdapterPart.read_chosen({"_target_": "my_tuners.biases"}), load(), "lm"
    )
    assert config is None
    for name in trained(model):
        assert "norm" in name or "bias" in name
    _, config = build_tuner(
        AdapterPart.read_chosen({"_target_": "my_tuners.shallow", "r": 3}), load(), "lm"
    )
    assert (config.r, config.task_type) == (3, "CAUSAL_LM")
    assert len(config.target_modules) == 1
    model, config = build_tuner(
        AdapterPart.read_chosen({"_target_": "my_tuners.load_adapter_weights"}), load(), "lm"
    )
    assert config is None
    assert isinstance(model, PeftModel)
    with pytest.raises(ConfigError, match="returned NoneType"):
        build_tuner(AdapterPart.read_chosen({"_target_": "my_tuners.forgetful"}), load(), "lm")


@pytest.mark.slow
def test_a_tuner_saves_and_loads_what_it_has_put_on_the_model_by_itself(train, capsys, monkeypatch):
    """Its own files are the model; resumed runs, evaluations and exports have the same weights."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "example_project"))
    words = (
        "peft._target_=my_lab.tuner.Scales",
        "allow=[my_lab]",
        *FEW,
        "trainer.args.save_steps=2",
    )
    done = train("trainer=sft", *words, "learning_rate=1e-2")
    assert (done.code, done.state()) == (0, "finished")
    files = {path.name for path in done.run.model.iterdir()}
    assert "scales.safetensors" in files
    assert not files & {"config.json", "model.safetensors"}
    assert "predict" in capsys.readouterr().out.partition("next ")[2]  # nothing else could train on
    saved = load_file(done.run.model / "scales.safetensors")
    assert {name.rpartition(".")[2] for name in saved} == {"scale"}
    for scale in saved.values():
        assert (scale - 1).abs().max() > 1e-3
    shutil.rmtree(done.run.model), shutil.rmtree(done.run.checkpoints / "checkpoint-4")
    done.run.set_status("interrupted", step=2, max_steps=4, sealed=2)
    assert local(done.run.folder) == 0
    again = load_file(done.run.model / "scales.safetensors")
    for name in saved:
        assert torch.equal(saved[name], again[name])
    figures = {}
    for checkpoint in ("model", "4", "start"):
        asked = (
            "allow=[my_lab]",
            f"checkpoint={checkpoint}",
            "metric=none",
            f"to={done.run.folder / 'found.json'}",
        )
        assert main(["evaluate", str(done.run), *asked]) == 0
        figures[checkpoint] = json.loads((done.run.folder / "found.json").read_text())["scores"]
    assert figures["model"] == figures["4"] != figures["start"]
    # its code is not trusted unless typed
    assert main(["evaluate", str(done.run), "metric=none"]) == 2
    assert main(["export", str(done.run)]) == 0
    export = load_file(done.run.folder / "export" / "scales.safetensors")
    for name in saved:
        assert torch.equal(saved[name], export[name])
    assert main(["trainer=ppo", *words, "--dry-run"]) == 2
    assert "policy and critic" in capsys.readouterr().err


# --- Merged -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    """An adapter of the shipped model that changes it a lot."""
    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(0)
    model = get_peft_model(
        load(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    model.peft_config["default"].base_model_name_or_path = shipped(TINY)
    model.save_pretrained(folder)
    load_tokenizer(TINY).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_merged_adapter_is_a_whole_model_that_answers_like_it(adapter):
    merged = load(adapter, merge=True)
    assert not isinstance(merged, PeftModel)
    for weight in merged.parameters():
        assert weight.requires_grad
    torch.testing.assert_close(logits(merged), logits(load(adapter)), atol=1e-4, rtol=0)
    assert (logits(merged) - logits(load())).abs().max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_adapter_has_the_bits_of_the_export(adapter, tmp_path, dtype):
    load(dtype=dtype).save_pretrained(tmp_path / "base")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    for path in adapter.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    settings["base_model_name_or_path"] = str(tmp_path / "base")
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    write_plain(tmp_path, tmp_path / "export", head="lm", dtype=dtype, trust=False)
    export = load(tmp_path / "export", dtype=dtype).state_dict()
    merged = load(tmp_path, merge=True, dtype=dtype).state_dict()
    assert merged.keys() == export.keys()
    for name in export:
        assert torch.equal(merged[name], export[name])


@pytest.mark.slow
def test_an_adapter_below_a_quantised_one_is_merged_before_that(adapter, tmp_path):
    write_plain(adapter, tmp_path / "export", head="lm", trust=False)

    def quantised(path, **how):
        quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        return load(path, quantization_config=quantization, **how)

    merged = quantised(adapter, merge=True)
    export = quantised(tmp_path / "export").state_dict()
    assert merged.is_quantized
    weights = merged.state_dict()
    assert weights.keys() == export.keys()
    for name in export:
        assert torch.equal(weights[name], export[name])
    assert merged.generation_config.eos_token_id == load().generation_config.eos_token_id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Input and output embeddings are no longer tied:UserWarning")
@pytest.mark.filterwarnings("ignore:Model .* .tie_word_embeddings=True.:UserWarning")
def test_an_adapter_on_tied_embeddings_is_merged_into_one_of_the_two(tmp_path):
    config = LoraConfig(r=4, target_modules=["embed_tokens"], task_type="CAUSAL_LM")
    model = get_peft_model(load(), config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_embedding" in name:
                weight.normal_(std=0.1)
    write_adapter(model, tmp_path, base=shipped(TINY))
    adapted = load(tmp_path)
    for merged in (load(tmp_path, merge=True), copy_reference(adapted)):
        torch.testing.assert_close(logits(merged), logits(adapted), atol=1e-4, rtol=0)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["peft=prompt"], "peft=lora"),
        (["peft=lora", "trainer=ppo"], "trainer.args.critic=model"),
    ],
)
def test_an_adapter_that_could_not_be_saved_is_refused(train, adapter, capsys, words, fix):
    bases = [("model=new",)]
    if "trainer=ppo" not in words:
        bases.append((f"model.path={adapter}", "model.merge=true"))
    for base in bases:
        done = train("trainer=sft", *words, *base, *FEW)
        assert done.code == 2
        assert fix in capsys.readouterr().err


# --- Saved, loaded elsewhere, and put back ------------------------------------------------------

FEW = (
    *("metric=none", "dataset.limit.train=40", "dataset.limit.eval=4", "trainer.args.max_steps=4"),
    *(
        "trainer.args.per_device_train_batch_size=4",
        "trainer.args.logging_steps=1",
        "learning_rate=2e-3",
    ),
)
# The held-out loss falls, and the best checkpoint has the highest one: it is an early one.
BEST = (
    *("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1", "trainer.args.save_steps=1"),
    *("trainer.args.load_best_model_at_end=true", "trainer.args.save_total_limit=1"),
)
PROBE = '''
import json
from pathlib import Path
import torch
from transformers import TrainerCallback
from runner.ppo.batching import MicroBatch

class Probe(TrainerCallback):
    """Writes what the model answers after each save and at the end."""
    def __init__(self, folder):
        self.path, self.said = Path(folder) / "probe.json", {}
    def ask(self, model):
        ids = torch.arange(3, 15).unsqueeze(0)
        modes = [(part, part.training) for part in model.modules()]
        with torch.no_grad():
            model.eval()
            found = {"lm": getattr(model, "policy", model)(input_ids=ids).logits.tolist()}
            if hasattr(model, "values"):
                batch = MicroBatch([0], ids, torch.arange(12), ids[0], torch.arange(12))
                found["values"] = model.values(batch).tolist()
        for part, training in modes:
            part.training = training
        return found
    def on_save(self, args, state, control, model=None, **more):
        self.said[state.global_step] = self.ask(model)
    def on_train_end(self, args, state, control, model=None, **more):
        self.said |= {"end": self.ask(model), "best": state.best_model_checkpoint}
        self.path.write_text(json.dumps(self.said))
'''
IDS = torch.arange(3, 15).unsqueeze(0)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits


def whole(folder):
    return logits(AutoModelForCausalLM.from_pretrained(folder))


def adapted(folder):
    return logits(AutoPeftModelForCausalLM.from_pretrained(folder))


def scored(folder):
    return logits(AutoModelForSequenceClassification.from_pretrained(folder))


def scored_by_adapter(folder):
    base = AutoModelForSequenceClassification.from_pretrained(shipped(TINY), num_labels=1)
    return logits(PeftModel.from_pretrained(base, folder))


KINDS = {
    "whole": (("trainer=sft",), whole),
    "frozen": (("trainer=dpo", "peft=freeze", "peft.layers=1"), whole),
    "pattern": (("trainer=sft", "peft=pattern"), whole),
    "adapter": (("trainer=dpo", "peft=lora"), adapted),
    "adapter and embeddings": (("trainer=dpo", "peft=lora_embeddings"), adapted),
    "adapter and a layer": (("trainer=kto", "peft=lora", r"peft.full=['layers\.1\.mlp']"), adapted),
    "merged": (("trainer=sft", "model.path={adapter}", "model.merge=true"), whole),
    "adapter on merged": (
        ("trainer=dpo", "model.path={adapter}", "model.merge=true", "peft=lora"),
        adapted,
    ),
    "adapter on new": (("trainer=sft", "model=new", "peft=lora_embeddings"), whole),
    "scores by an adapter on new": (("trainer=reward", "model=new", "peft=lora"), scored),
    "two of everything": (
        (
            "trainer=grpo",
            "model.path={adapter}",
            "model.merge=true",
            "peft=lora_embeddings",
            "kl_coef=0.1",
            "trainer.args.num_generations=2",
        ),
        whole,
    ),
    "scores": (("trainer=reward",), scored),
    "scores by an adapter": (("trainer=reward", "peft=lora"), scored_by_adapter),
    "critic": (("trainer=ppo",), whole),
    "critic by an adapter": (("trainer=ppo", "peft=lora_embeddings"), adapted),
    "critic by an adapter on merged": (
        ("trainer=ppo", "model.path={adapter}", "model.merge=true", "peft=lora"),
        adapted,
    ),
    "critic on merged": (
        (
            "trainer=ppo",
            "model.path={adapter}",
            "model.merge=true",
            "peft=lora",
            "trainer.args.critic=model",
        ),
        adapted,
    ),
}


@pytest.fixture
def probe(tmp_path, monkeypatch):
    (tmp_path / "my_probe.py").write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "allow=[my_probe]", "callback.probe._target_=my_probe.Probe"
    sys.modules.pop("my_probe", None)


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ensure_weight_tying.*:UserWarning")
@pytest.mark.parametrize(("words", "back"), KINDS.values(), ids=KINDS)
def test_each_kind_is_saved_for_others_and_its_best_checkpoint_comes_back(
    train, probe, adapter, words, back
):
    words = [word.format(adapter=adapter) for word in words]
    # By these settings the last model counts as worse, whatever it learnt.
    figures = {"trainer=ppo": "eval_objective/scores", "trainer=grpo": "eval_kl"}
    figure = figures.get(words[0], "eval_loss")
    greater = words[0] != "trainer=grpo"
    best = (
        f"trainer.args.metric_for_best_model={figure}",
        f"trainer.args.greater_is_better={str(greater).lower()}",
    )
    done = train(*words, *FEW, *BEST, *best, *probe)
    assert (done.code, done.state()) == (0, "finished")
    probed = json.loads((done.run.folder / "probe.json").read_text())
    step = probed["best"].rpartition("-")[2]
    end = torch.tensor(probed["end"]["lm"])
    assert torch.equal(end, torch.tensor(probed[step]["lm"]))
    earlier = [
        torch.tensor(probed[str(step_number)]["lm"])
        for step_number in range(1, 5)
        if str(step_number) != step
    ]
    for logits in earlier:
        assert (end - logits).abs().max() > 1e-4
    assert step != "4"
    torch.testing.assert_close(back(done.run.model), end, atol=2e-4, rtol=0)
    assert_space_is_asked_for(done.run)
    names = {path.name for path in done.run.model.iterdir()}
    assert {"tokenizer.json", "training_args.json"} <= names
    for name in names:
        assert not name.endswith(".bin")
    assert ("adapter_config.json" in names) == (back in (adapted, scored_by_adapter))
    assert AutoTokenizer.from_pretrained(done.run.model)("0 1").input_ids
    args = json.loads((done.run.model / "training_args.json").read_text())
    assert args["learning_rate"] == 2e-3
    assert "output_dir" not in args
    if words[0] == "trainer=ppo":
        assert probed["end"]["values"] == probed[step]["values"]
        check_values(done.run.model, torch.tensor(probed["end"]["values"]))


def check_values(folder: Path, values: torch.Tensor) -> None:
    """The critic alone: a model with one label, or an adapter with a head."""
    critic = folder / "value_model"
    if (critic / "config.json").exists():
        model = AutoModelForSequenceClassification.from_pretrained(critic)
        weights = model.score
    else:
        model = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(shipped(TINY)), critic / "critic"
        )
        weights = load_file(critic / "value_head.safetensors")
    trunk = model.get_base_model().base_model if isinstance(model, PeftModel) else model.base_model
    with torch.no_grad():
        states = trunk.eval()(input_ids=IDS).last_hidden_state[0]
        if callable(weights):
            computed = weights(states)
        else:
            computed = states @ weights["score.weight"].T + weights["score.bias"]
    torch.testing.assert_close(computed[:, 0], values, atol=2e-4, rtol=0)


@pytest.mark.grid(1)
@pytest.mark.slow
# of a second adapter, which is tied too
@pytest.mark.filterwarnings("ignore:.*ensure_weight_tying.*:UserWarning")
@pytest.mark.parametrize(
    ("trainer", "how"),
    [
        ("dpo", ()),
        ("dpo", ("model.merge=true",)),
        ("dpo", ("model.merge=true", "peft=lora")),
        ("ppo", ("model.merge=true", "peft=lora")),
    ],
)
def test_an_adapter_with_whole_layers_is_the_start_of_a_next_stage(train, probe, trainer, how):
    first = train("trainer=sft", "peft=lora_embeddings", *FEW, name="first")
    start = adapted(first.run.model)
    words = (
        f"trainer={trainer}",
        f"model.path={first.run.model}",
        *how,
        *FEW,
        "learning_rate=1e-3",
    )
    words += ("trainer.args.critic=model",) if trainer == "ppo" else ()
    second = train(*words, *probe, name="second")
    assert second.code == 0
    end = (whole if how else adapted)(second.run.model)
    probed = json.loads((second.run.folder / "probe.json").read_text())["end"]["lm"]
    torch.testing.assert_close(end, torch.tensor(probed), atol=2e-4, rtol=0)
    assert (end - start).abs().max() > 1e-3
    kl = []
    for line in second.lines:
        figures = [line.get("rewards/margins"), line.get("objective/kl")]
        kl += [figure for figure in figures if figure is not None]
    assert abs(kl[0]) < 1e-4  # the first step starts at its reference, embeddings and all


@pytest.mark.slow
def test_an_adapter_on_a_merged_and_quantised_one_is_joined_with_it(train, adapter):
    words = ("trainer=dpo", f"model.path={adapter}", "model.merge=true", "peft=qlora")
    done = train(*words, *FEW)
    own = PeftModel.from_pretrained(load(adapter, merge=True), done.run.model / "adapter")
    torch.testing.assert_close(adapted(done.run.model), logits(own), atol=1e-4, rtol=0)
    run = read_trained(done.run.folder)
    assert run.model().is_quantized
    # On rounded weights, as it was trained: neither of the two in full precision.
    rounded = logits(run.model())
    assert 1e-3 < (rounded - logits(own)).abs().max() < 2
    assert torch.equal(rounded, logits(run.model()))
    assert run.before["eval_rewards/margins"] == 0


def lay_adapter(folder, model, base, seed=0, **how):
    """A new adapter of a model in a folder, with a tokenizer, as one of ``base``."""
    torch.manual_seed(seed)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **how))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    write_adapter(adapted, folder, base=base)
    load_tokenizer(TINY).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"r": 3, "lora_alpha": 5, "target_modules": "all-linear"},
        {"r": 8, "use_rslora": True, "target_modules": ["q_proj", "up_proj"]},
        {"r": 2, "target_modules": ["k_proj", "v_proj"], "layers_to_transform": [1]},
    ],
    ids=["other rank", "other layers", "one layer"],
)
def test_the_sum_of_two_adapters_is_one_of_the_first_base(tmp_path, how):
    first = lay_adapter(
        tmp_path / "first", load(), shipped(TINY), r=4, target_modules=["q_proj", "v_proj"]
    )
    second = lay_adapter(tmp_path / "second", load(first, merge=True), str(first), 1, **how)
    both = logits(PeftModel.from_pretrained(load(first, merge=True), second))
    load_tokenizer(TINY).save_pretrained(tmp_path / "joined")
    assert join_adapters(first, second, tmp_path / "joined")
    torch.testing.assert_close(logits(load(tmp_path / "joined")), both, atol=1e-4, rtol=0)
    torch.testing.assert_close(adapted(tmp_path / "joined"), both, atol=1e-4, rtol=0)
    # It is the first of the next sum.
    third = lay_adapter(tmp_path / "third", load(tmp_path / "joined", merge=True), "x", 2, **how)
    all_three = logits(PeftModel.from_pretrained(load(tmp_path / "joined", merge=True), third))
    assert join_adapters(tmp_path / "joined", third, third)
    torch.testing.assert_close(logits(load(third)), all_three, atol=1e-4, rtol=0)


def test_adapters_that_are_more_than_two_matrices_have_no_sum():
    plain = LoraConfig(task_type="CAUSAL_LM").to_dict()
    assert can_join(plain, plain | {"modules_to_save": ["score"], "task_type": "SEQ_CLS"})
    others = (
        {"use_dora": True},
        {"bias": "lora_only"},
        {"init_lora_weights": "pissa"},
        {"rank_pattern": {"q_proj": 8}},
        {"peft_type": "VERA"},
        {"modules_to_save": ["embed_tokens"]},
        {"trainable_token_indices": {"embed_tokens": [3]}},
    )
    for other in others:
        assert not can_join(plain, plain | other)
        assert not can_join(plain | other, plain)
    assert not can_join(plain | {"modules_to_save": ["score"]}, plain)


@pytest.mark.slow
def test_an_adapter_that_is_no_sum_of_two_is_saved_whole(train, adapter):
    words = (f"model.path={adapter}", "model.merge=true", "peft=dora")
    plain = train("trainer=sft", *words, *FEW, name="plain").run
    rounded = train("trainer=sft", *words, "quant=4bit", *FEW, name="rounded").run
    for run in (plain, rounded):
        assert_space_is_asked_for(run)
        assert not (run.model / "adapter_config.json").exists()
        ours = logits(read_trained(run.folder).model())
        assert (whole(run.model) - ours).abs().max() < (1e-4 if run is plain else 2)
    assert (rounded.model / "adapter").is_dir()
    merged = PeftModel.from_pretrained(load(adapter, merge=True), rounded.model / "adapter")
    torch.testing.assert_close(whole(rounded.model), logits(merged), atol=1e-4, rtol=0)


def assert_space_is_asked_for(run):
    """What a run asks for its model/ before it trains is about what this then takes.

    A critic may take more.
    """
    sizes = {file: file.stat().st_size for file in run.model.glob("**/*.safetensors")}
    policy = sum(size for file, size in sizes.items() if "value_model" not in file.parts)
    assert 0.6 * policy <= run.manifest()["disk"]["model"] <= 1.25 * sum(sizes.values())


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["adapter and embeddings", "adapter on merged", "pattern"])
def test_a_run_resumes_from_its_checkpoint_with_the_same_bits(train, adapter, tmp_path, name):
    words = [word.format(adapter=adapter) for word in KINDS[name][0]]
    again = train(*words, *FEW, "trainer.args.save_steps=2", name="again")
    whole = weights_of(again.run)
    for part in ("checkpoints/checkpoint-4", "model", "scores.json"):
        path = again.run.folder / part
        path.rename(tmp_path / path.name)
    status = read_json(again.run.folder / "status.json")
    write_json(again.run.folder / "status.json", status | {"state": "interrupted"})
    assert train(*words, *FEW, "trainer.args.save_steps=2", name="again").code == 0
    assert weights_of(again.run) == whole != {}


def weights_of(run):
    """The hashes of the files of weights of a run's model."""
    files = files_of(run.model)
    return {name: files[name] for name in files if name.endswith(".safetensors")}
