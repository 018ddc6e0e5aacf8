"""Jobs -> those that differ in more than numbers: one of each kind is tried, and stands for the others.

A learning rate, a weight or a seed changes what is learnt and not what is done; a batch size, a rank or a zero changes
that too. Stages are compared with what they build on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.config import Composed
from runner.run.key import folder_of, key_of, lasting
from runner.schema.text import Config, scalars

# Whole numbers that say how long, how often, or from which chance.
LENGTHS = (
    r"seed|data_seed|max_steps|num_train_epochs|total_episodes|(save|eval|logging|warmup)_steps|limit\.(train|eval)"
)


@dataclass
class Case:
    """One run that is tried, the key of its structure, and the runs that it stands for by key, itself among them."""

    key: str
    composed: Composed
    runs: dict[str, Composed] = field(default_factory=dict)


def group_by_structure(jobs: Sequence[Sequence[Composed]]) -> tuple[list[list[Case]], list[Case]]:
    """The jobs that differ in structure, each as its cases in order, and every case once."""
    cases: dict[str, Case] = {}
    chains: dict[tuple[str, ...], list[Case]] = {}
    for runs in jobs:
        links: dict[str, str] = {}
        chain = []
        for composed in runs:
            key = structure_of(composed.cfg, links)
            case = cases.setdefault(key, Case(key, composed))
            case.runs.setdefault(key_of(composed.cfg), composed)
            links[model_of(composed)] = key
            chain.append(case)
        chains.setdefault(tuple(case.key for case in chain), chain)
    return list(chains.values()), list(cases.values())


def model_of(composed: Composed) -> str:
    """The folder in which a run will leave its model, as later stages name it."""
    return str(folder_of(composed.cfg, composed.overrides) / "model")


def structure_of(cfg: Config, links: Mapping[str, str]) -> str:
    """Ten hex digits that are equal where two runs do the same with other numbers.

    ``links`` has the structures of earlier stages by the folders of their models.

    >>> one, other = ({"trainer": {"args": {"beta": beta}}, "seed": 1} for beta in (0.1, 0.2))
    >>> structure_of(one, {}) == structure_of(other, {}), structure_of(one, {}) == structure_of({"seed": 1}, {})
    (True, False)
    """
    structure = {}
    for path, value in scalars(lasting(cfg)):
        is_length = isinstance(value, int) and re.search(rf"(^|\.)({LENGTHS})$", path)
        if isinstance(value, float) or is_length:
            value = "a number" if value else 0
        structure[path] = links.get(value, value) if isinstance(value, str) else value
    return key_of(structure)
