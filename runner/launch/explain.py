"""Exceptions of a run -> errors of ours, which say what is to blame."""

import os
import re
import shlex
import time
import traceback

from runner import errors
from runner.errors import (
    ConfigError,
    EnvironmentFault,
    Fault,
    FolderError,
    RunnerError,
    describe,
)
from runner.io.hub import is_of_network
from runner.run import PATIENCE, Run, find_foreign_faults
from runner.run.adjustments import is_out_of_memory
from runner.run.blame import find_refused_keys
from runner.run.disk import full, is_full
from runner.schema.text import nodes
from runner.validate.targets import is_allowed

MISSING = re.compile("No such file|does not exist")  # in the words of Python, torch and safetensors


def explained(run: Run, error: BaseException) -> RunnerError:
    """The error of ours that an exception is.

    What is to blame is asked from the surest to the vaguest: the run folder, a full disk, what we
    have raised ourselves, this machine, the user's own code, a key that a library refuses; what is
    left is shown as it is, with the log.
    """
    text = describe(error)
    folder_error = _folder_error(run, error, text)
    if folder_error:
        return folder_error
    if isinstance(error, SystemExit):
        text = f"something called sys.exit({error.code!r}) or os._exit before the run was finished"
    if isinstance(error, RunnerError) and error.__cause__ and errors.own_place(error.__cause__):
        return error
    if is_full(error, run.folder):
        return full(run, error)
    if isinstance(error, RunnerError):
        return error
    environment_fault = _environment_fault(error, text)
    if environment_fault:
        return EnvironmentFault(environment_fault)
    blamed = _own_error(run, error, text) or find_refused_keys(run, error)
    return blamed or RunnerError(
        Fault(
            where=str(run.log),
            found=text,
            fix="read the traceback there, or run again with --debug",
        )
    )


def _environment_fault(error: BaseException, text: str) -> Fault | None:
    """The fault of a network, a memory, a limit or a library that this machine lacks."""
    if is_of_network(error):
        return Fault(
            where="network",
            found=text,
            expected="a connection",
            fix="run the same command again when there is one",
        )
    if is_out_of_memory(error):
        return Fault(
            where="memory",
            found=text,
            expected="a smaller step",
            fix="trainer.args.per_device_train_batch_size=<half>",
        )
    limit = errors.find_process_limit(error)
    if limit:
        return limit
    if isinstance(error, ImportError):
        return Fault(
            where="library",
            found=text,
            expected="an installed package",
            fix="pip install <the package named above>",
        )
    return None


def _folder_error(run: Run, error: BaseException, text: str) -> FolderError | None:
    """The error of a folder in which somebody else moved, deleted or put something meanwhile."""
    is_missing = not isinstance(error, RunnerError) and bool(MISSING.search(text))
    if is_missing:
        time.sleep(PATIENCE)  # who deletes it may not be done
    try:
        run.check_there()
        FolderError.refuse(find_foreign_faults(run.folder))
    except FolderError as folder_error:
        if run.place:
            run.place.remove_remainder()
        return folder_error
    if str(run.folder) not in text or errors.own_place(error):
        return None
    if isinstance(error, IsADirectoryError):
        path = str(error.filename2 or error.filename)
        return FolderError(
            Fault(
                where=path,
                found="a folder",
                expected="a file, or nothing",
                fix=f"rm -r {shlex.quote(path)}",
            )
        )
    if is_missing:
        return FolderError(
            Fault(
                where=str(run.folder),
                found=text,
                expected="files that nobody moves or deletes during the run",
                fix="the same command again; it continues from what is complete",
            )
        )
    return None


def _own_error(run: Run, error: BaseException, text: str) -> ConfigError | None:
    """The error of the user's own code.

    It is code that an exception came through, or that may have given, or left behind, what was met
    elsewhere.
    """
    targets = {key: str(node["_target_"]) for key, node in nodes(run.cfg)}
    place = errors.own_place(error)
    if place:
        return ConfigError(
            Fault(
                where=_key_of_file(place.rpartition(":")[0], targets),
                found=f"your own code: {text}",
                expected="code that runs",
                fix=f"mend {place}; the same command with --debug shows the traceback",
            )
        )
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == "<template>" for frame in frames):
        return ConfigError(
            Fault(
                where="model.tokenizer.chat_template",
                found=f"it raises for these rows: {text}",
                expected="a template that accepts them",
                fix="mend the rows, or leave them out with dataset.map",
            )
        )
    own_keys = []
    for key, target in targets.items():
        if not is_allowed(target, launcher=key == "launcher"):
            own_keys.append(key)
    if not own_keys:
        return None
    return ConfigError(
        Fault(
            where=", ".join(own_keys),
            found=text,
            expected="your own code to leave and return correct values",
            fix=f"the same words without {own_keys[0]}, to see whether it is the cause; "
            "with --debug for the traceback",
        )
    )


def _key_of_file(file: str, targets: dict[str, str]) -> str:
    """The key of the configuration whose target stands in a file, or else the file."""
    for key, target in targets.items():
        module, _, _ = target.rpartition(".")
        path = module.replace(".", os.sep)
        if file.endswith((f"/{path}.py", f"/{path}/__init__.py")):
            return key
    return file
