"""The forecast of learning: what the first rewards say, and the SFT that would help."""

import math
import re
import shlex
from types import SimpleNamespace

import pytest

from runner.__main__ import main
from runner.config.experiment import Experiment
from runner.generate.environment.rows import environment_rows
from runner.generate.learning import count_groups
from runner.launch.compose.stages import compose_runs
from runner.run import Run, write_config, write_manifest
from runner.run.key import folder_of
from runner.training import first_rollouts
from runner.training.first_rollouts import FirstRollouts
from runner.training.follow_up import propose_answers

SOURCE = """
class Sums:
    rewards = ["right"]
    single_turn = True

    def rows(self, count, seed, held_out):
        first = count if held_out else 0
        rows = []
        for number in range(first, first + count):
            answer = str(number) if number % 2 else None
            prompt = [{"role": "user", "content": f"{number} + 0"}]
            rows.append({"prompt": prompt, "reference": answer})
        return rows

    def make(self):
        return Sum()


class Sum:
    def reset(self, reference, **row):
        self.reference = reference

    def respond(self, message):
        self.answer = message["content"]

    def get_reward(self):
        return {"right": float(self.answer == self.reference)}
"""


@pytest.mark.parametrize(
    ("groups", "is_possible", "text"),
    [
        (
            [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.5, 0.5]],
            True,
            "25 % of the prompts have a signal; of 8 completions for 4 prompts, 1 always solved "
            "(1, the best reward seen), 1 never (0, the worst)",
        ),
        (
            [[0.0, 0.0], [0.0, 0.0]],
            False,
            "nothing can be learnt: all 4 completions for 2 prompts earned 0",
        ),
        (
            [[1.0, 1.0], [-0.5, -0.5]],
            False,
            "nothing can be learnt: of 4 completions for 2 prompts, all for the same prompt "
            "earned the same, from -0.5 to 1",
        ),
        # A critic compares prompts with each other.
        (
            [[1.0], [-0.5], [-0.5]],
            True,
            "of 3 completions for 3 prompts, 1 always solved (1, the best reward seen), "
            "2 never (-0.5, the worst)",
        ),
    ],
)
def test_a_forecast_counts_signals_and_prompts_solved(groups, is_possible, text):
    learning = count_groups(groups)
    assert learning.is_possible == is_possible
    assert str(learning) == text


def test_a_completion_without_a_reward_counts_for_nothing():
    assert count_groups([[math.nan, math.nan]]) is None
    assert count_groups([[math.nan, 1.0], [1.0, 0.0], [math.nan]]).completions == 3


def test_the_sft_that_is_proposed_keeps_what_was_chosen_and_can_be_typed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["experiment=toy_grpo", "model=new", "model.num_hidden_layers=1", "learning_rate=1e-3"]
    (composed,) = compose_runs(words)
    proposal = propose_answers(composed.command, composed.choices)
    command, _, then = proposal.partition(" shows the model answers; ")
    sft = shlex.split(command)[3:]
    assert sft[0] == "trainer=sft"
    assert sorted(sft[1:]) == ["dataset=toy_sort", "model.num_hidden_layers=1", "model=new"]
    assert main([*sft, "--dry-run"]) == 0, capsys.readouterr().err
    assert "model=hub model.path=outputs/" in then
    # It is the folder that this command trains in.
    (trained,) = compose_runs(sft)
    folder = re.search(r"model.path=(\S+)/model", then)[1]
    assert str(folder_of(trained.cfg, trained.overrides)) == folder


def test_no_sft_is_proposed_on_rows_without_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Sort 3 1"}\n')
    words = ["trainer=grpo", "dataset=rows.jsonl", "dataset.form=prompt"]
    assert propose_answers(words, {"dataset": "local", "model": "hub"}) == ""


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """The words of an environment that gives an answer to every other question."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "sums_of_test.py").write_text(SOURCE)
    return [
        "environment=own",
        "environment._target_=sums_of_test.Sums",
        "environment.size=8",
        "environment.held_out=4",
        "allow=[sums_of_test]",
        "model=tiny",
    ]


def test_the_answers_of_an_environment_are_rows_for_sft(sums, capsys):
    (composed,) = compose_runs(["trainer=grpo", *sums])
    proposal = propose_answers(composed.command, composed.choices)
    sft = shlex.split(proposal.partition(" shows the model answers; ")[0])[3:]
    assert sft == ["trainer=sft", *sums, "dataset.form=prompt_completion"]
    assert main([*sft, "--dry-run"]) == 0, capsys.readouterr().err
    (trained,) = compose_runs(sft)
    part = Experiment.read(trained.cfg).environment
    train, held_out = environment_rows(part, form="prompt_completion", to="demonstration")
    assert len(train) == 4
    assert len(held_out) == 2
    assert train[0]["prompt"][-1]["content"] == "1 + 0"
    assert train[0]["completion"] == [{"role": "assistant", "content": "1"}]
    # The model that has seen them is trained on prompts, as before.
    prompts, _ = environment_rows(part, form="prompt", to="prompt")
    assert len(prompts) == 8


class Samples:
    """Notes of rollouts, in place of those of a trainer."""

    def __init__(self, rewards):
        self.rollout = object()
        self.rewards = rewards

    def earned(self):
        return self.rewards


def roll_out(first, rewards, step, rows=()):
    samples = Samples(rewards)
    trainer = SimpleNamespace(
        args=SimpleNamespace(num_generations=4),
        hooks=SimpleNamespace(samples=samples),
        state=SimpleNamespace(global_step=step),
        is_world_process_zero=lambda: True,
        train_dataset=rows,
    )
    first.observe(trainer)
    first.observe(trainer)  # a further micro-batch of the same rollout


@pytest.fixture
def first(tmp_path, monkeypatch):
    """The forecast of a run of GRPO on an untrained model, and the notes that it reads."""
    monkeypatch.chdir(tmp_path)
    (composed,) = compose_runs(["trainer=grpo", "model=new", "dataset=toy_sort"])
    run = Run(tmp_path / "outputs" / "a" / "b")
    write_config(run.folder, composed.cfg)
    command = ["python", "-m", "runner", *composed.command]
    write_manifest(run, command=command, choices=composed.choices)
    return FirstRollouts(run)


def test_a_training_notes_what_its_first_rollouts_have_earned(first, monkeypatch):
    lines = []
    monkeypatch.setattr(first_rollouts.tqdm, "write", lines.append)
    rewards = [0.0, 1.0, 0.0, 0.0] * 8
    roll_out(first, rewards, step=0)
    assert not lines
    roll_out(first, [0.0] * 32, step=1)
    roll_out(first, [0.0] * 32, step=2)
    assert lines == [
        "learning  50 % of the prompts have a signal; of 64 completions for 16 prompts, "
        "0 always solved (1, the best reward seen), 8 never (0, the worst)"
    ]
    assert not first.run.manifest().get("notes")


def test_a_training_that_earns_nothing_names_the_sft_that_would_help(first):
    row = {"prompt": "Sort 3 1", "reference": "1 3"}
    roll_out(first, [0.0] * 64, step=0, rows=[row])
    (note,) = first.run.manifest()["notes"]
    assert note.startswith(
        "nothing can be learnt: all 64 completions for 16 prompts earned 0: "
        "python -m runner trainer=sft model=new dataset=toy_sort shows the model answers; then"
    )


def test_rows_without_answers_and_a_resumed_run_have_no_such_note(first):
    roll_out(first, [0.0] * 64, step=0, rows=[{"prompt": "Sort 3 1"}])
    (note,) = first.run.manifest()["notes"]
    assert note == "nothing can be learnt: all 64 completions for 16 prompts earned 0"
    resumed = FirstRollouts(first.run)
    roll_out(resumed, [1.0] * 64, step=5)
    assert first.run.manifest()["notes"] == [note]


@pytest.mark.slow
@pytest.mark.dear("a run that is rehearsed, and the training of another one")
def test_a_rehearsal_and_a_training_say_that_an_untrained_model_can_learn_nothing(runner):
    words = (
        "trainer=grpo",
        "model=new",
        "dataset=toy_sort",
        "dataset.limit.eval=4",
        "reward=exact_match",
        "metric=none",
        "trainer.args.max_completion_length=8",
        "trainer.args.per_device_train_batch_size=64",
        "trainer.args.max_steps=2",
    )
    nothing = "nothing can be learnt: all {} completions for {} prompts earned 0: "
    sft = "python -m runner trainer=sft model=new dataset=toy_sort dataset.limit.eval=4"
    done = runner("rehearse", *words)
    assert f": {nothing.format(128, 16)}{sft} shows the model answers" in done.stdout
    done = runner(*words)
    assert f"{nothing.format(64, 8)}{sft}" in done.stdout + done.stderr
    folder = re.search(r"model=hub model.path=(\S+)/model", done.stdout + done.stderr)[1]
    runner(*shlex.split(sft)[3:], "trainer.args.max_steps=2", "trainer.args.logging_steps=1")
    assert folder.startswith("outputs/")
