"""The measurement of one side of an evaluation."""

import gc
from dataclasses import replace

from runner.command._known_answers import measure_answers
from runner.command._sampled_answers import measure_sampled
from runner.command._side import Side
from runner.errors import DataError, Fault
from runner.io.temporary import uncollected
from runner.io.terminal import quiet


def measure_side(side: Side) -> None:
    """Load a model once and measure every set; the model is freed, because another may follow."""
    with uncollected():
        from runner.generate.judge import Figures
        from runner.metric.ask import ask_live
        from runner.metric.harness import run_tasks
        from runner.training.components.scorers import build_metrics
        from runner.training.components.trained_model import load_trained

    request = side.request
    with quiet():
        model, tokenizer = load_trained(request.experiment, request.weights, request.head)
        if request.options.tasks:
            results = run_tasks(model, tokenizer, request.options.tasks, request.options)
            side.sets["lm_eval"] = Figures(scores=results.scores, errors=results.errors)
            return
        entries = request.experiment.group("metric")
        read_metrics = []
        sampled_metrics = []
        for metric in build_metrics(request.experiment.metrics, tokenizer):
            # Every row is looked at, unless the configuration says otherwise.
            if "limit" not in entries[metric.name]:
                metric = replace(metric, limit=None)
            if metric.kind == "live":
                scores = ask_live(metric, model, tokenizer)
                side.sets[metric.name] = Figures(scores=scores)
            elif metric.kind == "read":
                read_metrics.append(metric)
            else:
                sampled_metrics.append(metric)
        measure_answers(side, model, tokenizer, read_metrics)
        measure_sampled(side, model, tokenizer, sampled_metrics)
    if not any(figures.scores for figures in side.sets.values()):
        found = f"nothing to measure: {'; '.join(side.notes)}"
        raise DataError(
            Fault(
                where="dataset",
                found=found,
                expected="prompts or known answers",
            )
        )
    del model
    gc.collect()
