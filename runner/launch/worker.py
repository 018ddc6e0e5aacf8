"""The worker: run folder -> command, with its lock, its log, its state and its exit code.

Hydra is not met here: the folder holds all there is to know.
"""

import contextlib
import gc
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from runner import errors
from runner.config.machines import rank
from runner.errors import EnvironmentFault, FolderError, RunnerError
from runner.io.secrets import hidden
from runner.io.temporary import uncollected
from runner.io.terminal import print_error
from runner.launch.explain import explained
from runner.launch.processes import (
    exits_named,
    prepare_environment,
    take_devices,
    visible_devices,
)
from runner.launch.run_log import logging_to
from runner.launch.signals import Stop, handle_signals
from runner.run import PATIENCE, Run, add_notes, check_lines, check_metadata, locked
from runner.run.completion import finished, is_finished
from runner.run.inputs import check_fingerprints
from runner.run.place import hold_place
from runner.run.seal import remove_leftovers, remove_unfinished
from runner.validate.libraries import find_missing_libraries

log = logging.getLogger("runner.launch.worker")

# takes a run, its last state, the error, --debug
RecordEnd = Callable[[Run, str | None, RunnerError, bool], None]
Verb = Literal["train", "rehearse"]
# The verbs that work in a run folder, by their modules; each has a function of its own name. They
# stand above this room and are imported when they are called, with all that they need.
VERBS: dict[Verb, str] = {
    "train": "runner.command.train",
    "rehearse": "runner.command.rehearse",
}


def conclude(run: Run, state: str | None, error: RunnerError, debug: bool = False) -> None:
    """Record how a run ended, where it has a ``state``, and print it; the first of several does."""
    if rank() == 0 and state:
        if isinstance(error, EnvironmentFault):
            remove_unfinished(run)  # what a full disk has cut off would only keep it full
        # Then it is running without a process, which everyone reads as interrupted; or it is not
        # there any more.
        with contextlib.suppress(OSError, FolderError):
            run.set_status(state, cause=str(error), error=error.to_dict())
    if rank() == 0 or not state:
        errors.hand_on(error)
        print_error(hidden(traceback.format_exc()) if debug else error)


def work(
    folder: str | Path,
    command: Verb = "train",
    debug: bool = False,
    record_end: RecordEnd = conclude,
) -> int:
    """Run a command on a run folder and return the exit code.

    Its end becomes a state and a message, and is never raised. Where a signal has come, that is
    the end: libraries turn an exception that passes through them into another.
    """
    prepare_environment()
    run = Run(Path(folder))
    stop = Stop()
    try:
        take_devices(run.experiment.model, visible_devices())
        with handle_signals(stop), contextlib.ExitStack() as held:
            placed = replace(run, place=held.enter_context(hold_place(run.folder)))
            if rank() == 0:
                held.enter_context(locked(placed, PATIENCE))
                check_metadata(placed)
                if is_finished(placed):
                    print(finished(placed))
                    return 0
                remove_leftovers(placed)
                placed.set_status("running", cause=None)
            held.enter_context(logging_to(placed.log))
            held.enter_context(exits_named())
            try:
                _check_machine(placed)
                with uncollected():
                    module = import_module(VERBS[command])
                gc.freeze()  # nor is what is there by now looked through later
                getattr(module, command)(placed, stop)
                return 0
            except BaseException as ended:  # the user's own code may raise anything
                error = explained(placed, ended) if stop.number is None else stop.error()
                # A signal may have come while the error was explained.
                state = "interrupted"
                if stop.number is None:
                    state = "failed"
                    log.info("%s", traceback.format_exc())
                record_end(placed, state, error, debug)
    except (RunnerError, OSError) as ended:  # before the folder was ours
        error = explained(run, ended)
        record_end(run, None, error, debug)
    return error.code


def _check_machine(run: Run) -> None:
    """Check the libraries and the files that a run needs; it may be on another machine by now."""
    EnvironmentFault.refuse(find_missing_libraries(run.cfg))
    if rank() == 0:
        check_lines(run)
        step = run.status()["step"]
        add_notes(run, [f"at step {step}: {line}" for line in check_fingerprints(run)])
