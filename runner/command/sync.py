"""Sends runs that are over to trackers."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner import config
from runner.command import CommandLine, read_options
from runner.config.override import dotted_key
from runner.errors import ConfigError, EnvironmentFault, Fault, FolderError, fault
from runner.io.files import display_path
from runner.launch.worker import fork
from runner.run import PATIENCE, locked
from runner.run.read import RunRecord, find_runs
from runner.schema import upstream
from runner.tracker.variable import COMPLETED, read_complete, set_variables, trackers_of, variables_of
from runner.validate import find_all_faults
from runner.validate.start import find_missing_libraries


def main(line: CommandLine) -> int:
    """Send each run that the command line names to each of its trackers; 5 where one did not take it."""
    typed = [word for word in line.overrides if dotted_key(word).partition(".")[0] == "tracker"]
    options = read_options([word for word in line.overrides if word not in typed], "sync")
    root, node = Path(options.get("output_root", "outputs")), config.compose(typed, line.folders).cfg["tracker"]
    faults = find_all_faults({"tracker": node}, menu=config.read_menu(line.folders), typed=set(map(dotted_key, typed)))
    faults = [each for each in faults if each.where.startswith("tracker")]
    installed = next(filter(find_spec, COMPLETED), "wandb")
    faults += [] if trackers_of(node) else [Fault("tracker", "none", ", ".join(COMPLETED), f"tracker={installed}")]
    ConfigError.refuse(faults)
    runs = find_runs(line.runs, "sync", None, root)
    FolderError.refuse(fault("command.no_figures", run=run) for run in runs if not run.cfg or not run.lines)
    missing = list(find_missing_libraries({"tracker": node}))
    EnvironmentFault.refuse(dataclasses.replace(each, fix=each.fix.partition(", or ")[0]) for each in missing)
    return max(sync(run, node) for run in runs)


def sync(run: RunRecord, node: Mapping[str, Any]) -> int:
    """Send a run to the trackers that do not have it, say what was sent, and return the exit code."""
    with locked(run.run, PATIENCE):
        names = trackers_of(node)
        there = [name for name in names if name in read_complete(run.folder, run.cfg)]
        if wanted := [name for name in names if name not in there]:
            import_module("runner.tracker.callback")  # once, for the processes of all runs
            # In a process of its own: some trackers read but once, when they are imported, where to write.
            if code := os.waitstatus_to_exitcode(os.waitpid(fork(lambda: _send(run, node, wanted)), 0)[1]):
                return code
            print(f"sent      {run} to {', '.join(wanted)}: {len(run.lines)} steps", flush=True)
    if there:
        print(f"there     {run} is in {', '.join(there)} already")
    place = Path(variables_of(node, run.folder, "").get("WANDB_DIR", ""))
    offline = [path for path in sorted(place.glob("wandb/offline-run-*")) if not any(path.glob("*.synced"))]
    if "wandb" in names and offline:
        print(f"next      wandb sync {shlex.join(map(display_path, offline))}", flush=True)
    return 0


def _send(run: RunRecord, node: Mapping[str, Any], names: Sequence[str]) -> int:
    """Have the callbacks of trackers see a training that goes on after its last step, and ends there."""
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import get_reporting_integration_callbacks

    from runner.tracker.callback import COMPLETE

    set_variables(node, run.folder, str(run.cfg["name"]))
    # The numbers of the trainer's config; what it says of devices may not hold on this machine.
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    frozen = run.cfg["trainer"]["args"].items()
    numbers = {name: value for name, value in frozen if name in known and type(value) in (int, float)}
    own = {upstream.OUTPUT_DIR: str(run.run.checkpoints), upstream.RUN_NAME: run.folder.name, "report_to": "none"}
    args = TrainingArguments(**numbers | own | {upstream.PROJECT: "runner", upstream.USE_CPU: True})
    state, control = TrainerState(global_step=run.lines[-1]["step"]), TrainerControl()
    try:
        for kind in get_reporting_integration_callbacks(list(names)):
            tracker = COMPLETE[kind]({**run.cfg, "tracker": node}, run.folder)
            tracker.on_train_begin(args, state, control, model=None)
            tracker.on_train_end(args, state, control)
            tracker.close(run.state == "finished")
    except Exception as error:  # whatever the library of a tracker raises
        found = f"{', '.join(names)}: {type(error).__name__}: {error}"
        print(EnvironmentFault(fault("command.not_sent", run=run, found=found)), file=sys.stderr)
        return EnvironmentFault.code
    return 0
