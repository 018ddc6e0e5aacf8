"""A run that is finished, with the model that it has left: there is nothing to do."""

import logging

from runner.errors import Fault, FolderError
from runner.run.folder import Run
from runner.run.inputs import find_changes
from runner.run.seal import damage_of, describe_damage, sealed_checkpoints

log = logging.getLogger(__name__)


def is_finished(run: Run) -> bool:
    """True where a run has nothing left to do.

    Where its model is damaged it has, if a checkpoint can make it whole. Raises FolderError where
    that cannot be, or where the files that it was made with are others now.
    """
    if run.status()["state"] != "finished":
        return False
    manifest = run.manifest()
    damage: dict[str, str] = {}
    if manifest.get("files"):  # else there is no model whose files were sealed
        damage = {"model/": "missing"}
        if run.model.is_dir():
            damage = damage_of(run.model, touched_only=True)
    if not damage:
        inputs = manifest.get("inputs")
        if isinstance(inputs, dict):
            for line in find_changes(run.cfg, inputs):
                print(f"note      {line}")
        return True
    found = f"the run is finished, but its model is damaged: {describe_damage(damage)}"
    if not sealed_checkpoints(run.checkpoints):
        raise FolderError(
            Fault(
                where=str(run.model),
                found=found,
                expected="the files that were sealed",
                fix="put a complete copy of it back, or name=<another name> to train it again",
            )
        )
    log.warning("%s: %s; it is written again from the newest checkpoint", run, found)
    return False


def finished(run: Run) -> str:
    """The line on a run that has nothing left to do."""
    return f"finished  {run} already; nothing was changed"
