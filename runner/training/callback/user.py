"""The user's callbacks, each served the parts of the training that it names."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments
from transformers.trainer_callback import (
    CallbackHandler,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from runner.config.build import asked_for, build, locate, serve
from runner.config.experiment import Tracking, key_names
from runner.dataset.form import fits
from runner.dataset.loaded_rows import HeldOut
from runner.errors import ConfigError, Fault
from runner.generate.agent import Agent
from runner.generate.completion import generate
from runner.generate.held_out_rows import held_out_sets
from runner.generate.sampler import whole
from runner.io.own_code import is_own
from runner.io.turns import Row
from runner.reward.isolation import contained
from runner.run import Run
from runner.schema.read import read_signature
from runner.schema.text import Node

# The parts that a callback can be given only once there is a trainer.
OF_TRAINER = {"trainer", "accelerator", "ref_model"}
Event = Callable[..., object]


class ServedParts(TypedDict, total=False):
    """The parts of a training that a callback may name as its arguments.

    A prediction serves fewer of them.
    """

    tokenizer: PreTrainedTokenizerBase
    processing_class: PreTrainedTokenizerBase
    folder: Path
    train_dataset: Dataset
    eval_dataset: HeldOut
    generate: Callable[..., list[str]]  # where the model writes text
    prompts: Callable[[], Iterator[Any]]  # where held-out rows have prompts; called for each


def parts_for_callbacks(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    rows: Dataset,
    held_out: HeldOut,
    agent: Agent | None,
) -> ServedParts:
    """The parts of a training that its callbacks may name."""
    experiment = run.experiment
    parts: ServedParts = {
        "tokenizer": tokenizer,
        "processing_class": tokenizer,
        "folder": run.folder,
        "train_dataset": rows,
        "eval_dataset": held_out,
    }

    def write(model: nn.Module, prompts: Sequence[Any], **settings: Any) -> list[str]:
        asked: Sequence[Any] = prompts
        if agent and agent.environments:
            asked = find_rows(prompts, held_out_rows())
        with whole(model):
            policy = getattr(model, "policy", model)  # PPO has a critic beside it
            return generate(policy, tokenizer, asked, agent=agent, **settings)

    def held_out_rows() -> Iterator[Row]:
        for rows_of_set in held_out_sets(experiment, "prompt").values():
            yield from rows_of_set

    def held_out_prompts() -> Iterator[Any]:
        for row in held_out_rows():
            yield row["prompt"]

    if experiment.trainer.head == "lm":
        parts["generate"] = write
    if fits(experiment.dataset.form, "prompt") and held_out is not None:
        parts["prompts"] = held_out_prompts
    return parts


def find_rows(prompts: Sequence[Any], rows: Iterable[Row]) -> Sequence[Any]:
    """The rows that prompts come from, of equal ones in their order; else the prompts."""
    further = iter(rows)
    found = []
    for prompt in prompts:
        for row in further:
            if row["prompt"] == prompt:
                found.append(row)
                break
    return found if len(found) == len(prompts) else prompts


def build_callbacks(
    nodes: Mapping[str, Node],
    parts: Mapping[str, Any],
    trainer: Trainer | None = None,
    prefix: str = "callback.",
) -> list[TrainerCallback]:
    """The user's callbacks: without a trainer those that need none, with one the others.

    The ``prefix`` stands before the name of each in the configuration.
    """
    callbacks = []
    for name, node in nodes.items():
        target = node["_target_"]
        takes_everything = _takes_everything(target)
        missing = asked_for(target) - set(node)
        needs_trainer = takes_everything or not missing.isdisjoint(OF_TRAINER)
        if needs_trainer != (trainer is not None):
            continue
        offered: dict[str, Any] = {**parts, "callback_name": name, "trainer": trainer}
        for part in ("accelerator", "ref_model"):
            offered[part] = getattr(trainer, part, None)
        if "ref_model" in missing and offered["ref_model"] is None:
            raise ConfigError(
                Fault(
                    where=f"{prefix}{name}",
                    found="it takes the reference model, but this training holds none",
                    expected="a trainer that holds one",
                    fix="callback=none, or trainer.args.precompute_ref_log_probs=false where that "
                    "is true",
                )
            )
        if "prompts" in parts:
            offered["prompts"] = parts["prompts"]()  # each callback reads them from the first
        offered = {key: part for key, part in offered.items() if key not in node}
        if takes_everything:
            callback = build(node, **offered)
        else:
            callback = serve(node, **offered)
        if not isinstance(callback, TrainerCallback):
            kind = type(callback).__name__
            raise ConfigError(
                Fault(
                    where=f"{prefix}{name}",
                    found=f"a {kind}, which handles no event",
                    expected="a transformers.TrainerCallback",
                    fix=f"class {kind}(a transformers.TrainerCallback):",
                )
            )
        if is_own(inspect.getfile(type(callback))):
            _contain(callback, f"{prefix}{name}")
        callbacks.append(callback)
    return callbacks


def build_own_trackers(
    tracking: Tracking, parts: Mapping[str, Any], trainer: Trainer | None = None
) -> list[TrainerCallback]:
    """The tracker of the user's own, if there is one that needs a trainer, or none.

    It has those of our keys that it takes as arguments.
    """
    if not tracking.target:
        return []
    node = tracking.arguments
    taken = asked_for(tracking.target)
    for key in key_names(Tracking):
        if key in taken and tracking.node.get(key) is not None:
            node[key] = tracking.node[key]
    return build_callbacks({"tracker": node}, parts, trainer, prefix="")


def _takes_everything(target: str) -> bool:
    """True for a target of the user's own that takes ``**kwargs``, and keeps some of them."""
    signature = read_signature(target)
    if signature is None or not signature.is_open:
        return False
    return is_own(inspect.getfile(locate(target)))


def _contain(callback: TrainerCallback, where: str) -> None:
    """Keep the events of a callback from changing the training, and check what they give."""

    def contain_event(event: Event, *given: object, **options: object) -> TrainerControl | None:
        with contained():
            control = event(*given, **options)
        if control is None or isinstance(control, TrainerControl):
            return control
        raise ConfigError(
            Fault(
                where=where,
                found=f"{event.__name__} returned {type(control).__name__}",
                expected="the TrainerControl that it received, or None",
                fix="return control",
            )
        )

    for event_name in dir(TrainerCallback):
        if event_name.startswith("on_") and handles(type(callback), event_name):
            event = getattr(callback, event_name)
            setattr(callback, event_name, functools.partial(contain_event, event))


def handles(kind: type, event_name: str) -> bool:
    """True where a class overrides an event of TrainerCallback, or has it without being one."""
    unchanged = getattr(TrainerCallback, event_name)
    return getattr(kind, event_name, unchanged) is not unchanged


class PredictionEvents:
    """The events of a prediction, for the user's callbacks that handle one and need no trainer."""

    def __init__(self, nodes: Mapping[str, Node], parts: Mapping[str, Any], model: nn.Module):
        handling = {}
        for name, node in nodes.items():
            kind = locate(node["_target_"])
            if handles(kind, "on_prediction_step") or handles(kind, "on_predict"):
                handling[name] = node
        callbacks = build_callbacks(handling, parts)
        self.handler = CallbackHandler(callbacks, model, parts["tokenizer"], None, None)
        self.args = TrainingArguments(str(parts["folder"]), report_to="none")
        self.state = TrainerState()
        self.control = TrainerControl()

    def on_step(self) -> None:
        """A batch is answered."""
        self.handler.on_prediction_step(self.args, self.state, self.control)

    def on_end(self, metrics: Mapping[str, float]) -> None:
        """All rows are answered, and the file is written."""
        self.handler.on_predict(self.args, self.state, self.control, metrics)
