"""Run folder -> the components of a training, built by calls in order, each given what it needs."""

import contextlib
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments, set_seed

from runner.config.build import build, serve
from runner.dataset.check import find_image_faults
from runner.dataset.form import answer_columns, is_conversation
from runner.dataset.image import IMAGES, has_images
from runner.dataset.load import HeldOut, list_columns
from runner.errors import ConfigError, DataError, Fault, fault, own_place
from runner.generate.reward_model import ModelReward
from runner.io.terminal import mute_libraries
from runner.io.turns import TEMPLATE_ARGUMENTS
from runner.model.chat import check_calls, check_rendering, check_template
from runner.model.encoding import processor_of, write_prompt
from runner.run import Run
from runner.run.adjustments import adjust_logs, read_adjustments
from runner.run.alarms import steps_to_notice
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import Config
from runner.tracker.callback import Tracker, replace_trackers
from runner.training.callback import StopRequest, add_callbacks, build_callbacks, for_callbacks
from runner.training.checkpoint import Seal
from runner.training.components import trainer as trainers
from runner.training.components.args import build_args
from runner.training.components.evaluation import build_measure
from runner.training.components.model import build_model
from runner.training.components.rewards import build_rewards
from runner.training.components.tools import agent_of, build_functions, check_environments
from runner.training.extension import Hooks
from runner.training.health import Health, build_health
from runner.training.precompute import map_sets, precompute_by_default

log = logging.getLogger(__name__)


@dataclass
class Components:
    """The parts of a training that others than the trainer need, as they were before it put its own around them."""

    args: TrainingArguments
    tokenizer: PreTrainedTokenizerBase
    train_rows: Dataset
    held_out: HeldOut
    trainer: Trainer
    health: Health
    seal: Seal
    trackers: list[Tracker]  # those of the trainer's callbacks that log to one
    adjustments: list[dict[str, Any]]


def build_components(run: Run, stop: StopRequest | None = None) -> Components:
    """Build every component of a run, in the order in which they need each other."""
    cfg, adjustments = run.cfg, read_adjustments(run.folder)
    mute_libraries()
    set_seed(cfg["seed"])
    with _refusals_of("trainer.args"):
        args = build_args(run, adjustments)
    tokenizer = build(cfg["model"]["tokenizer"])
    rules, node, form = trainers.build_rules(cfg.get("weight")), cfg["trainer"], cfg["trainer"]["form"]
    rows, held_out = serve(cfg["dataset"], to=form, seed=cfg["seed"], keep=trainers.columns_asked_for(rules))
    if column := node.get("reference_column"):
        rows, held_out = (map_sets(functools.partial(_name_reference, column), part) for part in (rows, held_out))
    rewards, weights, panel = build_rewards(cfg, args)
    models: list[ModelReward] = []
    if panel is not None and not hasattr(args, "step_separator"):  # PPO reads a model itself
        arguments = getattr(args, upstream.CHAT_TEMPLATE_KWARGS, None) or {}
        for index, (name, reward) in enumerate(zip(panel.earned, rewards, strict=True)):
            if isinstance(reward, nn.Module):
                models.append(ModelReward(name, reward, tokenizer, panel, arguments))
                rewards[index] = models[-1]
    if weights:
        args.reward_weights = weights
    if _check_rows(cfg, tokenizer, rows, answers_only=getattr(args, upstream.ASSISTANT_ONLY_LOSS, False)):
        rows, held_out = (map_sets(functools.partial(_bounded, node, tokenizer), part) for part in (rows, held_out))
        if form == "prompt" and hasattr(args, upstream.CHAT_TEMPLATE_KWARGS):
            rows, held_out = (map_sets(functools.partial(_write_prompts, tokenizer, args), x) for x in (rows, held_out))
    if hasattr(args, once := upstream.PRECOMPUTE_REF_LOG_PROBS) and once not in cfg["trainer"]["args"]:
        precompute_by_default(run, args, rows, held_out)
    model, peft_config, reference = build_model(cfg, tokenizer, args)
    agent = agent_of(node, functions := build_functions(node))
    served = for_callbacks(run, tokenizer, rows, held_out, agent)
    by_path = upstream.takes_path(read_signature(cfg["trainer"]["_target_"]))
    offered = {"model": model.name_or_path if by_path else model, upstream.REF_MODEL: reference, "args": args}
    offered |= {upstream.PROCESSING_CLASS: processor_of(tokenizer), upstream.REWARD_FUNCS: rewards}
    offered |= {upstream.TRAIN_DATASET: rows, "eval_dataset": held_out, "peft_config": peft_config, **functions}
    offered[upstream.DATA_COLLATOR] = trainers.build_collator(cfg["collator"], tokenizer)
    offered[upstream.CALLBACKS] = build_callbacks(cfg, served)
    health, schedule = build_health(cfg, args, peft_config, panel), (cfg.get("optimizer") or {}).get("scheduler")
    hooks = Hooks(
        evaluates=cfg["trainer"].get("evaluates", True),
        measure=build_measure(run, tokenizer, adjustments, agent) if held_out is not None else None,
        on_loss=health.observe_loss,
        on_log=functools.partial(adjust_logs, adjustments) if adjustments else None,
        reward_means=panel.pop_means if panel else None,
        make_optimizer=trainers.optimizer_maker(cfg.get("optimizer")),
        make_schedule=schedule and functools.partial(serve, schedule),
        loss=trainers.build_loss(cfg.get("loss")),
        use_cache=getattr(model.config, "use_cache", None),
    )
    with _refusals_of("trainer"):
        trainer = trainers.build_trainer(cfg, offered, hooks, rules)
    for reward_model in models:
        reward_model.place(trainer)
    collator = trainers.build_collator(cfg["collator"], tokenizer, inner=trainer.data_collator)
    trainer.data_collator = collator or trainer.data_collator
    if rules:
        trainers.set_weights(trainer, rules)
    trainers.group_lengths(trainer)
    trackers = replace_trackers(trainer, cfg, run.folder)
    keep = cfg["trainer"]["args"].get(upstream.SAVE_TOTAL_LIMIT) or 2
    seal = Seal(keep, steps_to_notice(cfg.get("tolerate")), upstream.cycle_steps(vars(args)), run.set_status)
    add_callbacks(trainer, run, served, stop, health, seal, adjustments)
    return Components(args, tokenizer, rows, held_out, trainer, health, seal, trackers, adjustments)


def _name_reference(column: str, rows: Dataset) -> Dataset:
    return rows if column in list_columns(rows) else rows.rename_column("reference", column)


def _write_prompts(tokenizer: PreTrainedTokenizerBase, args: TrainingArguments, rows: Dataset) -> Dataset:
    """Rows with prompts as texts, where each has arguments of its own for the template, which the trainer ignores."""
    if TEMPLATE_ARGUMENTS not in list_columns(rows):
        return rows
    log.warning("each prompt is written with its own %s: rewards are given texts, and not chats", TEMPLATE_ARGUMENTS)

    def write(row: dict[str, Any]) -> dict[str, Any]:
        own = {TEMPLATE_ARGUMENTS: (args.chat_template_kwargs or {}) | row[TEMPLATE_ARGUMENTS]}
        return {"prompt": write_prompt(tokenizer, row | own)}

    return rows.map(write, remove_columns=[TEMPLATE_ARGUMENTS])


@contextlib.contextmanager
def _refusals_of(where: str) -> Iterator[None]:
    """Turn a ValueError of a TRL constructor into a ConfigError: it refuses a configuration that cannot work."""
    try:
        yield
    except pa.ArrowInvalid:  # of a file in the cache
        raise
    except ValueError as error:
        if own_place(error):
            raise
        raise ConfigError(Fault(where, str(error).splitlines()[0], "values that go together")) from error


def _check_rows(cfg: Config, tokenizer: PreTrainedTokenizerBase, every: Dataset, *, answers_only: bool) -> bool:
    """True for chats, of which the first are seen to have a template; warns of a column that is not used."""
    rows, node = list(itertools.islice(every, 100)), cfg["trainer"]
    first = rows[0] if rows else {}
    if IMAGES in first:
        DataError.refuse(find_image_faults(cfg, sees=processor_of(tokenizer) is not tokenizer))
        ConfigError.refuse([fault("training.answers_of_images")] if answers_only and "messages" not in first else [])
    if node["form"] == "preference" and node["head"] != "score" and "margin" in first:
        log.warning("the column `margin` is not used: of margins only the loss of a reward model knows")
    chats = any(is_conversation(first.get(name)) for name in ("prompt", *answer_columns(first)))
    turns = (turn for row in rows for part in row.values() if is_conversation(part) for turn in part)
    calls = any(isinstance(turn, Mapping) and turn.get("tool_calls") for turn in turns)
    check_template(tokenizer, chats=chats, calls=calls, answers_only=answers_only)
    if any(node.get(key) for key in upstream.FUNCTIONS if key != upstream.ROLLOUT_FUNC):
        if not chats:
            raise DataError(fault("training.tools_without_chats"))
        check_calls(tokenizer)
    return chats


def _bounded(node: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, part: Any) -> Any:
    """Rows that the template is seen to write within bounds before they are used, those of a stream as they flow."""
    check_environments(node, part)

    def are_bounded(cells: Mapping[str, list[Any]]) -> list[bool]:
        rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
        check_rendering(tokenizer, ((row, answer_columns(row)) for row in rows))
        return [True] * len(rows)

    if isinstance(part, Dataset):
        texts = part.remove_columns([name for name in part.column_names if name == IMAGES])  # which nobody decodes here
        check_rendering(tokenizer, ((row, answer_columns(row)) for row in texts))
        # Who calls tools reads images out of turns, and TRL fails where one row of a batch has none.
        if IMAGES in part.column_names and upstream.MAX_TOOL_CALLING_ITERATIONS in upstream.config_fields(node["args"]):
            lacking = sum(not has_images(row) for row in texts)
            DataError.refuse([fault("training.images_of_some", count=lacking)] if 0 < lacking < len(texts) else [])
        return part
    return part.filter(are_bounded, batched=True, batch_size=100)
