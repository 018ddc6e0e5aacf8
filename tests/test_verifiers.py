"""Environments of verifiers, with the package where it is installed, else with a stand-in."""

import asyncio
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runner.errors import ConfigError, DataError, EnvironmentFault
from runner.generate.episode import settle
from runner.generate.tool_guard import guard_environment

HERE = Path(__file__).parent
OURS = HERE / "verifiers_environments"
IS_REAL = find_spec("verifiers") is not None


@pytest.fixture
def load(monkeypatch):
    """A function that makes a source, which ends with the test."""
    if not IS_REAL:
        monkeypatch.syspath_prepend(HERE / "verifiers_stand_in")
    monkeypatch.syspath_prepend(OURS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parent), str(OURS)]))
    from runner.generate.environment.verifiers import Verifiers

    sources = []

    def make(name, **arguments):
        sources.append(Verifiers(name, **arguments))
        return sources[-1]

    yield make
    for source in sources:
        source.close()
    if not IS_REAL:
        monkeypatch.delitem(sys.modules, SHIPPED, raising=False)
        for module in [name for name in sys.modules if name.partition(".")[0] in STOOD_IN]:
            monkeypatch.delitem(sys.modules, module)


STOOD_IN = (
    *("verifiers", "runner_conversation", "runner_generate_environment_toy_sorting"),
    *(path.stem for path in OURS.glob("*.py")),
)
SHIPPED = "runner.generate.environment.toy_sorting"  # which imports the package


def begin(source, rows):
    episodes = [source.make() for _ in rows]
    openings = settle([episode.reset(**row) for episode, row in zip(episodes, rows, strict=True)])
    return episodes, openings


def say(text):
    return {"role": "assistant", "content": text}


def numbers_of(source, rows):
    return [source.task(row["task"]).data.number for row in rows]


def test_rows_are_the_same_for_a_seed_and_are_split(load):
    source = load("sorted-tasks")
    rows = source.rows(30, 1, held_out=False)
    assert rows == load("sorted-tasks").rows(30, 1, held_out=False)
    assert rows != source.rows(30, 2, held_out=False)
    everything = source.rows(1000, 1, held_out=False)
    held_out = source.rows(1000, 1, held_out=True)
    places = [row["task"] for row in everything + held_out]
    assert (len(everything), len(held_out)) == (180, 20)
    assert sorted(places) == list(range(200))
    assert rows[0]["prompt"][0]["content"].startswith("sort ")


def test_one_turn_is_an_episode_and_rewards_keep_names_and_weights(load):
    source = load("sorted_tasks")
    assert source.single_turn
    assert source.rewards == {"has_length": 0.5, "is_sorted": 1.0}
    rows = source.rows(3, 0, held_out=False)
    episodes, openings = begin(source, rows)
    assert openings == [None] * 3  # as in the rows
    right = " ".join(sorted(rows[0]["prompt"][0]["content"].split()[1:]))
    answers = [right, "x", right[:-1] + "x"]
    turns = [episode.respond(say(text)) for episode, text in zip(episodes, answers, strict=True)]
    assert settle(turns) == [None] * 3
    scores = settle([episode.get_reward() for episode in episodes])
    assert scores[0] == {"has_length": 1.0, "is_sorted": 1.0}
    assert scores[1] == {"has_length": 0.0, "is_sorted": 0.0}
    assert scores[2] == {"has_length": 1.0, "is_sorted": 0.0}


def test_a_user_answers_until_the_end(load):
    source = load("guess_tasks")
    assert source.role == "player"
    assert not source.single_turn
    rows = source.rows(9, 0, held_out=False)
    assert [turn["role"] for turn in rows[0]["prompt"]] == ["system", "user"]
    episodes, _ = begin(source, rows)
    numbers = numbers_of(source, rows)
    live = list(range(len(rows)))
    for guess in range(4):
        turns = settle([episodes[index].respond(say(str(guess))) for index in live])
        expected = []
        for index in live:
            answer = [{"role": "user", "content": "higher"}]
            expected.append(answer if guess < numbers[index] else None)
        assert turns == expected
        live = [index for index in live if numbers[index] > guess]
    scores = settle([episode.get_reward() for episode in episodes])
    for number, score in zip(numbers, scores, strict=True):
        # The others were cut off, and are scored as far as they have come.
        assert score == {"is_found": float(number < 4), "turns": float(min(number + 1, 4))}


def test_the_environment_that_ships_lets_the_model_try_again(load):
    source = load(SHIPPED, config={"taskset": {"tries": 2}})
    assert source.rewards == {"is_sorted": 1.0, "places": 0.5}
    assert source.packages == ("verifiers", "runner")
    rows = source.rows(3, 0, held_out=False)
    episodes, _ = begin(source, rows)
    right = [" ".join(sorted(source.task(row["task"]).data.digits.split())) for row in rows]
    first = [right[0], "0", "0"]
    turns = settle([e.respond(say(text)) for e, text in zip(episodes, first, strict=True)])
    assert turns[0] is None
    prompt = rows[1]["prompt"][0]["content"]
    assert turns[1] == [{"role": "user", "content": f"No. {prompt}"}]
    turns = settle([episodes[1].respond(say(right[1])), episodes[2].respond(say("x"))])
    assert turns == [None, None]
    scores = settle([episode.get_reward() for episode in episodes])
    assert scores[0] == scores[1] == {"is_sorted": 1.0, "places": 1.0}
    assert scores[2] == {"is_sorted": 0.0, "places": 0.0}


def test_an_answer_does_not_depend_on_the_order_of_the_calls(load):
    source = load("guess_tasks")
    rows = source.rows(6, 0, held_out=False)
    answers = []
    for order in (range(6), reversed(range(6))):
        episodes, _ = begin(source, rows)
        given = {}
        for index in order:
            (given[index],) = settle([episodes[index].respond(say("5"))])
        answers.append([given[index] for index in range(6)])
        settle([episode.get_reward() for episode in episodes])
    assert answers[0] == answers[1]


@pytest.mark.skipif(not IS_REAL, reason="the stand-in has no tools")
@pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")
def test_a_tool_is_offered_and_answers(load):
    source = load("price_tasks")
    rows = source.rows(2, 0, held_out=False)
    episodes, _ = begin(source, rows)
    (schema,) = episodes[0].schemas
    assert schema["function"]["name"] == "price"
    turns = []
    for episode, row in zip(episodes, rows, strict=True):
        fruit = row["prompt"][0]["content"].split()[-1]
        function = {"name": "price", "arguments": {"fruit": fruit}}
        call = {"type": "function", "function": function}
        turns.append(episode.respond({**say(""), "tool_calls": [call]}))
    prices = [answer[0]["content"] for answer in settle(turns)]
    assert settle([e.respond(say(p)) for e, p in zip(episodes, prices, strict=True)]) == [None] * 2
    assert settle([episode.get_reward() for episode in episodes]) == [{"is_right": 1.0}] * 2


def test_an_environment_that_rewrites_its_conversation_is_refused(load):
    config = {"agent": {"harness": {"id": "forgetting_harness"}}}
    source = load("sorted_tasks", config=config)
    (episode,), _ = begin(source, source.rows(1, 0, held_out=False))
    with pytest.raises(RuntimeError, match="rewrites its conversation"):
        settle([episode.respond(say("1 2 3 4"))])


@pytest.mark.parametrize(
    ("said", "words"),
    [("raises", "RuntimeError: it is spoilt"), ("again", "plays player more than once")],
)
def test_an_environment_that_fails_says_why(load, said, words):
    source = load("failing_tasks")
    (episode,), _ = begin(source, source.rows(1, 0, held_out=False))
    with pytest.raises(RuntimeError, match=words):
        settle([episode.respond(say(said))])
    assert not source.running


def test_an_episode_does_not_wait_for_servers_and_one_that_ends_in_mid_request_is_no_error(
    load, caplog
):
    source = load("sorted_tasks")
    source.make()
    assert source.is_up
    url = urlsplit(settle([source.serving()])[0].client.base_url)
    source.answers["x"] = None
    with socket.create_connection((url.hostname, url.port)) as connection:
        words = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nX-Session-ID: x\r\n"
        connection.sendall(f"{words}Content-Length: 9\r\n\r\n{{".encode())
    settle([asyncio.sleep(0.05)])
    assert "Error handling request" not in caplog.text


def test_servers_that_do_not_start_are_told(load, monkeypatch):
    source = load("sorted_tasks")

    async def fail():
        raise OSError("no port is free")

    monkeypatch.setattr(source, "serving", fail)
    with pytest.raises(EnvironmentFault, match="sorted_tasks: OSError: no port is free"):
        source.make()


def test_an_environment_that_hangs_is_left_when_its_time_is_over(load):
    source = load("failing_tasks")
    (hanging, good), _ = begin(source, source.rows(2, 0, held_out=False))
    late = asyncio.wait_for(hanging.respond(say("hangs")), 0.05)
    error, after = settle([late, good.respond(say("well"))], with_errors=True)
    assert isinstance(error, TimeoutError)
    assert after is None
    assert settle([good.get_reward()]) == [{"is_good": 4.0}]
    assert not source.running


def test_an_environment_that_lets_nothing_else_run_is_interrupted(load):
    source = load("failing_tasks")
    make = guard_environment(source.make, "environment", seconds=1.0)
    (row,) = source.rows(1, 0, held_out=False)
    begin(source, [row])  # which imports what the next one needs
    episode = make()
    settle([episode.reset(**row)])
    with pytest.raises(DataError, match=r"TimeoutError|took longer|timed out"):
        settle([episode.respond(say("blocks"))])


def test_another_task_than_that_of_the_row(load):
    source = load("guess_tasks")
    (row,) = source.rows(1, 0, held_out=False)
    for changed, words in (({"key": "x"}, "another task"), ({"task": 4000}, "none with the index")):
        with pytest.raises(DataError, match=words):
            settle([source.make().reset(**{**row, **changed})])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"id": "nothing_there"}, "nothing_there"),
        ({"id": "guess_tasks", "role": "user"}, "the role that is trained: player"),
        ({"id": "pair_tasks"}, "the role that is trained: player, user"),
        ({"id": "pair_tasks", "role": "player"}, "a role without a model of its own"),
    ],
)
def test_what_cannot_be_loaded(load, arguments, words):
    with pytest.raises(ConfigError, match=words):
        load(arguments.pop("id"), **arguments)


@pytest.mark.skipif(not IS_REAL, reason="it is about the package")
def test_the_package_marks_weights_as_we_read_them(load):
    import verifiers.v1 as vf

    from runner.generate.environment.verifiers import weight_of

    assert weight_of(vf.reward(lambda: 1.0)) == 1.0
    assert weight_of(vf.reward(weight=0.25)(lambda: 1.0)) == 0.25
