"""Losses that ship: functions of what a trainer measures, named by the ``loss`` group.

A loss names as arguments what it wants to be given (``conf/PARTS.md``, what a part is
given); the rest comes from its keys in the YAML. When it is called, and how batches are averaged,
is in ``training.sequence_objective``.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from runner.schema.ranges import Fraction, NotNegative


def focal(log_probs: Tensor, gamma: NotNegative = 2.0) -> Tensor:
    """Losses of tokens that are smaller the surer the model is of them.

    With ``gamma`` 0 they are the cross-entropy. Source: Lin et al. 2017, equation 4.
    """
    return -((1 - log_probs.exp()) ** gamma) * log_probs


def label_smoothed(logits: Tensor, targets: Tensor, epsilon: Fraction = 0.1) -> Tensor:
    """Cross-entropy of targets that give the share ``epsilon`` to all tokens alike.

    Source: Szegedy et al. 2016, section 7.
    """
    return cross_entropy(logits, targets, reduction="none", label_smoothing=epsilon)


def rescaled(log_probs: Tensor) -> Tensor:
    """Losses times the probability of the token, which gets no gradient: dynamic fine-tuning.

    Source: Wu et al. 2025, equation 9.
    """
    return -log_probs * log_probs.exp().detach()


def length_normalised(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor,
    ref_rejected_logps: Tensor,
    chosen_lengths: Tensor,
    rejected_lengths: Tensor,
    beta: NotNegative,
) -> Tensor:
    """DPO's loss of log-ratios per token, so that length is not preferred.

    Source: Tulu 3, Lambert et al. 2024, equation 6.
    """
    chosen = (chosen_logps - ref_chosen_logps) / chosen_lengths.clamp(min=1)
    rejected = (rejected_logps - ref_rejected_logps) / rejected_lengths.clamp(min=1)
    return -logsigmoid(beta * (chosen - rejected))


def margin(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor | float = 0.0,
    ref_rejected_logps: Tensor | float = 0.0,
    beta: NotNegative = 0.1,
    gap: NotNegative = 1.0,
) -> Tensor:
    """The part of ``gap`` that a pair's implicit rewards lack, with or without a reference.

    Source: SLiC-HF, Zhao et al. 2023, equation 1.
    """
    chosen = chosen_logps - ref_chosen_logps
    rejected = rejected_logps - ref_rejected_logps
    return (gap - beta * (chosen - rejected)).clamp(min=0)
