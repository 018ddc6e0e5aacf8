"""The trainer, served what its signature names, with its collator, loss, token weights, optimizer, schedule, order."""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from datasets import Dataset, DatasetDict
from torch.optim import Optimizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer
from transformers.trainer_callback import TrainerCallback, TrainerState
from transformers.trainer_pt_utils import LengthGroupedSampler

from runner.collator import Collator
from runner.config.build import asked_for, build, locate, serve
from runner.dataset.detect import EVERY
from runner.dataset.weigh import (
    Entry,
    Weigher,
    WeightCollator,
    columns_of,
    pack_rows,
    rotate_weights,
    warn_of_idle_rules,
    weigh_rows,
)
from runner.errors import Fault, RunnerError
from runner.generate.budget import prompts_answered
from runner.io.temporary import temporarily
from runner.model.adapter import complete_heads, order_modules
from runner.model.encoding import processor_of, tokenizer_of
from runner.model.reference import match_reference
from runner.optimizer import build_optimizer
from runner.schema import upstream
from runner.schema.code import code_hash, hash_packages, packages_of
from runner.schema.read import read_signature
from runner.schema.text import Config, Node, named
from runner.training.extension import Hooks, extend
from runner.training.objective import OBJECTIVES, call
from runner.training.precompute import drop_long, map_sets, note_of, share_rows, with_code

BoundRule: TypeAlias = functools.partial[Sequence[Entry]]

NOT_FOR_THE_TRAINER = {"_target_", "form", "head", "evaluates", "shares_batch", "reference_column", "images", "args"}
NOT_FOR_THE_TRAINER |= {"needs_gpu", "tool_timeout"}
# Parts of a configuration whose code decides what a trainer keeps in a cache: tokens, and log-probabilities.
PREPARES_ROWS = ("trainer", "model", "peft", "quant")


def build_trainer(
    cfg: Config, offered: Mapping[str, Any], hooks: Hooks, rules: Sequence[BoundRule] = (), *, shares: bool = True
) -> Trainer:
    """The trainer, given those of the offered arguments that its constructor names.

    Where it ``shares`` them, prepared rows and a precomputed reference are found again by other runs. With
    ``rules`` its batches may carry weights, and it packs no rows, because its own packing would lose them.
    """
    node, tokenizer, args = cfg["trainer"], tokenizer_of(offered[upstream.PROCESSING_CLASS]), offered["args"]
    wanted, trainer_class = asked_for(node["_target_"]), locate(node["_target_"])
    inside = {key: value for key, value in node.items() if key not in (*NOT_FOR_THE_TRAINER, *upstream.FUNCTIONS)}
    own = {key: _build_inside(value, tokenizer, f"trainer.{key}") for key, value in inside.items()}
    kind = upstream.loss_interface(read_signature(node["_target_"]), read_signature(node["args"]["_target_"]))
    objective = OBJECTIVES.get(kind) if hooks.loss or rules else None
    shared, changed = share_rows(offered, kind) if shares else None, {}
    if rules and getattr(args, upstream.PACKING, False):
        padding_free = args.padding_free or args.packing_strategy != "wrapped"
        changed = {upstream.PACKING: False, "max_length": None, upstream.PADDING_FREE: padding_free}
    elif shared:
        changed = {"max_length": None}
    parts = dict(shared or offered) | ({} if objective else {upstream.COMPUTE_LOSS_FUNC: hooks.loss})
    parts["policy_loss"] = (lambda **given: call(hooks.loss, given)) if hooks.loss else None
    code = hash_packages(packages_of({name: cfg.get(name) for name in PREPARES_ROWS}))
    if code:
        parts[upstream.TRAIN_DATASET] = with_code(parts[upstream.TRAIN_DATASET], code)
        parts["eval_dataset"] = map_sets(lambda rows: with_code(rows, code), parts["eval_dataset"])
    most, sets = prompts_answered(cfg), parts["eval_dataset"]
    sets = map_sets(lambda rows: rows.take(most), sets) if most else sets
    if isinstance(sets, dict) and all(isinstance(each, Dataset) for each in sets.values()):
        sets = DatasetDict(sets)  # some trainers map over all of them as if they were one
    parts["eval_dataset"] = sets
    served = {name: part for name, part in parts.items() if name in wanted and part is not None and part != []}
    # Rows are found again under a hash of the tokenizer too, in which its folder is not to matter.
    nameless = {key: value for key, value in tokenizer.init_kwargs.items() if key != "name_or_path"}
    loads_reference = upstream.REWARD_FUNCS in wanted and upstream.REF_MODEL not in wanted
    if loads_reference and (cfg["model"].get("config") or hasattr(tokenizer, "new_tokens")):
        how = {"config": offered["model"].config, "ignore_mismatched_sizes": True}
        changed[upstream.MODEL_INIT_KWARGS] = (args.model_init_kwargs or {}) | how
    by_path = node["form"] == "prompt" and upstream.REF_MODEL not in wanted  # as it may load a reference or a teacher
    placed = _on_disk(offered["model"]) if by_path else contextlib.nullcontext()
    with placed, temporarily(args, **changed), temporarily(tokenizer, name_or_path="", init_kwargs=nameless):
        trainer = extend(trainer_class, objective)(hooks=hooks, **served | own)
    if shared and not drop_long(trainer):
        return build_trainer(cfg, offered, hooks, rules, shares=False)
    if shared and getattr(args, upstream.PRECOMPUTE_REF_LOG_PROBS, False):
        note_of(cfg, args, offered[upstream.TRAIN_DATASET], offered["eval_dataset"]).touch()
    trainer.remove_callback(PrinterCallback)
    match_reference(trainer)
    complete_heads(trainer.model)
    order_modules(trainer.model)
    # Under its name in the config each reward is logged; TRL and PPO call a model by its folder.
    names = list(named(cfg["reward"] or {}, "reward"))
    logged = getattr(getattr(trainer, "rewards", None), "names", None) or getattr(trainer, "reward_func_names", [])
    logged[: len(names)] = names
    return trainer


@contextlib.contextmanager
def _on_disk(model: PreTrainedModel | str) -> Iterator[None]:
    """Within it a model that came from no path has one, for a trainer that loads its reference from there."""
    if isinstance(model, str) or model.config._name_or_path:
        yield
        return
    with TemporaryDirectory() as folder, temporarily(model.config, _name_or_path=folder):
        model.save_pretrained(folder)
        yield


def _build_inside(value: object, tokenizer: PreTrainedTokenizerBase, where: str) -> object:
    """A value of the trainer's node with the nodes in it built, and served the tokenizer."""
    if isinstance(value, list):
        return [_build_inside(each, tokenizer, where) for each in value]
    if not isinstance(value, Mapping):
        return value
    inside = {key: _build_inside(each, tokenizer, f"{where}.{key}") for key, each in value.items()}
    try:
        return serve(inside, tokenizer=tokenizer) if "_target_" in inside else inside
    except RunnerError as error:
        beats = [(re.sub(r"(?<!\S)model\.", f"{where}.", text) for text in astuple(fault)) for fault in error.faults]
        error.faults = [Fault(*each) for each in beats]
        raise


def optimizer_maker(node: Node | None) -> Callable[[Trainer], Optimizer] | None:
    """A function that makes the configured optimizer, for a trainer that knows its weights; None without one."""
    if not node:
        return None
    settings = {key: value for key, value in node.items() if key not in ("_target_", "groups", "scheduler")}
    takes_rate = settings.get("lr") is None and "lr" in asked_for(node["_target_"])
    return lambda trainer: build_optimizer(
        locate(node["_target_"]),
        trainer.model.named_parameters(),
        settings=build(settings | ({"lr": trainer.args.learning_rate} if takes_rate else {})),
        groups=node.get("groups") or {},
        decayed=trainer.get_decay_parameter_names(trainer.model),
    )


def build_collator(
    node: Node | None, tokenizer: PreTrainedTokenizerBase, inner: Collator | None = None
) -> Collator | None:
    """The configured collator, served the tokenizer; one that asks for the trainer's own as ``inner`` with it alone."""
    if node is None or ("inner" in asked_for(node["_target_"])) != (inner is not None):
        return None
    served = {"tokenizer": tokenizer, "pad_token_id": tokenizer.pad_token_id, "inner": inner}
    served[upstream.PROCESSING_CLASS] = processor_of(tokenizer)
    return serve(node, **{name: part for name, part in served.items() if name not in node})


def build_loss(node: Node | None) -> Callable[..., object] | None:
    """The configured loss: a function with its settings bound, or an instance of a class that is called."""
    if not node:
        return None
    if not inspect.isclass(locate(node["_target_"])):
        return build(dict(node) | {"_partial_": True})
    return build(({"reduction": "none"} if "reduction" in asked_for(node["_target_"]) else {}) | dict(node))


def build_rules(node: Node | None) -> list[BoundRule]:
    """The configured rules of token weights, which multiply."""
    return [build(dict(entry) | {"_partial_": True}) for entry in named(node or {}, "weight").values() if entry]


def columns_asked_for(rules: list[BoundRule]) -> list[str] | None:
    """The columns that rules read, for a dataset to keep; None where they read none."""
    if not rules:
        return None
    names = set().union(*map(columns_of, rules))
    return [EVERY] if "row" in names else sorted(names) or None


def set_weights(trainer: Trainer, rules: list[BoundRule]) -> None:
    """Give every token of the trainer's rows its weight, have its batches carry them, and pack the rows if asked to."""
    args, weigher = trainer.args, Weigher(rules, tokenizer_of(trainer.processing_class))
    key = str([(code_hash(rule), sorted(rule.keywords.items())) for rule in rules])

    def weighed(rows: Dataset) -> Dataset:
        rows = weigh_rows(rows, weigher, key, args.dataset_num_proc)
        if getattr(trainer, "calculate_KL", False):
            rows = rotate_weights(rows, args.per_device_train_batch_size)
        if not getattr(args, upstream.PACKING, False):
            return rows
        pack = {"seq_length": args.max_length, "strategy": args.packing_strategy, "shuffle": args.shuffle_dataset}
        return pack_rows(rows, args.seed, **pack)

    rows = trainer.train_dataset
    with args.main_process_first(desc="weights of tokens"):
        trainer.train_dataset = weighed(rows)
        trainer.eval_dataset = map_sets(weighed, trainer.eval_dataset)
    warn_of_idle_rules(rows, weigher)
    trainer.data_collator = WeightCollator(trainer.data_collator)
    args.remove_unused_columns = False  # or the weights would be among them


class EpochOrder(TrainerCallback):
    """Draws an epoch's order from seed and number, not from torch's state, so that a run that goes on has it again."""

    def on_epoch_begin(self, args, state: TrainerState, control, train_dataloader: object, **_) -> None:
        sampler = train_dataloader
        for name in ("batch_sampler", "batch_sampler", "sampler"):  # of several processes each has a share of batches
            sampler = getattr(sampler, name, sampler)
        if isinstance(sampler, LengthGroupedSampler):
            seed = args.seed if args.data_seed is None else args.data_seed
            sampler.generator = torch.Generator().manual_seed(seed + int(state.epoch or 0))


def group_lengths(trainer: Trainer) -> None:
    """Give rows of several texts a length, which the library does for one alone, and each epoch an order of its own."""
    args = trainer.args
    if args.train_sampling_strategy not in upstream.OTHER_STEPS[upstream.TRAIN_SAMPLING_STRATEGY]:
        return

    def measured(rows: Dataset) -> Dataset:
        names = [name for name in getattr(rows, "column_names", None) or () if name.endswith("_ids")]
        if not isinstance(rows, Dataset) or not names or "input_ids" in names:
            return rows
        args.remove_unused_columns = False  # or the lengths would be among them
        texts = (rows.with_format("arrow")[name] for name in names)
        return rows.add_column(args.length_column_name, [sum(map(len, row)) for row in zip(*texts, strict=True)])

    trainer.train_dataset = measured(trainer.train_dataset)
    trainer.eval_dataset = map_sets(measured, trainer.eval_dataset)
    trainer.add_callback(EpochOrder())
