"""A run as Python code sees it: its figures, its model and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.command import CommandLine
from runner.command._ask_options import AskOptions
from runner.command._python_words import to_overrides
from runner.command._request import read_request
from runner.io.terminal import quiet
from runner.launch.processes import prepare_environment
from runner.report.run_page import to_cell_html
from runner.run.record import RunRecord, read_run
from runner.run.weights import find_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Of a configuration, which a model is asked with.
PARTS = ("model", "dataset", "environment", "quant")


@dataclass(frozen=True, repr=False)
class TrainedRun(RunRecord):
    """A run as its folder was when this was made, whatever its ``state``.

    ``folder`` is its path, ``cfg`` its configuration, ``before``, ``after`` its scores, ``cause``
    why it is unfinished.
    """

    def __repr__(self) -> str:
        return f"<{self}: {self.standing}>"

    def _repr_html_(self) -> str:
        """The scores and curves of the run, as a notebook shows it."""
        return to_cell_html(self)

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The held-out scores ``before`` and ``after`` the training, as far as there are any."""
        scores = {"before": self.before, "after": self.after}
        return {name: figures for name, figures in scores.items() if figures}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The logged lines in the order of the steps.

        Each has its ``step`` and the trainer's own names.
        """
        return self.lines

    def model(self, *overrides: str) -> PreTrainedModel:
        """The trained model, with its adapter if it has one, on the accelerator if there is one.

        ``overrides`` are those of ``python -m runner predict RUN``: ``checkpoint=best``,
        ``model.dtype=bfloat16``, or ``allow=[my_lab]`` where code of your own builds it. Raises
        FolderError where there are no weights.
        """
        from runner.training.components.trained_model import load_trained

        words = to_overrides(overrides, (), "TrainedRun.model")
        line = CommandLine("predict", words, [str(self.folder)])
        request = read_request(line, AskOptions, PARTS)
        prepare_environment()
        with quiet():
            model, _ = load_trained(request.experiment, request.weights, request.head)
        return model

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that was saved with the model, with its chat template."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(find_weights(self.run, None).folder)


def read_trained(folder: Path) -> TrainedRun:
    """The run in a folder as it is now."""
    return TrainedRun(**vars(read_run(folder)))
