"""Templates filled in: those of ``template/``, which are HTML and Markdown."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup, escape

from runner.report.number import short, value
from runner.run.read import format_time
from runner.schema.text import number


def fill_template(template: str, names: Mapping[str, Any] | None = None, **context: object) -> str:
    """A template filled in; a name that it does not know is an error. ``names`` are known in what it includes, too."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder, is_page = FileSystemLoader(Path(__file__).parent / "template"), template.endswith(".html")
    rules: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    jinja = Environment(loader=folder, autoescape=is_page, keep_trailing_newline=not is_page, **rules)
    jinja.filters |= {"breakable": breakable, "number": number, "format_time": format_time}
    jinja.filters["cell"] = lambda entry, width=28: short(value(entry), width)
    jinja.filters["yaml"] = lambda node: yaml.safe_dump(dict(node), sort_keys=False, allow_unicode=True)
    jinja.globals |= names or {}
    return jinja.get_template(template).render(context)


def breakable(name: str) -> Markup:
    """A name as HTML that may be broken after its dashes and slashes."""
    return Markup("<wbr>").join(map(escape, re.split(r"(?<=[_/+])", name)))
