"""The trainer, served what its signature names."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from runner.config.build import asked_for, locate
from runner.config.experiment import Experiment
from runner.io.temporary import temporarily
from runner.model.adapter import complete_heads, order_modules
from runner.model.encoding import tokenizer_of
from runner.model.reference_model import match_reference
from runner.schema import upstream
from runner.training.components.token_weights import BoundRule
from runner.training.components.trainer_parts import build_inside, loss_interface_of
from runner.training.components.training_rows import limit_held_out
from runner.training.extension import extend
from runner.training.hooks import Hooks
from runner.training.precompute import drop_long, mark_rows_with_code, note_of, share_rows
from runner.training.sequence_objective import OBJECTIVES
from runner.training.user_loss import call_loss

# Keys of the trainer's node that are neither ours nor arguments of its constructor.
NOT_FOR_THE_TRAINER = {"_target_", "args", *upstream.FUNCTIONS}


def build_trainer(
    experiment: Experiment,
    offered: Mapping[str, Any],
    hooks: Hooks,
    rules: Sequence[BoundRule] = (),
    *,
    shares: bool = True,
) -> Trainer:
    """The trainer, given those of the offered arguments that its constructor names.

    Where it ``shares`` them, prepared rows and a precomputed reference are found again by other
    runs. With ``rules`` its batches may carry weights, and it packs no rows, because its own
    packing would lose them.
    """
    part = experiment.trainer
    args = offered["args"]
    tokenizer = tokenizer_of(offered["processing_class"])
    wanted = asked_for(part.target)
    kind = loss_interface_of(part)
    objective = OBJECTIVES.get(kind) if hooks.loss or rules else None
    shared = share_rows(offered, kind, hooks.skips_padding) if shares else None

    parts = dict(offered if shared is None else shared)
    if objective is None:
        parts["compute_loss_func"] = hooks.loss
    if hooks.loss is not None:
        parts["policy_loss"] = functools.partial(call_loss, hooks.loss)
    mark_rows_with_code(experiment, parts)
    parts["eval_dataset"] = limit_held_out(experiment, parts["eval_dataset"])
    arguments = {}
    for name, component in parts.items():
        if name in wanted and component is not None and component != []:
            arguments[name] = component
    settings = part.arguments
    for key in NOT_FOR_THE_TRAINER:
        settings.pop(key, None)
    arguments |= build_inside(settings, tokenizer, "trainer")

    changes = _changes_of_rows(args, has_weights=bool(rules), is_shared=shared is not None)
    loads_reference = "reward_funcs" in wanted and "ref_model" not in wanted
    if loads_reference and (
        experiment.model.node.get("config") or hasattr(tokenizer, "new_tokens")
    ):
        changes["model_init_kwargs"] = {
            **(args.model_init_kwargs or {}),
            "config": offered["model"].config,
            "ignore_mismatched_sizes": True,
        }
    # A trainer that samples may load a reference or a teacher from the model's path.
    on_disk: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if part.form == "prompt" and "ref_model" not in wanted:
        on_disk = _on_disk(offered["model"])
    with on_disk, temporarily(args, **changes), _nameless(tokenizer):
        trainer_class = extend(locate(part.target), objective)
        trainer = trainer_class(hooks=hooks, **arguments)

    if shared is not None and not drop_long(trainer):
        return build_trainer(experiment, offered, hooks, rules, shares=False)
    if shared is not None and getattr(args, "precompute_ref_log_probs", False):
        note_of(experiment, args, offered["train_dataset"], offered["eval_dataset"]).touch()
    trainer.remove_callback(PrinterCallback)
    match_reference(trainer)
    complete_heads(trainer.model)
    order_modules(trainer.model)
    # Each reward is logged under its name in the config; TRL and PPO call a model by its folder.
    names = list(experiment.rewards)
    names_of_ppo = getattr(getattr(trainer, "rewards", None), "names", None)
    logged_names = names_of_ppo or getattr(trainer, "reward_func_names", [])
    logged_names[: len(names)] = names
    return trainer


def _changes_of_rows(
    args: TrainingArguments, *, has_weights: bool, is_shared: bool
) -> dict[str, Any]:
    """The values that the config object has only while the trainer prepares its rows."""
    if has_weights and getattr(args, "packing", False):
        padding_free = args.padding_free or args.packing_strategy != "wrapped"
        return {"packing": False, "max_length": None, "padding_free": padding_free}
    return {"max_length": None} if is_shared else {}


@contextlib.contextmanager
def _nameless(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Within it a tokenizer has no path: rows are found again by a hash of the tokenizer, too."""
    settings = dict(tokenizer.init_kwargs)
    settings.pop("name_or_path", None)
    with temporarily(tokenizer, name_or_path="", init_kwargs=settings):
        yield


@contextlib.contextmanager
def _on_disk(model: PreTrainedModel | str) -> Iterator[None]:
    """Within it a model that came from no path has one, for a trainer that loads its reference."""
    if isinstance(model, str) or model.config._name_or_path:
        yield
        return
    with TemporaryDirectory() as folder, temporarily(model.config, _name_or_path=folder):
        model.save_pretrained(folder)
        yield
