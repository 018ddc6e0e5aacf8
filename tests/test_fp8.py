"""A trained model with its linear layers in FP8, as torchao writes them."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from llama_cpp import family_model
from llama_cpp import lay_trained as lay
from tiny import tiny_model

from runner.__main__ import main
from runner.model import jinja
from runner.run.seal import damage_of

TINY = Path(jinja.__file__).parent / "tiny"
needs_torchao = pytest.mark.skipif(not find_spec("torchao"), reason="torchao not installed")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run of the shipped model."""
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(TINY, tmp_path / "model")
    return lay(tmp_path / "outputs" / "x" / "run", model)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 5, "pip install 'torchao>=0.18'  (the extra fp8)"),
        (["dtype=q8_0"], 2, "format=gguf dtype=q8_0"),
    ],
)
def test_what_is_missing_is_told_before_the_work(run, words, code, message, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["export", "x", "format=fp8", *words]) == code
    assert message in capsys.readouterr().err
    assert not list(run.glob("*export*"))


def test_a_reward_model_is_refused(tmp_path, capsys):
    model = shutil.copytree(TINY, tmp_path / "model")
    run = lay(tmp_path / "outputs" / "x" / "run", model, words=["trainer=reward"])
    assert main(["export", str(run), "format=fp8"]) == 2
    assert "a reward model" in capsys.readouterr().err


# --- torchao itself -------------------------------------------------------------------------------
@needs_torchao
@pytest.mark.slow
def test_a_model_without_linear_layers_is_refused_and_nothing_is_left(tmp_path, capsys):
    run = lay(tmp_path / "outputs" / "x" / "run", tiny_model(tmp_path / "model", "gpt2"))
    before = sorted(run.rglob("*"))
    assert main(["export", str(run), "format=fp8"]) == 2
    assert "GPT2LMHeadModel" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


@needs_torchao
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "gemma3", "pythia"])
def test_transformers_loads_eight_bits_near_the_trained_weights(name, tmp_path, capsys):
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if name == "tiny":
        model = shutil.copytree(TINY, tmp_path / "model")
    else:
        model = family_model(name, tmp_path / "model")
    run = lay(tmp_path / "outputs" / name / "run", model)
    assert main(["export", str(run), "format=fp8"]) == 0
    folder = run / "export-fp8"
    assert "linear layers in FP8, read back" in capsys.readouterr().out
    assert "written as FP8 (the rest: bfloat16)" in (folder / "README.md").read_text()
    assert not damage_of(folder)
    assert not [path for path in folder.rglob("*") if path.suffix in (".bin", ".pt", ".pth")]
    with safe_open(folder / "model.safetensors", "pt") as weights:
        stored = {str(weights.get_tensor(name).dtype) for name in weights.keys()}  # noqa: SIM118
    assert {"torch.float8_e4m3fn", "torch.bfloat16"} <= stored
    settings = json.loads((folder / "config.json").read_text())
    assert settings["quantization_config"]["quant_method"] == "torchao"
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    trained = AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.float32)
    weight_names = [
        name for name, module in trained.named_modules() if type(module) is torch.nn.Linear
    ]
    for weight_name in weight_names:
        exact = trained.get_submodule(weight_name).weight
        weight = loaded.get_submodule(weight_name).weight
        if hasattr(weight, "dequantize") and type(weight.data) is not torch.Tensor:
            weight = weight.dequantize()
        # Three bits after the first: at most a sixteenth of a weight, and the scale's rounding.
        near = exact.abs() * 0.07 + exact.abs().amax(1, keepdim=True) * 0.003
        assert ((weight.float() - exact).abs() <= near).all(), weight_name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(run / "model").chat_template
