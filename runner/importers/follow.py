"""The rows of a dialect's table, followed: each key of theirs -> what the draft says of it.

``config.dialect`` explains the form of a row, and reads it.
"""

from dataclasses import replace

from runner.config.conversion import COMPUTED, CONVERSIONS, to_words
from runner.config.dialect import OFF, Rule, filled, to_single_line
from runner.errors import Fault
from runner.importers.draft import HIDDEN, IGNORED, MAPPED, SAME, Draft, is_unset
from runner.importers.row_functions import FUNCTIONS
from runner.schema.did_you_mean import best_guess
from runner.schema.literal import to_list
from runner.schema.text import Node, select

MIN_LIKENESS = 0.85  # of a field whose name is offered for a key that nobody knows
SECRET = Rule(
    kind="ignored", reason="a secret, which no file of ours holds: export it in the environment"
)


def follow(draft: Draft, *keys: str) -> None:
    """Deal with these keys, in this order, each by the first rule of its row that holds."""
    for key in keys:
        value = draft.keys.get(key)
        if value is None or key in draft.handled:
            continue
        rules = [SECRET] if value == HIDDEN else draft.find_rules(key)
        for rule in rules:
            if draft.meets(rule, value):
                _follow_rule(draft, rule, key, rules)
                break


def follow_rest(draft: Draft) -> None:
    """Deal with every key that is left: by its row, or else by the trainer's own fields."""
    for key, value in list(draft.keys.items()):
        follow(draft, key)
        if value is None or key in draft.handled:
            continue
        has_row = bool(draft.find_rules(key))
        if key in draft.config.parameters and not has_row:
            draft.write(key, f"trainer.args.{key}", value)
        elif key in draft.implied:
            continue
        elif value in OFF:
            draft.note(SAME, key, why="off")
        else:
            why = "not a key that is known here"
            if has_row:
                why = "it goes with another adapter or trainer"
            similar = best_guess(key, draft.config.parameters, cutoff=MIN_LIKENESS)
            nearest = f"trainer.args.{similar}" if similar else ""
            draft.no_equivalent(key, why, nearest)


def _follow_rule(draft: Draft, rule: Rule, key: str, rules: list[Rule]) -> None:
    """Do all that a rule says of a key; ``rules`` are those of its row."""
    draft.handled.add(key)
    draft.imply(rule.give)
    # The texts may name the trainer, as it was before the rule chooses another.
    names = _names(draft, key)
    rule = replace(
        rule,
        reason=filled(rule.reason, names),
        nearest=filled(rule.typed or rule.nearest, names),
        why=filled(rule.why, names),
    )
    if rule.choose:
        group, _, option = rule.choose.partition("=")
        draft.choices[group] = None if option == "null" else option
    is_done = True
    if rule.by:
        FUNCTIONS[rule.by](draft, key)
    elif rule.to:
        is_done = _write_value(draft, rule, key)
    elif rule.kind == "refused":
        draft.faults.append(_refused_value(rule, key, rules))
    else:
        _note_rule(draft, rule, key)
    if not is_done:
        return
    for path, constant in rule.also.items():
        if select(draft.values, path) is None:
            draft.put(path, filled(constant, _names(draft, key)))


def _write_value(draft: Draft, rule: Rule, key: str) -> bool:
    """Write what a rule makes of the value of a key; False where it cannot be written."""
    path = rule.to.replace("*", key.partition(".")[2])
    value = draft.keys[key]
    faults_before = len(draft.faults)
    if rule.write is not None:
        value = filled(rule.write, _names(draft, key))
    # What only copies a value also copies one that the shell sets.
    elif rule.convert and (rule.convert in COMPUTED or not is_unset(value)):
        if rule.rest:
            further = draft.convert(key, value, to_words, [])[1:]
            if further:
                reason = f"{', '.join(further)}: {rule.rest}"
                draft.no_equivalent(key, reason, rule.nearest)
        value = draft.convert(key, value, CONVERSIONS[rule.convert], None)
    if len(draft.faults) > faults_before:
        return False
    return draft.write(key, path, value, rule.why)


def _refused_value(rule: Rule, key: str, rules: list[Rule]) -> Fault:
    """The fault of a value that nothing can be made of; the other rules of its row say what can."""
    methods: list[str] = []
    for alternative in rules:
        if alternative.choose:
            methods += map(to_single_line, to_list(alternative.when["value"]))
    return Fault(
        where=key,
        found=rule.reason,
        expected=rule.why or f"one of {', '.join(methods)}",
        fix="python -m runner options trainer",
    )


def _note_rule(draft: Draft, rule: Rule, key: str) -> None:
    """Note what becomes of a key whose rule writes no value."""
    if rule.kind in ("no_equivalent", "asked"):
        if rule.kind == "asked":
            draft.unset.add(key)
        if rule.typed:
            draft.overrides += rule.nearest.split()
        draft.no_equivalent(key, rule.reason, rule.nearest)
    elif rule.choose:
        draft.note(MAPPED, key, rule.choose, rule.why)
    else:
        kind = IGNORED if rule.kind == "ignored" else SAME
        draft.note(kind, key, why=rule.reason)


def _names(draft: Draft, key: str) -> Node:
    """The values of the names that the texts of a rule may use."""
    return {**draft.keys, "key": key, "value": draft.keys[key], "trainer": draft.trainer}
