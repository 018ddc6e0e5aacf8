"""Values of LLaMA-Factory and Axolotl that would mean something else here if they were copied."""

import json
import re
from importlib import import_module

import pytest
import yaml
from import_notes import notes_of

from runner.__main__ import main
from runner.errors import ConfigError
from runner.importers.draft import Draft
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

verb = import_module("runner.command.import")

LLAMA_FACTORY = {
    "model_name_or_path": "a/b",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "dataset": "chats",
    "cutoff_len": 64,
    "bf16": True,
}
AXOLOTL = {
    "base_model": "a/b",
    "datasets": [{"path": "c/d", "type": "alpaca"}],
    "micro_batch_size": 2,
    "sequence_len": 64,
}


@pytest.fixture
def draft_of(tmp_path):
    """The draft of a file with these keys."""

    def call(keys: dict, name: str = "theirs.yaml") -> Draft:
        path = tmp_path / name
        path.write_text(yaml.safe_dump(keys))
        return translate(read_file(path), "mine")

    return call


# --- Answers only ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "weight"),
    [
        ({}, "answers"),
        ({"dataset": "o/hub"}, "answers"),
        ({"train_on_prompt": True}, None),
        ({"mask_history": True}, "last_round"),
        ({"stage": "pt"}, None),
        ({"stage": "dpo"}, None),
    ],
)
def test_answers_only_are_trained_on_where_the_form_is_not_known(draft_of, keys, weight):
    assert draft_of(LLAMA_FACTORY | keys).choices.get("weight") == weight


@pytest.mark.slow
def test_the_preview_of_such_an_import_trains_the_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    turns = [{"from": "human", "value": "what is 2 + 2"}, {"from": "gpt", "value": "4"}]
    rows = [{"conversations": turns} for _ in range(4)]
    (tmp_path / "data" / "chats.json").write_text(json.dumps(rows))
    keys = LLAMA_FACTORY | {"model_name_or_path": "runner://model/tiny", "finetuning_type": "full"}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(keys))
    assert main(["import", "theirs.yaml", "name=mine"]) == 0
    capsys.readouterr()
    assert main(["preview", "experiment=mine", "--config-dir", "conf", "rows=1"]) == 0
    share = re.search(r"tokens are trained \(([\d.]+)%\)", capsys.readouterr().out)
    assert 0 < float(share[1]) < 50


# --- Files that train nothing ---------------------------------------------------------------------


def test_a_file_to_talk_to_a_model_is_no_training(draft_of):
    keys = {
        "model_name_or_path": "a/b",
        "adapter_name_or_path": "saves/sft",
        "template": "llama3",
        "finetuning_type": "lora",
    }
    with pytest.raises(ConfigError, match="no training"):
        draft_of(keys)


# --- Adapters that are there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "peft", "merge", "quant"),
    [
        ({"stage": "dpo"}, None, None, None),
        ({"stage": "sft"}, None, None, None),
        ({"stage": "dpo", "quantization_bit": 4}, None, None, "4bit"),
        ({"stage": "dpo", "create_new_adapter": True}, "lora", True, None),
        (
            {"stage": "dpo", "create_new_adapter": True, "quantization_bit": 4},
            None,
            None,
            "4bit",
        ),
    ],
)
def test_an_adapter_of_llama_factory_goes_on_or_is_merged_as_theirs(
    draft_of, keys, peft, merge, quant
):
    draft = draft_of(LLAMA_FACTORY | {"adapter_name_or_path": "saves/sft"} | keys)
    assert draft.values["model"]["path"] == "saves/sft"
    assert draft.values["model"].get("merge") == merge
    assert draft.choices.get("peft") == peft
    assert draft.choices.get("quant") == quant
    assert ("reference" in notes_of(draft, "adapter_name_or_path")) == (
        keys["stage"] == "dpo" and not merge
    )


def test_of_several_adapters_the_last_one_goes_on(draft_of):
    draft = draft_of(LLAMA_FACTORY | {"adapter_name_or_path": "saves/one,saves/two"})
    assert draft.values["model"]["path"] == "saves/two"
    assert "saves/one: merged before" in notes_of(draft, "adapter_name_or_path")


def test_an_adapter_of_axolotl_goes_on_in_4_bits(draft_of):
    keys = {"lora_model_dir": "outputs/one", "adapter": "qlora", "load_in_4bit": True}
    draft = draft_of(AXOLOTL | keys)
    assert draft.values["model"]["path"] == "outputs/one"
    assert draft.choices.get("quant") == "4bit"
    assert draft.choices.get("peft") is None


def test_fsdp_splits_weights_of_4_bits_as_axolotl_stores_them(draft_of):
    keys = {
        "adapter": "qlora",
        "load_in_4bit": True,
        "lora_target_linear": True,
        "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True},
    }
    draft = draft_of(AXOLOTL | keys)
    assert draft.values["quant"]["bnb_4bit_quant_storage"] == "bfloat16"
    words = [*draft.overrides, *draft.spread]
    spread = [word.replace("=N", "=4") for word in words]
    faults = " ".join(map(str, verb.faults_of(draft.name, verb.to_file(draft), spread)))
    assert "quant" not in faults
