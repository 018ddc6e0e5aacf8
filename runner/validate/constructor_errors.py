"""Errors that a trainer, its config or another part would raise for its arguments alone.

They are read from the source of the constructors (``schema.refusal``), without importing it.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from runner.config.machines import processes_of
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import UNKNOWN
from runner.schema.refusal import Refusal, Something, find_refusals
from runner.schema.text import Node, nodes, short_text, to_override
from runner.validate.context import ARGS, ValidationContext

EXPECTED = "values that go together"
# Fields that are not as they were typed when a trainer is built (``training.components``,
# ``training.precompute``).
CHANGED = {"max_length", "reward_weights", "packing", "padding_free"}
# Arguments of any part that the runner gives.
SERVED_ARGUMENTS = frozenset(chain.from_iterable(upstream.SERVED.values()))


def find_constructor_errors(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each error that the trainer, its config or another part would raise."""
    for path, node in nodes(context.cfg):
        if path not in ("trainer", "trainer.args"):
            yield from _find_refused_part(context, path, node)
    if context.trainer and context.signature(context.args):
        for refusal in _list_refusals(context, context.args):
            yield _refused_training(context, refusal)


def _refused_training(context: ValidationContext, refusal: Refusal) -> Fault:
    """The fault of a refusal by a trainer or its config, at the likeliest field to change."""
    args = context.args
    # In a constructor, fields are attributes of self or of args, and parts are plain arguments.
    field_names = [name.partition(".")[2] for name in refusal.names if "." in name]
    fields = _likeliest_first(context, "trainer.args", args, field_names)
    message = _first_sentence(refusal.text)
    if fields:
        where = f"{ARGS}{fields[0]}"
        fix = f"leave {where} out"
        if fields[0] in args:
            message = f"{short_text(args[fields[0]])}: {message}"
    else:
        where = _first_group(refusal)
        fix = f"another {where}"
        if context.mapping("dataset").get("streaming"):
            fix = "dataset.streaming=false"
    good_default = _find_good_default(context, fields)
    return Fault(
        where=where,
        found=message,
        expected=EXPECTED,
        fix=good_default or fix,
    )


def _first_group(refusal: Refusal) -> str:
    """The first group whose part a refusal depends on; the trainer's config without one."""
    for name in refusal.names:
        if name in upstream.FROM_GROUP:
            return upstream.FROM_GROUP[name]
    return "trainer.args"


def _likeliest_first(
    context: ValidationContext, path: str, node: Node, names: list[str]
) -> list[str]:
    """The names of a refusal, each once: those that were typed first, then those in the node."""

    def rank(name: str) -> tuple[bool, bool]:
        is_typed = f"{path}.{name}" in context.typed
        is_in_node = name in node
        return not is_typed, not is_in_node

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
        args_with_default = {**context.args, name: default}
        if not _list_refusals(context, args_with_default):
            return to_override(f"{ARGS}{name}", default)
    return ""


def _find_refused_part(context: ValidationContext, path: str, node: Node) -> Iterator[Fault]:
    """The faults of a part whose constructor would refuse its arguments."""
    signature = context.signature(node)
    if signature is None or not signature.lineage:
        return  # a function, whose errors come when it is called
    values: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        default = UNKNOWN if name in SERVED_ARGUMENTS else parameter.default
        value = node.get(name, default)
        if isinstance(value, dict) and "_target_" in value:
            value = Something()
        values[name] = value
        values[f"self.{name}"] = value
    # Each search gets a copy, as it changes the values.
    refusals = find_refusals(signature.target, "__init__", dict(values))
    if not refusals:
        refusals = find_refusals(signature.target, "__post_init__", dict(values))
    for refusal in refusals:
        yield _refused_part(context, path, node, refusal)


def _refused_part(context: ValidationContext, path: str, node: Node, refusal: Refusal) -> Fault:
    """The fault of a refusal by a part, at the likeliest argument to change."""
    arguments = [name.removeprefix("self.") for name in refusal.names]
    names = _likeliest_first(context, path, node, arguments)
    message = _first_sentence(refusal.text)
    if not names:
        return Fault(
            where=path,
            found=message,
            expected=EXPECTED,
            fix=f"another {path}",
        )
    name = names[0]
    where = f"{path}.{name}"
    fix = f"{where}=<value>"
    if name in node:
        message = f"{short_text(node[name])}: {message}"
        fix = f"leave {where} out"
    return Fault(
        where=where,
        found=message,
        expected=EXPECTED,
        fix=fix,
    )


def _list_refusals(context: ValidationContext, args: Mapping[str, Any]) -> list[Refusal]:
    """The refusals of the trainer's config with these fields, or else those of the trainer."""
    fields: dict[str, Any] = {}
    for name, parameter in upstream.config_fields(args).items():
        fields[f"self.{name}"] = args.get(name, parameter.default)
        if name in upstream.MACHINE_DEFAULTS and name not in args:
            fields[f"self.{name}"] = UNKNOWN
    fields["self.world_size"] = processes_of(context.cfg)
    refusals = find_refusals(args["_target_"], "__post_init__", fields)
    if refusals:
        return refusals
    # The config has set some of its fields, and hands all of them to the trainer.
    arguments: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith("self."):
            arguments["args." + name.removeprefix("self.")] = value
    for name in CHANGED:
        arguments[f"args.{name}"] = UNKNOWN
    if "precompute_ref_log_probs" not in args:
        arguments["args.precompute_ref_log_probs"] = UNKNOWN
    arguments |= _trainer_arguments(context)
    return find_refusals(context.mapping("trainer")["_target_"], "__init__", arguments)


def _trainer_arguments(context: ValidationContext) -> dict[str, Any]:
    """The arguments of the trainer's constructor, as far as the configuration tells them."""
    node = context.mapping("trainer")
    parameters = context.trainer.parameters if context.trainer else {}
    arguments: dict[str, Any] = {}
    for name, parameter in parameters.items():
        is_served = name in upstream.FROM_GROUP or name in upstream.SERVED["trainer"]
        default = UNKNOWN if is_served else parameter.default
        arguments[name] = node.get(name, default)
        if isinstance(node.get(name), dict):
            arguments[name] = Something()
    rows_class = "Dataset"
    if context.mapping("dataset").get("streaming"):
        rows_class = "IterableDataset"
    arguments["args"] = Something()
    arguments["train_dataset"] = Something(frozenset({rows_class}))
    target = str(context.mapping("peft").get("_target_"))
    if target.startswith("peft."):
        arguments["model"] = Something()
        arguments["peft_config"] = Something(frozenset({"PeftConfig"}))
    # Functions that constructors call, with what they would answer.
    arguments["get_peft_model()"] = lambda *_: Something(frozenset({"PeftModel"}))
    arguments["is_peft_model()"] = lambda model: "PeftModel" in model.classes
    return arguments
