"""Short forms written out, so that the frozen config says all: prompts in files, other sources, named functions."""

import copy
import re
from pathlib import Path
from typing import Any

from runner.config.limits import check_size
from runner.errors import ConfigError, Fault
from runner.io.filetype import undecodable
from runner.schema import upstream
from runner.schema.text import files_beside, nodes


def write_out_rows(dataset: object) -> None:
    """Write the texts of prompts and the keys of sources into a dataset's node, and into those of its parts.

    A source stands in ``split.eval``, or under a name there, and has the dataset's keys but for its own; ``split`` is
    its slice. Raises ConfigError for a prompt that cannot be read.
    """
    for path, node in nodes(dataset, "dataset"):
        if re.fullmatch(r"\S+\.(txt|md)", str(node.get("system"))):
            node["system"] = _read_prompt(Path(node["system"]).expanduser(), f"{path}.system")
        evals = node["split"].get("eval") if isinstance(node.get("split"), dict) else None
        if isinstance(evals, dict) and "_target_" not in evals and "parts" not in node:
            sources = {name: _written_out(each, node) for name, each in evals.items()}
            node["split"]["eval"] = _written_out(evals, node) if "path" in evals else sources


def write_out_functions(trainer: Any) -> None:
    """Make a node of each name at the keys of a trainer that take the user's functions, also in lists and mappings."""
    for key in upstream.FUNCTIONS if isinstance(trainer, dict) else ():
        trainer |= {key: _to_nodes(trainer[key])} if key in trainer else {}


def _to_nodes(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_to_nodes, value))
    if isinstance(value, dict) and "_target_" not in value:
        return {name: _to_nodes(each) for name, each in value.items()}
    return {"_target_": value} if isinstance(value, str) else value


def _written_out(own: Any, node: dict[str, Any]) -> Any:
    if not isinstance(own, dict) or "_target_" in own:
        return own
    left = ("split", *(("config", "revision") if "path" in own else ()))
    common = copy.deepcopy({key: value for key, value in node.items() if key not in left})
    limit, slices = {**(node.get("limit") or {}), "train": None}, {"train": None, "eval": own.get("split", "train")}
    return common | {"limit": limit} | own | {"_partial_": True, "split": slices}


def _read_prompt(file: Path, where: str) -> str:
    try:
        check_size(file)
        text, why = file.read_text("utf-8-sig").strip(), "no text in it"
    except UnicodeDecodeError as error:
        finding = undecodable(error.object, str(file))
        raise ConfigError(Fault(where, f"{file}: {finding.found}", "a text in UTF-8", finding.fix)) from None
    except OSError as error:
        text, why = "", error.strerror or str(error)
    if text:
        return text
    near = next((name for name in files_beside(file, (".txt", ".md")) if not file.exists()), "<file>")
    raise ConfigError(Fault(where, f"{file}: {why}", "a text, or a file with one", f"{where}={near}"))
