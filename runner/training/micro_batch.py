"""The rows and tokens of a micro-batch of held-out rows, and what a model says of its answers."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Trainer

from runner.schema import upstream

# What a micro-batch has a number of.
ROWS = "rows"
TOKENS = "tokens"
CHOSEN = "chosen"
REJECTED = "rejected"
CHOSEN_TOKENS = "chosen tokens"
REJECTED_TOKENS = "rejected tokens"
LIKELIHOOD_TOKENS = "likelihood tokens"  # of a likelihood that is a part of a loss of pairs
TERMINATED = "terminated"
Counts = dict[str, float]  # by these names

LIKELIHOOD = "likelihood"
# What a figure is a mean over: the first of these that the micro-batch has. All others are means
# over rows.
UNITS: dict[str, tuple[str, ...]] = {
    r"mean_token_accuracy": (CHOSEN_TOKENS, TOKENS),
    r"entropy|cross_entropy": (TOKENS,),
    r"logits/chosen": (CHOSEN_TOKENS,),
    r"logits/rejected": (REJECTED_TOKENS,),
    r"(rewards|logps)/chosen": (CHOSEN,),
    r"(rewards|logps)/rejected": (REJECTED,),
    r"likelihood|nll_loss": (LIKELIHOOD_TOKENS,),
    r"completions/mean_terminated_length": (TERMINATED,),
}


def unit_of(name: str, counts: Counts) -> str:
    """The name in ``counts`` of what a figure is a mean over."""
    for pattern, units in UNITS.items():
        if re.fullmatch(pattern, name):
            for unit in units:
                if unit in counts:
                    return unit
            return ROWS
    return TOKENS if name == "kl" and TERMINATED in counts else ROWS


def count_units(trainer: Trainer, batch: Any) -> Counts:
    """The rows and tokens of a micro-batch, as the trainer counts them for its means."""
    if not isinstance(batch, Mapping):  # a list of prompts
        return {ROWS: len(batch)}
    if "chosen_labels" in batch:
        if hasattr(trainer, "cpo_alpha"):
            learnt = batch["chosen_labels"] != upstream.IGNORED
        else:  # ORPO's likelihood is that of the prompt, too
            learnt = batch["chosen_attention_mask"] == 1
        return _counts_of_pairs(len(learnt)) | {LIKELIHOOD_TOKENS: learnt[:, 1:].sum().item()}
    if "labels" in batch:
        trained = batch["labels"][..., 1:] != upstream.IGNORED
        return {ROWS: len(batch["labels"]), TOKENS: trained.sum().item()}
    if "completion_mask" in batch:
        return _count_answers(trainer, batch)
    for part in batch.values():
        if isinstance(part, Tensor):
            return _counts_of_pairs(len(part) // 2)
    return _counts_of_pairs(0)


def _count_answers(trainer: Trainer, batch: Mapping[str, Tensor]) -> Counts:
    """The counts of labelled answers, or of pairs that lie one below the other in a batch."""
    lengths = batch["completion_mask"][:, 1:].sum(1)
    if "label" in batch:
        is_right = batch["label"].bool()
        chosen = lengths[is_right]
        rejected = lengths[~is_right]
        counts: Counts = {ROWS: len(lengths), CHOSEN: len(chosen), REJECTED: len(rejected)}
    elif getattr(trainer, "tpo_alpha", None):
        chosen, rejected, imitated = lengths.chunk(3)
        counts = _counts_of_pairs(len(chosen))
        counts[LIKELIHOOD_TOKENS] = imitated.sum().item()
    else:
        chosen, rejected = lengths.chunk(2)
        counts = _counts_of_pairs(len(chosen))
        counts[LIKELIHOOD_TOKENS] = chosen.sum().item()
    counts[CHOSEN_TOKENS] = chosen.sum().item()
    counts[REJECTED_TOKENS] = rejected.sum().item()
    counts[TOKENS] = lengths.sum().item()
    return counts


def _counts_of_pairs(pairs: int) -> Counts:
    return {ROWS: pairs, CHOSEN: pairs, REJECTED: pairs}


def likelihood_share(trainer: Trainer) -> float:
    """The factor of a likelihood, a mean over tokens, in a loss that is a mean over pairs; or 0."""
    for name in ("cpo_alpha", "tpo_alpha"):
        if hasattr(trainer, name):
            return float(getattr(trainer, name))
    if hasattr(trainer, "odds_ratio_loss"):
        return 1.0
    if "sft" not in getattr(trainer, "loss_types", ()) or trainer.hooks.loss is not None:
        return 0.0
    if trainer.ld_alpha is not None or trainer.use_weighting:  # then the loss is no plain sum
        return 0.0
    weighted = zip(trainer.loss_types, trainer.loss_weights, strict=True)
    return math.fsum(weight for loss_type, weight in weighted if loss_type == "sft")


@dataclass
class Reading:
    """The cross-entropy of a micro-batch's answers, from a forward pass that is made anyway."""

    labels: Tensor | None = None
    first_row: int = 0  # of the outputs that belong to the labels
    takes_logits: bool = False
    cross_entropy: float | None = None

    def note(self, module: object, args: object, output: Any) -> None:
        """Take the mean negative log-probability of a token from an output, as a forward hook."""
        log_probs = getattr(output, "log_probs", None)
        if log_probs is not None:
            self.cross_entropy = _mean(-log_probs[output.label_mask])
        elif self.takes_logits and self.labels is not None:
            # Prompt learning puts virtual tokens before the real ones.
            logits = output.logits[self.first_row :, -self.labels.size(1) :][:, :-1]
            targets = self.labels[:, 1:]
            trained = targets != upstream.IGNORED
            predicted = logits[trained.to(logits.device)].float()
            wanted = targets[trained].to(logits.device)
            self.cross_entropy = _mean(cross_entropy(predicted, wanted, reduction="none"))


def _mean(values: Tensor) -> float:
    return float(values.float().mean()) if values.numel() else 0.0


@contextlib.contextmanager
def read_along(trainer: Trainer, batch: Any) -> Iterator[Reading]:
    """Watch the policy's outputs for a micro-batch, where the trainer's notes lack a figure."""
    reading = Reading()
    if isinstance(batch, Mapping) and trainer.hooks.reads_cross_entropy:
        reading = Reading(batch["labels"], takes_logits=trainer.hooks.loss is not None)
    elif isinstance(batch, Mapping) and getattr(trainer, "tpo_alpha", None):
        # Of three answers, one below the other, the last is learnt by its likelihood.
        first_row = len(batch["input_ids"]) // 3 * 2
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, upstream.IGNORED)
        reading = Reading(labels[first_row:], first_row, takes_logits=True)
    if reading.labels is None:
        yield reading
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    hook = model.register_forward_hook(reading.note)
    try:
        yield reading
    finally:
        hook.remove()
