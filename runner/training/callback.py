"""Callbacks, the user's and the runner's, in the order in which they must come: record, bar, samples, stop."""

import functools
import inspect
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import gather
from datasets import Dataset
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments
from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import has_length

from runner.config.build import asked_for, build, locate, serve
from runner.dataset.form import fits
from runner.dataset.load import HeldOut
from runner.errors import ConfigError, fault, is_own
from runner.generate.agent import Agent
from runner.generate.completion import generate
from runner.generate.rows import held_out_sets
from runner.generate.sampler import whole
from runner.io.files import ROWS, forget_rows, read_last_row, replace_rows, sync_rows
from runner.io.terminal import is_terminal, progress_bar, said, sample_lines
from runner.report.number import format_duration
from runner.report.objective import list_figures
from runner.reward.panel import contained
from runner.run import Run
from runner.run.adjustments import ROLLBACK, adjusted_share, count_of
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import Config, named
from runner.training.checkpoint import MovedModels, PromptEncoder, Seal
from runner.training.health import Health

PREDICTION = (TrainerCallback.on_prediction_step, TrainerCallback.on_predict)
OF_TRAINER = {"trainer", "accelerator", upstream.REF_MODEL}  # that a callback is given once there is a trainer
SECONDS_OF_STATUS = 1.0  # between two states that say how far a run is, which take as long as a short step each


class StopRequest(Protocol):
    """A signal that asked to stop, if its ``number`` is set; while ``listening`` it waits for the end of a step."""

    number: int | None
    agreed: bool
    listening: bool

    def error(self) -> Exception: ...


def build_callbacks(cfg: Config, served: Mapping[str, Any], trainer: Trainer | None = None) -> list[TrainerCallback]:
    """The user's callbacks in order, those that ask for the trainer once there is one; each is served what it names."""
    callbacks = []
    for name, node in named(cfg["callback"] or {}, "callback").items():
        signature = read_signature(node["_target_"])  # which is open where **kwargs is not handed on alone
        takes_all = signature and signature.is_open and is_own(inspect.getfile(locate(node["_target_"])))
        asks = takes_all or bool(asked_for(node["_target_"]) & OF_TRAINER - set(node))
        if asks != (trainer is not None):
            continue
        own = {of: getattr(trainer, of, None) for of in OF_TRAINER} | {"callback_name": name, "trainer": trainer}
        if upstream.REF_MODEL in asked_for(node["_target_"]) - set(node) and own[upstream.REF_MODEL] is None:
            raise ConfigError(fault("training.no_reference", name=name))
        own |= {"prompts": served["prompts"]()} if "prompts" in served else {}  # each has its own
        offered = {key: part for key, part in {**served, **own}.items() if key not in node}
        callback = build(node, **offered) if takes_all else serve(node, **offered)
        if not isinstance(callback, TrainerCallback):
            raise ConfigError(fault("training.no_callback", name=name, kind=type(callback).__name__))
        if is_own(inspect.getfile(type(callback))):
            _contain(callback, f"callback.{name}")
        callbacks.append(callback)
    return callbacks


def _contain(callback: TrainerCallback, where: str) -> None:
    """Have each event of a callback of the user's leave the training as it was, and give what the Trainer takes."""

    def call(event: Callable[..., object], *given: Any, **more: Any) -> TrainerControl | None:
        with contained():
            answer = event(*given, **more)
        if answer is None or isinstance(answer, TrainerControl):
            return answer
        raise ConfigError(fault("training.no_control", where=where, event=event.__name__, kind=type(answer).__name__))

    for name in dir(TrainerCallback):
        if name.startswith("on_") and getattr(type(callback), name) is not getattr(TrainerCallback, name):
            setattr(callback, name, functools.partial(call, getattr(callback, name)))


class PredictionEvents:
    """The events of a prediction, for those of the user's callbacks that handle one and ask for no trainer."""

    def __init__(self, cfg: Config, served: Mapping[str, Any], model: nn.Module):
        nodes = named(cfg.get("callback") or {}, "callback").items()
        kinds = [(name, node, locate(node["_target_"])) for name, node in nodes]
        asked = {n: node for n, node, kind in kinds if any(getattr(kind, of.__name__, of) != of for of in PREDICTION)}
        own = build_callbacks({"callback": asked}, served)
        self.handler = CallbackHandler(own, model, served["tokenizer"], None, None)
        self.given = TrainingArguments(str(served["folder"]), report_to="none"), TrainerState(), TrainerControl()

    def on_step(self) -> None:
        """A batch is answered."""
        self.handler.on_prediction_step(*self.given)

    def on_end(self, metrics: Mapping[str, float]) -> None:
        """All are answered, and the file is written."""
        self.handler.on_predict(*self.given, metrics)


class Anomaly(TrainerCallback):
    """Has torch name the operation of the forward pass whose gradient is no number, as ``debug=anomaly`` asks."""

    def on_train_begin(self, *_: object, **given: object) -> None:
        torch.autograd.set_detect_anomaly(True)

    def on_train_end(self, *_: object, **given: object) -> None:
        torch.autograd.set_detect_anomaly(False)


class Joined(TrainerCallback):
    """Our callbacks as one, in their order: an event costs nothing for those that do not answer it."""

    def __init__(self, callbacks: Sequence[TrainerCallback]):
        for name in (name for name in dir(self) if name.startswith("on_")):
            if calls := [getattr(each, name) for each in callbacks if name in vars(type(each))]:
                setattr(self, name, functools.partial(self._call, calls))

    def _call(self, calls: Sequence[Callable[..., None]], *given: object, **more: object) -> None:
        for call in calls:
            call(*given, **more)


def add_callbacks(
    trainer: Trainer,
    run: Run,
    served: Mapping[str, object],
    stop: StopRequest | None,
    health: Health,
    seal: Seal,
    adjustments: Sequence[Mapping[str, Any]],
) -> None:
    """Add the user's callbacks that ask for the trainer, then ours; the seal after all that say what a step saves."""
    for callback in build_callbacks(run.cfg, served, trainer):
        trainer.add_callback(callback)
        callback.on_init_end(trainer.args, trainer.state, trainer.control)
    callbacks: list[TrainerCallback] = [StopAtStep(stop, seal.cycle_steps)] if stop else []
    record = Record(run.metrics, run.set_status, run)
    progress = Progress(record)
    trainer.hooks.on_evaluate = progress.begin_evaluation
    callbacks += [record, health, progress, MovedModels(trainer), PromptEncoder(trainer), seal]
    if count_of(adjustments, ROLLBACK):
        callbacks.append(Slower(functools.partial(adjusted_share, adjustments)))
    trainer.add_callback(Joined(callbacks))


def for_callbacks(
    run: Run, tokenizer: PreTrainedTokenizerBase, rows: Dataset, held_out: HeldOut, agent: Agent | None
) -> dict[str, object]:
    """Arguments that callbacks may name; ``generate`` if the model writes, ``prompts`` if rows have any."""
    cfg, served = run.cfg, {"tokenizer": tokenizer, upstream.PROCESSING_CLASS: tokenizer, "folder": run.folder}
    served |= {upstream.TRAIN_DATASET: rows, "eval_dataset": held_out}

    def write(model: nn.Module, prompts: Sequence[Any], **how: Any) -> list[str]:
        with whole(model):  # PPO has a policy beside a critic
            return generate(getattr(model, "policy", model), tokenizer, prompts, agent=agent, **how)

    if cfg["trainer"]["head"] == "lm":
        served["generate"] = write
    if fits(cfg["dataset"].get("form"), "prompt") and held_out is not None:
        served["prompts"] = lambda: (row["prompt"] for part in held_out_sets(cfg, "prompt").values() for row in part)
    return served


class Record(TrainerCallback):
    """One line of strict JSON per logged step in ``metrics.jsonl``, each step once, whatever was interrupted.

    Of every file beside it that holds rows of steps, those that will be taken again are dropped. Everything logged at
    one step, training and evaluation, is one line. Beside the trainer's own names it holds ``step``, ``max_steps``,
    ``percentage``, ``epoch``, ``elapsed_seconds`` and ``remaining_seconds``; of the time since the line before it
    ``tokens_per_second``, where the trainer counts tokens, and ``memory/peak_gb`` of its GPU, else of all the process.
    """

    def __init__(self, path: Path, set_status: Callable[..., None], run: Run | None = None):
        self.path, self.run, self.set_status = path, run or Run(path.parent), set_status
        self.line: dict[str, Any] = {}
        self.started, self.first_step = time.monotonic(), 0
        self.spent, self.written = 0.0, -math.inf
        self.counted: tuple[float, float] | None = None  # tokens, and the time at which there were so many
        self.ended = True

    def on_train_end(self, args, state, control, **_) -> None:
        self.ended = True

    def on_train_begin(self, args, state: TrainerState, control, **_) -> None:
        self.ended = False
        if state.is_world_process_zero:
            for path in map(self.path.parent.joinpath, ROWS):
                forget_rows(path, state.global_step)
            self.line = read_last_row(self.path)
            # Write again, from what the checkpoint has, the lines behind the last one: a power failure has taken them.
            after, spent = self.line.get("step", -1), self.line.get("elapsed_seconds", 0.0)
            for logged in [logged for logged in state.log_history if after < logged["step"] <= state.global_step]:
                self._add(logged["step"], state.max_steps, logged, spent, None)
            if state.global_step < state.max_steps and any(map(_of_the_end, self.line)):
                self.line = {name: value for name, value in self.line.items() if not _of_the_end(name)}
                replace_rows(self.path, [self.line])
            self.spent = self.line.get("elapsed_seconds", 0.0)
            self.started, self.first_step, self.written = time.monotonic(), state.global_step, -math.inf
            self.counted = None if state.global_step else (0.0, 0.0)
            self.set_status(step=state.global_step, max_steps=state.max_steps)

    def on_step_end(self, args, state, control: TrainerControl, **_) -> None:
        if control.should_log or control.should_save:  # a network's disk may take a while to answer
            self.run.check_there()

    def on_evaluate(self, args, state, control: TrainerControl, **_) -> None:
        self.run.check_there()  # it may have taken long, and a save comes next

    def on_save(self, args, state: TrainerState, control, **_) -> None:
        self.run.check_there()
        if state.is_world_process_zero:
            sync_rows(self.path.parent)

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any], **_) -> None:
        if not state.is_world_process_zero or (self.ended and args.load_best_model_at_end):
            return  # what is measured then is of the best model, not of this step
        here, steps = time.monotonic() - self.started, state.global_step - self.first_step
        if (count := logs.get("num_tokens")) is not None and "loss" in logs:
            if self.counted and here > self.counted[1]:
                logs["tokens_per_second"] = round((count - self.counted[0]) / (here - self.counted[1]), 1)
            self.counted = (count, here)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        logs["memory/peak_gb"] = round(peak / 1e9, 3)
        remaining = round(here / steps * (state.max_steps - state.global_step), 2) if steps > 0 else None
        self._add(state.global_step, state.max_steps, logs, round(self.spent + here, 2), remaining)
        if here > self.written + SECONDS_OF_STATUS or state.global_step >= state.max_steps:
            self.written = here
            self.set_status(step=state.global_step, max_steps=state.max_steps)

    def _add(self, step: int, max_steps: int, logs: Mapping[str, Any], elapsed: float, remaining: float | None) -> None:
        self.line = self.line if self.line.get("step") == step else {"step": step}
        percentage = round(100 * step / max_steps, 2) if max_steps else 0.0
        self.line |= {"max_steps": max_steps, "percentage": percentage, **logs}
        self.line |= {"elapsed_seconds": elapsed, "remaining_seconds": remaining}
        replace_rows(self.path, [self.line])


class Progress(TrainerCallback):
    """A bar with the last figure on a terminal, and a line for each logged step in the log, or printed elsewhere."""

    def __init__(self, record: Record):
        self.record = record
        self.bar, self.hidden = progress_bar("", 0, "step", disable=True), True
        self.batches = 0  # of an evaluation that are done

    def begin_evaluation(self, part: str) -> None:
        """Say on the bar that an evaluation is under way, on one of its own once the training has ended."""
        if self.record.ended and self.bar.disable and not self.hidden:
            self.bar = progress_bar(part, self.bar.total, "step", initial=self.bar.n, leave=False)
        self.bar.set_description(part)

    def on_prediction_step(self, args, state, control, eval_dataloader: Any = None, **_) -> None:
        self.batches += 1
        of_all = f"/{len(eval_dataloader)}" if has_length(eval_dataloader) else ""
        self.bar.set_description(f"evaluating {self.batches}{of_all}")

    def on_evaluate(self, args, state, control, **_) -> None:
        self.batches = 0
        self.bar.set_description("training")
        if self.record.ended:
            self.bar.close()

    def on_train_begin(self, args, state: TrainerState, control, **_) -> None:
        hidden = self.hidden = not (state.is_world_process_zero and is_terminal(sys.stderr))
        self.bar = progress_bar("training", state.max_steps, "step", initial=state.global_step, disable=hidden)

    def on_step_end(self, args, state: TrainerState, control, **_) -> None:
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any], **_) -> None:
        found = list_figures(logs)
        if self.record.ended or not found or not state.is_world_process_zero:
            return
        if not found[0].startswith("eval_"):
            self.bar.set_postfix_str(found[0], refresh=False)
        left = self.record.line["remaining_seconds"]
        found += [f"{format_duration(left)} left"] if left and left > 0.5 else []
        line = f"step      {state.global_step}/{state.max_steps}  {'  '.join(found)}"
        if self.bar.disable or not is_terminal(sys.stdout):
            print(line, flush=True)
        else:
            said.info("%s", line)

    def on_train_end(self, args, state, control, **_) -> None:
        self.bar.close()


class Samples(TrainerCallback):
    """Completions of a few fixed prompts: before the first step, every ``every`` steps, and at the last one.

    Each is a row of ``samples.jsonl`` with ``step``, ``callback`` (its name), ``prompt`` and ``completion``; the
    terminal gets a table of the first ``shown``. Random numbers are the same each time, so that only the model
    differs. ``prompts`` are texts or chats, in a run the held-out ones unless the config lists others.
    """

    def __init__(
        self,
        generate: Callable[..., list[str]],
        prompts: Iterable[Any],
        folder: Path,
        *,
        every: int = 50,
        count: int = 4,
        shown: int = 4,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        callback_name: str = "samples",
    ):
        self.name, self.prompts = callback_name, list(islice(prompts, count))
        self.path = Path(folder) / "samples.jsonl"
        self.every, self.shown = every, shown
        self.write = lambda model: generate(model, self.prompts, max_new_tokens=max_new_tokens, temperature=temperature)

    def on_train_begin(self, args, state: TrainerState, control, model: nn.Module, **_) -> None:
        if state.global_step == 0:
            self._sample(state, model)

    def on_step_end(self, args, state: TrainerState, control, model: nn.Module, **_) -> None:
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            self._sample(state, model)

    def _sample(self, state: TrainerState, model: nn.Module) -> None:
        completions = self.write(model)  # in every process, because the weights may be spread over them
        if state.is_world_process_zero:
            pairs = list(zip(self.prompts, completions, strict=True))
            keys = {"step": state.global_step, "callback": self.name}
            rows = [keys | {"prompt": prompt, "completion": text} for prompt, text in pairs]
            replace_rows(self.path, rows, same=list(keys))
            if self.shown:
                titles = (f"sample of step {state.global_step}", "completion")
                tqdm.write("\n".join(sample_lines([titles, *pairs[: self.shown]])))


class AtStart(TrainerCallback):
    """Calls a function once, when the model is wrapped for training and no step was taken.

    An earlier evaluation leaves a model of several processes without the wrapper that averages their gradients.
    """

    def __init__(self, call: Callable[[], None]):
        self.call = call

    def on_train_begin(self, args, state, control, **_) -> None:
        self.call()


class StopAtStep(TrainerCallback):
    """Turns a signal, which one process may hear alone, into a save of all after a step, where a resume is exact."""

    def __init__(self, stop: StopRequest, cycle_steps: int = 1):
        self.stop, self.cycle_steps = stop, cycle_steps

    def on_step_begin(self, args, state, control, **_) -> None:
        self.stop.listening = True

    def on_step_end(self, args, state: TrainerState, control: TrainerControl, **_) -> None:
        if state.global_step % self.cycle_steps:
            return
        number = self.stop.number
        if args.world_size > 1:
            number = int(gather(torch.tensor([number or 0], device=args.device)).max()) or None
            if number and self.stop.number is None:
                self.stop.number, self.stop.agreed = number, True
        if number is not None:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args, state: TrainerState, control: TrainerControl, **_) -> None:
        """Leave out what belongs to the end of an epoch where a stop comes within one; it would be done twice."""
        if self.stop.number is not None and control.should_training_stop and (state.epoch or 0) % 1:
            control.should_log = control.should_save = control.should_evaluate = False

    def on_train_end(self, args, state, control, **_) -> None:
        self.stop.listening = False


class Slower(TrainerCallback):
    """Takes each step with the share of its learning rate that ``share`` gives for the steps taken so far.

    Schedule and what is saved of it stay, for a resume; the rate holds for all steps that PPO takes within one.
    """

    def __init__(self, share: Callable[[int], float]):
        self.share = share

    def on_step_begin(self, args, state: TrainerState, control, optimizer: Optimizer, **_) -> None:
        self.rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate and rate * self.share(state.global_step)  # Adafactor may have none

    def on_optimizer_step(self, args, state, control, optimizer: Optimizer, **_) -> None:
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate


def _of_the_end(name: str) -> bool:
    return name == "total_flos" or name.startswith("train_")
