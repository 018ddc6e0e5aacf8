"""A sweep's jobs -> their checked configurations, composed once where only plain numbers differ.

A number is plain where the configuration holds it as it was typed, at its key and wherever a
reference takes it, and nothing else depends on it. Whether it is, is tried: the first two numbers
of a key, its smallest and its largest are each composed, and must be what putting them into the
first configuration makes.
"""

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.config.composition import compose_unresolved, differences
from runner.config.menu import Options, read_menu
from runner.config.resolution import Composed
from runner.errors import ConfigError, Fault, name_jobs
from runner.launch.compose import stages, sweep_axes
from runner.launch.compose.references import draft
from runner.launch.compose.sweep_axes import SweptWord
from runner.run.history import is_finite
from runner.schema.text import scalars, select

REFERENCE = re.compile(r"\$\{[\w.]+\}")  # to one value as a whole
# Combinations of numbers that are checked together, at least: some keys, such as a batch size and
# its number of parts, have to suit each other.
CHECKED = 64
NumberKeys = Mapping[str, Sequence[SweptWord]]  # swept keys whose values are all numbers


@dataclass(frozen=True)
class Family:
    """Jobs that differ in plain numbers alone."""

    first: Composed  # one of them
    places: Mapping[str, Sequence[str]]  # by a swept key, the keys that hold its number

    def derive(
        self, words: Sequence[str], numbers: Mapping[str, float], folders: Sequence[Path]
    ) -> Composed:
        """The job of these words: the first one with other numbers.

        The parts of the configuration that no number changes are the same objects in both.
        """
        cfg = dict(self.first.cfg)
        for key, places in self.places.items():
            number = numbers[key]
            for place in places:
                *outer_names, last_name = place.split(".")
                node = cfg
                for name in outer_names:
                    copied = dict(node[name])
                    node[name] = copied
                    node = copied
                node[last_name] = number
        command = stages.as_command(words, folders)
        return replace(self.first, cfg=cfg, overrides=list(words), command=command)


@dataclass
class Grid:
    """The jobs of a sweep while they are composed, and the faults of those that are checked."""

    folders: Sequence[Path]
    untyped: Collection[str]
    number_keys: NumberKeys
    jobs: list[list[Composed]] = field(default_factory=list)
    faults: list[tuple[list[str], list[Fault]]] = field(default_factory=list)
    # By the words that are no numbers; None where the first job stands for no other.
    families: dict[tuple[str, ...], Family | None] = field(default_factory=dict)
    # Of those whose first job has faults, the others are composed only if they are to be checked.
    broken: set[tuple[str, ...]] = field(default_factory=set)

    @cached_property
    def menu(self) -> Options:
        """The options of each group."""
        return read_menu(self.folders)

    def add(self, job: Mapping[str, SweptWord], is_checked: bool) -> None:
        """Compose the job with these words of each key; raises ConfigError with its faults."""
        words = [swept.word for swept in job.values()]
        other_words = []
        for key, swept in job.items():
            if key not in self.number_keys:
                other_words.append(swept.word)
        structure = tuple(other_words)
        if structure not in self.families:
            try:
                runs = stages.compose_runs(words, self.folders, self.untyped)
                self.families[structure] = _find_family(runs, words, self.number_keys, self.folders)
            except ConfigError:
                self.families[structure] = None
                self.broken.add(structure)
                raise
            self.jobs.append(runs)
            return
        family = self.families[structure]
        if family is None:
            if is_checked or structure not in self.broken:
                runs = stages.compose_runs(words, self.folders, self.untyped)
                self.jobs.append(runs)
            return
        numbers = {key: job[key].value for key in self.number_keys}
        derived = family.derive(words, numbers, self.folders)
        self.jobs.append([derived])
        if is_checked and stages.faults_of(derived, self.folders, self.menu):
            # This raises the faults, with where each key stands.
            stages.compose_runs(words, self.folders, self.untyped)


def compose_jobs(
    overrides: Sequence[str], folders: Sequence[Path] = (), untyped: Collection[str] = ()
) -> list[list[Composed]]:
    """The runs of each job of a sweep, in Hydra's order; raises ConfigError with the faults of all.

    ``untyped`` are the keys of those overrides that stand in the file of a sweep.
    """
    sweep_axes.axes(overrides)  # refuses what has no jobs, or too many
    options = sweep_axes.options(overrides)
    number_keys = {}
    for key, swept_words in options.items():
        if all(is_finite(swept.value) for swept in swept_words):
            number_keys[key] = swept_words
    # With so few jobs it would take as long to try whether numbers are plain.
    if _count_combinations(number_keys) < 5 * len(number_keys):
        number_keys = {}
    checked_words = _words_to_check(number_keys)
    grid = Grid(folders, untyped, number_keys)
    order = _swept_first(options)
    for picked in itertools.product(*options.values()):
        picked_by_key = dict(zip(options, picked, strict=True))
        job = {key: picked_by_key[key] for key in order}
        words = [swept.word for swept in job.values()]
        is_checked = True
        for key, checked in checked_words.items():
            if job[key].word not in checked:
                is_checked = False
        try:
            grid.add(job, is_checked)
            if is_checked:
                grid.faults.append((words, []))
        except ConfigError as error:
            grid.faults.append((words, error.faults))
    ConfigError.refuse(name_jobs(grid.faults))
    return grid.jobs


def _swept_first(options: Mapping[str, Sequence[SweptWord]]) -> list[str]:
    """The keys in the order in which they name a run: what differs between the jobs comes first.

    They stay as they were typed where their order matters, because of a deletion or a mapping.
    """
    for key, swept_words in options.items():
        is_mapping = "={" in swept_words[0].word
        has_inner_keys = any(name.startswith(f"{key}.") for name in options)
        if key.startswith("~") or (is_mapping and has_inner_keys):
            return list(options)
    return sorted(options, key=lambda key: len(options[key]) == 1)


def _words_to_check(number_keys: NumberKeys) -> dict[str, set[str]]:
    """The words of each key that are checked in each combination: all where these are few.

    Where they are many, the keys with the most words lose some, until there are no more
    combinations than CHECKED or a fiftieth of all, so that checks take little beside the rest.
    """
    most = max(CHECKED, _count_combinations(number_keys) // 50)
    chosen: dict[str, set[str]] = {}
    for key, swept_words in number_keys.items():
        chosen[key] = {swept.word for swept in swept_words}
    longest_first = sorted(number_keys, key=lambda key: len(number_keys[key]), reverse=True)
    for key in longest_first:
        if _count_combinations(chosen) > most:
            telling = _telling_words(number_keys[key])
            chosen[key] = {swept.word for swept in telling}
    return chosen


def _count_combinations(words: Mapping[str, Collection[object]]) -> int:
    """The number of ways to pick one word of each key."""
    lengths = [len(words_of_key) for words_of_key in words.values()]
    return math.prod(lengths)


def _telling_words(words: Sequence[SweptWord]) -> list[SweptWord]:
    """The first two numbers of a key, and its smallest and largest whole and broken ones."""
    telling = list(words[:2])
    for kind in (int, float):
        numbers = [swept for swept in words if isinstance(swept.value, kind)]
        if numbers:
            telling.append(min(numbers, key=_value_of))
            telling.append(max(numbers, key=_value_of))
    return telling


def _value_of(swept: SweptWord) -> Any:
    """A key to sort numbers by."""
    return swept.value


def _find_family(
    runs: Sequence[Composed], words: Sequence[str], number_keys: NumberKeys, folders: Sequence[Path]
) -> Family | None:
    """The family of a job, in which these keys are plain numbers.

    None where one of them is not plain, and where a job has stages.
    """
    first = runs[0]
    if len(runs) > 1 or first.stage or not number_keys:
        return None
    start = {key: swept_words[0] for key, swept_words in number_keys.items()}
    trials = _make_trials(start, number_keys)
    names_in_texts = _names_in_texts(words, folders)
    places: dict[str, list[str]] = {key: [] for key in number_keys}
    drafts = []
    for trial in trials:
        # Each word of the first job, and the word that this trial has in its place.
        replaced = {start[key].word: trial[key].word for key in number_keys}
        trial_words = [replaced.get(word, word) for word in words]
        composed = draft(trial_words, folders)
        drafts.append(composed)
        changed = [key for key in number_keys if trial[key] != start[key]]
        if len(changed) != 1:
            continue
        (key,) = changed
        for place, _, value in differences(first.cfg, composed.cfg):
            first_value = select(first.cfg, place)
            if first_value != start[key].value or value != trial[key].value:
                return None
            _, _, name = place.rpartition(".")
            if name in names_in_texts:
                return None
            if place not in places[key]:
                places[key].append(place)

    # The places must explain every draft, also that in which all numbers have changed.
    family = Family(first, places)
    for trial, composed in zip(trials, drafts, strict=True):
        numbers = {key: swept.value for key, swept in trial.items()}
        derived = family.derive([], numbers, folders)
        if derived.cfg != composed.cfg or derived.speed != composed.speed:
            return None
    return family


def _make_trials(
    start: Mapping[str, SweptWord], number_keys: NumberKeys
) -> list[dict[str, SweptWord]]:
    """The numbers of the jobs by which a family is tried.

    In each at most one number is not that of ``start``; the last has the largest number of each
    key.
    """
    trials = []
    greatest: dict[str, SweptWord] = {}
    for key, swept_words in number_keys.items():
        for swept in _telling_words(swept_words):
            trials.append({**start, key: swept})
        greatest[key] = max(swept_words, key=_value_of)
    trials.append(greatest)
    return trials


def _names_in_texts(words: Sequence[str], folders: Sequence[Path]) -> set[str]:
    """The names of keys that may be a part of a text, as in ``run-${seed}``."""
    from omegaconf import OmegaConf

    cfg, _ = compose_unresolved(words, folders)
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    names: set[str] = set()
    for key, text in scalars(plain):
        if key.startswith("hydra.") or not isinstance(text, str):
            continue
        if "${" in text and not REFERENCE.fullmatch(text):
            words_in_text = re.findall(r"\w+", text)
            names.update(words_in_text)
    return names
