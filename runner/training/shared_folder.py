"""The check that all processes of a training see one run folder."""

import os
import platform

from accelerate.utils import broadcast_object_list, gather_object

from runner.config.machines import rank, world_size
from runner.errors import EnvironmentFault, Fault
from runner.run import Run


def check_shared(run: Run) -> None:
    """Raise EnvironmentFault where a process does not see the run folder of the first one.

    All processes call it: the first one makes a file that the others look for.
    """
    if world_size() == 1:
        return
    is_first = rank() == 0
    marker = run.folder / f".{os.urandom(8).hex()}"
    if is_first:
        marker.touch()
    name, first_folder = broadcast_object_list([marker.name, str(run.folder)])
    strangers = []
    if not (run.folder / name).exists():
        machine = platform.node()
        strangers.append(f"{run.folder} on {machine}, which is not {first_folder} of rank 0")
    strangers = gather_object(strangers)
    if is_first:
        marker.unlink(missing_ok=True)
    if strangers:
        raise EnvironmentFault(
            Fault(
                where="output_root",
                found=strangers[0],
                expected="one folder for all processes",
                fix="=<a folder that all machines see>, and the same command on each",
            )
        )
