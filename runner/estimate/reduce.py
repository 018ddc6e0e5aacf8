"""A run's configuration -> the same run in small: random clones of models, few rows, two steps.

Batch, completions, adapter, optimizer, callbacks, rewards and metrics stay; what is changed and
could matter is noted.
"""

import copy
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runner.config.experiment import Experiment
from runner.dataset import LOADER as ROWS
from runner.dataset.head import Head, write_head
from runner.estimate.case import Reduced
from runner.estimate.model_weights import LOADERS, architecture_of
from runner.estimate.steps import cycle_of, rows_per_step
from runner.io.distribution import to_install
from runner.model.check import NEW
from runner.model.clone import Source, count_weights, write_clone
from runner.model.small_config import shrink
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.schema.text import Config, nodes
from runner.schema.upstream import config_fields, setting
from runner.training.inspection_faults import CHECKS

OTHER_PATHS = ("sft_model_path", "reward_model_path", "teacher_model_name_or_path")
TOLERATED = {"truncated": 1.0, **dict.fromkeys(CHECKS, True)}
FIRST_ROWS = 256  # of each source, among which those to train on are the shortest
MAX_WEIGHTS = 5_000_000  # of a model that is taken as it is
HELD_OUT = 8  # rows of each held-out set
COMPLETION = 8  # tokens
PACKED_ROW = 128  # tokens
# The beginnings of the names of attention kernels that need a GPU.
GPU_ATTENTION = ("flash", "kernels", "paged", "sdpa_paged")


@dataclass
class Clones:
    """Small random models in the place of large ones, each made once."""

    folder: Path
    # By the folders of models that earlier stages will leave, those that their rehearsals leave.
    links: dict[str, str] = field(default_factory=dict)
    # By the source, the path of its clone and a description of it.
    made: dict[Source, tuple[str, str]] = field(default_factory=dict)

    def of(self, source: Source) -> tuple[str, str]:
        """The path of a small model in place of this one, and a description of what was changed.

        A small source stands for itself, without a description.
        """
        if source.path in self.links.values() or is_small(source):
            return source.path, ""
        if source not in self.made:
            _, _, name = source.path.rstrip("/").rpartition("/")
            folder = self.folder / f"{len(self.made)}-{name}"
            changes = write_clone(source, folder)
            self.made[source] = (str(folder), f"{source.path}: {changes}")
        return self.made[source]


def is_small(source: Source) -> bool:
    """True of a model that is taken as it is: it is here, and has few weights."""
    is_here = (
        source.architecture is not None
        or Path(source.path).exists()
        or source.path.startswith("runner://")
    )
    return is_here and count_weights(source.config(), source.trust) <= MAX_WEIGHTS


def reduce(cfg: Config, folder: Path, clones: Clones) -> Reduced:
    """The run in small; its files go below ``folder``."""
    unreduced = copy.deepcopy(dict(cfg))
    unreduced["model"] = linked(cfg["model"], clones.links)
    small = Reduced(linked(cfg, clones.links), unreduced)
    _replace_models(small, clones)
    _cut_args(small)
    _cut_rows(small, folder)
    _replace_foreign_args(small)
    if not torch.accelerator.is_available():
        _replace_gpu_settings(small)
    experiment = Experiment.read(cfg)
    if experiment.quant and importlib.util.find_spec("bitsandbytes") is None:
        fix = to_install("bitsandbytes")
        small.note(f"without quant, because bitsandbytes is not installed here: {fix}")
        small.cfg["quant"] = None
    processes = experiment.launcher.all_processes
    if processes > 1:
        small.note(f"one process instead of {processes}")
    small.cfg |= {"tracker": {"report_to": "none", "environment": None}, "resume": None}
    if experiment.engine:
        small.note(f"the sampler instead of {experiment.engine}")
        small.cfg.pop("engine")
    tolerated = {**experiment.tolerate.node, **TOLERATED}
    small.cfg |= {"launcher": None, "tolerate": tolerated}
    if experiment.resume:
        small.note(f"resume={experiment.resume}: from its own first checkpoint instead")
    for metric in (small.cfg["metric"] or {}).values():
        if isinstance(metric, dict):
            metric["limit"] = min(HELD_OUT, metric.get("limit") or HELD_OUT)
    return small


def linked(value: object, links: Mapping[str, str]) -> Any:
    """A copy of a value with the models of earlier stages where their rehearsals leave them."""
    if isinstance(value, Mapping):
        return {key: linked(item, links) for key, item in value.items()}
    if isinstance(value, list):
        return [linked(item, links) for item in value]
    if isinstance(value, str):
        return links.get(value, value)
    return value


def rows_of(cfg: Config) -> list[dict[str, Any]]:
    """The nodes of a configuration that read rows."""
    dataset = Experiment.read(cfg).dataset
    readers = []
    for _, node in nodes(dataset.node):
        if node["_target_"] == ROWS:
            readers.append(node)
    return readers


def _replace_models(small: Reduced, clones: Clones) -> None:
    """Give each path of a model a small one, and a model from nothing a small architecture."""
    parts = {key: part for key, part in small.cfg.items() if key != "dataset"}
    model = Experiment.read(small.cfg).model
    for _, node in nodes(parts):
        is_loader = node["_target_"] in LOADERS
        trusted = bool(node.get("trust_remote_code", model.trusts_code and not is_loader))
        for name in ("path", *OTHER_PATHS) if is_loader else OTHER_PATHS:
            if not isinstance(node.get(name), str):
                continue
            source = Source(node[name], node.get("revision"), trusted)
            node[name], note = clones.of(source)
            small.note(note)
            if note and is_loader and "revision" in node:
                node["revision"] = None
        if node["_target_"] == NEW:
            _shrink_architecture(small, node)
    if model.target not in (*LOADERS, NEW):
        small.note(
            f"model: as {model.target} loads it, because only its own code could make it small"
        )


def _shrink_architecture(small: Reduced, node: dict[str, Any]) -> None:
    """Make a model from nothing narrow and shallow, by the keys of its node, unless it is small."""
    source = Source(architecture=architecture_of(node))
    if is_small(source):
        return
    config = source.config()
    for name, value in vars(shrink(config)).items():
        if value != vars(config).get(name):
            node[name] = value
    millions = count_weights(config) / 1e6
    small.note(f"model: {millions:.0f} M weights made narrow and shallow")


def _cut_args(small: Reduced) -> None:
    """Have the trainer take two steps with short completions and short packed rows."""
    args = small.cfg["trainer"]["args"]
    fields = config_fields(args)
    for name, value in upstream.WITHOUT_NOTE.items():
        if name in fields:
            args[name] = value
    args["max_steps"] = 2 * cycle_of(args)
    for name in upstream.COMPLETION_LENGTHS:
        length = setting(args, name)
        if isinstance(length, int) and length > COMPLETION and name in fields:
            args[name] = COMPLETION
            small.note(f"completions of {COMPLETION} tokens instead of {length}")
    length = setting(args, "max_length") or PACKED_ROW
    if args.get("packing") and length >= PACKED_ROW:
        args["max_length"] = PACKED_ROW
        small.note(f"packed rows of {PACKED_ROW} tokens")
    if args.get("dataloader_num_workers"):
        args["dataloader_num_workers"] = 1


def _cut_rows(small: Reduced, folder: Path) -> None:
    """Have each source read files of its first rows, and note how many rows there are in all."""
    args = small.cfg["trainer"]["args"]
    dataset = Experiment.read(small.cfg).dataset
    # A quarter more than all steps take, since some may be left out.
    rows_of_steps = rows_per_step(args) * args["max_steps"]
    fewest = max(2, round(1.25 * rows_of_steps) + 1)
    if args.get("packing"):
        fewest = FIRST_ROWS
    counts: list[int | None] = []
    pairs = zip(rows_of(small.cfg), rows_of(small.unreduced), strict=True)
    for number, (node, unreduced_node) in enumerate(pairs):
        head = write_head(
            node,
            folder / f"rows{number}",
            count=max(FIRST_ROWS, fewest),
            train=fewest,
            held_out=HELD_OUT,
        )
        _read_head(node, head, head.short)
        _read_head(unreduced_node, head, head.whole)
        if "train" in head.split:  # else its rows are held out
            counts.append(head.rows)
    if not counts:
        small.note(f"dataset: all rows that {dataset.target} returns")
        return
    limit = dataset.limits.get("train")
    if dataset.target != ROWS and limit:  # of a mixture of sources
        counts = [limit]
    if None not in counts:
        small.rows = sum(count for count in counts if count is not None)


def _read_head(node: dict[str, Any], head: Head, path: Path) -> None:
    """Have a node read a file of first rows.

    Its limits go, as the file holds what they leave, and a file has no configuration or revision.
    """
    no_limits = {"train": None, "eval": None}
    node |= {"path": str(path), "split": head.split, "limit": no_limits}
    for name in ("config", "revision"):
        if name in node:
            node[name] = None
    node["image_folder"] = head.media_folder


def _replace_foreign_args(small: Reduced) -> None:
    """Replace what the trainer would do on other machines or with a GPU that is not here."""
    args = small.cfg["trainer"]["args"]
    replacements = dict(upstream.ELSEWHERE)
    if args.get("rollout_engine") == "vllm":
        replacements["rollout_engine"] = "auto"
    if not torch.accelerator.is_available():
        replacements |= upstream.ON_A_GPU
    for name, value in replacements.items():
        if args.get(name):
            new_text = to_text(value)
            small.note(f"trainer.args.{name}: {new_text} instead of {args[name]}")
            args[name] = value


def _replace_gpu_settings(small: Reduced) -> None:
    """Replace devices and attention kernels that a machine without a GPU does not have."""
    for _, node in nodes(small.cfg):
        foreign = []
        for name in ("device", "device_map"):
            if node.get(name) not in (None, "auto", "cpu"):
                foreign.append(name)
        if str(node.get("attention")).startswith(GPU_ATTENTION):
            foreign.append("attention")
        for name in foreign:
            small.note(f"{name}: the version for the CPU instead of {node[name]}")
            node[name] = None
