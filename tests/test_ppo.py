"""One PPO update: its arithmetic against numbers worked by hand, and what must not change it."""

import itertools
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import get_peft_model
from tiny_ppo import (
    END,
    LETTERS,
    farthest,
    letter_model,
    letter_rows,
    letter_tokenizer,
    letter_trainer,
    logs_of,
    lora,
    share_of_wanted,
    train_weights,
    watch_steps,
    weights,
)

from runner.errors import ConfigError, DataError
from runner.generate.earned import step_ends
from runner.loss import clipped_surrogate, kl_estimate
from runner.ppo import PPOConfig, PPOTrainer
from runner.ppo.actor_critic import place_frozen, store_as_autocast
from runner.ppo.arithmetic import generalised_advantages, value_losses, whiten
from runner.ppo.losses import policy_loss, value_loss
from runner.ppo.random_numbers import deal_minibatches
from runner.ppo.rollout_logprobs import compute_logprobs
from runner.ppo.sampling import roll_out
from runner.ppo.scoring import score
from runner.ppo.token_rewards import RunningStats, compute_rewards
from runner.ppo.update import compute_advantages, update

# Rounding grows where Adam divides a small gradient by its own size.
EXACT = {"optim": "sgd", "learning_rate": 0.3, "max_steps": 1, "num_ppo_epochs": 2}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def zero(completions, **_):
    return [0.0] * len(completions)


def rolled_out(trainer, count=8, seed=0):
    """A rollout with the log-probabilities of policy and reference."""
    noise = torch.rand(
        count, trainer.args.response_length, generator=torch.Generator().manual_seed(seed)
    )
    rows = [trainer.train_dataset[row] for row in range(count)]
    rollout = roll_out(trainer, rows, noise)
    compute_logprobs(trainer, rollout)
    return rollout


def set_advantages(trainer, rollout):
    """Set the advantages of a rollout that has none yet."""
    compute_advantages(trainer, rollout, compute_rewards(trainer, rollout), ())


# --- Arithmetic ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "values", "gamma", "lam", "advantages"),
    [
        ([0, 0, 1], [0.5, 0.4, 0.3], 1.0, 0.95, [0.43675, 0.565, 0.7]),
        ([-0.01, 0.02, -0.03, 1], [0.1, 0.2, 0.3, 0.4], 0.9, 0.8, [0.3743008, 0.42264, 0.462, 0.6]),
        ([1], [0.25], 1.0, 0.95, [0.75]),
    ],
)
def test_advantages_worked_by_hand(rewards, values, gamma, lam, advantages):
    mask = torch.ones(1, len(rewards), dtype=torch.bool)
    advantages_found, returns = generalised_advantages(
        double(rewards), double(values), mask, gamma, lam
    )
    assert advantages_found[0].tolist() == pytest.approx(advantages, abs=1e-9)
    assert returns[0].tolist() == pytest.approx(
        [a + v for a, v in zip(advantages, values, strict=True)], abs=1e-9
    )


def test_padding_after_a_row_does_not_change_its_advantages():
    alone, _ = generalised_advantages(
        double([0, 0, 1]), double([0.5, 0.4, 0.3]), torch.ones(1, 3) > 0, 1.0, 0.95
    )
    mask = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    rewards = double([0, 0, 1, 99, -99], [1, 2, 3, 4, 5])
    values = double([0.5, 0.4, 0.3, 77, -77], [5, 4, 3, 2, 1])
    padded, returns = generalised_advantages(rewards, values, mask, 1.0, 0.95)
    assert torch.equal(padded[:1, :3], alone)
    assert padded[0, 3:].tolist() == returns[0, 3:].tolist() == [0, 0]


def test_kl_estimates_worked_by_hand():
    logprobs = double([-1.0, -2.0])
    reference = double([-1.5, -1.0])
    assert kl_estimate(logprobs, reference, "k1").tolist() == [[0.5, -1.0]]
    assert kl_estimate(logprobs, reference, "k2").tolist() == [[0.125, 0.5]]
    third = [[math.exp(-0.5) - 0.5, math.e - 2]]
    assert kl_estimate(logprobs, reference, "k3")[0].tolist() == pytest.approx(third[0], abs=1e-12)


@pytest.mark.slow
def test_kl_estimates_have_schulmans_bias_and_spread():
    samples = torch.randn(
        2_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    logprobs = -samples.square() / 2
    reference = -(samples - 0.1).square() / 2
    true = 0.005
    for name, bias, spread, least in (
        ("k1", 0, 20, 0.05),
        ("k2", 0.002, 1.42, 0.01),
        ("k3", 0, 1.42, 0.01),
    ):
        estimate = kl_estimate(logprobs, reference, name)
        assert estimate.mean() / true - 1 == pytest.approx(bias, abs=least), name
        assert estimate.std() / true == pytest.approx(spread, rel=0.01), name
    assert kl_estimate(logprobs, reference, "k3").min() >= 0


def test_whitening_worked_by_hand():
    values = double([1.0, 2.0, 99.0], [3.0, 6.0, -99.0])
    mask = torch.tensor([[True, True, False]] * 2)
    # Mean 3, squared distances 4 + 1 + 0 + 9 over 3.
    deviation = math.sqrt(14 / 3)
    shifted = [[-2 / deviation, -1 / deviation, 0], [0, 3 / deviation, 0]]
    assert whiten(values, mask).tolist() == [pytest.approx(row, abs=1e-7) for row in shifted]
    with_mean = [[3 - 2 / deviation, 3 - 1 / deviation, 0], [3, 3 + 3 / deviation, 0]]
    assert whiten(values, mask, shift_mean=False).tolist() == [
        pytest.approx(row, abs=1e-7) for row in with_mean
    ]


def test_whitening_one_token_gives_zero():
    assert whiten(double([5.0]), torch.tensor([[True]])).tolist() == [[0.0]]


def test_whitening_takes_the_sums_of_all_processes():
    parts = [double([1.0, 2.0]), double([3.0, 6.0])]
    mask = torch.ones(1, 2, dtype=torch.bool)
    sums = iter([torch.tensor([4.0, 12.0]).double(), torch.tensor(14.0).double()])
    first = whiten(parts[0], mask, total=lambda _: next(sums))
    assert torch.allclose(first, whiten(torch.cat(parts), mask.expand(2, 2))[:1])


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "slope"),
    [
        (1.5, 1.0, None, -1.2, 0.0),  # far enough, no further
        (0.5, 1.0, None, -0.5, -0.5),
        (1.5, -1.0, None, 1.5, 1.5),
        (0.5, -1.0, None, 0.8, 0.0),
        (5.0, -1.0, 3.0, 3.0, 0.0),  # bounded
        (2.0, -1.0, 3.0, 2.0, 2.0),
        (5.0, 1.0, 3.0, -1.2, 0.0),  # only where the advantage is negative
    ],
)
def test_policy_loss_worked_by_hand(ratio, advantage, dual_clip, loss, slope):
    log_ratio = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    losses = clipped_surrogate(log_ratio.exp(), double(advantage), 0.2, 0.2, dual_clip)
    losses.sum().backward()
    assert losses.item() == pytest.approx(loss)
    assert log_ratio.grad.item() == pytest.approx(slope)


@pytest.mark.parametrize(
    ("value", "loss"),
    [(1.0, 1.3**2 / 2), (0.6, 1.4**2 / 2), (0.0, 2.0**2 / 2), (3.0, 1.3**2 / 2), (4.0, 2.0)],
)
def test_value_loss_worked_by_hand(value, loss):
    """Old value 0.5, return 2, a step of at most 0.2."""
    assert value_losses(double(value), double(0.5), double(2.0), 0.2).item() == pytest.approx(loss)


def test_running_statistics_are_those_of_all_scores():
    scores = (
        torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 7
    )
    running = RunningStats(0.05)
    assert running.deviation == 1.0
    for batch in scores:
        running.add(8, batch.mean().item(), (batch - batch.mean()).square().sum().item())
    assert running.mean == pytest.approx(scores.mean().item())
    assert running.deviation == pytest.approx(scores.std(correction=0).item())


def test_tokens_count_as_clipped_as_in_trl(tmp_path):
    """Tokens whose clipped loss is the larger one, as in TRL 1.12's PPOTrainer, not all with a
    large ratio.
    """
    trainer = letter_trainer(tmp_path)
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    batch = rollout.micro_batch(range(8))
    generator = torch.Generator().manual_seed(0)
    rollout.returns_BR = torch.randn(rollout.returns_BR.shape, generator=generator)
    old_logprobs = batch.select(rollout.logprobs_BR)
    old_values = batch.select(rollout.values_BR)
    logprobs = old_logprobs + torch.randn(len(old_logprobs), generator=generator)
    values = old_values + torch.randn(len(old_values), generator=generator)
    rollout.sums.clear()
    policy_loss(rollout, batch, logprobs, trainer.args)
    value_loss(rollout, batch, values, trainer.args)
    ratios, advantages, returns = (
        (logprobs - old_logprobs).exp(),
        *map(batch.select, (rollout.advantages_BR, rollout.returns_BR)),
    )
    clipped = (-advantages * ratios.clamp(0.8, 1.2) > -advantages * ratios).sum()
    near = torch.clamp(values, old_values - 0.2, old_values + 0.2)
    value_clipped = ((near - returns).square() > (values - returns).square()).sum()
    assert 0 < clipped < len(ratios)
    assert 0 < value_clipped < len(ratios)
    assert [rollout.sums["clipped"], rollout.sums["value_clipped"]] == [clipped, value_clipped]


@pytest.mark.slow
def test_no_figure_shares_a_name_with_a_different_one_of_trl(tmp_path):
    """TRL's entropy is that of the whole distribution, its variance that of the means of micro-
    batches.
    """
    trainer = letter_trainer(tmp_path, max_steps=1)
    trainer.train()
    (line,) = logs_of(trainer)
    assert not {"policy/entropy_avg", "val/ratio_var"} & line.keys()
    assert line["policy/sampled_entropy_avg"] > 0
    assert line["val/token_ratio_var"] > 0


# --- The first mini-batch -----------------------------------------------------------------------

FIRST = {
    "full": {},
    "head": {"critic": "head"},
    "adapter": {"peft_config": lora(lora_dropout=0.5)},
    "generate": {"rollout_engine": "generate"},
    "recompute": {"old_logprobs": "recompute"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "twice"),
    [(case, False) for case in ("full", "adapter", "generate")]
    + [slow("recompute", False)]
    + [slow(case, True) for case in ("full", "head", "adapter")],
)
def test_at_first_the_policy_is_its_reference_and_every_ratio_one(tmp_path, case, twice):
    model = letter_model("gpt_neox", hidden_dropout=0.5, attention_dropout=0.5)
    trainer = letter_trainer(
        tmp_path, model=model, temperature=0.7, activation_checkpointing=twice, max_steps=1,
        num_ppo_epochs=1,
        stop_token_id=2, **FIRST[case],
    )  # fmt: skip
    if twice:
        trainer.actor_critic.activation_checkpointing_enable()
    rollout = rolled_out(trainer)
    prompts = {len(completion.prompt_ids) for completion in rollout.completions}
    assert len(prompts) > 3 and len(set(rollout.responses)) > 1  # padded on both sides
    kl = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR)
    assert kl.abs().max() < 2e-6
    assert kl[rollout.mask_BR].mean().abs() < 1e-6
    trainer.actor_critic.train(twice)
    for rows in ([0, 1, 2, 3, 4, 5, 6, 7], [3], [6, 1]):
        batch = rollout.micro_batch(rows)
        logprobs, values = trainer.actor_critic(batch, 0.7)
        assert ((logprobs - batch.select(rollout.logprobs_BR)).exp() - 1).abs().max() <= 1e-5
        assert torch.allclose(values, batch.select(rollout.values_BR), atol=1e-5)
    trainer.train()
    assert logs_of(trainer)[0]["val/ratio"] == pytest.approx(1, abs=1e-5)
    assert logs_of(trainer)[0]["policy/approxkl_avg"] < 1e-10


@pytest.mark.slow
def test_an_adapter_that_the_model_came_with_is_the_reference(tmp_path):
    model = get_peft_model(letter_model(), lora(init_lora_weights=False))
    trainer = letter_trainer(tmp_path, model=model, max_steps=3)
    trainer.train()
    first, *_, last = [line["objective/kl"] for line in logs_of(trainer)]
    assert abs(first) < 1e-5
    assert abs(last) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("case", ["full", "adapter"])
def test_without_kl_there_is_no_reference(tmp_path, case):
    trainer = letter_trainer(tmp_path, kl_coef=0.0, max_steps=1, **FIRST[case])
    rollout = rolled_out(trainer)
    assert trainer.reference is None
    assert not rollout.ref_logprobs_BR.any()
    trainer.train()
    assert "objective/kl" not in logs_of(trainer)[0]


def test_a_reference_of_the_callers_is_looked_at(tmp_path):
    trainer = letter_trainer(tmp_path, ref_model=letter_model(seed=4))
    rollout = rolled_out(trainer)
    assert kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR).abs().max() > 0.1


# --- What counts --------------------------------------------------------------------------------


def test_padding_and_what_was_drawn_after_the_end_count_for_nothing(tmp_path):
    trainer = letter_trainer(tmp_path)
    inputs = [trainer.train_dataset[row] for row in range(8)]
    noise = torch.rand(8, 6, generator=torch.Generator().manual_seed(3))
    rollout = roll_out(trainer, inputs, noise)
    scrambled = torch.where(
        torch.arange(6) < torch.tensor(rollout.responses)[:, None], noise, 1 - noise
    )
    assert (scrambled != noise).any()
    assert roll_out(trainer, inputs, scrambled).sequences == rollout.sequences
    batch = rollout.micro_batch(range(8))
    assert (
        batch.input_ids_BT.shape[1] == max(rollout.lengths) - 1
    )  # the state after the last token has no value
    before = trainer.actor_critic(batch)
    for row, length in enumerate(rollout.lengths):
        batch.input_ids_BT[row, length - 1 :] = 5
    for first, two in zip(before, trainer.actor_critic(batch), strict=True):
        assert torch.equal(first, two)


@pytest.mark.slow
@pytest.mark.parametrize("pad", ["<end>", None, slow("a")])
def test_the_update_does_not_depend_on_the_pad_token(tmp_path, pad):
    def train(pad):
        tokenizer = letter_tokenizer(pad)
        model = letter_model()
        judge = letter_model(labels=1)
        model.config.pad_token_id = judge.config.pad_token_id = tokenizer.pad_token_id
        asked = {"model": model, "reward_funcs": judge, "processing_class": tokenizer}
        return train_weights(tmp_path, max_steps=1, num_ppo_epochs=2, **asked)

    assert farthest(train(pad), train("<pad>")) == 0


@pytest.mark.slow
def test_the_end_token_is_learned_where_it_also_pads(tmp_path):
    def ended(completion_ids, **_):
        return [float(END in ids) for ids in completion_ids]

    model = letter_model(spread=0.05)
    model.config.pad_token_id = END
    tokenizer = letter_tokenizer("<end>")
    trainer = letter_trainer(
        tmp_path, model=model, processing_class=tokenizer, reward_funcs=ended,
        rows=letter_rows(32), max_steps=8,
        per_device_train_batch_size=32, kl_coef=0.0,
    )  # fmt: skip
    trainer.train()
    logged = [line["val/num_eos_tokens"] for line in logs_of(trainer)]
    assert logged[0] < 16
    assert logged[-1] > 28


@pytest.mark.slow
def test_every_declared_end_token_ends_a_completion(tmp_path):
    def stops(**asked):
        model = letter_model()
        model.generation_config.eos_token_id = [3, END]
        return letter_trainer(tmp_path, model=model, **asked).stop_ids

    assert stops() == (3, END)
    assert stops(stop_token_id=5) == (3, 5, END)
    assert stops(stop_token=None) == ()
    assert stops(stop_token=None, stop_token_id=5) == (5,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [{}, {"stop_token_id": 3}, {"stop_token": None, "stop_token_id": 3}]
)
def test_a_missing_end_is_penalised_whatever_ends_a_completion(tmp_path, asked):
    trainer = letter_trainer(
        tmp_path, reward_funcs=zero, missing_eos_penalty=2.0, model=letter_model(spread=0.05),
        max_steps=1, **asked,
        response_length=12, eval_dataset=letter_rows(8),
    )  # fmt: skip
    ids = set(trainer.stop_ids)
    rollout = rolled_out(trainer)
    ended = [completion.finish == "stop" for completion in rollout.completions]
    assert ended == [sequence[-1] in ids for sequence in rollout.sequences]
    assert trainer.evaluate()["eval_objective/scores"] <= 0
    trainer.train()
    logs = logs_of(trainer)[0]
    assert 0 < logs["val/num_eos_tokens"] < 8
    assert logs["objective/scores"] == pytest.approx(-2.0 * (8 - logs["val/num_eos_tokens"]) / 8)


def test_without_a_stop_token_every_completion_is_full(tmp_path):
    trainer = letter_trainer(
        tmp_path, stop_token=None, model=letter_model(spread=0.05), response_length=30
    )
    rollout = rolled_out(trainer)
    assert rollout.responses == [30] * 8
    for completion in rollout.completions:
        assert completion.finish == "stop"
    assert any(END in sequence for sequence in rollout.sequences)


@pytest.mark.slow
def test_prompts_may_be_chats_with_tools_as_text(tmp_path):
    tokenizer = letter_tokenizer()
    tokenizer.chat_template = (
        "{% for tool in tools %}{{ tool.name }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}t{% endif %}"
    )
    prompts_seen = []

    def keep(prompts, completions, **_):
        prompts_seen.extend(zip(prompts, completions, strict=True))
        return [0.0] * len(prompts)

    chats = [[{"role": "user", "content": letter}] for letter in LETTERS[:8]]
    rows = Dataset.from_dict({"prompt": chats, "tools": ['[{"name": "s"}]'] * 8})
    trainer = letter_trainer(
        tmp_path, rows=rows, processing_class=tokenizer, reward_funcs=keep, max_steps=1
    )
    rollout = rolled_out(trainer)
    assert rollout.sequences[2][:3] == [18, 2, 19]
    trainer.train()
    assert prompts_seen[0][0][0]["role"] == "user"
    assert prompts_seen[0][1][0]["role"] == "assistant"


# --- Rewards and advantages ---------------------------------------------------------------------

# and a critic that says 0: returns are what is still to come
PLAIN = {"kl_coef": 0.0, "gamma": 1.0, "lam": 1.0}


def test_a_score_is_earned_by_the_last_token(tmp_path):
    trainer = letter_trainer(tmp_path, reward_funcs=lambda completions, **_: [*range(8)], **PLAIN)
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    assert torch.equal(rollout.returns_BR, torch.arange(8.0)[:, None] * rollout.mask_BR)
    inside = rollout.advantages_BR[rollout.mask_BR]
    assert inside.mean().abs() < 1e-6
    assert inside.std() == pytest.approx(1, abs=1e-5)
    assert not rollout.advantages_BR[~rollout.mask_BR].any()


def test_a_reward_per_token_is_earned_by_its_token(tmp_path):
    def by_token(completion_ids, **_):
        return [[1.0 + place for place in range(len(ids))] for ids in completion_ids]

    trainer = letter_trainer(
        tmp_path, reward_funcs=[by_token, lambda completions, **_: [100.0] * 8], **PLAIN
    )
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    count = rollout.responses[0]
    expected = [100.0 + sum(range(place + 1, count + 1)) for place in range(count)]
    assert rollout.returns_BR[0, :count].tolist() == expected


def test_the_kl_is_a_reward_per_token(tmp_path):
    trainer = letter_trainer(
        tmp_path, ref_model=letter_model(seed=4), reward_funcs=zero, **PLAIN | {"kl_coef": 0.5}
    )
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    penalties = -0.5 * (rollout.logprobs_BR - rollout.ref_logprobs_BR) * rollout.mask_BR
    to_come = penalties.flip(1).cumsum(1).flip(1) * rollout.mask_BR
    assert torch.allclose(rollout.returns_BR, to_come, atol=1e-5)
    assert penalties.abs().max() > 0.1


def test_rewards_are_whitened_before_anything_is_made_of_them(tmp_path):
    trainer = letter_trainer(
        tmp_path, reward_funcs=lambda **_: [*range(8)], whiten_rewards=True, **PLAIN
    )
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    rewards = torch.zeros_like(rollout.returns_BR)
    rewards[torch.arange(8), torch.tensor(rollout.responses) - 1] = torch.arange(8.0)
    whitened = whiten(rewards, rollout.mask_BR, shift_mean=False)
    assert torch.allclose(
        rollout.returns_BR, whitened.flip(1).cumsum(1).flip(1) * rollout.mask_BR, atol=1e-5
    )


@pytest.mark.parametrize(
    ("how", "clip", "expected"),
    [
        ("none", None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("none", 3.0, [0, 1, 2, 3, 3, 3, 3, 3]),
        ("scale", None, [k / math.sqrt(5.25) for k in range(8)]),
        ("whiten", 1.0, [max(-1, min(1, (k - 3.5) / math.sqrt(5.25))) for k in range(8)]),
    ],
)
def test_scores_are_scaled_by_what_was_seen_so_far_and_clipped(tmp_path, how, clip, expected):
    trainer = letter_trainer(
        tmp_path,
        reward_funcs=lambda **_: [*range(8)],
        score_normalization=how,
        score_clip=clip,
        **PLAIN,
    )
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    assert rollout.returns_BR[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    # The log keeps the scores as they were.
    assert trainer.metrics["objective/scores"] == [pytest.approx(3.5)]


@pytest.mark.parametrize("how", ["none", "scale", "whiten"])
def test_rewards_of_steps_are_scaled_and_clipped_one_by_one_and_nothing_between_them(tmp_path, how):
    """The first step of the first completion is worth 8, all others 0."""

    def by_step(completion_ids, **_):
        counts = [len(step_ends(letter_tokenizer(), ids, "q")) for ids in completion_ids]
        return [
            [8.0 * (row == step == 0) for step in range(count)] for row, count in enumerate(counts)
        ]

    trainer = letter_trainer(
        tmp_path,
        reward_funcs=by_step,
        step_separator="q",
        score_normalization=how,
        score_clip=1.5,
        **PLAIN,
    )
    rollout = rolled_out(trainer)
    rewards = compute_rewards(trainer, rollout)
    token_ids = [completion.token_ids for completion in rollout.completions]
    scores = list(itertools.chain(*by_step(token_ids)))
    mean = statistics.fmean(scores)
    deviation = statistics.pstdev(scores)
    shift, scale = {"none": (0.0, 1.0), "scale": (0.0, deviation), "whiten": (mean, deviation)}[how]
    expected = [max(-1.5, min(1.5, (step - shift) / scale)) for step in scores]
    ends = [
        step_ends(trainer.processing_class, completion.token_ids, "q")
        for completion in rollout.completions
    ]
    paid = [rewards[row, end].item() for row, row_ends in enumerate(ends) for end in row_ends]
    assert paid == pytest.approx(expected, abs=1e-5)
    assert len(scores) > 8
    assert rewards.sum().item() == pytest.approx(sum(expected), abs=1e-4)  # and 0 elsewhere
    assert trainer.running.count == (0 if how == "none" else len(scores))


def test_scores_that_are_all_the_same_stay_finite_numbers(tmp_path):
    trainer = letter_trainer(
        tmp_path, reward_funcs=lambda **_: [1.0] * 8, score_normalization="scale", **PLAIN
    )
    rollout = rolled_out(trainer)
    set_advantages(trainer, rollout)
    assert rollout.returns_BR.max() < 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "change"), [(1e9, 1 - 0.2 * 8 / 100), (1e-9, 1 + 0.2 * 8 / 100)]
)
def test_the_kl_coefficient_moves_towards_its_target(tmp_path, target, change):
    trainer = letter_trainer(
        tmp_path,
        ref_model=letter_model(seed=4),
        kl_target=target,
        kl_horizon=100,
        max_steps=3,
        learning_rate=0.0,
    )
    trainer.train()
    logged = [line["objective/kl_coef"] for line in logs_of(trainer)]
    assert logged == pytest.approx([0.05, 0.05 * change, 0.05 * change**2])


# --- The step -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("average", "budget"), [("token", 1), ("sequence", 40), slow("token", 512)]
)
def test_a_step_follows_the_gradient_of_the_written_loss(tmp_path, monkeypatch, average, budget):
    def earned(completions, **_):
        return [float(len(text)) for text in completions]

    def build(**asked):
        model = letter_model(spread=0.1)
        model.generation_config.eos_token_id = [2, 4, 6, 8, 10, 12]
        return letter_trainer(
            tmp_path, model=model, reward_funcs=earned,
            loss_average=average, max_steps=1, num_ppo_epochs=1, optim="sgd",
            learning_rate=1.0, max_grad_norm=0.0, vf_coef=0.5, **asked,
        )  # fmt: skip

    trainer = build(max_tokens_per_micro_batch=budget)
    before = weights(trainer)
    gradients = {}

    def keep(trainer, model, rollout, rewards):
        gradients["rollout"] = rollout
        return update(trainer, model, rollout, rewards)

    monkeypatch.setattr("runner.ppo.trainer.update", keep)
    trainer.train()
    steps = {name: before[name] - weight for name, weight in weights(trainer).items()}

    plain = build().actor_critic
    rollout = gradients["rollout"]
    losses = []
    for row, sequence in enumerate(rollout.sequences):
        start = len(rollout.completions[row].prompt_ids)
        count = rollout.responses[row]
        ids = torch.tensor([sequence])
        logits = plain.policy(ids).logits[0, start - 1 : -1] / 0.7
        logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, start:, None])[:, 0]
        states = plain.value_model.base_model(ids).last_hidden_state[0, start - 1 : -1]
        values = plain.value_model.score(states)[:, 0]
        ratios = (logprobs - rollout.logprobs_BR[row, :count]).exp()
        advantages = rollout.advantages_BR[row, :count]
        returns = rollout.returns_BR[row, :count]
        losses.append(-ratios * advantages + 0.5 * (values - returns).square() / 2)
    if average == "token":
        full_batch = torch.cat(losses).mean()
    else:
        full_batch = torch.stack([loss.mean() for loss in losses]).mean()
    full_batch.backward()
    assert len({len(loss) for loss in losses}) > 1
    for name, weight in plain.named_parameters():
        assert torch.allclose(steps[name], weight.grad, atol=2e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("case", ["full", slow("adapter")])
def test_how_the_batch_is_cut_does_not_change_the_update(tmp_path, case):
    uncut = train_weights(tmp_path, num_mini_batches=2, **EXACT, **FIRST[case])
    for cut in (
        {"max_tokens_per_micro_batch": 1},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"local_rollout_forward_batch_size": 3},
    ):
        cut_otherwise = train_weights(tmp_path, num_mini_batches=2, **EXACT, **FIRST[case], **cut)
        assert farthest(uncut, cut_otherwise) < 1e-5, cut
    # And the update did something.
    assert farthest(uncut, weights(letter_trainer(tmp_path, **FIRST[case]))) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("case", [slow("full"), "adapter", slow("head")])
def test_activation_checkpointing_is_honoured_and_changes_nothing(tmp_path, case):
    plain = train_weights(tmp_path, **EXACT, **FIRST[case])
    trainer = letter_trainer(tmp_path, activation_checkpointing=True, **EXACT, **FIRST[case])
    trainer.train()
    assert trainer.actor_critic.policy.is_activation_checkpointing
    assert farthest(plain, weights(trainer)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
def test_no_kernel_is_compiled_for_each_shape_in_float32(tmp_path, capfd, bf16):
    compiled_kernels = []

    def earned(completions, **_):
        compiled_kernels.append(torch.backends.mkldnn.enabled)
        return [0.0] * len(completions)

    trainer = letter_trainer(
        tmp_path,
        model=letter_model("gpt_neox"),
        reward_funcs=earned,
        eval_dataset=letter_rows(2),
        bf16=bf16,
    )
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        trainer.train()
        trainer.evaluate()
        compiled = capfd.readouterr().out
        torch.nn.functional.gelu(torch.ones(3, 5))
    assert compiled_kernels == [bf16] * 3  # where bf16 needs them
    assert bf16 or "gelu" not in compiled
    assert "gelu" in capfd.readouterr().out  # else the line before proves nothing


@pytest.mark.parametrize("critic", ["model", slow("head"), "adapter"])
def test_values_and_scores_are_not_rounded_under_bf16(tmp_path, critic):
    types = []

    def earned(completions, **_):
        types.append(torch.is_autocast_enabled("cpu"))
        return [0.0] * len(completions)

    judges = [
        letter_model(labels=1, seed=3),
        letter_model("gpt2", labels=1, seed=4).to(torch.bfloat16),
        earned,
    ]
    trainer = letter_trainer(
        tmp_path,
        reward_funcs=judges,
        bf16=True,
        critic=critic,
        peft_config=lora() if critic == "adapter" else None,
    )
    rollout = rolled_out(trainer)
    if critic != "model":
        torch.nn.init.normal_(trainer.actor_critic.value_head.weight)
    figures = score(trainer, rollout).figures
    set_advantages(trainer, rollout)
    scores = [values for name, values in figures.items() if name.startswith("rewards/")][:2]
    for exact in (*scores, rollout.values_BR[rollout.mask_BR]):
        assert (exact != exact.bfloat16()).float().mean() > 0.5
    assert not any(types)
    assert rollout.logprobs_BR.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["adapter", "model"])
def test_frozen_weights_in_the_type_of_autocast_give_the_same_bits(tmp_path, critic):
    results = []
    for stored in (False, True):
        options = {
            "reward_funcs": [letter_model(labels=1, seed=3)],
            "critic": critic,
            "bf16": True,
            "num_ppo_epochs": 2,
        }
        trainer = letter_trainer(
            tmp_path, peft_config=lora() if critic == "adapter" else None, **options
        )
        frozen = [
            trainer.rewards.models[0].base_model,
            trainer.reference or trainer.actor_critic.policy,
        ]
        for model in frozen if stored else []:
            store_as_autocast(model, torch.bfloat16)
        halves = set()
        for module in frozen:
            for name, weight in module.named_parameters():
                if weight.dtype == torch.bfloat16:
                    halves.add(name)
        assert bool(halves) == stored
        assert not any("norm" in name or "embed_tokens" in name for name in halves)
        trainer.train()
        results.append((trainer.actor_critic.state_dict(), logs_of(trainer)[-1]))
        with torch.no_grad():  # without autocast, as a callback may
            assert frozen[1](input_ids=torch.tensor([[1, 2, 3]])).logits.dtype == torch.float32
    (states, log), (again, log_again) = results
    assert all(torch.equal(states[name], again[name]) for name in states)
    names = [
        name
        for name in log
        if not name.startswith("time/") and name not in ("eps", "tokens_per_second")
    ]
    assert {name: log[name] for name in names} == {name: log_again[name] for name in names}


@pytest.mark.slow
def test_a_reference_without_tied_weights_can_be_stored_in_bf16():
    """What reads its log-probabilities is made first, by a pass without autocast."""
    models = [letter_model(tie_word_embeddings=False) for _ in range(2)]
    for model in models:
        model.is_quantized = True  # so that it is not moved to the GPU that is not there
    trainer = SimpleNamespace(
        args=SimpleNamespace(device=SimpleNamespace(type="cuda"), bf16=True),
        actor_critic=SimpleNamespace(policy=models[0]),
        is_fsdp_enabled=False,
        reference=models[1],
        rewards=SimpleNamespace(models=[]),
    )
    assert place_frozen(trainer) is not None
    assert models[1].lm_head.weight.dtype == torch.bfloat16


@pytest.mark.slow
def test_bf16_is_honoured(tmp_path):
    types = []
    for bf16 in (False, True):
        trainer = letter_trainer(tmp_path, bf16=bf16, max_steps=1, num_ppo_epochs=1)
        dtypes = set()
        for model in (
            trainer.actor_critic.policy,
            trainer.actor_critic.value_model,
            trainer.reference,
        ):
            layer = model.base_model.layers[0].mlp.down_proj
            layer.register_forward_hook(
                lambda _, __, output, dtypes=dtypes: dtypes.add(output.dtype)
            )
        trainer.train()
        types.append(dtypes)
        assert logs_of(trainer)[0]["val/ratio"] == pytest.approx(1, abs=1e-2 if bf16 else 1e-5)
        assert trainer.actor_critic.policy.dtype == torch.float32  # the weights stay exact
    assert types == [{torch.float32}, {torch.bfloat16}]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 4])
def test_every_mini_batch_of_every_epoch_is_a_clipped_step(tmp_path, parts):
    # 20 rows: the third update is the first of a new pass over the data.
    trainer = letter_trainer(
        tmp_path, rows=letter_rows(20), num_ppo_epochs=3, num_mini_batches=parts, max_steps=4,
        max_grad_norm=0.01,
        learning_rate=1e-3,
    )  # fmt: skip
    steps = watch_steps(trainer)
    trainer.train()
    assert len(steps) == 4 * 3 * parts
    assert max(norm for norm, _ in steps) <= 0.01 * 1.001
    assert min(norm for norm, _ in steps) > 0
    rates = [rate for _, rate in steps]
    rate_of_update = [1e-3, 0.75e-3, 0.5e-3, 0.25e-3]
    assert rates == pytest.approx(sorted(rate_of_update * 3 * parts, reverse=True))
    for line in logs_of(trainer):
        assert line["val/ratio"] == pytest.approx(1, abs=0.2)
    assert [line["episode"] for line in logs_of(trainer)] == [8, 16, 24, 32]
    counts = [line["num_tokens"] for line in logs_of(trainer)]
    assert counts[0] > 8 and counts == sorted(set(counts)), (
        "those of prompts and completions, added up"
    )


def test_each_epoch_has_every_row_once(tmp_path):
    trainer = letter_trainer(tmp_path, num_ppo_epochs=3, num_mini_batches=4)
    minibatches = deal_minibatches(trainer.args, 8, step=0)
    assert [len(rows) for rows in minibatches] == [2] * 12
    for epoch in range(3):
        of_epoch = minibatches[4 * epoch : 4 * epoch + 4]
        assert sorted(itertools.chain(*of_epoch)) == [*range(8)]
    assert minibatches[:4] != minibatches[4:8]


@pytest.mark.slow
def test_each_update_draws_with_random_numbers_of_its_own(tmp_path):
    rows = Dataset.from_dict({"prompt": [letter_rows()[0]["prompt"]] * 8})
    draws = []

    def listen(completions, **_):
        draws.append(completions)
        return [float(len(text)) for text in completions]

    letter_trainer(tmp_path, rows=rows, reward_funcs=listen, learning_rate=0.0).train()
    assert len(draws) == 2
    assert draws[0] != draws[1]
    assert len(set(draws[0])) > 1


@pytest.mark.slow
def test_total_episodes_count_prompts(tmp_path):
    trainer = letter_trainer(tmp_path, total_episodes=20, max_steps=-1)
    trainer.train()
    assert trainer.state.global_step == 3


@pytest.mark.slow
@pytest.mark.parametrize("case", [{}, {"peft_config": lora()}], ids=["model", "adapter"])
def test_a_value_warm_up_leaves_the_policy_alone(tmp_path, case):
    trainer = letter_trainer(tmp_path, value_warmup_steps=1, max_steps=2, **case)
    start = weights(trainer)
    after = []
    trainer.add_callback(each_step(lambda: after.append(weights(trainer))))
    trainer.train()
    critic = {name for name in start if "value_" in name or ".critic." in name}
    moved = []
    for state in after:
        moved.append({name for name in start if not torch.equal(start[name], state[name])})
    assert moved[0]
    assert moved[0] <= critic
    assert moved[1] - critic


def each_step(call):
    from transformers import TrainerCallback

    class Each(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            call()

    return Each()


@pytest.mark.slow
def test_a_value_warm_up_leaves_the_policy_alone_under_a_head(tmp_path):
    trainer = letter_trainer(
        tmp_path, value_warmup_steps=1, max_steps=1, critic="head", weight_decay=0.1
    )
    start = weights(trainer)
    trainer.train()
    after = weights(trainer)
    for name in start:
        if "value_head" not in name:
            assert torch.equal(start[name], after[name])


@pytest.mark.slow
def test_an_adapter_critic_learns_and_leaves_the_base_alone(tmp_path):
    trainer = letter_trainer(tmp_path, peft_config=lora(), max_steps=3)
    base = {
        n: p.detach().clone()
        for n, p in trainer.actor_critic.named_parameters()
        if not p.requires_grad
    }
    start = weights(trainer)
    last = []
    gradients = watch_gradients(trainer, last)
    trainer.train()
    after = weights(trainer)
    for name in after:
        assert not torch.equal(start[name], after[name]), name
    assert gradients
    assert last == [set(after)] * len(last)

    def adapter(name):
        weights = [after[key].flatten() for key in sorted(after) if f".{name}." in key]
        return torch.cat(weights)

    policy = adapter("default")
    critic = adapter("critic")
    assert len(policy) == len(critic)
    assert not torch.allclose(policy, critic, atol=1e-3)
    now = dict(trainer.actor_critic.named_parameters())
    assert all(torch.equal(base[name], now[name]) for name in base)


def watch_gradients(trainer, gradients):
    """At each optimizer step, the names of the weights that have a gradient that is not zero."""
    trainer.create_optimizer()
    named = dict(trainer.actor_critic.named_parameters())
    return trainer.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(
            {n for n, p in named.items() if p.grad is not None and p.requires_grad}
        )
    )


@pytest.mark.slow
def test_the_critic_begins_as_the_reward_model_that_reads_its_tokens(tmp_path):
    judge = letter_model(labels=1, seed=7)
    critic = letter_trainer(
        tmp_path, reward_funcs=[share_of_wanted, judge]
    ).actor_critic.value_model
    assert critic is not judge
    for a, b in zip(critic.parameters(), judge.parameters(), strict=True):
        assert torch.equal(a, b)
    assert letter_trainer(tmp_path).actor_critic.value_model.score.weight.abs().max() == 0
    mine = letter_model(labels=1, seed=8).requires_grad_(False)  # as load_reward_model gives it
    critic = letter_trainer(tmp_path, reward_funcs=judge, value_model=mine).actor_critic.value_model
    assert critic is mine
    for weight in critic.parameters():
        assert weight.requires_grad


@pytest.mark.slow
def test_initial_adapters_depend_on_the_seed_alone(tmp_path):
    started = []
    for state in (1, 2):
        torch.manual_seed(state)
        args = PPOConfig(str(tmp_path), use_cpu=True, report_to="none", max_steps=1, seed=3)
        parts = {"processing_class": letter_tokenizer(), "peft_config": lora()}
        started.append(
            weights(PPOTrainer(letter_model(), share_of_wanted, args, letter_rows(), **parts))
        )
    assert farthest(*started) == 0


# --- What cannot work ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_ppo_epochs": 0}, "num_ppo_epochs"),
        ({"response_length": 0}, "response_length"),
        ({"temperature": 0.0}, "temperature"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"missing_eos_penalty": 1.0, "stop_token": None}, "missing_eos_penalty"),
        ({"critic": "adapter"}, "trainer.args.critic"),
        ({"reward_funcs": None}, "no reward"),
        ({"reward_weights": [1.0, 2.0]}, "reward_weights"),
        ({"kl_target": 0.0}, "kl_target"),
        ({"kl_target": 6.0, "kl_coef": 0.0}, "kl_"),
    ],
)
def test_arguments_that_cannot_work_are_refused_with_a_cure(tmp_path, asked, words):
    with pytest.raises(ConfigError, match=words) as error:
        letter_trainer(tmp_path, **asked)
    for fault in error.value.faults:
        assert fault.where
        assert fault.found
        assert fault.expected
        assert fault.fix


@pytest.mark.parametrize("parts", [0, 3])
def test_rows_that_make_no_equal_mini_batches_are_refused(tmp_path, parts):
    with pytest.raises(
        ValueError,
        match=f"num_mini_batches is {parts}, which does not divide the 8 rows of a process",
    ):
        letter_trainer(tmp_path, num_mini_batches=parts)


def test_all_arguments_that_cannot_work_are_named_at_once(tmp_path):
    with pytest.raises(ConfigError) as error:
        PPOConfig(str(tmp_path), use_cpu=True, temperature=0.0, num_ppo_epochs=0, dual_clip=0.5)
    assert len(error.value.faults) == 3


@pytest.mark.slow
def test_a_tokenizer_and_model_without_an_end_are_refused(tmp_path):
    tokenizer = letter_tokenizer()
    model = letter_model()
    tokenizer.eos_token = model.generation_config.eos_token_id = None
    with pytest.raises(ConfigError, match="no end token") as error:
        letter_trainer(tmp_path, model=model, processing_class=tokenizer)
    assert "stop_token_id" in error.value.faults[0].fix
    letter_trainer(
        tmp_path, model=model, processing_class=tokenizer, stop_token_id=3, max_steps=1
    ).train()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"prompt": ["a"] * 7}, "7 training rows"),
        ({"text": ["a"] * 8}, "column prompt"),
        ({"prompt": ["a"] * 7 + ["a" * 59]}, "1 prompts are too long, one of 59 tokens"),
        ({"prompt": ["a"] * 6 + ["", "a"]}, "1 prompts without a token, the first in row 6"),
    ],
)
def test_rows_that_cannot_work_are_refused_before_training(tmp_path, rows, words):
    with pytest.raises(DataError, match=words):
        letter_trainer(tmp_path, rows=Dataset.from_dict(rows), reward_funcs=zero)


@pytest.mark.slow
def test_the_longest_prompt_that_fits_is_trained_on(tmp_path):
    rows = Dataset.from_dict({"prompt": ["a"] * 7 + ["a" * 58]})
    model = letter_model("gpt2")  # which fails behind its last position
    letter_trainer(
        tmp_path, model=model, rows=rows, reward_funcs=zero, max_steps=1, stop_token=None
    ).train()


def test_prompts_that_vllm_would_cut_short_are_refused_before_it_starts(tmp_path):
    rows = Dataset.from_dict({"prompt": ["a"] * 7 + ["a" * 15]})
    options = {"rollout_engine": "vllm", "vllm_max_model_length": 20, "reward_funcs": zero}
    with pytest.raises(DataError, match="one of 15 tokens") as error:
        letter_trainer(tmp_path, rows=rows, **options)
    assert "at most 14" in error.value.faults[0].expected


def test_held_out_prompts_that_are_too_long_are_refused_before_training(tmp_path):
    held = Dataset.from_dict({"prompt": ["a" * 59]})
    with pytest.raises(DataError, match="too long"):
        letter_trainer(tmp_path, model=letter_model("gpt2"), eval_dataset=held, reward_funcs=zero)


def test_a_policy_by_its_name_is_trained_in_float32(tmp_path):
    letter_model().half().save_pretrained(tmp_path / "policy")
    letter_tokenizer().save_pretrained(tmp_path / "policy")
    trainer = letter_trainer(tmp_path, model=str(tmp_path / "policy"))
    assert trainer.actor_critic.policy.dtype == torch.float32
