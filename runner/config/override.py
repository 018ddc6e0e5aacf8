"""Overrides of a command line: parsed, quoted, expanded and forced as Hydra needs them."""

import functools
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from glob import escape, glob
from typing import TYPE_CHECKING, Any

from runner.config.dialect import find_meanings
from runner.config.groups import SEVERAL
from runner.config.menu import Options
from runner.errors import ConfigError, Fault
from runner.io.filetype import ROW_ENDINGS, TRAINING_FILES
from runner.io.secrets import form_of
from runner.io.temporary import uncollected
from runner.schema.did_you_mean import respellings, seen_letters
from runner.schema.literal import to_text
from runner.schema.text import as_typed, flatten, select, to_override

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

# Hydra's own settings that may be typed.
OF_HYDRA = re.compile(
    r"hydra/(launcher|sweeper)(/\w+)*|hydra\.(launcher|sweeper)(\.\w+)*|hydra\.(mode|verbose)"
)
# Groups whose parts lie in a file or folder, or on the hub.
HELD = ("dataset", "model")
# An element of a list, or a key or value of a mapping, with letters beyond ASCII or marks, such as
# <tokens>, that Hydra's grammar does not know; a blank beyond ASCII is such a letter. Each part is
# matched once (*+, ++), or the search would take a time that grows with the square of its length.
BEYOND_ASCII = (  # compiled where it is needed, which takes a hundredth of a short command
    r"""(?<=[\[,:])[ \t\r\n]*+"""
    r"""(?=[^\[\]{}:,'"()=$\x00-\x1f]*[<>\x80-\U0010ffff])"""
    r"""([^\[\]{}:,'"()=$\x00-\x1f]++)"""
    r"""(?=[,\]}])"""
)
# A text that holds no quotes, commas or braces, and does not begin with a bracket.
PLAIN = re.compile(r"""[^\[{("',=$][^{}"',=$]*""")
NEEDS_QUOTES = re.compile(r"^~|[()\[\]<>]|[^\x00-\x7f]")
WEIGHT_RULES = re.compile(r"weight=\[(\w+(?:,\s*\w+)*)\]")
# Jobs of a sweep: planning one takes a millisecond, and more than these are a slip of the hand.
MAX_JOBS = 100_000
MAX_LETTERS = 300  # of a word that a fault repeats
# Keys that may hold a run in the place of its model.
OF_MODELS = re.compile(r"(^|(?<!dataset)[._])(path|model|reward)$")
REFERENCES = ("${run:", "${best:")  # begin the name of a run
# A reference to a name with letters that OmegaConf's grammar does not know without quotes.
REFERENCE_BEYOND_ASCII = re.compile(r"""\$\{(run|best):([^"'{}]*[^\x00-\x7f"'{}][^"'{}]*)\}""")


def dotted_key(override: str) -> str:
    """The dotted key, or group, of an override."""
    return re.split(r"[=@]", override.lstrip("+~"), maxsplit=1)[0]


def typed_keys(overrides: Iterable[str]) -> set[str]:
    """The dotted keys and groups of overrides, and the keys inside of a mapping that one gives."""
    keys = set()
    for word in overrides:
        key = dotted_key(word)
        keys.add(key)
        if "={" in word:
            (override,) = parse([word])
            value = override.value()
            if isinstance(value, dict):
                keys |= {f"{key}.{inner_key}" for inner_key in flatten(value)}
    return keys


def force(overrides: Sequence[str], menu: Options) -> list[str]:
    """The same overrides, each ``key=value`` as ``++key=value``, so that Hydra accepts every key.

    Hydra stops at the first key that no YAML names, as most TRL fields are; the check that follows
    reports all faults. A part that is typed as the only one of its group takes the place of those
    that a dataset brings.
    """
    typed = {dotted_key(override) for override in overrides}
    forced = []
    for group in SEVERAL:
        if f"{group}._target_" in typed and group not in typed:
            forced.append(f"{group}=none")
    for override in overrides:
        key = dotted_key(override)
        is_choice = key in menu or key.startswith(("hydra/", "hydra."))
        if "=" in override and not override.startswith("~") and not is_choice:
            forced.append(f"++{override.lstrip('+')}")
        else:
            forced.append(override)
    return forced


def quote_text(word: str) -> str:
    """A word with the quotes that Hydra needs around a text and that the shell has taken away.

    Slices of rows and names of files need them. A value that looks like a list, a mapping, a
    function or several values is left as it is, except for those parts of a list or a mapping that
    Hydra's grammar does not know.

    >>> quote_text("dataset.split.train=train[:500]"), quote_text("allow=[a]")
    ("dataset.split.train='train[:500]'", 'allow=[a]')
    >>> quote_text("metric.exact.on=[a,é b]"), quote_text("model.tokenizer.pad_token=[PAD]")
    ("metric.exact.on=[a,'é b']", "model.tokenizer.pad_token='[PAD]'")
    >>> quote_text("model.path=${run:é}")
    'model.path=${run:"é"}'
    """
    word = REFERENCE_BEYOND_ASCII.sub(r'${\1:"\2"}', word)
    key, _, value = word.partition("=")
    quoted = f"{key}='{value}'"
    if key.endswith("_token") and value.startswith("["):
        return quoted
    if value.startswith(("[", "{")):
        inner = re.sub(BEYOND_ASCII, r"'\1'", value)
        return f"{key}={inner}"
    is_call = re.fullmatch(r"\w+\(.*\)", value)
    is_plain = PLAIN.fullmatch(value) and not is_call and value.isprintable()
    are_paired = value.count("(") == value.count(")")
    are_closed = value.count("[") == value.count("]")
    if is_plain and are_paired and are_closed and NEEDS_QUOTES.search(value):
        return quoted
    return word


def expand(words: Sequence[str], menu: Options) -> list[str]:
    """The words as Hydra takes them, each key once.

    A file, a folder or a name on the hub becomes an option with its path.

    >>> expand(["seed=1", "dataset=rows.jsonl", "model=org/a,org/b", "seed=2"], {})
    ['dataset=local', 'dataset.path=rows.jsonl', 'model=hub', 'model.path=org/a,org/b', 'seed=2']
    """
    expanded: list[str] = []
    for word in latest(words):
        rules = WEIGHT_RULES.fullmatch(word)
        if rules:  # each under a name of its own, since they are multiplied
            for rule in re.split(r",\s*", rules[1]):
                expanded.append(f"+weight@weight.{rule}={rule}")
            continue
        key, equals, value = word.partition("=")
        if key.endswith("trainer.teacher_model") and value[:1] != "{":
            key = f"{key}.path"
        places = [find_place(key, name, menu) for name in value.split(",")]
        options = {option for option, _ in places}
        path = ",".join(path for _, path in places)
        if len(options) == 1 and "" not in options:
            option = options.pop()
            expanded.append(f"{key}={option}")
            inner_key = "model.path" if option == "model" else "path"  # that of reward=model
            expanded.append(f"{key}.{inner_key}={path}")
        elif len(options) > 1:  # options and paths together, which is refused as it was typed
            expanded.append(word)
        else:
            expanded.append(f"{key}{equals}{path}")
    return [quote_text(word) for word in latest(expanded)]


def find_place(key: str, name: str, menu: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """The option and the path for a name that is a file, a folder, a run, or a name on the hub.

    The option is empty for the name of an option; the path is then that name. Of several runs under
    one name the path is a reference to the best.
    """
    place = os.path.expanduser(name)
    stage, _, group = key.rpartition(".")
    if OF_MODELS.search(key):
        if os.path.isdir(f"{place}/model") and os.path.isfile(f"{place}/config.yaml"):
            name = f"{name.rstrip('/')}/model"
        elif glob(f"{escape(place)}/*/config.yaml"):
            name = f"${{best:{name.rstrip('/')}}}"
    if group not in (*HELD, "reward") or stage in menu or "." in stage:
        return "", name
    is_reference = group != "dataset" and name.startswith(REFERENCES)
    is_option = name in ("", *menu.get(group, ()))
    if not is_reference and (is_option or name[0] in "['\"$"):
        return "", name
    if group == "dataset" and (is_local(name) or os.path.exists(place)):
        return "local", name
    if is_reference or "/" in name or (group == "model" and os.path.isdir(place)):
        return "model" if group == "reward" else "hub", name
    return "", name


def is_experiment_file(name: str) -> bool:
    """True for the path of a file that may hold an experiment, as opposed to an option's name."""
    path = os.path.expanduser(name)
    if not name.endswith(TRAINING_FILES) or not os.path.isfile(path):
        return False
    if not name.endswith(".json"):
        return True
    with open(path, "rb") as file:  # rows may have the same ending
        return file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def experiment_files(words: Iterable[str]) -> list[str]:
    """The files of experiments that words name."""
    files = []
    for word in words:
        file_name = word.partition("=")[2].strip("'\"")
        if dotted_key(word) == "experiment" and is_experiment_file(file_name):
            files.append(file_name)
    return files


def is_local(path: str) -> bool:
    """True for a path of this machine or of a store, as opposed to a name on the hub."""
    if path.endswith(ROW_ENDINGS) or path.startswith((".", "/", "~")):
        return True
    return "*" in path or "://" in path


def latest(overrides: Sequence[str]) -> list[str]:
    """The overrides with each key once, as it was given last.

    Mappings of one key are merged, as those of files are.

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
    """One word for two that give mappings to a key; the second word where one gives anything else.

    The mappings of a sweep are merged in all combinations.
    """
    first_mappings = _read_mappings(first)
    second_mappings = _read_mappings(second)
    count = len(first_mappings) * len(second_mappings)
    if not 0 < count <= MAX_JOBS:
        return second
    texts = []
    for outer in first_mappings:
        for inner in second_mappings:
            texts.append(to_text(_merge(outer, inner)))
    return f"{second.partition('=')[0]}={','.join(texts)}"


def _read_mappings(word: str) -> list[dict[str, Any]]:
    """The mapping that a word gives to its key, or those of a sweep; none if any is no mapping."""
    try:
        override = _read(word)
        texts = [word.partition("=")[2]]
        if override.is_choice_sweep():
            texts = list(override.sweep_string_iterator())
        values = [_read(f"key={text}").value() for text in texts]
    except ValueError:  # ``parse`` reports it
        return []
    mappings = [value for value in values if isinstance(value, dict)]
    return mappings if len(mappings) == len(values) else []


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings as one, in which the second wins, at every depth."""
    merged = dict(first)
    for key, value in second.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            value = _merge(merged[key], value)
        merged[key] = value
    return merged


def set_values(cfg: "DictConfig", overrides: "Sequence[Override]") -> None:
    """Set the values of overrides in a configuration; ConfigError for a name below a list.

    Mappings are merged. A list takes the place of a mapping, and a mapping that of a list.
    """
    from omegaconf import OmegaConf

    for override in overrides:
        key = override.key_or_group
        value = override.value()
        before = OmegaConf.to_container(cfg, resolve=False)
        _check_above(key, value, before)
        is_merged = isinstance(value, Mapping) and not isinstance(select(before, key), list)
        OmegaConf.update(cfg, key, value, merge=is_merged, force_add=True)


def _check_above(key: str, value: object, cfg: object) -> None:
    """Raise ConfigError for a key with a name below a list, whose items have numbers."""
    names = key.split(".")
    for depth in range(1, len(names)):
        above = ".".join(names[:depth])
        items = select(cfg, above)
        if not isinstance(items, list):
            continue
        if names[depth].isdecimal():
            return
        mapping = value
        for name in reversed(names[depth:]):
            mapping = {name: mapping}
        raise ConfigError(
            Fault(
                where=key,
                found=f"a key of {above}, which is the list {to_text(items)}",
                expected="a list, or a mapping in its place",
                fix=f"{above}={to_text(mapping)}",
            )
        )


# --- What Hydra reads -----------------------------------------------------------------------------
@functools.cache
@uncollected()
def _parser() -> "OverridesParser":
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _read(word: str) -> "Override":
    """A word as Hydra reads it; ValueError if it cannot."""
    parser = _parser()
    from hydra.errors import HydraException

    try:
        (override,) = parser.parse_overrides([word])
    except (HydraException, RecursionError, ArithmeticError) as error:  # such as an endless number
        raise ValueError(str(error)) from None
    return override


def parse(overrides: Iterable[str]) -> "list[Override]":
    """Each override as Hydra reads it; ConfigError with a fault for each that it cannot read."""
    parsed = []
    faults = []
    for word in overrides:
        try:
            override = _read(word)
            parsed.append(override)
            trouble = _find_trouble(word, override)
        except (ValueError, ArithmeticError) as error:
            trouble = str(error).splitlines()[0].partition(" expecting ")[0]
            trouble = trouble.replace("mismatched input '<EOF>'", "it ends too early")
        if trouble:
            faults.append(
                Fault(
                    where="command line",
                    found=f"{_short(word)!r}: {_short(trouble)}",
                    expected="key=value",
                    fix=_meant_words(word[: MAX_LETTERS + 1]),
                )
            )
    ConfigError.refuse(faults)
    return parsed


def _find_trouble(word: str, override: "Override") -> str:
    """The reason why an override that Hydra can read is not taken; empty if it is."""
    if override.is_discrete_sweep():
        count_values(override)
    if not override.key_or_group:
        return "no key before the equals sign"
    trouble = refused(override.key_or_group) or refused(override.package or "")
    if not trouble and override.is_hydra_override():
        form = form_of(word)
        if form:
            return f"looks like {form}, which Hydra would write down"
    return trouble


def count_values(override: "Override") -> int:
    """The number of values of a sweep's key, of a range without listing them.

    Raises ValueError if they cannot be counted.
    """
    from hydra.core.override_parser.types import Glob, RangeSweep

    span = override.value()
    if isinstance(span, Glob):
        raise ValueError("the runner reads names, not glob()")
    if not isinstance(span, RangeSweep):
        return len(list(override.sweep_string_iterator()))
    if not span.step or not math.isfinite(span.start + span.stop + span.step):
        raise ValueError("a range with a step of 0, or without an end")
    length = float(span.stop) - float(span.start)
    count = max(0, math.ceil(length / float(span.step)))
    if span.shuffle and count > MAX_JOBS:
        raise ValueError(f"{count:,} values to shuffle")
    return count


def refused(key: str) -> str:
    """The reason why a setting of Hydra's own is not taken; empty for one that may be typed."""
    if not re.match(r"hydra[./]|hydra$", key):
        return ""
    if OF_HYDRA.fullmatch(key) and "_target_" not in key:
        return ""
    read = "the runner reads hydra/launcher, hydra/sweeper and what is below them"
    return f"{key} cannot be typed: {read}"


def _meant_words(word: str) -> str:
    """The words to type for one that Hydra does not take."""
    key, _, value = word.strip().partition("=")
    if refused(key):
        meaning = next(find_meanings(key, value), None)
        if meaning:
            return as_typed(meaning.words)
        return f"leave {key[:MAX_LETTERS]} out"
    if len(word) > MAX_LETTERS:
        return f"leave {key[:MAX_LETTERS] or 'it'} out"
    for words in respellings(word):
        if all(map(_is_readable, words)):
            return shlex.join(words)

    key, _, value = seen_letters(word).partition("=")
    key = key.strip()
    value = value.strip()
    if value.startswith("{"):
        file = f"{key} in a file of --config-dir, where a name may have any character"
        return f"{file}; Hydra's grammar allows few"
    is_key = re.fullmatch(r"[\w/@-]+(\.[\w/@-]+)*", key)
    is_call = re.match(r"\w+\(", value)
    if is_key and not is_call and _is_readable(f"{key}={to_text(value)}"):
        return to_override(key, value)
    return f"leave {key or word} out"


def _is_readable(word: str) -> bool:
    """True for a key with a value that Hydra reads."""
    try:
        override = _read(word)
    except ValueError:
        return False
    return bool(override.key_or_group) and "=" in word and not word.endswith("=")


def _short(text: str) -> str:
    """A text cut to the letters that a fault repeats."""
    if len(text) <= MAX_LETTERS:
        return text
    beginning = text[: MAX_LETTERS - 3]
    return f"{beginning}..."
