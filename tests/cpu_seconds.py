"""CPU seconds of each test, with all processes that it starts; the dearest are listed at the end.

A machine that does other work makes a test take longer but hardly dearer, so that these figures,
unlike pytest's ``--durations``, can be compared. A test that takes more than ``MAX_SECONDS`` says
why in a mark, ``@pytest.mark.dear("two processes train as one")``; one that does not is named in
the list. ``RUNNER_TEST_CPU_SECONDS=FILE`` has the seconds of every test written to a file.
"""

import os
import resource
from collections import defaultdict
from pathlib import Path

import pytest

MAX_SECONDS = 5.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """CPU seconds that this process and all of its descendants have used so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = usage.ru_utime + usage.ru_stime + ended.ru_utime + ended.ru_stime
    waiting = _children(os.getpid())
    while waiting:
        pid = waiting.pop()
        seconds += _seconds_of(pid)
        waiting += _children(pid)
    return seconds


def _children(pid: int) -> list[int]:
    """The live processes that a process has started; on Linux alone."""
    pids = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():  # each knows those that it started
            pids += [int(word) for word in (thread / "children").read_text().split()]
    except OSError:
        pass  # the process, or a thread, has ended
    return pids


def _seconds_of(pid: int) -> float:
    """CPU seconds of a living process and of those of its children that have ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces
    return sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_SECOND


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.cpu_start = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        mark = item.get_closest_marker("dear")
        reason = mark.args[0] if mark else ""
        report.user_properties.append(("cpu_seconds", cpu_seconds() - item.cpu_start))
        report.user_properties.append(("why_dear", reason))
    return report


def pytest_terminal_summary(terminalreporter):
    """List the sum, and the most expensive files and tests."""
    tests: dict[str, float] = {}
    files: defaultdict[str, float] = defaultdict(float)
    reasons: dict[str, str] = {}
    for report in terminalreporter.getreports(""):
        properties = dict(getattr(report, "user_properties", ()))
        if getattr(report, "when", "") == "teardown" and "cpu_seconds" in properties:
            tests[report.nodeid] = properties["cpu_seconds"]
            files[report.nodeid.partition("::")[0]] += properties["cpu_seconds"]
            reasons[report.nodeid] = properties["why_dear"]
    if not tests:
        return
    total = sum(tests.values())
    terminalreporter.section(f"CPU seconds: {total:.0f} in {len(tests)} tests")
    log = os.environ.get("RUNNER_TEST_CPU_SECONDS")
    if log:
        lines = [f"{seconds:.2f} {name}" for name, seconds in tests.items()]
        Path(log).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, seconds in sorted(files.items(), key=lambda file: -file[1])[:10]:
        terminalreporter.line(f"{seconds:8.1f}  {name}")
    for name, seconds in sorted(tests.items(), key=lambda test: -test[1]):
        if seconds > MAX_SECONDS:
            terminalreporter.line(f"{seconds:8.1f}  {name}  {reasons[name] or '(no reason given)'}")
