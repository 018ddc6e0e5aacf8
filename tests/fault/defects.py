"""Mistakes that a developer could make, planted one at a time in a copy of the checkout.

A test fails for each.

    python tests/fault/defects.py                    every defect with the tests listed for it
    python tests/fault/defects.py seal ppo           those whose name or file holds one of the words
    python tests/fault/defects.py seal --slow        with listed tests that train whole runs, too
    python tests/fault/defects.py seal --tests tests/test_files.py    with these tests instead
    python tests/fault/defects.py seal --all-tests   with all tests

The defects are data, in ``defect_cases``. Code that moves takes its defects along: only ``file``,
``old`` and ``new`` change, and whatever the tests caught before, they still have to. First the
tests run without any defect, because one that fails anyway shows nothing. Prints a line for each
defect; the exit code is 1 where one is not caught.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE)]

from defect_cases import DEFECTS, Defect

# No parallel processes, no traces between two runs, and at the end one line for each test that
# failed.
OPTIONS = ("-n0", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE")
FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)
# of pytest's exit codes; any other one says that the tests did not run
TESTS_FAILED = 1
ALL_PASSED = 0


@dataclass(frozen=True)
class Outcome:
    """The tests that failed, without the parameters in their names.

    ``trouble`` if they did not run to the end.
    """

    failed: tuple[str, ...]
    seconds: float
    trouble: str = ""


def copy_checkout(place: Path, root: Path) -> Path:
    """The files that git knows, or does not ignore, as they are now, in a new folder."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=root, capture_output=True, check=True).stdout.decode()
    for name in sorted(set(listed.split("\0")) - {""}):
        if (root / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, place / name)
    return place


def plant(defect: Defect, text: str) -> str:
    """The text of the defect's file with the mistake in it.

    ValueError unless its place is found exactly once.
    """
    if (count := text.count(defect.old)) != 1:
        raise ValueError(
            f"{defect.name}: its place is {count} times in {defect.file}, and not once"
        )
    return text.replace(defect.old, defect.new)


@contextmanager
def planted(defect: Defect, copy: Path) -> Iterator[None]:
    """A context within which the copy has the defect."""
    file = copy / defect.file
    text = file.read_text(encoding="utf-8")
    try:
        _write(file, plant(defect, text))
        yield
    finally:
        _write(file, text)


def _write(file: Path, text: str) -> None:
    """Write source and remove the compiled file, which may have the same size and date from the
    same second.
    """
    file.write_text(text, encoding="utf-8")
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()


def run_tests(copy: Path, tests: Sequence[str], seconds: float) -> Outcome:
    """The outcome of some tests in a copy, in a process of their own with a time limit."""
    began = time.monotonic()
    failed = ()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory(prefix="defect-tests-") as place,
        open(Path(place) / "said", "w+") as output,
    ):
        words = [sys.executable, "-m", "pytest", *OPTIONS, f"--basetemp={place}/tmp", *tests]
        child = subprocess.Popen(
            words,
            cwd=copy,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        text = output.read()
    spent = time.monotonic() - began
    if code is None:
        return Outcome((), spent, f"no end after {seconds:.0f} s")
    if code == TESTS_FAILED:
        failed = tuple(dict.fromkeys(FAILED.findall(text)))
    trouble = (
        ""
        if failed or code == ALL_PASSED
        else f"pytest left with {code}: {' '.join(text.split())[-300:]}"
    )
    return Outcome(failed, spent, trouble)


def choose(words: Sequence[str]) -> list[Defect]:
    """The defects whose name or file holds one of the words; all of them without any."""
    return [
        defect
        for defect in DEFECTS
        if not words or any(word in f"{defect.name} {defect.file}" for word in words)
    ]


def tests_for(defect: Defect, *, slow: bool) -> tuple[str, ...]:
    """The listed tests of a defect.

    Those that train whole runs only on request or if there are no others.
    """
    return (*defect.tests, *defect.slow) if slow or not defect.tests else defect.tests


def check(defects: Sequence[Defect], asked: argparse.Namespace) -> int:
    """Plant each defect and print which tests fail.

    1 if one is not caught, or a test fails without any defect.
    """
    instead = ["tests"] if asked.all_tests else asked.tests
    chosen = {defect.name: instead or tests_for(defect, slow=asked.slow) for defect in defects}
    lost = []
    with tempfile.TemporaryDirectory(prefix="defects-") as place:
        copy = copy_checkout(Path(place), ROOT)
        sound = run_tests(
            copy, sorted({test for tests in chosen.values() for test in tests}), 4 * asked.timeout
        )
        if sound.trouble:
            print(f"without a defect: {sound.trouble}")
            return 1
        print(
            "\n    ".join(
                [
                    f"without a defect {len(sound.failed)} tests fail, {sound.seconds:.0f} s",
                    *sound.failed,
                ]
            )
        )
        for defect in defects:
            with planted(defect, copy):
                outcome = run_tests(copy, chosen[defect.name], asked.timeout)
            caught = [test for test in outcome.failed if test not in sound.failed]
            missed = [test for test in chosen[defect.name] if test not in caught and not instead]
            head = f"{'caught' if caught else 'MISSED'}  {defect.name:<32} {outcome.seconds:5.0f} s"
            but = [outcome.trouble, *(f"not by {test}" for test in missed)]
            print("\n        ".join(filter(None, [head, *caught, *but])), flush=True)
            lost += [] if caught else [defect.name]
    print(f"{len(defects) - len(lost)} of {len(defects)} defects are caught")
    return 1 if lost or sound.failed else 0


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of defects, or parts of names or files")
    parser.add_argument(
        "--slow", action="store_true", help="also the listed tests that train whole runs"
    )
    parser.add_argument("--tests", nargs="+", help="these instead of the listed ones")
    parser.add_argument(
        "--all-tests", action="store_true", help="all tests instead of the listed ones"
    )
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds for the tests of one defect"
    )
    asked = parser.parse_args(words)
    defects = choose(asked.names)
    if not defects:
        parser.error(
            f"no defect of that name; there are {', '.join(defect.name for defect in DEFECTS)}"
        )
    return check(defects, asked)


if __name__ == "__main__":
    # so that the copy and the tests go, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
