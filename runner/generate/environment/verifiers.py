"""Installed environments of the package verifiers, by its API v1, played with the sampled model.

An episode is a coroutine of the package on the loop of all environments, and waits there for each
turn of the model. The package asks for it over HTTP, at a server on this machine that answers with
what ``respond`` was given. Nothing of it runs while the model samples or trains, and what it is
asked next does not depend on time.
"""

import asyncio
import importlib
import json
import os
import random
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from runner.errors import ConfigError, DataError, EnvironmentFault, Fault, describe
from runner.generate.environment.verifiers_harness import register_harness
from runner.generate.episode import LOOP
from runner.io.files import JsonObject
from runner.io.turns import TurnDict, dialogue

if TYPE_CHECKING:
    from aiohttp import web

Ask: TypeAlias = Callable[[JsonObject], Awaitable[JsonObject | None]]
HOST = "127.0.0.1"
NO_KEY = "RUNNER_NO_API_KEY"  # the variable of a key that nobody sets
MAX_LETTERS = 500  # of an error of the package
HELD_OUT = 10  # every tenth task is held out
SECONDS_TO_START = 120.0  # for the servers of an environment
CUT_OFF = "cut_off"  # why an episode has stopped whose model has no turn left
TRACE_ID = "X-Session-ID"  # the header in which verifiers says whose request it is


class Verifiers:
    """The tasks of an installed environment, and an episode for each completion."""

    def __init__(
        self,
        id: str,
        config: dict[str, Any] | None = None,
        role: str | None = None,
        rewards: list[str] | None = None,
    ):
        """``config`` is what verifiers calls the config of an environment.

        ``role`` is the one that is trained, where there are several. ``rewards`` names the rewards
        that an environment gives elsewhere than in its tasks; without names they are one.
        """
        import verifiers.v1 as vf

        self.name = id
        package = id.rpartition("/")[2].partition(".")[0]
        self.packages = ("verifiers", package)  # whose versions are noted
        self.environment, self.role = _load(id, config or {}, role)
        self._tasks: list[Any] = []
        self._further_tasks = iter(self.environment.taskset)
        # What an episode answers its environment, by the id of the trace that is theirs.
        self.answers: dict[str, Ask] = {}
        self.running: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Task[None] | None = None
        self._context: asyncio.Future[Any] | None = None

        first = self.task(0)
        self.rewards: dict[str, float] = dict.fromkeys(rewards or (), 1.0)
        for hook in first.hooks("reward"):
            self.rewards[hook.__name__] = weight_of(hook)
        self.has_names = bool(self.rewards)
        if not self.rewards:
            self.rewards = {id: 1.0}
        taskset = self.environment.taskset
        toolsets = [*first.toolsets(first.config), *taskset.toolsets(taskset.config)]
        self.calls_tools = bool(toolsets)
        self.single_turn = type(self.environment) is vf.SingleAgentEnv and not toolsets

    def rows(self, count: int, seed: int, held_out: bool) -> list[JsonObject]:
        """Tasks in an order of the seed's, each once; every tenth is held out.

        Where there are fewer than two, they are the rows of both.
        """
        if self.environment.taskset.bounded:
            self._tasks += self._further_tasks
            total = len(self._tasks)
        else:
            total = HELD_OUT * count
        order = list(range(total))
        random.Random(seed).shuffle(order)
        step = min(HELD_OUT, total)
        rows: list[JsonObject] = []
        for place, index in enumerate(order):
            if total > 1 and (place % step == step - 1) != held_out:
                continue
            if len(rows) == count:
                break
            task = self.task(index)
            rows.append({"prompt": _first_turns(task.data), "task": index, "key": task.key})
        return rows

    def make(self) -> "VerifiersEpisode":
        """An episode, once the servers are up: their start takes no time of its own."""
        if not self.is_up:
            self._start()
        return VerifiersEpisode(self)

    def task(self, index: int) -> Any:
        """The task with this place among those of the environment."""
        while len(self._tasks) <= index:
            try:
                self._tasks.append(next(self._further_tasks))
            except StopIteration:
                raise DataError(
                    Fault(
                        where="environment.id",
                        found=f"{len(self._tasks)} tasks, and none with the index {index}",
                        expected="the tasks that the rows were made from",
                        fix="name=<another>, which makes the rows anew",
                    )
                ) from None
        return self._tasks[index]

    def close(self) -> None:
        """End all episodes, and the servers that they have used."""
        if self._server is not None:
            LOOP.run(self._stop(self._server))
            self._server = None

    # --- Its requests

    @property
    def is_up(self) -> bool:
        """True where its servers have been started."""
        return self._server is not None

    def _start(self) -> None:
        """Start the servers of the environment; raises EnvironmentFault if one does not come up."""
        try:
            LOOP.run(asyncio.wait_for(self.serving(), SECONDS_TO_START))
        except Exception as error:  # of the environment's own
            self.close()
            reason = describe(error)
            if isinstance(error, TimeoutError):
                reason = f"not up after {SECONDS_TO_START:g} s"
            raise EnvironmentFault(
                Fault(
                    where="environment.id",
                    found=f"the servers of {self.name}: {reason[:MAX_LETTERS]}",
                    expected="tools that start",
                    fix="mend its toolsets, or another environment",
                )
            ) from error

    async def serving(self) -> Any:
        """The context of requests for the model, once the servers of the environment are up."""
        if self._server is None or self._context is None:
            self._context = asyncio.get_running_loop().create_future()
            self._server = asyncio.create_task(self._serve(self._context))
        awaited = [self._context, self._server]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if self._server.done():
            self._server.result()  # raises what went wrong
        return self._context.result()

    async def _serve(self, context: "asyncio.Future[Any]") -> None:
        """Serve until it is cancelled. What verifiers opens must be closed in the same task."""
        import verifiers.v1 as vf
        from aiohttp import web

        # It takes a proxy's address from the environment, also for this machine.
        hosts = os.environ.get("NO_PROXY", "").split(",")
        if HOST not in hosts:
            os.environ["NO_PROXY"] = ",".join(filter(None, [*hosts, HOST]))
        path = f"/{secrets.token_urlsafe(16)}"
        application = web.Application(client_max_size=2**30)
        application.router.add_post(f"{path}/chat/completions", self._answer)
        server = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await server.setup()
        try:
            await web.TCPSite(server, HOST, 0).start()
            url = f"http://{HOST}:{server.addresses[0][1]}{path}"
            client = vf.EvalClientConfig(base_url=url, api_key_var=NO_KEY)
            async with self.environment.serving():
                context.set_result(vf.ModelContext(model="policy", client=client))
                await asyncio.Event().wait()
        finally:
            await server.cleanup()

    async def _answer(self, request: "web.Request") -> "web.Response":
        """A turn of the model as an answer of OpenAI's interface."""
        from aiohttp import web

        ask = self.answers.get(request.headers.get(TRACE_ID, ""))
        message = None
        if ask is not None:
            try:
                message = await ask(await request.json())
            except ConnectionError:  # its episode has ended in mid-request
                message = None
        if message is None:
            return web.json_response({"error": {"message": "the episode is over"}}, status=400)
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": message}
        body = {"id": "0", "object": "chat.completion", "created": 0, "model": "policy"}
        return web.json_response({**body, "choices": [choice]})

    async def _stop(self, server: "asyncio.Task[None]") -> None:
        tasks = [*self.running, server]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class VerifiersEpisode:
    """One episode: its messages, and the request of the environment that waits for a turn."""

    def __init__(self, source: Verifiers):
        self._source = source
        self.schemas: list[JsonObject] = []
        self._messages: list[JsonObject] = []  # as the environment has them
        self._trace: Any = None
        self._run: asyncio.Task[Any] | None = None

    async def reset(self, task: int, key: str, **row: object) -> list[TurnDict] | None:
        """Begin to play a task, up to the first request; the turns that it holds."""
        chosen = self._source.task(task)
        if chosen.key != key:
            raise DataError(
                Fault(
                    where="environment.id",
                    found=f"another task {task} than the one that the row was made from",
                    expected="tasks that stay as they are while they are trained on",
                    fix="name=<another>, which makes the rows anew",
                )
            )
        context = await self._source.serving()
        self._expect_request()
        self._run = asyncio.create_task(self._play(chosen, context))
        self._source.running.add(self._run)
        self._run.add_done_callback(self._source.running.discard)
        turns = await self._next_turns()
        if turns is None:
            raise RuntimeError("the environment has ended before the first turn of the model")
        return None if turns == row.get("prompt") else turns

    async def respond(self, message: TurnDict) -> list[TurnDict] | None:
        """Hand over a turn of the model, and go on to the next request or to the end."""
        wire = _to_wire(message, len(self._messages))
        self._messages.append(wire)
        answer = self._answer
        self._expect_request()
        answer.set_result(wire)
        return await self._next_turns()

    async def get_reward(self) -> dict[str, float | None]:
        """The score of each reward, once the environment has ended, if need be in mid-episode."""
        if self._run is None:
            raise RuntimeError("the episode has not begun")
        if not self._run.done():
            self._trace.stop(CUT_OFF)
            self._answer.set_result(None)
        await self._finished(self._run)
        rewards = self._trace.rewards
        if not self._source.has_names:
            (name,) = self._source.rewards
            return {name: self._trace.reward}
        unknown = sorted(set(rewards) - set(self._source.rewards))
        if unknown:
            names = ",".join([*self._source.rewards, *unknown])
            raise ConfigError(
                Fault(
                    where="environment.rewards",
                    found=f"a reward {unknown[0]} that is not among those of the tasks",
                    expected="the names of all rewards",
                    fix=f"=[{names}]",
                )
            )
        return {name: reward and reward.score for name, reward in rewards.items()}

    async def _ask(self, request: JsonObject) -> JsonObject | None:
        """The model's turn for a request of the environment; None once the episode is over."""
        if self._request.done():
            return None
        self._request.set_result(request)
        return await self._answer

    def _expect_request(self) -> None:
        loop = asyncio.get_running_loop()
        self._request: asyncio.Future[JsonObject] = loop.create_future()
        self._answer: asyncio.Future[JsonObject | None] = loop.create_future()

    async def _play(self, task: Any, context: Any) -> Any:
        source = self._source

        def begin(trace: Any) -> None:
            if trace.agent.name != source.role:
                return
            if self._trace is not None:
                raise RuntimeError(f"the environment plays {source.role} more than once")
            self._trace = trace
            source.answers[trace.id] = self._ask

        try:
            return await source.environment.run_episode(task, context, on_trace=begin)
        finally:
            if not self._answer.done():
                self._answer.set_result(None)  # for a request that still waits
            if self._trace is not None:
                source.answers.pop(self._trace.id, None)

    async def _next_turns(self) -> list[TurnDict] | None:
        """The turns that the next request adds; None if the environment ends instead."""
        run = self._run
        assert run is not None
        try:
            await asyncio.wait([self._request, run], return_when=asyncio.FIRST_COMPLETED)
            if not self._request.done():
                await self._finished(run)
                return None
        except BaseException:
            run.cancel()
            raise
        request = self._request.result()
        messages = request["messages"]
        before = len(self._messages)
        if not _are_equal(messages[:before], self._messages):
            run.cancel()
            raise RuntimeError(
                "the environment rewrites its conversation, but what a model has sampled can only "
                "be trained in the conversation that it was sampled in"
            )
        if not before:
            self.schemas = request.get("tools") or []
        self._messages = messages
        return [_to_turn(message) for message in messages[before:]]

    async def _finished(self, run: "asyncio.Task[Any]") -> None:
        """Wait for the end of the environment; RuntimeError says what went wrong in it."""
        episode = await run
        errors = list(episode.errors)
        if self._trace is not None and not self._trace.ok:
            errors = self._trace.errors + errors
        if errors and not episode.ok:
            raise RuntimeError(f"{errors[0].type}: {errors[0].message[:MAX_LETTERS]}")


def weight_of(reward: object) -> float:
    """The weight that ``verifiers.v1.reward`` has marked a reward with.

    The package has no public name for it.
    """
    return float(getattr(reward, "_vf_weight"))  # noqa: B009


def _load(name: str, config: Mapping[str, Any], role: str | None) -> tuple[Any, str]:
    """An environment in which the sampled model plays on this machine, and the role that it has."""
    import verifiers.v1 as vf

    try:
        kind = vf.env_config_type(_name_at_top(name), config.get("id", ""))
        fields = kind.model_fields.items()
        roles = [field for field, info in fields if isinstance(info.default, vf.AgentConfig)]
        trained = role or (roles[0] if len(roles) == 1 else None)
        _check_roles(roles, trained, config)
        taskset = {**config.get("taskset", {}), "id": _name_at_top(name)}
        data: dict[str, Any] = {"interception": {"type": "server"}, **config, "taskset": taskset}
        here = {"harness": {"id": register_harness()}, "runtime": {"type": "subprocess"}}
        for field in roles:
            data[field] = here | dict(config.get(field, {}))
        return vf.load_environment(vf.resolve_env_config(data)), str(trained)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            Fault(
                where="environment",
                found=f"{name}: {describe(error)}",
                expected="an installed environment of verifiers, with settings that it takes",
                fix="pip install <its package>, or mend environment.config",
            )
        ) from error


def _name_at_top(name: str) -> str:
    """The name by which verifiers imports an environment, which it looks for at the top alone."""
    if not is_dotted(name):
        return name
    at_top = name.replace(".", "_").lower()
    sys.modules[at_top] = importlib.import_module(name)
    return at_top


def is_dotted(name: str) -> bool:
    """True for the name of a module in a package; others have dots only in a version."""
    return "." in name and "/" not in name and "@" not in name


def _check_roles(roles: list[str], trained: str | None, config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless one role is the model that is trained, and others have their own."""
    if trained not in roles:
        raise ConfigError(
            Fault(
                where="environment.role",
                found=str(trained),
                expected=f"the role that is trained: {', '.join(roles)}",
                fix=f"={roles[0]}",
            )
        )
    for role in roles:
        settings = config.get(role) or {}
        if role != trained and not (settings.get("client") and settings.get("model")):
            raise ConfigError(
                Fault(
                    where=f"environment.config.{role}",
                    found="a role without a model of its own",
                    expected="the URL and the name of a model that plays it, since nothing else is "
                    "sampled from than the model that is trained",
                    fix=f"environment.config.{role}.client.base_url=http://127.0.0.1:8000/v1 "
                    f"environment.config.{role}.model=<name>",
                )
            )


def _first_turns(data: Any) -> list[TurnDict]:
    """The turns that a task begins with; an empty one of the user where the user opens."""
    from verifiers.v1.dialects.chat import message_to_wire

    turns: list[TurnDict] = []
    if data.system_prompt is not None:
        turns.append({"role": "system", "content": data.system_prompt})
    prompt = data.prompt or ""
    if isinstance(prompt, str):
        return [*turns, {"role": "user", "content": prompt}]
    return turns + [_to_turn(message_to_wire(message)) for message in prompt]


def _to_turn(message: JsonObject) -> TurnDict:
    """A message of OpenAI's interface as a turn of text."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        kinds = {part.get("type") for part in content}
        if kinds != {"text"}:
            raise RuntimeError(f"the environment sends {', '.join(map(str, kinds))}, not text")
        content = dialogue([{"role": message["role"], "content": content}])
    turn = {"role": message["role"], "content": content}
    if "name" in message:
        turn["name"] = message["name"]
    return turn


def _to_wire(message: TurnDict, number: int) -> JsonObject:
    """A turn of the model as a message of OpenAI's interface."""
    calls = message.get("tool_calls") or ()
    wire = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls:
        wire["tool_calls"] = []
    for place, call in enumerate(calls):
        function = dict(call["function"])
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"])
        name = f"call_{number}_{place}"
        wire["tool_calls"].append({"id": name, "type": "function", "function": function})
    return wire


def _are_equal(messages: list[JsonObject], before: list[JsonObject]) -> bool:
    """True if the messages say the same, in whatever form they are written."""
    said = [(message["role"], dialogue([{"content": "", **message}])) for message in messages]
    return said == [(turn["role"], dialogue([{"content": "", **turn}])) for turn in before]
