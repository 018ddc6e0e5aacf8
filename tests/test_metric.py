"""Metrics by hand.

On completions, on scores against labels, and on the likelihood of known answers.
"""

import itertools
import math
import random
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from runner import metric
from runner.errors import ConfigError, DataError, SickRun
from runner.metric.ask import Metric, to_numbers
from runner.metric.binary import accuracy, area, auc, grouped_auc
from runner.metric.likelihood import perplexity, token_accuracy
from runner.metric.logits import likeliest, log_odds

PLACES = {"place": ["bar", "bar", "gym"], "topic": ["view", "food", "wifi"]}

CASES = [
    (metric.words, ["The bar was nice.", "", "so-so"], {}, [4.0, 0.0, 2.0]),
    (metric.repetition, ["Great, great bar!", "a b c", "", "x x x x"], {}, [1 / 3, 0.0, 0.0, 0.75]),
    (
        metric.mention,
        ["Food at the Bar", "a bar", "no"],
        {"of": ["place", "topic"], **PLACES},
        [0.5, 0.5, 0.0],
    ),
    (metric.mention, ["gym wifi"], {"of": ["place"], "place": ["gym"]}, [1.0]),
    (metric.mention, ["a", "b"], {"of": []}, [0.0, 0.0]),
    (
        metric.overlap,
        ["a dog", "a dog", "dog dog"],
        {"reference": ["A dog.", "a cat", "dog"]},
        [1.0, 0.5, 2 / 3],
    ),
    (metric.overlap, ["", "cat"], {"reference": ["x", ""]}, [0.0, 0.0]),
]


@pytest.mark.parametrize("group", ["metric", "reward"])
def test_a_target_names_the_module_that_defines_it(group):
    """So that the YAML says which file to open."""
    options = (Path(__file__).parent.parent / "conf" / group).glob("*.yaml")
    text = "\n".join(file.read_text() for file in options)
    targets = set(re.findall(r"_target_: (runner\S+)", text))
    assert len(targets) > 10
    for target in targets:
        module, _, name = target.rpartition(".")
        assert getattr(import_module(module), name).__module__ == module, target


def as_chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "bar gym"}, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("written", [str, as_chat], ids=["text", "chat"])
@pytest.mark.parametrize(("function", "texts", "columns", "values"), CASES)
def test_values_by_hand(function, texts, columns, values, written):
    assert function(completions=[written(text) for text in texts], **columns) == pytest.approx(
        values
    )


def test_columns_that_the_rows_lack_are_named():
    with pytest.raises(DataError) as error:
        metric.mention(["x"], of=["place", "city"], place=["x"])
    assert error.value.faults[0].found == "the rows have no column city"


# --- Scores against labels ----------------------------------------------------------------------


def by_pairs(scores, labels):
    """AUC as it is defined: over all pairs of a right and a wrong row, a tie counting half."""
    right = [score for score, label in zip(scores, labels, strict=True) if label]
    wrong = [score for score, label in zip(scores, labels, strict=True) if not label]
    wins = []
    for positive, negative in itertools.product(right, wrong):
        wins.append((positive > negative) + 0.5 * (positive == negative))
    return sum(wins) / len(wins)


AREAS = [
    ([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
    ([1, 1, 1, 1], [0, 1, 0, 1], 0.5),
    ([2, 1], [0, 1], 0.0),
    ([3, 2, 2, 1], [1, 1, 0, 0], 0.875),
    ([-math.inf, 0.0, math.inf], [False, True, True], 1.0),
]


@pytest.mark.parametrize(("scores", "labels", "value"), AREAS)
def test_the_area_by_hand(scores, labels, value):
    assert auc(scores, label=labels) == by_pairs(scores, labels) == value


def test_the_area_by_ranks_is_that_over_all_pairs():
    draw = random.Random(0)
    for _ in range(50):
        labels = [True, False] + [draw.random() < 0.3 for _ in range(draw.randrange(40))]
        scores = [draw.randrange(8) / 8 for _ in labels]
        assert area(scores, labels) == pytest.approx(by_pairs(scores, labels))


@pytest.mark.parametrize("labels", [[1, 1], [False, False], []])
def test_one_kind_of_label_has_no_auc(labels):
    with pytest.raises(DataError):
        auc([0.5] * len(labels), label=labels)


def test_labels_are_true_or_false_or_a_text_that_is_right():
    chats = [[{"role": "assistant", "content": answer}] for answer in ("Yes", "No", " Yes ")]
    assert auc([3.0, 1.0, 2.0], column="completion", positive="Yes", completion=chats) == 1.0
    with pytest.raises(DataError, match="the label 'Yes' in answer"):
        auc([1.0], column="answer", answer=["Yes"])
    with pytest.raises(DataError, match="no column label"):
        auc([1.0], user_id=["a"])
    with pytest.raises(DataError, match="not a number"):
        auc([math.nan, 1.0], label=[0, 1])


def test_accuracy_counts_what_is_on_the_right_side():
    assert accuracy([0.1, -0.1, 0.0, 5.0], label=[1, 1, 0, 0]) == [1.0, 0.0, 1.0, 0.0]
    assert accuracy([0.6, 0.4], threshold=0.5, label=[1, 0]) == [1.0, 1.0]


def test_grouped_auc_leaves_out_and_counts_groups_of_one_kind():
    users = ["a", "b", "a", "c", "b", "a", "d", "d"]
    labels = [1, 1, 0, 1, 0, 0, 0, 0]
    scores = [0.5, 0.2, 0.5, 9.0, 0.3, 0.1, 0.7, 0.1]
    # a: 0.5 against 0.5 and 0.1 -> 0.75, of three rows; b: 0.2 against 0.3 -> 0, of two rows; c and
    # d have one kind.
    weighted = grouped_auc(scores, user_id=users, label=labels)
    assert weighted == {"": pytest.approx((0.75 * 3 + 0 * 2) / 5), "groups": 2.0, "skipped": 2.0}
    plain = grouped_auc(scores, group="user", weighted=False, user=users, label=labels)
    assert plain[""] == pytest.approx(0.375)
    with pytest.raises(DataError, match="none of 2 groups"):
        grouped_auc([1.0, 2.0], user_id=["a", "b"], label=[1, 0])


# --- Known answers ------------------------------------------------------------------------------


def test_perplexity_counts_each_token_equally():
    assert perplexity([[math.log(1 / 4)], [math.log(1 / 2)] * 3, []]) == pytest.approx(
        (4 * 8) ** (1 / 4)
    )
    assert perplexity([[-1e6]]) == math.inf
    with pytest.raises(DataError, match="no tokens in 2 answers"):
        perplexity([[], []])


def test_token_accuracy_takes_logits_or_the_likeliest_tokens():
    logits = [np.array([[0.0, 2.0], [3.0, 1.0]]), np.zeros((0, 2))]
    assert token_accuracy(logits, labels=[[1, 1], []]) == [0.5, None]
    tokens = [likeliest(torch.tensor(row), torch.tensor([1, 1])).tolist() for row in logits[:1]]
    assert token_accuracy(tokens, labels=[[1, 1]]) == [0.5]


def letters(text, add_special_tokens=True):
    return {"input_ids": [ord(letter) - ord("A") for letter in text]}


def test_log_odds_are_of_the_first_token_of_the_answer():
    logits = torch.tensor([[1.0, 4.0, 2.5], [9.0, 0.0, 0.0]])
    labels = torch.tensor([1, 0])
    assert log_odds(logits, labels, letters, positive="B", negative="CA") == 1.5
    with pytest.raises(ConfigError, match="begin with the same token"):
        log_odds(logits, labels, letters, positive="BA", negative="BC")
    with pytest.raises(DataError, match="an answer without tokens"):
        log_odds(logits[:0], labels[:0], letters, positive="A", negative="B")


# --- Texts against references, by libraries -----------------------------------------------------


@pytest.mark.slow
def test_figures_against_references_are_those_of_the_libraries():
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    from runner.metric.reference import bleu, chrf, rouge

    answers = ["the cat sat on the mat", "a dog", "not counted"]
    references = ["the cat sat on the mat", "a dog", None]
    assert bleu(answers, reference=references) == pytest.approx(100)
    assert chrf(answers, reference=references) == pytest.approx(100)
    assert rouge(answers, reference=references) == [1.0, 1.0, None]
    # The shares of words, pairs, triples and fours of words that are in the reference, without a
    # penalty for length.
    score = bleu(["the cat sat on a mat"], reference=["the cat sat on the mat"])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # The longest common subsequence is "the cat the mat": 4 of 5 words said, 4 of 6 known.
    assert rouge(["the cat ate the mat"], reference=["the cat sat on the mat"]) == [
        pytest.approx(2 * 4 / (5 + 6))
    ]
    with pytest.raises(DataError, match="no column reference"):
        chrf(["x"], answer=["x"])
    with pytest.raises(DataError, match="no reference among 1 rows"):
        bleu(["x"], reference=[None])


# --- What a metric returns ----------------------------------------------------------------------


def test_results_of_a_metric_become_named_numbers():
    rows = {"": 1.0, "kept": 2}
    assert to_numbers("size", rows, 5) == {"": 1.0, "kept": 2.0}
    assert (
        to_numbers("size", np.array([1.0, 2.0]), 2)
        == to_numbers("size", np.float32(1.5), 2)
        == {"": 1.5}
    )
    assert to_numbers("size", [1.0, None, 2.0], 3) == {"": 1.5}
    with pytest.raises(DataError, match="1 numbers for 2 rows"):
        to_numbers("size", [1.0], 2)
    with pytest.raises(DataError, match="None for each of 2 rows"):
        to_numbers("size", [None, None], 2)
    with pytest.raises(DataError, match="str 'x' for row 1 of 2"):
        to_numbers("size", [1.0, "x"], 2)
    with pytest.raises(SickRun, match="nan for row 0 of 1"):
        to_numbers("size", [math.nan], 1)
    with pytest.raises(SickRun, match="a number of 1329 bits for row 0 of 1"):
        to_numbers("size", [10**400], 1)
    with pytest.raises(DataError, match="2 numbers for 1 rows"):
        to_numbers("size", itertools.count(), 1)


def test_a_metric_may_be_of_some_sets_only():
    assert Metric("size", len, "read").measures("any")
    some = Metric("size", len, "read", on=["one"])
    assert some.measures("one")
    assert not some.measures("two")
