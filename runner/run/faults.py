"""Faults that several modules of this room report."""

from pathlib import Path

from runner.errors import Fault


def gone(folder: Path) -> Fault:
    """The fault of a run folder that was there when the work in it began."""
    return Fault(
        where=str(folder),
        found="it was moved or deleted in the meantime",
        expected="the folder of the run",
        fix="the same command again; it continues if the folder is put back",
    )


def no_config(run: object) -> Fault:
    """The fault of a run whose configuration cannot be read."""
    return Fault(
        where=str(run),
        found="config.yaml is missing or truncated",
        expected="the folder of a complete run",
    )
