"""A limit in wall-clock seconds for code of the user's, even if it lets nothing else run."""

import contextlib
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BELL = signal.SIGVTALRM
TIMER = signal.ITIMER_VIRTUAL
AGAIN = 1.0  # seconds to the next ring, because code may swallow the exception
GRACE = 10.0  # seconds beyond twice the limit, after which the process is ended


@dataclass(eq=False)
class Limit:
    """One limit while it runs."""

    late: Callable[[], Exception]
    deadline: float
    has_rung: bool = False


_running: list[Limit] = []  # the innermost last


@contextlib.contextmanager
def within(seconds: float | None, late: Callable[[], Exception]) -> Iterator[None]:
    """Raise what ``late`` makes when the body takes longer, even if the body swallows it.

    Two bells ring for the main thread, by a signal that nobody else uses, so that a function's own
    alarms go on working: a watcher thread, which interrupts a sleep, a socket or a loop in Python,
    and a timer of the operating system that counts the time in use, for code such as a regular
    expression that lets no other thread run. Code in C that looks after no signal is ended with its
    process, with a traceback, when it has had twice the time and ten seconds more. Only the main
    thread can be interrupted; elsewhere, and with None, the body takes its time.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    # The handler stays: a ring that comes too late must find somebody who ignores it.
    signal.signal(BELL, _ring)
    limit = Limit(late, time.monotonic() + seconds)
    is_over = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(is_over, seconds, threading.get_ident()), daemon=True
    )
    _running.append(limit)
    signal.setitimer(TIMER, seconds, AGAIN)
    faulthandler.dump_traceback_later(2 * seconds + GRACE, exit=True, file=sys.__stderr__ or 2)
    watcher.start()
    try:
        yield
    finally:
        _running.remove(limit)
        signal.setitimer(TIMER, 0)
        faulthandler.cancel_dump_traceback_later()
        is_over.set()
        watcher.join()
    if limit.has_rung:
        raise late()


def _watch(is_over: threading.Event, wait: float, thread: int) -> None:
    while not is_over.wait(wait):
        signal.pthread_kill(thread, BELL)
        wait = AGAIN


def _ring(number: int, frame: object) -> None:
    """Raise the error of the innermost limit if its time is over.

    The timer may ring early, because several threads use time faster than a clock.
    """
    if _running and time.monotonic() >= _running[-1].deadline:
        limit = _running[-1]
        limit.has_rung = True
        raise limit.late()
