"""Runs that began with an earlier version go on as they began: the learning rate, the sampler."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.config.adapter_rate import FACTOR, FACTOR_KEY, KEY
from runner.config.composition import Starts, compose
from runner.config.resolution import Composed
from runner.config.run_name import former_names
from runner.config.sampler import RUNNER, SAMPLER, SAMPLER_KEY
from runner.errors import Fault
from runner.run import Run
from runner.run.key import folder_of
from runner.schema.text import select


def as_begun(
    composed: Composed, words: Sequence[str], folders: Sequence[Path], starts: Starts
) -> Composed:
    """The configuration as its run began: with the rate of all weights, with transformers' sampler.

    Runs of earlier versions did so, and their configs name no factor and no sampler. Any other
    configuration is returned as it is.
    """
    composed = _with_begun_sampler(composed)
    rate = composed.rate
    folder = folder_of(composed.cfg, composed.overrides)
    names = [folder.parent.name, *former_names(composed.cfg)]
    has_neighbours = any((folder.parent.parent / name).is_dir() for name in names)
    if rate is None or folder.is_dir() or not has_neighbours:
        return composed
    rate_word = f"{KEY}={rate.usual!r}"
    earlier = compose([*words, rate_word], folders, starts)
    earlier = _with_begun_sampler(earlier)
    run = Run(folder_of(earlier.cfg, composed.overrides))
    if not (run.folder / "config.yaml").is_file() or select(run.cfg, FACTOR_KEY) is not None:
        return composed
    # Its config names none later either, or the next command would not know it again.
    del earlier.cfg["peft"][FACTOR]
    begun_rate = rate.as_begun(str(run.folder))
    return replace(composed, cfg=earlier.cfg, rate=begun_rate, sampler=earlier.sampler)


def _with_begun_sampler(composed: Composed) -> Composed:
    """The configuration with the sampler of transformers, if its run has begun with that one.

    It has where there is no folder of the run as it would be today, but one of the same
    configuration without a word on the sampler.
    """
    choice = composed.sampler
    # One that was chosen by hand is left.
    if choice is None or not choice.is_automatic or choice.value != RUNNER:
        return composed
    if folder_of(composed.cfg, composed.overrides).is_dir():
        return composed
    # Its config names none later either, as above.
    trainer = dict(composed.cfg["trainer"])
    trainer.pop(SAMPLER, None)
    cfg = {**composed.cfg, "trainer": trainer}
    run = Run(folder_of(cfg, composed.overrides))
    if not (run.folder / "config.yaml").is_file() or select(run.cfg, SAMPLER_KEY) is not None:
        return composed
    return replace(composed, cfg=cfg, sampler=choice.as_begun(str(run.folder)))


def find_factor_faults(composed: Composed) -> Iterator[Fault]:
    """The fault of a factor that was typed where it multiplies nothing."""
    if FACTOR_KEY in composed.typed and composed.rate is None:
        yield Fault(
            where=FACTOR_KEY,
            found=f"set, but the learning rate is {composed.cfg.get(KEY)}, whatever the adapter",
            expected="a rate that an option of the trainer brings",
            fix=f"leave {FACTOR_KEY} out, and {KEY}=<another>",
        )
