"""What transformers, peft and the hub say when a model cannot be loaded, told in four beats.

Only failures whose cause is known are retold; anything else goes on as it was raised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from huggingface_hub import errors as hub
from safetensors import SafetensorError

from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError

LOCATION = "a folder of this machine, runner://..., or org/name on the hub"


class Known(NamedTuple):
    """One failure: how to recognise it (class and words), whose fault it is, and the other beats.

    ``key`` is the YAML key below the part; ``{path}``, ``{revision}`` and ``{said}`` are filled in.
    """

    kind: type[BaseException] | tuple[type[BaseException], ...]
    words: str
    blame: type[RunnerError]
    key: str
    found: str
    expected: str
    cure: str


# From the narrow to the wide: the first that fits is told.
KNOWN = (
    Known(
        hub.GatedRepoError,
        "",
        EnvironmentFault,
        "path",
        "{path} is gated and this account may not read it",
        "a licence accepted at https://huggingface.co/{path}, and a login",
        "hf auth login",
    ),
    Known(
        hub.RevisionNotFoundError,
        "",
        ConfigError,
        "revision",
        "{path} has no revision {revision}",
        "a branch, a tag or a commit of it",
        "model.revision=main",
    ),
    Known(
        hub.RepositoryNotFoundError,
        "",
        ConfigError,
        "path",
        "the hub has no {path}, or it is private",
        LOCATION,
        "model.path=<folder or org/name>, or for a private one: hf auth login",
    ),
    Known(
        hub.HFValidationError,
        "",
        ConfigError,
        "path",
        "{path} is neither a folder nor a name on the hub",
        LOCATION,
        "model.path=<folder or org/name>",
    ),
    Known(
        (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError, TimeoutError),
        "",
        EnvironmentFault,
        "path",
        "{path} is not in this machine's cache, and the hub cannot be reached",
        "a network, or the model in the cache",
        "hf download {path} (where there is a network)",
    ),
    Known(
        json.JSONDecodeError,
        "",
        ConfigError,
        "path",
        "a file of {path} is not JSON: {said}",
        "whole config and tokenizer files",
        "model.path=<another folder>, or download it again",
    ),
    Known(
        SafetensorError,
        "",
        ConfigError,
        "path",
        "the weights of {path} are cut off or damaged: {said}",
        "whole safetensors files",
        "hf download {path} --force-download",
    ),
    Known(
        OSError,
        "safetensors",
        ConfigError,
        "path",
        "{path} has no weights in safetensors files",
        "safetensors; a .bin file is a pickle, which can run code when it is read",
        "model.safetensors_only=false",
    ),
    Known(
        ImportError,
        "",
        EnvironmentFault,
        "path",
        "{path} needs a library that is missing: {said}",
        "the library, or settings that do without it",
        "pip install <library>, or model.attention=sdpa",
    ),
    Known(
        ValueError,
        "custom code",
        ConfigError,
        "trust_remote_code",
        "{path} brings Python code of its own",
        "leave to run it, from you",
        "model.trust_remote_code=true",
    ),
    Known(
        ValueError,
        "attn_implementation",
        ConfigError,
        "attention",
        "{said}",
        "sdpa, eager, flash_attention_2 or flex_attention",
        "model.attention=sdpa",
    ),
    Known(
        ValueError,
        "Unrecognized configuration class",
        ConfigError,
        "path",
        "the architecture of {path} has no head for this trainer",
        "a decoder, as language models are",
        "model.path=<another model>",
    ),
    Known(
        ValueError,
        "Unrecognized model",
        ConfigError,
        "path",
        "{path} holds no config.json with a model_type",
        LOCATION,
        "model.path=<folder or org/name>",
    ),
    Known(
        ValueError,
        "does not recognize this architecture",
        ConfigError,
        "path",
        "the architecture of {path} is unknown to the installed transformers",
        "an architecture that it knows",
        "pip install --upgrade transformers",
    ),
    Known(
        ValueError,
        "backend tokenizer",
        ConfigError,
        "tokenizer.path",
        "{path} holds no tokenizer",
        "tokenizer.json, or the files of a slow tokenizer",
        "model.tokenizer.path=<folder or org/name>",
    ),
    Known(
        RuntimeError,
        "ignore_mismatched_sizes",
        ConfigError,
        "path",
        "config.json of {path} does not fit the shapes of its weights",
        "the config that the weights were saved with",
        "model.path=<another folder>",
    ),
    Known(
        OSError,
        "",
        EnvironmentFault,
        "path",
        "{path} cannot be read: {said}",
        "files that this process may read",
        "model.path=<folder or org/name>",
    ),
)


@contextmanager
def retold(path: str, revision: str | None = None, part: str = "model") -> Iterator[None]:
    """Inside, a known failure to load ``path`` is raised as an error with four beats."""
    try:
        yield
    except Exception as error:
        known = next((row for row in KNOWN if (_cause(error, row))), None)
        if known is None or isinstance(error, RunnerError):
            raise
        said = str(_cause(error, known)).strip().split("\n")[0]
        beats = [
            text.format(path=path, revision=revision, said=said) for text in (known.found, known.expected, known.cure)
        ]
        raise known.blame(Fault(f"{part}.{known.key}", *beats)) from error


def _cause(error: BaseException | None, known: Known) -> BaseException | None:
    """The first of an error and its causes that this row describes."""
    while error is not None:
        if isinstance(error, known.kind) and known.words in str(error):
            return error
        error = error.__cause__ or error.__context__
    return None
