"""A sweep by a plugin of Hydra's: a launcher that starts its jobs, or a search that draws them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.composition import call_hydra
from runner.config.experiment import Experiment
from runner.config.experiment_file import Translation, keep_translation, translations
from runner.errors import ConfigError, Fault, RunnerError, error_of
from runner.io.files import read_json
from runner.io.terminal import print_error
from runner.launch.compose import stages, sweep_axes
from runner.launch.ends import Report, print_end
from runner.launch.plan import tasks_of
from runner.launch.pool import Pool
from runner.launch.pool_settings import settings_of
from runner.launch.progress import Stages
from runner.run import Run
from runner.run.record import one_line


@dataclass(frozen=True)
class Job:
    """The function that Hydra calls for each job, perhaps in another process.

    It trains the run and returns its objective, the score of the finished run that a search looks
    at: None where none is named, ConfigError where there is no such number. What is finished is
    skipped, so that a search that draws the same values finds their results there.
    """

    folders: Sequence[Path] = ()
    debug: bool = False
    # A search must hear of a run that has failed; Hydra would give up a grid because of it.
    tells: bool = True
    # The words of the command line: Hydra makes others of what any file says to its sweeper.
    typed: Sequence[str] = ()
    # Files of other tools among them, which another process would have to translate anew.
    translations: Mapping[Path, Translation] = field(default_factory=translations)

    def __call__(self, cfg: object) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        try:
            return self._train(list(HydraConfig.get().overrides.task))
        except RunnerError as error:
            print_error(error)  # Hydra tells it late, or not at all
            raise

    def _train(self, words: Sequence[str]) -> float | None:
        """Train the run of these words, and return its objective."""
        for file, translation in self.translations.items():
            keep_translation(file, translation)
        untyped = sweep_axes.untyped_keys(words, self.typed)
        runs = stages.compose_runs(words, self.folders, untyped)
        tasks = tasks_of([runs])
        launcher = runs[0].experiment.launcher
        settings = settings_of(launcher, runs, attached=True, debug=self.debug)
        codes, signals = Pool(tasks, settings, Stages(tasks)).run()
        if signals:
            raise KeyboardInterrupt
        if not any(codes.values()):
            return _read_objective(runs[-1].experiment, tasks[-1].folder)
        if self.tells:
            raise ChildProcessError(f"{tasks[-1].folder} has failed")
        return None


def _read_objective(experiment: Experiment, folder: Path) -> float | None:
    """The score that a finished run gives to Hydra's sweeper; None where no objective is set."""
    name = experiment.objective
    if name is None:
        return None
    scores = (read_json(folder / "scores.json") or {}).get("after") or {}
    score = scores.get(name)
    if isinstance(score, int | float) and math.isfinite(score):
        return float(score)
    names = ", ".join(sorted(scores)) or "nothing"
    raise ConfigError(
        Fault(
            where="objective",
            found=f"{folder} has no {name}",
            expected=f"one of {names}",
            fix="=<one of them>",
        )
    )


def start_plugin(
    job: Job, overrides: Sequence[str], find_ends: Callable[[], list[Path]], report: Report
) -> int:
    """Have Hydra run the jobs of a sweep; the exit code of the first that failed, by its folder.

    ``find_ends`` gives the folders of the jobs' last runs when they have ended.
    """
    began = time.time()
    code = 0
    try:
        call_hydra(job, ["--multirun"], overrides, job.folders)
    except KeyboardInterrupt:
        code = 130
    folders = sorted(find_ends())
    finished = 0
    for folder in folders:
        run = Run(folder.absolute())
        status = run.status()
        if status["state"] == "finished":
            finished += 1
        elif status["state"] == "failed":
            if (folder / "status.json").stat().st_mtime >= began:
                cause = str(status["cause"])
                print(f"failed    {run}: {one_line(cause, heading=False)}")
                code = code or error_of(status).code
    print_end(folders, finished, report)
    return code
