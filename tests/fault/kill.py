"""Killed at any instant, the same command continues to the same bits; TRL's plain trainer does not.

    python tests/fault/kill.py --count 200            about ten minutes of one processor
    python tests/fault/kill.py --count 20 ppo lora
    python tests/fault/kill.py --power        the same, and each time the power fails

Each command is killed a few times, each time at the n-th touch of a file of some kind, or a random
moment after one, and finishes by being typed again; so are two processes that train as one, with
whole models or with one in shards, a chain of stages, and a sweep. Then weights, the last
checkpoint, all that was logged and the names of the files must be those of a command that nothing
disturbed, but for what tells the time. With ``--power`` each kill also takes from every file what
was not yet synced: the command goes on from a copy of the folder, in which such tails are cut off.
Prints, for each trainer, how many kills there were, how many of them left a torn checkpoint or half
a rotation, how many runs finished, and how many are bit-equal. The last line is the control: the
same kills, and TRL's own trainer with ``resume_from_checkpoint=True``. The exit code is 1 where a
run of ours misses, where less than a quarter of the kills landed inside a save, or where the
control survives all.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import re
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

from instant import Instant
from warm import DOOR, Started, Warm, world_of_two

from runner.io.files import read_json, sha256
from runner.run import Run
from runner.run.history import read_metrics
from runner.run.seal import SEAL, sealed_checkpoints

PACKAGE = TESTS.parent / "runner"
SHARED = (
    "name=run",
    "model=tiny",
    "dataset.path=rows",
    "dataset.limit={train: 64, eval: 4}",
    "trainer.args.max_steps=8",
    "trainer.args.logging_steps=1",
    "trainer.args.save_steps=2",
    "trainer.args.per_device_train_batch_size=4",
)
WORDS = (*SHARED, "model.path=start")
GROUPS = ("trainer.args.per_device_train_batch_size=8", "trainer.args.num_generations=4")
# a reference that moves
SYNCED = ("trainer.args.sync_ref_model=true", "trainer.args.ref_model_sync_steps=1")
TRAINERS = {
    "sft": (
        "trainer=sft",
        "trainer.args.gradient_accumulation_steps=2",
        "trainer.args.eval_strategy=epoch",
    ),
    "dpo": ("trainer=dpo", "metric=none"),
    "reward": ("trainer=reward",),
    "grpo": ("trainer=grpo", *GROUPS, "trainer.args.num_iterations=2", "kl_coef=0.1", *SYNCED),
    "ppo": ("trainer=ppo", "trainer.args.kl_target=0.1", "trainer.args.score_normalization=whiten"),
    "lora": ("trainer=sft", "peft=lora", "peft.lora_dropout=0.1", "metric=none"),
}
# More than one run, or more than one process: the words of a chain stand in a file.
CHAIN = (
    "# @package _global_\nname: run\nstages:\n  sft: [trainer=sft]\n"
    "  dpo: [trainer=dpo, 'model.path=${run:sft}']\n"
)
TOGETHER = {
    "two": ("trainer=dpo", "metric=none", "model.path=start"),
    "stages": ("experiment=chain", "--config-dir", "conf", "metric=none"),
    "sweep": ("-m", "trainer=sft", "metric=none", "model.path=start", "seed=1,2"),
}
# Two processes that hold a model together; accelerate is made to shard on a CPU.
SPREAD = {
    "fsdp2": ("trainer=sft", "strategy=fsdp2", "metric=none"),
    "shards": (
        "trainer=sft",
        "strategy=fsdp2",
        "trainer.args.fsdp_config.state_dict_type=SHARDED_STATE_DICT",
    ),
    "fsdp2-lora": ("trainer=dpo", "peft=lora", "strategy=fsdp2", "metric=none"),
    "fsdp2-ppo": ("trainer=ppo", "strategy=fsdp2", "trainer.args.kl_target=0.1"),
    "fsdp2-lora-ppo": ("trainer=ppo", "peft=lora", "strategy=fsdp2", "trainer.args.kl_target=0.1"),
    "fsdp2-grpo": ("trainer=grpo", "strategy=fsdp2", *GROUPS, "kl_coef=0.1", *SYNCED),
}
# The full toys, which bring model and rows: an agent of two stages, by GRPO and by PPO, and a
# model of images.
TOY = ("name=run", "trainer.args.logging_steps=1")
ASKING = (
    "dataset.limit={train: 512, eval: 8}",
    "sft.trainer.args.max_steps=80",
    "sft.trainer.args.save_steps=30",
)
TOYS = {
    "tool": (
        "experiment=toy_tool",
        *TOY,
        *ASKING,
        "grpo.trainer.args.max_steps=8",
        "grpo.trainer.args.save_steps=2",
    ),
    "tool-ppo": (
        "experiment=toy_tool_ppo",
        *TOY,
        *ASKING,
        "ppo.trainer.args.max_steps=8",
        "ppo.trainer.args.save_steps=2",
    ),
    "picture": (
        *("experiment=toy_picture", *TOY, "dataset.limit={train: 64, eval: 8}"),
        *(
            "trainer.args.max_steps=8",
            "trainer.args.save_steps=2",
            "trainer.args.per_device_train_batch_size=8",
            "trainer.args.warmup_steps=2",
        ),
    ),
}
DROPOUT = ("sft", "reward")  # the others need a model that gives the same output twice
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
# Figures of the clock, by the end of their names.
CLOCK = ("_seconds", "_per_second", "_runtime", "_time")


@dataclass
class Tally:
    """The counts for the runs of one trainer."""

    kills: int = 0
    inside: int = 0
    runs: int = 0
    finished: int = 0
    equal: int = 0
    missed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills:>6} {self.inside:>14} {self.runs:>6} {self.finished:>9} {self.equal:>10}"
        )


@dataclass
class Place:
    """A folder with rows and a start model, in which the command runs."""

    folder: Path
    root: Path
    warm: Warm
    door: str = DOOR
    dropout: float = 0.0
    processes: int = 1
    others: list[Started] = field(default_factory=list)  # that train as one with the command

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        shutil.copytree(PACKAGE / "dataset" / "toy_sort", self.folder / "rows")
        shutil.copytree(
            PACKAGE / "model" / "tiny",
            self.folder / "start",
            ignore=shutil.ignore_patterns("*.py", "__*"),
        )
        config = read_json(self.folder / "start" / "config.json") | {
            "attention_dropout": self.dropout
        }
        (self.folder / "start" / "config.json").write_text(json.dumps(config))
        (self.folder / "conf" / "experiment").mkdir(parents=True)
        (self.folder / "conf" / "experiment" / "chain.yaml").write_text(CHAIN)

    def start(self, words: tuple[str, ...], **instant) -> Started:
        """Start the command here; ``instant`` is when something happens to it."""
        variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
        variables |= {"RUNNER_TEST_FSDP_ON_CPU": "1"} if "strategy=fsdp2" in words else {}
        instant_of_kill = Instant(str(self.root), **instant) if instant else None
        beside = Instant(str(self.root), synced=instant_of_kill.synced) if instant_of_kill else None
        environment = {**os.environ, **variables}
        if self.processes == 1:
            return self.warm.start([*words], self.folder, environment, instant_of_kill, self.door)
        first, second = [environment | world for world in world_of_two()]
        self.others = [self.warm.start([*words], self.folder, second, beside, self.door)]
        return self.warm.start([*words], self.folder, first, instant_of_kill, self.door)

    def wait(self, started: Started) -> subprocess.CompletedProcess:
        """Wait for the end of a command, and of its companions, which may end in any way."""
        done = started.wait()
        for companion in self.others:
            if done.returncode == -9:
                companion.send(9)
            companion.wait()
        return done

    def records(self) -> dict[str, object]:
        """The content of all runs of this folder, by name; see :func:`run_files`."""
        records = {}
        for folder in (path.parent for path in sorted(self.folder.glob("outputs/*/*/config.yaml"))):
            files = run_files(Run(folder))
            last = sealed_checkpoints(Run(folder).checkpoints)[-1].name
            # A run whose driver is killed saves where it stands, in place of another of its earlier
            # checkpoints.
            files["names"] = [
                name
                for name in files["names"]
                if last in name or not name.startswith("checkpoints/c")
            ]
            records |= {
                f"{folder.relative_to(self.folder)} {name}": value for name, value in files.items()
            }
        return records

    @property
    def run(self) -> Run:
        return Run(next(self.folder.glob("outputs/run/*-*")))

    def torn(self) -> bool:
        """True if a save was cut off: a checkpoint without a seal, or one about to be deleted."""
        checkpoints = self.folder.glob("outputs/**/*checkpoint-*")
        seal_name = SEAL if self.door == DOOR else "trainer_state.json"
        return any(
            path.is_dir() and (path.name.startswith(".") or not (path / seal_name).exists())
            for path in checkpoints
        )


def kill_at(
    place: Place, words: tuple[str, ...], pattern: str, count: int, moment: float, power: bool
) -> int:
    """The exit code of the command, killed ``moment`` seconds after an instant; -9 if it was.

    ``power`` takes from each file what was not synced by then.
    """
    synced = place.root / f"{place.folder.name}.synced"
    if not moment and not power:
        return place.wait(place.start(words, pattern=pattern, count=count)).returncode
    told = place.folder / "told"
    told.unlink(missing_ok=True)
    started = place.start(
        words, pattern=pattern, count=count, told=str(told), synced=str(synced) if power else None
    )
    if started.wait_for(told):
        time.sleep(moment)
        started.send(signal.SIGSTOP if power else 9)
        if power:
            fail_power(place.folder / "outputs", synced)
            started.send(9)
    return place.wait(started).returncode


def fail_power(folder: Path, synced: Path) -> None:
    """Undo all writes in the folder of a stopped command that were not synced.

    What was synced when the power failed before stays.
    """
    sizes = {}
    for line in synced.read_text(encoding="utf-8").splitlines():
        inode, size = map(int, line.split())
        sizes[inode] = size
    for path in [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]:
        content = path.read_bytes()[: sizes.get(path.stat().st_ino, 0)]
        path.unlink()
        path.write_bytes(content)
        with synced.open("a", encoding="utf-8") as file:
            file.write(f"{path.stat().st_ino} {len(content)}\n")


def storm(
    place: Place,
    words: tuple[str, ...],
    touches: list[str],
    kills: int,
    chance: random.Random,
    power: bool = False,
) -> Tally:
    """Kill a run again and again, then let it finish; ``touches`` are of an undisturbed one."""
    tally = Tally(runs=1)
    weights = [weight for _, weight in PLACES.values()]
    for again in range(kills):
        pattern, _ = chance.choices(list(PLACES.values()), weights)[0]
        most = sum(bool(re.search(pattern, touch)) for touch in touches) // (1 + again)
        moment = chance.choice((0.0, chance.uniform(0, MOMENT)))
        code = kill_at(place, words, pattern, chance.randint(1, max(1, most)), moment, power)
        if code == 0:
            break
        if code != -9:
            tally.missed.append(f"exit code {code} when it was started again")
            return tally
        tally.kills += 1
        tally.inside += place.torn()
    done = place.wait(place.start(words))
    tally.finished = done.returncode == 0
    if done.returncode:
        tally.missed.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
    return tally


def run_files(run: Run) -> dict[str, object]:
    """The content of a run by file name.

    Hashes of weights and of the last checkpoint, the log, the names.

    Left out is what holds the clock or the place of the run.
    """
    checkpoint = sealed_checkpoints(run.checkpoints)[-1]
    paths = itertools.chain(run.model.rglob("*"), checkpoint.rglob("*"))
    files = [path for path in paths if path.is_file()]
    clocks = ("training_args.bin", "trainer_state.json", SEAL, ".metadata")
    found: dict[str, object] = {
        str(path.relative_to(run.folder)): content(path)
        for path in files
        if path.name not in clocks
    }
    found["trainer_state.json"] = timeless(read_json(checkpoint / "trainer_state.json"))
    found["metrics.jsonl"] = timeless(read_metrics(run.metrics))
    found["scores.json"] = timeless(read_json(run.folder / "scores.json"))
    found["status.json"] = [run.status()[name] for name in ("state", "step", "max_steps", "cause")]
    found["command"] = read_json(run.folder / "manifest.json")["command"]
    found["names"] = sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*"))
    return found


def content(path: Path) -> str:
    """The hash of a file.

    For the optimizer of a sharded model, the hash of its values (loading makes tuples lists).
    """
    if path.name != "optimizer.bin":
        return sha256(path)
    import torch

    def hash_of(tensor) -> str:
        return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()

    return json.dumps(torch.load(path, weights_only=True), default=hash_of, sort_keys=True)


def timeless(value: object) -> object:
    """The same without figures of the clock."""
    if isinstance(value, dict):
        clocks = {
            key
            for key in value
            if key.endswith(CLOCK) or key.startswith(("time/", "memory/")) or key == "eps"
        }
        return {key: timeless(entry) for key, entry in value.items() if key not in clocks}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def unbroken(place: Place, words: tuple[str, ...]) -> list[str]:
    """Run the command undisturbed; return the touches of files."""
    record = place.root / f"{place.folder.name}.touches"
    done = place.wait(place.start(words, record=str(record)))
    assert done.returncode == 0, done.stderr
    return record.read_text(encoding="utf-8").splitlines()


def punish(
    trainer: str,
    kills: int,
    root: Path,
    warm: Warm,
    chance: random.Random,
    most: int = KILLS_A_RUN,
    power: bool = False,
) -> Tally:
    """Runs of a trainer until there are enough kills, with a limit for each, compared with the
    undisturbed run.
    """
    words = (*SHARED, *TOGETHER[trainer]) if trainer in TOGETHER else TOYS.get(trainer, ())
    words = words or (*WORDS, *(TRAINERS | SPREAD)[trainer])
    processes = 2 if trainer in ("two", *SPREAD) else 1
    settings = {"dropout": 0.1 if trainer in DROPOUT else 0.0, "processes": processes}
    uninterrupted = Place(root / trainer, root, warm, **settings)
    touches = unbroken(uninterrupted, words)
    total = Tally()
    wanted = uninterrupted.records()
    while total.kills < kills:
        place = Place(root / f"{trainer}-{total.runs}", root, warm, **settings)
        tally = storm(place, words, touches, min(most, kills - total.kills), chance, power)
        if tally.finished:
            records = place.records()
            differing = sorted(
                name for name in wanted | records if wanted.get(name) != records.get(name)
            )
            tally.equal = not differing
            tally.missed += (
                [f"{place.folder.name} differs in {', '.join(differing)}"] if differing else []
            )
        _add(total, tally)
        if not tally.missed:
            shutil.rmtree(place.folder)
    return total


def control(kills: int, root: Path, warm: Warm, chance: random.Random) -> Tally:
    """The same with TRL's own trainer; see ``plain``."""
    uninterrupted = Place(root / "plain", root, warm, "plain:main")
    touches = unbroken(uninterrupted, ())
    total = Tally()
    weights = "outputs/plain/model/model.safetensors"
    while total.kills < kills:
        place = Place(root / f"plain-{total.runs}", root, warm, "plain:main")
        tally = storm(place, (), touches, 1, chance)
        same = tally.finished and sha256(place.folder / weights) == sha256(
            uninterrupted.folder / weights
        )
        tally.equal = bool(same)
        _add(total, tally)
        shutil.rmtree(place.folder)
    return total


def _add(total: Tally, tally: Tally) -> None:
    for name, value in vars(tally).items():
        setattr(total, name, getattr(total, name) + value)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trainer", nargs="*", choices=[*TRAINERS, *TOGETHER, *SPREAD, *TOYS, []])
    parser.add_argument("--count", type=int, default=200, help="kills of all trainers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--power", action="store_true", help="take from each file what was not yet synced"
    )
    parser.add_argument(
        "--keep", type=Path, help="a new folder for the runs, which are kept where they miss"
    )
    asked = parser.parse_args()
    trainers = asked.trainer or [*TRAINERS, *TOGETHER, *SPREAD, *TOYS]
    tallies = {}
    with tempfile.TemporaryDirectory() as folder:
        root = (asked.keep or Path(folder)).absolute()
        warm = Warm(root / "warm")
        chance = random.Random(asked.seed)
        print(
            f"{'':<8} {'kills':>6} {'inside a save':>14} "
            f"{'runs':>6} {'finished':>9} {'bit-equal':>10}"
        )
        for trainer in trainers:
            tallies[trainer] = punish(
                trainer, -(-asked.count // len(trainers)), root, warm, chance, power=asked.power
            )
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
