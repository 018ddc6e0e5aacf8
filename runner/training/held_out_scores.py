"""The scores of a model on held-out rows, and the names by which a configuration means them."""

from collections.abc import Mapping

from transformers import Trainer

from runner.errors import ConfigError, Fault
from runner.run.history import MACHINE
from runner.schema.did_you_mean import best_guess
from runner.schema.type import shortened

# How the names of figures end that say how long something took or how far it is.
CLOCK_OF_EVALUATION = ("_runtime", "_per_second", "_time", "epoch", "num_tokens")


def held_out_scores(trainer: Trainer) -> dict[str, float]:
    """Figures of the trainer's evaluation and of the metrics.

    Raises ConfigError where ``metric_for_best_model`` is none of them.
    """
    if trainer.eval_dataset is None:
        return {}
    figures = trainer.evaluate()
    names = []
    for name in figures:
        if not name.endswith(CLOCK_OF_EVALUATION) and not name.startswith(MACHINE):
            names.append(name)
    args = trainer.args
    wanted = args.metric_for_best_model
    if wanted is not None and args.eval_strategy != "no":
        key = f"eval_{str(wanted).removeprefix('eval_')}"
        if key not in figures:
            raise ConfigError(_no_such_figure(str(wanted), key, names))
    return {name: figures[name] for name in names if isinstance(figures[name], float)}


def _no_such_figure(wanted: str, key: str, names: list[str]) -> Fault:
    where = "trainer.args.metric_for_best_model"
    losses = [name for name in names if name.endswith("_loss")]
    offer = best_guess(key, names, *losses, *names, "<one of them>")
    return Fault(
        where=where,
        found=f"{wanted}, which the evaluation of the start model does not return",
        expected=shortened(names),
        fix=f"{where}={offer}",
    )


def check_objective(name: str | None, scores: Mapping[str, float]) -> None:
    """Raise ConfigError for an objective that must be a held-out score and is none of them."""
    if not scores or not name or name in scores or f"eval_{name}" in scores:
        return
    similar = best_guess(name, scores, cutoff=0.8) or best_guess(f"eval_{name}", scores, cutoff=0.8)
    if not similar and not name.startswith("eval_"):
        return  # it may be a figure of the training
    offer = similar or next(iter(scores))
    raise ConfigError(
        Fault(
            where="objective",
            found=f"{name}, which the evaluation of the start model does not return",
            expected=shortened(list(scores)),
            fix=f"objective={offer}",
        )
    )
