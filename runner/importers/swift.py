"""ms-swift, and its Megatron: datasets in a word each, rewards, and weights of tokens."""

import math
import re
from pathlib import Path

from runner.config.conversion import (
    to_first,
    to_mapping,
    to_number,
    to_plain_text,
    to_whole_number,
    to_words,
)
from runner.config.dialect import to_single_line
from runner.config.override import is_local
from runner.importers.dataset_entries import hold_out, write_rows
from runner.importers.draft import MAPPED, SAME, Draft, Part, is_unset
from runner.importers.reward_entries import ForeignReward, read_rewards, type_rewards

WINDOWS_PATH = re.compile(r"^[A-Za-z]:[\\/]")
PER_ROW = "dataset.map._target_=<function of a row>"
# All devices together take so many rows a step, where their file does not say how many.
ROWS_A_STEP = 16
# Rules of weights of tokens that say which turns are trained; others multiply with them.
TURN_RULES = {"default", "last_round", "all"}


def read_swift(draft: Draft) -> None:
    """Write the datasets, the rewards, the weights of tokens, and what follows from them."""
    nodes = []
    for word in draft.take("dataset", to_words, []):
        nodes.append(_to_node(draft, word))
    columns = _read_columns(draft)
    # One other file, or dataset of the hub, whose path is a plain one, is held out.
    test_paths = draft.read("val_dataset", to_words, [])
    if len(nodes) == len(test_paths) == 1 and not set("#:") & set(test_paths[0]):
        hold_out(draft, nodes, "val_dataset", [{"path": test_paths[0]}])
    for node in nodes:
        node["columns"] = columns
    write_rows(draft, nodes)
    if draft.has_held_out:
        draft.imply({"eval_strategy": draft.keys.get("save_strategy") or "steps"})
    if draft.trainer == "gkd" and draft.keys.get("teacher_model") is None:
        draft.put("trainer.teacher_model.path", draft.values["model"]["path"])
    _read_weights(draft)
    _read_rewards(draft)
    _read_batch(draft)
    if draft.keys.get("max_length") is None and "max_length" in draft.config.parameters:
        draft.implied.add("max_length")
        why = "as long as the model allows; TRL's own choice is 1024"
        draft.write("max_length", "trainer.args.max_length", None, why)


# --- Datasets -------------------------------------------------------------------------------------


def _to_node(draft: Draft, word: str) -> Part:
    """The node of a dataset from its site, path, subset and rows: ``hf::org/name:subset#1000``."""
    path, _, count = word.partition("#")
    site = ""
    if path.startswith(("hf::", "ms::")):
        site, _, path = path.rpartition("::")
    subset = ""
    if not WINDOWS_PATH.match(path):
        path, _, subset = path.partition(":")
    node: Part = {"path": path, "config": subset.split("/")[0], "form": draft.form}
    if re.fullmatch("[0-9]{1,15}", count):
        node["limit"] = {"train": int(count)}
    if "/" in subset:
        why = "several subsets"
        draft.lose_part("dataset", f": {path}", why, "dataset=mixture, a part for each")
    if not is_local(path) and site != "hf" and not draft.keys.get("use_hf"):
        why = "of ModelScope, where names may differ"
        draft.lose_part("dataset", f": {path}", why, "dataset.path=<name on the hub>")
    return node


def _read_columns(draft: Draft) -> dict[str, str]:
    """The columns of the rows by their roles; theirs are roles by their columns."""
    roles = draft.table.sections["roles"]
    columns = {}
    for column, value in draft.take("columns", to_mapping, {}).items():
        role = roles.get(draft.convert(f"columns.{column}", value, to_plain_text, ""))
        if role is None:
            draft.no_equivalent("columns", f"{column} as {to_single_line(value)}", PER_ROW)
            continue
        if role == "target" and draft.form == "preference":
            role = "chosen"
        columns[role] = column
    if columns:
        draft.note(MAPPED, "columns", f"dataset.columns: {to_single_line(columns)}")
    return columns


# --- Weights of tokens, rewards, rows of a step ---------------------------------------------------


def _read_weights(draft: Draft) -> None:
    """Write the rules by which tokens are weighted, which their file names with a + between."""
    key = "loss_scale"
    rules = draft.table.sections["weights"]
    is_sft = draft.trainer == "sft"
    turn_rule = "default" if is_sft else "last_round"
    default_rule = "all" if draft.reading.command == "pt" else turn_rule
    draft.keys.setdefault(key, default_rule)
    words = draft.take(key, to_plain_text, "all").split("+")
    if not TURN_RULES & set(words):
        words.insert(0, turn_rule)
    unknown = [word for word in words if word not in rules and word != "all"]
    for word in unknown:
        nearest = "weight=pattern weight.pattern=... weight.weight=2"
        draft.lose_part(key, f": {word}", "no such rule", nearest)
    wanted = [word for word in words if word in rules]
    if not is_sft:
        # Other trainers train on the answer alone, whatever the rule of turns.
        wanted = [word for word in wanted if word not in TURN_RULES]
    sees = draft.keys.get("freeze_vit") is not None
    if not wanted:
        draft.note(SAME, key, why="what the trainer trains on anyway")
    elif draft.trainer not in ("sft", "dpo", "kto"):
        draft.no_equivalent(key, f"{draft.trainer} takes no weights of tokens")
    elif draft.keys.get("enable_dft_loss") or draft.keys.get("streaming") or sees:
        _train_whole_conversations(draft, key, wanted)
    else:
        draft.values["weight"] = {word: dict(rules[word]) for word in wanted}
        draft.note(MAPPED, key, f"weight: {', '.join(wanted)}", "rules that multiply")


def _train_whole_conversations(draft: Draft, key: str, rules: list[str]) -> None:
    """Train all answers of a conversation by a flag of TRL's, which takes the place of weights."""
    if draft.trainer == "sft" and "default" in rules:
        draft.put("trainer.form", "messages")
        draft.write(key, "trainer.args.assistant_only_loss", True, "of whole conversations")
    else:
        draft.note(SAME, key, why="what the trainer trains on anyway")
    for word in rules:
        if word != "default":
            why = "no weights of tokens beside images, streams or DFT"
            draft.lose_part(key, f": {word}", why)


def _read_rewards(draft: Draft) -> None:
    """Write the rewards; those of a plugin are typed under the name of its module."""
    plugin = draft.convert(
        "external_plugins", draft.keys.get("external_plugins"), to_first, "rewards"
    )
    module = Path(plugin).stem
    typed = []
    for reward in read_rewards(draft, "reward_funcs", "reward_model"):
        typed.append(ForeignReward(f"{module}.{reward.name}", reward.weight))
    type_rewards(draft, "reward_funcs", typed)
    overlong = draft.values.get("reward", {}).get("soft_overlong")
    if overlong:
        key = "soft_max_length" if draft.keys.get("soft_max_length") else "max_completion_length"
        longest = draft.convert(key, draft.keys.get(key) or 512, to_whole_number, 512)
        last = draft.take("soft_cache_length", to_whole_number, 0) or longest // 5
        overlong["max_completion_len"] = longest
        overlong["soft_punish_cache"] = last
        draft.note(MAPPED, key, "reward.soft_overlong", f"of {longest} tokens the last {last}")


def _read_batch(draft: Draft) -> None:
    """Write the rows that are generated at a time, and the accumulated steps of their default."""
    batch = draft.read("global_batch_size", to_whole_number, 0)
    key = "steps_per_generation"
    if batch and key in draft.keys:
        rows = batch * draft.take(key, to_whole_number, 1)
        why = "so many times the rows of a step"
        draft.write(key, "trainer.args.generation_batch_size", rows, why)
    key = "per_device_train_batch_size"
    micro_batch = draft.keys.get(key)
    if micro_batch is not None and not is_unset(micro_batch):
        rows_of_device = max(1.0, draft.convert(key, micro_batch, to_number, 1.0))
        steps = 1
        if draft.trainer != "grpo":
            steps = math.ceil(ROWS_A_STEP / rows_of_device / draft.reading.devices)
        draft.imply({"gradient_accumulation_steps": steps})
