"""The end of a training: the last scores, the saved model, the curves, and the upload."""

import contextlib

from accelerate.utils import set_seed

from runner.command._closing import describe_end
from runner.command._upload import push_run
from runner.io.files import read_json, sync_rows, write_json
from runner.io.temporary import temporarily
from runner.report.plot_run import write_plots
from runner.report.verdict import describe_outcome, list_changes
from runner.run import Run, write_manifest
from runner.run.record import read_run
from runner.run.seal import rotate, sealed_hashes
from runner.training.callback.stop import StopRequest
from runner.training.components.evaluation import sample_training
from runner.training.components.model import policy_of
from runner.training.components.types import Components
from runner.training.held_out_scores import held_out_scores
from runner.training.model_folder import save_model


def finish(run: Run, components: Components, stop: StopRequest, seconds: float) -> None:
    """Measure again, save what others can load, draw the curves, and only then say finished.

    All processes call it. ``seconds`` is the time that the training took.
    """
    trainer = components.trainer
    is_first = trainer.is_world_process_zero()
    # Online trainers sample what they measure here; a run that was stopped after its last step has
    # other random numbers left.
    set_seed(trainer.args.seed, device_specific=True)
    sample_training(trainer, components.train_rows)
    scores = (read_json(run.folder / "scores.json") or {}) | {"after": held_out_scores(trainer)}
    run.check_there()
    if is_first:
        write_json(run.folder / "scores.json", scores)
    # Otherwise the scores would be missing where another process judges them.
    trainer.accelerator.wait_for_everyone()
    components.health.conclude(trainer.args, trainer.state, list_changes(read_run(run.folder)))
    with contextlib.ExitStack() as stack:
        # Otherwise whoever loads the model would generate without a cache.
        if trainer.hooks.use_cache is not None:
            config = policy_of(trainer).config
            stack.enter_context(temporarily(config, use_cache=trainer.hooks.use_cache))
        save_model(run, trainer)
    run.check_there()
    if not is_first:
        return
    write_plots(read_run(run.folder))
    write_manifest(run, files=sealed_hashes(run.model))
    # A library may have caught a signal, and nobody knows what it then left out.
    if stop.number is not None:
        raise stop.error()
    rotate(run.checkpoints, components.seal.keep, trainer.state.best_model_checkpoint)
    push_run(run, stop)
    sync_rows(run.folder)
    cause = describe_outcome(read_run(run.folder))
    run.set_status("finished", step=trainer.state.global_step, cause=cause)
    print(describe_end(read_run(run.folder), seconds))
