"""The words of a command line, sorted; a word that is no verb, key=value or flag is a fault.

Each of these faults says which command was meant.
"""

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.command import CFG, OF_ROWS, PRINTING, VERBS, CommandLine
from runner.command._help import help_text
from runner.command._option import options_of
from runner.config.choice import A_FILE, option_fault
from runner.config.dialect import filled, meant_command
from runner.config.menu import Options, read_menu
from runner.config.override import (
    dotted_key,
    expand,
    is_experiment_file,
    is_local,
)
from runner.config.working_folder import searched_folders
from runner.errors import ConfigError, Fault
from runner.io.filetype import ROW_ENDINGS, TRAINING_FILES
from runner.launch.compose import stages, sweep_axes
from runner.run.find import is_run
from runner.schema.did_you_mean import best_guess, join_pairs, to_flag

INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
CALL = "python -m runner"
FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
CONFIG_FLAGS = ("config", "config_file", "config_name", "config_path")  # of other tools
COMPOSING = ("train", "preview", "rehearse", "why")  # verbs that take the file of an experiment
NO_FLAG = "an unknown flag"


def read_command_line(words: Sequence[str]) -> CommandLine:
    """The words, sorted; ConfigError for an unknown verb or flag, with the nearest known one."""
    try:
        known, others = _flag_parser().parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(
            Fault(
                where="command line",
                found=str(error),
                expected="a flag with its value",
                fix="python -m runner --help",
            )
        ) from None
    has_typed_folder = bool(known.folders)
    known.folders = searched_folders(known.folders)
    menu = read_menu(known.folders)
    plain, flags = take_flags(others)
    overrides = [word for word in plain if "=" in word or word.startswith("~")]
    runs = [word for word in plain if word not in overrides]
    verb = runs.pop(0) if runs and runs[0] in VERBS else "train"
    if verb in COMPOSING:
        files = _take_files(runs, flags, menu)
        ConfigError.refuse(_find_file_faults(verb, files, overrides))
        overrides = [*(f"experiment={file}" for file in files), *overrides]
    expanded = expand(overrides, menu)
    notes = []
    if verb in COMPOSING and "experiment" in map(dotted_key, expanded):
        # It imports the importers, which a command without such a file need not wait for.
        from runner.command._foreign_files import translate_files

        notes = translate_files(expanded)
    if known.folders and not has_typed_folder:
        folder = known.folders[0]
        notes.insert(0, f"conf      {folder}/ here is used; --config-dir none leaves it out")
    line = CommandLine(verb, expanded, runs, notes=notes, **vars(known))
    faults = list(find_word_faults(line, plain, menu)) or list(find_sweep_faults(line))
    for folder in known.folders:
        if not folder.is_dir():
            faults.append(
                Fault(
                    where="--config-dir",
                    found=f"{folder} is not a folder",
                    expected="a folder of config groups",
                    fix="--config-dir <folder>",
                )
            )
    if flags:
        faults.extend(find_flag_faults(line, flags, menu))
    ConfigError.refuse(faults)
    return line


def _take_files(runs: list[str], flags: dict[str, str], menu: Options) -> list[str]:
    """The files of experiments among the words and behind the flags, which lose them."""
    files = []
    for word in runs:
        group = Path(word).parent.name
        if is_experiment_file(word) and (group == "experiment" or group not in menu):
            files.append(word)
    for file in files:
        runs.remove(file)
    for name in CONFIG_FLAGS:
        if is_experiment_file(flags.get(name, "")):
            files.append(flags.pop(name))
    return files


def _find_file_faults(verb: str, files: Sequence[str], overrides: Sequence[str]) -> Iterator[Fault]:
    """A fault for several experiments, where at least one of them is a file."""
    names = list(files)
    for word in overrides:
        if dotted_key(word) == "experiment":
            names.append(word.partition("=")[2])
    if not files or len(names) == 1:
        return
    fix = f"{CALL} {shlex.join([verb, names[0]])}"
    if verb in ("train", "rehearse"):
        joined = shlex.quote(f"experiment={','.join(names)}")
        fix = f"{CALL} {verb} -m {joined}  (each by itself)"
    yield Fault(
        where="command line",
        found=" and ".join(names),
        expected="one experiment",
        fix=fix.replace(f"{CALL} train ", f"{CALL} "),
    )


def _flag_parser() -> argparse.ArgumentParser:
    """The parser of our flags, and of those for Hydra alone, each of which becomes one word."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (("-m", "--multirun"), ("--dry-run",), ("--debug",)):
        parser.add_argument(*names, action="store_true")
    parser.add_argument(
        "--config-dir", "-cd", action="append", type=Path, default=[], dest="folders"
    )
    for names in PRINTING:
        parser.add_argument(
            *names, action="append_const", const=names[0], default=[], dest="inspect"
        )
    parser.add_argument(
        "--cfg",
        "-c",
        action="append",
        type="--cfg={}".format,
        dest="inspect",
        choices=[f"--cfg={part}" for part in CFG],
    )
    parser.add_argument(
        "--package", "-p", action="append", type="--package={}".format, dest="inspect"
    )
    parser.add_argument(
        "--info",
        "-i",
        nargs="?",
        const="all",
        action="append",
        type="--info={}".format,
        dest="inspect",
        choices=[f"--info={part}" for part in INFO],
    )
    return parser


def take_flags(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words without flags, and the value of each flag that is not ours, empty without one.

    >>> take_flags(["predict", "RUN", "--n", "4", "--lr=1e-5", "seed=1", "--push"])
    (['predict', 'RUN', 'seed=1'], {'n': '4', 'lr': '1e-5', 'push': ''})
    """
    plain: list[str] = []
    flags: dict[str, str] = {}
    waiting = ""  # the flag that the next word may belong to
    for word in words:
        flag = FLAG.fullmatch(word)
        if flag:
            waiting = flag[1].replace("-", "_")
            flags[waiting] = flag[2] or ""
        elif waiting and not flags[waiting] and "=" not in word and not is_run(Path(word)):
            flags[waiting] = word
        else:
            plain.append(word)
    return plain, flags


# --- Words ----------------------------------------------------------------------------------------
def find_word_faults(line: CommandLine, words: Sequence[str], menu: Options) -> Iterator[Fault]:
    """A fault for words that are one key=value together; else one for stray words of a training."""
    meant_words = join_pairs(words)
    if meant_words != list(words):
        yield Fault(
            where="command line",
            found=shlex.join(words),
            expected="key=value, in one word",
            fix=f"{CALL} {shlex.join(meant_words)}",
        )
        return
    if line.verb != "train" or not line.runs:
        return
    first = line.runs[0]
    has_rows = first.endswith(ROW_ENDINGS) and Path(first).is_file()
    if first.endswith(TRAINING_FILES) and not has_rows:
        fault = option_fault("experiment", first, menu)
        yield replace(fault, where="command line", fix=f"{CALL} {fault.fix}")
        return
    meant = _meant_command(line, menu)
    # The command that was meant explains all of the words.
    stray_words = line.runs[:1] if meant else line.runs
    for word in stray_words:
        command = meant or best_guess(word, VERBS, "--help")
        if not command.startswith(CALL):
            command = f"{CALL} {command}"
        yield Fault(
            where="command line",
            found=repr(word),
            expected=f"a verb ({', '.join(VERBS)}), key=value, or a flag",
            fix=command.strip(),
        )


def _meant_command(line: CommandLine, menu: Options) -> str:
    """The command that was meant by words of which the first is no verb; empty for no guess."""
    first = line.runs[0]
    flag = to_flag(first)
    if flag:
        return shlex.join([*line.overrides, *line.runs[1:], flag])
    rest = shlex.join([*line.runs[1:], *line.overrides])
    command = _meant_verb(line, rest)
    if command:
        return command
    name = first.lower()
    if name in menu:
        return f"options {name}"
    for group in ("trainer", "experiment", *menu):
        if name in menu[group]:
            return f"{group}={name} {rest}"
    if is_local(first):
        return f"dataset={first} {rest}"
    verb = best_guess(first, VERBS)
    return f"{verb} {rest}" if verb else ""


def _meant_verb(line: CommandLine, rest: str) -> str:
    """The command for another tool's word for one of our verbs, or for a run; else empty."""
    first = line.runs[0]
    command = meant_command(first)
    if is_run(Path(first)):
        command = "report {word}"
    if not command:
        return ""
    runs = _find_meant_runs(line.runs[1:])
    if command.startswith(f"{CALL}.launch") and not runs:
        return "report  (lists the runs; the words that began one continue it)"
    words = runs or line.runs[1:] or ["outputs/NAME/RUN"]
    verb = command.partition(" ")[0]
    options = options_of(verb) if verb in VERBS else {}
    if options:
        for word in line.overrides:
            name = dotted_key(word).partition(".")[0]
            if name in options or name in OF_ROWS:
                words = [*words, word]
    text: str = filled(command, {"word": first, "rest": rest, "runs": shlex.join(words)})
    return text


def _find_meant_runs(folders: Sequence[str]) -> list[str]:
    """The runs that some words name; for a folder of runs, and without any words, the newest."""
    runs = []
    for folder in folders or ["outputs/*"]:
        if is_run(Path(folder)):
            runs.append(folder)
        # An empty word is a variable of the shell that is not set.
        elif folder and not Path(folder).is_absolute():
            files = list(Path().glob(f"{folder}/*/status.json"))
            if files:
                newest = max(files, key=lambda file: file.stat().st_mtime)
                runs.append(str(newest.parent))
    return runs


def find_sweep_faults(line: CommandLine) -> Iterator[Fault]:
    """A fault for several values where a verb takes one configuration, and for useless plugins."""
    prefixes = (sweep_axes.LAUNCHER, sweep_axes.SWEEPER)
    plugins = [word for word in line.overrides if word.startswith(prefixes)]
    # Words of other verbs, such as where=state=failed, are not Hydra's.
    if plugins and line.verb == "train" and not line.multirun:
        if sweep_axes.chosen_sweep(line.overrides) is None:
            for word in plugins:
                yield Fault(
                    where=word.partition("=")[0],
                    found=word,
                    expected="a sweep, to whose jobs it applies",
                    fix=f"{CALL} -m {shlex.join(line.overrides)}",
                )
    swept: list[str] = []
    if line.verb in ("preview", "why"):
        swept = list(sweep_axes.axes(line.overrides))
    if swept or (line.multirun and line.verb not in ("train", "rehearse")):
        overrides = sweep_axes.first_of(line.overrides) if swept else line.overrides
        yield Fault(
            where="command line",
            found=f"several values: {', '.join(swept) or '-m'}",
            expected=f"one configuration to {line.verb}",
            fix=f"{CALL} {shlex.join([line.verb, *line.runs, *overrides])}",
        )


# --- Flags ----------------------------------------------------------------------------------------
def find_flag_faults(line: CommandLine, flags: Mapping[str, str], menu: Options) -> Iterator[Fault]:
    """A fault for each flag that is not ours.

    For a training, the check of keys says what is meant by each of them as a key.
    """
    typed = {}
    for name, value in flags.items():
        if name not in CONFIG_FLAGS:
            typed[name] = f"{name}={value or 'true'}"
    faults: list[Fault] = []
    if typed and line.verb == "train":
        faults = _check_keys(line, list(typed.values()))
    for fault in faults:
        if fault.where in flags:
            fix = re.sub("^leave .*", f"{CALL} --help", fault.fix)
            fault = replace(fault, where=f"--{fault.where}", fix=fix)
        yield fault
    for name, value in flags.items():
        if name in CONFIG_FLAGS:
            yield _config_flag_fault(name, value, menu)
        elif line.verb != "train":
            yield _verb_flag_fault(line.verb, name, value)
        elif not any(fault.where.endswith(name) for fault in faults):
            yield Fault(
                where=f"--{name}",
                found=NO_FLAG,
                expected="key=value",
                fix=typed[name],
            )


def _check_keys(line: CommandLine, words: list[str]) -> list[Fault]:
    """The faults of a training with some more words, of a sweep those of its first job."""
    try:
        stages.compose_runs(sweep_axes.first_of([*line.overrides, *words]), line.folders)
    except ConfigError as error:
        return error.faults
    return []


def _config_flag_fault(name: str, value: str, menu: Options) -> Fault:
    """The fault of a flag with which other tools take a configuration."""
    if value and not Path(value).is_dir():
        return option_fault("experiment", value, menu)
    fix = f"experiment={A_FILE}"
    if value:
        fix = f"--config-dir {shlex.quote(value)}"
    return Fault(
        where=f"--{name}",
        found=f"{value} is a folder" if value else "no file",
        expected="the file of an experiment, or --config-dir and a folder of groups",
        fix=fix,
    )


def _verb_flag_fault(verb: str, name: str, value: str) -> Fault:
    """The fault of a flag of a verb, whose options are key=value."""
    examples = dict(re.findall(r"\b(\w+)=([^\s\]|]+)", help_text(verb)))
    similar = best_guess(name, examples)
    fix = f"{CALL} {verb} --help"
    if similar:
        fix = f"{similar}={value or examples[similar]}"
    return Fault(
        where=f"--{name}",
        found=NO_FLAG,
        expected=f"key=value: {', '.join(examples)}",
        fix=fix,
    )
