"""The public command without its imports: a process that has imported everything forks one for each command line.

Starting Python and the libraries costs 4 s of CPU a command; the tests start hundreds. The child
gets the folder, the environment and the words, calls the door as ``python -m runner`` does, and
leaves with its exit code. What needs a process of its own from the start, such as variables that
libraries read when they are imported, is started cold.

The Python that such a command starts itself, as torchrun and launchers do for each process of a
run, is forked as well unless it is asked to be ``fresh``.
"""

import contextlib
import ctypes
import functools
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from instant import Instant, watch

DOOR = "runner.__main__:main"
LIBRARIES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "matplotlib",
    "pyarrow",
    "runner",
)
LENT = "RUNNER_TEST_WARM"  # the pipes of a process that waits already
SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER


class Warm:
    """The process that waits; started at the first command, in ``environment``."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None):
        self.folder = folder
        self.environment = environment or os.environ | {"HF_HOME": str(folder / "hf")}
        self.process: subprocess.Popen | SimpleNamespace | None = None
        self.count = 0

    def run(
        self, words: list[str], cwd: Path, environment: dict[str, str], **more
    ) -> subprocess.CompletedProcess:
        """What ``subprocess.run`` gives, of the words after ``python -m runner``."""
        return self.start(words, cwd, environment, **more).wait()

    def start(
        self,
        words: list[str],
        cwd: Path,
        environment: dict[str, str],
        instant: Instant | None = None,
        door: str = DOOR,
        session: bool = False,
        fresh: bool = False,
    ) -> "Started":
        """Start a command, in a session of its own or not; at ``instant`` it is killed, or says so.

        ``door`` is the function that gets the words; what it starts is forked too, or has a
        ``fresh`` Python.
        """
        self.begin()
        self.count += 1
        out, err = (self.folder / f"{self.count}.{name}" for name in ("out", "err"))
        request = {
            "words": words,
            "cwd": str(cwd),
            "environment": environment,
            "out": str(out),
            "err": str(err),
        }
        request |= {
            "instant": instant and vars(instant),
            "door": door,
            "session": session,
            "fresh": fresh,
        }
        return Started(self, self.ask(request), words, out, err)

    def begin(self) -> None:
        """Start the process, unless it waits already, or one was lent to this program."""
        if self.process is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if lent := os.environ.get(LENT):
            stdin, stdout = map(int, lent.split())
            self.process = SimpleNamespace(
                stdin=os.fdopen(stdin, "w"), stdout=os.fdopen(stdout), communicate=lambda: None
            )
            return
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, __file__], text=True, env=self.environment, **pipes
        )

    def lend(self) -> dict:
        """What ``subprocess.run`` takes for a program whose own waiting process shall be this one, until it ends."""
        self.begin()
        pipes = (self.process.stdin.fileno(), self.process.stdout.fileno())
        return {"env": os.environ | {LENT: "{} {}".format(*pipes)}, "pass_fds": pipes}

    def ask(self, request: dict) -> int | None:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        if isinstance(self.process, subprocess.Popen):
            # a reader of rows that a test has left behind may hold its pipe open
            self.process.terminate()
        if self.process is not None:
            self.process.communicate()


@dataclass
class Started:
    """A command that was started, and what it says."""

    warm: Warm
    pid: int
    words: list[str]
    out: Path
    err: Path
    code: int | None = None

    def ended(self) -> bool:
        """Whether it has ended; ``code`` is its exit code from then on."""
        if self.code is None:
            self.code = self.warm.ask({"look": self.pid})
        return self.code is not None

    def send(self, number: int) -> None:
        """Send a signal to the command, and to nothing that it has started."""
        if not self.ended():
            os.kill(self.pid, number)

    def wait(self) -> subprocess.CompletedProcess:
        if self.code is None:
            self.code = self.warm.ask({"wait": self.pid})
        # killed at its start
        written = (path if path.exists() else Path(os.devnull) for path in (self.out, self.err))
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in written]
        return subprocess.CompletedProcess(
            [sys.executable, "-m", "runner", *self.words], self.code, *texts
        )

    def wait_for(self, path: Path, seconds: float = 600) -> bool:
        """Whether a file appears before the command ends."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            if self.ended():
                return path.exists()
            assert time.monotonic() < deadline, f"no {path} after {seconds} s"
            time.sleep(0.002)
        return True


def world_of_two() -> list[dict[str, str]]:
    """The variables that torchrun sets, for each of two processes that train as one."""
    with socket.create_server(("localhost", 0)) as free:
        world = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free.getsockname()[1]),
        }
    return [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]


def serve() -> None:
    """Fork for each line of stdin that names a command, and tell what became of the others that it names."""
    sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent / "fault")]
    from runner.config import build
    from runner.launch import processes
    from runner.report import plot_run

    processes.prepare_environment()
    for trainer in ("DPOTrainer", "GRPOTrainer"):
        build.locate(f"trl.{trainer}")
    # What else a run draws is tested in ``test_report``.
    plot_run.PICTURES = {"loss": plot_run.PICTURES["loss"]}
    train_once()
    if sys.platform == "linux":  # what a dead command leaves becomes ours, where a test can see it
        ctypes.CDLL(None).prctl(SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w")
    news, codes = {}, {}
    for line in sys.stdin:
        request = json.loads(line)
        answer = start(request, news) if "words" in request else look(request, news, codes)
        if "words" in request:
            codes.pop(answer, None)  # of an earlier command, whose number the system gives again
        print(json.dumps(answer), file=answers, flush=True)


def train_once() -> None:
    """Take one step, so that the commands find read, compiled and cached what it needed.

    Sources of configurations, templates, patterns of weights' names and fonts are such: a third of
    the CPU time of a short run.
    """
    from accelerate.state import AcceleratorState, GradientState
    from tqdm import tqdm

    from runner.__main__ import main

    tqdm.monitor_interval = 0  # without a thread, which might hold a lock when a command is forked
    rows = ("dataset.limit.train=24", "dataset.limit.eval=3", "metric=none")
    steps = ("trainer.args.max_steps=1", "trainer.args.per_device_train_batch_size=8")
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        main(["trainer=sft", *rows, *steps, f"output_root={folder}"])
    # A command may be one of several processes, or compute in another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def start(request, news) -> int:
    gc.freeze()  # or the child would look through all of it for garbage
    imports, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(imports)
        leave_with(functools.partial(be_command, request, report))
    os.close(report)
    news[child] = imports
    return child


def look(request, news, codes) -> int | None:
    """The exit code of a command, None where it has none yet; takes note of all that has ended."""
    pid = request.get("wait") or request["look"]
    while pid not in codes:
        ended, status = os.waitpid(-1, 0 if "wait" in request else os.WNOHANG)
        if not ended:
            return None
        if ended in news:
            codes[ended] = os.waitstatus_to_exitcode(status)
            # something that it left may still hold the other end
            os.set_blocking(news[ended], False)
            with os.fdopen(news.pop(ended), "rb", buffering=0) as imports:
                import_reported(imports.read(65536))
    return codes[pid]


def leave_with(call) -> None:
    """End this process with the exit code of a call, or that which Python would give the end of it."""
    code = 1
    try:
        code = call() or 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def be_command(request, report) -> int:
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process has inherited
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["runner", *request["words"]]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [request["cwd"], *(each for each in path if each and each not in sys.path)]
    known = set(sys.modules)
    module, _, name = request["door"].partition(":")
    door = getattr(import_module(module), name)
    if not request["fresh"]:
        subprocess.Popen._execute_child = fork_python(subprocess.Popen._execute_child)
    if request["instant"]:
        watch(Instant(**request["instant"]))
    code = door(request["words"]) or 0
    os.write(report, imports_since(known))
    return code


def fork_python(execute):
    """``Popen._execute_child``, but for a Python that runs a module or a text: it is this process, forked."""
    signature = inspect.signature(execute)

    @functools.wraps(execute)
    def start_or_fork(self, *given):
        asked = signature.bind(self, *given).arguments
        words = list(asked["args"]) if not isinstance(asked["args"], str) else []
        piped = {asked[name] for name in ("p2cread", "c2pread", "errread")} != {-1}
        if (
            piped
            or asked["preexec_fn"]
            or sys.executable not in words[:3]
            or not {"-c", "-m"} & set(words)
        ):
            return execute(self, *given)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self._child_created = True
        if not self.pid:
            leave_with(functools.partial(be_python, words, asked))

    return start_or_fork


def be_python(words: list[str], asked: dict) -> None:
    """Run what the words of a Python name, a module or a text, in this process; ``nice`` may precede."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["start_new_session"]:
        os.setsid()
    if words[0] == "nice":
        os.nice(int(words[1].removeprefix("-n")))
    for number, name in ((1, "c2pwrite"), (2, "errwrite")):
        if asked[name] != -1:
            os.dup2(asked[name], number)
    if asked["env"] is not None:
        os.environ.clear()
        os.environ.update(asked["env"])
    warnings.filterwarnings("ignore", ".* found in sys.modules after import of package")
    at = next(place for place, word in enumerate(words) if word in ("-c", "-m"))
    sys.argv = [words[at], *words[at + 2 :]]
    if words[at] == "-c":
        exec(words[at + 1], {"__name__": "__main__"})
    else:
        runpy.run_module(words[at + 1], run_name="__main__", alter_sys=True)


def imports_since(known: set[str]) -> bytes:
    """The library modules that a child had to import beyond those it inherited, in as much as a pipe takes."""
    loaded = [name for name in sys.modules if name not in known and name.split(".")[0] in LIBRARIES]
    while len(text := json.dumps(loaded).encode()) > 65536:
        del loaded[len(loaded) // 2 :]
    return text


def import_reported(text: bytes | None) -> None:
    """Import the modules that a child has reported by :func:`imports_since`, for those that come after it."""
    for name in json.loads(text or b"[]"):
        # Not every module can be imported by itself; such a one is imported by each child again.
        with contextlib.suppress(Exception):
            import_module(name)


if __name__ == "__main__":
    serve()
