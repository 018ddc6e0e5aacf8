"""Systems that are no Linux: what they lack is done without, or told in one fault."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.launch.pool import end_group
from runner.launch.pool_settings import count_cores

ROOT = Path(__file__).parent.parent
# Names that Windows lacks, removed before anything of ours is imported; what Python needs was
# imported before.
AS_WINDOWS = """
import asyncio, os, platform, signal, subprocess, sys, sysconfig, multiprocessing.util
for name in ("fork", "setsid", "killpg", "waitid", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG",
             "sched_getaffinity"):
    delattr(os, name)
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGALRM", "alarm"):
    delattr(signal, name)
sys.modules |= dict.fromkeys(["fcntl", "resource", "pwd", "grp", "termios"])
platform.system = lambda: "Windows"
from runner.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_system_without_fork_is_one_fault(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_WINDOWS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 5 and not list(tmp_path.iterdir()), done.stderr
    assert done.stderr.splitlines()[:3] == [
        "environment",
        "  system",
        "    found     Windows, which has no fork",
    ]


@pytest.mark.slow
def test_a_child_is_reaped_where_the_system_cannot_look_first(monkeypatch):
    monkeypatch.delattr(os, "waitid")  # as on macOS before Python 3.13
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert count_cores() >= 1
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.read(reading, 1)
        os._exit(3)
    assert end_group(child) is None
    os.write(writing, b"x")
    deadline = time.monotonic() + 120
    while (status := end_group(child)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 3
