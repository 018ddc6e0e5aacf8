"""Transformers' callbacks of trackers, and what they leave out: the frozen config, tags, the group, one run for all.

All that is logged of a run arrives in one run of the tracker: the scores before the first step and after the last one,
and what a resume adds; each figure of a step once. The config that arrives is the frozen one, without secrets.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, WandbCallback

from runner.run.read import is_finite, read_metrics
from runner.tracker.variable import note_complete, read_complete

NOT_METRICS = {"epoch"}  # comes with every figure and is none
PROGRESS = {"step", "max_steps", "percentage", "elapsed_seconds", "remaining_seconds"}  # of the run's own log
MAX_TAG_LETTERS = 64  # of wandb


class Tracker(TrainerCallback):
    """The part that all trackers share: each figure once, and an end that comes after the last held-out scores.

    A tracker gets the frozen ``config`` of a run, in a word each its trainer, model, dataset and adapter (``facts``),
    these with the user's own words as ``tags``, and the name that the runs of a sweep share (``group``).
    """

    remembers = True  # whether what an earlier start sent is still there, also of steps that are trained again

    def __init__(self, config: Mapping[str, Any], folder: Path):
        super().__init__()
        self.config, self.folder, self.group = config, folder, str(config["name"])
        whole = {part: str(config[part].get("path") or "") for part in ("model", "dataset")}
        paths = {part: path.rstrip("/").rpartition("/")[2] for part, path in whole.items()}
        targets = {part: (config.get(part) or {}).get("_target_", "") for part in ("trainer", "dataset", "peft")}
        kinds = {part: re.sub(r"(.*\.)|(trainer|config)$", "", path.lower()) for part, path in targets.items()}
        facts = {"trainer": kinds["trainer"], "model": paths["model"] or "new"}
        facts |= {"dataset": paths["dataset"] or kinds["dataset"], "peft": kinds["peft"] or "full"}
        self.facts = {name: text[:MAX_TAG_LETTERS] for name, text in facts.items()}
        self.tags = list(dict.fromkeys([*self.facts.values(), *((config.get("tracker") or {}).get("tags") or ())]))
        self.name = type(self).__name__.lower()
        is_there = self.remembers and self.name in read_complete(folder)
        self.sent = {line["step"]: set(line) for line in read_metrics(folder / "metrics.jsonl") if is_there}
        self.ending: Callable[[], None] | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if not state.is_world_process_zero:
            return
        # What earlier starts have logged, unless this tracker was there by then.
        lines = read_metrics(self.folder / "metrics.jsonl") if self.name not in read_complete(self.folder) else []
        for line in [line for line in lines if line["step"] <= state.global_step]:
            figures = {name: value for name, value in line.items() if name not in PROGRESS and is_finite(value)}
            self.on_log(args, TrainerState(global_step=line["step"]), control, logs=figures)
        note_complete(self.folder, self.name)

    def on_log(self, args, state: TrainerState, control, logs: dict | None = None, **kwargs) -> None:
        if not state.is_world_process_zero or (self.ending and args.load_best_model_at_end):
            return  # what is measured after the end is of the best model, not of this step
        known = self.sent.setdefault(state.global_step, set())
        fresh = {name: value for name, value in (logs or {}).items() if name not in known or name in NOT_METRICS}
        known |= set(fresh)
        if set(fresh) - NOT_METRICS:
            super().on_log(args, state, control, logs=fresh, **kwargs)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        self.ending = partial(super().on_train_end, args, state, control, **kwargs)

    def close(self, finished: bool) -> None:
        """End the tracker's run, in its own way where the training came to an end."""
        if self.ending:
            self.ending()


class TensorBoard(Tracker, TensorBoardCallback):
    """Config and tags are texts; the figures of steps that are trained again are taken back."""

    remembers = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if state.is_world_process_zero and self.logging_dir:
            again = any(Path(self.logging_dir).glob("events.out.tfevents.*"))
            self.tb_writer = SummaryWriter(log_dir=self.logging_dir, purge_step=state.global_step + 1)
            config = yaml.safe_dump(dict(self.config), sort_keys=False, allow_unicode=True)
            texts = {"config": f"```yaml\n{config}```", "tags": ", ".join(self.tags), "group": self.group}
            for name, text in texts.items() if not again else ():
                self.tb_writer.add_text(name, text)
        super().on_train_begin(args, state, control, **kwargs)

    def close(self, finished: bool) -> None:
        if self.tb_writer:
            self.tb_writer.close()


class Wandb(Tracker, WandbCallback):
    """The config is ``runner`` in the run's own; id, group and project are variables of its YAML."""

    def setup(self, args: TrainingArguments, state: TrainerState, model: nn.Module, **kwargs) -> None:
        if state.is_world_process_zero:
            import wandb

            if wandb.run is not None and wandb.run.id != os.environ.get("WANDB_RUN_ID"):
                wandb.finish()  # of an earlier run in this process
            wandb.init(name=args.run_name, tags=self.tags, config={"runner": self.config})
        super().setup(args, state, model, **kwargs)

    def close(self, finished: bool) -> None:
        import wandb

        super().close(finished)
        if wandb.run is not None:
            wandb.finish(exit_code=0 if finished else 1)


COMPLETE = {TensorBoardCallback: TensorBoard, WandbCallback: Wandb}


def replace_trackers(trainer: Trainer, config: Mapping[str, Any], folder: Path) -> list[Tracker]:
    """Put the callbacks above, which log all that belongs to a run, in the places of the trainer's stock ones."""
    callbacks = trainer.callback_handler.callbacks
    callbacks[:] = [COMPLETE[type(one)](config, folder) if type(one) in COMPLETE else one for one in callbacks]
    return [one for one in callbacks if isinstance(one, Tracker)]


@contextmanager
def trackers_closed(trackers: Sequence[Tracker], *, is_first: bool) -> Iterator[None]:
    """End the trackers' runs when what is logged inside is over, however it ends; for the first process alone."""
    with ExitStack() as behind:
        for tracker in trackers if is_first else ():
            behind.push(lambda kind, *_, tracker=tracker: tracker.close(finished=kind is None))
        yield
