"""torchtune's recipes: told by their components, with words that say more than the file."""

from pathlib import Path

import pytest
import yaml
from import_notes import options_of

from runner.errors import ConfigError
from runner.importers.draft import MAPPED, NO_EQUIVALENT
from runner.importers.experiment_content import content_of
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

SAMPLES = Path(__file__).parent / "importers"
RECIPE = {
    "model": {"_component_": "torchtune.models.qwen2.qwen2_0_5b"},
    "tokenizer": {"_component_": "torchtune.models.qwen2.qwen2_tokenizer", "path": "vocab.json"},
    "checkpointer": {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": "/tmp/Qwen2-0.5B",
        "checkpoint_files": ["model.safetensors"],
    },
    "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset"},
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": "2e-5"},
    "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "epochs": 1,
    "batch_size": 2,
    "dtype": "bf16",
}


@pytest.fixture
def imported(tmp_path):
    """The draft of a recipe with these keys instead, and what its experiment says."""

    def call(**keys: object):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(RECIPE | keys))
        draft = translate(read_file(path), "theirs")
        return draft, content_of(draft)

    return call


def lost(draft) -> set[str]:
    return {note.key for note in draft.notes if note.kind == NO_EQUIVALENT}


def test_a_recipe_is_told_by_its_components_and_keeps_its_values(imported):
    draft, content = imported()
    args = content["trainer"]["args"]
    assert draft.reading.dialect == "torchtune"
    assert draft.reading.why.startswith("_component_: torchtune.")
    assert content["learning_rate"] == 2e-5
    assert content["model"] == {"path": "Qwen/Qwen2-0.5B", "dtype": "bfloat16"}
    assert args["num_train_epochs"] == 1
    assert args["per_device_train_batch_size"] == 2


def test_what_torchtune_does_where_a_recipe_is_silent_is_written(imported):
    _, content = imported()
    args = content["trainer"]["args"]
    assert args["weight_decay"] == 0.01
    assert args["lr_scheduler_type"] == "constant"
    assert args["max_grad_norm"] == 0.0
    assert args["max_length"] is None
    assert args["logging_steps"] == 1


def test_rows_of_alpaca_have_its_words_and_all_of_them_are_trained(imported):
    _, content = imported()
    rows = content["dataset"]
    assert rows["path"] == "yahma/alpaca-cleaned"
    assert rows["columns"] == {"input": "instruction", "target": "output"}
    assert rows["map"]["text"].endswith("### Response:\n")
    assert "### Input" not in rows["map"]["empty"]["input"]
    assert content["trainer"]["form"] == "messages"
    assert "weight" not in options_of(content)
    _, answers_alone = imported(
        dataset={"_component_": "torchtune.datasets.alpaca_dataset", "train_on_input": False}
    )
    assert answers_alone["dataset"]["path"] == "tatsu-lab/alpaca"
    assert "form" not in answers_alone["trainer"]


@pytest.mark.parametrize(
    ("arguments", "weight"),
    [
        ({}, "answers"),
        ({"masking_strategy": "train_on_last"}, "last_round"),
        ({"train_on_input": True}, None),
    ],
)
def test_of_conversations_only_answers_are_trained_by_default(imported, arguments, weight):
    component = "torchtune.datasets.chat_dataset"
    entry = {"_component_": component, "source": "org/chats", "conversation_column": "turns"}
    entry["conversation_style"] = "openai"
    _, content = imported(dataset=entry | arguments)
    assert content["dataset"]["columns"] == {"messages": "turns"}
    assert content["trainer"]["form"] == "messages"
    assert options_of(content).get("weight") == weight


@pytest.mark.parametrize(
    ("loss", "trainer", "args"),
    [
        ("torchtune.rlhf.loss.DPOLoss", "dpo", {}),
        ("torchtune.rlhf.loss.RSOLoss", "dpo", {"loss_type": ["hinge"]}),
        ("torchtune.rlhf.loss.SimPOLoss", "cpo", {"loss_type": "simpo", "cpo_alpha": 0.0}),
    ],
)
def test_a_loss_chooses_the_trainer(imported, loss, trainer, args):
    _, content = imported(
        loss={"_component_": loss, "beta": 0.3},
        dataset={"_component_": "torchtune.datasets.preference_dataset", "source": "org/pairs"},
    )
    assert options_of(content)["trainer"] == trainer
    written = content["trainer"]["args"]
    assert {name: written[name] for name in args} == args
    beta = content.get("kl_coef") or written.get("beta")
    assert beta == 0.3


def test_layers_of_an_adapter_are_those_of_three_keys_in_names_of_the_hub(imported):
    model = {
        "_component_": "torchtune.models.llama3.qlora_llama3_8b",
        "lora_attn_modules": ["q_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "apply_lora_to_output": False,
    }
    _, content = imported(model=model)
    assert options_of(content)["peft"] == "lora"
    assert options_of(content)["quant"] == "4bit"
    layers = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert content["peft"]["target_modules"] == layers
    assert content["peft"]["r"] == 8
    assert content["peft"]["lora_dropout"] == 0.0
    model["_component_"] = "torchtune.models.phi3.lora_phi3_mini"
    _, content = imported(model=model)
    assert content["peft"]["target_modules"] == ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def test_steps_of_all_epochs_and_rows_that_are_held_out():
    draft = translate(read_file(SAMPLES / "torchtune_lora.yaml"), "theirs")
    content = content_of(draft)
    args = content["trainer"]["args"]
    assert args["max_steps"] == 80
    assert args["packing"] is True
    assert args["max_length"] == 2048
    assert args["eval_steps"] == 50
    assert content["model"]["path"] == "meta-llama/Llama-3.2-1B-Instruct"
    assert content["dataset"]["split"]["eval"]["path"] == "data/held.jsonl"
    assert options_of(content)["tracker"] == "wandb"


def test_words_of_a_command_say_more_than_the_file():
    draft = translate(read_file(SAMPLES / "torchtune_run.sh"), "theirs")
    content = content_of(draft)
    assert draft.trainer == "sft"
    assert content["learning_rate"] == 1e-6
    assert content["model"]["path"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert content["dataset"]["path"] == "org/rows"
    assert content["dataset"]["columns"] == {"target": "output"}
    assert "optim" not in content["trainer"]["args"]
    assert "loss.beta" not in draft.keys
    assert "launcher.num_processes=4" in draft.overrides
    assert [note.kind for note in draft.notes if note.key == "optimizer.lr"] == [MAPPED]
    values = {note.key: note.value for note in draft.notes}
    assert values["optimizer.lr (file)"] == "2e-5"
    assert values["loss.beta (file)"] == 0.05


def test_a_recipe_that_torchtune_brings_is_copied_first(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("tune run lora_finetune_single_device --config llama3/8B_lora batch_size=4\n")
    with pytest.raises(ConfigError, match=r"tune cp llama3/8B_lora 8B_lora\.yaml"):
        read_file(script)
    folder = tmp_path / "recipes" / "configs" / "llama3"
    folder.mkdir(parents=True)
    (folder / "8B_lora.yaml").write_text(yaml.safe_dump(RECIPE))
    assert read_file(script).keys["batch_size"] == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantizer", {"_component_": "torchtune.training.quantization.Int8DynActInt4"}),
        ("tasks", ["truthfulqa_mc2"]),
        ("max_new_tokens", 300),
    ],
)
def test_a_file_that_trains_nothing_is_refused(imported, key, value):
    with pytest.raises(ConfigError, match=key):
        imported(**{key: value})


def test_ppo_divides_a_rollout_into_steps(imported):
    draft, content = imported(
        loss={
            "_component_": "torchtune.rlhf.loss.PPOLoss",
            "epsilon": 0.1,
            "value_coeff": 0.2,
            "value_clip_range": 0.3,
        },
        dataset={
            "_component_": "torchtune.datasets.text_completion_dataset",
            "source": "org/prompts",
            "column": "question",
        },
        reward_checkpointer={"_component_": "torchtune.x", "checkpoint_dir": "/tmp/Qwen2-RM"},
        batch_size=64,
        ppo_batch_size=16,
        gradient_accumulation_steps=4,
        ppo_epochs=2,
        num_steps=10_000,
        kl_coeff=0.02,
        max_generated_tokens=58,
        lmbda=0.9,
        min_response_length=18,
        penalise_no_eos=True,
        reward_penalty=-3,
    )
    args = content["trainer"]["args"]
    assert content["batch"] == 64
    assert content["kl_coef"] == 0.02
    assert args["num_mini_batches"] == 4
    assert args["per_device_train_batch_size"] == 4
    assert args["num_ppo_epochs"] == 2
    assert args["total_episodes"] == 10_000
    assert args["response_length"] == 58
    assert args["cliprange"] == 0.1
    assert args["lam"] == 0.9
    assert content["dataset"]["columns"] == {"prompt": "question"}
    assert content["reward"]["model"]["path"] == "Qwen/Qwen2-RM"
    assert {"min_response_length", "penalise_no_eos"} <= lost(draft)


def test_a_teacher_is_learnt_from_by_gkd(imported):
    draft, content = imported(
        teacher_model={"_component_": "torchtune.models.qwen2.qwen2_1_5b"},
        teacher_checkpointer={"_component_": "torchtune.x", "checkpoint_dir": "/tmp/Qwen2-1.5B"},
        kd_loss={"_component_": "torchtune.modules.loss.ForwardKLWithChunkedOutputLoss"},
        kd_ratio=0.5,
    )
    assert draft.trainer == "gkd"
    assert content["trainer"]["teacher_model"]["path"] == "Qwen/Qwen2-1.5B"
    assert content["trainer"]["args"]["lmbda"] == 0.0
    assert content["trainer"]["args"]["beta"] == 0.0
    assert "kd_ratio" in lost(draft)
