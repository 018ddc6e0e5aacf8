"""Variables that say where trackers put a run, with words for what a config cannot know.

    {folder}  the run folder             {root}  output_root
    {name}    the name of the run        {key}   the last ten letters of its folder
    {id}      a word that no other run folder has, the same whenever this one goes on

No library but ours, because variables have to be set before the tracker's package is imported.
Whether that package is there is checked in ``validate.libraries``.
"""

import math
import os
import re
import secrets
from pathlib import Path

from runner.config.experiment import Tracking
from runner.errors import Fault, FolderError
from runner.io.files import read_json, write_json
from runner.schema.upstream.trackers import TRACKERS

RECORD = "tracker.json"  # of a run folder: its id, and the trackers that have all of it
ID = re.compile(r"[\w-]{1,64}")
LETTERS_OF_KEY = 10  # at the end of a folder's name
# Any other variable could change what other programs do.
PREFIXES = tuple(tracker.prefix for tracker in TRACKERS.values() if tracker.prefix)


def set_variables(tracker: Tracking, folder: Path, name: str) -> None:
    """Set the variables of a tracker for the run in this folder."""
    os.environ.update(variables_of(tracker, folder, name))
    # Where Comet is installed, it would also log what the other trackers get, and send it.
    if TRACKERS["comet_ml"] not in tracker.libraries:
        os.environ.setdefault("COMET_DISABLE_AUTO_LOGGING", "1")


def variables_of(tracker: Tracking, folder: Path, name: str) -> dict[str, str]:
    """The variables of a tracker with the words in braces replaced; any other braces stay."""
    variables = tracker.variables
    words = {
        "folder": str(folder),
        "root": str(folder.parent.parent),
        "name": name,
        "key": folder.name[-LETTERS_OF_KEY:],
    }
    if any("{id}" in text for text in variables.values()):
        words["id"] = id_of(folder)
    placeholder = re.compile(f"{{({'|'.join(words)})}}")
    for variable, text in variables.items():
        variables[variable] = placeholder.sub(lambda match: words[match[1]], text)
    return variables


def id_of(folder: Path) -> str:
    """The word that names this folder to trackers, made at the first start.

    Without it the runs of two people would mix. Only the first of several processes makes it,
    because only that one talks to trackers.
    """
    path = folder / RECORD
    record = read_json(path) or {}
    if "id" not in record:
        key = folder.name[-LETTERS_OF_KEY:]
        if os.environ.get("RANK", "0") != "0":
            return key
        run_id = f"{key}-{secrets.token_hex(3)}"
        write_json(path, record | {"id": run_id})
        return run_id
    run_id = record["id"]
    if not ID.fullmatch(str(run_id)):
        raise FolderError(
            Fault(
                where=str(path),
                found=f"the id {run_id!r}",
                expected="letters, digits, _ and -",
                fix=f"rm {path}  (another one is made)",
            )
        )
    return str(run_id)


def sent_until(folder: Path, name: str) -> float:
    """The last step of a run that a tracker has: infinite while it gets each, -1 for no step."""
    record = read_json(folder / RECORD) or {}
    if name not in record.get("complete", ()):
        return -1
    until: float = record.get("until", {}).get(name, math.inf)
    return until


def note_complete(folder: Path, name: str, until: int | None = None) -> None:
    """Note that a tracker has the steps of a run until this one, or will be given each."""
    record = read_json(folder / RECORD) or {}
    complete = dict.fromkeys([*record.get("complete", ()), name])
    steps = {**record.get("until", {}), name: until}
    record["complete"] = list(complete)
    record["until"] = {key: step for key, step in steps.items() if step is not None}
    write_json(folder / RECORD, record)


def find_foreign_variables(tracker: Tracking) -> list[Fault]:
    """A fault for each configured variable that no tracker reads."""
    faults = []
    for name in tracker.node.get("environment") or {}:
        if not name.startswith(PREFIXES):
            fault = Fault(
                where=f"tracker.environment.{name}",
                found="not a variable of a tracker",
                expected=f"one that begins with {', '.join(PREFIXES)}",
                fix="leave it out",
            )
            faults.append(fault)
    return faults
