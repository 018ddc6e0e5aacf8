"""Words with several values -> jobs: the axes of a sweep, those of a checked-in one too, and what they combine to."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.config import compose_unresolved
from runner.config.override import MAX_JOBS, count_values, dotted_key, latest, parse
from runner.errors import ConfigError, Fault, fault
from runner.schema.text import select, to_text

LAUNCHER, SWEEPER = "hydra/launcher", "hydra/sweeper"


def axes(overrides: Sequence[str]) -> dict[str, int]:
    """The number of values of each swept key; ConfigError for one without any, without an end, or for too many jobs.
    >>> axes(["trainer=dpo", "kl_coef=0.05,0.1"])
    {'kl_coef': 2}
    """
    swept = [override for override in parse(latest(overrides)) if override.is_sweep_override()]
    endless = [override.get_key_element() for override in swept if override.is_interval_sweep()]
    ConfigError.refuse(fault("launch.interval", axis=axis) for axis in endless)
    sizes = {override.get_key_element(): count_values(override) for override in swept}
    empty = [axis for axis, size in sizes.items() if size == 0]
    ConfigError.refuse(Fault(axis, "no values", "one or more", f"{axis}=1,2") for axis in empty)
    if (total := math.prod(sizes.values())) > MAX_JOBS:
        shape = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        found = f"{total:,} jobs ({shape})" if total < 10**18 else "more jobs than there is time for"
        raise ConfigError(Fault("sweep", found, f"at most {MAX_JOBS:,}", "fewer values of each"))
    return sizes


def options(overrides: Sequence[str]) -> dict[str, list[tuple[str, Any]]]:
    """The words of each key of a sweep with their values, one where it is not swept; jobs are what they combine to.

    >>> options(["trainer=dpo", "kl_coef=0.05,0.1"])
    {'trainer': [('trainer=dpo', None)], 'kl_coef': [('kl_coef=0.05', 0.05), ('kl_coef=0.1', 0.1)]}
    """
    from hydra.core.override_parser.types import Transformer

    found: dict[str, list[tuple[str, Any]]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        found[key] = [(override.input_line, None)]
        if override.is_sweep_override():
            values = list(override.sweep_iterator())
            found[key] = [(f"{key}={to_text(v) if isinstance(v, float) else Transformer.str(v)}", v) for v in values]
    return found


def first_of(overrides: Sequence[str]) -> list[str]:
    """One job of a sweep as its own overrides, without those of Hydra itself.

    Of an axis it is the first value, of which there may be more than memory holds, or the begin of an interval.

    >>> first_of(["trainer=dpo", "kl_coef=0.05,0.1", "learning_rate=interval(1e-6,1e-4)", "~hydra.sweeper"])
    ['trainer=dpo', 'kl_coef=0.05', 'learning_rate=1e-06']
    """
    words = []
    for override in parse(latest(overrides)):
        key = override.get_key_element()
        if override.is_interval_sweep():
            words.append(f"{key}={override.value().start}")
        elif override.is_sweep_override():
            words.append(f"{key}={next(override.sweep_string_iterator())}")
        elif not override.is_hydra_override():
            words.append(override.input_line)
    return words


def chosen_sweep(overrides: Sequence[str]) -> str | None:
    """The checked-in sweep that the words choose."""
    chosen = [override for override in parse(overrides) if override.key_or_group == "sweep"]
    return str(chosen[-1].value()) if chosen and chosen[-1].value() is not None else None


def untyped_keys(words: Sequence[str], typed: Sequence[str]) -> frozenset[str]:
    """The keys of a sweep's words that nobody typed."""
    return frozenset(map(dotted_key, words)) - set(map(dotted_key, typed))


def read_sweep(overrides: Sequence[str], folders: Sequence[Path]) -> tuple[list[str], list[str]]:
    """The axes that a checked-in sweep lists, as words, and the groups of Hydra's own for which a plugin is chosen."""
    from omegaconf import OmegaConf

    name, typed = chosen_sweep(overrides), [word for word in overrides if word.startswith((LAUNCHER, SWEEPER))]
    if name is None and not typed:
        return [], []
    cfg, choices = compose_unresolved([*typed, *([f"sweep={name}"] if name else [])], folders)
    params = select(OmegaConf.to_container(cfg, resolve=False), "hydra.sweeper.params")
    if name and not (params and isinstance(params, Mapping)):
        raise ConfigError(fault("launch.no_axes", name=name))
    plugins = [group for group in (LAUNCHER, SWEEPER) if choices.get(group) != "basic"]
    return [f"{key}={value}" for key, value in (params or {}).items()], plugins
