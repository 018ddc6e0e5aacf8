"""The part of verifiers 0.4 that the runner uses, for tests where the package is not installed.

An episode goes the same way: environment, harness, HTTP to a relay that adds the id of the trace,
HTTP to the client's URL.
"""

import contextlib
import importlib
import secrets
from types import SimpleNamespace
from typing import ClassVar

from aiohttp import ClientSession, web


class Generic:
    def __class_getitem__(cls, _):
        return cls


class Record(Generic):
    """Fields by keyword, with the defaults of the class."""

    def __init__(self, **fields):
        vars(self).update(fields)


def reward(function=None, weight=1.0):
    def mark(function):
        function._vf_weight = weight
        return function

    return mark(function) if function else mark


class TaskData(Record):
    prompt = None
    system_prompt = None


class Task(Generic):
    def __init__(self, data, config=None):
        self.data = data
        self.config = config

    @property
    def key(self):
        return repr(sorted(vars(self.data).items()))

    def hooks(self, kind):
        members = [getattr(self, name) for name in dir(type(self)) if name != "key"]
        return [member for member in members if hasattr(member, "_vf_weight")]

    @classmethod
    def toolsets(cls, config):
        return []


class Taskset(Generic):
    bounded = True

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        return iter(self.load())

    def toolsets(self, config):
        return []


class TasksetConfig(Record):
    task = None


class AgentConfig(Record):
    pass


class EvalClientConfig(Record):
    pass


class ModelContext(Record):
    pass


class ProgramResult(Record):
    pass


class HarnessConfig(Record):
    tool_timeout = 60


class Harness(Generic):
    def __init__(self, config):
        self.config = config

    def resolve_prompt(self, data):
        return data.system_prompt, data.prompt


class Trace:
    def __init__(self, role):
        self.id = secrets.token_hex()
        self.agent = SimpleNamespace(name=role)
        self.rewards = {}
        self.errors = []
        self.ok = False
        self.stopped = None
        self.num_turns = 0
        self.last_reply = ""
        self.messages = []

    def stop(self, reason):
        self.stopped = reason

    @property
    def reward(self):
        return sum(reward.score * reward.weight for reward in self.rewards.values())


class Interaction:
    """A conversation in which the caller is the user."""

    def __init__(self, trace, segment):
        self.trace = trace
        self.segment = segment

    async def turn(self, text=None):
        if text is not None:
            self.trace.messages.append({"role": "user", "content": text})
        await self.segment()
        return SimpleNamespace(
            terminated=self.trace.stopped is not None, last_reply=self.trace.last_reply
        )


class Runtime:
    pass


class Agent:
    def __init__(self, role, config, episode):
        self.role = role
        self.config = config
        self.episode = episode

    @contextlib.asynccontextmanager
    async def interaction(self, task):
        environment, context, episode, on_trace = self.episode
        trace = Trace(self.role)
        on_trace(trace)
        harness = importlib.import_module(self.config["harness"]["id"])
        program = getattr(harness, harness.__all__[0])(HarnessConfig())
        environment.traces[trace.id] = trace
        data = TaskData(**vars(task.data))

        async def segment():
            try:
                await program.launch(
                    SimpleNamespace(model=context.model),
                    trace,
                    None,
                    environment.url,
                    trace.id,
                    {},
                    data,
                )
            except RuntimeError:
                if trace.stopped is None:
                    raise
            data.prompt = trace.messages
            data.system_prompt = None

        environment.client = context.client
        episode.traces.append(trace)
        yield Interaction(trace, segment)
        for hook in task.hooks("reward"):
            score = await hook(task.data, trace)
            trace.rewards[hook.__name__] = SimpleNamespace(score=score, weight=hook._vf_weight)
        trace.ok = True

    async def run(self, task):
        async with self.interaction(task) as interaction:
            await interaction.turn()


class EnvConfig:
    model_fields: ClassVar = {}

    def __init_subclass__(cls):
        kinds = {name: kind for name, kind in vars(cls).items() if isinstance(kind, AgentConfig)}
        cls.model_fields = {
            name: SimpleNamespace(default=default) for name, default in kinds.items()
        }


class SingleAgentEnvConfig(EnvConfig):
    agent = AgentConfig()


class Env(Generic):
    def __init__(self, config):
        self.config = config
        kind = _exported(config["taskset"]["id"], Taskset)
        settings = _config_class(kind, TasksetConfig, TasksetConfig)
        self.taskset = kind(settings(**config["taskset"]))
        self.traces = {}

    @contextlib.asynccontextmanager
    async def serving(self):
        relay = web.Application()
        relay.router.add_post("/chat/completions", self._relay)
        server = web.AppRunner(relay, access_log=None)
        await server.setup()
        await web.TCPSite(server, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{server.addresses[0][1]}"
        try:
            yield
        finally:
            await server.cleanup()

    async def _relay(self, request):
        trace = self.traces[request.headers["Authorization"].removeprefix("Bearer ")]
        body = await request.json()
        async with (
            ClientSession(headers={"X-Session-ID": trace.id}) as client,
            client.post(f"{self.client.base_url}/chat/completions", json=body) as answer,
        ):
            reply = await answer.json()
        if answer.status == 200:
            message = reply["choices"][0]["message"]
            trace.messages = [*body["messages"], message]
            trace.last_reply = message["content"]
            trace.num_turns += 1
        return web.json_response(reply, status=answer.status)

    async def run_episode(self, task, context, on_trace):
        episode = SimpleNamespace(traces=[], errors=[], ok=False)
        episode_of = (self, context, episode, on_trace)
        agents = SimpleNamespace()
        for role in _config_class(type(self), EnvConfig, SingleAgentEnvConfig).model_fields:
            setattr(agents, role, Agent(role, self.config[role], episode_of))
        try:
            await self.run(task, agents)
            episode.ok = True
        except Exception as error:
            episode.errors.append(SimpleNamespace(type=type(error).__name__, message=str(error)))
        return episode


class SingleAgentEnv(Env):
    async def run(self, task, agents):
        await agents.agent.run(task)


def _config_class(kind, base, default):
    """The config of a kind, which is the one that its module has."""
    module = importlib.import_module(kind.__module__)
    for thing in vars(module).values():
        if isinstance(thing, type) and issubclass(thing, base) and thing is not base:
            return thing
    return default


def _exported(name, base, default=None):
    module = importlib.import_module(name.replace("-", "_"))
    for exported in module.__all__:
        if issubclass(getattr(module, exported), base):
            return getattr(module, exported)
    return default


def env_config_type(name, env_id=""):
    kind = _exported(name, Env, SingleAgentEnv)
    if kind is SingleAgentEnv:
        return SingleAgentEnvConfig
    return _config_class(kind, EnvConfig, SingleAgentEnvConfig)


def resolve_env_config(data):
    return data


def load_environment(config):
    return _exported(config["taskset"]["id"], Env, SingleAgentEnv)(config)
