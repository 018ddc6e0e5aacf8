"""The runner from Python: ``runner.train``, ``runner.compose`` and ``runner.runs``.

A training is the command line of the same words, in a process of its own: nothing of the caller's
is read or changed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command import CommandLine, options_of
from runner.command._request import read_request
from runner.config import Composed
from runner.config.menu import read_menu
from runner.config.override import expand
from runner.config.user_folder import add_working_folder
from runner.errors import (
    ERROR_FILE,
    ConfigError,
    EnvironmentFault,
    Fault,
    FolderError,
    RunnerError,
    error_of,
    error_of_code,
)
from runner.generate.run_weights import find_weights
from runner.io.files import read_json, shipped
from runner.io.temporary import temporarily
from runner.io.terminal import quiet
from runner.launch.compose import stages, sweep_axes
from runner.launch.processes import describe_exit, prepare_environment, python_words
from runner.launch.worker import is_finished
from runner.run import Run
from runner.run.find import find_folders, is_run
from runner.run.key import folder_of
from runner.run.record import RunRecord, finished, read_run
from runner.schema.text import to_override

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PARTS = ("model", "dataset", "quant")
LINES_KEPT = 5  # of what a command says, where it leaves no error


@dataclass(frozen=True, repr=False)
class TrainedRun(RunRecord):
    """A run as its folder was when this was made, whatever its ``state``.

    ``folder`` is its path, ``cfg`` its configuration, ``before``, ``after`` its scores, ``cause``
    why it is unfinished.
    """

    def __repr__(self) -> str:
        return f"<{self}: {self.standing}>"

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The held-out scores ``before`` and ``after`` the training by name, as far as they were measured."""
        return {
            name: found for name, found in (("before", self.before), ("after", self.after)) if found
        }

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The logged lines in the order of the steps, each with ``step`` and the trainer's own names."""
        return self.lines

    def model(self, *overrides: str) -> PreTrainedModel:
        """The trained model, with its adapter if it has one, on the accelerator if there is one, to be asked.

        ``overrides`` are those of ``python -m runner predict RUN``: ``checkpoint=best``,
        ``model.dtype=bfloat16``, or ``allow=[my_lab]`` where code of your own builds it. Raises
        FolderError where there are no weights.
        """
        from runner.training.components.model import load_trained

        line = CommandLine(
            "predict", _quoted(overrides, (), "TrainedRun.model"), [str(self.folder)]
        )
        request = read_request(line, options_of("_request"), PARTS)
        prepare_environment()
        with quiet():
            return load_trained(request.experiment, request.weights, request.head)[0]

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that was saved with the model, with its chat template."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(find_weights(self.run, None).folder)


def train(*overrides: str, config_dir: str | Path | None = None, **keys: object) -> TrainedRun:
    """Train what ``python -m runner`` trains with these words, print what it says, and give back the finished run.

    A run that is finished already comes back at once, an interrupted one goes on; of stages the
    last one comes back, of a queue (``launcher=slurm``) what is queued. ``config_dir`` is a folder
    of your own groups, as for ``--config-dir``.

    Ctrl-C, or a notebook's stop button, lets the step be saved before KeyboardInterrupt is raised,
    a second one does not; the same call goes on. Raises the errors of ``runner.errors``, each with
    its ``faults`` and with the exit code of the command as ``code``: ConfigError or DataError where
    something cannot work, SickRun where the training went wrong, FolderError where another process
    trains the run, EnvironmentFault for disk, memory or a missing library.
    """
    if sweep_axes.chosen_sweep(_quoted(overrides, (), "train", **keys)) is not None:
        words = " ".join(overrides)
        raise ConfigError(
            Fault(
                where="runner.train",
                found="a sweep",
                expected="one training",
                fix=f"python -m runner {words}  and then runner.runs('outputs/<name>')",
            )
        )
    runs = [
        Run(folder_of(each.cfg, each.overrides).absolute())
        for each in _compose(overrides, config_dir)
    ]
    before = [run.status() for run in runs]
    if all(status["state"] == "finished" for status in before) and all(map(is_finished, runs)):
        print(finished(runs[-1]))
        return _read(runs[-1].folder)
    command = [*overrides, *(["--config-dir", str(config_dir)] if config_dir else [])]
    with tempfile.TemporaryDirectory(prefix="runner-") as place:
        error_file = Path(place, "error.json")
        code, said = _call([f"{ERROR_FILE}{error_file}", *command])
        record = read_json(error_file)
    if code < 0:
        raise EnvironmentFault(
            Fault(
                where=f"{runs[-1]}",
                found=f"the process {describe_exit(code)}",
                fix="the same call again, which continues",
            )
        )
    if code:
        # That of the last run that has ended so, or else of the command, which began none.
        for run, then in reversed(list(zip(runs, before, strict=True))):
            now = run.status()
            if now != then and now["state"] != "finished" and now.get("cause"):
                raise error_of(now, code)
        raise RunnerError.from_dict(record) if record else error_of_code(code, said)
    return _read(runs[-1].folder)


def compose(
    *overrides: str, config_dir: str | Path | None = None, **keys: object
) -> dict[str, Any]:
    """The configuration that these words make, checked and resolved: plain dicts, lists and scalars.

    Of an experiment with stages, that of the last one. Raises ConfigError with every fault at once.
    """
    return _compose(overrides, config_dir, **keys)[-1].cfg


def runs(folder: str | Path = "outputs") -> list[TrainedRun]:
    """The runs of a folder, whatever their state, the newest last: those of ``outputs/<name>``, or of every name.

    Raises FolderError where there is no such folder.
    """
    place = Path(shipped(str(folder))).absolute()
    place = place if place.is_dir() else Path("outputs", folder).absolute()
    if not place.is_dir():
        raise FolderError(
            Fault(str(folder), "no such folder", "a folder of runs", "python -m runner report")
        )
    found = [place] if is_run(place) else find_folders(place)
    found = found or [
        run for group in place.iterdir() if group.is_dir() for run in find_folders(group)
    ]
    return sorted(
        map(_read, found),
        key=lambda run: (str(run.status.get("started")), str(run.status.get("updated"))),
    )


def _quoted(
    words: Sequence[str], folders: Sequence[Path], call: str, /, **keys: object
) -> list[str]:
    """The overrides as Hydra takes them; ConfigError for verbs and flags, and for the keys of a ``call``."""

    if odd := [word for word in words if not isinstance(word, str)]:
        raise ConfigError(
            Fault(f"runner.{call}", repr(word), "words", f'runner.{call}("seed=1")') for word in odd
        )
    bad = [word for word in words if "=" not in word and not word.startswith("~")]
    faults = [
        Fault(
            where="runner",
            found=f"{word!r}",
            expected="key=value; for several values, one call each",
            fix=f"python -m runner {' '.join(words)}",
        )
        for word in bad
    ]
    for word in words:
        if len(several := re.split(r"\s+(?=[\w./@]+=)", word)) > 1 and not set(word) & {*"'\""}:
            typed = ", ".join(f'"{each}"' for each in several)
            faults.append(Fault("runner", repr(word), "one word each", f"runner.{call}({typed})"))
    named = {key: f'runner.{call}("{to_override(key, value)}")' for key, value in keys.items()}
    faults += [
        Fault(key, "an argument of this name", "a word of the command line", fix)
        for key, fix in named.items()
    ]
    ConfigError.refuse(
        faults
        + [Fault("config_dir", str(path), "a folder") for path in folders if not path.is_dir()]
    )
    return expand(words, read_menu(folders))


def _compose(
    words: Sequence[str], config_dir: str | Path | None, /, **keys: object
) -> list[Composed]:
    folders = [Path(config_dir)] if config_dir else []
    with temporarily(sys, path=sys.path[:]):
        add_working_folder()
        return stages.compose_runs(_quoted(words, folders, "compose", **keys), folders)


def _read(folder: Path) -> TrainedRun:
    return TrainedRun(**vars(read_run(folder)))


def _call(words: Sequence[str]) -> tuple[int, str]:
    """Print what the command of these words says, and give back its exit code and its last lines."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    said, stop = deque[str](maxlen=LINES_KEPT), None
    words = [*python_words("runner"), *words]
    with subprocess.Popen(words, text=True, errors="replace", process_group=0, **pipes) as process:
        while True:
            try:
                for line in process.stdout or ():
                    said.append(line)
                    print(line, end="", flush=True)
                code = process.wait()
                break
            except BaseException as error:
                process.send_signal(signal.SIGKILL if stop else signal.SIGINT)
                stop = stop or error
    if stop:
        raise stop
    return code, "".join(said)
