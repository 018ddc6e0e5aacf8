"""What several dialects share: the arguments of transformers' Trainer, datasets, adapters, trackers, and what is of
the machine.

A rule is the path of ours that a key becomes, or a function of the draft, the key and its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from runner.check.value import nearest
from runner.dialect.draft import HIDDEN, Draft, is_secret, is_unset, shown
from runner.errors import ConfigError, Fault

OFF = (False, "", [], {}, "no", "none")

Rule = str | Callable[[Draft, str, Any], None]


@dataclass(frozen=True)
class Dialect:
    """One of them: what is chosen first, what each other key becomes, and what they do where a file is silent."""

    begin: Callable[[Draft, Any], None]
    rules: Mapping[str, Rule]
    machine: Mapping[str, str] = field(default_factory=dict)
    nothing: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    defaults: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda keys: {}


def apply(draft: Draft, dialect: Dialect) -> None:
    """Deal with every key that is left, by the dialect's rules, those of all, and by the trainer's own fields."""
    for key, value in draft.left():
        if value is None:
            continue
        if is_secret(key, value):
            draft.secret(key)
        elif rule := dialect.rules.get(key) or TRAINING.get(key):
            _follow(draft, rule, key, value)
        elif key in dialect.machine or key in MACHINE:
            draft.machine(key, dialect.machine.get(key) or MACHINE.get(key, ""))
        elif key in dialect.nothing:
            draft.nothing(key, *dialect.nothing[key])
        elif key in dialect.same:
            draft.same(key, dialect.same[key])
        elif key in draft.config.parameters:
            draft.arg(key, key, value)
        elif value in OFF:
            draft.same(key, "off")
        else:
            near = nearest(key, draft.config.parameters, 0.85)
            why = "not a key that is known here"
            draft.nothing(key, why, f"trainer.args.{near[0]}" if near else "")
    told = {note.key for note in draft.notes}
    for key, value in draft.keys.items():
        if key not in told and key not in draft.implied and value in OFF:
            draft.same(key, "off")


def _follow(draft: Draft, rule: Rule, key: str, value: Any) -> None:
    if not isinstance(rule, str):
        rule(draft, key, value)
    elif rule.startswith("trainer.args."):
        draft.arg(key, rule.removeprefix("trainer.args."), value)
    else:
        draft.map(key, rule, value)


# --- Training -------------------------------------------------------------------------------------


def learning_rate(draft: Draft, key: str, value: Any) -> None:
    """The learning rate at the top, where sweeps find it."""
    draft.map(key, "learning_rate", draft.real(key, value))


def warmup_ratio(draft: Draft, key: str, value: Any) -> None:
    """A share of the steps, which TRL takes as a number of steps below 1."""
    if draft.has("warmup_steps") and draft.keys["warmup_steps"]:
        draft.same(key, "warmup_steps stands beside it and counts")
    elif not value:
        draft.same(key, "no warm-up")
    else:
        why = "below 1 it is a share of all steps; warmup_ratio is gone"
        draft.arg(key, "warmup_steps", draft.real(key, value), why)


def precision(draft: Draft, key: str, value: Any) -> None:
    """bf16 and fp16, of which TRL's trainers take bf16 unless they are told."""
    bf16, fp16 = draft.take("bf16"), draft.take("fp16")
    if key == "fp16" and not fp16:
        draft.same(key, "off")
    elif key == "fp16":
        draft.put("trainer.args.bf16", False)
        draft.arg(key, "fp16", True)
    elif bf16:
        draft.same(key, "TRL's own choice, where the device has it")
    elif not fp16:
        draft.arg(key, "bf16", False)
    else:
        draft.same(key, "fp16 stands beside it")


def checkpointing(draft: Draft, key: str, value: Any) -> None:
    """Activation checkpointing, which TRL's trainers have on unless they are told."""
    if value in (True, "unsloth", "true"):
        draft.same(key, "TRL's own choice on a GPU")
    elif value is False:
        draft.map(key, "trainer.args.activation_checkpointing", False)
    else:
        why = f"{shown(value)}: activations are kept on the device"
        draft.nothing(key, why, "trainer.args.activation_offloading=true")


def by_length(draft: Draft, key: str, value: Any) -> None:
    """Batches of rows of like length."""
    if value:
        draft.map(key, "trainer.args.train_sampling_strategy", "group_by_length")
    else:
        draft.same(key, "off")


def tracker(draft: Draft, key: str, value: Any) -> None:
    """The tracker that is reported to."""
    names = [value] if isinstance(value, str) else list(value or [])
    names = [name for name in names if name not in ("none", "all")]
    known = [name for name in names if name in ("tensorboard", "wandb", "trackio", "mlflow")]
    if not names:
        draft.same(key, "no tracker")
    elif known:
        draft.choose("tracker", known[0])
        draft.note("mapped", key, f"tracker={known[0]}", "" if len(names) == 1 else "one of them")
    else:
        draft.nothing(key, "no tracker of ours", "tracker=wandb, tensorboard, mlflow, trackio")


def risky(draft: Draft, key: str, value: Any) -> None:
    """What runs code of others, which our command line alone may say."""
    if not value:
        draft.same(key, "off")
    else:
        word = f"model.{key}=true"
        draft.words.append(word)
        draft.nothing(key, "it runs code of others, so it is typed and never in a file", word)


def published(draft: Draft, key: str, value: Any) -> None:
    """What publishes a model, which our command line alone may say."""
    if key == "push_to_hub" and not value:
        draft.same(key, "off")
    else:
        near = f"trainer.args.{key}={shown(value) if not isinstance(value, bool) else 'true'}"
        draft.nothing(key, "publishing is typed and never in a file", near)


TRAINING: dict[str, Rule] = {
    "learning_rate": learning_rate,
    "seed": "seed",
    "warmup_ratio": warmup_ratio,
    "bf16": precision,
    "fp16": precision,
    "gradient_checkpointing": checkpointing,
    "activation_checkpointing": checkpointing,
    "gradient_checkpointing_kwargs": "trainer.args.activation_checkpointing_kwargs",
    "group_by_length": by_length,
    "evaluation_strategy": "trainer.args.eval_strategy",
    "report_to": tracker,
    "trust_remote_code": risky,
    "push_to_hub": published,
    "hub_model_id": published,
    "hub_private_repo": published,
    "hub_strategy": published,
}

OWN_FOLDER = "a run has a folder of its own: outputs/<name>/<label>-<key>/"
SPREAD = "over how many devices, and how, is said when it starts"
RESUMES = "the same command continues by itself"
MACHINE: dict[str, str] = {
    "output_dir": OWN_FOLDER,
    "logging_dir": OWN_FOLDER,
    "run_name": "its folder names a run",
    "overwrite_output_dir": "nothing is ever overwritten",
    "resume_from_checkpoint": RESUMES,
    "deepspeed": f"{SPREAD}: launcher.num_processes=N trainer.args.deepspeed=<file>",
    "fsdp": f"{SPREAD}: launcher.num_processes=N trainer.args.fsdp=...",
    "fsdp_config": f"{SPREAD}: trainer.args.fsdp_config=<file>",
    "ddp_timeout": SPREAD,
    "ddp_backend": SPREAD,
    "ddp_find_unused_parameters": SPREAD,
    "local_rank": SPREAD,
    "device_map": "model.device_map=... where it is needed",
    "dataloader_num_workers": "trainer.args.dataloader_num_workers=N",
    "dataloader_pin_memory": "",
    "dataloader_prefetch_factor": "",
    "dataloader_persistent_workers": "",
    "dataset_num_proc": "rows are prepared once and cached",
    "preprocessing_num_workers": "rows are prepared once and cached",
    "remove_unused_columns": "which columns stay follows from the trainer",
    "do_train": "",
    "do_eval": "",
    "disable_tqdm": "",
    "log_level": "",
    "cache_dir": "HF_HOME says where",
    "use_cpu": "a machine without a GPU is used as it is",
    "save_only_model": "a checkpoint holds all that a resume needs",
    "save_safetensors": "always",
    "low_cpu_mem_usage": "",
    "use_hf": "",
    "hub_token": "",
}


def settle(draft: Draft, devices: int) -> None:
    """What follows from all keys together: no evaluation without rows, and how many rows a step takes."""
    args = draft.values.get("trainer", {}).get("args", {})
    if not draft.values.get("dataset", {}).get("split", {}).get("eval") and not _parts_held_out(draft):
        for name in ("eval_strategy", "eval_steps", "load_best_model_at_end", "metric_for_best_model"):
            if args.pop(name, None) not in (None, "no", False):
                _take_back(draft, f"trainer.args.{name}", "there are no held-out rows: dataset.split.eval=<slice>")
        args.pop("greater_is_better", None)
    if args.get("load_best_model_at_end") and args.get("eval_strategy", "no") == "no":
        args.pop("load_best_model_at_end")
        _take_back(draft, "trainer.args.load_best_model_at_end", "nothing is evaluated")
    steps, warmup = args.get("max_steps") or 0, args.get("warmup_steps") or 0
    if steps and not isinstance(steps, str) and not isinstance(warmup, str) and warmup >= max(1, steps):
        args.pop("warmup_steps")
        _take_back(draft, "trainer.args.warmup_steps", "the learning rate would never be reached")
    if devices > 1:
        draft.words.append(f"launcher.num_processes={devices}")
    if draft.choices.get("optimizer"):
        _hand_over(draft, args)
    if not args and "trainer" in draft.values:
        draft.values["trainer"].pop("args", None)
    if draft.values.get("trainer") == {}:
        del draft.values["trainer"]


def _hand_over(draft: Draft, args: dict[str, Any]) -> None:
    """Give the settings of the Trainer's own optimizer to ours, which takes its place."""
    args.pop("optim", None)
    _take_back(draft, "trainer.args.optim", "optimizer=lora_plus takes its place", "optimizer._target_=<class>")
    moved = {"weight_decay": "weight_decay", "adam_epsilon": "eps", "adam_beta1": "betas", "adam_beta2": "betas"}
    betas = [args.get("adam_beta1", 0.9), args.get("adam_beta2", 0.999)]
    for name, ours in moved.items():
        if name in args:
            value = args.pop(name)
            draft.put(f"optimizer.{ours}", betas if ours == "betas" else value)
            for place, note in enumerate(draft.notes):
                if note.ours.startswith(f"trainer.args.{name}:"):
                    draft.notes[place] = replace(
                        note, ours=f"optimizer.{ours}: {shown(draft.values['optimizer'][ours])}"
                    )


def _parts_held_out(draft: Draft) -> bool:
    parts = draft.values.get("dataset", {}).get("parts", {})
    return any((part.get("split") or {}).get("eval") for part in parts.values())


def _take_back(draft: Draft, path: str, why: str, nearest: str = "") -> None:
    """Turn the note of a path that was written into one of a key without equivalent."""
    for place, note in enumerate(draft.notes):
        if note.ours.startswith(f"{path}:"):
            draft.notes.pop(place)
            draft.nothing(note.key, why, nearest)
            return


def rows_per_step(draft: Draft, devices: int) -> str:
    """How many rows a step takes here, and took there."""
    args = draft.values.get("trainer", {}).get("args", {})
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    fields = draft.config.parameters
    if any(isinstance(args.get(name), str) for name in names):
        return "how many rows a step takes is still to be said"
    batch, accumulated = (int(args.get(name, fields[name].default)) for name in names)
    told = f"{batch} x {accumulated} = {batch * accumulated} rows a step on one device"
    if devices > 1:
        told += f"; theirs ran on {devices}, so {batch * accumulated * devices}: launcher.num_processes={devices}"
    return told


# --- Datasets -------------------------------------------------------------------------------------

FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".gz")


@dataclass
class Rows:
    """One dataset as ours describes it; ``source`` is their key."""

    path: str
    source: str
    split: str = "train"
    config: str | None = None
    revision: str | None = None
    form: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    system: str | None = None
    held_out: str | None = None

    def __post_init__(self) -> None:
        self.path = "???" if is_unset(self.path) or self.path == HIDDEN else self.path

    def node(self) -> dict[str, Any]:
        """The keys of ``dataset`` that are not as they are anyway."""
        split = {"train": self.split} | ({"eval": self.held_out} if self.held_out else {})
        plain = {"config": self.config, "revision": self.revision, "form": self.form, "system": self.system}
        node = {"path": self.path} | {key: value for key, value in plain.items() if value is not None}
        node |= {"split": split} if split != {"train": "train"} else {}
        columns = {role: column for role, column in self.columns.items() if role != column}
        node |= {"columns": columns} if columns else {}
        return node | ({"limit": {"train": self.limit}} if self.limit else {})

    @property
    def is_file(self) -> bool:
        return self.path.endswith(FILES) or self.path.startswith((".", "/", "~")) or "*" in self.path


def lay_rows(draft: Draft, rows: Sequence[Rows], weights: Sequence[float] | None = None) -> None:
    """Write one dataset, or a mixture of several."""
    if len(rows) == 1:
        draft.choose("dataset", "local" if rows[0].is_file else "hub")
        draft.values["dataset"] = rows[0].node()
        draft.note("mapped", rows[0].source, f"dataset={draft.choices['dataset']} dataset.path: {rows[0].path}")
        return
    draft.choose("dataset", None)
    _make_alike(draft, rows)
    names = _names([one.path for one in rows])
    target = {"_target_": "runner.dataset.load.load_rows", "_partial_": True}
    node: dict[str, Any] = {"_target_": "runner.dataset.mix.mix_rows"}
    node["parts"] = {name: target | one.node() for name, one in zip(names, rows, strict=True)}
    if weights and len(weights) == len(rows):
        node["weights"] = dict(zip(names, map(float, weights), strict=True))
    draft.values["dataset"] = node
    told = f"dataset.parts: {', '.join(names)}"
    draft.note("mapped", rows[0].source, told, "drawn by weight" if "weights" in node else "each row once, shuffled")


def _make_alike(draft: Draft, rows: Sequence[Rows]) -> None:
    """Demonstrations of several kinds, or of kinds that nobody knows, become conversations before they are mixed."""
    forms = {one.form for one in rows}
    if draft.choices["trainer"] != "sft" or forms in ({"messages"}, {"prompt_completion"}, {"text"}):
        return
    if "text" in forms:
        draft.nothing(rows[0].source, "text and other rows, which do not mix", "two runs, the second from the first")
    else:
        draft.put("trainer.form", "messages")


def _names(paths: Sequence[str]) -> list[str]:
    """A word for each path, no two alike."""
    names: list[str] = []
    for path in paths:
        stem = re.sub(r"\.(jsonl?|csv|tsv|parquet)(\.gz)?$", "", path.rstrip("/").rpartition("/")[2])
        name = re.sub(r"\W+", "_", stem).strip("_").lower() or "rows"
        while name in names:
            name += "_"
        names.append(name)
    return names


def hold_out(rows: Rows, size: float) -> str:
    """Cut the last rows of a split off for evaluation, ``size`` of them or that share; what there is to say of it.

    Theirs are drawn at random, ours are the last ones: a slice can be said again, and by others.
    """
    told = "theirs are drawn at random, these are the last ones"
    found = re.fullmatch(r"(\w+)(?:\[:(\d+)(%?)\])?", rows.split)
    if not found:
        return ""
    name, end, percent = found[1], found[2], found[3]
    if size >= 1:
        count = int(size)
        cut = int(end) - count if end and not percent else -count
        if percent or cut == 0 or (end and cut < 0):
            return ""
        rows.split, rows.held_out = f"{name}[:{cut}]", f"{name}[{cut}:{end or ''}]"
        return told
    whole = int(end) if end else 100
    unit = "" if end and not percent else "%"
    cut = round(whole * (1 - size))
    if cut == whole:
        cut -= 1
        told += "; a slice counts whole per cents"
    if cut <= 0:
        return ""
    rows.split = f"{name}[:{cut}{unit}]"
    rows.held_out = f"{name}[{cut}{unit}:{end + percent if end else ''}]"
    return told


def held_out_share(draft: Draft, key: str, rows: Sequence[Rows]) -> None:
    """Hold out a share, or a number, of every dataset."""
    size = draft.take(key)
    if not size:
        if size is not None:
            draft.same(key, "nothing is held out")
        return
    if isinstance(size := draft.real(key, size), str):
        draft.nothing(key, f"{size} is set by the shell, and not in this file", "dataset.split.eval=<slice>")
        return
    told = [hold_out(one, size) for one in rows]
    if all(told):
        draft.note("mapped", key, f"dataset.split.eval: {rows[0].held_out}", told[0])
    else:
        draft.nothing(key, "the split is a slice already", "dataset.split.eval=<slice>")


# --- Adapters -------------------------------------------------------------------------------------


def open_adapter(draft: Draft, key: str, kind: Any) -> None:
    """Leave the adapter open, because to train every weight in its place would be another training."""
    draft.choose("peft", None)
    draft.put("peft._target_", "???")
    draft.open(key, f"no {kind}", "peft=lora; python -m runner --help lists the options of peft")


def refuse(key: str, value: Any, known: Iterable[str]) -> NoReturn:
    """Raise ConfigError for a method that has no trainer here."""
    cure = "python -m runner --help  (lists the trainers)"
    raise ConfigError(Fault(key, f"{value}: no trainer for it", f"one of {', '.join(known)}", cure))


def quantise(draft: Draft, key: str, bits: int, **settings: Any) -> None:
    """The base weights in 4 or 8 bits."""
    draft.choose("quant", f"{bits}bit")
    draft.note("mapped", key, f"quant={bits}bit")
    for name, value in settings.items():
        draft.put(f"quant.{name}", value)


def layers(value: Any) -> Any:
    """Target modules as peft takes them: all-linear, or a list of names, or a regular expression."""
    if isinstance(value, str) and "," in value:
        value = [word.strip() for word in value.split(",")]
    value = [value] if isinstance(value, str) and not re.search(r"[\\^$|()*]", value) else value
    return "all-linear" if value in (["all"], ["all-linear"], ["all_linear"]) else value


def adapter_dtype(draft: Draft, key: str) -> None:
    """Base weights below an adapter are kept in bfloat16."""
    draft.put("model.dtype", "bfloat16")
    if key:
        draft.note("mapped", key, "model.dtype: bfloat16", "the base below an adapter")


def lora_plus(draft: Draft, key: str, value: Any) -> None:
    """The second matrix learns faster."""
    if not value:
        draft.same(key, "off")
        return
    draft.choose("optimizer", "lora_plus")
    draft.map(key, "optimizer.groups", {"lora_B": {"lr_ratio": draft.real(key, value)}}, "optimizer=lora_plus")
