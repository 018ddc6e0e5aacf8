"""Damage to any file of a sealed checkpoint, a finished model or a run's records is noticed.

    python tests/fault/damage.py                    every file, about five minutes of one processor
    python tests/fault/damage.py --count 8          a few of each kind, and of the controls

A run is killed when it has two sealed checkpoints. Each time one file of the newest is deleted,
cut, zeroed or has one bit turned, the same command must name it, go on from the older one, and end
with the bits of a run that nothing disturbed. A finished model is mended from its checkpoint; what
cannot be mended is refused with exit code 4 and a fix. The control is TRL's own trainer with the
same damage, resumed as its documentation says. Prints a line for each kind; the exit code is 1
where one of ours misses, or where the control notices everything.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from kill import TRAINERS, WORDS, Place, run_files, unbroken
from warm import Warm

from runner.io.files import sha256
from runner.run.seal import SEAL, sealed_checkpoints

SFT = (*WORDS, *TRAINERS["sft"])
PLAIN_WEIGHTS = "outputs/plain/model/model.safetensors"
LAST_SAVE = r"checkpoint-8"


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": flip,
}
# Contents that may replace a record file.
GARBAGE = {
    "zeroed": bytes(300),
    "cut": b'{"state": "fin\n',
    "a list": b"[1, 2]\n",
    "noise": b"\xff\xfe\x00garbage\n{",
}
GARBAGE["no UTF-8"] = b"format: 2\nname: \xedun\n"
PAPERS = ("status.json", "manifest.json", "config.yaml", "metrics.jsonl")


class Sick:
    """A killed run, a finished one and an undisturbed one, to be copied and damaged; made once."""

    def __init__(self, root: Path, warm: Warm):
        self.root = root
        self.warm = warm
        self.count = 0
        self.whole = Place(root / "whole", root, warm)
        unbroken(self.whole, SFT)
        self.wanted = run_files(self.whole.run)
        self.killed = Place(root / "killed", root, warm)
        assert self.killed.start(SFT, pattern=LAST_SAVE, count=1).wait().returncode == -9
        sealed = [path.name for path in sealed_checkpoints(self.killed.run.checkpoints)]
        assert sealed[-2:] == ["checkpoint-4", "checkpoint-6"]

    def copy(self, place: Place) -> Place:
        """The same folder once more."""
        self.count += 1
        twin = copy.copy(place)
        twin.folder = self.root / f"copy-{self.count}"
        shutil.copytree(place.folder, twin.folder)
        return twin

    def files(self, folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def damaged_checkpoints(sick: Sick) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every file of the newest checkpoint: named, and the older one used for the same bits."""
    newest = sealed_checkpoints(sick.killed.run.checkpoints)[-1]
    for name in sick.files(newest):
        for kind, damage in DAMAGE.items():
            yield f"{name} {kind}", lambda name=name, damage=damage: _mended(sick, name, damage)


def _mended(sick: Sick, name: str, damage: Callable[[Path], object]) -> str:
    place = sick.copy(sick.killed)
    damage(sealed_checkpoints(place.run.checkpoints)[-1] / name)
    return _verdict(place, place.start(SFT).wait(), sick, name)


def _verdict(place: Place, done, sick: Sick, name: str) -> str:
    """Empty if the command named a file, finished, and left the same as the undisturbed one."""
    if done.returncode:
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if name not in done.stderr:
        return f"{name} is not named: {done.stderr[-300:]}"
    files = run_files(place.run)
    differing = sorted(key for key in sick.wanted | files if sick.wanted.get(key) != files.get(key))
    shutil.rmtree(place.folder)
    return f"differs in {', '.join(differing)}" if differing else ""


def lost_checkpoints(sick: Sick) -> Iterator[tuple[str, Callable[[], str]]]:
    """Every checkpoint damaged or gone: refused, and nothing silently starts over."""
    ways: dict[str, Callable[[Path], object]] = {
        "weights flipped": lambda path: flip(path / "model.safetensors"),
        "seals deleted": lambda path: (path / SEAL).unlink(),
        "folders removed": shutil.rmtree,
    }
    for way, damage in ways.items():
        yield f"all {way}", lambda damage=damage: _refused_without_any(sick, damage)


def _refused_without_any(sick: Sick, damage: Callable[[Path], object]) -> str:
    place = sick.copy(sick.killed)
    for path in sealed_checkpoints(place.run.checkpoints):
        damage(path)
    before = sick.files(place.run.checkpoints)
    done = place.start(SFT).wait()
    told = refused(done, "checkpoint-6")
    return told or ("" if sick.files(place.run.checkpoints) == before else "something was removed")


def refused(done, *words: str) -> str:
    """Empty if a command ended with exit code 4, these words, a fix, and no traceback."""
    missing = [word for word in (*words, "type ") if word not in done.stderr]
    if done.returncode != 4 or missing or "Traceback" in done.stderr:
        return f"exit code {done.returncode}, not said: {missing}: {done.stderr[-300:]}"
    return ""


def damaged_models(sick: Sick) -> Iterator[tuple[str, Callable[[], str]]]:
    """Damage to every file of a finished model.

    Named and mended, or refused where nothing can mend it.
    """
    for name in sick.files(sick.whole.run.model):
        for kind, damage in DAMAGE.items():
            yield (
                f"model/{name} {kind}",
                lambda name=name, damage=damage: _model_mended(sick, name, damage),
            )
    yield "model/ removed", lambda: _model_mended(sick, "", shutil.rmtree)
    for verb in ("predict", "evaluate", "export"):
        yield f"{verb} of a flipped model", lambda verb=verb: _verb_refused(sick, verb)
    yield "no checkpoint to mend it", lambda: _unmended(sick)


def _model_mended(sick: Sick, name: str, damage: Callable[[Path], object]) -> str:
    place = sick.copy(sick.whole)
    damage(place.run.model / name)
    return _verdict(place, place.start(SFT).wait(), sick, name or "model/")


def _verb_refused(sick: Sick, verb: str) -> str:
    place = sick.copy(sick.whole)
    flip(place.run.model / "model.safetensors")
    return refused(place.start((verb, "run")).wait(), "model.safetensors: other bytes")


def _unmended(sick: Sick) -> str:
    place = sick.copy(sick.whole)
    shutil.rmtree(place.run.checkpoints)
    flip(place.run.model / "model.safetensors")
    return refused(place.start(SFT).wait(), "model.safetensors: other bytes")


def damaged_papers(sick: Sick) -> Iterator[tuple[str, Callable[[], str]]]:
    """Garbage in a record file: refused by name, readable to a report.

    After the fix, the run finishes.
    """
    for name in PAPERS:
        for kind, text in GARBAGE.items():
            yield f"{name} {kind}", lambda name=name, text=text: _paper(sick, name, text)


def _paper(sick: Sick, name: str, text: bytes) -> str:
    place = sick.copy(sick.killed)
    path = place.run.folder / name
    path.write_bytes(text)
    told = refused(place.start(SFT).wait(), name, f"rm {path}")
    report = place.start(("report", "run")).wait()
    if told or report.returncode or "Traceback" in report.stderr:
        return told or f"report: {report.stderr[-300:]}"
    path.unlink()
    done = place.start(SFT).wait()
    if done.returncode:
        return f"after the fix: exit code {done.returncode}: {done.stderr[-300:]}"
    files = run_files(place.run)
    differing = [
        key
        for key in files
        if key.endswith((".safetensors", ".pt")) and files[key] != sick.wanted.get(key)
    ]
    shutil.rmtree(place.folder)
    return f"differs in {', '.join(differing)}" if differing else ""


def control(root: Path, warm: Warm, count: int) -> dict[str, int]:
    """The end of TRL's own trainer after the same damage.

    Stopped, unaffected, or silently with other weights.
    """
    uninterrupted, killed = (
        Place(root / f"plain-{name}", root, warm, "plain:main") for name in ("whole", "killed")
    )
    unbroken(uninterrupted, ())
    assert killed.start((), pattern=LAST_SAVE, count=1).wait().returncode == -9
    counts = {"stopped": 0, "equal": 0, "silently other weights": 0}
    newest = killed.folder / "outputs/plain/checkpoint-6"
    shutil.rmtree(killed.folder / "outputs/plain/checkpoint-8", ignore_errors=True)
    names = [
        name
        for name in ("optimizer.pt", "model.safetensors", "scheduler.pt")
        if (newest / name).exists()
    ]
    cases = list(itertools.product(("deleted", "flipped"), names))[:count]
    for number, (name, kind) in enumerate(cases):
        place = copy.copy(killed)
        place.folder = root / f"plain-{number}"
        shutil.copytree(killed.folder, place.folder)
        DAMAGE[kind](place.folder / "outputs/plain/checkpoint-6" / name)
        done = place.start(()).wait()
        same = not done.returncode and sha256(place.folder / PLAIN_WEIGHTS) == sha256(
            uninterrupted.folder / PLAIN_WEIGHTS
        )
        counts["stopped" if done.returncode else "equal" if same else "silently other weights"] += 1
    return counts


KINDS = {
    "checkpoint": damaged_checkpoints,
    "lost": lost_checkpoints,
    "model": damaged_models,
    "paper": damaged_papers,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="most cases of each kind")
    asked = parser.parse_args()
    misses = 0
    with tempfile.TemporaryDirectory() as folder:
        warm = Warm(Path(folder) / "warm")
        sick = Sick(Path(folder), warm)
        for kind, cases in KINDS.items():
            listed = list(cases(sick))
            chosen = listed[:: max(1, len(listed) // asked.count)][: asked.count]
            told = {name: case() for name, case in chosen}
            bad = {name: text for name, text in told.items() if text}
            misses += len(bad)
            print(f"{kind:<11} {len(told) - len(bad):>3} of {len(told):>3} as promised", flush=True)
            print("".join(f"            {name}: {text}\n" for name, text in bad.items()), end="")
        plain = control(Path(folder), warm, asked.count)
        print(f"{'control':<11} {', '.join(f'{number} {name}' for name, number in plain.items())}")
        warm.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds")
    return 1 if misses or not plain["silently other weights"] else 0


if __name__ == "__main__":
    sys.exit(main())
