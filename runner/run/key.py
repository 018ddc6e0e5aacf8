"""The name of a run: its key, a hash of its configuration, and a label; together its folder.

To change what enters the key, change ``VOLATILE``, here and nowhere else. A new key of the top
level is declared in ``config.experiment``; unless it is in ``VOLATILE``, a default of it in
``conf/config.yaml`` enters the key of every run, so that all train again, while one that is read
only where it is there, as ``tolerate``, leaves theirs as they are.

Only what lasts is compared by ``run.continuation``, ``run.inputs`` and ``estimate.case``;
``run.open_run`` freezes a config of the same key again where the rest differs. Where a key means
something else than before, ``run.FORMAT`` grows.
"""

import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runner.config.adapter_rate import FACTOR
from runner.config.machines import processes_of
from runner.config.run_name import PLACES, folder_name, former_names, shortened_to, spelt
from runner.config.sampler import RUNNER, SAMPLER
from runner.schema.literal import CONSTANT
from runner.schema.modality import MODALITIES
from runner.schema.text import Config, short_key

# These keys cannot change the result of a run.
VOLATILE = frozenset(
    {
        # They name, place or launch it, or say to whom it reports and what it may load.
        "name",
        "output_root",
        "launcher",
        "tracker",
        "allow",
        # The objective only ranks runs. The two settings act through the trainer's own arguments.
        "objective",
        "learning_rate",
        "kl_coef",
        # A run that goes on from another ends where it would by itself.
        "resume",
        # A run that goes on without memory sees the same rows in each step.
        "on_memory",
        "attempts",
        # What a sick run tells to type must go on with its steps.
        "on_sick",
        "tolerate",
    }
)
# Top keys that leave the label as it is; these three of the volatile ones are worth reading there.
UNNAMED = VOLATILE - {"learning_rate", "kl_coef", "allow"}
MAX_LABEL_BYTES = 100
REFERENCE = re.compile(r"\$\{(?:run|best):(.*)\}")  # to a run, by its name
SETTLED_NANOSECONDS = 2_000_000_000  # more than any clock of a file system is late


def key_of(cfg: Config) -> str:
    """Ten hex digits that name a configuration: equal where the result must be equal.

    >>> key_of({"seed": 1, "name": "a"}) == key_of({"name": "b", "seed": 1.0})
    True
    """
    part = lasting(cfg)
    # More processes make a larger batch, and that is another training; unless they share one.
    processes = processes_of(cfg)
    if processes > 1 and not made_of_batch(cfg):
        part["processes"] = processes
    text = canonical_text(part)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def lasting(cfg: Config) -> dict[str, Any]:
    """The part of a configuration that can change its result."""
    part = {key: value for key, value in cfg.items() if key not in VOLATILE}
    drop_factor(part)
    if isinstance(part.get("trainer"), Mapping):
        trainer = dict(part["trainer"])
        for modality in MODALITIES:
            trainer.pop(modality.column, None)  # to take images or not only refuses rows
        # Runs had no such key while transformers or vLLM, which has one of its own, sampled.
        if trainer.get(SAMPLER) != RUNNER:
            trainer.pop(SAMPLER, None)
        made = made_of_batch(cfg)
        if made:
            args = trainer["args"].items()
            trainer["args"] = {name: value for name, value in args if name not in made}
        part["trainer"] = trainer
    return part


def drop_factor(part: dict[str, Any]) -> None:
    """Take the factor of the learning rate out of an adapter; it acts through the rate alone."""
    adapter = part.get("peft")
    if isinstance(adapter, Mapping):
        part["peft"] = {key: node for key, node in adapter.items() if key != FACTOR}


def made_of_batch(cfg: Config) -> list[str]:
    """The trainer's arguments that follow from ``batch``.

    There are some where the steps of the trainer are the same on any number of processes.
    """
    trainer = cfg.get("trainer")
    if not isinstance(trainer, Mapping):
        return []
    names = trainer.get("shares_batch")
    return names if isinstance(names, list) else []


def canonical_text(cfg: object) -> str:
    """A configuration as text that is equal for equal ones, in whatever order their keys are."""
    return json.dumps(_plain(cfg), sort_keys=True, default=str)


def _plain(value: object) -> object:
    """The same value with texts as keys, and a whole number for a float that is one."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def label_of(overrides: Sequence[str], name: str = "") -> str:
    """The overrides as a short folder name, without what the name of the run or its key implies.

    It has only letters, in any script, and characters that neither a shell nor Hydra's grammar
    takes as its own, because people type it. Those of a sweep have what is swept in front, so that
    it is not cut off.

    >>> label_of(["trainer=dpo", "kl_coef=0.05", "model.path=outputs/x/run/model"], "dpo-x-toy")
    'kl_coef-0.05+model-run'
    """
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.partition(".")[0]
        # The axes of a sweep are words of their own, and so is the path of a part.
        is_elsewhere = key == "sweep" or value in PLACES.get(key, ())
        if group in UNNAMED or is_elsewhere or key.startswith(("hydra", "~")):
            continue
        # Of a class or a function its name is enough, after that of its node.
        if key.endswith("._target_"):
            value = value.rpartition(".")[2]
        # Of a model in a run the folder of the run is enough, and of a reference the name.
        value = REFERENCE.sub(r"\1", value).strip("[]/'\"").removesuffix("/model")
        if not _is_said(name, value):
            values[key.removesuffix("._target_").removesuffix(".path")] = value

    label = ""
    for key, value in values.items():
        word = f"{short_key(key, values)}-{value.rpartition('/')[2]}"
        word = spelt(word).strip("-.")
        if label and len(f"{label}{word}".encode()) >= MAX_LABEL_BYTES:
            break
        label = f"{label}+{shortened_to(word, MAX_LABEL_BYTES)}"
    return label.strip("-.+") or "default"


def _is_said(name: str, value: str) -> bool:
    """True where the name of a run tells a value that is no number, as sft-tiny-rows does rows."""
    text = folder_name(value).replace("_", "-")
    if not text or CONSTANT.fullmatch(value):
        return False
    spelt = name.lower().replace("_", "-")
    return f"-{text}-" in f"-{spelt}-"


def folder_of(
    cfg: Config, overrides: Sequence[str], earlier_names: Sequence[str] | None = None
) -> Path:
    """The folder of a configuration: the one that holds its key, or else the one that will.

    ``earlier_names`` are its former names, where these are known.
    """
    key = key_of(cfg)
    root = Path(str(cfg["output_root"]))
    name = str(cfg["name"])
    folder = _find_key(root / name, key)
    if folder:
        return folder
    if earlier_names is None:
        earlier_names = former_names(cfg)
    for former_name in earlier_names:
        folder = _find_key(root / former_name, key)
        if folder:
            return folder
    return root / name / f"{label_of(overrides, name)}-{key}"


class ComposedRun(Protocol):
    """A configuration and the words that made it, as ``config.resolution`` has them."""

    @property
    def cfg(self) -> Config: ...

    @property
    def overrides(self) -> Sequence[str]: ...


def folders_of(jobs: Iterable[Iterable[ComposedRun]]) -> dict[int, Path]:
    """The folder of each run by the ``id`` of the run; to find thousands twice takes seconds."""
    folders: dict[int, Path] = {}
    earlier_names: dict[tuple[object, ...], list[str]] = {}
    for stages in jobs:
        for composed in stages:
            cfg = composed.cfg
            named_by = (cfg["name"], id(cfg.get("model")), id(cfg.get("dataset")))
            if named_by not in earlier_names:
                earlier_names[named_by] = former_names(cfg)
            names = earlier_names[named_by]
            folders[id(composed)] = folder_of(cfg, composed.overrides, names)
    return folders


def _find_key(group: Path, key: str) -> Path | None:
    """The folder of a group that holds a key."""
    changed = group.stat().st_mtime_ns if group.is_dir() else 0
    # A folder that changed a moment ago may change again without another time: it is read anew.
    is_settled = time.time_ns() - changed > SETTLED_NANOSECONDS
    list_keys = _list_keys if is_settled else _list_keys.__wrapped__
    name = list_keys(group.absolute(), changed).get(key)
    return group / name if name else None


@functools.lru_cache(maxsize=16)
def _list_keys(group: Path, changed: int) -> dict[str, str]:
    """The names of the folders of a group by the keys at their ends.

    Of two with one key it is the first by its name.
    """
    if not changed:  # there is no such folder
        return {}
    names: dict[str, str] = {}
    for name in sorted(os.listdir(group)):
        if "-" in name:
            names.setdefault(name.rpartition("-")[2], name)
    return names
