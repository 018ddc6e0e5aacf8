"""The defects of ``tests/fault/defects.py`` can still be planted, and the tests that notice them
exist.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent / "fault"))

import defects
from defect_cases import DEFECTS, Defect

ROOT = Path(__file__).parent.parent


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {f"{file}::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_are_some_of_every_room():
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 30
    rooms = {path.stem if path.is_file() else path.name for path in (ROOT / "runner").glob("[!_]*")}
    assert {Path(defect.file).parts[1].removesuffix(".py") for defect in DEFECTS} <= {
        *rooms,
        "__main__",
    }


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_can_be_planted_and_its_tests_exist(defect):
    text = (ROOT / defect.file).read_text(encoding="utf-8")
    planted = defects.plant(defect, text)
    (ast.parse if defect.file.endswith(".py") else yaml.safe_load)(planted)
    assert planted != text
    listed = [*defect.tests, *defect.slow]
    assert listed
    assert set(listed) <= {name for test in listed for name in names_in(test.partition("::")[0])}


CODE = "def half(number):\n    return number / 2\n"
TESTS = "from maths import half\n\n\ndef test_{name}():\n    assert half({of}) == {of} / 2\n"


@pytest.fixture
def checkout(tmp_path):
    """A project of one function and two tests, of which the second sees little."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "maths.py").write_text(CODE)
    (tmp_path / "tests" / "test_four.py").write_text(TESTS.format(name="four", of=4))
    (tmp_path / "tests" / "test_zero.py").write_text(TESTS.format(name="zero", of=0))
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow
def test_a_defect_is_caught_or_missed_and_the_checkout_stays_as_it_is(
    checkout, monkeypatch, capsys
):
    four = "tests/test_four.py::test_four"
    zero = "tests/test_zero.py::test_zero"
    defect = Defect(
        "seen", "It takes a third.", "maths.py", "number / 2", "number / 3", tests=(four,)
    )
    unseen = Defect("unseen", "The same.", "maths.py", "number / 2", "number / 3", tests=(zero,))
    monkeypatch.setattr(defects, "DEFECTS", (defect, unseen))
    monkeypatch.setattr(defects, "ROOT", checkout)
    assert defects.main(["seen"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in told if line.startswith(("caught", "MISSED"))] == [
        ["caught", "seen"],
        ["MISSED", "unseen"],
    ]
    assert f"        {four}" in told
    assert f"        not by {zero}" in told
    assert (checkout / "maths.py").read_text() == CODE


@pytest.mark.slow
def test_a_test_without_an_end_is_ended(checkout):
    (checkout / "tests" / "test_four.py").write_text(
        "import time\n\n\ndef test_four():\n    time.sleep(100)\n"
    )
    outcome = defects.run_tests(checkout, ["tests/test_four.py"], seconds=3)
    assert not outcome.failed
    assert outcome.trouble == "no end after 3 s"


def test_a_text_found_twice_or_never_is_no_place(checkout):
    for text, count in (("one", 0), ("two two", 2)):
        with pytest.raises(ValueError, match=f"its place is {count} times"):
            defects.plant(Defect("two", "", "a.py", "two", "three"), text)
