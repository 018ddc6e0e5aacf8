"""Words that name a model in the place of a run, or beside it, and models that write nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from runner.command import CommandLine
from runner.command._inference import Meant, ModelRequest
from runner.config.override import dotted_key, is_local
from runner.errors import ConfigError, Fault, FolderError
from runner.run.find import is_run
from runner.run.weights import START, Weights
from runner.schema.text import to_override

AnyRequest = TypeVar("AnyRequest", bound=ModelRequest[Any])


def check_writes(request: ModelRequest[Meant]) -> None:
    """Raise ConfigError for a model that writes nothing."""
    if request.head == "lm":
        return
    raise ConfigError(
        Fault(
            where="RUN",
            found=f"{request.name} is a reward model: it scores answers, and writes none",
            expected="a language model",
            fix=f"python -m runner predict {request.name} "
            'prompt="<question>" completion="<answer>"',
        )
    )


def with_model(line: CommandLine) -> CommandLine:
    """The line with a model in the place of a run where its word is no run.

    That is the folder of an exported model, or a name on the hub.
    """
    typed = {dotted_key(override): override for override in line.overrides}
    if len(line.runs) != 1 or "model" in typed:
        return line
    word = line.runs[0]
    root = Path(typed.get("output_root", "=outputs").partition("=")[2])
    if is_run(Path(word)) or is_run(root / word):
        return line
    folder = Path(word).expanduser()
    is_model = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    owner, _, name = word.partition("/")
    # What begins as a folder that is there is a run, which may be misspelt.
    is_of_hub = bool(owner and name) and "/" not in name and not is_local(word)
    is_of_hub = is_of_hub and not Path(owner).exists() and not (root / owner).exists()
    if not is_model and not is_of_hub:
        return line
    words = ["model=hub", to_override("model.path", word), *line.overrides]
    return replace(line, runs=[], overrides=words)


def read_against(
    line: CommandLine,
    request: AnyRequest,
    against: str,
    read: Callable[[CommandLine], AnyRequest],
) -> AnyRequest:
    """The request to another model, read from a line with its word: a run, or start."""
    if against == START:
        return replace(request, weights=Weights(START))
    words = [word for word in line.overrides if word.startswith("output_root=")]
    try:
        return read(replace(line, runs=[against], overrides=words))
    except FolderError as error:
        faults = []
        for fault in error.faults:
            fix = re.sub(rf"^python -m runner {line.verb} (?=\S)", "against=", fault.fix)
            faults.append(replace(fault, fix=fix))
        error.faults = faults
        raise
