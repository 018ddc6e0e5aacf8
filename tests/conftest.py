"""Shared by every test: offline, one thread, and the public command in a process of its own."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from cpu_seconds import (  # noqa: F401  hooks of pytest
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_terminal_summary,
)
from hub import served_hub  # noqa: F401  the session fixture `hub`
from warm import DOOR, Started, Warm, world_of_two

# Before torch or a hub library is imported anywhere.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python writes compiled modules

from runner.__main__ import main
from runner.io.files import read_json
from runner.report import plot_run
from runner.run import Run
from runner.run.history import read_metrics
from runner.run.manifest import read_version

sys.dont_write_bytecode = False
gc.disable()  # until all tests are collected: nothing that is imported becomes garbage
# A test leaves little garbage; looking for it took a fifth of the time.
gc.set_threshold(50_000, 20, 20)
# Scripts; they have no doctests, and importing them all takes a second.
collect_ignore = ["benchmark", "example_project", "fault"]
ROOT = Path(__file__).parent.parent
ENTER = "import sys; from pkgutil import resolve_name; resolve_name(sys.argv[1])(sys.argv[2:])"
# Of every command; what a test does in this process sets variables, and these would need a process
# from the start.
ENVIRONMENT = dict(os.environ)
PICTURES = plot_run.PICTURES
# Variables that no library reads for good.
OF_A_TEST = {
    "HF_HOME",
    "HF_TOKEN",
    "PYTHONPATH",
    "PYTEST_CURRENT_TEST",
    "RUNNER_TEST_FSDP_ON_CPU",
    "SLURM_CONF",
    "VLLM_CPU_KVCACHE_SPACE",
}


class Command:
    """``python -m runner`` in a working folder of the test's own."""

    def __init__(self, folder: Path, environment: dict[str, str], warm: Warm):
        self.folder = folder
        self.environment = environment
        self.warm = warm

    def __call__(
        self, *words: str, code: int = 0, door: str = DOOR, fresh: bool = False, **variables: str
    ):
        """Run it, check the exit code, and give back what subprocess.run gives.

        Without variables that a library reads as it is imported it is forked from a process that
        has done so; see ``warm``. ``door`` is the function that gets the words; the processes it
        starts are ``fresh`` or forked too.
        """
        environment = self.environment | variables
        if self._is_plain(environment):
            done = self.warm.run(list(words), self.folder, environment, door=door, fresh=fresh)
        else:
            done = self.cold(*words, door=door, **variables)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def cold(self, *words: str, door: str = DOOR, **variables: str):
        """The same in a process that starts from nothing, whatever its exit code."""
        environment = self.environment | variables
        if door == DOOR:
            python = [sys.executable, "-m", "runner"]
        else:
            python = [sys.executable, "-c", ENTER, door]
            environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
        return subprocess.run(
            [*python, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def start(self, *words: str, session: bool = False) -> Started:
        """Start it, without waiting for its end."""
        return self.warm.start(list(words), self.folder, self.environment, session=session)

    def start_two(self, *words: str, door: str = DOOR, **variables: str) -> list[Started]:
        """Start it in two processes that train as one, with the variables that torchrun sets."""
        started = []
        for rank in world_of_two():
            environment = self.environment | variables | rank
            started.append(self.warm.start(list(words), self.folder, environment, door=door))
        return started

    def forget_cache(self) -> None:
        """Empty the cache of rows and models, which all commands forked from one process share."""
        shutil.rmtree(self.warm.environment["HF_HOME"], ignore_errors=True)

    def _is_plain(self, environment: dict[str, str]) -> bool:
        """True if no variable differs that a library has read in the waiting process."""
        names = (environment.keys() | self.warm.environment.keys()) - OF_A_TEST
        return all(environment.get(name) == self.warm.environment.get(name) for name in names)

    def stopped(self, *words: str, name: str, number: int) -> int:
        """The exit code after a signal, which is sent at the second step of a run of this name."""
        started = self.start(*words, session=True)
        deadline = time.monotonic() + 600
        while not any(Run(folder).status()["step"] > 1 for folder in self.runs(name)):
            assert not started.ended()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # A terminal sends SIGINT to the whole group, a scheduler SIGTERM to the process that it
        # started.
        if number == signal.SIGINT:
            os.killpg(started.pid, number)
        else:
            started.send(number)
        return started.wait().returncode

    def runs(self, name: str) -> list[Path]:
        """The run folders of a name."""
        configs = (self.folder / "outputs" / name).glob("*/config.yaml")
        return sorted(path.parent for path in configs)


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    process = Warm(folder, ENVIRONMENT | {"HF_HOME": str(folder / "hf")})
    yield process
    process.close()


@pytest.fixture
def runner(tmp_path, warm):
    environment = ENVIRONMENT | {"HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
    return Command(tmp_path, environment, warm)


@pytest.fixture(scope="session")
def warm_hub(hub, tmp_path_factory):
    """A waiting process for which the loopback hub is the hub; its commands share a cache."""
    folder = tmp_path_factory.mktemp("warm-hub")
    environment = hub.environment(folder / "hf")
    environment |= {"HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
    process = Warm(folder, environment)
    yield process
    process.close()


@pytest.fixture
def online_runner(tmp_path, warm_hub):
    """The command where the loopback hub is the hub."""
    return Command(tmp_path, warm_hub.environment, warm_hub)


@dataclass
class Trained:
    """The result of one in-process call of the command."""

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
def train(tmp_path, monkeypatch):
    """The command in this process, in a folder of the test's own; it draws the named pictures."""

    def call(*words: str, name: str = "run", pictures: tuple[str, ...] = ()) -> Trained:
        chosen = {picture: PICTURES[picture] for picture in pictures}
        monkeypatch.setattr(plot_run, "PICTURES", chosen)
        if not pictures:
            monkeypatch.setattr("runner.command._finish.write_plots", lambda run: [])
        code = main([*words, f"name={name}", f"output_root={tmp_path / 'outputs'}"])
        folders = sorted((tmp_path / "outputs" / name).glob("*/config.yaml"))
        return Trained(code, Run(folders[-1].parent) if folders else None)

    return call


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory):
    """Forget the modules of a test, and their folders: the next one's may have the same names."""
    path = sys.path[:]
    before = set(sys.modules)
    yield
    if sys.path != path:
        read_version.cache_clear()  # the test may have had packages of its own
    sys.path[:] = path
    folder = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and file.startswith(folder):
            del sys.modules[name]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Keep the cases that ``grid`` leaves to the suite; those beyond ``quick`` are slow."""
    if config.getoption("grid"):
        chosen = [item for item in items if item.get_closest_marker("grid")]
    else:
        chosen = representatives(items)
    chosen_items = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen_items])
    items[:] = chosen
    cases = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        cases[name] += 1
        mark = item.get_closest_marker("quick")
        if mark and cases[name] > mark.args[0]:
            item.add_marker("slow")


def representatives(items):
    """The tests, of a grid only as many of the first cases as its mark says."""
    cases = Counter()
    chosen = []
    for item in items:
        name = item.nodeid.partition("[")[0]
        cases[name] += 1
        mark = item.get_closest_marker("grid")
        if mark is None or cases[name] <= mark.args[0]:
            chosen.append(item)
    return chosen


def pytest_collection_finish():
    freeze()
    gc.enable()


def pytest_runtest_setup(item):
    """Freeze after imports, and before each tenth slow test, which may train."""
    global slow_tests
    slow_tests += item.get_closest_marker("slow") is not None
    if len(sys.modules) > frozen + 50 or slow_tests == 10:
        freeze()


def freeze() -> None:
    """Keep the modules, and what was read of their sources, out of all garbage collections.

    A training asks for several collections, which would take half a second each.
    """
    global frozen, slow_tests
    gc.collect()
    gc.freeze()
    frozen = len(sys.modules)
    slow_tests = 0


def pytest_addoption(parser):
    parser.addoption(
        "--golden", action="store_true", help="write the golden files anew instead of comparing"
    )
    parser.addoption(
        "--grid", action="store_true", help="run all cases of the grids, and nothing else"
    )
