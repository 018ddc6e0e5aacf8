"""Collators turn rows into a batch.

One that asks for ``inner`` wraps the trainer's own; it may ask for ``tokenizer`` as well.
"""

import torch


class Sparse:
    """Has the loss pass over a few tokens of each answer, others each time, but never over its end.

    What is the same in every epoch belongs into ``dataset.map``.
    """

    def __init__(self, inner, tokenizer, share: float = 0.2):
        self.inner = inner
        self.share = share
        self.end = tokenizer.eos_token_id

    def __call__(self, rows):
        batch = self.inner(rows)
        skipped = (torch.rand(batch["input_ids"].shape) < self.share) & (
            batch["input_ids"] != self.end
        )
        if "labels" in batch:
            batch["labels"] = batch["labels"].masked_fill(skipped, -100)
        else:  # of preferences, trainers mark the tokens of answers
            batch["completion_mask"] = batch["completion_mask"].masked_fill(skipped, 0)
        return batch
