"""Checks of the models that a configuration names, by the files of their folders.

No torch here, and no weight is read. For a model of the hub, loading tells the rest (``load``). The
subjects have modules of their own: ``check_config``, ``check_weights``, ``check_tuning``,
``check_tokenizer`` and ``adapter_files``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from runner.errors import ConfigError, Fault
from runner.model.adapter_files import (
    find_adapter_faults,
    find_adapter_weight_faults,
)
from runner.model.architecture import (
    config_target,
    describe_unfit,
    find_unknown_keys,
    is_known_architecture,
)
from runner.model.check_config import WANTED_MODELS, find_config_faults, find_length_faults
from runner.model.check_tuning import OUTPUT_LAYERS, find_tuning_faults
from runner.model.check_weights import find_weight_faults
from runner.model.faults import second_adapter, unknown_architecture
from runner.model.model_files import ADAPTER, ModelFolder, find_folder
from runner.model.node import LOADER
from runner.schema.read import read_signature
from runner.schema.text import Node

# Targets of ``model``.
NEW = "runner.model.load.new_model"
# Arguments of ``new_model`` that are no keys of the model's config.
NEW_MODEL_ARGUMENTS = frozenset(("_target_", "tokenizer", "dtype", "seed", "head", "model_type"))


def find_model_faults(
    node: Node, head: str, length: object = None, peft: object = None, where: str = "model"
) -> list[Fault]:
    """Faults of the model that a node names, as far as the files of its folder tell.

    ``length`` is the length of the rows, ``peft`` the node of what is trained of the model, and
    ``where`` the key of the node.
    """
    if node.get("_target_") == NEW:
        return _find_new_model_faults(node, head)
    if node.get("_target_") != LOADER:
        return []
    faults: list[Fault] = []
    try:
        folder = find_folder(node["path"], f"{where}.path")
        if folder is None:
            return []
        folder = replace(folder, overrides=node.get("config") or {})
        if folder.adapter is None:
            faults += _find_whole_model_faults(folder, node, head)
            if not faults:
                faults += find_length_faults(folder, length)
                faults += find_tuning_faults(folder, peft)
            return faults
        is_safe = folder.has(ADAPTER) or not node.get("safetensors_only", True)
        merges = bool(node.get("merge"))
        faults += find_adapter_faults(folder, head, is_safe=is_safe, merges=merges)
        if not faults:
            faults += find_adapter_weight_faults(folder)
        target = str(peft.get("_target_")) if isinstance(peft, Mapping) else ""
        # Some settings freeze a part of the model instead.
        adds_adapter = bool(peft) and not target.startswith("runner.model.freeze.")
        if adds_adapter and not merges:
            faults.append(second_adapter())
    except ConfigError as error:
        return faults + error.faults
    return faults + _find_base_faults(folder, node, head)


def _find_new_model_faults(node: Node, head: str) -> list[Fault]:
    """Faults of a model that is made new: an unknown or unfit architecture, misspelt keys."""
    model_type = str(node.get("model_type"))
    if not is_known_architecture(model_type):
        return [unknown_architecture(model_type)]
    unfit = describe_unfit(model_type, node, head)
    if unfit:
        expected = WANTED_MODELS["lm"]
        return [
            Fault(
                where="model.model_type",
                found=unfit,
                expected=expected,
                fix="=qwen2",
            )
        ]
    if node.get("config"):
        return [
            Fault(
                where="model.config",
                found="keys in a mapping; those of a new model are in the model itself",
                expected="none",
                fix="model.<key>=<value>",
            )
        ]
    signature = read_signature(config_target(model_type))
    known = signature.parameters.keys() if signature else ()
    keys = {key: value for key, value in node.items() if key not in NEW_MODEL_ARGUMENTS}
    # Architectures take further keys, so that only what looks like a known one is misspelt.
    unknown = find_unknown_keys("model", model_type, keys, known, least=0.9)
    return [fault for fault in unknown if fault.fix]


def _find_whole_model_faults(folder: ModelFolder, node: Node, head: str) -> list[Fault]:
    """Faults of a folder that holds a whole model, which the node loads."""
    trust = bool(node.get("trust_remote_code"))
    faults = find_config_faults(folder, head, trust=trust)
    if faults:
        return faults
    return find_weight_faults(folder, safetensors_only=node.get("safetensors_only", True))


def _find_base_faults(folder: ModelFolder, node: Node, head: str) -> list[Fault]:
    """Faults of the base that an adapter names, where it is on this machine."""
    if not folder.base:
        return []
    try:
        base = find_folder(folder.base.path, folder.where)
        if base is None:
            return []
        base = replace(base, overrides=folder.overrides)
        return _find_whole_model_faults(base, node, head)
    except ConfigError as error:
        faults = []
        for fault in error.faults:
            found = f"the base of the adapter: {fault.found}"
            faults.append(replace(fault, where=folder.where, found=found))
        return faults


def _find_loaded_folder(node: Node) -> ModelFolder | None:
    """The folder of the model that a node loads.

    None where it is not on this machine, and where it is faulty.
    """
    if node.get("_target_") != LOADER:
        return None
    try:
        return find_folder(node.get("path"), "model.path")
    except ConfigError:  # which is reported where the model is checked
        return None


def read_vocab_size(node: Node) -> int | None:
    """The number of tokens that a model has room for, where its folder tells."""
    folder = _find_loaded_folder(node)
    if folder is None or not folder.has("config.json"):
        return None
    try:
        size = folder.config.get("vocab_size")
    except ConfigError:
        return None
    return size if isinstance(size, int) else None


def find_scorer_faults(path: str, where: str) -> list[Fault]:
    """A fault for a model that is to score texts and has no weights to do so.

    None is found where its folder does not tell.
    """
    try:
        folder = find_folder(path, where)
        if folder is None:
            return []
        if folder.adapter:
            is_safe = folder.has(ADAPTER)
            adapter_faults = list(find_adapter_faults(folder, "score", is_safe=is_safe))
            return adapter_faults or list(find_adapter_weight_faults(folder))
        config_faults = find_config_faults(folder, trust=True)
        if config_faults:
            return config_faults
        is_readable = folder.has("config.json") and folder.is_plain and folder.has_weights
        if not is_readable or "score.weight" in folder.shapes:
            return []
    except ConfigError as error:
        return error.faults
    train = f"python -m runner trainer=reward, then {where}=<its model folder>"
    return [
        Fault(
            where=where,
            found=f"{path}: it has no weights for score.weight",
            expected="a trained reward model",
            fix=f"{train}; or tolerate.random_head=true",
        )
    ]


def find_stop_faults(node: Node) -> list[Fault]:
    """A fault for a model whose own settings end texts at strings.

    No sampler finds those without a tokenizer.
    """
    file = "generation_config.json"
    folder = _find_loaded_folder(node)
    if folder is None or not folder.has(file):
        return []
    try:
        strings = folder.read(file).get("stop_strings")
    except ConfigError:  # which is reported where the model is checked
        return []
    if not strings:
        return []
    return [no_stop_strings(strings, str(node["path"]))]


def no_stop_strings(strings: object, path: str) -> Fault:
    """The fault of stop strings in the settings of a model that a trainer of TRL samples from."""
    file = "generation_config.json"
    copy = f"a copy of {path} without them in its {file}"
    return Fault(
        where="model.path",
        found=f"{file} of {path} has stop_strings {strings}, but this trainer cannot search for "
        "strings",
        expected="stop tokens",
        fix=f"{copy}, as model.path=<that folder>",
    )


def find_group_faults(node: Node, patterns: Iterable[str]) -> Iterator[Fault]:
    """A fault for each pattern of parameter groups that the name of no weight has.

    None is found where the folder of the model does not tell the names.
    """
    folder = _find_loaded_folder(node)
    try:
        if folder is None or folder.adapter or not folder.has("config.json"):
            return
        if not folder.is_plain or not folder.has_weights:
            return
        output_weights = [f"{layer}.weight" for layer in OUTPUT_LAYERS]
        weights = [*folder.shapes, *output_weights]
    except ConfigError:  # which is reported where the model is checked
        return
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in weights):
            yield Fault(
                where=f"optimizer.groups.{pattern}",
                found="no weight has such a name",
                expected=f"a part of a name, such as {weights[0]}",
                fix="another pattern, or optimizer.groups=null",
            )
