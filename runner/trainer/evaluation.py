"""Evaluation that changes nothing: each held-out set under its own name, and no random number drawn
from the training.

Gaps of TRL 1.16 are closed here with public methods only. With several eval sets its metrics lose the set's name and
overwrite each other, so that no best checkpoint can be chosen by them. Online trainers generate while they evaluate, so
that a run with evaluations is another run than one without. Metrics of its own are a second pass with all logits, where
it has any; here they are what is set as ``measure``. And online DPO does not log its rewards one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from runner.errors import ConfigError, Fault
from runner.files import read_json


class Measurement(Trainer):
    """Comes before TRL's class in the method order, so that metrics join the figures of its evaluation before callbacks
    and the choice of the best checkpoint read them.
    """

    measure: Callable[[str], dict[str, float]] | None = None
    evaluates = True
    is_measuring = False  # also after an evaluation that raised
    hear_loss: Callable[[torch.Tensor], None] | None = None

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The trainer's own; whoever set ``hear_loss`` hears of each loss, however seldom it is logged."""
        loss = super().training_step(*args, **kwargs)
        if self.hear_loss is not None:
            self.hear_loss(loss)
        return loss

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The trainer's own loop where it has one that works, and the metrics of the set that is evaluated."""
        self.is_measuring = True
        if self.evaluates:
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        else:
            output = EvalLoopOutput(predictions=None, label_ids=None, metrics={}, num_samples=0)
        if self.measure is not None and metric_key_prefix.startswith("eval"):
            found = self.measure(metric_key_prefix)
            if taken := sorted(set(found) & set(output.metrics)):
                expected = "another name; the trainer has a figure of this one"
                raise ConfigError(Fault("metric", f"it would be logged as {', '.join(taken)}", expected))
            output.metrics.update(found)
        self.is_measuring = False
        return output


class Evaluation(Trainer):
    """Comes after TRL's class in the method order, where the logs are complete and not yet written.

    What the libraries count from the last start only goes on here from what was logged before it.
    """

    _prefix = "eval"
    tokens_before = 0.0
    reward_means: Callable[[], dict[str, float]] | None = None
    amend_logs: Callable[[dict[str, Any], int], None] | None = None

    def train(self, resume_from_checkpoint: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint:
            history = (read_json(Path(resume_from_checkpoint) / "trainer_state.json") or {}).get("log_history", [])
            self.tokens_before = next((line["num_tokens"] for line in reversed(history) if "num_tokens" in line), 0.0)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        before, self._prefix = self._prefix, metric_key_prefix
        try:
            with torch.random.fork_rng():
                return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        finally:
            self._prefix = before

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if self.reward_means is not None and "loss" in logs:
            for name, mean in self.reward_means().items():
                logs.setdefault(f"rewards/{name}/mean", mean)
        if self.amend_logs is not None:
            self.amend_logs(logs, self.state.global_step)
        for name in logs.keys() & {"num_tokens", "eval_num_tokens"}:
            # Online trainers count in the state, which is saved.
            if not logs[name] == self.state.num_input_tokens_seen > 0:
                logs[name] += self.tokens_before
        if "train_loss" in logs:
            logs["train_loss"] = mean_loss(self.state.log_history) or logs["train_loss"]
        if self._prefix != "eval":
            for key in [key for key in logs if key.startswith("eval_") and not key.startswith(f"{self._prefix}_")]:
                logs[f"{self._prefix}_{key.removeprefix('eval_')}"] = logs.pop(key)
        super().log(logs, *args, **kwargs)


def mean_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """The mean over all steps, of which each logged loss is the mean since the one before; 0 where none was logged.

    >>> mean_loss([{"step": 2, "loss": 3.0}, {"step": 2, "eval_loss": 9.0}, {"step": 3, "loss": 6.0}])
    4.0
    """
    total = done = 0
    for line in history:
        if "loss" in line:
            total += line["loss"] * (line["step"] - done)
            done = line["step"]
    return total / max(done, 1)
