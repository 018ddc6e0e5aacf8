"""The run folder, which is the contract between the command line, the worker and all commands.

    config.yaml     the format, and the run      status.json     created, running, interrupted, ...
    manifest.json   what it was made with        metrics.jsonl   one line per logged step
    scores.json     held-out, before and after   log.txt         everything that was printed
    checkpoints/    sealed one by one            model/          what others can load

The modules of this room:

    key             the hash and the label that name a run
    layout          the files of a folder by their names, and what does not belong there
    metadata        the types of what is read again from them
    folder          one folder: its format, configuration, state and lock
    place           a folder that is moved or deleted while a process works in it
    manifest        versions, command, git and notes
    opening         the folder of a configuration, checked or made
    seal            checkpoints and models that are whole, or not there
    weights         the weights of a run that a word means
    inputs          fingerprints of the files that a run reads
    completion      a run that has nothing left to do
    continuation    going on from the checkpoint of another run
    find            the folder of the run that a word means
    record          the files of a run as plain values
    history         the lines that it logged, and the completions that it sampled
    alarms          what makes a training sick
    adjustments     what a run changes about itself to go on
    disk, blame     a full disk, or an exception of a library, as a fault
"""

from runner.run.folder import (
    FORMAT,
    PATIENCE,
    Run,
    format_fault,
    held,
    locked,
    write_config,
)
from runner.run.layout import FILES, FOLDERS, METADATA, find_foreign_faults, foreign_faults
from runner.run.manifest import (
    CHANGES,
    COMPUTED,
    SKIPPED,
    add_notes,
    installed_version,
    run_git,
    uses_of,
    write_manifest,
)
from runner.run.metadata import is_shaped
from runner.run.opening import check_lines, check_metadata, open_run

__all__ = [
    "CHANGES",
    "COMPUTED",
    "FILES",
    "FOLDERS",
    "FORMAT",
    "METADATA",
    "PATIENCE",
    "SKIPPED",
    "Run",
    "add_notes",
    "check_lines",
    "check_metadata",
    "find_foreign_faults",
    "foreign_faults",
    "format_fault",
    "held",
    "installed_version",
    "is_shaped",
    "locked",
    "open_run",
    "run_git",
    "uses_of",
    "write_config",
    "write_manifest",
]
