"""Words with several values: the axes of a sweep, typed or of a checked-in file, and their jobs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.config.composition import compose_unresolved
from runner.config.override import MAX_JOBS, count_values, dotted_key, latest, parse
from runner.errors import ConfigError, Fault
from runner.schema.literal import as_typed_number
from runner.schema.text import select

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

LAUNCHER = "hydra/launcher"
SWEEPER = "hydra/sweeper"
SHOWN_JOBS = 10**18  # a count of more jobs is not written out


class SweptWord(NamedTuple):
    """A word that gives a key one of its values, with that value; None of a key not swept."""

    word: str
    value: Any


class CheckedInSweep(NamedTuple):
    """The axes that a file lists, as words, and the groups of Hydra's own that have a plugin."""

    axes: list[str]
    plugins: list[str]


def axes(overrides: Sequence[str]) -> dict[str, int]:
    """The number of values of each swept key.

    Raises ConfigError for a key without any value, for one without an end, and for too many jobs.

    >>> axes(["trainer=dpo", "kl_coef=0.05,0.1"])
    {'kl_coef': 2}
    """
    swept = [override for override in parse(latest(overrides)) if override.is_sweep_override()]
    endless = [override.get_key_element() for override in swept if override.is_interval_sweep()]
    ConfigError.refuse(map(_endless_axis, endless))
    sizes = {override.get_key_element(): count_values(override) for override in swept}
    ConfigError.refuse(_empty_axis(key) for key, size in sizes.items() if size == 0)
    jobs = math.prod(sizes.values())
    if jobs > MAX_JOBS:
        shape = " x ".join(f"{key} {size}" for key, size in sizes.items())
        found = "more jobs than could ever finish"
        if jobs < SHOWN_JOBS:
            found = f"{jobs:,} jobs ({shape})"
        raise ConfigError(
            Fault(
                where="sweep",
                found=found,
                expected=f"at most {MAX_JOBS:,}",
                fix="fewer values of each",
            )
        )
    return sizes


def _endless_axis(key: str) -> Fault:
    return Fault(
        where=key,
        found="an interval has no list of values",
        expected="values",
        fix="hydra/sweeper=optuna, or values with commas",
    )


def _empty_axis(key: str) -> Fault:
    return Fault(
        where=key,
        found="no values",
        expected="one or more",
        fix=f"{key}=1,2",
    )


def options(overrides: Sequence[str]) -> dict[str, list[SweptWord]]:
    """The words of each key of a sweep with their values, one where it is not swept.

    Jobs are what they combine to.

    >>> options(["trainer=dpo", "kl_coef=0.05,1e-1"])["kl_coef"]
    [SweptWord(word='kl_coef=0.05', value=0.05), SweptWord(word='kl_coef=1e-1', value=0.1)]
    """
    words: dict[str, list[SweptWord]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        if override.is_sweep_override():
            words[key] = _list_values(key, override)
        else:
            words[key] = [SweptWord(str(override.input_line), None)]
    return words


def _list_values(key: str, override: "Override") -> list[SweptWord]:
    from hydra.core.override_parser.types import Transformer

    values = list(override.sweep_iterator())
    typed = str(override.input_line).partition("=")[2].split(",")
    if len(typed) != len(values):  # a range, or texts with commas
        typed = [""] * len(values)
    words = []
    for value, typed_text in zip(values, typed, strict=True):
        text = Transformer.str(value)
        if isinstance(value, float):
            text = as_typed_number(value, typed_text)
        words.append(SweptWord(f"{key}={text}", value))
    return words


def first_of(overrides: Sequence[str]) -> list[str]:
    """One job of a sweep as its own overrides, without those of Hydra itself.

    Of an axis it is the first value, since there may be more than memory holds, or the beginning
    of an interval.

    >>> first_of(["trainer=dpo", "kl_coef=0.05,0.1", "seed=interval(1e-6,1e-4)", "~hydra.sweeper"])
    ['trainer=dpo', 'kl_coef=0.05', 'seed=1e-06']
    """
    words = []
    for override in parse(latest(overrides)):
        key = override.get_key_element()
        if override.is_interval_sweep():
            interval: Any = override.value()
            words.append(f"{key}={interval.start}")
        elif override.is_sweep_override():
            words.append(f"{key}={next(override.sweep_string_iterator())}")
        elif not override.is_hydra_override():
            words.append(str(override.input_line))
    return words


def chosen_sweep(overrides: Sequence[str]) -> str | None:
    """The checked-in sweep that the words choose."""
    chosen = [override for override in parse(overrides) if override.key_or_group == "sweep"]
    name = chosen[-1].value() if chosen else None
    return None if name is None else str(name)


def untyped_keys(words: Sequence[str], typed: Sequence[str]) -> frozenset[str]:
    """The keys of a sweep's words that nobody typed."""
    return frozenset(map(dotted_key, words)) - set(map(dotted_key, typed))


def read_sweep(overrides: Sequence[str], folders: Sequence[Path]) -> CheckedInSweep:
    """The axes and Hydra's plugins that the words choose, by a checked-in sweep or by name."""
    from omegaconf import OmegaConf

    name = chosen_sweep(overrides)
    words = [word for word in overrides if word.startswith((LAUNCHER, SWEEPER))]
    if name is None and not words:
        return CheckedInSweep([], [])
    if name:
        words.append(f"sweep={name}")
    cfg, choices = compose_unresolved(words, folders)
    params = select(OmegaConf.to_container(cfg, resolve=False), "hydra.sweeper.params") or {}
    if name and not (params and isinstance(params, Mapping)):
        raise ConfigError(
            Fault(
                where=f"conf/sweep/{name}.yaml",
                found="no hydra.sweeper.params in it",
                expected="the axes",
                fix="hydra: {sweeper: {params: {seed: '0,1'}}}",
            )
        )
    plugins = [group for group in (LAUNCHER, SWEEPER) if choices.get(group) != "basic"]
    return CheckedInSweep([f"{key}={value}" for key, value in params.items()], plugins)
