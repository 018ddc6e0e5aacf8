"""TRL's trainers with our additions: one subclass, made for each of them, that calls one :class:`Hooks` object.

Gaps of TRL 1.16 are closed here with public methods only. With several eval sets its metrics lose the set's name and
overwrite each other, so that no best checkpoint can be chosen by them. Online trainers generate while they evaluate, so
that a run with evaluations is another run than one without. Metrics of its own are a second pass with all logits, where
it has any; here they are what ``Hooks.measure`` gives. And online DPO does not log its rewards one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput, TrainOutput

from runner.errors import ConfigError, DataError, Fault, fault
from runner.io.files import read_json
from runner.io.temporary import temporarily
from runner.optimizer import trust_state
from runner.schema import upstream
from runner.training.held_out import HeldOutSums, deal_evenly, group_size, judged_by_row, left_out, summed_up

Measure = Callable[[Trainer, str], dict[str, float]]


@dataclass
class Hooks:
    """Functions that a trainer calls in the course of a training; without any it is TRL's.

    ``measure(trainer, prefix)`` gives figures that join those of an evaluation; ``on_evaluate(part)`` is called as a
    part of it begins. ``on_loss(trainer, batch, loss)`` gets each micro-batch with its loss. ``on_log(logs, step)`` may
    change what is logged; ``reward_means()`` gives the mean of each reward since it was called last. ``loss`` is one of
    the user's own (:mod:`runner.training.objective`). ``evaluates`` is false for a trainer whose own evaluation fails,
    and ``reads_cross_entropy`` is true where the loss is no measure of held-out answers, and their cross-entropy is.
    ``use_cache`` is what the model's config says before the Trainer writes there what it needs in a training.
    """

    evaluates: bool = True
    measure: Measure | None = None
    on_evaluate: Callable[[str], None] = lambda part: None
    on_loss: Callable[[Trainer, Any, Tensor], None] | None = None
    on_log: Callable[[dict[str, float], int], None] | None = None
    reward_means: Callable[[], dict[str, float]] | None = None
    make_optimizer: Callable[[Trainer], Optimizer] | None = None
    make_schedule: Callable[..., LRScheduler] | None = None
    loss: Callable[..., Tensor] | None = None
    reads_cross_entropy: bool = False
    use_cache: bool | None = None


def extend(trainer: type[Trainer], objective: type[Trainer] | None = None) -> type[Trainer]:
    """Make the subclass of a trainer that takes ``hooks=`` beside its own arguments."""
    bases: tuple[type, ...] = (BeforeTrainer, *([objective] if objective else []), trainer, AfterTrainer)
    return type(f"Extended{trainer.__name__}", bases, {"__doc__": trainer.__doc__})


class BeforeTrainer(Trainer):
    """Comes before TRL's class: metrics join an evaluation's figures before callbacks and the best model's choice."""

    hooks: Hooks
    is_measuring = False  # also after an evaluation that raised
    drops_filled_rows: bool
    sums: HeldOutSums | None = None
    held_out: Mapping[str, float] | None = None  # figures of an evaluation that is not logged yet

    def __init__(self, *args: object, hooks: Hooks, **kwargs: object):
        self.hooks = hooks
        super().__init__(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Any, *args: object, **kwargs: object) -> Tensor:
        """Take the trainer's own step, and report its loss, however seldom it is logged."""
        loss = super().training_step(model, inputs, *args, **kwargs)
        if self.hooks.on_loss is not None:
            self.hooks.on_loss(self, inputs, loss)
        return loss

    def evaluation_loop(self, *args: object, metric_key_prefix: str = "eval", **kwargs: object) -> EvalLoopOutput:
        """Run the trainer's own loop where it has one that works, and add the metrics of the set that is evaluated."""
        self.is_measuring = True
        if self.hooks.evaluates:
            self.hooks.on_evaluate("evaluating")
            output = self._evaluate_by_sums(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        else:
            output = EvalLoopOutput(predictions=None, label_ids=None, metrics={}, num_samples=0)
        if self.hooks.measure is not None and metric_key_prefix.startswith("eval"):
            self.hooks.on_evaluate("measuring")
            found = self.hooks.measure(self, metric_key_prefix)
            timed = {f"{metric_key_prefix}_{name}" for name in upstream.FIGURES}
            if taken := sorted(set(found) & ({*output.metrics} | timed)):
                raise ConfigError(fault("training.taken_names", names=", ".join(taken)))
            output.metrics.update(found)
        self.is_measuring = False
        return output

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """The trainer's own, whose rows several processes share evenly."""
        accelerator = self.accelerator
        if accelerator.num_processes == 1 or self.drops_filled_rows:
            return super().get_eval_dataloader(eval_dataset)
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        rows = self.eval_dataset[rows] if isinstance(rows, str) else rows
        if isinstance(rows, IterableDataset):  # whose length nobody knows before
            eval_dataset = list(rows)
        loader = super().get_eval_dataloader(eval_dataset)
        return deal_evenly(loader, accelerator, self.args.eval_batch_size, group_size(self))

    def prediction_step(self, model: nn.Module, inputs: Any, *args: object, **kwargs: object) -> Any:
        """Take the trainer's own step on held-out rows, and add its figures to the sums of an evaluation."""
        if self.sums is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        losses = list[Tensor | None]()
        with summed_up(self, self.sums, inputs, losses):
            found = super().prediction_step(model, inputs, *args, **kwargs)
            losses.append(found[0])
        return found

    def _evaluate_by_sums(self, dataloader: DataLoader, *args: object, **kwargs: Any) -> EvalLoopOutput:
        if self.drops_filled_rows:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        copies = getattr(dataloader.batch_sampler, "copies", ())
        self.sums = HeldOutSums(copies)
        try:
            with judged_by_row(self):
                output = super().evaluation_loop(dataloader, *args, **kwargs)
            figures = self.sums.gathered().figures()
        finally:
            self.sums = None
        loss = f"{kwargs['metric_key_prefix']}_loss"
        if loss in output.metrics:
            # Rows without a token to learn have no mean; then it is the library's 0.
            output.metrics[loss] = figures.pop("loss", output.metrics[loss])
        self.held_out = figures
        return output


class AfterTrainer(Trainer):
    """Comes after TRL's class, where logs are complete and not yet written; counts go on from before a resume."""

    hooks: Hooks
    optimizer: Optimizer | None
    lr_scheduler: LRScheduler | None
    _prefix = "eval"
    drops_filled_rows = False  # a trainer that gathers rows, and not means, leaves out those that only fill up
    held_out: Mapping[str, float] | None = None
    tokens_before = 0.0
    resumed_from: str | None = None

    def train(self, resume_from_checkpoint: str | None = None, *args: object, **kwargs: object) -> TrainOutput:
        self.resumed_from = resume_from_checkpoint
        if resume_from_checkpoint:
            history = (read_json(Path(resume_from_checkpoint) / "trainer_state.json") or {}).get("log_history", [])
            self.tokens_before = next((line["num_tokens"] for line in reversed(history) if "num_tokens" in line), 0.0)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def evaluate(
        self, eval_dataset: object = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        with temporarily(self, _prefix=metric_key_prefix), torch.random.fork_rng():
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        if self.hooks.reward_means is not None and "loss" in logs:
            for name, mean in self.hooks.reward_means().items():
                logs.setdefault(f"rewards/{name}/mean", mean)
        if self.hooks.on_log is not None:
            self.hooks.on_log(logs, self.state.global_step)
        for name in logs.keys() & {"num_tokens", "eval_num_tokens"}:
            if not logs[name] == self.state.num_input_tokens_seen > 0:  # online trainers count in it, and save it
                logs[name] += self.tokens_before
        if "train_loss" in logs:
            logs["train_loss"] = mean_loss(self.state.log_history) or logs["train_loss"]
        if self.held_out is not None:
            replace_figures(logs, self.held_out, left_out(self))
            self.held_out = None
        if self._prefix != "eval":
            for key in [key for key in logs if key.startswith("eval_") and not key.startswith(f"{self._prefix}_")]:
                logs[f"{self._prefix}_{key.removeprefix('eval_')}"] = logs.pop(key)
        super().log(logs, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        rows = self.train_dataset
        if isinstance(rows, Dataset) and len(rows) == 0:  # some trainers leave out rows before they begin
            found = "the trainer has left out every row: no sample of the start model earned anything"
            off = f"trainer.args.{upstream.FILTER_ALL_INCORRECT}"
            fix = f"{off}=false" if hasattr(self.args, upstream.FILTER_ALL_INCORRECT) else "dataset=<another>"
            raise DataError(Fault("dataset", found, "rows of which some are answered right", fix))
        return super().get_train_dataloader()

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Optimizer:
        if self.optimizer is None and self.hooks.make_optimizer is not None:
            self.optimizer = self.hooks.make_optimizer(self)
        return trust_state(super().create_optimizer(model))

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        if self.lr_scheduler is None and self.hooks.make_schedule is not None:
            given = {"optimizer": optimizer or self.optimizer, "num_training_steps": num_training_steps}
            self.lr_scheduler = self.hooks.make_schedule(**given)
        return super().create_scheduler(num_training_steps, optimizer)


def replace_figures(logs: dict[str, float], figures: Mapping[str, float], absent: set[str]) -> None:
    """Put the figures of a held-out set in the place of the means that a trainer logs."""
    for name in absent - {"num_tokens"}:
        logs.pop(f"eval_{name}", None)
    logs.update({f"eval_{name}": value for name, value in figures.items()})


def mean_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """The mean over all steps, of which each logged loss is the mean since the one before; 0 where none was logged."""
    total = done = 0
    for line in history:
        if "loss" in line:
            total += line["loss"] * (line["step"] - done)
            done = line["step"]
    return total / max(done, 1)
