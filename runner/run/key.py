"""The name of a run: its key, which is a hash of its configuration, and the label before it; together its folder.

To change what enters the key, change ``VOLATILE``, here and nowhere else. A key of the top level that is new is
declared in ``validate.context.TOP``, the range of a number in ``validate.values.SETTINGS``; unless it is in
``VOLATILE``, a default of it in ``conf/config.yaml`` enters the key of every run, so that all train again, while one
that is read by ``cfg.get`` where it is not there, as ``tolerate``, leaves theirs as they are.

Only what lasts is compared by ``run.continuation``, ``run.inputs`` and ``estimate.smoke``; ``run.open_run`` freezes a
config of the same key again where the rest differs. Where a key means something else than before, ``run.FORMAT`` grows.
"""

import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config.machines import processes_of

# What names, places or launches a run but cannot change its result stays out of its key; so do the two settings that
# act only through what the trainer calls them, the run to resume from, which ends where this one would by itself, how
# a run without memory goes on, which sees the same rows in each step, what is done about a sick one or one that looks
# so: what it tells to type must go on with its steps.
VOLATILE = frozenset(
    {"name", "output_root", "launcher", "tracker", "allow", "objective", "learning_rate", "kl_coef", "resume"}
    | {"on_memory", "attempts", "on_sick", "tolerate"}
)
SETTLED_NANOSECONDS = 2_000_000_000  # more than any clock of a file system is late
NAMED_BY = ("trainer", "model", "dataset", "experiment", "sweep")  # a run; ``model.path=`` is in its label


def key_of(cfg: Mapping[str, Any]) -> str:
    """Ten hex digits that name a configuration: equal where the result must be equal, if there is one.

    >>> key_of({"seed": 1, "name": "a"}) == key_of({"name": "b", "seed": 1.0})
    True
    """
    # More processes make a larger batch, and that is another training; unless they share one.
    processes = {"processes": processes_of(cfg)} if processes_of(cfg) > 1 and not made_of_batch(cfg) else {}
    return hashlib.sha256(canonical_text(lasting(cfg) | processes).encode()).hexdigest()[:10]


def lasting(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that can change its result."""
    kept = {key: value for key, value in cfg.items() if key not in VOLATILE}
    if isinstance(trainer := kept.get("trainer"), Mapping):  # to take images or not only refuses rows
        kept["trainer"] = {key: value for key, value in trainer.items() if key != "images"}
    if made := made_of_batch(cfg):
        args = {name: value for name, value in cfg["trainer"]["args"].items() if name not in made}
        kept["trainer"] |= {"args": args}
    return kept


def made_of_batch(cfg: Mapping[str, Any]) -> list[str]:
    """The trainer's arguments that follow from ``batch``, where its steps are the same on any number of processes."""
    found = trainer.get("shares_batch") if isinstance(trainer := cfg.get("trainer"), Mapping) else None
    return found if isinstance(found, list) else []


def canonical_text(cfg: object) -> str:
    """A configuration as text that is equal for equal ones, in whatever order their keys are."""

    def plain(value: object) -> object:
        if isinstance(value, Mapping):
            return {str(key): plain(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [plain(entry) for entry in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return json.dumps(plain(cfg), sort_keys=True, default=str)


def label_of(overrides: Sequence[str]) -> str:
    """The overrides as a short folder name, without what the name of the run or its key says already.

    Only characters that neither a shell nor Hydra's grammar reads as their own, because people type it.
    >>> label_of(["trainer=dpo", "kl_coef=0.05", "model.path=outputs/x/run/model", "allow=[mine]"])
    'kl_coef-0.05+path-run+allow-mine'
    """
    words = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        is_silent = key.partition(".")[0] in VOLATILE - {"learning_rate", "kl_coef", "allow"}
        if not (is_silent or key in NAMED_BY or key.startswith(("hydra", "~"))):
            if key.endswith("._target_"):  # a class or a function: its name, after that of its node
                key, value = key.removesuffix("._target_"), value.rpartition(".")[2]
            text = f"{key.rpartition('.')[2]}-{value.strip('[]/').removesuffix('/model').rpartition('/')[2]}"
            words.append(re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-."))
    return "+".join(words)[:80].strip("-.+") or "default"


def folder_of(cfg: Mapping[str, Any], overrides: Sequence[str]) -> Path:
    """The folder in which a configuration is trained: the one that holds its key, or else the one that will."""
    key, group = key_of(cfg), Path(str(cfg["output_root"])) / str(cfg["name"])
    changed = group.stat().st_mtime_ns if group.is_dir() else 0
    # A folder that changed a moment ago may change again without another time: it is read anew.
    is_settled = time.time_ns() - changed > SETTLED_NANOSECONDS
    name = (_list_keys if is_settled else _list_keys.__wrapped__)(group.absolute(), changed).get(key)
    return group / (name or f"{label_of(overrides)}-{key}")


@functools.lru_cache(maxsize=16)
def _list_keys(group: Path, changed: int) -> dict[str, str]:
    """The names of the folders of a group by the keys at their ends; of two with one key the first by its name."""
    names = sorted(os.listdir(group), reverse=True) if changed else []
    return {name.rpartition("-")[2]: name for name in names if "-" in name}
