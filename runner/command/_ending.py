"""The end of a command by an error: the fault that is printed, and the exit code."""

import os
import re
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path

from runner.errors import (
    EnvironmentFault,
    Fault,
    RunnerError,
    describe,
    find_process_limit,
    hand_on,
)
from runner.io.secrets import hidden
from runner.io.terminal import print_error

# A temporary file, which gets the name in its middle once it is complete.
TEMPORARY = re.compile(r"""(?:^|(?<=[/'"]))\.([^/'"]+)\.[0-9a-f]{16}(?=$|['"])""")


def print_end(error: Exception, words: Sequence[str]) -> int:
    """Print the error that has ended a command, and return its exit code.

    An exception that is no fault of the user's is raised again; with ``--debug``, so is any that is
    not a RunnerError.
    """
    if isinstance(error, BrokenPipeError):  # whoever reads the output has seen enough
        return 0
    is_debugged = "--debug" in words
    if not isinstance(error, RunnerError):
        fault = None
        if isinstance(error, OSError):
            fault = _find_typed_fault(words, error) or _file_fault(error)
        elif isinstance(error, MemoryError | RuntimeError | ImportError):
            fault = find_process_limit(error)
        if fault is None or is_debugged:
            raise error
        error = EnvironmentFault(fault)
    hand_on(error)
    print_error(hidden(traceback.format_exc()) if is_debugged else error)
    return error.code


def _find_typed_fault(words: Sequence[str], error: OSError) -> Fault | None:
    """The fault of a word that names the file of an error, or what is around or beside it."""
    if not isinstance(error.filename, str | bytes):
        return None
    file_name = os.fsdecode(error.filename)
    file = Path(file_name).absolute()
    for word in words:
        key, _, value = word.partition("=")
        if value and _is_place_of(file, value):
            blocked = file_name if os.path.lexists(file_name) else value
            return Fault(
                where=key,
                found=f"{blocked}: {error.strerror or describe(error)}",
                expected="a place that can be written, or read",
                fix="=<another place>",
            )
    return None


def _is_place_of(file: Path, value: str) -> bool:
    """True for a value that names the file, a folder around it, or a place beside or below it."""
    place = Path(value).absolute()
    # A temporary file and a lock stand beside what they are for, with a longer name.
    own_name = file.name.lstrip(".")
    is_beside = place.parent == file.parent and own_name.startswith(f"{place.name}.")
    # The file is a folder that the path leads through; a plain word is no path.
    is_above = file in place.parents and "/" in value
    is_around = place == file or place in file.parents
    return is_beside or is_above or is_around


def _file_fault(error: OSError) -> Fault:
    """The fault of a file that cannot be read or written."""
    where = TEMPORARY.sub(r"\1", str(error.filename2 or error.filename or "system"))
    fix = "the same words with --debug"
    if error.filename:
        paths = [Path(where), *Path(where).parents]
        existing = next(filter(os.path.lexists, paths), where)
        fix = f"ls -ld {shlex.quote(str(existing))}  (shows what is there)"
    return Fault(
        where=where,
        found=TEMPORARY.sub(r"\1", describe(error)),
        expected="what can be read, or written there",
        fix=fix,
    )
