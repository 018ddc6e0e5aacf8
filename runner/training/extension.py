"""TRL's trainers with our additions: one subclass, made for each of them, that calls our hooks.

Gaps of TRL 1.16 are closed here with public methods only. With several eval sets its metrics lose
the set's name and overwrite each other, so that no best checkpoint can be chosen by them. Online
trainers generate while they evaluate, so that a run with evaluations is another run than one
without. Metrics of its own are a second pass with all logits, where it has any; here they are what
``Hooks.measure`` gives. And online DPO does not log its rewards one by one.
"""

from collections.abc import Mapping, Sequence
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

from runner.errors import ConfigError, DataError, Fault
from runner.io.files import read_json
from runner.io.temporary import temporarily
from runner.optimizer import trust_state
from runner.schema import upstream
from runner.schema.text import Node
from runner.training.even_batches import deal_evenly, group_size, judged_by_row
from runner.training.held_out import HeldOutSums, left_out, summed_up
from runner.training.hooks import Hooks
from runner.training.padding import skip_padding


def extend(trainer: type[Trainer], objective: type[Trainer] | None = None) -> type[Trainer]:
    """Make the subclass of a trainer that takes ``hooks=`` beside its own arguments."""
    bases: list[type] = [BeforeTrainer, trainer, AfterTrainer]
    if objective is not None:
        bases.insert(1, objective)
    return type(f"Extended{trainer.__name__}", tuple(bases), {"__doc__": trainer.__doc__})


class BeforeTrainer(Trainer):
    """Comes before TRL's class in the method order.

    So metrics join the figures of an evaluation before callbacks see them and the best model is
    chosen by them.
    """

    hooks: Hooks
    is_measuring = False  # True also after an evaluation that raised
    drops_filled_rows: bool
    sums: HeldOutSums | None = None
    held_out: Mapping[str, float] | None = None  # figures of an evaluation that is not logged yet
    skips_padding: bool | None

    def __init__(self, *args: object, hooks: Hooks, **kwargs: object):
        self.hooks = hooks
        if self.skips_padding or not hooks.skips_padding:
            self.skips_padding = hooks.skips_padding
        super().__init__(*args, **kwargs)
        self.try_to_skip_padding()

    def try_to_skip_padding(self) -> None:
        """Have the models leave out the padding of a batch, if it is wanted and all of them can."""
        if self.skips_padding is None:
            models = [self.model, getattr(self, "ref_model", None)]
            self.skips_padding = skip_padding(models, self.args)

    def compute_ref_log_probs(self, model: nn.Module, inputs: Any) -> Any:
        """Compute the trainer's own, which some trainers do once, before they are built."""
        self.try_to_skip_padding()
        return super().compute_ref_log_probs(model, inputs)

    def training_step(
        self, model: nn.Module, inputs: Any, *args: object, **kwargs: object
    ) -> Tensor:
        """Take the trainer's own step, and report its loss, however seldom it is logged."""
        if self.hooks.samples is not None:
            self.hooks.samples.begin(self)
        with self.hooks.sampling(self, False), self.hooks.exchanging(self, inputs) as rows:
            self.hooks.rows = rows
            loss = super().training_step(model, rows, *args, **kwargs)
        if self.hooks.on_loss is not None:
            self.hooks.on_loss(self, inputs, loss)
        if self.hooks.on_rollout is not None:
            self.hooks.on_rollout(self)
        return loss

    def compute_loss(self, model: nn.Module, inputs: Any, *args: object, **kwargs: object) -> Any:
        """Compute the trainer's own loss, and report the batch that it is computed of."""
        if self.hooks.samples is not None and not self.is_measuring:
            self.hooks.samples.add_batch(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def evaluation_loop(
        self, *args: object, metric_key_prefix: str = "eval", **kwargs: object
    ) -> EvalLoopOutput:
        """Run the trainer's own loop, unless that fails, and add the metrics of the set."""
        self.is_measuring = True
        if self.hooks.evaluates:
            self.hooks.on_evaluate("evaluating")
            with self.hooks.sampling(self, True):
                output = self._evaluate_by_sums(
                    *args, metric_key_prefix=metric_key_prefix, **kwargs
                )
        else:
            output = EvalLoopOutput(predictions=None, label_ids=None, metrics={}, num_samples=0)
        if self.hooks.measure is not None and metric_key_prefix.startswith("eval"):
            self.hooks.on_evaluate("measuring")
            figures = self.hooks.measure(self, metric_key_prefix)
            reserved = {f"{metric_key_prefix}_{name}" for name in upstream.FIGURES}
            taken = sorted(figures.keys() & (reserved | output.metrics.keys()))
            if taken:
                raise ConfigError(
                    Fault(
                        where="metric",
                        found=f"it would be logged as {', '.join(taken)}",
                        expected="another name; the trainer already logs a figure with this one",
                    )
                )
            output.metrics.update(figures)
        self.is_measuring = False
        return output

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """The trainer's own, whose rows several processes share evenly."""
        accelerator = self.accelerator
        if accelerator.num_processes == 1 or self.drops_filled_rows:
            return super().get_eval_dataloader(eval_dataset)
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, str):
            rows = self.eval_dataset[rows]
        if isinstance(rows, IterableDataset):  # its length is not known before
            eval_dataset = list(rows)
        loader = super().get_eval_dataloader(eval_dataset)
        return deal_evenly(loader, accelerator, self.args.eval_batch_size, group_size(self))

    def prediction_step(
        self, model: nn.Module, inputs: Any, *args: object, **kwargs: object
    ) -> Any:
        """Take the trainer's own step on held-out rows, and add its figures to the sums."""
        self.hooks.rows = inputs
        if self.sums is None:
            return super().prediction_step(model, inputs, *args, **kwargs)
        losses = list[Tensor | None]()
        with summed_up(self, self.sums, inputs, losses):
            output = super().prediction_step(model, inputs, *args, **kwargs)
            losses.append(output[0])
        return output

    def _evaluate_by_sums(
        self, dataloader: DataLoader, *args: object, **kwargs: Any
    ) -> EvalLoopOutput:
        """The output of the trainer's own loop, with the loss of the set as a whole."""
        if self.drops_filled_rows:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        self.sums = HeldOutSums(getattr(dataloader.batch_sampler, "copies", ()))
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
    """Comes after TRL's class in the method order, where logs are complete and not yet written.

    Counts go on from before a resume.
    """

    hooks: Hooks
    optimizer: Optimizer | None
    lr_scheduler: LRScheduler | None
    _prefix = "eval"  # of the evaluation that runs
    # A trainer that gathers rows, and not means, leaves out those that only fill up a batch.
    drops_filled_rows = False
    # None until it is tried; True for a trainer that does it by itself.
    skips_padding: bool | None = None
    held_out: Mapping[str, float] | None = None
    tokens_before = 0.0  # that were trained on before a resume
    resumed_from: str | None = None

    def train(
        self, resume_from_checkpoint: str | None = None, *args: object, **kwargs: object
    ) -> TrainOutput:
        self.resumed_from = resume_from_checkpoint
        if resume_from_checkpoint:
            state = read_json(Path(resume_from_checkpoint) / "trainer_state.json") or {}
            self.tokens_before = last_token_count(state.get("log_history", []))
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def evaluate(
        self,
        eval_dataset: object = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        with temporarily(self, _prefix=metric_key_prefix), torch.random.fork_rng():
            figures: dict[str, float] = super().evaluate(
                eval_dataset, ignore_keys, metric_key_prefix
            )
        return figures

    def log(self, logs: dict[str, float], *args: object, **kwargs: object) -> None:
        if self.hooks.reward_means is not None and "loss" in logs:
            for name, mean in self.hooks.reward_means().items():
                logs.setdefault(f"rewards/{name}/mean", mean)
        if self.hooks.samples is not None and "loss" in logs:
            self.hooks.samples.write(self)
        if self.hooks.on_log is not None:
            self.hooks.on_log(logs, self.state.global_step)
        self._count_on(logs)
        has_losses = any("loss" in line for line in self.state.log_history)
        if "train_loss" in logs and has_losses:
            logs["train_loss"] = mean_loss(self.state.log_history)
        if self.held_out is not None:
            replace_figures(logs, self.held_out, left_out(self))
            self.held_out = None
        if self._prefix != "eval":
            self._name_set(logs)
        super().log(logs, *args, **kwargs)

    def _count_on(self, logs: dict[str, float]) -> None:
        """Add the tokens from before a resume to counts that the trainer does not save."""
        for name in ("num_tokens", "eval_num_tokens"):
            if name in logs:
                # Online trainers count in the state, which is saved.
                is_saved = logs[name] == self.state.num_input_tokens_seen > 0
                if not is_saved:
                    logs[name] += self.tokens_before

    def _name_set(self, logs: dict[str, float]) -> None:
        """Put figures that the trainer names ``eval`` under the name of the held-out set."""
        for name in list(logs):
            if name.startswith("eval_") and not name.startswith(f"{self._prefix}_"):
                logs[f"{self._prefix}_{name.removeprefix('eval_')}"] = logs.pop(name)

    def get_train_dataloader(self) -> DataLoader:
        rows = self.train_dataset
        # Some trainers leave out rows before they begin.
        if isinstance(rows, Dataset) and len(rows) == 0:
            fix = "dataset=<another>"
            if hasattr(self.args, "filter_all_incorrect"):
                fix = "trainer.args.filter_all_incorrect=false"
            raise DataError(
                Fault(
                    where="dataset",
                    found="the trainer has left out every row: no sample of the start model earned "
                    "a reward",
                    expected="rows some of which are answered correctly",
                    fix=fix,
                )
            )
        return super().get_train_dataloader()

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Optimizer:
        if self.optimizer is None and self.hooks.make_optimizer is not None:
            self.optimizer = self.hooks.make_optimizer(self)
        return trust_state(super().create_optimizer(model))

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> LRScheduler:
        if self.lr_scheduler is None and self.hooks.make_schedule is not None:
            self.lr_scheduler = self.hooks.make_schedule(
                optimizer=optimizer or self.optimizer,
                num_training_steps=num_training_steps,
            )
        return super().create_scheduler(num_training_steps, optimizer)


def last_token_count(history: Sequence[Node]) -> float:
    """The number of tokens in the last line of a history that has one; 0 without any."""
    for line in reversed(history):
        if "num_tokens" in line:
            tokens: float = line["num_tokens"]
            return tokens
    return 0.0


def replace_figures(logs: dict[str, float], figures: Mapping[str, float], absent: set[str]) -> None:
    """Put the figures of a held-out set in the place of the means that a trainer logs."""
    for name in absent - {"num_tokens"}:
        logs.pop(f"eval_{name}", None)
    logs.update({f"eval_{name}": value for name, value in figures.items()})


def mean_loss(history: Sequence[Node]) -> float:
    """The mean loss over all steps; 0 where none was logged.

    Each logged loss is the mean since the one before.
    """
    total = 0.0
    done = 0
    for line in history:
        if "loss" in line:
            total += line["loss"] * (line["step"] - done)
            done = line["step"]
    return total / max(done, 1)
