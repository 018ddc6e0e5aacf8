"""The Jinja templates in ``template/`` filled in, and the forms that values have in HTML."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from markupsafe import Markup, escape

from runner.report.number import format_value, short
from runner.run.record import format_time
from runner.schema.literal import number

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE = Path(__file__).parent / "template"
CELL_WIDTH = 28


def fill_template(
    template: str, names: Mapping[str, Any] | None = None, /, **context: object
) -> str:
    """The text of a filled template; a name that the context lacks is an error.

    Unlike the context, ``names`` are also known in the templates that it imports.
    """
    page = _environment().get_template(template, globals=names)
    return str(page.render(context))


@cache
def _environment() -> "Environment":
    """The settings and filters of all templates, made once.

    What a page shows comes from run folders, so everything in HTML is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    filters = {
        "breakable": breakable,
        "cell": _to_cell,
        "format_time": format_time,
        "number": number,
        "yaml": _to_yaml,
    }
    environment.filters.update(filters)
    return environment


def _to_cell(value: object, width: int = CELL_WIDTH) -> str:
    return short(format_value(value), width)


def _to_yaml(node: Mapping[str, object]) -> str:
    return str(yaml.safe_dump(dict(node), sort_keys=False, allow_unicode=True))


def breakable(name: str) -> Markup:
    """A name as HTML that a browser may break after an underscore, slash or plus."""
    parts = re.split(r"(?<=[_/+])", name)
    return Markup("<wbr>").join(map(escape, parts))
