"""The amount that the evaluations of a run sample, from its configuration alone: for plan, forecast and training.

Evaluations that read known answers take every held-out row; what is sampled costs as much as a training step does.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.config.machines import processes_of
from runner.dataset.request import named_sets
from runner.metric.ask import SAMPLES, kind_of
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import Config, Node, named
from runner.schema.upstream import batch_size, config_fields, setting

PROMPTS = 64  # of each held-out set that a trainer answers: the mean reward is known to an eighth of its spread
ANSWER_TOKENS = 64  # most tokens of an answer that a metric judges, where the trainer has no number of its own


def answer_tokens(asked: Iterable[int | None], completion: int | None) -> int:
    """The most tokens of an answer that metrics judge: as many as one of them asks for, or as the trainer samples."""
    return max(filter(None, asked), default=completion or ANSWER_TOKENS)


def prompts_answered(cfg: Config) -> int | None:
    """The most prompts of a set that the trainer's evaluation answers; None if it samples none, or the limit says."""
    node = cfg["dataset"]
    is_open = "limit" in _arguments_of(node) and (node.get("limit") or {}).get("eval") is None
    return PROMPTS if is_open and _answers(cfg["trainer"]) else None


@dataclass(frozen=True)
class EvaluationBudget:
    """The most that the evaluations of a run sample."""

    sets: int
    prompts: int  # of each set
    times: int  # that each is answered
    judged: int  # answers of each set that metrics sample
    evaluations: int
    texts: int | None  # that the training samples or reads, None where only its rows can tell
    is_open: bool  # nobody has said how many prompts

    @property
    def answers(self) -> int:
        """The answers of one evaluation."""
        return self.sets * (self.prompts * self.times + self.judged)

    def lines(self) -> Iterator[str]:
        """The bound in words, and a note where the evaluations take more than the training."""
        each = f"{self.prompts or self.judged} held-out prompts" + f" of each of {self.sets} sets" * (self.sets > 1)
        each += f", {self.times} answers each" if self.prompts and self.times > 1 else ""
        each += f", and {self.judged} for metrics" if self.prompts and self.judged else ""
        if self.is_open:
            yield f"evaluates at most {each}; dataset.limit.eval= changes it"
        total = self.evaluations * self.answers
        if self.texts is not None and total > max(self.texts, SAMPLES):  # fewer take no time
            of_a_prompt = self.sets * ((self.times if self.prompts else 0) + bool(self.judged))
            fewer = max(1, self.texts // (self.evaluations * of_a_prompt))
            found = f"they sample up to {total:,} answers, it takes {self.texts:,} texts"
            yield f"note      evaluations may take longer than the training: {found}; dataset.limit.eval={fewer}"


def evaluation_budget(cfg: Config, steps: int | None = None) -> EvaluationBudget | None:
    """The budget of a run, of so many steps where the configuration does not say it; None where nothing is sampled."""
    node, args, metrics = cfg["dataset"], cfg["trainer"]["args"], named(cfg["metric"] or {}, "metric")
    sets, limit = _held_out_sets(node), (node.get("limit") or {}).get("eval")
    sampled = [each for each in metrics.values() if kind_of(_arguments_of(each)) == "sampled"]
    most, bounds = limit or math.inf, [each.get("limit", SAMPLES) or math.inf for each in sampled]
    judged = min(most, max(bounds, default=0))
    prompts = min(most, prompts_answered(cfg) or math.inf) if _answers(cfg["trainer"]) else 0
    if not sets or not (judged or prompts) or math.isinf(judged + prompts):
        return None
    groups = upstream.NUM_GENERATIONS_EVAL in config_fields(args)
    times = setting(args, upstream.NUM_GENERATIONS_EVAL) or (setting(args, upstream.NUM_GENERATIONS) if groups else 1)
    steps, between = steps or setting(args, upstream.MAX_STEPS, -1), 0
    if (strategy := setting(args, upstream.EVAL_STRATEGY, "no")) == "epoch":
        between = math.ceil(setting(args, upstream.NUM_TRAIN_EPOCHS, 3.0))
    elif strategy == "steps":
        every = setting(args, upstream.EVAL_STEPS) or setting(args, upstream.LOGGING_STEPS, 500)
        between = int(1 / every if every < 1 else max(0, steps) / every)
    each_step = batch_size(args) * setting(args, upstream.GRADIENT_ACCUMULATION_STEPS, 1) * processes_of(cfg)
    texts = round(steps * each_step / setting(args, upstream.NUM_ITERATIONS, 1)) if steps > 0 else None
    if texts is None and (rows := (node.get("limit") or {}).get("train")):
        texts = round(rows * setting(args, upstream.NUM_TRAIN_EPOCHS, 3.0) * setting(args, upstream.NUM_GENERATIONS, 1))
    return EvaluationBudget(sets, int(prompts), times, int(judged), 2 + between, texts, limit is None)


def _arguments_of(node: Node) -> Collection[str]:
    return getattr(read_signature(node["_target_"]), "parameters", ())


def _answers(trainer: Node) -> bool:
    return trainer["form"] == "prompt" and trainer.get("evaluates", True)


def _held_out_sets(node: Node) -> int:
    if isinstance(parts := node.get("parts"), Mapping):
        return sum(_held_out_sets(part) for part in parts.values() if part)
    if "split" not in node:
        return 1  # a dataset of one's own holds out what it will
    return sum(each is not None for each in named_sets((node["split"] or {}).get("eval")).values())
