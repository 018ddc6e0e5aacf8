"""The rows that an environment makes, as a dataset: those of the training, and those held out."""

import functools
import logging
from collections.abc import Sequence
from typing import Literal

from datasets import Dataset

from runner.config.experiment import EnvironmentPart
from runner.dataset.convert import RowRequest
from runner.dataset.converted_rows import convert_rows
from runner.errors import ConfigError, DataError, Fault, describe
from runner.generate.environment.contract import open_environment, remembered_rows
from runner.generate.episode import ROW
from runner.io.files import JsonObject
from runner.schema.role import Role

log = logging.getLogger(__name__)


def environment_rows(
    environment: EnvironmentPart | None = None,
    *,
    form: Literal["prompt", "prompt_completion"] = "prompt",
    limit: dict[Literal["train", "eval"], int | None] | None = None,
    seed: int = 0,
    to: str | None = None,
    keep: Sequence[str] | None = None,
) -> tuple[Dataset, Dataset | None]:
    """The training rows and the held-out rows of an environment, which the runner serves.

    ``limit`` is of each of them. All columns stay: the environment begins an episode by them.
    Of ``form`` prompt_completion, each row becomes an example of the answer in its ``reference``.
    """
    if environment is None:
        raise ConfigError(_without_environment())
    if form == "prompt_completion" and to != "prompt":
        with_answers = environment_rows(environment, limit=limit, seed=seed)
        examples = [_to_examples(environment, rows, to or "") for rows in with_answers if rows]
        return examples[0], examples[1] if len(examples) > 1 else None
    limits = limit or {}
    seed = seed if environment.seed is None else environment.seed
    train = _make_rows(environment, environment.size, limits.get("train"), seed, held_out=False)
    if environment.held_out is None:
        return train, None
    limit_held_out = limits.get("eval")
    held_out = _make_rows(environment, environment.held_out, limit_held_out, seed, held_out=True)
    # Of longer episodes a prompt may be the same for all.
    if getattr(open_environment(environment), "single_turn", False):
        prompts = {str(prompt) for prompt in train["prompt"]}
        shared = sum(str(prompt) in prompts for prompt in held_out["prompt"])
        if shared:
            many = f"{shared} of {len(held_out)}"
            _warn_once(f"environment: {many} held-out prompts are also trained on")
    return train, held_out


@functools.cache
def _warn_once(text: str) -> None:
    """Log a warning; rows are made anew by each part that asks for them."""
    log.warning(text)


def _to_examples(environment: EnvironmentPart, rows: Dataset, to: str) -> Dataset:
    """The rows with an answer in the form ``to``; ConfigError where the source gives none."""
    if "reference" in rows.column_names:
        rows = rows.filter(lambda row: bool(row["reference"]))
    if "reference" not in rows.column_names or not len(rows):
        raise ConfigError(
            Fault(
                where="dataset.form",
                found=f"prompt_completion, but {environment.target} gives no answers",
                expected="rows with a text in reference, or episodes that are played",
                fix="=prompt with trainer=grpo, or another environment",
            )
        )
    columns: dict[Role, str] = {"prompt": "prompt", "completion": "reference"}
    request = RowRequest("prompt_completion", columns, to=to, keep=())
    return convert_rows(rows.select_columns([*columns.values()]), request, "environment")


def _without_environment() -> Fault:
    return Fault(
        where="environment",
        found="none, but dataset=environment takes its rows from one",
        expected="an environment that makes rows",
        fix="environment=<reasoning_gym | verifiers | openenv | own>, or dataset=<another>",
    )


def _make_rows(
    environment: EnvironmentPart, count: int, limit: int | None, seed: int, *, held_out: bool
) -> Dataset:
    """At most ``count`` rows of an environment, with their numbers; DataError for no rows."""
    count = min(count, limit or count)
    rows = remembered_rows(environment, count, seed, held_out=held_out)
    which = "held-out rows" if held_out else "training rows"
    problem = _find_problem(rows)
    if problem:
        raise DataError(
            Fault(
                where="environment",
                found=f"{environment.target} gave {problem} for {count} {which}",
                expected="a list of rows, each a mapping of JSON values whose prompt is a list of "
                "turns",
                fix=f"mend {environment.target}.rows, or another environment",
            )
        )
    try:
        return Dataset.from_list([{ROW: number, **row} for number, row in enumerate(rows)])
    except Exception as error:  # pyarrow has several for values of different types in a column
        raise DataError(
            Fault(
                where="environment",
                found=f"{which} of {environment.target} that make no table: {describe(error)}",
                expected="one type of value in each column",
                fix="texts made with json.dumps in the place of values of several types",
            )
        ) from error


def _find_problem(rows: list[JsonObject]) -> str:
    """The problem of the rows of a source; empty for good ones."""
    if not isinstance(rows, list) or not rows:
        return "no rows" if rows in ([], None) else f"a {type(rows).__name__}"
    for index, row in enumerate(rows):
        prompt = row.get("prompt") if isinstance(row, dict) else None
        is_chat = isinstance(prompt, list) and all(isinstance(turn, dict) for turn in prompt)
        if not is_chat or not prompt:
            return f"a row without turns as its prompt (row {index})"
    return ""
