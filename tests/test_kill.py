"""Killed at any instant, the same command continues to the same bits: a part of ``tests/fault/kill.py``."""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from kill import punish

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("trainer", "power"), [("lora", True), ("grpo", False), ("ppo", False)])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, warm, trainer, power):
    tally = punish(trainer, 3, tmp_path, warm, random.Random(trainer), most=3, power=power)
    assert tally.missed == [] and tally.kills == 3 and tally.equal == tally.finished == tally.runs
