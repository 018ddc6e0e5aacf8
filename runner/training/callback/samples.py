"""Completions of the same few prompts in the course of a training."""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from torch import nn
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from runner.io.files import replace_rows
from runner.io.terminal import sample_lines
from runner.io.turns import Completion
from runner.schema.ranges import Count, Natural, NotNegative


class Samples(TrainerCallback):
    """Completions of a few fixed prompts: at the start, every ``every`` steps, and at the last one.

    Each is a row of ``samples.jsonl`` with ``step``, ``callback`` (its name), ``prompt`` and
    ``completion``; the terminal gets a table of the first ``shown``. Random numbers are the same
    each time, so that only the model differs. ``prompts`` are texts or chats, in a run the held-out
    ones unless the config lists others.
    """

    def __init__(
        self,
        generate: Callable[..., list[str]],
        prompts: Iterable[Completion],
        folder: Path,
        *,
        every: Count = 50,
        count: Count = 4,
        shown: Natural = 4,
        max_new_tokens: Count = 64,
        temperature: NotNegative = 1.0,
        callback_name: str = "samples",
    ):
        self.generate = generate
        self.prompts = list(islice(prompts, count))
        self.path = Path(folder) / "samples.jsonl"
        self.every = every
        self.shown = shown
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self.name = callback_name

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        **_: object,
    ) -> None:
        if state.global_step == 0:
            self._sample(state, model)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        **_: object,
    ) -> None:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._sample(state, model)

    def _sample(self, state: TrainerState, model: nn.Module) -> None:
        # In every process, because the weights may be spread over them.
        completions = self.generate(
            model,
            self.prompts,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )
        if not state.is_world_process_zero:
            return
        step = {"step": state.global_step, "callback": self.name}
        samples = list(zip(self.prompts, completions, strict=True))
        rows = [{**step, "prompt": prompt, "completion": text} for prompt, text in samples]
        # In place of those of an earlier try at the same step.
        replace_rows(self.path, rows, same=list(step))
        if self.shown:
            header = (f"sample of step {state.global_step}", "completion")
            table = sample_lines([header, *samples[: self.shown]])
            tqdm.write("\n".join(table))
