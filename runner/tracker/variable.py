"""The places and names that trackers use for a run: variables, with words for what a config cannot know.

    {folder}  the run folder             {root}  output_root
    {name}    the name of the run        {key}   the last ten letters of its folder
    {id}      a word that no other run folder has, the same whenever this one goes on

Standard library only, because variables have to be set before the tracker's package is imported. Whether that package
is there is asked in ``validate.start``.
"""

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.errors import Fault, FolderError, fault
from runner.io.files import read_json, write_json
from runner.schema import upstream

RECORD = "tracker.json"  # of a run folder: its id, and the trackers that have all of it
# Any other variable could change what other programs do.
PREFIXES = tuple(prefix for _, _, prefix in upstream.TRACKER_LIBRARIES.values())


def set_variables(node: Mapping[str, Any], folder: Path, name: str) -> None:
    """Set the variables of a tracker for the run in this folder."""
    os.environ.update(variables_of(node, folder, name))


def variables_of(node: Mapping[str, Any], folder: Path, name: str) -> dict[str, str]:
    """The variables of a tracker with the words in braces replaced; any other braces stay."""
    variables = {variable: str(text) for variable, text in (node.get("environment") or {}).items()}
    words = {"folder": str(folder), "root": str(folder.parent.parent), "name": name, "key": folder.name[-10:]}
    words |= {"id": id_of(folder)} if any("{id}" in text for text in variables.values()) else {}
    known = re.compile(f"{{({'|'.join(words)})}}")
    return {variable: known.sub(lambda word: words[word[1]], text) for variable, text in variables.items()}


def id_of(folder: Path) -> str:
    """The word that names this folder to trackers, made at the first start; without it two people's runs would mix.

    Only the first of several processes makes it, because only that one talks to trackers.
    """
    path = folder / RECORD
    known = read_json(path) or {}
    if "id" in known and not re.fullmatch(r"[\w-]{1,64}", str(known["id"])):
        raise FolderError(fault("tracker.odd_id", file=path, id=known["id"]))
    if "id" not in known and os.environ.get("RANK", "0") == "0":
        known |= {"id": f"{folder.name[-10:]}-{secrets.token_hex(3)}"}
        write_json(path, known)
    return known.get("id", folder.name[-10:])


def read_complete(folder: Path) -> list[str]:
    """The trackers that have all that was logged of a run."""
    return list((read_json(folder / RECORD) or {}).get("complete", ()))


def note_complete(folder: Path, name: str) -> None:
    """Note that a tracker has all that was logged of a run, and will be given what comes."""
    known = read_json(folder / RECORD) or {}
    write_json(folder / RECORD, known | {"complete": list(dict.fromkeys([*read_complete(folder), name]))})


def find_foreign_variables(node: Mapping[str, Any]) -> list[Fault]:
    """A fault for each configured variable that no tracker reads."""
    foreign = [name for name in node.get("environment") or {} if not name.startswith(PREFIXES)]
    return [fault("tracker.foreign_variable", name=name, begins=", ".join(PREFIXES)) for name in foreign]
