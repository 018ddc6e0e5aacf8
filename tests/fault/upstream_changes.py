"""The classes of TRL, transformers and peft that a configuration names, as an environment has them.

    python tests/fault/upstream_changes.py > FILE     prints them as JSON; nothing is imported

``versions.py`` runs this in two environments and prints what differs.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from runner.schema import library_ranges, upstream
from runner.schema.choices import choices_compared
from runner.schema.read import UNKNOWN, Parameter, Signature, read_signature
from runner.schema.source import names_by_subpackage, public_names
from runner.schema.trainer_args import ConstructorArgument, TrainerArgs

# The public classes that are read, beside those that our files name.
OF_TRL = re.compile(r".*(Config|Trainer|Callback|Arguments)")
OF_PEFT = re.compile(r".*Config")
OF_TRANSFORMERS = re.compile(r"Trainer|TrainingArguments|GenerationConfig|.*BytesConfig|.*Callback")
# Models whose forward pass is read: the sampler calls it.
MODELS = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM", "GPT2LMHeadModel")
LIBRARIES = ("trl", "transformers", "peft", "datasets", "accelerate", "torch")
DOTTED = re.compile(rf"(?:{'|'.join(LIBRARIES)})(?:\.\w+)*\.[A-Za-z]\w*")
# Fields whose texts are compared in the source of a trainer.
COMPARED = "loss_type"

Classes = dict[str, dict[str, str]]  # class -> field -> type and default


@dataclass(frozen=True)
class Change:
    """What another version has in place of a field or class."""

    library: str
    class_name: str
    field: str
    was: str
    now: str


def find_targets() -> Iterator[str]:
    """The dotted names of all classes that are read."""
    packages = [
        ("trl", OF_TRL),
        ("peft", OF_PEFT),
        ("transformers", OF_TRANSFORMERS),
    ]
    for package, pattern in packages:
        for name in public_names(package):
            if pattern.fullmatch(name):
                yield f"{package}.{name}"
    for names in names_by_subpackage("trl.experimental"):
        yield from (name for name in names if OF_TRL.fullmatch(name.rpartition(".")[2]))
    yield from (f"transformers.{model}.forward" for model in MODELS)
    for folder, suffix in (("conf", "yaml"), ("runner", "yaml"), ("runner", "py")):
        for path in sorted((ROOT / folder).rglob(f"*.{suffix}")):
            yield from find_named(path)


def find_named(path: Path) -> Iterator[str]:
    """The dotted names of the libraries in a file: in Python in texts alone."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for target in re.findall(r"_target_: (\S+)", text):
            if DOTTED.fullmatch(target):
                yield target
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if DOTTED.fullmatch(node.value):
                yield node.value


def describe() -> Classes:
    """Each class that exists here with its fields."""
    classes = {}
    for target in dict.fromkeys(find_targets()):
        signature = read_signature(target)
        if signature is not None:
            classes[target] = dict(describe_fields(target, signature))
    return classes


def describe_fields(target: str, signature: Signature) -> Iterator[tuple[str, str]]:
    """The fields of a class, with type, default, and the texts that its trainer compares."""
    for name, parameter in signature.parameters.items():
        yield name, describe_field(parameter)
    if COMPARED in signature.parameters:
        trainer = re.sub("Config$", "Trainer", target)
        known = choices_compared(trainer, COMPARED)
        if known:
            yield f"{COMPARED} knows", ", ".join(sorted(known))


def describe_field(parameter: Parameter) -> str:
    """A field as its source writes it.

    >>> describe_field(Parameter("beta", default=0.1))
    'beta = 0.1'
    """
    annotation = f": {ast.unparse(parameter.annotation)}" if parameter.annotation else ""
    if parameter.required:
        return f"{parameter.name}{annotation}"
    default = "..." if parameter.default is UNKNOWN else repr(parameter.default)
    return f"{parameter.name}{annotation} = {default}"


def relied_names() -> set[str]:
    """The names of fields and arguments that stand in our Python."""
    return {
        *TrainerArgs.__annotations__,
        *get_args(ConstructorArgument),
        *library_ranges.TRAINER,
        *upstream.BESIDE_ROWS,
        *upstream.ELSEWHERE,
        *upstream.EXTENDABLE,
        *upstream.FROM_GROUP,
        *upstream.FROM_TOP,
        *upstream.MACHINE_DEFAULTS,
        *upstream.OF_LOG_PROBS,
        *upstream.ON_A_GPU,
        *upstream.OWN_LOSS,
        *upstream.OWN_POLICY_LOSS,
        *upstream.UNWEIGHABLE,
        *upstream.WITHOUT_NOTE,
    }


def find_changes(old: Classes, new: Classes) -> Iterator[Change]:
    """What differs between two environments; names that we rely on and that went come first."""
    old_names = names_in(old)
    for name in sorted(relied_names() & old_names - names_in(new)):
        yield Change("runner", "", name, "relied on", "gone from all classes")
    for target in sorted({*old, *new}):
        library, _, class_name = target.partition(".")
        if target not in new:
            yield Change(library, class_name, "", "a class", "gone")
        elif target not in old:
            yield Change(library, class_name, "", "", "a new class")
        else:
            yield from _find_field_changes(library, class_name, old[target], new[target])


def names_in(classes: Classes) -> set[str]:
    """The names of all fields."""
    names: set[str] = set()
    for fields in classes.values():
        names.update(fields)
    return names


def _find_field_changes(
    library: str, class_name: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[Change]:
    for field in sorted({*old, *new}):
        was = old.get(field, "")
        now = new.get(field, "gone")
        if was != now:
            yield Change(library, class_name, field, was, now)


def to_table(changes: Iterable[Change]) -> list[str]:
    """The changes as a table; a change of a field that many classes share names one of them."""
    classes_of: dict[tuple[str, ...], list[str]] = {}
    for change in changes:
        key = (change.library, change.field, change.was, change.now)
        classes_of.setdefault(key, []).append(change.class_name)
    lines = ["| library | class | field | was | is |", "|---|---|---|---|---|"]
    for (library, field, was, now), class_names in classes_of.items():
        shown = ", ".join(class_names)
        if field and len(class_names) > 1:
            shown = f"{class_names[0]} and {len(class_names) - 1} more"
        cells = [cell.replace("|", "\\|") for cell in (library, shown, field, was, now)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print(json.dumps(describe()))
