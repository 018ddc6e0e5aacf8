"""CPU seconds and memory of the commands that look at many runs, at several sizes, and how they
grow.

run: python tests/benchmark/many_runs.py                    1,000 and 10,000: six minutes
     python tests/benchmark/many_runs.py 300 3000 --only report again

It measures the plan of a sweep, its skip check, reports, and the listing.

One run is trained. The others are copies of it with a learning rate, a kl_coef and a seed of their
own: the config that the public ``compose`` freezes for them and its key, and the run's own status,
manifest, scores, 60 logged lines and sealed ``model/`` (whose files are links to the first).
``skip`` is the dry run of the sweep in which all are finished, and ``rerun`` the sweep itself,
which starts nothing and ends with a report; it comes after the reports, and so finds their index.
Exits 1 where a ratio is above ``--most`` for each tenfold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import marks
import yaml

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))
COMMON = ["trainer=dpo", "trainer.args.max_steps=60", "trainer.args.logging_steps=1"]
RATES = [f"{number}e-6" for number in range(1, 51)]
KLS = [f"0.{number:02}" for number in range(1, 21)]
SETTLED = 2.5  # seconds after which the index trusts a written file
ROWS = ("plan", "skip", "report", "again", "where", "listing", "rerun")
MARKED = 10_000  # the runs of the marks
MARKS = {"plan": 10.0, "skip": 10.0, "report": 30.0}  # CPU seconds
MARKED_MEMORY = 300.0  # MB, of a report


def axes(size: int) -> list[str]:
    """The words of a sweep of so many jobs."""
    seeds = ",".join(map(str, range(size // (len(RATES) * len(KLS)) or 1)))
    kls = KLS[: max(1, min(len(KLS), size // len(RATES)))]
    return [f"learning_rate={','.join(RATES)}", f"kl_coef={','.join(kls)}", f"seed={seeds}"]


def fabricate(folder: Path, source: Path, size: int) -> str:
    """The finished runs of such a sweep, under a name of their own."""
    from runner import compose
    from runner.run import Run, write_config
    from runner.run.key import key_of

    os.chdir(folder)
    name = f"runs-{size}"
    group = folder / "outputs" / name
    composed = compose(*COMMON, f"name={name}")
    manifest, status = (
        json.loads((source / file).read_text()) for file in ("manifest.json", "status.json")
    )
    scores = json.loads((source / "scores.json").read_text())
    lines = (source / "metrics.jsonl").read_text()
    values = [word.partition("=")[2].split(",") for word in axes(size)]
    combinations = itertools.product(*values)
    for number, (rate, kl, seed) in enumerate(combinations):
        args = composed["trainer"]["args"] | {"learning_rate": float(rate), "beta": float(kl)}
        cfg = composed | {"learning_rate": float(rate), "kl_coef": float(kl), "seed": int(seed)}
        cfg["trainer"] = composed["trainer"] | {"args": args}
        words = [*COMMON, f"learning_rate={rate}", f"kl_coef={kl}", f"seed={seed}", f"name={name}"]
        if number == 7:
            assert cfg == compose(*words), "the public command composes another configuration"
        key = key_of(cfg)
        run = group / f"learning_rate-{rate}+kl_coef-{kl}+seed-{seed}-{key}"
        if number == 0:
            write_config(run, cfg)
            text = (run / "config.yaml").read_text()
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.yaml").write_text(edited(text, rate, kl, seed))
        assert number != 7 or Run(run).cfg == cfg
        after = {metric: value + number / size / 10 for metric, value in scores["after"].items()}
        (run / "scores.json").write_text(json.dumps(scores | {"after": after}, indent=2))
        (run / "status.json").write_text(json.dumps(status, indent=2))
        written = {"key": key, "seed": int(seed), "command": ["python", "-m", "runner", *words]}
        (run / "manifest.json").write_text(json.dumps(manifest | written, indent=2))
        (run / "metrics.jsonl").write_text(lines)
        (run / ".lock").touch()
        shutil.copytree(source / "model", run / "model", copy_function=os.link)
    return name


def edited(text: str, rate: str, kl: str, seed: str) -> str:
    """The frozen configuration of the first run, edited into that of another one."""
    new = {
        "seed": seed,
        "learning_rate": yaml.safe_dump(float(rate)).split()[0],
        "kl_coef": kl,
        "beta": kl,
    }
    lines = []
    for line in text.splitlines():
        key, sign, _ = line.partition(": ")
        lines.append(f"{key}: {new[key.strip()]}" if sign and key.strip() in new else line)
    return "\n".join(lines) + "\n"


def measure(words: list[str], folder: Path) -> tuple[float, float, str]:
    """CPU seconds and peak MB of one command, and its last line."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    code = "import resource, sys; from runner.__main__ import main; code = main(sys.argv[1:])\n"
    code += (
        "used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, "
        "resource.RUSAGE_CHILDREN)]\n"
    )
    code += (
        "cpu = sum(each.ru_utime + each.ru_stime for each in used); "
        "peak = max(each.ru_maxrss for each in used)\n"
    )
    code += "print(f'\\n{cpu} {peak / 1000} {code}')"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    *_, last = done.stdout.strip().splitlines() or [""]
    cpu, peak, ended = last.split() if len(last.split()) == 3 else (math.nan, math.nan, "crashed")
    return (
        float(cpu),
        float(peak),
        "" if ended == "0" else f"exit {ended}: {' '.join(done.stderr.split())[-150:]}",
    )


def words_of(row: str, name: str, size: int) -> list[str]:
    """The command of a row of the table."""
    sweep = ["-m", *COMMON, *axes(size), "--dry-run"]
    report = ["report", f"outputs/{name}"]
    return {
        "plan": [*sweep, f"name=planned-{size}"],
        "skip": [*sweep, f"name={name}"],
        "report": report,
        "again": report,
        "where": [*report, "where=state=finished,kl_coef>0.05", "sort=eval_loss", "top=50"],
        "listing": ["report"],
        "rerun": [*sweep[:-1], f"name={name}"],
    }[row]


def find_marks(row: str, size: int, cpu: float, peak: float) -> list[marks.Mark]:
    """The marks of a row of the table, of which most have none."""
    if size != MARKED:
        return []
    found = []
    work = f"jobs, {MARKED:,}: {row}"
    if row in MARKS:
        mark = marks.Mark(f"{work}, CPU s", cpu, MARKS[row], at_least=False, ours=f"{cpu:.1f} s")
        found.append(mark)
    if row == "report":
        text = f"{peak:.0f} MB"
        mark = marks.Mark(f"{work}, peak MB", peak, MARKED_MEMORY, at_least=False, ours=text)
        found.append(mark)
    return found


def note_all(reached: list[marks.Mark], file: Path | None) -> None:
    """Print the table of the marks, if there are any, and say them to the file of marks."""
    if reached:
        print(marks.HEAD)
    for mark in reached:
        marks.note(mark, file)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sizes",
        nargs="*",
        type=int,
        default=[1000, MARKED],
        help="numbers of runs, multiples of 1,000, or of 50 below that",
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--most", type=float, default=11.0)
    parser.add_argument("--folder", type=Path, help="keeps the runs there, and finds them again")
    marks.add_option(parser)
    chosen = parser.parse_args()
    reached: list[marks.Mark] = []
    measured: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder.absolute() if chosen.folder else Path(temporary)
        folder.mkdir(exist_ok=True)
        if not list(folder.glob("source/*/status.json")):
            done = measure([*COMMON, "name=source", f"output_root={folder}"], folder)
            assert not done[2], done[2]
        source = next(folder.glob("source/*-*"))
        for size in chosen.sizes:
            place = folder / f"of-{size}"
            place.mkdir(exist_ok=True)
            name = f"runs-{size}"
            if not (place / "outputs" / name).exists():
                fabricate(place, source, size)
                time.sleep(SETTLED)
            for row in chosen.only:
                if row == "report":
                    (place / "outputs" / name / ".index.sqlite").unlink(missing_ok=True)
                cpu, peak, wrong = measure(words_of(row, name, size), place)
                measured.setdefault(row, []).append(cpu if not wrong else math.nan)
                print(f"{row:<8}{size:>7}{cpu:>9.1f} s{peak:>8.0f} MB  {wrong}", flush=True)
                reached += find_marks(row, size, cpu, peak)
            page = place / "outputs" / name / "report.html"
            print(
                f"page    {size:>7}{page.stat().st_size / 1e6 if page.exists() else 0:>9.2f} MB",
                flush=True,
            )
    note_all(reached, chosen.marks)
    bad = []
    for row, seconds in measured.items():
        for small, large, before, after in zip(
            chosen.sizes, chosen.sizes[1:], seconds, seconds[1:], strict=False
        ):
            ratio = after / before
            most = chosen.most ** math.log10(large / small)
            print(f"{row:<8}{small:>7} -> {large:<7}{ratio:>6.1f} times")
            bad += [row] if not ratio <= most else []
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
