"""Killed at any instant, the same command continues to the same bits; and the plain trainer of TRL does not.

    python tests/fault/kill.py --count 200            about ten minutes of one processor
    python tests/fault/kill.py --count 20 ppo lora

Each run is killed a few times, each time at the n-th touch of a file of some kind, or a random moment after one, and
finishes by its own command. Then its weights, its last checkpoint, its record and the names of its files must be those
of a run that nothing disturbed. Prints, for each trainer, how many kills there were, how many of them left a torn
checkpoint or half a rotation, how many runs finished, and how many are bit-equal. The last line is the control: the
same kills, and TRL's own trainer with ``resume_from_checkpoint=True``. The exit code is 1 where a run of ours misses,
where less than a quarter of the kills landed inside a save, or where the control survives all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

from instant import Instant
from warm import DOOR, Started, Warm

from runner.io.files import read_json, sha256
from runner.run import Run
from runner.run.read import read_metrics
from runner.run.seal import SEAL, sealed_checkpoints

PACKAGE = TESTS.parent / "runner"
WORDS = (
    "name=run",
    "model=tiny",
    "model.path=start",
    "dataset.path=rows",
    "dataset.limit={train: 64, eval: 4}",
    "trainer.args.max_steps=8",
    "trainer.args.logging_steps=1",
    "trainer.args.save_steps=2",
    "trainer.args.per_device_train_batch_size=4",
)
GROUPS = ("trainer.args.per_device_train_batch_size=8", "trainer.args.num_generations=4")
TRAINERS = {
    "sft": ("trainer=sft", "trainer.args.gradient_accumulation_steps=2", "trainer.args.eval_strategy=epoch"),
    "dpo": ("trainer=dpo", "metric=none"),
    "reward": ("trainer=reward",),
    "grpo": ("trainer=grpo", *GROUPS, "trainer.args.num_iterations=2", "kl_coef=0.1"),
    "ppo": ("trainer=ppo", "trainer.args.kl_target=0.1", "trainer.args.score_normalization=whiten"),
    "lora": ("trainer=sft", "peft=lora", "peft.lora_dropout=0.1", "metric=none"),
}
DROPOUT = ("sft", "reward")  # the others need a model that says the same twice
# Where a kill lands, by what was touched last, and how often it is chosen.
PLACES = {
    "save": (r"/checkpoint", 8),
    "step": (r"open .*metrics\.jsonl", 3),
    "anywhere": (r"", 3),
    "files": (r"status\.json|manifest\.json|scores\.json|config\.yaml|\.lock", 2),
    "model": (r"/\.?model(\.new)?(/|$)|plots", 2),
    "rows": (r"hf/datasets", 2),
}
KILLS_A_RUN = 4
MOMENT = 0.03  # most seconds between an instant and a kill
# What is of the clock, or counted from the last start only.
CLOCK = ("_seconds", "_per_second", "_runtime", "_time", "eps")


@dataclass
class Tally:
    """What became of the runs of one trainer."""

    kills: int = 0
    inside: int = 0
    runs: int = 0
    finished: int = 0
    equal: int = 0
    missed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kills:>6} {self.inside:>14} {self.runs:>6} {self.finished:>9} {self.equal:>10}"


@dataclass
class Place:
    """A folder with rows and a start model, in which the command runs."""

    folder: Path
    root: Path
    warm: Warm
    door: str = DOOR
    dropout: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        shutil.copytree(PACKAGE / "dataset" / "toy_sort", self.folder / "rows")
        shutil.copytree(PACKAGE / "model" / "tiny", self.folder / "start", ignore=shutil.ignore_patterns("*.py", "__*"))
        config = read_json(self.folder / "start" / "config.json") | {"attention_dropout": self.dropout}
        (self.folder / "start" / "config.json").write_text(json.dumps(config))

    def start(self, words: tuple[str, ...], **instant) -> Started:
        """Start the command here; ``instant`` is when something happens to it."""
        own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
        at = Instant(str(self.root), **instant) if instant else None
        return self.warm.start([*words], self.folder, {**os.environ, **own}, at, self.door)

    @property
    def run(self) -> Run:
        return Run(next(self.folder.glob("outputs/run/*-*")))

    def torn(self) -> bool:
        """Whether a save was cut off: a checkpoint without a seal, or one that was about to go."""
        found = self.folder.glob("outputs/**/*checkpoint-*")
        own = SEAL if self.door == DOOR else "trainer_state.json"
        return any(path.is_dir() and (path.name.startswith(".") or not (path / own).exists()) for path in found)


def kill_at(place: Place, words: tuple[str, ...], pattern: str, count: int, moment: float) -> int:
    """The exit code of the command, which is killed ``moment`` seconds after an instant; -9 where it was."""
    if not moment:
        return place.start(words, pattern=pattern, count=count).wait().returncode
    told = place.folder / "told"
    told.unlink(missing_ok=True)
    started = place.start(words, pattern=pattern, count=count, told=str(told))
    if started.wait_for(told):
        time.sleep(moment)
        started.send(9)
    return started.wait().returncode


def storm(place: Place, words: tuple[str, ...], touches: list[str], kills: int, chance: random.Random) -> Tally:
    """Kill a run again and again, and then let it finish; ``touches`` are those of an undisturbed one."""
    tally = Tally(runs=1)
    weights = [weight for _, weight in PLACES.values()]
    for again in range(kills):
        pattern, _ = chance.choices(list(PLACES.values()), weights)[0]
        most = sum(bool(re.search(pattern, touch)) for touch in touches) // (1 + again)
        moment = chance.choice((0.0, chance.uniform(0, MOMENT)))
        code = kill_at(place, words, pattern, chance.randint(1, max(1, most)), moment)
        if code == 0:
            break
        if code != -9:
            tally.missed.append(f"exit code {code} when it was started again")
            return tally
        tally.kills += 1
        tally.inside += place.torn()
    done = place.start(words).wait()
    tally.finished = done.returncode == 0
    if done.returncode:
        tally.missed.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
    return tally


def run_files(run: Run) -> dict[str, object]:
    """All that a run leaves, by a name: hashes of weights and of the last checkpoint, the record, the names of files.

    Left out is what holds the clock or the place of the run.
    """
    checkpoint = sealed_checkpoints(run.checkpoints)[-1]
    files = [path for folder in (run.model, checkpoint) for path in folder.rglob("*") if path.is_file()]
    clocks = ("training_args.bin", "trainer_state.json", SEAL)
    found: dict[str, object] = {
        str(path.relative_to(run.folder)): sha256(path) for path in files if path.name not in clocks
    }
    found["trainer_state.json"] = timeless(read_json(checkpoint / "trainer_state.json"))
    found["metrics.jsonl"] = timeless(read_metrics(run.metrics))
    found["scores.json"] = timeless(read_json(run.folder / "scores.json"))
    found["status.json"] = [run.status()[name] for name in ("state", "step", "max_steps", "cause")]
    found["command"] = read_json(run.folder / "manifest.json")["command"]
    found["names"] = sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*"))
    return found


def timeless(value: object) -> object:
    """The same without what tells of the clock."""
    if isinstance(value, dict):
        return {key: timeless(entry) for key, entry in value.items() if not key.endswith(CLOCK) and "time/" not in key}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def unbroken(place: Place, words: tuple[str, ...]) -> list[str]:
    """Run the command undisturbed; the touches of files that it makes."""
    record = place.root / f"{place.folder.name}.touches"
    done = place.start(words, record=str(record)).wait()
    assert done.returncode == 0, done.stderr
    return record.read_text(encoding="utf-8").splitlines()


def punish(trainer: str, kills: int, root: Path, warm: Warm, chance: random.Random, most: int = KILLS_A_RUN) -> Tally:
    """Runs of a trainer until there were enough kills, at most so many each, compared with the undisturbed one."""
    words = (*WORDS, *TRAINERS[trainer])
    dropout = 0.1 if trainer in DROPOUT else 0.0
    whole = Place(root / trainer, root, warm, dropout=dropout)
    touches, total = unbroken(whole, words), Tally()
    wanted = run_files(whole.run)
    while total.kills < kills:
        place = Place(root / f"{trainer}-{total.runs}", root, warm, dropout=dropout)
        tally = storm(place, words, touches, min(most, kills - total.kills), chance)
        if tally.finished:
            found = run_files(place.run)
            differing = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
            tally.equal = not differing
            tally.missed += [f"{place.folder.name} differs in {', '.join(differing)}"] if differing else []
        _add(total, tally)
        if not tally.missed:
            shutil.rmtree(place.folder)
    return total


def control(kills: int, root: Path, warm: Warm, chance: random.Random) -> Tally:
    """The same with TRL's own trainer; see ``plain``."""
    whole = Place(root / "plain", root, warm, "plain:main")
    touches, total = unbroken(whole, ()), Tally()
    weights = "outputs/plain/model/model.safetensors"
    while total.kills < kills:
        place = Place(root / f"plain-{total.runs}", root, warm, "plain:main")
        tally = storm(place, (), touches, 1, chance)
        same = tally.finished and sha256(place.folder / weights) == sha256(whole.folder / weights)
        tally.equal = bool(same)
        _add(total, tally)
        shutil.rmtree(place.folder)
    return total


def _add(total: Tally, tally: Tally) -> None:
    for name, value in vars(tally).items():
        setattr(total, name, getattr(total, name) + value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", nargs="*", choices=[*TRAINERS, []])
    parser.add_argument("--count", type=int, default=200, help="kills of all trainers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a new folder for the runs, which are kept where they miss")
    asked = parser.parse_args()
    trainers = asked.trainer or list(TRAINERS)
    tallies = {}
    with tempfile.TemporaryDirectory() as folder:
        root = (asked.keep or Path(folder)).absolute()
        warm, chance = Warm(root / "warm"), random.Random(asked.seed)
        print(f"{'':<8} {'kills':>6} {'inside a save':>14} {'runs':>6} {'finished':>9} {'bit-equal':>10}")
        for trainer in trainers:
            tallies[trainer] = punish(trainer, -(-asked.count // len(trainers)), root, warm, chance)
            print(f"{trainer:<8} {tallies[trainer]}", flush=True)
            print("".join(f"         {line}\n" for line in tallies[trainer].missed), end="")
        ours = Tally()
        for tally in tallies.values():
            _add(ours, tally)
        print(f"{'ours':<8} {ours}", flush=True)
        plain = control(max(8, asked.count // 5), root, warm, chance)
        print(f"{'control':<8} {plain}")
        warm.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds")
    good = ours.equal == ours.runs and 4 * ours.inside >= ours.kills and plain.equal < plain.runs
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
