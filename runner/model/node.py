"""A model as a node of a configuration, of which nothing is looked at but its keys."""

import re
from collections.abc import Mapping

from runner.schema.text import Node

# The target that loads a model.
LOADER = "runner.model.load.load_model"
# Keys that change the training alone, so that an adapter fits its base without them, too.
TRAINING_KEYS = re.compile(r".*_?(dropout|pdrop)|output_router_logits|router_\w+|use_cache")


def overrides_answers(node: Node) -> bool:
    """True for a model that answers otherwise by its overrides.

    An adapter alone would then not do.
    """
    config = node.get("config")
    keys = config if isinstance(config, Mapping) else ()
    return not all(TRAINING_KEYS.fullmatch(str(key)) for key in keys)
