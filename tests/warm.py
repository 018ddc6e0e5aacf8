"""The public command without its imports, forked from a process that has imported everything.

Starting Python and the libraries costs 4 s of CPU, and the tests start hundreds of commands. The
forked child gets the words, the folder and the environment of the command, calls the function that
``python -m runner`` calls, and ends with its exit code. A command with other values of variables
that libraries read when they are imported cannot be forked; it is started from nothing.

Where a forked command starts a Python itself, as torchrun and the launchers do for each process of
a run, that one is forked too, unless the command is ``fresh``.
"""

import contextlib
import ctypes
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TextIO

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
# Two file descriptors: where requests are written, and where answers are read.
LENT = "RUNNER_TEST_WARM"
SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER


# --- What a test sees -----------------------------------------------------------------------------


@dataclass
class Request:
    """A command that is to be forked."""

    words: list[str]
    cwd: str
    environment: dict[str, str]
    out: str  # the file that gets its standard output
    err: str
    imports: str  # the file that gets the names of the modules that it has imported
    door: str  # the function that gets the words
    session: bool  # in a session of its own
    fresh: bool  # a Python that it starts is not forked
    instant: dict[str, Any] | None  # where it is killed, or says that it has come


class Warm:
    """The process that waits; started with the first command, in ``environment``."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None):
        self.folder = folder
        self.environment = environment or os.environ | {"HF_HOME": str(folder / "hf")}
        self.process: subprocess.Popen | None = None  # stays None where it was lent to us
        self.requests: TextIO | None = None
        self.answers: TextIO | None = None
        self.count = 0

    def run(
        self, words: list[str], cwd: Path, environment: dict[str, str], **options
    ) -> subprocess.CompletedProcess:
        """Run the words after ``python -m runner``; return the same as ``subprocess.run``."""
        return self.start(words, cwd, environment, **options).wait()

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
        """Start a command, without waiting for its end; see :class:`Request`."""
        self.begin()
        self.count += 1
        files = self.folder / str(self.count)
        request = Request(
            words=words,
            cwd=str(cwd),
            environment=environment,
            out=f"{files}.out",
            err=f"{files}.err",
            imports=f"{files}.imports",
            door=door,
            session=session,
            fresh=fresh,
            instant=asdict(instant) if instant else None,
        )
        pid = self.ask({"start": asdict(request)})
        return Started(self, pid, words, Path(request.out), Path(request.err))

    def begin(self) -> None:
        """Start the process, unless it waits already or was lent to this program."""
        if self.requests is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lent = os.environ.get(LENT)
        if lent:
            requests, answers = lent.split()
            self.requests = os.fdopen(int(requests), "w")
            self.answers = os.fdopen(int(answers))
            return
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            text=True,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.requests = self.process.stdin
        self.answers = self.process.stdout

    def lend(self) -> dict[str, Any]:
        """Arguments of ``subprocess.run`` for a program that shall use this process as its own."""
        self.begin()
        requests = self.requests.fileno()
        answers = self.answers.fileno()
        return {
            "env": os.environ | {LENT: f"{requests} {answers}"},
            "pass_fds": (requests, answers),
        }

    def ask(self, question: dict[str, Any]) -> int | None:
        self.requests.write(json.dumps(question) + "\n")
        self.requests.flush()
        return json.loads(self.answers.readline())

    def close(self) -> None:
        if self.process is not None:
            # Something that a test has left behind may hold its pipe open.
            self.process.terminate()
            self.process.communicate()


@dataclass
class Started:
    """A command that was started, and what it writes."""

    warm: Warm
    pid: int
    words: list[str]
    out: Path
    err: Path
    code: int | None = None

    def ended(self) -> bool:
        """True once it has ended; ``code`` is its exit code from then on."""
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
        command = [sys.executable, "-m", "runner", *self.words]
        return subprocess.CompletedProcess(command, self.code, _text(self.out), _text(self.err))

    def wait_for(self, path: Path, seconds: float = 600) -> bool:
        """True if a file appears before the command ends."""
        deadline = time.monotonic() + seconds
        while not path.exists():
            if self.ended():
                return path.exists()
            assert time.monotonic() < deadline, f"no {path} after {seconds} s"
            time.sleep(0.002)
        return True


def _text(path: Path) -> str:
    """The output of a command; empty if it was killed before it could open the file."""
    if not path.exists():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def world_of_two() -> list[dict[str, str]]:
    """The variables that torchrun sets, for each of two processes that train as one."""
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    return [world | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]


# --- The process that waits -----------------------------------------------------------------------


def serve() -> None:
    """Answer each line of stdin: a command is started, waited for or looked at."""
    import_everything()
    if sys.platform == "linux":
        # What a dead command leaves becomes ours, where a test can see it.
        ctypes.CDLL(None).prctl(SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w")
    commands = Commands()
    for line in sys.stdin:
        question = json.loads(line)
        if "start" in question:
            answer = commands.start(Request(**question["start"]))
        elif "wait" in question:
            answer = commands.wait(question["wait"])
        else:
            answer = commands.look(question["look"])
        print(json.dumps(answer), file=answers, flush=True)


def import_everything() -> None:
    """Import what nearly all commands need, and read the sources that they check against."""
    gc.disable()  # nothing that is imported becomes garbage
    tests = Path(__file__).parent
    sys.path[:0] = [str(tests.parent), str(tests / "fault")]
    from runner import __main__  # noqa: F401  the entry point comes with its imports
    from runner.command import _finish
    from runner.config import build
    from runner.launch import processes
    from runner.report import plot_run

    processes.prepare_environment()
    for trainer in ("DPOTrainer", "GRPOTrainer"):
        build.locate(f"trl.{trainer}")
    gc.enable()
    # A run draws nothing; ``test_train`` and ``test_report`` test what it draws.
    plot_run.PICTURES = {"loss": plot_run.PICTURES["loss"]}
    _finish.write_plots = lambda run: []
    train_once()


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


class Commands:
    """The commands that were forked from this process."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}  # of those that have ended
        self.imports: dict[int, Path] = {}  # of those that have not

    def start(self, request: Request) -> int:
        """The process of a new command."""
        gc.freeze()  # or the child would look through all of it for garbage
        pid = os.fork()
        if pid == 0:
            leave_with(lambda: be_command(request))
        self.codes.pop(pid, None)  # the system has given this number before
        self.imports[pid] = Path(request.imports)
        return pid

    def wait(self, pid: int) -> int:
        """The exit code of a command, as soon as it has ended."""
        while pid not in self.codes:
            self._note(*os.waitpid(-1, 0))
        return self.codes[pid]

    def look(self, pid: int) -> int | None:
        """The exit code of a command; None while it runs."""
        while pid not in self.codes:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                return None
            self._note(ended, status)
        return self.codes[pid]

    def _note(self, pid: int, status: int) -> None:
        """Keep the exit code of a command, and import for the next ones what it had to import."""
        if pid not in self.imports:
            return  # left behind by a command
        self.codes[pid] = os.waitstatus_to_exitcode(status)
        imports = self.imports.pop(pid)
        if imports.exists():
            for name in json.loads(imports.read_text()):
                # Some modules cannot be imported alone; each command imports those again.
                with contextlib.suppress(Exception):
                    import_module(name)


# --- A forked child -------------------------------------------------------------------------------


def leave_with(call: Callable[[], int | None]) -> None:
    """End this process as Python does: with the exit code of a call, or of what it raises."""
    code = 1
    try:
        code = call() or 0
    except SystemExit as end:
        if end.code is None:
            code = 0
        elif isinstance(end.code, int):
            code = end.code
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def be_command(request: Request) -> int:
    """Run a command in this process; its exit code."""
    if request.session:
        os.setsid()
    # Whatever the tests were started with.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(request.out, os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(os.open(request.err, os.O_WRONLY | os.O_CREAT), 2)
    os.chdir(request.cwd)
    set_environment(request.environment)
    sys.argv = ["runner", *request.words]
    sys.path.insert(0, request.cwd)
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(1, folder)

    imported = set(sys.modules)
    door = resolve_name(request.door)
    if not request.fresh:
        subprocess.Popen._execute_child = fork_python(subprocess.Popen._execute_child)
    if request.instant:
        watch(Instant(**request.instant))
    code = door(request.words) or 0
    names = [name for name in sys.modules if name not in imported]
    names = [name for name in names if name.split(".")[0] in LIBRARIES]
    Path(request.imports).write_text(json.dumps(names))
    return code


def set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def fork_python(execute: Callable[..., None]) -> Callable[..., None]:
    """A ``Popen._execute_child`` that forks this process for a Python with a module or a text."""
    signature = inspect.signature(execute)

    def start_or_fork(popen: subprocess.Popen, *arguments: Any) -> None:
        asked = signature.bind(popen, *arguments).arguments
        if not can_be_forked(asked):
            execute(popen, *arguments)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        popen.pid = os.fork()
        popen._child_created = True
        if popen.pid == 0:
            leave_with(lambda: be_python(asked))

    return start_or_fork


def can_be_forked(asked: dict[str, Any]) -> bool:
    """True if a Python runs a module or a text, without pipes that :func:`be_python` cannot set."""
    if isinstance(asked["args"], str) or asked["preexec_fn"]:
        return False
    if (asked["p2cread"], asked["c2pread"], asked["errread"]) != (-1, -1, -1):
        return False
    words = list(asked["args"])
    return sys.executable in words[:3] and ("-c" in words or "-m" in words)


def be_python(asked: dict[str, Any]) -> None:
    """Run the module or the text that the words of a Python name; ``nice -n`` may precede them."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["start_new_session"]:
        os.setsid()
    words = list(asked["args"])
    if words[0] == "nice":
        os.nice(int(words[1].removeprefix("-n")))
    if asked["c2pwrite"] != -1:
        os.dup2(asked["c2pwrite"], 1)
    if asked["errwrite"] != -1:
        os.dup2(asked["errwrite"], 2)
    if asked["env"] is not None:
        set_environment(asked["env"])

    warnings.filterwarnings("ignore", ".* found in sys.modules after import of package")
    while words[0] not in ("-c", "-m"):
        words.pop(0)
    option, code = words[:2]
    sys.argv = [option, *words[2:]]
    if option == "-c":
        exec(code, {"__name__": "__main__"})
    else:
        runpy.run_module(code, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve()
