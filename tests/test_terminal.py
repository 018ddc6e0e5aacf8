"""What a terminal shows: a bar that fits, colours unless they are refused; and what it said is in the log."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios

import pytest

from runner.__main__ import main

FEW = ("trainer.args.max_steps=2", "trainer.args.logging_steps=1", "trainer.args.per_device_train_batch_size=8")
FEW += ("dataset.limit.train=64", "dataset.limit.eval=8")


@pytest.fixture
def look(tmp_path, monkeypatch):
    """What the command shows on a terminal of 80 columns, and its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    from trl import SFTTrainer  # noqa: F401  once, and not in each child

    def call(*words):
        child, terminal = pty.fork()
        if not child:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            code = 1
            try:
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                code = main(list(words))
                sys.stdout.flush()
            finally:
                os._exit(code)
        shown = b""
        try:
            while more := os.read(terminal, 1 << 16):
                shown += more
        except OSError:  # the terminal is closed
            pass
        os.close(terminal)
        return shown.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    return call


def test_a_terminal_shows_a_bar_with_the_loss_and_the_time_that_is_left(look, tmp_path):
    shown, code = look("trainer=sft", *FEW)
    bars = [frame for frame in re.split(r"[\r\n]", shown) if frame.startswith("training")]
    assert code == 0 and re.search(r" 2/2 \[\d\d:\d\d<00:00, .*step/s, loss \d\.\d+\]$", bars[-1])
    assert max(map(len, bars)) <= 80 and "\nstep " not in shown
    assert "\n\x1b[32mfinished\x1b[0m  2 steps in " in shown
    assert re.search(r"^  eval_loss .*\x1b\[3[12]m[\d.]+\x1b\[0m$", shown, re.MULTILINE)
    [log] = tmp_path.glob("outputs/*/*/log.txt")
    text = log.read_text()
    assert "step      2/2  loss " in text and ": finished  2 steps in " in text and not {"\x1b", "␛"} & set(text)


def test_the_heading_of_an_error_is_red_unless_colours_are_refused(look, monkeypatch):
    shown, code = look("trainer=dpoo")
    assert code == 2 and shown.startswith("\x1b[31mconfig\x1b[0m\n  trainer\n")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert look("trainer=dpoo") == (shown.replace("\x1b[31m", "").replace("\x1b[0m", ""), 2)
