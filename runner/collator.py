"""Collators that ship. What is the same for a row in every epoch belongs into ``dataset.map``, not here."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from runner.errors import ConfigError, Fault
from runner.schema import upstream

Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]


class Buckets:
    """Batches whose sequences have one of a few lengths, so that a compiled model meets few shapes.

    Each batch is padded to the next of ``lengths``; a longer one stays as it is. The loss is that of the shorter batch.
    """

    def __init__(self, inner: Collator, pad_token_id: int, lengths: Sequence[int] = (64, 128, 256, 512, 1024)):
        if getattr(inner, upstream.PADDING_FREE, False):
            found = "padding to buckets, and sequences without padding"
            fix = "trainer.args.padding_free=false, or collator=none"
            raise ConfigError(Fault("collator", found, "one of the two", fix))
        self.inner, self.lengths = inner, sorted(lengths)
        self.padding = {"input_ids": pad_token_id, "labels": upstream.IGNORED, "mask": 0}

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(self.inner(rows))
        for name, part in batch.items():
            value = next((value for end, value in self.padding.items() if name.endswith(end)), None)
            if value is not None and isinstance(part, Tensor) and part.ndim == 2:
                length = next((length for length in self.lengths if length >= part.size(1)), part.size(1))
                batch[name] = pad(part, (0, length - part.size(1)), value=value)
        return batch
