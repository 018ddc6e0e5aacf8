"""Models that change as they are loaded: new tokens, config keys, templates, LoRA of experts.

Faults are found before torch is imported; the trained model loads elsewhere with the run's weights.
"""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import get_training_chat_template

from runner.__main__ import main
from runner.config.build import build
from runner.config.experiment import AdapterPart
from runner.config.override import quote_text
from runner.errors import ConfigError
from runner.io.files import shipped
from runner.launch.compose.stages import compose_runs
from runner.model.adapter import check_adapter, train_tokens
from runner.model.check import find_model_faults
from runner.model.check_tokenizer import TOKENIZER, find_tokenizer_faults
from runner.model.freeze import train_last_layers
from runner.model.jinja import family_files
from runner.model.load import load_model, load_tokenizer
from runner.model.node import LOADER
from runner.run.history import read_metrics
from runner.training.components.model import build_tuner

TINY = "runner://model/tiny"
NEW = ["<think>", "</think>"]
ADDED = ["model.tokenizer.add_tokens=[<think>,</think>]", "model.tokenizer.pad_token=[PAD]"]
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}
QUICK = ["metric=none", "trainer.args.max_steps=2", "trainer.args.per_device_train_batch_size=8"]


def load(path=TINY, tokenizer=None, **how):
    return load_model(str(path), tokenizer=tokenizer or load_tokenizer(str(path)), **how)


def faults_of(words: list[str]) -> list:
    with pytest.raises(ConfigError) as caught:
        compose_runs([quote_text(word) for word in words])
    return caught.value.faults


def of_model(**how):
    return find_model_faults({"_target_": LOADER, "path": TINY, **how}, "lm", 100)


def of_tokenizer(**how):
    return find_tokenizer_faults({"_target_": TOKENIZER, "path": TINY, **how}, 535)


# --- New tokens ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_new_tokens_get_rows_near_the_mean_and_the_same_ones_again(kind, tmp_path):
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    tokenizer = load_tokenizer(
        TINY, add_tokens=NEW, add_special_tokens=["<|tool|>"], pad_token="[PAD]"
    )
    config = AutoConfig.for_model(
        kind, vocab_size=535, tie_word_embeddings=kind == "llama", **sizes
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert of_tokenizer(add_tokens=NEW, pad_token="[PAD]") == []
    model, again = (load(tmp_path, tokenizer) for _ in range(2))
    (inner, outer) = (
        part.weight for part in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    rows = 535
    assert len(inner) == len(outer) == model.config.vocab_size == len(tokenizer) == 539
    assert (inner is outer) == (kind == "llama")
    assert torch.equal(inner, again.get_input_embeddings().weight)
    assert torch.allclose(inner[rows:].mean(0), inner[:rows].mean(0), atol=0.02)
    assert (tokenizer.pad_token, model.config.pad_token_id) == ("[PAD]", 538)
    assert (
        tokenizer.decode(tokenizer("<think>1<|tool|>")["input_ids"], skip_special_tokens=True)
        == "<think>1"
    )
    wide = AutoConfig.for_model(kind, vocab_size=640, **sizes)  # padded, as Qwen's are
    AutoModelForCausalLM.from_config(wide).save_pretrained(tmp_path)
    assert load(tmp_path, tokenizer).get_input_embeddings().num_embeddings == 640


def test_a_misspelt_token_is_not_added_as_a_new_one():
    for key, token, fix in (
        ("pad_token", "<|endoftxt|>", "<|endoftext|>"),
        ("eos_token", "<|end|>", "<token>"),
    ):
        (fault,) = of_tokenizer(**{key: token})
        assert fault.where == f"model.tokenizer.{key}"
        assert fix in fault.fix
        assert token in fault.fix
    assert of_tokenizer(eos_token="<|end|>", add_special_tokens=["<|end|>"]) == []
    assert [fault.found for fault in of_tokenizer(add_tokens=[""])] == [
        "an empty text among the new tokens"
    ]
    with pytest.raises(ConfigError, match="é, which the tokenizer would write as '\ufffd'"):
        load_tokenizer(TINY, add_tokens=["日本", "a b", "é"])


@pytest.mark.slow
def test_an_adapter_trains_the_rows_of_new_tokens_or_is_refused():
    tokenizer = load_tokenizer(TINY, add_tokens=NEW, pad_token="[PAD]")
    lora = {"_target_": "peft.LoraConfig", "r": 2, "target_modules": "all-linear"}
    for full in (None, ["embed_tokens"]):
        model, config = build_tuner(
            AdapterPart.read_chosen(lora | {"full": full}), load(tokenizer=tokenizer), "lm"
        )
        train_tokens(model, config, tokenizer)
        assert config.trainable_token_indices == (None if full else {"embed_tokens": [535, 536]})
    frozen = train_last_layers(load(tokenizer=tokenizer), layers=1, also=["norm"])
    with pytest.raises(ConfigError, match="new tokens"):
        train_tokens(frozen, None, tokenizer)
    assert [fault.where for fault in faults_of(["trainer=sft", "peft=ia3", *ADDED])] == ["peft"]
    words = ["trainer=grpo", "reward=length", "trainer.args.use_vllm=true", *ADDED]
    assert "model.tokenizer.add_tokens" in [fault.where for fault in faults_of(words)]


# --- Keys of the config -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "where", "fix"),
    [
        (
            {"max_positions_embeddings": 64},
            "max_positions_embeddings",
            "model.config.max_position_embeddings=64",
        ),
        (
            {"rope_parameters": {"rope_typ": "yarn"}},
            "rope_parameters.rope_typ",
            "model.config.rope_parameters.rope_type",
        ),
        ({"rope_parameters": {"rope_type": "yar"}}, "rope_parameters.rope_type", ""),
        ({"attention_dropout": 2}, "attention_dropout", ""),
        ({"use_cache": "maybe"}, "use_cache", ""),
        ({"vocab_size": 3}, "vocab_size", "model.tokenizer.add_tokens"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling", "model.config.rope_parameters"),
        (
            {
                "max_position_embeddings": 2048,
                "rope_parameters": {"rope_type": "yarn", "factor": 2.0},
            },
            "rope_parameters.original_max_position_embeddings",
            "=1024",
        ),
    ],
)
def test_a_key_of_the_config_is_checked_against_the_models_own(config, where, fix):
    (fault,) = of_model(config=config)
    assert fault.where == f"model.config.{where}"
    assert fix in fault.fix


def test_a_new_model_has_its_keys_in_itself():
    (fault,) = find_model_faults(
        {
            "_target_": "runner.model.load.new_model",
            "model_type": "llama",
            "config": {"use_cache": False},
        },
        "lm",
    )
    assert fault.where == "model.config"
    assert fault.fix == "model.<key>=<value>"


@pytest.mark.slow
def test_checks_and_the_loaded_model_have_the_overridden_config():
    (fault,) = of_model(config={"max_position_embeddings": 64})
    assert fault.where == "trainer.args.max_length"
    assert "64 positions" in fault.found
    (fault,) = of_model(config={"hidden_size": 64})
    assert "does not fit the shapes" in fault.found
    assert (fault.where, fault.fix) == ("model.config", "leave model.config.hidden_size out")
    for config in ({"num_hidden_layers": 5}, {"num_key_value_heads": 3}):
        assert {fault.where for fault in of_model(config=config)} == {"model.config"}
    with pytest.raises(ConfigError, match=r"leave model\.config\.hidden_act out"):
        load(config={"hidden_act": "nope"})
    model = load(config={"rope_parameters": YARN, "attention_dropout": 0.1}, head="score")
    assert model.config.rope_parameters == YARN | {"rope_theta": 10000.0}
    assert model.config.num_labels == 1
    assert model.model.layers[0].self_attn.attention_dropout == 0.1
    with pytest.raises(ConfigError, match="Missing required keys"):
        load(config={"rope_parameters": {"rope_type": "yarn"}})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["peft=qlora", "model.config.max_position_embeddings=64"], "model.config"),
        (
            ["trainer=ppo", "reward=length", "model.config.output_router_logits=true"],
            "model.config.output_router_logits",
        ),
        (["model.config=3"], "model.config"),
    ],
)
def test_combinations_that_conflict_with_a_config_are_refused(words, where):
    assert where in [fault.where for fault in faults_of(["trainer=sft", *words])]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("kernels") is not None, reason="the library is there")
def test_a_kernel_of_the_hub_needs_a_library(capsys):
    assert main(["model.attention=kernels-community/flash-attn2", "--dry-run"]) == 5
    assert "pip install kernels, or model.attention=sdpa" in capsys.readouterr().err


# --- Templates of families ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_template_has_the_name_of_its_family_and_trl_finds_the_one_for_training():
    tokenizer = load_tokenizer(TINY, chat_template="qwen3")
    assert (
        tokenizer.chat_template
        == family_files()["qwen3"].read_text()
        != get_training_chat_template(tokenizer)
    )
    assert "{% generation %}" in get_training_chat_template(tokenizer)
    assert "qwen3_training" not in family_files()
    (fault,) = of_tokenizer(chat_template="qwen")
    assert "qwen2_5, " in fault.expected
    assert fault.fix == "model.tokenizer.chat_template=qwen2_5"
    readme = (Path(shipped("runner://")).parent / "conf/template/README.md").read_text()
    assert set(family_files()) <= set(re.findall(r"\w+", readme))


@pytest.mark.slow
def test_marks_that_the_tokenizer_lacks_are_named_and_may_be_added():
    for load_or_check in (
        lambda **how: load_tokenizer(TINY, **how),
        lambda **how: ConfigError.refuse(of_tokenizer(**how)),
    ):
        with pytest.raises(ConfigError) as caught:
            load_or_check(chat_template="llama3_1")
        (fault,) = caught.value.faults
        assert "<|start_header_id|>, <|end_header_id|>, <|eot_id|>" in fault.found
        assert "eos_token" in fault.fix
        marks = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        load_or_check(chat_template="llama3_1", add_special_tokens=marks, eos_token="<|eot_id|>")


# --- Experts ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def experts(tmp_path_factory) -> Path:
    """A mixture of experts that speaks the shipped tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "experts"
    tokenizer = AutoTokenizer.from_pretrained(shipped(TINY))
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    sizes |= {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "mixtral", vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=2, **sizes
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_weight_that_no_expert_has_is_not_passed_over(experts):
    how = {"_target_": "peft.LoraConfig", "r": 2, "target_modules": ["q_proj"]}
    model, config = build_tuner(
        AdapterPart.read_chosen(how | {"target_parameters": ["mlp.experts.down_proj"]}),
        load(experts),
        "lm",
    )
    check_adapter(model, config)
    with pytest.raises(ConfigError, match=r"mlp\.experts\.w1") as caught:
        check_adapter(model, build(how | {"target_parameters": ["mlp.experts.w1"]}))
    assert "mlp.experts.gate_up_proj" in caught.value.faults[0].fix


# --- Trained runs -------------------------------------------------------------------------------

# Checkpoints hold the full embeddings; and for two expert layers in one, peft sets a rank that
# it then ignores.
WARNED = (
    "ignore:Setting `save_embedding_layers`:UserWarning",
    r"ignore:The following \w+_pattern:RuntimeWarning",
)
pytestmark = [pytest.mark.filterwarnings(warning) for warning in WARNED]


@pytest.fixture
def rows(tmp_path) -> str:
    """Preferences whose better side thinks, in tokens that the shipped tokenizer does not have."""
    rows = []
    for number in range(16):
        digits = [str((number * 7 + place * 3) % 10) for place in range(4)]
        turn = {"role": "user", "content": f"Sort these digits: {' '.join(digits)}"}
        sides = (f"<think>{digits[0]}</think>{' '.join(sorted(digits))}", " ".join(digits))
        chosen, rejected = ([{"role": "assistant", "content": side}] for side in sides)
        rows.append({"prompt": [turn], "chosen": chosen, "rejected": rejected})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"dataset={tmp_path}/rows.jsonl"


def logits(model) -> torch.Tensor:
    return model.eval()(input_ids=torch.tensor([[3, 20, 535, 30, 536, 40]])).logits[..., :537]


@pytest.mark.slow
def test_an_adapter_with_new_tokens_loads_elsewhere_and_is_the_next_reference(
    train, rows, tmp_path
):
    done = train(
        "trainer=sft", rows, "peft=lora", *ADDED, *QUICK, "trainer.args.save_steps=1", name="sft"
    )
    folder = done.run.model
    assert done.code == 0
    assert "token_adapter.trainable_tokens_delta" in " ".join(
        load_file(folder / "adapter_model.safetensors")
    )
    weights = load_file(folder / "adapter_model.safetensors")
    shutil.rmtree(done.run.checkpoints / "checkpoint-2")
    shutil.rmtree(folder)
    done.run.set_status(state="interrupted", step=1)
    assert (
        train(
            "trainer=sft",
            rows,
            "peft=lora",
            *ADDED,
            *QUICK,
            "trainer.args.save_steps=1",
            name="sft",
        ).code
        == 0
    )
    again = load_file(folder / "adapter_model.safetensors")
    for name, weight in weights.items():
        assert torch.equal(weight, again[name])
    assert main(["export", str(done.run), f"to={tmp_path / 'export'}"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    for loaded in (AutoPeftModelForCausalLM.from_pretrained(folder), load(folder)):
        assert isinstance(loaded, PeftModel)
        assert torch.allclose(logits(loaded), logits(merged), atol=1e-4)
    # If the reference lacked the trained rows, the alarm of the first step's margin would end it.
    assert train("trainer=dpo", rows, f"model={folder}", *QUICK, name="dpo").code == 0


@pytest.mark.slow
def test_a_reference_that_the_trainer_loads_has_the_rows_and_the_config_of_the_policy(train, rows):
    words = [
        "model.config.max_position_embeddings=2048",
        f"model.config.rope_parameters={json.dumps(YARN)}".replace('"', ""),
    ]
    grpo = ["trainer=grpo", "reward=length", "kl_coef=0.1", "trainer.args.logging_steps=1", *words]
    done = train(*grpo, rows, *ADDED, *QUICK, name="grpo")
    assert done.code == 0
    assert read_metrics(done.run.metrics)[0]["kl"] == pytest.approx(0, abs=1e-6)
    config = AutoConfig.from_pretrained(done.run.model)
    assert (
        config.vocab_size,
        config.max_position_embeddings,
        config.rope_parameters["rope_type"],
    ) == (
        538,
        2048,
        "yarn",
    )


@pytest.mark.slow
def test_experts_in_lora_are_trained_by_ppo_and_merge(train, rows, experts, tmp_path):
    targets = "peft.target_parameters=[mlp.experts.gate_up_proj,mlp.experts.down_proj]"
    words = [
        "trainer=ppo",
        f"model={experts}",
        "reward=length",
        "peft=lora",
        targets,
        "trainer.args.response_length=4",
    ]
    done = train(*words, rows, *ADDED, *QUICK, name="ppo")
    assert done.code == 0
    assert any(
        "experts" in name for name in load_file(done.run.model / "adapter_model.safetensors")
    )
    assert main(["export", str(done.run), f"to={tmp_path / 'export'}"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    trained = load(done.run.model)
    assert torch.allclose(logits(trained), logits(merged), atol=1e-4)
    tokenizer = load_tokenizer(str(done.run.model), add_tokens=NEW, pad_token="[PAD]")
    adapter = AdapterPart.read_chosen(dict(done.run.cfg["peft"]))
    untrained = get_peft_model(*build_tuner(adapter, load(experts, tokenizer), "lm"))
    assert not torch.equal(logits(untrained), logits(trained))
