"""Checks of a model's config.json and generation_config.json, by its folder or after a download.

Of weights nothing is read; ``check_weights`` compares them with the config.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from os.path import getmtime
from typing import TypeGuard

from runner.errors import Fault
from runner.model.architecture import (
    config_target,
    describe_unfit,
    find_unknown_keys,
    has_head,
    is_known_architecture,
)
from runner.model.config_values import (
    bad_value,
    find_override_value_faults,
    find_value_faults,
    list_entries,
)
from runner.model.model_files import MODEL_PATHS, ModelFolder
from runner.schema.literal import to_list
from runner.schema.read import read_signature
from runner.schema.source import find_definition
from runner.schema.text import Node, to_override, walk

# The methods of quantisation, by the names that a config.json has for them.
QUANTISATIONS = "transformers.quantizers.auto.AUTO_QUANTIZATION_CONFIG_MAPPING"
# Keys of a config that may name a kernel of the hub.
KERNEL = re.compile(r"_*(attn|experts)_implementation(_internal)?")
# The model that a trainer wants, by its head.
WANTED_MODELS = {"lm": "a decoder, as language models are", "score": "a model that can score"}
# Keys of a model's config that other keys of a configuration set, with what to type.
SET_ELSEWHERE = {
    "model_type": "model.path=<a model of that architecture>",
    "auto_map": "model.trust_remote_code=true",
    "quantization_config": "quant=4bit",
    "vocab_size": "model.tokenizer.add_tokens=[<token>]",
    "rope_scaling": "model.config.rope_parameters={rope_type: yarn, factor: 4.0}",
    "attn_implementation": "model.attention=sdpa",
    "dtype": "model.dtype=bfloat16",
    "torch_dtype": "model.dtype=bfloat16",
    "pad_token_id": "model.tokenizer.pad_token=<token>",
    "eos_token_id": "model.tokenizer.eos_token=<token>",
    "num_labels": "trainer=reward",
}
# Keys that any config may have inside of rope_parameters.
ROPE_KEYS = [
    "rope_type",
    "rope_theta",
    "factor",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "short_factor",
    "long_factor",
    "low_freq_factor",
    "high_freq_factor",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "mrope_section",
    "full_attention",
    "sliding_attention",
]


def find_config_faults(
    folder: ModelFolder, head: str | None = None, *, trust: bool = False
) -> list[Fault]:
    """Faults of a model's config, beginning with those that keep the others from being found.

    ``head`` is the head that is asked for, if any; ``trust`` allows a model to bring Python code.
    """
    if not folder.has("config.json"):
        # A cache of the hub that lacks it may lack everything; loading tells.
        return [] if folder.repo else [_missing_config(folder)]
    kernel = _find_kernel(folder.read("config.json"))
    if kernel:
        found = f"config.json of {folder.source} asks for the kernel {kernel}"
        return [
            Fault(
                where=folder.where,
                found=f"{found}, which is code of the hub",
                expected="sdpa, eager, flash_attention_2 or none there",
                fix="=<a copy of it without that key>",
            )
        ]
    faults = list(_find_quantisation_faults(folder))
    if faults:
        return faults
    model_type = folder.whole_config.get("model_type")
    if folder.whole_config.get("auto_map") and not is_known_architecture(model_type):
        if trust:
            return []
        return [
            Fault(
                where="model.trust_remote_code",
                found=f"{folder.source} brings Python code of its own",
                expected="your permission to run it",
                fix="=true  (if you trust it)",
            )
        ]
    fault = _find_architecture_fault(folder, head)
    if fault:
        return [fault]
    target = config_target(str(model_type))
    faults += find_value_faults(folder, "config.json", target)
    faults += _find_override_faults(folder, str(model_type), target)
    if folder.has("generation_config.json"):
        generation_target = "transformers.GenerationConfig"
        faults += find_value_faults(folder, "generation_config.json", generation_target)
    return faults or list(_find_end_token_faults(folder))


def _missing_config(folder: ModelFolder) -> Fault:
    """The fault of a folder without config.json.

    It may hold runs; the model that was trained last is then what to type.
    """
    names = sorted(path.name for path in folder.path.iterdir())
    found = "is empty"
    if names:
        found = f"has no config.json, but {', '.join(names[:6])}"
    # The folder of a run, of a sweep, or of all runs.
    models: list[str] = []
    for runs in ("", "*/", "*/*/"):
        configs = folder.path.glob(f"{runs}model/*config.json")
        models += [str(file.parent) for file in configs]
    fix = "=<folder or org/name>"
    if models:
        fix = to_override(folder.where, max(models, key=getmtime))
    return Fault(
        where=folder.where,
        found=f"{folder.source} {found}",
        expected=MODEL_PATHS,
        fix=fix,
    )


def _find_kernel(config: Node) -> str:
    """The first kernel of the hub that a config names; empty where there is none.

    transformers would download and run it, whatever the command line says.
    """
    for path, value in walk(config):
        is_kernel_key = any(KERNEL.fullmatch(name) for name in path.split("."))
        if is_kernel_key and isinstance(value, str) and "/" in value:
            return value
    return ""


def _find_quantisation_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for weights that are rounded by no method of transformers.

    It would take them for weights as they are.
    """
    text_config = folder.whole_config.get("text_config")
    all_settings = []
    for config in (folder.whole_config, text_config):
        if isinstance(config, Mapping) and config.get("quantization_config"):
            all_settings.append(config["quantization_config"])
    if not all_settings:
        return
    table = getattr(find_definition(QUANTISATIONS), "node", None)
    keys = table.keys if isinstance(table, ast.Dict) else []
    methods = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    if not methods:  # the table of this transformers cannot be read
        return
    for settings in all_settings:
        method = settings
        if isinstance(settings, Mapping):
            method = settings.get("quant_method")
            if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
                continue
        if method not in methods:
            name = json.dumps(method)[:40]
            settings_by = f"quantization_config by the method {name}"
            families = {name.removesuffix("_4bit").removesuffix("_8bit") for name in methods}
            yield Fault(
                where=folder.where,
                found=f"config.json of {folder.source} has {settings_by}",
                expected=f"one of {', '.join(sorted(families))}",
                fix="=<folder or org/name>",
            )


def _find_architecture_fault(folder: ModelFolder, head: str | None) -> Fault | None:
    """The fault of an architecture that is not named, not known, or does not suit the trainer."""
    config = folder.whole_config
    model_type = config.get("model_type")
    fix = "=<folder or org/name>"
    if not isinstance(model_type, str):
        return Fault(
            where=folder.where,
            found=f"config.json of {folder.source} has no model_type",
            expected="the config.json of a model",
            fix=fix,
        )
    if not is_known_architecture(model_type):
        return Fault(
            where=folder.where,
            found=f"the architecture {model_type} is unknown to the installed transformers",
            expected="an architecture that it knows",
            fix="pip install --upgrade transformers",
        )
    if head and not has_head(config, head):
        return Fault(
            where=folder.where,
            found=f"the architecture {model_type} has no head for this trainer in transformers",
            expected=WANTED_MODELS[head],
            fix=fix,
        )
    unfit = describe_unfit(model_type, config, head)
    if unfit:
        return Fault(
            where=folder.where,
            found=unfit,
            expected=WANTED_MODELS["lm"],
            fix=fix,
        )
    return None


def _find_override_faults(folder: ModelFolder, model_type: str, target: str) -> Iterator[Fault]:
    """Faults of the keys of a config that the user sets to other values."""
    where = f"{folder.where.removesuffix('path')}config"
    config = folder.read("config.json")
    text_config = config.get("text_config") or {}
    own_overrides = {}
    for key, value in folder.overrides.items():
        if key not in SET_ELSEWHERE:
            own_overrides[key] = value
            continue
        yield Fault(
            where=f"{where}.{key}",
            found="a key that is set in another way",
            expected="another key of the config",
            fix=SET_ELSEWHERE[key],
        )
    signature = read_signature(target)
    if signature:
        known = {*list_entries(config), *text_config, *signature.parameters}
        known |= {f"rope_parameters.{key}" for key in ROPE_KEYS}
        overrides = list_entries(own_overrides)
        for fault in find_unknown_keys(where, model_type, overrides, known):
            # Not every key of a text_config is known here.
            if fault.fix or not text_config:
                yield fault
    positions = "max_position_embeddings"
    original = f"original_{positions}"
    rope = folder.config.get("rope_parameters")
    lacks_original = _is_scaled(rope) and rope.get("rope_type") != "linear" and original not in rope
    if positions in folder.overrides and lacks_original:
        yield Fault(
            where=f"{where}.rope_parameters.{original}",
            found="none, but then the new max_position_embeddings would count as those of the "
            "training",
            expected="the positions that it was trained with",
            fix=f"={(text_config or config).get(positions)}",
        )
    yield from find_override_value_faults(folder, target, where)


def _is_scaled(rope: object) -> TypeGuard[Node]:
    """True for settings of rotary embeddings that reach beyond the positions of the training."""
    return isinstance(rope, Mapping) and rope.get("rope_type") not in (None, "default")


def find_length_faults(folder: ModelFolder, length: object) -> Iterator[Fault]:
    """A fault for rows that may be longer than the model has positions, unless these are scaled."""
    positions = folder.positions
    config = folder.config
    if _is_scaled(config.get("rope_parameters") or config.get("rope_scaling")):
        return
    if positions is not None and isinstance(length, int) and length > positions:
        yield Fault(
            where="trainer.args.max_length",
            found=f"{length}, but the model has {positions} positions",
            expected=f"at most {positions}",
            fix=f"trainer.args.max_length={positions}, or tolerate.beyond_positions=true",
        )


def _find_end_token_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for an end token that the model has no row for.

    Other special tokens are taken from the tokenizer.
    """
    rows = folder.config.get("vocab_size")
    if not isinstance(rows, int):
        return
    key = "eos_token_id"
    for file in filter(folder.has, ("config.json", "generation_config.json")):
        for token_id in to_list(folder.read(file).get(key)):
            if isinstance(token_id, int) and token_id >= rows:
                expected = f"below vocab_size, {rows}"
                yield bad_value(folder, file, key, str(token_id), expected)
