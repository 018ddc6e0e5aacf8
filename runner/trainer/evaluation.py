"""Evaluation that changes nothing: each held-out set under its own name, and no random number drawn
from the training.

Two gaps of TRL 1.16 are closed here with public methods only. With several eval sets its metrics
lose the set's name
and overwrite each other, so that no best checkpoint can be chosen by them. And online trainers
generate while they
evaluate, so that a run with evaluations is another run than one without.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer


class Evaluation(Trainer):
    """Comes after TRL's class in the method order, where the logs are complete and not yet written."""

    _prefix = "eval"

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        before, self._prefix = self._prefix, metric_key_prefix
        try:
            with torch.random.fork_rng():
                return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        finally:
            self._prefix = before

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if self._prefix != "eval":
            for key in [key for key in logs if key.startswith("eval_") and not key.startswith(f"{self._prefix}_")]:
                logs[f"{self._prefix}_{key.removeprefix('eval_')}"] = logs.pop(key)
        super().log(logs, *args, **kwargs)
