"""A run that is over, as trackers see it that were not chosen when it was trained.

They see a training that begins after its last step, and ends there. No model is loaded.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from runner.config.experiment import Experiment, Tracking
from runner.errors import EnvironmentFault, Fault, RunnerError, describe
from runner.run.record import RunRecord
from runner.tracker.variable import note_complete, sent_until, set_variables

if TYPE_CHECKING:
    from transformers import TrainingArguments


@dataclass(frozen=True)
class PastRun:
    """A run with logged steps, and the trackers that it is sent to."""

    run: RunRecord
    tracking: Tracking

    @property
    def names(self) -> list[str]:
        """The trackers by their names; one of the user's own by its target."""
        names = [library.name for library in self.tracking.libraries]
        return [*names, self.tracking.target] if self.tracking.target else names

    @property
    def last_step(self) -> int:
        """The last step that was logged."""
        step: int = self.run.lines[-1]["step"]
        return step

    def find_lacking(self) -> list[str]:
        """The trackers that lack some of the run."""
        folder = self.run.folder
        return [name for name in self.names if sent_until(folder, name) < self.last_step]

    def prepare(self) -> None:
        """Set the variables of the trackers, and import what the processes of all runs share."""
        set_variables(self.tracking, self.run.folder.absolute(), str(self.run.cfg["name"]))
        import runner.tracker.replacement
        import runner.training.callback.user  # noqa: F401

    def send(self, names: Sequence[str]) -> int:
        """Send the run to these trackers; the exit code, after what went wrong was printed."""
        args = self._build_args()
        name = ""
        try:
            for name in names:
                if name == self.tracking.target:
                    self._send_to_own(args)
                else:
                    self._send_to(name, args)
        except RunnerError as error:
            print(error, file=sys.stderr)
            return error.code
        except Exception as error:  # whatever the library of a tracker raises
            fault = Fault(
                where=str(self.run),
                found=f"{name}: {describe(error)}",
                expected="a tracker that takes it",
                fix="the same words again, when it is mended",
            )
            print(EnvironmentFault(fault), file=sys.stderr)
            return EnvironmentFault.code
        return 0

    def _build_args(self) -> "TrainingArguments":
        """The numbers of the trainer's config; its devices may not be on this machine."""
        from transformers import TrainingArguments

        known = {field.name for field in fields(TrainingArguments)}
        numbers = {}
        for key, value in Experiment.read(self.run.cfg).trainer.args.items():
            if key in known and type(value) in (int, float):
                numbers[key] = value
        return TrainingArguments(
            **numbers,
            output_dir=str(self.run.folder.absolute() / "checkpoints"),
            run_name=self.run.folder.name,
            project=self.tracking.project or "runner",
            report_to="none",
            use_cpu=True,
        )

    def _send_to(self, name: str, args: "TrainingArguments") -> None:
        """Have a tracker of transformers begin, catch up, and end."""
        from transformers import TrainerControl, TrainerState

        from runner.tracker.replacement import build_tracker

        experiment = Experiment.read({**self.run.cfg, "tracker": self.tracking.node})
        tracker = build_tracker(name, experiment, self.run.folder.absolute())
        if not tracker.remembers:
            tracker.until = -1  # it begins a run anew, which shall be whole
        state = TrainerState(global_step=self.last_step)
        control = TrainerControl()
        tracker.on_train_begin(args, state, control, model=None)
        tracker.on_train_end(args, state, control)
        tracker.close(self.run.state == "finished")

    def _send_to_own(self, args: "TrainingArguments") -> None:
        """Tell a callback of the user's own of each step that it lacks."""
        from transformers import TrainerControl, TrainerState

        from runner.tracker.callback import figures_of
        from runner.training.callback.user import build_own_trackers

        folder = self.run.folder.absolute()
        name = self.tracking.target
        control = TrainerControl()
        last_state = TrainerState(global_step=self.last_step)
        for callback in build_own_trackers(self.tracking, {"folder": folder}):
            callback.on_train_begin(args, last_state, control)
            for line in self.run.lines:
                if line["step"] > sent_until(folder, name):
                    state = TrainerState(global_step=line["step"])
                    callback.on_log(args, state, control, logs=figures_of(line))
            callback.on_train_end(args, last_state, control)
            note_complete(folder, name, self.last_step)
