"""A sweep by one of Hydra's own sweepers or launchers: joblib, submitit, ray, optuna.

Each job that they start is the same idempotent run as ours, in a process of its own; what is finished is skipped, so
that the same command again does what is left, and a search that draws the same values finds their results there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.errors import ConfigError, Fault, RunnerError
from runner.io.files import read_json
from runner.io.terminal import print_error
from runner.launch.plan import tasks_of
from runner.launch.pool import Pool, settings_of
from runner.launch.progress import Stages
from runner.launch.stages import compose_runs


class JobFailed(Exception):
    """Tells a sweeper that a job has no result."""


@dataclass(frozen=True)
class Job:
    """The function that Hydra calls for each job, perhaps in another process: trains the run, returns its objective.

    ``tells`` is for a search, which must hear of a run that has failed; Hydra would give up a grid because of it.
    """

    folders: Sequence[Path] = ()
    debug: bool = False
    tells: bool = True

    def __call__(self, cfg: object) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        try:
            runs = compose_runs(list(HydraConfig.get().overrides.task), self.folders)
            tasks = tasks_of([runs])
            settings = settings_of(runs[0].cfg["launcher"] | {"jobs": 1}, runs, attached=True, debug=self.debug)
            codes, signals = Pool(tasks, settings, Stages(tasks)).run()
            if signals:
                raise KeyboardInterrupt
            if any(codes.values()):
                if not self.tells:
                    return None
                raise JobFailed(f"{tasks[-1].folder} has failed")
            return objective_of(tasks[-1].folder, runs[-1].cfg.get("objective"))
        except RunnerError as error:
            print_error(error)  # Hydra tells it late, or not at all
            raise


def objective_of(folder: Path, name: str | None) -> float | None:
    """The score of a finished run that a search looks at; None where none is named.

    Raises ConfigError where the run has no such score, or none that is a number.
    """
    if name is None:
        return None
    after = (read_json(folder / "scores.json") or {}).get("after") or {}
    value = after.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        known = ", ".join(sorted(after)) or "nothing"
        raise ConfigError(Fault("objective", f"{folder} has no {name}", f"one of {known}", "objective=<one of them>"))
    return float(value)
