"""Callbacks react to the events of a training.

    python -m runner --config-dir conf 'allow=[my_lab]' \\
        callback.diary._target_=my_lab.callback.Diary

The runner fills in what a constructor asks for by name: ``tokenizer``, ``folder`` (of the run),
``train_dataset``, ``eval_dataset``, ``prompts`` (held out), ``generate(model, prompts,
max_new_tokens=...)``, ``trainer``. The other arguments are keys of the YAML. Each event comes with
``args`` (the trainer's), ``state`` (``global_step``, ``max_steps``, ``log_history``...),
``control`` (set ``control.should_training_stop`` and the like), and in ``kwargs`` with ``model``,
``optimizer``, ``lr_scheduler``, ``train_dataloader`` and ``processing_class``. The model of PPO
holds the ``policy`` beside its critic.
"""

import json
from pathlib import Path

from transformers import TrainerCallback


class Diary(TrainerCallback):
    """A line in ``diary.jsonl`` for each event of a training; keep the events that you need."""

    def __init__(self, folder, tokenizer, eval_dataset=None, author: str = "me"):
        self.path = Path(folder) / "diary.jsonl"
        self.author = author
        self.words = len(tokenizer)
        self.rows = len(eval_dataset or ())

    def note(self, event, state, **what):
        line = {"event": event, "step": state.global_step, "by": self.author} | what
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def on_init_end(self, args, state, control, **kwargs):
        """The trainer is built; nothing has run."""
        self.note("init_end", state, words=self.words, held_out=self.rows)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """The model is ready, after a resume with the weights of the checkpoint."""
        self.note(
            "train_begin",
            state,
            weights=sum(p.numel() for p in model.parameters() if p.requires_grad),
        )

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.note("epoch_begin", state, epoch=state.epoch)

    def on_step_begin(self, args, state, control, **kwargs):
        """Before the first batch of an optimizer step."""
        self.note("step_begin", state)

    def on_substep_end(self, args, state, control, **kwargs):
        """Called after a batch that is only accumulated.

        PPO, where a step is a whole rollout, has none.
        """
        self.note("substep_end", state)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """The gradients are there, already clipped."""
        self.note(
            "pre_optimizer_step", state, graded=sum(p.grad is not None for p in model.parameters())
        )

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        """The weights were changed; the gradients are still there."""
        self.note("optimizer_step", state, rate=optimizer.param_groups[0]["lr"])

    def on_step_end(self, args, state, control, **kwargs):
        self.note("step_end", state)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """``logs`` is what will be written; figures added to it here are written too."""
        self.note("log", state, names=sorted(logs))

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        """After each evaluation, also those before the first step and after the end."""
        self.note("evaluate", state, names=sorted(metrics))

    def on_predict(self, args, state, control, metrics=None, **kwargs):
        """After ``trainer.predict``, which only a callback of yours would call."""
        self.note("predict", state, names=sorted(metrics))

    def on_save(self, args, state, control, **kwargs):
        """The checkpoint is written, and not yet sealed: do not change it."""
        self.note("save", state)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.note("epoch_end", state, epoch=state.epoch)

    def on_train_end(self, args, state, control, **kwargs):
        """The best model is back if requested; it is not yet in ``model/``."""
        self.note("train_end", state)
