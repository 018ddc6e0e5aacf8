"""Whole PPO trainings on the stock loop.

Resume, evaluation, saving, several processes, and learning.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from tiny_ppo import (
    END,
    LETTERS,
    farthest,
    letter_model,
    letter_rows,
    letter_tokenizer,
    letter_trainer,
    logs_of,
    lora,
    weights,
)
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    EarlyStoppingCallback,
    TrainerCallback,
)

from runner.ppo.dynamic_sampling import roll_out_groups
from runner.ppo.scoring import score
from runner.ppo.token_rewards import RunningStats

IDS = torch.tensor([[1, 2, 3, 4, 5, END]])
KINDS = {
    "model": {},
    "renamed keys": {"kind": "gpt_neox"},
    "no classifier": {"kind": "cohere"},
    "adapter": {"peft_config": lora()},
    "head": {
        "critic": "head",
        "reward_funcs": lambda completion_ids, **_: [[*map(float, ids)] for ids in completion_ids],
    },
}
TIMED = ("time/", "eps", "tokens_per", "train_")


def build(folder, kind="llama", **asked):
    return letter_trainer(folder, model=letter_model(kind), **asked)


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


# --- Resume -------------------------------------------------------------------------------------


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("case", "step"),
    [("renamed keys", 2), ("no classifier", 2), ("adapter", 3), ("model", 3), ("head", 2)],
)
@pytest.mark.slow
def test_a_resumed_training_ends_with_the_same_bits(tmp_path, case, step):
    """At the end of a pass over the data, or within one."""
    asked = {
        "rows": letter_rows(20),
        "max_steps": 5,
        "save_strategy": "steps",
        "save_steps": step,
        "kl_target": 1.0,
    }
    asked |= {
        "kl_horizon": 50,
        "score_normalization": "whiten",
        "num_mini_batches": 2,
        "num_ppo_epochs": 2,
    }
    uninterrupted = build(tmp_path / "whole", **asked, **KINDS[case])
    uninterrupted.train()
    resumed = build(tmp_path / "resumed", **(asked | {"save_strategy": "no"}), **KINDS[case])
    torch.rand(5)  # the resuming process has other random numbers
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert farthest(weights(uninterrupted), weights(resumed)) == 0
    assert uninterrupted.running == resumed.running
    assert uninterrupted.running.count >= 40
    assert uninterrupted.running.kl_coef != 0.05
    state = uninterrupted.optimizer.state_dict()["state"]
    two = resumed.optimizer.state_dict()["state"]
    for key in state:
        assert torch.equal(state[key]["exp_avg"], two[key]["exp_avg"])
        assert torch.equal(state[key]["exp_avg_sq"], two[key]["exp_avg_sq"])
    assert [told(line) for line in logs_of(uninterrupted)] == [
        told(line) for line in logs_of(resumed)
    ]


def told(line):
    """A logged line without figures of the clock."""
    return {name: value for name, value in line.items() if not name.startswith(TIMED)}


@pytest.mark.slow
def first_letter(completions, **_):
    """One number for nearly all completions, so that many prompts have a group of equal rewards."""
    return [float(text.startswith("c")) for text in completions]


@pytest.mark.slow
def test_prompts_whose_completions_earn_the_same_give_way_to_others(tmp_path):
    asked = {
        "rows": letter_rows(20),
        "num_generations": 4,
        "reward_funcs": first_letter,
        "temperature": 1.5,
    }
    drawn_rows = {}
    for times in (0, 4):
        trainer = build(tmp_path / str(times), **asked, dynamic_sampling=times, max_steps=1)
        rollouts = [
            roll_out_groups(trainer, trainer.train_dataset.select(range(row, row + 5)).to_list())
            for row in (0, 5)
        ]
        groups = []
        for rollout in rollouts:
            scores = score(trainer, rollout)
            groups.append(scores.figures["objective/scores"].view(5, 4))
        drawn_rows[times] = sum((group.amax(1) > group.amin(1)).sum().item() for group in groups)
        for rollout in rollouts:
            prompts = [row["prompt"] for row in rollout.rows]
            assert prompts == [prompt for prompt in prompts[::4] for _ in range(4)]
    assert drawn_rows[0] < drawn_rows[4]


@pytest.mark.slow
def test_dynamic_sampling_resumes_to_the_same_bits(tmp_path):
    asked = {
        "rows": letter_rows(20),
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "num_generations": 4,
    }
    asked |= {
        "dynamic_sampling": 4,
        "temperature": 1.5,
        "reward_funcs": first_letter,
        "num_ppo_epochs": 2,
    }
    uninterrupted = build(tmp_path / "whole", **asked)
    uninterrupted.train()
    assert logs_of(uninterrupted)[-1]["episode"] == 8
    assert any(line["sampling/prompts_exchanged"] for line in logs_of(uninterrupted))
    shares = [line["frac_reward_zero_std"] for line in logs_of(uninterrupted)]
    assert set(shares) <= {0.0, 0.5, 1.0}  # of 2 prompts
    assert min(shares) < 1
    resumed = build(tmp_path / "resumed", **asked | {"save_strategy": "no"})
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert farthest(weights(uninterrupted), weights(resumed)) == 0


@pytest.mark.slow
def test_the_newest_checkpoint_is_found(tmp_path):
    asked = {
        "save_strategy": "steps",
        "save_steps": 1,
        "score_normalization": "scale",
        "num_ppo_epochs": 1,
    }
    build(tmp_path, **asked).train()
    resumed = build(tmp_path, **(asked | {"max_steps": 3, "save_strategy": "no"}))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 3
    assert resumed.running.count == 24
    assert (
        RunningStats(**json.loads((tmp_path / "checkpoint-2" / "ppo_state.json").read_text())).count
        == 16
    )


def test_the_stock_checkpoint_is_what_the_module_takes(tmp_path):
    """Resuming relies on this; if it fails, transformers writes checkpoints in another way."""
    trainer = build(tmp_path, "gpt_neox")
    trainer.save_model(str(tmp_path / "here"), _internal_call=True)
    state = load_file(tmp_path / "here" / "model.safetensors")
    assert state.keys() == weights(trainer).keys()
    assert farthest(state, weights(trainer)) == 0
    trainer.actor_critic.load_state_dict(state)


# --- Evaluation, best checkpoint, callbacks -----------------------------------------------------


@pytest.mark.slow
def test_held_out_prompts_are_scored_one_and_all_with_the_same_noise(tmp_path):
    trainer = build(
        tmp_path, eval_dataset=letter_rows(7), per_device_eval_batch_size=3, missing_eos_penalty=1.0
    )
    before = weights(trainer)
    first = trainer.evaluate()
    second = trainer.evaluate()
    scored_by = (
        "eval_objective/scores",
        "eval_objective/kl",
        "eval_completions/mean_length",
        "eval_rewards/share_of_wanted/mean",
    )
    assert [first[name] for name in scored_by] == [second[name] for name in scored_by]
    trainer.args.per_device_eval_batch_size = 2
    third = trainer.evaluate()
    assert [third[name] for name in scored_by] == pytest.approx(
        [first[name] for name in scored_by], rel=1e-5, abs=1e-6
    )
    rows = [json.loads(line) for line in (tmp_path / "completions.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == letter_rows(7)["prompt"]
    assert first["eval_objective/scores"] == pytest.approx(sum(row["score"] for row in rows) / 7)
    assert first["eval_objective/scores"] < first["eval_rewards/share_of_wanted/mean"]
    assert farthest(before, weights(trainer)) == 0
    assert trainer.running.count == 0


@pytest.mark.slow
def test_held_out_prompts_need_no_log_probabilities_without_a_distance(tmp_path, monkeypatch):
    def evaluate(kl_coef):
        trainer = build(
            tmp_path, eval_dataset=letter_rows(3), kl_coef=kl_coef, old_logprobs="recompute"
        )
        passes = []
        monkeypatch.setattr(trainer.actor_critic, "logprobs", count(passes, trainer.actor_critic))
        return trainer.evaluate(), len(passes)

    def count(passes, actor_critic):
        logprobs = actor_critic.logprobs
        return lambda *args: passes.append(args) or logprobs(*args)

    with_distance, passes = evaluate(0.05)
    assert passes and with_distance["eval_objective/kl"] is not None
    without_distance, passes = evaluate(0.0)
    assert not passes
    assert without_distance["eval_objective/scores"] == with_distance["eval_objective/scores"]


@pytest.mark.slow
def test_evaluating_does_not_change_the_training(tmp_path):
    held = {
        "eval_dataset": letter_rows(8),
        "eval_strategy": "steps",
        "eval_steps": 1,
        "num_sample_generations": 2,
    }
    trainers = [
        build(tmp_path, num_ppo_epochs=1, score_normalization="scale", **settings)
        for settings in ({}, held)
    ]
    for trainer in trainers:
        trainer.train()
    assert farthest(*map(weights, trainers)) == 0


@pytest.mark.slow
def test_samples_do_not_replace_those_of_an_evaluation(tmp_path):
    build(
        tmp_path, eval_dataset=letter_rows(8), per_device_eval_batch_size=2,
        num_sample_generations=2, num_ppo_epochs=1,
        eval_strategy="steps", eval_steps=1,
    ).train()  # fmt: skip
    lines = (tmp_path / "completions.jsonl").read_text().splitlines()
    counts = Counter((row["step"], row["set"]) for row in map(json.loads, lines))
    assert counts == {(0, "samples"): 2, (1, "samples"): 2, (1, "eval"): 8, (2, "eval"): 8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "steps"), [(0, []), (1, [0]), (3, [0, 3, 5]), (5, [0, 2, 3, 5, 6]), (9, [*range(7)])]
)
def test_samples_are_written_so_many_times_evenly_spread(tmp_path, times, steps):
    asked = {
        "max_steps": 7,
        "num_sample_generations": times,
        "eval_dataset": letter_rows(1),
        "num_ppo_epochs": 1,
    }
    asked |= {
        "response_length": 1,
        "per_device_train_batch_size": 2,
        "kl_coef": 0.0,
        "critic": "head",
    }
    build(tmp_path, **asked).train()
    lines = (tmp_path / "completions.jsonl").read_text().splitlines() if times else []
    assert [json.loads(line)["step"] for line in lines] == steps


@pytest.mark.slow
def test_every_held_out_set_is_in_the_table(tmp_path):
    held = {"one": letter_rows(3), "two": letter_rows(2)}
    trainer = build(tmp_path, eval_dataset=held)
    metrics = trainer.evaluate()
    assert {"eval_one_objective/scores", "eval_two_objective/scores"} <= set(metrics)
    assert len((tmp_path / "completions.jsonl").read_text().splitlines()) == 5


class Events(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_step_end(self, *args, **kwargs):
        self.seen.append("step")

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append("log" if "objective/kl" in logs else "other log")

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.seen.append("evaluate" if "eval_objective/scores" in metrics else "?")

    def on_save(self, *args, **kwargs):
        self.seen.append("save")


@pytest.mark.slow
def test_the_best_checkpoint_comes_back_and_callbacks_see_every_event(tmp_path):
    events = Events()
    trainer = build(
        tmp_path, eval_dataset=letter_rows(8), max_steps=4, learning_rate=0.03, num_ppo_epochs=2,
        callbacks=[events],
        eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_objective/kl", greater_is_better=True,
    )  # fmt: skip
    trainer.train()
    scores = [
        line["eval_objective/kl"]
        for line in trainer.state.log_history
        if "eval_objective/kl" in line
    ]
    best = tmp_path / f"checkpoint-{scores.index(max(scores)) + 1}"
    assert trainer.state.best_model_checkpoint == str(best)
    assert len(set(scores)) > 1
    assert farthest(weights(trainer), load_file(best / "model.safetensors")) == 0
    checkpoints = [
        load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors") for step in range(1, 5)
    ]
    assert sorted(farthest(checkpoint, weights(trainer)) > 0 for checkpoint in checkpoints) == [
        False,
        True,
        True,
        True,
    ]
    assert events.seen[:16] == ["step", "log", "other log", "evaluate", "save"] * 3 + ["step"]


@pytest.mark.slow
def test_training_stops_early_where_the_metric_does_not_rise(tmp_path):
    def constant(prompts, **_):
        return [1.0] * len(prompts)

    trainer = build(
        tmp_path, eval_dataset=letter_rows(8), max_steps=6, num_ppo_epochs=1, reward_funcs=constant,
        eval_strategy="steps", eval_steps=1, metric_for_best_model="eval_objective/scores",
        greater_is_better=True,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)], load_best_model_at_end=True,
        save_strategy="steps", save_steps=1,
    )  # fmt: skip
    trainer.train()
    assert trainer.state.global_step == 3


# --- Saves load elsewhere -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_a_policy_and_its_critic_load_elsewhere(tmp_path, kind):
    trainer = build(tmp_path, kind, save_strategy="steps", save_steps=2, num_ppo_epochs=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    for folder in (tmp_path / "model", tmp_path / "checkpoint-2" / "policy"):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        assert torch.equal(logits(loaded), logits(trainer.actor_critic.policy))
        assert not torch.equal(logits(loaded), logits(letter_model(kind)))
        assert (folder / "tokenizer.json").exists()
    critic = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model" / "value_model")
    assert torch.equal(logits(critic), logits(trainer.actor_critic.value_model))


@pytest.mark.slow
def test_an_adapter_loads_elsewhere(tmp_path):
    trainer = build(
        tmp_path, peft_config=lora(), save_strategy="steps", save_steps=2, num_ppo_epochs=1
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    for folder in (tmp_path / "model", tmp_path / "checkpoint-2" / "policy"):
        loaded = PeftModel.from_pretrained(letter_model(), folder)
        assert torch.equal(logits(loaded), logits(trainer.actor_critic.policy))
        for name in load_file(folder / "adapter_model.safetensors"):
            assert "critic" not in name
    assert (tmp_path / "model" / "value_model" / "value_head.safetensors").exists()


@pytest.mark.slow
def test_an_adapter_of_any_name_loads_elsewhere(tmp_path):
    model = get_peft_model(letter_model(), lora(init_lora_weights=False), adapter_name="mine")
    trainer = letter_trainer(tmp_path, model=model, max_steps=1, num_ppo_epochs=1)
    trainer.save_model(str(tmp_path / "model"))
    loaded = PeftModel.from_pretrained(letter_model(), tmp_path / "model")
    assert torch.equal(logits(loaded), logits(trainer.actor_critic.policy))


# --- Several processes --------------------------------------------------------------------------


def without_clocks(line: dict) -> dict:
    """A logged line without the figures that depend on the speed of the machine."""
    return {k: v for k, v in line.items() if not k.startswith(("time", "eps", "tokens_per"))}


def train_sides(words):
    """Train as one of so many processes, with and without a joint adapter, in whole and half
    minibatches.

    The group of processes is left to the end of the process: where DDP's reducer holds it last,
    torch takes it down with the lock of the interpreter in hand, for which a thread of gloo may
    wait, for ever.
    """
    count = int(words[0])
    folder = words[1]
    sides = []
    for settings, parts in (({}, 2), ({"peft_config": lora()}, 1)):
        trainer = letter_trainer(
            folder,
            rows=letter_rows(20),
            per_device_train_batch_size=8 // count,
            num_mini_batches=parts,
            num_ppo_epochs=2,
            optim="sgd",
            learning_rate=0.3,
            kl_target=1.0,
            kl_horizon=50,
            max_steps=3,
            score_normalization="whiten",
            eval_dataset=letter_rows(7),
            per_device_eval_batch_size=4 // count,
            missing_eos_penalty=0.5,
            **settings,
        )
        trainer.train()
        scores = trainer.evaluate()
        logs = [without_clocks(line) for line in logs_of(trainer)]
        sides.append((weights(trainer), logs, trainer.running.__dict__, scores))
    if trainer.is_world_process_zero():
        torch.save(sides, Path(folder) / "found.pt")


@pytest.mark.slow
def test_two_processes_train_as_one(runner, tmp_path):
    one, two = (tmp_path / name for name in ("one", "two"))
    train_sides(["1", str(one)])
    for started in runner.start_two("2", str(two), door="test_ppo_training:train_sides"):
        assert started.wait().returncode == 0
    results = [torch.load(folder / "found.pt", weights_only=False) for folder in (one, two)]
    for one, two in zip(*results, strict=True):
        assert farthest(one[0], two[0]) < 1e-5
        assert two[2] == pytest.approx(one[2], rel=1e-4)
        for line, other_line in zip(one[1], two[1], strict=True):
            assert other_line == pytest.approx(line, rel=1e-3, abs=1e-4)
        names = [name for name in one[3] if "/" in name]
        assert {name: two[3][name] for name in names} == pytest.approx(
            {name: one[3][name] for name in names}, abs=1e-4
        )


# --- Learning -----------------------------------------------------------------------------------


def letters_b(completions, **_):
    return [text.count("b") / 6 for text in completions]


@torch.no_grad()
def distance(trainer):
    """KL of the trained policy from its start, after each prompt, from whole distributions."""
    trained, start = (
        m.eval()(torch.arange(20)[:, None]).logits.log_softmax(-1)
        for m in (trainer.actor_critic.policy, letter_model())
    )
    return (trained.exp() * (trained - start)).sum(-1).mean().item()


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("case", ["full", "adapter"])
def test_a_huge_kl_coefficient_holds_the_policy_and_none_lets_it_go(tmp_path, case):
    asked = {
        "reward_funcs": letters_b,
        "max_steps": 12,
        "learning_rate": 1e-3,
        "stop_token": None,
        "temperature": 1.0,
    }
    asked |= {"rows": letter_rows(32), "per_device_train_batch_size": 32, "response_length": 2}
    asked |= (
        {"peft_config": lora(), "learning_rate": 4e-3, "max_steps": 15} if case == "adapter" else {}
    )
    distances = {}
    for kl_coef in (0.0, 100.0):
        trainer = build(tmp_path, kl_coef=kl_coef, **asked)
        trainer.train()
        distances[kl_coef] = distance(trainer)
    assert distances[100.0] < distances[0.0] / 10, distances


BANDIT = {
    "full": {"learning_rate": 1e-2},
    "adapter": {"learning_rate": 8e-3, "peft_config": lora(r=8, lora_alpha=32), "max_steps": 40},
}


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(("case", "seed"), [*zip(BANDIT, range(len(BANDIT)), strict=True)])
def test_a_bandit_is_solved_whatever_the_seed(tmp_path, case, seed):
    """The right answer is the letter after that of the prompt."""

    def right(prompts, completions, **_):
        after = dict(zip(LETTERS, LETTERS[1:] + "a", strict=True))
        return [
            float(text == after[prompt]) for prompt, text in zip(prompts, completions, strict=True)
        ]

    rows = Dataset.from_dict({"prompt": [*"abcd" * 16]})
    spread = 0.1 if case == "full" else 0.3
    asked = {
        "max_steps": 25,
        "response_length": 1,
        "per_device_train_batch_size": 64,
        "stop_token": None,
    }
    asked |= {
        "rows": rows,
        "eval_dataset": rows,
        "reward_funcs": right,
        "kl_coef": 0.0,
        "temperature": 1.0,
    }
    trainer = letter_trainer(
        tmp_path, model=letter_model(seed=seed, spread=spread), seed=seed, **asked | BANDIT[case]
    )
    before = trainer.evaluate()["eval_objective/scores"]
    trainer.train()
    after = trainer.evaluate()["eval_objective/scores"]
    # An adapter under a frozen output layer cannot become much more confident than this.
    assert before < 0.2
    assert after > (0.9 if case == "full" else 0.5)
    answers = trainer.actor_critic.policy(torch.arange(4)[:, None]).logits[:, -1].argmax(-1)
    assert answers.tolist() == [1, 2, 3, 4]


@pytest.mark.slow
def test_the_critic_comes_to_explain_the_returns(tmp_path):
    def wanted(prompts, **_):
        return [float(prompt in "abc") for prompt in prompts]

    rows = Dataset.from_dict({"prompt": [*"abcdefgh" * 4]})
    trainer = letter_trainer(
        tmp_path, rows=rows, reward_funcs=wanted, per_device_train_batch_size=32, max_steps=20,
        kl_coef=0.0,
        vf_coef=1.0, value_warmup_steps=20,
    )  # fmt: skip
    trainer.train()
    explained = [line["val/explained_variance"] for line in logs_of(trainer)]
    assert explained[0] < 0.1
    assert explained[-1] > 0.8


@pytest.mark.slow
def test_the_tokenizer_needs_no_pad_token(tmp_path):
    trainer = build(
        tmp_path,
        processing_class=letter_tokenizer(None),
        eval_dataset=letter_rows(8),
        num_ppo_epochs=1,
    )
    trainer.train()
    assert trainer.processing_class.pad_token is None
    assert "eval_objective/scores" in trainer.evaluate()
