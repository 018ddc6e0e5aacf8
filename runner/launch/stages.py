"""Staged experiments and references: command line -> the runs that it means, in the order in which they train.

An experiment with ``stages`` lists the command-line words of each of its runs. ``${run:sft}`` in them is the model
folder of an earlier stage; elsewhere ``${run:my-sft}`` is that of a finished run. A folder's name holds the key of its
config, so it is known before anything has trained, and the key of a stage depends on those of the stages below it:
after a change, what depends on it is another run, and what does not is the same.

What is not here: what a right configuration is (``validate``), and starting anything (``start``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner import config
from runner.errors import ConfigError, Fault
from runner.run import Run, folder_of
from runner.run.continuation import find_resume_faults
from runner.schema import nearest
from runner.schema.type import shortened
from runner.validate import find_all_faults
from runner.validate.context import TOP
from runner.validate.parts import find_mismatches

Check = Callable[[config.Composed], list[Fault]]


def compose(overrides: Sequence[str], folders: Sequence[Path] = ()) -> list[config.Composed]:
    """The checked configurations that a command line makes: one, or one for each stage, in order.

    Raises ConfigError with the faults of all of them, so that none starts where one cannot.
    """
    command = [*overrides, *(word for folder in folders for word in ("--config-dir", str(folder)))]
    return [replace(composed, command=command) for composed in _compose_all(overrides, folders)]


def draft(overrides: Sequence[str], folders: Sequence[Path] = ()) -> config.Composed:
    """The configuration of these overrides, references followed and nothing checked, for use of some of its parts."""
    references = References()
    composed = config.compose(overrides, folders)
    if references.faults:
        raise ConfigError(references.faults)
    return composed


def faults_of(composed: config.Composed, folders: Sequence[Path] = ()) -> list[Fault]:
    """The faults of a configuration: key by key, and then part against part."""
    allow = tuple(composed.cfg.get("allow") or ()) if "allow" in composed.typed else ()
    menu = config.read_menu(folders)
    faults = find_all_faults(composed.cfg, menu=menu, allow=allow, typed=composed.typed)
    return faults or find_mismatches(composed.cfg, menu) or find_resume_faults(composed.cfg)


def _compose_all(overrides: Sequence[str], folders: Sequence[Path]) -> list[config.Composed]:
    def check(composed: config.Composed) -> list[Fault]:
        return faults_of(composed, folders)

    typed = [Word.cut(text) for text in overrides]
    if faults := [_typed_stages(word) for word in typed if word.head == "stages"]:
        raise ConfigError(faults)
    references = References()
    if experiment := _read_experiment(typed, folders):
        return _compose_stages(experiment, folders, check, references)
    composed, faults = _compose_one(overrides, folders, check, references)
    if faults or composed is None:
        raise ConfigError(faults)
    return [composed]


@dataclass(frozen=True)
class Word:
    """One override, cut into its mark (+, ++ or ~), its key, and the rest with the equals sign."""

    mark: str
    key: str
    rest: str

    @classmethod
    def cut(cls, text: str) -> Word:
        """Cut a word as it was typed.

        >>> Word.cut("++ppo.kl_coef=0.1")
        Word(mark='++', key='ppo.kl_coef', rest='=0.1')
        """
        key = text.lstrip("+~")
        mark, name = text[: len(text) - len(key)], re.split("[=@]", key, maxsplit=1)[0]
        return cls(mark, name, key[len(name) :])

    def __str__(self) -> str:
        return f"{self.mark}{self.key}{self.rest}"

    @property
    def head(self) -> str:
        """The first part of the key: a group, a key of the top level, or a stage."""
        return self.key.partition(".")[0]

    def inner(self) -> Word:
        """The word without the stage in front."""
        return replace(self, key=self.key.partition(".")[2])


@dataclass(frozen=True)
class Experiment:
    """A staged experiment with what was typed for it.

    ``stages`` has the words of its file by stage, ``chosen`` the word that chose it, ``shared`` those for every stage,
    ``typed`` those for one, and ``faults`` what is wrong with words that are for none.
    """

    name: str
    stages: Mapping[str, list[Word]]
    chosen: list[Word]
    shared: list[Word]
    typed: Mapping[str, list[Word]]
    faults: list[Fault] = field(default_factory=list)

    def typed_for(self, stage: str) -> list[Word]:
        """The typed words that count for a stage, in rising order of precedence.

        A word for every stage leaves references alone: ``model.path=org/name`` is where the first stage begins,
        and must not cut the later ones off from it.
        """
        kept = {word.key for word in self.stages[stage] if "${run:" in word.rest}
        return [word for word in self.shared if word.key not in kept] + self.typed[stage]

    def words_for(self, stage: str) -> list[str]:
        """All words that compose a stage, as Hydra takes them; what stands beside ``stages`` in the file, all share.

        Each stage has a name of its own, ``<name>-<stage>``, since runs of one name are compared with each other: a
        sweep over ppo.kl_coef lies side by side, a policy and its reward model do not. It also makes
        ``${run:<name>-<stage>}`` a plain reference from anywhere else.
        """
        quoted = f"{self.name}-{stage}".replace("'", "\\'")
        words = config.override.latest([f"name='{quoted}'", *map(str, [*self.stages[stage], *self.typed_for(stage)])])
        # A stage that is an experiment of its own is laid over the one that lists it.
        words = [re.sub(r"^[+]*experiment=", "+experiment@_global_=", word) for word in words]
        return [*map(str, self.chosen), "~stages", *words]


class References:
    """The meaning of ``${run:...}`` while configurations are composed; what it finds nothing for becomes a fault."""

    def __init__(self) -> None:
        from omegaconf import OmegaConf

        self.models: dict[str, str] = {}  # of the stages so far
        self.ahead: list[str] = []  # the stage that is composed, and those after it
        self.faults: list[Fault] = []
        OmegaConf.register_new_resolver("run", self.find, replace=True)

    def find(self, name: Any, *, _node_: Any, _root_: Any) -> str:
        """The model folder of an earlier stage, or else of the newest finished run under ``<output_root>/<name>/``."""
        key, name, root = _node_._get_full_key(None), str(name), Path(str(_root_.output_root))
        if name in self.models:
            return self.models[name]
        if name in self.ahead:
            found = Fault(key, f"${{run:{name}}} is {self._place(name)}", self._earlier(), self._fix(key, name, []))
        elif runs := _finished(root, name):
            return str(runs[-1] / "model")
        else:
            found = self._missing(key, name, root)
        self.faults += [found] if found not in self.faults else []
        return f"<model of {name}>"

    def _place(self, name: str) -> str:
        return "this stage itself" if name == self.ahead[0] else "a later stage"

    def _earlier(self) -> str:
        return f"an earlier stage: {', '.join(self.models)}" if self.models else "a run that is there before this stage"

    def _missing(self, key: str, name: str, root: Path) -> Fault:
        """The fault of a name that no finished run has: what state it is in, or what was probably meant."""
        if begun := [Run(folder) for folder in _folders(root, name)]:
            states = ", ".join(f"{run} is {run.status()['state']}" for run in begun)
            fix = f"python -m runner.launch {begun[-1]}  (to finish it)"
            return Fault(key, f"${{run:{name}}} has no finished model: {states}", "a finished run", fix)
        group = name.partition("/")[0]
        known = [f"{group}/{folder.name}" for folder in _finished(root, group)] if "/" in name else []
        known = known or [folder.name for folder in sorted(root.glob("[!.]*")) if _finished(root, folder.name)]
        stage = f"an earlier stage ({', '.join(self.models)}), or " if self.models else ""
        listed = f" ({shortened(known)})" if known else ""
        found = f"no {'stage and no ' if self.ahead else ''}run is called {name}"
        return Fault(key, found, f"{stage}a finished run under {root}/{listed}", self._fix(key, name, known))

    def _fix(self, key: str, name: str, known: list[str]) -> str:
        near = [*nearest(name, [*self.models, *known]), *list(self.models)[-1:]]
        if near:
            return f"{key}='${{run:{near[0]}}}'"
        return f"{key}=<org/name, or a folder>"


def _compose_stages(
    experiment: Experiment, folders: Sequence[Path], check: Check, references: References
) -> list[config.Composed]:
    """Each stage composed with the models of those before it, or one ConfigError for all."""
    runs, found = [], {}
    for stage in experiment.stages:
        references.ahead = [name for name in experiment.stages if name not in references.models]
        words = experiment.words_for(stage)
        composed, found[stage] = _compose_one(words, folders, check, references, experiment, stage)
        references.models[stage] = f"<model of {stage}>"
        if composed:
            runs.append(composed)
            references.models[stage] = str(folder_of(composed.cfg, composed.overrides) / "model")
    if faults := experiment.faults + _gather(found, experiment.shared):
        raise ConfigError(faults)
    return runs


def _compose_one(
    words: Sequence[str],
    folders: Sequence[Path],
    check: Check,
    references: References,
    experiment: Experiment | None = None,
    stage: str = "",
) -> tuple[config.Composed | None, list[Fault]]:
    """One configuration, where it can be composed, and its faults.

    Only what was typed counts as typed: what a stage's words in a file could allow, a file may not.
    """
    references.faults = []
    try:
        _refuse_nested(words, folders)
        composed = config.compose(words, folders)
    except ConfigError as error:
        return None, [*references.faults, *error.faults]
    if experiment:
        typed = [str(word) for word in [*experiment.chosen, *experiment.typed_for(stage)]]
        composed = replace(composed, overrides=typed, stage=stage, words=list(words))
    return composed, [*references.faults, *check(composed)]


def _read_experiment(typed: list[Word], folders: Sequence[Path]) -> Experiment | None:
    """The staged experiment that the words choose; None where they choose none, or one that is a single run.

    What cannot be composed is left to be told with all the other faults.
    """
    chosen = [word for word in typed if word.key == "experiment"]
    if not chosen:
        return None
    try:
        names = [word for word in typed if word.key == "name"]
        cfg, _ = config.compose_unresolved([str(word) for word in [*chosen, *names]], folders)
    except ConfigError:
        return None
    return _sorted(cfg, typed, folders) if "stages" in cfg else None


def _sorted(cfg: Any, typed: list[Word], folders: Sequence[Path]) -> Experiment:
    """The words of the file and of the command line by the stage that they are for; raises ConfigError."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(cfg, resolve=False)
    top = {*TOP, *config.GROUPS, *config.read_menu(folders), "hydra", "stages"}
    if faults := list(_faults_of_stages(plain["stages"], top)):
        raise ConfigError(faults)
    stages = {stage: [Word.cut(word) for word in words] for stage, words in plain["stages"].items()}
    chosen = [word for word in typed if word.key == "experiment"]
    others = [word for word in typed if word.key not in ("experiment", "name")]
    strange = [word for word in others if re.split(r"[./]", word.key)[0] not in (*top, *stages)]
    whole = [word for word in others if word.head in stages and (word.mark == "~" or word.key in stages)]
    shared = [word for word in others if word.head not in stages and word not in strange]
    own = {stage: [w.inner() for w in others if w.head == stage and w not in whole] for stage in stages}
    experiment = Experiment(str(plain["name"]), stages, chosen, shared, own)
    in_vain = [word for word in shared if not any(word in experiment.typed_for(stage) for stage in stages)]
    faults = [
        *(_unknown_stage(word, stages, top) for word in strange),
        *(_no_key(word) for word in whole),
        *(_in_vain(word, stages) for word in in_vain),
    ]
    return replace(experiment, faults=faults)


def _faults_of_stages(stages: Any, top: set[str]) -> Iterator[Fault]:
    """A fault for each stage whose name is taken or whose words could not have been typed."""
    if not isinstance(stages, dict) or not stages:
        yield Fault("stages", f"{stages!r}", "stages with their words", "stages: {sft: [trainer=sft, ...], ...}")
        return
    for stage, words in stages.items():
        where = f"stages.{stage}"
        if stage in top:
            expected = "another name: what stands before a dot must say which of the two is meant"
            yield Fault(where, f"{stage} is a key of every run", expected, f"{stage}_model, or what it is for")
        elif not re.fullmatch(r"[A-Za-z][\w-]*", str(stage)):
            yield Fault(where, f"{stage!r}", "letters, digits, _ and -, the first a letter", "stages: {sft: [...]}")
        if not isinstance(words, list) or not words:
            yield Fault(where, f"{words!r}", "a list of words as they are typed", f"{stage}: [trainer=sft, model=tiny]")
        for word in words if isinstance(words, list) else ():
            if not isinstance(word, str) or not re.match(r"~?[+\w]", word) or not ("=" in word or word[0] == "~"):
                yield Fault(where, f"{word!r}", "key=value", f"{stage}: [trainer=sft, model=tiny]")
            elif Word.cut(word).head.startswith(("hydra", "stages")):
                yield Fault(where, f"{word!r}", "a key of the run", "leave it out")


def _typed_stages(word: Word) -> Fault:
    expected = "stages in a file of conf/experiment/, or <stage>.<key>=<value> for one of them"
    return Fault(word.key, f"{word} on the command line", expected, "experiment=<one with stages> <stage>.seed=1")


def _unknown_stage(word: Word, stages: Iterable[str], top: set[str]) -> Fault:
    near = [*nearest(word.head, stages), *nearest(word.head, top)]
    fix = str(replace(word, key=word.key.replace(word.head, near[0], 1))) if near else f"leave {word.key} out"
    expected = f"a stage ({', '.join(stages)}), or a key of every run"
    return Fault(word.key, f"no stage and no key is called {word.head}", expected, fix)


def _no_key(word: Word) -> Fault:
    """The fault of a word that is for a stage and gives no key of it a value: ``ppo=1``, ``~ppo.peft``."""
    example = f"{word.key}=null" if "." in word.key else f"{word.head}.<key>=<value>"
    return Fault(word.key, str(word), f"a value for a key of the stage {word.head}", example)


def _in_vain(word: Word, stages: Iterable[str]) -> Fault:
    found = "every stage takes it from another run"
    return Fault(word.key, found, "the stage that it is for", f"{list(stages)[-1]}.{word}")


def _refuse_nested(words: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise ConfigError where the experiment of a stage has stages itself."""
    for word in words:
        name = word.removeprefix("+experiment@_global_=")
        if name == word:
            continue
        cfg, _ = config.compose_unresolved([f"experiment={name}"], folders)
        if "stages" in cfg:
            found, expected = f"{name} has stages of its own", "an experiment that is a single run"
            raise ConfigError(Fault("experiment", found, expected, "experiment=<another>"))


def _gather(found: Mapping[str, list[Fault]], shared: Sequence[Word]) -> list[Fault]:
    """The faults of all stages, each with the stage in front, or once and without where every stage has it."""
    gathered: dict[tuple[str, str], Fault] = {}
    for stage, faults in found.items():
        for fault in faults:
            same = [any((one.where, one.fix) == (fault.where, fault.fix) for one in other) for other in found.values()]
            shown = fault if len(found) > 1 and all(same) else _placed(fault, stage, found, shared)
            gathered.setdefault((shown.where, shown.fix), shown)
    return list(gathered.values())


def _placed(fault: Fault, stage: str, found: Mapping[str, list[Fault]], shared: Sequence[Word]) -> Fault:
    """A fault of one stage; where its key was typed for every stage, with the stages that could take it."""
    able = [name for name, faults in found.items() if all(other.where != fault.where for other in faults)]
    typed = [word for word in shared if word.key == fault.where]
    fix = re.sub(r"^(?=[A-Za-z_][\w.]*=)", f"{stage}.", fault.fix)
    if typed and able:
        fix = f"{' or '.join(f'{name}.{typed[-1]}' for name in able)}  (for that stage alone)"
    return replace(fault, where=f"{stage}.{fault.where}", fix=fix)


def _folders(root: Path, name: str) -> list[Path]:
    """The run folders of ``<name>``, or the one of ``<name>/<folder>``, whatever state they are in."""
    group, _, folder = name.partition("/")
    if not group or group.startswith(".") or "/" in folder or folder in (".", ".."):
        return []
    configs = sorted((root / group).glob("*/config.yaml"))
    return [path.parent for path in configs if folder in ("", path.parent.name)]


def _finished(root: Path, name: str) -> list[Path]:
    """Those of them that are finished and have a model, the newest last."""
    done = [folder for folder in _folders(root, name) if Run(folder).status()["state"] == "finished"]
    ended = {
        folder: (Run(folder).status().get("updated", ""), (folder / "status.json").stat().st_mtime_ns)
        for folder in done
    }
    return sorted((folder for folder in done if (folder / "model").is_dir()), key=ended.__getitem__)
