"""Run folder -> the weights that are meant, whole and sealed; and a model with them, ready to be asked.

Finding them needs nothing heavy, so that a wrong word is told before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config import asked_for, build, serve
from runner.errors import ConfigError, Fault, FolderError
from runner.files import SEAL, damage_of, describe_damage, display_path, read_json, sha256
from runner.run import Run, last_checkpoint, sealed_checkpoints
from runner.tray.argument import refuse_absent_devices

LOADER = "runner.model.load.load_model"
OURS = (LOADER, "runner.model.load.new_model")
WISHES = "model, best, last, start, or the step of a checkpoint"


@dataclass(frozen=True)
class Weights:
    """Where weights are; without a ``folder``, where the configuration's model says."""

    name: str
    folder: Path | None = None

    @property
    def seal(self) -> str:
        """What tells these weights from others of the same name: the hash of their seal."""
        seal = self.folder / SEAL if self.folder else None
        return sha256(seal) if seal and seal.is_file() else ""

    def __str__(self) -> str:
        return display_path(self.folder) if self.folder else self.name


def find_weights(run: Run | None, wish: str | None) -> Weights:
    """The weights of a run that a word means; without a word its model, else its best or newest sealed checkpoint."""
    if run is None:
        if wish not in (None, "start"):
            raise ConfigError(Fault("checkpoint", wish, "a run that has checkpoints", "leave it out"))
        return Weights("model")
    if wish is None:
        finished = run.status()["state"] == "finished" and run.model.is_dir()
        found = _model(run) if finished else _best(run) or _last(run)
        return found or _none(run, "no sealed checkpoint that is whole, and no model")
    if wish == "start":
        return Weights("start")
    if wish.isdigit():
        return _of_step(run, int(wish))
    if wish not in ("model", "best", "last"):
        raise ConfigError(Fault("checkpoint", wish, WISHES, "checkpoint=last"))
    found = {"model": _model, "best": _best, "last": _last}[wish](run)
    told = {"model": "no model yet", "best": "no whole checkpoint is known to be the best"}
    return found or _none(run, told.get(wish, "no sealed checkpoint that is whole"))


def _model(run: Run) -> Weights | None:
    return Weights("model", whole(run.model)) if run.model.is_dir() else None


def whole(folder: Path) -> Path:
    """The same sealed folder; FolderError with every file that is not as it was sealed."""
    if damage := damage_of(folder):
        cure = "the command that made the run, which mends it from a checkpoint, or checkpoint=last"
        raise FolderError(
            Fault(display_path(folder), f"damaged: {describe_damage(damage)}", "the files that were sealed", cure)
        )
    return folder


def _last(run: Run) -> Weights | None:
    folder = last_checkpoint(run, clean=False)
    return Weights(folder.name, folder) if folder else None


def _best(run: Run) -> Weights | None:
    """The checkpoint that the newest one names as the best so far, wherever the run was when it was written."""
    newest = last_checkpoint(run, clean=False)
    named = (read_json(newest / "trainer_state.json") or {}).get("best_model_checkpoint") if newest else None
    folder = run.checkpoints / Path(named).name if named else None
    return Weights(folder.name, folder) if folder and not damage_of(folder) else None


def _of_step(run: Run, step: int) -> Weights:
    folder = run.checkpoints / f"checkpoint-{step}"
    damage = damage_of(folder)
    if not damage:
        return Weights(folder.name, folder)
    there = [path.name.rpartition("-")[2] for path in sealed_checkpoints(run)]
    found = f"checkpoint {step} is {f'damaged: {describe_damage(damage)}' if folder.is_dir() else 'not there'}"
    cure = f"checkpoint={there[-1]}" if there else "checkpoint=model"
    raise FolderError(Fault(display_path(run.checkpoints), found, f"one of {', '.join(there) or 'none'}", cure))


def _none(run: Run, found: str) -> Weights:
    state = run.status()
    progress = f"it is {state['state']}, step {state['step']} of {state['max_steps']}"
    there = _last(run) or (_model(run) if state["state"] == "finished" else None)
    cure = f"checkpoint={'model' if there and there.name == 'model' else 'last'}"
    if there is None:
        cure = f"python -m runner.work {run}  (to train on), or checkpoint=start for the model it begins with"
    raise FolderError(Fault(str(run), f"{found}; {progress}", "weights", cure))


# --- The model ------------------------------------------------------------------------------------


def load(cfg: Mapping[str, Any], weights: Weights, head: str) -> tuple[Any, Any]:
    """The model with these weights and its tokenizer, on the accelerator if there is one, not to be trained."""
    refuse_absent_devices(cfg)
    folder = _loadable(weights.folder) if weights.folder else None
    tokenizer = _tokenizer(cfg, folder)
    if folder is None or (folder / "adapter_config.json").is_file():
        model = _start(cfg, tokenizer, head)
        model = _with_adapter(model, folder) if folder else model
    else:
        model = serve(_node(cfg, folder), tokenizer=tokenizer, head=head, quantization_config=build(cfg.get("quant")))
    return _ready(model, cfg), tokenizer


def _loadable(folder: Path) -> Path:
    """The folder in which weights are as others load them: PPO keeps them in one of its own, beside its critic."""
    if (folder / "policy").is_dir():
        return folder / "policy"
    plain = [name for name in ("config.json", "adapter_config.json") if (folder / name).is_file()]
    files = list(folder.glob("*.safetensors"))
    if plain and files and not (folder / "ppo_state.json").is_file():
        return folder
    found = "weights only as the trainer itself reads them, such as those of PPO with its critic, or in shards"
    raise FolderError(Fault(display_path(folder), found, "a model or an adapter as safetensors", "checkpoint=model"))


def _tokenizer(cfg: Mapping[str, Any], folder: Path | None) -> Any:
    """The run's own tokenizer and template, from beside the weights where it was saved there."""
    node = dict(cfg["model"]["tokenizer"])
    if folder and (folder / "tokenizer_config.json").is_file() and "path" in asked_for(node["_target_"]):
        node["path"] = str(folder)
        if "revision" in node:
            node["revision"] = None
    return build(node)


def _start(cfg: Mapping[str, Any], tokenizer: Any, head: str) -> Any:
    """The model that the training began with."""
    from runner.tray.model import path_of

    node = {key: value for key, value in cfg["model"].items() if key != "tokenizer"} | path_of(cfg)
    how = {"quantization_config": build(cfg.get("quant")), "seed": cfg.get("seed", 0)}
    return serve(node, tokenizer=tokenizer, head=head, **how)


def _with_adapter(model: Any, folder: Path) -> Any:
    from runner.model.restore import put_on

    return put_on(model, folder)


def _node(cfg: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What loads a whole model from a folder like the one that was trained; a loader of the user's own if it can."""
    node = {key: value for key, value in cfg["model"].items() if key != "tokenizer"}
    target = node["_target_"]
    if target not in OURS and "path" in asked_for(target):
        return node | {"path": str(folder)} | ({"revision": None} if "revision" in node else {})
    known = asked_for(LOADER) - {"path", "revision", "merge", "seed"}
    return {key: value for key, value in node.items() if key in known} | {"_target_": LOADER, "path": str(folder)}


def _ready(model: Any, cfg: Mapping[str, Any]) -> Any:
    """The model at rest, where it will be asked."""
    from runner.reward.outcome import best_device

    model = model.eval().requires_grad_(False)
    placed = cfg["model"].get("device_map") or getattr(model, "is_quantized", False)
    return model if placed else model.to(best_device())
