"""Completion of words in a shell: the script for a shell, and the candidates at each key press.

The script calls ``--shell-completion words`` with what is typed so far, whose last word is to be
completed, and gets a candidate on each line, with its description behind a tab. A candidate that
ends with ``=``, ``.`` or ``/`` goes on.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path

from runner.command import CFG, OF_ROWS, PRINTING, VERBS
from runner.command._option import options_of
from runner.command._typed_words import Candidates, TypedWords
from runner.config.menu import FOLDER_FLAGS
from runner.config.override import HELD
from runner.config.working_folder import searched_folders
from runner.errors import ConfigError, Fault
from runner.run.find import is_run

SCRIPTS = Path(__file__).parent / "completion"
OF_CONFIGS = ("train", "preview", "rehearse", "why")  # verbs that take the words of a training
OF_NO_RUN = (*OF_CONFIGS, "import", "options", "schema")
FLAGS = ("-m", "--dry-run", "--debug", "--config-dir", "--cfg", "--shell-completion")
MAX_LETTERS = 70  # of a description


def answer_shell(words: Sequence[str]) -> int:
    """Print what ``--shell-completion`` asks for: a script, or candidates for the last word."""
    if words[:1] == ["words"]:
        for candidate, text in complete(words[1:]).items():
            print(f"{candidate}\t{text[:MAX_LETTERS]}")
        return 0
    shells = sorted(file.suffix[1:] for file in SCRIPTS.iterdir())
    if len(words) != 1 or words[0] not in shells:
        raise ConfigError(
            Fault(
                where="--shell-completion",
                found=" ".join(words) or "no shell",
                expected=f"one of {', '.join(shells)}",
                fix="python -m runner --shell-completion bash",
            )
        )
    print((SCRIPTS / f"runner.{words[0]}").read_text(encoding="utf-8"), end="")
    return 0


def complete(words: Sequence[str]) -> Candidates:
    """The candidates for the last of some words, which may be empty.

    The words before it decide which they are: the verb, the options that are chosen, and the
    folders of the user's. A word behind the name of a stage, as in ``sft.seed=``, is completed as
    if it were typed for that stage alone.
    """
    *typed, current = words or [""]
    overrides = [word for word in typed if "=" in word]
    folders = [Path(word) for flag, word in pairwise(typed) if flag in FOLDER_FLAGS]
    configuration = TypedWords(overrides, searched_folders(folders))
    stage, dot, rest = current.partition(".")
    candidates: Candidates = {}
    if dot and stage in configuration.stages:
        words_of_stage = configuration.stages[stage]
        inner = complete([*words_of_stage, *typed, rest])
        for word, text in inner.items():
            if "=" in word or word.endswith("."):  # no verb, and no run
                candidates[f"{stage}.{word}"] = text
        return candidates

    plain = [word for word in typed if "=" not in word and not word.startswith("-")]
    first_plain = plain[0] if plain else ""
    verb = first_plain if first_plain in VERBS else "train"
    last = typed[-1] if typed else ""
    if last in FOLDER_FLAGS:
        candidates = list_paths(current)
    elif last in ("--cfg", "-c"):
        candidates = dict.fromkeys(CFG, "")
    elif current.startswith("-"):
        printing_flags = chain(*PRINTING)
        candidates = dict.fromkeys((*FLAGS, *printing_flags), "")
    elif "=" in current:
        candidates = _values(verb, current, configuration)
    else:
        if not plain:
            candidates |= VERBS
        candidates |= _words_of(verb, current, configuration)
        if plain == ["why"]:
            candidates = {word.rstrip("="): text for word, text in candidates.items()}
    matching = {word: text for word, text in candidates.items() if word.startswith(current)}
    return matching or list_paths(current)


def _words_of(verb: str, current: str, configuration: TypedWords) -> Candidates:
    """The words of a verb: its options, keys of a configuration, runs or files."""
    options = options_of(verb)
    candidates = {f"{name}=": "" for name in options}
    if verb in OF_CONFIGS:
        candidates |= configuration.keys(current)
    elif "checkpoint" in options:  # of a verb that asks a model
        candidates |= configuration.keys(current, OF_ROWS)
    if verb == "options":
        candidates |= dict.fromkeys(configuration.menu, "")
    elif verb not in OF_NO_RUN:
        candidates |= list_paths(current or "outputs/")
    elif verb == "import":
        candidates |= list_paths(current)
    return candidates


def _values(verb: str, current: str, configuration: TypedWords) -> Candidates:
    """The word that is typed with each value of its key; of a list or a sweep with the next one."""
    key, _, text = current.partition("=")
    option = options_of(verb).get(key)
    if option is None:
        values = configuration.values(key)
    elif option.kind == "bool":
        values = {"true": "", "false": ""}
    else:
        values = dict.fromkeys(option.words, "")
    # Of a list, what stands before its last value stays.
    end = max(text.rfind(mark) for mark in ",[") + 1
    beginning = f"{key}={text[:end]}"
    candidates = {f"{beginning}{value}": note for value, note in values.items()}
    is_path = not values or key in HELD
    if is_path and not any(word.startswith(current) for word in candidates):
        candidates = {f"{key}={path}": "" for path in list_paths(text)}
    return candidates


def list_paths(beginning: str) -> Candidates:
    """The files and folders that begin so; no folder of a run goes on.

    A run is named by its folder, and nobody types the files in it.
    """
    end = beginning.rfind("/") + 1
    folder = beginning[:end]
    listed_folder = os.path.expanduser(folder) or "."
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(listed_folder)
    paths: Candidates = {}
    for name in sorted(names):
        path = f"{folder}{name}"
        if name.startswith(".") or not path.startswith(beginning):
            continue
        place = Path(path).expanduser()
        if place.is_dir() and not is_run(place):
            path += "/"
        paths[path] = ""
    return paths
