"""Errors that a trainer, its config or another part would raise for its arguments alone.

They are read from the source of the constructors (``schema.refusal``), without importing it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner.config.machines import processes_of
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN
from runner.schema.refusal import Refusal, Something, find_refusals
from runner.schema.text import Node, nodes, short_text, to_override
from runner.validate.context import ARGS, ValidationContext

EXPECTED = "values that go together"
# Fields that are not as they were typed when a trainer is built (``training.components.trainer``,
# ``precompute``).
CHANGED = {"max_length", "reward_weights", "packing", "padding_free"}


def find_refused(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each error that the trainer, its config or another part would raise."""
    for path, node in nodes(context.cfg):
        if path not in ("trainer", "trainer.args"):
            yield from _find_refused_part(context, path, node)
    if not context.trainer or not context.signature(context.args):
        return
    for refusal in _list_refusals(context, context.args):
        yield _refused_training(context, refusal)


def _refused_training(context: ValidationContext, refusal: Refusal) -> Fault:
    """The fault of a refusal by a trainer or its config, at the likeliest field to change."""
    args = context.args
    dotted = [name.partition(".")[2] for name in refusal.names if "." in name]
    fields = _likeliest_first(context, "trainer.args", args, dotted)
    groups = [upstream.FROM_GROUP[name] for name in refusal.names if name in upstream.FROM_GROUP]
    found = _first_sentence(refusal.text)
    if fields:
        where = f"{ARGS}{fields[0]}"
        fix = f"leave {where} out"
        if fields[0] in args:
            found = f"{short_text(args[fields[0]])}: {found}"
    else:
        where = groups[0] if groups else "trainer.args"
        fix = f"another {where}"
        if context.mapping("dataset").get("streaming"):
            fix = "dataset.streaming=false"
    return Fault(where, found, EXPECTED, _find_good_default(context, fields) or fix)


def _likeliest_first(
    context: ValidationContext, path: str, node: Node, names: list[str]
) -> list[str]:
    """The names of a refusal, each once: those that were typed first, then those that are given."""

    def rank(name: str) -> tuple[bool, bool]:
        return f"{path}.{name}" not in context.typed, name not in node

    return sorted(dict.fromkeys(names), key=rank)


def _first_sentence(text: str) -> str:
    sentence = text.partition(". ")[0]
    return sentence.replace("`", "").rstrip(". ")


def _find_good_default(context: ValidationContext, names: list[str]) -> str:
    """The word for the first field with whose default nothing is refused any more."""
    parameters = upstream.config_fields(context.args)
    for name in names:
        default = parameters[name].default if name in parameters else UNKNOWN
        if default is UNKNOWN:
            continue
        if not _list_refusals(context, {**context.args, name: default}):
            return to_override(f"{ARGS}{name}", default)
    return ""


def _find_refused_part(context: ValidationContext, path: str, node: Node) -> Iterator[Fault]:
    """The faults of a part whose constructor would refuse its arguments."""
    signature = context.signature(node)
    if signature is None or not signature.lineage:
        return
    served = {name for names in upstream.SERVED.values() for name in names}
    values: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        value = node.get(name, UNKNOWN if name in served else parameter.default)
        if isinstance(value, dict) and "_target_" in value:
            value = Something()
        values[name] = value
        values[f"self.{name}"] = value
    refusals = find_refusals(signature.target, "__init__", dict(values))
    refusals = refusals or find_refusals(signature.target, "__post_init__", dict(values))
    for refusal in refusals:
        plain = [name.removeprefix("self.") for name in refusal.names]
        names = _likeliest_first(context, path, node, plain)
        found = _first_sentence(refusal.text)
        if not names:
            yield Fault(path, found, EXPECTED, f"another {path}")
            continue
        where = f"{path}.{names[0]}"
        fix = f"{where}=<value>"
        if names[0] in node:
            found = f"{short_text(node[names[0]])}: {found}"
            fix = f"leave {where} out"
        yield Fault(where, found, EXPECTED, fix)


def _list_refusals(context: ValidationContext, args: Mapping[str, Any]) -> list[Refusal]:
    """The refusals of the trainer's config with these fields, or else those of the trainer."""
    values: dict[str, Any] = {}
    for name, parameter in upstream.config_fields(args).items():
        values[name] = args.get(name, parameter.default)
        if name in upstream.MACHINE_DEFAULTS and name not in args:
            values[name] = UNKNOWN
    own = {f"self.{name}": value for name, value in values.items()}
    own["self.world_size"] = processes_of(context.cfg)
    refusals = find_refusals(args["_target_"], "__post_init__", own)
    if refusals:
        return refusals
    given: dict[str, Any] = {}
    for name, value in own.items():
        if name.startswith("self."):
            given["args." + name.removeprefix("self.")] = value
    changed = set(CHANGED)
    if "precompute_ref_log_probs" not in args:
        changed.add("precompute_ref_log_probs")
    for name in changed:
        given[f"args.{name}"] = UNKNOWN
    given |= _trainer_arguments(context)
    return find_refusals(context.mapping("trainer")["_target_"], "__init__", given)


def _trainer_arguments(context: ValidationContext) -> dict[str, Any]:
    """The arguments of the trainer's constructor, as far as the configuration tells them."""
    node = context.mapping("trainer")
    arguments: dict[str, Any] = {}
    parameters = context.trainer.parameters if context.trainer else {}
    for name, parameter in parameters.items():
        is_served = name in upstream.FROM_GROUP or name in upstream.SERVED["trainer"]
        value = node.get(name, UNKNOWN if is_served else parameter.default)
        arguments[name] = Something() if isinstance(node.get(name), dict) else value
    rows = "IterableDataset" if context.mapping("dataset").get("streaming") else "Dataset"
    arguments["args"] = Something()
    arguments["train_dataset"] = Something(frozenset({rows}))
    if str(context.mapping("peft").get("_target_")).startswith("peft."):
        arguments["model"] = Something()
        arguments["peft_config"] = Something(frozenset({"PeftConfig"}))
    # Functions that constructors call, with what they would answer.
    functions: dict[str, Callable[..., Any]] = {
        "get_peft_model()": lambda *_: Something(frozenset({"PeftModel"})),
        "is_peft_model()": lambda model: "PeftModel" in model.classes,
    }
    return arguments | functions
