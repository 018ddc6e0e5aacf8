"""What a model reaches on held-out rows: the trainer's own evaluation with the configured metrics as a part of it.

How a metric is computed is not here (``metric``, ``reward``), nor what a model says of a row (``model``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.check.value import nearest
from runner.dataset.convert import fits
from runner.errors import ConfigError, Fault
from runner.files import replace_rows
from runner.metric import kind_of
from runner.metric.ask import Metric
from runner.run import Run
from runner.signature import read_signature
from runner.signature.type import shortened
from runner.tray.judge import build_metrics, named
from runner.tray.model import policy_of
from runner.tray.row import held_out_sets

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

    from runner.tray import Components

UNKNOWN = object()  # what a dataset of one's own holds out
CLOCK = ("_runtime", "_per_second", "_time", "epoch", "num_tokens")


def held_out_scores(components: Components) -> dict[str, float]:
    """The figures of the trainer's own evaluation on held-out rows, and those of the configured metrics."""
    scores = {} if components.held_out is None else components.trainer.evaluate()
    _check_best(components.args, list(scores))
    return {name: value for name, value in scores.items() if not name.endswith(CLOCK) and isinstance(value, float)}


def _check_best(args: Any, given: Sequence[str]) -> None:
    """Raise ConfigError where the best checkpoint is to be chosen by a figure that no evaluation gives."""
    wanted = args.metric_for_best_model
    named = f"eval_{str(wanted).removeprefix('eval_')}"
    if not given or wanted is None or args.eval_strategy == "no" or named in given:
        return
    told, where = [name for name in given if not name.endswith(CLOCK)], "trainer.args.metric_for_best_model"
    near = nearest(named, told) or [name for name in told if name.endswith("_loss")] or told
    found = f"{wanted}, which the evaluation of the start model does not give"
    raise ConfigError(Fault(where, found, shortened(told), f"{where}={near[0] if near else '<one of them>'}"))


def build_measure(
    run: Run, args: TrainingArguments, tokenizer: PreTrainedTokenizerBase, amendments: Sequence[Mapping[str, Any]]
) -> HeldOut | None:
    """The configured metrics, for a trainer to call with the prefix of each evaluation; None without any."""
    metrics = build_metrics(run.cfg["metric"], tokenizer)
    return HeldOut(run, args, tokenizer, metrics, amendments) if metrics else None


def find_metric_faults(cfg: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each metric that this trainer, or these rows, cannot answer; read from the configuration alone."""
    head, rows, metrics = cfg["trainer"]["head"], cfg["dataset"], named(cfg["metric"] or {}, "metric")
    evals = (rows["split"] or {}).get("eval") if "split" in rows else UNKNOWN
    if metrics and not evals:
        found = f"{', '.join(metrics)}, and there are no held-out rows to measure"
        yield Fault("metric", found, "held-out rows, or no metric", "dataset.split.eval=<split>, or metric=none")
    for name, node in metrics.items():
        signature = read_signature(node["_target_"])
        if signature is None:
            continue
        where, off = f"metric.{name}", f"metric.{name}=null, or metric=none"
        arguments = set(signature.parameters)
        kind = kind_of(arguments)
        if head == "score" and (kind == "sampled" or arguments & {"log_probs", "logits", "labels"}):
            wants = "completions" if kind == "sampled" else "what a model says of tokens"
            found = f"it judges {wants}, and a reward model gives one score per text"
            yield Fault(where, found, "a metric of scores, such as metric=auc", off)
        elif not fits(rows.get("form"), "prompt" if kind == "sampled" else "answer"):
            wanted = "prompts" if kind == "sampled" else "known answers"
            found = f"{rows['form']} rows ({rows.get('path')}), and it needs {wanted}"
            yield Fault(where, found, f"rows with {wanted}, or no such metric", off)
        elif evals and (unknown := _unknown_sets(node.get("on"), evals)):
            names = ", ".join(evals) if isinstance(evals, Mapping) else "one set without a name; leave it out"
            yield Fault(
                f"{where}.on", f"no held-out set {', '.join(unknown)}", names, "dataset.split.eval={<name>: <split>}"
            )
        if node.get("preprocess") and (kind == "sampled" or head == "score"):
            found = "set, and there are no logits of tokens to make something of"
            yield Fault(f"{where}.preprocess", found, "none", f"{where}.preprocess=null")


def _unknown_sets(on: Sequence[str] | None, evals: Any) -> list[str]:
    known = evals if isinstance(evals, Mapping) else ()
    return [] if evals is UNKNOWN else [name for name in on or () if name not in known]


class HeldOut:
    """The metrics of a run; called with the prefix of an evaluation, it measures the held-out set of that name."""

    def __init__(
        self,
        run: Run,
        args: TrainingArguments,
        tokenizer: PreTrainedTokenizerBase,
        metrics: Sequence[Metric],
        amendments: Sequence[Mapping[str, Any]],
    ):
        self.run, self.args, self.tokenizer, self.metrics = run, args, tokenizer, metrics
        self.is_scorer = run.cfg["trainer"]["head"] == "score"
        self.halvings = sum("per_device_eval_batch_size" in each.get("args", {}) for each in amendments)
        self.sets: dict[str, dict[str, Any]] = {}  # by form

    def __call__(self, trainer: Trainer, prefix: str) -> dict[str, float]:
        """Every number of every metric that measures this set, each under the prefix."""
        name = prefix.removeprefix("eval").removeprefix("_")
        asked = [metric for metric in self.metrics if metric.measures(name)]
        sampled, read = ([metric for metric in asked if metric.kind == kind] for kind in ("sampled", "read"))
        found = self._sampled(trainer, sampled, name) if sampled else {}
        found |= self._read(policy_of(trainer), read, name) if read else {}
        return {f"{prefix}_{key}": value for metric in asked for key, value in found[metric.name].items()}

    def _rows(self, form: str, name: str) -> Any:
        """The held-out rows of a set, in the form that a kind of metric needs; converted once in a run."""
        if form not in self.sets:
            self.sets[form] = held_out_sets(self.run.cfg, form, None if form == "prompt" else ["*"])
        if name not in self.sets[form]:
            found, expected = f"an evaluation of {name!r}", f"one of {', '.join(self.sets[form])}"
            raise ConfigError(Fault("metric", found, expected, "dataset.split.eval=<sets>"))
        return self.sets[form][name]

    def _sampled(self, trainer: Trainer, metrics: Sequence[Metric], name: str) -> dict[str, dict[str, float]]:
        """What metrics say of completions that are sampled for the first prompts of a set."""
        from runner.model.generate import BATCH, generate

        rows, most = self._rows("prompt", name), _most(metrics)
        rows = list(rows if most is None else rows.take(most))
        prompts = [row["prompt"] for row in rows]
        how = {"max_new_tokens": _completion_length(self.args), "batch_size": max(1, BATCH >> self.halvings)}
        completions = generate(policy_of(trainer), self.tokenizer, prompts, **how)
        if trainer.is_world_process_zero():
            self._write(trainer.state.global_step, prompts, completions, name)
        found = {}
        for metric in metrics:
            count = min(len(rows), metric.limit or len(rows))
            found[metric.name] = metric(count, completions=completions[:count], **to_columns(rows[:count]))
        return found

    def _read(self, model: PreTrainedModel, metrics: Sequence[Metric], name: str) -> dict[str, dict[str, float]]:
        """What metrics say of how a model reads the known answers of a set."""
        rows = list(self._rows("answer", name))
        picked = {metric.name: self._picked(metric, rows) for metric in metrics}
        wanted = sorted(set().union(*picked.values()))
        given = self._given(model, metrics, [rows[number] for number in wanted])
        places = {number: place for place, number in enumerate(wanted)}
        found = {}
        for metric in metrics:
            numbers = picked[metric.name]
            columns = to_columns([rows[number] for number in numbers])
            said = {key: [values[places[number]] for number in numbers] for key, values in given[metric.name].items()}
            found[metric.name] = metric(len(numbers), **columns | said)
        return found

    def _picked(self, metric: Metric, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """The numbers of the rows that a metric is asked about: a reward model is shown right and wrong answers."""
        all_of_them = self.is_scorer or metric.answers == "all"
        picked = [number for number, row in enumerate(rows) if all_of_them or row["label"]]
        return picked[: metric.limit]

    def _given(
        self, model: PreTrainedModel, metrics: Sequence[Metric], rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, dict[str, list[Any]]]:
        how = {"is_scorer": self.is_scorer, "max_length": _longest(self.args, model)}
        return read_given(model, self.tokenizer, metrics, rows, **how)

    def _write(self, step: int, prompts: list[Any], completions: list[str], name: str) -> None:
        """Add a step's samples to completions.jsonl, in place of those of an earlier try at the same step."""
        keys = {"step": step} | ({"set": name} if name else {})
        pairs = zip(prompts, completions, strict=True)
        rows = [keys | {"prompt": prompt, "completion": completion} for prompt, completion in pairs]
        replace_rows(self.run.folder / "completions.jsonl", rows, same=list(keys))


def read_given(
    model: Any,
    tokenizer: Any,
    metrics: Sequence[Metric],
    rows: Sequence[Mapping[str, Any]],
    *,
    is_scorer: bool,
    max_length: int | None,
) -> dict[str, dict[str, list[Any]]]:
    """For each metric what the model thinks of the rows, under the names by which metrics ask for it."""
    from runner.model.answer import read_answers, score_answers

    if is_scorer:
        scores = score_answers(model, tokenizer, rows, max_length=max_length)
        return {metric.name: {"scores": scores} for metric in metrics}
    keep = {metric.name: metric.preprocess or _whole for metric in metrics if metric.preprocess or metric.takes_logits}
    reading = read_answers(model, tokenizer, rows, keep=keep, max_length=max_length)
    sums = [math.fsum(values) for values in reading.log_probs]
    given = {}
    for metric in metrics:
        kept = [_plain(value) for value in reading.kept.get(metric.name, [])]
        scores = kept if metric.preprocess else sums
        given[metric.name] = {"labels": reading.labels, "log_probs": reading.log_probs, "scores": scores}
        given[metric.name] |= {"logits": kept} if kept else {}
    return given


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of rows by name, as rewards and metrics take them; the prompt of a text is the text."""
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    columns["prompts"] = columns.pop("prompt") if "prompt" in columns else columns.get("text", [])
    return columns


def _most(metrics: Sequence[Metric]) -> int | None:
    """The most rows that any of the metrics looks at; None is all."""
    limits = [metric.limit for metric in metrics]
    return None if None in limits else max(limits)


def _whole(logits: Any, labels: Any) -> Any:
    """All logits of an answer, off the accelerator, for a metric that wants them all."""
    return logits.cpu()


def _plain(value: Any) -> Any:
    """A tensor with one number, or with one per token, as Python's own; whole logits as an array."""
    if not hasattr(value, "ndim"):
        return value
    value = value.cpu() if hasattr(value, "cpu") else value
    return value.tolist() if value.ndim < 2 else value.numpy()


def _completion_length(args: Any) -> int:
    """Most tokens of a completion, under the name that the trainer has for it."""
    names = ("max_completion_length", "response_length", "max_new_tokens")
    return next(filter(None, (getattr(args, name, None) for name in names)), 64)


def _longest(args: Any, model: Any) -> int | None:
    """Most tokens of a row: what the trainer cuts it to, and what the model holds."""
    config = model.config.get_text_config()
    known = (getattr(args, "max_length", None), getattr(config, "max_position_embeddings", None))
    return min(filter(None, known), default=None)
