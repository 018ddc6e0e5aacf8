"""Stopped in any phase, a run saves its step and says interrupted, and the same command goes on.

    python tests/fault/signals.py --count 60         about six minutes of one processor
    python tests/fault/signals.py --count 6 ppo

Each run gets SIGTERM, SIGINT, SIGUSR1 or SIGHUP a few times, each at the n-th call of a function
that stands for a phase, or a moment after it; with SIGHUP the terminal is gone as well. Each time
the exit code must be 130 or 143, the state interrupted, and the newest checkpoint no further than
the next step from which a resume is exact. Every third time a second signal follows, after which
nothing more may be begun. Then the run finishes by its own command, with the weights and the record
of a run that nothing stopped. Prints, for each phase, how many signals there were and how many kept
to all of that. The last line is the control: SIGTERM to TRL's own trainer. The exit code is 1 on a
miss.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

import plain
from kill import DROPOUT, TRAINERS, WORDS, Place, run_files
from warm import Warm

from runner.__main__ import main as door
from runner.errors import code_of
from runner.launch.plan import state_of
from runner.run import Run
from runner.run.seal import last_checkpoint

# The function that represents a phase; its n-th call is the instant.
PHASES = {
    "door": "runner.launch.start_runs:check_ahead",
    "load": "transformers:PreTrainedModel.from_pretrained",
    "tokenise": "datasets:Dataset.map",
    "forward": "torch.nn:Linear.forward",
    "generate": "transformers:GenerationMixin.generate",
    "sample": "runner.generate.sampler:sample_token",
    "backward": "torch:Tensor.backward",
    "save": "torch:save",
    "eval": "transformers:Trainer.evaluate",
    "end": "runner.command._finish:write_plots",
}
STEPPING = ("forward", "backward")
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
SIGNALS_A_RUN = 3
MOMENT = 0.02  # most seconds between an instant and its signal
CYCLE = 2  # most steps between two exact resume points in these trainings


# --- In the process of the command ----------------------------------------------------------------


def main(words: list[str]) -> int:
    """The entry point of a run, or of the control, prepared as the environment asks."""
    asked = json.loads(os.environ["SIGNALS"])
    calls: Counter[str] = Counter()
    for phase, place in PHASES.items():
        wrap(phase, place, calls, asked)
    try:
        return plain.main(words) if asked.get("plain") else door(words)
    finally:
        if record := asked.get("record"):
            Path(record).write_text(json.dumps(calls))


def wrap(phase: str, place: str, calls: Counter[str], asked: dict[str, Any]) -> None:
    """Count the calls of a function, one of which is the instant."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for code in outer:
        owner = getattr(owner, code)
    original = vars(owner)[name]
    inner = getattr(original, "__func__", original)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls[phase] += 1
        if phase == asked.get("phase"):
            reach(calls[phase] - asked["count"], asked)
        return inner(*args, **kwargs)

    setattr(owner, name, classmethod(call) if isinstance(original, classmethod) else call)


def reach(late: int, asked: dict[str, Any]) -> None:
    """Send the signal at the instant, the second one at the next call, and record whether a call
    follows.
    """
    told = Path(asked["told"])
    if late == 0:
        told.write_text(str(step_now()))
        if asked["number"] == signal.SIGHUP:
            hang_up()
        asked["first"] = send_later(asked["number"], asked["moment"])
    elif late == 1 and asked["twice"]:
        asked["first"].join()
        os.kill(os.getpid(), asked["number"])
    elif late > 1 and asked["twice"]:
        told.write_text("went on")


def send_later(number: int, moment: float) -> threading.Timer:
    """Send this process a signal after so many seconds."""
    timer = threading.Timer(moment, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    if not moment:
        timer.join()
    return timer


def hang_up() -> None:
    """Close the terminal of this process, so that nothing can be printed any more."""
    screen, terminal = os.openpty()
    for number in (1, 2):
        os.dup2(terminal, number)
    os.close(screen)


def step_now() -> int:
    """The last logged step of the run in this folder."""
    configs = list(Path("outputs").glob("run/*/config.yaml"))
    return Run(configs[0].parent).status()["step"] if configs else 0


# --- Outside of it --------------------------------------------------------------------------------


def start(place: Place, words: Sequence[str], **asked: Any) -> tuple[int, str]:
    """The exit code of the command and its output."""
    os.environ["SIGNALS"] = json.dumps({"told": str(place.folder / "told"), **asked})
    done = place.start((*words,)).wait()
    return done.returncode, done.stderr


def calls_of(place: Place, words: Sequence[str], **asked: Any) -> dict[str, int]:
    """The number of times that the undisturbed command enters each phase."""
    code, output = start(place, words, record=str(place.folder / "calls"), **asked)
    assert code == 0, output
    return json.loads((place.folder / "calls").read_text())


def misses_of_stop(
    place: Place, words: Sequence[str], phase: str, asked: dict[str, Any]
) -> Iterator[str]:
    """Stop the command once and yield the faults; the phase need not occur in a run."""
    told = place.folder / "told"
    told.unlink(missing_ok=True)
    before = [state_of(path.parent) for path in place.folder.glob("outputs/run/*/config.yaml")]
    code, output = start(place, words, phase=phase, **asked)
    if not told.exists():
        yield from () if code == 0 else [f"exit code {code} without a signal: {output[-300:]}"]
        return
    if code == 0 and asked["moment"]:
        return  # the run ended in that moment
    if code != (wanted := code_of(asked["number"])):
        yield f"exit code {code}, not {wanted}: {output[-300:]}"
    configs = list(place.folder.glob("outputs/run/*/config.yaml"))
    state = state_of(configs[0].parent) if configs else "new"
    if state != "interrupted" and not (phase == "door" and state in ("new", "created", *before)):
        yield f"state {state}"
    if told.read_text() == "went on":
        yield "went on after the second signal"
    elif phase in STEPPING and not asked["twice"] and state == "interrupted":
        newest = last_checkpoint(Run(configs[0].parent), clean=False)
        begun = int(told.read_text())
        if (
            begun
            and not begun
            <= (step := int(newest.name.rpartition("-")[2]) if newest else -1)
            <= begun + CYCLE
        ):
            yield f"the newest checkpoint is of step {step}, and the signal came after step {begun}"


def life(
    place: Place,
    words: Sequence[str],
    calls: dict[str, int],
    phases: list[str],
    chance: random.Random,
) -> Iterator[tuple[str, list[str]]]:
    """Stop a run in each of these phases, one after the other; return their faults by phase."""
    for again, phase in enumerate(phases):
        number = int(chance.choice(NUMBERS))
        count = chance.randint(1, max(1, calls[phase] // (1 + again)))
        if number == signal.SIGHUP:  # a terminal that is gone and its signal are one event
            moment = 0.0
        else:
            moment = chance.choice((0.0, chance.uniform(0, MOMENT)))
        twice = chance.random() < 1 / 3
        asked = {"count": count, "number": number, "moment": moment, "twice": twice}
        misses = list(misses_of_stop(place, words, phase, asked))
        yield (
            phase,
            [
                f"{place.folder.name}: {signal.Signals(asked['number']).name} in {asked}: {miss}"
                for miss in misses
            ],
        )


def misses_of_end(place: Place, words: Sequence[str], wanted: dict[str, object]) -> list[str]:
    """Let the command finish; how the run differs from one that nothing stopped.

    Not compared is which checkpoints there are besides the last, since a stop has one taken.
    """
    code, output = start(place, words)
    if code:
        return [f"{place.folder.name}: exit code {code} at the end: {output[-300:]}"]
    files = run_files(place.run)
    differing = sorted(
        name for name in wanted | files if name != "names" and wanted.get(name) != files.get(name)
    )
    return [f"{place.folder.name} differs in {', '.join(differing)}"] if differing else []


def disturb(
    trainer: str, signals: int, root: Path, warm: Warm, chance: random.Random
) -> Iterator[tuple[str, list[str]]]:
    """Runs of a trainer until there are enough signals.

    Each phase with its faults, and each end of a run.
    """
    words = (*WORDS, *TRAINERS[trainer])
    dropout = 0.1 if trainer in DROPOUT else 0.0
    uninterrupted = Place(root / trainer, root, warm, "signals:main", dropout)
    calls = calls_of(uninterrupted, words)
    assert calls.get("end"), "the end of a run is a phase of every trainer"
    wanted = run_files(uninterrupted.run)
    entered = [phase for phase in PHASES if calls.get(phase)]
    queue = []
    for _ in range(signals):
        queue += chance.sample(entered, len(entered))

    done = 0
    runs = 0
    while done < signals:
        place = Place(root / f"{trainer}-{runs}", root, warm, "signals:main", dropout)
        phases = queue[done : done + min(SIGNALS_A_RUN, signals - done)]
        runs = runs + 1
        missed = 0
        for phase, misses in life(place, words, calls, phases, chance):
            done = done + 1
            missed = missed + len(misses)
            yield phase, misses
        end = misses_of_end(place, words, wanted)
        yield "finish", end
        if not (missed or end):
            shutil.rmtree(place.folder)


def control(root: Path, warm: Warm) -> bool:
    """True if TRL's own trainer keeps the same promises when it gets SIGTERM in a step."""
    place = Place(root / "plain", root, warm, "signals:main")
    calls = calls_of(place, (), plain=True)
    shutil.rmtree(place.folder / "outputs")
    asked = {
        "count": calls["backward"] // 2,
        "number": int(signal.SIGTERM),
        "moment": 0,
        "twice": False,
    }
    code, _ = start(place, (), phase="backward", plain=True, **asked)
    return code == code_of(signal.SIGTERM)


def run() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trainer", nargs="*", choices=[*TRAINERS, []])
    parser.add_argument("--count", type=int, default=60, help="signals to all trainers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="a new folder for the runs, which are kept where they miss"
    )
    asked = parser.parse_args()
    trainers = asked.trainer or list(TRAINERS)
    sent = Counter()
    survived = Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = (asked.keep or Path(folder)).absolute()
        warm = Warm(root / "warm")
        chance = random.Random(asked.seed)
        for trainer in trainers:
            for phase, misses in disturb(
                trainer, -(-asked.count // len(trainers)), root, warm, chance
            ):
                sent[phase] += 1
                survived[phase] += not misses
                print("".join(f"{miss}\n" for miss in misses), end="", flush=True)
        plainly = control(root, warm)
        warm.close()
    print(f"{'':<10} {'signals':>8} {'as promised':>12}")
    for phase in (*PHASES, "finish"):
        print(f"{phase:<10} {sent[phase]:>8} {survived[phase]:>12}")
    total = sum(sent.values()) - sent["finish"]
    print(f"{'ours':<10} {total:>8} {sum(survived.values()) - survived['finish']:>12}")
    print(f"{'control':<10} {1:>8} {plainly:>12}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds")
    return 0 if survived == sent and not plainly else 1


if __name__ == "__main__":
    sys.exit(run())
