"""Checkpoints are taken where a resume is exact, sealed, and only then rotated."""

import time
from types import SimpleNamespace

import pytest

from runner.run.alarms import ALARMS, Step, build_alarms, steps_to_notice
from runner.run.seal import checkpoints_at_once, damage_of, rotate, seal
from runner.schema.upstream import cycle_steps
from runner.training import checkpoint as checkpoints
from runner.training.checkpoint import Seal


def control(save):
    return SimpleNamespace(should_save=save, should_log=False)


def state(step, total=100, best=None):
    return SimpleNamespace(global_step=step, max_steps=total, is_world_process_zero=True, best_model_checkpoint=best)


def test_a_save_inside_a_generation_cycle_waits_for_its_end():
    keeper = Seal(2, steps_to_notice(), cycle_steps=4)
    saved = []
    for step in range(1, 13):
        asked = control(save=step in (2, 5, 8))
        keeper.on_step_end(None, state(step), asked)
        if asked.should_save:
            assert asked.should_log
            saved.append(step)
    assert saved == [4, 8]


def test_the_last_step_is_saved_wherever_it_falls():
    keeper, asked = Seal(2, steps_to_notice(), cycle_steps=4), control(save=True)
    keeper.on_step_end(None, state(10, total=10), asked)
    assert asked.should_save


@pytest.mark.parametrize("stops", [True, False])
def test_the_steps_before_an_early_stop_are_logged(stops):
    asked = SimpleNamespace(should_save=False, should_log=False, should_training_stop=stops)
    Seal(2, steps_to_notice()).on_epoch_end(None, state(7), asked)
    assert asked.should_log == stops


def checkpoint(root, step):
    folder = root / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "weights").write_text(str(step))
    return folder


def test_older_checkpoints_go_after_the_new_one_is_sealed_and_the_best_stays(tmp_path):
    keeper, args = Seal(2, steps_to_notice()), SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1)
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step)
        keeper.on_save(args, state(step, best=str(tmp_path / "checkpoint-1")), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]
    assert not any(damage_of(path) for path in tmp_path.iterdir())


@pytest.mark.quick(2)
@pytest.mark.parametrize("tolerate", [None, {"diverged": 20}], ids=["as_it_is", "patient"])
@pytest.mark.parametrize("every", [1, 4, 10])
def test_a_checkpoint_from_before_the_first_sick_step_stays_until_the_sickness_is_noticed(tmp_path, tolerate, every):
    notice, args = steps_to_notice(tolerate), SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1)
    keeper, most = Seal(2, notice), 0
    for step in range(every, 90, every):
        checkpoint(tmp_path, step)
        most = max(most, len([*tmp_path.iterdir()]))
        keeper.on_save(args, state(step), None)
        there = [int(path.name.partition("-")[2]) for path in tmp_path.iterdir()]
        for alarm in build_alarms(tolerate):
            alarm.count = alarm.patience
            healthy = alarm.sickness(Step(step + 1), "sick").healthy
            assert healthy < every or min(there) <= healthy
    assert most == checkpoints_at_once(2, notice, "steps", every, 90)


@pytest.mark.parametrize(("keep", "best", "left"), [(2, 1, [1, 9]), (2, 8, [8, 9]), (3, None, [7, 8, 9]), (1, 9, [9])])
def test_a_finished_run_has_no_more_checkpoints_than_it_may_and_the_best_of_them(tmp_path, keep, best, left):
    for step in range(1, 10):
        seal(checkpoint(tmp_path, step))
    rotate(tmp_path, keep, best and f"checkpoint-{best}")
    assert sorted(int(path.name.partition("-")[2]) for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize(
    ("args", "steps"),
    [
        ({"gradient_accumulation_steps": 4}, 1),
        ({"gradient_accumulation_steps": 1, "steps_per_generation": 4, "num_iterations": 1}, 4),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 4, "num_iterations": 3}, 6),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": None, "num_iterations": 2}, 2),
    ],
)
def test_cycle_steps(args, steps):
    assert cycle_steps(args) == steps


def test_without_any_alarm_the_last_checkpoints_are_enough():
    assert steps_to_notice(dict.fromkeys(ALARMS, True)) == 1


def test_processes_meet_while_one_reads_a_large_checkpoint(monkeypatch):
    met = []

    def gather(mine: list) -> list:
        met.append(mine)
        return [*mine, *([True] if isinstance(mine[0], bool) else ["of another"])]

    monkeypatch.setattr(checkpoints, "gather_object", gather)
    monkeypatch.setattr(checkpoints, "MEET", 0.01)
    assert checkpoints.gather_long(lambda: [time.sleep(0.1) or "mine"]) == ["mine", "of another"]
    assert met[0] == [False] and met[-2:] == [[True], ["mine"]]
