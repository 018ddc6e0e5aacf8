"""The part that our callbacks of trackers share.

All that is logged of a run arrives in one run of the tracker: the scores before the first step and
after the last one, and what a resume adds; each figure of a step once. The config that arrives is
the frozen one, without secrets. Each tracker has a module of its own.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.config.experiment import DatasetPart, Experiment, ModelPart, Part
from runner.errors import EnvironmentFault, Fault, describe
from runner.io.files import JsonObject
from runner.run.history import is_finite, read_metrics
from runner.schema.upstream.trackers import TRACKERS
from runner.tracker.variable import note_complete, sent_until

NOT_METRICS = {"epoch"}  # comes with every figure and is none
# Columns of the run's own log that are no figures of the training.
PROGRESS = {"step", "max_steps", "percentage", "elapsed_seconds", "remaining_seconds"}
MAX_TAG_LETTERS = 64  # of wandb


class Tracker(TrainerCallback):
    """A callback that sends each figure once, and ends only after the last held-out scores.

    A tracker gets the frozen configuration of a run (``experiment``), the trainer, model, dataset
    and adapter in a word each (``facts``), these and the user's own words as ``tags``, and the name
    that the runs of a sweep share (``group``).
    """

    # True where all that an earlier start has sent stays, also of steps that are trained again.
    remembers = False
    name = ""  # in report_to, if that is not the name of the class

    def __init__(self, experiment: Experiment, folder: Path):
        super().__init__()
        self.experiment = experiment
        self.folder = folder
        self.group = str(experiment.name)
        self.facts = _facts(experiment)
        own_tags = experiment.tracker.tags or ()
        tags = [*self.facts.values(), *own_tags]
        self.tags = list(dict.fromkeys(tags))
        self.name = self.name or type(self).__name__.lower()
        self.sent: dict[int, set[str]] = {}  # the names of figures, by step
        self.until = sent_until(folder, self.name)
        if self.remembers:
            for line in self._logged_lines():
                if line["step"] <= self.until:
                    self.sent[line["step"]] = set(line)
        self.ending: Callable[[], None] | None = None

    def _logged_lines(self) -> list[JsonObject]:
        return list(read_metrics(self.folder / "metrics.jsonl"))

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        try:
            super().on_train_begin(args, state, control, **kwargs)
        except Exception as error:  # whatever its library raises, such as for a key that is wrong
            raise EnvironmentFault(not_begun(self.name, error)) from error
        if not state.is_world_process_zero:
            return
        # Send what earlier starts have logged while this tracker was not there.
        for line in self._logged_lines():
            if self.until < line["step"] <= state.global_step:
                step_state = TrainerState(global_step=line["step"])
                self.on_log(args, step_state, control, logs=figures_of(line))
        note_complete(self.folder, self.name)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if not state.is_world_process_zero or (self.ending and args.load_best_model_at_end):
            return  # what is measured after the end is of the best model, not of this step
        sent = self.sent.setdefault(state.global_step, set())
        fresh = {}
        for name, value in (logs or {}).items():
            if name not in sent or name in NOT_METRICS:
                fresh[name] = value
        sent |= set(fresh)
        if set(fresh) - NOT_METRICS:
            super().on_log(args, state, control, logs=fresh, **kwargs)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Wait with the end for ``close``, because held-out scores are still to come."""
        if state.is_world_process_zero:
            note_complete(self.folder, self.name, state.global_step)
        self.ending = partial(super().on_train_end, args, state, control, **kwargs)

    def close(self, finished: bool) -> None:
        """End the tracker's run; ``finished`` is false where the training was interrupted."""
        if self.ending:
            self.ending()


def figures_of(line: JsonObject) -> dict[str, float]:
    """The figures of a line of a run's log."""
    figures = {}
    for name, value in line.items():
        if name not in PROGRESS and is_finite(value):
            figures[name] = value
    return figures


class PostponedEnd:
    """A tracker of the user's own, which ends only after the last held-out scores, too."""

    def __init__(self, callback: TrainerCallback):
        self.end = callback.on_train_end
        self.ending: Callable[[], object] | None = None
        callback.on_train_end = self._postpone

    def _postpone(self, *given: object, **parts: object) -> None:
        self.ending = partial(self.end, *given, **parts)

    def close(self, finished: bool) -> None:
        """Call what the callback does at the end of a training."""
        if self.ending:
            self.ending()


def not_begun(name: str, error: Exception) -> Fault:
    """The fault of a tracker whose library did not begin a run."""
    fix = "tracker=none"
    if "offline" in TRACKERS[name].modes:
        fix = "tracker.mode=offline, or tracker=none"
    return Fault(
        where=f"tracker {name}",
        found=describe(error),
        expected="a service that takes the run",
        fix=f"{fix}, or the same command again when it is mended",
    )


def _facts(experiment: Experiment) -> dict[str, str]:
    """The trainer, model, dataset and adapter of a run, in a word each."""

    def last_of_path(part: ModelPart | DatasetPart) -> str:
        path = str(part.path or "")
        return path.rstrip("/").rpartition("/")[2]

    def kind(part: Part) -> str:
        return re.sub(r"(.*\.)|(trainer|config)$", "", part.target.lower())

    facts = {
        "trainer": kind(experiment.trainer),
        "model": last_of_path(experiment.model) or "new",
        "dataset": last_of_path(experiment.dataset) or kind(experiment.dataset),
        "peft": kind(experiment.peft) if experiment.peft else "full",
    }
    return {name: text[:MAX_TAG_LETTERS] for name, text in facts.items()}
