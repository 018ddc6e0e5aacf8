"""A part of ``fault/sick``: sick runs stop within five steps and keep their last good checkpoint, healthy ones end."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from sick import HEALTHY, SICK, perform

pytestmark = pytest.mark.slow
# One of each alarm and kind of trainer, and the healthy ones that look most like them.
CHOSEN_SICK = {
    *("nan weight lora dpo", "nan weight grpo", "nan weight at a save", "inf gradient orpo", "nan evaluation"),
    *("rate 1e10 lora", "all labels masked", "zero gradient accumulated", "frozen adapter", "constant reward ppo"),
    *("kl grpo", "sign of dpo", "sign of gradients sft", "wrong reference"),
}
CHOSEN_HEALTHY = {
    *("sft", "sft memorised", "sft row by row", "sft frozen layers", "dpo warm-up from 0", "kto one-sided batches"),
    *("reward", "grpo rare rewards", "grpo at the best reward", "ppo lora"),
}


@pytest.mark.parametrize("case", [case for case in SICK if case.name in CHOSEN_SICK], ids=lambda case: case.name)
def test_a_sick_run_stops(case, tmp_path):
    outcome = perform(case, tmp_path)
    assert not outcome.faults(case), outcome.text


@pytest.mark.parametrize("case", [case for case in HEALTHY if case.name in CHOSEN_HEALTHY], ids=lambda case: case.name)
def test_a_healthy_run_ends(case, tmp_path):
    outcome = perform(case, tmp_path)
    assert not outcome.faults(case), outcome.text
