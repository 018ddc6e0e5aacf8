"""The check finds every fault at once, says where it belongs, and accepts what is good."""

import copy
import json
import math
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from runner.schema import upstream
from runner.schema.did_you_mean import likeness, nearest
from runner.schema.library_ranges import BY_CLASS, BY_GROUP
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.source import public_names
from runner.schema.text import nodes, to_override
from runner.validate.configuration import find_all_faults, find_dangers
from runner.validate.context import ValidationContext
from runner.validate.node import SET_BY_RUNNER
from runner.validate.plain_secrets import find_secrets
from runner.validate.targets import is_allowed

ROOT = Path(__file__).parent.parent
MENU = {
    "trainer": ["dpo", "grpo", "sft"],
    "model": ["hub", "tiny"],
    "dataset": ["local", "toy"],
    "peft": ["lora", "none"],
    "quant": ["4bit", "none"],
    "collator": ["none"],
    "reward": ["accuracy", "brevity", "none"],
    "metric": ["none"],
    "callback": ["none"],
    "tracker": ["none", "wandb"],
    "launcher": ["local"],
    "experiment": ["toy_dpo"],
}
PACKAGES = {
    **dict.fromkeys(("SFT", "Reward", "DPO", "KTO", "GRPO", "RLOO", "Distillation"), "trl"),
    **{name: f"trl.experimental.{name.lower()}" for name in ("ORPO", "CPO", "GKD")},
    "OnlineDPO": "trl.experimental.online_dpo",
}
WITH_KL = ("DPO", "KTO", "GRPO", "RLOO", "OnlineDPO")
LOADED = {"path": "org/name", "dtype": "float32"}
REWARD = {"right": {"_target_": "trl.rewards.accuracy_reward", "weight": 0.5}}


def good(name: str = "DPO", **changes):
    """A configuration without a fault, with changes by dotted key (two underscores for a dot)."""
    kl_coef = 0.1 if name in WITH_KL else None
    args = {"_target_": f"{PACKAGES[name]}.{name}Config", "learning_rate": 1e-6}
    trainer = {"_target_": f"{PACKAGES[name]}.{name}Trainer", "form": "preference", "head": "lm"}
    if kl_coef:
        args["beta"] = [kl_coef] if name == "OnlineDPO" else kl_coef
    if name in ("GKD", "Distillation"):
        trainer["teacher_model"] = {"_target_": "runner.model.load.load_model", **LOADED}
    cfg = {
        "name": "run",
        "seed": 0,
        "learning_rate": 1e-6,
        "kl_coef": kl_coef,
        "allow": [],
        "output_root": "outputs",
        "trainer": trainer | {"args": args},
        "model": {
            "_target_": "runner.model.load.load_model",
            **LOADED,
            "tokenizer": {"_target_": "runner.model.load.load_tokenizer", "path": "org/name"},
        },
        "dataset": {"_target_": "runner.dataset.load.load_rows", "path": "org/rows"},
        "peft": None,
        "quant": None,
        "collator": None,
        "reward": REWARD if name in ("GRPO", "RLOO", "OnlineDPO") else None,
        "metric": None,
        "callback": None,
        "tracker": {"report_to": "none"},
        "launcher": {"_target_": "runner.launch.local.local", "num_processes": 1},
    }
    cfg = copy.deepcopy(cfg)
    for path, value in changes.items():
        put(cfg, path.replace("__", "."), value)
    return cfg


def put(cfg, path, value):
    *nodes, key = path.split(".")
    for node in nodes:
        cfg[node] = cfg = {} if cfg.get(node) is None else cfg[node]
    cfg[key] = value


def with_args(name: str = "DPO", **fields):
    cfg = good(name)
    cfg["trainer"]["args"] |= fields
    return cfg


def faults(cfg, **words):
    found_faults = find_all_faults(cfg, menu=MENU, **words)
    for line in "\n".join(map(str, found_faults)).splitlines():
        assert len(line) <= 100, line
    return found_faults


def only(cfg, **words):
    found_faults = faults(cfg, **words)
    assert len(found_faults) == 1, "\n".join(map(str, found_faults))
    return found_faults[0]


def texts(found_faults):
    return "\n".join(map(str, found_faults))


# --- what is good ---


@pytest.mark.slow
def test_of_thousands_of_unknown_keys_no_more_are_looked_up_than_anybody_reads():
    many = {f"odd{number}": number for number in range(2_000)}
    assert 50 <= len(find_all_faults(good() | many, menu=MENU)) <= 200
    assert 50 <= len(find_all_faults(good() | {"model": good()["model"] | many}, menu=MENU)) <= 200


@pytest.mark.parametrize("name", PACKAGES)
def test_a_good_configuration_has_no_fault(name):
    assert faults(good(name)) == []


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", PACKAGES)
def test_every_field_at_its_default_is_good(name):
    cfg = good(name)
    args = cfg["trainer"]["args"]
    for field, parameter in read_signature(args["_target_"]).parameters.items():
        if parameter.default is None or isinstance(parameter.default, bool | int | float | str):
            args.setdefault(field, parameter.default)
    assert len(args) > 100
    found_faults = [fault for fault in faults(cfg) if fault.where != "trainer.args.seed"]
    assert found_faults == []  # the runner's seed is another one than that of the library


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_every_field_of_a_real_config_is_good(name):
    import importlib
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = getattr(importlib.import_module(PACKAGES[name]), f"{name}Config")
        values = real(output_dir="x", use_cpu=True, bf16=False).to_dict()
    # ours, or filled in
    settings_kept = ("output_dir", "disable_tqdm", "seed", "hub_token", "accelerator_config")
    # likewise; TRL accepts it only without steps_per_generation
    settings_kept += ("generation_batch_size",)
    plain = {
        key: value
        for key, value in json.loads(json.dumps(values)).items()
        if key not in settings_kept
    }
    fields = read_signature(good(name)["trainer"]["args"]["_target_"]).parameters
    cfg = good(name)
    cfg["trainer"]["args"] = {key: v for key, v in plain.items() if key in fields} | {
        "_target_": cfg["trainer"]["args"]["_target_"]
    }
    assert len(cfg["trainer"]["args"]) > 100
    assert faults(cfg) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"peft": {"_target_": "peft.LoraConfig", "r": 16, "target_modules": "all-linear"}},
        {"peft": {"_target_": "peft.LoraConfig", "init_lora_weights": "pissa_niter_4"}},
        {"peft": {"_target_": "peft.OFTConfig", "r": 0, "oft_block_size": 32}},
        {"peft": {"_target_": "runner.model.freeze.train_last_layers", "layers": 2}},
        {
            "peft": {"_target_": "peft.LoraConfig"},
            "quant": {"_target_": "transformers.BitsAndBytesConfig", "load_in_4bit": True},
        },
        {
            "callback": {
                "early": {
                    "_target_": "transformers.EarlyStoppingCallback",
                    "early_stopping_patience": 3,
                },
                "off": None,
            },
            "trainer__args__eval_strategy": "steps",
            "trainer__args__metric_for_best_model": "eval_loss",
        },
        {"metric": {"right": {"_target_": "trl.rewards.accuracy_reward"}}},
        {"tracker": {"report_to": ["wandb"], "environment": {"WANDB_MODE": "offline"}}},
        {
            "trainer__args__lr_scheduler_type": "polynomial",
            "trainer__args__lr_scheduler_kwargs": {"power": 2.0},
        },
        {"trainer__args__loss_type": "ipo"},
        {"trainer__args__loss_type": ["sigmoid", "sft"]},
        {"trainer__args__learning_rate": 1},
        {"trainer__args__max_steps": -1},
        {"trainer__args__optim": "adamw_torch"},
        {"trainer__args__fsdp_config": {"fsdp_version": 2}},
        {"model__revision": "main", "model__tokenizer__pad_token": "<|endoftext|>"},
    ],
)
def test_good_changes(changes):
    assert faults(good(**changes)) == []


# --- keys ---


def test_a_misspelt_field():
    assert str(only(with_args(lerning_rate=1e-6))).splitlines() == [
        "  trainer.args.lerning_rate",
        "    found     DPOConfig has no such field",
        "    expected  learning_rate",
        "    type      trainer.args.learning_rate=1e-6",
    ]


MISSPELLINGS = {
    "a letter less": lambda word, place: word[:place] + word[place + 1 :],
    "a letter twice": lambda word, place: word[:place] + word[place] + word[place:],
    "two swapped": lambda word, place: (
        word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]
    ),
    "another letter": lambda word, place: (
        word[:place] + ("y" if word[place] == "x" else "x") + word[place + 1 :]
    ),
    "dashes": lambda word, place: word.replace("_", "-").upper(),
    "camel case": lambda word, place: "".join(part.title() for part in word.split("_")),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MISSPELLINGS)
def test_misspelt_fields_are_found_and_nearly_all_corrected(kind):
    fields = read_signature("trl.DPOConfig").parameters
    usual = {name: field.default for name, field in fields.items()}
    # Valid values, because an invalid one is not suggested for the field.
    values = {name: None if default is UNKNOWN else default for name, default in usual.items()}
    wrong = {}
    for name in fields:
        key = MISSPELLINGS[kind](name, len(name) // 2)
        if key not in fields and fields[name].type.accepts(values[name]):
            wrong[key] = name
    typed = {key: values[name] for key, name in wrong.items()}
    fixes = {fault.where: fault.fix for fault in faults(with_args(**typed))}
    assert set(fixes) == {f"trainer.args.{key}" for key in wrong}
    assert len(wrong) > 120
    right = [
        fixes[f"trainer.args.{key}"] == to_override(f"trainer.args.{name}", values[name])
        for key, name in wrong.items()
    ]
    assert sum(right) / len(right) >= 0.97


def test_all_faults_at_once_in_the_order_of_the_configuration():
    cfg = good(trainer__args__lerning_rate=1, model__dtpe="float16", trainer__hed="lm", nmae="x")
    cfg["peft"] = {"_target_": "peft.LoraConfig", "r": 0, "lora_dropout": 2}
    assert [fault.where for fault in faults(cfg)] == [
        *("trainer.args.lerning_rate", "trainer.hed", "model.dtpe"),
        *("peft.r", "peft.lora_dropout", "nmae"),
    ]


@pytest.mark.parametrize(
    ("path", "expected", "fix"),
    [
        (
            "trainer__learning_rate",
            "`learning_rate` belongs at the top level or trainer.args.learning_rate",
            "learning_rate=3",
        ),
        ("beta", "`beta` is kl_coef here", "kl_coef=3"),
        ("max_steps", "`max_steps` belongs at trainer.args.max_steps", "trainer.args.max_steps=3"),
        ("model__max_length", "`max_length` belongs at trainer.args.max_length", None),
        ("trainer__args__chat_template", None, "model.tokenizer.chat_template=chatml"),
        ("trainer__args__lr", "`lr` is learning_rate here", "learning_rate=3"),
        ("trainer__args__warmup_ratio", None, "trainer.args.warmup_steps=0.1"),
        ("model__torch_dtype", "`torch_dtype` is model.dtype here", "model.dtype=float16"),
        (
            "trainer__args__group_by_length",
            "`group_by_length` is trainer.args.train_sampling_strategy=group_by_length here",
            "trainer.args.train_sampling_strategy=group_by_length",
        ),
        ("model__tokenizer__chat_templat", "chat_template", "model.tokenizer.chat_template=chatml"),
        ("launcher__num_proceses", "num_processes", "launcher.num_processes=3"),
        ("tracker__report", "report_to", "tracker.report_to=wandb"),
        ("trainr", "trainer", "trainer=3"),
        ("experimnt", "experiment", "experiment=3"),
        ("learnin_rate", "learning_rate", "learning_rate=3"),
    ],
)
def test_a_key_is_sent_where_it_belongs(path, expected, fix):
    texts = [text for text in ("chatml", "float16", "wandb") if str(fix).endswith(text)]
    fault = only(good(**{path: [*texts, 3][0]}))
    assert fault.where == path.replace("__", ".")
    assert expected is None or fault.expected == expected
    assert fix is None or fault.fix == fix


@pytest.mark.parametrize(
    ("path", "value", "fix"),
    [
        (
            "trainer__args__max_seq_len",
            0,
            "trainer.args.max_length=1024  (at least 2)",
        ),
        (
            "epochs",
            "abc",
            "trainer.args.num_train_epochs=3.0  (a number)",
        ),
        ("lr", -1, "leave lr out  (learning_rate is above 0 and at most 100)"),
        ("lora_rank", 0, "peft=lora peft.r=8  (at least 1 and at most 16384)"),
        (
            "tolerate__los",
            "abc",
            "leave tolerate.los out  (tolerate.loss is a number or true or false)",
        ),
        ("weight_deacy", 0.1, "trainer.args.weight_decay=0.1"),  # and not weight=0.1
        ("warmup_ratio", 1.5, "trainer.args.warmup_steps=0.1"),
        ("model__ns_steps", 0, "leave ns_steps out"),  # only slightly similar to save_steps
    ],
)
def test_no_value_is_sent_where_it_would_be_refused(path, value, fix):
    assert only(good(**{path: value})).fix == fix


def test_a_field_of_other_trainers():
    fault = only(with_args("SFT", beta=0.1))
    assert fault.expected.startswith("`beta` exists for DPO, ")
    assert "not for SFT" in fault.expected
    fault = only(with_args("SFT", precompute_ref_log_probs=True))
    assert fault.expected == "`precompute_ref_log_probs` exists for DPO, KTO, not for SFT"


@pytest.mark.parametrize(("name", "form"), [("GKD", "messages"), ("OnlineDPO", "prompt")])
def test_rows_that_are_tokens_only_in_a_batch_are_not_grouped_by_length(name, form):
    cfg = good(name, trainer__form=form, trainer__args__train_sampling_strategy="group_by_length")
    fault = only(cfg)
    assert fault.where == "trainer.args.train_sampling_strategy"
    assert form in fault.found
    assert faults(good(trainer__args__train_sampling_strategy="group_by_length")) == []


def test_a_key_unlike_any_other_lists_the_options():
    fault = only(good(model__xyzzy=1))
    assert fault.expected.startswith("one of ")
    assert fault.fix == "leave xyzzy out"


def test_an_open_target_refuses_only_what_looks_misspelt():
    loader = "transformers.AutoTokenizer.from_pretrained"
    node = {"_target_": loader, "pretrained_model_name_or_path": "x"}
    cfg = good()
    cfg["model"]["tokenizer"] = node | {"something_else": 1}
    assert faults(cfg) == []
    cfg["model"]["tokenizer"] = node | {"revison": "main"}
    assert only(cfg).expected == "revision"


def test_missing_arguments():
    cfg = good()
    del cfg["model"]["path"], cfg["model"]["tokenizer"], cfg["trainer"]["form"]
    found_faults = faults(cfg)
    assert [fault.where for fault in found_faults] == [
        *("trainer.form", "model.path", "model.tokenizer")
    ]
    for fault in found_faults:
        assert fault.found.startswith("missing, but ")


def test_a_partial_may_wait_for_the_rest():
    node = {"_target_": "trl.rewards.get_soft_overlong_punishment"}
    cfg = good("GRPO", reward=node)
    where = [fault.where for fault in faults(cfg)]
    assert where == ["reward.max_completion_len", "reward.soft_punish_cache"]
    cfg["reward"]["_partial_"] = True
    assert faults(cfg) == []
    cfg["reward"]["_partial_"] = "yes"
    assert "reward._partial_" in [fault.where for fault in faults(cfg)]


@pytest.mark.parametrize("group", ["trainer", "model", "dataset", "tracker", "launcher"])
def test_a_group_that_every_run_needs(group):
    fault = only(good(**{group: None}))
    assert fault.where == group
    assert fault.fix.startswith(f"{group}=")


@pytest.mark.parametrize("path", ["trainer.args", "model.tokenizer", "trainer.teacher_model"])
@pytest.mark.parametrize("value", [3, "x", {"path": "x"}, []])
def test_a_part_that_must_be_a_node(path, value):
    cfg = good("GKD")
    put(cfg, path, value)
    assert path in [fault.where for fault in faults(cfg)]


def test_a_group_of_the_wrong_shape():
    assert only(good(callback=[])).where == "callback"
    assert only(good(collator="")).where == "collator"
    assert only(good(peft="lora")).fix == "peft=lora"
    assert only(good(peft={"r": 3})).found == "no _target_ with r"
    assert only(good(callback={"x": 3})).where == "callback.x"


def test_a_group_that_is_not_on_the_menu_would_be_dropped():
    node = {"_target_": "torch.optim.AdamW"}
    assert only(good(optimizer=node)).where == "optimizer"
    assert find_all_faults(good(optimizer=node), menu=MENU | {"optimizer": ["adamw"]}) == []


def test_without_a_menu_nothing_is_offered_and_all_is_checked():
    assert find_all_faults(good()) == []
    assert [fault.where for fault in find_all_faults(good("GRPO", reward=None))] == ["reward"]


# --- values ---


@pytest.mark.quick(29)
@pytest.mark.parametrize(
    ("field", "value", "expected", "fix"),
    [
        ("learning_rate", "1e-4", "a number", "=0.0001"),
        ("learning_rate", "abc", "a number", "=1e-6  (the default)"),
        ("learning_rate", "nan", "a number", None),
        ("max_steps", "inf", "a whole number", None),
        ("learning_rate", 0, "above 0 and at most 100", "=1e-6  (the default)"),
        ("learning_rate", -1e-6, "above 0 and at most 100", None),
        ("learning_rate", 1e10, "above 0 and at most 100", None),
        ("learning_rate", None, "a number", None),
        ("learning_rate", True, "a number", None),
        ("learning_rate", math.nan, "a finite number", None),
        ("learning_rate", math.inf, "a finite number", None),
        ("max_steps", 1e3, "a whole number", "=1000"),
        ("max_steps", "300", "a whole number", "=300"),
        ("max_steps", 0, "at least 1, or -1", "=-1  (the default)"),
        ("per_device_train_batch_size", 0, "at least 1", "=8  (the default)"),
        ("per_device_train_batch_size", 1.5, "a whole number", None),
        ("num_train_epochs", 0, "above 0", "=3.0  (the default)"),
        ("weight_decay", -0.1, "at least 0", None),
        ("max_grad_norm", -1, "at least 0", None),
        ("warmup_steps", -1, "at least 0", None),
        ("save_steps", 0, "above 0", None),
        ("adam_beta1", 1.0, "at least 0 and below 1", None),
        ("label_smoothing", 1, "at least 0 and below 0.5", None),
        ("seed", -1, "at least 0 and at most 4294967295", None),
        ("max_length", 0, "at least 2", "=1024  (the default)"),
        ("ld_alpha", 1.1, "at least 0 and at most 1", None),
        ("bf16", "None", "null", "=null"),
        ("bf16", "true", "true or false or null", "=true"),
        ("bf16", 1, "true or false or null", None),
        ("ddp_find_unused_parameters", "None", "null", "=null"),
        ("eval_strategy", False, "one of no, steps, epoch", "=no"),
        ("eval_strategy", "step", "one of no, steps, epoch", "=steps"),
        ("save_strategy", "bset", "one of no, steps, epoch, best", "=best"),
        ("lr_scheduler_type", "cosin", None, "=cosine"),
        ("optim", "adamw", None, "=adamw_torch"),
        ("truncation_mode", "keep_strat", None, "=keep_start"),
        ("loss_type", "sigmod", None, "=sigmoid"),
        ("loss_type", ["sigmoid", "hinges"], None, '="[sigmoid,hinge]"'),
        ("loss_type", ["sigmoid", "zzz"], None, '="[sigmoid]"'),
        ("loss_type", {"a": 1}, "a list of texts or text", None),
        ("f_divergence_type", "reverse", None, "=reverse_kl"),
        ("loss_weights", 1, "a list of numbers or null", '="[1]"'),
        ("loss_weights", ["a"], "a list of numbers or null", None),
        ("run_name", 2024, "text or null", "=\"'2024'\""),
        ("lr_scheduler_kwargs", 3, "a mapping or text or null", None),
        ("report_to", 3, "text or a list of texts or null", "=none  (the default)"),
    ],
)
def test_a_value_that_does_not_fit(field, value, expected, fix):
    fault = only(with_args(**{field: value}))
    assert fault.where == f"trainer.args.{field}"
    assert expected is None or fault.expected == expected
    assert fix is None or fault.fix == f"trainer.args.{field}{fix}"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *((name, "beta", 0) for name in ("DPO", "KTO", "ORPO", "CPO", "OnlineDPO")),
        ("GRPO", "beta", -0.1),
        ("GKD", "beta", 1.5),
        ("Distillation", "beta", 1.5),
        ("OnlineDPO", "beta", [0.1, -0.1]),
        ("GRPO", "temperature", 0),
        ("GRPO", "top_p", 0),
        ("GRPO", "num_generations", 1),
        ("GRPO", "max_completion_length", 0),
        ("GRPO", "epsilon", 0),
        ("GRPO", "loss_type", "gspo"),
        ("GRPO", "importance_sampling_level", "tokens"),
        ("GRPO", "scale_rewards", "groups"),
        ("KTO", "loss_type", "kto2"),
        ("SFT", "loss_type", "chunked"),
        ("SFT", "packing_strategy", "ffd"),
        ("CPO", "loss_type", "kto_pair"),
        ("GKD", "loss_type", "sigmoid"),
        ("RLOO", "reward_clip_range", [0.1]),
    ],
)
def test_a_value_that_does_not_fit_this_trainer(name, field, value):
    assert only(with_args(name, **{field: value})).where == f"trainer.args.{field}"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("GRPO", "beta", 0.0),
        ("GRPO", "scale_rewards", True),
        ("GRPO", "top_k", -1),
        ("GKD", "beta", 0),
        ("OnlineDPO", "beta", 0.2),
        ("CPO", "loss_type", "alphapo"),
        ("RLOO", "reward_clip_range", [-1, 1]),
    ],
)
def test_a_value_that_fits_this_trainer(name, field, value):
    assert faults(with_args(name, **{field: value})) == []


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"learning_rate": -1, "trainer__args__learning_rate": -1}, "learning_rate"),
        ({"learning_rate": math.nan, "trainer__args__learning_rate": math.nan}, "learning_rate"),
        ({"kl_coef": 0, "trainer__args__beta": 0}, "kl_coef"),
        ({"seed": -1, "trainer__args__seed": -1}, "seed"),
        ({"model__path": 3, "model__tokenizer__path": 3}, "model.path"),
    ],
)
def test_one_mistake_is_one_fault_where_it_was_made(changes, where):
    assert only(good(**changes)).where == where


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", "a/../b"),
        ("name", ".."),
        ("name", "x" * 300),
        ("name", ""),
        ("name", 3),
        ("seed", 1.5),
        ("seed", "zero"),
        ("learning_rate", "fast"),
        ("output_root", 3),
        ("allow", "os"),
    ],
)
def test_settings_of_the_top_level(key, value):
    assert only(good() | {key: value}).where == key


def test_numbers_that_are_not_finite_are_refused_in_free_mappings_too():
    cfg = good(
        trainer__args__lr_scheduler_type="polynomial",
        trainer__args__lr_scheduler_kwargs={"power": math.inf},
    )
    assert only(cfg).where == "trainer.args.lr_scheduler_kwargs.power"


def test_keys_and_values_inside_a_typed_mapping(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rows.py").write_text(
        "from typing import Literal\ndef load(columns: "
        "dict[Literal['prompt', 'chosen'], str], to=None): ...\n"
    )
    cfg = good(dataset={"_target_": "my_rows.load", "columns": {"promt": "x"}})
    fault = only(cfg, allow=("my_rows",))
    assert fault.where == "dataset.columns.promt"
    assert fault.fix == "dataset.columns.prompt=x"
    cfg["dataset"]["columns"] = {"prompt": 3, "chosn": "x"}
    where = [fault.where for fault in faults(cfg, allow=("my_rows",))]
    assert where == ["dataset.columns.prompt", "dataset.columns.chosn"]


@pytest.mark.slow
def test_every_field_in_our_tables_exists():
    """If a library renamed a field, its check would silently be lost."""
    shipped = {}
    for file in (ROOT / "conf").rglob("*.yaml"):
        for _, node in nodes(yaml.safe_load(file.read_text()) or {}):
            signature = read_signature(node["_target_"])
            shipped.setdefault(file.parent.name, set()).update(
                signature.parameters if signature else ()
            )
    for group, package in (
        ("peft", "peft"),
        ("optimizer", "torch.optim"),
        ("optimizer", "torch.optim.lr_scheduler"),
    ):
        for name in public_names(package):
            signature = read_signature(f"{package}.{name}")
            shipped[group] |= set(signature.parameters) if signature else set()
    for schedule in upstream.SCHEDULES.values():
        if schedule.takes:
            shipped["optimizer"] |= set(read_signature(schedule.takes).parameters)
    shipped["optimizer"] |= {"lr_ratio"}
    shipped["generation"] = set(read_signature("transformers.GenerationConfig").parameters)
    for group in ("trainer", "peft", "optimizer", "generation"):
        named = {name for name in BY_GROUP[group] if not name.startswith("|")}
        assert named - shipped[group] == set()
    assert {*SET_BY_RUNNER, *upstream.FROM_GROUP} - shipped["trainer"] == set()
    signatures = {
        f"{name}Config": signature
        for name, signature in ValidationContext({}).trainer_configs.items()
    }
    signatures |= {target.rpartition(".")[2]: read_signature(target) for target in (
        "runner.training.callback.Samples", "transformers.EarlyStoppingCallback", "peft.OFTConfig",
        "accelerate.ParallelismConfig", "runner.ppo.PPOConfig",
    )}  # fmt: skip
    targets = ("runner.loss.focal", "runner.loss.label_smoothed", "runner.reward.rule.length")
    signatures |= {target: read_signature(target) for target in targets}
    signatures["BEMACallback"] = read_signature("trl.BEMACallback")
    fields = {owner: set(signature.parameters) for owner, signature in signatures.items()}
    fields["Adafactor"] = {
        *read_signature("transformers.Adafactor").parameters,
        *read_signature("torch.optim.Adafactor").parameters,
    }
    for owner, row in BY_CLASS.items():
        assert set(row) - fields[owner] == set(), owner


# --- parts ---


def test_several_machines_are_those_of_another_launcher():
    fault = only(good(launcher__num_machines=2))
    assert (fault.where, fault.fix) == (
        "launcher.num_machines",
        "launcher=accelerate launcher.num_machines=2",
    )


def test_a_trainer_of_rewards_needs_one():
    fault = only(good("GRPO", reward=None))
    assert (fault.where, fault.expected) == ("reward", "one of accuracy, brevity")
    assert fault.fix == "reward=accuracy"
    assert only(good("GRPO", reward={"off": None})).where == "reward"


@pytest.mark.parametrize(
    ("name", "group", "node"),
    [
        ("SFT", "reward", REWARD),
        ("GRPO", "collator", {"_target_": "transformers.DataCollatorWithFlattening"}),
    ],
)
def test_a_part_that_the_trainer_does_not_take(name, group, node):
    fault = only(good(name, **{group: node}))
    assert fault.where == group
    assert fault.fix == f"{group}=none"


@pytest.mark.parametrize("name", ["GKD", "Distillation"])
def test_a_trainer_with_a_teacher_needs_one(name):
    cfg = good(name)
    cfg["trainer"]["teacher_model"] = None
    assert only(cfg).where == "trainer.teacher_model"
    cfg["trainer"]["teacher_model"] = {"_target_": "runner.model.load.load_model", **LOADED}
    assert faults(cfg) == []


def test_a_part_among_the_trainers_keys_is_sent_to_its_group():
    fault = only(good(trainer__peft_config={"_target_": "peft.LoraConfig"}))
    assert fault.expected == "the group peft"
    assert fault.fix == "peft=lora"


def test_the_config_of_another_trainer():
    cfg = good("SFT", trainer__args={"_target_": "trl.KTOConfig"})
    assert only(cfg).fix == "trainer.args._target_=trl.SFTConfig"


def test_quantised_weights_need_an_adapter():
    quant = {"_target_": "transformers.BitsAndBytesConfig", "load_in_4bit": True}
    assert only(good(quant=quant)).fix == "peft=lora"
    freeze = {"_target_": "runner.model.freeze.train_last_layers", "layers": 1}
    assert only(good(quant=quant, peft=freeze)).where == "quant"
    lora = {"_target_": "peft.LoraConfig"}
    assert faults(good(quant=quant | {"load_in_8bit": True}, peft=lora))[0].where == "quant"
    assert only(good(quant={"_target_": quant["_target_"]}, peft=lora)).where == "quant"


@pytest.mark.parametrize(
    ("name", "fields", "where"),
    [
        ("DPO", {"max_steps": 10, "warmup_steps": 20}, "warmup_steps"),
        ("DPO", {"load_best_model_at_end": True}, "load_best_model_at_end"),
        ("GRPO", {"num_generations": 6}, "num_generations"),
        ("GRPO", {"per_device_train_batch_size": 4}, "num_generations"),
        ("DPO", {"output_dir": "x"}, "output_dir"),
        ("DPO", {"resume_from_checkpoint": "x"}, "resume_from_checkpoint"),
    ],
)
def test_values_that_do_not_go_together(name, fields, where):
    assert only(with_args(name, **fields)).where == f"trainer.args.{where}"


@pytest.mark.parametrize(
    "fields",
    [
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 2, "steps_per_generation": 4},
        {"generation_batch_size": 32},
        {"num_generations": 4},
    ],
)
def test_batches_that_hold_whole_groups(fields):
    assert faults(with_args("GRPO", **fields)) == []


# --- what may run ---

# One of a kind; all of them are in ``fault/danger_cases``.
DANGEROUS = [
    "os.system",
    "builtins.eval",
    "functools.partial",
    "logging.os.system",
    "pandas.read_pickle",
    "torch.load",
    "hydra.utils.instantiate",
    "huggingface_hub.HfApi",
    "transformers.pipeline",
    "transformers.dynamic_module_utils.get_class_from_dynamic_module",
    "trl.trainer.utils.os.system",
    "peft.PeftModel.from_pretrained",
    "runner.io.files.write_text",
    "runner.model.load._load_whole",
]


@pytest.mark.parametrize("target", DANGEROUS)
def test_a_dangerous_target_is_refused(target):
    cfg = good(callback={"x": {"_target_": target}})
    fault = only(cfg)
    assert fault.where == "callback.x._target_"
    package = target.split(".")[0]
    is_offered = package not in {
        *sys.stdlib_module_names,
        "torch",
        "numpy",
        "hydra",
        "transformers",
    }
    assert is_offered or "allow=" not in fault.fix


@pytest.mark.parametrize("target", ["", ".", "os", "os.", ".os", "os..system", 3, None, ["os"]])
def test_a_target_that_is_no_dotted_name(target):
    assert only(good(callback={"x": {"_target_": target}})).where == "callback.x._target_"


def test_a_dangerous_target_is_found_wherever_it_hides():
    bad = {"_target_": "os.system", "command": "true"}
    cfg = good(trainer__args__lr_scheduler_kwargs={"deep": [{"er": bad}]})
    assert only(cfg).where == "trainer.args.lr_scheduler_kwargs.deep.0.er._target_"


def test_the_range_of_beta_is_that_of_the_config_whoever_derives_the_trainer(tmp_path, monkeypatch):
    (tmp_path / "derived.py").write_text(
        "from trl.experimental.online_dpo import OnlineDPOTrainer\n"
        "\nclass Mine(OnlineDPOTrainer): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    cfg = good("OnlineDPO", trainer__args__beta=0)
    cfg["trainer"]["_target_"] = "derived.Mine"
    assert [fault.where for fault in find_all_faults(cfg, menu=MENU, allow=["derived"])] == [
        "trainer.args.beta"
    ]


def test_reexports_do_not_lead_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from os import system as harmless\nimport os\nrun = os.popen\ndef fine(): ...\n"
    (tmp_path / "my_parts.py").write_text(text)
    for name in ("harmless", "run", "os.system"):
        cfg = good(callback={"x": {"_target_": f"my_parts.{name}"}})
        fault = only(cfg, allow=("my_parts",))
        assert "os" in fault.found
        assert fault.fix == ""
    cfg = good(callback={"x": {"_target_": "my_parts.fine"}})
    assert only(cfg).fix == "allow=[my_parts]  (if you trust that package)"
    assert faults(cfg, allow=("my_parts",)) == []
    assert only(cfg, allow=("my_part",)).where == "callback.x._target_"


def test_a_package_that_only_the_file_allows():
    fault = only(good(allow=["my_parts"]))
    assert fault.where == "allow"
    assert fault.fix == "allow=[my_parts]"
    assert faults(good(allow=["my_parts"]), allow=("my_parts",)) == []


@pytest.mark.parametrize(
    "target",
    [
        "trl.DPOTrainer",
        "trl.trainer.dpo_trainer.DPOTrainer",
        "transformers.AutoModelForCausalLM.from_pretrained",
        "transformers.AutoTokenizer.from_pretrained",
        "transformers.Qwen2ForCausalLM",
        "transformers.Qwen2Config",
        "peft.LoraConfig",
        "torch.optim.AdamW",
        "torch.optim.lr_scheduler.OneCycleLR",
        "torch.nn.CrossEntropyLoss",
        "bitsandbytes.optim.AdamW8bit",
        "runner.model.load.load_model",
    ],
)
def test_targets_that_may_run(target):
    assert is_allowed(target)
    assert is_allowed(read_signature(target).home)


def test_a_launcher_is_the_function_of_its_module(tmp_path, monkeypatch):
    """So a new launcher is a module in ``runner/launch/`` and a file in ``conf/launcher/``."""
    assert is_allowed("runner.launch.slurm.slurm", launcher=True)
    assert not is_allowed("runner.launch.slurm.slurm")
    for other_words in (
        "slurm.submit",
        "worker.work",
        "start.start_runs",
        "pool.confine",
        "local.os",
        "local.worker",
    ):
        assert not is_allowed(f"runner.launch.{other_words}", launcher=True)
    monkeypatch.chdir(tmp_path)
    Path("my_slurm.py").write_text(
        "def my_slurm(folder, *, num_processes=1, partition='', debug=False): ..."
    )
    node = {"_target_": "my_slurm.my_slurm", "num_processes": 2, "partition": "gpu", "jobs": 4}
    assert find_all_faults(good(launcher=node), menu=MENU, allow=["my_slurm"]) == []
    (fault,) = find_all_faults(
        good(launcher=node | {"partitoin": "x"}), menu=MENU, allow=["my_slurm"]
    )
    assert fault.fix == "launcher.partition=x"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("target", "fix"),
    [
        ("trl.DPOTraner", "trl.DPOTrainer"),
        ("trl.ORPOTrainer", "trl.experimental.orpo.ORPOTrainer"),
        ("trl.trainer.dpo_traner.DPOTrainer", None),
        ("peft.LoRAConfg", "peft.LoraConfig"),
        ("torch.optim.AdamX", "torch.optim.Adamax"),
        (
            "transformers.AutoModelForCasualLM.from_pretrained",
            "transformers.AutoModelForCausalLM.from_pretrained",
        ),
        ("transformers.EarlyStopingCallback", "transformers.EarlyStoppingCallback"),
        ("runner.model.load.laod_model", "runner.model.load.load_model"),
        ("not_installed_anywhere.thing", None),
    ],
)
def test_a_target_that_does_not_exist(target, fix):
    fault = only(good(callback={"x": {"_target_": target}}))
    assert fault.found.startswith("there is no ")
    assert fix is None or fault.fix == f"callback.x._target_={fix}"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model__trust_remote_code", True),
        ("model__safetensors_only", False),
        ("model__attention", "kernels-community/flash-attn"),
        ("trainer__args__push_to_hub", True),
        ("trainer__args__trackio_space_id", "someone/space"),
        ("trainer__args__model_init_kwargs", {"trust_remote_code": True}),
    ],
)
def test_values_that_run_code_or_publish_must_be_typed(path, value):
    cfg = good(**{path: value})
    dotted = path.replace("__", ".")
    if isinstance(value, dict):
        dotted += ".trust_remote_code"
    fault = only(cfg)
    assert fault.where == dotted
    assert fault.fix.startswith(f"{dotted}=")
    assert faults(cfg, typed={dotted}) == []


HERE = (
    *(
        "localhost",
        "localhost:8000",
        "http://localhost",
        "https://LOCALHOST:8000/v1?a=b#c",
        "http://me@localhost/v1",
    ),
    *(
        "127.0.0.1",
        "127.8.9.1:80",
        "http://127.0.0.1:8000/",
        "0.0.0.0",
        "::1",
        "[::1]:8000",
        "http://[::1]:8000/v1",
    ),
    *("http://[::ffff:127.0.0.1]/", "http://localhost/?next=http://evil.example"),
)
ELSEWHERE = (
    *(
        "evil.example",
        "http://evil.example",
        "http://evil.example?@localhost",
        "http://evil.example#@localhost",
    ),
    *(
        "http://evil.example/@localhost",
        "http://evil.example\\@localhost",
        "http://evil.example:80?@localhost:80",
    ),
    *(
        "evil.example?@localhost",
        "http://localhost@evil.example",
        "http://localhost:80@evil.example",
    ),
    *(
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://localhost\\.evil.example",
    ),
    *(
        "http://[::1]evil.example",
        "http://[::1].evil.example",
        "http://[::2]",
        "http://8.8.8.8",
        "//evil.example/",
    ),
    *(
        "http://2130706433",
        "http://0177.0.0.1",
        "http://127.0.0.01",
        "http://127.1",
        "http://0x7f.0.0.1",
    ),
    *(
        "http://127.999.0.1",
        "http://local\thost",
        "http:evil.example",
        "http://\uff45vil.example\uff0f@localhost",
    ),
    *(
        "evil.example://127.0.0.1",
        "x://localhost",
        "http://localhost%2eevil.example",
        "http://ⓛocalhost",
        "http:///evil.example",
        "http:/evil.example",
    ),
)


@pytest.mark.parametrize(
    ("address", "is_risky"), [*((a, False) for a in HERE), *((a, True) for a in ELSEWHERE)]
)
def test_an_address_of_another_machine_must_be_typed(address, is_risky):
    """A text that clients do not read as an address of this machine is not one."""
    dangers = find_dangers({"trainer": {"args": {"vllm_server_base_url": address}}})
    assert [fault.where for fault in dangers] == (
        ["trainer.args.vllm_server_base_url"] if is_risky else []
    )


@pytest.mark.parametrize(
    "host", ["http://127.0.0.1", "127.0.0.1/x", "evil.example://localhost", "evil.example"]
)
def test_more_than_a_host_of_this_machine_must_be_typed(host):
    [fault] = find_dangers({"trainer": {"args": {"vllm_server_host": host}}})
    assert fault.where == "trainer.args.vllm_server_host"
    assert not list(find_dangers({"trainer": {"args": {"vllm_server_host": "127.0.0.1"}}}))


STORES = {
    **dict.fromkeys(
        ("sqlite:///{root}/m.db", "sqlite:///m.db", "file:runs", "file://{root}/runs"), False
    ),
    **dict.fromkeys(
        ("databricks", "file://evil.example/x", "sqlite:////etc/m.db", "file:../x", "http://e"),
        True,
    ),
}


@pytest.mark.parametrize(
    ("variable", "value", "is_risky"),
    [
        *(("MLFLOW_TRACKING_URI", store, is_risky) for store, is_risky in STORES.items()),
        *(
            (name, "http://evil.example", True)
            for name in ("WANDB_HTTP_PROXY", "TRACKIO_SERVER_URL", "MLFLOW_REGISTRY_URI")
        ),
        *(
            (name, "mine", False)
            for name in ("WANDB_PROJECT", "WANDB_NAME", "MLFLOW_EXPERIMENT_NAME")
        ),
        ("WANDB_MODE", "", True),  # the default mode sends
        ("WANDB_MODE", "disabled", False),
        ("SWANLAB_MODE", "cloud", True),
        ("SWANLAB_MODE", "local", False),
        ("SWANLAB_API_HOST", "swanlab.example", True),
        ("SWANLAB_WEBHOOK", "https://evil.example", True),
        ("SWANLAB_LOG_DIR", "/etc", True),
        ("SWANLAB_LOG_DIR", "{folder}/swanlab", False),
    ],
)
def test_a_variable_that_can_lead_a_tracker_elsewhere_must_be_typed(variable, value, is_risky):
    dangers = list(find_dangers({"tracker": {"environment": {variable: value}}}))
    assert [fault.where for fault in dangers] == (
        [f"tracker.environment.{variable}"] if is_risky else []
    )


def test_a_flag_counts_for_the_nodes_inside():
    cfg = good(model__trust_remote_code=True, model__tokenizer__trust_remote_code=True)
    assert only(cfg).where == "model.trust_remote_code"
    assert faults(cfg, typed={"model.trust_remote_code"}) == []
    assert only(cfg, typed={"model", "trust_remote_code"}).where == "model.trust_remote_code"
    assert only(cfg, typed={"model.tokenizer.trust_remote_code"}).where == "model.trust_remote_code"


SECRETS = {
    "trainer__args__hub_token": "whatever-it-is",
    "trainer__args__model_init_kwargs": {"token": "hf_" + "aB3" * 11},
    "model__path": "https://user:" + "hunter22@host/model",
    "tracker__environment": {"WANDB_API_KEY": "0123456789abcdef" * 2},
    "trainer__args__run_name": "sk-" + "proj1234567890abcdef",
    "trainer__args__lr_scheduler_kwargs": {"db_password": "hunter22"},
}


@pytest.mark.parametrize(("path", "value"), SECRETS.items())
def test_a_secret_is_refused_and_not_repeated(path, value):
    fault = only(good(**{path: value}))
    assert fault.where.startswith(path.replace("__", "."))
    secret = next(iter(value.values())) if isinstance(value, dict) else value
    assert secret not in str(fault)
    assert "export " in fault.fix


@pytest.mark.parametrize(
    ("cfg", "variable"),
    [
        ({"tracker": {"environment": {"SWANLAB_API_KEY": "k"}}}, "SWANLAB_API_KEY"),
        (
            {"tracker": {"environment": {"MLFLOW_TRACKING_PASSWORD": "k"}}},
            "MLFLOW_TRACKING_PASSWORD",
        ),
        ({"tracker": {"environment": {"WANDB_PROJECT": "hf_" + "aB3" * 11}}}, "WANDB_API_KEY"),
        ({"tracker": {"environment": {"COMET_WORKSPACE": "hf_" + "aB3" * 11}}}, "COMET_API_KEY"),
        ({"trainer": {"args": {"swanlab_api_key": "k"}}}, "SWANLAB_API_KEY"),
        ({"trainer": {"args": {"hub_token": "whatever-it-is"}}}, "HF_TOKEN"),
    ],
)
def test_a_secret_is_exported_as_the_variable_that_its_reader_knows(cfg, variable):
    (fault,) = find_secrets(cfg)
    assert fault.fix == f"export {variable}=...  (and leave the key out)"


def test_a_secret_under_a_misspelt_key_is_not_repeated_either():
    secret = "hf_" + "aB3" * 11
    assert secret not in texts(faults(with_args(hub_tokn=secret, max_steps=secret)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model__tokenizer__eos_token", "<|im_end|>"),
        ("model__tokenizer__pad_token", "[PAD]"),
        ("model__tokenizer__pad_token", "endoftext"),
        ("model__revision", "7ae557604adf67be50417f59c2c2f167def9a775"),
        ("trainer__args__model_init_kwargs", {"token": True}),
        ("model__path", "hf-internal-testing/tiny-random-model"),
    ],
)
def test_texts_that_only_resemble_secrets_are_allowed(path, value):
    assert faults(good(**{path: value})) == []


# --- how it is done ---


@pytest.mark.slow
def test_the_check_imports_nothing_heavy():
    code = f"""
        import json, sys
        from runner.validate.configuration import find_all_faults
        cfg = json.loads({json.dumps(json.dumps(good()))})
        assert find_all_faults(cfg) == [], find_all_faults(cfg)
        cfg["trainer"]["args"]["lerning_rate"] = cfg["beta"] = 1
        assert len(find_all_faults(cfg)) == 2
        heavy = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "omegaconf")
        print([name for name in heavy if name in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


JUNK = (None, [{}], {"_target_": None}, {3: 4}, math.nan, "???")


@pytest.mark.quick(2)
@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_no_value_in_any_place_breaks_the_check(junk):
    for path in paths(good("GRPO")):
        cfg = good("GRPO")
        put(cfg, path, junk)
        find_all_faults(cfg, menu=MENU)


def paths(node, path=""):
    for key, value in node.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{path}{key}.")


def test_the_configuration_is_left_as_it_was():
    cfg = with_args(lerning_rate=1)
    before = copy.deepcopy(cfg)
    find_all_faults(cfg, menu=MENU)
    assert cfg == before


def test_likeness():
    assert likeness("Learning-Rate", "learning_rate") == 1
    assert nearest("adamw", ["grokadamw", "adamw_torch", "sgd"])[0] == "adamw_torch"
    assert nearest("xyzzy", ["learning_rate"]) == []
