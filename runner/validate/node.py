"""Nodes, which are keys with a ``_target_``: each key against the signature of the target."""

from collections.abc import Iterator

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.literal import to_list
from runner.schema.read import Parameter, Signature
from runner.schema.text import Node, as_typed, short_text, to_override
from runner.validate.context import (
    RUNNER_KEYS,
    SPECIAL,
    ValidationContext,
    is_called_later,
    keys_of,
)
from runner.validate.stray import explain, find_unknown_faults
from runner.validate.values import is_plain_number
from runner.validate.values_at_keys import find_argument_faults

# What the train command gives to a part whose signature names it, so that no config needs to.
SERVED = upstream.SERVED | {"trainer": [*upstream.SERVED["trainer"], *upstream.FROM_GROUP]}
NEEDED_KEYS = {"trainer": ("form", "head", "args"), "model": ("tokenizer",)}
TOOLS = tuple(f"trainer.{name}" for name in upstream.FUNCTIONS if name != "environment_factory")
# Arguments of functions that are called with rows and with what was made of them.
GIVEN_LATER = {"completions", "messages", "row"}
# Keys that hold nodes themselves: a text there is a fault, and misspelt keys below them are seen.
NODE_KEYS = ("trainer.args", "trainer.teacher_model", "model.tokenizer")
# Arguments of a trainer that are models and functions, which no text, number or mapping can be.
OBJECTS = {
    f"trainer.{name}" for name in upstream.SERVED["trainer"] if name not in upstream.FROM_GROUP
}
OBJECTS -= set(NODE_KEYS)
# Fields that the runner sets whatever the config says; to set them would be in vain.
SET_BY_RUNNER = ("output_dir", "save_only_model", "disable_tqdm", "resume_from_checkpoint", "seed")


def find_node_faults(context: ValidationContext, path: str, node: Node) -> Iterator[Fault]:
    """A fault for each key that is unknown, in vain, missing, or does not fit the target.

    The target exists and may be called.
    """
    signature = context.signature(node)
    if signature is None:
        return
    parameters = keys_of(path, signature) | SPECIAL
    for key, value in node.items():
        if key in parameters:
            parameter = parameters[key]
            yield from _find_key_faults(context, f"{path}.{key}", value, parameter, signature)
        else:
            yield from find_unknown_faults(context, path, node, str(key), signature)
    yield from _find_missing(path, node, signature)
    if path == "trainer":
        yield from _find_other_config(context, signature, node)


def _find_key_faults(
    context: ValidationContext,
    path: str,
    value: object,
    parameter: Parameter,
    signature: Signature,
) -> Iterator[Fault]:
    """The faults of the value of a key that the target takes."""
    if path in NODE_KEYS and value is not None and not _is_node(value):
        fix = as_typed({f"{path}.path": value})
        if path == "trainer.args":
            fix = f"leave {path} out"
        yield Fault(
            where=path,
            found=short_text(value),
            expected="keys",
            fix=fix,
        )
    elif path in OBJECTS and not _is_object(value):
        yield _no_object(path, value, signature)
    elif path == "dataset.map" and isinstance(value, str):
        package = value.partition(".")[0]
        yield Fault(
            where=path,
            found=short_text(value),
            expected="keys with a function of a row as _target_",
            fix=f"dataset.map._target_={value} 'allow=[{package}]'",
        )
    elif path == "dataset.limit" and is_plain_number(value):
        number = short_text(value)
        yield Fault(
            where=path,
            found=number,
            expected="a limit of its own for training and held-out rows",
            fix=f"{path}.train={number}, or {path}.eval={number}",
        )
    elif path == "dataset.split" and isinstance(value, str):
        yield Fault(
            where=path,
            found=short_text(value),
            expected="a slice of its own for training and held-out rows",
            fix=to_override(f"{path}.train", value),
        )
    else:
        where = context.origin(path, value)
        misfits = find_argument_faults(where, path, value, parameter, signature, context.trainer)
        # Of a value that does not fit, it matters little that it would be in vain.
        yield from misfits or _find_in_vain(context, path, value, signature)


def _is_node(value: object) -> bool:
    return isinstance(value, dict) and "_target_" in value


def _is_object(value: object) -> bool:
    """True for what a model or a function can be built from, and for nothing."""
    values = to_list(value)
    return all(part is None or _is_node(part) for part in values)


def _no_object(path: str, value: object, signature: Signature) -> Fault:
    """The fault of a text, number or mapping in the place of a model or a function."""
    fix = f"leave {path} out"
    if path.endswith("_model"):
        words: dict[str, object] = {f"{path}._target_": "runner.model.load.load_model"}
        arguments = value if isinstance(value, dict) else {"path": value}
        for key, argument in arguments.items():
            words[f"{path}.{key}"] = argument
        fix = as_typed(words)
    return Fault(
        where=path,
        found=f"{short_text(value)}, but {signature.name} takes what is built from a _target_",
        expected="keys with a _target_",
        fix=fix,
    )


def _find_in_vain(
    context: ValidationContext, path: str, value: object, signature: Signature
) -> Iterator[Fault]:
    """The fault of a value that the runner would set itself, or takes from a group."""
    owner, _, key = path.rpartition(".")
    if owner == "trainer.args" and key in SET_BY_RUNNER:
        default = signature.parameters[key].default
        # What the runner would set anyway does no harm; the seed is a key of the top level, too.
        if value not in (None, context.cfg.get(key, default)):
            answer = explain(context, path, value, short_text(value), is_placed=True)
            if answer:
                yield answer
    if owner != "trainer" or value is None:
        return
    group = upstream.FROM_GROUP.get(key)
    if group in context.groups:
        options = context.options(group)
        fix = f"{group}._target_=<module.name>"
        if options:
            fix = f"{group}={options[0]}"
        yield Fault(
            where=path,
            found="a part that the runner serves",
            expected=f"the group {group}",
            fix=fix,
        )


def _find_missing(path: str, node: Node, signature: Signature) -> Iterator[Fault]:
    """A fault for each argument that nobody gives, and each key that the runner needs."""
    group = path.partition(".")[0]
    for name in _list_required(path, node, signature):
        expected = str(signature.parameters[name].type)
        if group in ("reward", "metric"):
            expected += ", or an argument called completions, by which it is asked to judge"
        yield _missing(path, name, signature.name, expected)
    for name in _fields_without_default(signature):
        if name in signature.parameters and node.get(name) is None:
            expected = str(signature.parameters[name].type).removesuffix(" or null")
            yield _missing(path, name, signature.name, expected)
    for name in NEEDED_KEYS.get(path, ()):
        if node.get(name) is None:
            expected = "keys"
            if name in RUNNER_KEYS[path]:
                expected = str(keys_of(path, signature)[name].type)
            yield _missing(path, name, "the runner", expected)


def _fields_without_default(signature: Signature) -> list[str]:
    """The fields whose default is of no use, by the nearest class of the lineage that has any."""
    for name in (signature.name, *signature.lineage):
        if name in upstream.NEEDED_FIELDS:
            return upstream.NEEDED_FIELDS[name]
    return []


def _list_required(path: str, node: Node, signature: Signature) -> list[str]:
    """The arguments of a target that have no default, and that neither the node nor we give."""
    if node.get("_partial_") is True or _gets_arguments_later(path, signature):
        return []
    group = path.partition(".")[0]
    served_as = ""
    if path in SERVED:
        served_as = path
    elif group in ("trainer", "model"):
        served_as = "model"
    elif group == "callback" and path.count(".") < 2:
        served_as = "callback"
    supplied = {*node, *SERVED.get(served_as, ())}
    return [name for name in signature.required if name not in supplied]


def _gets_arguments_later(path: str, signature: Signature) -> bool:
    """True for a function that is called with rows, or with what a trainer or a model decides."""
    names_later_argument = not GIVEN_LATER.isdisjoint(signature.parameters)
    if names_later_argument or is_called_later(path, signature):
        return True
    is_class = bool(signature.lineage)
    return (path == "loss" or path.startswith(TOOLS)) and not is_class


def _missing(path: str, name: str, who: str, expected: str) -> Fault:
    where = f"{path}.{name}"
    return Fault(
        where=where,
        found=f"missing, but {who} needs it",
        expected=expected,
        fix=f"{where}=<value>",
    )


def _find_other_config(
    context: ValidationContext, signature: Signature, node: Node
) -> Iterator[Fault]:
    """The fault of arguments that are the config of another trainer."""
    config = context.signature(node.get("args"))
    parameter = signature.parameters.get("args")
    if config is None or parameter is None:
        return
    accepted = sorted(name for name in parameter.names if name.endswith("Config"))
    if not accepted or any(name in config.lineage for name in accepted):
        return
    module = signature.target.rpartition(".")[0]
    yield Fault(
        where="trainer.args._target_",
        found=config.name,
        expected=f"{' or '.join(accepted)}, which {signature.name} takes",
        fix=f"trainer.args._target_={module}.{accepted[0]}",
    )
