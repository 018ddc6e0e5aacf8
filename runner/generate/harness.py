"""The tasks of lm-evaluation-harness on a model that is loaded already, through the library's public functions.

``pip install lm-eval`` brings it. What a task asks and how it counts is the library's.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, fault


def check_tasks(folder: Path, trusted: bool) -> None:
    """Raise ConfigError where tasks name Python functions, which the library would import from beside them and call."""
    code = re.compile(rb"!function|^\s*(class|custom_dataset)\s*:", re.M)
    for file in [] if trusted else sorted(folder.rglob("*.y*ml")):
        if file.suffix in (".yaml", ".yml") and code.search(file.read_bytes()):
            raise ConfigError(fault("generate.tasks_with_code", file=file))


def run_tasks(
    model: Any, tokenizer: Any, tasks: Sequence[str], *, batch_size: int, include: str | None = None, **how: Any
) -> tuple[dict[str, float], dict[str, float]]:
    """The figures of every task as ``task/metric``, and the standard errors that the library states for them.

    ``include`` is a folder of one's own tasks. Raises ConfigError for a task that nobody knows.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    known = TaskManager(include_path=include)
    if missing := [name for name in tasks if not known.match_tasks([name])]:
        raise ConfigError(fault("generate.no_such_tasks", tasks=", ".join(missing)))
    served = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    found = simple_evaluate(model=served, tasks=list(tasks), task_manager=known, log_samples=False, **how)
    return to_figures((found or {}).get("results") or {})


def to_figures(results: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """The library's results as numbers by name; a filter is named where it is not the default one.

    >>> to_figures({"sort": {"alias": "sort", "acc,none": 0.5, "acc_stderr,none": 0.1, "em,strict": 1.0}})
    ({'sort/acc': 0.5, 'sort/em,strict': 1.0}, {'sort/acc': 0.1})
    """
    scores, errors = {}, {}
    for task, numbers in results.items():
        for key, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            name, _, how = key.partition(",")
            shown = "" if how in ("", "none") else f",{how}"
            if name.endswith("_stderr"):
                errors[f"{task}/{name.removesuffix('_stderr')}{shown}"] = float(value)
            elif "," in key:
                scores[f"{task}/{name}{shown}"] = float(value)
    return scores, errors
