"""Hydra's config -> plain values: every reference followed, every short form written out."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.config.adapter_rate import AdapterRate
from runner.config.batch import spread_batch
from runner.config.experiment import Experiment
from runner.config.groups import GROUPS, LISTED, OPTIONAL, SEVERAL
from runner.config.hydra_errors import as_config_errors
from runner.config.limits import check_growth, read_yaml
from runner.config.machines import processes_here, processes_of, world_size
from runner.config.override import dotted_key, typed_keys
from runner.config.rows import write_out_functions, write_out_rows
from runner.config.sampler import SamplerChoice
from runner.config.sampler_choice import choose_sampler, pass_on_dynamic_sampling
from runner.config.speed import choose_speed
from runner.errors import ConfigError, Fault
from runner.io.files import MENU
from runner.schema.text import Config, nodes, scalars, select

if TYPE_CHECKING:
    from omegaconf import DictConfig

NO_VALUE = "no value"  # found at a key that has no default
NUM_PROCESSES = "launcher.num_processes"
NEEDED = ("name", "output_root", "seed")  # keys of every run


@dataclass(frozen=True)
class Composed:
    """A checked-in or typed experiment, resolved: plain dicts, lists and scalars only."""

    cfg: dict[str, Any]
    # Those that the user typed; of a stage, those that apply to it.
    overrides: list[str]
    # The option of each group.
    choices: dict[str, str] = field(default_factory=dict)
    stage: str = ""
    # All overrides that compose it, those of the experiment's file too.
    words: list[str] = field(default_factory=list)
    # The arguments that make this run, with the other stages of its experiment.
    command: list[str] = field(default_factory=list)
    # The values of the model's option that are left out, where another model is trained.
    note: str = ""
    # Lines on the runs and the adapter that it begins with.
    starts: list[str] = field(default_factory=list)
    # A line for each field that ``speed=`` has set, and for each that it has not.
    speed: list[str] = field(default_factory=list)
    # The learning rate that the adapter has multiplied, if it has.
    rate: AdapterRate | None = None
    # The sampler of a trainer that samples.
    sampler: SamplerChoice | None = None
    # The keys of the overrides that no user typed, but the file of a sweep.
    untyped: frozenset[str] = frozenset()

    @property
    def experiment(self) -> Experiment:
        """The configuration as an object, once it was checked."""
        return Experiment.read(self.cfg)

    @property
    def typed(self) -> set[str]:
        """The dotted keys that the user typed, or that a sweep sets which the user typed."""
        return typed_keys(self.overrides)

    @property
    def machines(self) -> int:
        """The number of machines that are each given the same command.

        It is 1 for other launchers than accelerate, which reach their machines themselves.
        """
        if self.choices.get("launcher") != "accelerate":
            return 1
        return processes_of(self.cfg) // processes_here(self.cfg)


def resolve(
    cfg: "DictConfig", overrides: list[str], choices: dict[str, str] | None = None
) -> Composed:
    """A Hydra config as plain values; every key that still waits for a value is a fault.

    Without ``choices`` it may be a part of a configuration, which needs no name and no seed.
    """
    from omegaconf import OmegaConf, flag_override

    keys = [key for key in cfg if key != "hydra"]
    cfg = OmegaConf.masked_copy(cfg, keys)
    unread = OmegaConf.to_container(cfg, resolve=False)
    check_growth(unread)
    choices = choices or {}
    faults = list(_find_unread_faults(unread, overrides, choices.get("trainer")))
    faults.extend(_find_missing_faults(unread, choices))
    ConfigError.refuse(faults)

    # This resolver reads YAML of others whose aliases nobody has counted.
    OmegaConf.clear_resolver("oc.create")
    with as_config_errors(), flag_override(cfg, "struct", False):
        resolved = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    plain = _with_words(resolved)
    parts = _parts_of(plain)
    composed = Composed(plain | parts, overrides, choices)
    typed = composed.typed
    for group, part in parts.items():
        # An experiment may set keys of an option that was replaced by none.
        is_rest = isinstance(part, dict) and not any(nodes(part))
        is_typed = any(key.startswith(f"{group}.") for key in typed)
        if choices.get(group) == "none" and group not in LISTED and is_rest and not is_typed:
            composed.cfg[group] = None

    # The key of the run must know the processes that somebody else has started.
    launcher = composed.cfg["launcher"]
    is_single = isinstance(launcher, dict) and launcher.get("num_processes") == 1
    if is_single and NUM_PROCESSES not in typed:
        launcher["num_processes"] = world_size()
    write_out_rows(composed.cfg.get("dataset"))
    write_out_functions(composed.cfg.get("trainer"))
    speed = composed.cfg.pop("speed", None) or {}
    chosen, left_out = choose_speed(composed.cfg, speed)
    sampler = choose_sampler(composed.cfg)
    pass_on_dynamic_sampling(composed.cfg)
    if speed and sampler:
        left_out.append(str(sampler))
    spread_batch(composed.cfg, typed)
    return replace(composed, speed=chosen + left_out, sampler=sampler)


def _find_unread_faults(
    unread: Config, overrides: Sequence[str], trainer: str | None
) -> Iterator[Fault]:
    """A fault for a learning rate or KL coefficient at the top that the trainer does not read."""
    if select(unread, "trainer._target_") is None:  # none is chosen, which the check says
        return
    texts = [value for _, value in scalars(unread) if isinstance(value, str)]
    for key in ("learning_rate", "kl_coef"):
        reference = f"${{{key}}}"
        if unread.get(key) is None or any(reference in text for text in texts):
            continue
        readers = {}  # the files of the trainers that have one
        for file in sorted(MENU.glob("trainer/*.yaml")):
            if reference in file.read_text("utf-8"):
                readers[file.stem] = file
        if trainer not in readers:
            yield Fault(
                where=key,
                found="set, but nothing in this configuration reads it",
                expected=f"a trainer that has one: {', '.join(readers)}",
                fix=f"leave {key} out, or trainer=<one of them>",
            )
        # A key that is typed wins over one that the option brings, which is no fault.
        elif key in map(dotted_key, overrides):
            paths = [
                path for path, value in scalars(read_yaml(readers[trainer])) if value == reference
            ]
            yield Fault(
                where=paths[0],
                found=f"replaces {key}, which is also set",
                expected="one of them",
                fix=f"leave {paths[0]} out",
            )


def _find_missing_faults(unread: Config, choices: Mapping[str, str]) -> Iterator[Fault]:
    """A fault for each key of every run that was deleted, and for each without a value."""
    for key in NEEDED:
        if choices and key not in unread:
            yield Fault(
                where=key,
                found="deleted, but every run needs it",
                expected="a value",
                fix=f"leave ~{key} out",
            )
    missing_keys = [key for key, value in scalars(unread) if value == "???"]
    for key in sorted(missing_keys):
        yield Fault(
            where=key,
            found=NO_VALUE,
            expected="a value, because it has no default",
            fix=_find_example(key, choices),
        )


def _find_example(key: str, choices: Mapping[str, str]) -> str:
    """The word for a key in the ``# run:`` line of its option, or of another option."""

    def chosen_first(file: Path) -> tuple[bool, Path]:
        return file.stem != choices.get(file.parent.name), file

    for file in sorted(MENU.glob("*/*.yaml"), key=chosen_first):
        for line in re.findall("^# run: (.*)", file.read_text("utf-8"), re.MULTILINE):
            for word in shlex.split(line):
                if dotted_key(word) == key:
                    return shlex.quote(word)
    return f"{key}=<value>"


def _with_words(value: Any) -> Any:
    """The value with each key ``on`` or ``off`` as that word, which YAML reads as true or false."""
    if isinstance(value, list):
        return [_with_words(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    renamed = {}
    for key, entry in value.items():
        if isinstance(key, bool):
            key = "on" if key else "off"
        renamed[key] = _with_words(entry)
    return renamed


def _parts_of(plain: Config) -> dict[str, Any]:
    """The node of each group.

    A group that was deleted is a group without a part, and so is one whose parts were all set to
    null.
    """
    parts: dict[str, Any] = {}
    for group in GROUPS:
        if group in plain or group not in OPTIONAL:
            parts[group] = plain.get(group)
    for group in SEVERAL:
        named_parts = parts[group] or {}
        if isinstance(named_parts, dict):  # the check of the values refuses anything else
            left = {name: part for name, part in named_parts.items() if part is not None}
            parts[group] = left or None
    return parts
