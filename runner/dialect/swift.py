"""ms-swift: the flags of ``swift sft|pt|rlhf``, in a shell script or a YAML, where ``rlhf_type`` chooses the method."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from runner.dialect import rule
from runner.dialect.draft import Draft, is_unset, reference, shown
from runner.dialect.rule import Dialect, Rows

TRAINERS = {"dpo": "dpo", "kto": "kto", "orpo": "orpo", "cpo": "cpo", "simpo": "cpo", "rm": "reward", "ppo": "ppo"}
TRAINERS |= {"grpo": "grpo", "gkd": "gkd"}
FORMS = {"dpo": "preference", "orpo": "preference", "cpo": "preference", "reward": "preference", "kto": "unpaired"}
BETA = {"simpo": 2.0, "grpo": 0.04, "gkd": 0.5}
# Their tuners that are an option of ours, with the keys that each of them has.
TUNERS: dict[str, tuple[str, dict[str, str]]] = {
    "lora": ("lora", {"lora_rank": "r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}),
    "vera": ("vera", {"vera_rank": "r", "vera_dropout": "vera_dropout", "vera_d_initial": "d_initial"}),
    "fourierft": ("fourierft", {"fourier_n_frequency": "n_frequency", "fourier_scaling": "scaling"}),
    "boft": (
        "peft.BOFTConfig",
        {name: name for name in ("boft_block_size", "boft_block_num", "boft_n_butterfly_factor", "boft_dropout")},
    ),
}
# Their words for weights of tokens, by rules of ours.
WEIGHTS: dict[str, dict[str, Any]] = {
    "default": {"_target_": "runner.dataset.weigh.answers"},
    "last_round": {"_target_": "runner.dataset.weigh.last_round"},
    "ignore_empty_think": {
        "_target_": "runner.dataset.weigh.pattern",
        "pattern": r"<think>\s*</think>\s*",
        "weight": 0.0,
    },
    "ignore_think_prefix": {"_target_": "runner.dataset.weigh.pattern", "pattern": r"^<think>\n?", "weight": 0.0},
    "hermes": {"_target_": "runner.dataset.weigh.pattern", "pattern": "(?s)<tool_call>.*?</tool_call>", "weight": 2.0},
    "react": {
        "_target_": "runner.dataset.weigh.pattern",
        "pattern": r"(?s)Action:.*?(?=Observation:|\Z)",
        "weight": 2.0,
    },
}
WEIGHTS["qwen"] = WEIGHTS["hermes"]
WEIGHED = ("sft", "dpo", "kto")
# Their rewards that are one of ours.
REWARDS: dict[str, dict[str, Any]] = {
    "accuracy": {"_target_": "runner.reward.math.boxed_answer", "column": "solution", "weight": 1.0},
    "format": {
        "_target_": "runner.reward.rule.format_match",
        "pattern": r"(?s)<think>.*?</think>\s*<answer>.*?</answer>",
        "weight": 1.0,
    },
}


def begin(draft: Draft, reading: Any) -> None:
    """Method, model, datasets, tuner and weights, which the other keys depend on."""
    _trainer(draft, reading.command)
    _model(draft)
    _datasets(draft)
    _tuner(draft)
    _weights(draft, reading.command)
    _rewards(draft)
    _batch(draft, reading)
    if not draft.has("max_length") and "max_length" in draft.config.parameters:
        draft.implied |= {"max_length"}
        draft.map(
            "max_length", "trainer.args.max_length", None, "as long as the model allows; TRL's own choice is 1024"
        )


# --- Method ---------------------------------------------------------------------------------------


def _trainer(draft: Draft, command: str) -> None:
    method = draft.take("rlhf_type", "dpo" if command == "rlhf" else None)
    if method is None:
        draft.choose("trainer", "sft")
    elif method in TRAINERS:
        draft.keys.setdefault("rlhf_type", method)
        draft.pick("rlhf_type", "trainer", TRAINERS[method])
    else:
        rule.refuse("rlhf_type", method, TRAINERS)
    if method == "simpo":
        draft.put("trainer.args.loss_type", "simpo")
    if method == "gkd" and not draft.has("teacher_model"):
        draft.put("trainer.teacher_model.path", draft.keys.get("model"))
    if (task := draft.keys.get("task_type", "causal_lm")) not in ("causal_lm", "seq_cls" if method == "rm" else ""):
        rule.refuse("task_type", task, ("causal_lm",))


def _beta(draft: Draft, key: str, value: Any) -> None:
    trainer = draft.choices["trainer"]
    if trainer in ("dpo", "kto", "grpo"):
        draft.map(key, "kl_coef", draft.real(key, value), f"the beta of {trainer}")
    elif trainer == "ppo":
        draft.same(key, "PPO has kl_coef")
    else:
        draft.arg(key, "beta", draft.real(key, value))


# --- Model and tuner ------------------------------------------------------------------------------


def _model(draft: Draft) -> None:
    draft.choose("model", "hub")
    adapters = draft.take("adapters")
    draft.map("model", "model.path", draft.take("model", "???"))
    if adapters:
        first = adapters[0] if isinstance(adapters, list) else str(adapters).split()[0]
        draft.map("adapters", "model.path", first, "its base is found from it")
        draft.put("model.merge", True)
    dtype = draft.take("torch_dtype", draft.take("dtype"))
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    draft.put("model.dtype", names.get(str(dtype), dtype) or "bfloat16")
    if dtype:
        draft.note("mapped", "torch_dtype" if draft.has("torch_dtype") else "dtype", f"model.dtype: {dtype}")
    if draft.take("use_chat_template", True) is False:
        draft.nothing(
            "use_chat_template", "rows of text alone are trained without one", "dataset.columns.text=<column>"
        )


def _tuner(draft: Draft) -> None:
    name = "train_type" if "train_type" in draft.keys else "tuner_type"
    name = "sft_type" if "sft_type" in draft.keys else name
    kind = draft.take(name, "lora")
    draft.keys.setdefault(name, kind)
    if kind == "full":
        draft.same(name, "every weight is trained")
        for key in ("lora_rank", "lora_alpha", "lora_dropout", "target_modules"):
            if draft.has(key):
                draft.same(key, "no LoRA")
    elif kind in TUNERS:
        option, fields = TUNERS[kind]
        if "." in option:
            draft.choose("peft", None)
            draft.map(name, "peft._target_", option)
        else:
            draft.pick(name, "peft", option)
        for key, ours in fields.items():
            if draft.has(key):
                draft.map(key, f"peft.{ours}", draft.take(key))
        modules = draft.take("target_regex") or draft.take("target_modules", ["all-linear"])
        draft.keys["target_modules"] = modules
        draft.map("target_modules", "peft.target_modules", rule.layers(modules))
    else:
        rule.open_adapter(draft, name, kind)
    if kind == "lora":
        _lora(draft)
    bits = draft.take("quant_bits")
    method = draft.take("quant_method", "bnb")
    if bits in (4, 8) and method == "bnb":
        rule.quantise(draft, "quant_bits", bits)
    elif bits:
        draft.nothing("quant_bits", f"{bits} bits by {method}", "quant=4bit or quant=8bit")
    if draft.take("bnb_4bit_use_double_quant", True) is False:
        draft.map("bnb_4bit_use_double_quant", "quant.bnb_4bit_use_double_quant", False)


def _lora(draft: Draft) -> None:
    for key in ("use_rslora", "use_dora", "modules_to_save", "target_parameters"):
        if value := draft.take(key):
            draft.map(key, f"peft.{key}", value)
    begin_with = draft.take("init_weights", True)
    if begin_with is not True:
        known = isinstance(begin_with, bool) or re.fullmatch(r"gaussian|pissa(_niter_\d+)?|olora|eva", str(begin_with))
        if known:
            draft.map("init_weights", "peft.init_lora_weights", begin_with)
        else:
            draft.nothing("init_weights", f"no {begin_with}", "peft.init_lora_weights=pissa, olora, gaussian")


# --- Datasets -------------------------------------------------------------------------------------


def _datasets(draft: Draft) -> None:
    words = draft.take("dataset") or []
    rows = [_rows(draft, str(word)) for word in ([words] if isinstance(words, str) else words)]
    rows = rows or [Rows("???", "dataset")]
    columns = draft.take("columns")
    system = draft.take("system")
    for one in rows:
        one.columns |= _columns(draft, columns) if isinstance(columns, Mapping) else {}
        one.system = reference(system) if is_unset(system) else system if not _is_file(system) else None
    if system:
        if is_unset(system):
            draft.open("system", f"{system} is set by the shell, and not in this file", "dataset.system=<text>")
        elif rows[0].system:
            draft.note("mapped", "system", f"dataset.system: {rows[0].system}")
        else:
            draft.nothing("system", "a file of text", "dataset.system=<text>")
    held_out = draft.take("val_dataset") or []
    held_out = [held_out] if isinstance(held_out, str) else held_out
    if held_out:
        why = f"{', '.join(map(str, held_out))}: held-out rows of another dataset"
        draft.nothing("val_dataset", why, "python -m runner evaluate <run> dataset=...")
        draft.taken.add("split_dataset_ratio")
    else:
        rule.held_out_share(draft, "split_dataset_ratio", rows)
    if rows[0].held_out and not draft.has("eval_strategy"):
        draft.keys["eval_strategy"] = draft.keys.get("save_strategy") or "steps"
        draft.implied |= {"eval_strategy"}
    shares = draft.take("interleave_prob")
    rule.lay_rows(draft, rows, shares if isinstance(shares, list) else None)
    if shares:
        draft.note("mapped", "interleave_prob", "dataset.weights")
    if draft.take("streaming"):
        draft.map("streaming", "dataset.streaming", True)


def _is_file(value: Any) -> bool:
    return str(value).endswith(".txt")


def _rows(draft: Draft, word: str) -> Rows:
    """One dataset of theirs: path, subset and number of rows in a word, ``org/name:subset#1000``."""
    path, _, count = word.partition("#")
    hub = re.match(r"(?:(hf|ms)::)?(.*)", path)
    site, path = hub[1], hub[2]
    path, _, subset = path.partition(":") if not re.match(r"^[A-Za-z]:[\\/]", path) else (path, "", "")
    rows = Rows(path, "dataset", form=FORMS.get(str(draft.choices["trainer"])))
    rows.config = subset.split("/")[0] or None
    rows.limit = int(count) if count.isdigit() else None
    if "/" in subset:
        draft.nothing("dataset", f"several subsets of {path}", "dataset=mixture, a part for each")
    if not rows.is_file and site != "hf" and not draft.keys.get("use_hf"):
        draft.nothing("dataset", f"{path} is of ModelScope, where names may differ", "dataset.path=<name on the hub>")
    return rows


def _columns(draft: Draft, columns: Mapping[str, str]) -> dict[str, str]:
    """Their mapping of columns to roles, turned round; it says column: role."""
    roles = {"query": "input", "response": "target", "rejected_response": "rejected", "messages": "messages"}
    roles |= {"system": "system", "label": "label", "chosen": "chosen", "rejected": "rejected"}
    found = {}
    for column, role in columns.items():
        if role in roles:
            ours = roles[role]
            ours = (
                "chosen" if ours == "target" and draft.choices["trainer"] in ("dpo", "reward", "orpo", "cpo") else ours
            )
            found[ours] = str(column)
        else:
            draft.nothing("columns", f"{column} as {role}", "dataset.map._target_=<function of a row>")
    draft.note("mapped", "columns", f"dataset.columns: {shown(found)}")
    return found


# --- Weights of tokens and rewards ----------------------------------------------------------------


def _weights(draft: Draft, command: str) -> None:
    """Rules of weights, which they call loss_scale; several are joined by a plus."""
    trainer = str(draft.choices["trainer"])
    usual = "all" if command == "pt" else "default" if trainer == "sft" else "last_round"
    words = str(draft.take("loss_scale", usual)).split("+")
    draft.keys.setdefault("loss_scale", usual)
    if not {"default", "last_round", "all"} & set(words):
        words = ["default" if trainer == "sft" else "last_round", *words]
    unknown = [word for word in words if word not in WEIGHTS and word != "all"]
    for word in unknown:
        draft.nothing("loss_scale", f"{word}: no such rule", "weight=pattern weight.pattern=... weight.weight=2")
    needless = {"all"} if trainer == "sft" else {"all", "last_round", "default"}
    wanted = [word for word in words if word in WEIGHTS and word not in needless]
    if trainer not in WEIGHED and wanted:
        draft.nothing("loss_scale", f"{trainer} takes no weights of tokens")
    elif wanted:
        draft.values["weight"] = {word: dict(WEIGHTS[word]) for word in wanted}
        draft.note("mapped", "loss_scale", f"weight: {', '.join(wanted)}", "rules that multiply")
    elif not unknown:
        draft.same("loss_scale", "what the trainer trains on anyway")


def _rewards(draft: Draft) -> None:
    """Their built-in rewards by ours; plugins are the user's own code."""
    names = draft.take("reward_funcs") or []
    names = [names] if isinstance(names, str) else names
    weights = draft.take("reward_weights")
    weights = weights if isinstance(weights, list) else [weights] if weights else []
    models = draft.take("reward_model")
    models = [models] if isinstance(models, str) else models or []
    entries: dict[str, dict[str, Any]] = {}
    for name, weight in zip([*names, *models], [*weights, *[1.0] * len(names + models)], strict=False):
        if name in models:
            key = "model" if "model" not in entries else f"model_{len(entries)}"
            entries[key] = {
                "_target_": "runner.reward.outcome.load_reward_model",
                "path": name,
                "weight": draft.real("reward_weights", weight),
            }
            draft.note("mapped", "reward_model", f"reward.{key}.path: {name}")
        elif name in REWARDS:
            entries[name] = REWARDS[name] | {"weight": draft.real("reward_weights", weight)}
            draft.note("mapped", "reward_funcs", f"reward.{name}: {REWARDS[name]['_target_']}", _differs(name))
        elif name == "soft_overlong":
            _overlong(draft, entries, draft.real("reward_weights", weight))
        else:
            word = f"reward.{name}._target_=<module>.{name} allow=[<module>]"
            draft.nothing("reward_funcs", f"{name}: a plugin, whose code is your own", word)
    if entries:
        draft.values["reward"] = entries
    if draft.has("reward_weights"):
        draft.note("mapped", "reward_weights", "reward.<name>.weight")
    if plugins := draft.take("external_plugins"):
        near = "functions (prompts, completions, **columns) in a module, and reward.<name>._target_"
        draft.nothing("external_plugins", f"{shown(plugins)}: classes of theirs", near)


def _differs(name: str) -> str:
    return "compares the last \\boxed{} with the column solution" if name == "accuracy" else "a regular expression"


def _overlong(draft: Draft, entries: dict[str, Any], weight: float) -> None:
    longest = int(draft.take("soft_max_length") or draft.keys.get("max_completion_length") or 512)
    cache = int(draft.take("soft_cache_length") or longest // 5)
    target = "trl.rewards.get_soft_overlong_punishment"
    entries["soft_overlong"] = {
        "_target_": target,
        "max_completion_len": longest,
        "soft_punish_cache": cache,
        "weight": weight,
    }
    draft.note("mapped", "reward_funcs", f"reward.soft_overlong: {target}", f"of {longest} tokens the last {cache}")


# --- The other keys -------------------------------------------------------------------------------


def _batch(draft: Draft, reading: Any) -> None:
    """Rows a step: where they say nothing of accumulation, they make it 16 over all devices."""
    batch = draft.real("per_device_train_batch_size", draft.keys.get("per_device_train_batch_size") or 1)
    if draft.keys.get("gradient_accumulation_steps") is None and not isinstance(batch, str):
        accumulated = 1 if draft.keys.get("rlhf_type") == "grpo" else math.ceil(16 / batch / reading.devices)
        draft.keys["gradient_accumulation_steps"] = max(1, accumulated)
        draft.implied |= {"gradient_accumulation_steps"}


def _attention(draft: Draft, key: str, value: Any) -> None:
    names = {"sdpa": "sdpa", "eager": "eager", "flex_attention": "flex_attention"}
    if value in names:
        draft.map(key, "model.attention", names[value])
    else:
        draft.same(key, "the best attention that is installed")


def _length(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] in ("ppo", "grpo"):
        draft.nothing(key, "of prompts, which are taken as they are", "a dataset.map that leaves long rows out")
    else:
        draft.arg(key, "max_length", value)


def _completion(draft: Draft, key: str, value: Any) -> None:
    names = {"ppo": "response_length", "gkd": "max_new_tokens", "online_dpo": "max_new_tokens"}
    trainer = str(draft.choices["trainer"])
    if trainer in ("ppo", "grpo", "gkd"):
        draft.arg(key, names.get(trainer, "max_completion_length"), value)
    else:
        draft.same(key, "nothing is sampled")


def _sampling(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] not in ("ppo", "grpo", "gkd"):
        draft.same(key, "nothing is sampled")
    else:
        draft.arg(key, key, value)


def _truncation(draft: Draft, key: str, value: Any) -> None:
    ends = {"right": "keep_start", "left": "keep_end"}
    if value in ends:
        draft.arg(key, "truncation_mode", ends[value])
    else:
        draft.nothing(
            key, "rows that are too long are cut, and a run says how many", "a dataset.map that leaves them out"
        )


def _teacher(draft: Draft, key: str, value: Any) -> None:
    draft.map(key, "trainer.teacher_model.path", value)


def _loss(draft: Draft, key: str, value: Any) -> None:
    names = value if isinstance(value, list) else [value]
    if draft.choices["trainer"] == "dpo":
        draft.arg(key, "loss_type", names)
    elif draft.choices["trainer"] == "sft":
        draft.nothing(key, f"{shown(value)}: a loss of a plugin", "loss._target_=<function>")
    else:
        draft.arg(key, "loss_type", names[0])


def _of_ppo(draft: Draft, key: str, value: Any) -> None:
    if draft.choices["trainer"] != "ppo":
        draft.same(key, "of another method")
    elif key == "kl_coef":
        draft.map(key, "kl_coef", draft.real(key, value))
    else:
        draft.arg(key, key, value)


def _plugin(near: str) -> rule.Rule:
    def tell(draft: Draft, key: str, value: Any) -> None:
        draft.nothing(key, f"{shown(value)}: of a plugin", near)

    return tell


def _scale(draft: Draft, key: str, value: Any) -> None:
    draft.arg(key, key, {True: "group", False: "none"}.get(value, value))


RULES: dict[str, rule.Rule] = {
    "beta": _beta,
    "kl_coef": _of_ppo,
    "max_length": _length,
    "max_completion_length": _completion,
    "response_length": _completion,
    "max_new_tokens": _completion,
    "temperature": _sampling,
    "top_p": _sampling,
    "top_k": _sampling,
    "repetition_penalty": _sampling,
    "truncation_strategy": _truncation,
    "attn_impl": _attention,
    "model_revision": "model.revision",
    "lorap_lr_ratio": rule.lora_plus,
    "teacher_model": _teacher,
    "loss_type": _loss,
    "scale_rewards": _scale,
    "overlong_filter": "trainer.args.mask_truncated_completions",
    "rpo_alpha": lambda draft, key, value: _rpo(draft, key, value),
    "optimizer": _plugin("optimizer._target_=<class>"),
    "metric": _plugin("metric.<name>._target_=<function>"),
    "enable_dft_loss": lambda draft, key, value: draft.arg(key, "loss_type", "dft" if value else "nll"),
    "dataset_shuffle": lambda draft, key, value: (
        draft.arg(key, "shuffle_dataset", value)
        if draft.choices["trainer"] == "grpo"
        else draft.same(key, "rows are shuffled")
        if value
        else draft.map(key, "dataset.shuffle", False)
    ),
    "agent_template": lambda draft, key, value: (
        draft.pick(key, "template", {"react_en": "react"}.get(value, value))
        if value in ("hermes", "react_en")
        else draft.nothing(key, "tools are written by the chat template", "template=hermes or react")
    ),
    "deepspeed": lambda draft, key, value: draft.machine(key, rule.MACHINE["deepspeed"]),
}


def _rpo(draft: Draft, key: str, value: Any) -> None:
    draft.put("trainer.args.loss_weights", [1.0, draft.real(key, value)])
    draft.map(key, "trainer.args.loss_type", ["sigmoid", "sft"], f"loss_weights: [1.0, {value}]")


MACHINE = {
    "model_type": "found from the model",
    "template": "the tokenizer's own; template=chatml or plain where it has none",
    "tuner_backend": "peft",
    "add_version": rule.OWN_FOLDER,
    "create_checkpoint_symlink": "",
    "check_model": "",
    "load_from_cache_file": "rows are prepared once and cached",
    "lazy_tokenize": "rows are prepared once and cached",
    "custom_register_path": "allow=[<module>]",
    "sequence_parallel_size": rule.SPREAD,
    "use_vllm": "trainer.args.use_vllm=true, and its settings under TRL's names",
    "vllm_mode": "",
    "vllm_gpu_memory_utilization": "",
    "vllm_max_model_len": "",
    "vllm_tensor_parallel_size": "",
    "vllm_server_host": "",
    "vllm_server_port": "",
    "sleep_level": "",
    "offload_optimizer": "",
    "offload_model": "",
    "log_entropy": "",
    "swanlab_project": "",
    "model_name": "of one dataset of theirs",
    "model_author": "of one dataset of theirs",
    "eval_limit": "",
    "freeze_vit": "texts only",
    "freeze_aligner": "texts only",
    "strict": "dataset.bad_rows=refuse is how rows are read",
    "padding_side": "",
}
NOTHING = {
    "freeze_parameters": ("", "peft=pattern peft.matching=[...], which names what is trained"),
    "freeze_parameters_ratio": ("", "peft=freeze peft.layers=N"),
    "trainable_parameters": ("", "peft=pattern peft.matching=[...]"),
    "val_dataset_shuffle": ("held-out rows keep their order", ""),
    "callbacks": ("of a plugin", "callback.<name>._target_=<class>"),
    "num_sample_generations": ("", "callback=samples"),
    "dynamic_sample": ("groups without a difference are not drawn again", ""),
    "multi_turn_scheduler": ("no turns with an environment", ""),
    "async_generate": ("sampling waits for the training", ""),
    "sft_alpha": ("", "trainer=sft before, or trainer.args.lmbda=0"),
    "ref_model": ("the reference is the start model", ""),
    "ref_adapters": ("the reference is the start model, which is the adapter's", ""),
    "data_seed": ("one seed for all", "seed=<number>"),
    "cached_dataset": ("rows are prepared once and cached", "dataset.path=<source>"),
    "router_aux_loss_coef": ("", "trainer.args.router_aux_loss_coef"),
    "galore_rank": ("", "trainer.args.optim=galore_adamw"),
    "lisa_activated_layers": ("no LISA", "peft=freeze"),
    "use_galore": ("", "trainer.args.optim=galore_adamw"),
}
SAME: dict[str, str] = {"lora_bias": "none", "task_type": "follows from the trainer", "logging_first_step": ""}


def defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What ms-swift does where a file is silent, and TRL would do something else."""
    kind = keys.get("tuner_type") or keys.get("train_type") or keys.get("sft_type") or "lora"
    told: dict[str, Any] = {
        "learning_rate": 1e-5 if kind == "full" else 1e-4,
        "per_device_train_batch_size": 1,
        "lr_scheduler_type": "cosine",
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
    }
    if kind == "lora":
        told |= {"lora_rank": 8, "lora_alpha": 32, "lora_dropout": 0.05}
    method = keys.get("rlhf_type")
    if method in BETA:
        told["beta"] = BETA[method]
    if method in ("grpo", "ppo", "gkd"):
        told["temperature"] = 0.9
    if method == "grpo":
        told |= {"loss_type": "grpo", "top_p": 0.9, "top_k": 50}
    if method == "ppo":
        told["max_completion_length"] = 512
    if method == "simpo":
        told["simpo_gamma"] = 1.0
    return told


DIALECT = Dialect(begin, RULES, MACHINE, NOTHING, SAME, defaults)
