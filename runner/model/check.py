"""Checks of models, adapters and tokenizers, each once: by a folder's files, or by what the loader has at hand.

No torch here. Of weights the headers are looked at; for a model of the hub, loading tells the rest (``load``).
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from os.path import getmtime
from typing import TYPE_CHECKING, Any

from runner.errors import ConfigError, Fault, describe, fault
from runner.model import jinja
from runner.model.adapter_files import find_adapter_weight_faults
from runner.model.folder import ADAPTER, INDEX, WEIGHTS, ModelFolder, find_folder
from runner.schema.read import read_signature
from runner.schema.source import find_definition
from runner.schema.text import Node, nearest, read_tables, to_override, walk

if TYPE_CHECKING:
    from tokenizers import AddedToken

LookAtTemplate = Callable[[str, Mapping[str, str]], list[Fault]]
LOADER = "runner.model.load.load_model"
NEW = "runner.model.load.new_model"
TOKENIZER = "runner.model.load.load_tokenizer"
TASKS = {"lm": "CAUSAL_LM", "score": "SEQ_CLS"}  # peft's names of the heads
# Where the installed transformers lists its architectures: all of them, and those that have a head.
CONFIG_CLASSES = "transformers.models.auto.auto_mappings.CONFIG_MAPPING_NAMES"
WITH_HEAD = "transformers.models.auto.modeling_auto.MODEL_FOR_{}_MAPPING_NAMES"
MODEL_CLASSES = {"lm": WITH_HEAD.format("CAUSAL_LM"), "score": WITH_HEAD.format("SEQUENCE_CLASSIFICATION")}
SEEING = WITH_HEAD.format("IMAGE_TEXT_TO_TEXT")
LIMITS: dict[str, dict[str, Any]] = read_tables(__file__)
KINDS = {"an object": Mapping, "a list": list, "a text": str, "a text or an object": str | Mapping}
PICKLES, READ_WITH_WEIGHTS, VOCABULARIES = LIMITS["files"].values()
QUANTISATIONS = "transformers.quantizers.auto.AUTO_QUANTIZATION_CONFIG_MAPPING"  # by the names in a config.json
NESTED, OUTPUT_LAYERS, BYTE_TOKENIZERS, ENDLESS_TOKENIZERS = map(tuple, LIMITS["names"].values())
KERNEL = re.compile(r"_*(attn|experts)_implementation(_internal)?")  # keys of a config that may name one of the hub
WITH = {"lm": "a decoder, as language models are", "score": "a model that can score"}  # models by their heads


def find_model_faults(
    node: Node, head: str, length: object = None, peft: object = None, where: str = "model"
) -> list[Fault]:
    """Faults of the model that a node names, for rows of this length, and of what ``peft`` trains of it."""
    if node.get("_target_") == NEW:
        kind, own = str(node.get("model_type")), {"_target_", "tokenizer", "dtype", "seed", "head", "model_type"}
        if not _is_known(kind):
            return [fault("model.unknown_architecture", kind=kind)]
        if found := _describe_unfit(kind, node, head):
            return [fault("model.new_that_is_unfit", found=found)]
        if node.get("config"):
            return [fault("model.config_of_new")]
        signature = read_signature(f"transformers.{_read_classes(CONFIG_CLASSES).get(kind)}")
        given = {key: value for key, value in node.items() if key not in own}
        known = set(signature.parameters) if signature else set()
        return [each for each in find_unknown_keys("model", kind, given, known, 0.9) if each.fix]  # others may be known
    if node.get("_target_") != LOADER:
        return []
    is_merged, faults = bool(node.get("merge")), list[Fault]()
    how = {"safetensors_only": node.get("safetensors_only", True), "trust": bool(node.get("trust_remote_code"))}
    try:
        if (folder := find_folder(node["path"], f"{where}.path")) is None:
            return []
        folder = replace(folder, overrides=node.get("config") or {})
        faults += find_merge_faults(folder) if is_merged else []
        if folder.adapter is None:
            faults += _find_folder_faults(folder, head, **how)
            return faults or [*_find_length_faults(folder, length), *_find_tuning_faults(folder, peft)]
        faults += find_adapter_faults(folder, head, is_safe=folder.has(ADAPTER) or not how["safetensors_only"])
        faults += [] if faults else find_adapter_weight_faults(folder)
        freezes = isinstance(peft, Mapping) and str(peft.get("_target_")).startswith("runner.model.freeze.")
        if peft and not is_merged and not freezes:
            faults.append(fault("model.second_adapter"))
    except ConfigError as error:
        return faults + error.faults
    if folder.base:
        try:
            base = find_folder(folder.base[0], folder.where)
            faults += _find_folder_faults(replace(base, overrides=folder.overrides), head, **how) if base else []
        except ConfigError as error:
            for each in error.faults:
                faults.append(replace(each, where=folder.where, found=f"the base of the adapter: {each.found}"))
    return faults


def read_vocab_size(node: Node) -> int | None:
    """The number of tokens that a model has room for, where its folder tells."""
    try:
        folder = find_folder(node["path"], "model.path") if node.get("_target_") == LOADER else None
        return folder.config.get("vocab_size") if folder and folder.has("config.json") else None
    except ConfigError:
        return None


def find_scorer_faults(path: str, where: str) -> list[Fault]:
    """A fault for a model that is to score texts and has no weights to do so, as far as its folder tells."""
    try:
        folder = find_folder(path, where)
        if folder and folder.adapter:
            faults = list(find_adapter_faults(folder, "score", is_safe=folder.has(ADAPTER)))
            return faults or list(find_adapter_weight_faults(folder))
        if folder and (faults := find_config_faults(folder, trust=True)):
            return faults
        if folder is None or not folder.has("config.json") or not folder.is_plain or not folder.has(WEIGHTS, INDEX):
            return []
        return [] if "score.weight" in folder.shapes else [fault("model.no_score", folder=folder, path=path)]
    except ConfigError as error:
        return error.faults


# --- Architectures ------------------------------------------------------------------------------


def find_config_faults(folder: ModelFolder, head: str | None = None, *, trust: bool = False) -> list[Fault]:
    """A fault for a model that transformers does not know, that brings code, or that has no such head."""
    if not folder.has("config.json"):
        if folder.repo:  # a cache that lacks it may lack everything, and loading tells which
            return []
        names = ", ".join(sorted(path.name for path in folder.path.iterdir())[:6])
        trained = [file.parent for runs in ("", "*/", "*/*/") for file in folder.path.glob(f"{runs}model/*config.json")]
        fix = to_override(folder.where, str(max(trained, key=getmtime))) if trained else "=<folder or org/name>"
        found = f"has no config.json, but {names}" if names else "is empty"
        return [fault("model.no_config", folder=folder, found=found, fix=fix)]
    if kernels := list(_find_kernels(folder.read("config.json"))):
        found = f"config.json of {folder.source} asks for the kernel {kernels[0]}, which is code of the hub"
        expected = "sdpa, eager, flash_attention_2 or none there"
        return [Fault(folder.where, found, expected, "=<a copy of it without that key>")]
    if faults := list(_find_quantisation_faults(folder)):
        return faults
    kind = folder.whole_config.get("model_type")
    if folder.whole_config.get("auto_map") and not _is_known(kind):
        return [] if trust else [fault("model.own_code", folder=folder)]
    if not isinstance(kind, str):
        return [fault("model.no_model_type", folder=folder)]
    if not _is_known(kind):
        return [fault("model.newer_architecture", folder=folder, kind=kind)]
    if head and not _is_known(kind, head) and not (head == "lm" and sees(folder.whole_config)):
        return [fault("model.no_head", folder=folder, kind=kind, expected=WITH[head])]
    if found := _describe_unfit(kind, folder.whole_config, head):
        return [fault("model.unfit", folder=folder, found=found)]
    target = f"transformers.{_read_classes(CONFIG_CLASSES).get(kind)}"
    faults = [*_find_value_faults(folder, "config.json", target), *_find_override_faults(folder, kind, target)]
    if folder.has("generation_config.json"):
        faults += _find_value_faults(folder, "generation_config.json", "transformers.GenerationConfig")
    return faults or list(_find_token_faults(folder))


def _find_quantisation_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for weights that are rounded by no method of transformers, which would take them as they are."""
    definition = find_definition(QUANTISATIONS)
    table = getattr(definition, "node", None)
    keys = table.keys if isinstance(table, ast.Dict) else []
    known = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    text = folder.whole_config.get("text_config")
    for config in (folder.whole_config, text if isinstance(text, Mapping) else {}):
        settings = config.get("quantization_config")
        if not settings or not known:
            continue
        method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
        has_bits = isinstance(settings, Mapping) and (settings.get("load_in_4bit") or settings.get("load_in_8bit"))
        if method not in known and not has_bits:
            found = f"config.json of {folder.source} has quantization_config by the method {json.dumps(method)[:40]}"
            methods = sorted({name.removesuffix("_4bit").removesuffix("_8bit") for name in known})
            yield Fault(folder.where, found, f"one of {', '.join(methods)}", "=<folder or org/name>")


def _find_token_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for an end token that the model has no row for; others are taken from the tokenizer."""
    rows = folder.config.get("vocab_size")
    for name in ("config.json", "generation_config.json"):
        end = folder.read(name).get("eos_token_id") if folder.has(name) else None
        for number in end if isinstance(end, list) else [end]:
            if isinstance(number, int) and isinstance(rows, int) and number >= rows:
                expected, value = f"below vocab_size, {rows}", str(number)
                beats = {"folder": folder, "file": name, "key": "eos_token_id", "value": value}
                yield fault("model.bad_value", **beats, expected=expected)


def find_stop_faults(node: Node) -> list[Fault]:
    """A fault for a model whose own settings end texts at strings, which no sampler finds without a tokenizer."""
    try:
        folder = find_folder(node.get("path"), "model.path") if node.get("_target_") == LOADER else None
        if folder is None or not folder.has("generation_config.json"):
            return []
        strings = folder.read("generation_config.json").get("stop_strings")
    except ConfigError:  # which others tell of
        return []
    return [no_stop_strings(strings, str(node["path"]))] if strings else []


def no_stop_strings(strings: object, path: str) -> Fault:
    """The fault of stop strings in the settings of a model that a trainer of TRL samples from."""
    found = f"generation_config.json of {path} has stop_strings {strings}, and this trainer finds no strings"
    fix = f"a copy of {path} without them in its generation_config.json, as model.path=<that folder>"
    return Fault("model.path", found, "ends that are tokens", fix)


def find_template_argument_faults(node: Node, arguments: Mapping[str, Any], where: str) -> Iterator[Fault]:
    """A fault for each argument of a chat template that the template, as far as it is here, does not mention."""
    text = _read_template(node)
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    for name in arguments if text else ():
        if name not in words:
            near = nearest(str(name), [word for word in words if "_" in word], 0.75)
            fix = f"{to_override(f'{where}.{near[0]}', arguments[name])} in place of {name}" if near else ""
            expected = near[0] if near else "an argument that it reads"
            yield Fault(f"{where}.{name}", "the chat template does not read it", expected, fix or f"leave {name} out")


def _read_template(node: Node) -> str:
    try:
        if node.get("chat_template"):
            return jinja.read_template(str(node["chat_template"]))
        folder = find_folder(node.get("path"), "model.tokenizer.path")
        if folder is None or (folder.path / "additional_chat_templates").exists():
            return ""
        if folder.has("chat_template.jinja"):
            return (folder.path / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
        config = folder.read("tokenizer_config.json") if folder.has("tokenizer_config.json") else {}
        return str(config.get("chat_template") or "")
    except ConfigError:  # which others tell of
        return ""


def _find_kernels(config: Node) -> Iterator[str]:
    """The kernels of the hub that a config names, which transformers loads whatever the command says."""
    for path, value in walk(config):
        names = [name for name in path.split(".") if KERNEL.fullmatch(name)]
        if names and isinstance(value, str) and "/" in value:
            yield value


def _find_override_faults(folder: ModelFolder, kind: str, target: str) -> Iterator[Fault]:
    where, own = f"{folder.where.removesuffix('path')}config", folder.read("config.json")
    signature, text, elsewhere = read_signature(target), own.get("text_config") or {}, LIMITS["set_elsewhere"]
    for key in folder.overrides.keys() & elsewhere.keys():
        yield fault("model.set_elsewhere", where=where, key=key, fix=elsewhere[key])
    given = dict(_entries({key: value for key, value in folder.overrides.items() if key not in elsewhere}))
    known = {*text, *dict(_entries(own)), *LIMITS["inside"]["keys"], *(signature.parameters if signature else ())}
    unknown = find_unknown_keys(where, kind, given, known) if signature else ()
    yield from (each for each in unknown if each.fix or not text)  # of a text, not all of its keys are known here
    rope, positions = folder.config.get("rope_parameters"), "max_position_embeddings"
    is_scaled = isinstance(rope, Mapping) and rope.get("rope_type") not in (None, "default", "linear")
    if positions in folder.overrides and is_scaled and f"original_{positions}" not in (rope or ()):
        yield fault("model.other_positions", where=where, trained=(text or own).get(positions))
    yield from _find_value_faults(folder, "config.json", target, where)


def overrides_answers(node: Node) -> bool:
    """True for a model that answers otherwise by its keys of a config, so that an adapter alone would not do."""
    config = node.get("config")
    keys = config if isinstance(config, Mapping) else ()
    return not all(re.fullmatch(LIMITS["of_training"]["keys"], str(key)) for key in keys)


def _entries(values: Node) -> list[tuple[str, Any]]:
    inside = [(key, each.items()) for key, each in values.items() if key in NESTED and isinstance(each, Mapping)]
    return [*values.items(), *((f"{key}.{inner}", each) for key, entries in inside for inner, each in entries)]


def _find_value_faults(folder: ModelFolder, name: str, target: str = "", where: str = "") -> Iterator[Fault]:
    signature = read_signature(target) if target else None
    for key, value in _entries(folder.overrides if where else folder.read(name)):
        known, keys = signature.parameters.get(key) if signature else None, (key, key.split(".")[-1])
        limits = next((each for form, each in LIMITS[name].items() if any(re.fullmatch(form, k) for k in keys)), None)
        numbers = value if isinstance(value, list) else [value]
        has_parts = any(isinstance(each, Mapping) for each in numbers)  # such as {"__float__": "Infinity"}
        if value is None or (has_parts and not isinstance(limits, str)):
            continue
        expected = _find_limit(limits, [value] if isinstance(limits, str) else numbers) if limits else ""
        is_whole = isinstance(value, float) and value.is_integer()
        if known and not has_parts and not known.type.accepts(int(value) if is_whole else value):
            expected = str(known.type)
        if expected:
            text = json.dumps(value)[:40]
            if where:
                yield fault("model.bad_override", where=where, key=key, value=text, expected=expected)
            else:
                yield fault("model.bad_value", folder=folder, file=name, key=key, value=text, expected=expected)


def _find_limit(limits: Any, values: list[Any]) -> str:
    if isinstance(limits, str):
        return "" if all(isinstance(each, KINDS[limits]) for each in values) else limits
    if isinstance(limits[0], str):
        return "" if all(each in limits for each in values) else f"one of {', '.join(limits)}"
    is_near = all(isinstance(each, int | float) and limits[0] <= each <= limits[1] for each in values)
    return "" if is_near else f"{limits[0]:,} to {limits[1]:,}"


def _describe_unfit(kind: str, config: Mapping[str, Any], head: str | None) -> str:
    """Why a model of an architecture that transformers lists cannot write, as ``check.yaml`` knows it; else empty."""
    for each in LIMITS["unfit"].values() if head == "lm" else ():
        if kind in each["kinds"] and not config.get(each.get("unless")):
            return f"the architecture {kind} {each['found']}"
    return ""


def sees(config: Node) -> bool:
    """True for the config of a model of images and text, which is loaded with all its parts."""
    kind, own = config.get("model_type"), _read_classes(SEEING).get(str(config.get("model_type")))
    is_text_alone = kind in _read_classes(MODEL_CLASSES["lm"]) and own not in (config.get("architectures") or [own])
    return bool(own and config.get("vision_config") and not is_text_alone)


def _is_known(kind: object, head: str | None = None) -> bool:
    tables = [MODEL_CLASSES[head]] if head in MODEL_CLASSES else [*MODEL_CLASSES.values(), CONFIG_CLASSES]
    return any(not (classes := _read_classes(table)) or kind in classes for table in tables)


@cache
def _read_classes(table: str) -> dict[str, str]:
    call = getattr(find_definition(table), "node", None)
    with contextlib.suppress(ValueError, IndexError):
        return dict(ast.literal_eval(call.args[0])) if isinstance(call, ast.Call) else {}
    return {}


def find_unknown_keys(where: str, kind: str, given: Node, known: set[str], least: float = 0.6) -> Iterator[Fault]:
    """A fault for each given key that is not among those of an architecture, with the nearest one to type."""
    for key in sorted(set(given) - set(known)):
        close = get_close_matches(key, known, 1, least)
        fix = to_override(f"{where}.{close[0]}", given[key]) if close else ""
        yield fault("model.unknown_key", where=where, key=key, kind=kind, fix=fix)


# --- Weights ------------------------------------------------------------------------------------


def _find_folder_faults(folder: ModelFolder, head: str, *, safetensors_only: bool, trust: bool) -> list[Fault]:
    if faults := find_config_faults(folder, head, trust=trust):
        return faults
    for name in filter(folder.has, READ_WITH_WEIGHTS):
        folder.read(name)
    if folder.has(WEIGHTS, INDEX):
        found = list(_find_weight_faults(folder))  # read in any case, because that finds files that are damaged
        if found and folder.overrides:  # what only they bring about is no fault of the folder
            unchanged = list(_find_weight_faults(replace(folder, overrides={})))
            where, fix = blame_overrides(folder)
            found = [each if each in unchanged else replace(each, where=where, fix=fix) for each in found]
        if "quantization_config" not in folder.whole_config and (rounded := folder.rounded):
            text = f"{rounded} of {folder.source} has 8 bits, and config.json says nothing of how it was rounded"
            expected = "a quantization_config, or weights that are numbers as they are"
            found.append(Fault(folder.where, text, expected, "=<folder or org/name>"))
            return found
        return found if folder.is_plain else []  # others may name and shape their weights in other ways
    if (pickles := [name for name in PICKLES if folder.has(name)]) and safetensors_only:
        return [fault("model.pickled", folder=folder, file=pickles[0])]
    return [] if pickles else [fault("model.no_weights", folder=folder)]


def blame_overrides(folder: ModelFolder) -> tuple[str, str]:
    """The place of the keys that are set otherwise in the config of a model, and the fix that leaves them out."""
    where = f"{folder.where.removesuffix('.path')}.config"
    keys = [f"{where}.{key}" for key in folder.overrides]
    return where, f"leave {' or '.join(keys)} out"


def _find_weight_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault where the config has more layers than there are weights for, and one where it tells other sizes."""
    config, layers = folder.config, dict[int, set[str]]()
    for name in folder.shapes:
        if inside := re.search(r"(?:^|\.)(?:layers|h)\.(\d+)\.(.+)", name):
            layers.setdefault(int(inside[1]), set()).add(inside[2])
    depth, first = config.get("num_hidden_layers"), layers.get(0, set())
    for key, whole in (("num_key_value_heads", "num_attention_heads"), ("num_attention_heads", "hidden_size")):
        part, total = config.get(key), config.get(whole, 0)
        is_free = whole == "hidden_size" and "head_dim" in config
        if isinstance(part, int) and isinstance(total, int) and total % part and not is_free:
            yield fault("model.indivisible", folder=folder, key=key, part=part, whole=whole, total=total)
    known = range(depth) if isinstance(depth, int) else ()
    lacking = [(layer, part) for layer in known for part in sorted(first - layers.get(layer, set()))]
    if lacking:
        example = f"{lacking[0][1]} of layer {lacking[0][0]}"
        yield fault("model.missing_weights", folder=folder, count=len(lacking), example=example)
    count, size = config.get("num_attention_heads"), config.get("head_dim")
    if isinstance(count, int) and isinstance(size, int):
        config = config | {"num_attention_heads * head_dim": count * size}
    width = "word_embed_proj_dim" if "word_embed_proj_dim" in config else "hidden_size"  # of some OPT, they differ
    sizes = {"embed_tokens.weight": ("vocab_size", width), "mlp.up_proj.weight": ("intermediate_size", "hidden_size")}
    sizes["q_proj.weight"] = ("num_attention_heads * head_dim", "hidden_size")
    for part, keys in sizes.items():
        shape = next((shape for name, shape in folder.shapes.items() if name.endswith(part)), None)
        wanted = [config.get(key) for key in keys]
        if shape and None not in wanted and shape != wanted:
            yield fault("model.other_shape", folder=folder, part=part, shape=shape, keys=keys, wanted=wanted)
            return


def _count_positions(config: Mapping[str, Any]) -> object:
    """The number of positions in a model's config, under either of its names; None where it has none."""
    return config.get("max_position_embeddings") or config.get("n_positions")


def _find_length_faults(folder: ModelFolder, length: object) -> Iterator[Fault]:
    config = folder.config
    positions = _count_positions(config)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    is_scaled = isinstance(rope, Mapping) and rope.get("rope_type") not in (None, "default")
    if isinstance(length, int) and isinstance(positions, int) and length > positions and not is_scaled:
        yield fault("model.too_long", length=length, positions=positions)


# --- What is trained of it, and adapters ----------------------------------------------------------


def _find_tuning_faults(folder: ModelFolder, peft: object) -> Iterator[Fault]:
    if not isinstance(peft, Mapping) or not folder.is_plain or not folder.has(WEIGHTS, INDEX):
        return
    # Files that were saved without a head lack the first part of each name.
    weights = [f"{prefix}{name}" for name in folder.shapes for prefix in ("", "model.", "transformer.", "gpt_neox.")]
    weights += [f"{layer}.weight" for layer in OUTPUT_LAYERS]
    patterns, targets = peft.get("matching"), peft.get("target_modules")
    yield from find_pattern_faults("peft.matching", patterns if isinstance(patterns, list) else (), weights)
    modules = {name.rpartition(".")[0] for name in weights}
    modules |= {".".join(name.split(".")[:end]) for name in modules for end in range(1, name.count(".") + 1)}
    matrices = [name for name, shape in folder.shapes.items() if len(shape) == 2 and "embed" not in name]
    yield from find_target_faults(targets, modules, {name.split(".")[-2] for name in matrices if "." in name})
    if str(peft.get("_target_")).endswith("LoraConfig"):
        sizes = [size for name in matrices for size in folder.shapes[name]]
        yield from find_rank_faults(peft.get("r"), peft.get("rank_pattern"), sizes)
    if str(peft.get("_target_")).endswith("OFTConfig"):
        widths = {folder.shapes[name][1] for name in matrices if _is_target(name, targets)}
        yield from _find_block_faults(peft, widths)
    whole = peft.get("full")
    yield from find_pattern_faults("peft.full", whole if isinstance(whole, list) else (), weights)
    yield from find_selection_faults(peft, modules)
    count = peft.get("num_virtual_tokens")
    positions = _count_positions(folder.config)
    if isinstance(count, int) and isinstance(positions, int) and count >= positions:
        found = f"{count}, and the model has {positions} positions"
        yield Fault(
            "peft.num_virtual_tokens", found, "fewer, which leave room for the rows", f"={min(20, positions // 2)}"
        )
    depth, layers = folder.config.get("num_hidden_layers"), peft.get("layers")
    if isinstance(depth, int) and isinstance(layers, int):
        yield from find_depth_faults(layers, depth)


def find_pattern_faults(
    where: str, patterns: Iterable[str], weights: Sequence[str], examples: Sequence[str] = ()
) -> Iterator[Fault]:
    """A fault for each pattern that is found in the name of no weight."""
    for pattern in patterns:
        if not any(re.search(str(pattern), name) for name in weights):
            names = ", ".join(examples or weights[:3])
            yield fault("model.no_such_weight", where=where, pattern=pattern, examples=names)


def find_target_faults(targets: object, modules: Collection[str], linear: Collection[str]) -> Iterator[Fault]:
    """A fault for each layer that the model lacks; peft passes over them if any other fits. A text is a pattern."""
    there = ", ".join(sorted(linear))
    if isinstance(targets, str) and targets != "all-linear":
        if not any(re.fullmatch(targets, name) for name in modules):
            near = [name for name in sorted(linear) if re.search(rf"\b{re.escape(name)}\b", targets)]
            fix = f"=[{','.join(near)}]" if near else "=all-linear"
            yield fault("model.target_that_fits_nothing", targets=targets, there=there, fix=fix)
        return
    for target in sorted(targets) if isinstance(targets, list | set | tuple) else ():
        if not any(name == target or name.endswith(f".{target}") for name in modules):
            yield fault("model.no_such_target", target=target, there=there)


def find_rank_faults(rank: object, pattern: object, sizes: Iterable[int]) -> Iterator[Fault]:
    """A fault for each rank of LoRA above all rows and columns of the model's matrices, whose sizes these are."""
    most = max(sizes, default=0)
    ranks = {"peft.r": rank}
    if isinstance(pattern, Mapping):
        ranks |= {f"peft.rank_pattern.{module}": value for module, value in pattern.items()}
    for where, value in ranks.items():
        if most and isinstance(value, int) and value > most:
            found = f"{value}, and no matrix of the model has more than {most} rows or columns"
            yield Fault(where, found, f"at most {most}, far fewer to save anything", f"={min(16, most)}")


def _is_target(weight: str, targets: object) -> bool:
    module = weight.removesuffix(".weight")
    if isinstance(targets, str) and targets != "all-linear":
        return bool(re.fullmatch(targets, module))
    named = [str(target) for target in targets] if isinstance(targets, list | tuple | set) else None
    return not module.endswith(OUTPUT_LAYERS) if named is None else module.split(".")[-1] in named


def _find_block_faults(peft: Mapping[str, Any], widths: Collection[int]) -> Iterator[Fault]:
    """A fault for blocks of OFT that do not divide the inputs of the layers, of which peft takes another size."""
    for field in ("oft_block_size", "r"):
        size = peft.get(field)
        if isinstance(size, int) and size > 0 and any(width % size for width in widths):
            shared = math.gcd(*widths)
            fitting = max(number for number in range(1, min(size, shared) + 1) if shared % number == 0)
            inputs = ", ".join(map(str, sorted(widths)))
            found = f"{size}, which does not divide the inputs of the layers ({inputs}): peft would take another"
            yield Fault(f"peft.{field}", found, "a divisor of all of them", f"={fitting}")


def find_selection_faults(settings: Mapping[str, Any], modules: Collection[str]) -> Iterator[Fault]:
    """A fault for each name in the settings of an adapter, beside its targets, that fits no part of the model."""
    ends = {name.rpartition(".")[2] for name in modules}
    numbers: set[int] = set()
    pattern = settings.get("layers_pattern")
    patterns = [pattern] if isinstance(pattern, str) else list(pattern or ())
    for layers in patterns or [r"[^.]*"]:
        found = {int(match[1]) for name in modules if (match := re.search(rf"\.{layers}\.(\d+)\.", f".{name}."))}
        if patterns and not found:
            yield Fault("peft.layers_pattern", f"{layers}, and no layers are called so", "layers", "=null")
        numbers |= found
    chosen = settings.get("layers_to_transform")
    for layer in [chosen] if isinstance(chosen, int) else chosen or ():
        if numbers and layer not in numbers:
            expected = f"{min(numbers)} to {max(numbers)}"
            yield Fault("peft.layers_to_transform", f"no layer {layer}", expected, f"=[{max(numbers)}]")
    for span in settings.get("layer_replication") or ():
        if numbers and not 0 <= span[0] < span[1] <= max(numbers) + 1:
            expected = f"layers from and up to, of 0 to {max(numbers) + 1}"
            yield Fault("peft.layer_replication", str(list(span)), expected, "=null")
    for key in ("modules_to_save", "exclude_modules", "feedforward_modules"):
        given = settings.get(key) or ()
        is_pattern = isinstance(given, str)
        names: list[str] = [given] if isinstance(given, str) else list(given)
        for name in names:
            if is_pattern:
                is_there = any(re.fullmatch(name, part) for part in modules)
            else:
                is_there = any(part.endswith(name) for part in modules)
            if not is_there:
                near = [*nearest(name, ends), "<name>"][0]
                listed = [near if other == name else other for other in names]
                fix = f"leave peft.{key} out" if near == "<name>" else to_override(f"peft.{key}", listed)
                yield Fault(f"peft.{key}", f"the model has no part {name}", "parts of the model", fix)
    for key in ("rank_pattern", "alpha_pattern"):
        for name in settings.get(key) or ():
            if not any(re.match(rf"(.*\.)?({name})$", part) for part in modules):
                expected = "a name, or the end of one, of the model's layers"
                yield Fault(f"peft.{key}", f"{name} fits no layer", expected, f"leave {name} out")


def find_group_faults(node: Node, patterns: Iterable[str]) -> Iterator[Fault]:
    """A fault for each pattern of parameter groups that no weight of a model, as far as its folder tells, has."""
    try:
        folder = find_folder(node.get("path"), "model.path") if node.get("_target_") == LOADER else None
        if folder is None or folder.adapter or not folder.has("config.json"):
            return
        if not folder.is_plain or not folder.has(WEIGHTS, INDEX):
            return
        weights = [*folder.shapes, *(f"{layer}.weight" for layer in OUTPUT_LAYERS)]
    except ConfigError:  # which others tell of
        return
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in weights):
            where, expected = f"optimizer.groups.{pattern}", f"a part of a name, such as {weights[0]}"
            fix = "another pattern, or optimizer.groups=null"
            yield Fault(where, "no weight is called so", expected, fix)


def find_depth_faults(layers: int, depth: int) -> Iterator[Fault]:
    """A fault for a number of trained layers that the model does not have."""
    if not 0 <= layers <= depth:
        yield fault("model.too_deep", layers=layers, depth=depth, half=max(1, depth // 2))


def find_merge_faults(folder: ModelFolder, *, quantized: bool = False) -> Iterator[Fault]:
    """Faults of what is to be merged: no adapter, or one on rounded weights."""
    if folder.adapter is None:
        yield fault("model.merged_without_adapter", folder=folder)
    if quantized:
        yield fault("model.merged_quantised")


def find_adapter_faults(folder: ModelFolder, head: str, *, is_safe: bool) -> Iterator[Fault]:
    """Faults of an adapter; ``is_safe`` says that its weights are in safetensors, or need not be."""
    if not is_safe:
        yield fault("model.pickled_adapter", folder=folder, file=ADAPTER)
    is_lora = (folder.adapter or {}).get("peft_type") == "LORA"
    yield from _find_value_faults(folder, "adapter_config.json", "peft.LoraConfig" if is_lora else "peft.PeftConfig")
    task = (folder.adapter or {}).get("task_type")
    if task != TASKS.get(head, task):
        trainers = {"SEQ_CLS": "trainer=reward, or ", "CAUSAL_LM": "a trainer of language models, or "}
        trainer = trainers.get(str(task), "")
        yield fault("model.adapter_of_other_task", folder=folder, task=task, wanted=TASKS[head], trainer=trainer)
    if not folder.base:
        yield fault("model.adapter_of_nothing", folder=folder)


# --- The tokenizer --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer, by its files or by what was loaded."""

    tokens: Collection[str]
    added: Mapping[int, AddedToken]  # beside those that were learnt from text, by number
    used: Collection[str | None] = ()  # the special tokens that it writes by itself
    template: str = ""  # which may write others
    new: Collection[str] = ()  # for which a model gets rows

    @property
    def marks(self) -> str:
        """Special tokens to choose from."""
        return ", ".join([token.content for token in self.added.values() if token.special][:5])


def new_tokens(node: Node) -> list[str]:
    """The tokens that a node of a tokenizer adds, but for a pad token."""
    lists = [node.get(key) for key in ("add_tokens", "add_special_tokens")]
    return [str(token) for each in lists if isinstance(each, list | tuple) for token in each]


def find_token_faults(node: Node, vocabulary: Vocabulary) -> Iterator[Fault]:
    """A fault for a token that ends texts and is not there, and for one that pads and is there under a similar name."""
    expected = f"such as {vocabulary.marks}" if vocabulary.marks else "one of its tokens"
    new = new_tokens(node)
    if not all(new):
        yield fault("model.empty_token")
    for key in ("eos_token", "pad_token"):
        if (token := node.get(key)) is None or token in (*vocabulary.tokens, *new):
            continue
        near = nearest(token, [each.content for each in vocabulary.added.values()], 0.8)
        if near or not token or key == "eos_token":
            fix = to_override("", near[0]) if near else "=<token>"
            fix += f", or {to_override('model.tokenizer.add_special_tokens', [token])}, which is new" if token else ""
            yield fault("model.no_such_token", key=key, token=token, expected=expected, fix=fix)


def find_size_faults(vocabulary: Vocabulary, rows: int) -> list[Fault]:
    """A fault where a text could become a token that the model, of so many embeddings, has none of and gets none for.

    A special token that nothing here writes may lie beyond: that of Gemma's images does in its models of text alone.
    """
    beyond = [token for number, token in vocabulary.added.items() if number >= rows]
    used, old = {*vocabulary.used}, [token for token in beyond if token.content not in vocabulary.new]
    written = any(not each.special or each.content in used or each.content in vocabulary.template for each in old)
    count = len(vocabulary.tokens)
    return [fault("model.too_many_tokens", count=count, rows=rows)] if written or count - len(beyond) > rows else []


def find_tokenizer_faults(
    node: object, rows: int | None, *, chats: bool = False, look: LookAtTemplate | None = None
) -> list[Fault]:
    """Faults of a node's tokenizer, and of its template, which ``chats`` need; ``rows`` are the model's embeddings.

    ``look`` finds faults of what a template that works, with these special tokens, makes of the rows.
    """
    if not isinstance(node, Mapping) or node.get("_target_") != TOKENIZER:
        return []
    try:
        folder = find_folder(node["path"], "model.tokenizer.path")
        if folder and folder.base and not folder.has("tokenizer_config.json"):
            folder = find_folder(folder.base[0], folder.where)
        if folder is None:
            return _find_template_faults(node, {}, Vocabulary((), {}), look)
        config = folder.read("tokenizer_config.json") if folder.has("tokenizer_config.json") else {}
        if config and (faults := [*_find_value_faults(folder, "tokenizer_config.json")]):
            return faults
        named = {key: _token(node.get(key) or config.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
        vocabulary = _read_vocabulary(folder, config, named, node)
        faults = list(_find_vocabulary_faults(folder, config, vocabulary, node, named["eos_token"], rows))
        files = [folder.path / name for name in ("chat_template.jinja", "additional_chat_templates")]
        named_one = node.get("chat_template") or config.get("chat_template")
        if chats and not named_one and not any(file.exists() for file in files):
            faults.append(jinja.no_template())
        return faults or _find_template_faults(node, named, vocabulary, look, folder, config)
    except ConfigError as error:
        return error.faults


def _token(entry: object) -> str | None:
    token = entry.get("content") if isinstance(entry, Mapping) else entry
    return token if isinstance(token, str) else None


def _find_vocabulary_faults(
    folder: ModelFolder, config: Node, vocabulary: Vocabulary, node: Node, end: str | None, rows: int | None
) -> Iterator[Fault]:
    kind = str(config.get("tokenizer_class") or "")
    has_none = kind.startswith(BYTE_TOKENIZERS) or config.get("auto_map") or any(folder.path.glob("*.tiktoken"))
    if not has_none and not folder.has(*VOCABULARIES):
        yield fault("model.no_tokenizer", folder=folder)
    if not vocabulary.tokens:
        return
    if not end and kind in ENDLESS_TOKENIZERS and not folder.has("special_tokens_map.json"):
        yield fault("model.no_end_token", marks=vocabulary.marks or "no special token")
    yield from find_token_faults(node, vocabulary)
    yield from find_size_faults(vocabulary, rows) if rows else ()


def _read_vocabulary(folder: ModelFolder, config: Node, named: Node, node: Node) -> Vocabulary:
    if not folder.has("tokenizer.json"):
        return Vocabulary((), {})
    from tokenizers import AddedToken, Tokenizer

    whole = folder.read("tokenizer.json")
    try:
        Tokenizer.from_file(str(folder.path / "tokenizer.json"))
    except Exception as error:  # of which the library has no other kind
        raise ConfigError(fault("model.no_tokens", folder=folder, error=describe(error))) from error
    entries = (whole.get("model") or {}).get("vocab") or {}
    listed = [*(whole.get("added_tokens") or ())]
    later = config.get("added_tokens_decoder") or {}  # those that were added after the tokenizer's own file was written
    listed += [{**entry, "id": int(number)} for number, entry in later.items()]
    added = {entry["id"]: AddedToken(entry["content"], special=bool(entry.get("special"))) for entry in listed}
    names = entries if isinstance(entries, Mapping) else (entry[0] for entry in entries)
    used = {*named.values(), _token(config.get("unk_token"))}
    tokens = {*names, *(entry["content"] for entry in listed)}
    return Vocabulary(tokens, added, used, str(config.get("chat_template") or ""), new_tokens(node))


def _find_template_faults(
    node: Node,
    named: Node,
    vocabulary: Vocabulary,
    look: LookAtTemplate | None,
    folder: ModelFolder | None = None,
    config: Node | None = None,
) -> list[Fault]:
    look = look or (lambda text, tokens: [])
    name, tokens = str(node.get("chat_template") or ""), {key: token or "" for key, token in named.items()}
    if name:
        chosen = jinja.read_template(name)
        if name in jinja.template_names() or (folder is None and not name.endswith(".jinja")):
            return look(chosen, tokens)  # which work, or with tokens that only the hub knows
        known = vocabulary.tokens and {*vocabulary.tokens, *vocabulary.new}
        end = named.get("eos_token")
        faults = jinja.find_template_faults(chosen, name, end, tokens, chosen=True, vocabulary=known)
        return faults or look(chosen, tokens)
    own, text = "tokenizer_config.json", (config or {}).get("chat_template")
    if folder and folder.has("chat_template.jinja") and not str(node["path"]).startswith("runner://"):
        own = "chat_template.jinja"
        jinja.check_length(folder.path / own)
        text = (folder.path / own).read_text(encoding="utf-8", errors="replace")
    if isinstance(text, list):  # several by their names
        named = {str(each.get("name")): each.get("template") for each in text if isinstance(each, Mapping)}
        text = named.get("default")
    if not isinstance(text, str):
        return []
    return jinja.find_template_faults(text, own, None, tokens, chosen=False) or look(text, tokens)
