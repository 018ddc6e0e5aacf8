"""An adapter whose weights do not match its config is refused before anything is trained on it."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from runner.__main__ import main
from runner.errors import ConfigError
from runner.io.files import shipped
from runner.model.adapter import order_modules, write_adapter
from runner.model.check import find_model_faults, find_scorer_faults
from runner.model.load import load_model, load_tokenizer
from runner.model.node import LOADER

TINY = shipped("runner://model/tiny")
Weights = dict[str, torch.Tensor]


def make_adapter(folder: Path, **settings) -> Path:
    """The folder of an adapter on the tiny model."""
    config = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM"} | settings
    base = AutoModelForCausalLM.from_pretrained(TINY)
    with warnings.catch_warnings(action="ignore"):  # of tied weights
        peft.get_peft_model(base, peft.LoraConfig(**config)).save_pretrained(
            folder, save_embedding_layers=False
        )
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter") / "sound")


@pytest.fixture
def change(sound, tmp_path) -> Callable[..., Path]:
    """A function that writes the sound adapter again, with its weights or its config changed."""

    def write(weights: Callable[[Weights], Weights] | None = None, **settings) -> Path:
        folder = tmp_path / "changed"
        shutil.copytree(sound, folder)
        if weights:
            save_file(
                weights(load_file(sound / "adapter_model.safetensors")),
                folder / "adapter_model.safetensors",
            )
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | settings))
        return folder

    return write


def faults_of(folder: Path) -> list[str]:
    return [
        fault.found for fault in find_model_faults({"_target_": LOADER, "path": str(folder)}, "lm")
    ]


def keep(weights: Weights, wanted: Callable[[str], bool]) -> Weights:
    return {name: weight for name, weight in weights.items() if wanted(name)}


def first_eight(weights: Weights) -> Weights:
    return dict(list(weights.items())[:8])


def every_second(weights: Weights) -> Weights:
    return dict(list(weights.items())[::2])


def renamed(weights: Weights) -> Weights:
    return {name.replace("lora_A", "lora_Q"): weight for name, weight in weights.items()}


def of_another_layer(weights: Weights) -> Weights:
    return {name.replace("layers.1", "layers.7"): weight for name, weight in weights.items()}


def with_another_layer(weights: Weights) -> Weights:
    return weights | {name: weight.clone() for name, weight in of_another_layer(weights).items()}


def of_one_layer(weights: Weights) -> Weights:
    return keep(weights, lambda name: "layers.0" in name)


def without_queries(weights: Weights) -> Weights:
    return keep(weights, lambda name: "q_proj" not in name)


def narrower(weights: Weights) -> Weights:
    return {
        name: weight[:, :64].contiguous() if "lora_A" in name else weight
        for name, weight in weights.items()
    }


@pytest.mark.parametrize(
    ("weights", "settings", "words"),
    [
        (first_eight, {}, "they would be random"),
        (every_second, {}, "lacks 14 weights"),
        (renamed, {}, "lacks 14 weights"),
        (of_another_layer, {}, "lacks 7 weights"),
        (with_another_layer, {}, "has 7 weights that fit nothing in its base"),
        (of_one_layer, {}, "lacks 7 weights"),
        (without_queries, {}, "q_proj.lora_A; they would be random"),
        (narrower, {}, "of its base is [128, 384]"),
        (lambda weights: {}, {}, "they would be random"),
        (None, {"use_dora": True}, "lora_magnitude_vector"),
        (None, {"modules_to_save": ["lm_head"]}, "lm_head, which it has trained whole"),
        (None, {"r": 8}, "has rank 4, not 8"),
        (None, {"rank_pattern": {"q_proj": 8}}, "has rank 4, not 8"),
        (None, {"target_modules": ["q_proj"]}, "has 12 weights that fit nothing"),
    ],
)
def test_an_adapter_without_its_weights_is_refused_before_torch(change, weights, settings, words):
    assert words in " ".join(faults_of(change(weights, **settings)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True, "rank_pattern": {"q_proj": 8, "layers.1.self_attn.k_proj": 2}},
        {"modules_to_save": ["embed_tokens"], "exclude_modules": ["q_proj"]},
        {"target_modules": ["q_proj", "embed_tokens"], "bias": "lora_only"},
        {"target_modules": ["v_proj"], "layers_to_transform": [1]},
        {"target_modules": r".*\.(q|k)_proj", "trainable_token_indices": [1, 2]},
    ],
    ids=["plain", "ranks", "whole", "embeddings", "layer", "pattern"],
)
def test_a_whole_adapter_passes(tmp_path, settings):
    folder = make_adapter(tmp_path / "adapter", **settings)
    assert faults_of(folder) == []
    assert load_model(str(folder), tokenizer=load_tokenizer(TINY)).peft_config["default"].r == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["model=changed", "trainer=ppo reward=model reward.model.path=changed"]
)
def test_it_is_refused_wherever_it_is_named(change, tmp_path, monkeypatch, capsys, option):
    change(every_second)
    monkeypatch.chdir(tmp_path)
    config = json.loads(Path("changed/adapter_config.json").read_text())
    task = "SEQ_CLS" if "reward" in option else "CAUSAL_LM"
    Path("changed/adapter_config.json").write_text(json.dumps(config | {"task_type": task}))
    assert main([*option.split(), "--dry-run"]) == 2
    assert "lacks 14 weights of its adapter" in capsys.readouterr().err


@pytest.mark.slow
def test_what_only_loading_can_tell_is_told_then(change):
    """The same holds for adapters of the hub, and for bases whose files name their weights
    differently.
    """
    changed = change(
        lambda weights: {
            name.replace("base_model.model.", "base_model."): weights[name] for name in weights
        }
    )
    assert faults_of(changed) == []
    with pytest.raises(ConfigError, match="lacks 28 weights of its adapter"):
        load_model(str(changed), tokenizer=load_tokenizer(TINY))


def test_an_adapter_for_texts_gives_no_scores(sound):
    (fault,) = find_scorer_faults(str(sound), "reward.model.path")
    assert "is an adapter for CAUSAL_LM" in fault.found
    assert fault.fix == "another reward.model.path"


def test_a_kernel_that_a_config_names_is_refused(tmp_path):
    shutil.copytree(TINY, folder := tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    for value in ("evil/kernel", {"": "evil/kernel"}):
        (folder / "config.json").write_text(json.dumps(config | {"_attn_implementation": value}))
        (fault,) = faults_of(folder)
        assert "asks for the kernel evil/kernel" in fault
    (folder / "config.json").write_text(json.dumps(config | {"_attn_implementation": "sdpa"}))
    assert faults_of(folder) == []


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("peft.r=1000000", "at least 1 and at most 16384"),
        ("peft.r=400", "no matrix of the model has more than 384"),
        ("peft.rank_pattern={q_proj:400}", "peft.rank_pattern.q_proj=16"),
        ("peft.rank_pattern={q_proj:0}", "peft.rank_pattern.q_proj=8"),
        ("peft.alpha_pattern={q_proj:-1}", "peft.alpha_pattern.q_proj=16"),
        ("peft.lora_alpha=0", "above 0"),
    ],
)
def test_a_rank_that_no_matrix_holds_is_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["peft=lora", words, "--dry-run"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_modules_of_an_adapter_are_written_in_order(sound, tmp_path):
    model = load_model(str(sound), tokenizer=load_tokenizer(TINY))
    # in which order, each process says
    assert isinstance(model.peft_config["default"].target_modules, set)
    order_modules(model)
    write_adapter(model, tmp_path)
    names = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert names == sorted(names)
    assert len(names) == 14
