"""Run folder -> the components of a training, built by calls in order, each given what it needs.

What is not here: how a component is made (its own room), what a valid key is (``validate``), how the loop runs (the
Trainer).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.config.build import build, serve
from runner.errors import ConfigError, Fault
from runner.run.adjustments import adjust_logs, read_adjustments
from runner.run import Run
from runner.io.terminal import mute_libraries
from runner.training.build.args import build_args
from runner.training.build.callbacks import add_callbacks, build_callbacks, build_health, for_callbacks
from runner.training.build.rewards import rewards_of
from runner.training.build.loss import (
    build_collator,
    build_loss,
    build_rules,
    columns_asked_for,
    packed_later,
    set_collator,
    set_weights,
)
from runner.training.build.model import build_model
from runner.training.build.trainer import build_trainer, optimizer_maker, schedule_maker

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainingArguments

    from runner.training.callback import StopRequest
    from runner.training.checkpoint import Seal
    from runner.training.health.watch import Health
    from runner.tracker.callback import Tracker
    from runner.training.extension import Measure

    Adjustments = Sequence[Mapping[str, Any]]
    BuildMeasure = Callable[[Run, TrainingArguments, PreTrainedTokenizerBase, Adjustments], Measure | None]

log = logging.getLogger(__name__)


@dataclass
class Components:
    """The parts of a training that others than the trainer need, as they were before it put its own around them.

    ``trackers`` are those of the trainer's callbacks that tell a tracker of the run.
    """

    args: TrainingArguments
    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    train_rows: Dataset
    held_out: Dataset | dict[str, Dataset] | None
    trainer: Trainer
    health: Health
    seal: Seal
    trackers: list[Tracker]
    adjustments: list[dict[str, Any]]


def build_components(run: Run, stop: StopRequest | None, build_measure: BuildMeasure | None = None) -> Components:
    """Build every component of a run, in the order in which they need each other.

    ``build_measure`` makes the metrics that join each evaluation of held-out rows, if any are to.
    """
    import transformers

    from runner.training.checkpoint import Seal, cycle_steps
    from runner.model.chat import check_template
    from runner.tracker.callback import replace_trackers
    from runner.training.extension import Hooks

    cfg = run.cfg
    mute_libraries()
    transformers.set_seed(cfg["seed"])
    with _refusals_of("trainer.args"):
        args = build_args(run)
    tokenizer = build(cfg["model"]["tokenizer"])
    rules = build_rules(cfg.get("weight"))
    rows, held_out = serve(cfg["dataset"], to=cfg["trainer"]["form"], seed=cfg["seed"], keep=columns_asked_for(rules))
    _warn_of_margins(cfg["trainer"], rows)
    rewards, panel = rewards_of(cfg, args)
    answers_only = getattr(args, "assistant_only_loss", False)
    check_template(tokenizer, chats=_are_chats(rows), calls=_call_tools(rows), answers_only=answers_only)
    model, peft_config, reference = build_model(cfg, tokenizer, args)
    served = for_callbacks(run, tokenizer, rows, held_out)
    offered = {
        "model": model,
        "ref_model": reference,
        "args": args,
        "processing_class": tokenizer,
        "train_dataset": rows,
        "eval_dataset": held_out,
        "data_collator": build_collator(cfg["collator"], tokenizer),
        "reward_funcs": rewards,
        "callbacks": build_callbacks(cfg, served),
        "peft_config": peft_config,
    }
    adjustments = read_adjustments(run.folder)
    health = build_health(cfg, args, peft_config, panel)
    hooks = Hooks(
        evaluates=cfg["trainer"].get("evaluates", True),
        measure=build_measure(run, args, tokenizer, adjustments) if build_measure and held_out is not None else None,
        on_loss=health.observe_loss,
        on_log=functools.partial(adjust_logs, adjustments) if adjustments else None,
        reward_means=panel.pop_means if panel else None,
        make_optimizer=optimizer_maker(cfg.get("optimizer")),
        make_schedule=schedule_maker(cfg.get("optimizer")),
        loss=build_loss(cfg.get("loss")),
    )
    with _refusals_of("trainer"), packed_later(args if rules else None) as pack:
        trainer = build_trainer(cfg, offered, hooks, weighs_tokens=bool(rules))
    set_collator(trainer, cfg["collator"], tokenizer)
    if rules:
        set_weights(trainer, rules, pack)
    trackers = replace_trackers(trainer, cfg, run.folder)
    seal = Seal(cfg["trainer"]["args"].get("save_total_limit") or 2, cycle_steps(args), run.set_status)
    add_callbacks(trainer, run, served, stop, health, seal, adjustments)
    return Components(args, model, tokenizer, rows, held_out, trainer, health, seal, trackers, adjustments)


@contextlib.contextmanager
def _refusals_of(where: str) -> Iterator[None]:
    """Turn a ValueError of a TRL constructor into a ConfigError: it refuses a configuration that cannot work."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(Fault(where, str(error).splitlines()[0], "values that go together")) from error


def _warn_of_margins(node: Mapping[str, Any], rows: Dataset) -> None:
    if node["form"] == "preference" and node["head"] != "score" and "margin" in next(iter(rows), {}):
        log.warning("the column `margin` is not used: of margins only the loss of a reward model knows")


def _are_chats(rows: Dataset) -> bool:
    """True where the rows hold conversations, which need a template, rather than text."""
    row: Mapping[str, object] = next(iter(rows), {})
    return any(isinstance(row.get(name), list) for name in ("messages", "prompt", "completion", "chosen"))


def _call_tools(rows: Dataset) -> bool:
    """True where one of the first rows has a turn that calls a tool."""
    parts = (part for row in itertools.islice(rows, 100) for part in row.values() if isinstance(part, list))
    return any(isinstance(turn, Mapping) and turn.get("tool_calls") for part in parts for turn in part)
