"""Recipes for TRL's trainers: alignment-handbook, open-r1, SimPO and kin."""

from importlib import import_module

import pytest
import yaml

from runner.errors import ConfigError
from runner.importers.draft import Draft
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

verb = import_module("runner.command.import")

BASE = {"model_name_or_path": "a/b", "torch_dtype": "bfloat16", "max_seq_length": 64}
SEED_KEY = "dataset_mixture.seed"


@pytest.fixture
def recipe(tmp_path):
    """The draft of a recipe with these keys."""

    def call(keys: dict | str, name: str = "config_sft.yaml", **options: str) -> Draft:
        path = tmp_path / name
        path.write_text(keys if isinstance(keys, str) else yaml.safe_dump(keys))
        return translate(read_file(path), "mine", **options)

    return call


def notes_of(draft: Draft, key: str) -> str:
    """All that is said of a key."""
    lines = []
    for note in draft.notes:
        if note.key == key:
            lines.append(f"{note.kind}: {note.target} {note.why}")
    return "\n".join(lines)


def kinds_of(draft: Draft, key: str) -> set[str]:
    return {note.kind for note in draft.notes if note.key == key}


# --- Mixtures -------------------------------------------------------------------------------------


def test_the_weights_of_a_mixture_are_shares_that_are_kept(recipe):
    entries = [
        {"id": "o/chats", "config": "SFT", "split": "one_1.2M", "weight": 1.0},
        {"id": "o/chats", "config": "SFT", "split": "two", "weight": 0.4},
        {"id": "o/more", "split": "train[:500]", "weight": 0.5},
        {"id": "o/none", "weight": 0},
    ]
    mixture = {"datasets": entries, "seed": 7}
    draft = recipe(BASE | {"seed": 42, "dataset_mixture": mixture})
    dataset = draft.values["dataset"]
    assert "weights" not in dataset
    splits = {name: part["split"]["train"] for name, part in dataset["parts"].items()}
    assert splits == {"chats_one_1_2m": "one_1.2M", "chats_two": "two[:40%]", "more": "train[:250]"}
    assert draft.values["seed"] == 42
    assert kinds_of(draft, "seed") == {"mapped"}
    assert kinds_of(draft, SEED_KEY) == {"no equivalent"}
    assert "drawn at random" in notes_of(draft, "datasets")


def test_a_mixture_without_a_seed_outside_keeps_its_seed_to_itself(recipe):
    mixture = {"datasets": [{"id": "o/a"}, {"id": "o/b"}], "seed": 7, "test_split_size": 0.1}
    draft = recipe(BASE | {"dataset_mixture": mixture, "eval_strategy": "epoch"})
    assert "seed" not in draft.values
    splits = {name: part["split"] for name, part in draft.values["dataset"]["parts"].items()}
    held_out = {"train": "train[:90%]", "eval": "train[90%:]"}
    assert splits == {"a": held_out, "b": held_out}


def test_a_share_above_one_is_a_fault(recipe):
    with pytest.raises(ConfigError, match="at most 1"):
        recipe(BASE | {"dataset_mixer": {"o/a": 1.5}})


def test_a_mixer_keeps_the_first_rows_of_the_splits_for_training(recipe):
    keys = {
        "dataset_mixer": {"o/a": 1.0, "o/b": 0.66},
        "dataset_splits": ["train_sft", "test_sft"],
        "dataset_configs": ["x", "y"],
        "evaluation_strategy": "epoch",
    }
    draft = recipe(BASE | keys)
    parts = draft.values["dataset"]["parts"]
    assert parts["a"]["split"] == {"train": "train_sft", "eval": "test_sft"}
    assert parts["b"]["split"] == {"train": "train_sft[:66%]", "eval": "test_sft"}
    assert parts["b"]["config"] == "y"
    assert parts["a"]["form"] == "messages"
    for key in keys:
        assert kinds_of(draft, key) == {"mapped"}, key


def test_a_mixer_of_one_set_is_one_set(recipe):
    keys = {"dataset_mixer": {"o/a": 1.0}, "dataset_name": "o/other"}
    draft = recipe(BASE | keys | {"beta": 0.1}, name="config_dpo.yaml")
    assert draft.values["dataset"] == {"path": "o/a", "form": "preference"}
    assert draft.values["kl_coef"] == 0.1
    assert "takes its place" in notes_of(draft, "dataset_name")
