"""Policy gradients by name: by hand, bit for bit TRL's own, refused, and RLOO written as GRPO."""

import functools
import math
from typing import get_args

import pytest
import torch

from runner.__main__ import main
from runner.config.composition import compose
from runner.config.experiment import LossPart
from runner.errors import ConfigError
from runner.launch.signals import Stop
from runner.loss import RATIOS, policy_gradient
from runner.run import open_run
from runner.schema.upstream import LOSS_TYPES, SCALES
from runner.training.components.assembly import build_components
from runner.training.policy_objective import Completions, try_loss

# --- By hand ------------------------------------------------------------------------------------

OLD = torch.tensor([[-1.0, -2.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False]])
MOVED = torch.tensor([[math.log(1.5), math.log(0.5), 0.0]], dtype=torch.float64)
UP = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [-1.2, -0.5, -1.0]),
        ({"clip": (0.2, 0.6)}, [-1.5, -0.5, -1.0]),
        ({"clip": None}, [-1.5, -0.5, -1.0]),
        ({"ratio": "sequence", "clip": None}, [-math.sqrt(0.75)]),
        ({"ratio": "product", "clip": None}, [-0.75]),
        ({"surrogate": "cispo"}, [1.2 * (1 - math.log(1.5)), 0.8 * (2 + math.log(2)), 0.0]),
    ],
)
def test_a_policy_gradient_worked_by_hand(settings, expected):
    losses = policy_gradient(OLD + MOVED, OLD, UP, MASK, **settings)
    assert losses.tolist()[0] == pytest.approx(expected)


def test_the_dual_clip_bounds_what_a_negative_advantage_costs():
    log_probs = OLD + math.log(5.0)
    assert policy_gradient(log_probs, OLD, -UP, MASK)[0, 0].item() == pytest.approx(5.0)
    bounded = policy_gradient(log_probs, OLD, -UP, MASK, dual_clip=3.0)
    assert bounded[0, 0].item() == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("kl", "slope"), [("k1", 1.0), ("k2", -math.log(2)), ("k3", 1 - math.exp(math.log(2)))]
)
def test_the_kl_in_the_loss_has_its_own_slope_or_weighed_that_of_the_kl(kl, slope):
    """The gradient of the KL is the log-ratio times that of the log-probability (for k1 up to a
    constant, of which the mean is 0).
    """
    reference = OLD + math.log(2)
    for weigh_kl in (False, True):
        log_probs = OLD.clone().requires_grad_()
        losses = policy_gradient(
            log_probs, OLD, 0 * UP, MASK, reference, beta=0.1, kl=kl, weigh_kl=weigh_kl
        )
        losses[:, :2].sum().backward()
        of_value = {"k1": -math.log(2), "k2": math.log(2) ** 2 / 2, "k3": 1 - math.log(2)}[kl]
        expected = 0.1 * (slope + weigh_kl * of_value)
        assert log_probs.grad[0, :2].tolist() == pytest.approx([expected] * 2)


def test_the_kl_in_the_reward_is_taken_from_the_advantage_without_a_gradient():
    log_probs = OLD.clone().requires_grad_()
    reference = OLD - 0.5
    losses = policy_gradient(log_probs, OLD, UP, MASK, reference, beta=0.1, kl="k1", kl_in="reward")
    assert losses[0, 0].item() == pytest.approx(-(1.0 - 0.1 * (0.5 + 0.5)))
    losses[0, 0].backward()
    assert log_probs.grad[0].tolist() == pytest.approx([-0.9, 0, 0])


def test_the_tables_have_the_names_that_a_key_takes():
    kinds = LossPart.__dataclass_fields__
    assert set(get_args(kinds["average"].type)) == {*LOSS_TYPES}
    assert set(get_args(get_args(kinds["advantage"].type)[0])) == {*SCALES}
    assert set(get_args(policy_gradient.__annotations__["ratio"])) == {*RATIOS}


# --- Bit for bit what TRL computes ---------------------------------------------------------------

# Attributes of TRL's trainer (after a dot of its config), the same by name, and the average.
VARIANTS = [
    ({"loss_type": "dapo"}, {}, "token"),
    ({"loss_type": "grpo"}, {}, "sequence"),
    ({"loss_type": "bnpo"}, {}, "micro_batch"),
    ({"loss_type": "dr_grpo"}, {}, "constant"),
    (
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        {"ratio": "sequence"},
        "sum",
    ),
    ({"importance_sampling_level": "sequence"}, {"ratio": "sequence"}, "token"),
    ({"epsilon_low": 0.01, "epsilon_high": 0.3}, {"clip": (0.01, 0.3)}, "token"),
    ({".delta": 1.3}, {"dual_clip": 1.3}, "token"),
    ({".use_bias_correction_kl": False}, {"weigh_kl": False}, "token"),
    (
        {"loss_type": "cispo", "epsilon_high": 1.1},
        {"surrogate": "cispo", "clip": (1.0, 0.1)},
        "token",
    ),
    ({"beta": 0.0}, {}, "token"),
]


@pytest.fixture(scope="module")
def grpo(tmp_path_factory):
    words = ["trainer=grpo", "loss=policy_gradient", "kl_coef=0.1", "metric=none"]
    words += ["dataset.limit.train=16", "dataset.limit.eval=4", "loss.advantage=leave_one_out"]
    cfg = compose([*words, f"output_root={tmp_path_factory.mktemp('grpo')}"]).cfg
    trainer = build_components(open_run(cfg, []), Stop()).trainer
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    return trainer


def micro_batch(trainer):
    generator = torch.Generator().manual_seed(0)

    def logps(spread):
        return spread * torch.randn(4, 6, generator=generator)

    ids = torch.randint(5, 60, (4, 6), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    batch = {
        "prompt_ids": ids[:, :2],
        "prompt_mask": torch.ones_like(ids[:, :2]),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": torch.tensor([1.0, -0.5, 0.25, -2.0]),
        "num_items_in_batch": mask.sum() * 4,
    }
    with torch.no_grad():
        log_probs = trainer.model(
            input_ids=torch.cat([batch["prompt_ids"], ids], 1),
            labels=torch.cat([batch["prompt_ids"], ids], 1),
            fused_lm_head=True,
        ).log_probs[:, -6:]
    return batch | {
        "old_per_token_logps": log_probs + logps(0.2),
        "ref_per_token_logps": log_probs + logps(0.5),
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("fields", "settings", "average"), VARIANTS)
def test_it_has_the_bits_of_trls_own(grpo, monkeypatch, fields, settings, average, mode):
    for name, value in ({"scale_rewards": "group", "loss_type": "dapo"} | fields).items():
        of_config = name.startswith(".")
        monkeypatch.setattr(grpo.args if of_config else grpo, name.removeprefix("."), value)
    monkeypatch.setattr(grpo.hooks, "loss", functools.partial(policy_gradient, **settings))
    monkeypatch.setattr(grpo.hooks, "loss_part", LossPart(average=average))
    grpo.model.train(mode == "train")
    batch = micro_batch(grpo)
    if not grpo.beta:
        del batch["ref_per_token_logps"]
    outcomes = []
    for compute_loss in (super(Completions, grpo).compute_loss, grpo.compute_loss):
        grpo.model.zero_grad()
        loss = compute_loss(grpo.model, dict(batch))
        loss.backward()
        gradients = [weight.grad.clone() for weight in grpo.model.parameters()]
        outcomes.append((loss, gradients))
    grpo.model.train()
    (theirs, their_gradients), (ours, our_gradients) = outcomes
    assert torch.equal(ours, theirs)
    assert max(gradient.abs().max() for gradient in their_gradients) > 0
    for gradient, their_gradient in zip(our_gradients, their_gradients, strict=True):
        assert torch.equal(gradient, their_gradient)


@pytest.mark.slow
def test_leave_one_out_is_the_reward_less_the_mean_of_the_others(grpo):
    assert grpo.scale_rewards == "none"
    rewards = torch.tensor([3.0, 1.0, 0.0, 0.0, 2.0, 5.0, 0.0, 1.0])[: grpo.num_generations]
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    given = grpo._advantages({"advantages": rewards - rewards.mean()})
    assert torch.allclose(given[:, 0], rewards - others)


@pytest.mark.slow
def test_vllms_importance_ratios_weigh_the_losses(grpo, monkeypatch):
    monkeypatch.setattr(grpo.hooks, "loss_part", LossPart())
    monkeypatch.setattr(grpo.hooks, "loss", functools.partial(policy_gradient))
    batch = micro_batch(grpo)
    plain = grpo.compute_loss(grpo.model, dict(batch))
    twice = grpo.compute_loss(
        grpo.model, {**batch, "importance_sampling_ratio": torch.full((4, 1), 2.0)}
    )
    assert torch.equal(twice, 2 * plain)


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "where", "fix"),
    [
        ("trainer.args.loss_type=grpo", "trainer.args.loss_type", "loss.average=sequence"),
        ("trainer.args.loss_type=sapo", "trainer.args.loss_type", "or loss=none"),
        ("trainer.args.epsilon=0.1", "trainer.args.epsilon", "loss.clip=[0.1,0.1]"),
        (
            "trainer.args.importance_sampling_level=sequence",
            "trainer.args.importance_sampling_level",
            "loss.ratio=sequence",
        ),
        (
            "loss.advantage=leave_one_out trainer.args.scale_rewards=none",
            "trainer.args.scale_rewards",
            "loss.advantage=mean",
        ),
        ("trainer.args.entropy_coef=0.1", "trainer.args.entropy_coef", "or loss=none"),
        ("loss.kl=k2", "loss.kl", "kl_coef=0.04"),
        ("loss.dual_clip=3 loss.surrogate=cispo", "loss.dual_clip", "loss.surrogate=clipped"),
        ("loss.beta=0.1", "loss.beta", "or kl_coef"),
        ("loss.ratio=tokens", "loss.ratio", "token"),
        ("loss.average=tokens", "loss.average", "token"),
        ("loss.clip=[0.2]", "loss.clip", ""),
        ("trainer=rloo", "loss", "trainer=grpo loss.advantage=leave_one_out"),
        ("trainer=ppo loss.average=sequence", "loss.average", "leave loss.average out"),
        ("trainer=ppo trainer.args.dual_clip=2", "trainer.args.dual_clip", "loss.dual_clip=2"),
        ("trainer=ppo trainer.args.epsilon=0.1", "trainer.args.epsilon", ""),
        ("trainer=ppo loss.kl=k3", "loss.kl", "trainer.args.kl_estimator="),
        ("trainer=ppo trainer.args.cliprange=0.1", "trainer.args.cliprange", "loss.clip=[0.1,0.1]"),
    ],
)
@pytest.mark.quick(4)
def test_what_is_said_twice_or_without_effect_is_refused(capsys, words, where, fix):
    trainer = [] if "trainer=" in words else ["trainer=grpo"]
    assert main([*trainer, "loss=policy_gradient", *words.split(), "--dry-run"]) == 2
    stderr = capsys.readouterr().err
    assert f"\n  {where}\n" in stderr
    assert fix in stderr.replace("'", "")


OWN = """
def no_reference(log_probs, advantages): ...
def a_reference(log_probs, advantages, ref_log_probs): ...
"""


def test_a_kl_that_a_loss_leaves_out_or_has_no_reference_for_is_refused(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "my_policy_losses.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["trainer=grpo", "allow=[my_policy_losses]", "--dry-run"]
    loss = "loss._target_=my_policy_losses."
    assert main([*words, f"{loss}no_reference"]) == 0
    assert main([*words, f"{loss}a_reference", "kl_coef=0.04"]) == 0
    capsys.readouterr()
    assert main([*words, f"{loss}no_reference", "kl_coef=0.1"]) == 2
    assert "0.1, but no_reference does not ask for ref_log_probs" in capsys.readouterr().err
    assert main([*words, f"{loss}a_reference"]) == 2
    assert "0.0, but a_reference asks for ref_log_probs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("loss", "kind", "found"),
    [
        (lambda log_probs, mask: log_probs[mask].mean(), "groups", r"shape \(\)"),
        (lambda log_probs: log_probs.sum(1), "groups", r"shape \(2,\)"),
        (lambda log_probs: log_probs, "sequences", r"shape \(2, 3\)"),
        (lambda log_probs: log_probs[:, :1], "policy", r"shape \(2, 1\)"),
        (lambda log_probs: log_probs.tolist(), "groups", "list"),
        (lambda log_probs: log_probs.detach(), "groups", "without a gradient"),
        (lambda old_log_probs: old_log_probs, "policy", "without a gradient"),
        (lambda log_probs: log_probs.log(), "groups", "nan"),
        (lambda log_probs, mask: log_probs * (0 / mask), "groups", "nan"),
        (lambda log_probs: (0 * log_probs).sqrt(), "groups", "gradient"),
    ],
)
def test_a_loss_is_tried_before_anything_is_sampled(loss, kind, found):
    with pytest.raises(ConfigError, match=found):
        try_loss(loss, kind, beta=0.0)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["groups", "policy"])
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_shipped_loss_passes_its_trial(kind, beta, ratio):
    try_loss(functools.partial(policy_gradient, ratio=ratio), kind, beta)


# --- Through the command ------------------------------------------------------------------------

FEW = (
    "trainer.args.max_steps=3",
    "trainer.args.logging_steps=1",
    "trainer.args.num_generations=4",
    "trainer.args.num_iterations=2",
    "trainer.args.per_device_train_batch_size=8",
    "trainer.args.max_completion_length=8",
    "learning_rate=1e-3",
    "kl_coef=0",
    "metric=none",
    "dataset.limit.train=64",
    "dataset.limit.eval=4",
)
AS_RLOO = (
    "loss.advantage=leave_one_out",
    "loss.ratio=product",
    "loss.average=sequence",
)


@pytest.mark.dear("two trainings")
@pytest.mark.slow
def test_rloo_written_as_grpo_gives_its_numbers(train):
    rloo = train("trainer=rloo", *FEW, name="rloo")
    grpo = train("trainer=grpo", "loss=policy_gradient", *AS_RLOO, *FEW, name="grpo")
    assert rloo.code == grpo.code == 0
    figures = ("reward", "entropy", "grad_norm", "loss", "completions/mean_length")
    for line, other in zip(grpo.lines, rloo.lines, strict=True):
        for name in figures:
            if name in other:
                assert line[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6), name
