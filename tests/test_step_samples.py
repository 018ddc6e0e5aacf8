"""The completions that a step was trained on: a few rows, each with its own rewards."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from laid import lay_run
from tiny import tiny_tokenizer

from runner.io.files import forget_rows, read_rows, replace_rows
from runner.report.run_page import to_run_page
from runner.reward.panel import RewardTracker, to_scorer, watch_reward
from runner.run.history import read_rollouts, read_samples
from runner.run.record import read_run
from runner.training.step_samples import (
    MAX_CHARACTERS,
    MAX_STEPS,
    SHOWN,
    StepSamples,
    choose_rows,
    finish_of,
    is_due,
    read_batch,
    shorten_side,
)

PROMPTS = ["Sort 3 1", "Sort 3 1", "Sort 1 3", "Sort 1 3"]
TEXTS = ["1 3", "3 1", "1 3", "3 1"]
REWARDS = [1.0, None, 0.25, 0.5]


def state(step=1, total=10, history=()):
    return SimpleNamespace(global_step=step, max_steps=total, log_history=list(history))


@pytest.fixture
def trainer():
    """What is asked of a trainer of TRL: its step, and the tokens that end its model."""
    tokenizer = tiny_tokenizer()
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=[tokenizer.eos_token_id])
    )
    return SimpleNamespace(
        state=state(),
        args=SimpleNamespace(),
        model=model,
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        is_world_process_zero=lambda: True,
        tokenizer=tokenizer,
    )


def batch_of(tokenizer, rows, advantages=None):
    """Rows (prompt, completion) as GRPO gives them to ``compute_loss``, shuffled already."""
    columns = {}
    for name, side, texts in (
        ("prompt", "left", [prompt for prompt, _ in rows]),
        ("completion", "right", [text + tokenizer.eos_token for _, text in rows]),
    ):
        encoded = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
        columns[f"{name}_ids"] = encoded["input_ids"]
        columns[f"{name}_mask"] = encoded["attention_mask"]
    if advantages is not None:
        columns["advantages"] = torch.tensor(advantages)
    return columns


def samples_of(folder, trainer, *calls):
    tracker = RewardTracker()
    samples = StepSamples(
        folder / "completions.jsonl", trainer.tokenizer, tracker.scored, dict.fromkeys(calls, 2.0)
    )
    return samples, tracker


def score(tracker, tokenizer, name="near", prompts=PROMPTS, texts=TEXTS, rewards=REWARDS):
    """Ask a reward as a trainer does."""
    ids = [tokenizer(text + tokenizer.eos_token)["input_ids"] for text in texts]
    scorer = to_scorer(name, lambda completions, **columns: list(rewards), tracker=tracker)
    extra = to_scorer("one", lambda completions, **columns: [1.0] * 4, tracker=tracker)
    for function in (scorer, extra):
        function(prompts=prompts, completions=texts, completion_ids=ids)


def test_a_row_has_its_own_rewards_and_advantage_though_another_prompt_has_the_same_answer(
    tmp_path, trainer
):
    samples, tracker = samples_of(tmp_path, trainer, "near")
    samples.begin(trainer)
    score(tracker, trainer.tokenizer)
    order = [3, 0, 2, 1]
    rows = [(PROMPTS[place], TEXTS[place]) for place in order]
    batch = batch_of(trainer.tokenizer, rows, [0.5, 1.5, -0.5, -1.5])
    samples.add_batch({name: value[:2] for name, value in batch.items()})
    samples.begin(trainer)  # the next micro-batch of the same step
    samples.add_batch({name: value[2:] for name, value in batch.items()})
    trainer.state = state(2)
    samples.write(trainer)
    written = read_rows(tmp_path / "completions.jsonl")
    figures = [
        (row["prompt"], row["completion"], row["rewards"], row["reward"], row["advantage"])
        for row in written
    ]
    assert figures == [
        ("Sort 1 3", "3 1", {"near": 0.5, "one": 1.0}, 2.0, 0.5),
        ("Sort 1 3", "1 3", {"near": 0.25, "one": 1.0}, 1.5, -0.5),
        ("Sort 3 1", "1 3", {"near": 1.0, "one": 1.0}, 3.0, 1.5),
        ("Sort 3 1", "3 1", {"near": None, "one": 1.0}, 1.0, -1.5),
    ]
    assert {(row["step"], row["source"], row["finish"]) for row in written} == {
        (2, "rollout", "stop")
    }
    assert written[0]["tokens"] == len(trainer.tokenizer("3 1")["input_ids"]) + 1


def test_what_an_evaluation_scores_is_not_what_was_trained(tmp_path, trainer):
    samples, tracker = samples_of(tmp_path, trainer)
    samples.begin(trainer)
    score(tracker, trainer.tokenizer)
    samples.add_batch(batch_of(trainer.tokenizer, [(PROMPTS[0], TEXTS[0])]))
    score(tracker, trainer.tokenizer, prompts=["held out"] * 4)  # an evaluation
    trainer.state = state(2)
    samples.begin(trainer)  # a step that trains on the same rollout once more
    samples.add_batch(batch_of(trainer.tokenizer, [(PROMPTS[1], TEXTS[1])]))
    samples.write(trainer)
    (row,) = read_rows(tmp_path / "completions.jsonl")
    assert (row["prompt"], row["completion"], row["advantage"]) == (PROMPTS[1], TEXTS[1], None)


def test_a_step_that_samples_several_times_has_the_rewards_of_each(tmp_path, trainer):
    samples, tracker = samples_of(tmp_path, trainer)
    for prompts, texts, reward in ((["a"] * 4, TEXTS, 1.0), (["b"] * 4, ["7", "8", "9", "6"], 2.0)):
        samples.begin(trainer)
        score(tracker, trainer.tokenizer, prompts=prompts, texts=texts, rewards=[reward] * 4)
        samples.add_batch(batch_of(trainer.tokenizer, [(prompts[1], texts[1])]))
    samples.write(trainer)
    written = read_rows(tmp_path / "completions.jsonl")
    assert [(row["prompt"], row["rewards"]["near"]) for row in written] == [("a", 1.0), ("b", 2.0)]


def test_an_episode_is_shown_turn_by_turn_with_its_own_reward(tmp_path, trainer):
    """The same tokens may earn different rewards, because other rows begin alike."""
    trainer.num_generations = 2
    samples, tracker = samples_of(tmp_path, trainer)
    samples.begin(trainer)
    tokenizer = trainer.tokenizer
    texts = ["7", "8"] * 2
    turns = [{"role": "assistant", "content": "7"}, {"role": "user", "content": "no"}]
    episodes = []
    for place in range(4):
        prompt = [{"role": "user", "content": f"row {place // 2}"}]
        ids = tokenizer("?")["input_ids"]
        episodes.append({"prompt": prompt, "completion": turns, "prompt_ids": ids})
    scorer = to_scorer("won", lambda completions, **_: [1.0, 0.0, 0.0, 1.0], tracker=tracker)
    ids = [tokenizer(text + tokenizer.eos_token)["input_ids"] for text in texts]
    scorer(prompts=["?"] * 4, completions=texts, completion_ids=ids, environment_episodes=episodes)
    samples.add_batch(batch_of(tokenizer, [("?", "7"), ("?", "7")], [-0.5, 0.5]))
    samples.write(trainer)
    written = read_rows(tmp_path / "completions.jsonl")
    figures = {
        row["advantage"]: (row["prompt"][0]["content"], row["rewards"]["won"]) for row in written
    }
    assert figures == {-0.5: ("row 1", 0.0), 0.5: ("row 0", 1.0)}
    assert written[0]["completion"] == turns


def test_without_a_batch_the_scored_completions_are_written(tmp_path, trainer):
    samples, tracker = samples_of(tmp_path, trainer)
    samples.begin(trainer)
    score(tracker, trainer.tokenizer)
    samples.write(trainer)
    written = read_rows(tmp_path / "completions.jsonl")
    assert [row["completion"] for row in written] == ["1 3", "3 1", "3 1", "1 3"]
    assert {(row["advantage"], row["finish"]) for row in written} == {(None, "stop")}


def test_without_rewards_the_tokens_of_the_batch_are_written(tmp_path, trainer):
    samples, _ = samples_of(tmp_path, trainer)
    samples.begin(trainer)
    samples.add_batch({"input_ids": torch.ones(2, 3)})  # of a trainer that samples nothing
    samples.write(trainer)
    assert not (tmp_path / "completions.jsonl").exists()
    samples.add_batch(batch_of(trainer.tokenizer, [("Sort 3 1", "1 3")]))
    samples.write(trainer)
    (row,) = read_rows(tmp_path / "completions.jsonl")
    assert (row["prompt"], row["completion"], row["rewards"]) == ("Sort 3 1", "1 3", {})


def test_rewards_of_environments_are_noted_as_well(tmp_path, trainer):
    samples, tracker = samples_of(tmp_path, trainer)
    trainer.reward_funcs = [lambda completions, **columns: [7.0] * len(completions)]
    trainer.reward_func_names = ["Game"]
    samples.begin(trainer)
    trainer.reward_funcs[0](prompts=["p"], completions=["c"])
    samples.write(trainer)
    (row,) = read_rows(tmp_path / "completions.jsonl")
    assert (row["rewards"], row["tokens"], row["finish"]) == ({"Game": 7.0}, None, None)

    async def later(completions, **columns):
        return [1.0]

    watched = watch_reward("later", later, tracker.scored)
    columns = {"prompts": ["p"], "completions": ["d"]}
    with pytest.raises(StopIteration):
        watched(**columns).send(None)
    assert tracker.scored.answers == {"later": [1.0]}


def test_a_completion_that_is_masked_as_a_whole_keeps_its_tokens():
    batch = {
        "prompt_ids": torch.tensor([[0, 5]]),
        "prompt_mask": torch.tensor([[0, 1]]),
        "completion_ids": torch.tensor([[7, 8, 9, 0]]),
        "completion_mask": torch.tensor([[0, 0, 0, 0]]),
    }
    (trained,) = read_batch(batch, pad=0)
    assert (trained.prompt_ids, trained.ids, trained.advantage) == ([5], [7, 8, 9], None)
    turns = [{"role": "assistant", "content": ""}, {"role": "tool", "content": "7"}]
    assert finish_of("7 8 9", trained.ids, [0]) == "length"
    assert finish_of(turns, trained.ids, [0]) == "tool"
    assert finish_of([*turns, {"role": "assistant", "content": "7"}], [7, 0], [0]) == "stop"
    turns = [{"role": "assistant", "content": "", "tool_calls": [{}]}]
    assert finish_of(turns, [7, 0], [0]) == "tool"


def test_the_best_and_the_worst_of_the_first_prompts_are_chosen():
    rows = [
        {"prompt": f"p{place // 8}", "advantage": float(place % 8), "place": place}
        for place in range(32)
    ]
    assert [row["place"] for row in choose_rows(rows)] == [7, 0, 15, 8]
    alike = [{"prompt": str(place), "advantage": None, "reward": 1.0} for place in range(9)]
    assert choose_rows(alike) == alike[:SHOWN]


def test_a_long_training_writes_evenly_spread_steps_whenever_it_was_resumed():
    history = []
    due = []
    total = 20 * MAX_STEPS
    for step in range(5, total + 1, 5):
        if is_due(SimpleNamespace(state=state(step, total, history))):
            due.append(step)
        history = [*history[-1:], {"step": step, "loss": 1.0}, {"step": step, "eval_loss": 1.0}]
    assert (due[0], due[1], due[-1]) == (5, 20, total)
    assert len(due) == MAX_STEPS + 1
    assert {second - first for first, second in pairwise(due[1:])} == {20}


def test_long_sides_keep_their_ends_and_media_only_their_kind():
    long = "a" * MAX_CHARACTERS + "end"
    short = shorten_side(long)
    assert len(short) < len(long) + 40
    assert short.startswith("aaa")
    assert short.endswith("[... 3 characters ...] " + long[-MAX_CHARACTERS // 2 :])
    (turn,) = shorten_side([{"role": "user", "content": "?"}, {"role": "tool", "content": long}])
    assert turn["role"] == "tool"
    assert turn["content"].startswith("user: ?")
    parts = [{"type": "image", "image": object()}]
    assert shorten_side([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": [{"type": "image", "image": "object"}]}
    ]


def test_rollouts_stand_beside_held_out_answers_and_are_shown_by_step(tmp_path):
    folder = lay_run(tmp_path / "x" / "run", lines=[{"step": 1, "loss": 1.0}])
    path = folder / "completions.jsonl"
    held_out = {"step": 1, "prompt": "held out", "completion": "c"}
    for step in range(1, 41):
        rollout = {
            "step": step,
            "source": "rollout",
            "prompt": f"p{step}<i>",
            "completion": f"r{step}",
            "rewards": {"near": 0.5, "far": None},
            "advantage": -1.25,
            "tokens": 1,
            "finish": "length",
        }
        for _ in range(2):  # again, as after a kill
            replace_rows(path, [rollout], same=["step", "source"])
        if step == 1:
            replace_rows(path, [held_out], same=["step", "set", "source"])
    assert read_samples(folder) == [held_out]
    assert len(read_rollouts(folder)) == 40
    page = to_run_page(read_run(folder), None)
    assert page.count('name="rollouts"') == 12
    assert "p40&lt;i&gt;" in page
    assert "near 0.5, advantage -1.25, 1 token, ended by length" in page
    forget_rows(path, 3)
    assert json.loads(path.read_text().splitlines()[-1])["step"] == 3
