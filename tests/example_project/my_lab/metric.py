"""Metrics of held-out rows: a number for each row, or one for all, or several by name."""


def sorted_right(completions, digits, swaps, hard: int = 3):
    """The share of sampled completions (texts) that are right.

    Of all, of the easy and of the hard ones.
    """
    right = []
    easy = []
    difficult = []
    for completion, asked, distance in zip(completions, digits, swaps, strict=True):
        hit = float(completion.split() == sorted(asked.split()))
        right.append(hit)
        (difficult if distance >= hard else easy).append(hit)
    groups = {"": right, "easy": easy, "hard": difficult}
    return {name: sum(hits) / len(hits) for name, hits in groups.items() if hits}


def weakest_token(log_probs):
    """The log-probability of the least expected token, from the model's outputs for the known
    answers.
    """
    return [min(tokens) for tokens in log_probs]
