"""The worker as a command.

    python -m runner.launch outputs/<name>/<label>-<key> [--trust] [--debug] [--store=URL]

Relaunching a run is this same command. A folder can come from anybody, so what it may run is looked
at again, unless the command line has done so or the user trusts it. With ``--store`` the folder is
fetched from there first, and given back while it is trained (``launch.store``).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from runner.config.environment_variables import find_variable_faults
from runner.config.machines import processes_here, processes_of, world_size
from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError
from runner.io.terminal import print_error
from runner.launch.by_launcher import launch
from runner.launch.store import train_from_store
from runner.launch.worker import work
from runner.run import Run, check_metadata
from runner.validate.configuration import find_dangers, find_frozen_faults

STORE = "--store="


def main(words: Sequence[str]) -> int:
    """Run the folder that the words name and return the exit code."""
    folders = [word for word in words if not word.startswith("-")]
    debug = "--debug" in words
    stores = [word.removeprefix(STORE) for word in words if word.startswith(STORE)]
    if stores and len(folders) == 1 and "--trust" in words:
        return train_from_store(Path(folders[0]), stores[-1], debug)
    try:
        if len(folders) != 1 or not (Path(folders[0]) / "config.yaml").exists():
            raise ConfigError(
                Fault(
                    where="command line",
                    found=" ".join(words),
                    expected="one run folder",
                    fix="python -m runner.launch <folder>",
                )
            )
        run = Run(Path(folders[0]))
        world = world_size()
        check_metadata(run)
        machines = processes_of(run.cfg) // processes_here(run.cfg)
        EnvironmentFault.refuse(find_variable_faults(machines))
        if "--trust" not in words:  # the folder can come from anybody
            fix = f"python -m runner.launch {run} --trust  (if you trust who wrote its config.yaml)"
            ConfigError.refuse(find_dangers(run.cfg, fix))
            ConfigError.refuse(find_frozen_faults(run.cfg, f"{run}/config.yaml"))
        processes = processes_of(run.cfg)
        if world not in (1, processes):
            raise ConfigError(
                Fault(
                    where=str(run),
                    found=f"a world size of {world}",
                    expected=f"a world size of {processes}, that of the run",
                    fix=f"python -m runner.launch {run}  (which starts them itself)",
                )
            )
    except RunnerError as error:
        print_error(error)
        return error.code
    if processes > world or "--launch" in words:
        return launch(run, debug)
    return work(folders[0], debug=debug)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
