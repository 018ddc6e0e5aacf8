"""Held-out figures are those of the set, whatever the batches and processes, and the right one
ranks.
"""

import itertools
import json
from fractions import Fraction
from types import SimpleNamespace

import numpy
import pytest
from transformers import TrainerState

from runner.io.files import read_json
from runner.run.adjustments import in_words
from runner.schema import upstream
from runner.training.beginning import forget_other_best
from runner.training.components.assembly import build_components
from runner.training.even_batches import EvenBatches
from runner.training.held_out import HeldOutSums
from runner.training.recovery import find_batch_term

# Answers of 9, 4, 6, 4 and 2 tokens with their ends.
LINES = [
    {"prompt": "1 2 3", "chosen": "1 2 3 4 5 6 7 8", "rejected": "4", "reference": "7 2 3"},
    {"prompt": "4 2", "chosen": "2 4 4", "rejected": "1 2 3 4 5 6", "reference": "2 4 6 8 9"},
    {"prompt": "1 2 3", "chosen": "1 2 3 4 5", "rejected": "3 2", "reference": "1"},
    {"prompt": "9", "chosen": "9 1 2", "rejected": "1", "reference": "7 9"},
    {"prompt": "5", "chosen": "5", "rejected": "1 2 3 4", "reference": "5 5 5 5 5 5"},
]
QUICK = ("metric=none", "trainer.args.max_steps=1", "trainer.args.per_device_train_batch_size=4")
QUICK += ("dataset.split.train=train", "trainer.args.save_strategy=no")


@pytest.fixture
def rows(tmp_path):
    """The words for a file of five rows to train on, and for other such rows that are held out."""
    for name, mark in (("rows", "6"), ("held", "8")):
        lines = [json.dumps(line | {"prompt": f"{mark} {line['prompt']}"}) for line in LINES]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return (
        f"dataset={tmp_path / 'rows.jsonl'}",
        f"dataset.split.eval.path={tmp_path / 'held.jsonl'}",
    )


# --- Rows and sums ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 8, 13, 24, 37])
@pytest.mark.parametrize(
    ("size", "processes", "group"), [(2, 2, 1), (3, 4, 1), (8, 1, 1), (4, 3, 6), (1, 8, 4)]
)
def test_processes_share_rows_so_that_each_counts_once(count, size, processes, group):
    order = list(range(count * group))
    shares = [EvenBatches(order, size, processes, process, group) for process in range(processes)]
    weights = dict.fromkeys(order, Fraction(0))
    for together in zip(*(share.batches for share in shares), strict=True):
        assert len({len(batch) for batch in together}) == 1
        assert 0 < len(together[0]) <= size
        joined = list(itertools.chain.from_iterable(together))
        for start in range(0, len(joined), group):
            assert joined[start] // group == joined[start + group - 1] // group
    for share in shares:
        assert share.copies == shares[0].copies
        for batch, copies in zip(share.batches, share.copies, strict=True):
            for row in batch:
                weights[row] += Fraction(1, copies)
    assert set(weights.values()) <= {1}


def test_sums_of_batches_are_the_figures_of_all_rows():
    rewards = numpy.array([1.0, 0.0, 0.5, 0.25, 1.0, 0.75, 0.0])
    sums = HeldOutSums(copies=[1, 1, 2, 2])
    for batch in (rewards[:3], rewards[3:5], rewards[5:], rewards[5:]):
        deviation = batch.std(ddof=1)
        figures = {
            "reward": batch.mean(),
            "reward_std": deviation,
            "min_reward": batch.min(),
            "max_reward": batch.max(),
        }
        sums.add(
            figures | {"entropy": batch[0]}, {"rows": len(batch), "tokens": 10 * batch[0]}, "rows"
        )
    figures = sums.gathered().figures()
    assert figures["reward"] == pytest.approx(rewards.mean())
    assert figures["reward_std"] == pytest.approx(rewards.std(ddof=1))
    assert (figures["min_reward"], figures["max_reward"]) == (0, 1)
    assert figures["entropy"] == pytest.approx((1 + 0.25**2 + 0.75**2) / (1 + 0.25 + 0.75))


# --- Every trainer ------------------------------------------------------------------------------
# TRL logs these figures under other names, or counts them differently for one batch and several.

FIGURES = {
    "sft": ("loss", "entropy", "mean_token_accuracy"),
    "sft weight=pattern weight.pattern='[0-9]' weight.weight=3": (
        "loss",
        "cross_entropy",
        "mean_token_accuracy",
    ),
    "dpo": (
        "loss",
        "entropy",
        "mean_token_accuracy",
        "logits/chosen",
        "rewards/margins",
        "logps/rejected",
    ),
    "dpo trainer.args.loss_type=[aot,sft] trainer.args.loss_weights=[1.0,0.5]": (
        "loss",
        "rewards/accuracies",
    ),
    "kto": ("loss", "entropy", "rewards/margins", "logps/chosen"),
    "orpo": ("loss", "nll_loss", "log_odds_ratio"),
    "cpo": ("loss", "nll_loss", "rewards/accuracies"),
    "tpo": ("loss", "entropy", "mean_token_accuracy"),
    "reward": ("loss", "min_reward", "mean_reward", "accuracy", "margin"),
    "gkd trainer.teacher_model.path=runner://model/tiny": ("loss",),
}


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("words", FIGURES)
def test_the_figures_of_a_set_do_not_depend_on_its_batches(train, rows, words):
    done = train(f"trainer={words.split()[0]}", *words.split()[1:], *rows, *QUICK)
    assert done.code == 0
    trainer = build_components(done.run).trainer
    figures_by_size = []
    for size in (8, 3, 2, 1):
        trainer.args.per_device_eval_batch_size = size
        scores = trainer.evaluate()
        figures_by_size.append(
            {
                name: value
                for name, value in scores.items()
                if not name.endswith(("runtime", "_per_second"))
            }
        )
    assert {f"eval_{name}" for name in FIGURES[words]} <= figures_by_size[0].keys()
    for figures in figures_by_size[1:]:
        assert figures == pytest.approx(figures_by_size[0], rel=1e-5, abs=1e-6)


@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["sft", "orpo"])
def test_two_processes_give_the_figures_of_one(runner, rows, trainer):
    words = (f"trainer={trainer}", *rows, *QUICK, "trainer.args.per_device_eval_batch_size=2")
    runner(*words, "name=one")
    for started in runner.start_two(*words, "name=two"):
        assert started.wait().returncode == 0
    alone, two = (
        read_json(runner.runs(name)[0] / "scores.json")["before"] for name in ("one", "two")
    )
    assert two == pytest.approx(alone, rel=1e-5)
    assert "eval_loss" in alone


# --- What ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "settings", "figure"),
    [
        ("sft", {}, "loss"),
        ("sft", {"args": {"loss_type": "nll", "neftune_noise_alpha": 5}}, "loss"),
        ("sft", {"args": {"loss_type": "dft"}}, "cross_entropy"),
        ("sft", {"args": {"label_smoothing_factor": 0.1}}, "cross_entropy"),
        ("sft", {"loss": {"_target_": "runner.loss.focal"}}, "cross_entropy"),
        ("sft", {"weight": {"_target_": "runner.dataset.weigh.last_round"}}, "cross_entropy"),
        *(
            ("dpo", {"args": {"loss_type": [kind]}}, "loss")
            for kind in ("sigmoid", "ipo", "robust", "sft", "aot")
        ),
        ("dpo", {"args": {"loss_type": ["sigmoid", "discopop"]}}, "rewards/accuracies"),
        ("dpo", {"args": {"use_weighting": True}}, "rewards/accuracies"),
        ("kto", {}, "loss"),
        ("kto", {"loss": {"_target_": "mylab.loss"}}, "rewards/margins"),
        ("reward", {"loss": {"_target_": "mylab.loss"}}, "accuracy"),
        ("orpo", {}, "loss"),
        ("grpo", {}, "reward"),
        ("sdpo", {}, "loss"),
        ("ppo", {}, "objective/scores"),
    ],
)
def test_the_figure_that_ranks_is_no_loss_that_measures_nothing(trainer, settings, figure):
    from runner.config.menu import read_options

    node = read_options("trainer")[trainer]["trainer"]
    node = node | {"args": node["args"] | settings.get("args", {})}
    assert (
        upstream.ranking_figure(
            {"trainer": node} | {key: settings[key] for key in settings.keys() - {"args"}}
        )
        == figure
    )


@pytest.mark.slow
def test_the_best_of_dft_is_that_of_the_lowest_cross_entropy(train, rows):
    words = ("trainer=sft", "trainer.args.loss_type=dft", *rows, *QUICK, "trainer.args.max_steps=4")
    best = ("trainer.args.load_best_model_at_end=true", "trainer.args.eval_strategy=steps")
    best += (
        "trainer.args.eval_steps=2",
        "trainer.args.save_strategy=steps",
        "trainer.args.save_steps=2",
    )
    done = train(*words, *best, "learning_rate=1e-3")
    entropies = [
        line["eval_cross_entropy"]
        for line in done.lines
        if "eval_cross_entropy" in line and line["step"]
    ]
    state = read_json(done.run.checkpoints / "checkpoint-4" / "trainer_state.json")
    assert state["best_metric"] == pytest.approx(min(entropies))
    assert len(entropies) == 2
    plain = train("trainer=sft", *rows, *QUICK, name="plain")
    before = done.scores["before"]["eval_cross_entropy"]
    assert plain.scores["before"]["eval_loss"] == pytest.approx(before, rel=1e-5)
    assert "eval_cross_entropy" not in plain.scores["before"]


@pytest.mark.slow
def test_the_best_checkpoint_is_not_chosen_by_a_loss_that_rises(train, rows, capsys):
    words = (
        "trainer=sft",
        "trainer.args.loss_type=dft",
        *rows,
        "--dry-run",
        "trainer.args.eval_strategy=steps",
    )
    metric = "trainer.args.metric_for_best_model"
    assert train(*words, f"{metric}=eval_loss").code == 2
    told = capsys.readouterr().err
    assert "loss_type=dft may raise" in told
    assert f"{metric}=eval_cross_entropy" in told
    assert train(*words, f"{metric}=eval_cross_entropy").code == 0


# --- Smaller micro-batches ----------------------------------------------------------------------


def test_a_halving_says_if_later_steps_differ():
    hooks = SimpleNamespace(loss=None)
    args = SimpleNamespace(loss_type="sigmoid")
    terms = [
        find_batch_term(SimpleNamespace(hooks=hooks, args=args, **settings))
        for settings in (
            {},
            {"cpo_alpha": 0.0},
            {"cpo_alpha": 1.0},
            {"odds_ratio_loss": None},
            {"tpo_alpha": 1.0},
            {
                "loss_types": ["sft"],
                "loss_weights": [1.0],
                "ld_alpha": None,
                "use_weighting": False,
            },
            {"loss_types": ["aot"]},
            {"calculate_KL": True},
            {"aux_loss_enabled": True},
        )
    ]
    assert terms[:2] == [None, None]
    assert all(terms[2:])
    halving = {
        "step": 3,
        "cause": "out of memory in a step",
        "from_step": 2,
        "args": {"rows": 4},
        "note": "others",
    }
    assert (
        in_words(halving)
        == "step 3: out of memory in a step; again from step 2 with rows=4; others"
    )


def test_a_best_checkpoint_that_another_figure_chose_is_forgotten(caplog):
    args = SimpleNamespace(metric_for_best_model="cross_entropy")
    state = TrainerState(
        best_metric=0.5, best_model_checkpoint="a", log_history=[{"eval_cross_entropy": 0.5}]
    )
    forget_other_best(state, args)
    assert state.best_model_checkpoint == "a"
    assert not caplog.text
    state.log_history = [{"eval_loss": 0.5}]
    forget_other_best(state, args)
    assert state.best_metric is None
    assert state.best_model_checkpoint is None
    assert "a figure other than eval_cross_entropy" in caplog.text
