"""Rows and references beside a plain TRL script.

What a second start reuses, what a million rows cost.

    reference   a DPO step without the reference's pass; the losses; a second run, which reuses the
                log-probabilities
    tokens      a second start with another learning rate, which reuses the tokens; SFT and DPO
    rows        first and second starts on ever more rows: seconds a row, and memory
    stream      a run on streamed rows that is killed and resumed: local files, the loopback hub, S3
                (with moto)

run: python tests/benchmark/data.py --only reference tokens
     python tests/benchmark/data.py --only rows --sizes 10000 100000 1000000

Prints a table in markdown for each. CPU seconds are user and system of all processes of a command,
medians where it is repeated; memory is the peak of the largest process: all that is resident, and
what no file is behind (``own``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "runner" / "model" / "tiny"
PARTS = ("reference", "tokens", "rows", "stream")
WORDS = ["".join(letters) for letters in itertools.product("bkrtnslmfg", "aeiou", "nrst")]
PLAIN = """
import json, sys
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
import trl
sys.path.insert(0, {folder!r})
from meter import Meter
rows = load_dataset("json", data_files={rows!r}, split="train")
auto = AutoModelForSequenceClassification if {kind!r} == "Reward" else AutoModelForCausalLM
model = auto.from_pretrained({model!r}, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained({model!r})
cpu = dict(use_cpu=True, bf16=False, activation_checkpointing=False, report_to="none", seed=0,
           save_strategy="no")
args = trl.{kind}Config({out!r}, **cpu, **{args!r})
peft = dict()
if {adapter!r}:
    from peft import LoraConfig
    peft["peft_config"] = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
trainer = trl.{kind}Trainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer,
                            callbacks=[Meter({out!r})], **peft)
trainer.train()
"""
# CPU seconds of each step but the first, and the losses, as both sides note them.
METER = """
import json, os, time
from pathlib import Path
from transformers import TrainerCallback

class Meter(TrainerCallback):
    def __init__(self, out):
        self.out, self.steps, self.losses = Path(out), [], []
    def on_step_begin(self, args, state, control, **given):
        self.begun = time.process_time()
    def on_step_end(self, args, state, control, **given):
        self.steps.append(time.process_time() - self.begun)
        pause = float(os.environ.get("METER_PAUSE", 0))
        time.sleep(pause)
    def on_log(self, args, state, control, logs=None, **given):
        if "loss" in (logs or {}):
            self.losses.append(logs["loss"])
    def on_train_end(self, args, state, control, **given):
        self.out.mkdir(parents=True, exist_ok=True)
        measured = {"steps": self.steps[1:], "losses": self.losses}
        (self.out / "meter.json").write_text(json.dumps(measured))
"""


@dataclass
class Spent:
    """CPU and wall seconds of a command, and its peak memory in MB.

    Resident, and without mapped files.
    """

    cpu: float
    wall: float
    resident: float
    own: float


class Bench:
    """A folder with rows, a cache of its own, and the two sides."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "meter.py").write_text(METER)
        self.count = 0

    def environment(self, cache: str, **kwargs: str) -> dict[str, str]:
        variables = dict(os.environ) | {"HF_HUB_OFFLINE": "1"}
        path = (str(ROOT), str(self.folder), os.environ.get("PYTHONPATH", ""))
        variables["PYTHONPATH"] = os.pathsep.join(path)
        return variables | {"OMP_NUM_THREADS": "1", "HF_HOME": str(self.folder / cache)} | kwargs

    def rows(self, kind: str, count: int, length: int = 6) -> Path:
        """So many short rows of a kind, written one at a time."""
        path = self.folder / f"{kind}-{count}-{length}.jsonl"
        draw = random.Random(1)

        def text() -> str:
            return " ".join(draw.choices(WORDS, k=draw.randint(length // 2, length)))

        with path.open("w") as file:
            for number in range(count):
                answers = ("chosen", "rejected") if kind == "DPO" else ("completion",)
                row = {"prompt": f"{text()} {number}"} | {name: text() for name in answers}
                file.write(json.dumps(row) + "\n")
        return path

    def ours(
        self, kind: str, rows: Path, cache: str, *words: str, model: Path = TINY
    ) -> tuple[Spent, dict]:
        self.count += 1
        out = self.folder / f"meter-{self.count}"
        command = [
            sys.executable,
            "-m",
            "runner",
            f"trainer={kind.lower()}",
            "dataset=local",
            f"dataset.path={rows}",
        ]
        command += [
            "dataset.split.eval=null",
            "dataset.shuffle=false",
            "metric=none",
            f"model.path={model}",
        ]
        command += ["model.dtype=float32", "allow=[meter]", "callback.meter._target_=meter.Meter"]
        command += [
            f"callback.meter.out={out}",
            f"name=run{self.count}",
            f"output_root={self.folder / 'outputs'}",
        ]
        return self.measure([*command, *words], cache), read(out)

    def theirs(
        self,
        kind: str,
        rows: Path,
        cache: str,
        model: Path = TINY,
        adapter: bool = False,
        **args: object,
    ) -> tuple[Spent, dict]:
        self.count += 1
        out = self.folder / f"meter-{self.count}"
        arguments = {
            "folder": str(self.folder),
            "rows": str(rows),
            "model": str(model),
            "kind": kind,
            "out": str(out),
            "adapter": adapter,
        }
        return self.measure(
            [sys.executable, "-c", PLAIN.format(args=args, **arguments)], cache
        ), read(out)

    def measure(self, command: list[str], cache: str) -> Spent:
        began = time.monotonic()
        with (self.folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(cache),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            own = 0.0
            while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
                status = Path(f"/proc/{process.pid}/status").read_text()
                own = max(
                    [
                        own,
                        *(
                            int(line.split()[1])
                            for line in status.splitlines()
                            if "RssAnon" in line
                        ),
                    ]
                )
                time.sleep(0.1)
        if ended[1]:
            raise SystemExit((self.folder / "log.txt").read_text()[-3000:])
        used = ended[2]
        return Spent(
            used.ru_utime + used.ru_stime,
            time.monotonic() - began,
            used.ru_maxrss / 1024,
            own / 1024,
        )


def read(out: Path) -> dict:
    return json.loads((out / "meter.json").read_text())


def words_of(**args: object) -> list[str]:
    return [f"trainer.args.{name}={value}" for name, value in args.items()]


def table(title: str, head: str, lines: list[str]) -> None:
    columns = head.count("|") + 1
    print(
        f"\n{title}\n\n| {head} |\n|{'---|' * columns}",
        *(f"| {line} |" for line in lines),
        sep="\n",
        flush=True,
    )


# --- The parts ----------------------------------------------------------------------------------


def reference(bench: Bench, chosen: argparse.Namespace) -> None:
    """Two epochs of DPO on a model whose forward and backward passes, not the trainer around them,
    dominate a step.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(TINY)
    config.update(
        {
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
        }
    )
    config.update({"num_key_value_heads": 4, "head_dim": 64})
    model = bench.folder / "model"
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    AutoTokenizer.from_pretrained(TINY).save_pretrained(model)
    rows = bench.rows("DPO", 64, 20)
    args = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "learning_rate": 1e-5,
    }
    spent: dict[str, list[Spent]] = {"ours": [], "again": [], "TRL": []}
    meters: dict[str, list[dict]] = {"ours": [], "again": [], "TRL": []}
    for number in range(chosen.repeat):
        arguments = {**args, "learning_rate": 1e-5, "max_steps": -1}
        words = words_of(**arguments)
        measured = {
            "ours": bench.ours("DPO", rows, f"ours{number}", *words, model=model),
            "again": bench.ours("DPO", rows, f"ours{number}", *words, model=model),
            "TRL": bench.theirs("DPO", rows, f"theirs{number}", model=model, **args),
        }
        for name, (costs, meter) in measured.items():
            spent[name].append(costs)
            meters[name].append(meter)
    step = {}
    cpu = {}
    memory = {}
    for name in spent:
        steps = itertools.chain(*(meter["steps"] for meter in meters[name]))
        step[name] = statistics.median(steps)
        cpu[name] = statistics.median(costs.cpu for costs in spent[name])
        memory[name] = statistics.median(costs.own for costs in spent[name])
    losses = [of_side[0]["losses"] for of_side in meters.values()]
    apart = max(abs(a - b) for a, b in zip(losses[0], losses[2], strict=True))
    lines = []
    for what, figures_of_side, digits in (
        ("a step, CPU s", step, 3),
        ("the run, CPU s", cpu, 1),
        ("own memory, MB", memory, 0),
    ):
        figures = " | ".join(
            f"{figures_of_side[side]:.{digits}f}" for side in ("ours", "again", "TRL")
        )
        ratio = figures_of_side["ours"] / figures_of_side["TRL"]
        lines.append(f"{what} | {figures} | {ratio:.2f}")
    same = "equal" if losses[0] == losses[1] else "OTHER LOSSES"
    lines.append(
        f"largest difference from TRL's {len(losses[0])} losses | {apart:.1e} | {same} | | "
    )
    head = "what | ours first | ours second | plain TRL | ours first / TRL"
    table("DPO in float32, 64 pairs in two epochs, 5 M weights", head, lines)


def tokens(bench: Bench, chosen: argparse.Namespace) -> None:
    count = chosen.sizes[0] if chosen.sizes else 100_000
    lines = []
    for kind in ("SFT", "DPO"):
        rows = bench.rows(kind, count)
        few = bench.rows(kind, 100)
        start, _ = bench.ours(kind, few, "few", *words_of(max_steps=2))
        first, _ = bench.ours(kind, rows, "ours", *words_of(max_steps=2))
        second, _ = bench.ours(kind, rows, "ours", *words_of(max_steps=2, learning_rate=3e-6))
        plain, _ = bench.theirs(kind, rows, "theirs", max_steps=2)
        again, _ = bench.theirs(kind, rows, "theirs", max_steps=2, learning_rate=3e-6)
        for what, less in (("a start", 0.0), ("beyond that of 100 rows", start.cpu)):
            a, b, c, d = (spent.cpu - less for spent in (first, second, plain, again))
            theirs = f"{c:.1f} | {d:.1f}" if not less else " | "
            lines.append(
                f"{kind}, {count:,} rows: {what}, CPU s | "
                f"{a:.1f} | {b:.1f} | {theirs} | {b / a:.2f}"
            )
    head = "what | ours first | ours second | plain TRL first | second | ours second / first"
    table("Tokens found again by a run with another learning rate", head, lines)


def rows(bench: Bench, chosen: argparse.Namespace) -> None:
    lines = []
    base, _ = bench.ours("SFT", bench.rows("SFT", 100), "few", *words_of(max_steps=2))
    for count in chosen.sizes or (10_000, 100_000):
        path = bench.rows("SFT", count)
        for name, rate in (("first", 1e-6), ("second", 3e-6)):
            spent, _ = bench.ours("SFT", path, "rows", *words_of(max_steps=2, learning_rate=rate))
            per_row = 1e6 * (spent.cpu - base.cpu) / count
            lines.append(
                f"{count:,}, {name} | {spent.cpu:.1f} | "
                f"{per_row:.0f} | {spent.resident:.0f} | {spent.own:.0f}"
            )
    lines.insert(0, f"100 | {base.cpu:.1f} | | {base.resident:.0f} | {base.own:.0f}")
    table(
        "Starts on short rows, SFT",
        "rows, start | CPU s | µs a row beyond 100 rows | MB resident | MB own",
        lines,
    )


def stream(bench: Bench, chosen: argparse.Namespace) -> None:
    """Kill a run on streamed rows after a checkpoint, resume it, and compare it with an undisturbed
    one.
    """
    lines = []
    for name, words, more in sources(bench):
        out = {}
        for way in ("whole", "killed"):
            args = words_of(
                max_steps=12, save_steps=4, logging_steps=1, per_device_train_batch_size=4
            )
            command = [
                sys.executable,
                "-m",
                "runner",
                "trainer=sft",
                *words,
                "dataset.streaming=true",
                "metric=none",
            ]
            command += [
                "dataset.split.eval=null",
                "dataset.limit.train=null",
                "allow=[meter]",
                *args,
            ]
            command += [
                "callback.meter._target_=meter.Meter",
                f"callback.meter.out={bench.folder / 'meter-s'}",
            ]
            command += [
                f"name=stream-{name.replace(' ', '-')}-{way}",
                f"output_root={bench.folder / 'outputs'}",
            ]
            environment = (
                bench.environment("stream", METER_PAUSE="0.3" if way == "killed" else "0") | more
            )
            run = bench.folder / "outputs" / f"stream-{name.replace(' ', '-')}-{way}"
            if way == "killed":
                process = subprocess.Popen(
                    command,
                    cwd=bench.folder,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                while process.poll() is None and not list(
                    run.glob("*/checkpoints/checkpoint-8/seal.json")
                ):
                    time.sleep(0.02)
                process.send_signal(signal.SIGKILL)
                process.wait()
            done = subprocess.run(
                command, cwd=bench.folder, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            out[way] = next(run.glob("*/model/model.safetensors")).read_bytes()
            resumed = [line for line in done.stdout.splitlines() if line.startswith("resumes")]
        same = "the same bits" if out["whole"] == out["killed"] else "OTHER WEIGHTS"
        lines.append(
            f"{name} | {resumed[0].split('from ')[1] if resumed else 'NOT RESUMED'} | {same}"
        )
    table(
        "Streamed rows, killed behind step 8 of 12",
        "rows from | resumes from | as the run that was not killed",
        lines,
    )


def sources(bench: Bench):
    """Name, words and variables of each place that rows stream from."""
    path = bench.rows("SFT", 300)
    yield "local files", ["dataset=local", f"dataset.path={path}"], {}
    sys.path.insert(0, str(ROOT / "tests"))
    import hub

    online = {"HF_HUB_OFFLINE": "0", "PYTHONPATH": bench.environment("hub")["PYTHONPATH"]}
    with hub.Hub() as served:
        served.add_dataset(
            "some/rows",
            {"default": {"train": list(map(json.loads, path.read_text().splitlines()))}},
        )
        yield (
            "hub",
            ["dataset=hub", "dataset.path=some/rows"],
            served.environment(bench.folder / "hub") | online,
        )
    try:
        import boto3
        import s3fs  # noqa: F401
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        print(f"no S3: {error}")
        return
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    address = {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
    os.environ.update(keys)
    client = boto3.client("s3", endpoint_url=address["AWS_ENDPOINT_URL"])
    client.create_bucket(Bucket="rows")
    client.put_object(Bucket="rows", Key="train.jsonl", Body=path.read_bytes())
    yield "S3", ["dataset=local", "dataset.path=s3://rows/train.jsonl"], keys | address
    server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--sizes", nargs="+", type=int, help="rows of the parts tokens (the first) and rows"
    )
    parser.add_argument(
        "--repeat", type=int, default=3, help="runs of each side of the part reference"
    )
    chosen = parser.parse_args()
    names = ("torch", "transformers", "trl", "datasets", "accelerate")
    print(
        platform.processor() or platform.machine(),
        f"{os.cpu_count()} processors, Python {platform.python_version()},",
    )
    print(", ".join(f"{name} {version(name)}" for name in names))
    for name in chosen.only:
        with tempfile.TemporaryDirectory() as folder:
            globals()[name](Bench(Path(folder)), chosen)


if __name__ == "__main__":
    main()
