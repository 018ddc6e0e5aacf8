"""Environments behind an OpenEnv server, with a stand-in for the client of the package."""

import contextlib
import gc
import http.server
import json
import socket
import sys
import threading
from pathlib import Path

import pytest

from runner.errors import ConfigError, EnvironmentFault
from runner.generate.environment.openenv import OpenEnv
from runner.generate.episode import settle

HERE = Path(__file__).parent


def schema_of(title="Guess", required=("digit",), **kinds):
    properties = {"metadata": {"type": "object"}}
    properties |= {name: {"type": kind} for name, kind in kinds.items()}
    return {"title": title, "required": list(required), "properties": properties}


class Guess:
    """A digit to guess, which follows from the seed."""

    def reset(self, seed, hint=""):
        self.number = seed % 10
        self.count = 0
        return {"text": f"guess a digit{hint}"}, None, False

    def step(self, action):
        if not isinstance(action["digit"], int):
            raise RuntimeError("Server error: (code: VALIDATION_ERROR)")
        if action["digit"] < 0:
            raise RuntimeError("the die is lost")
        self.count += 1
        if action["digit"] == self.number:
            return {"text": "right"}, 1.0, True
        return {"text": "higher" if action["digit"] < self.number else "lower"}, 0.25, False


class Prices:
    """A tool, called by an action of OpenEnv's."""

    def reset(self, seed):
        return {"text": ""}, None, False

    def step(self, action):
        if action["type"] == "list_tools":
            parameters = {"type": "object", "properties": {"fruit": {"type": "string"}}}
            return {"tools": [{"name": "price", "input_schema": parameters}]}, None, False
        if action["arguments"].get("fruit") != "apple":
            error = {"message": "no such fruit"}
            return {"tool_name": "price", "result": None, "error": error}, None, False
        result = {"data": 3, "structured_content": {}}
        return {"tool_name": "price", "result": result, "error": None}, 1.0, False


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in for the package, without sessions."""
    monkeypatch.syspath_prepend(HERE / "openenv_stand_in")
    for name in ("openenv", "openenv.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    from openenv.core import SERVER

    SERVER.environment = Guess
    yield SERVER
    for name in ("openenv", "openenv.core"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def load(stand_in):
    """A function that makes a source of a server with a schema of actions."""
    with contextlib.ExitStack() as stack:

        def make(schema=None, **arguments):
            url = stack.enter_context(serving(schema or schema_of(digit="integer")))
            source = OpenEnv(url, **arguments)
            stack.callback(source.close)
            return source

        yield make


@contextlib.contextmanager
def serving(schema):
    """What an OpenEnv server says about itself."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"action": schema}).encode()
            self.send_response(200 if self.path in ("/health", "/schema") else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def begin(source, rows):
    episodes = [source.make() for _ in rows]
    openings = settle([episode.reset(**row) for episode, row in zip(episodes, rows, strict=True)])
    return episodes, openings


def say(text):
    return {"role": "assistant", "content": text}


def call(**arguments):
    function = {"name": "price", "arguments": arguments}
    return {**say(""), "tool_calls": [{"type": "function", "function": function}]}


def respond(episode, text):
    (answer,) = settle([episode.respond(say(text))])
    return answer


def test_rows_have_seeds_of_which_none_is_held_out_and_trained_on():
    source = OpenEnv("http://127.0.0.1:1", prompt="Play.", system="You play.")
    rows = source.rows(50, 3, held_out=False)
    assert rows == source.rows(50, 3, held_out=False)
    seeds = {row["seed"] for row in rows}
    assert len(seeds) == 50
    assert seeds.isdisjoint(row["seed"] for row in source.rows(50, 3, held_out=True))
    assert seeds.isdisjoint(row["seed"] for row in source.rows(50, 4, held_out=False))
    assert rows[0]["prompt"] == [
        {"role": "system", "content": "You play."},
        {"role": "user", "content": "Play."},
    ]


def test_an_episode_is_played_and_its_rewards_are_summed(load):
    source = load()
    rows = source.rows(3, 0, held_out=False)
    episodes, openings = begin(source, rows)
    assert openings == ["guess a digit"] * 3
    number = rows[2]["seed"] % 10
    assert respond(episodes[2], "9 ") == [{"role": "user", "content": "lower"}]
    assert respond(episodes[2], "ten") == [{"role": "user", "content": "error: ten is no integer"}]
    assert respond(episodes[2], str(number)) is None
    assert episodes[2].get_reward() == 1.25
    assert episodes[0].get_reward() == 0.0


def test_no_episode_waits_for_the_package(load, monkeypatch):
    monkeypatch.delitem(sys.modules, "openenv.core")
    load().make()
    assert "openenv.core" in sys.modules


def test_the_last_reward_alone_and_arguments_of_reset(load):
    source = load(reward="last", resets=[{}, {"hint": " below 10"}])
    rows = source.rows(2, 0, held_out=False)
    (_, episode), openings = begin(source, rows)
    assert openings == ["guess a digit", "guess a digit below 10"]
    respond(episode, "9")
    respond(episode, str(rows[1]["seed"] % 10))
    assert episode.get_reward() == 1.0


def test_sessions_are_used_again_also_by_episodes_whose_reward_nobody_reads(load, stand_in):
    source = load()
    rows = source.rows(4, 0, held_out=False)
    for _ in range(3):
        episodes, _ = begin(source, rows)
        for episode in episodes[:2]:
            episode.get_reward()
        del episodes, episode
        gc.collect()
    assert stand_in.most_open == 4
    source.close()
    assert stand_in.open == []


def test_a_server_without_a_session_left_says_so(load, stand_in):
    source = load(retries=0)
    stand_in.capacity = 2
    with pytest.raises(RuntimeError, match="max_concurrent_envs"):
        begin(source, source.rows(3, 0, held_out=False))


def test_the_begin_of_an_episode_is_tried_again(load, stand_in, monkeypatch):
    refusals = iter([ConnectionError("not yet"), ConnectionError("not yet")])
    reset = Guess.reset

    def refuse(self, **arguments):
        for error in refusals:
            raise error
        return reset(self, **arguments)

    monkeypatch.setattr(Guess, "reset", refuse)
    monkeypatch.setattr("runner.generate.environment.openenv.FIRST_WAIT", 0.001)
    source = load(retries=2)
    _, openings = begin(source, source.rows(1, 0, held_out=False))
    assert openings == ["guess a digit"]
    assert stand_in.resets == 3
    refusals = iter([ConnectionError("not at all")] * 3)
    with pytest.raises(ConnectionError, match="not at all"):
        begin(source, source.rows(1, 1, held_out=False))


def test_a_failing_step_ends_its_session(load, stand_in):
    source = load()
    (episode,), _ = begin(source, source.rows(1, 0, held_out=False))
    with pytest.raises(RuntimeError, match="the die is lost"):
        respond(episode, "-1")
    begin(source, source.rows(1, 0, held_out=False))
    assert len(stand_in.open) == 1


def test_tools_of_the_server(load, stand_in):
    stand_in.environment = Prices
    source = load(schema_of("CallToolAction", ["tool_name"], tool_name="string"))
    (episode,), _ = begin(source, source.rows(1, 0, held_out=False))
    (schema,) = episode.schemas
    assert schema["function"]["name"] == "price"
    (turns,) = settle([episode.respond(call(fruit="pear"))])
    assert turns == [{"role": "tool", "name": "price", "content": "error: no such fruit"}]
    (turns,) = settle([episode.respond(call(fruit="apple"))])
    assert turns == [{"role": "tool", "name": "price", "content": "3"}]
    assert respond(episode, "3") is None
    assert episode.get_reward() == 1.0


def test_an_action_of_several_fields_is_a_tool(load):
    source = load(schema_of("Move", ["digit", "why"], digit="integer", why="string"))
    (episode,), _ = begin(source, source.rows(1, 0, held_out=False))
    (schema,) = episode.schemas
    assert schema["function"]["name"] == "act"
    assert list(schema["function"]["parameters"]["properties"]) == ["digit", "why"]
    (turns,) = settle([episode.respond(call(digit=9, why="so"))])
    assert turns[0]["content"] == "lower"
    source = load(schema_of("Move", ["digit", "why"], digit="integer"), action="digit")
    (episode,), _ = begin(source, source.rows(1, 0, held_out=False))
    assert respond(episode, "9")[0]["content"] == "lower"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"action": "digits"}, "environment.action=digit"), ({"observation": "texts"}, "text")],
)
def test_a_field_that_is_not_there(load, arguments, words):
    source = load(**arguments)
    with pytest.raises(ConfigError, match=words):
        begin(source, source.rows(1, 0, held_out=False))


def test_python_is_that_of_the_run_and_port_is_free():
    command = OpenEnv(command="python server.py --port PORT").command
    assert command[0] == sys.executable
    assert int(command[-1]) > 0
    assert OpenEnv(command=["pythonx", "python"]).command == ["pythonx", "python"]


def test_a_command_that_fails_or_serves_nothing(tmp_path):
    words = [sys.executable, "-c", "print('no model'); raise SystemExit(3)", "PORT"]
    with pytest.raises(EnvironmentFault, match=r"exit code 3\n +no model"):
        OpenEnv(command=words).make()
    script = tmp_path / "server.py"
    script.write_text("import time\nprint('starting', flush=True)\ntime.sleep(60)")
    source = OpenEnv(command=f"{sys.executable} {script} --port PORT", start_timeout=0.5)
    with pytest.raises(EnvironmentFault, match=r"nobody answers.*after 0.5 s\n +starting"):
        source.make()
    with pytest.raises(EnvironmentFault, match="No such file"):
        OpenEnv(command="/no/such/program").make()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(EnvironmentFault, match="no OpenEnv server answers"):
        OpenEnv(f"http://127.0.0.1:{port}").make()
