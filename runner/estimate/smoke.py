"""Smoke runs: each case reads rows, trains and saves a step, goes on from it and is exported.

Each part is a process of its own, so that a resume is one.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from runner.errors import EnvironmentFault
from runner.estimate.apart import one_thread, run_apart
from runner.estimate.case import UNREDUCED, Case, model_of
from runner.estimate.outcome import describe_case
from runner.estimate.reduce import Clones, reduce
from runner.io.terminal import quiet
from runner.launch import processes, signals, worker
from runner.launch.warming import warm_up
from runner.run import open_run, write_config

PROCESSES = 3  # of a smoke run: it trains, resumes and scores, and exports


@quiet()
def play(cases: Sequence[Case], folder: Path, debug: bool) -> int:
    """Play cases in order below a folder and print how each went; the first exit code that fails.

    A signal raises Interrupted.
    """
    warm_up(case.composed for case in cases)
    clones = Clones(folder / "models")
    for index, case in enumerate(cases):
        place = folder / str(index)
        case.small = reduce(case.composed.cfg, place, clones)
        case.small.cfg["output_root"] = str(place / "outputs")
        case.run = open_run(case.small.cfg, case.composed.overrides, command=case.composed.command)
        write_config(case.run.folder / UNREDUCED, case.small.unreduced)
        for composed in case.runs.values():
            clones.links[model_of(composed)] = str(case.run.model)
    with one_thread(), signals.handle_signals(signals.Stop()):
        for case in cases:
            before = case.before
            if before and before.code:
                case.code = before.code
                cause = f"it builds on {before.name}, which has failed"
                print(f"not begun {case.name}: {cause}", flush=True)
            else:
                _play_parts(case, folder / "cache", debug)
                print("\n".join(describe_case(case)), flush=True)
    for case in cases:
        if case.code:
            return case.code
    return 0


def _play_parts(case: Case, cache: Path, debug: bool) -> None:
    """Have the worker play a case, in one process after the other until one fails."""
    start = time.monotonic()
    rehearse = partial(worker.work, case.run.folder, "rehearse", debug=debug)
    for _ in range(PROCESSES):
        code = run_apart(rehearse, case.run.log, cache)
        case.code = EnvironmentFault.code if code < 0 else code
        if code:
            if not case.run.status()["cause"]:
                case.run.set_status("failed", cause=f"the process {processes.describe_exit(code)}")
            break
    case.seconds = time.monotonic() - start
