"""Refusals of a trainer and its config by their arguments alone, read from their source (``schema.refusal``)."""

from collections.abc import Iterator, Mapping
from typing import Any

from runner.config.machines import processes_of
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN
from runner.schema.refusal import Refusal, Something, find_refusals
from runner.schema.text import Node, nodes, short_text, to_override
from runner.validate.context import ARGS, ValidationContext

# Fields that are not as they were typed when a trainer is built (``training.components.trainer``, ``precompute``).
CHANGED = {"max_length", upstream.REWARD_WEIGHTS, upstream.PACKING, upstream.PADDING_FREE}


def find_refused(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each error that the constructor of the trainer, of its config or of another part would raise."""
    for path, node in nodes(context.cfg):
        if path not in ("trainer", "trainer.args"):
            yield from _find_refused_part(context, path, node)
    args = context.args
    if not context.trainer or not context.signature(args):
        return
    streams, fields = context.mapping("dataset").get("streaming"), upstream.config_fields(args)
    for refusal in _refusals(context, args):
        names = list(dict.fromkeys(name.partition(".")[2] for name in refusal.names if "." in name))
        names.sort(key=lambda name: (f"{ARGS}{name}" not in context.typed, name not in args))
        groups = [upstream.FROM_GROUP[name] for name in refusal.names if name in upstream.FROM_GROUP]
        where = f"{ARGS}{names[0]}" if names else groups[0] if groups else "trainer.args"
        text = refusal.text.partition(". ")[0].replace("`", "").rstrip(".")
        found = f"{short_text(args[names[0]])}: {text}" if names and names[0] in args else text
        other = f"leave {where} out" if names else "dataset.streaming=false" if streams else f"another {where}"
        defaults = {name: fields[name].default for name in names if name in fields}
        known = ((name, value) for name, value in defaults.items() if value is not UNKNOWN)
        good = ((name, value) for name, value in known if not _refusals(context, {**args, name: value}))
        fix = next((to_override(f"{ARGS}{name}", value) for name, value in good), other)
        yield Fault(where, found, "values that go together", fix)


def _find_refused_part(context: ValidationContext, path: str, node: Node) -> Iterator[Fault]:
    signature = context.signature(node)
    if signature is None or not signature.lineage:
        return
    served = {name for names in upstream.SERVED.values() for name in names}
    known: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        value = node.get(name, UNKNOWN if name in served else parameter.default)
        if isinstance(value, dict) and "_target_" in value:
            value = Something()
        known |= {name: value, f"self.{name}": value}
    refusals = find_refusals(signature.target, "__init__", dict(known))
    for refusal in refusals or find_refusals(signature.target, "__post_init__", dict(known)):
        asked = [name.removeprefix("self.") for name in refusal.names]
        names = list(dict.fromkeys(asked))
        names.sort(key=lambda name: (f"{path}.{name}" not in context.typed, name not in node))
        found = refusal.text.partition(". ")[0].replace("`", "").rstrip(". ")
        where, fix = path, f"another {path}"
        if names and names[0] in node:
            where, found = f"{path}.{names[0]}", f"{short_text(node[names[0]])}: {found}"
            fix = f"leave {where} out"
        elif names:
            where, fix = f"{path}.{names[0]}", f"{path}.{names[0]}=<value>"
        yield Fault(where, found, "values that go together", fix)


def _refusals(context: ValidationContext, args: Mapping[str, Any]) -> list[Refusal]:
    known = {name: args.get(name, each.default) for name, each in upstream.config_fields(args).items()}
    known |= {name: UNKNOWN for name in upstream.MACHINE_DEFAULTS if name not in args}
    own = {f"self.{name}": value for name, value in known.items()} | {"self.world_size": processes_of(context.cfg)}
    if found := find_refusals(args["_target_"], "__post_init__", own):
        return found
    given = {f"args.{name.removeprefix('self.')}": value for name, value in own.items() if name.startswith("self.")}
    given |= {f"args.{name}": UNKNOWN for name in CHANGED | ({upstream.PRECOMPUTE_REF_LOG_PROBS} - args.keys())}
    node, is_adapted = context.mapping("trainer"), str(context.mapping("peft").get("_target_")).startswith("peft.")
    for name, each in context.trainer.parameters.items() if context.trainer else ():
        value = UNKNOWN if name in upstream.FROM_GROUP or name in upstream.SERVED["trainer"] else each.default
        given[name] = Something() if isinstance(node.get(name), dict) else node.get(name, value)
    rows = "IterableDataset" if context.mapping("dataset").get("streaming") else "Dataset"
    given |= {"args": Something(), upstream.TRAIN_DATASET: Something(frozenset({rows}))}
    given |= {"model": Something(), "peft_config": Something(frozenset({"PeftConfig"}))} if is_adapted else {}
    given["get_peft_model()"] = lambda *_: Something(frozenset({"PeftModel"}))
    given["is_peft_model()"] = lambda model: "PeftModel" in model.classes
    return find_refusals(node["_target_"], "__init__", given)
