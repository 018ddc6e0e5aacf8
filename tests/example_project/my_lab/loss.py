"""Losses: one number for each entry of the batch. The names of arguments choose what is passed."""


def capped(log_probs, most: float = 3.0):
    """For SFT, per token.

    Cross-entropy, but a token that seems impossible, such as a typo, counts ``most``.
    """
    return (-log_probs).clamp(max=most)


def squared(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta):
    """For DPO, per pair: the squared distance of its margin from 1 / 2 beta (IPO, Azar et al.

    2023).
    """
    margin = (chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)
    return (margin - 1 / (2 * beta)) ** 2
