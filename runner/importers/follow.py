"""Keys of another tool, followed by the rows of its table, and the few functions that a row may call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from runner.dataset.form import SPEAKERS
from runner.errors import Fault
from runner.importers.convert import COMPUTED, CONVERSIONS, to_list, to_number, to_whole_number, to_words
from runner.importers.draft import HIDDEN, IGNORED, MAPPED, SAME, Draft, is_unset, to_single_line
from runner.importers.table import OFF, Rule, is_wanted
from runner.schema.text import nearest as find_nearest

SECRET = Rule(kind="ignored", reason="a secret, which no file of ours holds: export it in the environment")


def follow(draft: Draft, *keys: str) -> None:
    """Deal with these keys, in this order, by the first rule of their row that holds."""
    for key in keys:
        value = draft.keys.get(key)
        if value is None or key in draft.taken:
            continue
        rules = [SECRET] if value == HIDDEN else draft.find_rules(key)
        if rule := next((rule for rule in rules if holds(draft, rule, value)), None):
            draft.taken.add(key)
            written = _apply(draft, rule, key, value, rules)
            for path, constant in rule.also.items() if written else ():
                if draft.get(path) is None:
                    draft.put(path, _filled(draft, key, constant))


def follow_rest(draft: Draft) -> None:
    """Deal with every key that is left: by its row, else by the trainer's own fields."""
    for key, value in list(draft.keys.items()):
        follow(draft, key)
        if value is None or key in draft.taken:
            continue
        is_known = bool(draft.find_rules(key))
        if key in draft.config.parameters and not is_known:
            draft.write(key, f"trainer.args.{key}", value)
        elif value in OFF and key not in draft.implied:
            draft.note(SAME, key, why="off")
        elif key not in draft.implied:
            near = find_nearest(key, draft.config.parameters, 0.85)
            why = "it goes with another adapter or trainer" if is_known else "not a key that is known here"
            draft.no_equivalent(key, why, f"trainer.args.{near[0]}" if near else "")


def holds(draft: Draft, rule: Rule, value: object = None) -> bool:
    """True where every condition of a rule is met by a key's value and the draft."""
    facts: dict[str, list[object]] = {name: [draft.choices.get(name)] for name in ("trainer", "peft", "optimizer")}
    facts |= {"value": [value], "command": [draft.reading.command], "held_out": [draft.has_held_out]}
    facts["form"] = [part.get("form") for part in draft.parts]
    return (
        all(any(is_wanted(fact, wanted) for fact in facts[name]) for name, wanted in rule.when.items())
        and (not rule.like or bool(re.search(rule.like, to_single_line(value))))
        and all(is_wanted(draft.keys.get(key), wanted) for key, wanted in rule.beside.items())
        and not any(is_wanted(draft.keys.get(key), wanted) for key, wanted in rule.without.items())
    )


def _apply(draft: Draft, rule: Rule, key: str, value: object, rules: list[Rule]) -> bool:
    """Do what a rule says with a key; False where there was something to write, and it was not."""
    reason, nearest, why = (_filled(draft, key, text) for text in (rule.reason, rule.typed or rule.nearest, rule.why))
    if rule.choose:
        group, _, option = rule.choose.partition("=")
        draft.choices[group] = None if option == "null" else option
    if rule.by:
        FUNCTIONS[rule.by](draft, key)
    elif rule.to:
        path, count = rule.to.replace("*", key.partition(".")[2]), len(draft.faults)
        if rule.write is not None:
            value = _filled(draft, key, rule.write)
        elif rule.convert and (rule.convert in COMPUTED or not is_unset(value)):
            if rule.rest and (more := draft.convert(key, value, to_words, [])[1:]):
                draft.no_equivalent(key, f"{', '.join(more)}: {rule.rest}", rule.nearest)
            value = draft.convert(key, value, CONVERSIONS[rule.convert], None)
        return len(draft.faults) == count and draft.write(key, path, value, why)
    elif rule.kind == "refused":
        methods = [to_single_line(method) for each in rules if each.choose for method in to_list(each.when["value"])]
        expected = why or f"one of {', '.join(methods)}"
        draft.faults.append(Fault(key, reason, expected, "python -m runner --help  (lists the trainers)"))
    elif rule.kind in ("no_equivalent", "asked"):
        draft.unset |= {key} if rule.kind == "asked" else set()
        draft.overrides += nearest.split() if rule.typed else []
        draft.no_equivalent(key, reason, nearest)
    elif rule.choose:
        draft.note(MAPPED, key, rule.choose, why)
    else:
        draft.note(IGNORED if rule.kind == "ignored" else SAME, key, why=reason)
    return True


def _filled(draft: Draft, key: str, text: object) -> Any:
    """A text of a table, its names in braces replaced by values; anything else as it is."""
    names = {"key": key, "value": draft.keys[key], "trainer": draft.trainer}
    if not isinstance(text, str):
        return text
    return re.sub(r"\{(\w+)\}", lambda found: to_single_line(names.get(found[1], draft.keys.get(found[1]))), text)


def divide_batch(draft: Draft, key: str) -> None:
    """Take the whole batch by the small one as the number of accumulated steps."""
    micro = draft.read("micro_batch_size", to_whole_number, 1)
    steps = max(1, draft.take(key, to_whole_number, 1) // max(1, micro))
    draft.write(key, "trainer.args.gradient_accumulation_steps", steps, "the whole batch by the small one")


def divide_epoch(draft: Draft, key: str) -> None:
    """Write so many times in an epoch as a share of all steps."""
    path = f"trainer.args.{'eval' if key.startswith('evals') else 'save'}"
    epochs = draft.read("num_epochs", to_number, 1.0)
    times = draft.take(key, to_number, 1.0) * epochs
    share = round(1 / times, 6) if times else 1
    draft.put(f"{path}_strategy", "epoch" if share >= 1 else "steps")
    if share >= 1:
        draft.note(MAPPED, key, f"{path}_strategy: epoch")
    else:
        draft.write(key, f"{path}_steps", share, f"a share of all steps: {draft.keys[key]} in each of {epochs:g}")


def limit_warmup(draft: Draft, key: str) -> None:
    """Write a number of warm-up steps, if the training is longer."""
    steps, warmup = draft.keys.get("max_steps"), draft.keys[key]
    if isinstance(steps, int) and isinstance(warmup, int | float) and 0 < steps <= warmup:
        draft.no_equivalent(key, "the learning rate would never be reached")
    else:
        draft.write(key, "trainer.args.warmup_steps", warmup)


def pair_betas(draft: Draft, key: str) -> None:
    """Write both betas of Adam as one argument of an optimizer of ours."""
    usual = {"adam_beta1": 0.9, "adam_beta2": 0.999}
    betas = [draft.read(name, to_number, default) for name, default in usual.items()]
    draft.write(key, "optimizer.betas", betas)


def compare_speakers(draft: Draft, key: str) -> None:
    """Note a role of a dataset whose speakers are not those that ours reads in this role."""
    if any(SPEAKERS.get(name.lower()) != key.rpartition(".")[2] for name in draft.take(key, to_words, [])):
        draft.no_equivalent(key, "", "dataset.map._target_=<function of a row>")


CALLED = (divide_batch, divide_epoch, limit_warmup, pair_betas, compare_speakers)
FUNCTIONS: Mapping[str, Callable[[Draft, str], None]] = {function.__name__: function for function in CALLED}
