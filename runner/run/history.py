"""The history of a run: the lines that it logged, and the completions that it sampled."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeGuard

from runner.io.files import JsonObject, open_own, read_rows, read_step
from runner.io.turns import dialogue

# Numbers beyond these are taken for none: differences and means of larger ones have no float.
LARGEST = 1e300
MAX_STEP = 1 << 53
# The ``source`` of completions that a training has learnt from, beside those of held-out prompts.
ROLLOUT = "rollout"
SAMPLE_FILES = ("completions.jsonl", "checkpoints/completions.jsonl")
# How the names of figures begin that measure the machine. ``callback.step_record`` adds them to the
# lines of a log. They are no scores, nobody compares them, and no objective is chosen among them.
MACHINE = ("time/", "memory/")
# Endings of figures that measure time or count work.
CLOCK = (
    "_runtime",
    "_per_second",
    "_seconds",
    "epoch",
    "num_tokens",
    "max_steps",
    "percentage",
    "total_flos",
    "step",
)


def read_metrics(path: Path) -> list[JsonObject]:
    """The lines of a ``metrics.jsonl`` in the order of their steps.

    A line that is cut off, or is of no step, is left out.
    """
    lines = []
    for line in read_rows(path):
        step = line.get("step")
        if is_finite(step) and abs(step) < MAX_STEP:
            lines.append(line)
    return sorted(lines, key=itemgetter("step"))


def read_samples(folder: Path, dense: bool = False) -> list[JsonObject]:
    """Sampled completions, with a ``score`` where there is one.

    They are those of our own samples, or else the trainer's; with ``dense`` those of more steps.
    """
    tables = [_read_sample_table(folder / name) for name in SAMPLE_FILES]
    if dense:
        return max(tables, key=_count_steps)
    return tables[0] or tables[1]


def _read_sample_table(path: Path) -> list[JsonObject]:
    """The rows of a file that are samples, but of no rollout; scores that are no numbers are gone.

    The file may be cut off or changed by hand: what is no sample is left out.
    """
    table = []
    for row in read_rows(path):
        if row.get("source") != ROLLOUT and _is_sample(row):
            if not is_finite(row.get("score")):
                row.pop("score", None)
            table.append(row)
    return table


def read_rollouts(folder: Path) -> list[JsonObject]:
    """A few completions that a training has learnt from, at each logged step."""
    rows = read_rows(folder / SAMPLE_FILES[0])
    return [row for row in rows if row.get("source") == ROLLOUT and _is_sample(row)]


def iterate_calls(path: Path, after: int = -1) -> Iterator[JsonObject]:
    """The calls of a ``calls.jsonl`` (``generate.call_log``) that belong to later steps."""
    with contextlib.suppress(FileNotFoundError), open_own(path, "rb") as file:
        for line in file:
            row = read_step(line)
            if row and row["step"] > after and isinstance(row.get("name"), str):
                yield row


def _is_sample(row: JsonObject) -> bool:
    """True for a row with prompt and completion, which become plain text."""
    if "prompt" not in row or "completion" not in row or not is_finite(row.get("step")):
        return False
    row["prompt"] = plain_text(row["prompt"])
    row["completion"] = plain_text(row["completion"])
    return True


def _count_steps(table: list[JsonObject]) -> int:
    return len({row["step"] for row in table})


def curve(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps at which a metric was logged, and its values there."""
    logging_lines = [line for line in lines if is_finite(line.get(name))]
    steps = [line["step"] for line in logging_lines]
    values = [line[name] for line in logging_lines]
    return steps, values


def is_finite(value: object) -> TypeGuard[int | float]:
    """True for a number that can be compared and drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -LARGEST < value < LARGEST


def plain_text(content: object) -> str:
    """A prompt or completion as text; of a conversation each turn, with its role for several."""
    if not isinstance(content, list):
        return str(content)
    roles = []
    texts = []
    for turn in content:
        turn = turn if isinstance(turn, Mapping) else {"content": turn}
        turn = {"role": None, "content": None, **turn}
        roles.append(turn["role"])
        texts.append(dialogue([turn]))
    if len(texts) == 1:
        return texts[0]
    lines = []
    for role, text in zip(roles, texts, strict=True):
        lines.append(f"{role}: {text}")
    return "\n".join(lines)
