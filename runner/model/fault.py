"""Known failures of transformers, peft and the hub to load a model, translated into four beats.

Any other failure goes on as it was raised. What shows before loading is found in ``check``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from huggingface_hub import errors as hub
from safetensors import SafetensorError

from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError
from runner.model.folder import LOCATION


class Known(NamedTuple):
    """A failure: its class, the beats behind ``where``, whose fault it is, words of its text, the key below the part.

    ``{path}``, ``{revision}`` and ``{message}`` are filled in.
    """

    kind: type[BaseException] | tuple[type[BaseException], ...]
    found: str
    expected: str
    fix: str
    blame: type[RunnerError] = ConfigError
    words: str = ""
    key: str = "path"


# From the narrow to the wide: the first that fits is taken.
KNOWN = (
    Known(
        hub.GatedRepoError,
        "{path} is gated and this account may not read it",
        "a licence accepted at https://huggingface.co/{path}, and a login",
        "hf auth login",
        EnvironmentFault,
    ),
    Known(
        hub.RevisionNotFoundError,
        "{path} has no revision {revision}",
        "a branch, a tag or a commit of it",
        "model.revision=main",
        key="revision",
    ),
    Known(
        hub.RepositoryNotFoundError,
        "the hub has no {path}, or it is private",
        LOCATION,
        "model.path=<folder or org/name>, or for a private one: hf auth login",
    ),
    Known(
        (hub.LocalEntryNotFoundError, hub.OfflineModeIsEnabled, ConnectionError, TimeoutError),
        "{path} is not in this machine's cache, and the hub cannot be reached",
        "a network, or the model in the cache",
        "hf download {path} (where there is a network)",
        EnvironmentFault,
    ),
    Known(
        (json.JSONDecodeError, SafetensorError),
        "a file of {path} is cut off or damaged: {message}",
        "whole files",
        "copy it again, or where it is of the hub: hf download {path} --force-download",
    ),
    Known(
        OSError,
        "{path} has no weights in safetensors files",
        "safetensors; a .bin file is a pickle, which can run code when it is read",
        "model.safetensors_only=false",
        words="safetensors",
    ),
    Known(
        ImportError,
        "{path} needs a library that is missing: {message}",
        "the library, or settings that do without it",
        "pip install <library>, or model.attention=sdpa",
        EnvironmentFault,
    ),
    Known(
        ValueError,
        "{path} brings Python code of its own",
        "leave to run it, from you",
        "model.trust_remote_code=true",
        words="custom code",
        key="trust_remote_code",
    ),
    Known(
        ValueError,
        "{message}",
        "sdpa, eager, flash_attention_2 or flex_attention",
        "model.attention=sdpa",
        words="attn_implementation",
        key="attention",
    ),
    Known(
        ValueError,
        "{path} holds no tokenizer",
        "tokenizer.json, or the files of a slow tokenizer",
        "model.tokenizer.path=<folder or org/name>",
        words="backend tokenizer",
        key="tokenizer.path",
    ),
    Known(
        RuntimeError,
        "config.json of {path} does not fit the shapes of its weights",
        "the config that the weights were saved with",
        "model.path=<another folder>",
        words="ignore_mismatched_sizes",
    ),
    Known(
        OSError,
        "{path} cannot be read: {message}",
        "files that this process may read",
        "model.path=<folder or org/name>",
        EnvironmentFault,
    ),
)


@contextmanager
def translate_model_errors(path: str, revision: str | None = None, part: str = "model") -> Iterator[None]:
    """Inside, a known failure to load ``path`` is raised as an error with four beats."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        chain: list[BaseException] = [error]  # with its causes
        while cause := chain[-1].__cause__ or chain[-1].__context__:
            chain.append(cause)
        for known in KNOWN:
            for cause in chain:
                if isinstance(cause, known.kind) and known.words in str(cause):
                    values = {"path": path, "revision": revision, "message": str(cause).strip().split("\n")[0]}
                    beats = [text.format(**values) for text in (known.found, known.expected, known.fix)]
                    raise known.blame(Fault(f"{part}.{known.key}", *beats)) from error
        raise
