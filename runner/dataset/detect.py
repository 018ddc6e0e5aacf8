"""Detection of the form of rows, and of the column of each role, by the names of columns and the first row."""

import logging
from collections.abc import Iterable, Mapping, Sequence

from runner.dataset.form import FORMS, FORMS_FOR, ROLES, RoleColumns, RowLayout, fits, is_finite_number
from runner.dataset.step import Cells
from runner.errors import DataError, Fault, fault
from runner.io.turns import TEMPLATE_ARGUMENTS
from runner.schema.text import nearest, read_tables

log = logging.getLogger(__name__)

MEDIA = ("audio", "audios", "video", "videos")
SYSTEM_PROMPT = "system_prompt"  # another name of the column `system`
EVERY = "*"  # all columns, where names of columns are asked for

# Columns that never stand beside `prompt`, each with the reason.
CLASHES = {name: why for why, names in read_tables(__file__)["clashes"].items() for name in names}
OF_A_FORM = {group[0] for form in FORMS.values() for group in form.needs} - {"prompt", "text", "reference"}
CLASHES = dict.fromkeys(OF_A_FORM, "TRL would take the rows for another form") | CLASHES


def read_layout(
    columns: Iterable[str], row: Cells, *, form: str | None = None, given: RoleColumns | None = None, to: str = ""
) -> RowLayout:
    """The layout of rows with these columns, of several the first that can feed ``to``; DataError where none fits."""
    columns, chosen = list(columns), {str(role): column for role, column in (given or {}).items()}
    faults = [misnamed("dataset.form", form, FORMS)] if form is not None and form not in FORMS else []
    for role, column in chosen.items():
        where = f"dataset.columns.{role}"
        if role not in ROLES:
            faults.append(misnamed("dataset.columns", role, ROLES, "dataset.columns.{}=" + column))
        elif column not in columns:
            faults.append(misnamed(where, column, columns, where + "={}"))
    DataError.refuse(faults)
    chosen.pop("images", None)  # which any form may have beside its own
    # A label beside messages may be of something else; only where labels are learnt from it has to be a verdict.
    is_verdict = to == "unpaired" or str(row.get(chosen.get("label", "label"))).lower() in ("true", "false", "0", "1")
    known = [form] if form else [name for name in FORMS if is_verdict or name != "judged"]
    readings = [_read_as(name, columns, chosen) for name in known]
    if not (layouts := [layout for layout in readings if layout is not None]):
        roles = "".join(f", {column} given as {role}" for role, column in chosen.items())
        forms = [form] if form else FORMS_FOR[to] if to else list(FORMS)
        needed = "; or ".join(f"{name}: {' with '.join(map(' or '.join, FORMS[name].needs))}" for name in forms)
        others = any(_read_as(name, columns, chosen) for name in FORMS_FOR.get(to, ()))  # than the given one
        fix = "dataset.form=null" if others else _to_type(form or to or "prompt_completion")
        raise DataError(Fault("dataset.columns", f"the columns {', '.join(columns)}{roles}", needed, fix))
    layout = next((layout for layout in layouts if fits(layout.form, to or None)), layouts[0])
    if not fits(layout.form, to or None):
        named = {"columns": ", ".join(layout.columns.values()), "forms": ", ".join(FORMS_FOR[to])}
        raise DataError(fault("dataset.feeds_no_trainer", form=layout.form, to=to, **named, fix=_to_type(to)))
    # A column that happens to be called `system` beside plain text, or `margin` and no number, is left out.
    played, lost = layout.columns, dict[str, str]()
    if not isinstance(row.get(played.get("history", "")), list | None):
        lost["history"] = "it holds no list of what was asked and answered"
    is_chat = "input" in played or any(isinstance(row.get(column), list) for column in played.values())
    if not is_chat and ("history" not in played or "history" in lost):
        lost["system"] = lost["context"] = "plain text has no place for it"
    elif isinstance(row.get(played.get("input", played.get("prompt", ""))), list):
        lost["context"] = "turns have no place for it"
    elif not isinstance(row.get(played.get("context", "")), str | None):
        lost["context"] = "it holds no text"
    if "margin" in played and not is_finite_number(row.get(played["margin"])):
        lost["margin"] = "it holds no number"
    lost = {role: why for role, why in lost.items() if role in played and role not in chosen}
    for role, why in lost.items():
        log.warning("the column `%s` is left out: %s", played[role], why)
    if {"prompt", "target"} <= set(played) and "target" not in chosen:
        as_text = f"dataset.columns.prompt={played['prompt']} dataset.columns.completion={played['target']}"
        as_prompt = f"dataset.form=prompt leaves `{played['target']}` to rewards, and the prompt as it stands"
        log.warning(
            "by their names the columns `%s` and `%s` are a question and its answer, which become turns of a chat; %s",
            played["prompt"],
            played["target"],
            as_prompt if to == "prompt" else f"{as_text} continues the text as it stands",
        )
    columns_by_role = {role: name for role, name in played.items() if role not in lost}
    return RowLayout(layout.form, columns_by_role, tuple(played[role] for role in lost))


def misnamed(where: str, name: str, names: Iterable[str], fix: str = "{}", otherwise: str = "") -> Fault:
    """The fault of a name that is not among the names, with the nearest one as the fix, or else ``otherwise``."""
    names = list(names)
    close = nearest(str(name), names)[:1]
    otherwise = otherwise or fix.format("<one of them>")
    return Fault(where, repr(name), "one of " + ", ".join(names), fix.format(*close) if close else otherwise)


def _read_as(form: str, columns: Sequence[str], given: Mapping[str, str]) -> RowLayout | None:
    free = [name for name in columns if name not in given.values()]
    named = {role: role for role in ROLES if role in free} | dict(given)
    if "system" not in named and SYSTEM_PROMPT in free:
        named["system"] = SYSTEM_PROMPT
    known, is_exchange = FORMS[form], {"prompt", "completion"} <= set(named) or {"input", "target"} <= set(named)
    for names in known.known_as:
        if is_exchange and "target" in names:  # both turns are named already
            continue
        # A prompt is never passed over for another name, and below one that was given stands nothing.
        is_other = "input" in names and "prompt" in named and "prompt" not in names.values()
        if set(names.values()) <= set(free) and not is_other and not ("context" in names and "input" in given):
            named |= {role: column for role, column in names.items() if role not in given}
            break
    played: dict[str, str] = {}
    # Of roles that stand in for each other the given one is meant, else the first.
    for group in (*known.needs, *known.also, ("system",)):
        there = sorted((role for role in group if role in named), key=lambda role: role not in given)
        played |= {role: named[role] for role in there[:1]}
    missing = [group for group in known.needs if not set(group) & set(played)]
    return None if missing or set(given) - set(played) else RowLayout(form, played)


def _to_type(form: str) -> str:
    form = "prompt_completion" if form in ("demonstration", "answer") else form
    roles = " ".join(f"dataset.columns.{group[0]}=<column>" for group in FORMS[form].needs)
    return f"{roles}, or choose another dataset"


def kept_columns(columns: Iterable[str], layout: RowLayout, to: str, keep: Sequence[str] | None) -> tuple[str, ...]:
    """The source's columns that go along: for ``prompt`` what rewards may ask for, and what templates are given.

    ``keep`` None takes every column whose name is safe; for other forms than ``prompt`` it takes none, and EVERY all.
    Raises DataError for a named one that is not there.
    """
    columns, group = list(columns), "reward" if to == "prompt" else "weight"
    played = set(layout.columns.values())
    if to != "prompt":  # of which a reward may read the path of a sound
        refuse_media(name for name in columns if name in MEDIA and name not in played)
    if to == "prompt" and keep is None:
        for name in sorted({*CLASHES} & ({*columns} - played)):
            log.warning("the column `%s` is left out: %s", name, CLASHES[name])
    for_template = (TEMPLATE_ARGUMENTS,) if to == "prompt" else ("tools", TEMPLATE_ARGUMENTS)
    given = tuple(name for name in for_template if name in columns and layout.form != "text")
    safe = [name for name in columns if name not in (*CLASHES, *given)]
    if to == "prompt":
        made = ("prompt",) if layout.form == "prompt" else ("prompt", "reference")
        wanted = [name for name in (safe if keep is None else keep) if name not in made or name in columns]
    else:
        safe = [name for name in safe if name not in ("prompt", "text")]
        wanted = safe if EVERY in (keep or ()) else [*(keep or ())]
    faults = []
    for name in (wanted := [name for name in wanted if name not in given]):
        if name in columns and name not in safe:
            why = CLASHES.get(name, "the trainer would take the rows for another form")
            faults.append(fault("dataset.clashing_column", group=group, name=name, why=why))
        elif name not in safe:
            faults.append(misnamed(group, name, safe, f"a {group} that asks for {{}}"))
    DataError.refuse(faults)
    return (*given, *(name for name in wanted if name != "prompt"))


def refuse_media(names: Iterable[str]) -> None:
    """Raise DataError where columns hold what no trainer here learns from, and what is left would be text alone."""
    if names := list(names):
        raise DataError(fault("dataset.media", names=", ".join(names), words=",".join(names)))


def check_without(names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise DataError for a column that is to be left out and is not there."""
    lacking = [name for name in names if name not in columns]
    DataError.refuse([misnamed("dataset.without", name, columns, "dataset.without=[{}]") for name in lacking])
