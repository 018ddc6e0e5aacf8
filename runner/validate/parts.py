"""Parts that do not go together: what the trainer asks for and is given, and what takes two to see.

Read from the trainer's own constructor: a part that it does not name cannot be served, and one that it lives on must be
there. Fields of its config are in ``arguments``, losses and weights of tokens in ``objective``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

import yaml

from runner.dataset.convert import ARROWS, FORMS_FOR, TRAINER_FORMS, fits
from runner.errors import Fault
from runner.files import MENU
from runner.signature import Config, Signature, last_key, nearest, scalars
from runner.signature.type import shortened
from runner.signature.upstream import REWARDS, TEACHER
from runner.validate.arguments import find_argument_faults
from runner.validate.context import ARGS, FROM_GROUP, ValidationContext
from runner.validate.objective import find_objective_faults
from runner.validate.values import short_text

# Groups that only some trainers can use; the others every run needs.
OPTIONAL_GROUPS = ("reward", "peft", "collator", "callback", "optimizer")


def find_part_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each part that is missing, in vain, or at odds with another."""
    trainer = context.signature(context.cfg.get("trainer"))
    if not trainer or not trainer.parameters:
        return
    yield from _not_asked_for(context, trainer)
    yield from _not_given(context, trainer)
    yield from find_objective_faults(context, trainer)
    yield from _adapter(context)
    yield from _parameter_groups(context)
    yield from _patterns(context)
    yield from _best_metric(context)
    yield from _early_stopping(context)
    yield from find_argument_faults(context)


def _not_asked_for(context: ValidationContext, trainer: Signature) -> Iterator[Fault]:
    """A fault for each part that the trainer's constructor does not name."""
    for group in OPTIONAL_GROUPS:
        node = context.cfg.get(group)
        if not _is_given(node) or trainer.is_open or _changes_model(context, node):
            continue
        if not any(FROM_GROUP.get(name) == group for name in trainer.parameters):
            off = "none" if "none" in context.menu.get(group, ()) else "null"
            found = f"set, but {trainer.name} takes no {group}"
            yield Fault(group, found, "none, or a trainer that takes one", f"{group}={off}")


def _is_given(node: object) -> bool:
    """True for a group that holds a part; a mapping of nothing but null does not."""
    return any(entry is not None for entry in node.values()) if isinstance(node, dict) else bool(node)


def _changes_model(context: ValidationContext, node: object) -> bool:
    """True for a part that changes the model itself, so that no trainer needs to know of it."""
    signature = context.signature(node)
    return signature is not None and "model" in signature.parameters


def _not_given(context: ValidationContext, trainer: Signature) -> Iterator[Fault]:
    """A fault where there is nothing that the trainer learns from."""
    node, options = context.mapping("trainer"), context.options("reward")
    given = _is_given(context.cfg.get("reward")) or node.get("environment_factory")
    if REWARDS in trainer.parameters and not given and not context.mapping("trainer.args").get("reward_model_path"):
        expected = f"one of {shortened(options)}" if options else "entries with a _target_"
        cure = f"reward={options[0]}" if options else "reward.<name>._target_=<module.name>"
        yield Fault("reward", f"none, and {trainer.name} learns from rewards", expected, cure)
    if TEACHER in trainer.parameters and not node.get(TEACHER):
        found, cure = f"none, and {trainer.name} learns from a teacher", f"trainer.{TEACHER}.path=<org/name>"
        yield Fault(f"trainer.{TEACHER}", found, "a model that shares the tokenizer", cure)


def _adapter(context: ValidationContext) -> Iterator[Fault]:
    """A fault for quantised weights or whole layers without an adapter, and for one that could not be saved."""
    quant, peft = context.mapping("quant"), context.mapping("peft")
    signature = context.signature(peft)
    if quant:
        if not _is_given(context.cfg.get("peft")) or _changes_model(context, peft):
            cure = "peft=lora" if "lora" in context.options("peft") else "peft=<an adapter>"
            yield Fault("quant", "set, but quantised weights cannot be trained", "an adapter", cure)
        bits = [name for name in ("load_in_4bit", "load_in_8bit") if quant.get(name)]
        if str(quant.get("_target_")).endswith("BitsAndBytesConfig") and len(bits) != 1:
            found = " and ".join(bits) or "neither load_in_4bit nor load_in_8bit"
            yield Fault("quant", found, "one of the two", "quant.load_in_4bit=true")
    if signature and peft.get("full") and _changes_model(context, peft):
        found = f"set, and {signature.name} puts on no adapter"
        yield Fault("peft.full", found, "an adapter beside which layers are trained whole", "peft=lora")
    if signature and context.mapping("trainer.args").get("fsdp"):
        if "num_virtual_tokens" in signature.parameters:
            found = f"{signature.name} on a sharded model, no process of which has its tokens whole to save them"
            yield Fault("peft", found, "an adapter inside the layers", "peft=lora")
        if context.mapping("model").get("merge"):
            found = "true, and no process has the sharded model whole to merge the new adapter into it"
            yield Fault("model.merge", found, "false, or no adapter", "peft=none")


def _parameter_groups(context: ValidationContext) -> Iterator[Fault]:
    """A fault for a pattern that is none, and for a setting that the optimizer would silently carry along."""
    signature = context.signature(context.cfg.get("optimizer"))
    if not signature:
        return
    known = [*(name for name in signature.parameters if name not in ("params", "groups", "scheduler")), "lr_ratio"]
    for pattern, settings in context.mapping("optimizer.groups").items():
        where = f"optimizer.groups.{pattern}"
        try:
            re.compile(pattern)
        except re.error as error:
            yield Fault(where, str(error), "a regular expression", "optimizer.groups={<pattern>: {lr_ratio: 0.1}}")
        if not isinstance(settings, dict):
            cure = f"optimizer.groups={{{pattern}: {{lr_ratio: 0.1}}}}"
            yield Fault(where, short_text(settings), "settings of the optimizer, or lr_ratio", cure)
            continue
        for key in (key for key in settings if key not in known):
            cure = f"optimizer.groups={{{pattern}: {{{[*nearest(key, known), 'lr_ratio'][0]}: <value>}}}}"
            yield Fault(f"{where}.{key}", f"{signature.name} has no such setting", shortened(known), cure)


def _patterns(context: ValidationContext) -> Iterator[Fault]:
    """A fault for a pattern of a reward, metric or tuner that is no regular expression, before a step finds it."""
    for path, value in scalars({group: context.cfg.get(group) for group in ("reward", "metric", "peft")}):
        keys = ("matching", "full") if path.startswith("peft.") else ("pattern",)
        if last_key(path) in keys and isinstance(value, str):
            try:
                re.compile(value)
            except re.error as error:
                where, _, index = path.rpartition(".")
                where, example = (where, "['<pattern>']") if index.isdigit() else (path, "'<pattern>'")
                yield Fault(where, f"{value!r}: {error}", "a regular expression", f"{where}={example}")


def _best_metric(context: ValidationContext) -> Iterator[Fault]:
    """A fault where the best checkpoint would be the worst, because the metric that chooses it is better when lower."""
    args, where = context.mapping("trainer.args"), f"{ARGS}greater_is_better"
    wanted = str(args.get("metric_for_best_model") or "")
    for name, entry in context.entries("metric").items():
        better, name = entry.get("better") if isinstance(entry, dict) else None, name.removeprefix("metric.")
        chosen = args.get("greater_is_better", not wanted.endswith("loss"))
        if better and (wanted == name or wanted.endswith(f"_{name}")) and chosen is not (better == "higher"):
            found = f"{wanted} is better when it is {better}, and {'higher' if chosen else 'lower'} would be chosen"
            right = "true" if better == "higher" else "false"
            yield Fault(where, found, right, f"{where}={right}")


def _early_stopping(context: ValidationContext) -> Iterator[Fault]:
    """A fault where a training is to stop early and nothing says by what, or nothing is evaluated."""
    args, signatures = context.mapping("trainer.args"), map(context.signature, context.entries("callback").values())
    if not any(signature and "EarlyStoppingCallback" in signature.lineage for signature in signatures):
        return
    if args.get("eval_strategy", "no") in ("no", False):
        where, cure = f"{ARGS}eval_strategy", f"{ARGS}eval_strategy=steps {ARGS}eval_steps=20"
        yield Fault(where, "no, and a training is to stop early", "evaluations", cure)
    if not args.get("metric_for_best_model") and not args.get("load_best_model_at_end"):
        where = f"{ARGS}metric_for_best_model"
        yield Fault(where, "none, and a training is to stop early", "a held-out figure", f"{where}=eval_loss")


# --- Parts that are each right ----------------------------------------------------------------------


def find_mismatches(cfg: Config, menu: Mapping[str, Sequence[str]]) -> list[Fault]:
    """A fault for each two parts of a configuration without other faults that do not go together."""
    # These know how parts are built, which only a command that starts something needs to import.
    from runner.held_out import find_metric_faults
    from runner.tray.argument import TRACKER_VARIABLES, foreign_variable
    from runner.tray.callback import find_callback_faults

    rows, args, form = cfg["dataset"], cfg["trainer"]["args"], cfg["trainer"].get("form")
    faults = []
    if form not in TRAINER_FORMS:
        near = ARROWS.get(form) or get_close_matches(str(form), TRAINER_FORMS) or ["<one of them>"]
        faults.append(Fault("trainer.form", str(form), ", ".join(TRAINER_FORMS), f"trainer.form={near[0]}"))
    elif not fits(rows.get("form"), form):
        found = f"{rows.get('form')} rows ({rows.get('path')})"
        expected = f"rows that can become {form} rows: {', '.join(FORMS_FOR[form])}"
        faults.append(Fault("dataset", found, expected, f"dataset=<{' | '.join(_datasets_for(form, menu))}>"))
    faults += find_metric_faults(cfg)
    faults += find_callback_faults(cfg)
    variables = cfg["tracker"].get("environment") or {}
    faults += [foreign_variable(name) for name in variables if not name.startswith(TRACKER_VARIABLES)]
    holds_out = "split" not in rows or (rows["split"] or {}).get("eval")
    if args.get("eval_strategy", "no") not in ("no", False) and not holds_out:
        where = f"{ARGS}eval_strategy"
        faults.append(Fault(where, str(args["eval_strategy"]), "held-out rows", "dataset.split.eval=<split>"))
    if rows.get("streaming") and int(args.get("max_steps") or -1) < 1:
        found, cure = "a stream, whose length nobody knows", f"{ARGS}max_steps=<steps>"
        faults.append(Fault("dataset.streaming", found, "a number of steps", cure))
    return faults


def _datasets_for(form: str, menu: Mapping[str, Sequence[str]]) -> list[str]:
    """The options of the dataset group whose rows can feed a trainer of rows of this form."""
    names = []
    for name in menu.get("dataset", []):
        path = MENU / "dataset" / f"{name}.yaml"
        node = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        own = (node.get("dataset") or node).get("form")
        if own and fits(own, form):
            names.append(name)
    return names
