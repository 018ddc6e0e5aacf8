"""Metrics in whole runs.

Part of every evaluation, they choose the best checkpoint and stop a run early.
"""

import json
import math
import random
from pathlib import Path

import pytest

from runner.io.files import read_rows

SMALL = ("trainer.args.max_steps=4", "dataset.limit.train=64", "dataset.limit.eval=24")
EVERY_TWO = ("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2")
SAVED = (
    "trainer.args.save_strategy=steps",
    "trainer.args.save_steps=2",
    "trainer.args.load_best_model_at_end=true",
)

pytestmark = pytest.mark.slow


def evaluations(done):
    return [line for line in done.lines if any(name.startswith("eval_") for name in line)]


def test_sampled_and_read_metrics_are_in_every_evaluation(train):
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    also = (
        "++metric.perplexity={_target_: runner.metric.likelihood.perplexity, better: lower}",
        "++metric.exact={_target_: runner.reward.rule.exact_match}",
    )
    done = train(
        *SMALL,
        *EVERY_TWO,
        "metric=translation",
        *also,
        "trainer.args.per_device_eval_batch_size=24",
    )
    assert (done.code, [line["step"] for line in evaluations(done)]) == (0, [0, 2, 4])
    for line in evaluations(done):
        figures = ["eval_bleu", "eval_chrf", "eval_rouge", "eval_perplexity", "eval_exact"]
        assert [name for name in line if name in figures] == figures
        # All answers have the same number of tokens, so the mean over tokens is the loss of the one
        # batch.
        assert math.log(line["eval_perplexity"]) == pytest.approx(line["eval_loss"], rel=1e-4)
    assert done.scores["after"]["eval_perplexity"] == pytest.approx(
        evaluations(done)[-1]["eval_perplexity"]
    )


@pytest.mark.grid(1)
@pytest.mark.parametrize("trainer", ["dpo", "reward"])
def test_the_best_checkpoint_is_chosen_by_the_auc_of_pairs(train, trainer):
    rate = {"dpo": 1e-2, "reward": 1e-3}[trainer]
    words = (
        f"trainer={trainer}",
        "metric=auc",
        f"learning_rate={rate}",
        "trainer.args.max_steps=6",
    )
    done = train(*SMALL, *words, *EVERY_TWO, *SAVED, "trainer.args.metric_for_best_model=eval_auc")
    assert done.code == 0
    areas = {line["step"]: line["eval_auc"] for line in evaluations(done) if line["step"]}
    assert len(areas) == 3
    for area in areas.values():
        assert 0 <= area <= 1
    assert done.scores["after"]["eval_auc"] == pytest.approx(max(areas.values()), abs=1e-6)
    if trainer == "dpo":  # a rate at which the first evaluation is not the last
        assert len(set(areas.values())) > 1


def test_a_run_stops_early_by_a_metric(train):
    stop = ("callback=early_stopping", "callback.early_stopping.early_stopping_patience=1")
    words = ("metric=perplexity", "trainer.args.metric_for_best_model=eval_perplexity")
    lower = ("trainer.args.greater_is_better=false", "learning_rate=1.0")  # gets worse
    tolerated = ("tolerate.diverged=true", "tolerate.ended_worse=true")
    done = train(
        *SMALL, *words, *lower, *tolerated, *EVERY_TWO, *SAVED, *stop, "trainer.args.max_steps=40"
    )
    assert done.code == 0
    assert max(line["step"] for line in done.lines) < 40


@pytest.mark.grid(1)
@pytest.mark.parametrize("rows", ["held out", "none held out"])
@pytest.mark.parametrize("trainer", ["grpo", "online_dpo", "ppo"])
def test_a_reward_without_a_metric_leaves_answers_to_look_at(train, trainer, rows, capsys):
    words = [
        f"trainer={trainer}",
        "reward=distinct_characters",
        *SMALL,
        "metric=none",
        "trainer.args.max_steps=2",
    ]
    words += [] if rows == "held out" else ["dataset.split.eval=null"]
    done = train(*words)
    assert done.code == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("samples")]
    steps = {row["step"] for row in read_rows(Path(line.split(maxsplit=1)[1]))}
    assert steps >= {0, 2}


@pytest.mark.grid(1)
@pytest.mark.parametrize("trainer", ["grpo", "ppo", "kto"])
def test_other_trainers_measure_while_they_train(train, trainer):
    reward = ("reward=length",) if trainer in ("grpo", "ppo", "online_dpo") else ()
    words = (
        f"trainer={trainer}",
        "metric=exact",
        "metric.exact.limit=8",
        "metric.exact.max_new_tokens=3",
        *reward,
    )
    also = "++metric.auc={_target_: runner.metric.binary.auc, answers: all}"
    done = train(
        *SMALL, *words, also, *EVERY_TWO, *SAVED, "trainer.args.metric_for_best_model=eval_auc"
    )
    assert done.code == 0
    steps = {line["step"] for line in evaluations(done) if {"eval_exact", "eval_auc"} <= set(line)}
    assert steps == {0, 2, 4}
    rows = read_rows(done.run.folder / "completions.jsonl")
    # Beside what was trained on.
    answers = [row["completion"] for row in rows if row.get("source") != "rollout"]
    # of four digits
    assert len(answers) == 24
    assert max(len(answer.split()) for answer in answers) <= 3


def shop(path):
    """Rows of a recommender: users like what they liked before, and two of them like everything."""
    draw = random.Random(0)
    rows = []
    for number in range(96):
        user = f"user {number % 8}"
        likes = number % 8 > 5 or draw.random() < 0.5
        asked = [{"role": "user", "content": f"Review the {'cafe' if likes else 'gym'}."}]
        answer = [{"role": "assistant", "content": "great" if likes else "bad"}]
        rows.append({"prompt": asked, "completion": answer, "user_id": user})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_auc_within_users_on_several_sets_each_with_its_own_metrics(train, tmp_path):
    words = ()
    for name in ("auc", "grouped_auc", "accuracy"):
        words += (f"metric.{name}.positive=great", f"metric.{name}.preprocess.negative=bad")
    sets = (
        "dataset.split.train=train[:48]",
        "dataset.split.eval={one: 'train[48:72]', two: 'train[72:]'}",
    )
    done = train(
        *(
            "dataset=local",
            f"dataset.path={shop(tmp_path / 'rows.jsonl')}",
            *sets,
            "metric=grouped_auc",
            *words,
        ),
        *("metric.accuracy.on=[two]", "trainer.args.max_steps=8", "learning_rate=1e-2"),
        *(*EVERY_TWO, "trainer.args.save_strategy=steps", "trainer.args.save_steps=2"),
        *(
            "trainer.args.load_best_model_at_end=true",
            "trainer.args.metric_for_best_model=eval_two_grouped_auc",
        ),
    )
    assert done.code == 0
    last = evaluations(done)[-1]
    assert {"eval_one_auc", "eval_two_auc", "eval_one_grouped_auc", "eval_two_accuracy"} <= set(
        last
    )
    assert "eval_one_accuracy" not in last
    assert last["eval_one_grouped_auc_skipped"] >= 2
    assert last["eval_one_grouped_auc_skipped"] + last["eval_one_grouped_auc_groups"] == 8
    assert last["eval_two_auc"] > 0.95  # the answer follows from the prompt, and is learnt


def test_samples_of_several_sets_stay_apart(train):
    sets = "dataset.split.eval={one: 'eval[:4]', two: 'eval[4:8]'}"
    done = train("trainer.args.max_steps=2", "dataset.limit.train=64", sets, "metric=exact")
    assert done.code == 0
    lines = (done.run.folder / "completions.jsonl").read_text().splitlines()
    rows = [(row["step"], row["set"]) for row in map(json.loads, lines)]
    assert sorted(set(rows)) == [(0, "one"), (0, "two"), (2, "one"), (2, "two")]
    assert len(rows) == 16


def test_metrics_change_nothing_of_the_training(train):
    words = ("trainer=grpo", "trainer.args.max_completion_length=8", *SMALL[:2], *EVERY_TWO)
    words += ("dataset.limit.eval=4",)
    done = [train(*words, f"metric={metric}", name=metric) for metric in ("none", "exact")]
    first, second = ((trained.run.model / "model.safetensors").read_bytes() for trained in done)
    assert first == second


REFUSED = [
    (("trainer=reward", "metric=exact"), "a reward model gives one score per text"),
    (("trainer=reward", "metric=perplexity"), "a model's predictions of tokens"),
    (("metric=exact", "dataset.split.eval=null"), "there are no held-out rows"),
    (("metric=exact", "metric.exact.on=[one]"), "no held-out set one"),
    (("metric=exact", "metric.exact.colum=x"), "column"),
    (("metric=exact", "metric.exact.answers=wrong"), "right, all"),
    (
        ("metric=perplexity", "trainer.args.metric_for_best_model=eval_perplexity"),
        "greater_is_better=false",
    ),
    (("metric=perplexity", "metric.perplexity.on=3"), "metric.perplexity.on"),
]


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("words", "finding"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_metric_that_cannot_be_computed_is_a_fault_of_the_configuration(
    train, words, finding, capsys
):
    assert train(*words).code == 2
    assert finding in capsys.readouterr().err
