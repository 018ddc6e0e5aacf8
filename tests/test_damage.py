"""Damage is named, an older checkpoint is used, and nothing silently starts over.

A part of ``fault/damage``.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from damage import KINDS, Sick

pytestmark = pytest.mark.slow
# One case for each kind of damage and of file.
CHOSEN = (
    ("checkpoint", "model.safetensors flipped"),
    ("lost", "all folders removed"),
    ("paper", "metrics.jsonl zeroed"),
)


@pytest.fixture(scope="module")
def sick(tmp_path_factory, warm):
    return Sick(tmp_path_factory.mktemp("damage"), warm)


@pytest.mark.dear("two trainings before the first case")
@pytest.mark.parametrize(("kind", "case"), CHOSEN)
def test_damage_is_noticed(sick, kind, case):
    assert dict(KINDS[kind](sick))[case]() == ""
