"""The shipped tasks.

Rows, tokenizer and base model are what their generators make, and fit each other.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from toy import files, held_out, to_lines
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from vocabulary import build_tokenizer

from runner.generate.completion import generate
from runner.io.files import PACKAGE, shipped
from runner.model.load import load_model, load_tokenizer
from runner.reward.rule import exact_match, price, sentiment, sorted_digits

TINY = Path(shipped("runner://model/tiny"))
ROWS = PACKAGE / "dataset"
TASKS = ("toy_sort", "toy_reviews")


@cache
def shipped_rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (ROWS / name).read_text().splitlines()]


def prompts(name: str) -> set[str]:
    return {row["prompt"][0]["content"] for row in shipped_rows(name)}


@pytest.mark.slow
def test_the_shipped_rows_are_what_the_generator_writes():
    total = 0
    for name, rows in files():
        shipped = (ROWS / name).read_bytes()
        assert to_lines(rows).encode() == shipped, name
        total += len(shipped)
    assert total < 2.5e6


@pytest.mark.parametrize("task", TASKS)
def test_preference_rows_are_many_different_and_never_tied(task):
    train = shipped_rows(f"{task}/train.jsonl")
    held = shipped_rows(f"{task}/eval.jsonl")
    assert len(train) >= 1800
    assert len(held) == 200
    assert len({json.dumps(row) for row in train + held}) == len(train) + len(held)
    for row in train + held:
        assert row["chosen"] != row["rejected"]


@pytest.mark.parametrize("task", TASKS)
def test_nothing_that_gives_the_answer_away_is_on_both_sides(task):
    assert not any(map(held_out, shipped_rows(f"{task}/train.jsonl")))
    assert all(map(held_out, shipped_rows(f"{task}/eval.jsonl")))
    trained = prompts(f"{task}/train.jsonl") | prompts("toy_demonstrations/train.jsonl")
    held = prompts(f"{task}/eval.jsonl") | prompts("toy_demonstrations/eval.jsonl")
    assert not trained & held


def test_sorts_that_are_held_out_have_answers_that_were_never_shown():
    shown = {row["chosen"][0]["content"] for row in shipped_rows("toy_sort/train.jsonl")}
    assert not shown & {row["chosen"][0]["content"] for row in shipped_rows("toy_sort/eval.jsonl")}


def test_the_rules_prefer_what_the_rows_prefer():
    sorts = shipped_rows("toy_sort/train.jsonl")
    reviews = shipped_rows("toy_reviews/train.jsonl")
    digits = [row["digits"] for row in sorts]
    assert set(sorted_digits([row["chosen"] for row in sorts], digits)) == {1.0}
    assert max(sorted_digits([row["rejected"] for row in sorts], digits)) < 1.0
    assert set(sentiment([row["chosen"] for row in reviews])) == {0.5}
    assert set(sentiment([row["rejected"] for row in reviews])) == {-0.5}


def test_demonstrations_are_wrong_about_half_of_the_time():
    rows = shipped_rows("toy_demonstrations/train.jsonl")
    sorts = []
    reviews = []
    for row in rows:
        is_sort = row["prompt"][0]["content"].startswith("Sort")
        (sorts if is_sort else reviews).append(row)
    digits = [row["prompt"][0]["content"].partition(": ")[2] for row in sorts]
    right = [score == 1.0 for score in sorted_digits([row["completion"] for row in sorts], digits)]
    assert sum(right) / len(right) == pytest.approx(0.6, abs=0.03)
    kind = sentiment([row["completion"] for row in reviews])
    assert sum(kind) / len(kind) == pytest.approx(0, abs=0.05)


def test_the_shipped_tokenizer_is_what_the_rows_make(tmp_path):
    build_tokenizer().save_pretrained(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (TINY / path.name).read_bytes(), path.name


def test_the_tokenizer_loads_as_it_was_made():
    """Some architectures of transformers replace the pre-tokenizer of tokenizer.json."""
    texts = ["Sort these digits: 7 3 9 1", "It's GREAT,  isn't it?\n\n 2026", "Grüße, 漢字"]
    loaded = AutoTokenizer.from_pretrained(TINY)
    made = PreTrainedTokenizerFast.from_pretrained(TINY)
    assert loaded(texts)["input_ids"] == made(texts)["input_ids"]
    assert loaded.batch_decode(loaded(texts)["input_ids"]) == texts


def test_every_word_of_the_tasks_is_one_token():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    for name in ("toy_sort/eval.jsonl", "toy_reviews/eval.jsonl"):
        for row in shipped_rows(name):
            text = row["prompt"][0]["content"]
            pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
            assert len(tokenizer.tokenize(text)) == len(pieces)


def test_the_template_marks_the_answer_and_its_end_as_the_assistants():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    turns = [{"role": "user", "content": "Sort"}, {"role": "assistant", "content": "1 3"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    assert text == "<|im_start|>user\nSort<|im_end|>\n<|im_start|>assistant\n1 3<|im_end|>\n"
    opened = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert text.startswith(opened)
    marked = tokenizer.apply_chat_template(
        turns, return_dict=True, return_assistant_tokens_mask=True
    )
    mine = [
        token
        for token, mask in zip(marked["input_ids"], marked["assistant_masks"], strict=True)
        if mask
    ]
    assert tokenizer.decode(mine) == "1 3<|im_end|>"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


@pytest.fixture(scope="module")
def tiny():
    tokenizer = load_tokenizer("runner://model/tiny")
    return load_model("runner://model/tiny", tokenizer=tokenizer), tokenizer


def sample(tiny, task: str) -> tuple[list[str], list[dict]]:
    rows = shipped_rows(f"{task}/eval.jsonl")
    return generate(*tiny, [row["prompt"] for row in rows], max_new_tokens=32), rows


@pytest.mark.slow
def test_the_base_model_is_small_and_whole(tiny):
    model, tokenizer = tiny
    assert model.num_parameters() < 5e5
    assert model.dtype == torch.float32
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.use_cache
    assert (TINY / "model.safetensors").stat().st_size < 2.1e6


@pytest.mark.slow
def test_the_base_model_leaves_sorting_to_be_learned(tiny):
    texts, rows = sample(tiny, "toy_sort")
    right = exact_match(texts, reference=[row["chosen"][0]["content"] for row in rows])
    assert (
        0.35 < sum(right) / len(right) < 0.57
    )  # 0.46 over many samples; the bounds are two standard deviations of 200 samples


@pytest.mark.slow
def test_the_base_model_has_no_opinion_and_keeps_to_its_subject(tiny):
    texts, rows = sample(tiny, "toy_reviews")
    assert sum(sentiment(texts)) / len(texts) == pytest.approx(0.01, abs=0.1)
    named = [
        row["place"] in text and row["topic"] in text for text, row in zip(texts, rows, strict=True)
    ]
    assert sum(named) / len(named) > 0.9


@pytest.mark.slow
def test_prices_are_asked_for_in_one_of_six_answers_and_then_right():
    from runner.model.chat import set_template

    rows = shipped_rows("toy_prices/train.jsonl")
    asked = [row for row in rows if len(row["completion"]) > 1]
    assert len(asked) * 6 == len(rows)
    assert not any(map(held_out, rows))
    assert all(map(held_out, shipped_rows("toy_prices/eval.jsonl")))
    assert {row["completion"][-1]["content"] == row["price"] for row in asked} == {True}
    # The rows show the tool as the trainer of the second stage does.
    set_template(tokenizer := AutoTokenizer.from_pretrained(TINY), "brief")
    shown = [
        tokenizer.apply_chat_template(rows[0]["prompt"], tools=tools, tokenize=False)
        for tools in (json.loads(rows[0]["tools"]), [price])
    ]
    assert shown[0] == shown[1]
