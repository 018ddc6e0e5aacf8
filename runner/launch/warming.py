"""The libraries of runs, imported once for all processes that are forked from this one."""

import functools
import gc
import os
from collections.abc import Iterable
from importlib import import_module

from runner.config.build import locate
from runner.config.resolution import Composed
from runner.io.files import shipped
from runner.io.temporary import uncollected
from runner.io.terminal import mute_libraries


def warm_up(runs: Iterable[Composed]) -> None:
    """Import what runs need, so that each process forked from here inherits it.

    That takes 4 s of CPU, once and not for each.
    """
    # The driver must not wake before a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    with uncollected():
        _do_first_things()
        for target in {run.experiment.trainer.target for run in runs}:
            # A user's own module may hold a state, which no two runs share.
            if target.startswith(("trl.", "runner.")):
                locate(target)
    gc.freeze()  # what is here stays: no child needs to look through it for garbage (0.4 s each)


@functools.cache
def _do_first_things() -> None:
    """Have the libraries do what they do once: find fonts, and load a model without weights."""
    from runner.report.plot_run import run_pictures

    import_module("runner.training.components.assembly")
    mute_libraries()
    auto_model = locate("transformers.AutoModelForCausalLM")
    auto_model.from_pretrained(shipped("runner://model/tiny"), device_map="meta")
    picture = next(run_pictures([{"step": 1, "loss": 1.0}]))
    picture.figure.canvas.draw()
