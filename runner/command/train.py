"""Trains a run, or goes on with it: run folder -> trained model.

What comes before the first step is in ``training.beginning``, what after the last in ``_finish``.
"""

import time
from pathlib import Path

import pyarrow as pa
from accelerate.utils import release_memory
from trl import RichProgressCallback

from runner.command._finish import finish
from runner.command._upload import open_run_repository
from runner.dataset.loaded_rows import forget_damaged
from runner.generate.environment.contract import sources_closed
from runner.run import Run, add_notes
from runner.run.continuation import begin_from, copy_history, other_run
from runner.run.seal import last_checkpoint, step_of
from runner.training.beginning import check_first_rows, check_steps_taken, prepare_start
from runner.training.callback.stop import StopRequest
from runner.training.checkpoint import all_steps_taken, gather_long, restore
from runner.training.components.assembly import build_components
from runner.training.components.types import Components
from runner.training.recovery import adjust
from runner.training.shared_folder import check_shared


def train(run: Run, stop: StopRequest) -> None:
    """Train, or go on, until the run is finished, if need be as it has adjusted itself.

    Raises Interrupted after a signal.
    """
    open_run_repository(run)
    with sources_closed():
        while True:
            try:
                components = build_components(run, stop)
            except (pa.ArrowInvalid, OSError):
                if not forget_damaged():
                    raise
                components = build_components(run, stop)
            try:
                check_shared(run)
                _train(run, components, stop)
                return
            except Exception as error:
                if stop.number is not None:
                    raise
                adjust(run, components, error)
            # Its memory must be free for the next attempt.
            del components
            release_memory()


def _train(run: Run, components: Components, stop: StopRequest) -> None:
    """Train from a checkpoint of this run or of another, or from the start, and finish the run."""
    began = time.monotonic()
    trainer = components.trainer
    is_first = trainer.is_world_process_zero()
    # One process reads all of a checkpoint.
    (newest,) = gather_long(lambda: [last_checkpoint(run)] if is_first else [])
    other = other_run(run.experiment) if newest is None else None
    source = run if newest else other
    if is_first and source is None:
        step = run.status()["step"]
        if step:
            message = f"it had come to step {step}, and no checkpoint was saved"
            print(f"begins    again: {message}", flush=True)
    # The start writes those of this time.
    manifest = source.manifest() if source else {}
    processes_before = (manifest.get("hardware") or {}).get("processes")
    prepare_start(run, components, source)
    if source is None:
        check_first_rows(run, components)
    with components.trackers_closed():
        checkpoint = newest
        if other:
            checkpoint = _begin_from_other(run, other, components)
        elif newest and is_first:
            print(f"resumes   from step {step_of(newest)} ({newest.name})", flush=True)
        processes = components.args.world_size
        if checkpoint and is_first and processes_before not in (None, processes):
            step = step_of(checkpoint)
            add_notes(run, [f"processes: {processes_before} until step {step}, then {processes}"])
        if newest and all_steps_taken(newest):
            restore(trainer, newest)
        else:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        # Its bars are closed by now, and an evaluation would draw on them.
        trainer.remove_callback(RichProgressCallback)
        if stop.number is not None:
            raise stop.error()
        check_steps_taken(run, components)
        finish(run, components, stop, time.monotonic() - began)


def _begin_from_other(run: Run, other: Run, components: Components) -> Path:
    """The checkpoint of another run to begin with; its logged steps become those of this run."""
    trainer = components.trainer
    checkpoint = begin_from(other, components.seal.cycle_steps)
    if trainer.is_world_process_zero():
        copy_history(run, other)
        print(f"begins    with {checkpoint.name} of {other}", flush=True)
    trainer.accelerator.wait_for_everyone()
    return checkpoint
