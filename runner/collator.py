"""Collators that ship.

What is the same for a row in every epoch belongs into ``dataset.map``, not here.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from runner.errors import ConfigError, Fault
from runner.schema import upstream
from runner.schema.ranges import Count

Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]


class Buckets:
    """Batches whose sequences have one of a few lengths, so that a compiled model meets few shapes.

    Each batch is padded to the next of ``lengths``; a longer one stays as it is. The loss is that
    of the shorter batch.
    """

    def __init__(
        self,
        inner: Collator,
        pad_token_id: int,
        lengths: Sequence[Count] = (64, 128, 256, 512, 1024),
    ):
        if getattr(inner, "padding_free", False):
            raise ConfigError(
                Fault(
                    where="collator",
                    found="padding to buckets, and sequences without padding",
                    expected="one of the two",
                    fix="trainer.args.padding_free=false, or collator=none",
                )
            )
        self.inner = inner
        self.lengths = sorted(lengths)
        # The value that pads a tensor, by the end of its name.
        self.padding = {"input_ids": pad_token_id, "labels": upstream.IGNORED, "mask": 0}

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = dict(self.inner(rows))
        for name, part in batch.items():
            value = self._padding_value(name)
            if value is not None and isinstance(part, Tensor) and part.ndim == 2:
                missing = self._bucket(part.size(1)) - part.size(1)
                batch[name] = pad(part, (0, missing), value=value)
        return batch

    def _padding_value(self, name: str) -> int | None:
        for end, value in self.padding.items():
            if name.endswith(end):
                return value
        return None

    def _bucket(self, length: int) -> int:
        """The length to which a batch of this length is padded."""
        for bucket in self.lengths:
            if bucket >= length:
                return bucket
        return length
