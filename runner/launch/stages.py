"""Staged experiments and references: command line -> the runs that it means, in the order in which they train.

An experiment with ``stages`` lists the command-line words of each of its runs. ``${run:sft}`` in them is the model
folder of an earlier stage; elsewhere ``${run:my-sft}`` is that of a finished run. A folder's name holds the key of its
config, so it is known before anything has trained, and the key of a stage depends on those of the stages below it.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import config
from runner.config.override import dotted_key
from runner.config.provenance import TrustedKeys, read_settings
from runner.errors import ConfigError, Fault, FolderError, fault
from runner.io.files import MENU
from runner.run import Run
from runner.run.continuation import find_resume_faults
from runner.run.key import folder_of
from runner.run.read import read_run
from runner.schema.text import nearest
from runner.schema.type import shortened
from runner.validate import find_all_faults
from runner.validate.context import TOP
from runner.validate.parts import find_mismatches

if TYPE_CHECKING:
    from omegaconf import DictConfig, Node


MAX_STAGES = 100  # each is composed and checked, and none begins before the one in front of it has ended


def compose_runs(
    overrides: Sequence[str], folders: Sequence[Path] = (), untyped: Collection[str] = ()
) -> list[config.Composed]:
    """The checked configurations that a command line makes, one or one for each stage; ConfigError with all faults.

    ``untyped`` are the keys of those overrides that stand in the file of a sweep.
    """
    listed = [word for word in overrides if dotted_key(word).partition(".")[0] == "stages"]
    ConfigError.refuse(fault("launch.typed_stages", key=dotted_key(word), word=word) for word in listed)
    references = References(untyped)
    if experiment := _read_experiment(overrides, folders):
        runs, found = [], {}
        for stage in experiment.stages:
            references.ahead = [name for name in experiment.stages if name not in references.models]
            typed = [*experiment.chosen, *experiment.typed_for(stage)]
            composed, found[stage] = _compose_one(experiment.words_for(stage), folders, references, typed, stage)
            references.models[stage] = f"<model of {stage}>"
            if composed:
                runs.append(composed)
                model = references.models[stage] = str(folder_of(composed.cfg, composed.overrides) / "model")
                first = str(composed.cfg["model"].get("path"))
                references.starts[model] = references.starts.get(first, first)
        faults = experiment.faults + _gather(found, experiment.shared)
    else:
        composed, faults = _compose_one(overrides, folders, references)
        runs = [composed] if composed else []
    ConfigError.refuse(faults)
    return [replace(composed, command=as_command(overrides, folders)) for composed in runs]


def as_command(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The arguments of the command line that make the runs of these overrides."""
    return [*overrides, *(word for folder in folders for word in ("--config-dir", str(folder)))]


def draft(overrides: Sequence[str], folders: Sequence[Path] = ()) -> config.Composed:
    """The configuration of these overrides, references followed and nothing checked, for use of some of its parts."""
    references = References()
    composed = config.compose(overrides, folders)
    FolderError.refuse(references.of_other_formats)
    ConfigError.refuse(references.faults)
    return composed


def faults_of(composed: config.Composed, folders: Sequence[Path] = ()) -> list[Fault]:
    """The faults of a configuration: key by key, and then part against part."""
    typed, trusted = composed.typed, TrustedKeys(composed, folders)
    allow = composed.cfg.get("allow") if "allow" in typed - composed.untyped else ()
    allow = tuple(allow) if isinstance(allow, list) else ()
    menu = config.read_menu(folders)
    faults = find_all_faults(composed.cfg, menu=menu, allow=allow, typed=typed, trusted=trusted)
    return faults or find_mismatches(composed.cfg, menu) or find_resume_faults(composed.cfg)


@dataclass(frozen=True)
class Experiment:
    """A staged experiment with what was typed for it.

    ``stages`` has the overrides of its file by stage, ``chosen`` the one that chose it, ``shared`` those for every
    stage, ``typed`` those for one, and ``faults`` what is wrong with those that are for none.
    """

    name: str
    stages: Mapping[str, list[str]]
    chosen: list[str]
    shared: list[str]
    typed: Mapping[str, list[str]]
    faults: list[Fault] = field(default_factory=list)

    def typed_for(self, stage: str) -> list[str]:
        """The typed overrides that count for a stage, in rising order of precedence.

        One for every stage leaves references alone: ``model.path=org/name`` is where the first stage begins, and must
        not cut the later ones off from it.
        """
        references = {dotted_key(word) for word in self.stages[stage] if "${run:" in word}
        return [word for word in self.shared if dotted_key(word) not in references] + self.typed[stage]

    def words_for(self, stage: str) -> list[str]:
        """All words that compose a stage, as Hydra takes them; what stands beside ``stages`` in the file, all share.

        Each stage has a name of its own, ``<name>-<stage>``, since runs of one name are compared with each other; it
        also makes ``${run:<name>-<stage>}`` a plain reference from anywhere else.
        """
        quoted = f"{self.name}-{stage}".replace("'", "\\'")
        words = config.override.latest([f"name='{quoted}'", *self.stages[stage], *self.typed_for(stage)])
        # A stage that is an experiment of its own is laid over the one that lists it.
        words = [re.sub(r"^[+]*experiment=", "+experiment@_global_=", word) for word in words]
        return [*self.chosen, "~stages", *words]


class References:
    """The meaning of ``${run:...}`` while configurations are composed; what it finds nothing for becomes a fault."""

    def __init__(self, untyped: Collection[str] = ()) -> None:
        from omegaconf import OmegaConf

        self.untyped = untyped  # keys that the file of a sweep gives values to
        self.models: dict[str, str] = {}  # of the stages so far
        self.starts: dict[str, str] = {}  # the model that they and those below them began with
        self.ahead: list[str] = []  # the stage that is composed, and those after it
        self.faults: list[Fault] = []
        self.of_other_formats: list[Fault] = []  # of run folders that are meant
        OmegaConf.register_new_resolver("run", self.find, replace=True)

    def find(self, name: object, *, _node_: "Node", _root_: "DictConfig") -> str:
        """The model folder of an earlier stage, or else of the newest finished run under ``<output_root>/<name>/``."""
        key, name, root = str(_node_._get_full_key(None)), str(name), Path(str(_root_.output_root))
        if name in self.models:
            return self.models[name]
        if name in self.ahead:
            stage = "this stage itself" if name == self.ahead[0] else "a later stage"
            earlier = f"an earlier stage: {', '.join(self.models)}" if self.models else ""
            expected = earlier or "a run that is there before this stage"
            self.faults.append(Fault(key, f"${{run:{name}}} is {stage}", expected, self._fix(key, name, [])))
        else:
            finished = _finished(root, name)
            meant = [read_run(folder).faults for folder in finished[-1:] or _folders(root, name)]
            if meant and all(meant):
                self.of_other_formats += meant[-1]
            elif finished:
                return str(finished[-1] / "model")
            else:
                self.faults.append(self._missing(key, name, root))
        return f"<model of {name}>"

    def _missing(self, key: str, name: str, root: Path) -> Fault:
        if begun := [Run(folder) for folder in _folders(root, name)]:
            states = ", ".join(f"{run} is {run.status()['state']}" for run in begun)
            return fault("launch.unfinished_reference", key=key, name=name, states=states, run=begun[-1])
        group = name.partition("/")[0]
        known = [f"{group}/{folder.name}" for folder in _finished(root, group)] if "/" in name else []
        known = known or [folder.name for folder in sorted(root.glob("[!.]*")) if _finished(root, folder.name)]
        stage = f"an earlier stage ({', '.join(self.models)}), or " if self.models else ""
        listed = f" ({shortened(known)})" if known else ""
        found = f"no {'stage and no ' if self.ahead else ''}run is called {name}"
        return Fault(key, found, f"{stage}a finished run under {root}/{listed}", self._fix(key, name, known))

    def _fix(self, key: str, name: str, known: list[str]) -> str:
        if near := [*nearest(name, [*self.models, *known]), *list(self.models)[-1:]]:
            return f"{key}='${{run:{near[0]}}}'"
        return f"{key}=<org/name, or a folder>"


def _compose_one(
    words: Sequence[str], folders: Sequence[Path], references: References, typed: Sequence[str] = (), stage: str = ""
) -> tuple[config.Composed | None, list[Fault]]:
    references.faults = []
    try:
        for name in [word.partition("=")[2] for word in words if word.startswith("+experiment@_global_=")]:
            if "stages" in config.compose_unresolved([f"experiment={name}"], folders)[0]:
                raise ConfigError(fault("launch.stages_of_a_stage", name=name))
        composed = config.compose(words, folders, references.starts)
    except ConfigError as error:
        faults = [*references.faults, *error.faults]
        if missing := [each.where for each in error.faults if each.found == config.NO_VALUE]:  # what else is wrong?
            _, others = _compose_one([*words, *(f"{key}=_" for key in missing)], folders, references, typed, stage)
            faults += [each for each in others if each.where not in missing and each not in faults]
        return None, faults
    FolderError.refuse(references.of_other_formats)
    if references.untyped:
        keys = {key.removeprefix(f"{stage}.") for key in references.untyped} if stage else set(references.untyped)
        composed = replace(composed, untyped=frozenset(keys))
    if stage:
        composed = replace(composed, overrides=list(typed), stage=stage, words=list(words))
    faults = faults_of(composed, folders)
    if faults and folders:  # of a key in the user's own file it is said where it stands
        layers = [layer for layer in config.read_layers(words, folders) if not layer[0].is_relative_to(MENU)]
        entries = [entry for layer in layers for entry in read_settings(*layer) if entry.key not in composed.typed]
        place = {entry.key: f"  (in {entry.place})" for entry in entries}
        faults = [replace(each, fix=each.fix + place.get(each.where, "")) for each in faults]
    return composed, [*references.faults, *faults]


def _read_experiment(typed: Sequence[str], folders: Sequence[Path]) -> Experiment | None:
    """The staged experiment that the overrides choose, if any; what cannot be composed comes with other faults."""
    from omegaconf import OmegaConf

    chosen = [word for word in typed if dotted_key(word) == "experiment"]
    named = [word for word in typed if dotted_key(word) in ("experiment", "name")]
    try:
        cfg = config.compose_unresolved(named, folders)[0] if chosen else {}
    except ConfigError:
        return None
    if "stages" not in cfg:
        return None
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=False)
    menu = config.read_menu(folders)
    top = {*TOP, *config.GROUPS, *menu, "hydra", "stages"}
    ConfigError.refuse(_faults_of_stages(plain["stages"], top))
    # As typed words are, so that a stage may say dataset=rows.jsonl.
    stages = {stage: config.override.expand(words, menu) for stage, words in plain["stages"].items()}
    faults: list[Fault] = []
    shared: list[str] = []
    own: dict[str, list[str]] = {stage: [] for stage in stages}
    for key, word in [(dotted_key(word), word) for word in typed if word not in named]:
        head = key.partition(".")[0]
        near = [*nearest(head, stages), *nearest(head, top, 0.8)]  # any other word is for the check of each stage
        if near and re.split(r"[./]", key)[0] not in (*top, *stages):
            fix, expected = word.replace(head, near[0], 1), f"a stage ({', '.join(stages)}), or a key of every run"
            faults.append(Fault(key, f"no stage and no key is called {head}", expected, fix))
        elif head not in stages:
            shared.append(word)
        elif word.startswith("~") or key in stages:  # such as ppo=1 and ~ppo.peft, which give no key a value
            fix = f"{key}=null" if "." in key else f"{head}.<key>=<value>"
            faults.append(Fault(key, word, f"a value for a key of the stage {head}", fix))
        else:
            own[head] += config.override.expand([word.replace(f"{head}.", "", 1)], menu)
    experiment = Experiment(str(plain["name"]), stages, chosen, shared, own, faults)
    unused = [word for word in shared if not any(word in experiment.typed_for(stage) for stage in stages)]
    faults += [fault("launch.of_no_stage", key=dotted_key(word), last=list(stages)[-1], word=word) for word in unused]
    return experiment


def _faults_of_stages(stages: object, top: set[str]) -> Iterator[Fault]:
    if not isinstance(stages, dict) or not stages:
        yield Fault("stages", f"{stages!r}", "stages with their words", "stages: {sft: [trainer=sft, ...], ...}")
        return
    if len(stages) > MAX_STAGES:
        expected = f"at most {MAX_STAGES}, one after the other"
        yield Fault("stages", f"{len(stages):,} stages", expected, "a sweep: -m <key>=<values>")
        return
    for stage, words in stages.items():
        where = f"stages.{stage}"
        if stage in top:
            yield fault("launch.taken_name", where=where, stage=stage)
        elif not re.fullmatch(r"[A-Za-z][\w-]*", str(stage)):
            yield fault("launch.odd_name", where=where, stage=stage)
        if not isinstance(words, list) or not words:
            yield fault("launch.no_words", where=where, words=words, stage=stage)
        for word in words if isinstance(words, list) else ():
            if not isinstance(word, str) or not re.match(r"~?[+\w]", word) or not ("=" in word or word[0] == "~"):
                yield Fault(where, f"{word!r}", "key=value", f"{stage}: [trainer=sft, model=tiny]")
            elif dotted_key(word).startswith(("hydra", "stages")):
                yield Fault(where, f"{word!r}", "a key of the run", "leave it out")


def _gather(found: Mapping[str, list[Fault]], shared: Sequence[str]) -> list[Fault]:
    """The faults of all stages, each with the stage in front, or once and without where every stage has it."""
    gathered: dict[tuple[str, str], Fault] = {}
    for stage, faults in found.items():
        for each in faults:
            same = [any((one.where, one.fix) == (each.where, each.fix) for one in other) for other in found.values()]
            if len(found) == 1 or not all(same):
                able = [name for name, others in found.items() if all(other.where != each.where for other in others)]
                typed = [word for word in shared if dotted_key(word) == each.where]
                is_typed = re.match(r"[A-Za-z_][\w.]*=", each.fix)
                fix = re.sub(r"(^|(?<= ))(?=[A-Za-z_][\w.]*=)", f"{stage}.", each.fix) if is_typed else each.fix
                if typed and able:
                    fix = f"{' or '.join(f'{name}.{typed[-1]}' for name in able)}  (for that stage alone)"
                each = replace(each, where=f"{stage}.{each.where}", fix=fix)
            gathered.setdefault((each.where, each.fix), each)
    return list(gathered.values())


def _folders(root: Path, name: str) -> list[Path]:
    group, _, folder = name.partition("/")
    if not group or group.startswith(".") or "/" in folder or folder in (".", ".."):
        return []
    return [path.parent for path in sorted((root / group).glob("*/config.yaml")) if folder in ("", path.parent.name)]


def _finished(root: Path, name: str) -> list[Path]:
    ended = {}
    for folder in _folders(root, name):
        if (status := Run(folder).status())["state"] == "finished" and (folder / "model").is_dir():
            ended[folder] = (status.get("updated", ""), (folder / "status.json").stat().st_mtime_ns)
    return sorted(ended, key=ended.__getitem__)
