"""The runner from Python: ``runner.train`` and ``runner.compose``.

A training is the command line of the same words, in a process of its own: nothing of the caller's
is read or changed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.command._foreign_files import translate_files
from runner.command._notebook import Cell, find_cell
from runner.command._python_words import to_overrides
from runner.command._trained_run import TrainedRun, read_trained
from runner.config.resolution import Composed
from runner.config.working_folder import add_working_folder, searched_folders
from runner.errors import (
    ERROR_FILE,
    ConfigError,
    EnvironmentFault,
    Fault,
    RunnerError,
    error_of,
    error_of_code,
)
from runner.io.files import read_json
from runner.io.temporary import temporarily
from runner.launch.compose import stages, sweep_axes
from runner.launch.processes import describe_exit, python_words
from runner.run import Run
from runner.run.completion import finished, is_finished
from runner.run.key import folder_of

__all__ = ["TrainedRun", "compose", "train"]

MAX_LAST_LINES = 5  # of a command that leaves no error


def train(*overrides: str, config_dir: str | Path | None = None, **keys: object) -> TrainedRun:
    """Train what ``python -m runner`` trains with these words, and give back the finished run.

    What the command says is printed; in a notebook, its progress and curves are drawn. A run that
    is finished already comes back at once, an interrupted one goes on; of stages the last one comes
    back, of a queue (``launcher=slurm``) what is queued. ``config_dir`` is a folder of your own
    groups, as for ``--config-dir``; without it, ``conf/`` in the working folder is used.

    Ctrl-C, or a notebook's stop button, lets the step be saved before KeyboardInterrupt is raised,
    a second one does not; the same call goes on. Raises the errors of ``runner.errors``, each with
    its ``faults`` and with the exit code of the command as ``code``: ConfigError or DataError where
    something cannot work, SickRun where the training went wrong, FolderError where another process
    trains the run, EnvironmentFault for disk, memory or a missing library.
    """
    if sweep_axes.chosen_sweep(to_overrides(overrides, (), "train", **keys)) is not None:
        words = " ".join(overrides)
        raise ConfigError(
            Fault(
                where="runner.train",
                found="a sweep",
                expected="one training",
                fix=f"python -m runner {words}  and then runner.runs('outputs/<name>')",
            )
        )
    runs = []
    for composed in _compose(overrides, config_dir):
        runs.append(Run(folder_of(composed.cfg, composed.overrides).absolute()))
    last_run = runs[-1]
    old_states = [run.status() for run in runs]
    are_done = all(status["state"] == "finished" for status in old_states)
    if are_done and all(map(is_finished, runs)):
        print(finished(last_run))
        return read_trained(last_run.folder)
    command = list(overrides)
    if config_dir:
        command += ["--config-dir", str(config_dir)]
    with tempfile.TemporaryDirectory(prefix="runner-") as folder:
        error_file = Path(folder, "error.json")
        code, last_words = _call([f"{ERROR_FILE}{error_file}", *command], find_cell(runs))
        record = read_json(error_file)
    if code < 0:
        raise EnvironmentFault(
            Fault(
                where=str(last_run),
                found=f"the process {describe_exit(code)}",
                fix="the same call again, which continues",
            )
        )
    if code:
        _raise_error_of_run(runs, old_states, code)
        raise RunnerError.from_dict(record) if record else error_of_code(code, last_words)
    return read_trained(last_run.folder)


def _raise_error_of_run(
    runs: Sequence[Run], old_states: Sequence[Mapping[str, Any]], code: int
) -> None:
    """Raise the error of the last run that ended with one; the command may have begun none."""
    for run, old_status in reversed(list(zip(runs, old_states, strict=True))):
        status = run.status()
        if status != old_status and status["state"] != "finished" and status.get("cause"):
            raise error_of(status, code)


def compose(
    *overrides: str, config_dir: str | Path | None = None, **keys: object
) -> dict[str, Any]:
    """The configuration that these words make, checked and resolved: dicts, lists and scalars.

    Of an experiment with stages, that of the last one. Raises ConfigError with every fault at once.
    """
    return _compose(overrides, config_dir, **keys)[-1].cfg


def _compose(
    words: Sequence[str], config_dir: str | Path | None, /, **keys: object
) -> list[Composed]:
    """The configurations of a call, of stages one each."""
    folders = searched_folders([Path(config_dir)] if config_dir else [])
    with temporarily(sys, path=sys.path[:]):
        add_working_folder()
        overrides = to_overrides(words, folders, "compose", **keys)
        translate_files(overrides)
        return stages.compose_runs(overrides, folders)


def _call(words: Sequence[str], cell: Cell | None = None) -> tuple[int, str]:
    """The exit code of a command, and the last lines of what it says.

    All of that is printed; in a notebook, the lines of steps are drawn instead.
    """
    last_lines: deque[str] = deque(maxlen=MAX_LAST_LINES)
    stop: BaseException | None = None
    with subprocess.Popen(
        [*python_words("runner"), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    ) as process:
        while True:
            try:
                for line in process.stdout or ():
                    last_lines.append(line)
                    if cell is None or not cell.takes(line):
                        print(line, end="", flush=True)
                code = process.wait()
                break
            except BaseException as error:
                # The first stop lets the step be saved, the second one does not.
                process.send_signal(signal.SIGKILL if stop else signal.SIGINT)
                stop = stop or error
    if stop:
        raise stop
    if cell is not None:
        cell.draw()
    return code, "".join(last_lines)
