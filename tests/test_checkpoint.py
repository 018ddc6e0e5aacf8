"""Checkpoints are taken where a resume is exact, sealed, and only then rotated."""

import threading
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, PromptEncoderConfig, get_peft_model
from safetensors.torch import save_file
from tiny_ppo import letter_model

from runner.config.experiment import Tolerate
from runner.errors import RunnerError
from runner.model.saved import find_unsaved
from runner.run.alarms import ALARMS, Step, build_alarms, steps_to_notice
from runner.run.seal import checkpoints_at_once, damage_of, rotate, seal
from runner.schema.upstream import cycle_steps
from runner.training import checkpoint as checkpoints
from runner.training.checkpoint import Seal
from runner.training.prompt_encoder import PromptEncoder

MODEL = torch.nn.Linear(2, 2)
TRAINED = {"model": MODEL, "optimizer": torch.optim.AdamW(MODEL.parameters())}


def control(save):
    return SimpleNamespace(should_save=save, should_log=False)


def state(step, total=100, best=None):
    return SimpleNamespace(
        global_step=step, max_steps=total, is_world_process_zero=True, best_model_checkpoint=best
    )


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
    keeper = Seal(2, steps_to_notice(), cycle_steps=4)
    asked = control(save=True)
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


def test_old_checkpoints_go_after_the_new_seal_but_the_best(tmp_path):
    keeper = Seal(2, steps_to_notice())
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1)
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step)
        keeper.on_save(args, state(step, best=str(tmp_path / "checkpoint-1")), None, **TRAINED)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-1",
        "checkpoint-3",
        "checkpoint-4",
    ]
    for path in tmp_path.iterdir():
        assert not damage_of(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tolerate", [None, Tolerate.read({"diverged": 20})], ids=["as_it_is", "patient"]
)
@pytest.mark.parametrize("every", [1, 4, 10])
def test_a_checkpoint_from_before_the_first_sick_step_stays_until_the_sickness_is_noticed(
    tmp_path, tolerate, every
):
    notice = steps_to_notice(tolerate)
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1)
    keeper = Seal(2, notice)
    most = 0
    for step in range(every, 90, every):
        checkpoint(tmp_path, step)
        most = max(most, len([*tmp_path.iterdir()]))
        keeper.on_save(args, state(step), None, **TRAINED)
        steps = [int(path.name.partition("-")[2]) for path in tmp_path.iterdir()]
        for alarm in build_alarms(tolerate):
            alarm.count = alarm.patience
            healthy = alarm.sickness(Step(step + 1), "sick").healthy
            assert healthy < every or min(steps) <= healthy
    assert most == checkpoints_at_once(2, notice, "steps", every, 90)


@pytest.mark.parametrize(
    ("keep", "best", "remaining"),
    [(2, 1, [1, 9]), (2, 8, [8, 9]), (3, None, [7, 8, 9]), (1, 9, [9])],
)
def test_a_finished_run_keeps_its_limit_and_the_best_checkpoint(tmp_path, keep, best, remaining):
    for step in range(1, 10):
        seal(checkpoint(tmp_path, step))
    rotate(tmp_path, keep, best and f"checkpoint-{best}")
    assert sorted(int(path.name.partition("-")[2]) for path in tmp_path.iterdir()) == remaining


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
    assert steps_to_notice(Tolerate.read(dict.fromkeys(ALARMS, True))) == 1


def test_processes_meet_while_one_reads_a_large_checkpoint(monkeypatch):
    met = []
    met_while_reading = threading.Event()

    def gather(mine: list) -> list:
        met.append(mine)
        if mine == [False]:
            met_while_reading.set()
        return [*mine, True] if isinstance(mine[0], bool) else [*mine, "of another"]

    def read_large_checkpoint() -> list:
        met_while_reading.wait()
        return ["mine"]

    monkeypatch.setattr(checkpoints, "gather_object", gather)
    monkeypatch.setattr(checkpoints, "MEET", 0.01)
    assert checkpoints.gather_long(read_large_checkpoint) == ["mine", "of another"]
    assert met[0] == [False]
    assert met[-2:] == [[True], ["mine"]]


# --- Nothing that is trained is left out ----------------------------------------------------------


def test_a_checkpoint_that_lacks_a_trained_weight_is_not_sealed(tmp_path):
    keeper = Seal(2, steps_to_notice())
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1)
    save_file({"weight": MODEL.weight.detach()}, checkpoint(tmp_path, 1) / "model.safetensors")
    with pytest.raises(RunnerError, match=r"1 trained weights are not in it.*: bias") as refused:
        keeper.on_save(args, state(1), None, **TRAINED)
    assert "trainer.args.save_strategy=no" in str(refused.value)
    assert not (tmp_path / "checkpoint-1" / "seal.json").exists()
    save_file(MODEL.state_dict(), checkpoint(tmp_path, 2) / "model.safetensors")
    keeper.on_save(args, state(2), None, **TRAINED)
    assert damage_of(tmp_path / "checkpoint-2") == {}


# torch 2.9 uses a class of its own that it has deprecated.
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
@pytest.mark.parametrize(
    "form", ["model.safetensors", "pytorch_model_fsdp.bin", "pytorch_model_fsdp_0"]
)
def test_each_form_of_a_checkpoint_says_what_it_lacks(tmp_path, form):
    import torch.distributed.checkpoint as dcp

    weights = {name: weight.detach() for name, weight in MODEL.named_parameters()}
    for lacking in ("", "bias"):
        folder = tmp_path / f"lacks-{lacking}"
        folder.mkdir()
        saved = {name: weight for name, weight in weights.items() if name != lacking}
        if form.endswith("safetensors"):
            save_file(saved, folder / form)
        elif form.endswith("bin"):
            torch.save(saved, folder / form)
        else:
            with pytest.warns(UserWarning, match="save in a single process"):
                dcp.save({"model": saved}, checkpoint_id=folder / form, no_dist=True)
        assert find_unsaved(**TRAINED, checkpoint=folder) == ([lacking] if lacking else [])


def test_only_trained_weights_must_be_in_a_checkpoint(tmp_path):
    model = get_peft_model(
        letter_model(),
        LoraConfig(target_modules=["q_proj"], use_dora=True, modules_to_save=["lm_head"]),
    )
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad])
    model.save_pretrained(tmp_path)
    assert find_unsaved(model, optimizer, tmp_path) == []
    optimizer.add_param_group({"params": [model.base_model.model.model.norm.weight]})
    assert find_unsaved(model, optimizer, tmp_path) == ["base_model.model.model.norm.weight"]


def test_the_encoder_of_a_learnt_prompt_resumes_unchanged(tmp_path):
    config = PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, encoder_hidden_size=4)
    model = get_peft_model(letter_model(), config)
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer = SimpleNamespace(
        model=model, accelerator=accelerator, resumed_from=str(checkpoint(tmp_path, 1))
    )
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    saver = PromptEncoder(trainer)
    args = SimpleNamespace(output_dir=str(tmp_path))
    saver.on_save(args, state(1), None)
    model.save_pretrained(tmp_path / "checkpoint-1")
    optimizer = torch.optim.SGD(weight for weight in model.parameters() if weight.requires_grad)
    assert find_unsaved(model, optimizer, tmp_path / "checkpoint-1") == []
    for weight in model.prompt_encoder.parameters():
        weight.data.zero_()
    saver.on_train_begin(args, state(1), None)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
