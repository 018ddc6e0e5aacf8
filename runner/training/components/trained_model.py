"""The model that a training has left, with its tokenizer, to be asked."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.config.build import asked_for, build, serve
from runner.config.experiment import Experiment
from runner.errors import Fault, FolderError
from runner.generate.sampler import Model
from runner.io.files import JsonObject, display_path, shipped
from runner.model.check import NEW
from runner.model.model_files import OWN_ADAPTER
from runner.model.node import LOADER
from runner.reward.outcome import best_device
from runner.run.weights import Weights
from runner.schema.text import Node
from runner.training.components.args import check_devices
from runner.training.components.start_model import build_quantization, own_tuner, path_of


def load_trained(
    experiment: Experiment, weights: Weights, head: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model with these weights, on the accelerator if there is one, and its tokenizer.

    It is not to be trained.
    """
    check_devices(experiment)
    tuner = own_tuner(experiment.peft)
    folder = weights.folder
    if folder is not None:
        if (folder / "policy").is_dir():  # where PPO keeps it, beside its critic
            folder = folder / "policy"
        elif tuner is None:
            _check_loadable(folder)
    tokenizer = _load_tokenizer(experiment.model.tokenizer, folder)
    served = {
        "tokenizer": tokenizer,
        "head": head,
        "quantization_config": build_quantization(experiment),
    }
    node = experiment.model.arguments | path_of(experiment)
    adapter = folder
    has_start = True
    if folder is not None and (folder / OWN_ADAPTER).is_dir():
        adapter = folder / OWN_ADAPTER
        # Where the earlier adapter is gone, its sum with this one has to do.
        has_start = Path(shipped(node["path"])).is_dir()
    if folder is None or adapter is None:
        model = serve(node, **served, seed=experiment.seed)
    elif has_start and (tuner is not None or (adapter / "adapter_config.json").is_file()):
        # The model that the training began with, then what was trained of it.
        start = serve(node, **served, seed=experiment.seed)
        model = _load_tuned(start, tuner, adapter)
    else:
        model = serve(_node_of_whole_model(experiment.model.arguments, folder), **served)
    model = model.eval().requires_grad_(False)
    if not experiment.model.is_spread and not getattr(model, "is_quantized", False):
        model = model.to(best_device())
    return model, tokenizer


def _check_loadable(folder: Path) -> None:
    """Raise FolderError where a folder holds no model or adapter that we can load."""
    has_config = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    has_weights = any(folder.glob("*.safetensors"))
    if not has_config or not has_weights or (folder / "ppo_state.json").is_file():
        raise FolderError(
            Fault(
                where=display_path(folder),
                found="weights that only the trainer itself can read, such as those of PPO with "
                "its critic, or shards",
                expected="a model or an adapter as safetensors",
                fix="checkpoint=model",
            )
        )


def _load_tokenizer(node: Node, folder: Path | None) -> PreTrainedTokenizerBase:
    """The tokenizer that a run has saved, with its template, or the configured one."""
    settings = dict(node)
    if folder is not None and (folder / "tokenizer_config.json").is_file():
        if "path" in asked_for(settings["_target_"]):
            settings |= _at_folder(settings, folder)
    tokenizer: PreTrainedTokenizerBase = build(settings)
    return tokenizer


def _at_folder(node: Node, folder: Path) -> JsonObject:
    """The values that have a node load from a folder, which has no revisions."""
    values: JsonObject = {"path": str(folder)}
    if "revision" in node:
        values["revision"] = None
    return values


def _load_tuned(model: Model, tuner: Any, folder: Path) -> Model:
    """A start model with the adapter, or the weights of a user's own tuner, in a folder."""
    from safetensors.torch import load_model

    from runner.model.saved import load_adapter_weights

    tuned: Model
    if tuner is None:
        tuned = load_adapter_weights(model, folder)
    elif (folder / "trainer_state.json").is_file():  # a checkpoint, as the trainer writes it
        tuned = tuner.prepare_model(model)
        load_model(tuned, str(folder / "model.safetensors"), strict=False)
    else:
        tuned = tuner.from_pretrained(model, folder)
    return tuned


def _node_of_whole_model(node: Node, folder: Path) -> JsonObject:
    """The node that loads a whole model from a folder, by the user's own loader where that can."""
    target = node["_target_"]
    if target not in (LOADER, NEW) and "path" in asked_for(target):
        return {**node, **_at_folder(node, folder)}
    taken = asked_for(LOADER) - {"path", "revision", "merge", "seed"}
    settings = {key: value for key, value in node.items() if key in taken}
    return {**settings, "_target_": LOADER, "path": str(folder)}
