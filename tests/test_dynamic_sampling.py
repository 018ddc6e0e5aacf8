"""``trainer.dynamic_sampling``: prompts of TRL's trainers whose completions all earn the same."""

from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from going_on import check_going_on

from runner.config.composition import compose
from runner.errors import ConfigError, RunnerError
from runner.generate.completion import Completion
from runner.io.files import read_rows
from runner.launch.compose.stages import compose_runs
from runner.reward.panel import ScoredCompletions, find_differing_groups
from runner.run.history import read_metrics
from runner.run.key import key_of
from runner.training.dynamic_sampling import (
    EXCHANGED,
    DynamicSampling,
    SampledGroups,
    _replay_completions,
)


def test_groups_differ_by_what_they_earned():
    nan = float("nan")
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, nan, 0.5, nan, nan])
    assert find_differing_groups(scores, 2).tolist() == [False, True, False, False]


def test_the_rows_that_are_drawn_do_not_depend_on_the_number_of_processes():
    def drawn(processes, number=0, generations=1):
        rows = []
        for index in range(processes):
            args = SimpleNamespace(world_size=processes, process_index=index)
            trainer = SimpleNamespace(args=args, train_dataset=range(100))
            sampling = DynamicSampling(
                2, 7, None, ScoredCompletions(), step=3, generations=generations
            )
            rows += sampling._draw_rows(trainer, 8 // processes, number)
        return rows

    assert drawn(1) == drawn(2) == drawn(4)
    assert drawn(1) != drawn(1, number=1)
    assert drawn(1) != drawn(1, generations=2)


def groups_of(prompts, totals):
    size = len(totals) // len(prompts)
    rows = [{"prompt": prompt} for prompt in prompts for _ in range(size)]
    completions = [Completion(0, 0, row["prompt"], [1], "", [2], "stop") for row in rows]
    totals_B = torch.tensor(totals)
    return SampledGroups(rows, completions, totals_B[:, None].clone(), totals_B)


def test_a_group_takes_the_place_of_another_with_all_that_belongs_to_it():
    groups = groups_of("ab", [0.0, 0.0, 1.0, 1.0])
    further = groups_of("cd", [0.5, 0.5, 0.0, 2.0])
    groups.replace(0, 2, further, 1)
    assert [row["prompt"] for row in groups.rows] == list("ddbb")
    assert [completion.prompt for completion in groups.completions] == list("ddbb")
    assert groups.totals_B.tolist() == [0.0, 2.0, 1.0, 1.0]
    assert groups.rewards_BF.flatten().tolist() == [0.0, 2.0, 1.0, 1.0]
    assert groups.differ(2) == [True, False]


def test_prompts_that_a_trainer_encodes_otherwise_are_noticed():
    completions = [Completion(0, 0, "a", [5, 6], "", [7, 2], "stop")]
    trainer = SimpleNamespace(generation_config=SimpleNamespace(pad_token_id=0))
    mask = torch.tensor([[0, 1, 1]])
    ids = torch.tensor([[0, 5, 6]])
    replayed = _replay_completions(completions, trainer, input_ids=ids, attention_mask=mask)
    assert replayed.tolist() == [[0, 5, 6, 7, 2]]
    with pytest.raises(RunnerError, match="encodes a prompt otherwise"):
        _replay_completions(completions, trainer, input_ids=ids + 1, attention_mask=mask)


# --- The key --------------------------------------------------------------------------------------


def test_one_key_serves_ppo_and_the_trainers_of_trl():
    groups = "trainer.args.num_generations=4"
    at_top = compose(["trainer=ppo", groups, "trainer.dynamic_sampling=2"]).cfg
    in_args = compose(["trainer=ppo", groups, "trainer.args.dynamic_sampling=2"]).cfg
    assert at_top == in_args
    assert key_of(at_top) == key_of(in_args)
    grpo = compose(["trainer=grpo", "trainer.dynamic_sampling=2"]).experiment
    assert grpo.trainer.dynamic_sampling == 2
    assert compose(["trainer=grpo"]).experiment.trainer.dynamic_sampling == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("trainer=dpo", "does not learn from groups"),
        ("trainer=a2po", "does not learn from groups"),
        ("trainer=rloo dataset=toy_sort trainer.sampler=vllm", "vLLM samples"),
        ("trainer=grpo dataset=toy_sort trainer.args.use_vllm=true", "vLLM samples"),
        ("trainer=grpo dataset=toy_sort dataset.streaming=true", "not from a stream"),
        ("trainer=grpo dataset=toy_sort strategy=fsdp2", "shards the model"),
        (
            "trainer=grpo dataset=toy_sort trainer.tools=[runner.reward.rule.price]",
            "tools answers the completions",
        ),
    ],
)
def test_what_keeps_prompts_from_being_exchanged_is_refused(words, found):
    with pytest.raises(ConfigError) as refusal:
        compose_runs([*words.split(), "trainer.dynamic_sampling=2", "trainer.args.max_steps=2"])
    faults = [fault for fault in refusal.value.faults if fault.where == "trainer.dynamic_sampling"]
    assert len(faults) == 1
    assert found in faults[0].found


# --- Whole runs -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "rloo"])
def test_groups_without_a_signal_give_way_and_a_resume_ends_with_the_same_bits(train, trainer):
    """RLOO samples twice in a step, and each sample of GRPO is used for two steps."""
    words = [f"trainer={trainer}", "dataset=toy_sort", "metric=none", "dataset.limit.eval=8"]
    words += [
        "trainer.args.max_steps=6",
        "trainer.args.save_steps=2",
        "learning_rate=1e-4",
        "tolerate.ended_worse=true",
    ]
    words += ["trainer.args.per_device_train_batch_size=8", "trainer.args.logging_steps=1"]
    words += ["trainer.args.num_generations=4", "trainer.args.max_completion_length=12"]
    words += ["reward=exact_match", "tolerate.no_signal=true"]
    words += {
        "grpo": ["trainer.args.num_iterations=2"],
        "rloo": [
            "trainer.args.gradient_accumulation_steps=2",
            "trainer.args.steps_per_generation=1",
        ],
    }[trainer]
    plain = train(*words, name="plain")
    done = train(*words, "trainer.dynamic_sampling=4")
    assert (plain.code, done.code) == (0, 0)
    run = done.run
    lines = read_metrics(run.metrics)

    def share(lines):
        return fmean(
            line["frac_reward_zero_std"] for line in lines if "frac_reward_zero_std" in line
        )

    exchanged = [line[EXCHANGED] for line in lines if EXCHANGED in line]
    assert sum(exchanged) > 0
    assert share(lines) < share(read_metrics(plain.run.metrics))
    # The file of samples has the completions that were trained on, with their rewards.
    rows = read_rows(run.folder / "completions.jsonl")
    rewards = [row["rewards"] for row in rows if row.get("source") == "rollout"]
    assert rewards
    assert all(reward["exact_match"] in (0.0, 1.0) for reward in rewards)

    check_going_on(train, [*words, "trainer.dynamic_sampling=4"], run)
