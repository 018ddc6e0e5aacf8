"""A full disk costs no good checkpoint; with space again, the run ends: part of ``fault/disk``."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from disk import INSTANTS, RECORD, SIZES, Whole, can_mount

pytestmark = pytest.mark.slow
small = pytest.mark.skipif(
    not can_mount(), reason="no tmpfs may be mounted here: it needs root or user namespaces"
)
traced = pytest.mark.skipif(not shutil.which("strace"), reason="no strace here")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, warm):
    return Whole(tmp_path_factory.mktemp("disk"), warm)


@small
@pytest.mark.parametrize("size", SIZES[8:9])
def test_a_small_disk(whole, size):
    assert whole.filled(RECORD, 1, int(size * whole.checkpoint))[1] == ""


@small
@pytest.mark.parametrize("instant", ["a seal"])
def test_a_disk_that_is_full_at_an_instant(whole, instant):
    assert whole.filled(*INSTANTS[instant], 0) == (True, "")


@pytest.mark.grid(1)
@traced
@pytest.mark.parametrize(("call", "number"), [("write", 3), ("write", 9)])
def test_a_write_of_a_save_that_fails(whole, call, number):
    assert whole.injected(call, number) == (True, "")
