"""Faults that several modules of this room raise."""

from collections.abc import Iterable
from pathlib import Path

from runner.errors import Fault
from runner.io.filetype import Finding
from runner.schema.did_you_mean import best_guess
from runner.schema.modality import Modality


def misnamed(
    where: str, name: str, names: Iterable[str], fix: str = "{}", otherwise: str = ""
) -> Fault:
    """The fault of a name that is not among ``names``.

    The nearest one stands in the braces of ``fix``; where none is near, the fix is ``otherwise``.
    """
    names = list(names)
    similar = best_guess(str(name), names)
    # What stands behind the braces may have braces of its own, so this is no ``str.format``.
    otherwise = otherwise or fix.replace("{}", "<one of them>", 1)
    return Fault(
        where=where,
        found=repr(name),
        expected=f"one of {', '.join(names)}",
        fix=fix.replace("{}", similar, 1) if similar else otherwise,
    )


def stream_of_media(modality: Modality, label: str) -> Fault:
    """The fault of rows with media that are read as a stream."""
    return Fault(
        where="dataset.streaming",
        found=f"{label} is a stream of rows with {modality.many}",
        expected=f"rows that are all there, because each {modality.part_type} is checked before "
        "the training",
        fix="=false",
    )


def no_rows(path: Path) -> Fault:
    """The fault of a file without rows."""
    return Fault(
        where=str(path),
        found="no rows",
        expected="at least one",
        fix=f"copy or download {path.name} again, or dataset.path=<another one>",
    )


def not_utf8(where: object, finding: Finding) -> Fault:
    """The fault of bytes that are not UTF-8; ``finding`` says what they are instead."""
    return Fault(
        where=str(where),
        found=finding.found,
        expected="UTF-8",
        fix=finding.fix,
    )
