"""The check of the parts of a configuration that a verb uses which asks a trained model."""

from collections.abc import Collection, Sequence
from pathlib import Path

from runner.config.menu import read_menu
from runner.config.override import typed_keys
from runner.errors import ConfigError
from runner.schema.source import has_method
from runner.schema.text import Config
from runner.validate import find_all_faults
from runner.validate.hub_names import settle_hub


def check_used(
    cfg: Config,
    keys: Sequence[str],
    folders: Sequence[Path],
    overrides: Sequence[str],
    *,
    is_allowed: bool,
) -> None:
    """Raise ConfigError with every fault of the parts that are used, or EnvironmentFault."""
    used = {key: cfg.get(key) for key in keys}
    tuner = cfg.get("peft")
    # Its code puts the weights on the model.
    if tuner and has_method(tuner.get("_target_"), "prepare_model"):
        used["peft"] = tuner
    allowed: Collection[str] = tuple(cfg["allow"]) if is_allowed else ()
    faults = find_all_faults(
        used, menu=read_menu(folders), allow=allowed, typed=typed_keys(overrides)
    )
    # Nobody needs a trainer here.
    ConfigError.refuse(fault for fault in faults if fault.where != "trainer")
    settle_hub([used])
