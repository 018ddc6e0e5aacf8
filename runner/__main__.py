"""The entry point: which verb, which words, and the exit code. No torch here.

    python -m runner [VERB] [RUN ...] [key=value ...] [-m] [--dry-run] [--debug] [--config-dir DIR]

Without a verb it trains. Exit codes are those of ``errors``.
"""

import argparse
import gc
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from runner.command import VERBS, CommandLine, options_of, table_of
from runner.command.options import help_text, version_text
from runner.config import as_yaml, call_hydra
from runner.config.batch import MADE
from runner.config.dialect import SHARED, filled, read_sections
from runner.config.menu import Options, read_menu
from runner.config.override import FOREIGN, dotted_key, expand, is_local, latest, option_fault, parse
from runner.config.user_folder import add_working_folder
from runner.errors import ConfigError, EnvironmentFault, Fault, RunnerError, describe, fault, find_process_limit
from runner.io.secrets import hidden
from runner.io.terminal import copied_output, print_error, print_uncaught
from runner.launch import axis, stages
from runner.run.key import folder_of
from runner.run.read import is_run
from runner.schema.text import nearest, select

# Flags with which Hydra only prints something; others of that kind take a value.
PRINTING = (("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--shell-completion", "-sc"))
CALL = "python -m runner"
FLAG = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
# Words that are `key: value`, `key = value` or `key= value`, with a mark between words.
SPELT = re.compile(r"(?<![^\0])([A-Za-z_][\w.]*)(?:=\0(?=[^\0/]+(?:\0|\Z))|\0?:\0|\0[:=]\0?|:)(?=[^\0=/\\])")
OF_ROWS = ("dataset", "metric", "reward", "quant")  # groups that verbs of a trained model take
TEMPORARY = re.compile(
    r"""(?:^|(?<=[/'"]))\.([^/'"]+)\.[0-9a-f]{16}(?=$|['"])"""
)  # the name of a file before it is whole
CONFIG_FLAGS = ("config", "config_file", "config_name", "config_path")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    sys.excepthook = print_uncaught
    try:
        add_working_folder()
        line = read_command_line(words)
        if shown := {"--help", "--version"} & {*line.inspect}:
            print(help_text(line.verb, line.folders) if "--help" in shown else version_text())
            return 0
        if line.inspect:
            return _inspect(line)
        from runner.launch import worker  # of which, as of what follows, a command that only shows does without

        if line.verb != "train":
            from runner.validate.start import find_variable_faults

            worker.prepare_environment()
            if line.verb in ("predict", "evaluate", "export", "rehearse", "preview", "reproduce"):
                EnvironmentFault.refuse(find_variable_faults())
            return import_module(f"runner.command.{line.verb}").main(line)
        how = {"dry_run": line.dry_run, "debug": line.debug}
        if line.multirun or axis.chosen_sweep(line.overrides) is not None:
            from runner.launch.start import start_sweep

            return start_sweep(line.overrides, line.folders, import_module("runner.command.report").report, **how)
        with worker.handle_signals(worker.Stop()), copied_output():  # nothing is to be saved before the worker begins
            runs = stages.compose_runs(line.overrides, line.folders)
            from runner.launch.start import start_runs

            return start_runs(runs, **how)
    except RunnerError as error:
        print_error(hidden(traceback.format_exc()) if "--debug" in words else error)
        return error.code
    except BrokenPipeError:  # whoever read along has seen enough
        return 0
    except OSError as error:
        if "--debug" in words:
            raise
        if word := _find_typed_place(words, error):
            key, _, place = word.partition("=")
            in_the_way = os.fsdecode(error.filename)
            blocked = in_the_way if os.path.lexists(in_the_way) else place
            found = f"{blocked}: {error.strerror or describe(error)}"
            refusal = Fault(key, found, "a place that can be written, or read", f"{key}=<another place>")
            print_error(EnvironmentFault(refusal))
            return EnvironmentFault.code
        where = TEMPORARY.sub(r"\1", str(error.filename2 or error.filename or "system"))
        there = next((path for path in (Path(where), *Path(where).parents) if os.path.lexists(path)), where)
        fix = f"ls -ld {shlex.quote(str(there))}  (shows what is there)"
        fix = fix if error.filename else "the same words with --debug"
        found = TEMPORARY.sub(r"\1", describe(error))
        print_error(EnvironmentFault(fault("command.system", where=where, error=found, fix=fix)))
        return EnvironmentFault.code
    except (MemoryError, RuntimeError, ImportError) as error:
        limit = find_process_limit(error)
        if limit is None or "--debug" in words:
            raise
        print_error(EnvironmentFault(limit))
        return EnvironmentFault.code
    except KeyboardInterrupt:  # between two runs, where no worker listens
        return 130
    finally:
        try:
            if sys.stdout is not None and not sys.stdout.closed:  # by a shell, or by code of the user's
                sys.stdout.flush()
        except BrokenPipeError:  # of which Python would complain when it leaves
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _find_typed_place(words: Sequence[str], error: OSError) -> str:
    """The word of a command line that names the file of an error, or what is around or beside it; empty for none."""
    if not isinstance(error.filename, str | bytes):
        return ""
    file = Path(os.fsdecode(error.filename)).absolute()
    for word in words:
        value = word.partition("=")[2]
        place = Path(value).absolute()
        is_beside = place.parent == file.parent and place.stem in file.name  # as a temporary file is, or a lock
        if value and (is_beside or place in (file, *file.parents) or file in place.parents):
            return word
    return ""


def read_command_line(words: Sequence[str]) -> CommandLine:
    """Sort the words; an unknown verb or flag is a ConfigError that offers the nearest known one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (("-m", "--multirun"), ("--dry-run",), ("--debug",)):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--config-dir", "-cd", action="append", type=Path, default=[], dest="folders")
    for names in PRINTING:
        parser.add_argument(*names, action="append_const", const=names[0], default=[], dest="inspect")
    shown = [f"--cfg={each}" for each in ("job", "hydra", "all")]
    parser.add_argument("--cfg", "-c", action="append", type="--cfg={}".format, dest="inspect", choices=shown)
    parser.add_argument("--package", "-p", action="append", type="--package={}".format, dest="inspect")
    kinds = [f"--info={each}" for each in ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")]
    info = parser.add_argument("--info", "-i", nargs="?", const="all", action="append", dest="inspect", choices=kinds)
    info.type = "--info={}".format
    try:
        known, rest = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ConfigError(fault("command.odd_flag", error=error)) from None
    menu, (rest, flags) = read_menu(known.folders), take_flags(rest)
    overrides = [word for word in rest if "=" in word or word.startswith("~")]
    plain = [word for word in rest if "=" not in word and not word.startswith("~")]
    verb = plain.pop(0) if plain and plain[0] in VERBS else "train"
    line = CommandLine(verb, expand(overrides, menu), plain, **vars(known))
    faults = list(find_word_faults(line, rest, menu)) or list(find_sweep_faults(line))
    faults += [fault("command.no_config_folder", folder=folder) for folder in known.folders if not folder.is_dir()]
    ConfigError.refuse(faults + list(find_flag_faults(line, flags, menu) if flags else ()))
    return line


def _inspect(line: CommandLine) -> int:
    """Print the configuration or the help, as Hydra does it, after the same check of the keys; of stages, each."""
    parse(line.overrides)  # of which Hydra would raise
    shows_config = any(flag.startswith("--cfg=") for flag in line.inspect)
    runs = stages.compose_runs(line.overrides, line.folders) if shows_config and not line.multirun else []
    try:
        for composed in runs:
            if composed.stage:
                print(f"# stage {composed.stage}: {folder_of(composed.cfg, composed.overrides)}", flush=True)
            more = ["model=hub"] if composed.note else []  # Hydra alone would leave the name open
            more += [f"{name}={select(composed.cfg, name)}" for name in MADE if composed.cfg.get("batch")]
            words = latest([f"name={composed.cfg['name']!r}", *(composed.words or line.overrides), *more])
            if line.inspect == ["--cfg=job"]:  # without composing it once more
                print(as_yaml(words, line.folders), end="")
            else:
                call_hydra(lambda cfg: None, line.inspect, words, line.folders)
        if not runs:
            call_hydra(lambda cfg: None, line.inspect, line.overrides, line.folders)
    except SystemExit as ended:  # how Hydra leaves after its help
        return int(ended.code or 0)
    return 0


# --- Words that are no verb, key=value or flag of ours: faults, with the command that was meant ----------
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
        yield fault("command.split_words", typed=shlex.join(words), meant=shlex.join(spelt.split("\0")))
    if line.verb != "train" or not line.runs or spelt != typed:
        return
    first, rest = line.runs[0], shlex.join([*line.runs[1:], *line.overrides])
    group = next((group for group in ("trainer", "experiment", *menu) if first.lower() in menu[group]), "")
    command = "report {word}" if is_run(Path(first)) else read_sections()[SHARED]["words"].get(first.lower(), "")
    runs, listing = _find_meant_runs(line.runs[1:]), ""
    if command.startswith(f"{CALL}.launch") and not runs:
        listing = "report  (lists the runs; the words that began one go on with it)"
    runs = runs or line.runs[1:] or ["outputs/NAME/RUN"]
    taken = options_of(command.partition(" ")[0]) if command.partition(" ")[0] in VERBS else {}
    kept = [word for word in line.overrides if dotted_key(word).partition(".")[0] in (*taken, *OF_ROWS)]
    words = shlex.join([*runs, *(kept if taken else ())])
    meant = listing or filled(command, {"word": first, "rest": rest, "runs": words})
    if not meant and first.lower() in menu:
        meant = f"options {first.lower()}"
    elif not meant and (group or is_local(first)):
        meant = f"{group}={first.lower()} {rest}" if group else f"dataset={first} {rest}"
    if dashed := re.fullmatch(r"[\u2010-\u2015\u2212]+(\w[\w-]*)", first):  # which editors make of two hyphens
        flag = f"--{dashed[1]}" if len(dashed[1]) > 1 else f"-{dashed[1]}"
        meant = shlex.join([*line.overrides, *line.runs[1:], flag])
    elif first.endswith(FOREIGN):
        meant = option_fault("experiment", first, menu).fix
    elif not meant and (near := nearest(first, VERBS)):
        meant = f"{near[0]} {rest}"
    for word in line.runs[:1] if meant else line.runs:
        command = meant or [*nearest(word, VERBS), "--help"][0]
        expected = f"a verb ({', '.join(VERBS)}), key=value, or a flag"
        yield Fault("command line", repr(word), expected, f"{CALL} {command}".replace(f"{CALL} {CALL}", CALL).strip())


def _find_meant_runs(folders: Sequence[str]) -> list[str]:
    """The runs that some words name, of a folder of runs the newest; without words the newest of all."""
    found = []
    for folder in folders or ["outputs/*"]:
        if is_run(Path(folder)):
            found.append(folder)
            continue
        inside = list(Path().glob(f"{folder}/*/status.json")) if not Path(folder).is_absolute() else []
        newest = max(inside, key=lambda path: path.stat().st_mtime, default=None)
        found += [str(newest.parent)] if newest else []
    return found


def find_sweep_faults(line: CommandLine) -> Iterator[Fault]:
    """A fault for several values where a verb takes one configuration, and for plugins of sweeps where none is."""
    plugins = [word for word in line.overrides if word.startswith((axis.LAUNCHER, axis.SWEEPER))]
    if plugins and line.verb == "train" and not line.multirun and axis.chosen_sweep(line.overrides) is None:
        typed = shlex.join(line.overrides)
        yield from (fault("command.plugin", key=word.partition("=")[0], word=word, words=typed) for word in plugins)
    swept = list(axis.axes(line.overrides)) if line.verb in ("preview", "why") else []
    if swept or (line.multirun and line.verb not in ("train", "rehearse")):
        typed = shlex.join([line.verb, *line.runs, *(axis.first_of(line.overrides) if swept else line.overrides)])
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
        names = nearest(key, examples)
        if key in CONFIG_FLAGS and value and Path(value).is_dir():
            yield fault("command.other_flag", flag=key, folder=shlex.quote(value))
        elif key in CONFIG_FLAGS:
            yield option_fault("experiment", value, menu)
        elif line.verb != "train":
            fix = f"{names[0]}={value or examples[names[0]]}" if names else f"{CALL} {line.verb} --help"
            yield Fault(f"--{key}", "a flag, and there is no such", f"key=value: {', '.join(examples)}", fix)
        elif not any(each.where.endswith(key) for each in found):
            yield Fault(f"--{key}", "a flag, and there is no such", "key=value", typed[key])


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    code = main()
    gc.freeze()  # Python would look through all of it for garbage before it ends: a fifth of a short command's time
    sys.exit(code)
