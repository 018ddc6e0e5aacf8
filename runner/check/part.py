"""Whether the parts go together: what the trainer asks for, and what it is given.

Read from the trainer's own constructor: a part that it does not name cannot be served, and one that
it lives on must be there. That rows fit a trainer is not here; the train command knows the forms.
"""

import re
from collections.abc import Iterator
from typing import Any

from runner.check.argument import find_argument_faults
from runner.check.known import FROM_GROUP, Asked, Node, scalars
from runner.check.objective import find_objective_faults
from runner.check.value import nearest, shown
from runner.errors import Fault
from runner.signature import Signature, last_key
from runner.signature.type import shortened

# Groups that only some trainers can use; the others every run needs.
OPTIONAL = ("reward", "peft", "collator", "callback", "optimizer")


def find_part_faults(asked: Asked) -> Iterator[Fault]:
    """A fault for each part that is missing, in vain, or at odds with another."""
    node = asked.cfg.get("trainer")
    trainer = asked.signature(node)
    if not trainer or not trainer.parameters:
        return
    args = node.get("args") if isinstance(node.get("args"), dict) else {}
    yield from _not_asked_for(asked, trainer)
    yield from _not_given(asked, trainer)
    yield from find_objective_faults(asked, trainer)
    yield from _quantization(asked)
    yield from _beside_adapter(asked)
    yield from _sharded_adapter(asked, args)
    yield from _parameter_groups(asked)
    yield from _patterns(asked)
    yield from _best_metric(asked, args)
    yield from _early_stopping(asked, args)
    if signature := asked.signature(args):
        yield from find_argument_faults(asked, args, signature)


def _not_asked_for(asked: Asked, trainer: Signature) -> Iterator[Fault]:
    for group in OPTIONAL:
        node = asked.cfg.get(group)
        if not _is_given(node) or trainer.is_open or _is_own_way(asked, node):
            continue
        if not any(FROM_GROUP.get(name) == group for name in trainer.parameters):
            found = f"set, but {trainer.name} takes no {group}"
            off = "none" if "none" in asked.menu.get(group, ()) else "null"
            yield Fault(group, found, "none, or a trainer that takes one", f"{group}={off}")


def _is_given(node: Any) -> bool:
    """Whether a group holds a part; a mapping of nothing but null does not."""
    if isinstance(node, dict):
        return any(entry is not None for entry in node.values())
    return bool(node)


def _is_own_way(asked: Asked, node: Any) -> bool:
    """Whether a part changes the model itself, so that no trainer needs to know of it."""
    signature = asked.signature(node)
    return signature is not None and "model" in signature.parameters


def _not_given(asked: Asked, trainer: Signature) -> Iterator[Fault]:
    node, names = asked.cfg["trainer"], trainer.parameters
    args = node.get("args") if isinstance(node.get("args"), dict) else {}
    rewarded = _is_given(asked.cfg.get("reward")) or node.get("environment_factory") or args.get("reward_model_path")
    if "reward_funcs" in names and not rewarded:
        options = asked.options("reward")
        yield Fault(
            "reward",
            f"none, and {trainer.name} learns from rewards",
            f"one of {shortened(options)}" if options else "entries with a _target_",
            f"reward={options[0]}" if options else "reward.<name>._target_=<module.name>",
        )
    if "teacher_model" in names and not node.get("teacher_model"):
        yield Fault(
            "trainer.teacher_model",
            f"none, and {trainer.name} learns from a teacher",
            "a model that shares the tokenizer",
            "trainer.teacher_model.path=<org/name>",
        )


def _quantization(asked: Asked) -> Iterator[Fault]:
    quant, peft = asked.cfg.get("quant"), asked.cfg.get("peft")
    if not isinstance(quant, dict) or not quant:
        return
    if not _is_given(peft) or _is_own_way(asked, peft):
        cure = "peft=lora" if "lora" in asked.options("peft") else "peft=<an adapter>"
        yield Fault("quant", "set, but quantised weights cannot be trained", "an adapter", cure)
    bits = [name for name in ("load_in_4bit", "load_in_8bit") if quant.get(name)]
    if str(quant.get("_target_")).endswith("BitsAndBytesConfig") and len(bits) != 1:
        found = " and ".join(bits) or "neither load_in_4bit nor load_in_8bit"
        yield Fault("quant", found, "one of the two", "quant.load_in_4bit=true")


def _beside_adapter(asked: Asked) -> Iterator[Fault]:
    """A fault where layers are to be trained whole beside an adapter, and there is none."""
    node = asked.cfg.get("peft")
    if isinstance(node, dict) and node.get("full") and _is_own_way(asked, node):
        found = f"set, and {asked.signature(node).name} puts on no adapter"
        yield Fault("peft.full", found, "an adapter beside which layers are trained whole", "peft=lora")


def _sharded_adapter(asked: Asked, args: Node) -> Iterator[Fault]:
    """A fault for each adapter that could not be saved from a model which is spread over processes."""
    node, model = asked.cfg.get("peft"), asked.cfg.get("model")
    if not args.get("fsdp") or not (signature := asked.signature(node)):
        return
    if "num_virtual_tokens" in signature.parameters:
        found = f"{signature.name} on a sharded model, no process of which has its tokens whole to save them"
        yield Fault("peft", found, "an adapter inside the layers", "peft=lora")
    if isinstance(model, dict) and model.get("merge"):
        found = "true, and no process has the sharded model whole to merge the new adapter into it"
        yield Fault("model.merge", found, "false, or no adapter", "peft=none")


def _parameter_groups(asked: Asked) -> Iterator[Fault]:
    """A fault for a pattern that is none, and for a setting that the optimizer would silently carry along."""
    node = asked.cfg.get("optimizer")
    signature = asked.signature(node)
    groups = node.get("groups") if signature else None
    for pattern, settings in groups.items() if isinstance(groups, dict) else ():
        where = f"optimizer.groups.{pattern}"
        try:
            re.compile(pattern)
        except re.error as error:
            yield Fault(where, str(error), "a regular expression", "optimizer.groups={<pattern>: {lr_ratio: 0.1}}")
        if not isinstance(settings, dict):
            cure = f"optimizer.groups={{{pattern}: {{lr_ratio: 0.1}}}}"
            yield Fault(where, shown(settings), "settings of the optimizer, or lr_ratio", cure)
            continue
        known = [*(name for name in signature.parameters if name not in ("params", "groups", "scheduler")), "lr_ratio"]
        for key in settings:
            if key not in known:
                near = nearest(key, known)
                cure = f"optimizer.groups={{{pattern}: {{{near[0] if near else 'lr_ratio'}: <value>}}}}"
                yield Fault(f"{where}.{key}", f"{signature.name} has no such setting", shortened(known), cure)


def _patterns(asked: Asked) -> Iterator[Fault]:
    """A fault for a pattern of a reward, metric or tuner that is no regular expression, before a step finds it."""
    for path, value in scalars({group: asked.cfg.get(group) for group in ("reward", "metric", "peft")}):
        keys = ("matching", "full") if path.startswith("peft.") else ("pattern",)
        if last_key(path) in keys and isinstance(value, str):
            try:
                re.compile(value)
            except re.error as error:
                where, _, index = path.rpartition(".")
                where, example = (where, "['<pattern>']") if index.isdigit() else (path, "'<pattern>'")
                yield Fault(where, f"{value!r}: {error}", "a regular expression", f"{where}={example}")


def _best_metric(asked: Asked, args: Node) -> Iterator[Fault]:
    """A fault where the best checkpoint would be the worst, because the metric that chooses it is better when lower."""
    wanted, node = str(args.get("metric_for_best_model") or ""), asked.cfg.get("metric")
    for name, entry in node.items() if isinstance(node, dict) and "_target_" not in node else ():
        better = entry.get("better") if isinstance(entry, dict) else None
        higher = better == "higher"
        chosen = args.get("greater_is_better", not wanted.endswith("loss"))
        if better and (wanted == name or wanted.endswith(f"_{name}")) and chosen is not higher:
            where = "trainer.args.greater_is_better"
            found = f"{wanted} is better when it is {better}, and {'higher' if chosen else 'lower'} would be chosen"
            yield Fault(where, found, str(higher).lower(), f"{where}={str(higher).lower()}")


def _early_stopping(asked: Asked, args: Node) -> Iterator[Fault]:
    """A fault where a training is to stop early and nothing says by what, or nothing is evaluated."""
    node = asked.cfg.get("callback")
    entries = node.values() if isinstance(node, dict) and "_target_" not in node else [node]
    signatures = filter(None, map(asked.signature, entries))
    if not any("EarlyStoppingCallback" in signature.lineage for signature in signatures):
        return
    if args.get("eval_strategy", "no") in ("no", False):
        where, cure = "trainer.args.eval_strategy", "trainer.args.eval_strategy=steps trainer.args.eval_steps=20"
        yield Fault(where, "no, and a training is to stop early", "evaluations", cure)
    if not args.get("metric_for_best_model") and not args.get("load_best_model_at_end"):
        where = "trainer.args.metric_for_best_model"
        yield Fault(where, "none, and a training is to stop early", "a held-out figure", f"{where}=eval_loss")
