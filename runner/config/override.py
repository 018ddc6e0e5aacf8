"""Overrides of a command line: parsed, quoted and forced as Hydra needs them, and the faults of what they choose."""

import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.dialect import find_meanings
from runner.config.menu import GROUPS, SEVERAL, Options, takes_one
from runner.errors import ConfigError, Fault
from runner.io.files import HUB_NAME
from runner.io.secrets import form_of
from runner.schema.read import read_signature
from runner.schema.source import public_names
from runner.schema.text import as_typed, files_beside, flatten, nearest, to_override, to_text

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

# Hydra's own settings that may be typed.
OF_HYDRA = re.compile(r"hydra/(launcher|sweeper)(/\w+)*|hydra\.(launcher|sweeper)(\.\w+)*|hydra\.(mode|verbose)")
HELD = ("dataset", "model")  # groups of what lies in a file or folder, or on the hub
OF_TEXTS = re.compile(r"(s|allow|without|matching|report_to)$")  # keys that may hold a list of texts
# An element of a list or a value of a mapping, and a key of one, with letters beyond ASCII, or marks as of <tokens>.
BEYOND_ASCII = re.compile(
    r"""(?<=[\[,:])\s*([^\[\]{}:,'"()=$\x00-\x1f]*[<>\x80-\U0010ffff][^\[\]{}:,'"()=$\x00-\x1f]*)(?=[,\]}])"""
)
MAX_JOBS = 100_000  # of a sweep: planning takes a ms a job, and more than this is a slip of the hand
MAX_VALUES = 100  # of a key where no sweep was meant
MAX_LETTERS = 300  # of a word that a fault repeats
FOREIGN = (".yaml", ".yml", ".json", ".sh")  # files of another tool's configuration
ROWS = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".gz")  # files of rows


def dotted_key(override: str) -> str:
    """The dotted key, or group, of an override."""
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def typed_keys(overrides: Iterable[str]) -> set[str]:
    """The dotted keys, and groups, of overrides; of a mapping also those inside."""
    keys = set()
    for word in overrides:
        keys.add(key := dotted_key(word))
        if "={" in word:
            (parsed,) = parse([word])
            if isinstance(value := parsed.value(), dict):
                keys |= {f"{key}.{inner}" for inner in flatten(value)}
    return keys


def force(overrides: Sequence[str], menu: Options) -> list[str]:
    """The same overrides, each ``key=value`` as ``++key=value``, so that Hydra accepts every key.

    Hydra stops at the first key that no YAML names, as most TRL fields are; the check that follows reports all faults.
    A part that is typed as the only one of its group takes the place of those that a dataset brings.
    """
    typed = {dotted_key(override) for override in overrides}
    alone = [f"{group}=none" for group in SEVERAL if f"{group}._target_" in typed and group not in typed]
    keys = {each: dotted_key(each) for each in overrides if "=" in each and not each.startswith("~")}
    valued = {each for each, key in keys.items() if key not in menu and not key.startswith(("hydra/", "hydra."))}
    return alone + [f"++{each.lstrip('+')}" if each in valued else each for each in overrides]


def quote_text(word: str) -> str:
    """A word as Hydra takes it: a slice of rows or a file's name may need quotes, which the shell has taken away.

    A value that looks like a list, a mapping, a function or several values is left as it is, but for what stands in a
    list or a mapping in letters that Hydra's grammar does not know.

    >>> quote_text("dataset.split.train=train[:500]"), quote_text("dataset.path=~/rows.csv"), quote_text("allow=[a]")
    ("dataset.split.train='train[:500]'", "dataset.path='~/rows.csv'", 'allow=[a]')
    >>> quote_text("metric.exact.on=[a,é b]"), quote_text("model.tokenizer.pad_token=[PAD]")
    ("metric.exact.on=[a,'é b']", "model.tokenizer.pad_token='[PAD]'")
    """
    key, _, value = word.partition("=")
    if key.endswith("_token") and value[:1] == "[":
        return f"{key}='{value}'"
    if value[:1] in ("[", "{"):
        return "=".join([key, BEYOND_ASCII.sub(r"'\1'", value)])
    plain = re.fullmatch(r"""[^\[{("',=$][^{}"',=$]*""", value) and not re.fullmatch(r"\w+\(.*\)", value)
    paired = all(value.count(first) == value.count(last) for first, last in ("()", "[]"))
    special = re.search(r"^~|[()\[\]<>]|[^\x00-\x7f]", value)
    return f"{key}='{value}'" if plain and paired and special and value.isprintable() else word


def expand(words: Sequence[str], menu: Options) -> list[str]:
    """The words as Hydra takes them, each key once, of which ``dataset=rows.jsonl`` becomes the option with its path.

    >>> expand(["seed=1", "dataset=rows.jsonl", "model=org/a,org/b", "peft=lora", "seed=2"], {})
    ['dataset=local', 'dataset.path=rows.jsonl', 'model=hub', 'model.path=org/a,org/b', 'peft=lora', 'seed=2']
    """
    expanded: list[str] = []
    for word in latest(words):
        key, _, value = word.partition("=")
        if rules := re.fullmatch(r"weight=\[(\w+(?:,\s*\w+)*)\]", word):  # each under its name, and they multiply
            expanded += [f"+weight@weight.{rule.strip()}={rule.strip()}" for rule in rules[1].split(",")]
            continue
        found = [find_place(key, name, menu) for name in value.split(",")]
        (option, *others), path = {option for option, _ in found}, ",".join(path for _, path in found)
        is_place = option and not others
        expanded += [f"{key}={option}", f"{key}.path={path}"] if is_place else [word.replace(f"={value}", f"={path}")]
    return list(map(quote_text, latest(expanded)))


def find_place(key: str, name: str, menu: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The option for what is no option but a file, a folder, a run or a name on the hub, and its path; else empty."""
    place, (stage, _, group) = os.path.expanduser(name), key.rpartition(".")
    is_run = os.path.isdir(f"{place}/model") and os.path.isfile(f"{place}/config.yaml")
    if is_run and re.search(r"(^|(?<!dataset)[._])(path|model)$", key):
        name = f"{name.rstrip('/')}/model"
    if group not in HELD or stage in menu or "." in stage or name in ("", *menu.get(group, ())) or name[0] in "['\"$":
        return "", name
    if group == "dataset" and (is_local(name) or os.path.exists(place)):
        return "local", name
    return "hub" if "/" in name or (group == "model" and os.path.isdir(place)) else "", name


def is_local(path: str) -> bool:
    """True for a path of this machine, or of another store, as against a name on the hub."""
    return path.endswith(ROWS) or path.startswith((".", "/", "~")) or "*" in path or "://" in path


def latest(overrides: Sequence[str]) -> list[str]:
    """The overrides with each key once, as it was given last; mappings of one key are merged, as those of files are.

    >>> latest(["seed=1", "model.config={a: 1},{a: 2}", "seed=2", "model.config={b: 3}"])
    ['seed=2', 'model.config={a:1,b:3},{a:2,b:3}']
    """
    last: dict[str, str] = {}
    for override in reversed(overrides):
        key = override.lstrip("+~").partition("=")[0]
        if key not in last:
            last[key] = override
        elif "={" in override and "={" in last[key]:
            last[key] = _merge_mappings(override, last[key])
    return list(reversed(last.values()))


def _merge_mappings(first: str, second: str) -> str:
    """One word for two that give mappings to a key, of a sweep in all combinations; the second where one is none."""
    listed = [_read_mappings(word) for word in (first, second)]
    if not all(listed) or math.prod(map(len, listed)) > MAX_JOBS:
        return second
    merged = [_merge(one, other) for one in listed[0] for other in listed[1]]
    return f"{second.partition('=')[0]}={','.join(map(to_text, merged))}"


def _read_mappings(word: str) -> list[dict[str, Any]]:
    """The mappings that a word gives to its key, one or those of a sweep; none where it gives anything else."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        (read,) = parser.parse_overrides([word])
        texts = list(read.sweep_string_iterator()) if read.is_choice_sweep() else [word.partition("=")[2]]
        values = [parser.parse_override(f"key={text}").value() for text in texts]
    except (HydraException, ValueError, RecursionError, ArithmeticError):  # which ``parse`` tells
        return []
    mappings = [value for value in values if isinstance(value, dict)]
    return mappings if len(mappings) == len(values) else []


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        is_inner = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if is_inner else value
    return merged


def parse(overrides: Iterable[str]) -> "list[Override]":
    """Each override as Hydra reads it; ConfigError with a fault for each that it cannot read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed, faults = OverridesParser.create(), [], []
    for override in overrides:
        try:
            (read,) = parser.parse_overrides([override])
            parsed.append(read)
            trouble = "" if read.key_or_group else "no key before the equals sign"
            if read.is_discrete_sweep():
                count_values(read)
            trouble = trouble or refused(read.key_or_group) or refused(read.package or "")
            if not trouble and read.is_hydra_override() and (form := form_of(override)):
                trouble = f"looks like {form}, which Hydra would write down"
        except (HydraException, ValueError, RecursionError, ArithmeticError) as error:  # such as a number without end
            trouble = str(error).splitlines()[0].partition(" expecting ")[0]
            trouble = trouble.replace("mismatched input '<EOF>'", "it ends too early")
        if trouble:
            found = f"{_short(override)!r}: {_short(trouble)}"
            faults.append(Fault("command line", found, "key=value", _respelt(override[: MAX_LETTERS + 1])))
    ConfigError.refuse(faults)
    return parsed


def count_values(override: "Override") -> int:
    """The number of values of a sweep's key, of a range without listing them; raises ValueError where nobody can."""
    from hydra.core.override_parser.types import Glob, RangeSweep

    if isinstance(span := override.value(), Glob):
        raise ValueError("the runner reads names and no glob()")
    if not isinstance(span, RangeSweep):
        return len(list(override.sweep_string_iterator()))
    if not span.step or not math.isfinite(span.start + span.stop + span.step):
        raise ValueError("a range with a step of 0, or without an end")
    count = max(0, math.ceil((float(span.stop) - float(span.start)) / float(span.step)))
    if span.shuffle and count > MAX_JOBS:
        raise ValueError(f"{count:,} values to shuffle")
    return count


def _respelt(word: str) -> str:
    """The words for one that Hydra does not take: without blanks, several, closed, in quotes, or of a key of ours."""
    key, _, value = word.strip().partition("=")
    if meaning := next(find_meanings(key, value), None) if refused(key) else None:
        return as_typed(meaning.words)
    if len(word) > MAX_LETTERS or refused(key):
        return f"leave {key[:MAX_LETTERS] or 'it'} out"
    seen = "".join(letter for letter in word if letter.isprintable() or letter.isspace())
    pieces = re.split(r"\s+(?=[\w./@]+\s*=)", seen.strip())
    plain = [re.sub(r"\s*=\s*", "=", piece, count=1) for piece in pieces]
    closed = plain[-1].rstrip(",;")
    for first, last in ("[]", "{}"):
        lacking = closed.count(first) - closed.count(last)
        if f"={first}" in closed and lacking > 0:
            closed += last * lacking
    candidates = [plain, [*plain[:-1], closed]]
    key, _, value = seen.strip().partition("=")
    key, value = key.strip(), value.strip()
    if key == "name":
        candidates = [[f"name={re.sub(r'[^A-Za-z0-9_.-]+', '-', value).strip('-.') or 'mine'}"]]
    for words in candidates:
        if all(map(_is_readable, words)):
            return shlex.join(words)
    if value[:1] == "{":
        return f"{key} in a file of --config-dir, where a name may have any letters; Hydra's grammar knows few"
    quoted = f"{key}={to_text(value)}"
    is_key = re.fullmatch(r"[\w/@-]+(\.[\w/@-]+)*", key)
    is_call = re.match(r"\w+\(", value)
    return to_override(key, value) if is_key and not is_call and _is_readable(quoted) else f"leave {key or word} out"


def _is_readable(word: str) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        (read,) = OverridesParser.create().parse_overrides([word])
    except (HydraException, ValueError, RecursionError, ArithmeticError):
        return False
    return bool(read.key_or_group) and "=" in word and not word.endswith("=")


def refused(key: str) -> str:
    """Why a typed setting of Hydra's own is refused; empty where it may be typed."""
    if not re.match(r"hydra[./]|hydra$", key) or (OF_HYDRA.fullmatch(key) and "_target_" not in key):
        return ""
    return f"{key} is not for typing: the runner reads hydra/launcher, hydra/sweeper and what is below them"


def _short(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[: MAX_LETTERS - 3]}..."


def find_choice_faults(overrides: "Iterable[Override]", menu: Options) -> Iterator[Fault]:
    """A fault for each override with several values where one is composed, and each choice that is not on the menu."""
    for override in overrides:
        group, options = override.key_or_group, menu.get(override.key_or_group)
        if sweeps := override.is_sweep_override():
            names = list(islice(override.sweep_string_iterator(), MAX_VALUES))
            fix = f"{group}={names[0]}" if names[MAX_VALUES - 1 :] else "python -m runner -m <the same words>"
            is_list = not takes_one(group) if options else OF_TEXTS.search(group) and not any(map(str.isdigit, names))
            fix += f", or '{group}=[{','.join(names)}]'" if is_list else ""
            yield Fault(group, f"several values in {override.input_line}", "one value, or a sweep", fix)
        if override.is_delete():
            continue
        if isinstance(several := override.value(), list) and takes_one(group):
            yield list_fault(group, several)
        if options is None:
            continue
        if isinstance(several, list) and (odd := [part for part in several if not isinstance(part, str)]):
            target = str(odd[0].get("_target_", "")) if isinstance(odd[0], dict) else ""
            named = f"{group}.{target.rpartition('.')[2].lower()}._target_={target}"
            fix = named if target else f"{group}=<one of them>"
            yield Fault(group, override.get_value_element_as_str(), f"some of {', '.join(options)}", fix)
            continue
        if not sweeps:
            one = several if isinstance(several, str) else override.get_value_element_as_str()
            names = list(map(str, several)) if isinstance(several, list) else [one]
        for name in names:
            is_known = name.removesuffix(".yaml") in options or name.startswith("[")
            if not is_known and (group, name) != ("experiment", "null"):
                yield option_fault(group, name, menu)


def option_fault(group: str, name: str, menu: Options) -> Fault:
    """The fault of an option that is not on the menu: another name of one, a file, or misspelt."""
    found, options = f"no option {name!r} in conf/{group}/", menu[group]
    file = next(filter(os.path.isfile, (Path(name), Path("conf", group, f"{name}.yaml"))), None)
    if file and (inner := file.parent.name) in menu:
        fix = f"{inner}={file.stem} --config-dir {shlex.quote(str(file.parent.parent))}"
        return Fault(group, found, f"its folder, as there is {file}", fix)
    if name.endswith(FOREIGN) and (files := files_beside(Path(name), FOREIGN)):
        fix = f"python -m runner import {shlex.quote(files[0])}"
        return Fault(group, found, "an option; a file of another tool is imported", fix)
    (option, path), near = find_place(group, name, menu), nearest(name, options)
    meaning = next((each for each in find_meanings(group, name) if group not in HELD and each.words), None)
    if final := next((each for each in find_meanings(group, name) if each.final), None):
        return Fault(group, found, final.why, final.fix)
    if meaning and name.lower() not in options:
        fix = as_typed(meaning.words)
    elif group == "model" and os.path.isdir(f"outputs/{name}"):  # runs of this name
        fix = f"model.path='${{run:{name}}}'"
    elif option or (group in HELD and not near and HUB_NAME.fullmatch(name)):
        fix = f"{group}={option or 'hub'} {group}.path={path}"
    elif group in GROUPS and (target := _find_target(name)):
        fix = f"{group}._target_={target} 'allow=[{target.partition('.')[0]}]'"
    else:
        others = [each for each in options if each != "none"]
        fix = f"={[*near, *(others if len(others) == 1 else ()), '<one of them>'][0]}"
    return Fault(group, found, ", ".join(options), fix)


def _find_target(name: str) -> str:
    dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
    is_module = name.endswith(".py") or os.path.isfile(f"{name}.py")
    if not re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", dotted) or not (is_module or "." in name):
        return ""
    names = [f"{dotted}.{each}" for each in public_names(dotted)] if is_module else [dotted]
    judges = (each for each in names if (known := read_signature(each)) and "completions" in known.parameters)
    return next(judges, [*names, f"{dotted}.function"][0])


def list_fault(group: str, names: Sequence[object]) -> Fault:
    """The fault of a list of options of a group that takes one, of which the last would win in silence."""
    first, several = [*names, "<one of them>"][0], ",".join(map(str, names))
    if group == "weight":  # whose rules multiply, each under a name; typed, a list is expanded
        found = f"a list, [{several}], of which only the last would count"
        fix = f"/weight@weight.{first}: {first}  (in the defaults of the file, and so for each rule)"
        return Fault(group, found, "each rule under a name of its own", fix)
    mixture = "dataset=mixture, with each under dataset.parts; " if group == "dataset" and names[1:] else ""
    fix = f"{mixture}{group}={first}"
    fix += f"; or a sweep: python -m runner -m {group}={several}" if names[1:] else ""
    return Fault(group, f"[{', '.join(map(str, names))}], of which only the last would count", "one option", fix)
