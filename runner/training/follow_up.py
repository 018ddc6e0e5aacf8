"""The words of a run that another training takes over, and the SFT that can come before a run."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.composition import compose
from runner.config.override import dotted_key
from runner.dataset.form import fits
from runner.errors import ConfigError
from runner.report.facts import split_command
from runner.run.key import folder_of

# The groups of a run whose choices another one takes over.
INHERITED = ("model", "dataset", "peft", "quant", "template", "allow", "output_root")


def inherited_words(
    choices: Mapping[str, str],
    typed: Mapping[str, str],
    left_out: str = "",
    groups: Sequence[str] = INHERITED,
) -> list[str]:
    """The words for what was chosen for a run in these groups, without keys of a pattern.

    ``typed`` are its words by their keys. What an experiment chose has to be typed; otherwise the
    typed words are all.
    """
    words = {}
    if "experiment" in typed:
        for group in groups:
            if choices.get(group, "none") != "none":
                words[group] = f"{group}={choices[group]}"
    words |= typed
    inherited = []
    for key, word in words.items():
        group, _, _ = key.partition(".")
        if group in groups and not re.fullmatch(left_out, key):
            inherited.append(word)
    return inherited


def to_command(words: Sequence[str], folders: Sequence[Path]) -> str:
    """The shell command of these words, with the config folders that they need."""
    flags: list[str] = []
    for folder in folders:
        flags += ["--config-dir", str(folder)]
    return shlex.join(["python", "-m", "runner", *words, *flags])


def propose_answers(command: Sequence[str], choices: Mapping[str, str]) -> str:
    """The SFT on the rows of a run that shows its model answers before; empty where there is none.

    ``command`` are the arguments that make the run, ``choices`` its options by group.
    """
    overrides, folders = split_command(command)
    typed = {dotted_key(word): word for word in overrides}
    words = ["trainer=sft", *inherited_words(choices, typed, groups=(*INHERITED, "environment"))]
    if choices.get("environment", "none") != "none":
        words.append("dataset.form=prompt_completion")
    try:
        composed = compose(words, folders)
    except ConfigError:
        return ""
    if not fits(composed.experiment.dataset.form, "demonstration"):
        return ""
    model = f"model.path={folder_of(composed.cfg, composed.overrides)}/model"
    if str(choices.get("model")).startswith("new"):
        model = f"model=hub {model}"
    first = to_command(words, folders)
    return f"{first} shows the model answers; then the same command as now with {model}"
