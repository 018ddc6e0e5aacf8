"""The worker's door: run folder -> command, with its lock, its log, its state and its exit code.

    python -m runner.work outputs/<name>/<label>-<key> [--vouched] [--debug]

Hydra is not met here: the folder holds all there is to know. Relaunching a run is this same command. A folder can come
from anybody, so what it may run is looked at again, unless the door has done so or the user vouches for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from runner.check.allow import find_dangers
from runner.errors import ConfigError, EnvironmentFault, Fault, Interrupted, RunnerError
from runner.run import Run, locked
from runner.terminal import to_terminal

# Before torch is imported. Measured beside one other busy process on two cores: OpenMP's default
# spinning makes two
# threads 15 to 50 times slower, a short spin about 2 times, and it costs an idle machine about a
# fifth.
# Nothing is sent anywhere unasked, and tokenizers must not keep threads across a fork.
ENVIRONMENT = {
    "GOMP_SPINCOUNT": "1000",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",  # each such trainer says so in its YAML
}
RANK = int(os.environ.get("RANK", "0"))


class Stop:
    """A signal handler that waits for the end of the step while a loop is listening, and else stops at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.listening = False

    def __call__(self, number: int, frame: object = None) -> None:
        again = self.number is not None
        self.number = number
        if again or not self.listening:
            raise self.error()

    def error(self) -> Interrupted:
        """What ends the process once the step is saved."""
        number = self.number or signal.SIGTERM
        name = signal.Signals(number).name
        return Interrupted(Fault(name, "asked to stop", cure="run the same command again to continue"), number)

    @contextlib.contextmanager
    def installed(self) -> Iterator[Stop]:
        """Answer SIGINT, SIGTERM and SIGUSR1 here, and give the old answers back afterwards."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        before = {number: signal.signal(number, self) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def main(words: Sequence[str]) -> int:
    """Run the folder that the words name and return the exit code."""
    folders = [word for word in words if not word.startswith("-")]
    if len(folders) != 1 or not (Path(folders[0]) / "config.yaml").exists():
        print(
            ConfigError(Fault("command line", " ".join(words), "one run folder", "python -m runner.work <folder>")),
            file=sys.stderr,
        )
        return ConfigError.code
    if "--vouched" not in words and (dangers := find_dangers(Run(Path(folders[0])).cfg)):
        cure = f"python -m runner.work {folders[0]} --vouched  (if you trust who wrote its config.yaml)"
        print(ConfigError([replace(danger, cure=cure) for danger in dangers]), file=sys.stderr)
        return ConfigError.code
    return work(folders[0], debug="--debug" in words)


def work(folder: str | Path, command: str = "train", debug: bool = False) -> int:
    """Run a command on a run folder and return the exit code that ``errors`` lists; never raises."""
    settle()
    run, stop = Run(Path(folder)), Stop()
    try:
        with stop.installed(), contextlib.ExitStack() as held:
            if RANK == 0:
                held.enter_context(locked(run))
                if run.status()["state"] == "finished":
                    print(finished(run))
                    return 0
                run.set_status("running", cause=None)
            held.enter_context(_logging(run.log))
            return _answer(run, lambda: _command(command)(run, stop), stop, debug)
    except RunnerError as error:
        print(error, file=sys.stderr)
        return error.code


def settle() -> None:
    """Prepare the process for the heavy libraries; too late once torch is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Said at every import on a machine without a GPU, about a kernel that nobody asked for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def die_with(parent: int) -> None:
    """Have this process told to save its step and end when the parent is gone, however that went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was quicker
        os.kill(os.getpid(), signal.SIGTERM)


def finished(run: Run) -> str:
    """What to say of a run that has nothing left to do."""
    return f"finished  {run} already; nothing was changed"


def _command(name: str) -> Callable[[Run, Stop], None]:
    return getattr(import_module(f"runner.command.{name}"), name)


def _answer(run: Run, command: Callable[[], None], stop: Stop, debug: bool) -> int:
    """Carry a command out and turn however it ended into a state, a message and an exit code.

    Where a signal has come, whatever ended the command is that: libraries retell an exception that passes through
    them as a fault of the data.
    """
    try:
        command()
        return 0
    except Exception as error:
        if stop.number is not None:
            return _end(run, "interrupted", stop.error(), debug)
        return _end(run, "failed", error if isinstance(error, RunnerError) else _explained(run, error), debug)
    except SystemExit as left:
        found = f"something called sys.exit({left.code!r}) before the run was finished"
        return _end(run, "failed", RunnerError(Fault(str(run.log), found, cure="read the traceback there")), debug)


def _end(run: Run, state: str, error: RunnerError, debug: bool) -> int:
    logging.getLogger("runner").info("%s", traceback.format_exc())
    if RANK == 0:
        run.set_status(state, cause=str(error))
        print(traceback.format_exc() if debug else error, file=sys.stderr)
    return error.code


def _explained(run: Run, error: Exception) -> RunnerError:
    """An exception that is not ours as one of ours: what the environment lacks, or else our own fault."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFault(Fault(str(run.folder), text, "free space", "free some and run the same command again"))
    if isinstance(error, ConnectionError):
        return EnvironmentFault(Fault("network", text, "a connection", "run the same command again when there is one"))
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return EnvironmentFault(
            Fault(
                "memory",
                text.splitlines()[0],
                "a smaller step",
                "trainer.args.per_device_train_batch_size=<half>",
            )
        )
    if isinstance(error, ImportError):
        return EnvironmentFault(Fault("library", text, "an installed package", "pip install <the package named above>"))
    return RunnerError(Fault(str(run.log), text, cure="read the traceback there, or run again with --debug"))


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Everything that is said goes to the log of the run; the terminal gets our own warnings and all errors."""
    root = logging.getLogger()
    before = root.level
    file = logging.FileHandler(path, encoding="utf-8")
    terminal = to_terminal(logging.WARNING if RANK == 0 else logging.ERROR)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.captureWarnings(True)
    root.setLevel(logging.INFO)
    handlers = [file, terminal]
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
