"""open-instruct: datasets with shares or numbers of rows, rollouts, and rewards by verifiers."""

import re
from collections.abc import Sequence
from typing import Any

from runner.config.conversion import (
    plain,
    to_mapping,
    to_number,
    to_plain_text,
    to_whole_number,
    to_words,
)
from runner.config.dialect import is_wanted
from runner.errors import Fault
from runner.importers.dataset_entries import hold_out, keep_share, write_rows
from runner.importers.draft import FIX, IGNORED, MAPPED, SAME, Draft, Part, is_unset

LISTS = ("dataset_mixer_list", "mixer_list")
EVALUATION_LIST = "dataset_mixer_eval_list"
# Datasets whose answers are verified as mathematics, by their names.
MATHEMATICS = re.compile(r"(?i)gsm|math|deepscaler|orz|open_reasoner|numina|dapo|polaris")
# Those that also have other answers.
MIXED = re.compile(r"(?i)(?<![a-z])(if|ifeval|ifbench|code|coding|general|mixed|chat)(?![a-z])")
MAX_COPIES = 16  # of a dataset that is trained on several times an epoch
# The columns of rows with an answer that is verified.
ANSWER_COLUMNS = {"prompt": "messages", "target": "ground_truth"}
THINKING = r"\A.*?</think>\s*<answer>.*?</answer>"


def read_open_instruct(draft: Draft) -> None:
    """Write the datasets, the rollouts and the rewards."""
    key, nodes = _read_mixture(draft)
    tests = _read_list(draft, EVALUATION_LIST, tests_only=True)
    hold_out(draft, nodes, EVALUATION_LIST, tests)
    write_rows(draft, nodes)
    if draft.trainer == "sft":
        draft.choices["weight"] = "answers"
        draft.note(MAPPED, key, "weight=answers", "answers alone are trained on")
    if draft.trainer == "grpo":
        _write_rollouts(draft)
        _write_rewards(draft, nodes)


# --- Rows -----------------------------------------------------------------------------------------


def _read_mixture(draft: Draft) -> tuple[str, list[Part]]:
    """The key that says the datasets, and the node of each; of several keys the first counts."""
    for key in LISTS:
        if draft.keys.get(key) is not None:
            return key, _read_list(draft, key)
    key = "dataset_mixer"
    if draft.keys.get(key) is not None:
        nodes = []
        for path, amount in draft.take(key, to_mapping, {}).items():
            nodes += _keep_amount(draft, key, _to_node(draft, path, "train"), amount)
        return key, nodes
    key = "dataset_name"
    if draft.keys.get("train_file") is not None:
        key = "train_file"
    path = draft.take(key, to_plain_text, "???")
    return key, [_to_node(draft, path, "train")]


def _read_list(draft: Draft, key: str, *, tests_only: bool = False) -> list[Part]:
    """The nodes of a list in which each name is followed by a share of its rows, or a number."""
    splits_key = f"{key}_splits"
    # A variable of the shell may hold all of them.
    words = " ".join(draft.take(key, to_words, [])).split()
    splits = draft.take(splits_key, to_words, []) or ["test" if tests_only else "train"]
    if len(words) % 2:
        fault = Fault(
            where=key,
            found=" ".join(words),
            expected="each name followed by a share of its rows, or a number of them",
            fix=FIX,
        )
        draft.faults.append(fault)
        return []
    nodes = []
    for index in range(0, len(words), 2):
        path = words[index]
        amount = words[index + 1]
        number = index // 2
        split = splits[number] if number < len(splits) else splits[0]
        if tests_only:
            if amount.isdigit():
                split = f"{split}[:{amount}]"
            nodes.append({"path": path, "split": {"train": split}})
        else:
            node = _to_node(draft, path, split)
            nodes += _keep_amount(draft, key, node, plain(amount))
    if draft.keys.get(splits_key) is not None:
        role = "eval" if tests_only else "train"
        draft.note(MAPPED, splits_key, f"dataset.split.{role}: {', '.join(splits)}")
    return nodes


def _to_node(draft: Draft, path: str, split: str) -> Part:
    """The node of a dataset, in the form of rows that the method takes."""
    node: Part = {"path": path, "split": {"train": split}, "form": draft.form}
    if draft.trainer == "grpo":
        node["columns"] = dict(ANSWER_COLUMNS)
    config = draft.read("dataset_config_name", to_plain_text, "")
    if config:
        node["config"] = config
        draft.note(MAPPED, "dataset_config_name", "dataset.config")
    return node


def _keep_amount(draft: Draft, key: str, node: Part, amount: object) -> list[Part]:
    """The node with the rows that an amount leaves: a number of them, or a share.

    A share above 1 in a list repeats the rows, for which there are as many nodes. In a mapping it
    is a number.
    """
    path = node["path"]
    if is_unset(amount):
        draft.no_equivalent(key, f"{amount} is set by the shell", "dataset.limit.train=<rows>")
        return [node]
    is_share = isinstance(amount, float) or amount == 1
    if isinstance(amount, float) and amount > 1 and key == "dataset_mixer":
        is_share = False
    if not is_share:
        count = draft.convert(f"{key}: {path}", amount, to_whole_number, 0)
        if not count:
            draft.note(SAME, key, why=f"{path}: 0, so none of its rows")
            return []
        node["limit"] = {"train": count}
        draft.note(MAPPED, key, f"{path}: dataset.limit.train: {count}", "rows drawn at random")
        return [node]
    share = draft.convert(f"{key}: {path}", amount, to_number, 1.0)
    if amount == 1 and isinstance(amount, int) and key in LISTS:
        node["limit"] = {"train": 1}  # a number without a point counts rows
        draft.note(MAPPED, key, f"{path}: dataset.limit.train: 1", "one row; 1.0 is all of them")
        return [node]
    copies: list[Part] = []
    while share > 1 and len(copies) < MAX_COPIES:
        copies.append(dict(node))
        share -= 1
    if copies:
        why = "it is several times in the mixture, as there"
        draft.note(MAPPED, key, f"{path}: {len(copies)} times, and {share:g} of it", why)
    if keep_share(draft, key, node, round(share, 6), "drawn at random"):
        copies.append(node)
    return copies


# --- Rollouts and rewards -------------------------------------------------------------------------


def _write_rollouts(draft: Draft) -> None:
    """Write the completions of a step, and the steps: theirs counts prompts, and episodes."""
    prompts_key = "num_unique_prompts_rollout"
    samples_key = "num_samples_per_prompt_rollout"
    minibatches_key = "num_mini_batches"
    prompts = draft.take(prompts_key, to_whole_number, 16)
    samples = draft.take(samples_key, to_whole_number, 4)
    minibatches = max(1, draft.take(minibatches_key, to_whole_number, 1))
    epochs = max(1, draft.read("num_epochs", to_whole_number, 1))
    completions = max(1, prompts * samples)
    draft.values["batch"] = completions // minibatches
    draft.note(MAPPED, prompts_key, f"batch: {completions // minibatches}", "completions of a step")
    draft.write(samples_key, "trainer.args.num_generations", samples)
    if minibatches > 1:
        why = f"{minibatches} steps with the completions of {prompts} prompts"
        draft.write(minibatches_key, "trainer.args.generation_batch_size", completions, why)
    else:
        draft.note(SAME, minibatches_key, why="one step with all completions")
    if draft.keys.get("per_device_train_batch_size") is not None:
        draft.note(IGNORED, "per_device_train_batch_size", why="packs of a forward pass")
    if draft.keys.get("max_steps") is not None:
        draft.no_equivalent(
            "max_steps", "the calls of tools in an episode", "environment.max_turns"
        )
    episodes = draft.take("total_episodes", to_whole_number, 0)
    steps = max(1, episodes // completions) * minibatches * epochs
    why = f"{episodes} completions, {completions} at a time"
    draft.write("total_episodes", "trainer.args.max_steps", steps, why)


def _write_rewards(draft: Draft, nodes: Sequence[Part]) -> None:
    """Write the reward of a verified answer where it is of mathematics, and that of the form."""
    rewards: dict[str, Any] = {}
    if is_wanted(draft.keys.get("apply_verifiable_reward"), "enabled"):
        weight = draft.take("verification_reward", to_number, 10.0)
        _write_verifier(draft, nodes, rewards, weight)
    draft.handled.add("verification_reward")
    if is_wanted(draft.keys.get("apply_r1_style_format_reward"), "enabled"):
        rewards["format"] = {
            "_target_": "runner.reward.rule.format_match",
            "pattern": THINKING,
            "whole": False,
            "weight": draft.take("r1_style_format_reward", to_number, 1.0),
        }
        draft.note(MAPPED, "apply_r1_style_format_reward", "reward.format")
        if not is_wanted(draft.keys.get("additive_format_reward"), "enabled"):
            why = "an answer counts only in this form there, and by itself here"
            draft.no_equivalent("additive_format_reward", why)
        else:
            draft.note(SAME, "additive_format_reward", why="rewards are added up")
    draft.values["reward"] = rewards


def _write_verifier(
    draft: Draft, nodes: Sequence[Part], rewards: dict[str, Any], weight: float
) -> None:
    """Write the reward of a right answer; it is asked for where the answers may be others."""
    key = "apply_verifiable_reward"
    others = []
    for node in nodes:
        path = node["path"]
        if not MATHEMATICS.search(path) or MIXED.search(path):
            others.append(path)
    if not others and nodes:
        rewards["boxed_answer"] = {
            "_target_": "runner.reward.math.boxed_answer",
            "column": "reference",
            "strict": False,
            "weight": weight,
        }
        why = "each row is verified as its column dataset says there, here as mathematics"
        draft.note(MAPPED, key, "reward.boxed_answer", why)
        return
    rewards["verified"] = {"_target_": "???", "weight": weight}
    draft.unset.add(key)
    why = f"{', '.join(others)}: verified by what their column dataset names"
    draft.no_equivalent(key, why, "reward.verified._target_=<module.function>")
