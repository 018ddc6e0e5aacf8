"""Figures of a model on held-out rows: the trainer's own evaluation with the configured metrics as a part of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Trainer

from runner.errors import ConfigError, Fault, fault
from runner.generate.agent import Agent
from runner.generate.budget import answer_tokens
from runner.generate.completion import TextGenerator, context_length
from runner.generate.judge import judge_answers, judge_completions
from runner.generate.likelihood import AnswerReader
from runner.generate.rows import Row, held_out_sets
from runner.generate.sampler import Sampling, evaluating, whole
from runner.io.files import replace_rows
from runner.metric.ask import Metric
from runner.run import Run
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import nearest
from runner.schema.type import shortened
from runner.training.components.model import policy_of
from runner.training.components.scorers import build_metrics

SHOWN = 4  # prompts whose answers are written where nothing else asks for any
BATCH_SIZE = 64  # prompts side by side, until memory runs out
CLOCK = ("_runtime", "_per_second", "_time", "epoch", "num_tokens", "peak_gb")


def held_out_scores(trainer: Trainer) -> dict[str, float]:
    """Figures of the trainer's evaluation and of the metrics; ConfigError if none is ``metric_for_best_model``."""
    if trainer.eval_dataset is None:
        return {}
    scores, args, where = trainer.evaluate(), trainer.args, f"trainer.args.{upstream.METRIC_FOR_BEST_MODEL}"
    wanted = args.metric_for_best_model
    key = f"eval_{str(wanted).removeprefix('eval_')}"
    if wanted is not None and args.eval_strategy != "no" and key not in scores:
        names = [name for name in scores if not name.endswith(CLOCK)]
        near = nearest(key, names) or [name for name in names if name.endswith("_loss")] or names
        found = f"{wanted}, which the evaluation of the start model does not give"
        raise ConfigError(Fault(where, found, shortened(names), f"{where}={near[0] if near else '<one of them>'}"))
    return {name: value for name, value in scores.items() if not name.endswith(CLOCK) and isinstance(value, float)}


def check_objective(name: str | None, scores: Mapping[str, float]) -> None:
    """Raise ConfigError for an objective that is to be a held-out score, and that an evaluation does not give."""
    if not scores or not name or name in scores or f"eval_{name}" in scores:
        return
    near = nearest(name, scores, 0.8) or nearest(f"eval_{name}", scores, 0.8)
    if name.startswith("eval_") or near:
        found = f"{name}, which the evaluation of the start model does not give"
        fix = f"objective={near[0] if near else next(iter(scores))}"
        raise ConfigError(Fault("objective", found, shortened(list(scores)), fix))


@dataclass
class HeldOutMetrics:
    """The metrics of a run; called with the prefix of an evaluation, it measures the held-out set of that name."""

    run: Run
    tokenizer: PreTrainedTokenizerBase
    metrics: Sequence[Metric]
    batch_size: int
    agent: Agent | None = None
    samples: int = 0  # prompts that are answered for whoever reads them, where no metric asks for answers
    sets: dict[str, dict[str, Dataset]] = field(default_factory=dict)  # those of each form

    def __call__(self, trainer: Trainer, prefix: str) -> dict[str, float]:
        """Every number of every metric that measures this set, each under the prefix."""
        name = prefix.removeprefix("eval").removeprefix("_")
        metrics = [metric for metric in self.metrics if metric.measures(name)]
        sampled, read = ([metric for metric in metrics if metric.kind == kind] for kind in ("sampled", "read"))
        found, model, args = dict[str, float](), policy_of(trainer), trainer.args
        with whole(trainer.accelerator.unwrap_model(trainer.model)):
            if sampled or self.samples:  # on completions for the first prompts of the set
                rows, limits = self._rows("prompt", name), [metric.limit for metric in sampled]
                most = max((limit for limit in limits if limit is not None), default=self.samples)
                found |= self._answer(trainer, list(rows if None in limits else rows.take(most)), sampled, name)
            if read:  # on how the model takes the known answers
                rows = list(self._rows("answer", name))
                ends = (getattr(args, "max_length", None), context_length(model))
                reader = AnswerReader(model, self.tokenizer, min(filter(None, ends), default=None))
                found |= judge_answers(reader, rows, read, is_scorer=self.run.cfg["trainer"]["head"] == "score").scores
        # In the order of the configuration, whatever the kind.
        ordered = (key for metric in metrics for key in found if f"{key}_".startswith(f"{metric.name}_"))
        return {f"{prefix}_{key}": found[key] for key in ordered}

    @property
    def is_online(self) -> bool:
        """True where the trainer learns from what it samples."""
        return self.run.cfg["trainer"]["form"] == "prompt" and self.run.cfg["trainer"]["head"] == "lm"

    def sample_training(self, trainer: Trainer, rows: Dataset) -> None:
        """Answer the first training prompts for whoever reads them, where no row is held out."""
        with torch.random.fork_rng(), whole(trainer.accelerator.unwrap_model(trainer.model)):
            self._answer(trainer, list(rows.take(SHOWN)), [], "train")

    def _answer(self, trainer: Trainer, rows: Sequence[Row], metrics: Sequence[Metric], name: str) -> dict[str, float]:
        """The figures of metrics on completions for these rows, which are written down."""
        model = policy_of(trainer)
        longest = (metric.max_new_tokens for metric in metrics)
        length = answer_tokens(longest, upstream.completion_length(vars(trainer.args)))
        with evaluating(model):
            how = Sampling(length, rows=self.batch_size)
            generator = TextGenerator(model, self.tokenizer, how, agent=self.agent)
            figures = judge_completions(generator, rows, metrics)
        if trainer.is_world_process_zero():
            # In place of those of an earlier try at the same step.
            keys = {"step": trainer.state.global_step} | ({"set": name} if name else {})
            texts = [{key: row[key] for key in ("prompt", "completion")} for row in figures.completions]
            written = [keys | text for text in texts]
            replace_rows(self.run.folder / "completions.jsonl", written, same=list(keys))
        return figures.scores

    def _rows(self, form: str, name: str) -> Dataset:
        if form not in self.sets:
            self.sets[form] = held_out_sets(self.run.cfg, form, None if form == "prompt" else ["*"])
        if name not in self.sets[form]:
            raise ConfigError(fault("training.no_such_set", name=name, known=", ".join(self.sets[form])))
        return self.sets[form][name]


def build_measure(
    run: Run, tokenizer: PreTrainedTokenizerBase, adjustments: Sequence[Mapping[str, Any]], agent: Agent | None
) -> HeldOutMetrics | None:
    """The configured metrics, for a trainer to call with the prefix of each evaluation; None without any.

    Of a trainer that learns from what it samples, some answers are written also without a metric, unless it writes them
    itself, as PPO does.
    """
    metrics, node = build_metrics(run.cfg["metric"], tokenizer), run.cfg["trainer"]
    halvings = sum(upstream.PER_DEVICE_EVAL_BATCH_SIZE in each.get("args", {}) for each in adjustments)
    is_online = node["form"] == "prompt" and node["head"] == "lm"
    if not metrics and not is_online:
        return None
    config = read_signature(node["args"]["_target_"])
    writes_itself = upstream.loss_interface(read_signature(node["_target_"]), config) == "policy"
    samples = SHOWN if is_online and not writes_itself else 0
    return HeldOutMetrics(run, tokenizer, metrics, max(1, BATCH_SIZE >> halvings), agent, samples)
