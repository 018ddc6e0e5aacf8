"""The bench of ``vllm_real.py``: a server, the public command, and words that its cases share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from runner.run.history import read_metrics

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
# A tiny model needs no more than a gigabyte of attention cache.
VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
SECONDS_TO_START = 180
SERVER_OPTIONS = (
    "--logprobs-mode",
    "processed_logprobs",
    "--worker-extension-cls",
    "runner.generate.vllm_worker.Reloadable",
    "--no-enable-chunked-prefill",
)
RATIO = "sampling/importance_sampling_ratio"
FEW = (
    "model=tiny",
    "dataset.limit.train=16",
    "dataset.limit.eval=4",
    "metric=none",
    "trainer.args.logging_steps=1",
    "trainer.args.per_device_train_batch_size=4",
    "trainer.args.per_device_eval_batch_size=4",
    "tolerate.ended_worse=true",
)
PPO = ("trainer=ppo", *FEW, "trainer.args.rollout_engine=vllm", "trainer.args.response_length=12")
TWO_STEPS = "trainer.args.max_steps=2"
# So many that something can be done in the middle of them.
MANY_STEPS = ("trainer.args.max_steps=30", "trainer.args.save_steps=2")
TRL = (
    *FEW,
    "trainer.args.use_vllm=true",
    "trainer.args.vllm_mode=colocate",
)
# Steps after which weights that did not reach vLLM would show in the ratios.
LEARNING = ("trainer.args.max_steps=8", "learning_rate=1e-3")
GROUPS = ("trainer.args.num_generations=2", "trainer.args.max_completion_length=12")
EXACT = 1e-4  # of probabilities in float32, between two programs that add in another order
HALF = 0.25  # the same of bfloat16


@dataclass
class Server:
    """A vLLM server on a port of its own, and its output in a file."""

    bench: Bench
    model: str
    options: tuple[str, ...] = SERVER_OPTIONS
    variables: dict[str, str] = field(default_factory=lambda: {"VLLM_SERVER_DEV_MODE": "1"})

    def __post_init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.bench.folder / f"server-{self.port}.log"
        module = "vllm.entrypoints.openai.api_server"
        self.words = ["-m", module, "--model", self.model, "--dtype", "float32", "--enforce-eager"]
        self.words += ["--max-model-len", "512", "--port", str(self.port), *self.options]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is up."""
        # vLLM's servers leave their sockets behind.
        temporary = self.bench.folder / "of-servers"
        temporary.mkdir(exist_ok=True)
        own = {"DO_NOT_TRACK": "1", "TMPDIR": str(temporary)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.words],
                cwd=self.bench.folder,
                env=self.bench.environment | own | self.variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + SECONDS_TO_START
        while not self.is_up():
            is_alive = self.process.poll() is None
            assert is_alive and time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.2)

    def is_up(self) -> bool:
        opener = build_opener(ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=5):
                return True
        except (URLError, OSError):
            return False

    def send(self, number: int) -> None:
        """Send a signal to the server and to the process of its engine."""
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self.process.wait()


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


class Bench:
    """The public command in a working folder, with a home and a folder for temporary files."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        self.home.mkdir()
        self.temporary.mkdir()
        path = os.pathsep.join([str(ROOT), str(TESTS)])
        own = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONPATH": path}
        # Compiled code of torch that all commands share.
        own["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torchinductor")
        own["HF_HOME"] = str(folder / "hf")
        self.environment = os.environ | VARIABLES | own
        self.servers: list[Server] = []
        self.measured: dict[str, dict[str, Any]] = {}
        self.trained: dict[str, Ended] = {}

    def command(self, *words: str, code: int = 0, **variables: str) -> Ended:
        """The public command, which must end with an exit code."""
        ended = self.wait(self.start(*words, **variables))
        assert ended.code == code, f"exit code {ended.code}, not {code}: {ended.text[-3000:]}"
        return ended

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """The public command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "runner", *words],
            cwd=self.folder,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait(self, process: subprocess.Popen[str], seconds: float = 400) -> Ended:
        began = time.monotonic()
        stdout, stderr = process.communicate(timeout=seconds)
        return Ended(process.returncode, stdout, stderr, time.monotonic() - began)

    def train(self, name: str, *words: str, **variables: str) -> Ended:
        """A finished run of this name, trained once however many cases look at it."""
        if name not in self.trained:
            self.trained[name] = self.command(*words, f"name={name}", **variables)
        return self.trained[name]

    def run(self, name: str) -> Path:
        """The folder of the run of a name."""
        (config,) = (self.folder / "outputs" / name).glob("*/config.yaml")
        return config.parent

    def wait_for_step(self, name: str, step: int, process: subprocess.Popen[str]) -> None:
        """Wait until a run that is being trained has taken so many steps."""
        deadline = time.monotonic() + 200
        while self.step(name) < step:
            assert process.poll() is None, self.wait(process).text
            assert time.monotonic() < deadline, "no step"
            time.sleep(0.02)

    def step(self, name: str) -> int:
        for path in (self.folder / "outputs" / name).glob("*/status.json"):
            with contextlib.suppress(json.JSONDecodeError):
                return int(json.loads(path.read_text()).get("step") or 0)
        return 0

    def server(self) -> Server:
        """The server that most cases share."""
        if not self.servers:
            self.servers.append(Server(self, shipped_model()))
        return self.servers[0]

    @contextlib.contextmanager
    def other_server(self, *options: str, **changes: Any) -> Iterator[Server]:
        """A server of a case's own."""
        if options:
            changes["options"] = options
        server = Server(self, shipped_model(), **changes)
        try:
            yield server
        finally:
            server.stop()

    def measure(self, mode: str, tuner: str) -> dict[str, Any]:
        """What ``vllm_real_engine.py`` finds out, asked once however many cases want it."""
        name = f"{mode}, {tuner}"
        if name not in self.measured:
            script = Path(__file__).with_name("vllm_real_engine.py")
            url = self.server().url if mode == "server" else ""
            done = subprocess.run(
                [sys.executable, str(script), mode, tuner, url],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=400,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            self.measured[name] = json.loads(done.stdout.splitlines()[-1])
        return self.measured[name]

    def close(self) -> None:
        for server in self.servers:
            server.stop()


def shipped_model() -> str:
    """The folder of the tiny model."""
    return str(ROOT / "runner" / "model" / "tiny")


def ratios(bench: Bench, name: str) -> tuple[float, float]:
    """The smallest and the largest ratio of our probability to that of vLLM in a run."""
    lines = [line for line in read_metrics(bench.run(name) / "metrics.jsonl") if "loss" in line]
    lines = [line for line in lines if f"{RATIO}/min" in line]
    lowest = min(line[f"{RATIO}/min"] for line in lines)
    highest = max(line[f"{RATIO}/max"] for line in lines)
    return lowest, highest


def told_ratios(bench: Bench, name: str, bound: float = EXACT) -> str:
    """The ratios of a run in words; none may be farther from 1 than ``bound``."""
    lowest, highest = ratios(bench, name)
    assert 1 - bound < lowest <= highest < 1 + bound, (lowest, highest)
    return f"ratios {lowest:.6f} to {highest:.6f}"


def on_server(server: Server, seconds: int = 60) -> tuple[str, ...]:
    """The words of a run that samples by a server."""
    return (
        "trainer.args.vllm_mode=server",
        f"trainer.args.vllm_server_base_url={server.url}",
        f"trainer.args.vllm_server_timeout={seconds}",
    )


def error_lines(ended: Ended) -> str:
    """What a command said of its failure, without what libraries print beside it."""
    lines = ended.stderr.splitlines()
    headings = ("environment", "config", "data", "internal error")
    first = min(n for n, line in enumerate(lines) if line.startswith(headings))
    shown = [lines[first]]
    for line in lines[first + 1 :]:
        if not line.startswith("  "):
            break
        shown.append(line)
    return " ".join(" ".join(shown).split())
