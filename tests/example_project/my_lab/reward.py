"""Rewards: one number for each completion.

TRL passes ``completions`` and columns of the rows by name. If the prompt is a chat, a completion is
a list of turns.
"""

from itertools import pairwise


def in_order(completions, digits):
    """The share of neighbours in ascending order; -1 if the digits are not those of the prompt."""
    scores = []
    for completion, asked in zip(completions, digits, strict=True):
        answer = completion[-1]["content"].split()
        pairs = list(pairwise(answer))
        right = sorted(answer) == sorted(asked.split())
        scores.append(sum(a <= b for a, b in pairs) / len(pairs) if right and pairs else -1.0)
    return scores
