"""Rewards as trainers call them.

A wrong value is reported with reward, row and prompt, and never becomes zero.
"""

import asyncio
import functools
import math
import os
import random
import re
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn

from runner.errors import ConfigError, DataError, EnvironmentFault, SickRun
from runner.reward import time_limit
from runner.reward.panel import RewardTracker, Scorer, to_scorer

PROMPTS = ["How many?", [{"role": "user", "content": "And   the\nother?"}], "Third"]
TEXTS = ["one", "two", "three"]


def ask(call, name="mine", **how):
    scorer = to_scorer(name, call, **how)
    answer = scorer(prompts=PROMPTS, completions=TEXTS, size=[3, 3, 5], trainer_state=None)
    return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer


def refused(call, kind, **how) -> str:
    with pytest.raises(kind) as error:
        ask(call, **how)
    (fault,) = error.value.faults
    assert fault.where == "reward.mine"
    return f"{fault.found} | {fault.expected} | {fault.fix}"


def gives(*values):
    return lambda completions, **columns: list(values)


def gives_later(*values):
    async def reward(completions, **columns):
        return list(values)

    return reward


@pytest.mark.parametrize(
    "values", [gives(1, None, True), gives_later(1, None, True)], ids=["plain", "async"]
)
def test_numbers_and_none_go_through(values):
    assert ask(values) == [1, None, True]


@pytest.mark.parametrize("container", [np.array, torch.tensor, tuple, iter])
def test_arrays_tensors_and_iterators_become_lists(container):
    assert ask(lambda completions: container([0.5, 1.0, 2.0])) == [0.5, 1.0, 2.0]
    assert ask(lambda completions: [np.float32(0.5), torch.tensor(1.0), 2]) == [0.5, 1.0, 2]


BAD = [
    ([1.0, math.nan, 2.0], SickRun, "nan for completion 1 of 3", "And the other?"),
    ([1.0, 2.0, -math.inf], SickRun, "-inf for completion 2 of 3", "Third"),
    (["a", 1.0, 2.0], DataError, "str 'a' for completion 0 of 3", "How many?"),
    ([1.0, {"x": 1}, 2.0], DataError, "dict \"{'x': 1}\" for completion 1 of 3", "And the other?"),
    ([1.0, 2.0], DataError, "2 rewards for 3 completions", "How many?"),
    ([], DataError, "0 rewards for 3 completions", "How many?"),
    ([1.0, [0.5, 0.5], 2.0], DataError, "a list of 2 for completion 1 of 3", "And the other?"),
]


@pytest.mark.parametrize("make", [gives, gives_later], ids=["plain", "async"])
@pytest.mark.parametrize(("values", "kind", "finding", "prompt"), BAD)
def test_a_wrong_value_is_reported_with_its_row_and_prompt(values, kind, finding, prompt, make):
    refusal = refused(make(*values), kind)
    assert refusal.startswith(finding)
    assert repr(prompt) in refusal


@pytest.mark.parametrize("answer", [None, 1.0, "text", {"a": 1}], ids=str)
def test_a_result_that_is_no_list_is_reported(answer):
    assert type(answer).__name__ in refused(lambda completions: answer, DataError)


def test_steps_are_for_a_trainer_that_can_use_them():
    assert ask(gives([0.5, 1.0], None, [0.0]), per_step=True) == [[0.5, 1.0], None, [0.0]]
    assert "trainer=ppo" in refused(gives([0.5], 1.0, 1.0), DataError)
    assert "nan for completion 0" in refused(
        gives([0.5, math.nan], 1.0, 1.0), SickRun, per_step=True
    )
    assert "NoneType" in refused(gives([0.5, None], 1.0, 1.0), DataError, per_step=True)


def test_an_exception_is_reported_with_its_row_and_cause():
    def reward(completions, size):
        return [1 / (len(text) - 5) for text in completions]

    with pytest.raises(DataError) as error:
        ask(reward)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    (fault,) = error.value.faults
    assert fault.found == "raised ZeroDivisionError: division by zero, for completion 2 of 3"
    assert "'Third'" in fault.expected


def test_a_raise_about_chats_says_that_their_completions_are_lists():
    chats = [[{"role": "assistant", "content": "a b"}]]
    with pytest.raises(
        DataError, match="for each completion, a list of messages here; the prompt: '1\\+1='"
    ):
        to_scorer("mine", lambda completions: [len(text.split()) for text in completions])(
            prompts=["1+1="], completions=chats
        )


def test_an_exception_of_the_batch_alone_is_reported_for_all_rows():
    def reward(completions, **columns):
        if len(completions) > 1:
            raise LookupError
        return [1.0]

    assert "LookupError, for 3 completions" in refused(reward, DataError)


def test_our_own_faults_and_the_machines_are_not_retold_as_the_rows():
    def absent(completions):
        raise ConfigError([])

    with pytest.raises(ConfigError):
        ask(absent)

    def offline(completions):
        raise ConnectionResetError("reset by peer")

    assert "raised ConnectionResetError: reset by peer" in refused(offline, EnvironmentFault)


def test_a_function_gets_the_columns_that_it_names_and_no_others():
    assert ask(lambda completions, size: size) == [3, 3, 5]
    assert ask(lambda prompts, **columns: [len(columns)] * 3) == [3, 3, 3]
    assert ask(functools.partial(lambda completions, size: [size] * 3, size=7)) == [7, 7, 7]
    refusal = refused(lambda completions, answer: [1.0] * 3, DataError)
    assert "it takes answer, but the rows have no such column" in refusal
    assert "completions, prompts, size" in refusal


class Called:
    def __call__(self, completions, **columns):
        return [1.0] * len(completions)


def test_any_callable_is_named_as_in_the_config():
    for call in (Called(), gives(1.0, 1.0, 1.0), functools.partial(gives(1.0, 1.0, 1.0))):
        assert to_scorer("mine", call).__name__ == "mine"
        assert ask(call) == [1.0] * 3
    with pytest.raises(DataError, match="a function, or another callable"):
        to_scorer("mine", 3)


# --- Several rewards ----------------------------------------------------------------------------


def asked(tracker, *functions):
    scorers = [
        to_scorer(f"r{index}", function, tracker=tracker)
        for index, function in enumerate(functions)
    ]
    return lambda texts: [scorer(prompts=texts, completions=texts) for scorer in scorers]


def test_a_row_without_any_reward_is_reported():
    call = asked(
        RewardTracker(),
        lambda completions: [None, 1.0, None],
        lambda completions: [1.0, None, None],
    )
    with pytest.raises(DataError) as error:
        call(["a", "b", "the last"])
    (fault,) = error.value.faults
    assert "every reward returned None for completion 2 of 3, and for 0 more" in fault.found
    assert "the last" in fault.expected


def test_one_reward_per_row_is_enough_and_batches_do_not_mix():
    tracker = RewardTracker()
    call = asked(
        tracker,
        lambda completions: [None] * len(completions),
        lambda completions: [2.0] * len(completions),
    )
    for texts in (["a"], ["a", "b"], ["c"]):
        assert call(texts) == [[None] * len(texts), [2.0] * len(texts)]
    assert tracker.pop_means() == {"r1": 2.0}
    assert tracker.pop_means() == {}


class Scores(nn.Module):
    def __init__(self, *values):
        super().__init__()
        self.values = values

    def forward(self, **inputs):
        return type("Output", (), {"logits": torch.tensor([[value] for value in self.values])})


def test_a_model_stays_a_model_and_its_scores_are_watched():
    tracker = RewardTracker()
    model = to_scorer("judge", Scores(1.0, 3.0), tracker=tracker)
    assert isinstance(model, nn.Module)
    model()
    assert tracker.pop_means() == {"judge": 2.0}
    with pytest.raises(SickRun, match="nan for completion 1 of 2"):
        to_scorer("judge", Scores(1.0, math.nan))()


# --- Time ---------------------------------------------------------------------------------------


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def swallow(seconds):
    try:
        time.sleep(seconds)
    except Exception:
        return "disturbed"


def backtrack(seconds):
    re.match(r"(a+)+$", "a" * 40 + "b")


@pytest.mark.parametrize("hang", [time.sleep, spin, swallow, backtrack, threading.Event().wait])
def test_a_hang_is_reported_in_time(hang):
    ended = []

    def reward(completions):
        ended.append(hang(20))
        return [1.0] * 3

    refusal = refused(reward, SickRun, timeout=0.2)
    assert ended in ([], ["disturbed"])
    assert "no answer after 0.2 s for 3 completions" in refusal
    assert "reward.mine.timeout" in refusal
    assert "'How many?'" in refusal


def test_a_coroutine_that_hangs_is_reported_in_time():
    async def reward(completions):
        await asyncio.sleep(20)

    assert "no answer after 0.1 s" in refused(reward, SickRun, timeout=0.1)


def test_a_reward_within_its_limit_is_not_disturbed():
    scorer = Scorer("mine", lambda completions: [1.0] * 3, timeout=60)
    for _ in range(20):
        assert scorer(prompts=PROMPTS, completions=TEXTS) == [1.0] * 3
    # Neither the watcher nor the timer is left.
    for thread in threading.enumerate():
        assert "_watch" not in thread.name
    assert signal.getitimer(time_limit.TIMER) == (0.0, 0.0)


def test_a_reward_leaves_the_training_unchanged():
    """This covers random numbers, autograd, dtype, the working folder and the terminal.

    Its own random numbers follow from the answers.
    """
    drawn = []

    def careless(completions, **_):
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        torch.set_grad_enabled(False), torch.set_default_dtype(torch.float64)
        os.chdir("/")
        return [1.0 for _ in completions]

    def state():
        numbers = (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
        )
        return *numbers, torch.is_grad_enabled(), torch.get_default_dtype(), os.getcwd()

    before = state()
    scorer = to_scorer("careless", careless)
    for completions in (["a"], ["a"], ["b"]):
        assert scorer(prompts=["?"], completions=completions) == [1.0]
        assert state() == before
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_reward_beyond_the_numbers_of_a_trainer_is_sick():
    for number in (10**400, 1e300, -(10**400)):
        with pytest.raises(SickRun, match="for completion 0 of 1"):
            to_scorer("huge", lambda completions, number=number: [number])(
                prompts=["?"], completions=["a"]
            )
