"""TRL's own command line: flags or a YAML with the fields of its config, script and model classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.dialect import rule
from runner.dialect.axolotl import own_rewards
from runner.dialect.draft import Draft, shown
from runner.dialect.rule import Dialect, Rows

TRAINERS = ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")
BETA = ("dpo", "kto", "grpo", "rloo")
# What columns say of the form of rows, where a mixture lists them.
FORMS = {("text",): "text", ("messages",): "messages", ("completion", "prompt"): "prompt_completion"}
FORMS |= {("chosen", "prompt", "rejected"): "preference", ("chosen", "rejected"): "preference", ("prompt",): "prompt"}
# The names under which their command line offers rewards.
REWARDS = {
    "accuracy_reward": "trl.rewards.accuracy_reward",
    "reasoning_accuracy_reward": "trl.rewards.reasoning_accuracy_reward",
    "think_format_reward": "trl.rewards.think_format_reward",
    "get_soft_overlong_punishment": "trl.rewards.get_soft_overlong_punishment",
}


def begin(draft: Draft, reading: Any) -> None:
    """Trainer, model, datasets and adapter, which the other keys depend on."""
    _trainer(draft, reading)
    _model(draft)
    _datasets(draft)
    _adapter(draft)
    _rewards(draft)


def _trainer(draft: Draft, reading: Any) -> None:
    """The subcommand; without one, the trainer whose fields the keys are."""
    if reading.command in TRAINERS:
        draft.choose("trainer", reading.command)
        return
    fits = {}
    for name in TRAINERS:
        draft.choose("trainer", name)
        fits[name] = sum(key in draft.config.parameters for key in draft.keys)
        fits[name] += 20 * (name == "grpo" and draft.has("reward_funcs"))
    best = max(fits, key=lambda name: fits[name])
    draft.choose("trainer", best)
    draft.keys["trainer"] = best
    draft.note("mapped", "trainer", f"trainer={best}", "the file does not say; trainer=<name> does")


def _model(draft: Draft) -> None:
    draft.choose("model", "hub")
    draft.map("model_name_or_path", "model.path", draft.take("model_name_or_path", "???"))
    nested = draft.take("model_init_kwargs")
    if isinstance(nested, Mapping):
        for name, value in nested.items():
            draft.keys.setdefault(str(name), value)
    dtype = draft.take("dtype", draft.take("torch_dtype"))
    key = "dtype" if draft.has("dtype") else "torch_dtype"
    if dtype and dtype != "float32":
        draft.map(key, "model.dtype", dtype)
    elif dtype:
        draft.same(key, "float32")


# --- Datasets -------------------------------------------------------------------------------------


def _datasets(draft: Draft) -> None:
    entries = draft.take("datasets")
    if isinstance(entries, list):
        _mixture(draft, [dict(entry) for entry in entries])
        return
    rows = Rows(str(draft.take("dataset_name", "???")), "dataset_name", config=draft.take("dataset_config"))
    if rows.config:
        draft.note("mapped", "dataset_config", f"dataset.config: {rows.config}")
    rows.split = str(draft.take("dataset_train_split", "train"))
    if draft.has("dataset_train_split"):
        draft.note("mapped", "dataset_train_split", f"dataset.split.train: {rows.split}")
    evaluates = draft.keys.get("eval_strategy", "no") not in ("no", False)
    test = draft.take("dataset_test_split", "test" if evaluates else None)
    if evaluates:
        rows.held_out = str(test)
        draft.keys.setdefault("dataset_test_split", test)
        draft.note("mapped", "dataset_test_split", f"dataset.split.eval: {test}")
    elif test:
        draft.same("dataset_test_split", "nothing is evaluated")
    rule.lay_rows(draft, [rows])
    if draft.take("dataset_streaming"):
        draft.map("dataset_streaming", "dataset.streaming", True)


def _mixture(draft: Draft, entries: list[dict[str, Any]]) -> None:
    rows, shares = [], []
    for entry in entries:
        files = entry.pop("data_files", None)
        path = str(entry.pop("path", "???"))
        one = Rows(
            str(files) if isinstance(files, str) else path, "datasets", split=entry.pop("split", None) or "train"
        )
        one.config = entry.pop("name", None)
        shares.append(entry.pop("fraction", None))
        one.form = FORMS.get(tuple(sorted(entry.get("columns") or ())))
        if one.form:
            entry.pop("columns")
        rows.append(one)
        for name, value in entry.items():
            if value is not None:
                draft.nothing("datasets", f"{name}: {shown(value)}", "dataset.columns.<role>=<column>")
    rule.held_out_share(draft, "test_split_size", rows)
    rule.lay_rows(draft, rows, shares if all(shares) else None)
    if any(shares):
        draft.nothing("datasets", "fraction: theirs leaves rows out, ours repeats small parts", "dataset.weights")
    if draft.take("streaming"):
        draft.map("streaming", "dataset.streaming", True)


# --- Adapter and rewards --------------------------------------------------------------------------


def _adapter(draft: Draft) -> None:
    names = {"lora_r": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
    names |= {"use_rslora": "use_rslora", "use_dora": "use_dora", "lora_modules_to_save": "modules_to_save"}
    names |= {"lora_target_parameters": "target_parameters"}
    if not draft.take("use_peft"):
        for key in ("use_peft", "lora_target_modules", "lora_task_type", *names):
            if draft.has(key):
                draft.same(key, "no adapter")
        return
    draft.pick("use_peft", "peft", "lora")
    for key, ours in names.items():
        if draft.has(key) and (value := draft.take(key)) is not False:
            draft.map(key, f"peft.{ours}", value)
    modules = draft.take("lora_target_modules")
    if modules:
        draft.map("lora_target_modules", "peft.target_modules", rule.layers(modules))
    else:
        draft.keys["lora_target_modules"] = None
        draft.nothing(
            "lora_target_modules", "theirs is peft's own choice for the model", "peft.target_modules=all-linear"
        )
    if draft.take("lora_task_type"):
        draft.same("lora_task_type", "follows from the trainer")
    for key, bits in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if draft.take(key):
            rule.quantise(draft, key, bits)
    if draft.choices.get("quant") == "4bit":
        if not draft.take("use_bnb_nested_quant", False):
            draft.keys["use_bnb_nested_quant"] = False
            draft.map("use_bnb_nested_quant", "quant.bnb_4bit_use_double_quant", False)
        if (kind := draft.take("bnb_4bit_quant_type", "nf4")) != "nf4":
            draft.map("bnb_4bit_quant_type", "quant.bnb_4bit_quant_type", kind)


def _rewards(draft: Draft) -> None:
    names = draft.take("reward_funcs") or []
    names = [names] if isinstance(names, str) else names
    weights = draft.take("reward_weights")
    entries: dict[str, Any] = {}
    for place, name in enumerate(names):
        if name in REWARDS:
            entries[name] = {"_target_": REWARDS[name]} | _arguments(draft, name)
            entries[name] |= {"weight": float(weights[place])} if weights else {}
            draft.note("mapped", "reward_funcs", f"reward.{name}: {REWARDS[name]}")
        else:
            own_rewards(draft, "reward_funcs", name, weights[place : place + 1] if weights else None)
    if model := draft.take("reward_model_name_or_path"):
        entries["model"] = {"_target_": "runner.reward.outcome.load_reward_model", "path": model, "weight": 1.0}
        draft.note("mapped", "reward_model_name_or_path", f"reward.model.path: {model}")
    if entries:
        draft.values["reward"] = entries
    if weights and draft.has("reward_weights"):
        draft.note("mapped", "reward_weights", "reward.<name>.weight")


def _arguments(draft: Draft, name: str) -> dict[str, Any]:
    """What a reward is made with, where it is a function that makes one."""
    if name != "get_soft_overlong_punishment":
        return {}
    longest = int(draft.keys.get("max_completion_length") or 512)
    return {"max_completion_len": longest, "soft_punish_cache": longest // 5}


# --- The other keys -------------------------------------------------------------------------------


def _beta(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] in BETA:
        draft.map(key, "kl_coef", draft.real(key, value), f"the beta of {draft.choices['trainer']}")
    else:
        draft.arg(key, "beta", draft.real(key, value))


def _template(draft: Draft, key: str, value: Any) -> None:
    if str(value).endswith((".jinja", ".j2")):
        draft.map(key, "model.tokenizer.chat_template", value)
    else:
        draft.map(key, "model.tokenizer.path", value, "the template of another tokenizer, with its tokens")


def _teacher(draft: Draft, key: str, value: Any) -> None:
    draft.map(key, "trainer.teacher_model.path", value)


def _attention(draft: Draft, key: str, value: Any) -> None:
    if "/" in str(value):
        draft.nothing(key, f"{value}: a kernel from the hub, which is typed", f"model.attention={value}")
    elif str(value).startswith("flash"):
        draft.same(key, "the best attention that is installed")
    else:
        draft.map(key, "model.attention", value)


def _loss(draft: Draft, key: str, value: Any) -> None:
    names = value if isinstance(value, list) else [value]
    draft.arg(key, "loss_type", names if draft.choices["trainer"] == "dpo" else names[0])


def _environment(draft: Draft, key: str, value: Any) -> None:
    names = ", ".join(value) if isinstance(value, Mapping) else shown(value)
    draft.keys[key] = names
    draft.machine(key, "variables are exported; those of trackers may stand in tracker.environment")


RULES: dict[str, rule.Rule] = {
    "beta": _beta,
    "loss_type": _loss,
    "chat_template_path": _template,
    "eos_token": "model.tokenizer.eos_token",
    "pad_token": "model.tokenizer.pad_token",
    "teacher_model_name_or_path": _teacher,
    "teacher_model": _teacher,
    "model_revision": lambda draft, key, value: (
        draft.same(key, "the default branch") if value == "main" else draft.map(key, "model.revision", value)
    ),
    "attn_implementation": _attention,
    "max_seq_length": lambda draft, key, value: draft.arg(key, "max_length", value, "its name now"),
    "env": _environment,
}
MACHINE = {
    "ignore_bias_buffers": "",
    "accelerate_config": rule.SPREAD,
    "config": "",
    "num_processes": "launcher.num_processes=N",
    "bnb_4bit_quant_storage": "",
    "use_vllm": "trainer.args.use_vllm=true, and its settings under TRL's names",
    "vllm_mode": "",
    "vllm_gpu_memory_utilization": "",
    "vllm_server_host": "",
    "vllm_server_port": "",
    "vllm_tensor_parallel_size": "",
}
NOTHING = {
    "max_prompt_length": ("a prompt is not cut by itself any more", "trainer.args.max_length"),
    "dataset_text_field": ("", "dataset.columns.text=<column>"),
    "tools": ("", "trainer.tools"),
}
SAME = {"load_in_4bit": "off", "load_in_8bit": "off", "use_bnb_nested_quant": "no quantisation"}


def defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What their command line does and their trainers do not: dropout in an adapter."""
    return {"lora_dropout": 0.05} if keys.get("use_peft") else {}


DIALECT = Dialect(begin, RULES, MACHINE, NOTHING, SAME, defaults)
