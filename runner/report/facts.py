"""Facts of one run: the command that repeats it, its first rows, and its environment.

``table``, ``page`` and ``card`` show them; ``compare`` and ``sweep`` put those of several runs side
by side. States and scores are read by ``run.record``.

``training.beginning`` writes the manifest when a run starts, and ``diff`` and ``reproduce`` compare
all that it holds under ``hardware``. ``training.callback`` writes a line of the log for each logged
step; the figures ``time/...`` and ``memory/...`` in it may differ between equal runs.
"""

import hashlib
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from runner.config.menu import FOLDER_FLAGS
from runner.io.files import read_rows, shipped
from runner.io.secrets import hidden_words
from runner.report.number import format_value
from runner.run.history import plain_text
from runner.run.record import RunRecord
from runner.schema.literal import CONSTANT
from runner.schema.text import Config, flatten, select

SWEEP_FLAGS = {"-m", "--multirun"}
MAX_ROWS = 3
ENVIRONMENT = ("versions", "code", "data", "model", "hardware")  # the subjects that a page shows
DIGEST_LETTERS = 12  # how much is shown of a commit, a fingerprint or a digest


@dataclass(frozen=True)
class ChangedFile:
    """A file of a git diff, with a short digest of the changed lines."""

    name: str
    added: int
    removed: int
    digest: str


def command_of(run: RunRecord, seeds: Sequence[object] = ()) -> str:
    """The shell command that repeats a run, or sweeps it over several ``seeds``."""
    words = words_of(run)
    if words is None:
        return shlex.join(["python", "-m", "runner.launch", str(run)])
    if len(seeds) > 1:
        other_words = [word for word in words if not word.lstrip("+").startswith("seed=")]
        values = ",".join(map(str, seeds))
        words = ["-m", *other_words, f"seed={values}"]
    return shlex.join(["python", "-m", "runner", *words])


def words_of(run: RunRecord) -> list[str] | None:
    """The words of the command line that makes this run alone, without secrets.

    None where the manifest has no such command, or that of a whole sweep.
    """
    command = run.manifest.get("command") or []
    if "runner" not in command:
        return None
    start = command.index("runner") + 1
    shown_words = hidden_words(map(str, command[start:]))
    words = [word.removeprefix("++") for word in shown_words]
    if SWEEP_FLAGS.intersection(words):
        return None
    return words


def split_command(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The overrides among the words of a command line, and the config folders that it adds."""
    overrides: list[str] = []
    folders: list[Path] = []
    for previous, word in pairwise(["", *words]):
        if word.startswith("-"):
            continue
        if previous in FOLDER_FLAGS:
            folders.append(Path(word))
        else:
            overrides.append(word)
    return overrides, folders


def choices_of(run: RunRecord) -> dict[str, str]:
    """The options that were typed for this run, by their groups; they may hold secrets."""
    # The first words are ``python -m runner``, whose flag is not that of a sweep.
    command = [str(word) for word in run.manifest.get("command") or ()]
    if SWEEP_FLAGS.intersection(command[3:]):
        return {}
    choices = {}
    for word in command:
        key, sign, option = word.lstrip("+").partition("=")
        is_group = key in run.cfg and isinstance(run.cfg[key], Mapping | None)
        if sign and is_group:
            choices[key] = option
    return choices


def typed_numbers(run: RunRecord) -> dict[str, str]:
    """The numbers that were typed for a run as they were typed, such as ``1e-4``, by their keys."""
    texts = {}
    for word in run.manifest.get("command") or ():
        key, _, text = str(word).lstrip("+").partition("=")
        if CONSTANT.fullmatch(text) and text[-1].isdigit():
            texts[key] = text
    return texts


def first_rows(cfg: Config) -> list[list[tuple[str, str]]]:
    """The first training rows as pairs of column and text; empty unless they are JSON lines.

    Other formats are left out, because only heavy libraries read them.
    """
    dataset_path = select(cfg, "dataset.path")
    if not isinstance(dataset_path, str):
        return []
    path = Path(shipped(dataset_path))
    # A folder has a file for each split; ``train[:100]`` is a slice of the split ``train``.
    if path.is_dir():
        cut = select(cfg, "dataset.split.train") or "train"
        split = str(cut).partition("[")[0]
        path = path / f"{split}.jsonl"
    if path.suffix != ".jsonl" or not path.is_file():
        return []
    rows = []
    for row in read_rows(path, MAX_ROWS):
        cells = [(column, plain_text(content)) for column, content in row.items()]
        rows.append(cells)
    return rows


def facts_of(run: RunRecord) -> dict[str, dict[str, object]]:
    """The facts of a run by subject: those of its manifest, the words of its command, its state."""
    facts: dict[str, dict[str, object]] = {}
    for subject in ("data", "versions", "hardware", "model"):
        facts[subject] = flatten(run.manifest.get(subject) or {})
    for key, fact in facts["data"].items():
        if key.endswith("fingerprint") and fact:
            facts["data"][key] = str(fact)[:DIGEST_LETTERS]
    if "python" in run.manifest:
        facts["versions"]["python"] = run.manifest["python"]
    facts["model"].pop("path", None)
    git = flatten(run.manifest.get("git") or {})
    facts["code"] = _facts_of_code(git)
    facts["command"] = {}
    for word in words_of(run) or ():
        key, sign, text = word.partition("=")
        if key != "name":
            facts["command"][key] = text if sign else ""
    facts["state"] = {"state": run.state, "step": run.progress}
    return facts


def _facts_of_code(git: Mapping[str, object]) -> dict[str, object]:
    """The commit of the checkout, and the files that differed from it."""
    facts: dict[str, object] = {}
    if git:
        facts["commit"] = str(git.get("commit", ""))[:DIGEST_LETTERS]
    for file in changed_files(str(git.get("diff") or "")):
        facts[f"changed {file.name}"] = f"+{file.added} -{file.removed} ({file.digest})"
    return facts


def changed_files(diff: str) -> Iterator[ChangedFile]:
    """Each file of a git diff.

    The digest tells two changes of one file apart that add and remove as many lines.
    """
    _, *parts = re.split(r"^diff --git ", diff, flags=re.MULTILINE)
    for part in parts:
        head, *lines = part.splitlines()
        changed = []
        for line in lines:
            is_header = line.startswith(("+++ ", "--- "))
            if line.startswith(("+", "-")) and not is_header:
                changed.append(line)
        added = sum(line.startswith("+") for line in changed)
        removed = len(changed) - added
        content = "\n".join(changed)
        digest = hashlib.sha256(content.encode()).hexdigest()
        _, _, name = head.rpartition(" b/")
        yield ChangedFile(name, added, removed, digest[:6])


def list_facts(run: RunRecord) -> dict[str, str]:
    """The facts about software, data, model and machine as texts, by their names."""
    facts = facts_of(run)
    texts = {}
    for subject in ENVIRONMENT:
        for name, fact in facts[subject].items():
            texts[f"{subject} {name}"] = format_value(fact)
    return texts


def count_facts(facts_of_runs: Iterable[Mapping[str, str]]) -> dict[str, Counter[str]]:
    """The number of runs with each value of each fact, from the :func:`list_facts` of each run."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for facts in facts_of_runs:
        for name, fact in facts.items():
            counts[name][fact] += 1
    return counts
