"""LLaMA-Factory: one flat YAML, in which ``stage`` chooses the method, and datasets are names in a list of theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.dialect import rule
from runner.dialect.draft import Draft
from runner.dialect.rule import Dialect, Rows

TRAINERS = {"pt": "sft", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
# The losses of their stage dpo that are a trainer of their own with us.
LOSSES = {"orpo": "orpo", "simpo": "cpo"}
FORMS: dict[str, str | None] = {
    "sft": "prompt_completion",
    "reward": "preference",
    "dpo": "preference",
    "orpo": "preference",
}
FORMS |= {"cpo": "preference", "kto": "unpaired", "ppo": None}
# Their roles of columns, by ours.
ROLES = {"prompt": "input", "response": "target", "system": "system", "chosen": "chosen", "rejected": "rejected"}
ROLES |= {"kto_tag": "label"}
# Their names of templates for models whose own is the same in substance.
CHATML = ("chatml", "chatml_de")


def begin(draft: Draft, reading: Any) -> None:
    """Stage, model, datasets and tuner, which the other keys depend on."""
    _trainer(draft)
    _model(draft)
    _datasets(draft, reading)
    _tuner(draft)


# --- Method ---------------------------------------------------------------------------------------


def _trainer(draft: Draft) -> None:
    stage, loss = draft.take("stage", "sft"), draft.take("pref_loss", "sigmoid")
    if stage == "dpo" and loss in LOSSES:
        draft.pick("stage", "trainer", LOSSES[loss])
        draft.note("mapped", "pref_loss", f"trainer={LOSSES[loss]}")
        if loss == "simpo":
            draft.put("trainer.args.loss_type", "simpo")
            draft.put("trainer.args.cpo_alpha", 0.0)
        return
    if stage not in TRAINERS:
        rule.refuse("stage", stage, TRAINERS)
    draft.pick("stage", "trainer", TRAINERS[stage])
    if draft.has("pref_loss") and stage == "dpo":
        if loss == "kto_pair":
            draft.nothing("pref_loss", "no kto_pair in DPO", "trainer=kto")
        elif loss == "sigmoid":
            draft.same("pref_loss", "loss_type is [sigmoid]")
        else:
            draft.map("pref_loss", "trainer.args.loss_type", [loss])


def _beta(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] in ("dpo", "kto"):
        draft.map(key, "kl_coef", draft.real(key, value), f"the beta of {draft.choices['trainer']}")
    elif draft.choices["trainer"] in ("orpo", "cpo"):
        draft.arg(key, "beta", draft.real(key, value))
    else:
        draft.same(key, "of another stage")


def _sft_share(draft: Draft, key: str, value: Any) -> None:
    if not value:
        draft.same(key, "off")
    else:
        draft.put("trainer.args.loss_weights", [1.0, draft.real(key, value)])
        draft.map(key, "trainer.args.loss_type", ["sigmoid", "sft"], f"loss_weights: [1.0, {value}]")


# --- Model and tuner ------------------------------------------------------------------------------


def _model(draft: Draft) -> None:
    draft.choose("model", "hub")
    base, adapter = draft.take("model_name_or_path", "???"), draft.take("adapter_name_or_path")
    draft.map("model_name_or_path", "model.path", base)
    if adapter:
        paths = [path.strip() for path in str(adapter).split(",")]
        draft.map("adapter_name_or_path", "model.path", paths[0], "its base is found from it")
        if draft.take("create_new_adapter") or draft.keys.get("stage") in ("dpo", "kto", "ppo"):
            draft.put("model.merge", True)
        for path in paths[1:]:
            draft.nothing("adapter_name_or_path", f"{path}: one adapter at a time", "python -m runner export")
    template = draft.take("template")
    if template in CHATML:
        draft.pick("template", "template", "chatml")
    elif template:
        draft.same("template", "the tokenizer's own; template=chatml or plain where it has none")


def _tuner(draft: Draft) -> None:
    kind = draft.take("finetuning_type", "lora")
    draft.keys.setdefault("finetuning_type", kind)
    if kind == "lora":
        draft.pick("finetuning_type", "peft", "lora")
        _lora(draft)
    elif kind == "freeze":
        draft.pick("finetuning_type", "peft", "freeze")
        _freeze(draft)
    elif kind == "oft":
        draft.pick("finetuning_type", "peft", "oft")
        for key, ours in (("oft_rank", "r"), ("oft_block_size", "oft_block_size")):
            if draft.has(key):
                draft.map(key, f"peft.{ours}", draft.take(key))
        if draft.has("oft_target"):
            draft.map("oft_target", "peft.target_modules", rule.layers(draft.take("oft_target")))
    elif kind == "full":
        draft.same("finetuning_type", "every weight is trained")
    else:
        rule.open_adapter(draft, "finetuning_type", kind)
    if kind != "lora":
        for key in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target"):
            if draft.has(key):
                draft.same(key, "no LoRA")
    dtype = "bfloat16" if draft.keys.get("bf16") or draft.keys.get("pure_bf16") else None
    dtype = dtype or ("float16" if draft.keys.get("fp16") else "float32")
    if kind in ("lora", "oft") or draft.keys.get("pure_bf16"):
        draft.put("model.dtype", dtype)
        draft.note("mapped", "finetuning_type", f"model.dtype: {dtype}", "the weights below an adapter")
    _quant(draft, dtype)


def _quant(draft: Draft, dtype: str) -> None:
    bits = draft.take("quantization_bit")
    if bits in (4, 8):
        if bits == 4 and dtype != "bfloat16":
            draft.put("quant.bnb_4bit_compute_dtype", dtype)
        rule.quantise(draft, "quantization_bit", bits)
        if bits == 4 and draft.take("double_quantization", True) is False:
            draft.map("double_quantization", "quant.bnb_4bit_use_double_quant", False)
        if bits == 4 and draft.take("quantization_type", "nf4") != "nf4":
            draft.map("quantization_type", "quant.bnb_4bit_quant_type", draft.keys["quantization_type"])
    elif bits:
        draft.nothing("quantization_bit", f"no {bits} bits", "quant=4bit or quant=8bit")


def _lora(draft: Draft) -> None:
    rank = draft.take("lora_rank", 8)
    draft.map("lora_rank", "peft.r", rank)
    alpha = draft.take("lora_alpha")
    draft.implied |= {"lora_alpha"} if alpha is None else set()
    draft.keys["lora_alpha"] = alpha = alpha or rank * 2
    draft.map("lora_alpha", "peft.lora_alpha", alpha)
    draft.map("lora_target", "peft.target_modules", rule.layers(draft.take("lora_target", "all")))
    if draft.has("lora_dropout"):
        draft.map("lora_dropout", "peft.lora_dropout", draft.take("lora_dropout"))
    for key, ours in (("use_rslora", "use_rslora"), ("use_dora", "use_dora")):
        if draft.take(key):
            draft.map(key, f"peft.{ours}", True)
    if draft.take("pissa_init"):
        steps = draft.take("pissa_iter", 16)
        draft.map("pissa_init", "peft.init_lora_weights", "pissa" if steps == -1 else f"pissa_niter_{steps}")
    if extra := draft.take("additional_target"):
        names = [name.strip() for name in extra.split(",")]
        draft.map("additional_target", "peft.modules_to_save", names)


def _freeze(draft: Draft) -> None:
    count = draft.take("freeze_trainable_layers", 2)
    if count > 0:
        draft.map("freeze_trainable_layers", "peft.layers", count)
        draft.put("peft.also", [])
    else:
        near = r"peft=pattern 'peft.matching=[\"layers\\.(0|1)\\.\"]'"
        draft.nothing("freeze_trainable_layers", "the first layers, and ours are the last", near)
    modules = draft.take("freeze_trainable_modules", "all")
    if modules != "all":
        draft.nothing("freeze_trainable_modules", f"{modules} of a layer", "peft=pattern peft.matching=[...]")
    if extra := draft.take("freeze_extra_modules"):
        draft.nothing("freeze_extra_modules", str(extra), "peft.also=[norm, head]")


# --- Datasets -------------------------------------------------------------------------------------


def _datasets(draft: Draft, reading: Any) -> None:
    folder = str(draft.take("dataset_dir", "data"))
    if "dataset_dir" in draft.keys:
        draft.machine("dataset_dir", "its dataset_info.json was read" if _info(reading, folder) else "")
    info = _info(reading, folder)
    names = _list(draft.take("dataset"))
    rows = [_rows(draft, name, folder, info) for name in names] or [Rows("???", "dataset")]
    limit = draft.take("max_samples")
    if limit and isinstance(limit := draft.real("max_samples", limit), str):
        draft.nothing("max_samples", f"{limit} is set by the shell", "dataset.limit.train=<rows>")
    elif limit:
        for one in rows:
            one.limit = int(limit)
        draft.note("mapped", "max_samples", f"dataset.limit.train: {limit}", "the rows are shuffled first")
    held_out = _list(draft.take("eval_dataset"))
    if held_out and len(rows) == 1 and held_out == names:
        rows[0].held_out = rows[0].split
    elif held_out:
        why = f"{', '.join(held_out)}: held-out rows of another dataset"
        draft.nothing("eval_dataset", why, "python -m runner evaluate <run> dataset=...")
    rule.held_out_share(draft, "val_size", rows)
    weights = _list(draft.take("interleave_probs"))
    strategy = draft.take("mix_strategy", "concat")
    rule.lay_rows(draft, rows, [float(word) for word in weights] or None)
    if weights:
        draft.note("mapped", "interleave_probs", "dataset.weights")
    if strategy == "interleave_under":
        draft.nothing("mix_strategy", "small parts repeat; none is cut short", "dataset.weights")
    elif draft.has("mix_strategy"):
        draft.same("mix_strategy", "each row once" if strategy == "concat" else "small parts repeat")
    _masks(draft, rows)


def _info(reading: Any, folder: str) -> dict[str, Any]:
    """Their list of datasets, from the folder that is named, or from beside the file."""
    beside = reading.path.parent
    for place in (Path(folder), beside / folder, beside, beside / Path(folder).name):
        file = place / "dataset_info.json"
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8"))
    return {}


def _list(value: Any) -> list[str]:
    words = value if isinstance(value, list) else str(value or "").split(",")
    return [str(word).strip() for word in words if str(word).strip()]


def _rows(draft: Draft, name: str, folder: str, info: Mapping[str, Any]) -> Rows:
    """One dataset by its name in their list; without it, by a guess that is told."""
    form = FORMS[str(draft.choices["trainer"])]
    if draft.keys.get("stage") == "pt":
        form = "text"
    entry = info.get(name)
    if entry is None:
        path = name if "/" in name else f"{folder.rstrip('/')}/{name}.json"
        if "/" not in name:
            draft.nothing("dataset", f"{name} is in no dataset_info.json here", f"dataset.path: {path}, a guess")
        return Rows(path, "dataset", form=None if form == "prompt_completion" else form)
    path = entry.get("hf_hub_url") or (f"{folder.rstrip('/')}/{entry['file_name']}" if "file_name" in entry else "???")
    if path == "???":
        draft.nothing("dataset", f"{name} is neither a file nor of the hub", "dataset.path=<folder>")
    rows = Rows(path, "dataset", split=entry.get("split", "train"), config=entry.get("subset"), form=form)
    rows.limit = entry.get("num_samples")
    columns, chat = dict(entry.get("columns") or {}), entry.get("formatting", "alpaca") in ("sharegpt", "openai")
    if chat and form == "prompt_completion":
        rows.form = "messages"
    _columns(draft, rows, columns, chat)
    tags = dict(entry.get("tags") or {})
    if {tags.get("role_tag", "from"), tags.get("content_tag", "value")} not in ({"from", "value"}, {"role", "content"}):
        draft.nothing("dataset", f"turns of {name} with {tags}", "dataset.map._target_=<function of a row>")
    return rows


def _columns(draft: Draft, rows: Rows, columns: dict[str, str], chat: bool) -> None:
    """The columns that have other names than ours would find."""
    below = columns.pop("query", None)
    if columns.pop("history", None):
        draft.nothing("dataset", "earlier turns in a column history", "dataset.map._target_=<function of a row>")
    if column := columns.pop("messages", "conversations" if chat else None):
        role = "messages" if rows.form == "messages" else "prompt"
        rows.columns |= {role: column} if column not in ("messages", "conversations", role) or role == "prompt" else {}
    for theirs, column in columns.items():
        if theirs in ROLES:
            rows.columns[ROLES[theirs]] = column
        elif theirs != "tools":
            draft.nothing("dataset", f"the column {column} as {theirs}")
    plain = {"input": "instruction", "target": "output"}
    if {**plain, **rows.columns} == plain and rows.form == "prompt_completion":
        rows.columns = {}  # found by name, with what stands below the instruction
    elif below and below not in ("input", ""):
        draft.nothing("dataset", f"the column {below} below the prompt", "dataset.map._target_=<function of a row>")


def _masks(draft: Draft, rows: list[Rows]) -> None:
    """What is trained: by theirs the answers alone, unless they say otherwise."""
    whole, last = draft.take("train_on_prompt"), draft.take("mask_history")
    if draft.choices["trainer"] != "sft":
        return
    chats = any(one.form == "messages" for one in rows)
    if last:
        draft.pick("mask_history", "weight", "last_round")
    elif whole and not chats:
        draft.arg("train_on_prompt", "completion_only_loss", False)
    elif whole:
        draft.same("train_on_prompt", "whole conversations are trained on")
    elif chats:
        draft.keys["train_on_prompt"] = False
        draft.map("train_on_prompt", "trainer.args.assistant_only_loss", True, "weight=answers for unknown templates")


# --- The other keys -------------------------------------------------------------------------------


def _reward_model(draft: Draft, key: str, value: Any) -> None:
    """The reward of PPO, a model."""
    if draft.choices["trainer"] != "ppo":
        draft.same(key, "of another stage")
    elif str(value).startswith("http"):
        word = f"reward=remote reward.remote.url={value}"
        draft.words += word.split()
        draft.nothing(key, "a server is typed and never in a file", word)
    else:
        draft.choose("reward", "model")
        draft.map(key, "reward.model.path", value, "reward=model")


def _cutoff(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] == "ppo":
        draft.nothing(key, "PPO takes prompts as they are", "dataset.limit, or a dataset.map that leaves long rows out")
    else:
        draft.arg(key, "max_length", value)


def _of_ppo(name: str) -> rule.Rule:
    """A field of PPO; for any other stage it does nothing."""

    def put(draft: Draft, key: str, value: Any) -> None:
        if draft.choices["trainer"] == "ppo":
            draft.arg(key, name, value)
        else:
            draft.same(key, "of another stage")

    return put


def _score_norm(draft: Draft, key: str, value: Any) -> None:
    if value:
        draft.nothing(key, "", "trainer.args.score_normalization=<how>")
    else:
        draft.same(key, "off")


def _flash(draft: Draft, key: str, value: Any) -> None:
    names = {"sdpa": "sdpa", "disabled": "eager"}
    if value in names:
        draft.map(key, "model.attention", names[value])
    else:
        draft.same(key, "the best attention that is installed")


def _packing(draft: Draft, key: str, value: Any) -> None:
    draft.arg(key, "packing", bool(value), "no row sees another" if key == "neat_packing" else "")


def _streaming(draft: Draft, key: str, value: Any) -> None:
    draft.map(key, "dataset.streaming", True) if value else draft.same(key, "off")


def _optimizer(name: str) -> rule.Rule:
    def put(draft: Draft, key: str, value: Any) -> None:
        draft.arg(key, "optim", name) if value else draft.same(key, "off")

    return put


def _stopping(draft: Draft, key: str, value: Any) -> None:
    draft.choose("callback", "early_stopping")
    draft.put("trainer.args.metric_for_best_model", "eval_loss")
    draft.put("trainer.args.load_best_model_at_end", True)
    draft.map(key, "callback.early_stopping.early_stopping_patience", int(value), "callback=early_stopping")


RULES: dict[str, rule.Rule] = {
    "cutoff_len": _cutoff,
    "pref_beta": _beta,
    "pref_ftx": _sft_share,
    "dpo_label_smoothing": "trainer.args.label_smoothing",
    "kto_chosen_weight": "trainer.args.desirable_weight",
    "kto_rejected_weight": "trainer.args.undesirable_weight",
    "model_revision": "model.revision",
    "reward_model": _reward_model,
    "ppo_epochs": _of_ppo("num_ppo_epochs"),
    "ppo_target": _of_ppo("kl_target"),
    "ppo_whiten_rewards": _of_ppo("whiten_rewards"),
    "ppo_buffer_size": _of_ppo("num_mini_batches"),
    "ppo_score_norm": _score_norm,
    "max_new_tokens": _of_ppo("response_length"),
    "temperature": _of_ppo("temperature"),
    "flash_attn": _flash,
    "packing": _packing,
    "neat_packing": _packing,
    "streaming": _streaming,
    "default_system": "dataset.system",
    "loraplus_lr_ratio": rule.lora_plus,
    "use_galore": _optimizer("galore_adamw"),
    "use_apollo": _optimizer("apollo_adamw"),
    "early_stopping_steps": _stopping,
    "use_dft_loss": lambda draft, key, value: draft.arg(key, "loss_type", "dft" if value else "nll"),
    "disable_gradient_checkpointing": lambda draft, key, value: rule.checkpointing(draft, key, not value),
    "enable_liger_kernel": lambda draft, key, value: draft.machine(key, "trainer.args.use_liger_kernel=true"),
    "disable_shuffling": lambda draft, key, value: draft.map(key, "dataset.shuffle", not value),
    "use_swanlab": lambda draft, key, value: rule.tracker(draft, key, "swanlab" if value else "none"),
}
MACHINE = {
    "overwrite_cache": "rows are prepared once and cached",
    "tokenized_path": "rows are prepared once and cached",
    "plot_loss": "curves are always drawn",
    "include_num_input_tokens_seen": "",
    "compute_accuracy": "the share of right tokens is always measured",
    "ddp_timeout": rule.SPREAD,
    "low_cpu_mem_usage": "",
    "quantization_method": "bitsandbytes",
    "quantization_device_map": "",
    "print_param_status": "",
    "use_unsloth": "kernels",
    "use_unsloth_gc": "kernels",
    "upcast_layernorm": "",
    "predict_with_generate": "python -m runner predict",
    "do_predict": "python -m runner predict",
    "infer_backend": "",
    "export_dir": "python -m runner export",
    "swanlab_project": "",
    "swanlab_mode": "",
    "ray_run_name": "",
    "ray_num_workers": rule.SPREAD,
}
NOTHING = {
    "pref_bco_weight": ("", "trainer.args.loss_type=[sigmoid, bco_pair] trainer.args.loss_weights=[1.0, 1.0]"),
    "ref_model": ("the reference is the start model", ""),
    "reward_model_adapters": ("", "reward.model.path=<the folder with the adapter>"),
    "reward_model_type": ("a folder with an adapter or a whole model, as it is", "reward.model.path"),
    "use_llama_pro": ("no new blocks", "peft=freeze"),
    "use_badam": ("no BAdam", "optimizer=adafactor"),
    "use_muon": ("no Muon", "optimizer._target_=<class>"),
    "rope_scaling": ("", "a config.json of the model that has it"),
    "shift_attn": ("no shifted attention", ""),
    "resize_vocab": ("tokens are chosen among those that there are", ""),
    "new_special_tokens": ("tokens are chosen among those that there are", ""),
    "tool_format": ("tools are written by the chat template", "template=hermes or react"),
    "enable_thinking": ("thoughts are written by the chat template", "weight=no_empty_thoughts"),
    "image_max_pixels": ("texts only", ""),
    "top_p": ("PPO samples from all tokens", ""),
    "top_k": ("PPO samples from all tokens", ""),
}
SAME = {
    "pure_bf16": "model.dtype says so",
    "reward_model_quantization_bit": "off",
    "fp16": "off",
}


def defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What LLaMA-Factory does where a file is silent, and TRL would do something else."""
    told: dict[str, Any] = {"learning_rate": 5e-5, "finetuning_type": "lora"}
    if keys.get("stage") != "ppo":
        told["cutoff_len"] = 2048
    if keys.get("finetuning_type", "lora") == "lora":
        told |= {"lora_rank": 8, "lora_target": "all"}
    return told


DIALECT = Dialect(begin, RULES, MACHINE, NOTHING, SAME, defaults)
