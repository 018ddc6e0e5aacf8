"""Faults that would stop runs later, found before a folder is made or torch is imported.

The configurations are right by themselves when they come here. This is about the world around them:
rows and models (``model_folders``, ``row_columns``), libraries (``libraries``, ``versions``), and
the machine (``machine``, ``config.environment_variables``).
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from runner.config.environment_variables import find_variable_faults
from runner.config.resolution import Composed
from runner.dataset.dataset_check import DatasetCheck, check_dataset
from runner.errors import ConfigError, DataError, EnvironmentFault, Fault, name_jobs
from runner.io.temporary import uncollected
from runner.run import Run
from runner.run.key import canonical_text, folders_of
from runner.schema.text import Config
from runner.validate.environments import find_server_faults
from runner.validate.libraries import find_missing_libraries, find_unset_variables
from runner.validate.machine import (
    find_cache_faults,
    find_device_faults,
    find_other_worlds,
    find_root_faults,
    find_split_faults,
    find_unnamed_host,
)
from runner.validate.model_folders import find_model_folder_faults
from runner.validate.row_columns import find_column_faults
from runner.validate.versions import find_absent_requirements, find_other_versions

# What the check of rows and models reads of a configuration, which most jobs of a sweep share.
GROUPS = (
    "dataset",
    "environment",
    "model",
    "peft",
    "reward",
    "metric",
    "tolerate",
    "weight",
    "optimizer",
)
FIELDS = (
    "_target_",
    "max_length",
    "reward_model_path",
    "dataset_kwargs",
    "train_sampling_strategy",
    "chat_template_path",
    "chat_template_kwargs",
    "stop_token_id",
    "use_vllm",
)


@dataclass(frozen=True)
class PartFaults:
    """The faults of the parts of a run."""

    of_rows: list[Fault]
    of_others: list[Fault]


def check_ahead(
    jobs: Sequence[Sequence[Composed]],
    *,
    elsewhere: bool = False,
    folders: Mapping[int, Path] | None = None,
) -> None:
    """Raise an error with all that would stop one of these runs, but those that have finished.

    GPUs may be ``elsewhere``, with a launcher that starts the runs on other machines. ``folders``
    are those of the runs, as ``folders_of`` finds them.
    """
    folders = folders or folders_of(jobs)
    runs: list[Composed] = []
    for stages in jobs:
        runs += stages
    worlds: list[Fault] = []
    for composed in runs:
        worlds += find_other_worlds(composed)
    ConfigError.refuse(worlds)
    machine_counts = [composed.machines for composed in runs]
    machines = max(machine_counts, default=1)
    EnvironmentFault.refuse(find_variable_faults(machines))

    unfinished: dict[Path, Composed] = {}
    for composed in runs:
        folder = folders[id(composed)]
        if Run(folder).status()["state"] != "finished":
            unfinished[folder] = composed
    check_parts(jobs, unfinished, folders)
    splits: list[Fault] = []
    for folder, composed in unfinished.items():
        splits += find_split_faults(composed, folder)
    ConfigError.refuse(splits)
    if unfinished:
        faults = find_environment_faults([*unfinished.values()], elsewhere)
        EnvironmentFault.refuse(faults)


def check_parts(
    jobs: Sequence[Sequence[Composed]],
    checked: Collection[Path] | None = None,
    folders: Mapping[int, Path] | None = None,
) -> None:
    """Raise an error with all faults of the rows and models of runs.

    Only those runs count whose folder is among the ``checked``, if there are any. What an earlier
    stage will make is not looked for. ``folders`` are as in ``check_ahead``.
    """
    folders = folders or folders_of(jobs)
    planned = {folder.absolute() for folder in folders.values()}
    by_shared_parts: dict[tuple[object, ...], PartFaults] = {}
    by_parts: dict[str, PartFaults] = {}
    of_rows: list[tuple[Sequence[str], list[Fault]]] = []  # of each job, with its command
    of_others: list[tuple[Sequence[str], list[Fault]]] = []
    for stages in jobs:
        job_rows: list[Fault] = []
        job_others: list[Fault] = []
        for composed in stages:
            if checked is not None and folders[id(composed)] not in checked:
                continue
            parts = _select_parts(composed.cfg)
            shared = _identify(parts)
            if shared not in by_shared_parts:
                key = canonical_text(parts)
                if key not in by_parts:
                    by_parts[key] = _find_part_faults(parts, planned)
                by_shared_parts[shared] = by_parts[key]
            part_faults = by_shared_parts[shared]
            job_rows += part_faults.of_rows
            job_others += part_faults.of_others
        of_rows.append((stages[0].command, job_rows))
        of_others.append((stages[0].command, job_others))
    row_faults = name_jobs(of_rows)
    other_faults = name_jobs(of_others)
    if other_faults:
        raise ConfigError([*row_faults, *other_faults])
    DataError.refuse(row_faults)


def _select_parts(cfg: Config) -> Config:
    """The part of a configuration that the check of rows and models reads."""
    trainer = cfg["trainer"]
    fields = {name: trainer["args"].get(name) for name in FIELDS}
    parts = {name: cfg.get(name) for name in GROUPS}
    return {**parts, "trainer": {**trainer, "args": fields}}


def _identify(parts: Config) -> tuple[object, ...]:
    """A key that is equal for parts that are the same objects, with a trainer of the same values.

    Jobs of a sweep that differ in numbers have such parts, whose texts need not be compared.
    """
    identities = [id(parts[name]) for name in GROUPS]
    return (*identities, canonical_text(parts["trainer"]))


@uncollected()  # the trees of the sources that are read all stay
def _find_part_faults(cfg: Config, planned: Collection[Path]) -> PartFaults:
    """The faults of the parts of a run that could not be had, or do not fit each other.

    ``planned`` are folders that earlier stages will make.
    """
    dataset = json.dumps(cfg["dataset"], default=str)
    rows = _check_rows(dataset, cfg["trainer"]["form"], os.getcwd())
    others = [*find_model_folder_faults(cfg, rows, planned), *find_column_faults(cfg, rows)]
    return PartFaults(rows.faults, others)


@lru_cache(maxsize=64)
def _check_rows(dataset: str, form: str, folder: str) -> DatasetCheck:
    """The check of the rows of a dataset, a node as JSON; once for jobs that share them.

    ``folder`` is the working folder, from which paths go.
    """
    return check_dataset(json.loads(dataset), form)


def find_environment_faults(runs: Sequence[Composed], elsewhere: bool) -> Iterator[Fault]:
    """A fault for each thing that is missing on this machine, or was not tried.

    That is a library, a GPU, a variable, or a place that must take files.
    """
    configs = [composed.cfg for composed in runs]
    yield from find_missing_libraries(*configs)
    for cfg in _different("tracker", configs):
        yield from find_unset_variables(cfg)
    for cfg in _different("environment", configs):
        yield from find_server_faults(cfg)
    yield from find_device_faults(runs, elsewhere)
    yield from find_absent_requirements()
    checked = []
    for cfg in configs:
        tolerate = cfg.get("tolerate") or {}
        if not tolerate.get("versions"):
            checked.append(cfg)
    if checked:
        yield from find_other_versions(checked)
    yield from find_unnamed_host()
    yield from find_cache_faults()
    yield from find_root_faults(composed.cfg["output_root"] for composed in runs)


def _different(key: str, configs: Iterable[Config]) -> list[Config]:
    """The first of those configurations that share one part."""
    first_of: dict[int, Config] = {}
    for cfg in configs:
        first_of.setdefault(id(cfg.get(key)), cfg)
    return list(first_of.values())
