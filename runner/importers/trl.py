"""TRL: the trainer whose fields the keys are, datasets by name or in a mixture, and rewards."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.config.conversion import to_entries, to_mapping, to_plain_text, to_words
from runner.config.menu import read_options
from runner.errors import ConfigError, Fault
from runner.importers.dataset_entries import read_entry, write_rows
from runner.importers.draft import MAPPED, Draft, Part
from runner.importers.reward_entries import read_rewards, type_rewards


def read_trl(draft: Draft) -> None:
    """Choose the trainer, and write the datasets and the rewards."""
    for key, value in draft.take("model_init_kwargs", to_mapping, {}).items():
        draft.keys.setdefault(key, value)
    if draft.reading.command in read_options("trainer"):
        draft.choices["trainer"] = draft.reading.command
    else:
        _choose_trainer(draft)
    nodes = _read_nodes(draft)
    if any(node.get("weight") for node in nodes):
        why = "fraction: theirs leaves rows out, ours repeats small parts"
        draft.no_equivalent("datasets", why, "dataset.weights")
    write_rows(draft, nodes)
    if draft.choices.get("peft"):
        _keep_adapter_defaults(draft)
    model_key = "reward_model_path"
    if draft.keys.get(model_key) is None:
        model_key = "reward_model_name_or_path"
    type_rewards(draft, "reward_funcs", read_rewards(draft, "reward_funcs", model_key))
    variables = draft.keys.get("env")
    if isinstance(variables, Mapping):
        draft.keys["env"] = ", ".join(variables)  # their values may be secrets


def _read_nodes(draft: Draft) -> list[Part]:
    """The nodes of a mixture, or of the datasets that a key names."""
    section = draft.table.sections["datasets"]
    names: list[str] = []
    nodes = []
    for key in section["keys"]:
        if key == "datasets":
            for index, entry in enumerate(draft.take(key, to_entries, [])):
                nodes.append(read_entry(draft, key, f"{key}[{index}]", entry))
        elif key in section.get("files", ()):
            names += draft.take(key, to_words, [])
        elif draft.keys.get(key) is not None:
            names.append(draft.take(key, to_plain_text, "???"))
    if nodes:
        return nodes
    for name in names or ["???"]:
        nodes.append({**draft.values["dataset"], "path": name})
    return nodes


def _keep_adapter_defaults(draft: Draft) -> None:
    """Write the learning rate where theirs has the same with an adapter, and ours a multiple."""
    rate = draft.config.parameters.get("learning_rate")
    if rate:
        draft.imply({"learning_rate": rate.default})
    is_chosen = draft.values.get("peft", {}).get("target_modules")
    if draft.keys.get("lora_target_modules") is None and not is_chosen:
        why = "theirs is peft's own choice for the model"
        draft.no_equivalent("lora_target_modules", why, "peft.target_modules=all-linear")


# --- The trainer of a file without a command ------------------------------------------------------


@dataclass(frozen=True)
class _Clue:
    """Words of a file, or about it, in which the name of its method may stand."""

    source: str
    words: str


def _choose_trainer(draft: Draft) -> None:
    """Choose the trainer that the keys fit, or of several the one that a clue names.

    Raises ConfigError where neither says which.
    """
    trainers = _fitting_trainers(draft)
    source = "its keys"
    if len(trainers) > 1:
        likeliest = trainers[0]
        for clue in _clues(draft):
            named = [
                name
                for name in trainers
                if re.search(rf"(?i)(?<![a-z]){name}(?![a-z])", clue.words)
            ]
            if len(named) == 1:
                trainers = named
                source = clue.source
                break
        else:
            raise ConfigError(
                Fault(
                    where=str(draft.reading.path),
                    found=f"the keys of {', '.join(trainers)} alike, and no word in its name or "
                    "a comment that says which",
                    expected="the method",
                    fix=f"python -m runner import {draft.reading.path} trainer={likeliest}",
                )
            )
    trainer = trainers[0]
    draft.choices["trainer"] = trainer
    draft.keys["trainer"] = trainer
    why = f"by {source}; trainer=<name> says another"
    draft.note(MAPPED, "trainer", f"trainer={trainer}", why)


def _fitting_trainers(draft: Draft) -> list[str]:
    """The trainers whose config has most of the keys; where a key tells, among those it names."""
    sections = draft.table.sections
    keys = {key for key, value in draft.keys.items() if value is not None}
    candidates = sections["trainers"]
    for key, names in sections["tells"].items():
        if key in keys:
            candidates = names
            break
    counts = {}
    for trainer in candidates:
        draft.choices["trainer"] = trainer
        counts[trainer] = len(keys & draft.config.parameters.keys())
    most = max(counts.values())
    return [trainer for trainer in candidates if counts[trainer] == most]


def _clues(draft: Draft) -> Iterator[_Clue]:
    """The clues of a file, the surest first."""
    path = draft.reading.path
    yield _Clue("its name", path.stem)
    yield _Clue("its folder", path.absolute().parent.name)
    written = [str(draft.keys.get(key)) for key in draft.table.sections["called"]]
    yield _Clue("what it writes", " ".join(written))
    comments = re.findall(r"(?m)(?:^|\s)#.*", path.read_text(encoding="utf-8"))
    yield _Clue("a comment", " ".join(comments))
