"""Completions of several turns with tools that answer in between: sampling, and PPO on them."""

import functools

import pytest
import torch
from datasets import Dataset

from runner.errors import ConfigError
from runner.generate.agent import Agent
from runner.generate.completion import Completion
from runner.generate.sampler import Sampling, sample, seeded_generator, uniform
from runner.ppo import sampling
from runner.ppo.arithmetic import generalised_advantages
from runner.ppo.preparation import sampling_of
from runner.ppo.random_numbers import rollout_noise
from runner.ppo.rollout import Rollout
from runner.ppo.update import update
from tests.tiny_ppo import (
    END,
    LETTERS,
    farthest,
    letter_model,
    letter_tokenizer,
    letter_trainer,
    logs_of,
    weights,
)

TEMPLATE = """{%- for turn in messages -%}
{%- if turn['role'] == 'assistant' -%}
{{- turn['content'] }}{%- if turn['tool_calls'] -%}a{%- endif -%}{{ eos_token }}
{%- else -%}{{ turn['content'] + '\n' }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{ opened or 's' }}{%- endif -%}"""
SIZE = 60
STOPS = tuple(range(12, END + 1))  # so that a random model ends its turns
HOW = Sampling(SIZE, STOPS, rows=4)


def flat_model() -> object:
    return letter_model(spread=0.05, max_position_embeddings=96)


def caller(calls: str = "abcdefghijk") -> object:
    """A tokenizer for which a turn that begins with one of these letters calls ``look`` with the
    rest.
    """
    tokenizer = letter_tokenizer()
    kind = type("Calling", (type(tokenizer),), {})

    def parse_response(self, ids, **_):
        text = self.decode(ids, skip_special_tokens=True)
        if text[:1] not in calls:
            return {"role": "assistant", "content": text}
        # A call may hold additional keys, because models make them up.
        call = {"name": "look", "arguments": {"key": text[1:]}, "id": 1}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": call}],
        }

    kind.parse_response = parse_response
    tokenizer.__class__ = kind
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def look(key: str) -> str:
    """Look a key up.

    Args:
        key: The key.
    """
    if len(key) > 1:
        raise ValueError("g")
    return "hij"[: len(key)]


def another(key: str) -> str:
    """Do something else.

    Args:
        key: The key.
    """
    return key


async def look_late(key: str) -> str:
    """Look a key up.

    Args:
        key: The key.
    """
    return look(key)


look_late.__name__ = "look"
ROWS = [
    {"prompt": [{"role": "user", "content": text}]}
    for text in ("abc", "d", "efghij", "kl", "gh", "b")
]


def play(agent: Agent, rows=ROWS, how=HOW, numbers=None, **options):
    noise = torch.stack(
        [
            uniform(SIZE, generator=seeded_generator(number))
            for number in numbers or range(len(rows))
        ]
    )
    return agent.play(
        functools.partial(sample, flat_model()), caller(), rows, how, noise, **options
    )


@pytest.mark.slow
def test_tools_answer_between_the_turns_and_an_episode_depends_on_its_own_noise_alone():
    episodes = play(Agent([look]), ROWS * 3)
    assert max(episode.counts[1] for episode in episodes) > 1
    assert min(episode.counts[1] for episode in episodes) == 0
    model = flat_model()
    for number, played in enumerate(episodes):
        (alone,) = play(Agent([look]), [ROWS[number % len(ROWS)]], numbers=[number])
        assert (alone.token_ids, alone.own, alone.turns) == (
            played.token_ids,
            played.own,
            played.turns,
        )
        assert len(played.token_ids) <= SIZE
        assert played.own[-1]
        assert len(played.logprobs) == sum(played.own)
        token_ids = [*played.prompt_ids, *played.token_ids]
        logprobs = torch.log_softmax(model(torch.tensor([token_ids])).logits[0], -1)
        places = [
            len(played.prompt_ids) + place for place, is_own in enumerate(played.own) if is_own
        ]
        expected = [logprobs[place - 1, token_ids[place]].item() for place in places]
        assert played.logprobs == pytest.approx(expected, abs=1e-4)
        # The tokens are those of the rendered conversation, up to the ends that
        # were sampled.
        roles = [turn["role"] for turn in played.turns]
        assert roles[::2] == ["assistant"] * len(roles[::2])
        assert set(roles[1::2]) <= {"tool"}


def test_raising_and_missing_tools_are_answered_as_failures():
    episodes = play(Agent([look]))
    failed = [episode for episode in episodes if episode.failures]
    assert failed
    assert any("{'error': 'g'}" in turn["content"] for episode in failed for turn in episode.turns)
    (lost, *_) = [episode for episode in play(Agent([another])) if episode.counts[1]]
    assert lost.failures == lost.calls


def test_coroutines_answer_as_functions_do_and_rounds_are_bounded():
    plain = play(Agent([look]))
    late = play(Agent([look_late]))
    assert [episode.turns for episode in plain] == [episode.turns for episode in late]
    assert max(episode.counts[1] for episode in play(Agent([look], rounds=1))) == 1
    assert max(episode.counts[1] for episode in play(Agent([look], rounds=0))) == 0


def test_each_turn_is_opened_with_the_arguments_of_its_row():
    """Such as whether a model thinks, for which a template writes something at the beginning of
    each turn.
    """
    rows = [row | {"chat_template_kwargs": {"opened": "p"}} for row in ROWS]
    for episode in play(Agent([look]), rows):
        ids = [*episode.prompt_ids, *episode.token_ids]
        begun = [
            place
            for place, is_own in enumerate(episode.own)
            if is_own and not (place and episode.own[place - 1])
        ]
        assert {ids[len(episode.prompt_ids) + place - 1] for place in begun} == {LETTERS.index("p")}
    assert max(episode.counts[0] for episode in play(Agent([look]), rows)) > 1


class Room:
    """An environment that shows a letter, takes one, and pays for the right one."""

    def reset(self, prompt, answer, **_):
        self.answer = answer
        self.taken = None
        return "t"

    def look(self, key: str) -> str:
        """Take a letter.

        Args:
            key: The letter.
        """
        self.taken = key
        return "i"

    def get_reward(self) -> float:
        return float(self.taken is not None)


class LateRoom(Room):
    async def get_reward(self) -> float:
        return float(self.taken is not None)


def test_each_episode_has_an_environment_of_its_own_which_a_row_may_name():
    rows = [
        row | {"answer": "i", "environment": "late" if number % 2 else "room"}
        for number, row in enumerate(ROWS)
    ]
    agent = Agent(environments={"room": Room, "late": LateRoom})
    episodes = play(agent, rows)
    for episode in episodes:
        assert episode.prompt[-1]["content"].endswith("t")
        assert list(episode.tools) == ["look"]
    environments = [episode.environment for episode in episodes]
    assert len(set(map(id, environments))) == len(rows)
    called = [float(episode.counts[1] > 0) for episode in episodes]
    paid = [reward(environments=environments) for reward in agent.own_rewards()]
    assert [reward.__name__ for reward in agent.own_rewards()] == ["Room", "LateRoom"]
    assert {*called} == {0.0, 1.0}
    assert [
        from_first if two is None else two for from_first, two in zip(*paid, strict=True)
    ] == called


# --- PPO ----------------------------------------------------------------------------------------


def test_advantages_of_two_turns_are_those_worked_out_by_hand():
    """Tokens of a tool are no actions.

    The state after a turn's last token is valued before the policy's next token.
    """
    own_tokens = [True, True, False, False, True]
    rollout = Rollout(
        [{}],
        [Completion(0, 0, [], [1, 2], "", [3, 4, 5, 6, 7], "stop", own=own_tokens)],
        torch.device("cpu"),
    )
    batch = rollout.micro_batch([0])
    assert batch.input_ids_BT.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert rollout.responses == [3]
    assert batch.targets_N.tolist() == [3, 4, 7]
    assert batch.positions_N.tolist() == [1, 2, 5]
    values = torch.tensor([[0.5, 0.25, 1.0]])
    rewards = torch.tensor([[0.0, 0.0, 2.0]])
    advantages, returns = generalised_advantages(rewards, values, rollout.mask_BR, 0.9, 0.5)
    third = 2.0 - 1.0
    second = 0.9 * 1.0 - 0.25 + 0.45 * third
    first = 0.9 * 0.25 - 0.5 + 0.45 * second
    assert advantages[0].tolist() == pytest.approx([first, second, third])
    assert returns[0].tolist() == pytest.approx([first + 0.5, second + 0.25, third + 1.0])


def chats(count: int = 8) -> Dataset:
    return Dataset.from_list([ROWS[row % len(ROWS)] | {"answer": "i"} for row in range(count)])


def called(completions, **_):
    return [float(any(turn["role"] == "tool" for turn in turns)) for turns in completions]


def tool_trainer(folder, **changed):
    parts = {
        "model": flat_model(),
        "processing_class": caller(),
        "rows": chats(),
        "reward_funcs": called,
        "tools": [look],
    }
    trainer = letter_trainer(
        folder, **parts | {"response_length": SIZE, "max_steps": 1, "kl_coef": 0.05} | changed
    )
    trainer.stop_ids = STOPS
    return trainer


def test_ppo_learns_from_the_tokens_of_the_policy_alone(tmp_path, monkeypatch):
    trainer = tool_trainer(tmp_path, num_ppo_epochs=1, cliprange=0.2)
    recorded = {}

    def keep(trainer, model, rollout, rewards):
        recorded["rollout"] = rollout
        return update(trainer, model, rollout, rewards)

    monkeypatch.setattr("runner.ppo.trainer.update", keep)
    trainer.train()
    rollout = recorded["rollout"]
    (logs, *_) = logs_of(trainer)
    assert rollout.mask_BR.sum().item() == sum(
        sum(completion.own) for completion in rollout.completions
    )
    assert sum(not all(completion.own) for completion in rollout.completions) > 1
    calls = sum(completion.calls[1] for completion in rollout.completions)
    assert logs["tools/call_frequency"] == calls / 8
    assert logs["tools/turns"] >= 1
    assert (
        logs["tools/failure_frequency"]
        == sum(completion.calls[2] for completion in rollout.completions) / calls
    )
    fresh = flat_model()
    row = next(row for row, completion in enumerate(rollout.completions) if not all(completion.own))
    sequence = torch.tensor([rollout.sequences[row]])
    completion = rollout.completions[row]
    expected = torch.log_softmax(fresh(sequence).logits[0] / trainer.args.temperature, -1)
    for number, place in enumerate(rollout.positions[row]):
        want = expected[place - 1, sequence[0, place]].item()
        assert rollout.logprobs_BR[row, number].item() == pytest.approx(want, abs=1e-4)
    assert len(rollout.positions[row]) == sum(completion.own) < len(completion.token_ids)


@pytest.mark.slow
def test_a_rollout_of_the_users_is_learnt_from_as_ours_is(tmp_path):
    def again(prompts, trainer):
        rows = [{"prompt": prompt} for prompt in prompts]
        noise = rollout_noise(trainer.args, len(rows), trainer.state.global_step, "train")
        sampler = functools.partial(sample, trainer.actor_critic.policy)
        tokenizer = trainer.processing_class
        made = trainer.tools.play(sampler, tokenizer, rows, sampling_of(trainer), noise)
        logprobs = []
        for episode in made:
            remaining = iter(episode.logprobs)
            logprobs.append([next(remaining) if is_own else 0.0 for is_own in episode.own])
        ids = {
            "prompt_ids": [episode.prompt_ids for episode in made],
            "completion_ids": [episode.token_ids for episode in made],
        }
        masks = [list(map(int, episode.own)) for episode in made]
        return ids | {
            "logprobs": logprobs,
            "env_mask": masks,
            "calls": [episode.counts[1] for episode in made],
        }

    def paid(calls, **_):
        return [float(count > 0) for count in calls]

    ours = tool_trainer(tmp_path / "own", old_logprobs="recompute")
    ours.train()
    users = tool_trainer(
        tmp_path / "users",
        old_logprobs="recompute",
        tools=None,
        rollout_func=again,
        reward_funcs=paid,
    )
    users.tools = Agent([look])
    users.train()
    assert farthest(weights(ours), weights(users)) == 0


@pytest.mark.parametrize(
    "broken", ["prompt_ids", "completion_ids", "logprobs", "env_mask", "extra", "none", "null"]
)
def test_a_rollout_of_the_users_with_other_lists_is_refused(tmp_path, broken):
    def roll_out(prompts, trainer):
        ids = [[1, 2, 3] for _ in prompts]
        rollout = {
            "prompt_ids": ids,
            "completion_ids": ids,
            "logprobs": [[0.0] * 3 for _ in prompts],
        }
        rollout |= {"env_mask": [[1, 0, 1] for _ in prompts], "extra": list(range(len(prompts)))}
        if broken in ("none", "null"):
            return None if broken == "none" else rollout | {"logprobs": None}
        return rollout | {broken: rollout[broken][:-1]}

    trainer = tool_trainer(tmp_path, tools=None, rollout_func=roll_out)
    with pytest.raises(ConfigError, match="lists that do not fit 8 prompts"):
        trainer.train()


@pytest.mark.slow
def test_an_environment_adds_to_the_rewards_and_tools_need_an_end(tmp_path):
    parts = {"tools": None, "environment_factory": Room, "reward_funcs": None}
    trainer = tool_trainer(tmp_path, **parts)
    trainer.train()
    (logs, *_) = logs_of(trainer)
    assert 0 < logs["rewards/Room/mean"] < 1
    assert logs["objective/scores"] == logs["rewards/Room/mean"]
    # without it no turn ends, and no tool is called
    with pytest.raises(ConfigError, match="a token that ends a turn"):
        tool_trainer(tmp_path, stop_token=None)


def test_a_reward_per_token_counts_the_policys_tokens_only(tmp_path):
    def by_token(completion_ids, **_):
        return [[float(place) for place in range(len(ids))] for ids in completion_ids]

    trainer = tool_trainer(tmp_path, reward_funcs=by_token)
    noise = rollout_noise(trainer.args, 8, 0, "train")
    rollout = sampling.roll_out(trainer, chats(), noise)
    earned, _ = trainer.rewards(rollout.completions, rollout.rows, None, 640)
    for number, completion in enumerate(rollout.completions):
        places = [float(place) for place, is_own in enumerate(completion.own) if is_own]
        assert earned[number, : len(places)].tolist() == places
        assert earned[number, len(places) :].isnan().all()
