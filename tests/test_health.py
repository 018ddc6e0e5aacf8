"""Each alarm rings for what it names and for nothing else, by sequences of steps made by hand."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runner.config.composition import compose
from runner.config.experiment import Tolerate
from runner.errors import SickRun
from runner.run.alarms import (
    ALARMS,
    KL,
    Alarm,
    Change,
    ChosenLost,
    ConstantReward,
    Diverged,
    EndedWorse,
    Exploded,
    Facts,
    FirstMargin,
    Frozen,
    GradientAscent,
    HighLoss,
    NoSignal,
    NotFinite,
    PreferencesInverted,
    Step,
    ZeroGradient,
    build_alarms,
    steps_to_notice,
)
from runner.run.key import key_of
from runner.training.health import Health
from runner.training.probe import Probe
from runner.training.sickness_facts import sampling_advice

NAN = math.nan


def rings(alarm: Alarm, steps) -> int | None:
    """The step at which an alarm rings; each step is what ``Step`` takes."""
    return next(
        (number for number, step in enumerate(steps, 1) if alarm.observe(Step(number, **step))),
        None,
    )


def of_loss(*losses):
    return [{"loss": loss, "gradient": 1.0} for loss in losses]


def of_margins(margins, rights=None):
    rights = rights or [None] * len(margins)
    pairs = zip(margins, rights, strict=True)
    return [
        {"noted": {"rewards/margins": m} | ({} if r is None else {"rewards/accuracies": r})}
        for m, r in pairs
    ]


def of_chosen(*values, length=10.0):
    return [{"noted": {"logps/chosen": value}, "length": length} for value in values]


def of_rewards(*ranges):
    return [{"rewards": {"x": score_range}} for score_range in ranges]


def of_kl(*values, length=10.0, name="kl"):
    return [{"noted": {name: value, "completions/mean_length": length}} for value in values]


def test_chosen_answers_may_become_less_likely_and_not_impossible():
    assert rings(ChosenLost(), of_chosen(-8, -235, -1355)) == 3
    assert rings(ChosenLost(), of_chosen(-8, -235, -8, -235, -8)) is None  # one batch may be odd
    assert rings(ChosenLost(), of_chosen(-8, *[-28] * 20)) is None  # 2 nats a token
    # a single token may be given up
    assert rings(ChosenLost(), of_chosen(-0.1, *[-45] * 20, length=1.0)) is None
    longer = [*of_chosen(-10, length=10.0), *of_chosen(*[-500] * 4, length=500.0)]
    assert rings(ChosenLost(), longer) is None
    # of unknown length
    assert rings(ChosenLost(), of_chosen(*[-1e4] * 5, length=None)) is None
    assert (
        rings(ChosenLost(), [{"noted": {}}, *of_chosen(-8), {"noted": {}}, *of_chosen(-900, -900)])
        == 5
    )


@pytest.mark.parametrize(
    ("step", "sick"),
    [
        ({"loss": 1.0, "gradient": 2.0, "weight": 0.1}, False),
        ({"loss": NAN}, True),
        ({"loss": math.inf}, True),
        ({"gradient": NAN}, True),
        ({"gradient": math.inf, "skipped": True}, False),  # float16 finds its scale
        ({"weight": NAN, "skipped": True}, True),
        ({"noted": {"reward": NAN}}, True),
        ({"noted": {"rewards/margins": NAN}}, False),  # of a batch of KTO with one kind of answer
        # finite entries that clipping has reduced to zero
        ({"norm": math.inf, "gradient": 0.0}, True),
        ({"norm": math.inf, "gradient": 0.0, "skipped": True}, False),
        ({"norm": math.inf, "gradient": 1.0}, False),  # before float16 lowers its scale
        ({"norm": 3.0, "gradient": 0.0}, False),
    ],
)
def test_not_finite(step, sick):
    assert (rings(NotFinite(), [step]) == 1) is sick


def test_zero_gradient():
    none = {"loss": 0.7, "gradient": 0.0}
    some = {"loss": 0.7, "gradient": 0.1}
    assert rings(ZeroGradient(), [none, none, none]) == 3
    assert rings(ZeroGradient(), [none, none, some, none, none, some]) is None
    assert rings(ZeroGradient(), [some, none, none, none]) == 4
    learnt = {"loss": 1e-5, "gradient": 0.0}
    assert rings(ZeroGradient(), [some, *[learnt] * 9]) is None
    assert rings(ZeroGradient(), [learnt] * 3) == 3  # nothing was ever learnt: all is masked
    assert rings(ZeroGradient(first_loss=math.inf), [learnt] * 9) is None
    # an optimizer that takes them away
    assert rings(ZeroGradient(), [{"loss": 0.7, "gradient": None}] * 9) is None


def test_groups_of_equal_rewards_without_gradient_are_no_sickness():
    step = {"loss": 0.0, "gradient": 0.0}
    alike, unlike = ({"noted": {"frac_reward_zero_std": share}} for share in (1.0, 0.5))
    assert rings(ZeroGradient(online=True), [step | alike] * 9) is None
    assert rings(ZeroGradient(online=True), [step] * 9) is None
    assert rings(ZeroGradient(online=True), [step | unlike] * 3) == 3


def test_frozen():
    still = {"moved": False, "gradient": 1.0}
    moving = {"moved": True, "gradient": 1.0}
    assert rings(Frozen(), [still] * 3) == 3
    assert rings(Frozen(), [still, still, moving, still, still]) is None
    for harmless in (
        {"pace": 0.0},
        {"pace": 0.05},
        {"gradient": 0.0},
        {"skipped": True},
        {"moved": None},
    ):
        assert rings(Frozen(), [still | harmless] * 9) is None, harmless
    # a warm-up that begins with 0
    assert rings(Frozen(), [still | {"pace": 0.0}, *[still] * 3]) == 4


def test_gradient_ascent():
    def of_slopes(*slopes):
        return [{"slope": slope} for slope in slopes]

    assert rings(GradientAscent(), of_slopes(0.6, 0.5, 0.4)) == 3
    assert (
        rings(GradientAscent(), of_slopes(None, 0.6, None, 0.5, 0.4)) == 5
    )  # a warm-up from 0, a step without gradient
    # momentum, in a healthy one
    assert rings(GradientAscent(), of_slopes(-0.6, *[0.5] * 9)) is None
    assert rings(GradientAscent(), of_slopes(0.0, *[0.5] * 9)) is None  # weight decay alone
    assert rings(GradientAscent(over=True), of_slopes(*[0.5] * 9)) is None


def test_exploded():
    assert rings(Exploded(), [{"weight": size} for size in (0.02, 0.5, 30.0, 99.0, 101.0)]) == 5
    assert rings(Exploded(), [{"weight": size} for size in (30.0, 300.0, 3001.0)]) == 3
    assert rings(Exploded(), [{"weight": None}] * 3) is None


def test_a_loss_above_the_tolerated_one():
    alarms = build_alarms(Tolerate.read({"loss": 5.0, "loss_steps": 2}), online=True)
    (alarm,) = (alarm for alarm in alarms if alarm.name == "loss")
    assert rings(alarm, of_loss(9, 5, 9, 4, 6, 6)) == 6
    assert rings(alarm, [{"loss": None}] * 9) is None
    assert steps_to_notice(Tolerate.read({"loss": 5.0, "loss_steps": 9})) == 10
    for tolerate in ({}, {"loss": None}, {"loss": True}, {"loss_steps": 2}):
        assert not [
            alarm for alarm in build_alarms(Tolerate.read(tolerate)) if alarm.name == "loss"
        ]


def test_diverged():
    assert rings(Diverged(), of_loss(2.0, 2.1, 50.0, 60.0, 50.0, 90.0, 80.0)) == 7
    # hard batches of one row
    assert rings(Diverged(), of_loss(0.5, *[4.6] * 4, 0.5, *[4.6] * 4, 0.5)) is None
    assert rings(Diverged(), of_loss(*[3.0, 0.01, 3.5, 4.0] * 9)) is None
    # easy rows first, then others
    assert rings(Diverged(), of_loss(*[0.1] * 9, *[5.0] * 30)) is None
    # it creeps
    assert rings(Diverged(), of_loss(*[0.1] * 9, *[2.0 * 1.3**n for n in range(20)])) == 19
    assert rings(Diverged(), of_loss(*[25.0] * 9)) is None  # where IPO begins
    # a loss of the wrong sign
    assert rings(Diverged(), of_loss(*[-float(n) for n in range(30)])) == 18


def test_kl():
    assert rings(KL(), of_kl(0.0, 6.0, 6.0, 6.0)) == 3
    # one completion carries the estimate of a step
    assert rings(KL(), of_kl(0.0, 1e6, 0.1, 1e6, 0.1)) is None
    assert rings(KL(), of_kl(*[2.0] * 9)) is None  # large and stable
    assert rings(KL(), of_kl(*[9.0] * 9, length=2.0)) is None  # a short answer that was unlikely
    assert rings(KL(), of_kl(85.0, 85.0, 85.0, 85.0, length=53.0, name="objective/kl")) is None
    assert rings(KL(), of_kl(*[-400.0] * 3, length=53.0, name="objective/kl")) == 2
    assert rings(KL(length=4), [{"noted": {"objective/kl": 60.0}}] * 3) == 2
    assert rings(KL(), [{"noted": {"kl": 60.0}}] * 9) is None


def opposite(margins, rights=None, anchored=True, pairs=8):
    return rings(PreferencesInverted(anchored=anchored, pairs=pairs), of_margins(margins, rights))


def test_opposite():
    falling = [0.0, -0.01, -0.02, -0.03, -0.04, -0.05]
    wrong = [0.0, 0.25, 0.125, 0.25, 0.125, 0.125]
    assert opposite(falling, wrong) == 6
    assert opposite([-margin for margin in falling], wrong) is None
    assert opposite(falling, [0.0, *[0.5] * 5]) is None
    assert opposite([margin / 1000 for margin in falling], wrong) is None  # rounding, in a warm-up
    assert opposite(falling, [0.0, *[0.0] * 5], pairs=1) is None  # five pairs say nothing
    assert opposite([0.0] + [-0.1] * 40, [0.0] * 41, pairs=1) == 33


def test_opposite_without_a_reference_is_measured_by_the_first_steps():
    steady = [-1.0] * 12
    sinking = [-1.0] * 5 + [-2.0, -3.0, -4.0, -5.0, -6.0]
    assert opposite(steady, [0.1] * 12, anchored=False) is None  # the rejected answers are shorter
    assert opposite(sinking, [0.5] * 5 + [0.1] * 5, anchored=False) == 10
    assert opposite(sinking, [0.1] * 5 + [0.1] * 5, anchored=False) is None


def test_opposite_without_rankings_takes_twice_as_long():
    assert opposite([0.0, *(-0.01 * n for n in range(1, 12))]) == 11
    assert opposite([0.0, *[-0.01, -0.5] * 10]) is None


def test_constant_reward():
    assert rings(ConstantReward(), of_rewards(*((0.5, 0.5, 64 * n) for n in range(1, 6)))) == 5
    # not before 128
    assert rings(ConstantReward(), of_rewards(*((0.5, 0.5, 8 * n) for n in range(1, 17)))) == 16
    assert rings(ConstantReward(), of_rewards(*((0.0, 1.0, 64 * n) for n in range(1, 9)))) is None
    assert rings(ConstantReward(), of_rewards(*[(math.inf, -math.inf, 0)] * 9)) is None
    varied = {"x": (1.0, 1.0, 900), "y": (0.0, 1.0, 900)}
    assert rings(ConstantReward(), [{"rewards": varied}] * 9) is None


@pytest.mark.parametrize(
    ("low", "high", "finding"),
    [
        (1e7, 1e7 + 1, None),  # which float32 tells apart
        (0.0, 1e-3, None),
        (1e9, 1e9 + 1, "gave 1000000000.0 to 1000000001.0"),  # and these not
        # rounding of a model in batches of other widths
        (0.5, 0.5 + 1e-9, "gave 0.5 to 0.500000001"),
        (1e7, 1e7, "gave 1e7 to each"),
    ],
)
def test_equal_rewards_are_reported_with_their_value(low, high, finding):
    alarm = ConstantReward()
    sickness = [
        alarm.observe(Step(number, rewards={"x": (low, high, 64 * number)}))
        for number in range(1, 6)
    ][-1]
    assert (finding is None) is (sickness is None)
    assert finding is None or finding in str(sickness)


SILENT = [
    # rounding is left, which Adam makes large
    {"noted": {"frac_reward_zero_std": 1.0}, "gradient": 1e-9},
    {"noted": {"objective/scores_margin": 0.0, "rewards/margins": 0.3}},  # pairs that are ties
    # the same completion twice, whatever judges them
    {"noted": {"rewards/margins": 0.0}, "gradient": 1e-8},
    {"gradient": 0.0},  # of PPO's policy, and of one sample that earns what was expected
]
HEARD = [
    {"noted": {"frac_reward_zero_std": 0.9}},
    {"noted": {"objective/scores_margin": 0.1, "rewards/margins": 0.3}},
    {"noted": {"rewards/margins": -0.1}},
    {"gradient": 1e-3},
]


@pytest.mark.parametrize(("silent", "heard"), list(zip(SILENT, HEARD, strict=True)))
def test_a_training_that_never_prefers_a_completion_to_another_learns_nothing(silent, heard):
    def alone(count):
        return {"rewards": {"x": (0.0, 1.0, count)}}

    assert rings(NoSignal(), [silent] * 9) == 5
    assert rings(NoSignal(), [silent | alone(64 * number) for number in range(1, 9)]) == 5
    # not before 128
    assert rings(NoSignal(), [silent | alone(8 * number) for number in range(1, 20)]) == 16
    assert rings(NoSignal(), [heard, *[silent] * 20]) is None  # this is success
    assert rings(NoSignal(), [*[silent] * 4, heard, *[silent] * 20]) is None
    # a policy that waits for its critic
    assert rings(NoSignal(), [{"gradient": None}] * 20) is None
    for steps, is_sick in (
        ([silent] * 3, True),
        ([silent] * 2, False),
        ([silent] * 2 + [heard], False),
    ):
        alarm = NoSignal()
        rings(alarm, [step | alone(8) for step in steps])
        assert (alarm.conclude(Step(len(steps), **silent), []) is not None) is is_sick


def test_preferences_that_are_lost_for_good_are_a_sickness_and_success_is_not():
    heard = {"noted": {"frac_reward_zero_std": 0.5, "reward": 0.4}}

    def steps(count, reward, size=64):
        silent = {"noted": {"frac_reward_zero_std": 1.0, "reward": reward}}
        numbered = enumerate([heard, *[silent] * count], 1)
        return [step | {"rewards": {"x": (0.0, 1.0, size * number)}} for number, step in numbered]

    assert rings(NoSignal(), steps(40, 0.4)) == 21
    assert rings(NoSignal(), steps(19, 0.4)) is None
    assert rings(NoSignal(), steps(70, 0.4, size=8)) == 1 + 512 // 8  # of few completions
    assert rings(NoSignal(), steps(40, 1.0)) is None  # nothing is left to learn
    assert rings(NoSignal(), [*steps(19, 0.4), *steps(19, 0.4)]) is None
    assert rings(NoSignal(over=True), steps(40, 0.4)[1:]) == 20  # goes on from a checkpoint
    # A weight below 0 makes the lowest value the best one.
    assert rings(NoSignal(facts=Facts(reward_weights=(-1.0,))), steps(40, 0.0)) is None
    sickness = NoSignal(
        over=True, silent_steps=19, silent_completions=512, facts=Facts(greedy="a temperature")
    )
    found = str(sickness.observe(Step(30, **steps(1, 0.4, size=999)[1])))
    for words in ("in the last 20 steps", "a temperature", "kl_coef=", "tolerate.no_signal=true"):
        assert words in found


def concluded(steps, *held_out, online=False):
    """The conclusion of the last alarm on a training with these steps and held-out changes."""
    alarm = EndedWorse(online=online)
    assert rings(alarm, steps) is None
    return alarm.conclude(Step(len(steps)), [Change(*change) for change in held_out])


def test_a_model_far_worse_than_it_began_is_sick_and_an_over_fitted_one_is_not():
    risen = of_loss(0.16, 3.0, 2.8, 2.7, 2.6, 2.6)
    fell = of_loss(0.7, 0.5, 0.2, 0.1, 0.01, 0.01)
    assert "eval_loss 0.16 -> 2.63" in str(concluded(risen, ("eval_loss", 0.16, 2.63, "loss")))
    assert concluded(fell, ("eval_loss", 0.16, 2.63, "loss")) is None  # over-fitted
    # rows of another kind came later
    assert concluded(risen, ("eval_loss", 0.16, 0.12, "loss")) is None
    assert concluded(risen, ("eval_loss", 0.9, 2.63, "loss")) is None  # worse, and not far
    # of a model that began as its teacher, by a loss of at most 0.69
    copied = of_loss(1e-9, 0.2, 0.5, 0.5, 0.5, 0.5)
    assert concluded(copied, ("eval_loss", 0.0, 0.58, "loss"))
    assert concluded(risen) is None  # nothing is held out
    assert concluded(risen, ("eval_mean_token_accuracy", 1.0, 0.25, "share"))
    assert concluded(risen, ("eval_mean_token_accuracy", 0.04, 0.02, "share")) is None
    dft = [
        {"loss": 0.01, "noted": {"mean_token_accuracy": right}} for right in (0.9, 0.3, 0.2, 0.2)
    ]
    # its loss falls as the model forgets
    assert concluded(dft, ("eval_mean_token_accuracy", 0.9, 0.2, "share"))
    pairs = [
        {"loss": 0.1, "noted": {"mean_token_accuracy": right, "rewards/margins": 1.0}}
        for right in (0.9, 0.2)
    ]
    assert concluded(pairs, ("eval_mean_token_accuracy", 0.9, 0.2, "share")) is None


def test_a_reward_is_far_worse_by_the_range_of_what_was_earned():
    rewards = {"rewards": {"x": (-0.5, 1.0, 99)}}
    fallen = [{"noted": {"reward": mean}} | rewards for mean in (0.8, 0.1, -0.4, -0.4, -0.4, -0.4)]
    assert concluded(fallen, ("eval_reward", 0.8, -0.4, "reward"), online=True)
    assert concluded(fallen, ("eval_exact", 0.5, 0.0, "share"), online=True)
    assert concluded(fallen, ("eval_reward", 0.8, 0.5, "reward"), online=True) is None
    # no score where it samples
    assert concluded(fallen, ("eval_loss", 0.0, 9.0, "loss"), online=True) is None
    # another metric's
    assert concluded(fallen[:1] * 6, ("eval_exact", 0.5, 0.0, "share"), online=True) is None


# --- What is told to type -----------------------------------------------------------------------

HIGH = Facts(usual_rate=1e-6)
LOW = Facts(usual_rate=1e-3)
NORM = {"norm": math.inf, "gradient": 0.0}


@pytest.mark.parametrize(
    ("alarm", "facts", "step", "first"),
    [
        # An infinite loss in the first step is not caused by the rate, unless PPO has taken
        # several by then.
        (
            NotFinite(),
            Facts(changed=("smaller weights (weight=)",)),
            {"loss": NAN, "number": 1},
            "smaller weights",
        ),
        (NotFinite(), Facts(), {"loss": NAN, "number": 0}, "the rows: python -m runner preview"),
        (NotFinite(), Facts(is_half=True), NORM | {"number": 1}, "model.dtype=float32"),
        (
            NotFinite(),
            Facts(steps_within=True),
            {"loss": NAN, "number": 1},
            "a lower learning_rate=",
        ),
        (
            NotFinite(),
            HIGH,
            {"weight": NAN, "number": 1, "rate": 1.0},
            "a lower learning_rate= (1 is 1e6 times 1e-6",
        ),
        (NotFinite(), HIGH, {"gradient": NAN, "number": 9, "rate": 1e-6}, "a lower learning_rate="),
        # Such a large loss is caused by the rows.
        (NotFinite(first_loss=2.0), Facts(), NORM | {"loss": 2e30, "number": 9}, "other rows"),
        (
            ZeroGradient(),
            Facts(max_grad_norm=1e-50),
            {"gradient": 0.0, "norm": 1.0},
            "trainer.args.max_grad_norm=1",
        ),
        (
            ZeroGradient(),
            Facts(max_grad_norm=1.0),
            {"gradient": 0.0, "norm": 0.0},
            "look at what is trained",
        ),
        (Frozen(), Facts(max_grad_norm=1e-30), {}, "trainer.args.max_grad_norm=1"),
        (Frozen(), LOW, {"rate": 1e-30}, "a higher learning_rate= (1e-30 is 1e-27 times 0.001"),
        (Frozen(), Facts(is_half=True), {"rate": 1e-3}, "model.dtype=float32"),
        (Frozen(), LOW, {"rate": 1e-3}, "another optimizer="),
        (Exploded(), HIGH, {"rate": 0.3}, "a lower learning_rate= (0.3 is 300000 times"),
        (HighLoss(most=1.0, first_loss=5.0), Facts(), {}, "a larger tolerate.loss="),
        (HighLoss(most=6.0, first_loss=5.0), Facts(), {}, "a lower learning_rate="),
        (KL(), LOW, {"rate": 1e-3}, "a larger kl_coef="),
        (KL(), HIGH, {"rate": 1e-3}, "a lower learning_rate="),
        (ChosenLost(), Facts(has_kl_coef=False), {}, "a lower learning_rate="),
        (PreferencesInverted(), HIGH, {"rate": 0.3}, "a lower learning_rate="),
        (
            PreferencesInverted(first_loss=0.7),
            LOW,
            {"rate": 1e-3, "loss": 2.0},
            "a lower learning_rate=",
        ),
        (
            PreferencesInverted(first_loss=0.7),
            LOW,
            {"rate": 1e-3, "loss": 0.1},
            "the sign of the loss",
        ),
        (
            ConstantReward(),
            Facts(greedy="trainer.args.temperature=1"),
            {},
            "trainer.args.temperature=1",
        ),
        (NoSignal(), Facts(), {}, "another reward="),
    ],
)
def test_the_fix_fits_the_cause(alarm, facts, step, first):
    alarm.facts = facts
    error = alarm.sickness(Step(**({"number": 9} | step)), "found")
    fix = error.faults[0].fix
    assert fix.startswith(first)
    assert fix.endswith(f"tolerate.{alarm.name}=true")
    assert error.curable is ("a lower learning_rate" in fix) is ("on_sick=rollback" in fix)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"temperature": 1.0}, ""),
        ({"temperature": 1e-6}, "trainer.args.temperature=1"),
        (
            {"temperature": 1.0, "generation_kwargs": {"do_sample": False}},
            "trainer.args.generation_kwargs.do_sample",
        ),
        (
            {"temperature": 1.0, "generation_kwargs": {"temperature": 0.01}},
            "trainer.args.generation_kwargs.temp",
        ),
        ({"temperature": 1.0, "top_k": 1}, "trainer.args.top_k=0"),
        ({"temperature": 1.0, "top_p": 0.001}, "trainer.args.top_p=1"),
        ({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "generation_kwargs": None}, ""),
    ],
)
def test_sampling_that_finds_one_completion_is_named(args, told):
    advice = sampling_advice(SimpleNamespace(**args))
    assert advice.startswith(told)
    assert bool(advice) is bool(told)


def test_first_margin():
    assert rings(FirstMargin(tolerance=1e-4), of_margins([-0.01])) == 1
    assert rings(FirstMargin(tolerance=1e-4), of_margins([1e-6, 0.3])) is None
    assert rings(FirstMargin(tolerance=1e-4), [{"loss": 1.0}]) is None


def test_each_alarm_names_its_fix_and_the_good_checkpoints():
    for kind in Alarm.__subclasses__():
        assert kind.name
        assert kind.expected
        assert kind().fixes(Step(9))[0]
        assert 1 <= kind.patience + kind.lag <= steps_to_notice() == 6
    sick = Diverged().sickness(Step(30), "a loss of 99")
    assert (sick.code, sick.healthy, sick.curable) == (3, 24, True)
    assert "diverged at step 30" in str(sick)
    assert "tolerate.diverged=true" in str(sick)
    assert NotFinite().sickness(Step(1), "").healthy == 0


# --- Which there are ----------------------------------------------------------------------------


def names(*words, **kind):
    return {alarm.name for alarm in build_alarms(*words, **kind)}


def test_each_kind_of_training_has_its_alarms():
    always = {"not_finite", "zero_gradient", "frozen", "exploded", "gradient_ascent", "ended_worse"}
    assert names() == always | {"diverged", "preferences_inverted", "chosen_lost"}
    assert names(anchored=True, rounding=1e-4) == always | {
        "diverged",
        "preferences_inverted",
        "chosen_lost",
        "first_margin",
    }
    assert names(online=True) == always | {"constant_reward", "no_signal", "kl"}


def test_alarms_are_switched_off_or_loosened():
    assert names(Tolerate.read({"diverged": True, "frozen": False})) == names() - {"diverged"}
    patience = {
        alarm.name: alarm.patience
        for alarm in build_alarms(Tolerate.read({"zero_gradient": 50, "truncated": 0.5}))
    }
    assert (patience["zero_gradient"], patience["frozen"]) == (50, Frozen.patience)


def test_the_config_knows_each_alarm():
    assert len(set(ALARMS)) == len(Alarm.__subclasses__())
    cfg = compose(["tolerate.kl=true", "tolerate.zero_gradient=9", "metric=none"]).cfg
    assert cfg["tolerate"] == {"kl": True, "zero_gradient": 9}


def test_the_reaction_to_sickness_is_not_in_the_key():
    cfg = compose(["metric=none"]).cfg
    assert (cfg["on_sick"], cfg["on_memory"], cfg["attempts"]) == ("stop", "halve", 4)
    without = {
        key: value for key, value in cfg.items() if key not in ("on_sick", "on_memory", "attempts")
    }
    health_keys = {
        "on_sick": "rollback",
        "tolerate": {"kl": True},
        "on_memory": "stop",
        "attempts": 9,
    }
    assert key_of(cfg) == key_of(without) == key_of(cfg | health_keys)


# --- What is looked at --------------------------------------------------------------------------


def model(layers=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))


def test_the_probe_looks_at_a_few_pieces_of_a_large_model():
    probe = Probe(torch.nn.ModuleList(torch.nn.Linear(300, 300) for _ in range(100)))
    assert len(probe.all) == 200
    assert len(probe.picked) <= Probe.TENSORS
    assert len(probe.weights()) <= Probe.TENSORS * Probe.ENTRIES


def test_the_probe_knows_what_is_trained():
    net = model()
    net[:2].requires_grad_(False)
    assert [id(weight) for weight in Probe(net).all] == [
        id(weight) for weight in net[2].parameters()
    ]
    assert Probe(net.requires_grad_(False)).weights() is None
    assert Probe(net).gradient() is None


def test_a_gradient_that_the_pieces_do_not_show_is_found():
    net = model()
    probe = Probe(net)
    assert probe.gradient() is None
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    assert probe.gradient() == 0.0
    net[1].weight.grad[0, 0] = -3.0
    assert probe.gradient() == 3.0
    net[1].weight.grad[0, 1] = NAN
    assert math.isnan(probe.gradient())
    net[1].weight.grad[4, 0] = 2.0  # now in a piece
    assert probe.gradient() == 2.0


def test_every_weight_counts_when_it_is_saved():
    net = model()
    probe = Probe(net)
    before = probe.sum_of_bits()
    assert probe.are_finite()
    assert probe.sum_of_bits() == before
    with torch.no_grad():
        net[1].weight[0, 0] += 1e-7
    assert probe.sum_of_bits() != before
    with torch.no_grad():
        net[1].weight[0, 0] = math.inf
    assert not probe.are_finite()
    large = torch.nn.Linear(4, 4, dtype=torch.float32)
    with torch.no_grad():
        large.weight.fill_(3e38)  # the sum is infinite, the weights are not
    assert Probe(large).are_finite()


# --- The callback -------------------------------------------------------------------------------


class Training:
    """The events of a training of one small model, with a given change at each step."""

    def __init__(
        self,
        build=lambda resumed: build_alarms(),
        rate=1e-3,
        notes=None,
        folder="none",
        done=0,
        beside=False,
    ):
        self.model = (
            torch.nn.ModuleDict({"policy": model(), "critic": model()}) if beside else model()
        )
        self.health = Health(build)
        self.trainer = SimpleNamespace(**({} if notes is None else {"metrics": {"train": notes}}))
        group = {"lr": rate, "initial_lr": 1e-3}
        self.given = {
            "model": self.model,
            "optimizer": SimpleNamespace(param_groups=[group], step_was_skipped=False),
        }
        self.args = SimpleNamespace(device=torch.device("cpu"), output_dir=str(folder))
        self.state = SimpleNamespace(global_step=done, is_world_process_zero=folder != "none")
        self.event("train_begin")

    def event(self, name, **kwargs):
        getattr(self.health, f"on_{name}")(self.args, self.state, None, **self.given, **kwargs)

    def step(self, loss=1.0, gradient=1.0, change=-1e-4, parts=None, raw=None):
        """Change all weights, or each of the parts as given.

        An entry says whether it has a gradient, too.

        ``raw`` is the gradient before its clip, where that is another one.
        """
        parts = parts or {self.model: (change, True)}
        self.set_gradients(parts, gradient if raw is None else raw)
        self.health.observe_loss(self.trainer, {}, torch.tensor(loss))
        self.set_gradients(parts, gradient)
        self.event("pre_optimizer_step")
        with torch.no_grad():
            for part, (change, _) in parts.items():
                for weight in part.parameters():
                    weight += change
        self.event("optimizer_step")
        self.state.global_step += 1
        self.event("step_end")

    def set_gradients(self, parts, gradient):
        for part, (_, learns) in parts.items():
            for weight in part.parameters():
                weight.grad = torch.full_like(weight, gradient) if learns else None


def test_a_norm_that_is_logged_as_endless_ends_the_run():
    training = Training()
    training.step()
    with pytest.raises(SickRun, match="the norm of the gradient is inf"):
        training.event("log", logs={"loss": 1.0, "grad_norm": math.inf})


def test_alarms_over_a_whole_training_work_after_a_resume(tmp_path):
    training = Training(lambda resumed: build_alarms(resumed=resumed), folder=tmp_path)
    for loss in (0.2, 3.0, 3.0, 3.0, 3.0, 3.0):
        training.step(loss=loss)
    (tmp_path / "checkpoint-6").mkdir()
    training.event("save")
    worse = [Change("eval_loss", 0.2, 3.0, "loss")]
    resumed = Training(lambda resumed: build_alarms(resumed=resumed), folder=tmp_path, done=6)
    for health in (training.health, resumed.health):
        health.conclude(training.args, training.state, [])
        with pytest.raises(SickRun, match="ended_worse at step 6") as caught:
            health.conclude(training.args, training.state, worse)
        assert caught.value.healthy is None, "its checkpoints stay"


def test_a_healthy_training_ends():
    training = Training()
    for _ in range(20):
        training.step()
    training.event("save")
    training.event("train_end")


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("not_finite", [{}, {}, {"loss": NAN}]),
        ("not_finite", [{}, {"gradient": NAN}]),
        ("not_finite", [{"raw": 1e30, "gradient": 0.0}]),
        ("not_finite", [{}, {"raw": 1e30, "gradient": 0.0}]),
        ("not_finite", [{}, {"change": math.inf}]),
        ("zero_gradient", [{"gradient": 0.0}] * 3),
        ("frozen", [{"change": 0.0}] * 4),
        ("exploded", [{}, {"change": 1e6}]),
        ("gradient_ascent", [{"change": 1e-4}] * 3),
        ("gradient_ascent", [{"change": 0.0}, *[{"change": 1e-4}] * 3]),
    ],
)
def test_a_sick_training_stops_at_the_step_that_shows_it(name, steps):
    training = Training()
    with pytest.raises(SickRun, match=f"{name} at step {len(steps)}"):
        for step in steps:
            training.step(**step)
    assert training.state.global_step == len(steps)


def test_a_gradient_that_another_callback_takes_away_had_a_finite_norm():
    training = Training()
    training.health.others_clip = True
    training.event("train_begin")
    with pytest.raises(SickRun, match="zero_gradient at step 5"):
        for gradient in (1.0, 1.0, 0.0, 0.0, 0.0):
            training.step(raw=1.0, gradient=gradient)


def test_weights_that_stay_in_a_warm_up_are_no_sickness():
    training = Training(rate=0.0)
    for _ in range(9):
        training.step(change=0.0)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("zero_gradient", [{}, {}, *[{"gradient": 0.0}] * 3]),
        ("frozen", [{}, {}, *[{"change": 0.0}] * 4]),
        ("exploded", [{}, {"change": 1.5}, {"change": 99.0}]),
        ("diverged", [*[{}] * 6, *[{"loss": 50.0}] * 5]),
        ("gradient_ascent", [{"change": 1e-4}] * 3),
    ],
)
@pytest.mark.parametrize("done", [1, 2])
def test_a_resumed_training_is_as_sick_at_the_same_step(name, steps, done, tmp_path):
    training = Training(lambda resumed: build_alarms(resumed=resumed), folder=tmp_path)
    for step in steps[:done]:
        training.step(**step)
    (tmp_path / f"checkpoint-{done}").mkdir()
    training.event("save")
    resumed = Training(lambda resumed: build_alarms(resumed=resumed), folder=tmp_path, done=done)
    resumed.model.load_state_dict(training.model.state_dict())
    resumed.event("train_begin")
    with pytest.raises(SickRun, match=f"{name} at step {len(steps)}"):
        for step in steps[done:]:
            resumed.step(**step)


@pytest.mark.parametrize(
    ("policy", "critic", "sick"),
    [
        ((0.0, False), (-1e-4, True), None),
        ((0.0, False), (0.0, True), "frozen at step 4"),
        ((0.0, True), (-1e-4, True), "frozen at step 4"),  # the critic alone learns
    ],
)
def test_only_a_policy_may_wait_for_its_critic(policy, critic, sick):
    """Each of the two by its change in a step, and whether it has a gradient."""
    training = Training(beside=True)
    parts = {training.model.policy: policy, training.model.critic: critic}
    with pytest.raises(SickRun, match=sick) if sick else nullcontext():
        for _ in range(6):
            training.step(parts=parts)
    if not sick:
        with pytest.raises(SickRun, match="frozen at step 10"):
            for _ in range(6):
                training.step(parts=dict.fromkeys(parts, (0.0, True)))


@pytest.mark.parametrize("event", ["save", "train_end"])
def test_nothing_broken_is_saved(event):
    training = Training()
    training.step()
    with torch.no_grad():
        training.model[1].bias[0] = NAN
    with pytest.raises(SickRun, match="not a finite number"):
        training.event(event)
    assert isinstance(training.health.sickness_behind(2), SickRun)


def test_an_evaluation_without_numbers_is_sick():
    training = Training()
    with pytest.raises(SickRun, match="eval_loss is nan"):
        training.event("evaluate", metrics={"eval_loss": NAN, "eval_runtime": 1.0})


def test_notes_count_once_a_step_however_seldom_they_are_logged():
    notes = {"rewards/margins": [0.0], "rewards/accuracies": [0.0]}
    training = Training(lambda resumed: build_alarms(anchored=True, pairs=8), notes=notes)
    training.step()
    training.event("log", logs={"loss": 1.0})
    for margin in (-0.01, -0.02, -0.03, -0.04):
        for name, value in (("rewards/margins", margin), ("rewards/accuracies", 0.1)):
            notes[name] = [value] if margin == -0.01 else [*notes[name], value]
        training.step()
    for values in notes.values():
        values.append(-0.05 if values[-1] < 0 else 0.1)
    with pytest.raises(SickRun, match=r"preferences_inverted at step 6.*\n.*from 0 to -0.05"):
        training.step()


def test_of_a_trainer_without_notes_the_log_counts():
    training = Training(lambda resumed: build_alarms(rounding=1e-4))
    training.step()
    with pytest.raises(SickRun, match="first_margin"):
        training.event("log", logs={"loss": 0.7, "rewards/margins": 0.1})


class Reads(TorchDispatchMode):
    """Counts what waits for a device: numbers that the host reads, one or several at once."""

    NAMES = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero")

    def __init__(self, monkeypatch):
        super().__init__()
        self.count = 0
        to_list = torch.Tensor.tolist

        def counted_list(tensor):
            self.count += 1
            return to_list(tensor)

        monkeypatch.setattr(torch.Tensor, "tolist", counted_list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.name().partition(".")[0] in self.NAMES
        return func(*args, **(kwargs or {}))


def test_a_step_is_read_from_the_device_twice(monkeypatch):
    """Before the optimizer's step and after it; of all else TRL reads more by itself."""
    training = Training()
    reads = Reads(monkeypatch)
    with reads:
        for _ in range(3):
            training.step()
    assert reads.count == 2 * 3


def test_an_alarm_that_is_off_is_not_built():
    training = Training(lambda resumed: build_alarms(Tolerate.read(dict.fromkeys(ALARMS, True))))
    training.step(loss=NAN, gradient=NAN, change=NAN)
    training.event("save")
    training.event("evaluate", metrics={"eval_loss": NAN})
