"""An adapter as the start of a run: merged below a new one, or trained further.

Whether a run leaves an adapter is read from its configuration rather than from its files: a stage
means the same before the one below it has trained as afterwards.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.composition import MAX_RUNS
from runner.config.limits import read_yaml
from runner.config.resolution import Composed
from runner.errors import ConfigError
from runner.io.files import shipped
from runner.model.node import LOADER
from runner.schema.text import select


def settle_start(composed: Composed, planned: Collection[str] = ()) -> Composed:
    """The configuration with ``model.merge=true`` where it trains something else than the adapter.

    ``planned`` are the models that earlier stages will leave as adapters. What is typed stays.
    """
    model = composed.cfg.get("model")
    if not isinstance(model, Mapping) or model.get("_target_") != LOADER or "merge" in model:
        return composed
    if not leaves_adapter({**composed.cfg, "peft": None}, planned):
        return composed
    start = _start_path(composed.cfg).removesuffix("/model")
    peft = composed.choices.get("peft", "none")
    if not composed.cfg.get("peft"):
        line = f"{start} left an adapter, which is trained further; peft=lora puts a new one on top"
        return replace(composed, starts=[*composed.starts, line])
    line = (
        f"the adapter of {start} is merged into its base, and peft={peft} begins on top of that; "
        "peft=none trains the same adapter further"
    )
    cfg = {**composed.cfg, "model": {**model, "merge": True}}
    return replace(composed, cfg=cfg, starts=[*composed.starts, line])


def leaves_adapter(cfg: Mapping[str, Any], planned: Collection[str] = ()) -> bool:
    """True for the configuration of a run whose ``model/`` will be an adapter, or may be one."""
    for _ in range(MAX_RUNS):
        peft = cfg.get("peft")
        if peft:
            return not str(select(peft, "_target_")).startswith("runner.model.freeze.")
        path = _start_path(cfg)
        if not path or select(cfg, "model.merge"):
            return False
        earlier = _read_config(path)
        if earlier is None:
            return path in planned or Path(shipped(path), "adapter_config.json").is_file()
        cfg = earlier
    return False


def _start_path(cfg: Mapping[str, Any]) -> str:
    """The path of the weights that a run begins with; PPO's own argument comes first."""
    path = select(cfg, "trainer.args.sft_model_path") or select(cfg, "model.path")
    return str(path or "")


def _read_config(path: str) -> Mapping[str, Any] | None:
    """The configuration of the run whose ``model/`` is at a path; None for any other path."""
    folder = Path(shipped(path))
    if folder.name != "model" or not (folder.parent / "status.json").is_file():
        return None
    try:
        cfg: Mapping[str, Any] = read_yaml(folder.parent / "config.yaml")
    except (OSError, ConfigError):  # its config is lost
        return None
    return cfg
