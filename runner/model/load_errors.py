"""Failures of libraries to load a model or a tokenizer, translated into four beats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError

from runner.errors import (
    ConfigError,
    EnvironmentFault,
    Fault,
    RunnerError,
    causes_of,
    describe,
)
from runner.io.hub import is_of_network

if TYPE_CHECKING:
    from runner.model.model_files import ModelFolder


@dataclass(frozen=True)
class KnownFailure:
    """A failure to load, by its class and words, and the beats of its fault.

    The beats may hold {path}, {revision}, {kind} and {message}, which are those of the failure.
    """

    kinds: tuple[type[Exception], ...]
    found: str
    expected: str
    fix: str
    words: str = ""  # in the text of the failure
    key: str = "path"  # of the part of the configuration that is at fault
    is_environment: bool = False  # the machine is to blame, and not the configuration
    may_be_overrides: bool = False  # keys of model.config may have brought it about

    def is_of(self, error: BaseException) -> bool:
        """True for an error of these classes with these words."""
        return isinstance(error, self.kinds) and self.words in str(error)

    def to_fault(self, error: BaseException, path: str, revision: str | None, part: str) -> Fault:
        """The fault of an error while ``path`` was loaded for a ``part`` of the configuration."""
        values = {
            "path": path,
            "revision": revision,
            "kind": type(error).__name__,
            "message": str(error).strip().split("\n")[0],
        }
        return Fault(
            where=f"{part}.{self.key}",
            found=self.found.format(**values),
            expected=self.expected.format(**values),
            fix=self.fix.format(**values),
        )


# From the narrow to the wide: the first that fits counts.
KNOWN_FAILURES = (
    KnownFailure(
        kinds=(GatedRepoError,),
        found="{path} is gated and this account may not read it",
        expected="a licence accepted at https://huggingface.co/{path}, and a login",
        fix="hf auth login",
        is_environment=True,
    ),
    KnownFailure(
        kinds=(RevisionNotFoundError,),
        key="revision",
        found="{path} has no revision {revision}",
        expected="a branch, a tag or a commit of it",
        fix="model.revision=main",
    ),
    KnownFailure(
        kinds=(RepositoryNotFoundError,),
        found="the hub has no {path}, or it is private",
        expected="a folder of this machine, runner://..., or org/name on the hub",
        fix="model.path=<folder or org/name>, or for a private one: hf auth login",
    ),
    KnownFailure(
        kinds=(LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError, TimeoutError),
        found="{path} is not in this machine's cache, and the hub cannot be reached",
        expected="a network, or the model in the cache",
        fix="hf download {path} (where there is a network)",
        is_environment=True,
    ),
    KnownFailure(
        kinds=(json.JSONDecodeError, SafetensorError),
        found="a file of {path} is truncated or damaged: {message}",
        expected="whole files",
        fix="copy it again, or where it is of the hub: hf download {path} --force-download",
    ),
    KnownFailure(
        kinds=(OSError,),
        words="safetensors",
        found="{path} has no weights in safetensors files",
        expected="safetensors; a .bin file is a pickle, which can run code when it is read",
        fix="model.safetensors_only=false",
    ),
    KnownFailure(
        kinds=(ImportError,),
        words="Torchvision",
        found="{path} has a video processor in addition to that of images, which needs torchvision",
        expected="torchvision, or a model without it, such as LLaVA, Idefics3, Gemma 3, Pixtral",
        fix="pip install torchvision",
        is_environment=True,
    ),
    KnownFailure(
        kinds=(ImportError,),
        found="{path} needs a library that is missing: {message}",
        expected="the library, or settings that do without it",
        fix="pip install <library>, or model.attention=sdpa",
        is_environment=True,
    ),
    KnownFailure(
        kinds=(ValueError,),
        words="custom code",
        key="trust_remote_code",
        found="{path} brings Python code of its own",
        expected="your permission to run it",
        fix="model.trust_remote_code=true",
    ),
    KnownFailure(
        kinds=(ValueError,),
        words="attn_implementation",
        key="attention",
        found="{message}",
        expected="sdpa, eager, flash_attention_2 or flex_attention",
        fix="model.attention=sdpa",
    ),
    KnownFailure(
        kinds=(ValueError,),
        words="backend tokenizer",
        key="tokenizer.path",
        found="{path} holds no tokenizer",
        expected="tokenizer.json, or the files of a slow tokenizer",
        fix="model.tokenizer.path=<folder or org/name>",
    ),
    KnownFailure(
        kinds=(RuntimeError,),
        words="size mismatch for base_model",
        found="adapter_config.json of {path} does not fit the shapes of its weights, or its base "
        "does not",
        expected="the config that the weights were saved with, and the base that it names",
        fix="model.path=<another folder>",
    ),
    KnownFailure(
        kinds=(RuntimeError,),
        words="ignore_mismatched_sizes",
        found="config.json of {path} does not fit the shapes of its weights",
        expected="the config that the weights were saved with",
        fix="model.path=<another folder>",
        may_be_overrides=True,
    ),
    KnownFailure(
        kinds=(OSError,),
        found="{path} cannot be read: {message}",
        expected="files that this process may read",
        fix="model.path=<folder or org/name>",
        is_environment=True,
    ),
    # What the libraries raise where a file holds something that they do not know. A lack of memory
    # is a RuntimeError, and goes on as it was raised.
    KnownFailure(
        kinds=(
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ),
        found="{path} cannot be loaded: {kind}: {message}",
        expected="files as the libraries that are installed wrote them",
        fix="model.path=<another folder>, or mend its config.json, generation_config.json or "
        "tokenizer_config.json",
        may_be_overrides=True,
    ),
)


@contextmanager
def translate_model_errors(
    path: str, revision: str | None = None, part: str = "model", changed: ModelFolder | None = None
) -> Iterator[None]:
    """Inside, a known failure to load ``path`` is raised as an error with four beats.

    It may be due to the overrides of the config of ``changed``.
    """
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        translated = _translate(error, path, revision, part, changed)
        if translated is None:
            raise
        raise translated from error


def _translate(
    error: Exception, path: str, revision: str | None, part: str, changed: ModelFolder | None
) -> RunnerError | None:
    """The error in four beats, None for one that is not known."""
    for failure in KNOWN_FAILURES:
        for cause in filter(failure.is_of, causes_of(error)):
            fault = failure.to_fault(cause, path, revision, part)
            if failure.may_be_overrides and changed and changed.overrides:
                where, fix = changed.blame_overrides()
                fix = f"{fix}; if that does not help, {fault.fix}"
                fault = replace(fault, where=where, fix=fix)
            if failure.is_environment:
                return EnvironmentFault(fault)
            return ConfigError(fault)
    if not is_of_network(error):
        return None
    return EnvironmentFault(
        Fault(
            where=f"{part}.path",
            found=f"{path} cannot be fetched: {describe(error)}",
            expected="a hub that answers",
            fix="=<a copy here>",
        )
    )


def check_finite(model: torch.nn.Module, folder: ModelFolder) -> None:
    """Raise ConfigError for weights that are not finite.

    They would spoil all that is trained from them.
    """
    unsound = []
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or not weight.numel() or weight.is_meta:
                continue
            smallest, largest = torch.aminmax(weight)
            if not smallest.isfinite() or not largest.isfinite():
                unsound.append(name)
    if unsound:
        found = f"{len(unsound)} weights, such as {unsound[0]}, hold numbers that are not finite"
        raise ConfigError(
            Fault(
                where=folder.where,
                found=f"{folder.source}: {found}",
                expected="finite weights",
                fix="=<folder or org/name>",
            )
        )
