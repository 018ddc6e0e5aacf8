"""Metrics of held-out completions, by hand."""

import pytest

from runner import metric
from runner.errors import DataError

PLACES = {"place": ["bar", "bar", "gym"], "topic": ["view", "food", "wifi"]}

CASES = [
    (metric.words, ["The bar was nice.", "", "so-so"], {}, [4.0, 0.0, 2.0]),
    (metric.repetition, ["Great, great bar!", "a b c", "", "x x x x"], {}, [1 / 3, 0.0, 0.0, 0.75]),
    (metric.mention, ["Food at the Bar", "a bar", "no"], {"of": ["place", "topic"], **PLACES}, [0.5, 0.5, 0.0]),
    (metric.mention, ["gym wifi"], {"of": ["place"], "place": ["gym"]}, [1.0]),
    (metric.mention, ["a", "b"], {"of": []}, [0.0, 0.0]),
    (metric.overlap, ["a dog", "a dog", "dog dog"], {"reference": ["A dog.", "a cat", "dog"]}, [1.0, 0.5, 2 / 3]),
    (metric.overlap, ["", "cat"], {"reference": ["x", ""]}, [0.0, 0.0]),
]


def as_chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": "bar gym"}, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("written", [str, as_chat], ids=["text", "chat"])
@pytest.mark.parametrize(("function", "texts", "columns", "values"), CASES)
def test_values_by_hand(function, texts, columns, values, written):
    assert function(completions=[written(text) for text in texts], **columns) == pytest.approx(values)


def test_columns_that_the_rows_lack_are_named():
    with pytest.raises(DataError) as error:
        metric.mention(["x"], of=["place", "city"], place=["x"])
    assert error.value.faults[0].found == "the rows have no column city"
