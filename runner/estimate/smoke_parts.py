"""The parts of a smoke run, of which its worker plays one in each process."""

import signal
from collections.abc import Callable
from pathlib import Path

from pyarrow import parquet

from runner.errors import ConfigError, Interrupted
from runner.estimate.case import ROWS, UNEXPORTED, UNREDUCED, read_lengths
from runner.estimate.reduce import rows_of
from runner.io.files import write_json
from runner.io.terminal import quiet
from runner.launch.signals import Stop
from runner.run import Run
from runner.run.record import read_run
from runner.run.seal import sealed_checkpoints
from runner.training.exported_model import export
from runner.training.inspection import inspect_training
from runner.training.inspection_faults import find_faults, summary_of
from runner.training.stand_in import first_rows_prepared


def play_next_part(run: Run, stop: Stop, train: Callable[[Run, Stop], None]) -> None:
    """Play the next part of a smoke run, by how far its files say that it came."""
    if not read_lengths(run):
        inspect_rows(run)
        run.set_status("interrupted", cause=None)
        return
    is_resumed = bool(sealed_checkpoints(run.checkpoints))
    if not is_resumed:
        # It stops as soon as it can save a step.
        stop = Stop(signal.SIGTERM)
    try:
        train(run, stop)
        export_model(run)
    except Interrupted:
        if is_resumed:
            raise
        run.set_status("interrupted", cause=None)


def inspect_rows(run: Run) -> None:
    """Write down how long the first rows of the real run are.

    Raises ConfigError for what a training would be refused for.
    """
    unreduced = Run(run.folder / UNREDUCED).experiment
    with quiet(), first_rows_prepared(unreduced) as (components, how):
        rows = components.train_rows
        inspection = inspect_training(components.trainer, rows, **how)
    ConfigError.refuse(find_faults(inspection, unreduced.tolerate))
    lengths = [len(row.ids) for row in inspection.rows]
    if not lengths:
        lengths = [row.length for row in inspection.encoded]
    count = len(rows) if hasattr(rows, "__len__") else len(inspection.encoded)
    count_read = 0
    for node in rows_of(unreduced.node):
        head = Path(node["path"]) / "train.parquet"
        if head.exists():
            count_read += parquet.read_metadata(head).num_rows
    facts = {
        "lengths": lengths,
        "rows": count,
        "read": count_read or count,
        "limit": inspection.limit,
        "lines": summary_of(inspection),
    }
    write_json(run.folder / ROWS, facts)


def export_model(run: Run) -> None:
    """Export the model as the verb does, unless it can be shared only as it is."""
    trust = run.experiment.model.trusts_code
    try:
        export(read_run(run.folder), run.folder / "export", trust=trust)
    except ConfigError as error:
        write_json(run.folder / UNEXPORTED, {"why": error.faults[0].found})
