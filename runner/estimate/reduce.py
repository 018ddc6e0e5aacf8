"""A run's configuration -> the same run in small: models as random clones, a few short rows, two steps.

Batch, completions, adapter, optimizer, callbacks, rewards and metrics stay; what is changed and could matter is noted.
"""

import copy
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runner.config.machines import processes_of
from runner.dataset import LOADER as ROWS
from runner.dataset.head import write_head
from runner.estimate.memory import cycle_of, rows_per_step
from runner.estimate.weights import LOADERS, architecture_of
from runner.io.distribution import to_install
from runner.model.check import NEW
from runner.model.clone import Source, count_weights, shrink, write_clone
from runner.schema import upstream
from runner.schema.text import Config, nodes, select, to_text
from runner.schema.upstream import config_fields, setting
from runner.training.inspection import CHECKS

OTHER_PATHS = ("sft_model_path", upstream.REWARD_MODEL_PATH, upstream.TEACHER_MODEL_NAME_OR_PATH)
TOLERATED = {"truncated": 1.0, **dict.fromkeys(CHECKS, True)}
FIRST_ROWS = 256  # of each source, among which those to train on are the shortest
MAX_WEIGHTS = 5_000_000  # of a model that is taken as it is
HELD_OUT = 8  # rows of each held-out set
COMPLETION = 8  # tokens
PACKED_ROW = 128  # tokens
GPU_ATTENTION = ("flash", "kernels", "paged", "sdpa_paged")  # what names of such kernels begin with


@dataclass
class Reduced:
    """A run in small, and what of it is not as in the real run."""

    cfg: dict[str, Any]
    unreduced: dict[str, Any]  # the run as it is, but for the rows, of which it has the first few hundred
    rows: int | None = None  # of the real run, None where nobody knows
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)


@dataclass
class Clones:
    """Small random models in the place of large ones, each made once; ``links`` has those that a rehearsal trains."""

    folder: Path
    links: dict[str, str] = field(default_factory=dict)
    made: dict[Source, tuple[str, str]] = field(default_factory=dict)

    def of(self, source: Source) -> tuple[str, str]:
        """The path of a small model in place of this one, and what it is; the same path where that is small."""
        if source.path in self.links.values() or is_small(source):
            return source.path, ""
        if source not in self.made:
            small = self.folder / f"{len(self.made)}-{source.path.rstrip('/').rpartition('/')[2]}"
            self.made[source] = str(small), f"{source.path}: {write_clone(source, small)}"
        return self.made[source]


def is_small(source: Source) -> bool:
    """True of a model that is taken as it is: it is here, and of few weights."""
    local = source.architecture is not None or Path(source.path).exists() or source.path.startswith("runner://")
    return local and count_weights(source.config(), source.trust) <= MAX_WEIGHTS


def reduce(cfg: Config, folder: Path, clones: Clones) -> Reduced:
    """The run in small; its files go below ``folder``."""
    small = Reduced(linked(cfg, clones.links), copy.deepcopy(dict(cfg)) | {"model": linked(cfg["model"], clones.links)})
    _replace_models(small, clones)
    _cut_args(small)
    _cut_rows(small, folder)
    _replace_foreign(small)
    small.cfg |= {"tracker": {"report_to": "none", "environment": None}, "resume": None}
    small.cfg |= {"launcher": None, "tolerate": (cfg.get("tolerate") or {}) | TOLERATED}
    if cfg.get("resume"):
        small.note(f"resume={cfg['resume']}: from its own first checkpoint instead")
    for node in (small.cfg["metric"] or {}).values():
        if isinstance(node, dict):
            node["limit"] = min(HELD_OUT, node.get("limit") or HELD_OUT)
    return small


def linked(value: object, links: Mapping[str, str]) -> Any:
    """The same value with the models of earlier stages where their rehearsals leave them."""
    if isinstance(value, Mapping):
        return {key: linked(entry, links) for key, entry in value.items()}
    if isinstance(value, list):
        return [linked(entry, links) for entry in value]
    return links.get(value, value) if isinstance(value, str) else value


def rows_of(cfg: Config) -> list[dict[str, Any]]:
    """The nodes of a configuration that read rows."""
    return [node for _, node in nodes(cfg["dataset"]) if node["_target_"] == ROWS]


def _replace_models(small: Reduced, clones: Clones) -> None:
    trust = bool(small.cfg["model"].get("trust_remote_code"))
    for _, node in nodes({key: part for key, part in small.cfg.items() if key != "dataset"}):
        is_loader = node["_target_"] in LOADERS
        for name in [name for name in ("path" if is_loader else "", *OTHER_PATHS) if isinstance(node.get(name), str)]:
            trusted = bool(node.get("trust_remote_code", trust and not is_loader))
            node[name], note = clones.of(Source(node[name], node.get("revision"), trusted))
            small.note(note)
            node |= {"revision": None} if note and is_loader and "revision" in node else {}
        # A model from nothing has its architecture in its keys.
        if node["_target_"] == NEW and not is_small(source := Source(architecture=architecture_of(node))):
            config = source.config()
            node |= {name: value for name, value in vars(shrink(config)).items() if value != vars(config).get(name)}
            small.note(f"model: {count_weights(config) / 1e6:.0f} M weights made narrow and shallow")
    if (target := small.cfg["model"]["_target_"]) not in (*LOADERS, NEW):
        small.note(f"model: as {target} loads it, because it is not ours to make small")


def _cut_args(small: Reduced) -> None:
    args = small.cfg["trainer"]["args"]
    known = config_fields(args)
    args |= {name: value for name, value in upstream.WITHOUT_NOTE.items() if name in known}
    args[upstream.MAX_STEPS] = 2 * cycle_of(args)
    for name in upstream.COMPLETION_LENGTHS:
        length = setting(args, name)
        if isinstance(length, int) and length > COMPLETION and name in known:
            args[name] = COMPLETION
            small.note(f"completions of {COMPLETION} tokens instead of {length}")
    if args.get(upstream.PACKING) and (setting(args, "max_length") or PACKED_ROW) >= PACKED_ROW:
        args["max_length"] = PACKED_ROW
        small.note(f"packed rows of {PACKED_ROW} tokens")
    args |= {upstream.DATALOADER_NUM_WORKERS: 1} if args.get(upstream.DATALOADER_NUM_WORKERS) else {}


def _cut_rows(small: Reduced, folder: Path) -> None:
    args, dataset = small.cfg["trainer"]["args"], small.cfg["dataset"]
    counts: list[int | None] = []
    least = max(2, round(1.25 * rows_per_step(args) * args[upstream.MAX_STEPS]) + 1)
    few = FIRST_ROWS if args.get(upstream.PACKING) else least
    for number, (node, seen) in enumerate(zip(rows_of(small.cfg), rows_of(small.unreduced), strict=True)):
        head = write_head(node, folder / f"rows{number}", count=max(FIRST_ROWS, few), train=few, held_out=HELD_OUT)
        for one, first_rows in ((node, head.short), (seen, head.whole)):
            one |= {"path": str(first_rows), "split": head.split, "limit": {"train": None, "eval": None}}
            one |= {name: None for name in ("config", "revision") if name in one} | {"image_folder": head.images}
        counts += [head.rows] if "train" in head.split else []  # else it is held out
    top = select(dataset, "limit.train")
    counts = [top] if counts and dataset["_target_"] != ROWS and top else counts
    known = [count for count in counts if count is not None]
    small.rows = sum(known) if known and len(known) == len(counts) else None
    if not counts:
        small.note(f"dataset: all that {dataset['_target_']} gives")


def _replace_foreign(small: Reduced) -> None:
    cfg, args = small.cfg, small.cfg["trainer"]["args"]
    on_cpu = not torch.accelerator.is_available()
    engine = {"rollout_engine": "auto"} if args.get("rollout_engine") == "vllm" else {}
    for name, value in (upstream.ELSEWHERE | engine | (upstream.ON_A_GPU if on_cpu else {})).items():
        if args.get(name):
            small.note(f"trainer.args.{name}: {to_text(value)} instead of {args[name]}")
            args[name] = value
    for _, node in nodes(cfg) if on_cpu else ():
        is_foreign = {name: node.get(name) not in (None, "auto", "cpu") for name in ("device", "device_map")}
        is_foreign["attention"] = str(node.get("attention")).startswith(GPU_ATTENTION)
        for name in [name for name, foreign in is_foreign.items() if foreign]:
            small.note(f"{name}: what the CPU has instead of {node[name]}")
            node[name] = None
    if cfg["quant"] and importlib.util.find_spec("bitsandbytes") is None:
        small.note(f"without quant, because bitsandbytes is not installed here: {to_install('bitsandbytes')}")
        cfg["quant"] = None
    if (processes := processes_of(cfg)) > 1:
        small.note(f"one process instead of {processes}")
