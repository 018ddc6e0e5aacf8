"""The metrics of a run, which its trainer measures in each evaluation of held-out rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Trainer

from runner.errors import ConfigError, Fault
from runner.generate.agent import Agent
from runner.generate.answer_reader import AnswerReader
from runner.generate.budget import answer_tokens
from runner.generate.completion import TextGenerator, context_length
from runner.generate.held_out_rows import held_out_sets
from runner.generate.judge import judge_answers, judge_completions
from runner.generate.sampler import Model, Sampler, Sampling, evaluating, whole
from runner.io.files import JsonObject, replace_rows
from runner.io.turns import Row
from runner.metric.ask import Metric, ask_live
from runner.run import Run
from runner.schema import upstream
from runner.training.components.model import policy_of
from runner.training.components.trainer_parts import loss_interface_of

SHOWN = 4  # prompts whose answers are written where nothing else asks for any
BATCH_SIZE = 64  # prompts side by side, until memory runs out


@dataclass
class HeldOutMetrics:
    """The metrics of a run.

    Called with the prefix of an evaluation, they measure the held-out set of that name.
    """

    run: Run
    tokenizer: PreTrainedTokenizerBase
    metrics: Sequence[Metric]
    batch_size: int
    # What samples in the place of the model; all processes ask for it, before weights are gathered.
    find_engine: Callable[[Trainer, Model], Sampler | None]
    agent: Agent | None = None
    # Prompts that are answered for whoever reads the answers, where no metric asks for any.
    samples: int = 0
    sets: dict[str, dict[str, Dataset]] = field(default_factory=dict)  # by form, then by name

    def __call__(self, trainer: Trainer, prefix: str) -> dict[str, float]:
        """Every number of every metric that measures this set, each under the prefix."""
        set_name = prefix.removeprefix("eval").removeprefix("_")
        metrics = [metric for metric in self.metrics if metric.measures(set_name)]
        sampled = [metric for metric in metrics if metric.kind == "sampled"]
        read = [metric for metric in metrics if metric.kind == "read"]
        live = [metric for metric in metrics if metric.kind == "live"]
        scores = dict[str, float]()
        sampler = None
        if sampled or self.samples:
            sampler = self.find_engine(trainer, policy_of(trainer))
        with whole(trainer.accelerator.unwrap_model(trainer.model)):
            if sampled or self.samples:  # on completions for the first prompts of the set
                rows = self._first_prompts(sampled, set_name)
                scores |= self._answer(trainer, sampler, rows, sampled, set_name)
            if read:  # on how likely the known answers are to the model
                scores |= self._read_answers(trainer, read, set_name)
            if live:
                model = policy_of(trainer)
                with evaluating(model), torch.no_grad():
                    for metric in live:
                        scores |= ask_live(metric, model, self.tokenizer)
        # In the order of the configuration, whatever the kind.
        ordered = {}
        for metric in metrics:
            for key, score in scores.items():
                if f"{key}_".startswith(f"{metric.name}_"):
                    ordered[f"{prefix}_{key}"] = score
        return ordered

    @property
    def is_online(self) -> bool:
        """True where the trainer learns from what it samples."""
        return self.run.experiment.trainer.is_online

    def sample_training(self, trainer: Trainer, rows: Dataset) -> None:
        """Answer the first training prompts for whoever reads them, where no row is held out."""
        sampler = self.find_engine(trainer, policy_of(trainer))
        with torch.random.fork_rng(), whole(trainer.accelerator.unwrap_model(trainer.model)):
            self._answer(trainer, sampler, list(rows.take(SHOWN)), [], "train")

    def _first_prompts(self, metrics: Sequence[Metric], set_name: str) -> list[Row]:
        """As many rows of a set as some metric wants, or those that are only shown."""
        rows = self._rows("prompt", set_name)
        limits = [metric.limit for metric in metrics if metric.limit is not None]
        if len(limits) == len(metrics):
            rows = rows.take(max(limits, default=self.samples))
        return list(rows)

    def _read_answers(
        self, trainer: Trainer, metrics: Sequence[Metric], set_name: str
    ) -> dict[str, float]:
        """The figures of metrics on the known answers of a set."""
        model = policy_of(trainer)
        lengths = [getattr(trainer.args, "max_length", None), context_length(model)]
        max_length = min(filter(None, lengths), default=None)
        reader = AnswerReader(model, self.tokenizer, max_length)
        rows = list(self._rows("answer", set_name))
        is_scorer = self.run.experiment.trainer.head == "score"
        return judge_answers(reader, rows, metrics, is_scorer=is_scorer).scores

    def _answer(
        self,
        trainer: Trainer,
        sampler: Sampler | None,
        rows: Sequence[Row],
        metrics: Sequence[Metric],
        set_name: str,
    ) -> dict[str, float]:
        """The figures of metrics on completions for these rows, which are written down."""
        model = policy_of(trainer)
        wanted_lengths = (metric.max_new_tokens for metric in metrics)
        length = answer_tokens(wanted_lengths, upstream.completion_length(vars(trainer.args)))
        with evaluating(model):
            sampling = Sampling(length, rows=self.batch_size)
            generator = TextGenerator(
                model, self.tokenizer, sampling, agent=self.agent, sampler=sampler
            )
            figures = judge_completions(generator, rows, metrics)
        if trainer.is_world_process_zero():
            step: JsonObject = {"step": trainer.state.global_step}
            if set_name:
                step["set"] = set_name
            written = []
            for row in figures.completions:
                written.append({**step, "prompt": row["prompt"], "completion": row["completion"]})
            # In place of those of an earlier try at the same step.
            replace_rows(
                self.run.folder / "completions.jsonl", written, same=["step", "set", "source"]
            )
        return figures.scores

    def _rows(self, form: str, set_name: str) -> Dataset:
        """The held-out rows of a set in a form, which are loaded once."""
        if form not in self.sets:
            columns = None if form == "prompt" else ["*"]
            self.sets[form] = held_out_sets(self.run.experiment, form, columns)
        sets = self.sets[form]
        if set_name not in sets:
            raise ConfigError(
                Fault(
                    where="metric",
                    found=f"an evaluation of {set_name!r}",
                    expected=f"one of {', '.join(sets)}",
                    fix="dataset.split.eval=<sets>",
                )
            )
        return sets[set_name]


def build_measure(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    metrics: Sequence[Metric],
    agent: Agent | None,
    halvings: int,
    find_engine: Callable[[Trainer, Model], Sampler | None],
) -> HeldOutMetrics | None:
    """The configured metrics, to be called with the prefix of each evaluation; None without any.

    Prompts are answered side by side, half as many for each of the ``halvings`` of a batch that was
    too large.
    Of a trainer that learns from what it samples, some answers are written also without a metric,
    unless it writes them itself, as PPO does.
    """
    trainer = run.experiment.trainer
    if not metrics and not trainer.is_online:
        return None
    samples = 0
    if trainer.is_online and loss_interface_of(trainer) != "policy":
        samples = SHOWN
    batch_size = max(1, BATCH_SIZE >> halvings)
    return HeldOutMetrics(run, tokenizer, metrics, batch_size, find_engine, agent, samples)


def sample_training(trainer: Trainer, rows: Dataset) -> None:
    """Write answers to the first training prompts where no row is held out."""
    measure = trainer.hooks.measure
    if isinstance(measure, HeldOutMetrics) and trainer.eval_dataset is None and measure.is_online:
        measure.sample_training(trainer, rows)
