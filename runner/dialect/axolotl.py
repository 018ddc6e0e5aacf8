"""Axolotl: one YAML, in which ``rl`` chooses the method and each dataset has a ``type``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.dataset.convert import SPEAKERS
from runner.dialect import rule
from runner.dialect.draft import Draft, shown
from runner.dialect.rule import Dialect, Rows

TRAINERS = {"dpo": "dpo", "ipo": "dpo", "true": "dpo", "kto": "kto", "orpo": "orpo", "simpo": "cpo", "grpo": "grpo"}
TRAINERS |= {"gdpo": "grpo"}

# Types of their datasets: our form, and the columns that ours would not find by name.
TYPES: dict[str, tuple[str | None, dict[str, str]]] = {
    "alpaca": ("prompt_completion", {}),
    "alpaca_chat": ("prompt_completion", {}),
    "alpaca_w_system": ("prompt_completion", {}),
    "gpteacher": ("prompt_completion", {"input": "instruction", "target": "response"}),
    "oasst": ("prompt_completion", {"input": "INSTRUCTION", "target": "RESPONSE"}),
    "chat_template": ("messages", {}),
    "sharegpt": ("messages", {}),
    "completion": ("text", {}),
    "pretrain": ("text", {}),
    "intel": ("preference", {"input": "question"}),
    "icr": ("preference", {"input": "input"}),
    "argilla": (
        "preference",
        {"input": "instruction", "chosen": "chosen_response", "rejected": "rejected_response"},
    ),
    "prompt_pairs": ("preference", {"input": "prompt"}),
    "ultra": ("preference", {}),
    "argilla_chat": ("preference", {}),
    "default": ("preference", {}),
}
KTO_COLUMNS = {
    "argilla": {"input": "instruction", "target": "completion"},
    "intel": {"input": "question", "target": "completion"},
    "prompt_pairs": {"input": "prompt", "target": "completion"},
    "ultra": {"input": "prompt", "target": "completion"},
}
# Keys of a user-defined type, by our role.
USER_FIELDS = {
    "field_prompt": "input",
    "field_instruction": "input",
    "field_output": "target",
    "field_chosen": "chosen",
    "field_rejected": "rejected",
    "field_completion": "target",
    "field_label": "label",
    "field_system": "system",
}
# Readers of datasets that stand where a path is expected.
READERS = ("json", "csv", "parquet", "text", "arrow")
ALPACA_WORDS = "the words around an alpaca row are theirs; ours is the model's chat template"
TURN_KEYS = ({"role": "role", "content": "content"}, {"role": "from", "content": "value"})


def begin(draft: Draft, reading: Any) -> None:
    """Method, model, datasets and adapter, which the other keys depend on."""
    _trainer(draft)
    _model(draft)
    rows = _datasets(draft)
    _masks(draft, rows)
    _adapter(draft)
    _rewards(draft)


# --- Method ---------------------------------------------------------------------------------------


def _trainer(draft: Draft) -> None:
    method = str(draft.take("rl", "")).lower()
    if draft.keys.get("reward_model") is True:
        draft.pick("reward_model", "trainer", "reward")
    elif draft.keys.get("process_reward_model"):
        rule.refuse("process_reward_model", "a reward of each step of an answer", ("reward_model",))
    elif method in TRAINERS:
        draft.pick("rl", "trainer", TRAINERS[method])
    elif method not in ("", "none", "false"):
        rule.refuse("rl", method, TRAINERS)
    else:
        draft.choose("trainer", "sft")
    if method == "gdpo":
        draft.put("trainer.args.multi_objective_aggregation", "normalize_then_sum")
    if method == "ipo":
        draft.put("trainer.args.loss_type", ["ipo"])
    if method == "simpo":
        draft.put("trainer.args.loss_type", "simpo")
        draft.put("trainer.args.cpo_alpha", float(draft.take("cpo_alpha", 0.0)))


def _beta(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] in ("dpo", "kto", "grpo"):
        draft.map(key, "kl_coef", draft.real(key, value), f"the beta of {draft.choices['trainer']}")
    else:
        draft.arg(key, "beta", draft.real(key, value))


def _rpo(draft: Draft, key: str, value: Any) -> None:
    draft.put("trainer.args.loss_weights", [1.0, draft.real(key, value)])
    draft.map(key, "trainer.args.loss_type", ["sigmoid", "sft"], f"loss_weights: [1.0, {value}]")


# --- Model ----------------------------------------------------------------------------------------


def _model(draft: Draft) -> None:
    draft.choose("model", "hub")
    adapter = draft.take("lora_model_dir")
    draft.map("base_model", "model.path", draft.take("base_model", "???"))
    if adapter:
        draft.map("lora_model_dir", "model.path", adapter, "training goes on with this adapter, and peft=none")
    if draft.keys.get("bf16") in (True, "auto", "full"):
        draft.taken.add("bf16")
        why = "the base below it" if draft.has("adapter") else "as theirs is loaded; float32 keeps small updates"
        draft.map("bf16", "model.dtype", "bfloat16", why)
    template = draft.take("chat_template", "tokenizer_default")
    if template == "jinja":
        draft.map("chat_template_jinja", "model.tokenizer.chat_template", draft.take("chat_template_jinja"))
        draft.same("chat_template", "chat_template_jinja says which")
    elif template == "chatml":
        draft.pick("chat_template", "template", "chatml")
    elif draft.has("chat_template") and template != "tokenizer_default":
        near = "model.tokenizer.chat_template=<file.jinja>, where the tokenizer has none"
        draft.nothing("chat_template", "ours is the tokenizer's own", near)
    elif draft.has("chat_template"):
        draft.same("chat_template", "the tokenizer's own")


def _tokens(draft: Draft, key: str, value: Any) -> None:
    for name, token in (value or {}).items():
        if name in ("pad_token", "eos_token"):
            draft.map(key, f"model.tokenizer.{name}", token)
        else:
            draft.nothing(key, f"{name}: {token}; tokens are chosen among those that there are")


# --- Datasets -------------------------------------------------------------------------------------


def _datasets(draft: Draft) -> list[Rows]:
    key = next((name for name in ("datasets", "pretraining_dataset") if draft.has(name)), "datasets")
    entries = draft.take(key) or []
    entries = [{"path": entries}] if isinstance(entries, str) else entries
    rows = [_rows(draft, key, dict(entry)) for entry in entries]
    if not rows:
        draft.nothing("datasets", "none", "dataset=hub dataset.path=<org/name>")
        rows = [Rows("???", "datasets")]
    tests = draft.take("test_datasets") or []
    if tests:
        _held_out(draft, rows, dict(tests[0]), len(tests))
    else:
        rule.held_out_share(draft, "val_set_size", rows)
    rule.lay_rows(draft, rows)
    return rows


def _rows(draft: Draft, key: str, entry: dict[str, Any]) -> Rows:
    files = entry.pop("data_files", None)
    kind = entry.pop("ds_type", None)
    path = str(entry.pop("path", "???"))
    if files and (path in READERS or kind or path == "???"):
        files = [files] if isinstance(files, str) else files
        path = files[0]
        if len(files) > 1:
            draft.nothing(key, f"{', '.join(files[1:])}: one file or a pattern", "dataset.path=data/*.jsonl")
    rows = Rows(path, key, split=entry.pop("split", None) or "train")
    rows.config, rows.revision = entry.pop("name", None), entry.pop("revision", None)
    _form(draft, key, rows, entry.pop("type", None), entry)
    for name, value in entry.items():
        if value not in (None, False, "tokenizer_default"):
            draft.nothing(key, f"{name}: {shown(value)}", _near(name))
    return rows


def _form(draft: Draft, key: str, rows: Rows, kind: Any, entry: dict[str, Any]) -> None:
    """The form of the rows, and which columns play which role."""
    if isinstance(kind, Mapping):
        _user_defined(draft, key, rows, dict(kind))
        return
    words = str(kind or "").split(".")
    preferred = draft.choices["trainer"] not in ("sft", "grpo")
    name = words[-1] if preferred and words[-1] in TYPES else words[0].removesuffix("_chat") or "chat_template"
    if draft.choices["trainer"] == "kto":
        rows.form, rows.columns = "unpaired", dict(KTO_COLUMNS.get(words[-1], {}))
    elif draft.choices["trainer"] == "grpo":
        draft.nothing(
            key, f"type: {kind}; their function makes the prompts", "dataset.map._target_=<function of a row>"
        )
        return
    elif name in TYPES:
        form, columns = TYPES[name]
        rows.form, rows.columns = form, dict(columns)
    elif kind:
        draft.nothing(key, f"type: {kind}; the form is found from the columns", "dataset.columns.<role>=<column>")
    if name == "alpaca" or words[0].startswith("alpaca"):
        draft.nothing(key, ALPACA_WORDS, "model.tokenizer.chat_template=<file.jinja>")
    _columns(draft, key, rows, entry)


def _columns(draft: Draft, key: str, rows: Rows, entry: dict[str, Any]) -> None:
    roles = {"field_chosen": "chosen", "field_rejected": "rejected", "field": "text"}
    for name, role in roles.items():
        if column := entry.pop(name, None):
            rows.columns[role] = column
    if "field_messages" in entry and rows.form == "preference":
        why = "one turn as chosen, where ours is a list of turns"
        draft.nothing(key, why, "dataset.map._target_=<function of a row>, where rows are so")
    if column := entry.pop("field_messages", None):
        role = "messages" if rows.form == "messages" else "prompt"
        if column != role:
            rows.columns[role] = column
    turn = entry.pop("message_property_mappings", None) or {}
    turn |= {
        part: entry.pop(f"message_field_{part}") for part in ("role", "content") if f"message_field_{part}" in entry
    }
    if turn and {"role": "role", "content": "content"} | turn not in TURN_KEYS:
        draft.nothing(key, f"turns with {shown(turn)}", "dataset.map._target_=<function of a row>")
    roles = entry.get("roles") or {}
    if all(SPEAKERS.get(str(name).lower()) == role for role, names in roles.items() for name in names):
        entry.pop("roles", None)
    if entry.get("roles_to_train") in (["assistant"], ["gpt"], ["assistant", "gpt"], ["gpt", "assistant"]):
        entry.pop("roles_to_train")
    if entry.get("train_on_eos") == "turn":
        entry.pop("train_on_eos")


def _user_defined(draft: Draft, key: str, rows: Rows, kind: dict[str, Any]) -> None:
    forms = {"dpo": "preference", "orpo": "preference", "cpo": "preference", "reward": "preference", "kto": "unpaired"}
    rows.form = forms.get(str(draft.choices["trainer"]), "prompt_completion")
    for name, role in USER_FIELDS.items():
        column = kind.pop(name, None)
        if column and (name, column) != ("field_label", True):
            rows.columns[role] = str(column)
    for name, value in kind.items():
        if value:
            why = f"{name}: {shown(value)}; turns are written by the chat template"
            draft.nothing(key, why, "dataset.map._target_=<function of a row>")


def _near(name: str) -> str:
    near = {
        "roles_to_train": "weight=answers, or a rule of weights of your own",
        "message_field_training": "weight=message weight.key=<key>",
        "train_on_eos": "",
        "chat_template": "model.tokenizer.chat_template=<file.jinja>",
        "drop_system_message": "dataset.map._target_=<function of a row>",
        "split_thinking": "dataset.map._target_=<function of a row>",
        "shards": "dataset.limit.train=<rows>",
    }
    return near.get(name, "")


def _held_out(draft: Draft, rows: list[Rows], entry: dict[str, Any], count: int) -> None:
    same = len(rows) == 1 and count == 1 and entry.get("path") == rows[0].path
    if same:
        rows[0].held_out = entry.get("split") or "test"
        draft.note("mapped", "test_datasets", f"dataset.split.eval: {rows[0].held_out}")
    else:
        draft.nothing(
            "test_datasets", "held-out rows of another dataset", "python -m runner evaluate <run> dataset=..."
        )
    if draft.take("val_set_size"):
        draft.same("val_set_size", "test_datasets counts")


def _masks(draft: Draft, rows: list[Rows]) -> None:
    """What is trained: by theirs the answers alone, unless they say otherwise."""
    on_inputs = draft.take("train_on_inputs", False)
    if draft.choices["trainer"] != "sft":
        if draft.has("train_on_inputs"):
            draft.same("train_on_inputs", "prompts are never trained on")
        return
    forms = {one.form for one in rows}
    if forms <= {"prompt_completion"}:
        if on_inputs:
            draft.arg("train_on_inputs", "completion_only_loss", False)
        else:
            draft.same("train_on_inputs", "of prompt and completion the completion is trained on")
    elif forms <= {"text"}:
        draft.same("train_on_inputs", "text is trained on as a whole")
    elif on_inputs:
        draft.same("train_on_inputs", "whole conversations are trained on")
    else:
        why = "where TRL does not know the template: weight=answers instead"
        draft.map("train_on_inputs", "trainer.args.assistant_only_loss", True, why)


# --- Adapter and rewards --------------------------------------------------------------------------


def _adapter(draft: Draft) -> None:
    kind = draft.take("adapter")
    if not kind or draft.keys.get("lora_model_dir"):
        names = ("adapter", "lora_r", "lora_alpha", "lora_dropout", "lora_target_linear", "lora_target_modules")
        for name in names:
            if draft.has(name):
                draft.machine(name, "the adapter that is there says so") if kind else draft.same(name, "no adapter")
        return
    if kind not in ("lora", "qlora"):
        rule.open_adapter(draft, "adapter", kind)
        return
    draft.pick("adapter", "peft", "lora")
    for name, ours in (("lora_r", "r"), ("lora_alpha", "lora_alpha"), ("lora_dropout", "lora_dropout")):
        if draft.has(name):
            draft.map(name, f"peft.{ours}", draft.take(name))
    modules = draft.take("lora_target_modules")
    if draft.take("lora_target_linear"):
        draft.map("lora_target_linear", "peft.target_modules", "all-linear")
        if modules:
            draft.same("lora_target_modules", "lora_target_linear has them all")
    elif modules:
        draft.map("lora_target_modules", "peft.target_modules", rule.layers(modules))
    for name, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if draft.take(name):
            rule.quantise(draft, name, bits)


def _rewards(draft: Draft) -> None:
    """The nested settings of GRPO, and its rewards."""
    settings = draft.take("trl") or {}
    if not settings:
        return
    for name, value in settings.items():
        key = f"trl.{name}"
        draft.keys[key] = value
        if name == "reward_funcs":
            own_rewards(draft, key, value, settings.get("reward_weights"))
        elif name == "reward_weights":
            draft.taken.add(key)
        elif name == "beta":
            _beta(draft, key, value)
        elif name == "scale_rewards":
            draft.arg(key, "scale_rewards", {True: "group", False: "none"}.get(value, value))
        elif name in ("use_vllm", *VLLM):
            draft.machine(key, "trainer.args.use_vllm=true, and its settings under TRL's names")
        else:
            draft.arg(key, name, value)


VLLM = (
    *("vllm_device", "vllm_dtype", "vllm_gpu_memory_utilization", "vllm_max_model_len", "vllm_server_host"),
    *("vllm_server_port", "vllm_server_timeout", "vllm_mode", "vllm_enable_prefix_caching"),
)


def own_rewards(draft: Draft, key: str, names: Any, weights: Any = None) -> None:
    """Functions of the user's own, which only the command line may let run."""
    for place, name in enumerate([names] if isinstance(names, str) else names):
        short, package = name.rpartition(".")[2], name.partition(".")[0]
        word = f"reward.{short}._target_={name}"
        draft.words += [word, *([f"reward.{short}.weight={weights[place]}"] if weights else [])]
        if (allow := f"allow=[{package}]") not in draft.words:
            draft.words.append(allow)
        draft.nothing(key, f"{name} is code of your own, which is allowed when it is typed", f"{word} {allow}")


# --- The other keys -------------------------------------------------------------------------------


def _per_epoch(draft: Draft, key: str, value: Any) -> None:
    """So many times in an epoch, which TRL takes as a share of all steps."""
    name = "eval" if key.startswith("evals") else "save"
    if not float(value):
        draft.arg(key, f"{name}_strategy", "no", "never")
        return
    epochs = float(draft.keys.get("num_epochs") or 1)
    draft.put(f"trainer.args.{name}_strategy", "steps")
    share = round(1 / (float(value) * epochs), 6)
    if share >= 1:
        draft.put(f"trainer.args.{name}_strategy", "epoch")
        draft.note("mapped", key, f"trainer.args.{name}_strategy: epoch")
    else:
        draft.map(key, f"trainer.args.{name}_steps", share, f"a share of all steps: {value} in each of {epochs:g}")


def _steps(draft: Draft, key: str, value: Any) -> None:
    """Every so many steps, which needs the strategy too."""
    draft.put(f"trainer.args.{key.partition('_')[0]}_strategy", "steps")
    draft.map(key, f"trainer.args.{key}", value)


def _scheduler(draft: Draft, key: str, value: Any) -> None:
    if value in ("one_cycle", "rex"):
        draft.arg(key, "lr_scheduler_type", "cosine", f"there is no {value}")
    elif value == "cosine" and draft.has("cosine_min_lr_ratio"):
        draft.arg(key, "lr_scheduler_type", "cosine_with_min_lr")
    else:
        draft.arg(key, "lr_scheduler_type", value)


def _least_rate(draft: Draft, key: str, value: Any) -> None:
    if draft.keys.get("lr_scheduler") == "cosine":
        draft.arg(key, "lr_scheduler_kwargs", {"min_lr_rate": value})
    else:
        draft.same(key, "it goes with lr_scheduler: cosine")


def _attention(draft: Draft, key: str, value: Any) -> None:
    names = {"sdp_attention": "sdpa", "eager_attention": "eager", "flex_attention": "flex_attention"}
    if not value:
        draft.same(key, "off")
    elif key in names:
        draft.map(key, "model.attention", names[key])
    else:
        draft.same(key, "the best attention that is installed")


def _unfrozen(draft: Draft, key: str, value: Any) -> None:
    if value:
        draft.choose("peft", "pattern")
        draft.map(key, "peft.matching", value, "peft=pattern")


def _batch_size(draft: Draft, key: str, value: Any) -> None:
    micro = int(draft.keys.get("micro_batch_size") or 1)
    draft.arg(key, "gradient_accumulation_steps", max(1, int(value) // micro), "the whole batch by the small one")


def _packing(draft: Draft, key: str, value: Any) -> None:
    name = {"sample_packing": "packing", "eval_sample_packing": "eval_packing"}[key]
    if key == "eval_sample_packing" and not draft.keys.get("sample_packing"):
        draft.same(key, "nothing is packed")
    elif draft.choices["trainer"] != "sft":
        draft.same(key, "only demonstrations are packed") if not value else draft.nothing(key, "nothing is packed here")
    else:
        draft.arg(key, name, value)


def _model_flag(draft: Draft, key: str, value: Any) -> None:
    """The many flags that only say how the model is loaded or sped up."""
    draft.machine(key) if value else draft.same(key, "off")


def _stopping(draft: Draft, key: str, value: Any) -> None:
    draft.choose("callback", "early_stopping")
    draft.put("trainer.args.metric_for_best_model", str(draft.keys.get("metric_for_best_model") or "eval_loss"))
    draft.put("trainer.args.load_best_model_at_end", True)
    draft.map(key, "callback.early_stopping.early_stopping_patience", int(value), "callback=early_stopping")


RULES: dict[str, rule.Rule] = {
    "micro_batch_size": "trainer.args.per_device_train_batch_size",
    "eval_batch_size": "trainer.args.per_device_eval_batch_size",
    "batch_size": _batch_size,
    "num_epochs": "trainer.args.num_train_epochs",
    "sequence_len": "trainer.args.max_length",
    "optimizer": "trainer.args.optim",
    "lr_scheduler": _scheduler,
    "cosine_min_lr_ratio": _least_rate,
    "sample_packing": _packing,
    "eval_sample_packing": _packing,
    "evals_per_epoch": _per_epoch,
    "saves_per_epoch": _per_epoch,
    "eval_steps": _steps,
    "save_steps": _steps,
    "rl_beta": _beta,
    "orpo_alpha": "trainer.args.beta",
    "rpo_alpha": _rpo,
    "dpo_use_weighting": "trainer.args.use_weighting",
    "dpo_label_smoothing": "trainer.args.label_smoothing",
    "kto_desirable_weight": "trainer.args.desirable_weight",
    "kto_undesirable_weight": "trainer.args.undesirable_weight",
    "flash_attention": _attention,
    "sdp_attention": _attention,
    "eager_attention": _attention,
    "flex_attention": _attention,
    "unfrozen_parameters": _unfrozen,
    "special_tokens": _tokens,
    "revision_of_model": "model.revision",
    "tokenizer_config": "model.tokenizer.path",
    "default_system_message": "dataset.system",
    "lora_modules_to_save": "peft.modules_to_save",
    "peft_use_dora": "peft.use_dora",
    "peft_use_rslora": "peft.use_rslora",
    "peft_layers_to_transform": "peft.layers_to_transform",
    "loraplus_lr_ratio": rule.lora_plus,
    "early_stopping_patience": _stopping,
    "use_wandb": lambda draft, key, value: rule.tracker(draft, key, "wandb" if value else "none"),
    "use_tensorboard": lambda draft, key, value: rule.tracker(draft, key, "tensorboard" if value else "none"),
    "use_mlflow": lambda draft, key, value: rule.tracker(draft, key, "mlflow" if value else "none"),
    "wandb_project": lambda draft, key, value: _wandb(draft, key, "WANDB_PROJECT", value),
    "wandb_entity": lambda draft, key, value: _wandb(draft, key, "WANDB_ENTITY", value),
    "gradient_checkpointing": rule.checkpointing,
    "torch_compile": lambda draft, key, value: draft.machine(key, "trainer.args.torch_compile=true"),
}


def _wandb(draft: Draft, key: str, variable: str, value: Any) -> None:
    draft.choose("tracker", "wandb")
    draft.map(key, f"tracker.environment.{variable}", str(value), "tracker=wandb")


MACHINE = {
    "dataset_prepared_path": "rows are prepared once and cached",
    "skip_prepare_dataset": "rows are prepared once and cached",
    "dataset_processes": "rows are prepared once and cached",
    "model_type": "found from the model",
    "tokenizer_type": "found from the tokenizer",
    "is_llama_derived_model": "found from the model",
    "is_mistral_derived_model": "found from the model",
    "strict": "every key is checked",
    "auto_resume_from_checkpoints": rule.RESUMES,
    "wandb_watch": "",
    "wandb_name": "its folder names a run",
    "wandb_run_id": "a run keeps the id of its own",
    "wandb_log_model": "tracker.environment.WANDB_LOG_MODEL=end",
    "mlflow_tracking_uri": "tracker=mlflow tracker.environment.MLFLOW_TRACKING_URI=...",
    "mlflow_experiment_name": "tracker=mlflow; the experiment is the name of the runs",
    "hf_use_auth_token": "a login in the environment is used",
    "dataloader_drop_last": "",
    "fsdp_version": rule.SPREAD,
    "gpu_memory_limit": "",
    "lora_on_cpu": "",
    "qlora_sharded_model_loading": "",
    "debug": "",
    "plugins": "kernels and loaders of theirs",
    "liger_rope": "kernels",
    "liger_rms_norm": "kernels",
    "liger_glu_activation": "kernels",
    "liger_fused_linear_cross_entropy": "kernels: trainer.args.use_liger_kernel=true",
    "liger_cross_entropy": "kernels",
    "liger_layer_norm": "kernels",
    "lora_mlp_kernel": "kernels",
    "lora_qkv_kernel": "kernels",
    "lora_o_kernel": "kernels",
    "vllm": "trainer.args.use_vllm=true, and its settings under TRL's names",
    "save_first_step": "",
    "profiler_steps": "",
}
NOTHING = {
    "pad_to_sequence_len": ("batches are padded to their longest row", "collator=buckets pads to a few lengths"),
    "tokens": ("new tokens would need new rows in the model", ""),
    "shuffle_merged_datasets": ("mixtures are always shuffled", ""),
    "loss_watchdog_threshold": ("a loss that is no number ends a run; a high one does not", ""),
    "loss_watchdog_patience": ("", ""),
    "relora": ("no ReLoRA", "peft=lora"),
    "gptq": ("no GPTQ", "quant=4bit"),
    "lisa_n_layers": ("no LISA", "peft=freeze"),
    "spectrum_top_fraction": ("no Spectrum", "peft=pattern peft.matching=[...]"),
    "embedding_lr": ("", "optimizer=adamw 'optimizer.groups={embed_tokens: {lr_ratio: 0.1}}'"),
    "lr_groups": ("", "optimizer=adamw 'optimizer.groups={<pattern>: {lr_ratio: 0.1}}'"),
    "noisy_embedding_alpha": ("", "trainer.args.neftune_noise_alpha"),
    "max_prompt_len": ("a prompt is never cut by itself", "trainer.args.max_length"),
    "curriculum_sampling": ("rows are shuffled", ""),
}
SAME = {
    "save_safetensors": "always",
    "train_on_inputs": "prompts are not trained on",
    "dataset_exact_deduplication": "off",
    "flash_attn_cross_entropy": "off",
    "resize_token_embeddings_to_32x": "off",
    "bnb_config_kwargs": "nf4 with double quantisation",
}


def defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What Axolotl does where a file is silent, and TRL would do something else."""
    told: dict[str, Any] = {"micro_batch_size": 1, "num_epochs": 1, "lr_scheduler": "cosine", "sequence_len": 512}
    told |= {"bf16": "auto"} if not keys.get("fp16") else {}
    told |= {"train_on_inputs": False} if not keys.get("rl") and not keys.get("reward_model") else {}
    if keys.get("batch_size"):
        del told["micro_batch_size"]
    return told


DIALECT = Dialect(begin, RULES, MACHINE, NOTHING, SAME, defaults)
