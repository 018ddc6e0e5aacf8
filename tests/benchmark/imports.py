"""``import`` on all example files of the tools whose configurations are read.

These are Axolotl, LLaMA-Factory, ms-swift, verl, OpenRLHF, torchtune, open-instruct, TRL, recipes
for it, and the notebooks of Unsloth.

The fate of each file and key.

Of TRL the files are its YAML examples, and every command in its documentation, its examples and its
own scripts. Each file is imported from the root of its clone, as its authors run it, and then
checked as ``--dry-run`` does with the words that ``import`` says to type; one of our rewards stands
in for rewards of one's own. Values that only the user knows keep a file from running. The reasons
of refusals say whether it is a training of a kind that is trained here.

run: git clone --depth 1 of each below FOLDER, then
     python tests/benchmark/imports.py FOLDER [--only ms-swift] [--files] [--refused]

It takes about 2 minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.errors import ConfigError
from runner.importers.draft import KINDS
from runner.importers.foreign_file import read_file
from runner.importers.translate import translate

verb = import_module("runner.command.import")
PEERS = {
    "axolotl": ["examples/**/*.y*ml"],
    "LLaMA-Factory": ["examples/**/*.yaml", "examples/**/*.sh"],
    "ms-swift": ["examples/**/*.sh", "examples/**/*.yaml"],
    "alignment-handbook": ["recipes/*/*/*.y*ml"],
    "open-r1": ["recipes/*/*/*.y*ml"],
    "SimPO": ["training_configs/*.yaml"],
    "open-instruct": ["scripts/train/**/*.sh", "configs/train_configs/**/*.yaml"],
    "OpenRLHF": ["examples/scripts/*.sh"],
    "torchtune": ["recipes/configs/**/*.yaml"],
    "notebooks": ["nb/*.ipynb"],  # of unslothai
    "verl": ["examples/**/*.sh", "examples/**/config/*.yaml", "verl/trainer/config/*trainer*.yaml"],
    "trl": ["examples/cli_configs/*.yaml", "examples/accelerate_configs/*.yaml"],
}
DOCUMENTS = (
    "README.md",
    "docs/source/**/*.md",
    "examples/**/*.py",
    "examples/**/*.md",
    "trl/**/*.py",
)
COMMAND = re.compile(
    r"^[ #>$]*((?:[A-Z_]+=\S+ +)*(?:accelerate launch|trl|python3?|torchrun|uv run) .*)$"
)


@dataclass
class Outcome:
    """A file with its exit code, the words of the dry run or the refusal, and the number of its
    keys of each kind.
    """

    name: str
    code: int
    said: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


def commands_of(clone: Path) -> Iterator[tuple[str, str]]:
    """The commands in TRL's documents that start a script or one of its verbs, with a name for
    each.
    """
    for path in sorted(set().union(*map(clone.glob, DOCUMENTS))):
        lines = iter(path.read_text(encoding="utf-8").splitlines())
        for number, line in enumerate(lines):
            if not (command := COMMAND.match(line)):
                continue
            words = [command[1]]
            while words[-1].endswith("\\") and (more := next(lines, None)) is not None:
                words.append(more.lstrip(" #"))
            text = "\n".join(words)
            if re.search(r"(^|\s)trl \w|\w\.py\b", text) and "--" in text:
                yield f"{path.relative_to(clone)}:{number + 1}".replace("/", "-"), text + "\n"


def outcome_of(path: Path, root: Path, name: str) -> Outcome:
    """Import one file from the root of its clone, and check the result."""
    os.chdir(root)
    try:
        draft = translate(read_file(path), verb.name_of(path))
        text = verb.to_file(draft)
        words = list(draft.overrides)
        if any(word.startswith("allow=") for word in words):
            words = [word for word in words if not word.startswith(("allow=", "reward."))]
            words.append("reward.length._target_=runner.reward.rule.length")
        faults = [str(fault) for fault in verb.faults_of(draft.name, text, words)]
        return Outcome(
            name, 0, faults, Counter(note.kind for note in draft.notes if not note.implied)
        )
    except ConfigError as error:
        return Outcome(name, 2, [str(fault) for fault in error.faults])
    except Exception:
        return Outcome(name, 1, [traceback.format_exc()])


def files_of(peer: str, clone: Path, scratch: Path) -> Iterator[tuple[Path, Path, str]]:
    """Each file of a peer, the folder that it is imported from, and its name."""
    for path in sorted(set().union(*map(clone.glob, PEERS[peer]))):
        yield path, clone, str(path.relative_to(clone))
    for name, text in commands_of(clone) if peer == "trl" else ():
        file = scratch / f"{name}.sh"
        file.write_text(text, encoding="utf-8")
        yield file, clone, name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PEERS)
    parser.add_argument("--files", action="store_true", help="every file, with its faults")
    parser.add_argument(
        "--refused", action="store_true", help="every file that was refused, with the reason"
    )
    options = parser.parse_args()
    print("| peer | files | exit 0 | 2 | 1 | dry run passes | " + " | ".join(KINDS) + " |")
    print("|---" * (6 + len(KINDS)) + "|")
    wrong = 0
    for peer in [options.only] if options.only else PEERS:
        with TemporaryDirectory() as scratch, ProcessPoolExecutor(2) as pool:
            jobs = list(files_of(peer, (options.folder / peer).resolve(), Path(scratch)))
            outcomes = list(pool.map(outcome_of, *zip(*jobs, strict=True), chunksize=4))
        codes = Counter(outcome.code for outcome in outcomes)
        kinds = sum((outcome.kinds for outcome in outcomes), Counter())
        passed = sum(outcome.code == 0 and not outcome.said for outcome in outcomes)
        counts = [
            len(outcomes),
            codes[0],
            codes[2],
            codes[1],
            passed,
            *(kinds[kind] for kind in KINDS),
        ]
        print(f"| {peer} | " + " | ".join(map(str, counts)) + " |")
        wrong += codes[1]
        for outcome in outcomes:
            if (
                outcome.code == 1
                or (options.files and outcome.code == 0)
                or (options.refused and outcome.code == 2)
            ):
                messages = "\n".join(outcome.said).replace("\n", "\n    ")
                print(f"{outcome.code} {outcome.name}" + (f"\n    {messages}" if messages else ""))
        reasons = Counter(
            re.sub(r"\S*/\S+", "...", outcome.said[0])[:110] for outcome in outcomes if outcome.said
        )
        for reason, count in reasons.most_common(25):
            print(f"  {count:4} {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
