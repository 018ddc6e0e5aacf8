"""Losses that ship: functions of what a trainer measures, named by the ``loss`` group.

A loss names as arguments what it wants to be given (``conf/README.md``, what a part of yours is given); the rest comes
from its keys in the YAML. When it is called, and how batches are averaged, is in ``training.objective``.
"""

from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid


def focal(log_probs: Tensor, gamma: float = 2.0) -> Tensor:
    """Losses of tokens, smaller the surer the model is of them; ``gamma`` 0: cross-entropy (Lin et al. 2017, eq. 4)."""
    return -((1 - log_probs.exp()) ** gamma) * log_probs


def label_smoothed(logits: Tensor, targets: Tensor, epsilon: float = 0.1) -> Tensor:
    """Cross-entropy of targets that give the share ``epsilon`` to all tokens alike (Szegedy et al. 2016, section 7)."""
    return cross_entropy(logits, targets, reduction="none", label_smoothing=epsilon)


def rescaled(log_probs: Tensor) -> Tensor:
    """Losses times the token's probability, not learnt from: dynamic fine-tuning (Wu et al. 2025, equation 9)."""
    return -log_probs * log_probs.exp().detach()


def length_normalised(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor,
    ref_rejected_logps: Tensor,
    chosen_lengths: Tensor,
    rejected_lengths: Tensor,
    beta: float,
) -> Tensor:
    """DPO's loss of log-ratios per token, so that length is not preferred (Tulu 3, Lambert et al. 2024, equation 6)."""
    chosen = (chosen_logps - ref_chosen_logps) / chosen_lengths.clamp(min=1)
    rejected = (rejected_logps - ref_rejected_logps) / rejected_lengths.clamp(min=1)
    return -logsigmoid(beta * (chosen - rejected))


def margin(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor | float = 0.0,
    ref_rejected_logps: Tensor | float = 0.0,
    beta: float = 0.1,
    gap: float = 1.0,
) -> Tensor:
    """The part of ``gap`` that a pair's implicit rewards lack, reference or not (SLiC-HF, Zhao et al. 2023, eq. 1)."""
    chosen, rejected = chosen_logps - ref_chosen_logps, rejected_logps - ref_rejected_logps
    return (gap - beta * (chosen - rejected)).clamp(min=0)
