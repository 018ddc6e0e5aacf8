"""A run's state is true, whatever happened to it in whatever order: a part of ``fault/states``."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from states import live


@pytest.mark.dear("three lives, with a process for each event")
@pytest.mark.slow
def test_states_cannot_lie():
    live(3)
