"""Parts that are each right and do not go together: what one key cannot say, because it takes two to see it.

Read from the configuration alone, before anything loads. Whether a key and its value are right is for ``check``.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import yaml

from runner.config import Options
from runner.dataset.convert import ARROWS, FORMS_FOR, TRAINER_FORMS, fits
from runner.errors import Fault
from runner.files import MENU
from runner.held_out import find_metric_faults
from runner.tray.argument import TRACKER_VARIABLES, foreign_variable
from runner.tray.callback import find_callback_faults


def find_mismatches(cfg: Mapping[str, Any], menu: Options) -> list[Fault]:
    """Parts that are each right and do not go together; read from the configuration alone, before anything loads."""
    rows, args = cfg["dataset"], cfg["trainer"]["args"]
    form, wanted = rows.get("form"), cfg["trainer"].get("form")
    faults = []
    if wanted not in TRAINER_FORMS:
        near = ARROWS.get(wanted) or get_close_matches(str(wanted), TRAINER_FORMS) or ["<one of them>"]
        faults.append(Fault("trainer.form", str(wanted), ", ".join(TRAINER_FORMS), f"trainer.form={near[0]}"))
    elif not fits(form, wanted):
        found = f"{form} rows ({rows.get('path')})"
        expected = f"rows that can become {wanted} rows: {', '.join(FORMS_FOR[wanted])}"
        faults.append(Fault("dataset", found, expected, f"dataset=<{' | '.join(_datasets_for(wanted, menu))}>"))
    faults += find_metric_faults(cfg)
    faults += find_callback_faults(cfg)
    variables = cfg["tracker"].get("environment") or {}
    faults += [foreign_variable(name) for name in variables if not name.startswith(TRACKER_VARIABLES)]
    evaluates = args.get("eval_strategy", "no") not in ("no", False)
    if evaluates and "split" in rows and not (rows["split"] or {}).get("eval"):
        where = "trainer.args.eval_strategy"
        faults.append(Fault(where, str(args["eval_strategy"]), "held-out rows", "dataset.split.eval=<split>"))
    if rows.get("streaming") and int(args.get("max_steps") or -1) < 1:
        where, cure = "dataset.streaming", "trainer.args.max_steps=<steps>"
        faults.append(Fault(where, "a stream, whose length nobody knows", "a number of steps", cure))
    return faults


def _datasets_for(wanted: str, menu: Options) -> list[str]:
    """The options of the dataset group whose rows can feed a trainer."""
    names = []
    for name in menu.get("dataset", []):
        path = MENU / "dataset" / f"{name}.yaml"
        node = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        form = (node.get("dataset") or node).get("form")
        if form and fits(form, wanted):
            names.append(name)
    return names
