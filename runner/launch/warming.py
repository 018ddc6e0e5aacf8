"""Work that all runs need, done once for all processes that are forked from this one."""

import contextlib
import functools
import gc
import io
import json
import os
import platform
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from runner.config.build import build, locate
from runner.config.resolution import Composed
from runner.errors import RunnerError
from runner.io.files import shipped
from runner.io.temporary import uncollected
from runner.io.terminal import mute_libraries
from runner.launch.worker import VERBS
from runner.run.key import canonical_text

LOADER = "runner.model.load.load_tokenizer"


def warm_up(runs: Iterable[Composed]) -> None:
    """Import what runs need, so that each process forked from here inherits it.

    That takes 4 s of CPU, once and not for each.
    """
    # The driver must not wake before a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    with uncollected():
        _do_first_things()
        for run in runs:
            # A user's own module may hold a state, which no two runs share.
            if run.experiment.trainer.target.startswith(("trl.", "runner.")):
                locate(run.experiment.trainer.target)
            _try_template(canonical_text(run.experiment.model.tokenizer))
    gc.freeze()  # what is here stays: no child needs to look through it for garbage (0.4 s each)


@functools.cache
def _try_template(tokenizer: str) -> None:
    """Load the tokenizer of a node once, as JSON, which tries its chat template.

    One that is not on this machine, or brings code, is left to the runs; and so is a fault.
    """
    node = json.loads(tokenizer)
    is_here = Path(shipped(str(node.get("path")))).is_dir()
    if is_here and node.get("_target_") == LOADER and not node.get("trust_remote_code"):
        with contextlib.suppress(RunnerError, OSError):
            build(node)


@functools.cache
def _do_first_things() -> None:
    """Have the libraries do what they do once.

    They find fonts, load a model without weights, look at rows, and import what they save with.
    """
    from runner.report.plot_run import run_pictures

    import_module(VERBS["train"])
    mute_libraries()
    auto_model = locate("transformers.AutoModelForCausalLM")
    auto_model.from_pretrained(shipped("runner://model/tiny"), device_map="meta")
    rows = shipped("runner://dataset/toy_sort/train.jsonl")
    with contextlib.suppress(OSError):  # of the cache, which each run says itself
        locate("datasets.load_dataset_builder")("json", data_files=rows)
    locate("torch.save")({}, io.BytesIO())
    picture = next(run_pictures([{"step": 1, "loss": 1.0}]))
    picture.figure.savefig(io.BytesIO(), format="png")
    platform.platform()  # asks a program
