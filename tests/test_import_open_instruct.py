"""open-instruct's scripts and files: rows, losses, rollouts and rewards in its own sense."""

from importlib import import_module
from pathlib import Path

import pytest
import yaml
from import_notes import notes_of

from runner.errors import ConfigError
from runner.importers.draft import Draft
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

verb = import_module("runner.command.import")

SAMPLES = Path(__file__).parent / "importers"
MODEL = "--model_name_or_path a/b"
MATHS = "--dataset_mixer_list o/rlvr_gsm8k 1.0"


@pytest.fixture
def script(tmp_path):
    """The draft of a command of one of their scripts."""

    def call(name: str, flags: str) -> Draft:
        path = tmp_path / "a.sh"
        path.write_text(f"python open_instruct/{name}.py {MODEL} {flags}\n")
        return translate(read_file(path), "mine")

    return call


def test_the_nodes_of_a_cluster_multiply_the_processes():
    draft = translate(read_file(SAMPLES / "open_instruct_sft.sh"), "mine")
    assert draft.reading.dialect == "open_instruct"
    assert draft.reading.devices == 16
    assert draft.choices["weight"] == "answers"
    parts = draft.values["dataset"]["parts"]
    assert parts["capybara"]["split"] == {"train": "train[:50%]"}
    assert parts["ultrafeedback_chat"]["limit"] == {"train": 2000}
    assert draft.values["trainer"]["args"]["num_train_epochs"] == 2
    assert "weights" not in draft.values["dataset"]


def test_dpo_norm_is_dpo_per_token_with_their_defaults():
    draft = translate(read_file(SAMPLES / "open_instruct_dpo.yaml"), "mine")
    assert draft.reading.dialect == "open_instruct"
    args = draft.values["trainer"]["args"]
    assert (draft.trainer, args["loss_type"], draft.values["kl_coef"]) == (
        "dpo",
        ["sigmoid_norm"],
        5.0,
    )
    assert args["max_grad_norm"] == 0, "theirs clips nothing without DeepSpeed"
    assert draft.values["peft"]["lora_alpha"] == 16
    assert "down_proj" in draft.values["peft"]["target_modules"]


def test_rollouts_are_counted_in_completions():
    draft = translate(read_file(SAMPLES / "open_instruct_grpo.sh"), "mine")
    args = draft.values["trainer"]["args"]
    assert draft.values["batch"] == 32 * 16 // 2
    wanted = {
        "num_generations": 16,
        "generation_batch_size": 512,
        "max_steps": 100,
        "max_completion_length": 600,
        "epsilon_high": 0.272,
        "eval_steps": 20,
    }
    assert {name: args[name] for name in wanted} == wanted
    assert "scale_rewards" not in args, "TRL's own, by the deviation of the group"
    assert draft.values["kl_coef"] == 0.01
    reward = draft.values["reward"]["boxed_answer"]
    assert (reward["weight"], reward["column"]) == (10.0, "reference")
    assert draft.values["dataset"]["columns"] == {"prompt": "messages", "target": "ground_truth"}
    assert draft.values["dataset"]["split"] == {"train": "train", "eval": "test[:16]"}
    assert draft.spread == ["strategy=zero2", "launcher.num_processes=4"]


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        ("--loss_type dpo --beta 0.1", "loss_type", None),  # TRL's own
        ("--dpo_loss_type dpo_norm --dpo_beta 5", "loss_type", ["sigmoid_norm"]),
        ("--loss_type wpo --beta 0.1", "use_weighting", True),
        ("--loss_type simpo --beta 10 --gamma_beta_ratio 0.3", "simpo_gamma", 3.0),
        ("--num_epochs 4", "num_train_epochs", 4),
    ],
)
def test_losses_of_preferences_have_the_names_of_trl(script, flags, path, value):
    draft = script("dpo_tune_cache", f"--dataset_mixer_list o/pairs 1.0 {flags}")
    assert draft.trainer == ("cpo" if "simpo" in flags else "dpo")
    assert draft.values["trainer"]["args"].get(path) == value


@pytest.mark.parametrize(
    ("mixture", "path", "value"),
    [
        ("o/a 3", "limit", {"train": 3}),
        ("o/a 1", "limit", {"train": 1}),
        ("o/a 0.25", "split", {"train": "train[:25%]"}),
        ("o/a 1.0", "split", None),
    ],
)
def test_an_amount_with_a_point_is_a_share_and_else_a_number(script, mixture, path, value):
    draft = script("finetune", f"--dataset_mixer_list {mixture}")
    assert draft.values["dataset"].get(path) == value


def test_a_share_above_one_repeats_the_rows(script):
    draft = script("finetune", "--dataset_mixer_list o/a 2.5")
    splits = [part.get("split") for part in draft.values["dataset"]["parts"].values()]
    assert splits == [None, None, {"train": "train[:50%]"}]


def test_a_file_of_rows_is_a_dataset(script):
    draft = script("finetune", "--train_file data/rows.jsonl --use_flash_attn")
    assert draft.values["dataset"]["path"] == "data/rows.jsonl"
    assert draft.choices["dataset"] == "local"


def test_a_variable_may_hold_the_whole_list(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text(
        f'MIX="o/a 1.0 o/b 20"\npython open_instruct/finetune.py {MODEL} '
        "--dataset_mixer_list $MIX --max_train_steps 10_000\n"
    )
    draft = translate(read_file(path), "mine")
    assert set(draft.values["dataset"]["parts"]) == {"a", "b"}
    assert draft.values["trainer"]["args"]["max_steps"] == 10000


def test_a_list_that_does_not_pair_up_is_a_fault(script):
    with pytest.raises(ConfigError, match="each name followed by"):
        script("finetune", "--dataset_mixer_list o/a 1.0 o/b")


def test_answers_that_are_no_mathematics_are_asked_for(script):
    draft = script("grpo_fast", "--dataset_mixer_list o/RLVR-IFeval 1.0 o/rlvr_math 1.0")
    assert draft.values["reward"] == {"verified": {"_target_": "???", "weight": 10.0}}
    assert "RLVR-IFeval" in notes_of(draft, "apply_verifiable_reward")
    faults = verb.faults_of(draft.name, verb.to_file(draft), [])
    assert "reward.verified._target_" in " ".join(map(str, faults))


def test_a_form_that_gates_the_answer_is_no_sum(script):
    form = "--apply_r1_style_format_reward true"
    gated = script("grpo_fast", f"{MATHS} {form}")
    assert "only in this form" in notes_of(gated, "additive_format_reward")
    added = script("grpo_fast", f"{MATHS} {form} --additive_format_reward true")
    assert set(added.values["reward"]) == {"boxed_answer", "format"}
    assert "only in this form" not in notes_of(added, "additive_format_reward")


@pytest.mark.parametrize("name", ["ppo_vllm_thread_ray_gtrl", "olmo_core_finetune"])
def test_their_other_scripts_are_refused_by_name(script, name):
    with pytest.raises(ConfigError, match=name):
        script(name, "--learning_rate 1e-6")


def test_their_files_are_not_those_of_recipes(tmp_path):
    path = tmp_path / "config.yaml"
    keys = {
        "model_name_or_path": "a/b",
        "torch_dtype": "bfloat16",
        "dataset_mixer": {"o/a": 1.0},
        "dataset_splits": ["train", "test"],
        "preprocessing_num_workers": 4,
        "max_length": 64,
        "beta": 0.1,
    }
    path.write_text(yaml.safe_dump(keys))
    assert read_file(path).dialect == "trl"
