"""Words of a command line that are no verb, key=value or flag of ours -> faults with the command that was meant."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.command import VERBS, CommandLine, table_of
from runner.config.dialect import SHARED, filled, read_sections
from runner.config.menu import Options
from runner.config.override import FOREIGN, is_local, option_fault
from runner.errors import ConfigError, Fault, fault
from runner.launch import axis, stages
from runner.run.read import is_run
from runner.schema.text import nearest

CALL = "python -m runner"
FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
# Words that are `key: value`, `key = value` or `key= value`, with a mark between words.
SPELT = re.compile(r"(?<![^\0])([A-Za-z_][\w.]*)(?:=\0(?=[^\0/]+(?:\0|\Z))|\0?:\0|\0[:=]\0?|:)(?=[^\0=/\\])")
CONFIG_FLAGS = ("config", "config_file", "config_name", "config_path")


def take_flags(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without flags, and the value of each flag that is none of ours, empty where it has none.

    >>> take_flags(["predict", "RUN", "--n", "4", "--lr=1e-5", "seed=1", "--push"])
    (['predict', 'RUN', 'seed=1'], {'n': '4', 'lr': '1e-5', 'push': ''})
    """
    plain: list[str] = []
    flags: dict[str, str] = {}
    waiting = ""  # the flag that the next word may belong to
    for word in words:
        if found := FLAG.fullmatch(word):
            waiting = found[1].replace("-", "_")
            flags[waiting] = found[2] or ""
        elif waiting and not flags[waiting] and "=" not in word and not is_run(Path(word)):
            flags[waiting] = word
        else:
            plain.append(word)
    return plain, flags


def find_word_faults(line: CommandLine, words: Sequence[str], menu: Options) -> Iterator[Fault]:
    """A fault for words that are a key=value together, or for those of a training that are none."""
    if (spelt := SPELT.sub(r"\1=", typed := "\0".join(words))) != typed:
        fix = f"{CALL} {shlex.join(spelt.split(chr(0)))}"
        yield Fault("command line", shlex.join(words), "key=value, in one word", fix)
    if line.verb != "train" or not line.runs or spelt != typed:
        return
    first, rest = line.runs[0], shlex.join([*line.runs[1:], *line.overrides])
    group = next((group for group in ("trainer", "experiment", *menu) if first.lower() in menu[group]), "")
    command = "report {word}" if is_run(Path(first)) else read_sections()[SHARED]["words"].get(first.lower(), "")
    written = sorted(Path("outputs").glob("*/*/status.json"), key=lambda path: path.stat().st_mtime)
    runs = line.runs[1:] or [*(str(path.parent) for path in written[-1:]), "outputs/NAME/RUN"][:1]
    meant = filled(command, {"word": first, "rest": rest, "runs": shlex.join([*runs, *line.overrides])})
    if not meant and first.lower() in menu:
        meant = f"options {first.lower()}"
    elif not meant and (group or is_local(first)):
        meant = f"{group}={first.lower()} {rest}" if group else f"dataset={first} {rest}"
    if first.endswith(FOREIGN):
        meant = option_fault("experiment", first, menu).fix
    elif not meant and (near := nearest(first, VERBS)):
        meant = f"{near[0]} {rest}"
    for word in line.runs[:1] if meant else line.runs:
        command = meant or [*nearest(word, VERBS), "--help"][0]
        expected = f"a verb ({', '.join(VERBS)}), key=value, or a flag"
        yield Fault("command line", repr(word), expected, f"{CALL} {command}".replace(f"{CALL} {CALL}", CALL).strip())


def find_sweep_faults(line: CommandLine) -> Iterator[Fault]:
    """A fault for several values where a verb takes one configuration, and for plugins of sweeps where none is."""
    plugins = [word for word in line.overrides if word.startswith((axis.LAUNCHER, axis.SWEEPER))]
    if plugins and line.verb == "train" and not line.multirun and axis.chosen_sweep(line.overrides) is None:
        typed = shlex.join(line.overrides)
        yield from (fault("command.plugin", key=word.partition("=")[0], word=word, words=typed) for word in plugins)
    swept = list(axis.axes(line.overrides)) if line.verb in ("preview", "why") else []
    if swept or (line.multirun and line.verb not in ("train", "rehearse")):
        words = axis.first_of(line.overrides) if swept else line.overrides
        typed = shlex.join([line.verb, *line.runs, *words])
        yield fault("command.several_values", swept=", ".join(swept) or "-m", verb=line.verb, words=typed)


def find_flag_faults(line: CommandLine, flags: Mapping[str, str], menu: Options) -> Iterator[Fault]:
    """A fault for each flag that is none: key=value if it is a key, else by the check of keys, with those of all."""
    examples, found = dict(re.findall(r"\b(\w+)=([^\s\]|]+)", table_of(line.verb)["help"])), list[Fault]()
    typed = {key: f"{key}={value or 'true'}" for key, value in flags.items() if key not in CONFIG_FLAGS}
    if typed and line.verb == "train":
        try:
            stages.compose_runs(axis.first_of([*line.overrides, *typed.values()]), line.folders)
        except ConfigError as error:
            found = error.faults
    for each in found:
        answer = replace(each, where=f"--{each.where}", fix=re.sub("^leave .*", f"{CALL} --help", each.fix))
        yield answer if each.where in flags else each
    for key, value in flags.items():
        names = [key, *nearest(key, examples)] if key in examples else nearest(key, examples)
        if key in CONFIG_FLAGS and value and Path(value).is_dir():
            yield fault("command.other_flag", flag=key, folder=shlex.quote(value))
        elif key in CONFIG_FLAGS:
            yield option_fault("experiment", value, menu)
        elif line.verb != "train":
            fix = f"{names[0]}={value or examples[names[0]]}" if names else f"{CALL} {line.verb} --help"
            yield Fault(f"--{key}", "a flag, and there is no such", f"key=value: {', '.join(examples)}", fix)
        elif not any(each.where.endswith(key) for each in found):
            yield Fault(f"--{key}", "a flag, and there is no such", "key=value", typed[key])
