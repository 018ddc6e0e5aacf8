"""Evaluations that sample: the number of their prompts, where it is shown, and the progress bar."""

from types import SimpleNamespace

import pytest

from runner.__main__ import main
from runner.config.experiment import Experiment
from runner.generate import budget
from runner.generate.budget import evaluation_budget
from runner.launch.compose.stages import compose_runs
from runner.training.callback import progress

GCD = ("environment=reasoning_gym", "environment.tasks=[gcd]")


def said(capsys, *words: str) -> list[str]:
    assert main([*words, "--dry-run"]) == 0
    return capsys.readouterr().out.splitlines()[:-1]


@pytest.mark.slow
def test_the_plan_says_how_much_is_sampled_and_what_to_type_for_less(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("trainer=grpo", "dataset=tldr", "trainer.args.max_steps=10")
    bound, note = said(capsys, *words)
    assert bound.startswith(
        "evaluates at most 64 held-out prompts, 8 answers each, and 200 for metrics"
    )
    assert (
        "longer than the training: they sample up to 1,424 answers, while it takes 320 texts"
        in note
    )
    fix = note.rpartition("; ")[2]
    assert fix.startswith("dataset.limit.eval=")
    assert said(capsys, *words, fix) == []
    epoch = (
        *words[:2],
        "dataset.limit.train=16",
        "trainer.args.max_steps=-1",
        "trainer.args.num_train_epochs=1",
    )
    assert "1,424 answers, while it takes 128 texts" in said(capsys, *epoch)[1]


@pytest.mark.slow
def test_metrics_of_known_answers_have_no_bound(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert said(capsys, "trainer=dpo", "dataset=ultrafeedback", "trainer.args.max_steps=1") == []
    (composed,) = compose_runs(["trainer=online_dpo", "metric=none"])
    assert (
        evaluation_budget(Experiment.read(composed.cfg)) is None
    )  # its own evaluation is left out


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "answers", "evaluations"),
    [
        (["trainer=grpo", "trainer.args.num_generations_eval=2", "metric=none"], 128, 2),
        (["trainer=ppo", "dataset=mixture"], 128, 2),
        (["trainer=sft", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=20"], 200, 6),
        (["trainer=sft", "metric.exact.limit=10"], 10, 2),
        (["trainer=grpo", *GCD, "environment.held_out=4"], 32, 2),
    ],
)
def test_the_budget_counts_prompts_of_all_evaluations(words, answers, evaluations):
    (composed,) = compose_runs(words)
    budget = evaluation_budget(Experiment.read(composed.cfg))
    assert (budget.answers, budget.evaluations) == (answers, evaluations)


@pytest.mark.slow
def test_an_online_trainer_answers_no_more_and_the_bar_says_what_it_does(train, monkeypatch):
    told = []
    bar = SimpleNamespace(
        n=0, total=1, disable=True, update=lambda steps: told.append("step"), close=lambda: None
    )
    bar.set_description = told.append
    bar.set_postfix_str = lambda text, refresh: None
    monkeypatch.setattr(progress, "progress_bar", lambda *args, **options: bar)
    monkeypatch.setattr(budget, "PROMPTS", 8)
    words = (
        "trainer.args.max_completion_length=8",
        "trainer.args.max_steps=1",
        "dataset.limit.train=64",
    )
    assert train("trainer=grpo", *words).code == 0
    # answers to 8 prompts
    evaluation = ["evaluating", "evaluating 1/2", "evaluating 2/2", "measuring", "training"]
    assert told == [*evaluation, "step", *evaluation]
