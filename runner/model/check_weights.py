"""Checks of the files of a whole model's weights: they are there, whole, and fit config.json.

The headers of safetensors files are read, never a weight. What architectures other than the plain
ones (``ModelFolder.is_plain``) make of their files, loading tells.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from runner.errors import Fault
from runner.model.model_files import ModelFolder

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin")
# Files that are loaded with the weights, and must hold JSON.
READ_WITH_WEIGHTS = ("special_tokens_map.json", "added_tokens.json")
LAYER_WEIGHT = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.(.+)")


def find_weight_faults(folder: ModelFolder, *, safetensors_only: bool) -> list[Fault]:
    """Faults of the weights in a folder that holds a whole model.

    Raises ConfigError for damaged files.
    """
    for name in filter(folder.has, READ_WITH_WEIGHTS):
        folder.read(name)
    if not folder.has_weights:
        return _find_absence_faults(folder, safetensors_only=safetensors_only)
    # The shapes are compared in any case, because that finds files that are damaged.
    found = list(_find_shape_faults(folder))
    if found and folder.overrides:
        # A fault that only the overrides bring about is theirs and not the folder's.
        unchanged = list(_find_shape_faults(replace(folder, overrides={})))
        where, fix = folder.blame_overrides()
        for index, fault in enumerate(found):
            if fault not in unchanged:
                found[index] = replace(fault, where=where, fix=fix)
    if "quantization_config" not in folder.whole_config:
        rounded = folder.rounded_weight
        if rounded:
            rounding = f"{rounded} of {folder.source} has 8 bits"
            found.append(
                Fault(
                    where=folder.where,
                    found=f"{rounding}, but config.json does not say how it was rounded",
                    expected="a quantization_config, or weights that are not rounded",
                    fix="=<folder or org/name>",
                )
            )
            return found
    # Other architectures may name and shape their weights in other ways.
    return found if folder.is_plain else []


def missing_weights(folder: ModelFolder, count: int, example: str) -> Fault:
    """The fault of a model whose files lack some of the weights that its config asks for."""
    return Fault(
        where=folder.where,
        found=f"{folder.source} lacks {count} weights, such as {example}; they would be random",
        expected="weights for the whole of config.json",
        fix="=<folder or org/name>",
    )


def _find_absence_faults(folder: ModelFolder, *, safetensors_only: bool) -> list[Fault]:
    """A fault for a folder without safetensors files.

    Pickles will do where they are allowed.
    """
    pickles = [name for name in PICKLES if folder.has(name)]
    if not pickles:
        return [
            Fault(
                where=folder.where,
                found=f"{folder.source} has no weights",
                expected="model.safetensors, or model.safetensors.index.json and its files",
                fix="=<folder or org/name>",
            )
        ]
    if not safetensors_only:
        return []
    return [
        Fault(
            where=folder.where,
            found=f"{folder.source} has its weights as {pickles[0]}",
            expected="safetensors; a .bin file is a pickle, which can run code when it is read",
            fix="model.safetensors_only=false",
        )
    ]


def _find_shape_faults(folder: ModelFolder) -> Iterator[Fault]:
    """Faults of a config whose heads, layers or sizes are not those of the weights."""
    yield from _find_head_faults(folder)
    yield from _find_layer_faults(folder)
    yield from _find_size_faults(folder)


def _find_head_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for each number of heads in the config that does not divide what it is a part of."""
    config = folder.config
    pairs = [("num_key_value_heads", "num_attention_heads")]
    if "head_dim" not in config:  # else heads need not share the hidden size
        pairs.append(("num_attention_heads", "hidden_size"))
    for key, total_key in pairs:
        heads = config.get(key)
        total = config.get(total_key, 0)
        if isinstance(heads, int) and isinstance(total, int) and total % heads:
            yield Fault(
                where=folder.where,
                found=f"config.json of {folder.source}: {key} is {heads}, but {total_key} is "
                f"{total}",
                expected="a divisor of it",
                fix="=<folder or org/name>",
            )


def _find_layer_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for layers of the config that lack weights which the first layer has."""
    layers: dict[int, set[str]] = {}
    for name in folder.shapes:
        match = LAYER_WEIGHT.search(name)
        if match:
            names = layers.setdefault(int(match[1]), set())
            names.add(match[2])
    depth = folder.config.get("num_hidden_layers")
    first = layers.get(0, set())
    lacking: list[str] = []
    if not isinstance(depth, int):
        return
    for layer in range(depth):
        for part in sorted(first - layers.get(layer, set())):
            lacking.append(f"{part} of layer {layer}")
    if lacking:
        yield missing_weights(folder, len(lacking), lacking[0])


def _find_size_faults(folder: ModelFolder) -> Iterator[Fault]:
    """A fault for the first matrix whose shape is not what the config says."""
    config = dict(folder.config)
    heads = config.get("num_attention_heads")
    head_size = config.get("head_dim")
    if isinstance(heads, int) and isinstance(head_size, int):
        config["num_attention_heads * head_dim"] = heads * head_size
    # The embeddings of some OPT models are narrower than their layers.
    width = "word_embed_proj_dim" if "word_embed_proj_dim" in config else "hidden_size"
    shape_keys = {
        "embed_tokens.weight": ("vocab_size", width),
        "mlp.up_proj.weight": ("intermediate_size", "hidden_size"),
        "q_proj.weight": ("num_attention_heads * head_dim", "hidden_size"),
    }
    for part, keys in shape_keys.items():
        names = [name for name in folder.shapes if name.endswith(part)]
        if not names:
            continue
        shape = folder.shapes[names[0]]
        sizes = [config.get(key) for key in keys]
        if None not in sizes and shape != sizes:
            found = f"config.json does not fit the shapes of its weights: {part} is {shape}"
            yield Fault(
                where=folder.where,
                found=f"{found}, but {keys} are {sizes}",
                expected="the config that the weights were saved with",
                fix="=<folder or org/name>",
            )
            return
