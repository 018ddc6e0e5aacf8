"""An instant in the life of a command: the n-th time that it touches a file of a kind.

Told by Python's own audit events, inside the command's process, so that it is the same instant on
every machine. What libraries written in other languages open is not told; a random moment after an
instant lands in that as well.
"""

import os
import re
import signal
import sys
from dataclasses import dataclass

TOUCHES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"}


@dataclass(frozen=True)
class Instant:
    """The ``count``-th touch that ``pattern`` matches, of those below ``folder``.

    Then the command is killed before it goes on, or the file ``told`` appears. ``record`` is a file
    that gets a line for each touch, "<event> <path>"; ``synced`` one that gets a line for each file
    that is put on the disk, "<inode> <bytes>".
    """

    folder: str
    pattern: str = ""
    count: int = 0
    told: str | None = None
    record: str | None = None
    synced: str | None = None


def watch(instant: Instant) -> None:
    """Look for the instant from here on, in this process and in those that it forks."""
    pid = os.getpid()
    events = 0
    busy = False

    def hook(event, arguments):
        nonlocal events, busy
        if event not in TOUCHES or busy:
            return
        path = _path(event, arguments)
        if path is None or not path.startswith(instant.folder):
            return
        touch = f"{event} {os.path.relpath(path, instant.folder)}"
        busy = True
        try:
            if instant.record:
                with open(instant.record, "a", encoding="utf-8") as file:
                    file.write(f"{touch}\n")
            if instant.count and re.search(instant.pattern, touch):
                events += 1
                if events == instant.count:
                    reach(instant, pid)
        finally:
            busy = False

    sys.addaudithook(hook)
    if instant.synced:
        note_syncs(instant.synced)


def reach(instant: Instant, watcher: int) -> None:
    """Report that the instant has come, or kill the watching process, never one of its forks."""
    if instant.told:
        open(instant.told, "w").close()
    elif os.getpid() == watcher:
        os.kill(watcher, signal.SIGKILL)


def note_syncs(record: str) -> None:
    """Note each sync of a file in this process and its forks; Python audits none of them."""
    fsync = os.fsync

    def noting(file):
        fsync(file)
        about = os.fstat(file if isinstance(file, int) else file.fileno())
        with open(record, "a", encoding="utf-8") as lines:
            lines.write(f"{about.st_ino} {about.st_size}\n")

    os.fsync = noting


def _path(event, arguments):
    """The whole path that an event names, the new one of a rename; None where it names none."""
    path = arguments[1 if event == "os.rename" else 0]
    if isinstance(path, int) or path is None:
        return None
    path = os.fsdecode(path)
    folder = arguments[-1] if event in ("os.remove", "os.rmdir") else -1
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(path):
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return os.path.abspath(path)
