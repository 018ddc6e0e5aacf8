"""Templates of ``template/`` -> HTML pages that need nothing else; whatever comes from run files is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from runner.report.number import number, percent, short, value
from runner.run.read import format_time

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_CHARACTERS = 700  # of a prompt or completion


def render_page(template: str, functions: Mapping[str, object] | None = None, **context: object) -> str:
    """A template filled in; ``functions`` are known in what it imports too, and an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent / "template")
    jinja = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= {"breakable": breakable, "clipped": _clipped, "number": number, "percent": percent}
    jinja.filters |= {"format_time": format_time, "cell": lambda entry: short(value(entry), 40)}
    jinja.globals |= functions or {}
    return jinja.get_template(template).render(context)


def breakable(name: str) -> Markup:
    """A name as HTML that may be broken after its dashes and slashes.

    >>> str(breakable("a_b/<c>"))
    'a_<wbr>b/<wbr>&lt;c&gt;'
    """
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(map(escape, re.split(r"(?<=[_/+])", name)))


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text)} characters)"
