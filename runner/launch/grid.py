"""A sweep's jobs -> their checked configurations; those that differ in plain numbers alone are composed once.

A number is plain where the configuration holds it as it was typed, at its key and wherever a reference takes it, and
nothing else depends on it. Whether it is, is tried: the first two numbers of a key, its smallest and its largest are
each composed, and must be what putting them into the first configuration makes.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from runner import config
from runner.config import Composed
from runner.errors import ConfigError, Fault, name_jobs
from runner.launch import axis, stages
from runner.run.read import is_finite
from runner.schema.text import scalars, select

REFERENCE = re.compile(r"\$\{[\w.]+\}")  # to one value as a whole
Listed = Sequence[tuple[str, float]]  # the words that give a key a number, with it
CHECKED = 64  # combinations of numbers, at least, that are checked together, such as batch sizes and what divides them


@dataclass(frozen=True)
class Family:
    """Jobs that differ in plain numbers alone: one of them, and the keys of the configuration that hold each number."""

    first: Composed
    places: Mapping[str, Sequence[str]]

    def derive(self, words: Sequence[str], numbers: Mapping[str, float], folders: Sequence[Path]) -> Composed:
        """The job of these words: the first with other numbers; what they do not touch, both hold together."""
        cfg = dict(self.first.cfg)
        for key, places in self.places.items():
            for place in places:
                node, (*inner, last) = cfg, place.split(".")
                for name in inner:
                    node[name] = node = dict(node[name])
                node[last] = numbers[key]
        return replace(self.first, cfg=cfg, overrides=list(words), command=stages.as_command(words, folders))


def compose_jobs(
    overrides: Sequence[str], folders: Sequence[Path] = (), untyped: Collection[str] = ()
) -> list[list[Composed]]:
    """The runs of each job of a sweep, in Hydra's order; raises ConfigError with the faults of all.

    ``untyped`` are the keys of those overrides that stand in the file of a sweep.
    """
    axis.axes(overrides)
    options = axis.options(overrides)
    plain = {key: listed for key, listed in options.items() if all(is_finite(number) for _, number in listed)}
    if math.prod(map(len, plain.values())) < 5 * len(plain):  # to try whether they are plain would take as long
        plain = {}
    checked = _to_check(plain)
    families: dict[tuple[str, ...], Family | None] = {}
    broken = set()  # whose first job has faults: of the others those are enough that are to be checked
    jobs: list[list[Composed]] = []
    faults: list[tuple[list[str], list[Fault]]] = []
    for picked in itertools.product(*options.values()):
        words, pairs = [word for word, _ in picked], dict(zip(options, picked, strict=True))
        structure = tuple(word for key, (word, _) in pairs.items() if key not in plain)
        is_checked = all(pairs[key][0] in listed for key, listed in checked.items())
        try:
            if structure not in families:
                jobs.append(stages.compose_runs(words, folders, untyped))
                families[structure] = _find_family(jobs[-1], words, plain, folders)
            elif family := families[structure]:
                jobs.append([family.derive(words, {key: pairs[key][1] for key in plain}, folders)])
                if is_checked and stages.faults_of(jobs[-1][0], folders):
                    stages.compose_runs(words, folders, untyped)  # raises them, with where each key stands
            elif is_checked or structure not in broken:
                jobs.append(stages.compose_runs(words, folders, untyped))
            faults += [(words, [])] if is_checked else []
        except ConfigError as error:
            faults.append((words, error.faults))
            if structure not in families:
                families[structure] = None
                broken.add(structure)
    ConfigError.refuse(name_jobs(faults))
    return jobs


def _to_check(options: Mapping[str, Listed]) -> dict[str, set[str]]:
    """The words of each key that are checked, in each combination: all of them where these are few."""
    most = max(CHECKED, math.prod(map(len, options.values())) // 50)
    chosen = {key: {word for word, _ in listed} for key, listed in options.items()}
    for key in sorted(options, key=lambda key: len(options[key]), reverse=True):
        if math.prod(map(len, chosen.values())) > most:
            chosen[key] = {word for word, _ in _ends(options[key])}
    return chosen


def _ends(listed: Listed) -> Iterator[tuple[str, float]]:
    yield from listed[:2]
    for kind in (int, float):
        if own := [pair for pair in listed if isinstance(pair[1], kind)]:
            yield from (min(own, key=itemgetter(1)), max(own, key=itemgetter(1)))


def _find_family(
    runs: Sequence[Composed], words: Sequence[str], options: Mapping[str, Listed], folders: Sequence[Path]
) -> Family | None:
    """The family of a job, in which these keys are numbers; None where one of them is not plain, and of stages."""
    from omegaconf import OmegaConf

    first, *later = runs
    if later or first.stage or not options:
        return None
    unread = OmegaConf.to_container(config.compose_unresolved(words, folders)[0], resolve=False)
    texts = [text for key, text in scalars(unread) if isinstance(text, str) and not key.startswith("hydra.")]
    mixed = [text for text in texts if "${" in text and not REFERENCE.fullmatch(text)]
    parts = set(re.findall(r"\w+", " ".join(mixed)))  # the names of keys that could be a part of a text
    start = {key: listed[0] for key, listed in options.items()}
    others = [start | {key: pair} for key, listed in options.items() for pair in _ends(listed)]
    others.append({key: max(listed, key=itemgetter(1)) for key, listed in options.items()})
    places: dict[str, list[str]] = {key: [] for key in options}
    tried = []
    for other in others:
        given = dict(zip((word for word, _ in start.values()), (word for word, _ in other.values()), strict=True))
        composed = stages.draft([given.get(word, word) for word in words], folders)
        tried.append((composed, {key: number for key, (_, number) in other.items()}))
        changed = [key for key in options if other[key] != start[key]]
        for place, _, new in config.differences(first.cfg, composed.cfg) if len(changed) == 1 else ():
            is_plain = (select(first.cfg, place), new) == (start[changed[0]][1], other[changed[0]][1])
            if not is_plain or place.rpartition(".")[2] in parts:
                return None
            places[changed[0]] += [] if place in places[changed[0]] else [place]
    family = Family(first, places)
    pairs = ((family.derive([], numbers, folders), composed) for composed, numbers in tried)
    return family if all((one.cfg, one.speed) == (other.cfg, other.speed) for one, other in pairs) else None
