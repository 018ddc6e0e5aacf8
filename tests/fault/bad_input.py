"""Bad input ends at the door with one line of cause and one of fix; odd but good input passes.

    python tests/fault/bad_input.py                 every case
    python tests/fault/bad_input.py number null     those whose kind or name holds one of the words
    python tests/fault/bad_input.py control         what TRL's own trainers do with some of them

Prints a line for each case: its verdict, exit code, CPU seconds, whether torch was imported, and
the first words that were said. The exit code is 1 where a case misses. The cases are data, in
``bad_input_cases``.

A command is forked from this process, which has imported the door and nothing heavy; the seconds
that the imports took are added to those of each command. What is only found behind the door, and
good input that trains for a step, is forked from a process that has everything (``tests/warm.py``).
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

from bad_input_cases import BAD, GOOD, STEP, Case
from bad_input_control import run_controls
from warm import Warm

from runner.__main__ import main

START = time.process_time()
PATIENCE = 120  # seconds of wall clock, after which a command counts as hanging
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Outcome:
    """The outcome of a command.

    Its exit code, its output, CPU seconds, and the files left in its folder.
    """

    code: int
    text: str
    seconds: float = 0.0
    torch: bool = True
    left: list[str] = field(default_factory=list)


def run(case: Case, folder: Path, warm: Warm | None = None) -> Outcome:
    """Run the command of a case in a new folder below ``folder``, from the warm process if one is
    given.
    """
    work = folder / f"{case.kind}-{case.name}".replace(" ", "-")
    work.mkdir(parents=True)
    case.prepare(work)
    home = folder / "home" / work.name
    before = listed(work)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HF_HOME": str(home / "hf"),
        **ENVIRONMENT,
    }
    environment |= {name: value.format(folder=work) for name, value in case.environment.items()}
    environment = {name: value for name, value in environment.items() if value != "unset"}
    words = [word.replace("{folder}", str(work)) for word in case.words]
    if case.cold:
        outcome = run_cold(case, words, work, environment)
    elif warm is not None:
        done = warm.run(words, work, dict(os.environ) | environment)
        outcome = Outcome(done.returncode, done.stdout + done.stderr)
    else:
        outcome = run_forked(case, words, work, environment)
    outcome.left = sorted(listed(work) - before)
    return outcome


def listed(folder: Path) -> set[str]:
    """Every path below a folder; links are not followed."""
    paths = set()
    for place, folders, files in os.walk(folder):
        paths |= {os.path.join(place, name) for name in (*folders, *files)}
    return paths


def run_forked(case: Case, words: list[str], work: Path, environment: dict[str, str]) -> Outcome:
    """The command in a fork of this process."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            be_command(case, words, work, environment, output.fileno(), told.fileno())
        _, status, usage = wait(child)
        output.seek(0), told.seek(0)
        facts = json.loads(told.read() or b"{}")
        text = output.read().decode(errors="replace")
    seconds = START + usage.ru_utime + usage.ru_stime
    return Outcome(os.waitstatus_to_exitcode(status), text, seconds, facts.get("torch", False))


def be_command(
    case: Case, words: list[str], work: Path, environment: dict[str, str], output: int, told: int
) -> None:
    code = 1
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(work)
        os.environ.clear()
        os.environ.update(environment)
        sys.path.insert(0, str(work))
        sys.argv = ["runner", *words]
        case.enter()
        code = main(words)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(told, json.dumps({"torch": "torch" in sys.modules}).encode())
        os._exit(code)


def wait(child: int) -> tuple[int, int, resource.struct_rusage]:
    """Wait for the end of a child, and end it if it takes too long."""

    def give_up(number: int, frame: object) -> None:
        os.killpg(child, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        return os.wait4(child, 0)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_cold(case: Case, words: list[str], work: Path, environment: dict[str, str]) -> Outcome:
    """Run the command as a shell starts it.

    ``shell`` of the case says how, with the words as its arguments.
    """
    command = ["bash", "-c", case.cold, sys.executable, *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = environment | {"PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run(command, cwd=work, env=variables, capture_output=True, timeout=PATIENCE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    text = (done.stdout + done.stderr).decode(errors="replace")
    return Outcome(done.returncode, text, seconds, "import torch" in text)


# --- Verdicts -------------------------------------------------------------------------------------


def misses(case: Case, outcome: Outcome) -> list[str]:
    """The ways in which an outcome is not as its case promises."""
    misses = [] if outcome.code == case.code else [f"exit {outcome.code}, not {case.code}"]
    if case.code == 0:
        return misses
    text = " ".join(outcome.text.split()).lower()
    misses += [f"says no {what}: {word}" for what, word in case.told if word.lower() not in text]
    misses += [f"no line of {beat}" for beat in missing_beats(outcome.text)] if case.faults else []
    misses += ["a traceback"] if "Traceback (most recent" in outcome.text else []
    if not case.late:
        misses += ["torch was imported"] if outcome.torch else []
        misses += [f"left {outcome.left[0]}"] if outcome.left else []
    elif torn := torn_papers(outcome.left):
        misses.append(torn)
    return misses


def missing_beats(text: str) -> list[str]:
    """The beats that a message lacks.

    Below the line that says where, it tells what was found, expected, and to type.

    Of several faults each has the first and one of the others; several rows share what to type.
    """
    faults = []
    beats = None
    for line in text.splitlines():
        if line[:2] == "  " and line[2:3] not in ("", " "):
            faults.append(beats := set())
        elif line[:4] == "    " and beats is not None:
            beats.add(line.split()[0])
        else:
            beats = None
    told = [fault for fault in faults if fault]
    if not told:
        return ["a fault"]
    halves = [fault for fault in told if "found" not in fault or not fault & {"expected", "type"}]
    return ["cause or fix"] * bool(halves) + sorted(
        {"found", "expected", "type"} - set().union(*told)
    )


def torn_papers(left: list[str]) -> str:
    """The faults of the run folder of a command that failed behind the door."""
    run_files = [path for path in left if path.endswith("status.json")]
    if any(json.loads(Path(path).read_text())["state"] != "failed" for path in run_files):
        return "a run that is not called failed"
    halves = [
        path
        for path in left
        if "/checkpoint-" in path or path.endswith("/model") or "/.model" in path
    ]
    return f"left {halves[0]}" if halves else ""


def verdict_of(case: Case, folder: Path, warm: Warm) -> tuple[list[str], Outcome]:
    """Try one case; return its misses and its outcome."""
    if case.code == 0:
        checked = run(case.plain(), folder)
        missed = [*misses(case, checked), *(["torch was imported"] if checked.torch else [])]
        if missed or case.looks:
            return missed, checked
        outcome = run(case.trained(STEP), folder / "trained", warm)
        return misses(case, outcome), outcome
    outcome = run(case, folder, warm if case.late and not case.cold else None)
    return misses(case, outcome), outcome


def chosen(words: list[str]) -> list[Case]:
    cases = [*BAD, *GOOD]
    return [case for case in cases if is_wanted(case, words)]


def is_wanted(case: Case, words: list[str]) -> bool:
    """True if the kind or name of a case holds one of the words, or there are none."""
    text = f"{case.kind} {case.name}"
    return not words or any(word in text for word in words)


def main_script(words: list[str]) -> int:
    """Print the table, or that of the control; 1 if a case misses."""
    folder = Path(tempfile.mkdtemp(prefix="bad-input-"))
    (folder / "warm").mkdir()
    warm = Warm(folder / "warm")
    try:
        return (
            1
            if (
                run_controls(warm, folder)
                if words == ["control"]
                else print_table(chosen(words), folder, warm)
            )
            else 0
        )
    finally:
        warm.close()
        shutil.rmtree(folder, ignore_errors=True)


def print_table(cases: list[Case], folder: Path, warm: Warm) -> int:
    """Print a line for each case, and one for all; return the number that have missed."""
    missed = 0
    slowest = 0.0
    for case in cases:
        if case.skip:
            print(f"skip {case.kind:<9} {case.name:<44} {case.skip}", flush=True)
            continue
        wrong, outcome = verdict_of(case, folder, warm)
        missed += bool(wrong)
        slowest = max(slowest, 0 if outcome.torch or case.code == 0 else outcome.seconds)
        row = (
            "; ".join(wrong)
            or " | ".join(line.strip() for line in outcome.text.splitlines()[1:4])[:150]
        )
        torch = "torch" if outcome.torch else "-"
        head = f"{'MISS' if wrong else 'ok':<4} {case.kind:<9} {case.name:<44} {outcome.code:>3}"
        print(f"{head} {outcome.seconds:5.2f} {torch:<5} {row}", flush=True)
        if wrong:
            print(
                "".join(f"       > {line}\n" for line in outcome.text.splitlines()[-12:]),
                end="",
                flush=True,
            )
    bad = sum(case.code != 0 for case in cases)
    print(
        f"{bad} bad and {len(cases) - bad} good cases, "
        f"{missed} missed; at the door at most {slowest:.2f} s of CPU"
    )
    return missed


if __name__ == "__main__":
    sys.exit(main_script(sys.argv[1:]))
