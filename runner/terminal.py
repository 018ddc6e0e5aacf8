"""What of all that is said reaches the terminal: our own warnings, and everybody's errors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


def to_terminal(level: int = logging.WARNING) -> logging.Handler:
    """A handler of the root logger that prints what we say from this level on, and of others the errors."""
    terminal = logging.StreamHandler()
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
