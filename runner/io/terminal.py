"""The terminal: warnings, errors and progress, without secrets; copies of the output in a log."""

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
from typing import IO, TYPE_CHECKING, Any, Literal

from runner.io.files import open_own
from runner.io.secrets import hidden
from runner.io.turns import Turns, dialogue, text_of
from runner.io.visible import to_visible, visible_lines

if TYPE_CHECKING:
    from tqdm import tqdm

# An output, which is None where a shell has closed it, or an object that stands for one.
Stream = Any

MAX_BYTES_COPIED = 1 << 16  # at a time
MAX_BYTES_OF_SECRET = 1 << 13  # of one that may not be cut
MAX_LINES = 40  # settings, runs or files that a terminal is shown
LINE_SECONDS = 10.0  # between two lines on the progress of something, where the output is a file
# the number of the pipe that leads to a log, for all that inherit it as their output
LOGGED = "RUNNER_OUTPUT_IN_LOG"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COLOUR_CODES = {"red": 31, "green": 32}

# what was printed, for the log of a run, while one is open
said = logging.getLogger("runner.terminal")
said.setLevel(logging.INFO)
said.propagate = False
said.disabled = True


# --- Streams ------------------------------------------------------------------------------------
def is_logged() -> bool:
    """True where all that this process prints goes to the log of its run, as in a sweep."""
    return LOGGED in os.environ and os.environ[LOGGED] == str(os.fstat(1).st_ino)


def is_terminal(stream: Stream) -> bool:
    """True for a stream that somebody looks at; there is none where a shell has closed it."""
    return hasattr(stream, "isatty") and bool(stream.isatty())


def shows_colours(stream: Stream) -> bool:
    """True for a terminal that shows colours, unless they are refused."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def coloured(text: str, colour: Literal["red", "green"], stream: Stream) -> str:
    """The text in a colour where the stream shows colours."""
    if not shows_colours(stream):
        return text
    return f"\x1b[{COLOUR_CODES[colour]}m{text}\x1b[0m"


def keep_output(*streams: Stream) -> None:
    """Make two streams the output of this process again; a closed one is opened anew."""
    outputs = []
    for number, stream in enumerate(streams, 1):
        try:
            os.fstat(number)
        except OSError:
            discard(number)
        if getattr(stream, "closed", False):
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        outputs.append(stream)
    sys.stdout, sys.stderr = outputs


def discard(descriptor: int) -> None:
    """Lead what is written to a descriptor nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


# --- The log of a run ---------------------------------------------------------------------------
class Hiding(logging.Formatter):
    """A format of logs without the secrets of the environment, with a sign for what is not seen.

    A traceback may hold such a secret.
    """

    def format(self, record: logging.LogRecord) -> str:
        return visible_lines(hidden(super().format(record)))


@dataclass
class HidingLog:
    """A log that takes the output of another process, and of all that it starts, without secrets.

    A third process copies it there, so that what is printed from C or by another program is looked
    through as well.
    """

    descriptor: int  # of the pipe that leads there
    process: int

    @classmethod
    def open(cls, log: Path) -> "HidingLog":
        """Start to copy into a log; OSError where its place holds no plain file."""
        file = open_own(log, "ab")
        source, descriptor = os.pipe()
        process = os.fork()
        if process:
            file.close()
            os.close(source)
            return cls(descriptor, process)
        try:
            os.setsid()
            for number in signal.valid_signals():
                # What ends the run must not end the record of its end.
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.SIG_IGN)
            os.close(descriptor)
            _copy_without_secrets(source, file)
            file.close()
        finally:
            os._exit(0)

    def take_output(self) -> None:
        """Lead all output of this process there."""
        for descriptor in (1, 2):
            os.dup2(self.descriptor, descriptor)
        self.close()
        os.environ[LOGGED] = str(os.fstat(1).st_ino)
        output = io.FileIO(1, "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(output, "utf-8", line_buffering=True)
        sys.stderr = sys.stdout

    def close(self) -> None:
        """Leave the pipe to the process that writes into it."""
        os.close(self.descriptor)

    def wait(self) -> None:
        """Wait until all is copied, once the writer has ended.

        What it has left running may write for a second longer.
        """
        deadline = time.monotonic() + 1
        while not os.waitpid(self.process, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
            time.sleep(0.001)


def _copy_without_secrets(source: int, file: IO[bytes]) -> None:
    """Copy a pipe into a file until nobody can write to it any more.

    Whole lines are copied at a time, because a secret must not come in two parts.
    """
    waiting = b""
    while new := os.read(source, MAX_BYTES_COPIED):
        waiting += new
        end = waiting.rfind(b"\n", -len(new)) + 1
        if not end and len(waiting) > MAX_BYTES_COPIED:
            end = _find_cut(waiting)
        if end:
            file.write(_without_secrets(waiting[:end]))
            file.flush()
            waiting = waiting[end:]
    file.write(_without_secrets(waiting))


def _without_secrets(text: bytes) -> bytes:
    return hidden(text.decode("utf-8", "replace")).encode()


def _find_cut(text: bytes) -> int:
    """The place to cut a line without an end.

    It is not inside a secret, nor so late that a secret may have begun before it.
    """
    uncut = _without_secrets(text)
    for cut in range(len(text) - MAX_BYTES_OF_SECRET, 0, -MAX_BYTES_OF_SECRET):
        if _without_secrets(text[:cut]) + _without_secrets(text[cut:]) == uncut:
            return cut
    return len(text)


class Copied:
    """An output whose whole lines go to the log as well, without colours.

    Of a line that was written over and over, as a bar is, the last version goes there.
    """

    def __init__(self, stream: Stream):
        self.stream = stream
        self.rest = ""  # of a line that has not ended
        self.early: list[str] = []  # lines that were printed before the log is open

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._unless_closed(self.stream.write, text)
        self.rest += COLOUR.sub("", text)
        if self.rest.endswith("\n"):
            lines = self.rest[:-1].split("\n")
            # Of a line that was written over, such as that of a progress bar, the last state stays.
            last_states = [line.rpartition("\r")[2] for line in lines]
            self.early.append("\n".join(last_states))
            self.rest = ""
            self.log_early()
        return len(text)

    def flush(self) -> None:
        self._unless_closed(self.stream.flush)

    def close(self) -> None:
        """Stay open: the run goes on to print where code of the user's has closed its output."""

    def _unless_closed(self, call: Callable[..., object], *args: str) -> None:
        try:
            call(*args)
        except BrokenPipeError:  # a reader who has seen enough ends no run
            discard(self.stream.fileno())

    def log_early(self) -> None:
        """Put into the log what is not yet there, once it is open."""
        while self.early and not said.disabled:
            said.info("%s", self.early.pop(0))


def copied_output() -> contextlib.redirect_stdout[Any]:
    """Copy the output of this process to the log of its run, unless it goes there anyway."""
    if sys.stdout is None or isinstance(sys.stdout, Copied) or is_logged():
        return contextlib.redirect_stdout(sys.stdout)
    return contextlib.redirect_stdout(Copied(sys.stdout))


# --- Errors and warnings ------------------------------------------------------------------------
def print_error(error: object) -> None:
    """Print an error, its first line in red, and put it into the log of a run where one is open."""
    first, *others = str(error).split("\n")
    lines = [coloured(first, "red", sys.stderr), *others]
    print("\n".join(lines), file=sys.stderr)
    if not is_logged():
        said.info("%s", error)


def print_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an uncaught exception as Python does, without secrets: for ``sys.excepthook``."""
    lines = traceback.format_exception(kind, error, trace)
    sys.stderr.write(hidden("".join(lines)))


def to_terminal(level: int = logging.WARNING) -> logging.Handler:
    """A handler of the root logger that prints our records from this level on, others' errors."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(Hiding())
    terminal.setLevel(level)
    terminal.addFilter(
        lambda record: record.name.startswith("runner") or record.levelno >= logging.ERROR
    )
    return terminal


def mute_libraries() -> None:
    """Send the libraries' records to the root logger, and keep their bars off the terminal."""
    from transformers.utils import logging as transformers_logging

    # Who reads no rows does not need datasets, whose import takes half a second.
    datasets = sys.modules.get("datasets")
    if datasets is not None:
        datasets.disable_progress_bars()
    else:
        os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"  # read as it is imported
    transformers_logging.disable_progress_bar()
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep bars and warnings of the libraries off the terminal, outside of a run."""
    mute_libraries()
    root = logging.getLogger()
    terminal = to_terminal()
    logging.captureWarnings(True)
    root.addHandler(terminal)
    try:
        yield
    finally:
        root.removeHandler(terminal)
        logging.captureWarnings(False)


# --- Answers and progress -----------------------------------------------------------------------
def print_visible(text: str) -> None:
    """Print lines in which others may have written anything."""
    print(visible_lines(text), flush=True)


def print_answer(text: str) -> None:
    """Print what a model wrote, visible on a terminal, which it could control; else as it is."""
    if sys.stdout.isatty():
        text = visible_lines(text)
    print(text, flush=True)


def progress_bar(title: str, total: int, unit: str, **options: Any) -> "tqdm":
    """A bar of tqdm on the terminal; where the output is a file, a line now and then."""
    from tqdm import tqdm

    if is_terminal(sys.stderr):
        options |= {"dynamic_ncols": True, "mininterval": 0.2}
    else:
        options["file"] = Lines()
        options["bar_format"] = "{desc}: {n_fmt}/{total_fmt}, {remaining} left"
        options["mininterval"] = LINE_SECONDS
        options["delay"] = LINE_SECONDS
    return tqdm(desc=title, total=total, unit=unit, **options)


class Lines:
    """A file for tqdm that prints its bar as lines on stderr, each on its own."""

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Each line has been written."""


def sample_lines(pairs: Iterable[tuple[str | Turns, str | Turns]]) -> list[str]:
    """Prompts and completions side by side: the end of a prompt, the begin of its completion."""
    columns = shutil.get_terminal_size((100, 20)).columns
    width = max(20, (columns - 4) // 2)
    lines = []
    for prompt, completion in pairs:
        prompt_line = line_of(text_of(prompt), width, tail=True)
        completion_line = line_of(dialogue(completion), width)
        lines.append(f"  {prompt_line:<{width}}  {completion_line}")
    return lines


def line_of(text: str, width: int, *, tail: bool = False) -> str:
    """A text as one visible line of so many characters at most: its begin, or its end."""
    line = to_visible(" ".join(text.split()))
    if len(line) <= width:
        return line
    if tail:
        return f"...{line[3 - width :]}"
    return f"{line[: width - 3]}..."
