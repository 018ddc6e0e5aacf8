"""Tables that are data, each module's in the YAML file that stands beside it under its name."""

from pathlib import Path
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the fast one, where it was built


def read_tables(module: str) -> dict[str, Any]:
    """The tables of a module, by its ``__file__``."""
    return yaml.load(Path(module).with_suffix(".yaml").read_bytes(), LOADER)
