"""Reward functions that take queries, prompts and labels, as OpenRLHF calls them.

The policy's chat template is not known here: a prompt is the text of its last turn, and a query
that text with the answer behind it. What looks for the marks of a template does not find them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.errors import DataError, Fault, read_column
from runner.io.turns import Completion, Values, text_of

FIX = "reward.<name>.column=<column>"


def score_queries(
    prompts: Sequence[Completion],
    completions: Sequence[Completion],
    function: Callable[..., Any],
    column: str | None = None,
    **columns: Values,
) -> list[float]:
    """The scores that ``function(queries, prompts, labels)`` gives, or its entry ``rewards``.

    ``column`` is that of the labels, which are empty texts without one. Raises DataError where
    the number of scores is another than that of the completions.
    """
    labels: Values = [""] * len(completions)
    if column is not None:
        labels = read_column(columns, column, FIX)
    questions = [text_of(prompt) for prompt in prompts]
    queries = []
    for question, completion in zip(questions, completions, strict=True):
        queries.append(question + text_of(completion))
    answer = function(queries, questions, labels)
    scores = answer["rewards"] if isinstance(answer, Mapping) else answer
    rewards = [float(score) for score in scores]
    if len(rewards) != len(completions):
        raise DataError(
            Fault(
                where="reward.<name>.function",
                found=f"{len(rewards)} scores",
                expected=f"one for each of the {len(completions)} completions",
            )
        )
    return rewards
