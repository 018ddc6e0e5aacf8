"""Bad input ends at the door, and what is odd but good passes it: a part of ``tests/fault/bad_input.py``.

The cases are tried by the script itself, in a process that has imported nothing heavy, as a shell would start it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

FAULT = Path(__file__).parent / "fault"
sys.path.append(str(FAULT))

from bad_input_cases import BAD, GOOD, KINDS

from runner.check.library import find_other_versions, is_within
from runner.config import quote_text
from runner.model.jinja import find_template_faults

NULL = [case for case in BAD if case.kind == "dataset" and "line null" in case.name]
DOOR = [case for case in BAD if not case.late and not case.skip and case not in NULL]
LATE = [case for case in BAD if case.late and not case.skip]
ODD = [case for case in GOOD if not case.skip]


def try_out(cases):
    """What the script says of these cases; fails where one of them misses."""
    names = [f"{case.kind} {case.name}" for case in cases]
    done = subprocess.run([sys.executable, str(FAULT / "bad_input.py"), *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok") >= len(cases) - 1


def test_there_are_as_many_cases_as_promised():
    assert len(BAD) >= 100 and all(cases for cases in KINDS.values()) and len(GOOD) >= 30
    assert len({(case.kind, case.name) for case in [*BAD, *GOOD]}) == len(BAD) + len(GOOD)


def test_rows_that_crash_a_reader_and_some_of_each_kind_are_refused_at_the_door():
    try_out([*NULL, *DOOR[::20]])


@pytest.mark.slow
def test_more_is_refused_at_the_door():
    try_out(DOOR[10::20])


@pytest.mark.slow
def test_what_only_loading_shows_is_told_and_what_is_good_trains():
    try_out([*LATE[::6], *ODD[::12]])


def test_an_installed_library_is_judged_by_its_release():
    assert list(find_other_versions()) == []
    own = ("2.13.0+cpu", "2.9", "2.9.0a0+145a3a7bda.nv25.10", "2.13.1.post1", "2.9.0rc1", "unheard", None)
    assert [version for version in own if not is_within(version, ">=2.9.0,<2.14")] == []
    others = ("2.8.9", "2.14", "2.14.0.dev20260101+cu130", "3.0")
    assert [version for version in others if is_within(version, ">=2.9.0,<2.14")] == []


@pytest.mark.parametrize("name", ["дані.jsonl", "rows (1).jsonl", "rows[1].jsonl", "a b (ü) [2].csv"])
def test_a_name_of_a_file_is_text(name):
    assert quote_text(f"dataset.path={name}") == f"dataset.path='{name}'"


@pytest.mark.parametrize("word", ["a=[x]", "a={b:c}", "a=range(3)", "a=choice(1,2)", "a=${b}", "a='ü'", "a=1)", "~a"])
def test_what_means_something_to_hydra_is_no_name(word):
    assert quote_text(word) == word


@pytest.mark.parametrize("text", ["{{ messages + 1 }}", "{{ 1 // 0 }}", "{{ messages[7].content.upper() }}"])
def test_a_template_that_fails_is_a_fault_however_it_fails(text):
    (fault,) = find_template_faults(text, "my.jinja", None, {}, chosen=True)
    assert "my.jinja" in fault.found
