"""Jobs of a sweep that differ in plain numbers alone are composed once, with the same result as one
by one.
"""

import re
from dataclasses import replace

import pytest
from laid import jobs_of

from runner.config import composition
from runner.config.resolution import Composed
from runner.errors import ConfigError
from runner.launch.compose import stages
from runner.launch.compose.grid import compose_jobs
from runner.schema.text import select, walk, walk_shared
from runner.validate.libraries import find_missing_libraries

NUMBERS = ["seed=range(0,3)", "learning_rate=1e-6,3e-6,1e-5"]
HEAD = "# @package _global_\ndefaults:\n  - override /trainer: dpo\ntrainer:\n  args:\n    "
PICKED = HEAD + "model_init_kwargs: {k3: 9}\n    logging_steps: "
PICKED += "${oc.select:trainer.args.model_init_kwargs.k${%s},7}\n    "
FILES = {
    "mixed": HEAD + "run_name: run-${seed}\n",
    "picked": PICKED % "seed",  # by one number in the middle, another
    "far": PICKED % "trainer.args.max_steps" + "max_steps: ${seed}\n",
    "dotted": HEAD + "model_init_kwargs: {a.b: '${seed}'}\n",
}


def counted(monkeypatch):
    """The number of configurations that are composed from now on."""
    composed = []
    resolve = composition.resolve
    monkeypatch.setattr(
        composition, "resolve", lambda *args, **named: composed.append(1) or resolve(*args, **named)
    )
    return composed


def in_any_order(runs: list[Composed]) -> list[Composed]:
    """Runs with their words in alphabetical order: in a sweep, those that are swept come first."""
    return [
        replace(
            run,
            overrides=sorted(run.overrides),
            words=sorted(run.words),
            command=sorted(run.command),
        )
        for run in runs
    ]


@pytest.mark.grid(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words, share",  # of the configurations that are composed one by one
    [
        (["trainer=ppo", "trainer.args.learning_rate=1e-6,1e-5,1e-4", "seed=0,1,2,3,4,5"], 0.1),
        (["experiment=picked", "+seed=1,2,3,4,5"], 1),
        (["trainer=dpo", *NUMBERS, "kl_coef=0.05,0.1,0.2"], 0.1),
        (["trainer=dpo", "peft=lora,qlora", "peft.r=4,8,16,32", "seed=range(0,4)"], 0.3),
        (["trainer=online_dpo", "kl_coef=0.05,0.1,0.2"], 1),  # in a list
        # others follow from it
        (["batch=8,16,32", "trainer.args.per_device_train_batch_size=2"], 1),
        (["speed=max", "trainer=sft", "seed=0,1,2", "trainer.args.max_length=64,128,256"], 1),
        (["experiment=mixed", *NUMBERS], 1),  # a part of a text
        (["experiment=far", "seed=1,2,3,4,5"], 1),
        (["experiment=dotted", "seed=1,2,3,4,5"], 1),
        (["experiment=toy_rlhf", "ppo.kl_coef=0.1,0.2,0.3"], 1),  # stages
        (["dataset.limit.train=4,8,16", "seed=1,2,3"], 1),
    ],
)
def test_each_job_is_what_it_is_alone(words, share, tmp_path, monkeypatch):
    (tmp_path / "experiment").mkdir()
    for name, text in FILES.items():
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    folders = [tmp_path] if words[0].partition("=")[2] in FILES else []
    calls = counted(monkeypatch)
    expected = [stages.compose_runs(job, folders) for job in jobs_of(words)]
    alone = len(calls)
    assert alone >= len(expected)
    jobs = compose_jobs(words, folders)
    assert list(map(in_any_order, jobs)) == list(map(in_any_order, expected))
    assert len(calls) - alone <= share * alone + 12


@pytest.mark.grid(3)
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words, key, job",
    [
        (["trainer=dpo", "seed=0,1,2.5,3"], "seed", "seed=2.5"),
        (
            ["trainer=dpo", "seed=range(0,500)", "trainer.args.num_train_epochs=1,2,x"],
            "num_train_epochs",
            "=x",
        ),
        # Conflicting numbers in the middle of both axes.
        (
            ["trainer=grpo", "seed=range(0,40)", "trainer.args.num_generations=2,3,4"],
            "num_generations",
            "=3",
        ),
        (["trainer=dpo", "seed=-1,1,2", "kl_coef=0.1,0.2,0.3"], "seed", "seed=-1"),
        (["trainer=dpo", "kl_coef=0.1,0.2,-1", *NUMBERS], "kl_coef", "kl_coef=-1"),
    ],
)
def test_a_fault_of_any_number_is_found(words, key, job):
    with pytest.raises(ConfigError, match=re.escape(key)) as raised:
        compose_jobs(words)
    assert job in str(raised.value)


@pytest.mark.slow
def test_ten_thousand_jobs_compose_a_few(monkeypatch):
    calls = counted(monkeypatch)
    jobs = compose_jobs(
        ["trainer=dpo", "seed=range(0,100)", "trainer.args.logging_steps=range(1,101)"]
    )
    assert len(jobs) == 10_000
    assert 0 < len(calls) < 12
    numbers = {(run.cfg["seed"], select(run.cfg, "trainer.args.logging_steps")) for [run] in jobs}
    assert len(numbers) == 10_000
    assert jobs[-1][0].overrides[:2] == ["seed=99", "trainer.args.logging_steps=100"]


@pytest.mark.slow
def test_jobs_that_are_composed_one_by_one_are_composed_once(monkeypatch):
    calls = counted(monkeypatch)
    words = ["trainer=dpo", "kl_coef=0.1,0.2", "trainer.args.loss_type=sigmoid,hinge"]
    for job in jobs_of(words):
        stages.compose_runs(job)
    alone = len(calls)
    assert alone >= 4
    compose_jobs(words)
    assert len(calls) == 2 * alone


def test_what_jobs_share_is_looked_at_once_and_nothing_is_left_out():
    words = [
        "trainer=dpo",
        "kl_coef=0.1,0.2,0.3",
        "seed=range(4)",
        "trainer.args.optim=adamw_torch,lomo",
    ]
    configs = [run.cfg for runs in compose_jobs(words) for run in runs]
    every = [(path, repr(value)) for cfg in configs for path, value in walk(cfg)]
    shared = [(path, repr(value)) for _, path, value in walk_shared(configs)]
    assert set(shared) == set(every)
    assert len(shared) < len(every)
    missing = [fault.found for fault in find_missing_libraries(*configs)]
    assert any(found.startswith("lomo needs") for found in missing)
