"""A server as a process of its own, which ends with the one that has started it."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SECONDS_TO_END = 20.0
SECONDS_TO_TIDY = 2.0
SECONDS_BETWEEN_LOOKS = 0.3
# A server whose parent was killed may end by itself, by the signal that this sends it.
SECONDS_AS_ORPHAN = 3.0
# Kills a group of processes, $0, some seconds after the standard input has ended. That ends with
# whoever has started this, also where it was killed.
WATCH = "read line; sleep $1; kill -s KILL -- -$0"


@contextlib.contextmanager
def running(
    words: Sequence[str], variables: Mapping[str, str] | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server, which is ended in the end with all that it has started.

    What it prints goes to ``log``, with None to where this process prints.
    """
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log else None
        process = subprocess.Popen(
            words,
            env=os.environ | dict(variables or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C reaches it through this process alone.
            start_new_session=True,
            preexec_fn=functools.partial(set_parent_death_signal, os.getpid()),
        )
    watch = subprocess.Popen(
        ["/bin/sh", "-c", WATCH, str(process.pid), str(SECONDS_AS_ORPHAN)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        # A second signal cuts the wait short.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
            process.wait(SECONDS_TO_END)
        with contextlib.suppress(ProcessLookupError):  # which says that nothing is left
            # Those that have outlived it may still be giving back what they hold.
            deadline = time.monotonic() + SECONDS_TO_TIDY
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(SECONDS_BETWEEN_LOOKS)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        watch.kill()
        watch.communicate()


def set_parent_death_signal(parent: int) -> None:
    """Have this process asked to save its step and end when its parent is gone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was quicker
        os.kill(os.getpid(), signal.SIGTERM)
