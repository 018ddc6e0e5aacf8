"""The log of a run: all that is printed or logged while a process works in its folder."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from runner.config.machines import rank
from runner.io.files import open_own
from runner.io.hub import CLIENTS
from runner.io.temporary import temporarily
from runner.io.terminal import Copied, Hiding, copied_output, is_logged, said, to_terminal


def is_no_request(record: logging.LogRecord) -> bool:
    """True for all but the lines of an HTTP client on each request to the hub that has worked."""
    return record.levelno > logging.INFO or record.name.partition(".")[0] not in CLIENTS


class LogFile(logging.StreamHandler[IO[str]]):
    """A log that a full disk does not fail: the record of the steps fails there, and says so."""

    def __init__(self, path: Path):
        self.path = path
        super().__init__(open_own(path, "a", encoding="utf-8"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, also after a library's ``dictConfig``, which closes all handlers."""
        if self.stream.closed:
            self.stream = open_own(self.path, "a", encoding="utf-8")
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        super().close()


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send everything that is said to the log of a run.

    The terminal gets our own warnings and all errors.
    """
    root = logging.getLogger()
    level_before = root.level
    file = LogFile(path)
    file.addFilter(is_no_request)
    file.setFormatter(Hiding("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers: list[logging.Handler] = [file]
    if not is_logged():
        handlers.append(to_terminal(logging.WARNING if rank() == 0 else logging.ERROR))
    logging.captureWarnings(True)
    root.setLevel(logging.INFO)
    said.addHandler(file)
    for handler in handlers:
        root.addHandler(handler)
    try:
        with temporarily(said, disabled=False), copied_output():
            if isinstance(sys.stdout, Copied):
                sys.stdout.log_early()
            yield
    finally:
        said.removeHandler(file)
        logging.captureWarnings(False)
        root.setLevel(level_before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
