"""The calls of a training's tools and environments: written down, or played back.

A row of ``calls.jsonl`` is one call: the ``step`` that is being taken (0 before the first one, and
one more than the last behind it), its number ``call`` in that step, the ``episode`` of the step if
an environment was called, ``name`` and ``arguments``, and the ``answer`` or the ``error`` that it
ended with. Calls that run side by side stand in the order in which they began.

A row says by ``lost`` why its answer cannot be played back: it was too long, or held a secret, or
what is no JSON. A file that would grow too large ends with a row that is ``full``.
"""

import contextlib
import functools
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import DataError, Fault, SickRun
from runner.generate.episode import NO_TOOLS, RESET, Tool
from runner.io.files import JsonObject, forget_rows, open_own, read_last_row, strict, to_line
from runner.io.secrets import hidden
from runner.run.history import iterate_calls
from runner.schema.text import short_text

MAX_CHARACTERS = 20_000  # of arguments, and of an answer
MAX_BYTES = 100_000_000  # of a file
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of an object: another in each process
SAME = ("call", "episode", "name", "arguments")  # in a call that is as it was


@dataclass(eq=False)
class CallLog:
    """The calls of one training, by the steps that it takes."""

    path: Path
    original: Path | None = None  # the calls of another run, which are played back
    step: int | None = None  # None before the training, when nothing is recorded yet
    begun: int = 0  # calls of this step
    written: int = 0
    ended: dict[int, JsonObject] = field(default_factory=dict)  # that wait for one before them
    opened: int = 0  # episodes of this step
    episodes: dict[int, int] = field(default_factory=dict)  # that opened last, by environment's id
    is_full: bool = False
    played: Iterator[JsonObject] = field(default_factory=lambda: iter(()))
    fault: Fault | None = None  # of the first call that was not as before

    def begin(self, step: int) -> None:
        """Begin a training, or go on behind a step; what was recorded of later ones is cut off."""
        last_step = step or -1
        forget_rows(self.path, after=last_step)
        self.is_full = "full" in read_last_row(self.path)
        if self.original is not None:
            self.played = iterate_calls(self.original, after=last_step)
        self.step = None
        self.go_to(step)

    def go_to(self, step: int) -> None:
        """Have the calls from here on belong to this step."""
        if step != self.step:
            self.step = step
            self.begun = 0
            self.written = 0
            self.opened = 0
            self.ended.clear()
            self.episodes.clear()

    def check(self) -> None:
        """Raise SickRun for a call that was not as before: a model may have heard of it alone."""
        if self.fault is not None:
            raise SickRun(self.fault)

    def recorded(
        self, function: Tool, name: str, *, of_environment: bool = False, shows: bool = True
    ) -> Tool:
        """The same function, whose calls are written down, or answered as they were before.

        The first argument ``of_environment`` is the environment; what ``shows`` is false for is
        written without its arguments.
        """

        @functools.wraps(function)
        def call(*args: Any, **arguments: object) -> Any:
            if self.step is None:
                return function(*args, **arguments)
            row = self._begin_call(name, args, arguments if shows else {}, of_environment)
            if self.original is not None:
                return self._play(row, args)
            with self._noted(row, args) as outcome:
                outcome["answer"] = answer = function(*args, **arguments)
            return answer

        @functools.wraps(function)
        async def call_later(*args: Any, **arguments: object) -> Any:
            later: Any = function
            if self.step is None:
                return await later(*args, **arguments)
            row = self._begin_call(name, args, arguments if shows else {}, of_environment)
            if self.original is not None:
                return self._play(row, args)
            with self._noted(row, args) as outcome:
                outcome["answer"] = answer = await later(*args, **arguments)
            return answer

        return call_later if inspect.iscoroutinefunction(function) else call

    def reward(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A reward that looks into environments, recorded: a played one has nothing to see."""
        if isinstance(function, functools.partial):
            return functools.partial(self.reward(function.func, name), **function.keywords)
        if "environments" in inspect.signature(function).parameters:
            return self.recorded(function, name, shows=False)
        return function

    def played_class(self, target: Any) -> type | None:
        """The class of the environments that are played back, made by ``target`` or its source.

        None where environments are called, and where it is not known: it makes them then.
        """
        if self.original is None:
            return None
        if isinstance(target, type) and not hasattr(target, "make"):
            return target
        for row in iterate_calls(self.original):
            class_name, _, method = row["name"].rpartition(".")
            kind = getattr(sys.modules[target.__module__], class_name, None)
            if method == RESET and isinstance(kind, type):
                return kind
        return None

    def _begin_call(
        self, name: str, args: Sequence[Any], arguments: Mapping[str, Any], of_environment: bool
    ) -> JsonObject:
        self.begun += 1
        row: JsonObject = {"step": self.step, "call": self.begun}
        if of_environment:
            environment, *args = args
            if name.endswith(f".{RESET}"):
                self.opened += 1
                self.episodes[id(environment)] = self.opened  # an old one may have had this id
            row["episode"] = self.episodes.get(id(environment))
        given = strict({**{str(place): value for place, value in enumerate(args)}, **arguments})
        text = ADDRESS.sub("", json.dumps(given, ensure_ascii=False))
        shown = hidden(text)
        row["name"] = name
        row["arguments"] = json.loads(text)
        if len(text) > MAX_CHARACTERS or shown != text:
            digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
            row["arguments"] = {"digest": digest, "text": shown[:MAX_CHARACTERS]}
        return row

    @contextlib.contextmanager
    def _noted(self, row: JsonObject, args: Sequence[Any]) -> Iterator[JsonObject]:
        """Write a call once it has ended, with the answer that is put into what this gives."""
        outcome: JsonObject = {}
        try:
            yield outcome
        except Exception as error:
            outcome["error"] = str(error)
            raise
        finally:
            is_reset = "episode" in row and row["name"].endswith(f".{RESET}")
            if is_reset and getattr(args[0], "schemas", None):
                outcome["schemas"] = list(args[0].schemas)
            self._write(row, to_playable(row["name"], outcome))

    def _play(self, row: JsonObject, args: Sequence[Any]) -> Any:
        """The answer to the same call of the other run; an error where it asked something else."""
        original = next(self.played, {})
        if self.fault is None and (not _is_same(row, original) or "lost" in original):
            self.fault = self._difference(row, original)
        if self.fault is not None:
            raise SickRun(self.fault)
        outcome = {key: value for key, value in original.items() if key not in row}
        self._write(row, outcome)
        if "schemas" in outcome:
            args[0].schemas = outcome["schemas"]
        if "error" in outcome and row["name"].rpartition(".")[2] in NO_TOOLS:
            raise DataError(
                Fault(
                    where=row["name"],
                    found=outcome["error"],
                    expected="an answer; it failed before, too",
                )
            )
        if "error" in outcome:
            raise RuntimeError(outcome["error"])
        return outcome["answer"]

    def _difference(self, row: JsonObject, original: JsonObject) -> Fault:
        """The fault of a call that is not the one of the other run, or whose answer is lost."""
        found = f"{row['name']} asked {short_text(row['arguments'])}: the first call that differs"
        expected = "no call that is kept"
        if "lost" in original:
            found = f"the answer of {row['name']} was not kept: {original['lost']}"
            expected = "an answer to play back"
        elif "arguments" in original:
            asked = short_text(original["arguments"])
            expected = f"{original['name']} asked {asked}, as in the run"
        return Fault(
            where=f"{self.original}, step {row['step']}, call {row['call']}",
            found=found,
            expected=expected,
            fix="live=true, to call tools and environments anew",
        )

    def _write(self, row: JsonObject, outcome: JsonObject) -> None:
        """Add a call to the file behind those that began before it."""
        self.ended[row["call"]] = {**row, **outcome}
        while self.written + 1 in self.ended and not self.is_full:
            self.written += 1
            ended = self.ended.pop(self.written)
            line = to_line(ended).encode()
            with open_own(self.path, "ab") as file:
                self.is_full = file.tell() + len(line) > MAX_BYTES
                if self.is_full:
                    line = to_line({"step": ended["step"], "name": "", "full": True}).encode()
                file.write(line)


def to_playable(name: str, outcome: JsonObject) -> JsonObject:
    """The outcome of a call as JSON, from which the same answer can be given again.

    What a tool answers is read as a text by whoever called it, unless it has parts.
    """
    is_tool = name.rpartition(".")[2] not in NO_TOOLS
    try:
        text = json.dumps(outcome, ensure_ascii=False, allow_nan=False, default=_to_list)
        answer = outcome.get("answer")
        if is_tool and str(json.loads(text).get("answer")) != str(answer):  # a tuple, say
            text = json.dumps({"answer": str(answer)}, ensure_ascii=False)
    except (TypeError, ValueError):
        return {"answer": None, "lost": "it is no JSON"}
    shown = hidden(text)
    if shown == text and len(text) <= MAX_CHARACTERS:
        playable: JsonObject = json.loads(text)
        return playable
    reason = "it held a secret" if shown != text else f"it had {len(text)} characters"
    key = "error" if "error" in outcome else "answer"
    return {key: shown[:MAX_CHARACTERS], "lost": reason}


def _to_list(value: Any) -> Any:
    """The numbers of an array, or of its entry; TypeError for any other object."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def _is_same(row: JsonObject, original: JsonObject) -> bool:
    """True for a call of the same function with the same arguments, at the same place."""
    return all(row.get(key) == original.get(key) for key in ("step", *SAME))
