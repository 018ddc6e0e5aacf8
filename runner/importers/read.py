"""A file -> its keys and the dialect that it is in: YAML, JSON, or a shell script with one training command."""

import contextlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from runner.config.choice import FOREIGN
from runner.config.dialect import STRATEGY, find_dialects, read_sections, read_table
from runner.config.limits import MAX_DIGITS, check_size, parse_yaml
from runner.errors import ConfigError, Fault
from runner.io.filetype import undecodable
from runner.schema.text import files_beside

FILE_TYPES = (".yaml", ".yml", ".json")
# A comment of bash begins a word; what stands in quotes, or behind a backslash, is none.
COMMENT = re.compile(r"""(?m)('[^']*'|"(?:\\[\s\S]|[^"\\])*"|\\.)|(?:^|(?<=[\s;&|()]))#.*""")
# a text below a command, up to a word of its own
HEREDOC = re.compile(r"""(?<!<)<<-?\s*(['"]?)(\w+)\1""")
ARRAY = re.compile(
    r"(?m)^\s*(?:(?:declare|local) -a )?(\w+)(\+?)=\(((?:\$\(\(?[^()]*\)?\)|[^()])*)\)"
)
# Variables that become several words: arrays, commands that are run, and flags without quotes.
WORDS = re.compile(
    r"""(?<!\S)(?:"?\$\{(\w+)\[[@*]\](?:\+"?\$\{\w+\[[@*]\]\}"?)?\}"?|(?:eval\s+")?\$\{?(\w+)\}?"?)(?![^\s;])"""
)
COMMAND = re.compile(r"\$\((?:expr\s+([^()]*)|\(([^()]*)\)|[^()]*)\)")
VARIABLE = re.compile(r"\$\{(\w+)(?::?[-=]((?:[^{}]|\$\{[^{}]*\}){0,500}))?\}|\$(\w+)")
# Flags of what starts the processes, and variables as if they were such, that say how the training
# is spread.
SPREAD = re.compile(
    r"(?i)--(\w*config_file|zero_stage|n(?:um|proc).(?:machines|processes|per.node)|nnodes)[= ](\S+)"
)
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
    script: str = ""  # the name of the script that it starts, where the dialect knows some
    # what else it holds, and why it is left
    remarks: dict[str, tuple[object, str]] = field(default_factory=dict)


def read_file(path: Path, dialect: str | None = None) -> ForeignConfig:
    """The keys of a configuration; ConfigError where it is none, or of no dialect that is known."""
    known = find_dialects()
    if dialect is not None and dialect not in known:
        raise ConfigError(
            Fault("dialect", dialect, f"one of {', '.join(known)}", f"dialect={next(iter(known))}")
        )
    text = _read_text(path)
    is_script = path.suffix in (".sh", ".bash") or (
        path.suffix not in FILE_TYPES and re.search(r"(?m)^\s*--\w", text)
    )
    reading = _read_script(path, text) if is_script else ForeignConfig(path, read_mapping(path))
    reading.keys = {key: plain(value) for key, value in reading.keys.items()}
    if dialect:
        reading.dialect, reading.why = dialect, "because you say so"
    elif not reading.dialect:  # then that whose keys they are
        known |= {STRATEGY: read_sections()[STRATEGY]}
        found = {
            name: [key for key in table["marks"] if key in reading.keys]
            for name, table in known.items()
        }
        best, second, *_ = sorted(found, key=lambda name: -len(found[name]))
        if len(found[best]) == len(found[second]):
            tied = [known[name]["title"] for name in found if len(found[name]) == len(found[best])]
            what = (
                f"as much of {' as of '.join(tied)}"
                if found[best]
                else "no key that one of them has"
            )
            known_text = ", ".join(find_dialects())
            raise ConfigError(
                Fault(
                    where=f"{path}",
                    found=f"{what}",
                    expected=f"a configuration of {known_text}",
                    fix="dialect=<one of them>",
                )
            )
        reading.dialect, reading.why = best, ", ".join(found[best][:5])
    # keys of a dialect beside it, by the same commands or marks
    others = known[reading.dialect].get("instead", {})
    reading.dialect = next(
        (other for key, other in others.items() if key in reading.keys), reading.dialect
    )
    for group in set(known[reading.dialect].get("groups", ())) & reading.keys.keys():
        reading.keys |= (
            inner if isinstance(inner := reading.keys.pop(group), Mapping) else {group: inner}
        )
    strange = {
        key: why
        for key, why in known[reading.dialect].get("strange", {}).items()
        if reading.keys.get(key)
    }
    if strange and not reading.keys.get("do_train"):
        expected, fix = (
            f"a training of {known[reading.dialect]['title']}",
            "python -m runner import <another file>",
        )
        raise ConfigError(
            Fault(f"{path}: {key}", why, expected, fix) for key, why in strange.items()
        )
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
    except UnicodeDecodeError as error:
        finding = undecodable(error.object, str(path))
        raise ConfigError(
            Fault(str(path), finding.found, "a configuration in UTF-8", finding.fix)
        ) from None
    except OSError as error:
        found, other = (
            getattr(error, "strerror", None) or str(error),
            [*files_beside(path, FOREIGN), "--help"][0],
        )
        raise ConfigError(
            Fault(
                where=f"{path}",
                found=f"{found}",
                expected="a configuration",
                fix=f"python -m runner import {shlex.quote(other)}",
            )
        ) from None


def read_named(path: Path, name: str) -> dict[str, Any] | None:
    """The keys of the file that another one names, from here, from its folder or beside it; None where it is not."""
    places = (Path(name), path.parent / name, path.parent / Path(name).name)
    return next((read_mapping(file, name) for file in places if file.is_file()), None)


def read_mapping(path: Path, name: str = "") -> dict[str, Any]:
    """The keys of a YAML or JSON file, which messages call by this name; ConfigError where there are none."""
    keys = parse_yaml(_read_text(path), name := name or str(path))
    if not isinstance(keys, dict):
        found = "an empty file" if keys is None else f"a {type(keys).__name__}"
        fix = "python -m runner import <a file of keys and values>"
        raise ConfigError(Fault(name, found, "keys with values", fix))
    return {str(key): value for key, value in keys.items()}


def _read_script(path: Path, text: str) -> ForeignConfig:
    reading, idle, others, condition, before = ForeignConfig(path, {}), "", 0, "", ""
    for words, below in _read_lines(path, text, reading.variables):
        is_whole = words[-1:] == ["fi"]
        condition = (
            " ".join(words[:-1]).rstrip("; ")
            if words[:1] == ["if"]
            else ""
            if is_whole
            else condition
        )
        if condition and (is_whole or str(reading.variables) != before):
            why = "a condition: flags below it are taken as if it held, those on its own line are not read"
            reading.remarks[condition] = [], why
        before = str(reading.variables)
        if words[:1] == ["for"] and words[2:3] == ["in"] and words[3:]:
            reading.variables[words[1]] = words[3].rstrip(";")
            reading.remarks[f"for {words[1]}"] = (
                " ".join(words[3:]),
                "a loop, whose first turn this is",
            )
        for index in range(len(words)):
            why, start = _find_training(
                ForeignConfig(path, {}) if reading.dialect else reading, words, index
            )
            idle, others = idle or why, others + bool(start and reading.keys)
            if start and not reading.keys:
                if below.startswith("--"):  # it would be lost without a word
                    flag = below.partition(" ")[0]
                    raise ConfigError(
                        Fault(
                            where=f"{path}",
                            found=f"{flag} is not part of the command: a comment, or no backslash, "
                            "ends the line above it",
                            expected="all flags in one command",
                            fix="move comments above the command, and end each of its lines but "
                            "the last with a backslash",
                        )
                    )
                _read_flags(reading, words[start:])
                said = [
                    f"--{name}={reading.variables.get(name, '')}"
                    for name in ("NPROC_PER_NODE", "NNODES")
                ]
                spread = SPREAD.findall(" ".join([*said, *words[:start]]))
                reading.keys |= {name.lower().replace("-", "_"): value for name, value in spread}
    if others:
        reading.remarks["commands"] = (
            others,
            "further trainings; each is imported from a file of its own",
        )
    if not reading.dialect:
        idle = idle or "no command that trains"
        known = dict.fromkeys(
            word for table in find_dialects().values() for word in table["commands"]
        )
        known_text = ", ".join(known)
        raise ConfigError(
            Fault(
                where=f"{path}",
                found=f"{idle}",
                expected=f"a line with one of {known_text}",
                fix="python -m runner import <another file>",
            )
        )
    meant = read_table(reading.dialect).sections.get("variables", ())
    reading.keys |= {name: value for name, value in reading.variables.items() if name in meant}
    return reading


def _read_lines(
    path: Path, text: str, variables: dict[str, str]
) -> Iterator[tuple[list[str], str]]:
    """The words of each line as bash reads it, and the line below; the variables that it sets are added."""

    def to_value(found: re.Match[str]) -> str:
        """A variable that the script itself sets, or its fallback; others stay as they are written."""
        other = found[0] if found[2] is None else VARIABLE.sub(to_value, found[2])
        return variables.get(found[1] or found[3], other)

    def to_words(found: re.Match[str]) -> str:
        value = variables.get(found[1] or found[2], found[0])
        return value if found[1] or not value or re.search(r"(^|\s)--\w", value) else found[0]

    def to_variable(found: re.Match[str]) -> str:
        before = f'"${{{found[1]}}} "' if found[2] else ""
        return "\n" + f"{found[1]}={before}{shlex.quote(found[3])}".replace("\n", "\0")

    # Each without its comment, joined where one ends with a backslash, or in quotes.
    text = "\n".join([*_read_heredocs(text), ""])
    bare = COMMENT.sub(
        lambda found: (found[1] or "").replace("\\\n", " ").replace("\n", "\0"), text
    )
    lines, size = ARRAY.sub(to_variable, bare).replace("\\\n", " ").split("\n"), 0
    for number, line in enumerate(lines):
        line = WORDS.sub(to_words, line.replace("\0", "\n"))
        size += len(line) + sum(len(to_value(found)) for found in VARIABLE.finditer(line))
        if size > MAX_LETTERS:
            raise ConfigError(
                Fault(
                    where=f"{path}",
                    found=f"more than {MAX_LETTERS:,} letters, with what its variables stand for",
                    expected="a script of a person's",
                    fix="import its training command alone",
                )
            )
        try:
            words = shlex.split(COMMAND.sub(lambda found: _to_number(found, variables), line))
        except ValueError:
            continue  # a line of the shell's own, such as half of a quotation
        words = [VARIABLE.sub(to_value, word) for word in words if word not in ("$@", "$*", "${@}")]
        words = (
            words[1:] if words[:1] in (["export"], ["local"], ["readonly"], ["declare"]) else words
        )
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.S):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value.rstrip(";")
        yield words, next(filter(str.strip, lines[number + 1 :]), "").lstrip()


def _read_heredocs(text: str) -> Iterator[str]:
    """The lines of a script; a text below a command becomes the variable that it is read into, or nothing."""
    lines = iter(text.splitlines())
    for line in lines:
        start = None if line.lstrip().startswith("#") else HEREDOC.search(line)
        if start is None:
            yield line
            continue
        body: list[str] = []
        while (below := next(lines, start[2])).strip() != start[2]:
            body.append(below)
        printed = re.match(r"\s*(?:export )?(\w+)=.?\$\( ?cat\b", line)
        if name := printed or re.search(r"\bread [^<]*?(\w+) *$", line[: start.start()]):
            yield f"{name[1]}=" + shlex.quote("\n".join(body))
        if printed:
            next(lines, None)  # its closing bracket


def _find_training(reading: ForeignConfig, words: Sequence[str], index: int) -> tuple[str, int]:
    """Why a word begins nothing that is trained here, and where the flags of a training begin that it names."""
    word, after = words[index], words[index + 1] if words[index + 1 :] else ""
    for name, table in find_dialects().items():
        for pattern, why in table.get("idle", {}).items():
            if found := re.search(pattern, f"{word} {after}"):
                return f"{found[0].strip('/ ')}: {why}", 0
        if after in table["commands"].get(word.rpartition("/")[2], ()):
            reading.dialect, reading.command, reading.why = name, after, f"{word} {after}"
            return "", index + 2
        for script in filter(None, (re.search(pattern, word) for pattern in table["scripts"])):
            method = script[1] if script.groups() else "train"
            flags = {
                flag.lstrip("-").partition("=")[0].replace("-", "_") for flag in words[index + 1 :]
            }
            taken = (
                ""
                if re.search(table.get("own_scripts", ""), word)
                else ", taken for the one of that name in TRL"
            )
            if taken and not flags.intersection(table["marks"]):
                continue
            reading.dialect, reading.command = name, table.get("methods", {}).get(method, method)
            reading.why, reading.script = word + taken, word.rpartition("/")[2].removesuffix(".py")
            return "", index + 1
    return "", 0


def _to_number(found: re.Match[str], variables: Mapping[str, str]) -> str:
    """The number that a command in a command comes to, where it only multiplies and divides; else its name."""
    text = re.sub(
        r"\$?\{?([A-Za-z_]\w*)\}?",
        lambda name: variables.get(name[1], name[0]),
        found[1] or found[2] or "",
    )
    text = re.sub(r"\s*\\?([*/])\s*", r"\1", text.strip())
    if len(text) > MAX_DIGITS or not re.fullmatch(r"\d+([*/][1-9]\d*)*", text):
        return f"$({(re.findall(r'[A-Za-z_]+', found[0]) or ['command'])[0]})"
    number = 1
    for sign, other in re.findall(r"([*/]?)(\d+)", text):
        number = number // int(other) if sign == "/" else number * int(other)
    return str(number)


def _read_flags(reading: ForeignConfig, words: Sequence[str]) -> None:
    first = _until_flag(words)
    flags: dict[str, Any] = {
        key: value for key, mark, value in (word.partition("=") for word in first) if mark
    }
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        key, mark, value = word.partition("=")
        key, values = (
            key[2:].replace("-", "_"),
            [value] if mark else _until_flag(words[index + 1 :]),
        )
        if not values and key.startswith("no_"):
            flags[key.removeprefix("no_")] = False
        else:
            many = [each.removesuffix(",") for each in values]
            flags[key] = (values[0] if len(values) == 1 else many) if values else True
    files = [word for word in first if word.endswith(FILE_TYPES)]
    for name in (
        files[:1] or [str(flags.pop(key)) for key in ("config", "config_file") if key in flags][:1]
    ):
        if (keys := read_named(reading.path, name)) is None:
            raise ConfigError(
                Fault(
                    where=f"{reading.path}",
                    found=f"it reads {name}, which is not there",
                    expected="that file",
                    fix=f"import {name} itself",
                )
            )
        reading.keys = keys
    reading.keys |= flags


def _until_flag(words: Sequence[str]) -> list[str]:
    ends = ("|", ">", ">>", "2>&1", "&", "&&", ";", "1>")
    return list(takewhile(lambda word: not word.startswith("--") and word not in ends, words))
