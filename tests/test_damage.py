"""A part of ``fault/damage``: damage is named, an older checkpoint is used, and nothing is started over in silence."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from damage import KINDS, Sick

pytestmark = pytest.mark.slow
# One of each way to harm, and of what a file is for.
CHOSEN = {
    "checkpoint": (
        "model.safetensors flipped",
        "optimizer.pt cut",
        "trainer_state.json zeroed",
        "seal.json deleted",
    ),
    "lost": ("all folders removed",),
    "model": ("predict of a flipped model", "no checkpoint to mend it"),
    "paper": ("metrics.jsonl zeroed",),
}


@pytest.fixture(scope="module")
def sick(tmp_path_factory, warm):
    return Sick(tmp_path_factory.mktemp("damage"), warm)


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind, cases in CHOSEN.items() for case in cases]
)
def test_damage_is_noticed(sick, kind, case):
    assert dict(KINDS[kind](sick))[case]() == ""
