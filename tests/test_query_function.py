"""Reward functions of queries, prompts and labels."""

import pytest

from runner.errors import DataError
from runner.reward.query_function import score_queries

CHAT = [{"role": "system", "content": "be short"}, {"role": "user", "content": "2+2? "}]
ANSWER = [{"role": "assistant", "content": "4"}]


@pytest.mark.parametrize(("prompt", "completion"), [("2+2? ", "4"), (CHAT, ANSWER)])
def test_a_query_is_a_prompt_with_its_answer_and_a_label_is_of_a_column(prompt, completion):
    seen = []

    def function(queries, prompts, labels):
        seen.append((queries, prompts, labels))
        return {"rewards": [1], "scores": [0]}

    rewards = score_queries([prompt], [completion], function, column="answer", answer=["4"])
    assert rewards == [1.0]
    assert seen == [(["2+2? 4"], ["2+2? "], ["4"])]


def test_without_a_column_labels_are_empty_and_a_list_is_taken_as_it_is():
    assert score_queries(["a", "b"], ["c", "d"], lambda q, p, labels: [len(labels[0]), 2]) == [0, 2]


def test_another_number_of_scores_is_refused():
    with pytest.raises(DataError, match="1 scores"):
        score_queries(["a", "b"], ["c", "d"], lambda q, p, labels: [1])


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(DataError, match="no column answer"):
        score_queries(["a"], ["c"], lambda q, p, labels: [1], column="answer", other=["x"])
