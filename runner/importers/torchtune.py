"""torchtune: models by folders of weights, datasets by their builders, and layers of adapters."""

import re
from collections.abc import Mapping
from pathlib import Path

from runner.config.conversion import to_entries, to_mapping, to_plain_text, to_words
from runner.config.dialect import is_wanted
from runner.importers.dataset_entries import hold_out, read_entry, write_rows
from runner.importers.draft import MAPPED, SAME, Draft, Part
from runner.importers.reward_entries import model_entry
from runner.schema.text import Node

COMPONENT = "_component_"
# The command, in a comment, by which the weights came into their folder.
DOWNLOAD = re.compile(r"tune download\s+([\w.-]+/[\w.-]+)(?:.*?--output-dir\s+(\S+))?")
ATTENTION = ("q_proj", "k_proj", "v_proj", "output_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
# Keys of a dataset that say how it is trained, and not what its rows are.
TRAINING_KEYS = (
    "packed",
    "split_across_pack",
    "train_on_input",
    "masking_strategy",
    "max_seq_len",
    "column_map",
)


# The roles of ours that their names of columns stand for; where a step makes one text of some
# columns, those have the names that it knows.
ROLES_OF_TEXT = {"output": "target"}
ROLES = {
    "input": "input",
    "output": "target",
    "conversations": "messages",
    "messages": "messages",
    "prompt": "prompt",
    "chosen": "chosen",
    "rejected": "rejected",
}


def read_torchtune(draft: Draft) -> None:
    """Write the models, the datasets, what of the rows is trained, and the layers of an adapter."""
    draft.values["model"]["path"] = _read_model(draft, "checkpointer.checkpoint_dir")
    teacher_key = "teacher_checkpointer.checkpoint_dir"
    if draft.keys.get(teacher_key) is not None:
        draft.put("trainer.teacher_model.path", _read_model(draft, teacher_key))
    reward_key = "reward_checkpointer.checkpoint_dir"
    if draft.keys.get(reward_key) is not None:
        path = _read_model(draft, reward_key)
        draft.values["reward"] = {"model": model_entry(path)}
    entries = _to_entries(draft, "dataset")
    nodes = [_to_node(draft, "dataset", entry) for entry in entries]
    test_key = "dataset_val"
    tests = [_to_node(draft, test_key, entry) for entry in _to_entries(draft, test_key)]
    hold_out(draft, nodes, test_key, tests)
    write_rows(draft, nodes)
    if entries:
        _read_training(draft, entries[0])
    for entry in entries[1:]:
        if entry.get("train_on_input") != entries[0].get("train_on_input"):
            draft.no_equivalent(
                "dataset", "parts of which other tokens are trained", "weight=column"
            )
    if draft.choices.get("peft"):
        _read_layers(draft)
    key = "tokenizer.max_seq_len"
    has_length = "max_length" in draft.config.parameters
    if has_length and draft.keys.get(key) is None:
        draft.implied.add(key)
        why = "as long as the model allows; TRL's own choice is 1024"
        draft.write(key, "trainer.args.max_length", None, why)


# --- Models ---------------------------------------------------------------------------------------


def _read_model(draft: Draft, key: str) -> str:
    """The path of a model, from the folder that its weights were downloaded into.

    That is the folder where it is here, else what a comment says was downloaded into it, else a
    name on the hub that its own name leads to.
    """
    folder = draft.take(key, to_plain_text, "")
    name = Path(folder).name
    path = folder or "???"
    why = "a folder of weights, which is not here"
    downloads = DOWNLOAD.findall(draft.reading.path.read_text(encoding="utf-8"))
    comments = []
    for model, into in downloads:
        if name in (Path(model).name, Path(into).name):
            comments.append(model)
    if Path(folder).is_dir():
        why = "a folder that is here"
    elif comments:
        path = comments[0]
        why = f"a comment says that it was downloaded into {folder}"
    else:
        organisations = draft.table.sections["organisations"]
        for beginning, organisation in organisations.items():
            if name.startswith(beginning):
                path = f"{organisation}/{name.replace('2_5', '2.5')}"
                why = f"a guess by the name of {folder}"
                break
    draft.note(MAPPED, key, f"path: {path}", why)
    return path


# --- Datasets -------------------------------------------------------------------------------------


def _to_entries(draft: Draft, key: str) -> list[Part]:
    """The entries of one dataset or of several."""
    if draft.keys.get(key) is None:
        return []
    return draft.take(key, to_entries, [])


def _to_node(draft: Draft, key: str, entry: Part) -> Part:
    """The node of a dataset, from its builder and the arguments of that."""
    component = draft.convert(f"{key}.{COMPONENT}", entry.get(COMPONENT), to_plain_text, "")
    builder = component.rpartition(".")[2]
    facts = draft.table.sections["components"].get(builder)
    if facts is None:
        nearest = "dataset.path=<org/name or file> dataset.form=<form>"
        draft.lose_part(key, f".{COMPONENT}", "rows that only it knows", nearest, component)
        facts = {}
    plain = {name: value for name, value in entry.items() if name not in TRAINING_KEYS}
    plain.pop(COMPONENT, None)
    node = read_entry(draft, key, plain)
    if node["path"] in ("???", "json", "csv", "parquet") and "source" in facts:
        node["path"] = facts["source"]
    if "config" in facts:
        node.setdefault("config", facts["config"])
    node["form"] = _form_of(draft, facts)
    columns = dict(facts.get("columns", {})) | node.get("columns", {})
    roles = ROLES_OF_TEXT if "text" in facts else ROLES
    node["columns"] = _map_columns(draft, entry, columns, roles)
    if draft.trainer == "ppo":
        node["columns"] = {"prompt": node["columns"].get("text", "prompt")}
    if "text" in facts and draft.trainer in ("sft", "gkd"):
        step = {"_target_": "runner.dataset.step.render_text"}
        for name in ("column", "text", "empty"):
            step[name] = facts[name]
        node["map"] = step
    if "remark" in facts:
        nearest = "dataset.map._target_=<function of a row>"
        draft.lose_part(key, " (its rows)", facts["remark"], nearest)
    return node


def _form_of(draft: Draft, facts: Node) -> str | None:
    """The form of the rows of a builder, for the trainer; None where the columns say it."""
    if draft.trainer in ("ppo", "grpo"):
        return "prompt"
    form: str | None = facts.get("form")
    if form is None and facts:
        return "prompt_completion"
    return form


def _map_columns(
    draft: Draft, entry: Part, columns: dict[str, str], roles: Mapping[str, str]
) -> dict[str, str]:
    """The columns by their roles, some of them as the entry maps names of theirs."""
    names = draft.convert("column_map", entry.get("column_map"), to_mapping, {})
    for name, column in names.items():
        role = roles.get(name)
        if role is None:
            why = f"column_map: {name} is {column}"
            draft.no_equivalent("dataset", why, "dataset.map._target_=<function of a row>")
            continue
        columns[role] = draft.convert(f"column_map.{name}", column, to_plain_text, "")
    return columns


def _read_training(draft: Draft, entry: Part) -> None:
    """Write which tokens of the rows are trained, and whether they are packed."""
    builder = str(entry.get(COMPONENT)).rpartition(".")[2]
    facts = draft.table.sections["components"].get(builder, {})
    form = _form_of(draft, facts)
    trains_all = entry.get("train_on_input", facts.get("trains_all", False))
    strategy = entry.get("masking_strategy")
    if strategy is not None:
        trains_all = strategy == "train_on_all"
    is_conversation = form in ("messages", "prompt_completion")
    if draft.trainer == "sft" and is_conversation:
        key = "dataset.train_on_input"
        draft.keys[key] = trains_all
        if "train_on_input" not in entry:
            draft.implied.add(key)
        if trains_all:
            draft.put("trainer.form", "messages")
            draft.note(MAPPED, key, "trainer.form: messages", "each token of a conversation")
        elif form == "messages":
            draft.put("trainer.form", "messages")
            draft.choices["weight"] = "last_round" if strategy == "train_on_last" else "answers"
            draft.note(MAPPED, key, f"weight={draft.choices['weight']}", "only that is trained")
        else:
            draft.note(SAME, key, why="the answer is trained")
    packed_key = "dataset.packed"
    if entry.get("packed") is not None and "packing" in draft.config.parameters:
        draft.keys[packed_key] = entry["packed"]
        draft.write(packed_key, "trainer.args.packing", bool(entry["packed"]))
        if entry["packed"] and form == "text" and entry.get("split_across_pack", True):
            draft.put("trainer.args.packing_strategy", "wrapped")
    length = entry.get("max_seq_len")
    if length is not None and "max_length" in draft.config.parameters:
        draft.keys["tokenizer.max_seq_len"] = length
        draft.write("tokenizer.max_seq_len", "trainer.args.max_length", length)


# --- Adapters -------------------------------------------------------------------------------------


def _read_layers(draft: Draft) -> None:
    """Write the layers of an adapter, which three keys say there."""
    key = "model.lora_attn_modules"
    layers = draft.take(key, to_words, list(ATTENTION))
    for flag, names in (
        ("model.apply_lora_to_mlp", FEED_FORWARD),
        ("model.apply_lora_to_output", ("lm_head",)),
    ):
        if is_wanted(draft.keys.get(flag), "enabled"):
            layers += names
        if draft.keys.get(flag) is not None:
            draft.note(MAPPED, flag, "peft.target_modules")
    component = str(draft.keys.get(f"model.{COMPONENT}"))
    names_here = dict(draft.table.sections["layers"])
    if "phi" in component:
        names_here |= draft.table.sections["layers_of_phi"]
    targets: list[str] = []
    for layer in layers:
        target = names_here.get(layer, layer)
        if target not in targets:
            targets.append(target)
    draft.write(key, "peft.target_modules", targets)
