"""A declarative experiment runner for post-training language models.

Its rooms, and where a change goes, are in README.md beside this. Nothing is imported here before it
is asked for.

From Python, a training is the command of the same words, and raises the errors of
``runner.errors``::

    import runner
    run = runner.train("trainer=dpo", "learning_rate=1e-6")
    run.metrics, run.scores, run.folder, run.model(), run.tokenizer()
    runner.compose("trainer=dpo")         # the configuration, checked and resolved
    runner.runs("outputs/dpo-tiny-toy")   # what was trained, the newest last; .table() of it
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.command._python import TrainedRun, compose, train
    from runner.command._trained_runs import runs

__all__ = ["TrainedRun", "compose", "runs", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.command import _python, _trained_runs

    return getattr(_trained_runs if name == "runs" else _python, name)


def __dir__() -> list[str]:
    special_names = [name for name in globals() if name.startswith("__")]
    return sorted([*special_names, *__all__])
