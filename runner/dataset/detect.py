"""Detection of the form of rows, and of the column of each role.

The names of the columns decide, and the first row says what the cells hold.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from runner.dataset.conversation import is_finite_number
from runner.dataset.faults import misnamed
from runner.dataset.form import FORMS, FORMS_FOR, Cells, RowForm, RowLayout, fits
from runner.errors import DataError, Fault
from runner.io.turns import TEMPLATE_ARGUMENTS
from runner.schema.modality import MEDIA_COLUMNS, MODALITIES, UNTRAINED, UNTRAINED_COLUMNS
from runner.schema.role import ROLES, RoleColumns

log = logging.getLogger(__name__)

SYSTEM_PROMPT = "system_prompt"  # another name of the column `system`
EVERY = "*"  # all columns, where names of columns are asked for
VERDICTS = ("true", "false", "0", "1")


def _find_clashes() -> dict[str, str]:
    """The reasons by column."""
    # Roles of these names stand beside a prompt without making it another form.
    harmless = {"prompt", "text", "reference"}
    of_forms: set[str] = set()
    for form in FORMS.values():
        needed = [group[0] for group in form.needs]
        of_forms.update(needed)
    arguments = (
        "prompts",
        "completions",
        "completion_ids",
        "environments",
        "trainer_state",
        "log_extra",
        "log_metric",
    )
    tokens = ("input_ids", "labels", "attention_mask", "completion_mask", "prompt_ids")
    clashes: dict[str, str] = {}
    for name in of_forms - harmless:
        clashes[name] = "TRL would read the rows as another form"
    for name in arguments:
        clashes[name] = "TRL gives reward functions an argument of its own by this name"
    for name in tokens:
        clashes[name] = "TRL would read the rows as tokens"
    why = "the trainer has tools of its own, and would render the prompts without these"
    clashes["tools"] = why
    return clashes


# Columns that never stand beside `prompt`, because their names alone make TRL do something else,
# each with the reason.
CLASHES = _find_clashes()


def read_layout(
    columns: Iterable[str],
    row: Cells,
    *,
    form: str | None = None,
    given: RoleColumns | None = None,
    to: str = "",
) -> RowLayout:
    """The layout of rows with these columns, of several the first that can feed ``to``.

    ``row`` shows the types of the cells. ``form`` and the columns that are ``given`` for roles
    restrict what is looked for. Raises DataError where no layout fits.
    """
    columns = list(columns)
    chosen = {str(role): column for role, column in (given or {}).items()}
    _check_choices(columns, form, chosen)
    for column in MEDIA_COLUMNS:  # which any form may have beside its own columns
        chosen.pop(column, None)
    layouts = []
    for name in _possible_forms(row, form, chosen, to):
        reading = _read_as(FORMS[name], columns, chosen)
        if reading is not None:
            layouts.append(RowLayout(name, reading))
    if not layouts:
        raise DataError(_no_layout(columns, form, chosen, to))
    useful = [layout for layout in layouts if fits(layout.form, to or None)]
    if not useful:
        raise DataError(_useless_layout(layouts[0], to))
    layout = useful[0]

    roles = layout.columns
    playable = dict(roles)
    unplayable = []
    for role, why in _find_unplayable(roles, row).items():
        if role in roles and role not in chosen:
            dropped = playable.pop(role)
            unplayable.append(dropped)
            log.warning("the column `%s` is left out: %s", dropped, why)
    if "prompt" in roles and "target" in roles and "target" not in chosen:
        _warn_of_turns(roles["prompt"], roles["target"], to)
    return RowLayout(layout.form, playable, tuple(unplayable))


def _useless_layout(layout: RowLayout, to: str) -> Fault:
    """The fault of rows that no trainer for ``to`` can use."""
    columns = ", ".join(layout.columns.values())
    forms = ", ".join(FORMS_FOR[to])
    return Fault(
        where="dataset.form",
        found=f"{layout.form} rows, from the columns {columns}",
        expected=f"rows for a trainer that takes {to}: {forms}",
        fix=_to_type(to),
    )


def _check_choices(columns: Sequence[str], form: str | None, chosen: Mapping[str, str]) -> None:
    """Raise DataError for a form, a role or a column that does not exist."""
    faults = []
    if form is not None and form not in FORMS:
        faults.append(misnamed("dataset.form", form, FORMS))
    for role, column in chosen.items():
        where = f"dataset.columns.{role}"
        if role not in ROLES:
            fix = f"dataset.columns.{{}}={column}"
            faults.append(misnamed("dataset.columns", role, ROLES, fix))
        elif column not in columns:
            faults.append(misnamed(where, column, columns, f"{where}={{}}"))
    DataError.refuse(faults)


def _possible_forms(
    row: Cells, form: str | None, chosen: Mapping[str, str], to: str
) -> Sequence[str]:
    """The forms that rows may have, in the order of recognition.

    A label beside messages may be of something else; only where labels are learnt from it has to
    be a verdict.
    """
    if form:
        return [form]
    label = row.get(chosen.get("label", "label"))
    if to == "unpaired" or str(label).lower() in VERDICTS:
        return list(FORMS)
    return [name for name in FORMS if name != "judged"]


def _read_as(
    form: RowForm, columns: Sequence[str], given: Mapping[str, str]
) -> dict[str, str] | None:
    """The column of each role in rows of a form.

    None where no column plays a needed role, or where the form has no use for a given one.
    """
    free = [name for name in columns if name not in given.values()]
    named: dict[str, str] = {role: role for role in ROLES if role in free}
    named |= given
    if "system" not in named and SYSTEM_PROMPT in free:
        named["system"] = SYSTEM_PROMPT
    named |= _find_other_names(form, free, named, given)
    roles: dict[str, str] = {}
    for group in (*form.needs, *form.also, ("system",)):
        # Of roles that stand in for each other the given one is meant, else the first.
        candidates = [role for role in group if role in named]
        preferred = [role for role in candidates if role in given] or candidates
        if preferred:
            role = preferred[0]
            roles[role] = named[role]
        elif group in form.needs:
            return None
    uses_all_given = roles.keys() >= given.keys()
    return roles if uses_all_given else None


def _find_other_names(
    form: RowForm, free: Sequence[str], named: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """The columns that play roles under a name that others give to them."""
    has_completion = named.keys() >= {"prompt", "completion"}
    has_both_turns = has_completion or named.keys() >= {"input", "target"}
    free_columns = set(free)
    for names in form.known_as:
        if not free_columns.issuperset(names.values()):
            continue
        if "target" in names and has_both_turns:
            continue
        # A prompt is never passed over for another name.
        if "input" in names and "prompt" in named and "prompt" not in names.values():
            continue
        # Nothing is set below a question that was given.
        if "context" in names and "input" in given:
            continue
        return {role: column for role, column in names.items() if role not in given}
    return {}


def _find_unplayable(columns: Mapping[str, str], row: Cells) -> dict[str, str]:
    """The roles that no column can play in such a row, each with the reason.

    A column that happens to be called `system` beside plain text, or `margin` and holds no number,
    is left out.
    """
    cells = {role: row.get(column) for role, column in columns.items()}
    reasons = {}
    if not isinstance(cells.get("history"), list | None):
        reasons["history"] = "it holds no list of questions and answers"
    has_turns = any(isinstance(cell, list) for cell in cells.values())
    is_chat = "input" in columns or has_turns
    has_history = "history" in columns and "history" not in reasons
    if not is_chat and not has_history:
        reasons["system"] = "plain text has no place for it"
        reasons["context"] = "plain text has no place for it"
    elif isinstance(cells.get("input", cells.get("prompt")), list):
        reasons["context"] = "turns have no place for it"
    elif not isinstance(cells.get("context"), str | None):
        reasons["context"] = "it holds no text"
    if "margin" in columns and not is_finite_number(cells["margin"]):
        reasons["margin"] = "it holds no number"
    return reasons


def _warn_of_turns(prompt: str, target: str, to: str) -> None:
    """Say how plain text is kept where the names of columns make it a question and its answer."""
    advice = (
        f"dataset.columns.prompt={prompt} dataset.columns.completion={target} continues the text "
        "without a template"
    )
    if to == "prompt":
        advice = f"dataset.form=prompt leaves `{target}` to rewards, and the prompt unchanged"
    log.warning(
        "by their names the columns `%s` and `%s` are a question and its answer, which become "
        "turns of a chat; %s",
        prompt,
        target,
        advice,
    )


def _no_layout(
    columns: Sequence[str], form: str | None, chosen: Mapping[str, str], to: str
) -> Fault:
    """The fault of columns that are of no form, or not of the one that was asked for."""
    forms: Iterable[str] = FORMS
    if form:
        forms = [form]
    elif to:
        forms = FORMS_FOR[to]
    needs = []
    for name in forms:
        groups = [" or ".join(group) for group in FORMS[name].needs]
        needed = " with ".join(groups)
        needs.append(f"{name}: {needed}")
    fix = _to_type(form or to or "prompt_completion")
    for name in FORMS_FOR.get(to, ()):
        if _read_as(FORMS[name], columns, chosen) is not None:
            fix = "dataset.form=null"
    found = f"the columns {', '.join(columns)}"
    for role, column in chosen.items():
        found += f", {column} given as {role}"
    return Fault(
        where="dataset.columns",
        found=found,
        expected="; or ".join(needs),
        fix=fix,
    )


def _to_type(form: str) -> str:
    """The words that name the columns of a form."""
    if form in ("demonstration", "answer"):
        form = "prompt_completion"
    roles = [f"dataset.columns.{group[0]}=<column>" for group in FORMS[form].needs]
    return f"{' '.join(roles)}, or choose another dataset"


# --- Other columns ------------------------------------------------------------------------------
def kept_columns(
    columns: Iterable[str], layout: RowLayout, to: str, keep: Sequence[str] | None
) -> tuple[str, ...]:
    """The source's columns that go along.

    For ``prompt`` these are what rewards may ask for, and what templates are given. ``keep`` None
    takes every column whose name is safe; for other forms than ``prompt`` it takes none, and EVERY
    all. Raises DataError for a named one that is not there.
    """
    columns = list(columns)
    further = set(columns) - set(layout.columns.values())  # those that play no role
    for_template = ["tools", TEMPLATE_ARGUMENTS]
    if to == "prompt":
        for_template = [TEMPLATE_ARGUMENTS]
        if keep is None:
            for name in sorted(further & CLASHES.keys()):
                log.warning("the column `%s` is left out: %s", name, CLASHES[name])
    else:  # a reward may read the path of a sound, but nothing else can
        untrained = [name for name in columns if name in UNTRAINED_COLUMNS and name in further]
        refuse_media(untrained)
    templated: list[str] = []
    if layout.form != "text":
        templated = [name for name in for_template if name in columns]
    safe = [name for name in columns if name not in CLASHES and name not in templated]
    wanted: Sequence[str]
    if to == "prompt":
        group = "reward"
        # We make these ourselves where the source has no such column.
        made = ("prompt",) if layout.form == "prompt" else ("prompt", "reference")
        wanted = safe if keep is None else keep
        wanted = [name for name in wanted if name not in made or name in columns]
    else:
        group = "weight"
        safe = [name for name in safe if name not in ("prompt", "text")]
        keep = keep or ()
        wanted = safe if EVERY in keep else keep
    wanted = [name for name in wanted if name not in templated]
    _check_wanted(wanted, columns, safe, group)
    kept = [name for name in wanted if name != "prompt"]
    return (*templated, *kept)


def _check_wanted(
    wanted: Sequence[str], columns: Sequence[str], safe: Sequence[str], group: str
) -> None:
    """Raise DataError for columns that a part of ``group`` asks for and cannot have."""
    faults = []
    for name in wanted:
        if name in safe:
            continue
        if name in columns:
            why = CLASHES.get(name, "the trainer would read the rows as another form")
            fault = Fault(
                where=group,
                found=f"a {group} asks for the column {name!r}",
                expected=why,
                fix="give the column another name in the data",
            )
        else:
            fault = misnamed(group, name, safe, f"a {group} that asks for {{}}")
        faults.append(fault)
    DataError.refuse(faults)


def refuse_media(names: Iterable[str]) -> None:
    """Raise DataError where columns hold what no trainer here learns from.

    Without them the rows would be text alone, and nobody would notice.
    """
    names = list(names)
    if not names:
        return
    trained = " or ".join(modality.many for modality in MODALITIES)
    untrained = " and ".join(UNTRAINED)
    fault = Fault(
        where="dataset",
        found=f"the columns {', '.join(names)}",
        expected=f"text or {trained}: {untrained} are not trained yet",
        fix=f"dataset.without=[{','.join(names)}]  (to train without them)",
    )
    raise DataError(fault)


def check_without(names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise DataError for a column that is to be left out and is not there."""
    faults = []
    for name in names:
        if name not in columns:
            faults.append(misnamed("dataset.without", name, columns, "dataset.without=[{}]"))
    DataError.refuse(faults)
