"""A run, trained by the launcher that its configuration or the command names."""

from runner.config.build import build, locate
from runner.config.experiment import LauncherPart
from runner.errors import RunnerError
from runner.launch.worker import conclude
from runner.run import Run


def launch(run: Run, debug: bool = False, launcher: LauncherPart | None = None) -> int:
    """Train by the run's launcher, which may be in this process, and return the exit code."""
    launcher = launcher or run.experiment.launcher
    args = {}
    for key, value in launcher.arguments.items():
        if key != "_target_":
            args[key] = build(value)
    try:
        target = locate(launcher.target)
        if launcher.is_queue:  # a queue, in whose job we are
            code: int = target(**args).train(run.folder, debug)
        else:
            code = target(run.folder, debug=debug, **args)
        return code
    except RunnerError as error:  # before anything has begun
        conclude(run, None, error, debug)
        return error.code
