"""Names of rewards, and reward models -> entries of the group reward, or words to type."""

from collections.abc import Iterable
from dataclasses import dataclass

from runner.config.conversion import plain, to_weights, to_words
from runner.config.dialect import filled
from runner.importers.draft import MAPPED, Draft, Part

# An answer that is longer than allowed costs something from a length on, counted from its end.
OVERLONG = "trl.rewards.get_soft_overlong_punishment"


@dataclass(frozen=True)
class ForeignReward:
    """A reward that is none of ours: a function of the user's own."""

    name: str  # module.function
    weight: float | None = None


def read_rewards(draft: Draft, names_key: str, model_key: str = "") -> list[ForeignReward]:
    """Write the rewards that are ours, by the section ``rewards`` of the table, and reward models.

    Returns all others. Weights, one for each name and then for each model, stand beside the names.
    """
    our_rewards: Part = draft.table.sections["rewards"]
    names = draft.take(names_key, to_words, [])
    models = draft.take(model_key, to_words, []) if model_key else []
    weights_key = names_key.replace("funcs", "weights")
    weights = draft.take(weights_key, to_weights, [])
    entries: dict[str, Part] = {}
    foreign_rewards = []
    for index, name in enumerate([*names, *models]):
        entry: Part
        weight = weights[index] if index < len(weights) else None
        if name in models:
            key = "model"
            if "model" in entries:
                key = f"model_{len(entries)}"
            entry = model_entry(name)
            draft.note(MAPPED, model_key, f"reward.{key}.path: {name}")
        elif name in our_rewards:
            key = name
            entry = {}
            for setting, value in our_rewards[name].items():
                entry[setting] = plain(filled(value, draft.keys)) if "{" in str(value) else value
            remark = entry.pop("remark", "")
            target = entry["_target_"]
            draft.note(MAPPED, names_key, f"reward.{name}: {target}", remark)
        else:
            foreign_rewards.append(ForeignReward(name, weight))
            continue
        if weight is not None:
            entry["weight"] = weight
        entries[key] = entry
    if entries:
        draft.values["reward"] = entries
    if weights:
        draft.note(MAPPED, weights_key, "reward.<name>.weight")
    return foreign_rewards


def model_entry(path: str) -> Part:
    """The entry of a reward model."""
    return {
        "_target_": "runner.reward.outcome.load_reward_model",
        "path": path,
        "weight": 1.0,
    }


def overlong_entry(longest: int, last_tokens: int, weight: float) -> Part:
    """The entry of the cost of answers that end in the last tokens of what is allowed."""
    return {
        "_target_": OVERLONG,
        "max_completion_len": longest,
        "soft_punish_cache": last_tokens,
        "weight": weight,
    }


def type_rewards(draft: Draft, key: str, rewards: Iterable[ForeignReward]) -> None:
    """Have the user type functions of their own: only the command line may let them run."""
    for reward in rewards:
        if "." not in reward.name:
            _ask_for_reward(draft, key, reward)
            continue
        package = reward.name.partition(".")[0]
        function = reward.name.rpartition(".")[2]
        word = f"reward.{function}._target_={reward.name}"
        allow = f"allow=[{package}]"
        draft.overrides.append(word)
        if reward.weight is not None:
            draft.overrides.append(f"reward.{function}.weight={reward.weight}")
        if allow not in draft.overrides:
            draft.overrides.append(allow)
        why = f"{reward.name} is code of your own, which is allowed when it is typed"
        draft.lose_part(key, f": {reward.name}", why, f"{word} {allow}")


def _ask_for_reward(draft: Draft, key: str, reward: ForeignReward) -> None:
    """Leave open a reward that only the other tool knows by this name."""
    entry: Part = {"_target_": "???"}
    if reward.weight is not None:
        entry["weight"] = reward.weight
    draft.values.setdefault("reward", {})[reward.name] = entry
    nearest: dict[str, str] = draft.table.sections.get("nearest_rewards", {})
    target = nearest.get(reward.name, "a function of your own, package.module.function")
    part = f": {reward.name}"
    draft.unset.add(f"{key}{part}")
    why = f"{reward.name}: a reward of theirs, and none of ours has this name"
    draft.lose_part(key, part, why, f"reward.{reward.name}._target_={target}")
