"""verl: its overrides and YAML, its batches in prompts, its losses, rows and rewards."""

import collections
import json
from importlib import import_module
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from runner.config.composition import compose
from runner.config.dialect import read_table
from runner.dataset.step import lift
from runner.errors import ConfigError, DataError
from runner.importers.draft import MAPPED, NO_EQUIVALENT, SAME
from runner.importers.foreign_file import read_file
from runner.importers.hydra_words import flatten_config, read_hydra_words
from runner.importers.translate import translate
from runner.launch.compose.stages import faults_of
from runner.reward.verl import ComputeScore, score_by_source

verb = import_module("runner.command.import")

START = "python3 -m verl.trainer.main_ppo"
MODEL = "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
GROUPS = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8")


class Imported:
    """A script or a YAML of verl, and the experiment that it becomes."""

    def __init__(self, path: Path, trainer: str | None = None):
        self.reading = read_file(path)
        self.draft = translate(self.reading, "mine", trainer)
        self.text = verb.to_file(self.draft)
        self.content = yaml.safe_load(self.text)
        self.args = self.content.get("trainer", {}).get("args", {})
        self.options = {}
        for entry in self.content["defaults"][:-1]:
            ((group, option),) = entry.items()
            self.options[group.removeprefix("override /")] = option

    def note(self, key: str):
        (note,) = [note for note in self.draft.notes if note.key == key]
        return note


@pytest.fixture
def imported(tmp_path):
    """The import of a command with these words, or of a YAML with these keys."""

    def call(*words: str, start: str = START, keys: dict | None = None, trainer=None) -> Imported:
        path = tmp_path / "theirs.sh"
        path.write_text(" \\\n    ".join([start, MODEL, "data.train_files=a.parquet", *words]))
        if keys is not None:
            path = tmp_path / "theirs.yaml"
            path.write_text(yaml.safe_dump(keys))
        return Imported(path, trainer)

    return call


def composed(done: Imported, folder: Path):
    """The experiment with the words that have to be typed, and its faults."""
    (folder / "experiment").mkdir()
    (folder / "experiment" / "mine.yaml").write_text(done.text)
    made = compose(["experiment=mine", *done.draft.overrides], [folder])
    return made.cfg, faults_of(made, [folder])


# --- Batches and steps ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "mini", "n", "epochs", "batch", "sampled", "steps"),
    [
        (64, 16, 8, 1, 128, 512, 4),
        (64, 64, 8, 1, 512, None, 1),
        (64, 128, 4, 2, 256, None, 2),  # a mini-batch is never larger than the batch
        (1024, 256, 5, 1, 1280, 5120, 4),
        (50, 16, 4, 1, 64, 192, 3),
    ],
)
def test_prompts_become_completions(imported, prompts, mini, n, epochs, batch, sampled, steps):
    done = imported(
        "algorithm.adv_estimator=grpo",
        f"data.train_batch_size={prompts}",
        f"{ACTOR}.ppo_mini_batch_size={mini}",
        f"{ACTOR}.ppo_epochs={epochs}",
        f"{ROLLOUT}.n={n}",
        "trainer.total_training_steps=10",
        "trainer.save_freq=5",
        f"{ACTOR}.optim.lr_warmup_steps=3",
    )
    assert done.content["batch"] == batch
    assert done.args.get("generation_batch_size") == sampled
    assert done.args.get("num_iterations", 1) == epochs
    # Theirs counts samplings, ours the steps of the optimizer.
    counts = [done.args[name] for name in ("max_steps", "save_steps", "warmup_steps")]
    assert counts == [10 * steps, 5 * steps, 3 * steps]
    if prompts % min(prompts, mini):
        assert done.note(f"{ACTOR}.ppo_mini_batch_size").kind == NO_EQUIVALENT


def test_an_imported_batch_is_that_of_the_plan(imported, tmp_path):
    words = ("data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=16")
    micro_batch = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"
    done = imported(*GROUPS, f"{ROLLOUT}.n=4", *words, micro_batch)
    cfg, faults = composed(done, tmp_path)
    assert not faults
    args = cfg["trainer"]["args"]
    rows = args["per_device_train_batch_size"]
    accumulated = args["gradient_accumulation_steps"]
    assert (rows, rows * accumulated) == (4, 16 * 4)
    # TRL samples for so many micro-batches, and takes a step after ``accumulated`` of them.
    assert args["generation_batch_size"] / rows / accumulated == 64 / 16
    assert args["num_generations"] == 4


def test_ppo_has_their_defaults_and_counts_their_steps(imported):
    done = imported(
        "data.train_batch_size=32",
        f"{ACTOR}.ppo_mini_batch_size=8",
        f"{ROLLOUT}.n=2",
        "trainer.total_training_steps=10",
        "trainer.critic_warmup=5",
    )
    assert done.options["trainer"] == "ppo"
    assert done.content["batch"] == 64
    assert (done.args["num_mini_batches"], done.args["max_steps"]) == (4, 10)
    expected = {
        "num_ppo_epochs": 1,
        "response_length": 512,
        "temperature": 1.0,
        "lam": 1.0,
        "cliprange_value": 0.5,
        "dual_clip": 3.0,
        "value_warmup_steps": 4,
        "lr_scheduler_type": "constant",
    }
    assert {name: done.args[name] for name in expected} == expected
    assert (done.content["learning_rate"], done.content["kl_coef"]) == (1e-6, 0.0)
    critic = {"groups": {"^value_model": {"lr": 1e-5}}, "weight_decay": 0.01}
    assert done.content["optimizer"] == critic


def test_a_size_that_the_shell_says_is_asked_for(imported):
    done = imported(*GROUPS, "data.train_batch_size=$PROMPTS")
    note = done.note("data.train_batch_size")
    assert note.kind == NO_EQUIVALENT
    assert "batch=" in note.target
    assert "batch" not in done.content


def test_one_completion_of_a_prompt_is_no_group(imported, tmp_path):
    done = imported("algorithm.adv_estimator=grpo")
    assert "num_generations=<2 or more>" in done.note(f"{ROLLOUT}.n").target
    with pytest.raises(ConfigError, match="num_generations"):
        composed(done, tmp_path)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["warmup_style=constant"], {"lr_scheduler_type": "constant"}),
        (
            ["lr_warmup_steps_ratio=0.1"],
            {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1},
        ),
        (["lr_scheduler_type=cosine"], {"lr_scheduler_type": "cosine"}),
        (
            ["warmup_style=cosine", "min_lr_ratio=0.2"],
            {
                "lr_scheduler_type": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr_rate": 0.2},
            },
        ),
        (["lr_warmup_steps=-1", "lr_warmup_steps_ratio=0.0"], {"lr_scheduler_type": "constant"}),
    ],
)  # fmt: skip
def test_schedules(imported, words, expected):
    done = imported(*GROUPS, *[f"{ACTOR}.optim.{word}" for word in words])
    names = ("lr_scheduler_type", "warmup_steps", "lr_scheduler_kwargs")
    assert {name: done.args[name] for name in names if name in done.args} == expected


# --- Losses ---------------------------------------------------------------------------------------

KL = (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0.01")
REWARD_KL = ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.02")
PLAIN = {"clip": [0.2, 0.2], "dual_clip": 3.0, "advantage": "group", "average": "token"}
OTHERS = PLAIN | {"advantage": "leave_one_out"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"delta": 3.0}),
        (
            [f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.28"],
            {"epsilon": 0.1, "epsilon_high": 0.28, "delta": 3.0},
        ),
        ([f"{ACTOR}.clip_ratio=0.3"], {"epsilon": 0.3, "delta": 3.0}),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"], {"loss_type": "grpo", "delta": 3.0}),
        (
            [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"],
            {"loss_type": "dr_grpo", "delta": 3.0},
        ),
        (["algorithm.norm_adv_by_std_in_grpo=False"], {"scale_rewards": "none", "delta": 3.0}),
        (KL, {"use_bias_correction_kl": False, "delta": 3.0}),
        ([f"{ACTOR}.entropy_coeff=0.001"], {"entropy_coef": 0.001, "delta": 3.0}),
        (
            [f"{ACTOR}.policy_loss.loss_mode=gspo"],
            {"importance_sampling_level": "sequence", "loss_type": "grpo"},
        ),
        ([f"{ACTOR}.policy_loss.loss_mode=sapo"], {"loss_type": "sapo"}),
        (["algorithm.adv_estimator=reinforce_plus_plus"], {"scale_rewards": "batch", "delta": 3.0}),
    ],
)  # fmt: skip
def test_a_loss_that_trl_has_is_its_fields(imported, words, expected):
    done = imported(*GROUPS, *words)
    names = (
        "loss_type", "scale_rewards", "epsilon", "epsilon_high", "delta", "entropy_coef",
        "importance_sampling_level", "use_bias_correction_kl",
    )  # fmt: skip
    assert {name: done.args[name] for name in names if name in done.args} == expected
    assert "loss" not in done.content
    assert done.content["kl_coef"] == (0.01 if words == KL else 0.0)


@pytest.mark.parametrize(
    ("words", "pieces"),
    [
        (["algorithm.adv_estimator=rloo"], OTHERS),
        (["algorithm.adv_estimator=rloo", *REWARD_KL], OTHERS | {"kl": "k1", "kl_in": "reward"}),
        (["algorithm.adv_estimator=remax"], OTHERS),
        (
            [*KL, f"{ACTOR}.kl_loss_type=mse"],
            PLAIN | {"kl": "k2", "kl_in": "loss", "weigh_kl": False},
        ),
        ([f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"], PLAIN | {"average": "sum"}),
        (
            [f"{ACTOR}.policy_loss.loss_mode=cispo", f"{ACTOR}.clip_ratio_high=4"],
            {
                "surrogate": "cispo",
                "clip": [0.2, 4.0],
                "advantage": "group",
                "average": "token",
            },
        ),
    ],
)
def test_a_loss_that_trl_has_not_is_made_of_pieces(imported, tmp_path, words, pieces):
    done = imported(*GROUPS, *words)
    assert (done.options["trainer"], done.options["loss"]) == ("grpo", "policy_gradient")
    assert done.content["loss"] == pieces
    assert "loss_type" not in done.args
    assert not composed(done, tmp_path)[1]


def test_the_nearest_estimator_is_told(imported):
    note = imported(*GROUPS, "algorithm.adv_estimator=remax").note("algorithm.adv_estimator")
    assert note.kind == NO_EQUIVALENT
    assert "greedy" in note.why
    assert "loss.advantage=leave_one_out" in note.target


def test_a_kl_in_the_reward_that_only_old_versions_had_is_told(imported):
    done = imported(*GROUPS, "algorithm.kl_ctrl.kl_coef=0.001")
    note = done.note("algorithm.kl_ctrl.kl_coef")
    assert (note.kind, note.target) == (NO_EQUIVALENT, "kl_coef=0.001")
    assert done.content["kl_coef"] == 0.0


def test_ppo_takes_pieces_and_an_adaptive_kl(imported, tmp_path):
    done = imported(
        f"{ACTOR}.clip_ratio_high=0.28",
        *REWARD_KL,
        "algorithm.kl_penalty=low_var_kl",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.target_kl=6",
        "actor_rollout_ref.model.lora_rank=8",
    )
    assert done.content["loss"] == {"clip": [0.2, 0.28], "dual_clip": 3.0}
    assert (done.args["kl_estimator"], done.args["kl_target"]) == ("k3", 6)
    assert done.note("algorithm.kl_ctrl.horizon").kind == SAME  # 10,000 is ours, too
    assert done.content["kl_coef"] == 0.02
    assert list(done.content["optimizer"]["groups"]) == [r"\.critic\.|value_head"]
    assert not composed(done, tmp_path)[1]


def test_another_trainer_may_be_typed(imported):
    done = imported(*GROUPS, trainer="rloo")
    assert done.options["trainer"] == "rloo"
    assert "delta" not in done.args


# --- Recipes --------------------------------------------------------------------------------------


def test_dapo(imported, tmp_path):
    done = imported(
        *GROUPS,
        "data.train_batch_size=16",
        "data.gen_batch_size=48",
        f"{ACTOR}.ppo_mini_batch_size=16",
        "data.max_response_length=1024",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        "algorithm.filter_groups.max_num_gen_batches=4",
        "reward_model.reward_manager=dapo",
        "reward_model.overlong_buffer.enable=True",
        "reward_model.overlong_buffer.len=256",
        "reward_model.overlong_buffer.penalty_factor=0.5",
        start="ray job submit --no-wait -- python3 -m recipe.dapo.main_dapo",
    )
    assert done.content["trainer"]["dynamic_sampling"] == 11  # 4 x 48 / 16, less the first
    overlong = {
        "_target_": "trl.rewards.get_soft_overlong_punishment",
        "max_completion_len": 1024,
        "soft_punish_cache": 256,
        "weight": 0.5,
    }
    assert done.content["reward"]["overlong"] == overlong
    assert done.note("algorithm.filter_groups.metric").kind == NO_EQUIVALENT
    assert not composed(done, tmp_path)[1]


def test_supervised_rows_may_lie_inside_of_a_column(imported, tmp_path):
    done = imported(
        "data.prompt_key=extra_info",
        "data.response_key=extra_info",
        "+data.prompt_dict_keys=['question']",
        "+data.response_dict_keys=['answer']",
        "data.micro_batch_size_per_gpu=4",
        "model.partial_pretrain=Qwen/Qwen2.5-0.5B",
        start="torchrun --nproc_per_node=1 -m verl.trainer.fsdp_sft_trainer",
    )
    assert done.reading.dialect == "verl_sft"
    dataset = done.content["dataset"]
    assert dataset["columns"] == {"input": "question", "target": "answer"}
    assert dataset["map"]["columns"]["question"] == "extra_info.question"
    assert (done.content["learning_rate"], done.content["batch"], done.content["seed"]) == (
        1e-5,
        256,
        1,
    )
    expected = {
        "num_train_epochs": 4,
        "adam_beta2": 0.95,
        "warmup_steps": 0.1,
        "lr_scheduler_type": "cosine",
    }
    assert expected.items() <= done.args.items()
    assert not composed(done, tmp_path)[1]


def test_conversations_train_answers_only(imported):
    done = imported("data.max_length=512", start="torchrun -m verl.trainer.sft_trainer")
    assert done.options["weight"] == "answers"
    assert done.content["dataset"]["form"] == "messages"
    assert (done.content["learning_rate"], done.args["max_length"]) == (1e-3, 512)


@pytest.mark.parametrize("script", ["recipe.spin.main_spin", "verl.trainer.main_eval"])
def test_other_commands_are_refused_by_name(imported, script):
    with pytest.raises(ConfigError, match="main_"):
        imported(start=f"python3 -m {script}")


# --- Overrides and YAML ---------------------------------------------------------------------------


def test_words_are_read_as_hydra_reads_them(tmp_path):
    (tmp_path / "config").mkdir()
    base = {
        "a": {"b": 1, "c": "${.b}", "d": "${oc.select:x.y,7}", "e": "${oc.env:HOME}"},
        "s": "${a.b}-x",
    }
    (tmp_path / "config" / "mine.yaml").write_text(yaml.safe_dump(base))
    words = [
        "a.b=2", "--config-path=$PWD/config", "+x.y=3", "--config-name", "mine", "++x.list=['u',v]",
        "x.text='[\"u\"]'", "~x.gone", "$MORE", "|", "tee", "lost.key=1",
    ]  # fmt: skip
    command = read_hydra_words(tmp_path / "train.sh", words)
    assert command.keys == {
        "a.b": "2",
        "a.c": 1,
        "a.d": 7,
        "s": "1-x",
        "x.y": "3",
        "x.list": ["u", "v"],
        "x.text": '["u"]',
    }
    assert set(command.remarks) == {"~x.gone", "words"}


def test_references_end(tmp_path):
    assert flatten_config({"a": "${b}", "b": "${a}", "c": "${a.b.c}"}) == {}


def test_an_override_below_a_comment_is_refused(tmp_path):
    (tmp_path / "theirs.sh").write_text(
        f"{START} {MODEL} \\\n # a comment\n    data.train_batch_size=8\n"
    )
    with pytest.raises(ConfigError, match="is not part of the command"):
        read_file(tmp_path / "theirs.sh")


def test_an_estimator_that_the_shell_says_is_asked_for(imported):
    with pytest.raises(ConfigError, match="trainer=grpo"):
        imported("algorithm.adv_estimator=$1", f"{ROLLOUT}.n=4")
    assert imported("algorithm.adv_estimator=$1", trainer="ppo").options["trainer"] == "ppo"


def test_every_key_is_in_one_list(imported):
    """Also those of a whole configuration, whatever stands in them."""
    keys: dict = {}
    for name in read_table("verl").keys:
        # Only keys of verl are dotted; keys of other trainers stand in the table, too.
        *groups, last = name.replace("*", "some_key").split(".")
        if not groups:
            continue
        node = keys
        for group in groups:
            node = node.setdefault(group, {})
            if not isinstance(node, dict):
                break
        else:
            node[last] = 2
    keys["algorithm"] = {**keys["algorithm"], "adv_estimator": "grpo"}
    keys["data"]["train_files"] = "a.parquet"
    done = imported(keys=keys)
    counts = collections.Counter(note.key for note in done.draft.notes)
    assert [key for key, count in counts.items() if count > 1] == []
    silent = [
        key for key, value in done.reading.keys.items() if value is not None and key not in counts
    ]
    assert silent == []


def test_a_yaml_is_read_through_its_references(imported):
    done = imported(
        keys={
            "defaults": ["ppo_trainer", "_self_"],
            "data": {"train_files": ["a.parquet", "b.parquet"], "max_response_length": 64},
            "actor_rollout_ref": {
                "model": {"path": "a/b"},
                "rollout": {"n": 4, "response_length": "${data.max_response_length}"},
                "actor": {"ppo_mini_batch_size": "${data.missing}"},
            },
            "algorithm": {"adv_estimator": "grpo"},
        }
    )
    assert done.reading.keys[f"{ROLLOUT}.response_length"] == 64
    assert done.content["batch"] == 256 * 4  # their default
    assert list(done.content["dataset"]["parts"]) == ["a", "b"]
    assert done.note("defaults").kind == SAME


# --- Rewards --------------------------------------------------------------------------------------

ROW = {
    "completions": [[{"role": "assistant", "content": "it is #### 1,234"}], "#### 5"],
    "data_source": ["openai/gsm8k"] * 2,
    "reward_model": [{"style": "rule", "ground_truth": "1234"}] * 2,
    "extra_info": [{"index": 3}, None],
}


def test_a_function_of_theirs_is_asked_as_verl_asks(tmp_path):
    asked = []

    def compute_score(data_source, solution_str, ground_truth, extra_info, bonus=0):
        asked.append((data_source, solution_str, ground_truth, extra_info))
        return {"score": len(solution_str) + bonus, "acc": 1}

    async def later(data_source, solution_str, ground_truth, extra_info):
        return solution_str.endswith("5")

    def together(data_sources, solution_strs, ground_truths, extra_infos):
        return [len(truth) for truth in ground_truths]

    assert ComputeScore(compute_score)(**ROW) == [16, 6]
    assert asked[0] == ("openai/gsm8k", "it is #### 1,234", "1234", {"index": 3})
    assert asked[1][3] == {}
    assert ComputeScore(later)(**ROW) == [0.0, 1.0]
    assert ComputeScore(together, batched=True)(**ROW) == [4, 4]
    with pytest.raises(DataError, match="reward_model"):
        ComputeScore(compute_score)(**{**ROW, "reward_model": [None, None]})
    with pytest.raises(ConfigError, match="_partial_"):
        ComputeScore(3)


@pytest.mark.parametrize(
    ("source", "truth", "text", "score"),
    [
        ("openai/gsm8k", "1234", "so #### 1,234", 1.0),
        ("openai/gsm8k", "1234", "#### 1234" + " and on" * 60, 0.0),  # too far from the end
        ("openai/gsm8k", "1234", r"\boxed{1234}", 0.0),
        ("HuggingFaceH4/MATH-500", "1/2", r"so \boxed{0.5}", 1.0),
        ("numina_olympiads", "7", "the answer: 7", 0.0),
        ("math_dapo", "34", "Answer: 3\nAnswer: 34", 1.0),
        ("aime2024", "34", r"\boxed{34}", -1.0),
        ("hiyouga/geometry3k", "2", r"<think>so</think> \boxed{2}", 1.0),
        ("hiyouga/geometry3k", "2", r"\boxed{2}", 0.9),
    ],
)
def test_the_rule_of_a_source(source, truth, text, score):
    pytest.importorskip("math_verify")
    columns = {"data_source": [source], "reward_model": [{"ground_truth": truth}]}
    assert score_by_source([text], **columns) == pytest.approx([score])


def test_a_source_without_a_rule_is_told():
    columns = {"data_source": ["own/rows"], "reward_model": [{"ground_truth": "1"}]}
    with pytest.raises(DataError, match="own/rows"):
        score_by_source(["1"], **columns)


def test_a_step_lifts_what_lies_in_a_column():
    row = {"extra_info": {"question": "1 + 1?"}}
    assert lift(row, {"question": "extra_info.question"}) == {**row, "question": "1 + 1?"}
    with pytest.raises(DataError, match="nothing at extra_info"):
        lift(row, {"answer": "extra_info.answer"})


def test_a_reward_model_takes_the_place_of_the_rules(imported):
    done = imported("reward_model.enable=True", "reward_model.model.path=org/scorer")
    assert done.content["reward"] == {
        "model": {"_target_": "runner.reward.outcome.load_reward_model", "path": "org/scorer"}
    }


def to_row(number: int) -> dict:
    """A row of verl's parquet files."""
    digits = f"{number % 7} {number % 5} {number % 3} 1"
    return {
        "data_source": "own/sort",
        "prompt": [{"role": "user", "content": f"Sort {digits}"}],
        "ability": "sort",
        "reward_model": {"style": "rule", "ground_truth": str(number % 7)},
        "extra_info": {"index": number, "question": f"Sort {digits}"},
    }


@pytest.mark.slow
def test_an_import_trains_on_rows_of_verl_with_a_function_of_the_user(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "scoring").mkdir()
    (tmp_path / "scoring" / "digits.py").write_text(
        "async def count(data_source, solution_str, ground_truth, extra_info, bonus):\n"
        "    assert data_source == 'own/sort' and 'Sort' in extra_info['question']\n"
        "    return {'score': bonus + solution_str.count(ground_truth), 'acc': 1.0}\n"
    )
    rows = [to_row(number) for number in range(20)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "train.parquet")
    words = [
        START,
        *GROUPS[:1],
        f"{ROLLOUT}.n=4",
        "data.train_files=train.parquet",
        "data.train_batch_size=4",
        "data.max_response_length=6",
        "actor_rollout_ref.model.path=runner://model/tiny",
        f"{ACTOR}.optim.lr=1e-3",
        f"{ACTOR}.ppo_mini_batch_size=2",
        "custom_reward_function.path=scoring/digits.py",
        "custom_reward_function.name=count",
        "+custom_reward_function.reward_kwargs.bonus=0.5",
        "trainer.total_epochs=1",
    ]
    (tmp_path / "train.sh").write_text(" \\\n  ".join(words))
    assert verb_main("import", "train.sh", "name=mine") == 0
    done = train("experiment=mine", "allow=[scoring]", "--config-dir", "conf", name="mine")
    assert (done.code, done.state()) == (0, "finished")
    status = json.loads((done.run.folder / "status.json").read_text())
    # 20 prompts, 4 of them a sampling, and 2 of them a step.
    assert status["step"] == 20 // 4 * 2
    means = [line["reward"] for line in done.lines if "reward" in line]
    assert means
    assert min(means) >= 0.5, "each completion earns the bonus"


def verb_main(*words: str) -> int:
    """The public command, in this process."""
    from runner.__main__ import main

    return main(list(words))


def test_a_function_of_the_user_is_named_with_its_module(imported):
    done = imported(
        "custom_reward_function.path=./scoring/digits.py", "custom_reward_function.name=count"
    )
    function = {"_target_": "scoring.digits.count", "_partial_": True}
    entry = {"_target_": "runner.reward.verl.ComputeScore", "function": function}
    assert done.content["reward"] == {"compute_score": entry}
    assert done.draft.overrides == ["allow=[scoring]"]
    assert done.note("custom_reward_function.path").kind == MAPPED


@pytest.mark.parametrize("mark", ["ppo_micro_batch_size=8", "fsdp_config.grad_offload=False"])
def test_a_script_for_an_early_version_has_its_defaults(imported, mark):
    done = imported(*GROUPS, f"{ACTOR}.{mark}")
    assert done.content["loss"]["kl_in"] == "reward"
    assert "dual_clip" not in done.content["loss"]
    assert done.content["kl_coef"] == 0.001
    # A loss of pieces has no bonus, which is told; without the KL it is a field of TRL's.
    assert done.note(f"{ACTOR}.entropy_coeff").kind == NO_EQUIVALENT
    assert "before 0.3" in done.note("algorithm.kl_ctrl.kl_coef").why
    told = imported(*GROUPS, f"{ACTOR}.{mark}", "algorithm.use_kl_in_reward=False")
    assert (told.content["kl_coef"], told.args["entropy_coef"]) == (0.0, 0.001)


def test_a_yaml_of_verl_is_an_experiment_by_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    actor_rollout_ref = {"model": {"path": "runner://model/tiny"}, "rollout": {"n": 2}}
    keys = {
        "actor_rollout_ref": actor_rollout_ref,
        "data": {"train_files": "runner://dataset/toy_sort"},
        "algorithm": {"adv_estimator": "grpo"},
        "trainer": {"total_training_steps": 2, "logger": ["console"]},
    }
    Path("theirs.yaml").write_text(yaml.safe_dump(keys))
    assert verb_main("experiment=theirs.yaml", "--dry-run") == 0
    assert "theirs.yaml, of verl" in capsys.readouterr().err
