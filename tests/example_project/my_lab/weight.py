"""Weights of tokens.

One entry for each message, a number or a number and spans ``(start, end, number)``.

``messages`` come by name, and columns of the rows that are named as arguments; several rules
multiply.
"""


def by_distance(messages, swaps, each: float = 0.25):
    """Answers count more if their digits were further from being in order."""
    return [1 + each * swaps if message["role"] == "assistant" else 0.0 for message in messages]
