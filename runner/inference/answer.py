"""Rows -> what a model answers, what it gives to known answers, and what rewards and metrics say of both.

What a metric or a reward is lives in rooms of their own; how one token is drawn in ``model.sample``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import DataError, Fault
from runner.held_out import read_given, to_columns
from runner.inspection import spell_prompt, stop_ids
from runner.metric.ask import to_numbers
from runner.model.sample import Ask, Drawn, Sampling, draw_batch, in_batches, longest_text
from runner.tray.judge import build_rewards, named

BATCH = 32
BUDGET = 8192  # padded tokens that a reward model reads at once

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Completion:
    """One answer to the prompt of a row; ``sample`` counts the answers to it."""

    row: int
    sample: int
    prompt: Any
    text: str
    drawn: Drawn
    ids: Sequence[int]  # of the prompt

    @property
    def paper(self) -> dict[str, Any]:
        """What is written down of it."""
        drawn = self.drawn
        said = {"row": self.row, "sample": self.sample, "prompt": self.prompt, "completion": self.text}
        return said | {
            "finish": drawn.finish,
            "log_probability": round(drawn.log_probability, 6),
            "tokens": len(drawn.tokens),
        }


@dataclass
class Answers:
    """A model at work: prompts to completions, in batches of like length."""

    model: Any
    tokenizer: Any
    how: Sampling
    batch_size: int = BATCH
    n: int = 1
    bar: Callable[[int], Any] = field(default=lambda count: None)

    def plan(self, rows: Sequence[Row]) -> list[list[Ask]]:
        """Every completion that is wanted, in the batches that are generated; raises DataError with all bad prompts.

        Greedy answers to the same prompt are the same, so that one of them is enough.
        """
        count = 1 if self.how.temperature == 0 else self.n
        spelt = [spell_prompt(self.tokenizer, row["prompt"], row) for row in rows]
        room = longest_text(self.model)
        if faults := list(_unfit(spelt, room)):
            raise DataError(faults)
        most = [None if room is None else room - len(ids) for ids in spelt]
        asks = [Ask(ids, row, sample, most[row]) for row, ids in enumerate(spelt) for sample in range(count)]
        return in_batches(asks, self.batch_size)

    def draw(self, batch: Sequence[Ask], rows: Sequence[Row]) -> list[Completion]:
        """The completions of one batch, each as often as it is wanted."""
        drawn = draw_batch(self.model, batch, self.how, stop_ids(self.model))
        copies = range(self.n) if self.how.temperature == 0 else [None]
        made = [
            Completion(
                ask.row, ask.sample if copy is None else copy, rows[ask.row]["prompt"], self.text(one), one, ask.ids
            )
            for ask, one in zip(batch, drawn, strict=True)
            for copy in copies
        ]
        self.bar(len(made))
        return made

    def all(self, rows: Sequence[Row]) -> list[Completion]:
        """Every completion of rows, in their order."""
        made = [each for batch in self.plan(rows) for each in self.draw(batch, rows)]
        return sorted(made, key=lambda each: (each.row, each.sample))

    def text(self, drawn: Drawn) -> str:
        return self.tokenizer.decode(drawn.tokens, skip_special_tokens=True)


def _unfit(spelt: Sequence[Sequence[int]], room: int | None) -> Iterator[Fault]:
    empty = [row for row, ids in enumerate(spelt) if not ids]
    if empty:
        yield Fault("dataset", f"{len(empty)} prompts without a token, the first in row {empty[0]}", "prompts")
    long = [row for row, ids in enumerate(spelt) if room is not None and len(ids) >= room]
    if long:
        found = f"{len(long)} prompts leave no room for an answer, the first in row {long[0]}"
        yield Fault("dataset", f"{found}: {len(spelt[long[0]])} tokens", f"fewer than the {room} that the model holds")


# --- Figures --------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What came out for one set of rows: numbers by name, their standard errors, and rewards for each completion.

    ``earned`` [n] holds the weighted sum of the rewards for each row, the mean over its samples.
    """

    rows: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    completions: list[dict[str, Any]] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)


def judge(answers: Answers, rows: Sequence[Row], metrics: Sequence[Any], rewards: Any) -> Figures:
    """What metrics and rewards say of the completions that are sampled for these rows."""
    completions = answers.all(rows)
    figures = Figures(len(rows), completions=[each.paper for each in completions])
    asked = [rows[each.row] for each in completions]
    for metric in metrics:
        most = len(rows) if metric.limit is None else metric.limit
        kept = [place for place, each in enumerate(completions) if each.row < most]
        texts = [completions[place].text for place in kept]
        columns = to_columns([asked[place] for place in kept])
        _add(figures, metric, [completions[place].row for place in kept], completions=texts, **columns)
    if rewards is not None:
        _reward(figures, completions, asked, rewards, len(rows))
    figures.scores["ended"] = sum(each.drawn.finish == "stop" for each in completions) / len(completions)
    figures.scores["tokens"] = sum(len(each.drawn.tokens) for each in completions) / len(completions)
    return figures


def _reward(figures: Figures, completions: Sequence[Completion], asked: Sequence[Row], rewards: Any, rows: int) -> None:
    """Add what rewards say: the mean of each over the rows, and of their weighted sum."""
    from runner.trainer.score import Completions

    chats = isinstance(asked[0]["prompt"], list)
    texts = [[{"role": "assistant", "content": each.text}] if chats else each.text for each in completions]
    columns = {name: values for name, values in to_columns(asked).items() if name != "prompts"}
    scores = rewards(
        Completions(
            prompts=[row["prompt"] for row in asked],
            completions=texts,
            prompt_ids=[list(each.ids) for each in completions],
            completion_ids=[each.drawn.tokens for each in completions],
            ended=[each.drawn.finish == "stop" for each in completions],
            columns=columns,
        ),
        None,
        BUDGET,
    )
    total, each_reward = scores.total_B.tolist(), dict(zip(rewards.names, scores.each_BF.T.tolist(), strict=True))
    for place, paper in enumerate(figures.completions):
        given = {name: values[place] for name, values in each_reward.items()}
        paper["rewards"] = {name: None if math.isnan(value) else value for name, value in given.items()}
        paper["reward"] = total[place]
    numbers = [each.row for each in completions]
    figures.earned = _by_row(numbers, total, rows)
    for name, values in [("reward", total), *((f"reward_{name}", values) for name, values in each_reward.items())]:
        means = [value for value in _by_row(numbers, values, rows) if not math.isnan(value)]
        if means and not (name != "reward" and len(each_reward) == 1 and values == total):
            figures.scores[name], figures.errors[name] = mean_and_error(means)


def _by_row(numbers: Sequence[int], values: Sequence[float], rows: int) -> list[float]:
    """The mean of the values of each row, NaN where there is none: samples of one prompt are no independent draws."""
    gathered: list[list[float]] = [[] for _ in range(rows)]
    for number, value in zip(numbers, values, strict=True):
        if not math.isnan(value):
            gathered[number].append(value)
    return [math.fsum(values) / len(values) if values else math.nan for values in gathered]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; 0 for a single value.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))


def read(answers: Answers, rows: Sequence[Row], metrics: Sequence[Any], is_scorer: bool) -> Figures:
    """What metrics say of how the model takes the known answers of rows."""
    figures = Figures(len(rows))
    picked = {
        metric.name: [
            place for place, row in enumerate(rows) if is_scorer or metric.answers == "all" or row.get("label", True)
        ][: metric.limit]
        for metric in metrics
    }
    wanted = sorted(set().union(*picked.values()))
    given = _given_in_batches(answers, metrics, [rows[place] for place in wanted], is_scorer)
    places = {number: place for place, number in enumerate(wanted)}
    for metric in metrics:
        columns = to_columns([rows[number] for number in picked[metric.name]])
        said = {
            key: [values[places[number]] for number in picked[metric.name]]
            for key, values in given[metric.name].items()
        }
        _add(figures, metric, picked[metric.name], **columns | said)
    return figures


def _add(figures: Figures, metric: Any, numbers: Sequence[int], **given: Any) -> None:
    """Add what a metric says of rows with these numbers; the standard error where it says something of each."""
    answer = metric.ask(**given)
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    for part, value in to_numbers(metric.name, answer, len(numbers)).items():
        figures.scores["_".join(filter(None, (metric.name, part)))] = value
    if isinstance(answer, list | tuple):
        values = [math.nan if value is None else float(value) for value in answer]
        means = [value for value in _by_row(numbers, values, max(numbers) + 1) if not math.isnan(value)]
        figures.errors[metric.name] = mean_and_error(means)[1]


def _given_in_batches(
    answers: Answers, metrics: Sequence[Any], rows: Sequence[Row], is_scorer: bool
) -> dict[str, dict[str, list[Any]]]:
    """What the model thinks of rows, ``batch_size`` of them of like length at a time, in the order of the rows."""
    given: dict[str, dict[str, list[Any]]] = {metric.name: {} for metric in metrics}
    order = sorted(range(len(rows)), key=lambda place: -len(str(rows[place])))
    for start in range(0, len(order), answers.batch_size):
        batch = order[start : start + answers.batch_size]
        found = read_given(
            answers.model,
            answers.tokenizer,
            metrics,
            [rows[place] for place in batch],
            is_scorer=is_scorer,
            max_length=longest_text(answers.model),
        )
        for name, columns in found.items():
            for key, values in columns.items():
                held = given[name].setdefault(key, [None] * len(rows))
                for place, value in zip(batch, values, strict=True):
                    held[place] = value
        answers.bar(len(batch))
    return given


def build_panel(node: Mapping[str, Any] | None, tokenizer: Any, *, random_head: bool = False) -> Any:
    """The configured rewards, to be asked together; None where there are none."""
    if not node:
        return None
    from runner.reward.outcome import best_device
    from runner.trainer.score import Rewards

    functions, weights, _ = build_rewards(node, per_step=True, random_head=random_head)
    rewards = Rewards(functions, weights, tokenizer)
    rewards.names = list(named(node, "reward"))
    for reward in rewards.rewards:
        if hasattr(reward, "parameters"):
            reward.requires_grad_(False).to(best_device())
    return rewards
