"""Rewards as a trainer asks them: under their names, with the columns that they take, in time.

Each answer is checked (``answer``), whatever the function does to the process is undone
(``isolation``), and one that hangs is interrupted (``time_limit``).
"""

import asyncio
import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from torch import Tensor, nn

from runner.config.experiment import RewardPart
from runner.errors import (
    DataError,
    EnvironmentFault,
    Fault,
    RunnerError,
    SickRun,
    describe,
    own_place,
)
from runner.reward.answer import Answer, Prompt, check_answer, check_some_apply, quote_prompt
from runner.reward.isolation import undisturbed
from runner.reward.time_limit import within
from runner.schema.code import arguments_of

# Columns of rows, and what trainers give beside them.
Arguments = Mapping[str, Any]

# What the runner and the trainers give beside columns; never offered as a column.
NOT_COLUMNS = (
    "trainer_state",
    "log_extra",
    "log_metric",
    "completion_ids",
    "environments",
    "environment_rewards",
    "environment_episodes",
)
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Errors of the machine, and not of what a reward was given.
OF_THE_MACHINE = (ConnectionError, MemoryError, ImportError)
# The columns that are kept of scored completions; not every trainer gives the last ones.
SCORED = ("prompts", "completions", "completion_ids", "environment_episodes")


@dataclass
class ScoredCompletions:
    """The completions that rewards were asked for last, and what each of them earned."""

    columns: Arguments = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)  # by the names of the rewards

    def add(self, name: str, answer: Answer, columns: Arguments) -> None:
        """Note what a reward has answered; other completions take the place of those before."""
        if columns["completions"] is not self.columns.get("completions"):
            self.columns = {name: columns[name] for name in SCORED if name in columns}
            self.answers = {}
        self.answers[name] = answer

    def clear(self) -> None:
        """Forget all, so that nobody takes it for what is scored next."""
        self.columns = {}
        self.answers = {}

    def earned(self, row: int) -> dict[str, float | None]:
        """The reward of a completion by each name; of one for each step, their sum."""
        earned: dict[str, float | None] = {}
        for name, answer in self.answers.items():
            value = answer[row]
            earned[name] = sum(value) if isinstance(value, list) else value
        return earned


def find_differing_groups(scores_B: Tensor, size: int) -> Tensor:
    """For each group of neighbouring completions true where they earn different scores.

    Only such a group teaches which of its completions is better. NaN is no score.
    """
    scores_PG = scores_B.view(-1, size)
    highest_P = scores_PG.nan_to_num(nan=-math.inf).amax(1)
    lowest_P = scores_PG.nan_to_num(nan=math.inf).amin(1)
    return highest_P > lowest_P


def watch_reward(name: str, function: Callable[..., Any], scored: ScoredCompletions) -> Any:
    """The same reward function, whose answers are noted as well."""

    @functools.wraps(function)
    def call(**columns: Any) -> Any:
        answer = function(**columns)
        scored.add(name, answer, columns)
        return answer

    @functools.wraps(function)
    async def call_later(**columns: Any) -> Any:
        answer = await function(**columns)
        scored.add(name, answer, columns)
        return answer

    return call_later if inspect.iscoroutinefunction(function) else call


@dataclass
class RewardTracker:
    """The rewards of the same completions, and the answers that they gave."""

    has_tools: bool = False  # then turns are logged, which TRL does not count
    may_lack: bool = False  # a completion may earn nothing at all: its environment has failed
    earned: dict[str, list[float]] = field(default_factory=dict)
    # Answers to completions for which not all rewards have answered yet.
    answers: dict[str, Answer] = field(default_factory=dict)
    # The lowest reward, the highest, and how many there were, by name.
    ranges: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    scored: ScoredCompletions = field(default_factory=ScoredCompletions)

    def spread(self) -> dict[str, tuple[float, float, int]]:
        """The lowest and the highest reward of each name since the start, with their number."""
        nothing_earned = (math.inf, -math.inf, 0)
        return {name: self.ranges.get(name, nothing_earned) for name in self.earned}

    def record(self, name: str, values: Sequence[float]) -> None:
        """Keep what completions earned."""
        self.earned[name] += values
        if values:
            low, high, count = self.ranges.get(name, (math.inf, -math.inf, 0))
            low = min(low, *values)
            high = max(high, *values)
            self.ranges[name] = (low, high, count + len(values))

    def record_answer(self, name: str, answer: Answer, prompts: Sequence[Prompt]) -> None:
        """Keep a checked answer.

        Raises DataError when all rewards have answered and none applies to some row.
        """
        sums = []
        for value in answer:
            if value is not None:
                if isinstance(value, list):
                    value = sum(value)
                sums.append(float(value))
        self.record(name, sums)
        if name in self.answers:
            self.answers.clear()
        self.answers[name] = answer
        if len(self.answers) == len(self.earned):
            answers = list(self.answers.values())
            self.answers = {}
            if not self.may_lack:
                check_some_apply(answers, prompts)

    def pop_means(self) -> dict[str, float]:
        """The mean of each reward since the last call, by its name; of this process alone."""
        means = {}
        for name, values in self.earned.items():
            if values:
                means[name] = sum(values) / len(values)
            values.clear()
        return means


@dataclass(eq=False)
class Scorer:
    """A reward or metric under its config name; each answer is checked before anybody reads it."""

    name: str
    call: Callable[..., Any]
    _: KW_ONLY
    timeout: float | None = RewardPart.timeout  # seconds for one batch
    per_step: bool = False  # a list of numbers for a completion is allowed
    tracker: RewardTracker | None = None
    group: str = "reward"
    where: str = ""  # its key in the configuration, where that is not its name in the group

    def __post_init__(self) -> None:
        self.__name__ = self.name
        self.where = self.where or f"{self.group}.{self.name}"
        if self.tracker is not None:
            self.tracker.earned[self.name] = []

    def __call__(self, **columns: Any) -> Answer:
        """A number, a list or None for each completion.

        Raises DataError for anything else or an error, SickRun for NaN, infinity or a hang.
        """
        return self._check(self.ask(**columns), columns)

    def ask(self, **columns: Any) -> object:
        """Call the function with the columns that it takes; gives whatever it returns."""
        arguments = serve_columns(self.where, self.call, columns)
        completions = columns.get("completions", ())
        with (
            self._explained(arguments, columns),
            within(self.timeout, lambda: self._late(columns)),
            undisturbed(self.where, completions),
        ):
            return self.call(**arguments)

    def _check(self, answer: object, columns: Arguments) -> Answer:
        prompts = _prompts(columns)
        values = check_answer(self.where, answer, prompts, per_step=self.per_step)
        if self.tracker is not None:
            self.tracker.record_answer(self.name, values, prompts)
            self.tracker.scored.add(self.name, values, columns)
            if self.tracker.has_tools and "log_metric" in columns:
                completions = columns["completions"]
                turns = 0
                for completion in completions:
                    turns += sum(turn["role"] == "assistant" for turn in completion)
                columns["log_metric"]("tools/turns", turns / len(completions))
        return values

    def _late(self, columns: Arguments) -> SickRun:
        prompts = _prompts(columns)
        return SickRun(
            Fault(
                where=self.where,
                found=f"no answer after {self.timeout:g} s for {len(prompts)} completions",
                expected=f"an answer; {quote_prompt(prompts, 0)}",
                fix=f"{self.where}.timeout=<seconds>, or null",
            )
        )

    @contextlib.contextmanager
    def _explained(self, arguments: Arguments, columns: Arguments) -> Iterator[None]:
        """Turn an error of the function into one that says where, and for which completion."""
        try:
            yield
        except (RunnerError, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            prompts = _prompts(columns)
            place = own_place(error) or self.where
            fix = f"mend {place}; the same command with --debug shows the traceback"
            if isinstance(error, OF_THE_MACHINE) or type(error).__name__ == "OutOfMemoryError":
                fault = Fault(
                    where=self.where,
                    found=f"raised {describe(error)}",
                    expected=f"an answer; {quote_prompt(prompts, 0)}",
                    fix=fix,
                )
                raise EnvironmentFault(fault) from error
            row = self._row_of(error, arguments, len(prompts))
            scope = f"{len(prompts)} completions"
            if row is not None:
                scope = f"completion {row} of {len(prompts)}"
            completions = list(columns.get("completions", ()))
            is_chat = bool(completions) and isinstance(completions[0], list)
            hint = ", a list of messages here" if is_chat else ""
            fault = Fault(
                where=self.where,
                found=f"raised {describe(error)}, for {scope}",
                expected=f"a number for each completion{hint}; {quote_prompt(prompts, row or 0)}",
                fix=fix,
            )
            raise DataError(fault) from error

    def _row_of(self, error: BaseException, arguments: Arguments, count: int) -> int | None:
        """The first completion that alone makes a plain function raise such an error."""
        if not inspect.isfunction(getattr(self.call, "func", self.call)):
            return None
        for row in range(count):
            row_arguments = {}
            for name, value in arguments.items():
                is_column = isinstance(value, list) and len(value) == count
                row_arguments[name] = [value[row]] if is_column else value
            try:
                with within(self.timeout, lambda: self._late({"prompts": [""]})):
                    self.call(**row_arguments)
            except BaseException as row_error:
                if type(row_error) is type(error):
                    return row
        return None


class AsyncScorer(Scorer):
    """The same of a coroutine, which trainers await beside the others."""

    async def __call__(self, **columns: Any) -> Answer:  # type: ignore[override]
        arguments = serve_columns(self.where, self.call, columns)
        with self._explained({}, columns):
            try:
                answer = await asyncio.wait_for(self.call(**arguments), self.timeout)
            except TimeoutError as error:
                raise self._late(columns) from error
        return self._check(answer, columns)


def to_scorer(name: str, call: object, **options: Any) -> Scorer | nn.Module:
    """A reward as trainers take it: something to call whose answers are checked, or a model."""
    if isinstance(call, nn.Module):
        return watch_model(name, call, options.get("tracker"))
    if not callable(call):
        raise DataError(
            Fault(
                where=f"reward.{name}",
                found=f"{call.__class__.__name__} {str(call)[:40]!r}",
                expected="a function, or another callable",
            )
        )
    function = getattr(call, "func", call)
    # Of an object the method that is called counts.
    is_async = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
    scorer_class = AsyncScorer if is_async else Scorer
    return scorer_class(name, call, **options)


def watch_model(name: str, model: nn.Module, tracker: RewardTracker | None = None) -> nn.Module:
    """The model itself, which from now on raises SickRun for a score that is not finite."""
    if tracker is not None:
        tracker.earned[name] = []

    def watch(module: nn.Module, inputs: object, output: object) -> None:
        if not hasattr(output, "logits"):
            return
        scores = output.logits[:, 0].float().tolist()
        for row, score in enumerate(scores):
            if not math.isfinite(score):
                raise SickRun(
                    Fault(
                        where=f"reward.{name}",
                        found=f"{score} for completion {row} of {len(scores)}",
                        expected="a finite score",
                        fix=f"reward.{name}.dtype=float32",
                    )
                )
        if tracker is not None:
            tracker.record(name, scores)

    model.register_forward_hook(watch)
    return model


def serve_columns(where: str, call: Callable[..., Any], columns: Arguments) -> Arguments:
    """The columns that a function takes and the config has not set.

    Raises DataError for one that is missing.
    """
    missing = []
    for name, parameter in inspect.signature(call).parameters.items():
        is_needed = parameter.default is parameter.empty and parameter.kind in NAMED
        if is_needed and name not in columns:
            missing.append(name)
    if missing:
        there = sorted(name for name in columns if name not in NOT_COLUMNS)
        raise DataError(
            Fault(
                where=where,
                found=f"it takes {' and '.join(missing)}, but the rows have no such column",
                expected=f"some of {', '.join(there)}",
                fix="a column of that name in the data",
            )
        )
    wanted = arguments_of(call)
    bound = call.keywords if isinstance(call, functools.partial) else {}
    served = {}
    for name, value in columns.items():
        if name not in bound and (wanted is None or name in wanted):
            served[name] = value
    return served


def _prompts(columns: Arguments) -> Sequence[Prompt]:
    """The prompts among columns; where there are none, completions stand for them."""
    prompts: Sequence[Prompt] = columns.get("prompts") or columns["completions"]
    return prompts
