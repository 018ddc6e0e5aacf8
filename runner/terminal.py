"""What of all that is said reaches the terminal: our own warnings, and everybody's errors; and no secret anything."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from runner.secret import hidden, without_values


class Hiding(logging.Formatter):
    """A format of logs in which a secret of the environment, such as one in a traceback, is not told."""

    def format(self, record: logging.LogRecord) -> str:
        return hidden(super().format(record))


class HidingFile(io.TextIOWrapper):
    """A text file into which no secret of the environment is written."""

    def write(self, text: str) -> int:
        super().write(without_values(text))
        return len(text)


def tell_uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """An exception that nobody caught, as Python tells it, without secrets: what ``sys.excepthook`` may be."""
    sys.stderr.write(hidden("".join(traceback.format_exception(kind, error, trace))))


def to_terminal(level: int = logging.WARNING) -> logging.Handler:
    """A handler of the root logger that prints what we say from this level on, and of others the errors."""
    terminal = logging.StreamHandler()
    terminal.setFormatter(Hiding())
    terminal.setLevel(level)
    terminal.addFilter(lambda record: record.name.startswith("runner") or record.levelno >= logging.ERROR)
    return terminal


def mute_libraries() -> None:
    """Send what the libraries say to the root logger, and keep their bars off the terminal; ours stays."""
    import datasets
    from transformers.utils import logging as theirs

    datasets.disable_progress_bars()
    theirs.disable_progress_bar()
    theirs.disable_default_handler()
    theirs.enable_propagation()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep bars and remarks of the libraries off the terminal while parts are built and used outside of a run."""
    mute_libraries()
    root, terminal = logging.getLogger(), to_terminal()
    logging.captureWarnings(True)
    root.addHandler(terminal)
    try:
        yield
    finally:
        root.removeHandler(terminal)
        logging.captureWarnings(False)
