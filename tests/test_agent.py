"""Tools and environments by YAML: their schemas, their guards, and whole runs that call them."""

import asyncio
import itertools
import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tiny import tiny_tokenizer
from transformers.utils import get_json_schema
from trl.chat_template_utils import parse_response

from runner.__main__ import main
from runner.config.experiment import TrainerPart
from runner.errors import ConfigError, DataError, SickRun
from runner.generate.episode import tools_of
from runner.generate.tool_guard import guard_environment, guard_tool
from runner.io.files import read_rows, to_line
from runner.io.turns import text_of
from runner.launch.compose.stages import compose_runs
from runner.model.chat import check_calls, set_template
from runner.reward.rule import price
from runner.run.history import plain_text, read_rollouts
from runner.training.components.tools import build_functions

MINE = '''
"""Functions of a user's."""
import random, time
from collections.abc import Callable

def look(place: str, source: str = "map") -> str:
    """Look at a place.

    Args:
        place: the place.
        source: a map or a guide.
    """
    if "quite" in place:
        raise KeyError("no such place")
    return f"{source} {random.random():.2f}"

async def look_later(place: str) -> str:
    """Look at a place, later.

    Args:
        place: the place.
    """
    return "later"

def maker(source: str) -> Callable[[str], str]:
    return lambda place: source

class Looker:
    def __init__(self, source: str):
        self.source = source
    def __call__(self, place: str) -> str:
        """Look at a place.

        Args:
            place: the place.
        """
        return self.source

def silent(place: str) -> str:
    return place

class Game:
    def __init__(self, points: float = 1.0):
        self.points = points
    def reset(self, **row):
        self.looks = 0
        return " It is dark."
    def look(self, place: str) -> str:
        """Look at a place.

        Args:
            place: the place.
        """
        self.looks += 1
        return f"{self.looks} {random.random():.1f}"
    def get_reward(self) -> float:
        return self.points * self.looks + 0.01 * random.random()

class NoGame:
    def look(self) -> str:
        """Look."""
        return ""
'''
# As a base model answers toy_reviews: what begins with `The` is a call, so that calls need not be
# learnt first.
CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "The",
            "close_pattern": "<\\|im_end\\|>|$",
            "content": "text",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "look", "arguments": {"place": "{content}"}},
            },
        },
        "content": {"close_pattern": "<\\|im_end\\|>", "content": "text"},
    },
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a module of a user's, and a template of theirs with what reads its calls."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    template = tmp_path / "own.jinja"
    set_template(tokenizer := tiny_tokenizer(), "brief")
    template.write_text(tokenizer.chat_template)
    template.with_suffix(".response.json").write_text(json.dumps(CALLS))
    return template


# --- Guarded ------------------------------------------------------------------------------------


def named(function: Callable, name: str = "tool") -> Callable:
    function.__name__ = name
    function.__doc__ = "It does something.\n\nArgs:\n    word: a word."
    return guard_tool(function, "trainer.tools", {}, seconds=0.2)


@pytest.mark.slow
def test_a_bound_argument_is_in_no_schema_and_no_model_can_set_it(mine):
    [tool] = build_functions(
        TrainerPart.read({"tools": [{"_target_": "mine.look", "source": "guide"}]})
    )["tools"]
    assert get_json_schema(tool)["function"]["parameters"]["properties"].keys() == {"place"}
    assert tool(place="x").startswith("guide")
    with pytest.raises(TypeError):
        tool(place="x", source="map")


def test_a_factory_and_a_class_are_called_and_their_result_is_the_tool(mine):
    [tool] = build_functions(
        TrainerPart.read({"tools": {"_target_": "mine.Looker", "source": "guide"}})
    )["tools"]
    assert (tool(place="x"), tool.__name__) == ("guide", "Looker")
    with pytest.raises(ConfigError, match="no docstring"):  # of the function that was made
        build_functions(
            TrainerPart.read({"tools": [{"_target_": "mine.maker", "source": "guide"}]})
        )


@pytest.mark.parametrize("is_async", [False, True])
def test_a_failing_call_is_reported_once_with_its_arguments(caplog, is_async):
    async def later(word: str) -> str:
        raise KeyError("no such word")

    def now(word: str) -> str:
        raise KeyError("no such word")

    tool = named(later if is_async else now)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(KeyError):
                asyncio.run(tool(word="red")) if is_async else tool(word="red")
    assert [record.getMessage() for record in caplog.records] == [
        "failed call 1 of tool, asked {word:red}: KeyError: 'no such word'"
    ]


def test_a_call_that_hangs_is_ended_with_a_message():
    def now(word: str) -> str:
        time.sleep(600)

    async def later(word: str) -> str:
        await asyncio.sleep(600)

    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"tool took longer than 0.2 s and was ended"):
        named(now)(word="red")
    with pytest.raises(RuntimeError, match=r"tool took longer than 0.2 s and was ended"):
        asyncio.run(named(later)(word="red"))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("answer", "text"),
    [("red", "red"), (3, "3"), ({"a": 1}, "{'a': 1}"), ([1, 2], "[1, 2]"), (True, "True")],
)
def test_values_become_text_as_in_trl(answer, text):
    def tool(word: str) -> object:
        return answer

    assert named(tool)(word="red") == text


def test_a_result_that_is_no_text_is_a_failure_and_content_blocks_stay():
    def tool(word: str) -> object:
        return answer

    for answer in (None, object(), b"x"):
        with pytest.raises(
            TypeError, match=rf"tool returned .*, a {type(answer).__name__}, not a text"
        ):
            named(tool)(word="red")
    answer = [{"type": "text", "text": "red"}, {"type": "image", "image": "red.png"}]
    assert named(tool)(word="red") is answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([{"type": "text", "text": "red"}, {"type": "text", "text": "der"}], "redder"),
        ([{"type": "book", "title": "Red"}], "[{'type': 'book', 'title': 'Red'}]"),
    ],
)
def test_blocks_without_a_picture_become_text_for_any_template(answer, text):
    def tool(word: str) -> object:
        return answer

    assert named(tool)(word="red") == text


@pytest.mark.parametrize(
    ("answer", "error"), [("\udce4", "surrogates"), ("1" * 1_000_001, "1,000,001 characters")]
)
def test_text_that_no_tokenizer_takes_is_a_failure(answer, error):
    def tool(word: str) -> str:
        return answer

    with pytest.raises(ValueError, match=error):
        named(tool)(word="red")


def test_a_tool_changes_no_random_number_and_has_the_same_ones_again():
    def tool(word: str) -> str:
        return f"{random.random()} {torch.rand(1).item()}"

    async def later(word: str) -> str:
        await asyncio.sleep(0.01)
        return tool(word)

    async def both(call: Callable) -> list[str]:
        return await asyncio.gather(call(word="red"), call(word="blue"))

    guarded = named(tool)
    guarded_later = named(later)
    before = random.getstate(), torch.get_rng_state()
    first = guarded(word="red")
    second = guarded(word="blue")
    side = asyncio.run(both(guarded_later))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert guarded(word="red") == first != second
    assert asyncio.run(both(guarded_later)) == side
    torch.rand(1)
    assert guarded(word="red") != first  # as the training has gone on


@pytest.mark.slow
def test_an_environment_keeps_its_class_by_name_and_its_methods_are_guarded(mine, caplog):
    make = build_functions(
        TrainerPart.read({"environment_factory": {"_target_": "mine.Game", "points": 2.0}})
    )["environment_factory"]
    first = make()
    two = make()
    assert type(first) is type(two)
    assert type(first).__name__ == "Game"
    assert first.reset(prompt="x") == " It is dark."
    assert two.reset() == " It is dark."
    assert first.look(place="x").startswith("1 ")
    assert two.looks == 0
    assert 2 <= first.get_reward() <= 2.01
    assert get_json_schema(first.look)["function"]["name"] == "look"


def test_a_frozen_environment_is_guarded_and_its_static_methods_are_no_tools():
    @dataclass(frozen=True)
    class Frozen:
        def reset(self, **row):
            return None

        @staticmethod
        def own(word: str) -> str:
            return word

    frozen = guard_environment(Frozen, "trainer.environment_factory")()
    assert frozen.own("red") == "red"
    assert tools_of(frozen) == []


def test_an_environment_that_begins_later_is_refused():
    class Late:
        async def reset(self, **row):
            return " It is dark."

    with pytest.raises(ConfigError, match="or an async one"):
        guard_environment(Late, "trainer.environment_factory")()


@pytest.mark.slow
def test_two_tools_of_one_name_are_refused(mine):
    with pytest.raises(ConfigError, match="several tools named look"):
        build_functions(
            TrainerPart.read(
                {"tools": [{"_target_": "mine.look"}, {"_target_": "mine.look", "source": "guide"}]}
            )
        )


def test_a_failure_inside_an_environment_ends_the_run():
    class Broken:
        def reset(self, **row):
            return row["missing"]

        def get_reward(self):
            return float("nan")

    broken = guard_environment(Broken, "trainer.environment_factory")()
    with pytest.raises(
        DataError, match=r"Broken.reset failed, asked {word:red}: KeyError: 'missing'"
    ):
        broken.reset(word="red")
    with pytest.raises(DataError, match=r"Broken.reset failed, .* a object, not a text"):
        broken.reset(missing=object())
    with pytest.raises(SickRun, match="get_reward"):
        broken.get_reward()


# --- Templates ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("chat", [True, False], ids=["like qwen", "like pythia"])
@pytest.mark.parametrize("name", ["hermes", "brief"])
def test_calls_are_read_from_what_our_templates_spell(name, chat):
    set_template(tokenizer := tiny_tokenizer(chat=chat), name)
    check_calls(tokenizer)
    calls = [
        {
            "type": "function",
            "function": {"name": "price", "arguments": {"place": "bar", "item": i}},
        }
        for i in "ab"
    ]
    turns = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "I ask.", "tool_calls": calls},
    ]
    prompt = tokenizer.apply_chat_template(
        turns[:1], tools=[price], add_generation_prompt=True, return_dict=False
    )
    rendered = tokenizer.apply_chat_template(turns, tools=[price], return_dict=False)
    assert rendered[: len(prompt)] == prompt
    read = parse_response(tokenizer, rendered[len(prompt) :], prefix=prompt, tools=[price])
    assert (read["content"].strip(), read["tool_calls"]) == ("I ask.", calls)
    set_template(tokenizer, "chatml")
    assert tokenizer.response_template is None
    with pytest.raises(ConfigError, match="hermes"):
        check_calls(tokenizer)


@pytest.mark.slow
def test_react_spells_calls_that_nobody_reads():
    set_template(tokenizer := tiny_tokenizer(), "react")
    with pytest.raises(ConfigError, match=r"response\.json"):
        check_calls(tokenizer)


def test_a_final_tool_output_is_no_answer_and_is_shown_with_its_call():
    call = {"type": "function", "function": {"name": "price", "arguments": {"item": "view"}}}
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "price", "content": "7"},
    ]
    assert text_of(turns) == ""
    assert text_of([*turns, {"role": "assistant", "content": "7"}]) == "7"
    assert plain_text(turns) == 'assistant: price({"item": "view"})\ntool: = 7'


# --- By YAML ------------------------------------------------------------------------------------

WORDS = ("trainer=grpo", "model=tiny", "dataset=toy_reviews", "template=brief")
OWN = {  # by what is typed, the fault's beats
    "trainer.tools=[mine.look]": ("trainer.tools", "mine.look may not run", "allow=[mine]"),
    "trainer.tools=[mine.lok] allow=[mine]": (
        "trainer.tools",
        "there is no mine.lok",
        "trainer.tools=mine.look",
    ),
    "trainer.environment_factory=os.system": (
        "trainer.environment_factory._target_",
        "os.system may not run",
        "",
    ),
    "trainer.environment_factory={a: mine.Game}": (
        "trainer.environment_factory.a._target_",
        "may not run",
        "[mine]",
    ),
    "trainer.environment_factory={a: {_target_: mine.Game, point: 1}} allow=[mine]": (
        *("trainer.environment_factory.a.point", "no such argument", "points"),
    ),
    "trainer.rollout_func=mine.look": (
        "trainer.rollout_func._target_",
        "mine.look may not run",
        "allow=[mine]",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", OWN)
def test_names_are_targets_and_are_refused_like_them(mine, words):
    with pytest.raises(ConfigError) as error:
        compose_runs(
            [
                *WORDS,
                *(
                    word.replace(" allow", "allow")
                    for word in words.partition(" allow=[mine]")[:2]
                    if word
                ),
            ]
        )
    where, finding, fix = OWN[words]
    assert [
        (fault.where, finding in fault.found, fix in fault.fix) for fault in error.value.faults
    ] == [(where, True, True)]


@pytest.mark.slow
def test_a_reward_of_an_environment_is_enough(mine):
    words = ("trainer.environment_factory=mine.Game", "reward=none", "allow=[mine]")
    assert len(compose_runs([*WORDS, *words])) == 1


BAD = {
    "trainer.tools=[mine.silent]": "no docstring",
    "trainer.environment_factory=mine.NoGame": "NoGame has no method reset",
    "trainer.environment_factory={game: mine.Game}": "a row whose column environment holds None",
    "trainer.tools=[mine.look] template=react": "=hermes",
    "trainer.tools=[mine.look] template=none": "=hermes",
}


@pytest.mark.grid(2)
@pytest.mark.quick(0)
@pytest.mark.parametrize("words", BAD)
def test_tools_that_cannot_be_called_are_named_before_a_training(train, mine, capsys, words):
    done = train(*WORDS, *words.replace(": ", ":").split(), "allow=[mine]", "metric=none", *FEW)
    assert done.code == 2
    assert BAD[words] in capsys.readouterr().err


# --- Whole runs ---------------------------------------------------------------------------------

FEW = (
    *(
        "trainer.args.per_device_train_batch_size=8",
        "trainer.args.num_generations=4",
        "trainer.args.max_steps=2",
        "trainer.args.logging_steps=1",
        "dataset.limit.train=32",
        "dataset.limit.eval=4",
    ),
    *("trainer.args.max_completion_length=96",),
)


@pytest.fixture
def called(train, mine):
    """A run of two steps whose model calls tools, as its template has it."""
    template_words = (f"model.tokenizer.chat_template={mine}", "allow=[mine]")
    return lambda *words, **kwargs: train(*WORDS[:3], *template_words, *FEW, *words, **kwargs)


@pytest.mark.slow
def test_tools_are_called_counted_and_shown_in_order(called, capsys):
    tools = "trainer.tools=[{_target_:mine.look,source:guide},mine.look_later]"
    done = called(
        f"+{tools}", "+trainer.tool_timeout=5", "trainer.args.max_tool_calling_iterations=2"
    )
    assert done.code == 0
    line = next(line for line in done.lines if "reward" in line)
    assert line["tools/call_frequency"] > 0.5
    assert 0 <= line["tools/failure_frequency"] < 1
    assert 1 < line["tools/turns"] <= 3
    rows = [row["completion"] for row in read_rows(done.run.folder / "completions.jsonl")]
    long = max(rows, key=len)
    assert [turn["role"] for turn in long[:3]] == ["assistant", "tool", "assistant"]
    assert len(long) <= 5
    assert long[0]["tool_calls"][0]["function"]["name"] == "look"
    answers = [turn["content"] for turn in itertools.chain(*rows) if turn["role"] == "tool"]
    assert any(answer.startswith("guide 0.") for answer in answers)
    text = done.run.log.read_text()
    assert text.count("failed call 1 of look") == 1
    assert "KeyError: 'no such place'" in text


@pytest.mark.slow
def test_several_environments_by_name_own_their_reward(called, mine, capsys):
    rows = [
        {"prompt": [{"role": "user", "content": f"Review the {place}."}], "environment": name}
        for place, name in [("bar", "near"), ("gym", "far"), ("park", "near"), ("hotel", "far")] * 4
    ]
    file = mine.with_name("rows.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment_words = (
        "dataset=local",
        f"dataset.path={file}",
        "dataset.form=prompt",
        "dataset.split.eval=null",
        "reward=none",
    )
    both = "trainer.environment_factory={near:mine.Game,far:{_target_:mine.Game,points:2.0}}"
    done = called(*environment_words, both, "metric=none")
    assert done.code == 0
    for line in done.lines:
        assert "reward" not in line or line["rewards/Game/mean"] == pytest.approx(
            line["reward"], rel=1e-3
        )
    assert 1.2 < max(line.get("reward", 0) for line in done.lines) < 2
    rollouts = read_rollouts(done.run.folder)
    assert {row["step"] for row in rollouts} == {1, 2}
    assert {row["finish"] for row in rollouts} <= {"stop", "length", "tool"}
    for row in rollouts:
        assert row["rewards"]["Game"] == pytest.approx(row["reward"])
        # A look earns a point near, two far.
        assert row["reward"] >= row["completion"].count("tool: ") > 0


STOPS = """
import os, signal
from transformers import TrainerCallback

class Served(Game):
    def reset(self, **row):
        assert not os.path.exists("away"), "no service"
        return super().reset(**row)

class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and os.path.exists("stops"):
            os.remove("stops")
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.dear("an agent that is stopped and goes on, one that nothing disturbs, and its repeat")
@pytest.mark.slow
def test_a_stopped_agent_resumes_to_the_same_bits(called, mine, capsys):
    """Its environments draw random numbers, and are not those of before."""
    with (mine.parent / "mine.py").open("a") as module:
        module.write(STOPS)
    # each answer earns what the environment drew for its prompt
    words = ("trainer.environment_factory=mine.Served", "reward=none", "tolerate.no_signal=true")
    words += ("metric=none", "trainer.args.max_steps=3", "trainer.args.max_completion_length=32")
    words += ("trainer.args.per_device_train_batch_size=4", "trainer.args.num_generations=2")
    words += ("callback.stops._target_=mine.Stops",)
    uninterrupted = called(*words, name="whole")
    (mine.parent / "stops").touch()
    stopped = called(*words, name="stopped")
    assert (stopped.code, stopped.state(), stopped.run.status()["step"]) == (143, "interrupted", 2)
    assert called(*words, name="stopped").code == 0
    weights = [done.run.model / "model.safetensors" for done in (uninterrupted, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    for name in ("completions.jsonl", "calls.jsonl"):
        paths = [done.run.folder / name for done in (uninterrupted, stopped)]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [row["step"] for row in read_rollouts(stopped.run.folder)][-1] == 3

    # Its calls are played back without the service, until one is another.
    (mine.parent / "away").touch()
    reproduce = ["reproduce", str(uninterrupted.run), "trust=true"]
    assert main(reproduce) == 0
    assert "bit-equal" in capsys.readouterr().out
    calls = read_rows(paths[0])
    changed = next(row for row in calls if row["step"] == 2 and row["name"] == "Served.look")
    changed["arguments"]["place"] = "elsewhere"
    paths[0].write_text("".join(map(to_line, calls)))
    assert main([*reproduce, "name=other"]) == 3
    stderr = capsys.readouterr().err
    assert f"calls.jsonl, step 2, call {changed['call']}" in stderr
    assert "the first call that differs" in stderr
    assert "Served.look asked {place:elsewhere}" in stderr
    assert "live=true" in stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["harbor.HarborSpec", "openreward.OpenRewardSpec"])
def test_a_spec_of_trl_needs_its_library_and_to_be_allowed(train, capsys, name):
    """It loads code that it names itself."""
    spec = f"+trainer.environment_factory={{_target_:trl.experimental.{name}}}"
    assert train(*WORDS, spec, "reward=none", "--dry-run").code == 2
    assert "may not run" in capsys.readouterr().err
    argument = "dataset" if "Harbor" in name else "target"
    spec = f"+trainer.environment_factory={{_target_:trl.experimental.{name},{argument}:x}}"
    assert train(*WORDS, spec, "reward=none", "allow=[trl.experimental]").code == 5
    assert f"pip install 'trl[{name.split('.')[0]}]'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trainer_without_tools_names_those_that_take_them(capsys):
    assert main(["trainer=dpo", "trainer.tools=[runner.reward.rule.price]", "--dry-run"]) == 2
    stderr = capsys.readouterr().err
    assert "a trainer that has: ppo, " in stderr
    assert "grpo" in stderr
    assert "trainer=ppo" in stderr
