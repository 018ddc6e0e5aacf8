"""OpenRLHF's scripts: batches in its sense, the method of each estimator, columns and rewards."""

from pathlib import Path

import pytest
from import_notes import options_of

from runner.errors import ConfigError
from runner.importers.draft import MAPPED, NO_EQUIVALENT
from runner.importers.experiment_content import content_of
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate
from runner.schema.text import select

SAMPLES = Path(__file__).parent / "importers"
RL = "python3 -m openrlhf.cli.train_ppo_ray --pretrain org/model --prompt_data org/rows"


@pytest.fixture
def imported(tmp_path):
    """The draft of a script, and what its experiment says."""

    def call(text: str):
        path = tmp_path / "train.sh"
        path.write_text(text)
        draft = translate(read_file(path), "theirs")
        return draft, content_of(draft)

    return call


@pytest.mark.parametrize(
    ("estimator", "trainer", "args"),
    [
        ("gae", "ppo", {"cliprange_value": 0.5, "lam": 1.0, "num_mini_batches": 4}),
        ("reinforce", "ppo", {"critic": "head", "vf_coef": 0.0, "lam": 1.0}),
        ("rloo", "rloo", {"num_generations": 4, "generation_batch_size": 256}),
        ("reinforce_baseline", "grpo", {"scale_rewards": "batch", "loss_type": "bnpo"}),
        ("group_norm", "grpo", {"num_generations": 4, "generation_batch_size": 256}),
        ("dr_grpo", "grpo", {"scale_rewards": "none"}),
    ],
)
def test_an_estimator_of_advantages_chooses_the_trainer(imported, estimator, trainer, args):
    draft, content = imported(
        f"{RL} --advantage_estimator {estimator} --rollout_batch_size 64 --n_samples_per_prompt 4 "
        "--train_batch_size 64"
    )
    assert draft.trainer == trainer
    assert content["batch"] == (256 if trainer == "ppo" else 64)
    written = content["trainer"]["args"]
    assert {name: written[name] for name in args} == args


def test_one_answer_to_a_prompt_is_refused_where_answers_are_compared(imported):
    with pytest.raises(ConfigError, match="group_norm with one answer to a prompt"):
        imported(f"{RL} --advantage_estimator group_norm")


def test_defaults_that_a_script_leaves_out_are_written(imported):
    _, content = imported(f"{RL} --remote_rm_url http://host:5000/get_reward")
    args = content["trainer"]["args"]
    assert content["learning_rate"] == 1e-6
    assert content["kl_coef"] == 0.01
    assert content["batch"] == 1024
    assert args["num_mini_batches"] == 8
    assert args["temperature"] == 1.0
    assert args["lr_scheduler_kwargs"] == {"min_lr_rate": 0.1}
    assert args["warmup_steps"] == 0.03
    assert content["optimizer"]["betas"] == [0.9, 0.95]
    assert content["optimizer"]["groups"] == {r"^value_|\.critic\.": {"lr": 9e-6}}


def test_the_place_of_the_kl_is_said(imported):
    group = f"{RL} --advantage_estimator group_norm --n_samples_per_prompt 4 --init_kl_coef 0.05"
    draft, content = imported(group)
    assert content["kl_coef"] == 0.05
    notes = {note.key: note for note in draft.notes}
    assert notes["init_kl_coef"].why == "in the loss; theirs is in the reward"
    draft, _ = imported(f"{group} --use_kl_loss --kl_estimator k2")
    notes = {note.key: note for note in draft.notes}
    assert notes["init_kl_coef"].why == "in the loss"
    assert notes["kl_estimator"].kind == NO_EQUIVALENT
    draft, _ = imported(f"{group} --use_kl_loss")
    notes = {note.key: note for note in draft.notes}
    assert notes["kl_estimator"].value == "k1"
    assert notes["kl_estimator"].implied


def test_held_out_rows_are_evaluated_as_often_as_there(imported):
    script = "deepspeed --module openrlhf.cli.train_sft --pretrain org/model --dataset org/rows"
    flags = "--input_key q --output_key a --eval_dataset org/rows --eval_split test"
    _, content = imported(f"{script} {flags}")
    assert content["dataset"]["split"]["eval"] == "test"
    assert content["trainer"]["args"]["eval_strategy"] == "epoch"
    _, content = imported(f"{script} {flags} --eval_steps 20")
    args = content["trainer"]["args"]
    assert (args["eval_strategy"], args["eval_steps"]) == ("steps", 20)


def test_names_of_groups_are_those_of_before(imported):
    old, old_content = imported(
        "deepspeed --module openrlhf.cli.train_dpo --pretrain org/model --dataset org/pairs "
        "--max_len 2048 --train_batch_size 32 --learning_rate 5e-7 --adam_betas 0.9 0.98"
    )
    new, new_content = imported(
        "deepspeed --module openrlhf.cli.train_dpo --model.model_name_or_path org/model "
        "--data.dataset org/pairs --data.max_len 2048 --train.batch_size 32 --adam.lr 5e-7 "
        "--adam.betas 0.9 0.98"
    )
    assert new_content == old_content
    assert new_content["trainer"]["args"]["max_length"] == 2048
    assert new_content["trainer"]["args"]["adam_beta2"] == 0.98
    assert new.reading.written_names["train_batch_size"] == "train.batch_size"
    assert not old.reading.written_names


@pytest.mark.parametrize(
    ("flags", "form", "columns", "weight"),
    [
        ("--input_key q --output_key a --apply_chat_template", "prompt_completion",
         {"input": "q", "target": "a"}, None),
        ("--input_key q --output_key a", "prompt_completion",
         {"prompt": "q", "completion": "a"}, None),
        ("--input_key turns --apply_chat_template", "messages",
         {"messages": "turns"}, "last_round"),
        ("--input_key turns --apply_chat_template --multiturn", "messages",
         {"messages": "turns"}, "answers"),
        ("", "prompt_completion", {"prompt": "input", "completion": "output"}, None),
        ("--input_key body --pretrain_mode", "text", {"text": "body"}, None),
    ],
)  # fmt: skip
def test_columns_are_turns_or_text_and_only_answers_are_trained(
    imported, flags, form, columns, weight
):
    script = "deepspeed --module openrlhf.cli.train_sft --pretrain org/model --dataset org/rows"
    _, content = imported(f"{script} {flags}")
    assert content["dataset"]["form"] == form
    assert content["dataset"]["columns"] == columns
    assert options_of(content).get("weight") == weight


def test_a_template_of_a_prompt_is_a_step_of_the_rows(imported):
    _, content = imported(
        "deepspeed --module openrlhf.cli.train_sft --pretrain org/model --dataset org/rows "
        "--input_key q --output_key a --input_template $'Q: {}\\nIn {{}}: '"
    )
    step = content["dataset"]["map"]
    assert step["_target_"] == "runner.dataset.step.render_text"
    assert step["column"] == "q"
    assert step["text"] == "Q: {{q}}\nIn {}: "


def test_a_function_of_a_file_is_typed(imported):
    draft, _ = imported(
        f"{RL} --advantage_estimator rloo --n_samples_per_prompt 2 --label_key answer "
        "--remote_rm_url /data/exact.py"
    )
    assert draft.overrides == [
        "reward.exact._target_=runner.reward.query_function.score_queries",
        "reward.exact.function._target_=exact.reward_func",
        "reward.exact.function._partial_=true",
        "reward.exact.column=answer",
        "allow=[exact]",
    ]


def test_the_key_of_wandb_is_shown_nowhere(imported):
    key = "0123456789abcdef0123456789abcdef01234567"
    draft, content = imported(f"{RL} --use_wandb {key}")
    assert options_of(content)["tracker"] == "wandb"
    assert key not in str(content) + str(draft.notes)


def test_batches_that_the_shell_sets_are_asked_for(imported):
    draft, content = imported(f"{RL} --rollout_batch_size $1 --train_batch_size 64")
    assert "batch" not in content
    kinds = {note.key: note.kind for note in draft.notes}
    assert kinds["rollout_batch_size"] == kinds["train_batch_size"] == NO_EQUIVALENT


def test_a_command_in_quotes_of_a_further_shell_is_read(imported):
    draft, content = imported(
        'srun --nodes=1 bash -c "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray '
        '--pretrain org/model --prompt_data org/rows --save_path out" &> log'
    )
    assert select(content, "model.path") == "org/model"
    assert [note.kind for note in draft.notes if note.key == "pretrain"] == [MAPPED]


@pytest.mark.parametrize("module", ["train_prm", "serve_rm", "batch_inference"])
def test_a_command_that_is_not_trained_here_is_refused_by_its_name(imported, module):
    with pytest.raises(ConfigError, match=module):
        imported(f"python3 -m openrlhf.cli.{module} --pretrain org/model")


def test_further_ways_are_listed_where_nothing_takes_their_place(imported):
    draft, _ = imported(
        f"{RL} --reward_pretrain org/scores --prompt_max_len 512 --normalize_reward --ptx_coef 0.05"
    )
    lost = {note.key for note in draft.notes if note.kind == NO_EQUIVALENT}
    assert {"prompt_max_len", "normalize_reward", "reward_clip_range"} <= lost
    assert "ptx_coef" not in lost
