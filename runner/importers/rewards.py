"""Rewards of other tools: those that are ours, reward models, and functions of the user's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runner.importers.convert import to_weights, to_whole_number, to_words
from runner.importers.draft import MAPPED, Draft


def read_rewards(draft: Draft, names_key: str, model_key: str = "") -> list[tuple[str, list[float]]]:
    """Write the rewards that are ours, by the section ``rewards`` of the table, and reward models.

    The others come back by name, each with its weight if there is one.
    """
    ours: dict[str, dict[str, Any]] = draft.table.sections["rewards"]
    names, models = draft.take(names_key, to_words, []), draft.take(model_key, to_words, []) if model_key else []
    weights = draft.take(names_key.replace("funcs", "weights"), to_weights, [])
    entries: dict[str, Any] = {}
    others = []
    for place, name in enumerate([*names, *models]):
        weight = {"weight": weights[place]} if weights[place:] else {}
        if name in models:
            key = "model" if "model" not in entries else f"model_{len(entries)}"
            entries[key] = {"_target_": "runner.reward.outcome.load_reward_model", "path": name, "weight": 1.0} | weight
            draft.note(MAPPED, model_key, f"reward.{key}.path: {name}")
        elif name in ours:
            entry = dict(ours[name])
            why = entry.pop("remark", "")
            if entry["_target_"].endswith("get_soft_overlong_punishment"):
                key = "soft_max_length" if draft.keys.get("soft_max_length") else "max_completion_length"
                longest = draft.convert(key, draft.keys.get(key) or 512, to_whole_number, 512)
                draft.taken.add("soft_max_length")
                last = draft.take("soft_cache_length", to_whole_number, 0) or longest // 5
                settings = {"max_completion_len": longest, "soft_punish_cache": last}
                entry = {"_target_": entry["_target_"]} | settings | entry
                why = f"of {longest} tokens the last {last}"
            entries[name] = entry | weight
            draft.note(MAPPED, names_key, f"reward.{name}: {entry['_target_']}", why)
        else:
            others.append((name, weights[place : place + 1]))
    if entries:
        draft.values["reward"] = entries
    if weights and entries:
        draft.note(MAPPED, names_key.replace("funcs", "weights"), "reward.<name>.weight")
    return others


def type_rewards(draft: Draft, key: str, rewards: Iterable[tuple[str, list[float]]]) -> None:
    """Have the user type functions of their own, with their weights: only the command line may let them run."""
    for name, weights in rewards:
        short, package = name.rpartition(".")[2], name.partition(".")[0]
        word, allow = f"reward.{short}._target_={name}", f"allow=[{package}]"
        draft.words += [word, *(f"reward.{short}.weight={weight}" for weight in weights)]
        draft.words += [allow] if allow not in draft.words else []
        draft.nothing(key, f"{name} is code of your own, which is allowed when it is typed", f"{word} {allow}")
