"""Libraries, modules and variables that a configuration needs, and that may be missing.

Libraries are only looked for, never imported.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from runner.config.experiment import Tracking
from runner.config.sampler import SAMPLER_KEY, VLLM
from runner.errors import Fault
from runner.io.distribution import to_install
from runner.io.files import display_path
from runner.schema.code import find_absent_imports
from runner.schema.source import LIBRARY_PACKAGES, Definition, find_definition
from runner.schema.text import Config, last_key, select, walk_shared
from runner.schema.upstream import libraries as upstream
from runner.schema.upstream.libraries import NeededLibrary
from runner.schema.upstream.trackers import TRACKERS

BLEU = r"runner\.metric\.reference\.(?:bleu|chrf)"
SERVED_TRAINER = r"trl\.experimental\.(async_\w+|server_distillation)\.\w+Trainer"
ENVIRONMENT = r"runner\.generate\.environment\."
# The libraries of the optional parts, and of objects of TRL; by the last name of a key.
WANTED: dict[str, list[NeededLibrary]] = {
    "_target_": [
        NeededLibrary(r".*BitsAndBytesConfig|bitsandbytes\..*", "bitsandbytes", "bitsandbytes"),
        NeededLibrary(r"galore_torch\..*", "galore_torch", "galore-torch"),
        NeededLibrary(r"apollo_torch\..*", "apollo_torch", "apollo-torch"),
        NeededLibrary(r"adam_mini\..*", "adam_mini", "adam-mini"),
        NeededLibrary(r"runner\.reward\.math\.boxed_answer", "math_verify", "math-verify"),
        NeededLibrary(BLEU, "sacrebleu", "sacrebleu"),
        NeededLibrary(r"runner\.metric\.reference\.rouge", "rouge_score", "rouge-score"),
        NeededLibrary(r"runner\.metric\.harness\.lm_eval", "lm_eval", "lm-eval"),
        NeededLibrary(f"{ENVIRONMENT}reasoning_gym\\..*", "reasoning_gym", "reasoning-gym"),
        NeededLibrary(f"{ENVIRONMENT}verifiers\\..*", "verifiers", "verifiers"),
        NeededLibrary(f"{ENVIRONMENT}openenv\\..*", "openenv", "openenv-core"),
        NeededLibrary(SERVED_TRAINER, "vllm", "vllm"),
        NeededLibrary(SERVED_TRAINER, "requests", "requests"),
        NeededLibrary(r"trl\.experimental\.async_\w+\.\w+Trainer", "kernels", "kernels"),
        NeededLibrary(r"trl\.WeaveCallback", "weave", "weave"),
        NeededLibrary(r"trl\.experimental\.harbor\..*", "harbor", "trl[harbor]"),
        NeededLibrary(r"trl\.experimental\.openreward\..*", "openreward", "trl[openreward]"),
        NeededLibrary(r"trl\.experimental\.merge_model_callback\..*", "mergekit", "mergekit"),
    ],
    "rollout_engine": [NeededLibrary("vllm", "vllm", "vllm")],
    "engine": [NeededLibrary("vllm", "vllm", "vllm")],
    "sampler": [NeededLibrary("vllm", "vllm", "vllm")],
    "attention": [
        NeededLibrary("flash_attention_2", "flash_attn", "flash-attn"),
        NeededLibrary(r"(paged\|)?[\w.-]+/.+", "kernels", "kernels"),  # of the hub
    ],
    "report_to": [
        NeededLibrary(name, tracker.library, tracker.package)
        for name, tracker in TRACKERS.items()
        if tracker.library
    ]
    + [NeededLibrary("dagshub", "mlflow", "mlflow")],
    **upstream.WANTED,
}
# Libraries that serve in place of another one.
SUBSTITUTES: dict[str, tuple[str, ...]] = {"flash_attn": ("kernels", "torch_npu")}
SUBSTITUTES |= {
    tracker.library: (tracker.substitute,) for tracker in TRACKERS.values() if tracker.substitute
}
# Values of these keys that need no library.
OTHER_VALUES = {
    "attention": "sdpa",
    "report_to": "none",
    "rollout_engine": "auto",
    "engine": "null",
    "sampler": "auto",
    **upstream.OTHER_VALUES,
}


@dataclass(frozen=True)
class Wanted:
    """A value of a configuration that needs a library."""

    where: str
    key: str
    value: str
    needed: NeededLibrary


def find_wanted(configs: Iterable[Config]) -> Iterator[Wanted]:
    """Each value that needs a library beside those that every run needs."""
    for _, path, value in walk_shared(configs):
        if last_key(path) in WANTED:
            yield from _wanted_by(path, value)


def _wanted_by(path: str, value: object) -> Iterator[Wanted]:
    key = last_key(path)
    for needed in WANTED.get(key, ()):
        if re.fullmatch(needed.values, str(value)):
            yield Wanted(_part_of(path), key, str(value), needed)


def find_missing_libraries(*configs: Config) -> Iterator[Fault]:
    """A fault for each library or module that a value, or the user's own code, asks for in vain."""
    for cfg, path, value in walk_shared(configs):
        # Then it is set by the sampler, which is a value of its own.
        if path == "trainer.args.use_vllm" and select(cfg, SAMPLER_KEY) == VLLM:
            continue
        key = last_key(path)
        if key not in WANTED:
            continue
        for wanted in _wanted_by(path, value):
            if not _is_installed(wanted.needed.library):
                yield _missing_library(wanted)
        if key == "_target_":
            yield from _find_absent_modules(_part_of(path), str(value))


def _missing_library(wanted: Wanted) -> Fault:
    library = wanted.needed.library
    fix = to_install(wanted.needed.package)
    if wanted.key in OTHER_VALUES:
        fix += f", or {wanted.where}={OTHER_VALUES[wanted.key]}"
    return Fault(
        where=wanted.where,
        found=f"{wanted.value} needs {library}, which is not installed",
        expected=f"the package {library}",
        fix=fix,
    )


def _part_of(path: str) -> str:
    """The key that a fault of a path names: not that of a target, nor the number in a list."""
    return re.sub(r"\.(?:_target_|\d+)$", "", path)


def _is_installed(library: str) -> bool:
    """True where a library, or one that serves in its place, could be imported."""
    names = (library, *SUBSTITUTES.get(library, ()))
    return any(find_spec(name) for name in names)


def _find_absent_modules(where: str, target: str) -> Iterator[Fault]:
    """A fault for each absent module that the user's own code of a target imports."""
    if target.partition(".")[0] in LIBRARY_PACKAGES:
        return
    definition = find_definition(target)
    if not isinstance(definition, Definition):
        return
    for place, name in find_absent_imports(definition.module.name):
        shown = display_path(Path(place))
        yield Fault(
            where=where,
            found=f"{shown} imports {name}, which does not exist",
            expected=f"the module {name}",
            fix=f"pip install <the package of {name}>, or mend {shown}",
        )


def find_unset_variables(cfg: Config) -> Iterator[Fault]:
    """A fault for each tracker that lacks a variable, or the secret with which it logs in."""
    tracking = Tracking.read(cfg["tracker"])
    variables = {**os.environ, **tracking.variables}
    for tracker in tracking.libraries:
        needed = tracker.needed_variable
        if needed and needed not in variables:
            yield Fault(
                where="tracker.report_to",
                found=f"{tracker.name}, but {needed} is not set",
                expected=f"{needed} set, as {tracker.name} requires",
                fix=f"export {needed}=..., or tracker.report_to=none",
            )
        mode = variables.get(tracker.mode_variable)
        # The secret is in its variable, or in a file that a login makes.
        files = [Path(os.path.expandvars(file)).expanduser() for file in tracker.login_files]
        can_log_in = os.environ.get(tracker.key_variable) or any(map(Path.is_file, files))
        if tracker.key_variable and tracker.sends_in(mode) and not can_log_in:
            off = "tracker.mode=offline" if "offline" in tracker.modes else "tracker=none"
            login = f", or by `{tracker.login_command}`" if tracker.login_command else ""
            yield Fault(
                where="tracker",
                found=f"{tracker.name} sends the figures, but {tracker.key_variable} is not set",
                expected=f"a key to log in with, in that variable{login}",
                fix=f"export {tracker.key_variable}=..., or {off}",
            )
