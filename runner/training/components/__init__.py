"""Run folder -> the components of a training, built by calls in order, each given what it needs."""

import contextlib
import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainingArguments, set_seed

from runner.config.build import build, serve
from runner.dataset.check import find_image_faults
from runner.dataset.form import answer_columns, is_conversation
from runner.dataset.image import IMAGES, has_images
from runner.dataset.load import Rows, fit_rows, list_columns
from runner.dataset.weigh import carries_weights
from runner.errors import ConfigError, DataError, Fault, fault, own_place
from runner.generate.reward_model import ModelReward
from runner.io.terminal import mute_libraries
from runner.io.turns import TEMPLATE_ARGUMENTS, habits_of
from runner.model.chat import check_calls, check_rendering, check_template, look_at_texts
from runner.model.check import no_stop_strings
from runner.model.encoding import processor_of, write_prompt
from runner.run import Run
from runner.run.adjustments import adjust_logs, read_adjustments
from runner.run.alarms import steps_to_notice
from runner.schema import upstream
from runner.schema.read import read_signature
from runner.schema.text import Config, named, short_text, to_text
from runner.tracker.callback import replace_trackers
from runner.training.callback import StopRequest, add_callbacks, build_callbacks, for_callbacks
from runner.training.checkpoint import Seal
from runner.training.components import trainer as trainers
from runner.training.components.args import build_args
from runner.training.components.evaluation import build_measure
from runner.training.components.model import build_model
from runner.training.components.rehearsal import blaming, rehearse_components
from runner.training.components.rewards import build_rewards
from runner.training.components.tools import agent_of, build_functions, check_environments
from runner.training.components.types import Components
from runner.training.extension import Hooks
from runner.training.health import build_health
from runner.training.precompute import map_sets, precompute_by_default, sets_of

log = logging.getLogger(__name__)

BY_MESSAGE = "runner.dataset.weigh.by_message"


def build_components(run: Run, stop: StopRequest | None = None) -> Components:
    """Build every component of a run, in the order in which they need each other."""
    cfg: Config = run.cfg
    adjustments = read_adjustments(run.folder)
    mute_libraries()
    set_seed(cfg["seed"])
    with _refusals_of("trainer.args"), blaming(run, "trainer.args"):
        args = build_args(run, adjustments)
    rehearse_components(run, args)
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
        check_texts(cfg, tokenizer, [rows, *sets_of(held_out)], form)
        fit = functools.partial(fit_rows, habits=habits_of(processor_of(tokenizer)))
        rows, held_out = (map_sets(fit, part) for part in (rows, held_out))
        if any(map(carries_weights, (rows, *sets_of(held_out)))):
            cfg, rules = _weigh_turns(cfg, args, rows)
        if form == "prompt" and hasattr(args, upstream.CHAT_TEMPLATE_KWARGS):
            rows, held_out = (map_sets(functools.partial(_write_prompts, tokenizer, args), x) for x in (rows, held_out))
    if hasattr(args, once := upstream.PRECOMPUTE_REF_LOG_PROBS) and once not in cfg["trainer"]["args"] and not rules:
        precompute_by_default(run, args, rows, held_out)
    model, peft_config, reference = build_model(cfg, tokenizer, args)
    strings = getattr(getattr(model, "generation_config", None), "stop_strings", None)
    samples = upstream.samples_by_library(node["_target_"], upstream.config_fields(node["args"]))
    if strings and samples and not getattr(args, upstream.USE_VLLM, False):
        raise ConfigError(no_stop_strings(strings, str(cfg["model"].get("path"))))
    agent = agent_of(node, functions := build_functions(node))
    served = for_callbacks(run, tokenizer, rows, held_out, agent)
    by_path = upstream.takes_path(read_signature(cfg["trainer"]["_target_"]))
    offered = {"model": model.name_or_path if by_path else model, upstream.REF_MODEL: reference, "args": args}
    offered |= {upstream.PROCESSING_CLASS: processor_of(tokenizer), upstream.REWARD_FUNCS: rewards}
    offered |= {upstream.TRAIN_DATASET: rows, "eval_dataset": held_out, "peft_config": peft_config, **functions}
    offered[upstream.DATA_COLLATOR] = trainers.build_collator(cfg["collator"], tokenizer)
    offered[upstream.CALLBACKS] = build_callbacks(cfg, served)
    health, schedule = build_health(run, args, peft_config, panel), (cfg.get("optimizer") or {}).get("scheduler")
    hooks = Hooks(
        evaluates=cfg["trainer"].get("evaluates", True),
        measure=build_measure(run, tokenizer, adjustments, agent),
        on_loss=health.observe_loss,
        on_log=functools.partial(adjust_logs, adjustments) if adjustments else None,
        reward_means=panel.pop_means if panel else None,
        make_optimizer=trainers.optimizer_maker(cfg.get("optimizer")),
        make_schedule=schedule and functools.partial(serve, schedule),
        loss=trainers.build_loss(cfg.get("loss")),
        reads_cross_entropy=upstream.ranking_figure(cfg) == upstream.CROSS_ENTROPY,
        use_cache=getattr(model.config, "use_cache", None),
    )
    with _refusals_of("trainer"), blaming(run):
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
    weighs = IMAGES not in first and _kind_of_loss(node) in upstream.WEIGHED
    check_template(tokenizer, chats=chats, calls=calls, answers_only=answers_only, weighs=weighs)
    if any(node.get(key) for key in upstream.FUNCTIONS if key != upstream.ROLLOUT_FUNC):
        if not chats:
            raise DataError(fault("training.tools_without_chats"))
        check_calls(tokenizer)
    return chats


def _kind_of_loss(node: Config) -> str | None:
    return upstream.loss_interface(read_signature(node["_target_"]), read_signature(node["args"]["_target_"]))


def check_texts(cfg: Config, tokenizer: PreTrainedTokenizerBase, parts: Sequence[Any], form: str) -> None:
    """Raise DataError where a text of the rows, in a trainer's form, does not reach the model; warn of what may not."""
    is_tolerated = bool((cfg.get("tolerate") or {}).get("lost_text"))
    mixed = list(cfg["dataset"].get("parts") or ())
    faults, notes = list[Fault](), dict[str, None]()
    for part in parts:
        if isinstance(part, Dataset) and IMAGES in part.column_names:
            part = part.remove_columns([IMAGES])  # which nobody decodes here
        reach = look_at_texts(tokenizer, ((row, () if form == "prompt" else answer_columns(row)) for row in part))
        faults += reach.faults(mixed, tolerated=is_tolerated)
        notes |= dict.fromkeys(reach.notes(tolerated=is_tolerated))
    DataError.refuse(faults)
    for note in notes:
        log.warning(note)


def _weigh_turns(cfg: Config, args: TrainingArguments, rows: Rows) -> tuple[Config, list[trainers.BoundRule]]:
    """The configuration with a rule for the weights that turns carry, beside its own, and all its rules.

    As in OpenAI's files for fine-tuning the assistant's turns alone are trained, and of them no turn of weight 0.
    """
    node, weight = cfg["trainer"], cfg.get("weight") or {}
    named_rules = dict(named(weight, "weight"))
    if node["form"] == "prompt":
        log.warning("not used: the weights of turns, because sampled answers alone are trained")
    if node["form"] == "prompt" or any(rule and rule.get("_target_") == BY_MESSAGE for rule in named_rules.values()):
        return cfg, trainers.build_rules(weight)
    where, found = "dataset", "turns of the rows have a weight"
    if _kind_of_loss(node) not in upstream.WEIGHED:
        if (cfg.get("tolerate") or {}).get("turn_weights"):
            log.warning("not used: the weights of turns, because of tolerate.turn_weights")
            return cfg, trainers.build_rules(weight)
        fix = "trainer=sft, dpo or kto, or tolerate.turn_weights=true, which trains as if they had none"
        kind = str(node["_target_"]).rpartition(".")[2]
        raise DataError(Fault(where, f"{found}, and {kind} weighs no tokens", "a trainer that weighs them", fix))
    if IMAGES in list_columns(rows):
        fix = "leave the weights out by dataset.map"
        raise DataError(Fault(where, f"{found}, and there are images", "rows with one of them", fix))
    faults = list[Fault]()
    unweighable = upstream.UNWEIGHABLE | {upstream.LOSS_TYPE: ("nll", "dft weighs each token by itself")}
    if (cfg["dataset"].get("streaming") or not isinstance(rows, Dataset)) and getattr(args, upstream.PACKING, False):
        unweighable[upstream.PACKING] = (False, "streamed rows with weights are not packed")
    for name, (right, why) in unweighable.items():
        value = node["args"].get(name, right)
        is_right = value == right or (name == upstream.LOSS_TYPE and value != "dft")
        if not is_right and name != upstream.ASSISTANT_ONLY_LOSS:
            place = f"trainer.args.{name}"
            faults.append(Fault(place, f"{short_text(value)}, and {found}", why, f"={to_text(right)}"))
    ConfigError.refuse(faults)
    if hasattr(args, upstream.ASSISTANT_ONLY_LOSS):
        setattr(args, upstream.ASSISTANT_ONLY_LOSS, False)  # the weights leave the same tokens, but for those of 0
    log.warning("turns of the rows have a weight: the assistant's alone are trained, each by its own (weight=message)")
    both = named_rules | {"of_turns": {"_target_": BY_MESSAGE}}
    return {**cfg, "weight": both}, trainers.build_rules(both)


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
