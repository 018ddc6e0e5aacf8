"""The signals that ask a process to stop: which they are, and what answers them."""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from runner.config.machines import world_size
from runner.errors import Fault, Interrupted
from runner.io.terminal import discard


@dataclass(eq=False)
class Stop:
    """A signal handler that stops at once, or at the end of the step while a loop is listening."""

    number: int | None = None
    announced: bool = False
    agreed: bool = False  # heard of from another process, before the signal came to this one
    listening: bool = False

    def __call__(self, number: int, frame: object = None) -> None:
        # A scheduler announces its SIGTERM by SIGUSR2, sends both to every process, and we or
        # torchrun hand them on to each: that is one request.
        self.announced |= number == signal.SIGUSR2 or world_size() > 1
        is_new_request = not self.announced or number == signal.SIGINT
        again = self.number is not None and not self.agreed and is_new_request
        self.number = number
        self.agreed = False
        if number == signal.SIGHUP:
            detach_terminal()
        if again or not self.listening:
            raise self.error()

    def error(self) -> Interrupted:
        """The exception that ends the process once the step is saved."""
        number = self.number or signal.SIGTERM
        return Interrupted(
            Fault(
                where=signal.Signals(number).name,
                found="asked to stop",
                fix="run the same command again to continue",
            ),
            number,
        )


def detach_terminal() -> None:
    """Send what is written to a terminal from here on nowhere.

    The terminal is closed, and to write to it would be an error.
    """
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            discard(descriptor)


def stop_signals() -> list[int]:
    """The signals that ask a process to stop."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    # By this one a scheduler announces a time limit, unless submitit answers it.
    answer = signal.getsignal(signal.SIGUSR2)
    if answer is signal.SIG_DFL or isinstance(answer, Stop):
        numbers.append(signal.SIGUSR2)
    # A closed terminal stops no process that was started with nohup.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Answer the signals that ask to stop by a handler, and restore the old answers afterwards."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
