"""Two adapters as one: LoRA that was trained on a base with an earlier LoRA merged into it.

The merged base is nowhere on disk. Both updates are products of two thin matrices, and their sum is
one, too: A and B of both, side by side. So what was trained loads elsewhere on the base of the
earlier adapter, and takes no more room than both.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from runner.io.files import JsonObject, read_json, write_json
from runner.model.adapter_files import PREFIX, SCORE_HEADS
from runner.model.model_files import ADAPTER
from runner.schema.text import Node

CONFIG = "adapter_config.json"
# Settings with which an update is more than the product of two matrices, unless they are unset.
BEYOND_PRODUCTS = (
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
TARGETS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")  # these leave the base as it is


def can_join(first: Node, second: Node) -> bool:
    """True for the configs of two adapters whose sum is one, of which the first is merged below."""
    heads = set(second.get("modules_to_save") or ())
    is_whole = first.get("modules_to_save") or heads - SCORE_HEADS
    return _is_product(first) and _is_product(second) and not is_whole


def _is_product(config: Node) -> bool:
    """True where each update is the product of two matrices of linear layers."""
    kind = str(config.get("peft_type")).rpartition(".")[2]
    is_more = any(config.get(name) for name in BEYOND_PRODUCTS)
    has_bias = config.get("bias", "none") != "none"
    is_plain = config.get("init_lora_weights", True) in PLAIN_STARTS
    return kind == "LORA" and is_plain and not is_more and not has_bias


def join_adapters(first: Path, second: Path, folder: Path) -> bool:
    """Write the sum of two adapters into a folder; False, and nothing, where they have none.

    It is an adapter of the base of the first, with what the second has beside its matrices. Values
    are exact where the scale of an adapter is a power of two.
    """
    first_config = read_json(first / CONFIG) or {}
    second_config = read_json(second / CONFIG) or {}
    if not can_join(first_config, second_config):
        return False
    first_weights = load_file(first / ADAPTER)
    joined = load_file(second / ADAPTER)
    if any("lora_embedding" in name for name in (*first_weights, *joined)):
        return False
    first_pairs = _scaled(first_weights, first_config)
    second_pairs = _scaled(joined, second_config)
    modules = sorted({*first_pairs, *second_pairs})
    for module in modules:
        first_pair = first_pairs.get(module)
        second_pair = second_pairs.get(module)
        if first_pair is None:
            first_pair = _zeros(second_pairs[module], first_config)
        if second_pair is None:
            second_pair = _zeros(first_pairs[module], second_config)
        # B1 A1 + B2 A2 is the product of the matrices side by side.
        first_a, first_b = first_pair
        second_a, second_b = second_pair
        joined[f"{module}.lora_A.weight"] = torch.cat([first_a, second_a])
        joined[f"{module}.lora_B.weight"] = torch.cat([first_b, second_b], dim=1)
    rank = first_config["r"] + second_config["r"]
    config: JsonObject = {
        **second_config,
        "base_model_name_or_path": first_config.get("base_model_name_or_path"),
        "revision": first_config.get("revision"),
        "r": rank,
        "lora_alpha": rank,
        "use_rslora": False,
    }
    if any(first_config.get(name) != second_config.get(name) for name in TARGETS):
        names = [module.removeprefix(PREFIX) for module in modules]
        config |= {**dict.fromkeys(TARGETS), "target_modules": names}
    save_file(joined, folder / ADAPTER, metadata={"format": "pt"})
    write_json(folder / CONFIG, config)
    return True


def _zeros(pair: tuple[Tensor, Tensor], config: Node) -> tuple[Tensor, Tensor]:
    """A and B of an adapter that leaves a module as it is, beside a ``pair`` of another one."""
    a, b = pair
    rank = config["r"]
    zero_a = a.new_zeros(rank, *a.shape[1:])
    zero_b = b.new_zeros(len(b), rank, *b.shape[2:])
    return zero_a, zero_b


def _scaled(weights: Mapping[str, Tensor], config: Node) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each module, with the scale of the adapter in B, in float32."""
    rank = config["r"]
    divisor = rank
    if config.get("use_rslora"):
        divisor = math.sqrt(rank)
    scale = config["lora_alpha"] / divisor
    pairs = {}
    for name, weight in weights.items():
        module, sign, _ = name.rpartition(".lora_A.")
        if sign:
            other = weights[f"{module}.lora_B.weight"]
            pairs[module] = (weight.float(), other.float() * scale)
    return pairs
