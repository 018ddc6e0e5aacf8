"""The rewards of verl: a function of the user's, a model, rules by source, and what is too long.

Without a function and a model, verl takes a rule by the ``data_source`` of each row, and so does
``reward.verl.score_by_source``. A function becomes that of ``reward.verl.ComputeScore``; it is code
of the user's, so its package is allowed when it is typed.
"""

import re
from pathlib import Path

from runner.config.conversion import to_number, to_plain_text, to_whole_number
from runner.config.dialect import is_wanted
from runner.importers.draft import MAPPED, Draft, Part, is_unset
from runner.importers.reward_entries import overlong_entry

LENGTH = "data.max_response_length"
# How often prompts are exchanged where theirs goes on until there are enough.
UNLIMITED_EXCHANGES = 10
# The keys of the buffer in which a long completion is punished, by the version of verl.
BUFFERS = (
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
LONGEST_KEYS = ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len")
NO_PUNISHMENT = "no completion is punished for its length"
FUNCTION = "custom_reward_function"
SCORES = "runner.reward.verl"


# --- Rewards --------------------------------------------------------------------------------------


def read_filter_groups(draft: Draft, step_prompts: int) -> None:
    """Write how often prompts are exchanged whose completions all earn the same."""
    group = "algorithm.filter_groups"
    enable = f"{group}.enable"
    limit_key = f"{group}.max_num_gen_batches"
    if not _is_on(draft, enable):
        draft.note_same([enable, limit_key, f"{group}.metric"], "no prompt is exchanged")
        return
    # Theirs samples further batches until enough prompts are left. Ours exchanges prompts a number
    # of times, each time for one other prompt, and goes on with those that it could not exchange.
    batches = draft.keys.get(limit_key)
    times = UNLIMITED_EXCHANGES
    why = "theirs goes on until there are enough prompts"
    if isinstance(batches, int) and batches > 0:
        size_key = "data.gen_batch_size"
        prompts = step_prompts
        if isinstance(draft.keys.get(size_key), int):
            prompts = draft.read(size_key, to_whole_number, step_prompts)
        times = max(1, batches * prompts // step_prompts - 1)
        why = f"{batches} batches of {prompts} prompts for {step_prompts}, less the first"
    path = "trainer.dynamic_sampling"
    if draft.trainer == "ppo":
        path = "trainer.args.dynamic_sampling"
    draft.put(path, times)
    draft.note(MAPPED, enable, f"{path}: {times}", why)
    if draft.keys.get(limit_key) is not None:
        draft.note(MAPPED, limit_key, f"{path}: {times}")


def read_rewards_of_verl(draft: Draft) -> None:
    """Write the rewards: a function of the user's, a model, or the rules of verl."""
    rewards: dict[str, Part] = {}
    path_key = f"{FUNCTION}.path"
    has_function = _is_on(draft, path_key)
    if has_function:
        rewards["compute_score"] = read_own_function(draft)
    else:
        draft.note_same([path_key, f"{FUNCTION}.name"], "no function of your own")
    model_key = "reward_model.model.path"
    switch = "reward_model.enable"
    if _is_on(draft, switch):
        draft.note(MAPPED, switch, "reward.model")
        rewards["model"] = read_scoring_model(draft, model_key)
        if has_function:
            why = "theirs calls the function with the model, ours adds the two"
            draft.replace_note(switch, why, "reward.model.weight=0")
    else:
        draft.note_same([switch, model_key], "no reward model")
    if not rewards:
        rewards["rule"] = {"_target_": f"{SCORES}.score_by_source"}
        draft.imply({path_key: "by data_source"})
        why = "the rules of gsm8k, MATH, DAPO, numina and geometry3k; others are yours to say"
        draft.note(MAPPED, path_key, f"reward.rule: {SCORES}.score_by_source", why)
    source_key = "data.reward_fn_key"
    source = draft.keys.get(source_key)
    # Only rewards that read rows as verl does know the column.
    for entry in rewards.values():
        if entry["_target_"].startswith(SCORES) and source not in (None, "data_source"):
            entry["source_column"] = source
    read_overlong_buffer(draft, rewards)
    draft.choices["reward"] = "none"
    draft.values["reward"] = rewards


def _is_on(draft: Draft, key: str) -> bool:
    return is_wanted(draft.keys.get(key), "enabled")


def read_own_function(draft: Draft) -> Part:
    """The entry of a function of the user's, whose module has to be allowed when it is typed."""
    path = draft.read(f"{FUNCTION}.path", to_plain_text, "")
    name = draft.read(f"{FUNCTION}.name", to_plain_text, "compute_score")
    module = module_of_file(path)
    function: Part = {"_target_": f"{module}.{name}", "_partial_": True}
    prefix = f"{FUNCTION}.reward_kwargs."
    for key, value in draft.keys.items():
        if key.startswith(prefix):
            function[key.removeprefix(prefix)] = value
    entry: Part = {"_target_": f"{SCORES}.ComputeScore", "function": function}
    if draft.keys.get("reward_model.reward_manager") == "batch":
        entry["batched"] = True
    allow = f"allow=[{module.partition('.')[0]}]"
    draft.overrides.append(allow)
    why = f"code of your own, as the module {module}: {allow} is typed"
    target = f"reward.compute_score.function._target_: {module}.{name}"
    draft.note(MAPPED, f"{FUNCTION}.path", target, why)
    draft.note(MAPPED, f"{FUNCTION}.name", target)
    return entry


def module_of_file(path: str) -> str:
    """The module of a file below the working directory; of any other one by its name alone.

    The folder of the latter has to be on Python's path when the experiment runs.
    """
    file = Path(path).with_suffix("")
    parts = [part for part in file.parts if part != "."]
    is_below = all(re.fullmatch(r"[A-Za-z_]\w*", part) for part in parts)
    if is_below and parts:
        return ".".join(parts)
    return re.sub(r"\W", "_", file.name)


def read_scoring_model(draft: Draft, key: str) -> Part:
    """The entry of a reward model."""
    path = draft.keys.get(key)
    if path is None or is_unset(path):
        draft.unset.add(key)
        path = "???"
        draft.keys.setdefault(key, "???")
        draft.no_equivalent(key, "the reward model is not said", "reward.model.path=<model>")
    else:
        draft.note(MAPPED, key, f"reward.model.path: {path}")
    return {"_target_": "runner.reward.outcome.load_reward_model", "path": path}


def read_overlong_buffer(draft: Draft, rewards: dict[str, Part]) -> None:
    """Write the punishment of long completions, which grows over the last tokens.

    It is TRL's own, whose weight is their factor: 0 before the last tokens, and -1 at the longest
    length (Yu et al. 2025, section 3.4).
    """
    for group in BUFFERS:
        enable = f"{group}.enable"
        if draft.keys.get(enable) is None:
            continue
        length_key = f"{group}.len"
        factor_key = f"{group}.penalty_factor"
        length = draft.read(length_key, to_whole_number, 0) if _is_number(draft, length_key) else 0
        if not _is_on(draft, enable) or not length:
            draft.note_same([enable, length_key, factor_key], NO_PUNISHMENT)
            continue
        longest = draft.read(LENGTH, to_whole_number, 512)
        for key in LONGEST_KEYS:
            if _is_number(draft, key):
                longest = draft.take(key, to_whole_number, longest)
                draft.note(MAPPED, key, "reward.overlong.max_completion_len")
        factor = draft.read(factor_key, to_number, 1.0)
        rewards["overlong"] = overlong_entry(longest, length, factor)
        draft.note(MAPPED, enable, "reward.overlong", f"of {longest} tokens the last {length}")
        draft.note(MAPPED, length_key, f"reward.overlong.soft_punish_cache: {length}")
        draft.note(MAPPED, factor_key, f"reward.overlong.weight: {factor:g}")
    draft.note_same(LONGEST_KEYS, NO_PUNISHMENT)


def _is_number(draft: Draft, key: str) -> bool:
    value = draft.keys.get(key)
    return isinstance(value, int | float) and not isinstance(value, bool)
