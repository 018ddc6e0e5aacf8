"""The training command of a shell script -> the keys of its flags and of the file that it names."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runner.config.dialect import find_dialects, read_table
from runner.errors import ConfigError, Fault
from runner.importers.foreign_config import (
    FILE_TYPES,
    ForeignConfig,
    Keys,
    Remark,
    assign,
    read_named,
)
from runner.importers.hydra_words import ENDS, read_hydra_words
from runner.importers.references import fill_references
from runner.importers.shell_branches import Branches
from runner.importers.shell_lines import ShellLine, Variables, read_lines
from runner.schema.text import Node

# Flags of the program that starts the processes, which say over how many devices the training is
# spread, and how.
SPREAD = re.compile(
    r"(?i)--(\w*config_file|zero_stage|n(?:um|proc).(?:machines|nodes|processes|per.node)|nnodes)"
    r"[= ](\S+)"
)
# Variables that say it as well.
SPREAD_VARIABLES = ("NPROC_PER_NODE", "NNODES")
# A word that sets a key, or takes it out.
KEY_WORD = re.compile(r"[A-Za-z_][\w.]*=|~[\w.]+$")
SHELLS = ("bash", "sh")
CONFIG_FLAGS = ("config", "config_file")
# An override that no command takes: a dotted key is no variable of the shell.
LOST_OVERRIDE = re.compile(r"[+~]{0,2}\w+(\.\w+)+=")


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains."""

    dialect: str
    command: str  # the subcommand, or the method that a script is of
    why: str  # what says that it is of this dialect
    first_flag: int  # the index of the word behind the command
    script: str = ""
    is_certain: bool = True  # without a look at the file that it reads


@dataclass(frozen=True)
class IdleCommand:
    """A command of a known tool that trains nothing, or nothing that is trained here."""

    reason: str


def read_script(path: Path, text: str, choices: Sequence[int] = ()) -> ForeignConfig:
    """The keys of the training command in a script, and its dialect.

    Of several trainings the first with flags counts; a remark says how many follow. ``choices`` are
    the numbers of the branches to take, one for each condition that the script does not decide.
    Raises ConfigError where no command trains, or where a comment cuts flags off.
    """
    variables = Variables()
    branches = Branches(choices)
    reading = ForeignConfig(path, {})
    reason = ""  # why the first command that is no training is none
    further_trainings = 0
    for raw_line in read_lines(path, text, variables, branches):
        words = _open_inner_commands(raw_line.words)
        line = replace(raw_line, words=words)
        for index in range(len(words)):
            command = _find_command(words, index)
            if command is None:
                continue
            if isinstance(command, IdleCommand):
                reason = reason or command.reason
            elif reading.keys:
                further_trainings += 1
            else:
                _take(reading, command, line, variables)
    _note_branches(reading, branches)
    if further_trainings:
        why = "further trainings; each is imported from a file of its own"
        reading.remarks["commands"] = Remark(further_trainings, why)
    if not reading.dialect:
        raise ConfigError(_no_training(path, reason))
    variables_of_training = read_table(reading.dialect).sections.get("variables", ())
    for name, value in variables.values.items():
        if name in variables_of_training:
            reading.keys[name] = value
    return reading


def _open_inner_commands(words: Sequence[str]) -> list[str]:
    """The words of a line, where a command in quotes that a further shell runs is its words."""
    opened: list[str] = []
    for index, word in enumerate(words):
        is_inner = index > 1 and words[index - 1] == "-c" and words[index - 2] in SHELLS
        inner_words = [word]
        if is_inner:
            with suppress(ValueError):  # half of a quotation
                inner_words = shlex.split(word)
        opened += inner_words
    return opened


def _note_branches(reading: ForeignConfig, branches: Branches) -> None:
    """Note loops, and conditions that the script does not decide and that change the training.

    Raises ConfigError with the word that takes a branch where no other training is in the script.
    """
    for name, turns in branches.loops.items():
        remark = Remark(turns, "a loop, whose first turn this is")
        reading.remarks[f"for {name}"] = remark
    for position, undecided in enumerate(branches.undecided):
        if not undecided.matters or undecided.chosen:
            continue
        choice = ",".join(["0"] * position + ["1"])
        if not reading.dialect:
            raise ConfigError(
                Fault(
                    where=f"{reading.path}: {undecided.condition}",
                    found="the file does not decide it",
                    expected=f"the number of one of its branches, 1 to {undecided.branches}",
                    fix=f"branch={choice}",
                )
            )
        why = "the file does not decide it, and none of its branches is taken"
        remark = Remark(undecided.branches, f"{why}; branch={choice} takes the first")
        reading.remarks[undecided.condition] = remark


def _no_training(path: Path, reason: str) -> Fault:
    commands: dict[str, None] = {}  # each once, in order
    for table in find_dialects().values():
        commands |= dict.fromkeys(table["commands"])
    return Fault(
        where=str(path),
        found=reason or "no command that trains",
        expected=f"a line with one of {', '.join(commands)}",
        fix="python -m runner import <another file>",
    )


# --- The command ----------------------------------------------------------------------------------


def _find_command(words: Sequence[str], index: int) -> TrainingCommand | IdleCommand | None:
    """The command of a known tool that begins with the word at ``index``; None where none does."""
    word = words[index]
    subcommand = ""
    if index + 1 < len(words):
        subcommand = words[index + 1]
    for dialect, table in find_dialects().items():
        for pattern, why in table.get("idle", {}).items():
            match = re.search(pattern, f"{word} {subcommand}")
            if match:
                return IdleCommand(f"{match[0].strip('/ ')}: {why}")
        program = word.rpartition("/")[2]
        if subcommand in table["commands"].get(program, ()):
            why = f"{word} {subcommand}"
            return TrainingCommand(dialect, subcommand, why, first_flag=index + 2)
        training = _find_training_script(dialect, table, words, index)
        if training:
            return training
    return None


def _find_training_script(
    dialect: str, table: Node, words: Sequence[str], index: int
) -> TrainingCommand | None:
    """The training of a script by the name of one of the tool's own.

    A script elsewhere that only has such a name must have one of the tool's flags.
    """
    word = words[index]
    is_own = bool(re.search(table.get("own_scripts", ""), word))
    why = word if is_own else f"{word}, taken for the one of that name in {table['title']}"
    flags = _flags_of(words[index + 1 :])
    has_mark = bool(flags.keys() & set(table["marks"]))
    # Its flags may stand in a file, which is looked at when it is read.
    names_file = bool(_named_files(_until_flag(words[index + 1 :]), flags))
    for pattern in table["scripts"]:
        match = re.search(pattern, word)
        if match and (is_own or has_mark or names_file):
            method = match[1] if match.groups() else "train"
            command = table.get("methods", {}).get(method, method)
            script = word.rpartition("/")[2].removesuffix(".py")
            return TrainingCommand(
                dialect,
                command,
                why,
                first_flag=index + 1,
                script=script,
                is_certain=is_own or has_mark,
            )
    return None


def _take(
    reading: ForeignConfig, training: TrainingCommand, line: ShellLine, variables: Variables
) -> None:
    """Take over a training of a script: its dialect, its flags, and how it is started.

    Raises ConfigError where a comment, or a missing backslash, cuts the flags off.
    """
    reading.dialect = training.dialect
    reading.command = training.command
    reading.why = training.why
    reading.script = training.script
    is_hydra = bool(read_table(training.dialect).sections.get("hydra"))
    # Flags on the line below would be lost without a word.
    if line.below.startswith("--") or (is_hydra and LOST_OVERRIDE.match(line.below)):
        flag = re.split(r"[ =]", line.below, maxsplit=1)[0]
        raise ConfigError(
            Fault(
                where=str(reading.path),
                found=f"{flag} is not part of the command: a comment, or no backslash, "
                "ends the line above it",
                expected="all flags in one command",
                fix="move comments above the command, and end each of its lines but "
                "the last with a backslash",
            )
        )
    words = line.words[training.first_flag :]
    if is_hydra:
        overrides = read_hydra_words(reading.path, words)
        reading.keys = overrides.keys
        reading.remarks |= overrides.remarks
    else:
        _read_words(reading, words)
    marks = read_table(reading.dialect).sections["marks"]
    if not training.is_certain and not reading.keys.keys() & set(marks):
        reason = f"{reading.script}.py with keys of its own"
        raise ConfigError(_no_training(reading.path, reason))
    starters = []
    for name in SPREAD_VARIABLES:
        value = variables.values.get(name, "")
        starters.append(f"--{name}={value}")
    starters += line.words[: training.first_flag]
    for flag, value in SPREAD.findall(" ".join(starters)):
        reading.keys[_to_key(flag.lower())] = value


# --- Flags ----------------------------------------------------------------------------------------


def _read_words(reading: ForeignConfig, words: Sequence[str]) -> None:
    """Take over the keys that the words behind a command give, flags and assignments."""
    sections = read_table(reading.dialect).sections
    assignments = []
    if sections.get("assignments"):
        assignments = [word for word in words if KEY_WORD.match(word)]
        words = [word for word in words if word not in assignments]
    _read_flags(reading, words, sections.get("configs", {}))
    for key, value in assign(reading.keys, assignments).items():
        why = "of the file, where a word of the command says another"
        reading.remarks[f"{key} (file)"] = Remark(value, why)
    reading.keys = fill_references(reading.keys)


def _read_flags(reading: ForeignConfig, words: Sequence[str], configs: Node) -> None:
    """Take over the keys of flags, and those of the file that they name.

    A flag takes the place of a key of the file. ``configs`` says where the tool keeps files that
    are named without their ending.
    """
    flags = _flags_of(words)
    leading_words = _until_flag(words)
    for word in leading_words:
        key, sign, value = word.partition("=")
        if sign:
            flags.setdefault(key, value)
    files = _named_files(leading_words, flags)
    if not files:
        reading.keys = flags
        return
    keys_of_file = _read_config_file(reading.path, files[0], configs)
    for name in CONFIG_FLAGS:
        if flags.get(name) == files[0]:
            del flags[name]
    for key, value in keys_of_file.items():
        if key in flags:
            name = f"{Path(files[0]).name}: {key}"
            reading.overridden[name] = Remark(value, "a flag of the command takes its place")
    reading.keys = keys_of_file | flags


def _flags_of(words: Sequence[str]) -> Keys:
    """The keys that flags give; of a flag that comes twice the last one counts."""
    flags: Keys = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        flag, sign, value = word.partition("=")
        key = _to_key(flag.removeprefix("--"))
        values = [value] if sign else _until_flag(words[index + 1 :])
        if not values and key.startswith("no_"):
            flags[key.removeprefix("no_")] = False
        elif not values:
            flags[key] = True
        elif len(values) == 1:
            flags[key] = values[0]
        else:
            flags[key] = [text.removesuffix(",") for text in values]
    return flags


def _named_files(leading_words: Sequence[str], flags: Keys) -> list[str]:
    """The files of keys that a command names, by a word or by a flag."""
    files = [word for word in leading_words if word.endswith(FILE_TYPES)]
    if not files:
        files = [str(flags[key]) for key in CONFIG_FLAGS if key in flags]
    return files


def _read_config_file(path: Path, file: str, configs: Node) -> Keys:
    """The keys of the file that a command names; ConfigError where there is no such file."""
    keys = read_named(path, file)
    fix = f"import {file} itself"
    if configs and not file.endswith(FILE_TYPES):
        keys = read_named(path, f"{configs['folder']}/{file}.yaml")
        copy = f"{Path(file).name}.yaml"
        fix = f"{configs['copy']} {file} {copy}, and --config {copy} in the script"
    if keys is None:
        raise ConfigError(
            Fault(
                where=str(path),
                found=f"it reads {file}, which is not there",
                expected="that file",
                fix=fix,
            )
        )
    return keys


def _to_key(flag: str) -> str:
    """The key of a flag without its dashes in front, as argparse makes it."""
    return flag.replace("-", "_")


def _until_flag(words: Sequence[str]) -> list[str]:
    """The words before the next flag, or before the end of the command."""
    for index, word in enumerate(words):
        if word.startswith("--") or word in ENDS:
            return list(words[:index])
    return list(words)
