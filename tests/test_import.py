"""Other tools' configurations.

Each becomes an experiment that composes, and every key is accounted for.
"""

import itertools
import json
import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from import_notes import is_of

from runner import config
from runner.__main__ import main
from runner.config import dialect
from runner.config.composition import compose
from runner.config.conversion import CONVERSIONS, plain
from runner.config.dialect import find_dialects, read_table
from runner.errors import ConfigError
from runner.importers.draft import KINDS
from runner.importers.foreign_file import read_file
from runner.importers.row_functions import FUNCTIONS
from runner.importers.translate import translate
from runner.io.visible import visible_lines
from runner.launch.compose.stages import faults_of
from runner.schema.read import read_signature
from runner.schema.text import select

verb = import_module("runner.command.import")

SAMPLES = Path(__file__).parent / "importers"
FILES = sorted(
    path.name for path in SAMPLES.iterdir() if path.name.startswith(tuple(find_dialects()))
)
CHATS = [{"path": "c/d", "type": "chat_template"}]
SECRETS = ("hf_ABCDEF", "0123456789abcdef0123")


class Imported:
    """A file of the samples, read, turned into an experiment and composed."""

    def __init__(self, path: Path, folder: Path, trainer: str | None = None):
        self.reading = read_file(path)
        self.draft = translate(self.reading, verb.name_of(path), trainer)
        self.text = verb.to_file(self.draft)
        self.lines = verb.describe(self.draft)
        (folder / "experiment").mkdir(exist_ok=True)
        (folder / "experiment" / f"{self.draft.name}.yaml").write_text(self.text)
        # User rewards must be typed; here one of ours stands in for them.
        foreign = any(word.startswith("allow=") for word in self.draft.overrides)
        words = (
            ["reward.length._target_=runner.reward.rule.length"]
            if foreign
            else self.draft.overrides
        )
        self.composed = compose([f"experiment={self.draft.name}", *words], [folder])
        self.faults = faults_of(self.composed, [folder])
        self.cfg = self.composed.cfg
        self.args = self.cfg["trainer"]["args"]

    def kinds(self, key: str) -> list[str]:
        return [note.kind for note in self.draft.notes if is_of(note.key, key)]

    def why(self, key: str) -> str:
        texts = []
        for note in self.draft.notes:
            if is_of(note.key, key):
                texts.append(f"{note.key} {note.target} {note.why}")
        return " ".join(texts)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("menu")
    cache: dict[str, Imported] = {}

    def call(name: str) -> Imported:
        if name not in cache:
            cache[name] = Imported(SAMPLES / name, folder)
        return cache[name]

    return call


@pytest.fixture
def written(tmp_path):
    """A file with these keys, imported."""

    def call(keys: dict | str, name: str = "theirs.yaml", **options: str) -> Imported:
        path = tmp_path / name
        path.write_text(keys if isinstance(keys, str) else yaml.safe_dump(keys))
        return Imported(path, tmp_path, **options)

    return call


# --- Every sample ---------------------------------------------------------------------------------


@pytest.mark.grid(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_sample_becomes_an_experiment_that_passes_the_check(imported, name):
    done = imported(name)
    assert not done.faults, "\n".join(map(str, done.faults))
    assert name.startswith(done.reading.dialect)
    assert done.cfg["name"] == done.draft.name == Path(name).stem


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_key_of_a_sample_is_accounted_for(imported, name):
    done = imported(name)
    noted = {note.key for note in done.draft.notes}
    noted |= {key.partition(".")[0] for key in noted}
    silent = {key for key, value in done.reading.keys.items() if value is not None} - noted
    # A note for several keys together comes once.
    assert silent <= {"soft_cache_length"}
    assert {note.kind for note in done.draft.notes} <= set(KINDS)
    assert not [note for note in done.draft.notes if "not a key that is known" in note.why]
    kinds: dict[str, set[str]] = {}
    for note in done.draft.notes:
        kinds.setdefault(note.key, set()).add(note.kind)
    assert not {key: kind for key, kind in kinds.items() if len(kind) > 1}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", FILES)
def test_messages_fit_80_columns_and_hold_no_secret(imported, name):
    done = imported(name)
    text = "\n".join([done.text, *done.lines])
    assert max(map(len, done.lines)) <= 80
    for secret in SECRETS:
        assert secret not in text
    assert "\x1b" not in text


# --- What differs ---------------------------------------------------------------------------------


def test_axolotl_qlora(imported):
    done = imported("axolotl_qlora.yml")
    assert done.args["warmup_steps"] == 0.1
    assert "warmup_ratio" not in done.args
    assert (done.args["eval_steps"], done.args["save_steps"]) == (1 / 16, 1 / 4)
    assert done.args["packing"] is True
    assert done.args["max_length"] == 4096
    assert (done.cfg["peft"]["target_modules"], done.cfg["peft"]["r"]) == ("all-linear", 32)
    assert done.cfg["quant"]["load_in_4bit"] is True
    assert done.cfg["model"]["dtype"] == "bfloat16"
    assert done.cfg["dataset"]["split"] == {"train": "train[:95%]", "eval": "train[95%:]"}
    assert done.cfg["tracker"]["environment"]["WANDB_PROJECT"] == "mistral-tune"
    assert done.kinds("train_on_inputs") == ["same by default"]
    assert done.draft.spread == ["strategy=zero2", "launcher.num_processes=N"]
    assert "typed; read from its name" in done.why("deepspeed")
    assert done.kinds("hub_model_id") == ["no equivalent"]
    assert done.cfg["tolerate"] == {"loss": 5.0, "loss_steps": 3}


def test_muon_is_an_optimizer_of_ours_and_classes_of_texts_are_nothing(tmp_path):
    file = tmp_path / "axolotl.yml"
    keys = {
        "base_model": "a/b",
        "datasets": [{"path": "x/y", "type": "alpaca"}],
        "micro_batch_size": 2,
    }
    file.write_text(
        yaml.safe_dump(keys | {"optimizer": "muon", "weight_decay": 0.1, "num_labels": 3})
    )
    draft = translate(read_file(file), "mine", None)
    assert draft.values["optimizer"] == {"weight_decay": 0.1}
    assert "override /optimizer: muon" in verb.to_file(draft)
    assert any(
        note.key == "num_labels" and "classifiers of texts" in str(note) for note in draft.notes
    )


def test_axolotl_dpo(imported):
    done = imported("axolotl_dpo.yaml")
    assert done.cfg["kl_coef"] == done.args["beta"] == 0.05
    assert done.cfg["seed"] == 42
    assert done.cfg["dataset"]["columns"] == {"prompt": "conversation"}
    assert done.cfg["dataset"]["split"] == {"train": "train[:1900]", "eval": "train[1900:2000]"}
    assert done.args["activation_checkpointing"] is False
    assert "secret" in done.why("wandb_api_key")


def test_axolotl_grpo_leaves_user_code_to_the_command_line(imported):
    done = imported("axolotl_grpo.yml")
    assert "reward" not in done.draft.values
    assert {"allow=[rewards]", "reward.length_reward._target_=rewards.length_reward"} <= set(
        done.draft.overrides
    )
    assert done.kinds("trl.reward_funcs") == ["no equivalent"] * 2
    assert done.cfg["kl_coef"] == 0.001
    assert done.args["scale_rewards"] == "none"
    assert done.args["lr_scheduler_type"] == "cosine"
    assert "rex" in done.why("lr_scheduler")


def test_axolotl_chats(imported):
    done = imported("axolotl_chat.yml")
    assert done.args["assistant_only_loss"] is True
    assert "their default" in "\n".join(done.lines)
    assert set(done.cfg["dataset"]["parts"]) == {"support", "tickets"}
    assert done.args["gradient_accumulation_steps"] == 4
    assert done.cfg["callback"]["early_stopping"]["early_stopping_patience"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"rl": "kto", "rl_beta": 0.2, "kto_undesirable_weight": 0.5},
            ("KTO", "undesirable_weight", 0.5),
        ),
        ({"rl": "ipo"}, ("DPO", "loss_type", ["ipo"])),
        ({"rl": "orpo", "orpo_alpha": 0.2}, ("ORPO", "beta", 0.2)),
        ({"rl": "simpo", "rl_beta": 2.0, "simpo_gamma": 1.0}, ("CPO", "simpo_gamma", 1.0)),
        ({"rl": "simpo"}, ("CPO", "cpo_alpha", None)),  # TRL's 1.0, as theirs
        ({"warmup_steps": 0}, ("SFT", "warmup_steps", None)),
        ({}, ("SFT", "warmup_steps", 0.03)),
        (
            {"sample_packing": True, "datasets": [{"path": "a/b", "type": "completion"}]},
            ("SFT", "packing_strategy", "bfd_split"),
        ),
        ({"reward_model": True}, ("Reward", "max_length", 512)),
        ({"saves_per_epoch": 0, "evals_per_epoch": 0}, ("SFT", "save_strategy", "no")),
        ({"rl": "dpo", "rpo_alpha": 0.5}, ("DPO", "loss_weights", [1.0, 0.5])),
        ({"cosine_min_lr_ratio": 0.1}, ("SFT", "lr_scheduler_kwargs", {"min_lr_rate": 0.1})),
        (
            {"train_on_inputs": True, "datasets": [{"path": "a/b", "type": "alpaca"}]},
            ("SFT", "completion_only_loss", False),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_methods_of_axolotl(written, keys, expected):
    base = {
        "base_model": "a/b",
        "micro_batch_size": 2,
        "datasets": [{"path": "a/b", "type": "chatml.ultra"}],
    }
    done = written(base | keys)
    trainer, name, value = expected
    assert done.cfg["trainer"]["_target_"].endswith(f".{trainer}Trainer")
    assert done.args.get(name) == value
    assert not done.faults


def test_llama_factory_reads_the_list_of_datasets(imported):
    done = imported("llama_factory_sft.yaml")
    parts = done.cfg["dataset"]["parts"]
    assert parts["identity"]["path"] == "data/identity.json"
    assert parts["chats"]["path"] == "someone/chats"
    assert parts["chats"]["columns"] == {"messages": "dialogue"}
    assert parts["chats"]["limit"] == {"train": 1000}
    assert done.cfg["trainer"]["form"] == "messages", "else the two would not mix"
    assert done.cfg["peft"]["lora_alpha"] == 16, "twice the rank, where the file is silent"
    assert done.draft.overrides == ["model.trust_remote_code=true"]


def test_llama_factory_simpo_is_another_trainer(imported):
    done = imported("llama_factory_simpo.yaml")
    assert done.cfg["trainer"]["_target_"].endswith("CPOTrainer")
    assert (done.args["loss_type"], done.args["cpo_alpha"], done.args["beta"]) == (
        "simpo",
        0.0,
        2.0,
    )
    assert done.args["fp16"] is True
    assert done.args["bf16"] is False
    assert done.cfg["quant"]["bnb_4bit_compute_dtype"] == done.cfg["model"]["dtype"] == "float16"
    assert "a guess" in done.why("dataset")


def test_llama_factory_ppo(imported):
    done = imported("llama_factory_ppo.sh")
    assert done.cfg["reward"]["model"]["path"] == "saves/llama3-8b/lora/reward"
    assert (
        done.args["num_ppo_epochs"],
        done.args["response_length"],
        done.args["whiten_rewards"],
    ) == (2, 512, True)
    assert done.cfg["model"]["path"] == "meta-llama/Meta-Llama-3-8B-Instruct", (
        "a variable of the script"
    )


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"stage": "rm", "dataset": "pairs"},
            ("Reward", {"input": "question", "chosen": "better", "rejected": "worse"}),
        ),
        ({"stage": "dpo", "dataset": "pairs", "pref_loss": "ipo"}, ("DPO", None)),
        ({"stage": "sft", "mask_history": True, "dataset": "chats"}, ("SFT", None)),
        ({"stage": "kto", "kto_chosen_weight": 2.0}, ("KTO", None)),
        ({"stage": "kto", "dataset": "judged"}, ("KTO", {"label": "good"})),
        (
            {"stage": "sft", "dataset": "pictures"},
            ("SFT", {"messages": "turns", "images": "photo"}),
        ),
        ({"stage": "pt", "dataset": "corpus"}, ("SFT", {"text": "body"})),
        (
            {"stage": "sft", "finetuning_type": "freeze", "freeze_trainable_layers": 3},
            ("SFT", None),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_stages_of_llama_factory(written, keys, expected):
    base = {
        "model_name_or_path": "a/b",
        "cutoff_len": 64,
        "dataset": "identity",
        "dataset_dir": str(SAMPLES / "data"),
    }
    done = written(base | keys)
    trainer, columns = expected
    assert done.cfg["trainer"]["_target_"].endswith(f".{trainer}Trainer")
    assert not done.faults
    assert columns is None or done.cfg["dataset"]["columns"] == columns
    if keys["stage"] == "pt":
        assert (done.args["packing"], done.args["packing_strategy"]) == (True, "wrapped"), (
            "as theirs does by itself"
        )
    if keys.get("dataset") == "judged":
        assert done.cfg["dataset"]["form"] == "judged"
    if keys.get("dataset") == "pictures":
        assert "language_model" in done.cfg["peft"]["target_modules"], (
            "the part that sees stays as it is"
        )
        (film,) = [note for note in done.draft.notes if note.key.endswith("columns.videos")]
        assert film.target == "dataset.without=[film]"
    if keys.get("mask_history"):
        assert done.cfg["weight"]["_target_"].endswith("last_round")
    if keys.get("freeze_trainable_layers"):
        assert done.cfg["peft"] == {
            "_target_": "runner.model.freeze.train_last_layers",
            "layers": 3,
            "also": [],
        }


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("keys", "weight"),
    [({}, "answers"), ({"mask_history": True}, "last_round"), ({"train_on_prompt": True}, None)],
)
def test_the_answers_in_a_history_of_llama_factory_are_trained_too(written, tmp_path, keys, weight):
    columns = {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
        "history": "history",
    }
    (tmp_path / "data").mkdir()
    info = {"talks": {"file_name": "talks.json", "columns": columns}}
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(info))
    file = {"model_name_or_path": "a/b", "stage": "sft", "cutoff_len": 64, "dataset": "talks"}
    done = written(file | {"dataset_dir": str(tmp_path / "data")} | keys)
    assert not done.faults
    if weight is None:
        assert "weight" not in done.cfg or not done.cfg["weight"]
        assert done.args["completion_only_loss"] is False
        return
    assert done.cfg["weight"]["_target_"].endswith(f".{weight}")
    assert (done.cfg["trainer"]["form"] == "messages") is (weight == "answers")


def test_the_format_v1_of_llama_factory_reads_its_list_of_rows(imported):
    done = imported("llama_factory_v1_dpo.yaml")
    assert done.cfg["trainer"]["_target_"] == "trl.DPOTrainer"
    assert "the command says" in done.why("stage")
    parts = done.cfg["dataset"]["parts"]
    assert parts["pairs"]["split"] == {"train": "train_prefs"}
    assert parts["own"]["limit"] == {"train": 500}
    assert (done.args["loss_type"], done.args["loss_weights"]) == (["sigmoid", "sft"], [1.0, 0.5])
    assert (
        done.cfg["peft"]["r"],
        done.cfg["peft"]["lora_alpha"],
        done.cfg["peft"]["lora_dropout"],
    ) == (4, 16, 0.05)
    assert done.cfg["quant"]["bnb_4bit_compute_dtype"] == "float16"
    assert done.args["lr_scheduler_type"] == "constant"
    optimizer = done.cfg["optimizer"]
    assert (optimizer["weight_decay"], optimizer["momentum"], optimizer["betas"]) == (
        0.1,
        0.9,
        [0.9, 0.95],
    )
    assert done.cfg["batch"] == 16
    assert done.cfg["kl_coef"] == 0.2
    (weight,) = [note for note in done.draft.notes if note.key.endswith(".weight")]
    assert weight.target == "dataset.weights"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["dpo", "sft", "rm"])
def test_the_command_of_the_format_v1_says_which_method(written, tmp_path, command):
    (tmp_path / "v1.yaml").write_text("model: a/b\ntrain_dataset: rows.jsonl\npref_loss: simpo\n")
    done = written(f"llamafactory-cli {command} v1.yaml", name="a.sh")
    trainer, chosen = {
        "dpo": ("CPO", "chosen_messages"),
        "rm": ("Reward", "chosen_messages"),
        "sft": ("SFT", None),
    }[command]
    assert done.cfg["trainer"]["_target_"].endswith(f".{trainer}Trainer")
    assert not done.faults
    assert done.cfg["dataset"]["columns"].get("chosen") == chosen
    assert done.args["weight_decay"] == 0.01


@pytest.mark.slow
def test_kto_with_one_row_in_a_micro_batch_keeps_the_size_of_its_step(written):
    keys = {"model_name_or_path": "a/b", "stage": "kto", "dataset": "a/b", "cutoff_len": 64}
    done = written(keys | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8})
    assert (done.args["per_device_train_batch_size"], done.args["gradient_accumulation_steps"]) == (
        2,
        4,
    )
    keys = {
        "gradient_accumulation_steps": 8,
        "model": "a/b",
        "rlhf_type": "kto",
        "dataset": "hf::a/b",
    }
    done = written(keys | {"tuner_type": "lora", "per_device_train_batch_size": 1})
    assert (done.args["per_device_train_batch_size"], done.args["gradient_accumulation_steps"]) == (
        2,
        4,
    )
    assert done.kinds("gradient_accumulation_steps") == ["mapped"]


@pytest.mark.slow
def test_rows_of_other_datasets_are_held_out(written):
    tests = [
        {"path": "c/d", "type": "completion", "field": "body"},
        {"path": "held.jsonl", "type": "completion"},
    ]
    keys = WRONG["axolotl"] | {
        "datasets": [{"path": "a/b", "type": "completion"}],
        "test_datasets": tests,
    }
    done = written(keys | {"eval_steps": 5})
    held = done.draft.values["dataset"]["split"]["eval"]
    assert held["d"] == {
        "path": "c/d",
        "form": "text",
        "columns": {"text": "body"},
        "split": "test",
    }
    assert held["held"]["split"] == "train"
    assert done.args["eval_steps"] == 5
    assert not done.faults
    keys = {
        "model_name_or_path": "a/b",
        "stage": "sft",
        "dataset": "identity",
        "eval_dataset": "c/d",
    }
    done = written(keys | {"dataset_dir": str(SAMPLES / "data")}, name="other.yaml")
    assert done.draft.values["dataset"]["split"]["eval"] == {"path": "c/d", "split": "train"}
    assert not done.faults


def test_swift_sft_has_weights_of_tokens(imported):
    done = imported("swift_sft.sh")
    assert [rule["_target_"].rpartition(".")[2] for rule in done.cfg["weight"].values()] == [
        "answers",
        "pattern",
    ]
    assert done.cfg["weight"]["ignore_empty_think"]["weight"] == 0.0
    assert {part["limit"]["train"] for part in done.cfg["dataset"]["parts"].values()} == {500}
    assert done.args["weight_decay"] == 0.1 and done.args["adam_beta2"] == 0.95, "their defaults"
    assert done.args["eval_strategy"] == "steps"


def test_swift_dpo_counts_its_devices_and_hides_its_token(imported):
    done = imported("swift_dpo.sh")
    assert done.args["gradient_accumulation_steps"] == 2, "16 rows a step over four devices"
    assert "launcher.num_processes=4" in done.draft.overrides
    assert (done.args["loss_type"], done.args["loss_weights"]) == (["sigmoid", "sft"], [1.0, 0.1])
    assert "secret" in done.why("hub_token")
    assert done.cfg["peft"] is None


def test_swift_grpo_takes_rewards_of_ours(imported):
    done = imported("swift_grpo.yaml")
    rewards = {
        name: (entry["_target_"], entry["weight"]) for name, entry in done.cfg["reward"].items()
    }
    assert rewards == {
        "accuracy": ("runner.reward.math.boxed_answer", 1.0),
        "format": ("runner.reward.rule.format_match", 0.5),
        "soft_overlong": ("trl.rewards.get_soft_overlong_punishment", 1.0),
    }
    assert done.kinds("external_plugins") == ["no equivalent"]
    assert done.args["mask_truncated_completions"] is True
    assert done.cfg["kl_coef"] == 0.01


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["last_round", "hermes", "all", "alpha_umi"])
def test_loss_scales_of_swift(written, scale):
    done = written(
        {"model": "a/b", "tuner_type": "lora", "dataset": ["hf::a/b"], "loss_scale": scale}
    )
    rules = {"last_round": ["last_round"], "hermes": ["default", "hermes"], "all": []}.get(
        scale, ["default"]
    )
    assert list(done.cfg.get("weight") or {}) == rules
    assert not done.faults
    assert ("no equivalent" in done.kinds("loss_scale")) == (scale == "alpha_umi")


@pytest.mark.slow
def test_megatron_has_names_of_its_own_for_rows_and_rates(imported):
    done = imported("megatron_grpo.sh")
    assert done.cfg["batch"] == 64 and done.args["generation_batch_size"] == 128, (
        "so many times the rows of a step"
    )
    assert (done.args["per_device_train_batch_size"], done.draft.reading.devices) == (2, 4), (
        "two hold one copy"
    )
    assert done.args["lr_scheduler_kwargs"] == {"min_lr": 2e-6}
    assert done.cfg["learning_rate"] == 2e-5
    assert done.cfg["dataset"]["system"] == "Think first.\nThen answer in \\boxed{}."
    assert done.cfg["seed"] == 7
    assert "language_model" in done.cfg["peft"]["target_modules"], "a model that sees"
    assert done.args["max_completion_length"] == 2048
    assert done.args["vllm_max_model_length"] == 8192
    assert {"allow=[plugin]", "reward.external_acc._target_=plugin.external_acc"} <= set(
        done.draft.overrides
    )
    assert done.kinds("MAX_PIXELS") == done.kinds("tensor_model_parallel_size") == ["no equivalent"]
    assert not done.faults
    assert "64 rows a step of all devices" in done.text


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("keys", "path", "value"),
    [
        ({"freeze_vit": True}, "peft.target_modules", "language_model"),
        ({"freeze_vit": True, "target_modules": "q_proj"}, "peft.target_modules", "q_proj"),
        ({"freeze_vit": False, "freeze_aligner": False}, "peft.target_modules", "all-linear"),
        ({"freeze_vit": True, "tuner_type": "full"}, "peft.matching", "(?!.*(visual"),
        (
            {"freeze_llm": True, "freeze_aligner": False, "tuner_type": "full"},
            "peft.matching",
            "projector",
        ),
        ({"tuner_type": "lora_llm"}, "peft.full", "vision"),
        ({"rlhf_type": "rm", "freeze_vit": True}, "peft.target_modules", "all-linear"),
    ],
    ids=str,
)
def test_the_trained_parts_of_a_vision_model_are_kept(written, keys, path, value):
    done = written({"model": "a/Qwen2-VL", "tuner_type": "lora", "dataset": "hf::a/b"} | keys)
    assert value in str(select(done.cfg, path))
    assert not done.faults
    assert done.kinds("freeze_vit") == [
        "no equivalent" if "rlhf_type" in keys else done.kinds("freeze_vit")[0]
    ]


@pytest.mark.slow
def test_swift_may_hold_out_another_file(written):
    done = written(
        {
            "model": "a/b",
            "dataset": "rows.jsonl",
            "val_dataset": "others.jsonl",
            "tuner_type": "full",
        }
    )
    assert done.draft.values["dataset"]["split"] == {
        "train": "train",
        "eval": {"path": "others.jsonl", "split": "train"},
    }
    assert done.args["eval_strategy"] == "steps"
    assert done.kinds("val_dataset") == ["mapped"]


@pytest.mark.slow
def test_lora_of_megatron_and_its_earlier_names(written):
    keys = {
        "model": "a/b",
        "dataset": "hf::c/d",
        "train_type": "lora",
        "lr": 3e-5,
        "max_epochs": 2,
        "save": "x",
    }
    done = written(
        keys | {"target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}
    )
    assert done.reading.dialect == "megatron"
    assert done.cfg["peft"]["target_modules"] == "all-linear"
    assert (done.args["num_train_epochs"], done.cfg["peft"]["r"], done.cfg["batch"]) == (2, 8, 16)
    with pytest.raises(ConfigError, match=r"model\.path"):
        written(keys | {"model": None, "load": "x"}, name="other.yaml")
    with pytest.raises(ConfigError, match=r"peft\.target_modules"):
        written(keys | {"target_modules": ["linear_qkv"]}, name="third.yaml")


@pytest.mark.slow
def test_a_model_that_sees_learns_answers_of_whole_conversations(written):
    keys = {
        "model": "a/Qwen2-VL",
        "tuner_type": "full",
        "dataset": "hf::a/b",
        "loss_scale": "default+ignore_empty_think",
    }
    done = written(keys)
    assert done.args["assistant_only_loss"]
    assert done.cfg["trainer"]["form"] == "messages"
    assert not done.cfg.get("weight")
    assert "no weights of tokens beside images" in done.why("loss_scale")
    assert not done.faults


@pytest.mark.slow
def test_a_mixture_of_a_recipe_for_trl_is_read(written):
    parts = [
        {"id": "a/b", "split": "train[:90%]", "weight": 0.5, "columns": ["messages"]},
        {"id": "c/d", "config": "e"},
    ]
    keys = {
        "model_name_or_path": "x/y",
        "torch_dtype": "bfloat16",
        "packing": True,
        "dataset_mixture": {"datasets": parts},
    }
    done = written(keys)
    assert done.reading.dialect == "trl"
    assert done.cfg["dataset"]["parts"]["d"]["config"] == "e"
    assert done.cfg["dataset"]["parts"]["b"]["split"] == {"train": "train[:45%]"}


@pytest.mark.slow
def test_trl_ppo_is_known_by_the_name_of_its_script(imported):
    done = imported("trl_ppo.sh")
    assert done.cfg["trainer"]["_target_"] == "runner.ppo.PPOTrainer"
    assert done.cfg["kl_coef"] == 0.03
    assert done.cfg["model"]["path"].endswith("sft__tldr")
    assert done.cfg["reward"]["model"]["path"].endswith("reward__tldr")
    assert done.cfg["model"]["tokenizer"]["path"] == "EleutherAI/pythia-1b-deduped"
    assert "taken for the one of that name" in done.reading.why
    assert done.kinds("commands") == ["no equivalent"]


@pytest.mark.parametrize(
    ("script", "trainer", "path", "value"),
    [
        ("examples/scripts/dpo_online.py", "online_dpo", "kl_coef", 0.2),
        ("examples/scripts/grpo_vlm.py", "grpo", "dataset.columns.prompt", "problem"),
        ("examples/scripts/gspo.py", "grpo", "dataset.split.train", "train[:5%]"),
        ("orpo.py", "orpo", "trainer.args.beta", 0.2),
        ("sft_vlm.py", "sft", "trainer.args", {"max_length": None}),
        ("trl/scripts/kto.py", "kto", "kl_coef", 0.2),
        ("a/gkd.py", "gkd", "trainer.teacher_model.path", "t/t"),
        ("-m trl.scripts.rloo", "rloo", "kl_coef", 0.2),
    ],
)
def test_a_script_of_trl_says_what_its_code_does(tmp_path, script, trainer, path, value):
    flags = (
        "--model_name_or_path a/b --dataset_name c/d --beta 0.2 --teacher_model_name_or_path t/t"
    )
    (tmp_path / "a.sh").write_text(
        f"TOKENIZERS_PARALLELISM=false uv run {script} {flags} --vllm_mode colocate\n"
    )
    draft = translate(read_file(tmp_path / "a.sh"), "a")
    assert draft.trainer == trainer
    assert select(draft.values, path) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python online_dpo_vlm.py --model_name_or_path a/b", "from images learn"),
        ("swift infer --model a/b", "swift infer: a command that trains nothing"),
        ("trl vllm-serve --model a/b", "trl vllm-serve: a command that trains nothing"),
        (
            "python examples/scripts/nash_md.py --model_name_or_path a/b",
            "nash_md.py: no trainer for it",
        ),
        ("python my/dpo.py --rate 1", "no command that trains"),
        (
            "swift rlhf --rlhf_type grpo --teacher_model a/b --model c/d --dataset e/f",
            "a teacher's KL",
        ),
        (
            "stream: true\nload_data_args: true\nmodel: a/b\nmax_length: 9",
            "a file that trains nothing",
        ),
    ],
)
def test_a_command_that_trains_nothing_here_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / ("a.yaml" if ":" in text[:8] else "a.sh")
    path.write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=message):
        translate(read_file(path), "a")


@pytest.mark.slow
def test_trl_dpo_under_accelerate(imported):
    done = imported("trl_dpo.sh")
    assert done.cfg["trainer"]["_target_"] == "trl.DPOTrainer"
    assert done.draft.reading.devices == 8
    assert done.cfg["dataset"]["split"] == {"train": "train", "eval": "test"}
    assert done.cfg["peft"]["lora_dropout"] == 0.05, "their default, and not ours"
    assert (done.cfg["peft"]["r"], done.cfg["peft"]["lora_alpha"]) == (32, 16)
    assert done.kinds("push_to_hub") == ["no equivalent"]


@pytest.mark.slow
def test_trl_sft_mixture(imported):
    done = imported("trl_sft.yaml")
    assert done.cfg["dataset"]["weights"] == {"capybara": 0.7, "imdb": 0.3}
    assert done.cfg["quant"]["bnb_4bit_use_double_quant"] is False
    assert done.cfg["tracker"]["report_to"] == "trackio"


@pytest.mark.slow
def test_trl_flags_count_more_than_the_file_that_they_name(imported):
    done = imported("trl_grpo.sh")
    assert done.cfg["learning_rate"] == 2e-6
    assert done.args["num_generations"] == 4
    assert done.args["loss_type"] == "dr_grpo"
    assert {"accuracy_reward", "think_format_reward"} <= set(done.cfg["reward"])


@pytest.mark.slow
def test_a_reward_of_trl_has_the_settings_of_its_command_line(written):
    done = written(
        "trl grpo --model_name_or_path a/b --dataset_name "
        "c/d --reward_funcs get_soft_overlong_punishment "
        "--max_completion_length 99 --num_generations 4",
        name="a.sh",
    )
    (reward,) = done.cfg["reward"].values()
    assert (reward["max_completion_len"], reward["soft_punish_cache"]) == (1280, 256)


@pytest.mark.slow
def test_the_trainer_of_a_trl_file_may_be_typed(written):
    keys = {"model_name_or_path": "a/b", "dataset_name": "c/d", "beta": 0.3, "max_length": 64}
    assert written(keys, trainer="kto").cfg["trainer"]["_target_"] == "trl.KTOTrainer"
    grpo = written(
        keys | {"reward_funcs": ["accuracy_reward"], "num_generations": 4}, name="grpo.yaml"
    )
    assert grpo.cfg["trainer"]["_target_"] == "trl.GRPOTrainer"
    assert "by its name" in grpo.why("trainer")


@pytest.mark.slow
def test_a_variable_that_the_shell_sets_is_asked_for(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text("swift sft --model $BASE --dataset $ROWS --learning_rate 1e-4\n")
    draft = translate(read_file(path), "train")
    assert draft.values["model"]["path"] == draft.values["dataset"]["path"] == "???"
    faults = verb.faults_of("train", verb.to_file(draft), draft.overrides)
    assert faults
    for fault in faults:
        assert fault.where.endswith("path")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "rate", "accumulated"),
    [
        (
            (
                "swift sft --model a/b --dataset hf::a/b#500 \\\n"
                "  --learning_rate 3e-5 \\\n  --max_length 99"
            ),
            3e-5,
            16,
        ),
        (
            (
                "# don't \\\nswift sft --model a/b --dataset "
                "'hf::a/b#500' --learning_rate 3e-5 # --max_length 1"
            ),
            3e-5,
            16,
        ),
        (
            "n=2\nnodes=2\nNPROC_PER_NODE=$n swift sft --model "
            "a/b --dataset hf::a/b#500 --learning_rate 3e-5 "
            "--gradient_accumulation_steps $(expr 32 / $n / $nodes)",
            *(3e-5, 8),
        ),
        (
            "swift sft --model a/b --dataset hf::a/b#500 --learning_rate $((1 - 1)) "
            "--gradient_accumulation_steps $(expr 16 / $WORLD) --system \"$(cat 'a b')\"",
            *("${shell.command}", "${shell.expr}"),
        ),
        (
            "OTHER='--max_length 99'\nFLAGS=(\n"
            " --learning_rate 3e-5 # it's\n)\nFLAGS+=(--seed $((2*3)))\n"
            'swift sft --model a/b --dataset hf::a/b#500 $OTHER "${FLAGS[@]}" "$@"',
            *(3e-5, 16),
        ),
        (
            'C="swift sft --model a/b --dataset hf::a/b#500 \\\n --learning_rate 3e-5"\neval "$C"',
            3e-5,
            16,
        ),
        (
            "L=5;\nfor rate in ${A:-3e-${L}} 1e-4; do\n"
            "T=$(cat <<'E'\n# don't\nE\n)\n"
            'swift sft --model a/b --dataset hf::a/b#500 --learning_rate $rate --system "$T"\ndone',
            *(3e-5, 16),
        ),
    ],
    ids=["hash", "comment", "arithmetic", "open", "array", "run", "loop"],
)
def test_a_script_is_read_as_bash_reads_it(tmp_path, text, rate, accumulated):
    path = tmp_path / "train.sh"
    path.write_text(f"{text}\n")
    reading = read_file(path)
    draft = translate(reading, "train")
    assert draft.values["dataset"]["limit"] == {"train": 500}
    assert draft.values["learning_rate"] == rate
    args = draft.values["trainer"]["args"]
    assert args.get("gradient_accumulation_steps") == accumulated
    assert (args["max_length"] == 99) == ("99" in text)
    faults = verb.faults_of("train", verb.to_file(draft), draft.overrides)
    assert bool(faults) == (rate != 3e-5)
    for fault in faults:
        assert "${shell." in fault.found


def test_a_script_whose_variables_hold_one_another_is_refused_at_once(tmp_path):
    (tmp_path / "train.sh").write_text(
        "A=aaaaaaaaaa\n" + "A=$A$A\n" * 40 + "trl sft --run_name $A\n"
    )
    with pytest.raises(ConfigError, match="more than 100,000 letters"):
        read_file(tmp_path / "train.sh")


@pytest.mark.slow
def test_texts_of_a_file_do_not_control_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it would write into a conf/experiment here
    text = 'model_name_or_path: "org/\\e[31m"\ndataset_name: "\\u202ed"\n"a\\e[0m": 1\n'
    (tmp_path / "x.yaml").write_text(text)
    assert main(["import", str(tmp_path / "x.yaml"), "dialect=trl", "trainer=sft"]) == 0
    stdout = capsys.readouterr().out
    assert "a␛[0m" in stdout
    assert not {"\x1b", "\u202e"} & {*stdout}


@pytest.mark.slow
def test_texts_of_a_file_neither_end_a_comment_nor_hide_a_line(tmp_path):
    text = (
        'model_name_or_path: a/b\ndataset_name: "\u202ed"\n'
        'loss_type: "x\\u0085allow: [os]\\u2028\\e[2K"\n'
    )
    (tmp_path / "a\nallow: [os]\n.yaml").write_text(text + "custom\u202e: 1\n")
    made = Imported(tmp_path / "a\nallow: [os]\n.yaml", tmp_path, "sft")
    assert made.text == visible_lines(made.text)
    assert made.cfg["dataset"]["path"] == "\u202ed"
    assert not made.cfg["allow"]


def test_a_flag_that_a_comment_cuts_off_is_never_lost_in_silence(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(
        "swift sft --model a/b \\\n  # --seed 1 \\\n  # --lora_rank 4 \\\n  --learning_rate 1e-6\n"
    )
    with pytest.raises(ConfigError, match="--learning_rate is not part of the command"):
        read_file(path)


@pytest.mark.slow
def test_none_is_a_value(written):
    done = written(
        "swift rlhf --rlhf_type grpo --model a/b --dataset a/b --scale_rewards none", name="a.sh"
    )
    assert done.args["scale_rewards"] == "none"
    done = written(
        {"base_model": "a/b", "rl": "none", "datasets": [{"path": "a/b", "type": "alpaca"}]}
    )
    assert done.kinds("rl") == ["same by default"]
    script = (
        "swift sft --model a/b --dataset hf::a/b --split_dataset_ratio "
        "{} --learning_rate 1e-5 --warmup_ratio none"
    )
    for share in ("none", "$SHARE"):
        assert written(script.format(share), name="b.sh").kinds("warmup_ratio") == [
            "same by default"
        ]


@pytest.mark.slow
def test_an_unknown_key_is_reported(written):
    done = written(
        {"base_model": "a/b", "datasets": [{"path": "a/b", "type": "alpaca"}], "lerning_rate": 1e-5}
    )
    assert done.kinds("lerning_rate") == ["no equivalent"]
    assert "trainer.args.learning_rate" in done.why("lerning_rate")
    assert "lerning_rate" in "\n".join(done.lines)


@pytest.mark.slow
def test_gdpo_is_grpo_that_scales_each_reward_by_itself(written):
    keys = {
        "base_model": "a/b",
        "rl": "gdpo",
        "trl": {"reward_funcs": ["own.f"], "num_generations": 4},
    }
    done = written(keys | {"datasets": [{"path": "a/b"}], "micro_batch_size": 4})
    assert done.cfg["trainer"]["_target_"] == "trl.GRPOTrainer"
    assert not done.faults
    assert done.args["multi_objective_aggregation"] == "normalize_then_sum"


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"base_model": "a/b", "micro_batch_size": 1, "rl": "ebft"}, "rl"),
        (
            {"base_model": "a/b", "micro_batch_size": 1, "process_reward_model": True},
            "process_reward_model",
        ),
        ({"model": "a/b", "tuner_type": "lora", "task_type": "embedding"}, "task_type"),
        (
            {"model": "a/b", "tuner_type": "lora", "task_type": "seq_cls", "num_labels": 2},
            "task_type",
        ),
        (
            {
                "model": "a/b",
                "tuner_type": "lora",
                "rlhf_type": "dpo",
                "task_type": "generative_reranker",
            },
            "task_type",
        ),
        ({"model": "a/b", "split_dataset_ratio": 0, "sampler_engine": "vllm"}, "sampler_engine"),
        (
            {"model_name_or_path": "a/b", "stage": "sft", "cutoff_len": 64, "do_predict": True},
            "do_predict",
        ),
        ({"model_name_or_path": "a/b", "stage": "mcts", "cutoff_len": 64}, "stage"),
        ({"model_name_or_path": "a/b", "template": "x", "infer_backend": "vllm"}, "infer_backend"),
        (
            {"model": "a/b", "peft_config": {"name": "lora", "export_dir": "x"}},
            "peft_config.export_dir",
        ),
    ],
    ids=lambda value: str(value)[-50:],
)
def test_an_unsupported_kind_of_training_is_refused(written, keys, where):
    with pytest.raises(ConfigError) as caught:
        written(keys)
    assert any(fault.where.endswith(where) and fault.fix for fault in caught.value.faults)


@pytest.mark.slow
def test_a_missing_list_of_rows_is_asked_for(written):
    with pytest.raises(ConfigError, match=r"config\n  dataset\.path\n +found +no value"):
        written({"model": "a/b", "train_dataset": "none.yaml", "cp_size": 1})


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("keys", "target"),
    [
        ({"model": "a/b", "tuner_type": "llamapro", "dataset": ["hf::a/b"]}, "???"),
        (
            {"model": "a/b", "tuner_type": "boft", "boft_block_size": 8, "dataset": ["hf::a/b"]},
            "peft.BOFTConfig",
        ),
        (
            {
                "model_name_or_path": "a/b",
                "stage": "sft",
                "finetuning_type": "galore",
                "dataset": "a/b",
            },
            "???",
        ),
        (
            {
                "base_model": "a/b",
                "adapter": "llama-adapter",
                "datasets": [{"path": "a/b", "type": "alpaca"}],
            },
            "???",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_no_unknown_tuner_becomes_a_training_of_all_weights(written, tmp_path, keys, target):
    if target != "???":
        assert written(keys).cfg["peft"]["_target_"] == target
        return
    with pytest.raises(ConfigError) as caught:
        written(keys)
    assert [fault.where for fault in caught.value.faults] == ["peft._target_"]
    (file,) = tmp_path.glob("experiment/*.yaml")
    assert "# open: " in file.read_text()
    assert "peft=lora" in file.read_text()


@pytest.mark.slow
def test_an_optimizer_of_ours_takes_over_the_settings_of_theirs(written):
    done = written(
        {
            "model": "a/b",
            "tuner_type": "lora",
            "dataset": ["hf::a/b"],
            "lorap_lr_ratio": 8,
            "optim": "sgd",
        }
    )
    optimizer = done.cfg["optimizer"]
    assert optimizer["groups"] == {"lora_B": {"lr_ratio": 8.0}}
    assert (optimizer["weight_decay"], optimizer["betas"]) == (0.1, [0.9, 0.95])
    assert not {"weight_decay", "adam_beta2", "optim"} & set(done.args)
    assert not done.faults
    assert done.kinds("optim") == ["no equivalent"]
    assert "optimizer.betas" in done.why("adam_beta2")


@pytest.mark.slow
def test_no_secret_comes_through_whatever_it_is_called(written):
    keys = {
        "model": "a/b",
        "tuner_type": "full",
        "dataset": ["hf::a/b"],
        "swanlab_token": "abcdEFGH12345678",
        "hub_token": "short",
        "output_dir": "https://me:pass@host/x",
        "report_to": ["wandb", "hf_ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"],
    }
    done = written(keys)
    text = done.text + "\n".join(done.lines)
    for secret in ("abcdEFGH", "short", "pass@", *SECRETS):
        assert secret not in text


WRONG = {
    "axolotl": {
        "base_model": "a/b",
        "micro_batch_size": 1,
        "datasets": [{"path": "a/b", "type": "alpaca"}],
    },
    "llama_factory": {"model_name_or_path": "a/b", "stage": "sft", "dataset": "a/b"},
    "swift": {"model": "a/b", "tuner_type": "lora", "dataset": ["hf::a/b"]},
    "trl": {"model_name_or_path": "a/b", "dataset_name": "c/d", "use_peft": True},
}


THEIRS = {"template": "qwen", "cutoff_len": 64, "val_size": 0.1}  # by which such a file is known


@pytest.mark.grid(10)
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("tool", "keys", "ours"),
    [
        ("axolotl", {"tokens": ["<a>"]}, {"model.tokenizer.add_tokens": ["<a>"]}),
        (
            "axolotl",
            {"special_tokens": {"additional_special_tokens": ["<a>"]}},
            {"model.tokenizer.add_special_tokens": ["<a>"]},
        ),
        (
            "axolotl",
            {"overrides_of_model_config": {"attention_dropout": 0.1}},
            {"model.config.attention_dropout": 0.1},
        ),
        (
            "axolotl",
            {"datasets": CHATS, "chat_template": "qwen_25"},
            {"model.tokenizer.chat_template": "qwen2_5"},
        ),
        (
            "axolotl",
            {"datasets": CHATS, "chat_template": "phi_4"},
            {"model.tokenizer.chat_template": None},
        ),
        ("axolotl", {"attn_implementation": "sdpa"}, {"model.attention": "sdpa"}),
        (
            "axolotl",
            {"model_config": {"output_router_logits": True}},
            {"model.config.output_router_logits": True},
        ),
        (
            "axolotl",
            {"tokens": {"pad_token": "<p>", "unk_token": "<u>"}},
            {"model.tokenizer.pad_token": "<p>"},
        ),
        (
            "axolotl",
            {"curriculum_sampling": True},
            {"trainer.args.train_sampling_strategy": "sequential"},
        ),
        (
            "axolotl",
            {"adapter": "lora", "lora_target_parameters": ["w"]},
            {"peft.target_parameters": ["w"]},
        ),
        ("axolotl", {"attn_implementation": "org/kernel"}, {"model.attention": "org/kernel"}),
        (
            "llama_factory",
            {"disable_shuffling": True},
            {"trainer.args.train_sampling_strategy": "sequential"},
        ),
        (
            "llama_factory",
            {"use_apollo": True, "apollo_rank": 4},
            {"trainer.args.optim_target_modules": "all-linear"},
        ),
        (
            "llama_factory",
            {"add_tokens": "<a>,<b>"},
            {"model.tokenizer.add_tokens": ["<a>", "<b>"]},
        ),
        (
            "llama_factory",
            {"new_special_tokens": "<a>"},
            {"model.tokenizer.add_special_tokens": ["<a>"]},
        ),
        (
            "llama_factory",
            {"rope_scaling": "yarn"},
            {"model.config.rope_parameters.rope_type": "yarn"},
        ),
        ("swift", {"new_special_tokens": ["<a>"]}, {"model.tokenizer.add_special_tokens": ["<a>"]}),
        ("swift", {"router_aux_loss_coef": 0.1}, {"model.config.router_aux_loss_coef": 0.1}),
        ("swift", {"optimizer": "muon"}, {"optimizer._target_": "runner.optimizer.Muon"}),
    ],
)
def test_tokens_and_keys_of_the_model_come_over(written, tool, keys, ours):
    theirs = THEIRS if tool == "llama_factory" else {}
    run = written(WRONG[tool] | keys | theirs)
    [(path, value)] = ours.items()
    assert select(run.cfg, path) == value
    assert not run.faults


@pytest.mark.quick(29)
@pytest.mark.parametrize(
    ("tool", "keys", "where"),
    [
        ("axolotl", {"datasets": 5}, "datasets"),
        ("axolotl", {"datasets": [5]}, "datasets"),
        ("axolotl", {"datasets": [{"path": ["a"]}]}, "datasets[0].path"),
        (
            "axolotl",
            {"datasets": [{"path": "a/b", "type": "chat_template", "roles": [1]}]},
            "datasets[0].roles",
        ),
        (
            "axolotl",
            {"datasets": [{"path": "a/b", "roles": {"user": {"a": 1}}}]},
            "datasets[0].roles.user",
        ),
        (
            "axolotl",
            {"datasets": [{"path": "a/b", "type": {"field_output": [1]}}]},
            "datasets[0].type.field_output",
        ),
        ("axolotl", {"test_datasets": 5}, "test_datasets"),
        (
            "axolotl",
            {"datasets": [{"ds_type": "json", "data_files": {"a": 1}}]},
            "datasets[0].data_files",
        ),
        ("axolotl", {"val_set_size": "some"}, "val_set_size"),
        ("axolotl", {"val_set_size": -1}, "val_set_size"),
        ("axolotl", {"trl": "x", "rl": "grpo"}, "trl"),
        ("axolotl", {"trl": {"beta": [1]}, "rl": "grpo"}, "trl.beta"),
        ("axolotl", {"trl": {"reward_funcs": {"a": 1}}, "rl": "grpo"}, "trl.reward_funcs"),
        (
            "axolotl",
            {"trl": {"reward_funcs": ["a.b"], "reward_weights": ["x"]}, "rl": "grpo"},
            "trl.reward_weights",
        ),
        ("axolotl", {"special_tokens": ["<pad>"]}, "special_tokens"),
        ("axolotl", {"saves_per_epoch": "often"}, "saves_per_epoch"),
        ("axolotl", {"saves_per_epoch": 2, "num_epochs": "$EPOCHS"}, "num_epochs"),
        ("axolotl", {"evals_per_epoch": "$N", "val_set_size": 0.1}, "evals_per_epoch"),
        ("axolotl", {"batch_size": [8]}, "batch_size"),
        ("axolotl", {"learning_rate": "fast"}, "learning_rate"),
        ("axolotl", {"rl": "dpo", "rl_beta": {"a": 1}}, "rl_beta"),
        ("axolotl", {"rl": "dpo", "rpo_alpha": "x"}, "rpo_alpha"),
        ("axolotl", {"loraplus_lr_ratio": "x"}, "loraplus_lr_ratio"),
        ("llama_factory", {"dataset": {"a": 1}}, "dataset"),
        ("llama_factory", {"dataset_dir": ["data"]}, "dataset_dir"),
        ("llama_factory", {"max_samples": "x"}, "max_samples"),
        ("llama_factory", {"interleave_probs": "$P"}, "interleave_probs"),
        (
            "llama_factory",
            {"early_stopping_steps": "$N", "val_size": 0.1, "eval_strategy": "epoch"},
            "early_stopping_steps",
        ),
        (
            "llama_factory",
            {"finetuning_type": "freeze", "freeze_trainable_layers": "$N"},
            "freeze_trainable_layers",
        ),
        (
            "llama_factory",
            {"finetuning_type": "freeze", "freeze_trainable_layers": "x"},
            "freeze_trainable_layers",
        ),
        ("llama_factory", {"lora_rank": "x"}, "lora_rank"),
        ("llama_factory", {"additional_target": {"a": 1}}, "additional_target"),
        ("swift", {"dataset": {"a": 1}}, "dataset"),
        ("swift", {"columns": "x"}, "columns"),
        ("swift", {"columns": {"a": ["query"]}}, "columns.a"),
        ("swift", {"interleave_prob": ["x"]}, "interleave_prob"),
        ("swift", {"loss_scale": ["hermes"]}, "loss_scale"),
        ("swift", {"per_device_train_batch_size": "x"}, "per_device_train_batch_size"),
        (
            "swift",
            {"rlhf_type": "grpo", "reward_funcs": ["soft_overlong"], "soft_max_length": "$N"},
            "soft_max_length",
        ),
        (
            "swift",
            {"rlhf_type": "grpo", "reward_funcs": ["soft_overlong"], "max_completion_length": "$N"},
            "max_completion_length",
        ),
        (
            "swift",
            {"rlhf_type": "grpo", "reward_funcs": ["format"], "reward_weights": ["x"]},
            "reward_weights",
        ),
        ("trl", {"datasets": [5]}, "datasets"),
        ("trl", {"datasets": [{"path": "a/b", "fraction": "x"}]}, "datasets[0].fraction"),
        ("trl", {"model_init_kwargs": "x"}, "model_init_kwargs"),
        ("trl", {"lora_target_modules": {"a": 1}}, "lora_target_modules"),
        ("trl", {"reward_funcs": {"a": 1}}, "reward_funcs"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_value_that_cannot_be_taken_is_a_fault_that_names_it(tmp_path, capsys, tool, keys, where):
    path = tmp_path / ("grpo.yaml" if "reward_funcs" in keys else "sft.yaml")
    path.write_text(yaml.safe_dump(WRONG[tool] | keys))
    assert main(["import", str(path), f"dialect={tool}", "to=none"]) == 2
    error = capsys.readouterr().err
    assert f"\n  {where}\n    found " in error
    assert "\n    expected  " in error
    assert "\n    type      mend it" in error


def test_all_impossible_values_are_reported_at_once(written):
    with pytest.raises(ConfigError) as caught:
        written(
            WRONG["axolotl"]
            | {"learning_rate": "fast", "val_set_size": "some", "special_tokens": 5}
        )
    assert {fault.where for fault in caught.value.faults} == {
        "learning_rate",
        "val_set_size",
        "special_tokens",
    }


def test_a_dataset_without_a_path_is_asked_for(tmp_path):
    (tmp_path / "theirs.yaml").write_text(
        yaml.safe_dump(WRONG["axolotl"] | {"datasets": [{"ds_type": "json", "data_files": []}]})
    )
    draft = translate(read_file(tmp_path / "theirs.yaml"), "x")
    assert draft.values["dataset"]["path"] == "???"


@pytest.mark.slow
def test_a_value_is_still_taken_where_it_is_a_text_that_means_it(written):
    done = written(
        {
            "model": "a/b",
            "tuner_type": "lora",
            "dataset": "hf::a/b",
            "learning_rate": "3e-5",
            "seed": "7",
        }
    )
    assert (done.cfg["learning_rate"], done.cfg["seed"]) == (3e-5, 7)
    assert not done.faults


def test_the_command_with_flags_counts_and_not_one_that_is_only_named(tmp_path):
    text = "echo swift pt\nswift rlhf --rlhf_type dpo --model a/b --dataset hf::c/d\n"
    (tmp_path / "a.sh").write_text(text)
    reading = read_file(tmp_path / "a.sh")
    assert (reading.command, reading.why) == ("rlhf", "swift rlhf")
    assert translate(reading, "a").trainer == "dpo"


def test_rows_are_held_out_of_every_part_of_a_mixture_or_of_none(tmp_path):
    entries = [
        {"path": "a/b", "type": "alpaca"},
        {"path": "c/d", "type": "alpaca", "split": "train[5:9]"},
    ]
    keys = WRONG["axolotl"] | {"datasets": entries, "val_set_size": 0.1}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(keys))
    draft = translate(read_file(tmp_path / "a.yaml"), "a")
    assert not draft.has_held_out
    assert [note.why for note in draft.notes if note.key == "val_set_size"] == [
        "the split is a slice already"
    ]


def test_every_set_that_is_held_out_is_named(tmp_path):
    tests = [
        {"path": "a/b", "type": "alpaca", "split": "test"},
        {"path": "c/d", "type": "alpaca", "split": "test"},
    ]
    keys = WRONG["axolotl"] | {"test_datasets": tests}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(keys))
    draft = translate(read_file(tmp_path / "a.yaml"), "a")
    assert set(draft.values["dataset"]["split"]["eval"]) == {"b", "d"}
    assert "dataset.split.eval: b, d" in [note.target for note in draft.notes]


SWANLAB = {"swanlab_project": "mine", "swanlab_mode": "local"}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("tool", "keys", "variables"),
    [
        ("llama_factory", {**THEIRS, "use_swanlab": True, **SWANLAB}, ("mine", "local")),
        ("axolotl", {"use_swanlab": True, **SWANLAB}, ("mine", "local")),
        ("llama_factory", {**THEIRS, "report_to": "swanlab"}, ("runner", "offline")),
        ("swift", {"report_to": ["comet_ml", "swanlab"], **SWANLAB}, ("runner", "offline")),
    ],
)
def test_swanlab_is_a_tracker_of_ours(written, tool, keys, variables):
    tracker = written(WRONG[tool] | keys).cfg["tracker"]
    assert "swanlab" in tracker["report_to"]
    environment = tracker["environment"]
    project = environment.get("SWANLAB_PROJ_NAME", tracker.get("project", "runner"))
    mode = environment.get("SWANLAB_MODE", tracker.get("mode"))
    assert (project, mode) == variables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "keys"),
    [("llama_factory", {**THEIRS, "report_to": "wandb"}), ("axolotl", {"wandb_project": "mine"})],
)
def test_swanlab_beside_another_tracker_is_typed(written, tool, keys):
    done = written(WRONG[tool] | keys | {"use_swanlab": True})
    assert done.cfg["tracker"]["report_to"] == "wandb"
    assert done.kinds("use_swanlab") == ["no equivalent"]


@pytest.mark.slow
def test_settings_of_swanlab_alone_choose_no_tracker(written):
    done = written(WRONG["axolotl"] | SWANLAB)
    assert done.cfg["tracker"]["report_to"] == "none"
    assert "no tracker" in done.why("swanlab_mode")


# --- The tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", sorted(find_dialects()))
def test_each_row_of_a_table_can_be_followed(tool):
    table = read_table(tool)
    cases = [case for rows in (table.keys, table.rows) for row in rows.values() for case in row]
    menu = Path(config.__file__).parents[2] / "conf"
    trainers = {path.stem for path in (menu / "trainer").glob("*.yaml")}
    parameters = {}
    for name in trainers:
        option = yaml.safe_load((menu / "trainer" / f"{name}.yaml").read_text())
        parameters[name] = read_signature(option["trainer"]["args"]["_target_"])
    for case in cases:
        assert case.convert in {"", *CONVERSIONS}
        assert case.by in {"", *FUNCTIONS}
        group, _, option = case.choose.partition("=")
        assert not group or option == "null" or (menu / group / f"{option}.yaml").is_file(), case
        wanted = case.when.get("trainer", [])
        wanted = {wanted} if isinstance(wanted, str) else set(wanted)
        assert wanted <= trainers, case
        for path in filter(None, (case.to, *case.also)):
            if path.startswith("trainer.args.") and "*" not in path:
                name = path.split(".")[2]
                assert any(
                    name in parameters[trainer_name].parameters
                    for trainer_name in wanted or trainers
                ), path
    assert set(table.sections["first"]) | set(table.sections["then"]) <= table.keys.keys()


@pytest.mark.parametrize("tool", sorted(find_dialects()))
def test_no_key_has_two_rows_in_a_table(tool):
    section = find_dialects()[tool]
    tables = [section.get(name, {}) for name in ("keys", "ignored", "no_equivalent", "same")]
    keys = list(itertools.chain(*tables))
    assert len(keys) == len(set(keys))


# --- Over how many devices, and how ---------------------------------------------------------------

AXOLOTL = {
    "base_model": "a/b",
    "sequence_len": 64,
    "micro_batch_size": 1,
    "datasets": [{"path": "c/d", "type": "alpaca"}],
}
OFFLOADED = "trainer.args.deepspeed.zero_optimization.offload_optimizer.device=cpu"
FSDP = "strategy=fsdp2 trainer.args.fsdp_config."


@pytest.mark.grid(6)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"deepspeed": "configs/zero3_bf16_cpuoffload_all.json"}, "strategy=zero3_offload"),
        ({"deepspeed": "configs/ds_z2_config.json"}, "strategy=zero2"),
        ({"deepspeed": "zero0"}, ""),
        ({"deepspeed": "spread.json"}, f"strategy=zero3 {OFFLOADED}"),
        ({"fsdp": "shard_grad_op auto_wrap"}, f"{FSDP}reshard_after_forward=false"),
        ({"deepspeed": None, "fsdp": [], "fsdp_config": {}}, ""),
        (
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
                }
            },
            "strategy=zero2_offload",
        ),
        (
            {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_offload_params": True}},
            "strategy=fsdp2_offload",
        ),
        (
            {"fsdp_version": 2, "fsdp_config": {"activation_checkpointing": True}},
            f"{FSDP}activation_checkpointing=true",
        ),
        ({"fsdp": "fsdp2.json"}, "strategy=fsdp2"),
        ({"accelerate_config": "zero1"}, "strategy=zero1"),
        (
            {"dist_config": {"name": "deepspeed", "config_file": "spread.json"}},
            f"strategy=zero3 {OFFLOADED}",
        ),
        ({"dist_config": {"name": "fsdp2", "dcp_path": None}}, "strategy=fsdp2"),
    ],
)
def test_a_strategy_is_a_word_to_type_on_gpus(written, tmp_path, keys, words):
    (tmp_path / "spread.json").write_text((SAMPLES / "spread.json").read_text())
    done = written(AXOLOTL | keys)
    assert done.draft.spread == ([*words.split(), "launcher.num_processes=N"] if words else [])
    assert not done.faults and done.composed.choices["strategy"] == "none", (
        "it has to run on other machines as well"
    )
    for key, value in keys.items():
        if value is not None:
            assert done.kinds(key)
    typed = [word.replace("=N", "=4") for word in done.draft.spread]
    assert not verb.faults_of(done.draft.name, done.text, typed)
    assert f"# on GPUs: {' '.join(done.draft.spread)}" in done.text or not words


@pytest.mark.slow
def test_every_setting_of_a_file_of_deepspeed_is_noted(written, tmp_path):
    (tmp_path / "spread.json").write_text((SAMPLES / "spread.json").read_text())
    done = written(AXOLOTL | {"deepspeed": "spread.json"})
    assert "read from spread.json" in done.why("deepspeed")
    assert done.kinds("deepspeed.overlap_comm") == ["ignored (machine, not experiment)"]
    assert done.kinds("deepspeed.train_batch_size") == ["same by default"]
    assert "trainer.args.torch_compile=true" in done.why("deepspeed.compile_backend")
    (tmp_path / "spread.json").write_text(
        '{"zero_optimization": {"stage": 2, "depth": 3}, "config_file": "spread.json"}'
    )
    done = written(AXOLOTL | {"deepspeed": "spread.json"})
    assert done.draft.spread[0] == "strategy=zero2"
    assert "not a key that is known" in done.why("deepspeed.depth")


@pytest.mark.slow
def test_a_launcher_says_the_machines(written, tmp_path):
    (tmp_path / "spread.yaml").write_text((SAMPLES / "spread.yaml").read_text())
    command = "--model_name_or_path a/b --dataset_name c/d --per_device_train_batch_size 2\n"
    done = written(f"accelerate launch --config_file spread.yaml trl sft {command}", "theirs.sh")
    words = (
        f"{FSDP}reshard_after_forward=false trainer.args.fsdp_config.activation_checkpointing=true"
    )
    machines = ["launcher=accelerate", "launcher.num_machines=2", "launcher.num_processes=8"]
    assert sorted(done.draft.spread) == sorted([*words.split(), *machines])
    assert done.draft.overrides == ["launcher.num_processes=8"]
    assert "theirs ran on 16, so 32" in done.text
    done = written(
        f"accelerate launch --use_deepspeed --zero_stage 2 trl sft {command}", "theirs.sh"
    )
    assert done.draft.spread == ["strategy=zero2", "launcher.num_processes=N"]
    done = written(
        f"torchrun --nnodes=2 --nproc_per_node=4 trl/scripts/sft.py {command}", "theirs.sh"
    )
    assert done.draft.spread == [*machines[:2], "launcher.num_processes=4"]
    assert "theirs ran on 8" in done.text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spread.json", f"strategy=zero3 {OFFLOADED}"),
        ("spread.yaml", "launcher.num_machines=2 launcher.num_processes=8"),
    ],
)
def test_a_file_that_only_says_the_strategy_is_refused_with_the_words(capsys, name, words):
    assert main(["import", str(SAMPLES / name)]) == 2
    stderr = capsys.readouterr().err
    assert "and no training" in stderr
    assert words in stderr
    assert "without" not in stderr


@pytest.mark.slow
def test_a_strategy_that_conflicts_with_the_rest_is_reported_before_the_run(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    keys = AXOLOTL | {"adapter": "qlora", "load_in_4bit": True, "deepspeed": "zero3.json"}
    Path("theirs.yaml").write_text(yaml.safe_dump(keys))
    assert main(["import", "theirs.yaml"]) == 0
    out = capsys.readouterr().out
    assert "on GPUs   and strategy=zero3 launcher.num_processes=N\nbefore it runs:" in out
    assert "strategy=none" in out


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_writes_into_the_menu_of_this_folder_and_never_over_a_file(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    target = tmp_path / "conf" / "experiment" / "mine.yaml"
    words = ["import", str(SAMPLES / "axolotl_dpo.yaml"), "name=mine"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert target.read_text() in out
    assert "written   conf/experiment/mine.yaml" in out
    assert "--config-dir" not in out
    assert "before it runs" not in out
    assert main(["experiment=mine", "--dry-run"]) == 0
    target.write_text("# edited\n")
    assert main(words) == 2
    assert target.read_text() == "# edited\n"
    assert "force=true" in capsys.readouterr().err
    assert main([*words, "force=true"]) == 0
    assert "axolotl_dpo" in target.read_text()


@pytest.mark.parametrize(
    "word",
    [
        "name=../../x",
        "name=/tmp/x",
        "name=a/b",
        "name=.x",
        "name=",
        "name=a\tb",
        f"name={96 * 'x'}",
        "to=..yaml",
    ],
)
def test_a_name_that_is_no_plain_one_is_refused(tmp_path, monkeypatch, capsys, word):
    folder = tmp_path / "a" / "b"
    (folder / "conf" / "experiment").mkdir(parents=True)
    monkeypatch.chdir(folder)
    before = sorted(tmp_path.rglob("*"))
    assert main(["import", str(SAMPLES / "axolotl_dpo.yaml"), word]) == 2
    assert "letters, digits" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_in_an_empty_folder_it_writes_an_experiment_that_the_next_command_finds(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["import", str(SAMPLES / "axolotl_dpo.yaml")]
    assert main([*words, "to=none"]) == 0
    assert "printed only" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "written   conf/experiment/axolotl_dpo.yaml" in out
    (command,) = re.findall(r"^next +python -m runner (.+)$", out, re.MULTILINE)
    assert main([*command.split(), "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one file"),
        (["none.yaml"], "No such file"),
        (["own.yaml"], "no key that one of them has"),
        (["own.yaml", "dialect=axolotle"], "axolotl, llama_factory"),
        (["own.sh"], "no command that trains"),
        (["machine.yaml"], "no training: launcher.num_processes=4"),
        (["list.yaml"], "a list"),
        (["broken.yaml"], "broken.yaml:2"),
        (["own.yaml", "nam=mine"], "import has no such key"),
    ],
    ids=str,
)
def test_a_file_without_a_configuration_is_a_fault(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("lerning: 1\n")
    (tmp_path / "own.sh").write_text("python train.py --rate 1\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "machine.yaml").write_text("compute_environment: LOCAL_MACHINE\nnum_processes: 4\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    assert main(["import", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_could_be_of_two_is_asked_about(tmp_path):
    path = tmp_path / "both.yaml"
    path.write_text("base_model: a\nstage: sft\n")
    with pytest.raises(ConfigError, match=r"as much of Axolotl as of LLaMA-Factory"):
        read_file(path)
    assert read_file(path, "axolotl").why == "because you say so"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2e-5", 2e-5),
        ("10", 10),
        ("-1", -1),
        ("True", True),
        ("1.10.0", "1.10.0"),
        ("None", None),
        ("[1, 2]", [1, 2]),
    ],
)
def test_texts_are_read_as_they_were_meant(text, meant):
    assert plain(text) == meant
    assert type(plain(text)) is type(meant)


@pytest.mark.slow
def test_an_imported_experiment_trains(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    theirs = {
        "base_model": "runner://model/tiny",
        "rl": "dpo",
        "rl_beta": 0.3,
        "datasets": [{"path": "runner://dataset/toy_sort", "type": "chatml.ultra"}],
        "test_datasets": [{"path": "runner://dataset/toy_sort", "split": "eval"}],
        "adapter": "lora",
        "lora_r": 4,
        "lora_alpha": 8,
        "lora_target_linear": True,
        "micro_batch_size": 4,
        "sequence_len": 64,
        "max_steps": 4,
        "warmup_ratio": 0.5,
        "learning_rate": "1e-3",
    }
    (tmp_path / "theirs.yml").write_text(yaml.safe_dump(theirs))
    assert main(["import", "theirs.yml", "name=mine"]) == 0
    few = (
        "dataset.limit.train=64",
        "dataset.limit.eval=8",
        "trainer.args.logging_steps=1",
        "model.dtype=float32",
    )
    done = train("experiment=mine", "--config-dir", "conf", *few, name="mine")
    assert (done.code, done.state()) == (0, "finished")
    rates = [line["learning_rate"] for line in done.lines if line["step"]]
    assert rates == pytest.approx([0, 5e-4, 1e-3, 5e-4]), "half of the steps warm up"


@pytest.mark.slow
def test_the_table_that_is_shown_is_all_that_a_dialect_needs(written, monkeypatch):
    explained = (Path(dialect.__file__).parent / "dialects" / "shared.yaml").read_text()
    shown = "\n".join(re.findall(r"^#(    .*)", explained, re.MULTILINE))
    sections = dialect.read_sections() | {"example": yaml.safe_load(shown)}
    monkeypatch.setattr(dialect, "read_sections", lambda: sections)
    done = written({"base": "a/b", "rows": "c/d", "rank": 4, "share": 0.1})
    assert (done.cfg["model"]["path"], done.cfg["peft"]["r"], done.cfg["learning_rate"]) == (
        "a/b",
        4,
        3e-4,
    )
    assert done.cfg["dataset"]["path"] == "c/d"
    assert done.draft.has_held_out


@pytest.mark.slow
def test_llama_factory_knows_a_tuner_in_capitals(written):
    keys = {"model_name_or_path": "a/b", "stage": "sft", "dataset": "a/b", "lora_rank": 16}
    small, capital = (
        written(keys | {"finetuning_type": tuner}).cfg["peft"] for tuner in ("lora", "LoRA")
    )
    assert small == capital
    assert capital["lora_alpha"] == 32


# --- Files as their users write them --------------------------------------------------------------

PAIRS = {"model_name_or_path": "a/b", "dataset_name": "c/d", "beta": 0.1, "max_length": 64}


@pytest.mark.parametrize(
    ("name", "text", "trainer"),
    [
        ("my_orpo.yaml", "", "orpo"),
        ("a.yaml", "# trl kto --config a.yaml\n", "kto"),
        ("a.yaml", "output_dir: out/zephyr-dpo\n", "dpo"),
        ("a.yaml", "packing: true\n", "sft"),
        ("rloo.yaml", "reward_funcs: [accuracy_reward]\n", "rloo"),
        (
            "a.yaml",
            (
                "reward_funcs: [accuracy_reward]\n"
                "mask_truncated_completions: true\nscale_rewards: batch\n"
            ),
            "grpo",
        ),
    ],
)
def test_the_method_of_a_file_is_in_its_keys_or_its_words(tmp_path, name, text, trainer):
    keys = PAIRS | ({"beta": None} if "packing" in text else {})
    (tmp_path / name).write_text(text + yaml.safe_dump(keys))
    assert translate(read_file(tmp_path / name), "a").trainer == trainer


def test_a_file_that_does_not_say_its_method_is_refused_with_a_word_that_works(tmp_path):
    for text in ("", "reward_funcs: [accuracy_reward]\nnum_generations: 4\n"):
        (tmp_path / "a.yaml").write_text(text + yaml.safe_dump(PAIRS))
        with pytest.raises(ConfigError, match="alike") as caught:
            translate(read_file(tmp_path / "a.yaml"), "a")
        (fault,) = caught.value.faults
        word = fault.fix.split()[-1]
        assert (
            translate(read_file(tmp_path / "a.yaml"), "a", word.removeprefix("trainer=")).trainer
            in word
        )


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "A=1\nif [ $X = y ]; then\n  E='--use_peft'\nfi\ntrl sft --dataset_name c/d $E\n",
            "if [ $X = y ]",
            "none of its branches",
        ),
        (
            "if [ $X ]; then E='--bf16'; fi\ntrl sft $E --dataset_name c/d\n",
            "if [ $X ]",
            "branch=1",
        ),
        (
            "export CUDA_VISIBLE_DEVICES=0,1\nllamafactory-cli train --stage sft\n",
            "CUDA_VISIBLE_DEVICES",
            "num_processes",
        ),
        ("NNODES=1 llamafactory-cli train --stage sft\n", "nnodes", ""),
        ("swift sft --model Qwen/Qwen3.5-4B --dataset x.jsonl\n", "model", "language part alone"),
    ],
)
def test_open_values_of_a_script_are_reported_once(tmp_path, text, key, message):
    (tmp_path / "a.sh").write_text(text)
    draft = translate(read_file(tmp_path / "a.sh"), "a")
    (note,) = [note for note in draft.notes if note.key == key]
    assert message in f"{note.target} {note.why}"
    assert not any(note.key == f"{key}.{key}" for note in draft.notes)


def test_the_script_of_ppo_holds_out_its_last_rows(tmp_path):
    command = "python examples/scripts/ppo/ppo.py --dataset_name c/d --dataset_train_split rows\n"
    (tmp_path / "a.sh").write_text(command)
    draft = translate(read_file(tmp_path / "a.sh"), "a")
    assert draft.values["dataset"]["split"] == {"train": "rows[:-100]", "eval": "rows[-100:]"}


def test_a_share_of_a_named_split_is_not_trained_on(tmp_path):
    command = (
        "python grpo_vlm.py --dataset_name c/d --dataset_train_split rows --test_split_size 10\n"
    )
    (tmp_path / "a.sh").write_text(command)
    draft = translate(read_file(tmp_path / "a.sh"), "a")
    assert draft.values["dataset"]["split"] == {"train": "rows[:-10]", "eval": "rows[-10:]"}


@pytest.mark.parametrize("tag", ["float", "int"])
def test_an_empty_number_is_a_fault(tmp_path, tag):
    (tmp_path / "a.yaml").write_text(f"model_name_or_path: a/b\nlearning_rate: !!{tag}\n")
    with pytest.raises(ConfigError):
        read_file(tmp_path / "a.yaml")


def test_weights_of_user_rewards_and_another_templates_turns_are_reported(tmp_path):
    rows = {
        "base_model": "a/b",
        "micro_batch_size": 1,
        "datasets": [{"path": "c/d", "type": "chatml.intel"}],
    }
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(rows | {"rl": "dpo"}))
    draft = translate(read_file(tmp_path / "a.yaml"), "a")
    assert any("turns as chatml.intel writes them" in note.why for note in draft.notes)
    trl = {"reward_funcs": ["m.f", "m.g"], "reward_weights": [1.0, 2.0]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(rows | {"rl": "grpo", "trl": trl}))
    assert any(
        note.key == "trl.reward_weights"
        for note in translate(read_file(tmp_path / "a.yaml"), "a").notes
    )


def test_the_command_of_the_old_format_may_name_a_file_of_the_new(tmp_path):
    (tmp_path / "v1.yaml").write_text("model: a/b\ntrain_dataset: c/d\nmicro_batch_size: 2\n")
    (tmp_path / "a.sh").write_text("llamafactory-cli train v1.yaml\n")
    draft = translate(read_file(tmp_path / "a.sh"), "a")
    assert draft.table.sections["title"] == "LLaMA-Factory v1"
    assert draft.values["dataset"]["path"] == "c/d"
