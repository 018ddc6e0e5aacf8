"""A finished run that is taken back to a checkpoint goes on as it had gone on before."""

import shutil
import sys
from pathlib import Path

from runner.io.files import files_of
from runner.run import Run
from runner.run.history import read_metrics

sys.path.append(str(Path(__file__).parent / "fault"))

from kill import timeless


def check_going_on(train, words: list[str], run: Run) -> None:
    """Take a run of 6 steps back behind step 4: the same command gives the same steps and bits."""
    lines = timeless(read_metrics(run.metrics))
    weights = weights_of(run)
    shutil.rmtree(run.model)
    shutil.rmtree(run.checkpoints / "checkpoint-6")
    run.set_status("running", step=5)
    assert train(*words).code == 0
    assert "resumes   from step 4" in run.log.read_text()
    for line, line_before in zip(timeless(read_metrics(run.metrics)), lines, strict=True):
        assert line == line_before
    assert weights_of(run) == weights


def weights_of(run: Run) -> dict[str, str]:
    """The digests of the files of weights of a run's model."""
    return {name: digest for name, digest in files_of(run.model).items() if "safe" in name}
