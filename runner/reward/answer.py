"""Answers of rewards, checked before anybody reads them.

TRL takes NaN for "does not apply" and adds nothing for a row that no reward applies to, without a
word. Here every such answer ends the run with the reward, the row and its prompt.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from runner.errors import DataError, Fault, SickRun
from runner.io.turns import Completion

LARGEST = 3.4e38  # of float32, in which trainers keep rewards

Prompt = Completion  # a text or a chat
# For each completion one number, or one for each step, or None where the reward does not apply.
Answer = list[float | list[float] | None]


def check_answer(
    where: str, answer: object, prompts: Sequence[Prompt], *, per_step: bool = False
) -> Answer:
    """The answer of a reward as a list of Python's own values.

    It may be a tensor or an array, or hold some. Raises DataError unless each prompt has a number,
    None, or if ``per_step`` a list; SickRun for a number that is not finite.
    """
    if hasattr(answer, "tolist"):
        answer = answer.tolist()
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise DataError(
            Fault(
                where=where,
                found=f"{answer.__class__.__name__} {str(answer)[:60]!r}",
                expected="a list with a number for each completion",
                fix="return a list of numbers",
            )
        )
    values: Answer = []
    for value in islice(answer, len(prompts) + 1):  # it may never end
        values.append(value.tolist() if hasattr(value, "tolist") else value)
    if len(values) != len(prompts):
        raise DataError(
            Fault(
                where=where,
                found=f"{len(values)} rewards for {len(prompts)} completions",
                expected=f"one for each completion; {quote_prompt(prompts, 0)}",
                fix="return a list as long as completions",
            )
        )
    for row, value in enumerate(values):
        if isinstance(value, list):
            if not per_step:
                raise DataError(
                    Fault(
                        where=where,
                        found=f"a list of {len(value)} for completion {row} of {len(prompts)}",
                        expected=f"one number; {quote_prompt(prompts, row)}",
                        fix=f"{where}.aggregate=last where it has one, or trainer=ppo, which "
                        "takes rewards per step",
                    )
                )
            for number in value:
                _check_number(where, number, row, prompts)
        elif value is not None:
            _check_number(where, value, row, prompts)
    return values


def _check_number(where: str, number: object, row: int, prompts: Sequence[Prompt]) -> None:
    place = f"for completion {row} of {len(prompts)}"
    if not isinstance(number, int | float):
        raise DataError(
            Fault(
                where=where,
                found=f"{number.__class__.__name__} {str(number)[:40]!r} {place}",
                expected=f"a number, or None where it does not apply; {quote_prompt(prompts, row)}",
                fix="return a list of numbers",
            )
        )
    if not -LARGEST < number < LARGEST:
        found = str(number)
        if isinstance(number, int):
            found = f"a number of {number.bit_length()} bits"
        raise SickRun(
            Fault(
                where=where,
                found=f"{found} {place}",
                expected="a finite number, or None where it does not apply; "
                f"{quote_prompt(prompts, row)}",
            )
        )


def check_some_apply(answers: Sequence[Answer], prompts: Sequence[Prompt]) -> None:
    """Raise DataError for a row to which every reward has answered None."""
    rows = []
    for row, values in enumerate(zip(*answers, strict=True)):
        if all(value is None for value in values):
            rows.append(row)
    if rows:
        raise DataError(
            Fault(
                where="reward",
                found=f"every reward returned None for completion {rows[0]} of {len(prompts)}, "
                f"and for {len(rows) - 1} more",
                expected="at least one reward that applies to each row; "
                f"{quote_prompt(prompts, rows[0])}",
            )
        )


def quote_prompt(prompts: Sequence[Prompt], row: int) -> str:
    """The beginning of a prompt, for a fault; of a chat that of its last turn."""
    prompt = prompts[row] if prompts else ""
    text = ""
    if isinstance(prompt, str):
        text = prompt
    elif prompt:
        text = str(prompt[-1].get("content", ""))
    return f"the prompt: {' '.join(text.split())[:80]!r}"
