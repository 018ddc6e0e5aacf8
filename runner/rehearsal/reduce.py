"""A run's configuration -> the same run in small: models as random clones, a few short rows, two steps.

The batch, the number of completions, the adapter, the optimizer, callbacks, rewards and metrics stay as they are. What
is changed and could matter is told.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, Fault
from runner.forecast.plan import COMPLETION, cycle_of, rows_per_step, setting
from runner.inspection import SAMPLE
from runner.run import processes_of
from runner.signature import read_signature

LOADER = "runner.model.load.load_model"
NEW = "runner.model.load.new_model"
ROWS = "runner.dataset.load.load_rows"
LOADERS = (
    LOADER,
    "runner.reward.outcome.load_reward_model",
    "runner.reward.outcome.Classifier",
    "runner.reward.process.ProcessModel",
)
OTHER_PATHS = ("sft_model_path", "reward_model_path", "teacher_model_name_or_path")
TOLERATED = {"truncated": 1.0, **dict.fromkeys(("nothing_trained", "no_end", "doubled_bos", "other_template"), True)}
SMALL = 5_000_000  # weights, up to which a model is taken as it is
HELD_OUT = 8  # rows of each held-out set
WORDS = 8  # tokens of a completion
PACKED = 128  # tokens of a row of packed texts
# Without a word: they only say how often something is done, where to, or by how many processes.
CADENCE = {"logging_steps": 1, "save_steps": 1, "eval_steps": 1, "eval_delay": 0, "logging_first_step": True}
PLAIN = {"push_to_hub": False, "total_episodes": None, "dataset_num_proc": None}
# What needs another machine or a server, and what it becomes.
ELSEWHERE = {
    **dict.fromkeys(("use_vllm", "torch_compile"), False),
    **dict.fromkeys(("deepspeed", "fsdp", "parallelism_config"), None),
}
ON_A_GPU = {"tf32": None, "use_liger_kernel": False}


@dataclass
class Reduced:
    """A run in small. ``sight`` is the run as it is, but for the rows, of which it has the first few hundred.

    ``rows`` counts those of the real run, None where nobody knows; ``notes`` say what is not as in the real run.
    """

    cfg: dict[str, Any]
    sight: dict[str, Any]
    rows: int | None = None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class Clones:
    """Small random models in the place of large ones, each made once; ``links`` has those that a rehearsal trains."""

    def __init__(self, place: Path):
        self.place = place
        self.links: dict[str, str] = {}
        self.made: dict[tuple[str, str | None], tuple[str, str]] = {}

    def of(self, path: str, revision: str | None, trust: bool) -> tuple[str, str]:
        """Where to find a small model in place of this one, and what it is; the same path where that is small."""
        if path in self.links.values():
            return path, ""
        if (path, revision) not in self.made:
            self.made[path, revision] = self._make(path, revision, trust)
        return self.made[path, revision]

    def _make(self, path: str, revision: str | None, trust: bool) -> tuple[str, str]:
        from runner.model.clone import count_weights, read_config, write_clone

        config = read_config(path, revision, trust)
        if Path(path).exists() or path.startswith("runner://"):
            count = count_weights(config, trust)
            if count <= SMALL:
                return path, ""
        folder = self.place / f"{len(self.made)}-{path.rstrip('/').rpartition('/')[2]}"
        told = write_clone(path, folder, revision=revision, trust_remote_code=trust)
        if told is None:
            found = f"{path}: a {config.model_type}, which cannot be made small"
            cure = "model=tiny, to rehearse everything but the architecture"
            raise ConfigError(Fault("model.path", found, "an architecture of transformers", cure))
        return str(folder), f"{path}: {told}"


def reduce(cfg: Mapping[str, Any], place: Path, clones: Clones) -> Reduced:
    """The run in small; its files go below ``place``."""
    small = Reduced(linked(copy.deepcopy(dict(cfg)), clones.links), copy.deepcopy(dict(cfg)))
    small.sight["model"] = linked(small.sight["model"], clones.links)
    _replace_models(small, clones)
    _cut_args(small)
    _cut_rows(small, place)
    _replace_foreign(small)
    small.cfg |= {"tracker": {"report_to": "none", "environment": None}, "resume": None}
    small.cfg["tolerate"] = (cfg.get("tolerate") or {}) | TOLERATED
    if cfg.get("resume"):
        small.note(f"resume={cfg['resume']}: from its own first checkpoint instead")
    for node in (small.cfg["metric"] or {}).values():
        if isinstance(node, dict):
            node["limit"] = min(HELD_OUT, node.get("limit") or HELD_OUT)
    return small


def linked(value: Any, links: Mapping[str, str]) -> Any:
    """The same value with the models of earlier stages where their rehearsals leave them."""
    if isinstance(value, Mapping):
        return {key: linked(entry, links) for key, entry in value.items()}
    if isinstance(value, list):
        return [linked(entry, links) for entry in value]
    return links.get(value, value) if isinstance(value, str) else value


# --- Its parts ----------------------------------------------------------------------------------


def nodes_of(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a configuration."""
    if isinstance(value, Mapping):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from nodes_of(entry)


def _replace_models(small: Reduced, clones: Clones) -> None:
    trust = bool(small.cfg["model"].get("trust_remote_code"))
    for node in nodes_of({key: part for key, part in small.cfg.items() if key != "dataset"}):
        if node.get("_target_") in LOADERS and isinstance(node.get("path"), str):
            node["path"], told = clones.of(node["path"], node.get("revision"), bool(node.get("trust_remote_code")))
            if told:
                small.note(told)
                node |= {"revision": None} if "revision" in node else {}
        for name in OTHER_PATHS:
            if isinstance(node.get(name), str):
                node[name], told = clones.of(node[name], None, trust)
                small.note(told) if told else None
        if node.get("_target_") == NEW:
            _shrink_new(node, small)
    known = (*LOADERS, NEW)
    if (target := small.cfg["model"]["_target_"]) not in known:
        small.note(f"model: as {target} loads it, because it is not ours to make small")


def _shrink_new(node: dict[str, Any], small: Reduced) -> None:
    """Make small what a model from nothing is told of its architecture."""
    from transformers import AutoConfig

    from runner.model.clone import count_weights, shrink

    own = ("_target_", "tokenizer", "head", "dtype", "seed", "model_type")
    config = AutoConfig.for_model(node["model_type"], **{name: node[name] for name in node if name not in own})
    if (count := count_weights(config)) > SMALL:
        less = vars(shrink(config))
        node |= {name: value for name, value in less.items() if value != vars(config).get(name)}
        small.note(f"model: {count / 1e6:.0f} M weights made narrow and shallow")


def _cut_args(small: Reduced) -> None:
    """Two steps, logged and saved each, with short completions."""
    args = small.cfg["trainer"]["args"]
    signature = read_signature(args["_target_"])
    known = set(signature.parameters) if signature else set()
    args |= {name: value for name, value in (CADENCE | PLAIN).items() if name in known}
    args["max_steps"] = 2 * cycle_of(args)
    for name in COMPLETION:
        length = setting(args, name)
        if isinstance(length, int) and length > WORDS and name in known:
            args[name] = WORDS
            small.note(f"completions of {WORDS} tokens instead of {length}")
    if args.get("packing") and (setting(args, "max_length") or PACKED) >= PACKED:
        args["max_length"] = PACKED
        small.note(f"packed rows of {PACKED} tokens")
    if args.get("dataloader_num_workers"):
        args["dataloader_num_workers"] = 1


def _cut_rows(small: Reduced, place: Path) -> None:
    """The first rows of each source in place of it: the shortest of them to train on, all of them to be looked at."""
    args, total = small.cfg["trainer"]["args"], []
    least = max(2, round(1.25 * rows_per_step(args) * args["max_steps"]) + 1)
    few = SAMPLE if args.get("packing") else least
    pairs = zip(nodes_of(small.cfg["dataset"]), nodes_of(small.sight["dataset"]), strict=True)
    for number, (node, seen) in enumerate([pair for pair in pairs if pair[0].get("_target_") == ROWS]):
        total.append(_replace_rows(node, seen, place / f"rows{number}", few))
    top = small.cfg["dataset"].get("limit")
    if total and small.cfg["dataset"]["_target_"] != ROWS and isinstance(top, dict) and top.get("train"):
        total = [top["train"]]
    small.rows = None if None in total or not total else sum(total)
    if not total:
        small.note(f"dataset: all that {small.cfg['dataset']['_target_']} gives")


def _replace_rows(node: dict[str, Any], seen: dict[str, Any], place: Path, few: int) -> int | None:
    from runner.dataset.head import write_head

    head = write_head(node, place, count=max(SAMPLE, few), train=few, held_out=HELD_OUT)
    for one, folder in ((node, head.short), (seen, head.whole)):
        one |= {"path": str(folder), "split": head.split, "limit": {"train": None, "eval": None}}
        one |= {name: None for name in ("config", "revision") if name in one}
    return head.rows


def _replace_foreign(small: Reduced) -> None:
    """Leave out what this machine has not, and what is meant for several processes or a server, and say so."""
    import torch

    cfg, args = small.cfg, small.cfg["trainer"]["args"]
    on_cpu = not torch.accelerator.is_available()
    for name, value in (ELSEWHERE | (ON_A_GPU if on_cpu else {})).items():
        if args.get(name):
            small.note(f"without trainer.args.{name}={args[name]}")
            args[name] = value
    if args.get("rollout_engine") in ("vllm", "continuous"):
        small.note(f"completions by this process instead of {args['rollout_engine']}")
        args["rollout_engine"] = "auto"
    if on_cpu:
        _replace_devices(small)
    if cfg["quant"] and importlib.util.find_spec("bitsandbytes") is None:
        small.note("without quant, because bitsandbytes is not installed here (pip install 'runner[quant]')")
        cfg["quant"] = None
    if (processes := processes_of(cfg)) > 1:
        small.note(f"one process instead of {processes}")


def _replace_devices(small: Reduced) -> None:
    """What only a GPU has, in every model of the run."""
    for node in nodes_of(small.cfg):
        if str(node.get("attention") or "").startswith(("flash", "kernels", "paged", "sdpa_paged")):
            small.note(f"attention: what the CPU has instead of {node['attention']}")
            node["attention"] = None
        for name in ("device", "device_map"):
            if node.get(name) not in (None, "auto", "cpu"):
                small.note(f"{name}: the CPU instead of {node[name]}")
                node[name] = None
