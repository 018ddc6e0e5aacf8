"""Recipes for TRL's trainers: alignment-handbook, open-r1, SimPO and kin."""

from importlib import import_module

import pytest
import yaml
from import_notes import notes_of

from runner.config.dialect import read_table
from runner.errors import ConfigError
from runner.importers.draft import Draft
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.reward import rule

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


def test_what_the_scripts_for_a_mixer_do_is_written(recipe):
    sft = recipe(BASE | {"dataset_mixer": {"o/a": 1.0}})
    args = sft.values["trainer"]["args"]
    assert (args["packing"], args["packing_strategy"]) == (True, "wrapped")
    assert kinds_of(sft, "auto_insert_empty_system_msg") == {"no equivalent"}
    dpo = recipe(BASE | {"dataset_mixer": {"o/a": 1.0}, "beta": 0.1}, name="config_dpo.yaml")
    assert dpo.values["trainer"]["args"]["optim"] == "rmsprop"
    assert dpo.values["learning_rate"] == 5e-5


def test_a_mixer_of_one_set_is_one_set(recipe):
    keys = {"dataset_mixer": {"o/a": 1.0}, "dataset_name": "o/other"}
    draft = recipe(BASE | keys | {"beta": 0.1}, name="config_dpo.yaml")
    assert draft.values["dataset"] == {"path": "o/a", "form": "preference"}
    assert draft.values["kl_coef"] == 0.1
    assert "takes its place" in notes_of(draft, "dataset_name")


# --- Commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "trainer"),
    [
        ("accelerate launch --config_file zero3.yaml scripts/sft.py --config config.yaml", "sft"),
        (
            "accelerate launch --config_file=zero3.yaml src/open_r1/sft.py --config=config.yaml",
            "sft",
        ),
        ("accelerate launch --config_file zero3.yaml scripts/run_dpo.py config.yaml", "dpo"),
        ("accelerate launch --config_file zero3.yaml scripts/run_simpo.py config.yaml", "cpo"),
        ("python scripts/run_cpt.py config.yaml", "sft"),
    ],
)
def test_the_commands_of_recipes_are_read(recipe, tmp_path, command, trainer):
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump(BASE | {"learning_rate": 1e-5, "dataset_mixer": {"o/a": 1.0}})
    )
    (tmp_path / "zero3.yaml").write_text("distributed_type: DEEPSPEED\nnum_processes: 8\n")
    text = f"ACCELERATE_LOG_LEVEL=info {command} --learning_rate=2e-6 --num_train_epochs 5\n"
    draft = recipe(text, name="run.sh")
    assert draft.trainer == trainer
    assert draft.values["learning_rate"] == 2e-6
    assert draft.values["model"]["path"] == "a/b"
    assert draft.values["dataset"]["path"] == "o/a"
    overridden = "config.yaml: learning_rate"
    assert draft.keys[overridden] == 1e-5
    assert "takes its place" in notes_of(draft, overridden)
    if "zero3" in command:
        assert draft.reading.devices == 8


def test_a_script_that_only_has_such_a_name_is_none_of_theirs(recipe, tmp_path):
    (tmp_path / "config.yaml").write_text("optimizer: {lr: 1}\n")
    with pytest.raises(ConfigError, match="keys of its own"):
        recipe("python scripts/sft.py --config config.yaml\n", name="run.sh")


def test_a_recipe_that_is_not_there_is_asked_for(recipe):
    with pytest.raises(ConfigError, match="which is not there"):
        recipe("python scripts/run_sft.py recipes/none.yaml\n", name="run.sh")


# --- Methods and rewards --------------------------------------------------------------------------


def test_simpo_is_cpo_with_its_own_loss(recipe):
    keys = {"beta": 2.5, "gamma_beta_ratio": 0.55, "dataset_mixer": {"o/a": 1.0}}
    draft = recipe(BASE | keys, name="llama-simpo.yaml")
    assert draft.trainer == "cpo"
    wanted = {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 1.375, "beta": 2.5}
    args = draft.values["trainer"]["args"]
    assert {name: args[name] for name in wanted} == wanted
    assert kinds_of(draft, "gamma_beta_ratio") == kinds_of(draft, "beta") == {"mapped"}


def test_rewards_of_open_r1_are_ours_or_are_asked_for(recipe):
    keys = {
        "dataset_name": "o/math",
        "reward_funcs": ["accuracy", "format", "tag_count", "code", "cosine", "code_format"],
        "reward_weights": [1.0, 0.5, 0.25, 2.0, 1.0, 1.0],
        "code_language": "cpp",
        "max_prompt_length": 512,
    }
    draft = recipe(BASE | keys, name="config_demo.yaml", trainer="grpo")
    rewards = draft.values["reward"]
    assert rewards["accuracy"]["_target_"] == "trl.rewards.accuracy_reward"
    assert rewards["format"]["_target_"] == "runner.reward.rule.format_match"
    assert rewards["tag_count"]["weight"] == 0.25
    assert "```cpp" in rewards["code_format"]["pattern"]
    assert rewards["code"] == {"_target_": "???", "weight": 2.0}
    assert "counts tokens" in notes_of(draft, "reward_funcs")
    assert not draft.overrides, "no module of Python's is typed"
    text = verb.to_file(draft)
    faults = " ".join(map(str, verb.faults_of(draft.name, text, [])))
    assert "reward.code._target_" in faults
    assert "reward.format" not in faults


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>\na\n</think>\n<answer>\n4\n</answer>", 1.0),
        ("<think>\na\n</think>\n<answer>\n4\n</answer>\nmore", 1.0),
        ("<think>\na\n</think>\n<answer>\n4\n</answer> more", 0.0),
        ("so <think>\na\n</think>\n<answer>\n4\n</answer>", 0.0),
    ],
)
def test_the_format_of_open_r1_is_theirs(completion, reward):
    entry = read_table("trl").sections["rewards"]["format"]
    settings = {"pattern": entry["pattern"], "whole": entry["whole"]}
    assert rule.format_match([completion], **settings) == [reward]


def test_all_trackers_of_a_list_are_kept(recipe):
    keys = {"dataset_name": "o/a", "report_to": ["tensorboard", "wandb", "unknown_one"]}
    draft = recipe(BASE | keys)
    assert draft.choices["tracker"] == ["tensorboard", "wandb"]
    assert "unknown_one" in notes_of(draft, "report_to")
    text = verb.to_file(draft)
    assert not verb.faults_of(draft.name, text, [])


def test_the_type_and_the_storage_of_weights_are_kept(recipe):
    keys = {
        "dataset_name": "o/a",
        "torch_dtype": "bf16",
        "use_peft": True,
        "load_in_4bit": True,
        "bnb_4bit_quant_storage": "bfloat16",
    }
    draft = recipe(BASE | keys)
    assert draft.values["model"]["dtype"] == "bfloat16"
    assert draft.values["quant"]["bnb_4bit_quant_storage"] == "bfloat16"


def test_earlier_names_of_rloo_are_those_of_today(recipe):
    keys = {
        "sft_model_path": "o/sft",
        "reward_model_path": "o/rm",
        "dataset_name": "o/a",
        "rloo_k": 4,
        "kl_coef": 0.03,
        "response_length": 99,
        "num_mini_batches": 2,
        "gradient_accumulation_steps": 8,
    }
    draft = recipe(BASE | keys, name="old.yaml")
    assert draft.trainer == "rloo"
    args = draft.values["trainer"]["args"]
    wanted = {
        "num_generations": 4,
        "max_completion_length": 99,
        "num_iterations": 4,
        "steps_per_generation": 16,
    }
    assert {name: args[name] for name in wanted} == wanted
    assert draft.values["kl_coef"] == 0.03
    assert draft.values["model"]["path"] == "o/sft"
    assert draft.values["reward"]["model"]["path"] == "o/rm"
