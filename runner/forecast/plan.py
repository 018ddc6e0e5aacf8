"""A configuration and the lengths of its rows -> the trainer that ``memory`` measures, and how many steps it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.forecast.memory import FUSED, PAIRS, SAMPLES, Batch, Trainer
from runner.forecast.simulation import Setting
from runner.forecast.structure import Source, build_structure
from runner.generate.batch import TOKENS_PER_PASS
from runner.run import processes_of
from runner.signature import read_signature

LOADERS = ("runner.model.load.load_model", "runner.reward.outcome.load_reward_model")
CLASSIFIERS = ("runner.reward.outcome.Classifier", "runner.reward.process.ProcessModel")
WHOLE = ("GRPOTrainer", "RLOOTrainer", "PPOTrainer")  # which leave out a last batch that is not full
COMPLETION = ("max_completion_length", "response_length", "max_new_tokens")


@dataclass(frozen=True)
class Rows:
    """What is known of the rows to train on: tokens of those that were looked at, and how many there are in all.

    ``lengths`` are those of sequences as they are trained, or of prompts; ``limit`` cuts them. ``trained`` is the share
    of their tokens that a loss counts, ``total`` None where nobody knows.
    """

    lengths: Sequence[int]
    trained: float = 1.0
    limit: int | None = None
    total: float | None = None

    @property
    def longest(self) -> int:
        return max(self.lengths, default=1)

    @property
    def mean(self) -> float:
        return sum(self.lengths) / max(1, len(self.lengths))

    def padded(self, rows: int) -> float:
        """The mean width of batches of so many rows, each as wide as its longest."""
        groups = [self.lengths[start : start + rows] for start in range(0, len(self.lengths), rows)] or [[1]]
        return sum(map(max, groups)) / len(groups)


def setting(args: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """What a field of the trainer's config is: as it is set, or its default where that is written down."""
    if args.get(name) is not None:
        return args[name]
    signature = read_signature(args["_target_"])
    found = signature.parameters[name].default if signature and name in signature.parameters else None
    return found if isinstance(found, bool | int | float | str) else otherwise


def cycle_of(args: Mapping[str, Any]) -> int:
    """Optimizer steps from one generation to the next, as ``checkpoint.cycle_steps`` counts them."""
    accumulated = setting(args, "gradient_accumulation_steps", 1)
    rows = setting(args, "per_device_train_batch_size", 8)
    whole = args.get("generation_batch_size")
    micro = args.get("steps_per_generation") or (whole and max(1, whole // rows)) or accumulated
    micro *= setting(args, "num_iterations", 1)
    return math.lcm(micro, accumulated) // accumulated


def rows_per_step(args: Mapping[str, Any]) -> float:
    """Rows of the dataset that one process draws for an optimizer step, on average."""
    rows = setting(args, "per_device_train_batch_size", 8) * setting(args, "gradient_accumulation_steps", 1)
    return rows / (setting(args, "num_generations", 1) * setting(args, "num_iterations", 1))


def steps_of(cfg: Mapping[str, Any], rows: Rows) -> int | None:
    """Optimizer steps of the whole training; None where nobody knows how many rows there are."""
    args = cfg["trainer"]["args"]
    if (most := setting(args, "max_steps", -1)) and most > 0:
        return int(most)
    share = rows_per_step(args) * processes_of(cfg)
    if episodes := args.get("total_episodes"):
        return math.ceil(episodes / share)
    if rows.total is None:
        return None
    total = rows.total
    if setting(args, "packing", False) and rows.limit:
        total = math.ceil(total * rows.mean / rows.limit)
    whole = math.floor if cfg["trainer"]["_target_"].rpartition(".")[2] in WHOLE else math.ceil
    return math.ceil(whole(total / share) * float(setting(args, "num_train_epochs", 3.0)))


def completion_of(args: Mapping[str, Any]) -> int:
    """Most tokens of a completion; 0 where none are sampled."""
    return next((int(setting(args, name)) for name in COMPLETION if setting(args, name)), 0)


def build_trainer(
    cfg: Mapping[str, Any], rows: Rows, *, gpu: bool, origins: Mapping[str, Source] | None = None
) -> Trainer:
    """The trainer of a configuration, on a GPU or on this machine's CPU.

    ``origins`` say, by their paths, of what architecture the models are that earlier stages have yet to train.
    """
    node, args, model = cfg["trainer"], cfg["trainer"]["args"], cfg["model"]
    name = node["_target_"].rpartition(".")[2]
    policy = build_structure(
        source_of(cfg, origins),
        dtype=model.get("dtype", "float32"),
        attention=model.get("attention"),
        peft=cfg["peft"],
        quant=cfg["quant"],
    )
    penalises = bool(args.get("kl_coef", args.get("beta", 1)) or 0)
    whole = cfg["peft"] is None and not hasattr(policy.model, "peft_config")
    copied = whole and penalises and name in ("DPOTrainer", "KTOTrainer", "GRPOTrainer", "RLOOTrainer", "PPOTrainer")
    copied = (copied and not args.get("precompute_ref_log_probs")) or (whole and name == "OnlineDPOTrainer")
    own = cfg.get("optimizer") or {}
    return Trainer(
        name=name,
        args=lambda field, otherwise: setting(args, field, otherwise),
        policy=policy,
        setting=setting_of(args, gpu),
        batch=batch_of(name, args, rows, gpu),
        optimizer=(own.get("_target_", "") + (".fused" if own.get("fused") else "")).lower()
        or str(setting(args, "optim", "adamw_torch_fused")),
        reference=policy.weights if copied else 0,
        critic=_critic(args, policy),
        others=dict(others_of(cfg, origins)),
        penalises=penalises,
    )


def setting_of(args: Mapping[str, Any], gpu: bool) -> Setting:
    """How a pass is computed; on a CPU only what was asked for, as ``tray.argument`` has it."""
    names = ("activation_checkpointing", "gradient_checkpointing")
    asked = [value for name in names if (value := args.get(name)) is not None]
    if not gpu:
        return Setting(False, bool(args.get("bf16")), any(asked[:1]))
    recompute = any(asked) if asked else any(setting(args, name, False) for name in names)
    return Setting(True, args.get("bf16", True) is not False and not args.get("fp16"), recompute)


def batch_of(name: str, args: Mapping[str, Any], rows: Rows, gpu: bool, width: int | None = None) -> Batch:
    """The widest micro-batch: the longest row that was seen beside others of its size."""
    count = int(setting(args, "per_device_train_batch_size", 8))
    written = completion_of(args) if name in SAMPLES else 0
    width = (width or rows.longest) + written
    if setting(args, "packing", False) and rows.limit:
        width = rows.limit
    if name == "PPOTrainer" and not gpu:
        count = max(1, int(setting(args, "max_tokens_per_micro_batch", TOKENS_PER_PASS)) // width)
    elif name == "PPOTrainer" and args.get("max_tokens_per_micro_batch"):
        count = max(1, int(args["max_tokens_per_micro_batch"]) // width)
    trained = written / width if written else rows.trained
    return Batch(count * (2 if name in PAIRS else 1), width, trained, width - written if written else 0)


def source_of(cfg: Mapping[str, Any], origins: Mapping[str, Source] | None = None) -> Source:
    """Where the architecture of a run's policy comes from."""
    model, head = cfg["model"], cfg["trainer"]["head"]
    path = cfg["trainer"]["args"].get("sft_model_path") or model.get("path")
    if path:
        return _origin(Source(path, model.get("revision"), bool(model.get("trust_remote_code")), head), origins)
    own = {key: value for key, value in model.items() if key not in ("_target_", "tokenizer", "head", "dtype", "seed")}
    return Source(head=head, architecture=own)


def _origin(source: Source, origins: Mapping[str, Source] | None) -> Source:
    """The model itself, or that which the stage that will train it begins with."""
    known = origins or {}
    return replace(known[source.path], head=source.head) if source.path in known else source


def others_of(cfg: Mapping[str, Any], origins: Mapping[str, Source] | None = None) -> Iterator[tuple[str, int]]:
    """Models that are only asked: reward models and a teacher, by name with their bytes."""
    for name, node in _named(cfg):
        if node.get("_target_") in (*LOADERS, *CLASSIFIERS) and isinstance(node.get("path"), str):
            head = "lm" if name == "teacher" else "score"
            source = Source(node["path"], node.get("revision"), bool(node.get("trust_remote_code")), head)
            kind = node.get("dtype", "float32")
            yield name, build_structure(_origin(source, origins), dtype=kind, trained=False).weights
    if path := cfg["trainer"]["args"].get("reward_model_path"):
        yield "reward model", build_structure(Source(path, head="score"), trained=False).weights


def _named(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rewards = cfg.get("reward") or {}
    entries = {"": rewards} if "_target_" in rewards else rewards
    yield from ((f"reward {name}".strip(), node) for name, node in entries.items() if isinstance(node, Mapping))
    if isinstance(teacher := cfg["trainer"].get("teacher_model"), Mapping):
        yield "teacher", teacher


def _critic(args: Mapping[str, Any], policy: Any) -> str:
    asked = setting(args, "critic", "auto")
    return asked if asked != "auto" else "adapter" if hasattr(policy.model, "peft_config") else "model"


def is_known(name: str) -> bool:
    """Whether the passes of a trainer are those that are simulated; another is taken for one with all logits."""
    return name in (*FUSED, *PAIRS, *SAMPLES)
