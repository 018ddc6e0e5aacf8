"""The command that makes a run again, or all seeds of a setting, from what its folder says."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.io.secrets import hidden
from runner.run.read import RunRecord

FOLDER_FLAGS = ("--config-dir", "-cd")


def command_of(run: RunRecord, seeds: Sequence[object] = ()) -> str:
    """The command of one run, or with ``seeds`` of the same with each of these; shell-quoted.

    Where the folder does not say how it was made, the command continues or finishes what is in the folder.
    """
    words = words_of(run)
    if words is None:
        return shlex.join(["python", "-m", "runner.launch", str(run)])
    if len(seeds) > 1:
        words = [word for word in words if not word.lstrip("+").startswith("seed=")]
        words = ["-m", *words, f"seed={','.join(map(str, seeds))}"]
    return shlex.join(["python", "-m", "runner", *words])


def words_of(run: RunRecord) -> list[str] | None:
    """The words of the command line that make this run alone; None where its folder does not have them."""
    command = run.manifest.get("command")
    if not isinstance(command, list) or "runner" not in command:
        return None
    words = [hidden(str(word)).removeprefix("++") for word in command[command.index("runner") + 1 :]]
    return None if {"-m", "--multirun"} & set(words) else words


def folders_in(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The overrides among some words, and the user's own config folders."""
    overrides, folders, queue = [], [], list(words)
    while queue:
        word = queue.pop(0)
        if word in FOLDER_FLAGS and queue:
            folders.append(Path(queue.pop(0)))
        elif not word.startswith("-"):
            overrides.append(word)
    return overrides, folders


def choices_of(run: RunRecord) -> dict[str, str]:
    """The option of each group that was typed for this run."""
    words = [word.lstrip("+").partition("=") for word in words_of(run) or () if "=" in word]
    groups = {key for key, node in run.cfg.items() if node is None or isinstance(node, Mapping)}
    return {key: option for key, _, option in words if key in groups}
