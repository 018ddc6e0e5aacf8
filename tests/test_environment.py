"""Environments of an experiment: their rows, their episodes, what they pay, and how they fail."""

import asyncio
import functools
import math
import sys
from pathlib import Path

import pytest
import trl

from runner.__main__ import main
from runner.config.experiment import EnvironmentPart
from runner.errors import ConfigError, DataError, SickRun
from runner.generate.agent import Agent, build_agent
from runner.generate.environment import contract
from runner.generate.environment.reasoning_gym import ReasoningGym
from runner.generate.environment.reward import build_environment_rewards
from runner.generate.environment.rows import environment_rows
from runner.generate.episode import EARNED, Environment
from runner.generate.tool_guard import guard_environment
from runner.io.files import read_json, read_rows
from runner.ppo.sampling import without_failed
from tests.test_rollout import ROWS, caller, play

STAND_IN = Path(__file__).parent / "reasoning_gym_stand_in"
MINE = '''
import os, random, signal

class Guess:
    """A digit is to be guessed; after each turn the environment says in which direction."""
    rewards = {"found": 1.0, "turns": 0.1}
    def rows(self, count, seed, held_out):
        numbers = random.Random(f"{seed} {held_out}")
        prompt = [{"role": "user", "content": "Sort these digits: 1"}]
        return [{"prompt": prompt, "secret": numbers.randint(0, 9)} for _ in range(count)]
    def make(self):
        return Game()
    def close(self):
        with open("closed", "a") as file:
            file.write("x")

class Game:
    def reset(self, secret, **row):
        self.secret = secret
        self.turns = 0
        self.best = 9
    def respond(self, message):
        self.turns += 1
        if os.path.exists("fails") and self.turns == 2 and random.random() < 0.5:
            raise ValueError("the board is broken")
        digits = [int(letter) for letter in message["content"] if letter.isdigit()]
        far = min((abs(digit - self.secret) for digit in digits), default=9)
        self.best = min(self.best, far)
        if far == 0:
            return None
        return [{"role": "user", "content": "Sort these digits: 2"}]
    def get_reward(self):
        return {"found": 1 - self.best / 9, "turns": -self.turns + random.random()}

class Plain:
    def reset(self, secret, **row):
        self.secret = secret
    def respond(self, message):
        self.text = message["content"]
    def get_reward(self):
        return float(str(self.secret) in self.text)
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a module of a user's, and the stand-in for reasoning-gym."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    contract.close_sources()
    for name in [name for name in sys.modules if name.startswith("reasoning_gym")]:
        del sys.modules[name]


# Contents of turns that no tokenizer takes, or none in good time.
SAID = {"nothing": None, "half a letter": "\ud83e", "a book": "a" * 1_000_001}


class Talk:
    """An environment that says a letter after each turn, until it has said enough."""

    def __init__(self, replies: int = 2, fails: str = ""):
        self.replies = replies
        self.fails = fails
        self.heard = []

    def reset(self, prompt, **row):
        self.is_odd = len(prompt[0]["content"]) % 2

    def respond(self, message):
        self.heard.append(message)
        if self.fails == "raises" and self.is_odd:
            raise ValueError("no board")
        if self.fails == "hangs" and self.is_odd:
            while True:
                pass
        if self.fails == "exits" and self.is_odd:
            raise SystemExit(3)
        if self.is_odd and self.fails in SAID:
            return [{"role": "user", "content": SAID[self.fails]}]
        if self.fails == "all":
            raise ValueError("no board")
        if len(self.heard) > self.replies:
            return None
        return [{"role": "user", "content": "t"}]

    def get_reward(self):
        if self.fails == "nan" and self.is_odd:
            return {"long": math.nan}
        return {"long": float(len(self.heard)), "odd": 1.0 if self.is_odd else None}


class LateTalk(Talk):
    async def reset(self, prompt, **row):
        await asyncio.sleep(0)
        Talk.reset(self, prompt)

    async def respond(self, message):
        await asyncio.sleep(0)
        return Talk.respond(self, message)

    async def get_reward(self):
        await asyncio.sleep(0)
        return Talk.get_reward(self)


def talking(kind=Talk, *, skips=False, max_turns=None, seconds=60.0, **arguments) -> Agent:
    """An agent whose environment talks."""
    make = guard_environment(functools.partial(kind, **arguments), "environment", seconds)
    rewards = {"long": 1.0, "odd": 0.5}
    environment = Environment(make, rewards, skips=skips, max_turns=max_turns)
    return build_agent(environments=environment)


NUMBERED = [{"row": 10 + number, **row} for number, row in enumerate(ROWS)]


# --- Episodes -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_what_an_environment_says_stands_between_the_turns_and_is_not_the_policys():
    episodes = play(talking(), ROWS * 2)
    tokenizer = caller()
    assert {episode.counts[0] for episode in episodes} == {3}
    for episode in episodes:
        turns = episode.turns
        roles = [turn["role"] for turn in turns]
        assert roles == ["assistant", "user"] * (len(turns) // 2) + ["assistant"]
        # Token by token: the policy's are those of its turns with their ends, in their order, and
        # every other one is of the reply and of what the template writes around it.
        pieces = [[]]
        for token, is_own in zip(episode.token_ids, episode.own, strict=True):
            if pieces[-1] and pieces[-1][0][1] != is_own:
                pieces.append([])
            pieces[-1].append((token, is_own))
        assert [piece[0][1] for piece in pieces] == [role == "assistant" for role in roles]
        for piece, turn in zip(pieces, turns, strict=True):
            text = tokenizer.decode([token for token, _ in piece], skip_special_tokens=True)
            expected = turn["content"] if turn["role"] == "assistant" else "t\ns"
            assert text == expected
        assert len(episode.logprobs) == sum(episode.own)
        heard = episode.environment.heard
        assert [turn["content"] for turn in heard] == [
            turn["content"] for turn in turns if turn["role"] == "assistant"
        ]
        assert episode.earned["long"] == len(heard)


@pytest.mark.slow
def test_coroutines_play_the_same_episodes_and_turns_have_a_limit():
    plain = play(talking())
    late = play(talking(LateTalk))
    assert [episode.token_ids for episode in late] == [episode.token_ids for episode in plain]
    assert [episode.earned for episode in late] == [episode.earned for episode in plain]
    short = play(talking(max_turns=1))
    assert {episode.counts[0] for episode in short} == {1}
    assert {episode.earned["long"] for episode in short} == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["raises", "hangs", "exits", "nan", *SAID])
def test_an_environment_that_fails_is_told_with_name_row_and_turn_or_skipped(fails, caplog):
    seconds = 0.3 if fails == "hangs" else 60.0
    with pytest.raises((DataError, SickRun)) as error:
        play(talking(fails=fails, seconds=seconds), NUMBERED)
    (fault,) = error.value.faults
    method = "get_reward" if fails == "nan" else "respond"
    assert f"turn {1 if fails != 'nan' else fault.found[5]} of row 10: " in fault.found
    assert f"Talk.{method}" in f"{fault.where} {fault.found}"
    assert ("environment.timeout=0.6" in fault.fix) == (fails == "hangs")
    assert fault.fix.endswith(", or environment.on_error=skip")

    episodes = play(talking(fails=fails, seconds=seconds, skips=True), NUMBERED)
    odd = [episode.environment.is_odd for episode in episodes]
    assert [episode.has_failed for episode in episodes] == [bool(is_odd) for is_odd in odd]
    assert all((episode.earned is None) == episode.has_failed for episode in episodes)
    assert "failed episode 1 of the environment" in caplog.text
    numbers = without_failed(episodes)
    assert len(numbers) == len(episodes)
    assert not any(episodes[number].has_failed for number in numbers)


@pytest.mark.slow
def test_a_batch_in_which_every_episode_fails_ends_a_run_that_skips():
    with pytest.raises(DataError, match="no board") as error:
        play(talking(fails="all", skips=True), NUMBERED)
    assert "on_error=skip" not in str(error.value)  # as it is


class Twice(Talk):
    def get_reward(self):
        return {"long": 1.0, "short": 2.0}


@pytest.mark.slow
def test_a_reward_of_another_name_is_a_fault_that_lists_the_names():
    with pytest.raises(DataError, match="long, odd"):
        play(talking(Twice, skips=True))


def test_completions_of_one_turn_are_judged_once_for_all_rewards():
    judged = []

    class Judged(Talk):
        def get_reward(self):
            judged.append(self.heard[-1]["content"])
            return {"long": 2.0, "odd": None}

    agent = talking(Judged)
    long, odd = build_environment_rewards(agent, [])
    completions = [[{"role": "assistant", "content": text}] for text in ("x", "y")]
    prompts = [row["prompt"] for row in ROWS[:2]]
    assert long(completions, prompts=prompts, trainer_state=None) == [2.0, 2.0]
    assert odd(completions, prompts=prompts, trainer_state=None) == [None, None]
    assert judged == ["x", "y"]
    assert (long.weight, odd.weight) == (1.0, 0.5)
    assert long(completions, **{EARNED: [{"long": 3.0}, None]}) == [3.0, None]
    with pytest.raises(ConfigError, match=r"reward\.odd"):
        build_environment_rewards(agent, ["odd"])


# --- Rows ---------------------------------------------------------------------------------------
def part(**keys) -> EnvironmentPart:
    target = "runner.generate.environment.reasoning_gym.ReasoningGym"
    return EnvironmentPart.read({"_target_": target, "tasks": ["chain_sum", "gcd"], **keys})


def test_rows_follow_from_the_seed_and_the_weights_and_held_out_ones_are_others(mine):
    train, held_out = environment_rows(part(size=40, held_out=10))
    again, _ = environment_rows(part(size=40, held_out=10))
    assert train.to_list() == again.to_list()
    assert train["row"] == list(range(40))
    assert set(train["seed"]).isdisjoint(held_out["seed"])
    other, none = environment_rows(part(size=40, held_out=None), seed=1)
    assert none is None
    assert other["prompt"] != train["prompt"]
    assert part(seed=1).seed == 1
    few, _ = environment_rows(part(size=40), limit={"train": 3, "eval": 2})
    assert len(few) == 3
    heavy = {"chain_sum": {"weight": 9, "max_terms": 1}, "gcd": {}}
    weighted, _ = environment_rows(part(tasks=heavy, size=200, tag=None, system=None))
    assert 0.8 < weighted["task"].count("chain_sum") / 200 < 0.97
    assert weighted["prompt"][0][0]["role"] == "user"
    assert contract.package_versions(part()) == {"reasoning-gym": "0.1.25"}


def test_an_answer_is_scored_by_the_package_between_its_tags(mine):
    source = ReasoningGym(["chain_sum"])
    (row, *_) = source.rows(4, 0, False)
    assert row["prompt"][0] == {"role": "system", "content": "Write <answer>answer here</answer>."}
    entry = source.dataset(task="chain_sum", seed=row["seed"], size=4)[0]

    def score(text: str, source=source) -> float:
        question = source.make()
        question.reset(**row)
        question.respond({"role": "assistant", "content": text})
        return question.get_reward()["chain_sum"]

    assert score(f"<answer>9999</answer> no, <answer> {entry['answer']} </answer>") == 1.0
    assert score(entry["answer"]) == 0.0
    assert score(entry["answer"], ReasoningGym(["chain_sum"], tag=None)) == 1.0
    with pytest.raises(ConfigError, match="max_terms must be >= min_terms"):
        ReasoningGym({"chain_sum": {"min_terms": 3, "max_terms": 1}}).rows(2, 0, False)


# --- What is refused before torch ---------------------------------------------------------------
GYM = ("trainer=grpo", "environment=reasoning_gym")
OWN = ("environment=own", "allow=[mine]")
PENALTY = "trainer.args.repetition_penalty=1.2"
REFUSED = {
    "no task": ((*GYM,), "environment.tasks=[chain_sum]"),
    "an unknown task": ((*GYM, "environment.tasks=[gcd,chainsum]"), "[gcd,chain_sum]"),
    "an unknown setting": (
        (*GYM, "environment.tasks={chain_sum:{max_term:2}}"),
        "environment.tasks.chain_sum.max_terms=2",
    ),
    "a setting of the rows": ((*GYM, "environment.tasks={gcd:{seed:2}}"), "environment.seed=2"),
    "a task like none": ((*GYM, "environment.tasks=[zzzz]"), "'environment.tasks=[chain_sum]'"),
    "a task twice": ((*GYM, "environment.tasks=[gcd,chain_sum,gcd]"), "[gcd,chain_sum]"),
    "a setting of another type": (
        (*GYM, "environment.tasks={chain_sum:{max_terms:many}}"),
        "leave environment.tasks.chain_sum.max_terms out",
    ),
    "a share below 0": (
        (*GYM, "environment.tasks={chain_sum:{weight:-1},gcd:{}}"),
        "environment.tasks.chain_sum.weight=1",
    ),
    "no share at all": (
        (*GYM, "environment.tasks={chain_sum:{weight:0}}"),
        "a task that has rows",
    ),
    "a misspelt key": ((*GYM, "environment.tasks=[gcd]", "environment.sise=2"), "size=2"),
    "a dataset, too": (
        (*GYM, "environment.tasks=[gcd]", "dataset=toy_sort"),
        "dataset=environment, or environment=none",
    ),
    "weights twice": (
        (*GYM, "environment.tasks=[gcd]", "trainer.args.reward_weights=[2]"),
        "environment.weights.<name>=<weight>",
    ),
    "another environment": (
        (*GYM, "environment.tasks=[gcd]", "trainer.environment_factory=mine.Game", "allow=[mine]"),
        "leave trainer.environment_factory out",
    ),
    "no rewards": (
        ("trainer=sft", "environment=reasoning_gym", "environment.tasks=[gcd]"),
        "trainer=grpo, or environment=none",
    ),
    "several turns": (
        ("trainer=rloo", *OWN, "environment._target_=mine.Guess"),
        "RLOOTrainer samples one turn",
    ),
    "another sampler": (
        ("trainer=grpo", *OWN, "environment._target_=mine.Guess", "trainer.sampler=transformers"),
        "trainer.sampler=runner",
    ),
    "vllm": (
        ("trainer=grpo", *OWN, "environment._target_=mine.Guess", "trainer.args.use_vllm=true"),
        "trainer.args.use_vllm=false",
    ),
    "what it cannot sample": (
        ("trainer=grpo", *OWN, "environment._target_=mine.Guess", PENALTY),
        "cannot sample this: trainer.args.repetition_penalty is 1.2",
    ),
    "no rows": (("trainer=grpo", *OWN, "environment._target_=mine.Game"), "makes no rows"),
    "a column": (
        ("trainer=grpo", "environment._target_=mine.Plain", "allow=[mine]", "dataset=toy_sort"),
        "takes secret, but the rows have no such column",
    ),
    "no environment": (("trainer=grpo", "dataset=environment"), "environment=<"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.quick(4)
def test_what_does_not_go_together_is_refused_with_what_to_type(mine, case, capsys):
    words, expected = REFUSED[case]
    assert main([*words, "--dry-run"]) == 2
    assert expected in capsys.readouterr().err


def test_an_evaluation_refuses_tasks_that_there_are_not(mine, capsys):
    assert main(["evaluate", "model=tiny", GYM[1], "environment.tasks=[gdc]"]) == 2
    assert "'environment.tasks=[gcd]'" in capsys.readouterr().err


def test_all_faults_of_an_environment_stand_together(mine, capsys):
    words = ("environment.tasks=[chainsum]", "dataset=toy_sort", "environment.on_error=retry")
    assert main([*GYM, *words, "--dry-run"]) == 2
    stderr = capsys.readouterr().err
    assert "config: 3 faults" in stderr


def test_a_package_that_is_not_installed_is_named_with_its_extra(capsys, monkeypatch):
    monkeypatch.setattr("runner.validate.libraries._is_installed", lambda name: False)
    for verb in (("trainer=grpo", "--dry-run"), ("evaluate", "model=tiny")):
        assert main([*verb, GYM[1], "environment.tasks=[gcd]"]) == 5
        assert "pip install 'reasoning-gym" in capsys.readouterr().err


# --- Whole runs ---------------------------------------------------------------------------------
GUESS = (
    *("environment=own", "environment._target_=mine.Guess", "allow=[mine]"),
    *("environment.size=16", "environment.held_out=2", "environment.max_turns=3"),
    *("trainer.args.per_device_train_batch_size=8", "trainer.args.max_steps=3"),
    *("tolerate.constant_reward=true", "tolerate.no_signal=true"),
)
GRPO = (
    *("trainer=grpo", "trainer.args.num_generations=4", "trainer.args.max_completion_length=48"),
    *("trainer.args.logging_steps=1",),
)
STOPS = """
from transformers import TrainerCallback

class Stops(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2 and os.path.exists("stops"):
            os.remove("stops")
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.dear("episodes of several turns, stopped and resumed, beside an undisturbed run")
@pytest.mark.slow
def test_grpo_trains_what_the_policy_wrote_alone_and_resumes_to_the_same_bits(
    train, mine, monkeypatch, capsys
):
    with (mine / "mine.py").open("a") as module:
        module.write(STOPS)
    played = []
    hows = []
    trained = []
    real_play = Agent.play
    real_score = trl.GRPOTrainer._generate_and_score_completions

    def watch_play(agent, sampler, tokenizer, rows, how, *args, **options):
        hows.append(how)
        played.append(real_play(agent, sampler, tokenizer, rows, how, *args, **options))
        return played[-1]

    def watch_score(self, inputs):
        count = len(played)
        output = real_score(self, inputs)
        trained.append((played[count], output))
        return output

    monkeypatch.setattr(Agent, "play", watch_play)
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", watch_score)
    words = (*GRPO, *GUESS, "trainer.args.min_p=0.01")
    words += ("callback=samples", "callback.stops._target_=mine.Stops")
    whole = train(*words, name="whole")
    assert whole.code == 0
    assert any(how.min_p == 0.01 for how in hows)
    assert max(len(episode.turns) for episodes, _ in trained for episode in episodes) >= 3
    for episodes, output in trained:
        mask = output["completion_mask"] * output["tool_mask"]
        for number, episode in enumerate(episodes):
            length = len(episode.token_ids)
            assert output["completion_ids"][number, :length].tolist() == episode.token_ids
            assert mask[number, :length].bool().tolist() == episode.own
            assert not mask[number, length:].any()
    line = next(line for line in whole.lines if "reward" in line)
    expected = line["rewards/found/mean"] + 0.1 * line["rewards/turns/mean"]
    assert line["reward"] == pytest.approx(expected, rel=1e-3)
    assert {"eval_rewards/found/mean"} <= set(whole.scores["before"]) & set(whole.scores["after"])
    shown = list(read_rows(whole.run.folder / "completions.jsonl"))
    for source in ("rollout", None):  # None: held out
        completions = [row["completion"] for row in shown if row.get("source") == source]
        assert any(len(turns) > 1 and turns[1]["role"] == "user" for turns in completions)
    sampled = list(read_rows(whole.run.folder / "samples.jsonl"))
    assert any("Sort these digits: 2" in row["completion"] for row in sampled)
    assert (mine / "closed").exists()

    (mine / "stops").touch()
    stopped = train(*words, name="stopped")
    assert (stopped.code, stopped.run.status()["step"]) == (143, 2)
    assert train(*words, name="stopped").code == 0
    weights = [done.run.model / "model.safetensors" for done in (whole, stopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    # Another environment for the same model.
    gym = ("environment=reasoning_gym", "environment.tasks=[chain_sum,gcd]", "limit=4")
    capsys.readouterr()
    assert main(["evaluate", str(whole.run), *gym, "allow=[mine]"]) == 0
    assert "reasoning_gym, eval, 4 rows" in capsys.readouterr().out


@pytest.mark.dear("a run of PPO and one of RLOO with rewards of the package")
@pytest.mark.slow
def test_ppo_and_rloo_learn_from_the_rewards_of_a_package(train, mine):
    tasks = "environment.tasks={chain_sum:{max_terms:1},gcd:{}}"
    words = ("environment=reasoning_gym", tasks, "environment.size=32", "environment.held_out=16")
    words += ("environment.system=null", "environment.tag=null", "trainer.args.max_steps=2")
    words += ("trainer.args.per_device_train_batch_size=8", "environment.weights.gcd=2")
    ppo = train("trainer=ppo", "trainer.args.response_length=4", *words, name="ppo")
    rloo = train("trainer=rloo", "trainer.args.max_completion_length=4", *words, name="rloo")
    for done in (ppo, rloo):
        assert done.code == 0
        for when in ("before", "after"):
            assert {"eval_rewards/gcd/mean", "eval_rewards/chain_sum/mean"} <= set(
                done.scores[when]
            )
        manifest = read_json(done.run.folder / "manifest.json")
        assert manifest["data"]["environment"] == {"reasoning-gym": "0.1.25"}
        assert manifest["versions"]["reasoning-gym"] == "0.1.25"


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "ppo"])
def test_an_environment_that_fails_ends_a_run_or_is_skipped(train, mine, trainer, capsys):
    (mine / "fails").touch()
    length = {"grpo": GRPO, "ppo": ("trainer=ppo", "trainer.args.response_length=48")}[trainer]
    words = (*length, *GUESS, "trainer.args.eval_strategy=no", "environment.held_out=null")
    words += ("trainer.args.max_steps=1",)
    stopped = train(*words, name="stop")
    assert stopped.code == 2
    stderr = capsys.readouterr().err
    assert "turn 2 of row " in stderr
    assert "Game.respond failed: ValueError: the board is broken" in stderr
    assert "environment.on_error=skip" in stderr
    skipped = train(*words, "environment.on_error=skip", name="skip")
    assert skipped.code == 0
    assert "failed episode 1 of the environment, skipped" in skipped.run.log.read_text()
