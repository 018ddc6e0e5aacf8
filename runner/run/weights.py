"""Run folder -> the weights that a word means, checked by their seal.

Nothing here needs torch, so that a wrong word is refused at once.
"""

from dataclasses import dataclass
from pathlib import Path

from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import JsonObject, display_path, read_json, sha256
from runner.run.folder import Run
from runner.run.seal import (
    SEAL,
    check_sealed,
    damage_of,
    describe_damage,
    last_checkpoint,
    sealed_checkpoints,
)

# Words for weights, beside the step of a checkpoint.
MODEL = "model"  # of the finished training
START = "start"  # with which the training began
BEST = "best"  # checkpoint by the figure of the evaluations
LAST = "last"  # checkpoint


@dataclass(frozen=True)
class Weights:
    """Weights and the folder that holds them; without one they are those of the config's model."""

    name: str
    folder: Path | None = None

    @property
    def seal(self) -> str:
        """The hash of their seal, which tells these weights from others of the same name."""
        if self.folder is None:
            return ""
        seal = self.folder / SEAL
        return sha256(seal) if seal.is_file() else ""


def find_weights(run: Run | None, wish: str | None) -> Weights:
    """The weights of a run that a word means; without a run, those of the config's model.

    Without a word they are the model of a finished run, else its best or newest sealed checkpoint.
    Raises ConfigError for another word, FolderError where the weights do not exist.
    """
    if run is None:
        if wish not in (None, START):
            raise ConfigError(
                Fault(
                    where="checkpoint",
                    found=wish,
                    expected="a run that has checkpoints",
                    fix="leave it out",
                )
            )
        return Weights(MODEL)
    if wish == START:
        return Weights(START)
    if wish is not None and wish.isdigit():
        return _weights_of_step(run, int(wish))
    if wish not in (None, MODEL, BEST, LAST):
        raise ConfigError(
            Fault(
                where="checkpoint",
                found=wish,
                expected="model, best, last, start, or the step of a checkpoint",
                fix="checkpoint=last",
            )
        )
    status = run.status()
    is_finished = status["state"] == "finished" and run.model.is_dir()
    takes_model = wish == MODEL and run.model.is_dir()
    if takes_model or (wish is None and is_finished):
        return Weights(MODEL, check_sealed(run.model))
    newest = last_checkpoint(run, clean=False)
    folder = None
    if wish in (None, LAST):
        folder = newest
    if newest and wish in (None, BEST):
        folder = _best_checkpoint(run, newest) or folder
    if folder is None:
        raise FolderError(_no_weights(run, status, wish, newest, is_finished))
    return Weights(folder.name, folder)


def _weights_of_step(run: Run, step: int) -> Weights:
    """The weights of the checkpoint of a step; FolderError where it is not there or damaged."""
    folder = run.checkpoints / f"checkpoint-{step}"
    damage = damage_of(folder)
    if not damage:
        return Weights(folder.name, folder)
    state = "not there"
    if folder.is_dir():
        state = f"damaged: {describe_damage(damage)}"
    steps = [path.name.rpartition("-")[2] for path in sealed_checkpoints(run.checkpoints)]
    fix = "checkpoint=model"
    if steps:
        fix = f"checkpoint={steps[-1]}"
    raise FolderError(
        Fault(
            where=display_path(run.checkpoints),
            found=f"checkpoint {step} is {state}",
            expected=f"one of {', '.join(steps) or 'none'}",
            fix=fix,
        )
    )


def _best_checkpoint(run: Run, newest: Path) -> Path | None:
    """The best checkpoint by the state of the newest one, None where it is unknown or damaged."""
    state = read_json(newest / "trainer_state.json") or {}
    path = state.get("best_model_checkpoint")
    if not path:
        return None
    # Only its name counts: the run may have been elsewhere when the state was written.
    best = run.checkpoints / Path(path).name
    return None if damage_of(best) else best


def _no_weights(
    run: Run, status: JsonObject, wish: str | None, newest: Path | None, is_finished: bool
) -> Fault:
    """The fault of a run without the weights that are meant."""
    unsealed = "no sealed checkpoint that is complete"
    found = {
        None: f"{unsealed}, and no model",
        MODEL: "no model yet",
        BEST: "no whole checkpoint is known to be the best",
        LAST: unsealed,
    }[wish]
    if newest:
        fix = "checkpoint=last"
    elif is_finished:
        fix = "checkpoint=model"
    else:
        fix = (
            f"python -m runner.launch {run}  (to continue the training), "
            "or checkpoint=start for the model it begins with"
        )
    step = status["step"]
    max_steps = status["max_steps"]
    progress = f"it is {status['state']}, step {step} of {max_steps}"
    return Fault(
        where=str(run),
        found=f"{found}; {progress}",
        expected="weights",
        fix=fix,
    )
