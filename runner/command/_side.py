"""A side of an evaluation: a model, and the figures that are measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner.command._inference import InferenceRequest
from runner.command.evaluate_options import Options
from runner.schema.text import Node

if TYPE_CHECKING:
    from runner.generate.judge import Figures
    from runner.metric.ask import Metric

Request = InferenceRequest[Options]
# Metrics of known answers beside the configured ones, by the last layer of the model.
READ_METRICS: Mapping[str, Mapping[str, Node]] = {
    "lm": {
        "loss": {"_target_": "runner.metric.likelihood.loss", "better": "lower"},
        "perplexity": {"_target_": "runner.metric.likelihood.perplexity", "better": "lower"},
    },
    "score": {"accuracy": {"_target_": "runner.metric.binary.pairs"}},
}


@dataclass
class Side:
    """A model that is evaluated, and its figures."""

    request: Request
    notes: list[str] = field(default_factory=list)  # of what was not measured, and why
    sets: dict[str, Figures] = field(default_factory=dict)  # by the names of the held-out sets

    @property
    def name(self) -> str:
        """The run, or the model, and which of its weights."""
        return f"{self.request.name} ({self.request.weights.name})"

    def to_json(self) -> dict[str, Any]:
        """The figures, each under the name by which a training logs it: eval_loss."""
        rows: dict[str, int] = {}
        scores: dict[str, float] = {}
        errors: dict[str, float] = {}
        for name, figures in self.sets.items():
            prefix = f"{name}_" if name in ("eval", "train") else f"eval_{name}_"
            if self.request.options.tasks:
                prefix = ""  # the name of a task stands before each figure
            rows[name] = figures.rows
            for key, value in figures.scores.items():
                scores[f"{prefix}{key}"] = value
            for key, value in figures.errors.items():
                errors[f"{prefix}{key}"] = value
        return {"model": self.name, "rows": rows, "scores": scores, "errors": errors}


def metrics_of_set(metrics: Sequence[Metric], name: str) -> list[Metric]:
    """The metrics that measure a set; the one without a name is called eval here, or train."""
    held_out = "" if name in ("eval", "train") else name
    return [metric for metric in metrics if metric.measures(held_out)]
