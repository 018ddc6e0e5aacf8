"""Metrics: numbers on what a model does with held-out rows. A metric knows no trainer, no dataset and no model.

The arguments of a metric decide what it gets; the columns of the rows come by name, ``**columns`` is all of
them, as TRL passes them to rewards.

``completions``   the model answers the prompts of the rows, and its answers are judged. Rewards can serve here too.
``scores``, ``log_probs``, ``labels``, ``logits``   the model reads the rows with their known answers, and what it
                  thinks of them is judged. One entry per row, and of the answer's tokens alone: ``labels`` are their
                  ids, ``log_probs`` and ``logits`` what the model says of each. ``scores`` is one number: the
                  log-probability of the answer, or what a reward model gives. What ``preprocess`` makes of the logits
                  and labels of one row comes as ``logits``, and as ``scores``, where it should be one number.

It returns a number for each row, which are averaged without the Nones; or one number for all of them; or several by
name, which are logged as ``eval_<metric>_<name>``, the one without a name as ``eval_<metric>``.
"""

from collections.abc import Collection

from runner.metric.text import mention, overlap, repetition, words

__all__ = ["kind_of", "mention", "overlap", "repetition", "words"]

# The arguments that decide between sampled completions and known answers.
SAMPLED = ("completions", "completion_ids")
READ = ("scores", "log_probs", "labels", "logits")


def kind_of(arguments: Collection[str]) -> str:
    """The kind of a metric with these arguments: ``sampled`` completions, or answers that were ``read``.

    >>> kind_of(["completions", "columns"]), kind_of(["scores", "label"]), kind_of(["path"])
    ('sampled', 'read', 'sampled')
    """
    return "read" if not set(SAMPLED) & set(arguments) and set(READ) & set(arguments) else "sampled"
