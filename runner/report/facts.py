"""Facts of a run, as tables, pages, cards and comparisons tell them: each is gathered here and nowhere else.

What a run records of itself is not here. ``command.train`` writes its manifest when it starts, of which ``diff`` and
``reproduce`` compare all that stands under ``hardware``. ``training.callback`` writes a line of its log for each logged
step, with ``elapsed_seconds`` of the training; ``time/...`` and ``memory/...`` in it may differ between equal runs.

How it was made and the command that makes it again, its first rows, and the environment that its manifest holds. How
they look is not here (``table``, ``page``, ``card``), nor what two or several runs say together (``compare``,
``sweep``); states and scores themselves are read in ``run.read``.
"""

import hashlib
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from runner.io.files import read_rows, shipped
from runner.io.secrets import hidden
from runner.report.number import value
from runner.run.read import RunRecord, plain_text
from runner.schema.text import Config, flatten, select

FOLDER_FLAGS = ("--config-dir", "-cd")
MAX_ROWS = 3
ENVIRONMENT = ("versions", "code", "data", "model", "hardware")  # subjects of facts that a page shows


def command_of(run: RunRecord, seeds: Sequence[object] = ()) -> str:
    """The command of one run, or with ``seeds`` of the same with each of these; shell-quoted."""
    if (words := words_of(run)) is None:
        return shlex.join(["python", "-m", "runner.launch", str(run)])
    if len(seeds) > 1:
        words = [word for word in words if not word.lstrip("+").startswith("seed=")]
        words = ["-m", *words, f"seed={','.join(map(str, seeds))}"]
    return shlex.join(["python", "-m", "runner", *words])


def words_of(run: RunRecord) -> list[str] | None:
    """The words of the command line that make this run alone; None where its folder does not have them."""
    command = run.manifest.get("command") or []
    if "runner" not in command:
        return None
    words = [hidden(str(word)).removeprefix("++") for word in command[command.index("runner") + 1 :]]
    return None if {"-m", "--multirun"} & set(words) else words


def folders_in(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The overrides among some words, and the user's own config folders."""
    pairs = [(before, word) for before, word in pairwise(["", *words]) if not word.startswith("-")]
    overrides = [word for before, word in pairs if before not in FOLDER_FLAGS]
    return overrides, [Path(word) for before, word in pairs if before in FOLDER_FLAGS]


def choices_of(run: RunRecord) -> dict[str, str]:
    """The option of each group that was typed for this run, in which there may be secrets."""
    command = [str(word) for word in run.manifest.get("command") or ()]
    words = [word.lstrip("+").partition("=") for word in command if not {"-m", "--multirun"} & set(command[3:])]
    groups = {key for key, node in run.cfg.items() if node is None or isinstance(node, Mapping)}
    return {key: option for key, sign, option in words if sign and key in groups}


def first_rows(cfg: Config) -> list[list[tuple[str, str]]]:
    """Column and text of the first training rows, where the data is local JSON lines; other data takes libraries."""
    if not isinstance(place := select(cfg, "dataset.path"), str):
        return []
    path, split = Path(shipped(place)), str(select(cfg, "dataset.split.train") or "train").partition("[")[0]
    file = path / f"{split}.jsonl" if path.is_dir() else path
    if file.suffix != ".jsonl" or not file.is_file():
        return []
    return [[(name, plain_text(entry)) for name, entry in row.items()] for row in read_rows(file, MAX_ROWS)]


def facts_of(run: RunRecord) -> dict[str, dict[str, object]]:
    """The facts of a manifest by their subject, the words of the command, and the state."""
    titles = ("data", "versions", "hardware", "model", "git")
    facts = {title: flatten(run.manifest.get(title) or {}) for title in titles}
    facts["data"] |= {key: str(f)[:12] for key, f in facts["data"].items() if key.endswith("fingerprint") and f}
    facts["versions"] |= {"python": run.manifest["python"]} if "python" in run.manifest else {}
    facts["model"].pop("path", None)
    git = facts.pop("git")
    facts["code"] = {"commit": str(git.get("commit", ""))[:12]} if git else {}
    for file, added, removed, mark in changed_files(str(git.get("diff") or "")):
        facts["code"][f"changed {file}"] = f"+{added} -{removed} ({mark})"
    words = [word.partition("=") for word in words_of(run) or ()]
    facts["command"] = {key: text if sign else "" for key, sign, text in words if key != "name"}
    return facts | {"state": {"state": run.state, "step": run.progress}}


def changed_files(diff: str) -> Iterator[tuple[str, int, int, str]]:
    """Each file of a git diff with its added and removed lines and a short mark of what they are."""
    for part in re.split(r"^diff --git ", diff, flags=re.MULTILINE)[1:]:
        head, *lines = part.splitlines()
        changed = [line for line in lines if line[:1] in "+-" and not line.startswith(("+++ ", "--- "))]
        mark = hashlib.sha256("\n".join(changed).encode()).hexdigest()[:6]
        added = sum(line[0] == "+" for line in changed)
        yield head.rpartition(" b/")[2], added, len(changed) - added, mark


def list_facts(run: RunRecord) -> dict[str, str]:
    """The facts on software, data, model and machine by their names, as text."""
    facts = facts_of(run)
    return {f"{subject} {name}": value(fact) for subject in ENVIRONMENT for name, fact in facts[subject].items()}


def count_facts(runs: Iterable[Mapping[str, str]]) -> dict[str, Counter[str]]:
    """The facts of some runs by their names, each with the number of runs of each value."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, fact in (pair for facts in runs for pair in facts.items()):
        found[name][fact] += 1
    return found
