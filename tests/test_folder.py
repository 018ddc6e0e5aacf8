"""One folder, one run: a part of ``tests/fault/folder.py``."""

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from folder import KINDS

pytestmark = pytest.mark.slow


# A dead driver is tried in ``test_sweep``.
@pytest.mark.parametrize(("kind", "count"), [("pairs", 2), ("starts", 4), ("again", 1)])
def test_a_folder_has_one_run(tmp_path, warm, kind, count):
    assert list(KINDS[kind](tmp_path, warm, count, random.Random(0))) == []
