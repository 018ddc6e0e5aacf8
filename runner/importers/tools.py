"""The datasets and rewards of each tool, and the little else that no table can say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from runner.config.limits import check_size
from runner.errors import ConfigError, Fault
from runner.importers.convert import (
    to_entries,
    to_mapping,
    to_number,
    to_plain_text,
    to_weights,
    to_whole_number,
    to_words,
)
from runner.importers.draft import FIX, MAPPED, SAME, Draft, is_unset, to_single_line
from runner.importers.entry import is_local, read_entry
from runner.importers.table import read_section

PER_ROW = "dataset.map._target_=<function of a row>"
Node = dict[str, Any]


def read_axolotl(draft: Draft) -> list[Node]:
    """The nodes of the datasets, each of which has a type."""
    nodes: list[Node] = []
    key = "datasets" if draft.keys.get("datasets") is not None else "pretraining_dataset"
    for index, entry in enumerate(draft.take(key, to_entries, [])):
        if draft.trainer != "grpo" and entry.get("type") is None:
            entry["type"] = "chat_template"
        nodes.append(read_entry(draft, key, f"{key}[{index}]", entry))
        if isinstance(entry.get("type"), dict):
            nodes[-1]["form"] = draft.form or "prompt_completion"
    if not nodes:
        draft.no_equivalent("datasets", "none", "dataset=hub dataset.path=<org/name>")
    tests = draft.convert("test_datasets", draft.keys.get("test_datasets") or None, to_entries, [])
    if len(nodes) == len(tests) == 1 and tests[0].get("path") == nodes[0]["path"]:
        split = draft.convert("test_datasets[0].split", tests[0].get("split"), to_plain_text, "test")
        nodes[0]["split"] = nodes[0].get("split", {}) | {"eval": split}
        draft.note(MAPPED, "test_datasets", f"dataset.split.eval: {split}")
    return nodes


def finish_axolotl(draft: Draft) -> None:
    """Have the user type the rewards, all of which are functions of their own."""
    type_rewards(draft, "trl.reward_funcs", read_rewards(draft, "trl.reward_funcs"))


def read_llama_factory(draft: Draft) -> list[Node]:
    """The nodes of the datasets, which are names in a list of theirs, or are guessed from their names."""
    folder = draft.read("dataset_dir", to_plain_text, "data").rstrip("/")
    info = _read_info(Path(folder), draft.reading.path.parent)
    names = draft.take("dataset", to_words, [])
    nodes = [_to_node(draft, name, folder, info) for name in names]
    if len(names) == 1 and draft.read("eval_dataset", to_words, []) == names:
        split = nodes[0].get("split", {}).get("train", "train")
        nodes[0]["split"] = {"train": split, "eval": split}
        draft.note(MAPPED, "eval_dataset", f"dataset.split.eval: {split}")
    return nodes


def _read_info(folder: Path, beside: Path) -> dict[str, Any]:
    """Their list of datasets, from the folder that is named, or from beside their file."""
    for place in (folder, beside / folder, beside, beside / folder.name):
        file = place / "dataset_info.json"
        if file.is_file():
            check_size(file)
            try:
                return to_mapping(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, RecursionError) as error:
                raise ConfigError(Fault(str(file), str(error), "a list of datasets, by name", FIX)) from None
    return {}


def _to_node(draft: Draft, name: str, folder: str, info: Mapping[str, Any]) -> Node:
    """One dataset by its name in their list; without it, by a guess that is noted."""
    form = "text" if draft.keys.get("stage") == "pt" else draft.form
    where = f"dataset_info.json: {name}"
    entry = draft.convert(where, info.get(name) or {}, to_mapping, {})
    if not entry:
        path = name if "/" in name else f"{folder}/{name}.json"
        if "/" not in name:
            draft.no_equivalent("dataset", f"{name} is in no dataset_info.json here", f"dataset.path: {path}, a guess")
        return {"path": path} | ({"form": form} if form != "prompt_completion" else {})
    if "file_name" in entry:
        entry["file_name"] = f"{folder}/{entry['file_name']}"
    if entry.get("formatting") in ("sharegpt", "openai") and isinstance(entry.get("columns", {}), dict):
        entry["columns"] = {"messages": "conversations"} | entry.get("columns", {})
    node = {"form": form} | read_entry(draft, "dataset", where, entry)
    if node["path"] == "???":
        draft.no_equivalent("dataset", f"{name} is neither a file nor of the hub", "dataset.path=<folder>")
    return node


def finish_llama_factory(draft: Draft) -> None:
    """Make the alpha of LoRA twice its rank, where they do not say it."""
    if draft.choices.get("peft") == "lora":
        draft.imply({"lora_alpha": 2 * draft.read("lora_rank", to_whole_number, 0)})


def read_swift(draft: Draft) -> list[Node]:
    """The nodes of the datasets: path, subset and number of rows in a word, ``org/name:subset#1000``."""
    nodes = []
    for word in draft.take("dataset", to_words, []):
        path, _, count = word.partition("#")
        site, _, path = path.rpartition("::") if path.startswith(("hf::", "ms::")) else ("", "", path)
        path, _, subset = path.partition(":") if not re.match(r"^[A-Za-z]:[\\/]", path) else (path, "", "")
        node = {"path": path, "config": subset.split("/")[0], "form": draft.form}
        nodes.append(node | ({"limit": {"train": int(count)}} if re.fullmatch("[0-9]{1,15}", count) else {}))
        if "/" in subset:
            draft.no_equivalent("dataset", f"several subsets of {path}", "dataset=mixture, a part for each")
        if not is_local(path) and site != "hf" and not draft.keys.get("use_hf"):
            why = f"{path} is of ModelScope, where names may differ"
            draft.no_equivalent("dataset", why, "dataset.path=<name on the hub>")
    columns: dict[str, str] = {}
    for column, role in draft.take("columns", to_mapping, {}).items():  # column: role, and not role: column
        role_here = draft.table.sections["roles"].get(draft.convert(f"columns.{column}", role, to_plain_text, ""))
        if role_here is None:
            draft.no_equivalent("columns", f"{column} as {to_single_line(role)}", PER_ROW)
        else:
            columns["chosen" if role_here == "target" and draft.form == "preference" else role_here] = column
    if columns:
        draft.note(MAPPED, "columns", f"dataset.columns: {to_single_line(columns)}")
    return [node | {"columns": columns} for node in nodes]


def finish_swift(draft: Draft) -> None:
    """Read rewards and weights of tokens, and add what follows from other keys."""
    if draft.has_held_out:
        draft.imply({"eval_strategy": draft.keys.get("save_strategy") or "steps"})
    if draft.trainer == "gkd" and draft.keys.get("teacher_model") is None:
        draft.put("trainer.teacher_model.path", draft.get("model.path"))
    _read_weights(draft)
    for name, _ in read_rewards(draft, "reward_funcs", "reward_model"):
        word = f"reward.{name}._target_=<module>.{name} allow=[<module>]"
        draft.no_equivalent("reward_funcs", f"{name}: a plugin, whose code is your own", word)
    if not is_unset(batch := draft.keys["per_device_train_batch_size"]):
        rows = max(1.0, draft.convert("per_device_train_batch_size", batch, to_number, 1.0))
        # They make it 16 rows a step over all devices.
        steps = 1 if draft.trainer == "grpo" else math.ceil(16 / rows / draft.reading.devices)
        draft.imply({"gradient_accumulation_steps": steps})
    if draft.keys.get("max_length") is None and "max_length" in draft.config.parameters:
        draft.implied.add("max_length")
        why = "as long as the model allows; TRL's own choice is 1024"
        draft.write("max_length", "trainer.args.max_length", None, why)


def _read_weights(draft: Draft) -> None:
    """Read rules of weights, which they call loss_scale; several are joined by a plus."""
    rules, sft = draft.table.sections["weights"], draft.trainer == "sft"
    usual = "default" if sft else "last_round"
    draft.keys.setdefault("loss_scale", "all" if draft.reading.command == "pt" else usual)
    words = draft.take("loss_scale", to_plain_text, "all").split("+")
    if not {"default", "last_round", "all"} & set(words):
        words = [usual, *words]
    wanted = [word for word in words if word in rules and (sft or word not in ("last_round", "default"))]
    unknown = [word for word in words if word not in rules and word != "all"]
    for word in unknown:
        draft.no_equivalent("loss_scale", f"{word}: no such rule", "weight=pattern weight.pattern=... weight.weight=2")
    if draft.trainer not in ("sft", "dpo", "kto") and wanted:
        draft.no_equivalent("loss_scale", f"{draft.trainer} takes no weights of tokens")
    elif wanted:
        draft.values["weight"] = {word: dict(rules[word]) for word in wanted}
        draft.note(MAPPED, "loss_scale", f"weight: {', '.join(wanted)}", "rules that multiply")
    elif not unknown:
        draft.note(SAME, "loss_scale", why="what the trainer trains on anyway")


def read_trl(draft: Draft) -> list[Node]:
    """The nodes of the datasets: one by its name, or a mixture. The trainer is chosen, too."""
    for key, value in draft.take("model_init_kwargs", to_mapping, {}).items():
        draft.keys.setdefault(key, value)
    _choose_trainer(draft)
    if draft.keys.get("datasets") is None:
        return [{"path": draft.take("dataset_name", to_plain_text, "???")}]
    entries = enumerate(draft.take("datasets", to_entries, []))
    nodes = [read_entry(draft, "datasets", f"datasets[{index}]", entry) for index, entry in entries]
    if any(node.get("weight") for node in nodes):
        why = "fraction: theirs leaves rows out, ours repeats small parts"
        draft.no_equivalent("datasets", why, "dataset.weights")
    return nodes


def _choose_trainer(draft: Draft) -> None:
    """Take the subcommand; without one, the trainer whose fields the keys are."""
    (trainers,) = read_section("tools")["trl"]["commands"].values()
    fits = {}
    for name in [draft.reading.command] if draft.reading.command in trainers else trainers:
        draft.choices["trainer"] = name
        fits[name] = sum(key in draft.config.parameters for key in draft.keys)
        fits[name] += 20 * (name == "grpo" and draft.keys.get("reward_funcs") is not None)
    draft.choices["trainer"] = best = max(fits, key=lambda name: fits[name])
    if best != draft.reading.command:
        draft.keys["trainer"] = best
        draft.note(MAPPED, "trainer", f"trainer={best}", "the file does not say; trainer=<name> does")


def finish_trl(draft: Draft) -> None:
    """Read the rewards, and say which layers their adapter has where they leave it to peft."""
    if draft.choices.get("peft") and draft.keys.get("lora_target_modules") is None:
        why = "theirs is peft's own choice for the model"
        draft.no_equivalent("lora_target_modules", why, "peft.target_modules=all-linear")
    type_rewards(draft, "reward_funcs", read_rewards(draft, "reward_funcs", "reward_model_name_or_path"))
    if isinstance(variables := draft.keys.get("env"), Mapping):
        draft.keys["env"] = ", ".join(variables)


def read_rewards(draft: Draft, names_key: str, model_key: str = "") -> list[tuple[str, list[float]]]:
    """Write the rewards that are ours, by the section ``rewards`` of the table, and reward models.

    The others come back by name, each with its weight if there is one.
    """
    known: dict[str, dict[str, Any]] = draft.table.sections["rewards"]
    names, models = draft.take(names_key, to_words, []), draft.take(model_key, to_words, []) if model_key else []
    weights = draft.take(names_key.replace("funcs", "weights"), to_weights, [])
    entries: dict[str, Any] = {}
    others = []
    for index, name in enumerate([*names, *models]):
        weight = {"weight": weights[index]} if weights[index:] else {}
        if name in models:
            key = "model" if "model" not in entries else f"model_{len(entries)}"
            entries[key] = {"_target_": "runner.reward.outcome.load_reward_model", "path": name, "weight": 1.0} | weight
            draft.note(MAPPED, model_key, f"reward.{key}.path: {name}")
        elif name in known:
            entry = dict(known[name])
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
            others.append((name, weights[index : index + 1]))
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
        draft.overrides += [word, *(f"reward.{short}.weight={weight}" for weight in weights)]
        draft.overrides += [allow] if allow not in draft.overrides else []
        draft.no_equivalent(key, f"{name} is code of your own, which is allowed when it is typed", f"{word} {allow}")


READERS: Mapping[str, tuple[Callable[[Draft], list[Node]], Callable[[Draft], None]]] = {
    "axolotl": (read_axolotl, finish_axolotl),
    "llama_factory": (read_llama_factory, finish_llama_factory),
    "swift": (read_swift, finish_swift),
    "trl": (read_trl, finish_trl),
}
