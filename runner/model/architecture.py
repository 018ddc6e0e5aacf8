"""The architectures that the installed transformers lists, and those that cannot write texts.

The lists are read from the source of transformers; nothing heavy is imported.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from runner.errors import Fault
from runner.schema.modality import MODALITIES, Modality
from runner.schema.source import find_definition
from runner.schema.text import Node, to_override

# All architectures, and those that have a head of a kind.
CONFIG_CLASSES = "transformers.models.auto.auto_mappings.CONFIG_MAPPING_NAMES"
CLASSES_WITH_HEAD = "transformers.models.auto.modeling_auto.MODEL_FOR_{}_MAPPING_NAMES"
MODEL_CLASSES = {
    "lm": CLASSES_WITH_HEAD.format("CAUSAL_LM"),
    "score": CLASSES_WITH_HEAD.format("SEQUENCE_CLASSIFICATION"),
}


@dataclass(frozen=True)
class UnfitArchitectures:
    """Architectures that have a causal head and still cannot complete a batch of prompts."""

    reason: str  # goes on after the name of the architecture
    model_types: frozenset[str]
    unless: str = ""  # a key of the config that makes them fit where it is true


READS_AHEAD = "reads tokens after the current one, as encoders do"
# Each of these answers a batch of prompts otherwise than one prompt alone. Tried with transformers
# 5.23 and random weights.
UNFIT = (
    UnfitArchitectures(
        reason=READS_AHEAD,
        model_types=frozenset(
            [
                "bert",
                "bert-generation",
                "big_bird",
                "ernie",
                "megatron-bert",
                "roc_bert",
                "roformer",
            ]
        ),
        unless="is_decoder",
    ),
    UnfitArchitectures(
        reason=READS_AHEAD,
        model_types=frozenset(
            [
                "camembert",
                "cpmant",
                "data2vec-text",
                "electra",
                "rembert",
                "roberta",
                "roberta-prelayernorm",
                "xlm",
                "xlm-roberta",
                "xlm-roberta-xl",
                "xlnet",
                "xmod",
            ]
        ),
    ),
    UnfitArchitectures(
        reason="reads the padding before a short prompt as part of it",
        model_types=frozenset(
            [
                "bart",
                "bigbird_pegasus",
                "blenderbot",
                "blenderbot-small",
                "git",
                "marian",
                "mbart",
                "mvp",
                "pegasus",
                "plbart",
                "rwkv",
                "trocr",
                "whisper",
            ]
        ),
    ),
    UnfitArchitectures(
        reason="remembers nothing of the tokens before the one that it writes",
        model_types=frozenset(["openai-gpt"]),
    ),
)


@cache
def _read_classes(table: str) -> dict[str, str]:
    """The classes of a table of transformers by model type; empty where it cannot be read."""
    call = getattr(find_definition(table), "node", None)
    if not isinstance(call, ast.Call) or not call.args:
        return {}
    try:
        return dict(ast.literal_eval(call.args[0]))
    except ValueError:  # not a literal
        return {}


def _lists(table: str, model_type: object) -> bool:
    """True where a table has a model type, or cannot be read."""
    classes = _read_classes(table)
    return not classes or (isinstance(model_type, str) and model_type in classes)


def is_known_architecture(model_type: object) -> bool:
    """True for an architecture that some table of transformers lists."""
    tables = (*MODEL_CLASSES.values(), CONFIG_CLASSES)
    return any(_lists(table, model_type) for table in tables)


def has_head(config: Node, head: str) -> bool:
    """True where transformers has a class with this head for the model of a config."""
    if head not in MODEL_CLASSES or _lists(MODEL_CLASSES[head], config.get("model_type")):
        return True
    return head == "lm" and modality_of(config) is not None


def config_target(model_type: str) -> str:
    """The dotted name of the config class of an architecture."""
    return f"transformers.{_read_classes(CONFIG_CLASSES).get(model_type)}"


def modality_of(config: Node) -> Modality | None:
    """The kind of data that the model of a config reads beside text; None for text alone.

    A model that reads one is loaded with all its parts.
    """
    model_type = str(config.get("model_type"))
    for modality in MODALITIES:
        classes = _read_classes(CLASSES_WITH_HEAD.format(modality.model_table))
        model_class = classes.get(model_type)
        if not model_class or not config.get(modality.config_part):
            continue
        # Some architectures can also be loaded as their text model alone.
        saved_as = config.get("architectures") or [model_class]
        if model_class in saved_as or model_type not in _read_classes(MODEL_CLASSES["lm"]):
            return modality
    return None


def describe_unfit(model_type: str, config: Node, head: str | None) -> str:
    """The reason why a listed architecture cannot write texts; empty where it can, or need not."""
    if head != "lm":
        return ""
    for unfit in UNFIT:
        if model_type in unfit.model_types and not config.get(unfit.unless):
            return f"the architecture {model_type} {unfit.reason}"
    return ""


def find_unknown_keys(
    where: str, model_type: str, values: Node, known: Collection[str], least: float = 0.6
) -> Iterator[Fault]:
    """A fault for each key that an architecture does not have, with the nearest known one to type.

    ``least`` is the likeness, from 0 to 1, from which a known key is suggested.
    """
    for key in sorted(set(values) - set(known)):
        fix = ""
        close = get_close_matches(key, known, 1, least)
        if close:
            fix = to_override(f"{where}.{close[0]}", values[key])
        yield Fault(
            where=f"{where}.{key}",
            found=f"{model_type} has no {key}",
            expected="a key of its config",
            fix=fix,
        )
