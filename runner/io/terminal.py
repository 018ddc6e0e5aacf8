"""The terminal: our warnings and everybody's errors, without secrets; what is printed there, or goes to a log."""

import contextlib
import io
import logging
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from runner.io.files import open_own
from runner.io.secrets import hidden
from runner.io.turns import dialogue, text_of
from runner.io.visible import to_visible, visible_lines

if TYPE_CHECKING:
    from tqdm import tqdm

MOST_COPIED, LONGEST_SECRET = 1 << 16, 1 << 13  # bytes at a time, and of a secret that may not be cut
LINE_SECONDS = 10.0  # between two lines on the progress of something, where the output is a file
LOGGED = "RUNNER_OUTPUT_IN_LOG"  # the number of the pipe that leads to a log, for all that inherit it as their output
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COLOURS = {"red": 31, "green": 32}

said = logging.getLogger("runner.terminal")  # what was printed, for the log of a run, while one is open
said.setLevel(logging.INFO)
said.propagate, said.disabled = False, True


def is_logged() -> bool:
    """True where all that this process prints goes to the log of its run, as in a sweep."""
    return LOGGED in os.environ and os.environ[LOGGED] == str(os.fstat(1).st_ino)


def is_terminal(stream: Any) -> bool:
    """True for a stream that somebody looks at; there is none where a shell has closed it."""
    return bool(getattr(stream, "isatty", bool)())


def shows_colours(stream: Any) -> bool:
    """True for a terminal that shows colours, unless they are refused."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: Any) -> str:
    """The text in red or green where the stream shows colours."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if shows_colours(stream) else text


class Hiding(logging.Formatter):
    """A format of logs without the secrets of the environment, such as one in a traceback, and all of it visible."""

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(hidden(super().format(record)))


@dataclass
class HidingLog:
    """A log that takes the output of another process, and of all that this one starts, without secrets.

    A third process copies it there, so that what is printed from C or by another program is looked through as well.
    """

    descriptor: int  # of the pipe that leads there
    process: int

    @classmethod
    def open(cls, log: Path) -> "HidingLog":
        """Start to copy into a log; OSError where its place holds no plain file."""
        file = open_own(log, "ab")
        source, descriptor = os.pipe()
        if process := os.fork():
            file.close()
            os.close(source)
            return cls(descriptor, process)
        try:
            os.setsid()
            for number in signal.valid_signals():
                if callable(signal.getsignal(number)):  # what ends the run must not end the record of its end
                    signal.signal(number, signal.SIG_IGN)
            os.close(descriptor)
            # Until nobody can write to the pipe, whole lines at a time, for a secret must not come in two parts.
            waiting = b""
            while new := os.read(source, MOST_COPIED):
                waiting += new
                end = waiting.rfind(b"\n", -len(new)) + 1
                if not end and len(waiting) > MOST_COPIED:
                    end = _find_cut(waiting)
                if end:
                    file.write(_without_secrets(waiting[:end]))
                    file.flush()
                    waiting = waiting[end:]
            file.write(_without_secrets(waiting))
            file.close()
        finally:
            os._exit(0)

    def take_output(self) -> None:
        """Lead all output of this process there."""
        for descriptor in (1, 2):
            os.dup2(self.descriptor, descriptor)
        self.close()
        os.environ[LOGGED] = str(os.fstat(1).st_ino)
        sys.stdout = sys.stderr = io.TextIOWrapper(io.FileIO(1, "wb", closefd=False), "utf-8", line_buffering=True)

    def close(self) -> None:
        """Leave the pipe to the process that writes into it."""
        os.close(self.descriptor)

    def wait(self) -> None:
        """Wait until all is copied, once whoever wrote has ended; a second longer for what they have left running."""
        deadline = time.monotonic() + 1
        while not os.waitpid(self.process, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
            time.sleep(0.001)


def _without_secrets(text: bytes) -> bytes:
    return hidden(text.decode("utf-8", "replace")).encode()


def _find_cut(text: bytes) -> int:
    """The place to cut a line without an end: not inside a secret, nor so late that one may have begun there."""
    whole, places = _without_secrets(text), range(len(text) - LONGEST_SECRET, 0, -LONGEST_SECRET)
    alike = (cut for cut in places if _without_secrets(text[:cut]) + _without_secrets(text[cut:]) == whole)
    return next(alike, len(text))


class Copied:
    """An output whose whole lines go to the log as well, as somebody would have read them, without colours."""

    def __init__(self, stream: Any):
        self.stream, self.rest = stream, ""
        self.early: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._unless_closed(self.stream.write, text)
        self.rest += COLOUR.sub("", text)
        if self.rest.endswith("\n"):
            self.early.append("\n".join(line.rpartition("\r")[2] for line in self.rest[:-1].split("\n")))
            self.rest = ""
            self.log_early()
        return len(text)

    def flush(self) -> None:
        self._unless_closed(self.stream.flush)

    def close(self) -> None:
        """Stay open: what code of the user's closes, the run prints on to."""

    def _unless_closed(self, call: Callable[..., object], *args: str) -> None:
        try:
            call(*args)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def log_early(self) -> None:
        """Put into the log what is not yet there, once it is open."""
        while self.early and not said.disabled:
            said.info("%s", self.early.pop(0))


def copied_output() -> contextlib.redirect_stdout[Any]:
    """Copy the output of this process to the log of its run, unless it goes there anyway."""
    is_plain = sys.stdout is None or isinstance(sys.stdout, Copied) or is_logged()
    return contextlib.redirect_stdout(sys.stdout if is_plain else Copied(sys.stdout))


def keep_output(*streams: Any) -> None:
    """Have the two streams again that were the output of this process; what was closed is opened anew."""
    kept = []
    for number, stream in enumerate(streams, 1):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        is_closed = getattr(stream, "closed", False)
        kept.append(open(number, "w", encoding="utf-8", closefd=False) if is_closed else stream)  # noqa: SIM115
    sys.stdout, sys.stderr = kept


def print_error(error: object) -> None:
    """Print an error, its first line in red, and put it into the log of a run where one is open."""
    first, *others = str(error).split("\n")
    print("\n".join([coloured(first, "red", sys.stderr), *others]), file=sys.stderr)
    if not is_logged():
        said.info("%s", error)


def print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception that nobody caught as Python does, without secrets: for ``sys.excepthook``."""
    sys.stderr.write(hidden("".join(traceback.format_exception(kind, error, trace))))


def to_terminal(level: int = logging.WARNING) -> logging.Handler:
    """A handler of the root logger that prints the runner's records from this level on, and errors of others."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(Hiding())
    terminal.setLevel(level)
    terminal.addFilter(lambda record: record.name.startswith("runner") or record.levelno >= logging.ERROR)
    return terminal


def mute_libraries() -> None:
    """Send the libraries' records to the root logger, and keep their progress bars off the terminal."""
    import datasets
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep bars and warnings of the libraries off the terminal while parts are built and used outside of a run."""
    mute_libraries()
    root, terminal = logging.getLogger(), to_terminal()
    logging.captureWarnings(True)
    root.addHandler(terminal)
    try:
        yield
    finally:
        root.removeHandler(terminal)
        logging.captureWarnings(False)


def print_visible(text: str) -> None:
    """Print lines in which others may have written anything."""
    print(visible_lines(text), flush=True)


def print_answer(text: str, end: str = "\n") -> None:
    """Print what a model wrote: as it is into a file or a pipe, visible on a terminal, which it could steer."""
    print(visible_lines(text) if sys.stdout.isatty() else text, end=end, flush=True)


def progress_bar(title: str, total: int, unit: str, **options: Any) -> "tqdm":
    """A bar of tqdm on the terminal; where the output is a file, a line now and then."""
    from tqdm import tqdm

    if is_terminal(sys.stderr):
        options |= {"dynamic_ncols": True, "mininterval": 0.2}
    else:
        form = "{desc}: {n_fmt}/{total_fmt}, {remaining} left"
        options |= {"file": Lines(), "bar_format": form, "mininterval": LINE_SECONDS, "delay": LINE_SECONDS}
    return tqdm(desc=title, total=total, unit=unit, **options)


class Lines:
    """A file for tqdm that prints its bar as lines on stderr, each on its own."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Each line has been written."""


def sample_lines(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Prompts and completions side by side, a line each: of a prompt the end, of a completion the begin."""
    width = max(20, (shutil.get_terminal_size((100, 20)).columns - 4) // 2)
    sides = [(line_of(text_of(prompt), width, tail=True), line_of(dialogue(answer), width)) for prompt, answer in pairs]
    return [f"  {prompt:<{width}}  {answer}" for prompt, answer in sides]


def line_of(text: str, width: int, *, tail: bool = False) -> str:
    """A text as one visible line of so many characters at most: its begin, or its end."""
    if len(line := to_visible(" ".join(text.split()))) <= width:
        return line
    return f"...{line[3 - width :]}" if tail else f"{line[: width - 3]}..."
