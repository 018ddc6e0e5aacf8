"""Tasks of EleutherAI's lm-evaluation-harness on a model in memory: its prompts and its counting.

``pip install lm-eval`` brings them. Only public functions of the library are called.
"""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import ConfigError, Fault

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class TaskScores:
    """The figures of tasks as ``task/figure``, and the standard errors that the library states."""

    scores: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSettings:
    """The settings of tasks: what the library is asked for, and where tasks of one's own lie."""

    num_fewshot: int | None = None
    batch_size: int = 8
    limit: int | None = None  # the first rows of each task; None for all
    apply_chat_template: bool = False
    include_path: str | None = None  # a folder with tasks of one's own ...
    trust_remote_code: bool = False  # ... which can run any code


def lm_eval(
    live_model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    tasks: Sequence[str],
    include_path: str | None = None,
    num_fewshot: int | None = None,
    batch_size: int = 8,
    limit: int | None = None,
    apply_chat_template: bool = False,
    trust_remote_code: bool = False,
) -> dict[str, float]:
    """The figures of tasks, of the first ``limit`` rows of each or of all.

    ``include_path`` is a folder with tasks of one's own.
    """
    settings = TaskSettings(
        num_fewshot=num_fewshot,
        batch_size=batch_size,
        limit=limit,
        apply_chat_template=apply_chat_template,
        include_path=include_path,
        trust_remote_code=trust_remote_code,
    )
    return run_tasks(live_model, tokenizer, tasks, settings).scores


def run_tasks(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    tasks: Sequence[str],
    settings: TaskSettings,
) -> TaskScores:
    """The figures of tasks with their standard errors; ConfigError for a task that is not known."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    check_tasks_folder(settings)
    manager = _task_manager(settings.include_path)
    unknown = [name for name in tasks if not manager.match_tasks([name])]
    if unknown:
        raise ConfigError(
            Fault(
                where="lm_eval",
                found=f"no task {', '.join(unknown)}",
                expected="tasks of lm-evaluation-harness, which `lm_eval ls tasks` lists",
                fix="lm_eval=[hellaswag,arc_easy], or a folder of yours that has it",
            )
        )
    # It sets the padding of the tokenizer that it is given.
    served = HFLM(
        pretrained=model,
        tokenizer=copy.deepcopy(tokenizer),
        batch_size=settings.batch_size,
        backend="causal",
    )
    results = simple_evaluate(
        model=served,
        tasks=list(tasks),
        task_manager=manager,
        log_samples=False,
        num_fewshot=settings.num_fewshot,
        limit=settings.limit,
        apply_chat_template=settings.apply_chat_template,
    )
    return read_results((results or {}).get("results") or {})


@functools.cache
def _task_manager(include_path: str | None) -> Any:
    """The library's list of tasks, which takes it seconds to make, once for all evaluations."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=include_path)


def check_tasks_folder(settings: TaskSettings) -> None:
    """Raise ConfigError for a folder with tasks that is not there, or not trusted.

    A task can run any code: by its templates, which the library fills without a sandbox, by a
    metric that is a script, or by functions beside it.
    """
    include_path = settings.include_path
    if include_path is None:
        return
    if not Path(include_path).is_dir():
        raise ConfigError(
            Fault(
                where="include_path",
                found=f"no folder {include_path}",
                expected="a folder with tasks in YAML",
                fix="the path of such a folder",
            )
        )
    if not settings.trust_remote_code:
        raise ConfigError(
            Fault(
                where="include_path",
                found=f"tasks in {include_path}, whose templates and metrics can run any code",
                expected="tasks of lm-evaluation-harness, or your word that you trust these",
                fix="trust_remote_code=true  (if you trust who wrote them)",
            )
        )


def read_results(results: Mapping[str, Mapping[str, Any]]) -> TaskScores:
    """The library's results as numbers by name; a filter is named if it is not the default one.

    >>> read_results({"sort": {"alias": "sort", "acc,none": 0.5, "acc_stderr,none": 0.1}})
    TaskScores(scores={'sort/acc': 0.5}, errors={'sort/acc': 0.1})
    """
    figures = TaskScores()
    for task, values in results.items():
        for key, value in values.items():
            name, _, method = key.partition(",")
            if not method or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            shown = f"{task}/{name.removesuffix('_stderr')}"
            if method != "none":
                shown = f"{shown},{method}"
            if name.endswith("_stderr"):
                figures.errors[shown] = float(value)
            else:
                figures.scores[shown] = float(value)
    return figures
