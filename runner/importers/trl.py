"""TRL and recipes for it: the trainer whose fields the keys are, datasets by name or in a mixture,
and rewards.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runner.config.conversion import (
    to_entries,
    to_mapping,
    to_number,
    to_plain_text,
    to_words,
)
from runner.config.dialect import is_wanted
from runner.config.menu import read_options
from runner.errors import ConfigError, Fault
from runner.importers.dataset_entries import keep_share, read_entry, write_rows
from runner.importers.draft import MAPPED, SAME, Draft, Part
from runner.importers.reward_entries import read_rewards, type_rewards

# Keys that say whether rows are evaluated, of which the second is an earlier name of the first.
EVALUATION_KEYS = ("eval_strategy", "evaluation_strategy", "do_eval")
# Keys that hold the datasets of a mixture.
MIXTURES = ("datasets", "dataset_mixer")
# What recipes with ``dataset_mixer`` mean where they are silent, and what the scripts for them do.
MIXER_DEFAULTS = {"learning_rate": 5e-5, "auto_insert_empty_system_msg": True}
DEFAULTS_OF_SCRIPTS: Mapping[str, Mapping[str, object]] = {
    "sft": {"packing": True, "packing_strategy": "wrapped"},
    "dpo": {"optim": "rmsprop"},
}
# The forms of rows that their scripts take.
MIXER_FORMS = {"sft": "messages", "dpo": "preference", "orpo": "preference", "cpo": "preference"}


def read_trl(draft: Draft) -> None:
    """Choose the trainer, and write the datasets and the rewards."""
    for key, value in draft.take("model_init_kwargs", to_mapping, {}).items():
        draft.keys.setdefault(key, value)
    if draft.keys.get("model_init_kwargs") is not None:
        draft.note(SAME, "model_init_kwargs", why="its keys stand for themselves")
    if draft.reading.command in read_options("trainer"):
        draft.choices["trainer"] = draft.reading.command
    else:
        _choose_trainer(draft)
    nodes = _read_mixture(draft) or _read_named(draft)
    if any(node.get("weight") for node in nodes):
        why = "fraction: theirs leaves rows out, ours repeats small parts"
        draft.lose_part("datasets", "[*].weight", why, "dataset.weights")
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


def _read_named(draft: Draft) -> list[Part]:
    """The nodes of the datasets that keys name; without a name, one that has to be said."""
    section = draft.table.sections["datasets"]
    names: list[str] = []
    for key in section["keys"]:
        if key in MIXTURES:
            continue
        if key in section.get("files", ()):
            names += draft.take(key, to_words, [])
        elif draft.keys.get(key) is not None:
            names.append(draft.take(key, to_plain_text, "???"))
    return [{**draft.values["dataset"], "path": name} for name in names or ["???"]]


def _keep_adapter_defaults(draft: Draft) -> None:
    """Write the learning rate where theirs has the same with an adapter, and ours a multiple."""
    rate = draft.config.parameters.get("learning_rate")
    if rate:
        draft.imply({"learning_rate": rate.default})
    is_chosen = draft.values.get("peft", {}).get("target_modules")
    if draft.keys.get("lora_target_modules") is None and not is_chosen:
        why = "theirs is peft's own choice for the model"
        draft.no_equivalent("lora_target_modules", why, "peft.target_modules=all-linear")


# --- Mixtures -------------------------------------------------------------------------------------


def _read_mixture(draft: Draft) -> list[Part]:
    """The nodes of the datasets of a mixture; none where the file has no mixture.

    A share of a dataset is the share of its rows that is kept. It is no probability to draw them.
    """
    nodes = []
    for index, entry in enumerate(draft.take("datasets", to_entries, [])):
        node = read_entry(draft, f"datasets[{index}]", entry)
        share = node.pop("share", 1.0)
        if keep_share(draft, "datasets", node, share, "drawn at random"):
            nodes.append(node)
    if draft.keys.get("dataset_mixer") is not None:
        nodes += _read_mixer(draft)
    if nodes and draft.keys.get("dataset_name") is not None:
        draft.note(SAME, "dataset_name", why="the mixture takes its place")
    return nodes


def _read_mixer(draft: Draft) -> list[Part]:
    """The nodes of ``dataset_mixer``, which maps each path to the share of it that is kept.

    Each split of all sets whose name has "train" in it is trained on, and "test" is held out.
    """
    shares = draft.take("dataset_mixer", to_mapping, {})
    configs = draft.take("dataset_configs", to_words, [])
    splits = draft.take("dataset_splits", to_words, ["train", "test"])
    train_splits = [split for split in splits if "train" in split]
    test_splits = [split for split in splits if "test" in split and "train" not in split]
    train_split = train_splits[0] if train_splits else "train"
    test_split = test_splits[0] if test_splits else ""
    if len(train_splits) > 1:
        others = ", ".join(train_splits[1:])
        draft.no_equivalent("dataset_splits", others, "dataset.split.train=<split>+<split>")
    is_evaluated = any(is_wanted(draft.keys.get(key), "enabled") for key in EVALUATION_KEYS)
    nodes = []
    for index, (path, raw_share) in enumerate(shares.items()):
        split: Part = {"train": train_split}
        if test_split and is_evaluated:
            split["eval"] = test_split
        node: Part = {"path": path, "split": split}
        form = MIXER_FORMS.get(draft.trainer)
        if form and draft.reading.script != "run_cpt":
            node["form"] = form
        if index < len(configs):
            node["config"] = configs[index]
        share = draft.convert(f"dataset_mixer.{path}", raw_share, to_number, 1.0)
        if keep_share(draft, "dataset_mixer", node, share):
            nodes.append(node)
    if draft.keys.get("dataset_splits") is not None:
        target = f"dataset.split.train: {train_split}"
        if test_split and is_evaluated:
            target += f" dataset.split.eval: {test_split}"
        draft.note(MAPPED, "dataset_splits", target, "the rows for tests are held out whole")
    if configs:
        draft.note(MAPPED, "dataset_configs", "dataset.config")
    draft.imply(MIXER_DEFAULTS)
    draft.imply(DEFAULTS_OF_SCRIPTS.get(draft.trainer, {}))
    return nodes


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
