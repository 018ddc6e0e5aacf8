"""A limit on the time that a call may take, in wall-clock seconds. What happens when it is over is the caller's to say.

Two bells ring for the main thread, by a signal that nobody else uses, so that a function's own alarms go on working: a
watcher thread, which interrupts a sleep, a socket or a loop in Python, and a timer of the operating system that counts
the time in use, for code such as a regular expression that lets no other thread run. Code in C that looks after no
signal is ended with its process, with a traceback, when it has had twice the time and ten seconds more.
"""

import contextlib
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BELL, TIMER = signal.SIGVTALRM, signal.ITIMER_VIRTUAL
AGAIN = 1.0  # seconds to the next ring, because code may swallow the exception
GRACE = 10.0


@dataclass(eq=False)
class Limit:
    """One limit while it runs."""

    late: Callable[[], Exception]
    deadline: float
    rung: bool = False


_running: list[Limit] = []


@contextlib.contextmanager
def within(seconds: float | None, late: Callable[[], Exception]) -> Iterator[None]:
    """Raise what ``late`` makes when the body takes longer, also where the body swallowed it.

    Only the main thread can be interrupted; elsewhere, and with None, the body takes the time that it takes.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Put up once and left there: a ring that comes too late must find somebody who ignores it.
    if signal.getsignal(BELL) is not _answer:
        signal.signal(BELL, _answer)
    limit, over = Limit(late, time.monotonic() + seconds), threading.Event()
    watcher = threading.Thread(target=_watch, args=(over, seconds, threading.get_ident()), daemon=True)
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
        over.set()
        watcher.join()
    if limit.rung:
        raise late()


def _watch(over: threading.Event, wait: float, caller: int) -> None:
    while not over.wait(wait):
        signal.pthread_kill(caller, BELL)
        wait = AGAIN


def _answer(number: int, frame: object) -> None:
    """Raise what the running limit has to say if its time is over; several threads use time faster than a clock."""
    if _running and time.monotonic() >= _running[-1].deadline:
        _running[-1].rung = True
        raise _running[-1].late()
