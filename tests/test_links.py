"""Whatever lies in the place of a run's file leads nowhere and blocks nobody.

A part of ``fault/links``.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "fault"))

from links import make_run, miss_of

pytestmark = pytest.mark.slow
CASES = [
    ("report", "metrics.jsonl", "pipe"),
    ("train", "checkpoints", "link_to_folder"),
    ("report of the name", "../plots", "link_to_folder"),
    ("resume", "checkpoints/checkpoint-2", "second_name"),
    ("predict", "status.json", "socket"),
    ("sweep", "metrics.jsonl", "second_name"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, warm):
    return make_run(warm, tmp_path_factory.mktemp("links") / "trained", verbs=())


@pytest.mark.grid(2)
@pytest.mark.parametrize(("verb", "place", "kind"), CASES)
def test_nothing_elsewhere_is_written_deleted_or_shown(trained, warm, tmp_path, verb, place, kind):
    assert miss_of(warm, trained, tmp_path, verb, place, kind) == ""
