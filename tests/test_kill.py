"""Killed at any instant, the same command continues to the same bits.

A part of ``tests/fault/kill.py``.
"""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from kill import punish

pytestmark = pytest.mark.slow


@pytest.mark.dear("a run of three starts, beside one that nothing disturbs")
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, warm):
    tally = punish("lora", 2, tmp_path, warm, random.Random("lora"), most=2, power=True)
    assert tally.missed == []
    assert tally.kills == 2
    assert tally.equal == tally.finished == tally.runs
