"""The arguments of any dotted target, read from the installed source: nothing is imported.

    read_signature("trl.DPOConfig")                     139 parameters with types and defaults
    choices_compared("trl.DPOTrainer", "loss_type")     the names that its source knows
    find_definition("trl.DPOConfig").home               where a name really comes from
    flatten(cfg), to_text(value)                        the same the other way: dotted keys and text to type
    nearest("lerning_rate", fields)                     what was probably meant

Where the source cannot say, the answer accepts everything rather than refuse something good.
Whether a value is sensible, and whether a target may run at all, is for ``validate``.
"""

from runner.schema.read import Parameter, Signature, choices_compared, read_signature
from runner.schema.source import Definition, Module, find_definition, find_module, public_names
from runner.schema.spelling import likeness, nearest, to_text
from runner.schema.text import (
    Config,
    Node,
    flatten,
    last_key,
    named,
    nodes,
    scalars,
    select,
    short_text,
    to_override,
    walk,
)
from runner.schema.type import Type

__all__ = [
    "Config",
    "Definition",
    "Module",
    "Node",
    "Parameter",
    "Signature",
    "Type",
    "choices_compared",
    "find_definition",
    "find_module",
    "flatten",
    "last_key",
    "likeness",
    "named",
    "nearest",
    "nodes",
    "public_names",
    "read_signature",
    "scalars",
    "select",
    "short_text",
    "to_override",
    "to_text",
    "walk",
]
