"""The likelihood of known answers: each row as if alone, and only the tokens of the answer."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from runner.generate.answer_reader import AnswerReader, to_ids
from runner.io.files import shipped

TINY = shipped("runner://model/tiny")
CHAT = [{"role": "user", "content": "Sort these digits: 3 1"}]
ANSWER = [{"role": "assistant", "content": "1 3"}]
ROWS = [
    {"prompt": CHAT, "completion": ANSWER},
    {"prompt": "Sort: ", "completion": "1 3 7 9 and so on"},
    {"text": "We loved it."},
    {"prompt": "1 ", "completion": ""},
]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY).train()


def alone(model, ids, start):
    """The log-probabilities of a row's tokens from ``start`` on, one plain forward."""
    with torch.no_grad():
        log_probs = model.eval()(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    model.train()
    return [log_probs[place - 1, ids[place]].item() for place in range(start, len(ids))]


def test_each_answer_is_read_as_if_it_were_alone(model, tokenizer):
    reading = AnswerReader(model, tokenizer).read(
        ROWS, keep={"shape": lambda logits, labels: tuple(logits.shape)}
    )
    assert model.training
    for row, labels, expected, shape in zip(
        ROWS, reading.labels, reading.log_probs, reading.kept["shape"], strict=True
    ):
        ids, start = to_ids(tokenizer, row)
        assert labels == ids[start:]
        assert shape == (len(labels), model.config.vocab_size)
        assert expected == pytest.approx(alone(model, ids, start), abs=1e-4)


def test_an_answer_is_what_training_would_learn(tokenizer):
    encoded = [to_ids(tokenizer, row) for row in ROWS]
    answers = [tokenizer.decode(ids[start:]) for ids, start in encoded]
    end = tokenizer.eos_token
    closed = tokenizer.apply_chat_template(CHAT + ANSWER, tokenize=False)
    opened = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert answers[0] == closed.removeprefix(opened)
    # The prompt's trailing blank is in the first token of the answer, which is scored with it.
    assert answers[1] == f" 1 3 7 9 and so on{end}"
    assert answers[3] == end
    first = tokenizer.decode(tokenizer("We loved it.")["input_ids"][:1])
    assert answers[2] == f"We loved it.{end}".removeprefix(first)


def test_rows_that_are_too_long_lose_their_end(model, tokenizer):
    ids, start = to_ids(tokenizer, ROWS[1])
    reading = AnswerReader(model, tokenizer, start + 2).read(ROWS[:2])
    assert reading.labels[1] == ids[start : start + 2]
    assert AnswerReader(model, tokenizer, start).read([ROWS[1]]).log_probs == [[]]


def test_a_reward_model_scores_each_row_as_if_it_were_alone(tokenizer):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=1).eval()
    scores = AnswerReader(model, tokenizer).score(ROWS)
    with torch.no_grad():
        alone = [
            model(input_ids=torch.tensor([to_ids(tokenizer, row)[0]])).logits.item() for row in ROWS
        ]
    assert scores == pytest.approx(alone, abs=1e-5)
