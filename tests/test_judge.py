"""Metrics and rewards on rows: which rows each is asked about, and what becomes of its answers."""

import itertools
import math

import pytest
from tiny_ppo import letter_model, letter_tokenizer

from runner.generate.answer_reader import AnswerReader
from runner.generate.completion import TextGenerator
from runner.generate.judge import judge_answers, judge_completions
from runner.generate.sampler import Sampling
from runner.metric.ask import Metric

ROWS = [{"prompt": text, "wanted": text[-1]} for text in ("abc", "d", "efg")]
KNOWN = [
    {"prompt": "abc", "completion": "de", "label": True},
    {"prompt": "abc", "completion": "x", "label": False},
    {"prompt": "d", "completion": "efg", "label": True},
]


def generator(**how) -> TextGenerator:
    return TextGenerator(letter_model(), letter_tokenizer(), Sampling(4), n=2, **how)


def test_each_completion_is_judged_with_the_columns_of_its_row():
    asked = []

    def length(completions, wanted, prompts):
        asked.append((wanted, prompts))
        return [float(len(text)) for text in completions]

    made: list[int] = []
    figures = judge_completions(
        generator(on_progress=made.append), ROWS, [Metric("length", length, "sampled")]
    )
    assert asked == [([*"ccddgg"], ["abc"] * 2 + ["d"] * 2 + ["efg"] * 2)]
    assert sum(made) == 6
    assert [(row["row"], row["sample"]) for row in figures.completions] == list(
        itertools.product(range(3), range(2))
    )
    means = [0.0] * 3
    for row in figures.completions:
        means[row["row"]] += len(row["completion"]) / 2
    mean = sum(means) / 3
    assert figures.scores == {"length": pytest.approx(mean)}
    # Samples of one prompt are not independent: the error is that of the means of the rows.
    expected = math.sqrt(sum((prompt_mean - mean) ** 2 for prompt_mean in means) / 2 / 3)
    assert figures.errors == {"length": pytest.approx(expected)}
    assert expected > 0


def test_a_metric_with_a_limit_sees_the_first_rows_and_one_for_all_has_no_error():
    def count_all(completions, **columns):
        return {"": float(len(completions)), "also": 1.0}

    count = Metric("count", count_all, "sampled", limit=2)
    figures = judge_completions(generator(), ROWS, [count])
    assert figures.scores == {"count": 4.0, "count_also": 1.0}
    assert figures.errors == {}
    assert figures.rows == 3


def test_rewards_are_means_over_rows_and_may_not_apply():
    def score(completions, rows):
        assert [completion.row for completion in completions] == [0, 0, 1, 1, 2, 2]
        assert rows[4] is ROWS[2]
        return [1.0, 2.0, 3.0, 3.0, 0.0, 0.0], {
            "one": [1.0, math.nan, 3.0, 3.0, math.nan, math.nan],
            "two": [0.0] * 6,
        }

    figures = judge_completions(generator(), ROWS, [], score)
    assert figures.earned == [1.5, 3.0, 0.0]
    assert figures.scores == {"reward": 1.5, "reward_one": 2.0, "reward_two": 0.0}
    assert figures.errors["reward_one"] == pytest.approx(1.0)
    assert figures.completions[1]["rewards"] == {"one": None, "two": 0.0}
    assert figures.completions[1]["reward"] == 2.0


@pytest.mark.parametrize("size", [None, 1])
def test_known_answers_are_read_once_and_each_metric_sees_those_it_asks_for(size):
    columns = {}
    made = []

    def asked(name, value):
        def ask(label, scores, **kwargs):
            columns[name] = label
            return [value(score) for score in scores]

        return ask

    metrics = [
        Metric("right", asked("right", math.exp), "read"),
        Metric("all", asked("all", math.exp), "read", answers="all"),
        Metric(
            "first",
            asked("first", float),
            "read",
            lambda logits, labels: logits.argmax(),
            answers="all",
            limit=1,
        ),
    ]
    reader = AnswerReader(
        letter_model(), letter_tokenizer(), batch_size=size, on_progress=made.append
    )
    figures = judge_answers(reader, KNOWN, metrics, is_scorer=False)
    assert columns == {"right": [True, True], "all": [True, False, True], "first": [True]}
    assert sum(made) == 3
    assert 0 < figures.scores["all"] < 1
    assert figures.scores["first"] == int(figures.scores["first"])
    assert figures.errors["first"] == 0 < figures.errors["right"]
