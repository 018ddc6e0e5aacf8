"""Environments behind an OpenEnv server, by the client of the package openenv-core.

Each episode has a session of the server: a connection, which later episodes use again. The
connections belong to a thread of their own, because they answer the server's pings also while the
model samples or trains.
"""

import asyncio
import contextlib
import json
import logging
import math
import shlex
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from runner.errors import ConfigError, EnvironmentFault, Fault, describe
from runner.io.files import JsonObject
from runner.io.server_process import SECONDS_BETWEEN_LOOKS, running
from runner.io.turns import TurnDict, text_of
from runner.schema.text import short_text

HOST = "127.0.0.1"
FIRST_WAIT = 0.5  # seconds before the second attempt
SECONDS_TO_ANSWER = 10.0  # for the server to say what it is
# Schemas of actions by which a server says that it offers tools, which it lists when asked.
OF_TOOLS = ("Action", "CallToolAction", "ListToolsAction")
PORT = "PORT"  # the word of a command in whose place the port stands
PYTHON = "python"  # the program of a command that is the Python of this process
ACT = "act"  # the tool that takes an action of several fields
READERS: dict[str, Callable[[str], object]] = {"integer": int, "number": float}
MISTAKEN = "VALIDATION_ERROR"  # the server's word for an action of another form
FULL = "CAPACITY_REACHED"

log = logging.getLogger(__name__)


class OpenEnv:
    """Seeds as rows, and a session of the server for each completion."""

    packages = ("openenv-core",)

    def __init__(
        self,
        url: str | None = None,
        command: str | list[str] | None = None,
        prompt: str = "",
        system: str | None = None,
        action: str | None = None,
        observation: str | None = None,
        resets: list[dict[str, Any]] | None = None,
        reward: Literal["sum", "last"] = "sum",
        retries: int = 3,
        start_timeout: float = 120.0,
    ):
        """``command`` starts the server, and ``PORT`` in it is a free port or that of ``url``.

        Where it begins with ``python``, that is the Python of this process.
        ``action`` is the field of an action that a turn of the model fills, ``observation`` the
        field of an observation that it reads. ``resets`` are arguments of the server's reset beside
        the seed, of which each row has one.
        """
        port = _port_of(url)
        self.url = (url or f"http://{HOST}:{port}").rstrip("/")
        words = shlex.split(command) if isinstance(command, str) else command or []
        self.command = [str(port) if word == PORT else word for word in words]
        if words and words[0] == PYTHON:
            self.command[0] = sys.executable
        self.prompt = prompt
        self.system = system
        self.action = action
        self.observation = observation
        self.resets = resets or [{}]
        self.reward = reward
        self.retries = retries
        self.start_timeout = start_timeout
        self.rewards = ["return" if reward == "sum" else "last"]
        self.tools: list[JsonObject] | None = None  # once a session has listed them
        self._server = contextlib.ExitStack()
        self._is_up = False
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: list[Any] = []  # all that are open
        self._free: list[Any] = []

    def rows(self, count: int, seed: int, held_out: bool) -> list[JsonObject]:
        """The same prompt with another seed in each row: odd ones are held out."""
        turns = [{"role": "user", "content": self.prompt}]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": self.system})
        rows = []
        for index in range(count):
            number = 2 * (seed * 1_000_000 + index) + held_out
            rows.append({"prompt": turns, "seed": number % 2**31, "index": index})
        return rows

    def make(self) -> "OpenEnvEpisode":
        self._start()
        return OpenEnvEpisode(self)

    def close(self) -> None:
        """End all sessions, their thread, and the server that was started for them."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._end_sessions(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
        self._server.close()
        self._is_up = False

    # --- Its sessions

    @cached_property
    def action_schema(self) -> JsonObject:
        """The JSON schema of the server's actions."""
        with _open(f"{self.url}/schema") as answer:
            schema: JsonObject = json.load(answer)["action"]
        return schema

    @property
    def calls_tools(self) -> bool:
        """True where the model acts by calls, of the server's tools or of one for its actions."""
        return self.field is None

    @property
    def offers_tools(self) -> bool:
        """True where an action is the call of a tool that the server lists."""
        return self.action_schema.get("title") in OF_TOOLS

    @cached_property
    def field(self) -> str | None:
        """The field of an action that a text fills; None where actions are calls of a tool."""
        schema = self.action_schema
        fields = [name for name in schema.get("properties", {}) if name != "metadata"]
        if self.action is not None:
            if self.action not in fields:
                raise ConfigError(
                    Fault(
                        where="environment.action",
                        found=self.action,
                        expected=f"a field of the server's actions: {', '.join(fields)}",
                        fix=f"={fields[0]}" if fields else "=null",
                    )
                )
            return self.action
        if self.offers_tools:
            return None
        required = schema.get("required", [])
        if len(required) != 1:
            required = fields
        return required[0] if len(required) == 1 else None

    def here(self, coroutine: Awaitable[Any]) -> Awaitable[Any]:
        """The result of a coroutine of the connections' thread, to be awaited in this thread."""
        assert self._loop is not None
        loop = self._loop
        future: Any = asyncio.run_coroutine_threadsafe(coroutine, loop)  # type: ignore[arg-type]
        return asyncio.wrap_future(future)

    async def begin(self, arguments: JsonObject) -> tuple[Any, Any]:
        """A session that has begun an episode, and its first result; tried several times."""
        for attempt in range(self.retries + 1):
            session = self._free.pop() if self._free else None
            try:
                if session is None:
                    session = self._client(self.url, message_timeout_s=math.inf, mode="simulation")
                    self._sessions.append(session)
                result = await session.reset(**arguments)
                if self.offers_tools and self.tools is None:
                    listed = await session.step({"type": "list_tools"})
                    self.tools = [_to_schema(tool) for tool in listed.observation["tools"]]
                return session, result
            except BaseException as error:
                if session is not None:
                    await self.end(session)
                if attempt == self.retries or not isinstance(error, Exception):
                    raise self._explained(error) from error
                log.info("environment: attempt %d to reset: %s", attempt + 1, describe(error))
            await asyncio.sleep(FIRST_WAIT * 2**attempt)
        raise AssertionError

    async def end(self, session: Any) -> None:
        """End a session that no later episode is to use."""
        self._sessions.remove(session)
        with contextlib.suppress(Exception):
            await session.disconnect()

    def free(self, session: Any) -> None:
        """Let later episodes have a session, unless it has ended."""
        if session in self._sessions and session not in self._free:
            self._free.append(session)

    async def _end_sessions(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*map(self.end, list(self._sessions)))

    def _explained(self, error: BaseException) -> BaseException:
        if FULL not in str(error):
            return error
        return RuntimeError(
            f"the server has no session left for another episode ({error}); give its create_app a "
            "larger max_concurrent_envs, as many as completions are sampled together"
        )

    # --- Its server

    def _start(self) -> None:
        """Have a server and a thread for connections to it; EnvironmentFault where none answers."""
        if not self._is_up:
            if self.command:
                self._start_server()
            elif not _answers(self.url):
                raise EnvironmentFault(_nobody_answers(self.url))
            # This takes seconds, which no episode is to pay for.
            from openenv.core import GenericEnvClient

            self._client = GenericEnvClient
            self._is_up = True
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()

    def _start_server(self) -> None:
        folder = Path(self._server.enter_context(TemporaryDirectory(prefix="openenv-")))
        output = folder / "output.txt"
        words = shlex.join(self.command)
        try:
            process = self._server.enter_context(running(self.command, log=output))
        except OSError as error:
            self._server.close()
            raise EnvironmentFault(_failed_command(words, describe(error))) from error
        deadline = time.monotonic() + self.start_timeout
        while not _answers(self.url):
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                said = output.read_text(encoding="utf-8", errors="replace").strip()
                self._server.close()
                end = f"exit code {code}"
                if code is None:
                    end = f"nobody answers at {self.url} after {self.start_timeout:g} s"
                last = "".join(f"\n{line}" for line in said.splitlines()[-5:])
                raise EnvironmentFault(_failed_command(words, end + last))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        log.info("environment: the server is up at %s", self.url)


class OpenEnvEpisode:
    """One episode: what the server has shown and given so far."""

    def __init__(self, source: OpenEnv):
        self._source = source
        self._session: Any = None
        self._rewards: list[float] = []
        self._is_done = False
        self.schemas: Sequence[JsonObject] = ()

    async def reset(self, seed: int, index: int, **row: object) -> str | None:
        """Begin an episode with a seed; the first observation as a text."""
        source = self._source
        arguments = source.resets[index % len(source.resets)]
        begun = await source.here(source.begin({"seed": seed, **arguments}))
        self._session, result = begun
        # An episode whose reward nobody reads gives its session back, too.
        weakref.finalize(self, source.free, self._session).atexit = False
        self._take(result)
        if source.offers_tools:
            self.schemas = source.tools or ()
        elif source.field is None:
            self.schemas = [_act_schema(source.action_schema)]
        return self._show(result.observation)

    async def respond(self, message: TurnDict) -> list[TurnDict] | None:
        """Act by a turn of the model: the next turn of the user, or those of tools."""
        if self._is_done:
            return None
        calls = message.get("tool_calls") or ()
        if self._source.calls_tools:
            turns = []
            for call in calls:
                function = call["function"]
                content = await self._step(self._to_action(function))
                turns.append({"role": "tool", "name": function["name"], "content": content})
                if self._is_done:
                    break
        else:
            content = await self._step(self._to_action(text_of([message]).strip()))
            turns = [{"role": "user", "content": content}]
        if self._is_done or not turns:
            return None
        return turns

    def get_reward(self) -> float:
        """The sum of all rewards of the server, or the last one; 0 where it has given none."""
        self._source.free(self._session)
        if self._source.reward == "sum":
            return sum(self._rewards)
        return self._rewards[-1] if self._rewards else 0.0

    def _to_action(self, said: Any) -> JsonObject | str:
        """An action for what the model said, or the text of its mistake."""
        field = self._source.field
        if field is not None:
            kind = self._source.action_schema["properties"][field].get("type")
            try:
                return {field: READERS.get(kind, str)(said)}
            except ValueError:
                return f"error: {short_text(said)} is no {kind}"
        arguments = said["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                return "error: the arguments are no JSON"
        if self._source.offers_tools:
            return {"type": "call_tool", "tool_name": said["name"], "arguments": arguments}
        return dict(arguments)

    async def _step(self, action: JsonObject | str) -> str:
        """Act, and give the text of the observation, or of a mistake of the model's."""
        if isinstance(action, str):
            return action
        source = self._source
        try:
            result = await source.here(self._send(action))
        except BaseException as error:
            if MISTAKEN in str(error):
                return f"error: no such action: {json.dumps(action)}"
            with contextlib.suppress(ValueError):
                source.here(source.end(self._session))
            raise
        self._take(result)
        return self._show(result.observation)

    async def _send(self, action: JsonObject) -> Any:
        return await self._session.step(action)

    def _take(self, result: Any) -> None:
        self._is_done = bool(result.done)
        if result.reward is not None:
            self._rewards.append(float(result.reward))

    def _show(self, observation: JsonObject) -> str:
        """The text of an observation: its chosen field, its only one, or all of it as JSON."""
        wanted = self._source.observation
        if wanted is not None:
            if wanted not in observation:
                raise ConfigError(
                    Fault(
                        where="environment.observation",
                        found=wanted,
                        expected=f"a field of an observation: {', '.join(observation)}",
                        fix=f"={next(iter(observation), 'null')}",
                    )
                )
            return _to_text(observation[wanted])
        if "tool_name" in observation:
            if observation.get("error"):
                return f"error: {observation['error'].get('message')}"
            return _to_text(observation.get("result"))
        if len(observation) == 1:
            (only,) = observation.values()
            return _to_text(only)
        return _to_text(observation)


def _to_text(value: object) -> str:
    if isinstance(value, dict) and "data" in value and "structured_content" in value:
        value = value["data"]  # the answer of a tool
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _to_schema(tool: JsonObject) -> JsonObject:
    """A tool that the server lists, as a chat template takes it."""
    parameters = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"}
    description = tool.get("description") or ""
    function = {"name": tool["name"], "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _act_schema(schema: JsonObject) -> JsonObject:
    """An action of several fields as a tool."""
    properties = {name: kind for name, kind in schema["properties"].items() if name != "metadata"}
    parameters = {**schema, "type": "object", "properties": properties}
    description = schema.get("description") or "Acts in the environment."
    return _to_schema({"name": ACT, "description": description, "input_schema": parameters})


def _port_of(url: str | None) -> int:
    """The port of a URL, or a free one where there is none."""
    if url is not None:
        return urllib.parse.urlsplit(url).port or 80
    with socket.create_server((HOST, 0)) as server:
        free: int = server.getsockname()[1]
        return free


def _open(url: str) -> Any:
    # A proxy of the surroundings is for other machines.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(url, timeout=SECONDS_TO_ANSWER)


def _answers(url: str) -> bool:
    """True where an OpenEnv server says that it is healthy."""
    try:
        with _open(f"{url}/health") as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


def _nobody_answers(url: str) -> Fault:
    return Fault(
        where="environment.url",
        found=f"{url}, where no OpenEnv server answers",
        expected="a server that is up",
        fix="start it, or environment.command='<what starts it, with --port PORT>'",
    )


def _failed_command(words: str, end: str) -> Fault:
    return Fault(
        where="environment.command",
        found=f"{words}: {end}",
        expected="a server that answers at the port that it is given",
        fix="mend the command, or start the server yourself and environment.url=<URL>",
    )
