"""Verbs beside libraries in versions that were not tried.

``train`` checks its runs itself (``validate.start``). The other verbs that load a model go on where
``tolerate.versions=true`` is typed, or stands in the run that they name.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.command import VERBS, CommandLine
from runner.config.override import dotted_key
from runner.errors import ConfigError, EnvironmentFault, RunnerError
from runner.run import Run
from runner.run.find import find_run
from runner.run.record import OUTPUT_ROOT

KEY = "tolerate.versions"


def check_versions(line: CommandLine) -> CommandLine:
    """The command line without the word that tolerates other versions.

    Raises EnvironmentFault for a version that nobody tolerates, and for a library that is missing.
    """
    from runner.validate.versions import find_absent_requirements, find_other_versions

    EnvironmentFault.refuse(find_absent_requirements())
    faults = list(find_other_versions())
    if faults and not _is_typed(line.overrides) and not any(map(_tolerates, line.runs)):
        raise EnvironmentFault(faults)
    others = [word for word in line.overrides if dotted_key(word) != KEY]
    return replace(line, overrides=others)


def blame_versions(error: Exception, words: Sequence[str]) -> Exception:
    """The error of a training; that of its libraries where these explain it.

    The keys and defaults of other versions differ, so that what is refused may be right in those
    that were tried.
    """
    is_training = not any(word in VERBS and word != "train" for word in words)
    if not isinstance(error, ConfigError) or not is_training or _is_typed(words):
        return error
    from runner.validate.versions import find_absent_requirements, find_other_versions

    faults = [*find_absent_requirements(), *find_other_versions()]
    return EnvironmentFault(faults) if faults else error


def _is_typed(words: Sequence[str]) -> bool:
    """True where one of the words tolerates other versions."""
    values = [word.partition("=")[2] for word in words if dotted_key(word) == KEY]
    return bool(values) and values[-1].lower() == "true"


def _tolerates(word: str) -> bool:
    """True for a run whose configuration tolerates other versions."""
    # The verb itself tells what is wrong with a run that cannot be read.
    with contextlib.suppress(RunnerError, OSError):
        folder = find_run(word, "", OUTPUT_ROOT)
        return isinstance(folder, Path) and Run(folder).experiment.tolerate.versions
    return False
