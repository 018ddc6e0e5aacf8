"""Types and ranges in the words of JSON Schema, by which editors check and complete YAML.

What a check accepts, the schema accepts too; where JSON Schema cannot say it, the schema is wider.
"""

import math
from collections.abc import Sequence
from typing import Any

from runner.schema.ranges import Range
from runner.schema.type import Type

JsonSchema = dict[str, Any]

# A text that stands for a value of any type: a reference, or a value that is still to be typed.
STANDS_FOR_A_VALUE = r"\$\{|^\?\?\?$"
NAMES = {
    "none": "null",
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "record": "object",
}


def to_json_schema(
    accepted: Type, numbers: Range | None = None, texts: Sequence[object] = ()
) -> JsonSchema:
    """The schema of the values of a type; it accepts all of them where nothing is known.

    ``numbers`` is the range of its numbers, and ``texts`` are the only ones of its texts.
    """
    schema = _limits(numbers)
    constants = [*texts, *accepted.choices]
    names = []
    for part in accepted.alternatives:
        if part.kind in ("any", "instance"):
            return _limits(numbers)
        if part.kind in NAMES and not (texts and part.kind == "str"):
            names.append(NAMES[part.kind])
            schema |= _inner_schemas(part, numbers, texts)
    # "pissa_niter_[number of iters]" stands for many texts.
    if any("[" in str(constant) for constant in constants):
        names.append("string")
    if "string" not in names:
        schema["pattern"] = STANDS_FOR_A_VALUE
        schema["patternErrorMessage"] = f"{accepted}, or ${{...}}"  # which editors show
        names.append("string")
    elif "object" not in names:  # a text may name what a node builds as well, such as a model
        schema["required"] = ["_target_"]
        names.append("object")
    schema["type"] = list(dict.fromkeys(names))
    return {"anyOf": [{"enum": constants}, schema]} if constants else schema


def _limits(numbers: Range | None) -> JsonSchema:
    """The ends of a range; a special number, such as -1, is the one before its others or below."""
    limits: JsonSchema = {}
    if numbers is None:
        return limits
    if math.isfinite(numbers.low):
        limits["exclusiveMinimum" if numbers.above else "minimum"] = numbers.low
    if math.isfinite(numbers.high):
        limits["exclusiveMaximum" if numbers.below else "maximum"] = numbers.high
    if numbers.special is not None:
        limits["minimum"] = numbers.special
    return limits


def _inner_schemas(part: Type, numbers: Range | None, texts: Sequence[object]) -> JsonSchema:
    """The schema of the items of a list, or of the values of a mapping."""
    if part.kind not in ("list", "tuple", "dict") or not part.parts:
        return {}
    inner = to_json_schema(part.parts[-1], numbers, texts)
    if part.kind != "dict":
        return {"items": inner}
    keys = part.parts[0].choices
    if not keys:
        return {"additionalProperties": inner}
    return {"properties": dict.fromkeys(keys, inner), "additionalProperties": False}
