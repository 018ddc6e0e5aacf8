"""The user's callbacks and the runner's, in the order in which they must come."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runner.config.build import asked_for, serve
from runner.dataset.form import fits
from runner.errors import ConfigError, Fault
from runner.generate.rows import held_out_sets
from runner.run import Run
from runner.run.adjustments import ROLLBACK, adjusted_share, count_of
from runner.schema import upstream
from runner.schema.text import Config, Node, named

if TYPE_CHECKING:
    from datasets import Dataset
    from peft import PeftConfig
    from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainingArguments

    from runner.dataset.load import HeldOut
    from runner.reward.panel import RewardTracker
    from runner.training.callback import StopRequest
    from runner.training.checkpoint import Seal
    from runner.training.health.watch import Health


def build_callbacks(cfg: Config, served: Mapping[str, object]) -> list[TrainerCallback]:
    """The user's callbacks as they are listed, but for those that ask for the trainer."""
    entries = named(cfg["callback"] or {}, "callback").items()
    return [_callback(name, node, served) for name, node in entries if not _wants_trainer(node)]


def add_callbacks(
    trainer: Trainer,
    run: Run,
    served: Mapping[str, object],
    stop: StopRequest | None,
    health: Health,
    seal: Seal,
    adjustments: Sequence[Mapping[str, Any]],
) -> None:
    """Add the user's callbacks that ask for the trainer, then the runner's; the adjusted learning rate is one of them.

    The seal comes after all that decide what a step will save.
    """
    from runner.training.callback import Progress, Record, Slower, StopAtStep

    for name, node in named(run.cfg["callback"] or {}, "callback").items():
        if _wants_trainer(node):
            callback = _callback(name, node, {**served, "trainer": trainer})
            trainer.add_callback(callback)
            callback.on_init_end(trainer.args, trainer.state, trainer.control)
    callbacks: list[TrainerCallback] = [StopAtStep(stop, seal.cycle_steps)] if stop else []
    callbacks += [Record(run.metrics, run.set_status), health, Progress(), seal]
    if count_of(adjustments, ROLLBACK):
        callbacks.append(Slower(functools.partial(adjusted_share, adjustments)))
    for callback in callbacks:
        trainer.add_callback(callback)


def build_health(
    cfg: Config, args: TrainingArguments, peft_config: PeftConfig | None, panel: RewardTracker | None
) -> Health:
    """The alarms that fit this kind of training."""
    from runner.model.adapter import moves_start
    from runner.training.health.alarms import build_alarms
    from runner.training.health.watch import Health

    asked = asked_for(cfg["trainer"]["_target_"])
    # A prompt or prefix starts elsewhere by nature, with a right reference.
    starts_at_reference = upstream.REF_MODEL in asked and not moves_start(peft_config)
    rounding = 5e-2 if args.bf16 or args.fp16 else 1e-4
    alarms = functools.partial(
        build_alarms,
        cfg.get("tolerate"),
        online=upstream.REWARD_FUNCS in asked,
        anchored=upstream.REF_MODEL in asked,
        pairs=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        rounding=rounding if starts_at_reference else None,
        length=upstream.completion_length(vars(args)),
    )
    return Health(lambda resumed: alarms(resumed=resumed), panel.spread if panel else None)


def for_callbacks(run: Run, tokenizer: PreTrainedTokenizerBase, rows: Dataset, held_out: HeldOut) -> dict[str, object]:
    """The arguments that a callback's constructor may name.

    ``generate(model, prompts, max_new_tokens=...)`` gives completions as texts, ``prompts`` are the held-out ones, and
    ``folder`` is that of the run; the first two where the model writes, and the rows have prompts.
    """
    from runner.generate.completion import generate

    cfg = run.cfg
    served = {"tokenizer": tokenizer, upstream.PROCESSING_CLASS: tokenizer, "folder": run.folder}
    served |= {upstream.TRAIN_DATASET: rows, "eval_dataset": held_out}
    if cfg["trainer"]["head"] == "lm":  # PPO has a policy beside a critic
        served["generate"] = lambda model, prompts, **how: generate(
            getattr(model, "policy", model), tokenizer, prompts, **how
        )
    if fits(cfg["dataset"].get("form"), "prompt") and held_out is not None:
        served["prompts"] = functools.partial(_held_out_prompts, cfg)
    return served


def _held_out_prompts(cfg: Config) -> Iterator[object]:
    """The prompts of the held-out rows of every set, read when the first is taken."""
    for rows in held_out_sets(cfg, "prompt").values():
        yield from (row["prompt"] for row in rows)


def _callback(name: str, node: Node, served: Mapping[str, Any]) -> TrainerCallback:
    """One callback; its config comes before what it would be served, of the prompts each has its own."""
    from transformers import TrainerCallback

    own = {"callback_name": name} | ({"prompts": served["prompts"]()} if "prompts" in served else {})
    callback = serve(node, **{key: part for key, part in {**served, **own}.items() if key not in node})
    if not isinstance(callback, TrainerCallback):
        found, expected = f"a {type(callback).__name__}, which handles no event", "a transformers.TrainerCallback"
        raise ConfigError(Fault(f"callback.{name}", found, expected, f"class {type(callback).__name__}({expected}):"))
    return callback


def _wants_trainer(node: Node) -> bool:
    return "trainer" in asked_for(node["_target_"]) and "trainer" not in node
