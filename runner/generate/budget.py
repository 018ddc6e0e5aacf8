"""The number of texts that a run's evaluations sample, from its configuration alone.

Plan, forecast and training read it. Evaluations that read known answers take every held-out row;
what is sampled costs as much as a training step does.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.config.experiment import Experiment, MetricPart, Part, TrainerPart
from runner.dataset.request import named_sets
from runner.generate import ENVIRONMENT_ROWS
from runner.metric.ask import SAMPLES, kind_of
from runner.schema.read import read_signature
from runner.schema.text import Node
from runner.schema.trainer_args import TrainerArgs
from runner.schema.upstream import batch_size, config_fields, setting

# Of each held-out set that a trainer answers: the mean reward is known to an eighth of its spread.
PROMPTS = 64
# Most tokens of an answer that a metric judges, where the trainer has no number of its own.
ANSWER_TOKENS = 64
# Sampled twice in any case: before the training and after it.
FIRST_AND_LAST = 2


def answer_tokens(asked: Iterable[int | None], completion: int | None) -> int:
    """The most tokens of an answer that metrics judge.

    They are as many as one of the metrics asks for, or as the trainer samples.
    """
    numbers = [number for number in asked if number]
    return max(numbers, default=completion or ANSWER_TOKENS)


def prompts_answered(experiment: Experiment) -> int | None:
    """The most prompts of a set that the trainer's evaluation answers.

    None if it answers none, or if the limit of the dataset says the number.
    """
    dataset = experiment.dataset
    has_limit = "limit" in _arguments_of(dataset)
    is_unlimited = dataset.limits.get("eval") is None
    if has_limit and is_unlimited and _answers_prompts(experiment.trainer):
        return PROMPTS
    return None


@dataclass(frozen=True)
class EvaluationBudget:
    """The most that the evaluations of a run sample."""

    sets: int
    prompts: int  # of each set
    times: int  # that each is answered
    judged: int  # answers of each set that metrics sample
    evaluations: int
    texts: int | None  # that the training samples or reads, None where only its rows can tell
    is_open: bool  # the config says no number of prompts

    @property
    def answers(self) -> int:
        """The answers of one evaluation."""
        return self.sets * (self.prompts * self.times + self.judged)

    def lines(self) -> Iterator[str]:
        """The bound in words, and a note where the evaluations take more than the training."""
        if self.is_open:
            yield f"evaluates at most {self._describe()}; dataset.limit.eval= changes it"
        total = self.evaluations * self.answers
        if self.texts is None or total <= max(self.texts, SAMPLES):  # fewer take no time
            return
        samples_of_prompt = self.times if self.prompts else 0
        if self.judged:
            samples_of_prompt += 1
        fewer = self.texts // (self.evaluations * self.sets * samples_of_prompt)
        yield (
            "note      evaluations may take longer than the training: "
            f"they sample up to {total:,} answers, while it takes {self.texts:,} texts; "
            f"dataset.limit.eval={max(1, fewer)}"
        )

    def _describe(self) -> str:
        text = f"{self.prompts or self.judged} held-out prompts"
        if self.sets > 1:
            text += f" of each of {self.sets} sets"
        if self.prompts and self.times > 1:
            text += f", {self.times} answers each"
        if self.prompts and self.judged:
            text += f", and {self.judged} for metrics"
        return text


def evaluation_budget(experiment: Experiment, steps: int | None = None) -> EvaluationBudget | None:
    """The budget of a run; None where nothing is sampled.

    ``steps`` are those of the training, where the configuration does not say their number.
    """
    dataset = experiment.dataset
    args = experiment.trainer.args
    sets = _count_held_out_sets(dataset.node)
    limit = dataset.limits.get("eval")
    most = limit or math.inf
    environment = experiment.environment
    if environment is not None and dataset.target == ENVIRONMENT_ROWS:
        most = min(most, environment.held_out or 0)
    judged = min(most, _most_judged(experiment.metrics))
    prompts: float = 0
    if _answers_prompts(experiment.trainer):
        prompts = min(most, prompts_answered(experiment) or math.inf)
    if not sets or not (judged or prompts) or math.isinf(judged + prompts):
        return None
    times = setting(args, "num_generations_eval")
    if not times:
        has_groups = "num_generations_eval" in config_fields(args)
        times = setting(args, "num_generations") if has_groups else 1
    steps = steps or setting(args, "max_steps", -1)
    return EvaluationBudget(
        sets=sets,
        prompts=int(prompts),
        times=times,
        judged=int(judged),
        evaluations=FIRST_AND_LAST + _evaluations_between(args, steps or 0),
        texts=_texts_of_training(experiment, steps or 0),
        is_open=limit is None and most > PROMPTS,
    )


def _most_judged(metrics: Mapping[str, MetricPart]) -> float:
    """The most answers of a set that one of the metrics samples; infinite where one takes all."""
    most: float = 0
    for metric in metrics.values():
        if kind_of(_arguments_of(metric)) == "sampled":
            most = max(most, metric.node.get("limit", SAMPLES) or math.inf)
    return most


def _evaluations_between(args: TrainerArgs, steps: int) -> int:
    """The evaluations in the course of a training."""
    strategy = setting(args, "eval_strategy", "no")
    if strategy == "epoch":
        return math.ceil(float(setting(args, "num_train_epochs", 3.0)))
    if strategy == "steps":
        every = setting(args, "eval_steps") or setting(args, "logging_steps", 500)
        if every < 1:  # a share of the training
            return int(1 / every)
        return int(max(0, steps) / every)
    return 0


def _texts_of_training(experiment: Experiment, steps: int) -> int | None:
    """The texts that a training samples or reads, None where only its rows can tell."""
    args = experiment.trainer.args
    if steps > 0:
        accumulated = setting(args, "gradient_accumulation_steps", 1)
        texts_of_step = batch_size(args) * accumulated * experiment.launcher.all_processes
        iterations = setting(args, "num_iterations", 1)
        return round(float(steps * texts_of_step / iterations))
    rows = experiment.dataset.limits.get("train")
    if not rows:
        return None
    epochs = setting(args, "num_train_epochs", 3.0)
    generations = setting(args, "num_generations", 1)
    return round(float(rows * epochs * generations))


def _arguments_of(part: Part) -> Collection[str]:
    return getattr(read_signature(part.target), "parameters", ())


def _answers_prompts(trainer: TrainerPart) -> bool:
    """True where the evaluation of a trainer samples answers."""
    return trainer.form == "prompt" and trainer.evaluates


def _count_held_out_sets(dataset: Node) -> int:
    parts = dataset.get("parts")
    if isinstance(parts, Mapping):
        return sum(_count_held_out_sets(part) for part in parts.values() if part)
    if "split" not in dataset:
        return 1  # a dataset of the user's own holds out what it will
    sets = named_sets((dataset["split"] or {}).get("eval"))
    return sum(split is not None for split in sets.values())
