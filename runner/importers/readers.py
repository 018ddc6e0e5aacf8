"""A configuration that was read -> the draft of an experiment, by the table of its dialect and one function for each.

The functions read what no table can say: datasets, rewards, and the little that follows from
several keys.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.config.conversion import CONVERSIONS
from runner.config.dialect import is_wanted, read_table, to_single_line
from runner.config.limits import check_size
from runner.config.menu import read_options
from runner.config.override import is_local
from runner.errors import ConfigError, Fault
from runner.importers.draft import (
    FIX,
    HIDDEN,
    MAPPED,
    NO_EQUIVALENT,
    SAME,
    Draft,
    follow,
    follow_rest,
    is_unset,
)
from runner.importers.read import ForeignConfig, read_named
from runner.importers.strategy import read_strategy

ORDER = (
    "path",
    "config",
    "revision",
    "form",
    "split",
    "columns",
    "limit",
    "image_folder",
    "streaming",
)
VALUE_NONE = ("scale_rewards", "report_to")  # keys of which none is a value
PER_ROW = "dataset.map._target_=<function of a row>"
Node = dict[str, Any]


def translate(reading: ForeignConfig, name: str, trainer: str | None = None) -> Draft:
    """The draft of an experiment; ConfigError with every value that cannot be taken."""
    table = read_table(reading.dialect)
    draft = Draft(name, table, replace(reading, command=trainer or reading.command))
    draft.add(reading.keys)
    nones = {
        key
        for key, value in draft.keys.items()
        if value == "none" and key.split(".")[-1] not in VALUE_NONE
    }
    draft.keys |= dict.fromkeys(nones)
    for default in filter(draft.meets, table.defaults):
        draft.imply(default.give)
    follow(draft, *table.sections["first"])
    read_strategy(draft)
    READERS.get(table.sections.get("below", reading.dialect), read_paths)(draft)
    follow_rest(draft)
    for key in sorted(nones - {note.key for note in draft.notes}):
        draft.note(SAME, key, why="as where it is left out")
    for key, (value, why) in reading.remarks.items():
        draft.keys[key] = value
        draft.no_equivalent(key, why)
    ConfigError.refuse(draft.faults)
    return draft


# --- One function for each dialect ----------------------------------------------------------------


def read_axolotl(draft: Draft) -> None:
    """Read the datasets, each of which has a type, and rewards, all of which are functions of the user's own."""
    nodes: list[Node] = []
    key = "datasets" if draft.keys.get("datasets") is not None else "pretraining_dataset"
    for index, entry in enumerate(draft.take(key, "entries", [])):
        if draft.trainer == "sft" and entry.get("type") is None:
            entry["type"] = "chat_template"
        nodes.append(read_entry(draft, key, f"{key}[{index}]", entry))
        if draft.trainer != "grpo" and not isinstance(entry.get("type"), str):
            nodes[-1]["form"] = draft.form or "prompt_completion"
    if not nodes:
        draft.no_equivalent("datasets", "none", "dataset=hub dataset.path=<org/name>")
    tests = draft.convert("test_datasets", draft.keys.get("test_datasets") or None, "entries", [])
    for test in tests:  # a file has no split but train
        test.setdefault(
            "split", "train" if is_local(str(test.get("path"))) or "data_files" in test else "test"
        )
        test.setdefault("type", "chat_template" if draft.trainer == "sft" else None)
    held = [
        read_entry(draft, "test_datasets", f"test_datasets[{at}]", test)
        for at, test in enumerate(tests)
    ]
    hold_out(draft, nodes, "test_datasets", held)
    write_rows(draft, nodes)
    type_rewards(draft, "trl.reward_funcs", read_rewards(draft, "trl.reward_funcs"))


def read_llama_factory(draft: Draft) -> None:
    """Read the datasets, which are names in a list of theirs, or are guessed from their names."""
    folder, beside = (
        draft.read("dataset_dir", "plain_text", "data").rstrip("/"),
        draft.reading.path.parent,
    )
    folder = folder.replace("REMOTE:", "hf://datasets/")
    places = (Path(folder), beside / folder, beside, beside / Path(folder).name)
    file = next(
        (
            place / "dataset_info.json"
            for place in places
            if (place / "dataset_info.json").is_file()
        ),
        None,
    )
    info: Mapping[str, Any] = {}
    if file:
        check_size(file)
        try:
            info = CONVERSIONS["mapping"](json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                Fault(str(file), str(error), "a list of datasets, by name", FIX)
            ) from None
    names = draft.take("dataset", "words", [])
    nodes = [_to_node(draft, name, folder, info) for name in names]
    tests = [
        _to_node(draft, name, folder, info) for name in draft.read("eval_dataset", "words", [])
    ]
    hold_out(draft, nodes, "eval_dataset", tests)
    if any("images" in node.get("columns", {}) for node in nodes):
        draft.imply({"image_max_pixels": 768 * 768})
    if is_wanted(draft.keys.get("finetuning_type"), "lora"):
        draft.imply({"lora_alpha": 2 * draft.read("lora_rank", "whole_number", 0)})
    write_rows(draft, nodes)
    if any(_has_history(info.get(name)) for name in names):
        _train_history(draft)


def _has_history(entry: object) -> bool:
    columns = entry.get("columns") if isinstance(entry, Mapping) else None
    return isinstance(columns, Mapping) and bool(columns.get("history"))


def _train_history(draft: Draft) -> None:
    """Train the answers in the history of a demonstration too, which ours takes for a part of the prompt."""
    is_left_out = any(
        is_wanted(draft.keys.get(key), "enabled") for key in ("mask_history", "train_on_prompt")
    )
    if draft.keys.get("stage") != "sft" or is_left_out:
        return
    if any("images" in part.get("columns", {}) for part in draft.parts):
        draft.no_equivalent("dataset", "the answers in the history are not trained beside images")
        return
    draft.put("trainer.form", "messages")
    draft.choices["weight"] = "answers"
    draft.note(
        MAPPED,
        "dataset",
        "trainer.form: messages, weight=answers",
        "the answers in the history are trained",
    )


def read_llama_factory_v1(draft: Draft) -> None:
    """Read the datasets, which a file lists with their converters, and the method: by the command, or by the rows."""
    name = draft.take("train_dataset", "plain_text", "???")
    entries: Node = {"train_dataset": {"path": name}}
    if name.endswith((".yaml", ".yml")):
        file = read_named(draft.reading.path, name)
        entries = {name: {"path": "???"}} if file is None else file
    entries = {name: draft.convert(name, entry, "mapping", {}) for name, entry in entries.items()}
    is_pair = all(entry.get("converter") == "pair" for entry in entries.values())
    command = draft.reading.command if draft.reading.command != "train" else ""
    draft.keys.setdefault("stage", command or ("dpo" if is_pair else "sft"))
    draft.implied |= {"stage"}
    follow(draft, "stage")
    whole = {name: {"path": "???", "converter": "none"} | entry for name, entry in entries.items()}
    write_rows(
        draft, [read_entry(draft, "train_dataset", name, entry) for name, entry in whole.items()]
    )


def _to_node(draft: Draft, name: str, folder: str, info: Mapping[str, Any]) -> Node:
    form = "text" if draft.keys.get("stage") == "pt" else draft.form
    where = f"dataset_info.json: {name}"
    if not (entry := draft.convert(where, info.get(name) or {}, "mapping", {})):
        path = name if "/" in name else f"{folder}/{name}.json"
        if "/" not in name:
            draft.no_equivalent(
                "dataset",
                f"{name} is in no dataset_info.json here",
                f"dataset.path: {path}, a guess",
            )
        return {"path": path} | ({"form": form} if form != "prompt_completion" else {})
    entry |= {"file_name": f"{folder}/{entry['file_name']}"} if "file_name" in entry else {}
    if entry.get("formatting") in ("sharegpt", "openai") and isinstance(
        entry.get("columns", {}), dict
    ):
        entry["columns"] = {"messages": "conversations"} | entry.get("columns", {})
    node = {"form": form} | read_entry(draft, "dataset", where, entry)
    if node["path"] == "???":
        draft.no_equivalent(
            "dataset", f"{name} is neither a file nor of the hub", "dataset.path=<folder>"
        )
    return node


def read_swift(draft: Draft) -> None:
    """Read the datasets, path, subset and rows in a word, ``org/name:subset#1000``; rewards; and weights of tokens."""
    nodes: list[Node] = []
    for word in draft.take("dataset", "words", []):
        path, _, count = word.partition("#")
        site, _, path = (
            path.rpartition("::") if path.startswith(("hf::", "ms::")) else ("", "", path)
        )
        path, _, subset = (
            path.partition(":") if not re.match(r"^[A-Za-z]:[\\/]", path) else (path, "", "")
        )
        node = {"path": path, "config": subset.split("/")[0], "form": draft.form}
        nodes.append(
            node | ({"limit": {"train": int(count)}} if re.fullmatch("[0-9]{1,15}", count) else {})
        )
        if "/" in subset:
            draft.no_equivalent(
                "dataset", f"several subsets of {path}", "dataset=mixture, a part for each"
            )
        if not is_local(path) and site != "hf" and not draft.keys.get("use_hf"):
            why = f"{path} is of ModelScope, where names may differ"
            draft.no_equivalent("dataset", why, "dataset.path=<name on the hub>")
    columns: dict[str, str] = {}
    # column: role, and not role: column
    for column, role in draft.take("columns", "mapping", {}).items():
        role_here = draft.table.sections["roles"].get(
            draft.convert(f"columns.{column}", role, "plain_text", "")
        )
        if role_here is None:
            draft.no_equivalent("columns", f"{column} as {to_single_line(role)}", PER_ROW)
        else:
            columns[
                "chosen" if role_here == "target" and draft.form == "preference" else role_here
            ] = column
    if columns:
        draft.note(MAPPED, "columns", f"dataset.columns: {to_single_line(columns)}")
    if len(nodes) == len(held_out := draft.read("val_dataset", "words", [])) == 1 and not {
        *"#:"
    } & {*held_out[0]}:
        hold_out(draft, nodes, "val_dataset", [{"path": held_out[0]}])
    write_rows(draft, [node | {"columns": columns} for node in nodes])
    if draft.has_held_out:
        draft.imply({"eval_strategy": draft.keys.get("save_strategy") or "steps"})
    if draft.trainer == "gkd" and draft.keys.get("teacher_model") is None:
        draft.put("trainer.teacher_model.path", draft.values["model"]["path"])
    _read_weights(draft)
    plugin = Path(
        str(
            draft.convert(
                "external_plugins", draft.keys.get("external_plugins"), "first", "rewards"
            )
        )
    ).stem
    foreign = read_rewards(draft, "reward_funcs", "reward_model")
    type_rewards(
        draft, "reward_funcs", [(f"{plugin}.{name}", weights) for name, weights in foreign]
    )
    if overlong := draft.values.get("reward", {}).get("soft_overlong"):
        key = "soft_max_length" if draft.keys.get("soft_max_length") else "max_completion_length"
        longest = draft.convert(key, draft.keys.get(key) or 512, "whole_number", 512)
        last = draft.take("soft_cache_length", "whole_number", 0) or longest // 5
        overlong |= {"max_completion_len": longest, "soft_punish_cache": last}
        draft.note(MAPPED, key, "reward.soft_overlong", f"of {longest} tokens the last {last}")
    if (rows := draft.read("global_batch_size", "whole_number", 0)) and (
        key := "steps_per_generation"
    ) in draft.keys:
        rows *= draft.take(key, "whole_number", 1)
        draft.write(
            key, "trainer.args.generation_batch_size", rows, "so many times the rows of a step"
        )
    if not is_unset(batch := draft.keys.get("per_device_train_batch_size")) and batch is not None:
        rows = max(1.0, draft.convert("per_device_train_batch_size", batch, "number", 1.0))
        # They make it 16 rows a step over all devices.
        steps = 1 if draft.trainer == "grpo" else math.ceil(16 / rows / draft.reading.devices)
        draft.imply({"gradient_accumulation_steps": steps})
    if draft.keys.get("max_length") is None and "max_length" in draft.config.parameters:
        draft.implied.add("max_length")
        why = "as long as the model allows; TRL's own choice is 1024"
        draft.write("max_length", "trainer.args.max_length", None, why)


def _read_weights(draft: Draft) -> None:
    rules, sft = draft.table.sections["weights"], draft.trainer == "sft"
    usual, sees = "default" if sft else "last_round", draft.keys.get("freeze_vit") is not None
    draft.keys.setdefault("loss_scale", "all" if draft.reading.command == "pt" else usual)
    words = draft.take("loss_scale", "plain_text", "all").split("+")
    words = words if {"default", "last_round", "all"} & set(words) else [usual, *words]
    wanted = [
        word for word in words if word in rules and (sft or word not in ("last_round", "default"))
    ]
    unknown = [word for word in words if word not in rules and word != "all"]
    for word in unknown:
        draft.no_equivalent(
            "loss_scale",
            f"{word}: no such rule",
            "weight=pattern weight.pattern=... weight.weight=2",
        )
    if draft.trainer not in ("sft", "dpo", "kto") and wanted:
        draft.no_equivalent("loss_scale", f"{draft.trainer} takes no weights of tokens")
    elif wanted and (draft.keys.get("enable_dft_loss") or draft.keys.get("streaming") or sees):
        if sft and "default" in wanted:
            draft.put("trainer.form", "messages")
            draft.write(
                "loss_scale", "trainer.args.assistant_only_loss", True, "of whole conversations"
            )
        for word in set(wanted) - {"default"}:
            draft.no_equivalent(
                "loss_scale", f"{word}: no weights of tokens beside images, streams or DFT"
            )
    elif wanted:
        draft.values["weight"] = {word: dict(rules[word]) for word in wanted}
        draft.note(MAPPED, "loss_scale", f"weight: {', '.join(wanted)}", "rules that multiply")
    elif not unknown:
        draft.note(SAME, "loss_scale", why="what the trainer trains on anyway")


def read_trl(draft: Draft) -> None:
    """Choose the trainer whose fields the keys are; read the datasets, one by its name or a mixture, and rewards."""
    for key, value in draft.take("model_init_kwargs", "mapping", {}).items():
        draft.keys.setdefault(key, value)
    if draft.reading.command in read_options("trainer"):
        draft.choices["trainer"] = draft.reading.command
    else:
        draft.choices["trainer"], why = _find_method(draft)
        draft.keys["trainer"] = draft.trainer
        draft.note(
            MAPPED, "trainer", f"trainer={draft.trainer}", f"{why}; trainer=<name> says another"
        )
    entries = enumerate(draft.take("datasets", "entries", []))
    nodes = [read_entry(draft, "datasets", f"datasets[{index}]", entry) for index, entry in entries]
    if draft.keys.get("datasets") is None:
        nodes = [
            draft.values["dataset"] | {"path": draft.take("dataset_name", "plain_text", "???")}
        ]
    if any(node.get("weight") for node in nodes):
        why = "fraction: theirs leaves rows out, ours repeats small parts"
        draft.no_equivalent("datasets", why, "dataset.weights")
    write_rows(draft, nodes)
    if draft.choices.get("peft") and draft.keys.get("lora_target_modules") is None:
        why = "theirs is peft's own choice for the model"
        draft.no_equivalent("lora_target_modules", why, "peft.target_modules=all-linear")
    model_key = (
        "reward_model_name_or_path"
        if draft.keys.get("reward_model_path") is None
        else "reward_model_path"
    )
    type_rewards(draft, "reward_funcs", read_rewards(draft, "reward_funcs", model_key))
    if isinstance(variables := draft.keys.get("env"), Mapping):
        draft.keys["env"] = ", ".join(variables)


def _find_method(draft: Draft) -> tuple[str, str]:
    """The trainer of a file without a command, and what says so; ConfigError where neither keys nor words do."""
    sections, path, fits = draft.table.sections, draft.reading.path, {}
    kept = {key for key, value in draft.keys.items() if value is not None}
    given = (names for key, names in sections["tells"].items() if key in kept)
    for draft.choices["trainer"] in next(given, sections["trainers"]):
        fits[draft.trainer] = len(kept & draft.config.parameters.keys())
    likely = [name for name, count in fits.items() if count == max(fits.values())]
    comments = re.findall(r"(?m)(?:^|\s)#.*", path.read_text(encoding="utf-8"))
    called = " ".join(str(draft.keys.get(key)) for key in sections["called"])
    places = {
        "its folder": path.absolute().parent.name,
        "what it writes": called,
        "a comment": " ".join(comments),
    }
    for place, words in {"its keys": "", "its name": path.stem, **places}.items():
        said = [
            name
            for name in likely
            if not likely[1:] or re.search(rf"(?i)(?<![a-z]){name}(?![a-z])", words)
        ]
        if len(said) == 1:
            return said[0], f"by {place}"
    names_text = ", ".join(likely)
    raise ConfigError(
        Fault(
            where=f"{path}",
            found=f"the keys of {names_text} alike, and no word in its name or a comment that says "
            "which",
            expected="the method",
            fix=f"python -m runner import {path} trainer={likely[0]}",
        )
    )


def read_paths(draft: Draft) -> None:
    """Read the datasets of a dialect that has a table only: paths, or names on the hub."""
    key = draft.table.sections["datasets"]["keys"][0]
    write_rows(draft, [{"path": path, "form": draft.form} for path in draft.take(key, "words", [])])


CALLED = (read_axolotl, read_llama_factory, read_llama_factory_v1, read_swift, read_trl)
READERS: Mapping[str, Callable[[Draft], None]] = {
    read.__name__.removeprefix("read_"): read for read in CALLED
}


# --- Rewards --------------------------------------------------------------------------------------


def read_rewards(
    draft: Draft, names_key: str, model_key: str = ""
) -> list[tuple[str, list[float]]]:
    """Write the rewards that are ours, by the section ``rewards`` of the table, and reward models."""
    known: dict[str, Node] = draft.table.sections["rewards"]
    names, models = (
        draft.take(names_key, "words", []),
        draft.take(model_key, "words", []) if model_key else [],
    )
    weights_key = names_key.replace("funcs", "weights")
    weights = draft.take(weights_key, "weights", [])
    entries: dict[str, Node] = {}
    others = []
    for index, name in enumerate([*names, *models]):
        weight = {"weight": weights[index]} if weights[index:] else {}
        if name in models:
            key = "model" if "model" not in entries else f"model_{len(entries)}"
            entries[key] = {
                "_target_": "runner.reward.outcome.load_reward_model",
                "path": name,
                "weight": 1.0,
            } | weight
            draft.note(MAPPED, model_key, f"reward.{key}.path: {name}")
        elif name in known:
            entries[name] = {
                part: value for part, value in known[name].items() if part != "remark"
            } | weight
            target, why = known[name]["_target_"], known[name].get("remark", "")
            draft.note(MAPPED, names_key, f"reward.{name}: {target}", why)
        else:
            others.append((name, weights[index : index + 1]))
    draft.values |= {"reward": entries} if entries else {}
    if weights:
        draft.note(MAPPED, weights_key, "reward.<name>.weight")
    return others


def type_rewards(draft: Draft, key: str, rewards: Iterable[tuple[str, list[float]]]) -> None:
    """Have the user type functions of their own, with their weights: only the command line may let them run."""
    for name, weights in rewards:
        short, package = name.rpartition(".")[2], name.partition(".")[0]
        word, allow = f"reward.{short}._target_={name}", f"allow=[{package}]"
        draft.overrides += [word, *(f"reward.{short}.weight={weight}" for weight in weights)]
        draft.overrides += [allow] if allow not in draft.overrides else []
        draft.no_equivalent(
            key, f"{name} is code of your own, which is allowed when it is typed", f"{word} {allow}"
        )


# --- Datasets -------------------------------------------------------------------------------------


def read_entry(draft: Draft, key: str, where: str, entry: Mapping[str, Any]) -> Node:
    """The node of one dataset, from an entry of theirs below a key, by the section ``rows`` of the table."""
    table = replace(draft.table, keys=draft.table.rows)
    inner = Draft("", table, draft.reading, choices=draft.choices, where=f"{where}.")
    inner.add(entry)
    names, inner.keys = list(inner.keys), draft.keys | inner.keys
    follow(inner, *(name for name in inner.table.keys if name in names), *names)
    for note in inner.notes:
        if note.kind == NO_EQUIVALENT:
            said = f"{note.key}: {to_single_line(note.value)}"
            draft.no_equivalent(key, f"{said}; {note.why}" if note.why else said, note.target)
    for name in names:
        if name not in inner.taken and inner.keys[name] not in (None, False):
            draft.no_equivalent(key, f"{name}: {to_single_line(inner.keys[name])}")
    draft.faults += inner.faults
    return inner.values["dataset"]


def write_rows(draft: Draft, nodes: Sequence[Node]) -> None:
    """Write one dataset, or a mixture of several, by the section ``datasets`` of the table, and what comes after."""
    section = draft.table.sections["datasets"]
    key = next(
        (key for key in section["keys"] if draft.keys.get(key) is not None), section["keys"][0]
    )
    nodes = nodes or [{"path": "???"}]
    follow(draft, share := section["held_out"])
    # Theirs are drawn at random, ours are the last ones of every dataset: a slice can be said
    # again, and by others.
    size = 0.0 if share in draft.taken else draft.take(share, "number", 0.0)
    if not 0 <= size < 1e12:
        draft.faults.append(Fault(share, to_single_line(size), "a share or a number of rows", FIX))
    elif size and all(remarks := [_cut_off(node, size) for node in nodes]):
        draft.note(MAPPED, share, f"dataset.split.eval: {nodes[0]['split']['eval']}", remarks[0])
    elif size:
        draft.no_equivalent(share, "the split is a slice already", "dataset.split.eval=<slice>")
    weights = draft.take(section["weights"], "weights", []) or [
        node["weight"] for node in nodes if "weight" in node
    ]
    forms = {node.get("form") for node in nodes}
    nodes = [_to_shortest(node) for node in nodes]
    if len(nodes) == 1:
        path = nodes[0]["path"]
        draft.choices["dataset"], draft.values["dataset"] = (
            "local" if is_local(path) else "hub",
            nodes[0],
        )
        draft.note(MAPPED, key, f"dataset={draft.choices['dataset']} dataset.path: {path}")
    else:
        # Demonstrations of several kinds, or of kinds that nobody knows, become conversations
        # before they are mixed.
        if draft.trainer == "sft" and forms not in ({"messages"}, {"prompt_completion"}, {"text"}):
            if "text" in forms:
                draft.no_equivalent(
                    key,
                    "text and other rows, which do not mix",
                    "two runs, the second from the first",
                )
            else:
                draft.put("trainer.form", "messages")
        parts: Node = {}
        for node in nodes:
            parts[_to_name(node["path"], parts)] = {
                "_target_": "runner.dataset.load.load_rows",
                "_partial_": True,
            } | node
        mixture: Node = {"_target_": "runner.dataset.mix.mix_rows", "parts": parts}
        if len(weights) == len(nodes) and all(weights):
            mixture["weights"] = dict(zip(parts, weights, strict=True))
        draft.choices["dataset"], draft.values["dataset"] = None, mixture
        why = "drawn by weight" if "weights" in mixture else "each row once, shuffled"
        draft.note(MAPPED, key, f"dataset.parts: {', '.join(parts)}", why)
    if len(nodes) > 1 and draft.keys.get(section["weights"]) is not None:
        draft.note(MAPPED, section["weights"], "dataset.weights")
    follow(draft, *draft.table.sections["then"])


def hold_out(draft: Draft, nodes: Sequence[Node], key: str, tests: Iterable[Node]) -> None:
    """Hold out the rows of other sources, or another split of the dataset itself, beside the first one's rows."""
    held: Node = {}
    for test in tests:
        rows = _to_shortest(test)
        split = rows.pop("split", {}).get("train", "train")
        is_own = (
            nodes
            and rows["path"] == nodes[0]["path"]
            and rows.get("config") == nodes[0].get("config")
        )
        held[_to_name(rows["path"], held)] = split if is_own else rows | {"split": split}
    if held and nodes:
        node, one = nodes[0], next(iter(held.values()))
        node["split"] = (
            {"train": "train"} | node.get("split", {}) | {"eval": held if len(held) > 1 else one}
        )
        draft.note(
            MAPPED, key, f"dataset.split.eval: {one if isinstance(one, str) else ', '.join(held)}"
        )


def _to_name(path: str, taken: Iterable[str]) -> str:
    stem = re.sub(r"\.(jsonl?|csv|tsv|parquet)(\.gz)?$", "", path.rstrip("/").rpartition("/")[2])
    name = re.sub(r"\W+", "_", stem).strip("_").lower() or "rows"
    while name in taken:
        name += "_"
    return name


def _to_shortest(node: Mapping[str, Any]) -> Node:
    columns = {role: column for role, column in node.get("columns", {}).items() if role != column}
    split = {"train": "train"} | node.get("split", {})
    path = "???" if is_unset(node["path"]) or node["path"] in ("", HIDDEN) else node["path"]
    whole = {
        **node,
        "path": path,
        "columns": columns,
        "split": split if split != {"train": "train"} else {},
    }
    return {key: whole[key] for key in ORDER if whole.get(key)}


def _cut_off(node: Node, size: float) -> str:
    """Cut the last rows off, ``size`` of them or that share, and say what is different; empty where it cannot be."""
    found = re.fullmatch(r"(\w+)(?:\[:(\d+)(%?)\])?", node.get("split", {}).get("train", "train"))
    name, end, percent = found.groups(default="") if found else ("", "0", "%")
    remark = "theirs are drawn at random, these are the last ones"
    if size >= 1:
        unit, cut = "", int(end or 0) - int(size)
    else:
        unit, whole = "" if end and not percent else "%", int(end or 100)
        if (cut := round(whole * (1 - size))) == whole:
            cut, remark = cut - 1, f"{remark}; a slice counts whole per cents"
    if (size >= 1 and percent) or cut == 0 or (cut < 0 and (end or size < 1)):
        return ""
    node["split"] = {
        "train": f"{name}[:{cut}{unit}]",
        "eval": f"{name}[{cut}{unit}:{end + percent}]",
    }
    return remark
