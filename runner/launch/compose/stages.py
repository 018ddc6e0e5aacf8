"""A command line -> the runs that it means, checked, in the order in which they train.

It is one run, or one for each stage of an experiment that lists stages. A folder's name holds the
key of its config, so it is known before anything has trained, and the key of a stage depends on
those of the stages below it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner.config.composition import compose, compose_unresolved, read_layers
from runner.config.menu import Options, read_menu
from runner.config.override import dotted_key, experiment_files
from runner.config.provenance import TrustedKeys, list_settings
from runner.config.resolution import NO_VALUE, Composed
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import MENU
from runner.launch.compose.begun_run import as_begun, find_factor_faults
from runner.launch.compose.references import References
from runner.launch.compose.staged_experiment import LAID_OVER, StagedExperiment, read_experiment
from runner.run.continuation import find_resume_faults
from runner.run.key import folder_of
from runner.validate.adapter_start import leaves_adapter, settle_start
from runner.validate.configuration import find_all_faults
from runner.validate.mismatches import find_mismatches

TYPED_FIX = re.compile(r"[A-Za-z_][\w.]*=")  # a fix of words to type
# The place before each word of such a fix.
WORD_OF_FIX = re.compile(r"(^|(?<= ))(?=[A-Za-z_][\w.]*=)")


def compose_runs(
    overrides: Sequence[str], folders: Sequence[Path] = (), untyped: Collection[str] = ()
) -> list[Composed]:
    """The checked configurations that a command line makes, one or one for each stage.

    ``untyped`` are the keys of those overrides that stand in the file of a sweep. Raises
    ConfigError with all faults.
    """
    typed_stages = []
    for word in overrides:
        key = dotted_key(word)
        if key.partition(".")[0] == "stages":
            typed_stages.append(
                Fault(
                    where=key,
                    found=f"{word} on the command line",
                    expected="stages in a file of conf/experiment/, or <stage>.<key>=<value> for "
                    "one of them",
                    fix="experiment=<one with stages> <stage>.seed=1",
                )
            )
    ConfigError.refuse(typed_stages)
    references = References(untyped)
    experiment = read_experiment(overrides, folders)
    if experiment:
        runs, faults = _compose_stages(experiment, folders, references)
    else:
        composed, faults = _compose_one(overrides, folders, references)
        runs = [composed] if composed else []
    ConfigError.refuse(faults)
    command = as_command(overrides, folders)
    return [replace(run, command=command) for run in runs]


def compose_unchecked(overrides: Sequence[str], folders: Sequence[Path] = ()) -> list[Composed]:
    """The configurations of a command line, unchecked if possible, to explain wrong ones, too."""
    try:
        composed = compose(overrides, folders)
    except ConfigError:  # such as for a reference to another run
        return compose_runs(overrides, folders)
    if "stages" in composed.cfg:
        return compose_runs(overrides, folders)
    return [settle_start(composed)]


def as_command(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The arguments of the command line that make the runs of these overrides."""
    command = list(overrides)
    for folder in folders:
        command += ["--config-dir", str(folder)]
    return command


def faults_of(
    composed: Composed, folders: Sequence[Path] = (), menu: Options | None = None
) -> list[Fault]:
    """The faults of a configuration: key by key, or where there are none, part against part.

    ``menu`` is that of the folders, where it was read before.
    """
    typed = composed.typed
    # What code may run is for the command line alone to say, and not for a file.
    allow = composed.cfg.get("allow")
    is_allow_typed = "allow" in typed - composed.untyped
    allowed: tuple[str, ...] = ()
    if is_allow_typed and isinstance(allow, list):
        allowed = tuple(allow)
    menu = menu or read_menu(folders)
    trusted = TrustedKeys(composed, folders)
    faults = find_all_faults(composed.cfg, menu=menu, allow=allowed, typed=typed, trusted=trusted)
    faults += find_factor_faults(composed)
    return faults or find_mismatches(composed.cfg, menu) or find_resume_faults(composed.experiment)


def _compose_stages(
    experiment: StagedExperiment, folders: Sequence[Path], references: References
) -> tuple[list[Composed], list[Fault]]:
    """The runs of the stages that could be composed, and the faults of all."""
    runs = []
    stage_faults: dict[str, list[Fault]] = {}
    for stage in experiment.stages:
        references.ahead = [name for name in experiment.stages if name not in references.models]
        typed = [*experiment.chosen, *experiment.typed_for(stage)]
        words = experiment.words_for(stage)
        composed, stage_faults[stage] = _compose_one(words, folders, references, typed, stage)
        references.models[stage] = f"<model of {stage}>"
        if composed:
            runs.append(composed)
            folder = folder_of(composed.cfg, composed.overrides)
            model = str(folder / "model")
            references.models[stage] = model
            first = str(composed.cfg["model"].get("path"))
            references.starts[model] = references.starts.get(first, first)
            if leaves_adapter(composed.cfg, references.adapters):
                references.adapters.add(model)
    return runs, [*experiment.faults, *_gather(stage_faults, experiment.shared)]


def _compose_one(
    words: Sequence[str],
    folders: Sequence[Path],
    references: References,
    typed: Sequence[str] = (),
    stage: str = "",
) -> tuple[Composed | None, list[Fault]]:
    """The configuration of a run, and its faults; ``typed`` are those of a stage's words that were.

    There is no configuration where it cannot be composed.
    """
    references.faults = []
    references.notes = {}
    try:
        for word in words:
            if word.startswith(LAID_OVER):
                _check_single_run(word.removeprefix(LAID_OVER), folders)
        composed = compose(words, folders, references.starts)
    except ConfigError as error:
        faults = [*references.faults, *error.faults]
        # With the missing values filled in, it shows what else is wrong.
        missing = [fault.where for fault in error.faults if fault.found == NO_VALUE]
        if missing:
            stand_ins = [f"{key}=_" for key in missing]
            _, all_faults = _compose_one([*words, *stand_ins], folders, references, typed, stage)
            known = list(faults)
            for fault in all_faults:
                if fault.where not in missing and fault not in known:
                    faults.append(fault)
        return None, faults
    FolderError.refuse(references.of_other_formats)
    composed = as_begun(composed, words, folders, references.starts)
    untyped = {key.removeprefix(f"{stage}.") for key in references.untyped}
    notes = list(references.notes.values())
    composed = replace(composed, untyped=frozenset(untyped), starts=notes)
    composed = settle_start(composed, references.adapters)
    if stage:
        composed = replace(composed, overrides=list(typed), stage=stage, words=list(words))
    faults = faults_of(composed, folders)
    if faults:
        faults = _add_places(faults, composed, words, folders)
    return composed, [*references.faults, *faults]


def _check_single_run(name: str, folders: Sequence[Path]) -> None:
    """Raise ConfigError where the experiment of a stage has stages of its own."""
    cfg, _ = compose_unresolved([f"experiment={name}"], folders)
    if "stages" in cfg:
        raise ConfigError(
            Fault(
                where="experiment",
                found=f"{name} has stages of its own",
                expected="an experiment that is a single run",
                fix="=<another>",
            )
        )


def _add_places(
    faults: Sequence[Fault], composed: Composed, words: Sequence[str], folders: Sequence[Path]
) -> list[Fault]:
    """The faults with the line where each key stands, if that is in a file of the user's own."""
    # Hydra takes a while to say again which files it has composed.
    if not folders and not experiment_files(words):
        return list(faults)
    places: dict[str, str] = {}
    for layer in read_layers(words, folders):
        if not layer.file.is_relative_to(MENU):
            for setting in list_settings(layer):
                if setting.key not in composed.typed:
                    places[setting.key] = f"  (in {setting.place})"
    placed = []
    for fault in faults:
        fix = fault.fix + places.get(fault.where, "")
        placed.append(replace(fault, fix=fix))
    return placed


def _gather(stage_faults: Mapping[str, list[Fault]], shared: Sequence[str]) -> list[Fault]:
    """The faults of all stages, each with its stage in front.

    A fault that every stage has comes once, without a stage. ``shared`` are the words that were
    typed for all stages.
    """
    beats_of_stages = [set(map(_beats, faults)) for faults in stage_faults.values()]
    gathered: dict[tuple[str, str], Fault] = {}
    for stage, faults in stage_faults.items():
        for fault in faults:
            is_everywhere = all(_beats(fault) in beats for beats in beats_of_stages)
            if len(stage_faults) == 1 or not is_everywhere:
                fix = _fix_for(stage, fault, stage_faults, shared)
                fault = replace(fault, where=f"{stage}.{fault.where}", fix=fix)
            gathered.setdefault(_beats(fault), fault)
    return list(gathered.values())


def _beats(fault: Fault) -> tuple[str, str]:
    """The beats by which two faults are the same."""
    return fault.where, fault.fix


def _fix_for(
    stage: str, fault: Fault, stage_faults: Mapping[str, list[Fault]], shared: Sequence[str]
) -> str:
    """The fix of a fault that only some stages have.

    Where a word was typed for all of them, it is to be typed for those that can have it.
    """
    typed = [word for word in shared if dotted_key(word) == fault.where]
    able = []
    for name, faults in stage_faults.items():
        if all(one.where != fault.where for one in faults):
            able.append(name)
    if typed and able:
        words = [f"{name}.{typed[-1]}" for name in able]
        listed = " or ".join(words)
        return f"{listed}  (for that stage alone)"
    if TYPED_FIX.match(fault.fix):
        return WORD_OF_FIX.sub(f"{stage}.", fault.fix)
    return fault.fix
