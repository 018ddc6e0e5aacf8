"""Rewards as a trainer asks them: under their names, with the columns that they take, in time, and checked.

TRL takes NaN for "does not apply", adds nothing for a row that no reward applies to, and says neither aloud. Here every
such answer ends the run with the reward, the row and its prompt. What a completion is worth is decided elsewhere.
"""

import asyncio
import contextlib
import faulthandler
import functools
import hashlib
import inspect
import math
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from runner.config.build import arguments_of
from runner.errors import DataError, EnvironmentFault, RunnerError, SickRun, describe, fault, own_place
from runner.io.terminal import keep_output
from runner.io.turns import Completion

TIMEOUT = 1800.0  # seconds for one batch, unless the config says otherwise
# What the runner and the trainers give beside columns; never offered as a column.
NOT_COLUMNS = ("trainer_state", "log_extra", "log_metric", "completion_ids", "environments")
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
OF_THE_MACHINE = (ConnectionError, MemoryError, ImportError)  # where the machine failed it, and not what it was given
LARGEST = 3.4e38  # of float32, in which trainers keep rewards
BELL, TIMER = signal.SIGVTALRM, signal.ITIMER_VIRTUAL
AGAIN = 1.0  # seconds to the next ring, because code may swallow the exception
GRACE = 10.0

Prompt = Completion  # a text or a chat
Answer = list[float | list[float] | None]  # for each completion one number, or one for each step, or none


@dataclass
class RewardTracker:
    """The rewards of the same completions, and the answers that they gave."""

    has_tools: bool = False  # then turns are logged, which TRL does not count
    earned: dict[str, list[float]] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)  # for completions that not all have answered for
    ranges: dict[str, tuple[float, float, int]] = field(default_factory=dict)

    def spread(self) -> dict[str, tuple[float, float, int]]:
        """The lowest and the highest reward of each name since the begin, and how many there were."""
        return {name: self.ranges.get(name, (math.inf, -math.inf, 0)) for name in self.earned}

    def record(self, name: str, values: Sequence[float]) -> None:
        """Keep what completions earned."""
        self.earned[name] += values
        if values:
            low, high, count = self.ranges.get(name, (math.inf, -math.inf, 0))
            self.ranges[name] = min(low, *values), max(high, *values), count + len(values)

    def record_answer(self, name: str, answer: Answer, prompts: Sequence[Prompt]) -> None:
        """Keep a checked answer; raises DataError when all rewards have answered and none applies to some row."""
        sums = [sum(value) if isinstance(value, list) else value for value in answer if value is not None]
        self.record(name, list(map(float, sums)))
        if name in self.answers:
            self.answers.clear()
        self.answers[name] = answer
        if len(self.answers) == len(self.earned):
            answers, self.answers = self.answers, {}
            check_some_apply(list(answers.values()), prompts)

    def pop_means(self) -> dict[str, float]:
        """The mean of each reward since the last call, by its name; of this process alone."""
        means = {name: sum(values) / len(values) for name, values in self.earned.items() if values}
        for values in self.earned.values():
            values.clear()
        return means


@dataclass(eq=False)
class Scorer:
    """A reward or metric under its config name; each answer is checked before anybody reads it."""

    name: str
    call: Callable[..., Any]
    _: KW_ONLY
    timeout: float | None = TIMEOUT  # seconds for one batch
    per_step: bool = False  # a list of numbers for a completion is allowed
    tracker: RewardTracker | None = None
    group: str = "reward"

    def __post_init__(self) -> None:
        self.__name__ = self.name
        self.where = f"{self.group}.{self.name}"
        if self.tracker is not None:
            self.tracker.earned[self.name] = []

    def __call__(self, **given: Sequence[Any]) -> Answer:
        """A number, list or None for each; DataError for none or an error, SickRun for NaN, infinity or a hang."""
        return self._check(self.ask(**given), given)

    def ask(self, **given: Sequence[Any]) -> object:
        """Call the function with the columns that it takes; gives whatever it returns."""
        arguments = serve_columns(self.where, self.call, given)
        kept = undisturbed(self.where, given.get("completions", ()))
        with self._explained(arguments, given), within(self.timeout, lambda: self._late(given)), kept:
            return self.call(**arguments)

    def _check(self, answer: object, given: Mapping[str, Any]) -> Answer:
        values = check_answer(self.where, answer, _prompts(given), per_step=self.per_step)
        if self.tracker is not None:
            self.tracker.record_answer(self.name, values, _prompts(given))
            if self.tracker.has_tools and "log_metric" in given:
                turns = [sum(turn["role"] == "assistant" for turn in each) for each in given["completions"]]
                given["log_metric"]("tools/turns", sum(turns) / len(turns))
        return values

    def _late(self, given: Mapping[str, Any]) -> SickRun:
        count, prompt = len(_prompts(given)), _quote(_prompts(given), 0)
        return SickRun(fault("reward.late", where=self.where, seconds=self.timeout, count=count, prompt=prompt))

    @contextlib.contextmanager
    def _explained(self, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except (RunnerError, KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:
            prompts, found, place = _prompts(given), describe(error), own_place(error) or self.where
            if isinstance(error, OF_THE_MACHINE) or type(error).__name__ == "OutOfMemoryError":
                failed = fault("reward.failed", where=self.where, error=found, prompt=_quote(prompts, 0), place=place)
                raise EnvironmentFault(failed) from error
            row = self._row_of(error, arguments, len(prompts))
            found += f", for {len(prompts)} completions" if row is None else f", for completion {row} of {len(prompts)}"
            is_chat = isinstance(next(iter(given.get("completions", ())), ""), list)
            prompt = f"{', a list of messages here' if is_chat else ''}; {_quote(prompts, row or 0)}"
            raised = fault("reward.raised", where=self.where, error=found, prompt=prompt, place=place)
            raise DataError(raised) from error

    def _row_of(self, error: BaseException, arguments: Mapping[str, Any], count: int) -> int | None:
        plain = inspect.isfunction(getattr(self.call, "func", self.call))
        rows = {name for name, value in arguments.items() if isinstance(value, list) and len(value) == count}
        for row in range(count if plain else 0):
            alone = {name: [value[row]] if name in rows else value for name, value in arguments.items()}
            try:
                with within(self.timeout, lambda: self._late({"prompts": [""]})):
                    self.call(**alone)
            except BaseException as other:
                if type(other) is type(error):
                    return row
        return None


@dataclass(eq=False)
class Limit:
    """One limit while it runs."""

    late: Callable[[], Exception]
    deadline: float
    rung: bool = False


_running: list[Limit] = []


@contextlib.contextmanager
def within(seconds: float | None, late: Callable[[], Exception]) -> Iterator[None]:
    """Raise what ``late`` makes when the body takes longer, also where the body swallowed it; in wall-clock seconds.

    Two bells ring for the main thread, by a signal that nobody else uses, so that a function's own alarms go on
    working: a watcher thread, which interrupts a sleep, a socket or a loop in Python, and a timer of the operating
    system that counts the time in use, for code such as a regular expression that lets no other thread run. Code in C
    that looks after no signal is ended with its process, with a traceback, when it has had twice the time and ten
    seconds more. Only the main thread can be interrupted; elsewhere, and with None, the body takes its time.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(BELL, _answer)  # and left there: a ring that comes too late must find somebody who ignores it
    limit, over = Limit(late, time.monotonic() + seconds), threading.Event()
    watcher = threading.Thread(target=_watch, args=(over, seconds, threading.get_ident()), daemon=True)
    _running.append(limit)
    signal.setitimer(TIMER, seconds, AGAIN)
    faulthandler.dump_traceback_later(2 * seconds + GRACE, exit=True, file=sys.__stderr__ or 2)
    watcher.start()
    try:
        yield
    finally:
        _running.remove(limit)
        signal.setitimer(TIMER, 0)
        faulthandler.cancel_dump_traceback_later()
        over.set()
        watcher.join()
    if limit.rung:
        raise late()


def _watch(over: threading.Event, wait: float, caller: int) -> None:
    while not over.wait(wait):
        signal.pthread_kill(caller, BELL)
        wait = AGAIN


def _answer(number: int, frame: object) -> None:
    """Raise what the running limit has to say if its time is over; several threads use time faster than a clock."""
    if _running and time.monotonic() >= _running[-1].deadline:
        _running[-1].rung = True
        raise _running[-1].late()


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Keep the training's autograd, dtype, folder and output from whatever code of the user's does in the body."""
    dtype, folder, streams = torch.get_default_dtype(), os.getcwd(), (sys.stdout, sys.stderr)
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        torch.set_default_dtype(dtype)
        os.chdir(folder)
        keep_output(*streams)


@contextlib.contextmanager
def random_state_kept(devices: Sequence[int] | None = None) -> Iterator[None]:
    """Leave every source of random numbers as it was, of accelerators those with these numbers, or all of them."""
    before, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(before)
        np.random.set_state(numbers)


@contextlib.contextmanager
def undisturbed(name: str, completions: Sequence[Any]) -> Iterator[None]:
    """As :func:`contained`, random numbers too; the body's own follow from name and completions, resumed or not."""
    seed = int.from_bytes(hashlib.sha256(f"{name} {completions}".encode(errors="replace")).digest()[:4])
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with contained(), random_state_kept(devices):
        random.seed(seed), np.random.seed(seed), torch.default_generator.manual_seed(seed)
        yield


class AsyncScorer(Scorer):
    """The same of a coroutine, which trainers await beside the others."""

    async def __call__(self, **given: Sequence[Any]) -> Answer:  # type: ignore[override]
        arguments = serve_columns(self.where, self.call, given)
        with self._explained({}, given):
            try:
                answer = await asyncio.wait_for(self.call(**arguments), self.timeout)
            except TimeoutError as error:
                raise self._late(given) from error
        return self._check(answer, given)


def to_scorer(name: str, call: object, **options: Any) -> Scorer | nn.Module:
    """A reward as trainers take it: a function or object checked, and a model with its scores watched."""
    if isinstance(call, nn.Module):
        return watch_model(name, call, options.get("tracker"))
    if not callable(call):
        raise DataError(fault("reward.not_called", name=name, value=call, text=str(call)[:40]))
    function = getattr(call, "func", call)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return (AsyncScorer if is_async else Scorer)(name, call, **options)


def watch_model(name: str, model: nn.Module, tracker: RewardTracker | None = None) -> nn.Module:
    """The model itself, which from now on raises SickRun for a score that is no finite number."""
    if tracker is not None:
        tracker.earned[name] = []

    def watch(module: nn.Module, inputs: object, output: object) -> None:
        if not hasattr(output, "logits"):
            return
        scores = output.logits[:, 0].float().tolist()
        for row, score in enumerate(scores):
            if not math.isfinite(score):
                raise SickRun(fault("reward.odd_score", name=name, score=score, row=row, count=len(scores)))
        if tracker is not None:
            tracker.record(name, scores)

    model.register_forward_hook(watch)
    return model


def serve_columns(where: str, call: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that a function takes and the config has not set; raises DataError for one that is missing."""
    names, wanted = inspect.signature(call).parameters, arguments_of(call)
    bound = call.keywords if isinstance(call, functools.partial) else {}
    needed = [name for name, p in names.items() if p.default is p.empty and p.kind in NAMED]
    if missing := [name for name in needed if name not in given]:
        known = ", ".join(sorted(name for name in given if name not in NOT_COLUMNS))
        raise DataError(fault("reward.no_column", where=where, missing=" and ".join(missing), known=known))
    return {name: value for name, value in given.items() if name not in bound and (wanted is None or name in wanted)}


def check_answer(where: str, answer: object, prompts: Sequence[Prompt], *, per_step: bool = False) -> Answer:
    """The answer of a reward as a list of Python's own values, though it may be a tensor or an array, or hold some.

    Raises DataError unless each prompt has a number, None, or if ``per_step`` a list; SickRun for no finite number.
    """
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise DataError(fault("reward.no_list", where=where, value=answer, text=str(answer)[:60]))
    answer = islice(answer, len(prompts) + 1)  # it may never end
    values = [value.tolist() if hasattr(value, "tolist") else value for value in answer]
    if len(values) != len(prompts):
        count, wanted, prompt = len(values), len(prompts), _quote(prompts, 0)
        raise DataError(fault("reward.other_length", where=where, count=count, wanted=wanted, prompt=prompt))
    for row, value in enumerate(values):
        place, prompt = f"for completion {row} of {len(prompts)}", _quote(prompts, row)
        if isinstance(value, list) and not per_step:
            raise DataError(fault("reward.list_for_number", where=where, count=len(value), place=place, prompt=prompt))
        for number in value if isinstance(value, list) else [value]:
            if number is None and not isinstance(value, list):
                continue
            if not isinstance(number, int | float):
                odd = {"value": number, "text": str(number)[:40]}
                raise DataError(fault("reward.no_number", where=where, **odd, place=place, prompt=prompt))
            if not -LARGEST < number < LARGEST:
                found = f"{number}" if isinstance(number, float) else f"a number of {number.bit_length()} bits"
                raise SickRun(fault("reward.odd_number", where=where, number=found, place=place, prompt=prompt))
    return values


def check_some_apply(answers: Sequence[Answer], prompts: Sequence[Prompt]) -> None:
    """Raise DataError for a row to which every reward has answered None."""
    rows = [row for row, values in enumerate(zip(*answers, strict=True)) if all(value is None for value in values)]
    if rows:
        row, prompt = rows[0], _quote(prompts, rows[0])
        raise DataError(fault("reward.none_applies", row=row, count=len(prompts), more=len(rows) - 1, prompt=prompt))


def _prompts(given: Mapping[str, Any]) -> Sequence[Prompt]:
    return given.get("prompts") or given["completions"]


def _quote(prompts: Sequence[Prompt], row: int) -> str:
    prompt = prompts[row] if prompts else ""
    text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
    return f"the prompt: {' '.join(text.split())[:80]!r}"
