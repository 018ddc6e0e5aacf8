"""The look at the rows of a training before its first step."""

from runner.errors import ConfigError
from runner.model.encoding import stop_ids
from runner.run import Run, add_notes
from runner.training.components.model import policy_of
from runner.training.components.types import Components
from runner.training.inspection import inspect_training
from runner.training.inspection_faults import find_faults, find_notes


def check_first_rows(run: Run, components: Components) -> None:
    """Raise ConfigError where rows are trained wrongly, and note what is only worth a look.

    All processes call it, and the first one tells.
    """
    trainer = components.trainer
    is_first = trainer.is_world_process_zero()
    part = run.experiment.trainer
    inspection = inspect_training(
        trainer,
        components.train_rows,
        form=part.form,
        head=part.head,
        ends=stop_ids(policy_of(trainer)),
    )
    faults = find_faults(inspection, run.experiment.tolerate)
    if faults:
        if not is_first:
            # The first process tells, and ends the others.
            trainer.accelerator.wait_for_everyone()
        raise ConfigError(faults)
    if is_first:
        add_notes(run, find_notes(inspection))
