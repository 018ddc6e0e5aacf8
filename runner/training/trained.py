"""Weights of a run -> the model that they make, with its tokenizer, in evaluation mode."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from runner.config.build import asked_for, build, serve
from runner.errors import FolderError, fault
from runner.generate.weights import Weights
from runner.io.files import display_path
from runner.model.check import LOADER, NEW
from runner.model.saved import load_adapter_weights
from runner.reward.outcome import best_device
from runner.schema.text import Config
from runner.training.components.args import check_devices
from runner.training.components.model import path_of


def load_trained(cfg: Config, weights: Weights, head: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model with these weights and its tokenizer, on the accelerator if there is one, not to be trained."""
    check_devices(cfg)
    folder = weights.folder
    if folder and (folder / "policy").is_dir():  # where PPO keeps them, beside its critic
        folder /= "policy"
    elif folder:
        plain = [name for name in ("config.json", "adapter_config.json") if (folder / name).is_file()]
        if not plain or not list(folder.glob("*.safetensors")) or (folder / "ppo_state.json").is_file():
            raise FolderError(fault("training.weights_of_a_trainer", folder=display_path(folder)))
    own = dict(cfg["model"]["tokenizer"])
    saved = folder and (folder / "tokenizer_config.json").is_file()  # the run's own, with its template
    if saved and "path" in asked_for(own["_target_"]):
        own |= {"path": str(folder)} | ({"revision": None} if "revision" in own else {})
    tokenizer = build(own)
    node = {key: value for key, value in cfg["model"].items() if key != "tokenizer"}
    served = {"tokenizer": tokenizer, "head": head, "quantization_config": build(cfg.get("quant"))}
    if folder is None or (folder / "adapter_config.json").is_file():
        model = serve(node | path_of(cfg), **served, seed=cfg.get("seed", 0))  # which the training began with
        model = load_adapter_weights(model, folder) if folder else model
    else:
        target = node["_target_"]
        if target not in (LOADER, NEW) and "path" in asked_for(target):  # a user's own that can
            node |= {"path": str(folder)} | ({"revision": None} if "revision" in node else {})
        else:
            known = asked_for(LOADER) - {"path", "revision", "merge", "seed"}
            node = {key: value for key, value in node.items() if key in known}
            node |= {"_target_": LOADER, "path": str(folder)}
        model = serve(node, **served)
    model = model.eval().requires_grad_(False)
    is_placed = cfg["model"].get("device_map") or getattr(model, "is_quantized", False)
    return model if is_placed else model.to(best_device()), tokenizer
