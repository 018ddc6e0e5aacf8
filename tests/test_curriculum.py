"""``trainer.curriculum``: rows that are solved always or never are drawn less."""

import json
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from going_on import check_going_on

from runner.dataset.curriculum import MEMORY, MIN_WEIGHT, Curriculum, curriculum_keys
from runner.errors import ConfigError, DataError
from runner.generate.sampler import seeded_generator
from runner.launch.compose.stages import compose_runs
from runner.run.history import read_metrics
from runner.training.curriculum import MEMORY_FILE, RowCurriculum
from runner.training.dynamic_sampling import EXCHANGED

NAN = float("nan")


def test_rows_that_are_solved_always_or_never_weigh_less():
    curriculum = Curriculum(list("abcde"))
    for row, rewards in enumerate(([0.0] * 16, [1.0] * 16, [0.0, 1.0] * 8, [0.0] * 4)):
        curriculum.record(row, rewards)
    never, always, half, once_never, new = curriculum.weights()
    assert never == always == pytest.approx(2 / 18)
    assert half == new == 1.0
    assert never < once_never < half
    # What the model could do before is forgotten.
    curriculum.record(2, [1.0] * MEMORY)
    assert curriculum.weights()[2] == always


def test_no_row_is_left_out_for_good():
    curriculum = Curriculum(["a", "b"])
    curriculum.record(0, [0.0] * 1000)
    curriculum.record(1, [0.0, 1e9])
    assert MIN_WEIGHT <= curriculum.weights()[0] < 0.2
    drawn = Counter()
    for number in range(500):
        drawn.update(curriculum.draw(1, seeded_generator(number)))
    assert 20 < drawn[0] < 100


def test_rows_of_a_draw_are_different_where_there_are_enough():
    curriculum = Curriculum(list("abcd"))
    assert sorted(curriculum.draw(4, seeded_generator(0))) == [0, 1, 2, 3]
    assert len(curriculum.draw(9, seeded_generator(0))) == 9


def test_rows_with_one_value_in_a_column_share_what_is_known():
    rows = Dataset.from_dict({"prompt": list("abc"), "level": [1, 2, 1]})
    assert curriculum_keys(rows, "rows") == ["0", "1", "2"]
    curriculum = Curriculum(curriculum_keys(rows, "level"))
    curriculum.record(0, [0.0] * 4)
    curriculum.record(1, [0.0, 1.0])
    first, second, third = curriculum.weights()
    assert first == third < second
    with pytest.raises(DataError, match="levle"):
        curriculum_keys(rows, "levle")


def test_the_rows_of_a_step_do_not_depend_on_the_number_of_processes():
    def drawn(processes):
        rows = []
        for index in range(processes):
            args = SimpleNamespace(world_size=processes, process_index=index)
            trainer = SimpleNamespace(args=args, train_dataset=Dataset.from_dict({"a": range(50)}))
            rows += RowCurriculum("rows", 3).draw(trainer, 8 // processes, 5)
        return rows

    assert drawn(1) == drawn(2) == drawn(4)
    assert len(set(drawn(1))) == 8


def test_completions_that_earned_nothing_are_not_recorded():
    args = SimpleNamespace(device=torch.device("cpu"))
    trainer = SimpleNamespace(args=args, train_dataset=Dataset.from_dict({"a": range(3)}))
    curriculum = RowCurriculum("rows", 3)
    curriculum.record(trainer, [2, 0], torch.tensor([0.0, NAN, NAN, NAN]))
    assert curriculum.of(trainer).rewards == {"2": [0.0]}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("trainer=dpo", "does not learn from groups"),
        ("trainer=ppo dataset.streaming=true", "not from a stream"),
        ("trainer=grpo dataset=toy_sort trainer.args.use_vllm=true", "vLLM samples"),
    ],
)
def test_what_keeps_a_curriculum_from_choosing_rows_is_refused(words, found):
    with pytest.raises(ConfigError) as refusal:
        compose_runs([*words.split(), "trainer.curriculum=rows", "trainer.args.max_steps=2"])
    faults = [fault for fault in refusal.value.faults if fault.where == "trainer.curriculum"]
    assert len(faults) == 1
    assert found in faults[0].found


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "rloo", "ppo"])
def test_a_curriculum_is_stored_in_checkpoints_and_a_resume_ends_with_the_same_bits(train, trainer):
    """PPO exchanges prompts without a signal besides, whose first scores are remembered."""
    words = [f"trainer={trainer}", "dataset=toy_sort", "metric=none", "dataset.limit.eval=8"]
    words += ["dataset.limit.train=12", "trainer.args.max_steps=6", "trainer.args.save_steps=2"]
    words += [
        "learning_rate=1e-4",
        "tolerate.ended_worse=true",
        "trainer.args.logging_steps=1",
        "reward=exact_match",
    ]
    words += ["tolerate.no_signal=true", "tolerate.constant_reward=true"]
    words += ["trainer.curriculum=rows", "trainer.args.num_generations=4"]
    words.append("trainer.args.per_device_train_batch_size=16")
    if trainer == "ppo":
        words += ["trainer.args.response_length=12", "trainer.dynamic_sampling=2"]
    else:
        words.append("trainer.args.max_completion_length=12")
    run = train(*words).run
    # The forecast of learning, of which these are enough completions.
    assert re.search(r"learning  \d+ % of the prompts have a signal", run.log.read_text())
    memory = json.loads((run.checkpoints / "checkpoint-6" / MEMORY_FILE).read_text())
    assert len(memory) >= 4
    assert {len(rewards) % 4 for rewards in memory.values()} == {0}
    exchanged = [line.get(EXCHANGED, 0.0) for line in read_metrics(run.metrics)]
    assert (sum(exchanged) > 0) == (trainer == "ppo")
    check_going_on(train, words, run)
