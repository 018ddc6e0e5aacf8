"""What a model reaches on held-out rows: the trainer's own evaluation, and metrics of sampled completions.

How a metric is computed is not here (``metric``, ``reward``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.config import serve
from runner.files import replace_rows
from runner.run import Run
from runner.tray import build_scorer, policy_of

HELD_OUT_PROMPTS = 200


def held_out_scores(run: Run, parts: Mapping[str, Any]) -> dict[str, float]:
    """What the model reaches on held-out rows now: the trainer's own evaluation, and metrics of sampled completions."""
    scores: dict[str, float] = {}
    trainer = parts["trainer"]
    if parts["eval_dataset"] is not None:
        scores |= trainer.evaluate()
    if run.cfg["metric"] and run.cfg["trainer"]["head"] == "lm":
        scores |= _generated_scores(run, parts)
    clock = ("_runtime", "_per_second", "_time", "epoch", "num_tokens")
    return {name: value for name, value in scores.items() if not name.endswith(clock) and isinstance(value, float)}


def _generated_scores(run: Run, parts: Mapping[str, Any]) -> dict[str, float]:
    """Each configured metric, averaged over completions sampled for held-out prompts."""
    from runner.model.generate import generate

    cfg, trainer = run.cfg, parts["trainer"]
    _, held_out = serve(cfg["dataset"], to="prompt", seed=cfg["seed"])
    if held_out is None:
        return {}
    scores = {}
    for name, rows in (held_out if isinstance(held_out, Mapping) else {"": held_out}).items():
        first = list(rows.take(HELD_OUT_PROMPTS))
        columns = {column: [row[column] for row in first] for column in first[0]}
        completions = generate(
            policy_of(trainer),
            parts["processing_class"],
            columns["prompt"],
            max_new_tokens=_completion_length(parts["args"]),
        )
        if trainer.is_world_process_zero():
            _write_completions(run, columns["prompt"], completions, trainer.state.global_step)
        columns["prompts"] = columns.pop("prompt")
        for metric, node in cfg["metric"].items():
            values = build_scorer(metric, node)(completions=completions, **columns)
            numbers = [value for value in values if value is not None]
            if numbers:
                scores["_".join(filter(None, ("eval", name, metric)))] = sum(numbers) / len(numbers)
    return scores


def _completion_length(args: Any) -> int:
    """Most tokens of a completion, under the name that the trainer has for it."""
    names = ("max_completion_length", "response_length", "max_new_tokens")
    return next(filter(None, (getattr(args, name, None) for name in names)), 64)


def _write_completions(run: Run, prompts: list[Any], completions: list[str], step: int) -> None:
    """Add a step's held-out samples to completions.jsonl, in place of those of an earlier try at the same step."""
    pairs = zip(prompts, completions, strict=True)
    rows = [{"step": step, "prompt": prompt, "completion": completion} for prompt, completion in pairs]
    replace_rows(run.folder / "completions.jsonl", rows, same=["step"])
