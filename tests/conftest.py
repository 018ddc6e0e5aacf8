"""What every test shares: offline by default, one thread, and the public command in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hub import served_hub  # noqa: F401  the session fixture `hub`
from warm import Warm

# Before torch or a hub library is imported anywhere.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from runner.__main__ import main
from runner.files import read_json
from runner.report.read import read_metrics
from runner.run import Run

ROOT = Path(__file__).parent.parent
OF_A_TEST = {"HF_HOME", "PYTHONPATH", "PYTEST_CURRENT_TEST"}  # variables that no library reads for good


class Command:
    """``python -m runner`` in a working folder of the test's own."""

    def __init__(self, folder: Path, environment: dict[str, str], warm: Warm):
        self.folder = folder
        self.environment = environment
        self.warm = warm

    def __call__(self, *words: str, code: int = 0, module: str = "runner", **variables: str):
        """Run it, check the exit code, and give back what subprocess.run gives.

        Without variables of its own it is forked from a process that has imported the libraries; see ``warm``.
        """
        if module == "runner" and not variables and self._is_plain():
            done = self.warm.run(list(words), self.folder, self.environment)
        else:
            done = self.cold(*words, module=module, **variables)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def cold(self, *words: str, module: str = "runner", **variables: str):
        """The same in a process that starts from nothing, whatever its exit code."""
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def _is_plain(self) -> bool:
        """Whether nothing is set that a library would have read otherwise when the waiting process imported it."""
        own, there = (
            {name: value for name, value in environment.items() if name not in OF_A_TEST}
            for environment in (self.environment, self.warm.environment)
        )
        return own == there

    def stopped(self, *words: str, name: str, number: int) -> int:
        """Start it, send a signal when a run of this name has taken its second step, and give back the exit code."""
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *words],
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while not any(Run(folder).status()["step"] > 1 for folder in self.runs(name)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        # A terminal sends SIGINT to the whole group, a scheduler SIGTERM to the process that it started.
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        return process.wait(timeout=60)

    def runs(self, name: str) -> list[Path]:
        """The run folders of a name."""
        return sorted(path.parent for path in (self.folder / "outputs" / name).glob("*/config.yaml"))


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    process = Warm(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture
def runner(tmp_path, warm):
    environment = dict(os.environ) | {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
    return Command(tmp_path, environment, warm)


@dataclass
class Trained:
    """What one in-process call of the command left behind."""

    code: int
    run: Run

    @property
    def lines(self) -> list[dict]:
        return read_metrics(self.run.metrics)

    @property
    def scores(self) -> dict:
        return read_json(self.run.folder / "scores.json")

    def state(self) -> str:
        return self.run.status()["state"]


@pytest.fixture
def train(tmp_path):
    """The command in this process, a few quick steps unless told otherwise, in a folder of the test's own."""

    def call(*words: str, name: str = "run") -> Trained:
        code = main([*words, f"name={name}", f"output_root={tmp_path / 'outputs'}"])
        folders = sorted((tmp_path / "outputs" / name).glob("*/config.yaml"))
        return Trained(code, Run(folders[-1].parent) if folders else None)

    return call


def pytest_addoption(parser):
    parser.addoption("--golden", action="store_true", help="write the golden files anew instead of comparing")
