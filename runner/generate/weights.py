"""Run folder -> the weights that are meant, whole and sealed; without torch, so that a wrong option costs no time."""

from dataclasses import dataclass
from pathlib import Path

from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import display_path, read_json, sha256
from runner.run import Run
from runner.run.seal import SEAL, check_sealed, damage_of, describe_damage, last_checkpoint, sealed_checkpoints


@dataclass(frozen=True)
class Weights:
    """Weights and the folder that holds them; without a ``folder``, where the configuration's model says."""

    name: str
    folder: Path | None = None

    @property
    def seal(self) -> str:
        """The hash of their seal, which tells these weights from others of the same name."""
        seal = self.folder / SEAL if self.folder else None
        return sha256(seal) if seal and seal.is_file() else ""


def find_weights(run: Run | None, wish: str | None) -> Weights:
    """The weights of a run that a word means; without a word its model, else its best or newest sealed checkpoint."""
    if run is None:
        if wish not in (None, "start"):
            raise ConfigError(Fault("checkpoint", wish, "a run that has checkpoints", "leave it out"))
        return Weights("model")
    if wish == "start":
        return Weights("start")
    if wish is not None and wish.isdigit():
        asked = run.checkpoints / f"checkpoint-{int(wish)}"
        if not (damage := damage_of(asked)):
            return Weights(asked.name, asked)
        there = [path.name.rpartition("-")[2] for path in sealed_checkpoints(run.checkpoints)]
        state_of_it = f"damaged: {describe_damage(damage)}" if asked.is_dir() else "not there"
        found = f"checkpoint {int(wish)} is {state_of_it}"
        fix = f"checkpoint={there[-1]}" if there else "checkpoint=model"
        raise FolderError(Fault(display_path(run.checkpoints), found, f"one of {', '.join(there) or 'none'}", fix))
    if wish not in (None, "model", "best", "last"):
        expected = "model, best, last, start, or the step of a checkpoint"
        raise ConfigError(Fault("checkpoint", wish, expected, "checkpoint=last"))
    state = run.status()
    is_finished = state["state"] == "finished" and run.model.is_dir()
    if is_finished if wish is None else wish == "model" and run.model.is_dir():
        return Weights("model", check_sealed(run.model))
    newest = last_checkpoint(run, clean=False)
    folder = newest if wish in (None, "last") else None
    if newest and wish in (None, "best"):
        # That which the newest one names, wherever the run was when it was written.
        named = (read_json(newest / "trainer_state.json") or {}).get("best_model_checkpoint")
        best = run.checkpoints / Path(named).name if named else None
        folder = best if best and not damage_of(best) else folder
    if folder is not None:
        return Weights(folder.name, folder)
    unsealed, unknown = "no sealed checkpoint that is whole", "no whole checkpoint is known to be the best"
    found = {None: f"{unsealed}, and no model", "model": "no model yet", "best": unknown, "last": unsealed}[wish]
    fix = f"python -m runner.launch {run}  (to train on), or checkpoint=start for the model it begins with"
    fix = "checkpoint=last" if newest else "checkpoint=model" if is_finished else fix
    progress = f"it is {state['state']}, step {state['step']} of {state['max_steps']}"
    raise FolderError(Fault(str(run), f"{found}; {progress}", "weights", fix))
