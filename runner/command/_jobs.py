"""The runs of a command line that may be a sweep, composed."""

from collections.abc import Sequence
from pathlib import Path

from runner.config.override import latest
from runner.config.resolution import Composed
from runner.launch.compose import stages, sweep_axes
from runner.launch.compose.grid import compose_jobs


def compose_command(
    overrides: Sequence[str], folders: Sequence[Path], multirun: bool
) -> list[list[Composed]]:
    """The runs of each job.

    Of a search it is only the first, because what comes out of a job chooses the next.
    """
    if not multirun and sweep_axes.chosen_sweep(overrides) is None:
        return [stages.compose_runs(overrides, folders)]
    axes, plugin = sweep_axes.read_sweep(overrides, folders)
    swept = latest([*axes, *latest(overrides)])
    untyped = sweep_axes.untyped_keys(axes, overrides)
    if plugin:
        return [stages.compose_runs(sweep_axes.first_of(swept), folders, untyped)]
    return compose_jobs(swept, folders, untyped)
