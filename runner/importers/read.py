"""A file -> its keys and the dialect that it is in: YAML, JSON, or a shell script with one training command."""

import contextlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from runner.config.dialect import STRATEGY, find_dialects, read_sections
from runner.config.limits import MAX_DIGITS, check_size, parse_yaml
from runner.config.override import FOREIGN
from runner.errors import ConfigError, Fault, fault
from runner.schema.text import files_beside

FILE_TYPES = (".yaml", ".yml", ".json")
# A comment of bash begins a word; what stands in quotes, or behind a backslash, is none.
COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?:^|(?<=[\s;&|()]))#.*""")
COMMAND = re.compile(r"\$\((?:expr\s+([^()]*)|\(([^()]*)\)|[^()]*)\)")
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")
# Flags of what starts the processes, and variables as if they were such, that say how the training is spread.
SPREAD = re.compile(r"(?i)--(\w*config_file|zero_stage|n(?:um|proc).(?:machines|processes|per.node)|nnodes)[= ](\S+)")
MAX_LETTERS = 100_000  # of a script, whose variables may hold one another


@dataclass
class ForeignConfig:
    """The keys of a file, the dialect and what says so, the subcommand if any, and on how many devices it ran."""

    path: Path
    keys: dict[str, Any]
    dialect: str = ""
    why: str = ""
    command: str = ""
    devices: int = 1
    variables: dict[str, str] = field(default_factory=dict)


def read_file(path: Path, dialect: str | None = None) -> ForeignConfig:
    """The keys of a configuration; ConfigError where it is none, or of no dialect that is known."""
    known = find_dialects()
    if dialect is not None and dialect not in known:
        raise ConfigError(Fault("dialect", dialect, f"one of {', '.join(known)}", f"dialect={next(iter(known))}"))
    text = _read_text(path)
    is_script = path.suffix in (".sh", ".bash") or (path.suffix not in FILE_TYPES and re.search(r"(?m)^\s*--\w", text))
    reading = _read_script(path, text) if is_script else ForeignConfig(path, _read_mapping(path, text))
    reading.keys = {key: plain(value) for key, value in reading.keys.items()}
    if dialect:
        reading.dialect, reading.why = dialect, "because you say so"
    elif not reading.dialect:  # then that whose keys they are
        known |= {STRATEGY: read_sections()[STRATEGY]}
        found = {name: [key for key in table["marks"] if key in reading.keys] for name, table in known.items()}
        best, second, *_ = sorted(found, key=lambda name: -len(found[name]))
        if len(found[best]) == len(found[second]):
            tied = [known[name]["title"] for name in found if len(found[name]) == len(found[best])]
            what = f"as much of {' as of '.join(tied)}" if found[best] else "no key that one of them has"
            raise ConfigError(fault("importers.no_dialect", file=path, what=what, known=", ".join(find_dialects())))
        reading.dialect, reading.why = best, ", ".join(found[best][:5])
    strange = {key: why for key, why in known[reading.dialect].get("strange", {}).items() if reading.keys.get(key)}
    if strange and not reading.keys.get("do_train"):
        expected, fix = f"a training of {known[reading.dialect]['title']}", "python -m runner import <another file>"
        raise ConfigError(Fault(f"{path}: {key}", why, expected, fix) for key, why in strange.items())
    return reading


def plain(value: object) -> Any:
    """The value as it was meant: YAML reads 2e-5 as a text, and a shell everything."""
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "none": None, "null": None}
    if value.lower() in words and value != "none":  # a value of its own: scale_rewards, report_to
        return words[value.lower()]
    if re.fullmatch(r"[+-]?\d+", value) and len(value) <= MAX_DIGITS:
        return int(value)
    if re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", value, re.I):
        return float(value)
    with contextlib.suppress(ValueError, RecursionError):
        return plain(json.loads(value)) if value[:1] in "{[" and value[-1:] in "}]" else value
    return value


def _read_text(path: Path) -> str:
    try:
        check_size(path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found, other = getattr(error, "strerror", None) or str(error), [*files_beside(path, FOREIGN), "--help"][0]
        raise ConfigError(fault("importers.unreadable", file=path, found=found, other=shlex.quote(other))) from None


def read_named(path: Path, name: str) -> dict[str, Any] | None:
    """The keys of the file that another one names, from here, from its folder or beside it; None where it is not."""
    places = (Path(name), path.parent / name, path.parent / Path(name).name)
    return next((_read_mapping(file, _read_text(file)) for file in places if file.is_file()), None)


def _read_mapping(path: Path, text: str) -> dict[str, Any]:
    keys = parse_yaml(text, str(path))
    if not isinstance(keys, dict):
        raise ConfigError(Fault(str(path), f"a {type(keys).__name__}", "keys with values"))
    return {str(key): value for key, value in keys.items()}


def _read_script(path: Path, text: str) -> ForeignConfig:
    reading = ForeignConfig(path, {})

    def to_value(found: re.Match[str]) -> str:
        """A variable that the script itself sets, or its fallback; others stay as they are written."""
        return reading.variables.get(found[1] or found[3], found[0] if found[2] is None else found[2])

    # Lines as bash reads them: each without its comment, joined where one ends with a backslash.
    bare = "".join(COMMENT.sub(lambda found: found[1] or "", line) + "\n" for line in text.splitlines())
    lines, size = bare.replace("\\\n", " ").split("\n"), 0
    for number, line in enumerate(lines):
        size += len(line) + sum(len(to_value(found)) for found in VARIABLE.finditer(line))
        if size > MAX_LETTERS:
            raise ConfigError(fault("importers.long_script", file=path, most=MAX_LETTERS))
        try:
            words = shlex.split(COMMAND.sub(lambda found: _to_number(found, reading.variables), line))
        except ValueError:
            continue  # a line of the shell's own, such as half of a quotation
        words = [VARIABLE.sub(to_value, word) for word in words]
        words = words[1:] if words[:1] == ["export"] else words
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.S):
            name, _, value = words.pop(0).partition("=")
            reading.variables[name] = value
        for index, (word, after) in enumerate(pairwise([*words, ""])):
            if count := _find_training(reading, word, after):
                # Flags below the command would be lost without a word.
                flag = next(filter(str.strip, lines[number + 1 :]), "").lstrip().partition(" ")[0]
                if flag.startswith("--"):
                    raise ConfigError(fault("importers.lost_flag", file=path, flag=flag))
                _read_flags(reading, words[index + count :])
                said = [f"--{name}={reading.variables.get(name, '')}" for name in ("NPROC_PER_NODE", "NNODES")]
                for name, value in SPREAD.findall(" ".join([*said, *words[:index]])):
                    reading.keys[name.lower().replace("-", "_")] = value
                return reading
    commands = [word for table in find_dialects().values() for word in table["commands"]]
    raise ConfigError(Fault(str(path), "no command that trains", f"a line with one of {', '.join(commands)}"))


def _find_training(reading: ForeignConfig, word: str, after: str) -> int:
    for name, table in find_dialects().items():
        if after in table["commands"].get(word, ()):
            reading.dialect, reading.command, reading.why = name, after, f"{word} {after}"
            return 2
        for script in filter(None, (re.search(pattern, word) for pattern in table["scripts"])):
            reading.dialect, reading.command, reading.why = name, script[1] if script.groups() else "train", word
            return 1
    return 0


def _to_number(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """The number that a command in a command comes to, where it only multiplies and divides; else its name."""
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: variables.get(name[1], name[0]), found[1] or found[2] or "")
    text = re.sub(r"\s*\\?([*/])\s*", r"\1", text.strip())
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d+([*/][1-9]\d*)*", text):
        return f"$({(re.findall(r'[A-Za-z_]+', found[0]) or ['command'])[0]})"
    number = 1
    for sign, other in re.findall(r"([*/]?)(\d+)", text):
        number = number // int(other) if sign == "/" else number * int(other)
    return str(number)


def _read_flags(reading: ForeignConfig, words: Sequence[str]) -> None:
    first = _until_flag(words)
    flags: dict[str, Any] = {key: value for key, mark, value in (word.partition("=") for word in first) if mark}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        key, mark, value = word.partition("=")
        key, values = key[2:].replace("-", "_"), [value] if mark else _until_flag(words[index + 1 :])
        if not values and key.startswith("no_"):
            flags[key.removeprefix("no_")] = False
        else:
            flags[key] = (values[0] if len(values) == 1 else values) if values else True
    files = [word for word in first if word.endswith(FILE_TYPES)]
    for name in files[:1] or [str(flags.pop(key)) for key in ("config", "config_file") if key in flags][:1]:
        if (keys := read_named(reading.path, name)) is None:
            raise ConfigError(fault("importers.absent_file", file=reading.path, name=name))
        reading.keys = keys
    reading.keys |= flags


def _until_flag(words: Sequence[str]) -> list[str]:
    ends = ("|", ">", ">>", "2>&1", "&", "&&", ";", "1>")
    return list(takewhile(lambda word: not word.startswith("--") and word not in ends, words))
