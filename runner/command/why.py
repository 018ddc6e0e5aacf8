"""python -m runner why KEY [overrides]     or     python -m runner why KEY RUN

Tells where the value of a key comes from: the file and line, the word of the command line, what the runner decides
for this machine, or the default of what takes it, with its line in the installed source. The first line is what
counts, the lines below it are what it overrode, and references such as ${learning_rate} are followed.

    python -m runner why trainer.args.learning_rate trainer=dpo experiment=toy_dpo
    python -m runner why max_steps                            the end of a key is enough where only one key has it
    python -m runner why trainer trainer=grpo                 every key of a node
    python -m runner why ppo.kl_coef experiment=toy_rlhf      of one stage
    python -m runner why learning_rate outputs/<name>/<run>   of a run: its frozen value, and the words that made it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner import config
from runner.config import Composed
from runner.config.provenance import Provenance, Setting, read_provenance
from runner.errors import ConfigError, Fault
from runner.io.secrets import hidden
from runner.io.terminal import print_visible
from runner.launch import stages
from runner.report.number import short
from runner.report.repeat import command_of, folders_in, words_of
from runner.report.table import Column, format_table
from runner.run import key_of
from runner.run.find import find_runs
from runner.run.read import RunRecord
from runner.schema import flatten, nearest, nodes, read_signature, select, to_text
from runner.validate.context import keys_of

MAX_VALUE_WIDTH = 36  # characters of a value


def main(line: Any) -> int:
    """Print where the value of the key comes from, for each configuration that the command line means."""
    if line.multirun or not line.runs:
        found = "-m" if line.multirun else "no key"
        fix = "python -m runner why learning_rate trainer=dpo"
        raise ConfigError(Fault("KEY", found, "one key of one configuration", fix))
    key, *words = line.runs
    if words:
        print_visible(hidden("\n".join(_of_run(line, key, *find_runs(words, f"why {key}", 1)))))
        return 0
    print_visible(hidden("\n".join(_of_all(key, _composed(line.overrides, line.folders), line.folders))))
    return 0


def _composed(overrides: Sequence[str], folders: Sequence[Path]) -> list[Composed]:
    """The configurations that are meant; what is wrong with one keeps nobody from asking why."""
    try:
        composed = config.compose(overrides, folders)
    except ConfigError:  # such as a reference to another run
        return stages.compose_runs(overrides, folders)
    return stages.compose_runs(overrides, folders) if "stages" in composed.cfg else [composed]


def _of_all(key: str, runs: Sequence[Composed], folders: Sequence[Path]) -> Iterator[str]:
    """The answer for each stage, or for the one that stands in front of the key."""
    head, _, inner = key.partition(".")
    meant = [composed for composed in runs if composed.stage == head] if inner else []
    for number, composed in enumerate(meant or runs):
        if composed.stage:
            yield ("\n" if number else "") + f"stage {composed.stage}"
        yield from explain(inner if meant else key, origins_of(composed, folders))


def origins_of(composed: Composed, folders: Sequence[Path]) -> Provenance:
    """The origins of the values of a composed configuration."""
    words, typed = (composed.words, composed.overrides) if composed.stage else (composed.overrides, None)
    return read_provenance(composed.cfg, words, folders, typed, composed.stage)


def explain(key: str, origins: Provenance) -> Iterator[str]:
    """The lines that tell of one key, and of those that it is taken from; of a node, a line for each of its keys."""
    key = find_key(key, origins.cfg)
    node = select(origins.cfg, key)
    if isinstance(node, Mapping) and node:
        yield from _node(key, node, origins)
        return
    queue, told = [key], []
    while queue:
        told.append(queue.pop(0))
        yield from _chain(told[-1], origins)
        first = next(iter(origins.of(told[-1])), None)
        queue += [name for name in (first.follows if first else ()) if name not in (*told, *queue)]


def _chain(key: str, origins: Provenance) -> Iterator[str]:
    """One key with its value, and below it what counts and what that overrode."""
    settings = origins.of(key)
    value = _value(key, origins, settings)
    yield f"{key} = {short(value, MAX_VALUE_WIDTH)}" if value else key
    if not settings:
        yield "  no file and no word sets it"
        return
    rows = []
    for entry in settings:
        text = entry.text if key.endswith(entry.key) else f"{entry.key}: {entry.text}"  # of a key above this one
        place = f"{entry.place}  ({entry.note})" if entry.note else entry.place
        rows.append(("over" if rows else "is", short(text, MAX_VALUE_WIDTH), place))
    yield from _aligned(rows)


def _value(key: str, origins: Provenance, settings: Sequence[Setting]) -> str:
    """The value as it is, where the configuration or else the default says it; nothing where only the run knows."""
    node, _, name = key.rpartition(".")
    holder = select(origins.cfg, node)
    if isinstance(holder, Mapping) and name in holder:
        return to_text(holder[name])
    first = settings[0] if settings else None
    if first and first.follows:
        return to_text(select(origins.cfg, first.follows[0]))
    return first.text if first else ""


def _node(key: str, node: Mapping[str, Any], origins: Provenance) -> Iterator[str]:
    """Every key below a node: its value and the place that counts."""
    inner = {f"{key}.{name}": short(to_text(entry), MAX_VALUE_WIDTH) for name, entry in flatten(node).items()}
    yield key
    yield from _aligned((name, text, next((e.place for e in origins.of(name)), "")) for name, text in inner.items())


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """The lines of a table without titles."""
    return format_table([Column("", cells, True, True) for cells in zip(*rows, strict=True)], 200)[1:]


def find_key(key: str, cfg: Mapping[str, Any]) -> str:
    """The whole key that is meant: as it is, or the only one that ends so; ConfigError with the nearest for others."""
    holder, _, name = key.rpartition(".")
    node = select(cfg, holder)
    if isinstance(node, Mapping) and name in node:
        return key
    known = {path: None for path in _keys(cfg)}
    if key in known:
        return key
    ends = [path for path in known if path.endswith(f".{key}")]
    set_ones = [path for path in ends if isinstance(select(cfg, path.rpartition(".")[0]), Mapping)]
    if len(ends) == 1:
        return ends[0]
    lasts = {path.rpartition(".")[2]: path for path in reversed(known)}
    near = [lasts[name] for name in nearest(key.rpartition(".")[2], lasts)]
    near = set_ones or nearest(key, known) or near
    expected = ", ".join(near[:3]) if near else "a key of this configuration"
    found = f"{len(ends)} keys end so" if ends else "no such key"
    raise ConfigError(Fault(key, found, expected, f"python -m runner why {near[0] if near else 'trainer'}"))


def _keys(cfg: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every key that a configuration has, and those that its targets take besides."""
    for name, entry in cfg.items():
        inner = f"{path}.{name}".lstrip(".")
        yield inner
        if isinstance(entry, Mapping):
            yield from _keys(entry, inner)
    if not path:
        for place, node in nodes(dict(cfg)):
            signature = read_signature(str(node["_target_"]))
            yield from (f"{place}.{name}" for name in (keys_of(place, signature) if signature else ()))


# --- Of a run -------------------------------------------------------------------------------------


def _of_run(line: Any, key: str, run: RunRecord) -> Iterator[str]:
    """The frozen value, the words that made it, and where today's files would take it from."""
    if line.overrides:
        expected = "either a run, which is frozen, or overrides"
        raise ConfigError(Fault("command line", " ".join(line.overrides), expected, f"why {key} {line.runs[1]}"))
    key = find_key(key, run.cfg)
    frozen = select(run.cfg, key)
    yield f"{key} = {short(to_text(frozen), MAX_VALUE_WIDTH)}  frozen in {run}/config.yaml"
    yield f"made by   {command_of(run)}"
    composed, folders = _again(run)
    if composed is None:
        yield "these words compose nothing today, or the folder does not have them"
        return
    today = select(composed.cfg, key)
    if today != frozen:
        yield f"changed   the files of today would make it {to_text(today)}:"
    yield ""
    yield from explain(key, origins_of(composed, folders))


def _again(run: RunRecord) -> tuple[Composed | None, list[Path]]:
    """Compose the words of a run with the files of today; of a staged experiment that run's own stage."""
    overrides, folders = folders_in(words_of(run) or [])
    if words_of(run) is None:
        return None, folders
    try:
        runs = _composed(overrides, folders)
    except ConfigError:
        return None, folders
    own = [composed for composed in runs if composed.cfg.get("name") == run.cfg.get("name")]
    keyed = [composed for composed in runs if key_of(composed.cfg) == key_of(run.cfg)]
    return next(iter([*keyed, *own, *runs]), None), folders
