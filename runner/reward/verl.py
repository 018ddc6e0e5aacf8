"""Rewards as verl gives them: one completion at a time, by the columns that its rows have.

``ComputeScore`` asks a function that was written for verl, and ``score_by_source`` stands for the
rules that verl has itself. Both read the rows of verl's parquet files as they are:

    data_source     where a row is from, such as openai/gsm8k
    reward_model    style and ground_truth, the right answer
    extra_info      anything else, such as the index of the row

What a function names beside ``score`` is not logged.
"""

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from runner.errors import ConfigError, DataError, Fault, check_library, read_column
from runner.io.turns import Completion, Values, text_of
from runner.reward.math import find_answer, is_same_answer

SOURCE = "data_source"
GRADED = "reward_model"  # the column with what a rule compares: style and ground_truth
EXTRA = "extra_info"
ANSWER_LETTERS = 300  # at the end of a completion, in which gsm8k and math_dapo look for the answer
COUNTED = re.compile(r"#### (-?[0-9.,]+)")
STATED = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
THOUGHT_OUT = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


@dataclass(eq=False)
class ComputeScore:
    """The scores of a function that verl would ask, which may be a coroutine.

    It takes ``data_source``, ``solution_str``, ``ground_truth`` and ``extra_info``, and returns a
    number, or a mapping with ``score``. If ``batched``, it is asked once for all completions, by
    the names of verl's batch manager. Raises ConfigError where ``function`` is none, and DataError
    where rows lack a column.
    """

    function: Callable[..., Any]
    _: KW_ONLY
    batched: bool = False
    # The column that says where a row is from.
    source_column: str = SOURCE

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(
                Fault(
                    where="reward.compute_score.function",
                    found=repr(self.function),
                    expected="a function that returns a score",
                    fix="reward.compute_score.function._partial_=true",
                )
            )

    def __call__(self, completions: Sequence[Completion], **columns: Values) -> list[float | None]:
        rows = _read_rows(completions, columns, self.source_column)
        return [_to_number(score) for score in self._ask(rows)]

    def _ask(self, rows: Sequence[dict[str, Any]]) -> Sequence[object]:
        """The answer of the function to each row."""
        if not rows:
            return []
        if self.batched:
            together = {f"{name}s": [row[name] for row in rows] for name in rows[0]}
            answers: Sequence[object] = self.function(**together)
            return answers
        answers = [self.function(**row) for row in rows]
        if any(map(inspect.isawaitable, answers)):
            return asyncio.run(wait_for_all(answers))
        return answers


async def wait_for_all(answers: Sequence[Any]) -> list[object]:
    """The results of coroutines, which wait side by side."""
    return list(await asyncio.gather(*answers))


def _to_number(score: object) -> Any:
    """The number of an answer, which may name several; the runner checks that it is one."""
    if isinstance(score, Mapping):
        score = score.get("score")
    if isinstance(score, tuple | list) and score:
        score = score[0]  # verl's own reader takes the first, too
    return float(score) if isinstance(score, bool) else score


def _read_rows(
    completions: Sequence[Completion], columns: Mapping[str, Values], source_column: str
) -> list[dict[str, Any]]:
    """The arguments of ``compute_score`` for each completion."""
    sources = read_column(columns, source_column, "reward.<name>.source_column=<column>")
    truths = _read_truths(columns)
    extras = columns.get(EXTRA) or [None] * len(completions)
    rows = []
    for completion, source, truth, extra in zip(completions, sources, truths, extras, strict=True):
        row = {
            "data_source": source,
            "solution_str": text_of(completion),
            "ground_truth": truth,
            "extra_info": dict(extra or {}),
        }
        rows.append(row)
    return rows


def _read_truths(columns: Mapping[str, Values]) -> list[object]:
    """The right answer of each row, ``ground_truth`` in the column ``reward_model``."""
    truths = []
    for graded in read_column(columns, GRADED, "dataset.map, which adds it"):
        if not isinstance(graded, Mapping) or "ground_truth" not in graded:
            raise DataError(
                Fault(
                    where=f"the column {GRADED}",
                    found=str(graded)[:60],
                    expected="a mapping with ground_truth",
                    fix="dataset.map, which makes it",
                )
            )
        truths.append(graded["ground_truth"])
    return truths


# --- The rules that verl has for data of its own --------------------------------------------------


def score_by_source(
    completions: Sequence[Completion], source_column: str = SOURCE, **columns: Values
) -> list[float]:
    r"""The score of each completion by the rule of its ``data_source``.

    gsm8k: 1 where the number behind the last ``####`` is the answer. MATH and numina: 1 where the
    last ``\boxed{}`` is. math_dapo and aime: 1 where what follows the last ``Answer:`` is, else -1.
    geometry3k: 0.9 for the boxed answer and 0.1 for thoughts in front of it. Formulas are compared
    by math-verify. Raises DataError for any other source.
    """
    scores = []
    for row in _read_rows(completions, columns, source_column):
        rule = find_rule(str(row["data_source"]))
        scores.append(rule(row["solution_str"], str(row["ground_truth"])))
    return scores


def find_rule(source: str) -> Callable[[str, str], float]:
    """The rule of a source; DataError for one that is not known."""
    for pattern, rule in RULES.items():
        if re.fullmatch(pattern, source):
            return rule
    raise DataError(
        Fault(
            where=f"the column {SOURCE}",
            found=source,
            expected="gsm8k, MATH, math_dapo, aime, numina or geometry3k, whose rules are known",
            fix="reward=none reward.<name>._target_=<your function>",
        )
    )


def score_counted(solution: str, truth: str) -> float:
    """1 where the number behind the last ``####`` is the answer."""
    counts = COUNTED.findall(solution[-ANSWER_LETTERS:])
    return float(bool(counts) and counts[-1].replace(",", "") == truth)


def score_boxed(solution: str, truth: str) -> float:
    """1 where the last box holds the answer."""
    answer = find_answer(solution)
    return float(answer is not None and _is_same(answer, truth))


def score_stated(solution: str, truth: str) -> float:
    """1 where the last statement of an answer is right, else -1."""
    statements = STATED.findall(solution[-ANSWER_LETTERS:])
    is_right = bool(statements) and _is_same(statements[-1].strip(), truth)
    return 1.0 if is_right else -1.0


def score_thoughtful(solution: str, truth: str) -> float:
    """The boxed answer, and a tenth for thoughts in front of it."""
    has_thoughts = bool(THOUGHT_OUT.fullmatch(solution))
    return 0.9 * score_boxed(solution, truth) + 0.1 * has_thoughts


def _is_same(answer: str, truth: str) -> bool:
    check_library("math_verify", "reward.score_by_source")
    return is_same_answer(answer, truth)


RULES: Mapping[str, Callable[[str, str], float]] = {
    r"openai/gsm8k": score_counted,
    r"lighteval/MATH|DigitalLearningGmbH/MATH-lighteval|HuggingFaceH4/MATH-500": score_boxed,
    r"math_dapo|math|math_dapo_reasoning|aime.*": score_stated,
    r"numina_\w+": score_boxed,
    r"hiyouga/geometry3k": score_thoughtful,
}
