"""The learning rate of a run that began before adapters had a multiple of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.config.adapter_rate import FACTOR, FACTOR_KEY, KEY
from runner.config.composition import Starts, compose
from runner.config.resolution import Composed
from runner.config.run_name import former_names
from runner.errors import Fault
from runner.run import Run
from runner.run.key import folder_of
from runner.schema.text import select


def as_begun(
    composed: Composed, words: Sequence[str], folders: Sequence[Path], starts: Starts
) -> Composed:
    """The configuration with the rate of all weights, where its run began with that.

    Runs of earlier versions did so, and their configs name no factor. Any other configuration is
    returned as it is.
    """
    rate = composed.rate
    folder = folder_of(composed.cfg, composed.overrides)
    names = [folder.parent.name, *former_names(composed.cfg)]
    has_neighbours = any((folder.parent.parent / name).is_dir() for name in names)
    if rate is None or folder.is_dir() or not has_neighbours:
        return composed
    earlier = compose([*words, f"{KEY}={rate.usual!r}"], folders, starts)
    run = Run(folder_of(earlier.cfg, composed.overrides))
    if not (run.folder / "config.yaml").is_file() or select(run.cfg, FACTOR_KEY) is not None:
        return composed
    # Its config names none later either, or the next command would not know it again.
    del earlier.cfg["peft"][FACTOR]
    return replace(composed, cfg=earlier.cfg, rate=rate.as_begun(str(run.folder)))


def find_factor_faults(composed: Composed) -> Iterator[Fault]:
    """The fault of a factor that was typed where it multiplies nothing."""
    if FACTOR_KEY in composed.typed and composed.rate is None:
        yield Fault(
            where=FACTOR_KEY,
            found=f"set, but the learning rate is {composed.cfg.get(KEY)}, whatever the adapter",
            expected="a rate that an option of the trainer brings",
            fix=f"leave {FACTOR_KEY} out, and {KEY}=<another>",
        )
