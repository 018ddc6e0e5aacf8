"""Short forms of rows and functions, written out so that the frozen config says everything.

They are prompts in files, other sources of rows, and functions by their names.
"""

import copy
import re
from pathlib import Path
from typing import Any

from runner.config.limits import check_size
from runner.errors import ConfigError, Fault
from runner.io.filetype import undecodable
from runner.schema.did_you_mean import files_beside
from runner.schema.text import nodes
from runner.schema.upstream.constructor import FUNCTIONS


def write_out_rows(dataset: object) -> None:
    """Write the texts of prompts and the keys of sources into a dataset's node, and into its parts.

    A source stands in ``split.eval``, or under a name there. It has the keys of the dataset and its
    own, of which ``split`` is its slice. Raises ConfigError for a prompt that cannot be read.
    """
    for path, node in nodes(dataset, "dataset"):
        if re.fullmatch(r"\S+\.(txt|md)", str(node.get("system"))):
            file = Path(node["system"]).expanduser()
            node["system"] = _read_prompt(file, f"{path}.system")
        split = node.get("split")
        sources = split.get("eval") if isinstance(split, dict) else None
        if not isinstance(sources, dict) or "_target_" in sources or "parts" in node:
            continue
        if "path" in sources:
            node["split"]["eval"] = _written_out(sources, node)
        else:
            written = {name: _written_out(source, node) for name, source in sources.items()}
            node["split"]["eval"] = written


def _written_out(source: Any, dataset: dict[str, Any]) -> Any:
    """The node of a source of held-out rows, with the keys of the dataset that it leaves open."""
    if not isinstance(source, dict) or "_target_" in source:
        return source
    omitted = ["split"]
    if "path" in source:
        omitted += ["config", "revision"]  # those of another path
    node = copy.deepcopy(dict(dataset))
    for key in omitted:
        node.pop(key, None)
    node["limit"] = {**(dataset.get("limit") or {}), "train": None}
    node |= source
    node["_partial_"] = True
    node["split"] = {"train": None, "eval": source.get("split", "train")}
    return node


def _read_prompt(file: Path, where: str) -> str:
    """The text of a prompt in a file."""
    problem = "it contains no text"
    try:
        check_size(file)
        text = file.read_text("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        finding = undecodable(error.object, str(file))
        raise ConfigError(
            Fault(
                where=where,
                found=f"{file}: {finding.found}",
                expected="a text in UTF-8",
                fix=finding.fix,
            )
        ) from None
    except OSError as error:
        text = ""
        problem = error.strerror or str(error)
    if text:
        return text
    near = [] if file.exists() else files_beside(file, (".txt", ".md"))
    fix = "=<file>"
    if near:
        fix = f"={near[0]}"
    raise ConfigError(
        Fault(
            where=where,
            found=f"{file}: {problem}",
            expected="a text, or a file with one",
            fix=fix,
        )
    )


def write_out_functions(trainer: object) -> None:
    """Make a node of each name at the keys of a trainer that take the user's functions.

    Names in lists and mappings become nodes, too.
    """
    if isinstance(trainer, dict):
        for key in FUNCTIONS:
            if key in trainer:
                trainer[key] = _to_nodes(trainer[key])


def _to_nodes(value: Any) -> Any:
    """A value in which every text is a node: the dotted name of a function is its target."""
    if isinstance(value, list):
        return [_to_nodes(part) for part in value]
    if isinstance(value, dict) and "_target_" not in value:
        return {name: _to_nodes(part) for name, part in value.items()}
    return {"_target_": value} if isinstance(value, str) else value
