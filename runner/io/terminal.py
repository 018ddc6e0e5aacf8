"""The terminal: our warnings and everybody's errors, without secrets; texts of others, without what could steer it."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import sys
import traceback
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from runner.io.secrets import hidden, without_values

INVISIBLE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of characters that are not seen, or hide others
SIGNS = {chr(code): chr(0x2400 + code) for code in range(32)} | {"\n": "↵\n", "\x7f": "␡"}


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


def to_visible(text: str) -> str:
    """The text with every character that could steer a terminal or hide others replaced by a sign for it."""
    return "".join(SIGNS.get(c) or ("·" if unicodedata.category(c) in INVISIBLE else c) for c in text)


def print_visible(text: str) -> None:
    """Print lines in which others may have written anything."""
    print("\n".join(map(to_visible, text.split("\n"))), flush=True)


def progress_bar(title: str, total: int, unit: str, **how: Any) -> Any:
    """A bar of tqdm on the terminal; where the output is a file, a line now and then."""
    from tqdm import tqdm

    interval = 0.2 if sys.stderr.isatty() else 10
    return tqdm(desc=title, total=total, unit=unit, dynamic_ncols=True, mininterval=interval, **how)


def sample_lines(pairs: Iterable[tuple[Any, str]]) -> list[str]:
    """Prompts and completions side by side, a line each: of a prompt the end, of a completion the begin."""
    width = max(20, (shutil.get_terminal_size((100, 20)).columns - 4) // 2)
    lines = []
    for prompt, completion in pairs:
        last = prompt if isinstance(prompt, str) else prompt[-1]["content"]  # of a chat
        asked, answer = (to_visible(" ".join(str(text).split())) for text in (last, completion))
        asked = asked if len(asked) <= width else f"...{asked[3 - width :]}"
        answer = answer if len(answer) <= width else f"{answer[: width - 3]}..."
        lines.append(f"  {asked:<{width}}  {answer}")
    return lines
