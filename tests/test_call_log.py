"""Calls of tools and environments: written down in their order, played back, and compared."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from laid import lay_run

from runner.__main__ import main
from runner.errors import SickRun
from runner.generate import call_log
from runner.generate.call_log import CallLog
from runner.generate.tool_guard import guard_environment, guard_tool
from runner.io.files import read_rows
from runner.report.compare import deviations
from runner.run.record import read_run
from runner.training.callback.call_steps import CallSteps


def look(place: str) -> object:
    """Look at a place.

    Args:
        place: the place.
    """
    if place == "nowhere":
        raise KeyError("no such place")
    return (place, len(place))


async def look_later(place: str) -> str:
    """Look at a place, later.

    Args:
        place: the place.
    """
    await asyncio.sleep(0.02 / len(place))
    return f"later {place}"


class Game:
    """A game whose service is asked for each episode."""

    service = True

    def __init__(self):
        assert Game.service, "no service"

    def reset(self, **row):
        assert Game.service, "no service"
        self.schemas = [{"type": "function"}]
        self.looks = 0

    def turn(self, way: str) -> str:
        """Turn.

        Args:
            way: left or right.
        """
        self.looks += 1
        return f"{way} {self.looks}"

    async def respond(self, message):
        return [{"role": "user", "content": message["content"][::-1]}]

    def get_reward(self) -> float:
        return 0.1 + self.looks


@pytest.fixture(autouse=True)
def service(monkeypatch):
    monkeypatch.setattr(Game, "service", True)


def state(step, total=2):
    return SimpleNamespace(global_step=step, max_steps=total)


def play(calls, words=("here", "nowhere", "there"), tool=look, steps=(1, 2), start=0):
    """A training: a tool and two environments are called before it, in its steps, and behind it."""
    steps_callback = CallSteps(calls)
    tools = {f: guard_tool(f, "trainer.tools", {}, calls=calls) for f in (tool, look_later)}
    make = guard_environment(Game, "environment", calls=calls, target=Game)
    heard = []

    async def later(environments):
        tasks = [tools[look_later](place=place) for place in ("a", "abc")]
        tasks += [game.respond({"content": "ab"}) for game in environments]
        return await asyncio.gather(*tasks)

    def call_all():
        environments = [make(), make()]
        for game in environments:
            heard.append(game.reset(prompt="x"))
            heard.append(game.schemas)
        for word in words:
            try:
                heard.append(str(tools[tool](place=word)))
            except Exception as error:
                heard.append(str(error))
        heard.extend(asyncio.run(later(environments)))
        for game in environments:
            heard.append(game.turn(way="left"))
            heard.append(game.get_reward())

    tools[tool](place="unrecorded, because no training has begun")
    steps_callback.on_train_begin(None, state(start), None)
    if not start:
        call_all()
    for step in steps:
        steps_callback.on_step_begin(None, state(step - 1), None)
        call_all()
        steps_callback.on_step_end(None, state(step), None)
        call_all()  # an evaluation
    steps_callback.on_train_end(None, state(2), None)
    call_all()
    calls.check()
    return heard


def test_calls_are_written_in_their_order_with_their_answers(tmp_path):
    play(CallLog(tmp_path / "calls.jsonl"))
    rows = read_rows(tmp_path / "calls.jsonl")
    counts = {0: 13, 1: 26, 2: 26, 3: 13}  # by step
    places = [(step, call + 1) for step in counts for call in range(counts[step])]
    assert [(row["step"], row["call"]) for row in rows] == places
    assert [(row["name"], row.get("episode"), row.get("answer")) for row in rows[:13]] == [
        ("Game.reset", 1, None),
        ("Game.reset", 2, None),
        ("look", None, "('here', 4)"),
        ("look", None, None),
        ("look", None, "('there', 5)"),
        ("look_later", None, "later a"),
        ("look_later", None, "later abc"),
        ("Game.respond", 1, [{"role": "user", "content": "ba"}]),
        ("Game.respond", 2, [{"role": "user", "content": "ba"}]),
        ("Game.turn", 1, "left 1"),
        ("Game.get_reward", 1, 1.1),
        ("Game.turn", 2, "left 1"),
        ("Game.get_reward", 2, 1.1),
    ]
    assert rows[3]["error"] == "'no such place'"
    assert rows[0]["arguments"] == {"prompt": "x"}
    assert rows[0]["schemas"] == [{"type": "function"}]
    assert "schemas" not in rows[7]
    assert rows[13]["episode"] == 1  # of its step
    assert rows[26]["episode"] == 3  # of the evaluation behind it


def test_a_run_that_goes_on_has_the_same_rows(tmp_path):
    whole = tmp_path / "whole.jsonl"
    play(CallLog(whole))
    path = tmp_path / "calls.jsonl"
    play(CallLog(path))
    with path.open("a") as file:
        file.write('{"step": 3, "call"')
    play(CallLog(path), start=1, steps=(2,))
    assert path.read_bytes() == whole.read_bytes()
    play(CallLog(path))  # from the beginning, as without a checkpoint
    assert path.read_bytes() == whole.read_bytes()
    play(CallLog(path), start=2, steps=())  # killed behind its last step
    assert path.read_bytes() == whole.read_bytes()


def test_a_played_call_gives_the_same_answer_and_needs_no_service(tmp_path):
    heard = play(CallLog(tmp_path / "calls.jsonl"))
    Game.service = False

    def look(place: str) -> str:
        """Look at a place.

        Args:
            place: the place.
        """
        assert "unrecorded" in place, "it is called"
        return ""

    again = CallLog(tmp_path / "again.jsonl", original=tmp_path / "calls.jsonl")
    assert play(again, tool=look) == heard
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "calls.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "place", "found", "before"),
    [
        (("here", "else"), "step 0, call 4", "look asked {place:else}: the first", "nowhere"),
        (("here", "nowhere"), "step 0, call 5", "look_later asked {place:a}: the first", "there"),
    ],
)
def test_the_first_call_that_differs_is_named(tmp_path, words, place, found, before):
    play(CallLog(tmp_path / "calls.jsonl"))
    again = CallLog(tmp_path / "again.jsonl", original=tmp_path / "calls.jsonl")
    with pytest.raises(SickRun) as error:
        play(again, words)
    (fault,) = error.value.faults
    assert place in fault.where
    assert fault.found.startswith(found)
    assert fault.expected == f"look asked {{place:{before}}}, as in the run"
    assert fault.fix.startswith("live=true")


def test_long_and_secret_calls_are_cut_and_not_played_back(tmp_path, monkeypatch):
    monkeypatch.setattr(call_log, "MAX_CHARACTERS", 40)
    monkeypatch.setenv("SERVICE_API_KEY", "abcdefgh12345678")
    picture = {"type": "image", "image": object()}
    answers = {"long": "b" * 99, "secret": "it is abcdefgh12345678", "no JSON": [picture]}

    def ask(word: str, more: str = "") -> object:
        """Ask.

        Args:
            word: a word.
            more: more.
        """
        return answers[word]

    calls = CallLog(tmp_path / "calls.jsonl")
    calls.begin(0)
    asked = guard_tool(ask, "trainer.tools", {}, calls=calls)
    for word in answers:
        asked(word=word)
    asked(word="long", more="abcdefgh12345678")
    rows = read_rows(tmp_path / "calls.jsonl")
    lost = [row["lost"] for row in rows]
    assert lost[:3] == ["it had 113 characters", "it held a secret", "it is no JSON"]
    assert "abcdefgh12345678" not in (tmp_path / "calls.jsonl").read_text()
    assert rows[3]["arguments"].keys() == {"digest", "text"}
    assert max(len(json.dumps(row)) for row in rows) < 400
    again = CallLog(tmp_path / "again.jsonl", original=tmp_path / "calls.jsonl")
    again.begin(0)
    with pytest.raises(SickRun, match="the answer of ask was not kept: it had 113 characters"):
        guard_tool(ask, "trainer.tools", {}, calls=again)(word="long")


def test_a_file_that_is_full_says_so_and_ends(tmp_path, monkeypatch):
    whole = tmp_path / "whole.jsonl"
    play(CallLog(whole))
    monkeypatch.setattr(call_log, "MAX_BYTES", whole.stat().st_size // 2)
    path = tmp_path / "calls.jsonl"
    play(CallLog(path))
    assert path.stat().st_size <= call_log.MAX_BYTES + 60
    *_, last = read_rows(path)
    assert last["full"]
    full = path.read_bytes()
    play(CallLog(path), start=2, steps=())  # nothing is added when it goes on
    assert path.read_bytes() == full
    again = CallLog(tmp_path / "again.jsonl", original=path)
    with pytest.raises(SickRun, match="the first call that differs"):
        play(again)


def test_a_reward_that_looks_into_environments_is_played_back_too(tmp_path):
    def looks(completions, environments):
        return [float(environment.looks) for environment in environments]

    def length(completions, **_):
        return [float(len(completion)) for completion in completions]

    calls = CallLog(tmp_path / "calls.jsonl")
    calls.begin(0)
    assert calls.reward(length, "reward.length") is length
    reward = calls.reward(looks, "reward.looks")
    assert reward(completions=["a"], environments=[SimpleNamespace(looks=3)]) == [3.0]
    again = CallLog(tmp_path / "again.jsonl", original=tmp_path / "calls.jsonl")
    again.begin(0)
    assert again.reward(looks, "reward.looks")(completions=["a"], environments=[None]) == [3.0]


def test_two_runs_are_compared_by_their_calls(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = []
    for name, words in (("a", ("here", "there")), ("b", ("here", "nowhere"))):
        folder = lay_run(tmp_path / "outputs" / name / "run", lines=[{"step": 2, "loss": 1.0}])
        play(CallLog(folder / "calls.jsonl"), words)
        runs.append(folder)
    first, *_ = deviations(*map(read_run, runs))
    assert str(first) == (
        "calls.jsonl, step 0: call 4 look({place:there}) = \"('there', 5)\" -> "
        "look({place:nowhere}) = {error:\"'no such place'\"}"
    )
    capsys.readouterr()
    assert main(["diff", "outputs/a/run", "outputs/b/run"]) == 0
    told = capsys.readouterr().out
    assert "12, 0 % failed" in told
    assert "12, 50 % failed" in told
    assert "step 0, call 4" in told
