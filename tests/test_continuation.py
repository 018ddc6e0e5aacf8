"""The changes allowed between a run and one that resumes it, and nothing else.

A part of ``fault/resume``.
"""

import sys
from pathlib import Path

import pytest

from runner.config.experiment import Experiment

sys.path.append(str(Path(__file__).parent / "fault"))

from resume import (
    ALLOWED,
    FILES,
    NAMES,
    Interrupted,
    changes_of,
    composed,
    differs,
    is_whole,
    laid,
    misses_of_groups,
    noted,
    refused,
    told_differently,
)

from runner.io.files import write_json
from runner.run import Run
from runner.run.continuation import find_resume_faults
from runner.schema import upstream
from runner.training.components.args import build_args
from runner.validate.node import SET_BY_RUNNER


def resume_faults(cfg):
    return find_resume_faults(Experiment.read(cfg))


@pytest.mark.grid(3)
@pytest.mark.quick(2)
@pytest.mark.parametrize("trainer", NAMES)
def test_every_field_of_a_trainer_is_on_the_list_or_refused(trainer, tmp_path):
    cfg = laid(composed(trainer), tmp_path)
    changes = changes_of(cfg)
    listed = {name: new for name, (_, new) in changes.items() if name in ALLOWED}
    refused = {name: new for name, (_, new) in changes.items() if name not in ALLOWED}
    assert resume_faults(told_differently(cfg, listed)) == []
    refusals = resume_faults(told_differently(cfg, refused))
    faults = {fault.where.removeprefix("trainer.args."): fault for fault in refusals}
    assert sorted(faults) == sorted(refused)
    assert [name for name, fault in faults.items() if not is_whole(fault, *changes[name])] == []


def test_the_list_is_the_one_that_is_written_down():
    assert upstream.EXTENDABLE == ALLOWED


@pytest.mark.slow
def test_every_other_key_is_refused(tmp_path):
    assert [miss for miss in misses_of_groups(tmp_path) if miss[1]] == []


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("words", "change", "reason"),
    [
        (("trainer.args.lr_scheduler_type=linear",), {"max_steps": 99}, "schedule"),
        (("trainer.args.warmup_steps=0.1",), {"max_steps": 99}, "schedule"),
        ((), {"max_steps": 5}, "more than 80"),
        ((), {"max_steps": -1}, "set in another way"),
        (("callback.mine._target_=mine.Mine",), {"max_steps": 99}, "callback.mine"),
        (("callback.mine._target_=mine.Mine",), {"save_steps": 3}, "callback.mine"),
        (
            ("trainer.args.load_best_model_at_end=true",),
            {"eval_steps": 3},
            "load_best_model_at_end",
        ),
        (
            ("trainer.args.load_best_model_at_end=true",),
            {"max_steps": 99},
            "load_best_model_at_end",
        ),
        (("dataset.streaming=true",), {"dataloader_num_workers": 2}, "streamed"),
        (
            ("trainer=grpo", "trainer.args.num_completions_to_print=2"),
            {"logging_steps": 3},
            "num_completions_to_print",
        ),
    ],
)
def test_a_change_of_the_list_is_refused_where_something_hears_of_it(
    tmp_path, words, change, reason
):
    cfg = laid(composed("sft", *words), tmp_path)
    (fault,) = resume_faults(told_differently(cfg, change))
    assert reason in fault.expected
    assert " -> " in fault.found


def test_a_longer_run_keeps_to_when_the_reference_is_computed(tmp_path):
    cfg = laid(composed("dpo"), tmp_path)
    facts = {
        "reference": "in each step",
        "data": {"train": {"rows": 99 * upstream.batch_size(cfg["trainer"]["args"])}},
    }
    write_json(Run(Path(cfg["resume"])).folder / "manifest.json", facts)
    assert resume_faults(told_differently(cfg, {"max_steps": 98})) == []
    (fault,) = resume_faults(told_differently(cfg, {"max_steps": 99}))
    assert "once" in fault.found
    assert fault.fix.startswith("trainer.args.precompute_ref_log_probs=false")
    assert (
        resume_faults(told_differently(cfg, {"max_steps": 99, "precompute_ref_log_probs": False}))
        == []
    )


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo"])
def test_fields_that_the_runner_overrides_are_listed(tmp_path, trainer):
    """Naming the library's own default would be a change, which its signature does not show."""
    cfg = laid(composed(trainer), tmp_path)
    ours = build_args(Run(Path(cfg["resume"])))
    arguments = {
        name: value for name, value in cfg["trainer"]["args"].items() if name != "_target_"
    }
    plain = type(ours)(output_dir=ours.output_dir, bf16=False, **arguments)
    differing = {name for name in changes_of(cfg) if vars(ours)[name] != vars(plain)[name]}
    assert differing - set(SET_BY_RUNNER) - ALLOWED <= upstream.MACHINE_DEFAULTS


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, warm):
    return Interrupted(tmp_path_factory.mktemp("resume"), warm)


@pytest.mark.dear("a run that is killed, that run continued, and one that nothing disturbs")
@pytest.mark.grid(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "change"),
    [
        ("sft", ("trainer.args.max_steps=11", "trainer.args.save_steps=3")),
        ("grpo", ("trainer.args.max_steps=10",)),
    ],
)
def test_a_resumed_run_ends_as_if_the_change_had_always_been_there(interrupted, trainer, change):
    assert differs(interrupted, trainer, change) == ""


@pytest.mark.grid(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"), [*((name, "the same command") for name in FILES), ("rows", "another run")]
)
def test_a_changed_file_is_refused(interrupted, name, way):
    assert refused(interrupted, name, way) == ""


@pytest.mark.slow
def test_changed_code_is_noted(interrupted):
    assert noted(interrupted, "another run") == ""


@pytest.mark.slow
@pytest.mark.parametrize("change", ["learning_rate=1e-3", "dataset.limit.train=40"])
def test_another_value_is_refused_at_the_door(interrupted, change):
    place = interrupted.copy("sft")
    words = (
        *interrupted.words("sft"),
        change,
        f"resume={place.run.folder.relative_to(place.folder)}",
    )
    done = place.start(words).wait()
    assert done.returncode == 2
    assert " -> " in done.stderr
    assert "leave resume out" in done.stderr
