"""The experiment of a draft: its name, and the content of its file in ``conf/experiment/``."""

import re
from pathlib import Path
from typing import Any

from runner.importers.draft import Draft

MAX_NAME_LETTERS = 95  # with .yaml it is a file
FIRST_KEYS = ("seed", "learning_rate", "kl_coef")


def name_of(path: Path) -> str:
    """A name for the experiment of a file: that of the file, in letters that need no quotes."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", path.stem).strip("_").lower()
    if name.isdigit():  # no option of a menu is a number
        name = f"imported_{name}"
    return name[:MAX_NAME_LETTERS] or "imported"


def content_of(draft: Draft) -> dict[str, Any]:
    """The experiment of a draft, as its file says it."""
    defaults: list[Any] = [{f"override /{group}": name} for group, name in draft.choices.items()]
    content: dict[str, Any] = {"defaults": [*defaults, "_self_"], "name": draft.name}
    for key in FIRST_KEYS:
        if key in draft.values:
            content[key] = draft.values[key]
    for key, node in draft.values.items():
        if node not in ({}, {"args": {}}):
            content[key] = node
    return content
