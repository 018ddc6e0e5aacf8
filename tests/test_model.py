"""Models and tokenizers come in whole, agree with each other, and are refused in four beats."""

import json
import logging
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.trainer_utils import align_special_tokens
from trl import chat_template_utils as trl_templates

from runner.errors import ConfigError, EnvironmentFault, RunnerError
from runner.model.adapter import write_adapter
from runner.model.chat import check_template
from runner.model.check import NEW, find_model_faults
from runner.model.check_tokenizer import TOKENIZER, find_tokenizer_faults
from runner.model.jinja import read_template, template_names
from runner.model.load import (
    adopt_tokens,
    check_quantization,
    fetch,
    load_model,
    load_tokenizer,
    new_model,
)
from runner.model.node import LOADER

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What did Anna see?"},
    {"role": "assistant", "content": "A dog."},
    {"role": "user", "content": "Where?"},
    {"role": "assistant", "content": "At the park."},
]


@pytest.fixture(scope="module", params=["qwen2", "gpt_neox"])
def folder(request, tmp_path_factory) -> Path:
    """A whole model with its tokenizer, of either architecture."""
    return tiny_model(tmp_path_factory.mktemp("model") / request.param, request.param)


@pytest.fixture
def qwen(tmp_path) -> Path:
    """A folder of the test's own, to be damaged."""
    return tiny_model(tmp_path / "qwen")


def load(path: Path | str, **how):
    return load_model(str(path), tokenizer=load_tokenizer(str(path)), **how)


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def fix_of(caught) -> str:
    return caught.value.faults[0].fix


# --- Tokenizer ----------------------------------------------------------------------------------


def save_neox(folder: Path, *words: str) -> Path:
    """A tokenizer like Pythia's, without a pad token, with these further tokens."""
    tokenizer = tiny_tokenizer(chat=False)
    tokenizer.add_tokens(list(words))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_padding_ends_no_text_where_the_vocabulary_has_a_candidate(tmp_path):
    folder = save_neox(tmp_path, "<|padding|>", "<pad>")
    before = len(AutoTokenizer.from_pretrained(folder))
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|padding|>", "<|endoftext|>")
    assert len(tokenizer) == before


def test_padding_with_the_end_token_is_the_last_choice_and_is_logged(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "runner"):
        tokenizer = load_tokenizer(str(save_neox(tmp_path)))
    assert tokenizer.pad_token == tokenizer.eos_token
    assert "no other candidate" in caplog.text


@pytest.mark.slow
def test_a_tokenizer_that_can_pad_is_left_as_it_is(qwen):
    tokenizer = load_tokenizer(str(qwen))
    loaded = AutoTokenizer.from_pretrained(qwen)
    for name in ("pad_token", "eos_token", "bos_token", "padding_side", "chat_template"):
        assert getattr(tokenizer, name) == getattr(loaded, name)


@pytest.mark.slow
def test_an_end_token_is_chosen_from_the_vocabulary_only(qwen):
    chosen = load_tokenizer(str(qwen), pad_token="<|im_start|>", eos_token="<|endoftext|>")
    assert (chosen.pad_token, chosen.eos_token) == ("<|im_start|>", "<|endoftext|>")
    with pytest.raises(ConfigError, match="not in the vocabulary") as caught:
        load_tokenizer(str(qwen), eos_token="<|new|>")
    assert caught.value.faults[0].where == "model.tokenizer.eos_token"


@pytest.mark.slow
def test_a_token_that_only_the_config_adds_is_of_the_vocabulary(qwen):
    config = json.loads((qwen / "tokenizer_config.json").read_text())
    config.setdefault("added_tokens_decoder", {})["200001"] = {
        "content": "<later>",
        "special": True,
    }
    (qwen / "tokenizer_config.json").write_text(json.dumps(config))
    node = {"_target_": TOKENIZER, "path": str(qwen)}
    assert find_tokenizer_faults(node | {"eos_token": "<later>"}, None) == []
    assert [fault.where for fault in find_tokenizer_faults(node | {"eos_token": "<none>"}, None)]


@pytest.mark.parametrize("listed", ["<later>", {"a": 1}, {"7": "<later>"}])
def test_tokens_that_the_config_lists_in_another_form_are_a_fault(qwen, listed):
    edit_json(qwen / "tokenizer_config.json", added_tokens_decoder=listed)
    (fault,) = find_tokenizer_faults({"_target_": TOKENIZER, "path": str(qwen)}, None)
    assert "lists no tokens" in fault.found


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="ends a text") as caught:
        load_tokenizer(str(tmp_path))
    assert fix_of(caught).startswith("model.tokenizer.eos_token=")


def test_a_folder_without_a_vocabulary_is_refused(qwen):
    for file in qwen.glob("token*"):
        file.unlink()
    with pytest.raises(ConfigError, match="no vocabulary"):
        load_tokenizer(str(qwen))


# --- Templates ----------------------------------------------------------------------------------

# Styles of other tools in which an answer begins with a blank, or only the last one has an end.
BLANK_FIRST = ("llama2", "mistral", "vicuna")
END_ONCE = ("solar",)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", template_names())
def test_a_shipped_template_trains_answers_with_their_end_and_nothing_else(name, folder):
    tokenizer = load_tokenizer(str(folder), chat_template=name)
    spelt = tokenizer.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    pairs = zip(spelt["input_ids"], spelt["assistant_masks"], strict=True)
    trained = tokenizer.decode([token for token, mask in pairs if mask])
    end = tokenizer.eos_token
    blank = " " if name in BLANK_FIRST else ""
    first_end = "" if name in END_ONCE else end
    assert trained == f"{blank}A dog.{first_end}{blank}At the park.{end}"
    assert trl_templates.is_chat_template_prefix_preserving(tokenizer) == (name not in END_ONCE)
    if name not in END_ONCE:
        assert trl_templates.is_chat_template_stop_token_trained(tokenizer)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", template_names())
def test_the_generation_prompt_is_what_an_answer_follows(name, folder):
    tokenizer = load_tokenizer(str(folder), chat_template=name)
    prompt = tokenizer.apply_chat_template(CHAT[:2], add_generation_prompt=True, return_dict=False)
    rendered = tokenizer.apply_chat_template(CHAT[:3], return_dict=False)
    assert rendered[: len(prompt)] == prompt
    blank = " " if name in BLANK_FIRST else ""
    answer = f"{blank}A dog.{tokenizer.eos_token}"
    assert tokenizer.decode(rendered[len(prompt) :]).startswith(answer)


def test_plain_reads_as_words(folder):
    tokenizer = load_tokenizer(str(folder), chat_template="plain")
    text = tokenizer.apply_chat_template(CHAT[:3], tokenize=False)
    end = tokenizer.eos_token
    assert text == f"System:\nBe brief.\n\nUser:\nWhat did Anna see?\n\nAssistant:\nA dog.{end}\n\n"


@pytest.mark.slow
def test_chats_need_a_template_and_the_cure_is_named(tmp_path):
    tokenizer = load_tokenizer(str(save_neox(tmp_path)))
    check_template(tokenizer, chats=False)
    with pytest.raises(ConfigError) as caught:
        check_template(tokenizer, chats=True)
    assert fix_of(caught) == "model.tokenizer.chat_template=plain"
    check_template(load_tokenizer(str(tmp_path), chat_template="plain"), chats=True)


@pytest.mark.slow
def test_replacing_a_template_is_logged_and_keeping_it_is_not(qwen, caplog):
    load_tokenizer(str(qwen))
    assert "replaced" not in caplog.text
    replaced = load_tokenizer(str(qwen), chat_template="plain")
    assert "replaced by plain" in caplog.text
    assert replaced.chat_template == read_template("plain")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "finding"),
    [
        ("{% for m in messages %}\n{{ m }", "line 2"),
        ("{{ raise_exception('no system turn') }}", "no system turn"),
        ("always the same", "leaves out"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "never learn to stop"),
        (
            "{% for m in messages %}{{ eos_token }}{{ m.content }}{% endfor %}",
            "never learn to stop",
        ),
    ],
)
def test_a_template_that_does_not_work_is_refused(qwen, tmp_path, template, finding):
    file = tmp_path / "own.jinja"
    file.write_text(template)
    with pytest.raises(ConfigError, match=finding) as caught:
        load_tokenizer(str(qwen), chat_template=str(file))
    assert caught.value.faults[0].where == "model.tokenizer.chat_template"


def test_an_unknown_template_names_those_that_ship(qwen):
    with pytest.raises(ConfigError, match=", ".join(template_names())):
        load_tokenizer(str(qwen), chat_template="llama")


# --- Model --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_weights_come_in_whole_and_in_float32(folder):
    model = load(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in loaded.named_parameters():
        assert torch.equal(model.get_parameter(name), weight)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert next(load(folder, dtype="bfloat16").parameters()).dtype == torch.bfloat16


@pytest.mark.slow
def test_model_and_tokenizer_agree_so_that_trainers_have_nothing_to_align(folder, caplog):
    tokenizer = load_tokenizer(str(folder))
    for model in (load(folder), load(folder, head="score"), load(folder, dtype="auto")):
        assert model.config.pad_token_id == tokenizer.pad_token_id
        align_special_tokens(model, tokenizer)
    assert "Updated tokens" not in caplog.text


@pytest.mark.slow
def test_further_end_tokens_of_the_model_stay(qwen):
    edit_json(qwen / "generation_config.json", eos_token_id=[1, 0])
    model = load(qwen)
    end = load_tokenizer(str(qwen)).eos_token_id
    assert model.generation_config.eos_token_id == [end, 1, 0]


@pytest.mark.slow
def test_a_template_whose_end_mark_stops_nothing_is_reported(qwen, caplog):
    tokenizer = load_tokenizer(str(qwen), eos_token="<|endoftext|>")
    model = AutoModelForCausalLM.from_pretrained(qwen)
    model.generation_config.eos_token_id = None
    adopt_tokens(model, tokenizer)
    assert "would not stop there" in caplog.text
    caplog.clear()
    adopt_tokens(model, load_tokenizer(str(qwen)))
    assert not caplog.text


def test_a_score_does_not_depend_on_padding(folder):
    model = load(folder, head="score")
    tokenizer = load_tokenizer(str(folder))
    texts = ["A dog.", "Anna went to the park and saw a dog there."]
    with torch.no_grad():
        together = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
        alone = [model(**tokenizer([text], return_tensors="pt")).logits[0] for text in texts]
    assert together.shape == (2, 1)
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.mark.slow
def test_a_new_score_head_depends_on_the_seed_alone(folder):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    heads = [load(folder, head="score", seed=seed).score.weight for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(torch.get_rng_state(), state)


def damage_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def damage_architecture(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="unheard_of")


def bring_code(folder: Path) -> None:
    edit_json(
        folder / "config.json", model_type="unheard_of", auto_map={"AutoConfig": "code.Config"}
    )


def deepen(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3, layer_types=["full_attention"] * 3)


def widen(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=256)


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def pickle_weights(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


CONFIG_DAMAGES = (damage_json, remove_config, damage_architecture, bring_code)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "where", "finding", "fix"),
    [
        (damage_json, "config.json", "no JSON", "download it again"),
        (remove_config, "model.path", "no config.json", "model.path="),
        (damage_architecture, "model.path", "unknown to the installed", "pip install"),
        (bring_code, "model.trust_remote_code", "Python code", "model.trust_remote_code=true"),
        (deepen, "model.path", "lacks 12 weights", "model.path="),
        (widen, "model.path", "does not fit the shapes", "model.path="),
        (cut_weights, "model.path", "truncated or damaged", "--force-download"),
        (pickle_weights, "model.path", "no weights in safetensors", "model.safetensors_only=false"),
    ],
)
def test_a_damaged_folder_is_refused_with_its_cause_and_cure(qwen, damage, where, finding, fix):
    tokenizer = load_tokenizer(str(qwen))
    damage(qwen)
    with pytest.raises(ConfigError, match=finding) as caught:
        load_model(str(qwen), tokenizer=tokenizer)
    assert caught.value.faults[0].where in (where, str(qwen / where))
    assert fix in fix_of(caught)
    faults = find_model_faults({"_target_": LOADER, "path": str(qwen)}, "lm")
    # Of what the config tells there is one check, before anything loads and for the loader; weights
    # only loading reads.
    assert faults == caught.value.faults if damage in CONFIG_DAMAGES else len(faults) == 1


@pytest.mark.slow
def test_pickled_weights_load_when_asked_for(qwen):
    loaded = load(qwen)
    pickle_weights(qwen)
    model = load(qwen, safetensors_only=False)
    for n, w in loaded.named_parameters():
        assert torch.equal(model.get_parameter(n), w)


@pytest.mark.quick(2)
@pytest.mark.parametrize("loader", [load_tokenizer, load])
@pytest.mark.parametrize(
    ("path", "finding"),
    [
        ("/no/such/folder", "there is no folder /no/such/folder"),
        ("./nowhere", "there is no folder nowhere"),
        ("a/b/c", "there is no folder a/b/c"),
        ("runner://model/nothing", "there is no folder"),
        ("what is this", "neither a folder nor a name"),
    ],
)
def test_a_wrong_path_is_a_config_error(loader, path, finding):
    with pytest.raises(ConfigError, match=finding) as caught:
        loader(path)
    assert caught.value.faults[0].where == "model.tokenizer.path"
    with pytest.raises(ConfigError, match=finding) as caught:
        load_model(path, tokenizer=tiny_tokenizer())
    assert caught.value.faults[0].where == "model.path"
    assert caught.value.code == 2


def test_an_attention_that_does_not_exist_is_refused(folder):
    with pytest.raises(ConfigError, match="attn_implementation") as caught:
        load(folder, attention="fastest")
    assert fix_of(caught) == "model.attention=sdpa"


def test_a_missing_library_is_the_environments_fault(folder, monkeypatch):
    with pytest.raises(EnvironmentFault, match="FlashAttention2") as caught:
        load(folder, attention="flash_attention_2")
    assert caught.value.code == 5
    check_quantization({"load_in_4bit": True})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_quantization(None)
    with pytest.raises(EnvironmentFault) as caught:
        check_quantization({"load_in_4bit": True})
    assert fix_of(caught) == "pip install 'bitsandbytes>=0.50'  (the extra quant)"


@pytest.mark.slow
def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(qwen):
    tokenizer = load_tokenizer(str(qwen))
    tokenizer.add_tokens([f"<{number}>" for number in range(64)])
    with pytest.raises(ConfigError, match="tokens, the model"):
        load_model(str(qwen), tokenizer=tokenizer)


@pytest.mark.slow
def test_special_tokens_beyond_the_model_are_allowed_if_nothing_writes_them(qwen, tmp_path):
    tokenizer = load_tokenizer(str(qwen))
    tokenizer.add_tokens([f"<image{number}>" for number in range(64)], special_tokens=True)
    model = load_model(str(qwen), tokenizer=tokenizer)
    rows = model.get_input_embeddings().num_embeddings
    assert len(tokenizer) > rows
    tokenizer.save_pretrained(tmp_path)
    node = {"_target_": TOKENIZER, "path": str(tmp_path)}
    assert find_tokenizer_faults(node, rows) == []
    assert find_tokenizer_faults(node | {"pad_token": "<image63>"}, rows)[0].found.endswith(
        f"tokens, the model {rows}"
    )
    tokenizer.pad_token = "<image63>"
    with pytest.raises(ConfigError, match="tokens, the model"):
        load_model(str(qwen), tokenizer=tokenizer)


# --- Adapters as path ---------------------------------------------------------------------------


def save_adapter(path: Path, folder: Path, config: peft.PeftConfig, head="lm", **named) -> None:
    model = peft.get_peft_model(load(path, head=head), config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.full_like(weight, 0.05))
    write_adapter(model, folder, **{"base": str(path)} | named)


def lora(**how) -> peft.LoraConfig:
    return peft.LoraConfig(r=4, target_modules="all-linear", **{"task_type": "CAUSAL_LM"} | how)


@pytest.mark.slow
def test_an_adapter_comes_on_its_base_and_can_be_trained_further(folder, tmp_path):
    save_adapter(folder, tmp_path, lora())
    tokenizer = load_tokenizer(str(tmp_path))  # the base's, as the adapter brings none
    model = load_model(str(tmp_path), tokenizer=tokenizer)
    assert isinstance(model, peft.PeftModel)
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert trained
    for name in trained:
        assert "lora_" in name
    inputs = tokenizer("Anna saw a dog.", return_tensors="pt")
    with torch.no_grad():
        moved = model(**inputs).logits - load(folder)(**inputs).logits
    assert moved.abs().max() > 1e-2


@pytest.mark.slow
def test_an_adapter_that_cannot_be_trained_here_is_refused(qwen, tmp_path):
    save_adapter(qwen, tmp_path / "score", lora(task_type="SEQ_CLS"), head="score")
    with pytest.raises(ConfigError, match="adapter for SEQ_CLS"):
        load(tmp_path / "score")
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    save_adapter(qwen, tmp_path / "prompt", prompt)
    with pytest.raises(ConfigError, match="cannot train any further"):
        load(tmp_path / "prompt")
    save_adapter(qwen, tmp_path / "pickle", lora())
    (tmp_path / "pickle" / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ConfigError, match=r"no adapter_model\.safetensors"):
        load(tmp_path / "pickle")


# --- From scratch -------------------------------------------------------------------------------

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 2, "max_position_embeddings": 64}


@pytest.mark.quick(2)
@pytest.mark.parametrize("model_type", ["qwen2", "gpt_neox"])
@pytest.mark.parametrize("head", ["lm", "score"])
def test_a_new_model_depends_on_the_seed_alone(model_type, head, tmp_path):
    tokenizer = tiny_tokenizer()
    state = torch.get_rng_state()
    models = [
        new_model(tokenizer, model_type=model_type, head=head, seed=seed, **SMALL)
        for seed in (0, 0, 1)
    ]
    first, same, of_another_seed = (next(model.parameters()) for model in models)
    assert torch.equal(first, same)
    assert not torch.equal(first, of_another_seed)
    assert torch.equal(torch.get_rng_state(), state)
    assert models[0].get_input_embeddings().num_embeddings == len(tokenizer)
    models[0].save_pretrained(tmp_path)
    auto = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    assert torch.equal(next(auto.from_pretrained(tmp_path).parameters()), first)


def test_keys_that_an_architecture_lacks_are_named_all_at_once():
    with pytest.raises(ConfigError) as caught:
        new_model(tiny_tokenizer(), model_type="qwen2", hiden_size=32, num_layer=2)
    assert [fault.where for fault in caught.value.faults] == ["model.hiden_size", "model.num_layer"]
    assert fix_of(caught) == "model.hidden_size=32"
    with pytest.raises(ConfigError, match="an architecture of transformers"):
        new_model(tiny_tokenizer(), model_type="qwen99")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "finding"),
    [("bert", "after the current"), ("roberta", "after the current"), ("xlm", "after the current"),
     ("rwkv", "padding"), ("bart", "padding"), ("openai-gpt", "remembers nothing")],
)  # fmt: skip
def test_models_that_cannot_generate_are_refused_before_anything_loads(qwen, kind, finding):
    edit_json(qwen / "config.json", model_type=kind)
    asked = {"_target_": LOADER, "path": str(qwen)}, {"_target_": NEW, "model_type": kind}
    for node in asked:
        (fault,) = find_model_faults(node, "lm")
        assert kind in fault.found and finding in fault.found and fault.expected and fault.fix, (
            fault
        )
        # it may well judge
        assert not any(finding in fault.found for fault in find_model_faults(node, "score"))
    with pytest.raises(ConfigError, match=finding):
        load(qwen)
    edit_json(qwen / "config.json", is_decoder=True)
    refused = [fault for fault in find_model_faults(asked[0], "lm") if finding in fault.found]
    assert bool(refused) == (kind != "bert")  # which looks back alone where it is a decoder


# --- The hub ------------------------------------------------------------------------------------


def answer(words: list[str]) -> None:
    """Print what loading each (path, revision) comes to."""
    answers = []
    for path, revision in json.loads(words[0]):
        try:
            tokenizer = load_tokenizer(path, revision=revision)
            model = load_model(path, tokenizer=tokenizer, revision=revision)
            first = model.get_input_embeddings().weight[0, 0].item()
            answers.append(["loaded", fetch(path, revision=revision).commit, first])
        except RunnerError as error:
            answers.append([type(error).__name__, error.faults[0].where, error.faults[0].fix])
    print(json.dumps(answers))


@pytest.mark.dear("it may be the first to start the process from which commands are forked")
@pytest.mark.slow
def test_the_hub_gives_the_revision_asked_for_or_says_why_not(hub, tmp_path, online_runner):
    def ask(*questions: tuple[str, str | None], offline: bool = False) -> list[list]:
        words = [json.dumps(questions)]
        if offline:
            done = online_runner("test_model:answer", *words, door="hub:offline")
        else:
            done = online_runner(*words, door="test_model:answer")
        return json.loads(done.stdout.splitlines()[-1])

    old = hub.add_model("tester/two", tiny_model(tmp_path / "old", seed=1), revision="v1")
    new = hub.add_model("tester/two", tiny_model(tmp_path / "new", seed=2))
    hub.add_model("tester/gated", tmp_path / "new", gated=True)
    hub.add_model("tester/private", tmp_path / "new", private=True)
    adapted = tmp_path / "adapter"
    save_adapter(tmp_path / "old", adapted, lora(), base="tester/two", revision="v1")
    hub.add_model("tester/adapter", adapted)
    first = {
        n: load(tmp_path / n).get_input_embeddings().weight[0, 0].item() for n in ("old", "new")
    }
    questions = [("tester/two", None), ("tester/two", "v1"), ("tester/two", old)]
    questions += [("tester/two", "v9"), ("tester/gated", None), ("tester/private", None)]
    for damage in (damage_architecture, bring_code):
        damaged = tiny_model(tmp_path / damage.__name__)
        damage(damaged)
        hub.add_model(f"tester/{damage.__name__}", damaged)
    (tmp_path / "damage_architecture" / "tokenizer_config.json").unlink()
    hub.add_model("tester/bare", tmp_path / "damage_architecture")
    refused = [
        ("tester/damage_architecture", None),
        ("tester/bare", None),
        ("tester/bring_code", None),
    ]
    *answers, unknown, bare, own_code, adapter = ask(*questions, *refused, ("tester/adapter", None))
    assert unknown == ["ConfigError", "model.path", "pip install --upgrade transformers"]
    assert bare == ["ConfigError", "model.tokenizer.path", "pip install --upgrade transformers"]
    assert own_code[:2] == ["ConfigError", "model.trust_remote_code"]
    assert answers == [
        ["loaded", new, first["new"]],
        ["loaded", old, first["old"]],
        ["loaded", old, first["old"]],
        ["ConfigError", "model.tokenizer.revision", "model.revision=main"],
        ["EnvironmentFault", "model.tokenizer.path", "hf auth login"],
        [
            "ConfigError",
            "model.tokenizer.path",
            "model.path=<folder or org/name>, or for a private one: hf auth login",
        ],
    ]
    assert (adapter[0], adapter[2]) == ("loaded", first["old"])
    asked = len(hub.requests)
    offline = ask(*questions[:2], ("no/where", None), offline=True)
    assert len(hub.requests) == asked
    assert offline[:2] == answers[:2]
    assert offline[2] == [
        "EnvironmentFault",
        "model.tokenizer.path",
        "hf download no/where (where there is a network)",
    ]


def test_a_folder_has_no_commit(folder):
    assert fetch(str(folder)).commit is None
