"""An HTML page that needs no other file and no network: its script, its content policy, its look.

``template/`` has the look. The script draws interactive charts in place of the pictures of curves;
a live page has no pictures. The content policy of the page allows this script alone, by its hash.
All texts are escaped.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from runner.io.secrets import without_values
from runner.io.visible import to_visible
from runner.report.charts import ChartData
from runner.report.drawing import GREY, LOOKS, PLAIN_LOOK
from runner.report.facts import command_of
from runner.report.number import format_duration, format_spread
from runner.report.render import TEMPLATE, fill_template
from runner.report.sweep import count_states
from runner.report.tokens import Sheet, to_blocks, to_mark

# Functions and values that all templates use.
GLOBALS = {
    "command_of": command_of,
    "count_states": count_states,
    "format_duration": format_duration,
    "format_spread": format_spread,
    "glyphs": {colour: look.glyph for colour, look in LOOKS.items()} | {GREY: PLAIN_LOOK.glyph},
    "grey": GREY,
    "relpath": os.path.relpath,
    "to_blocks": to_blocks,
    "to_mark": to_mark,
    "to_visible": to_visible,
}
SCRIPTS = [TEMPLATE / "uplot" / "uPlot.iife.min.js", TEMPLATE / "page.js"]
SCRIPT = Markup("\n".join(path.read_text() for path in SCRIPTS))
SCRIPT_DIGEST = hashlib.sha256(SCRIPT.encode()).digest()
SCRIPT_HASH = base64.b64encode(SCRIPT_DIGEST).decode()
# The content policies of a page without the script, of one with it, and of a live page.
PLAIN = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SCRIPTED = f"{PLAIN}; script-src 'sha256-{SCRIPT_HASH}'"
LIVE = f"{SCRIPTED}; connect-src 'self'"


@dataclass(frozen=True)
class Figure:
    """A picture on a page; where it is a curve, the script replaces it by the chart of its name."""

    caption: str
    svg: Markup
    name: str
    is_curve: bool = True


def fill_page(template: str, data: ChartData, etag: str = "", **context: object) -> str:
    """A page without secrets, which has the script if it has charts or is live."""
    policy = PLAIN
    script = ""
    if etag or data["charts"]:
        policy = LIVE if etag else SCRIPTED
        script = SCRIPT
    page = fill_template(
        template, GLOBALS, script=script, policy=policy, data=data, etag=etag, **context
    )
    return without_values(page)


def to_preview_page(title: str, sheets: Sequence[Sheet]) -> str:
    """All sheets of a preview as one HTML page."""
    return fill_page("tokens.html", {"charts": []}, title=title, sheets=sheets)
