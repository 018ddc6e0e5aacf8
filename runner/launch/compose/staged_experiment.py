"""An experiment in several stages: what its file lists for each, and what was typed for each.

A stage is the command-line words of one run. A word with the name of a stage in front is for it
alone, as in ``sft.seed=1``; any other is for all of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.composition import compose_unresolved
from runner.config.groups import GROUPS
from runner.config.menu import Options, read_menu
from runner.config.override import dotted_key, expand, latest
from runner.errors import ConfigError, Fault
from runner.schema.did_you_mean import nearest
from runner.validate.context import TOP

# Each stage is composed and checked before the first one begins, and none begins before the one
# in front of it has ended.
MAX_STAGES = 100
LAID_OVER = "+experiment@_global_="  # begins the word for an experiment that is a stage
STAGE_NAME = re.compile(r"[A-Za-z][\w-]*")
EXAMPLE = "[trainer=sft, model=tiny]"


@dataclass
class StagedExperiment:
    """A staged experiment with what was typed for it."""

    name: str
    stages: Mapping[str, list[str]]  # by its name, the words of each in the file
    chosen: list[str]  # the typed words that chose this experiment
    shared: list[str] = field(default_factory=list)  # typed words for every stage
    typed: dict[str, list[str]] = field(default_factory=dict)  # typed words for one stage
    faults: list[Fault] = field(default_factory=list)  # of words that are for no stage

    def typed_for(self, stage: str) -> list[str]:
        """The typed overrides that count for a stage, in rising order of precedence.

        One for every stage leaves references alone: ``model.path=org/name`` is where the first
        stage begins, and must not cut the later ones off from it.
        """
        references = {dotted_key(word) for word in self.stages[stage] if "${run:" in word}
        words = [word for word in self.shared if dotted_key(word) not in references]
        return words + self.typed[stage]

    def words_for(self, stage: str) -> list[str]:
        """All words that compose a stage, as Hydra takes them.

        Keys that stand beside ``stages`` in the file are for all stages. Each stage has a name of
        its own, ``<name>-<stage>``, since runs of one name are compared with each other; it also
        makes ``${run:<name>-<stage>}`` a plain reference from anywhere else.
        """
        name = f"{self.name}-{stage}".replace("'", "\\'")
        words = latest([f"name='{name}'", *self.stages[stage], *self.typed_for(stage)])
        # A stage that is an experiment of its own is laid over the one that lists it.
        laid_over = [re.sub(r"^[+]*experiment=", LAID_OVER, word) for word in words]
        return [*self.chosen, "~stages", *laid_over]


def read_experiment(words: Sequence[str], folders: Sequence[Path]) -> StagedExperiment | None:
    """The staged experiment that typed words choose; None where they choose none.

    One that cannot be composed is None as well: the check of the single run says why. Raises
    ConfigError where its file lists no proper stages.
    """
    from omegaconf import OmegaConf

    chosen = [word for word in words if dotted_key(word) == "experiment"]
    if not chosen:
        return None
    named = [word for word in words if dotted_key(word) in ("experiment", "name")]
    try:
        cfg = compose_unresolved(named, folders)[0]
    except ConfigError:
        return None
    if "stages" not in cfg:
        return None
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    menu = read_menu(folders)
    top = {*TOP, *GROUPS, *menu, "hydra", "stages"}
    ConfigError.refuse(_find_stage_faults(plain["stages"], top))
    # Expanded as typed words are, so that a stage may say dataset=rows.jsonl.
    stages = {stage: expand(listed, menu) for stage, listed in plain["stages"].items()}
    experiment = StagedExperiment(str(plain["name"]), stages, chosen)
    _sort_words(experiment, [word for word in words if word not in named], menu, top)
    return experiment


def _sort_words(
    experiment: StagedExperiment, words: Sequence[str], menu: Options, top: set[str]
) -> None:
    """Give an experiment the words that were typed for all of its stages, and those for one."""
    stages = experiment.stages
    for stage in stages:
        experiment.typed[stage] = []
    for word in words:
        key = dotted_key(word)
        head = key.partition(".")[0]
        # A word with an unknown name that looks like no other is left to the check of each stage.
        likely = [*nearest(head, stages), *nearest(head, top, 0.8)]
        if likely and re.split(r"[./]", key)[0] not in (*top, *stages):
            experiment.faults.append(
                Fault(
                    where=key,
                    found=f"no stage and no key is called {head}",
                    expected=f"a stage ({', '.join(stages)}), or a key of every run",
                    fix=word.replace(head, likely[0], 1),
                )
            )
        elif head not in stages:
            experiment.shared.append(word)
        elif word.startswith("~") or key in stages:
            # Such as ~ppo.peft and ppo=1, which give no key of the stage a value.
            experiment.faults.append(
                Fault(
                    where=key,
                    found=word,
                    expected=f"a value for a key of the stage {head}",
                    fix=f"{key}=null" if "." in key else f"{head}.<key>=<value>",
                )
            )
        else:
            experiment.typed[head] += expand([word.replace(f"{head}.", "", 1)], menu)
    for word in experiment.shared:
        if not any(word in experiment.typed_for(stage) for stage in stages):
            experiment.faults.append(
                Fault(
                    where=dotted_key(word),
                    found="every stage takes it from another run",
                    expected="the stage that it is for",
                    fix=f"{list(stages)[-1]}.{word}",
                )
            )


def _find_stage_faults(stages: object, top: set[str]) -> Iterator[Fault]:
    """The faults of what a file lists as stages; ``top`` are names that no stage may have."""
    if not isinstance(stages, dict) or not stages:
        yield Fault(
            where="stages",
            found=repr(stages),
            expected="stages with their words",
            fix="stages: {sft: [trainer=sft, ...], ...}",
        )
        return
    if len(stages) > MAX_STAGES:
        yield Fault(
            where="stages",
            found=f"{len(stages):,} stages",
            expected=f"at most {MAX_STAGES}, one after the other",
            fix="a sweep: -m <key>=<values>",
        )
        return
    for stage, words in stages.items():
        where = f"stages.{stage}"
        if stage in top:
            yield Fault(
                where=where,
                found=f"{stage} is a key of every run",
                expected="another name, because the word before a dot must be either a stage or "
                "a key",
                fix=f"{stage}_model, or what it is for",
            )
        elif not STAGE_NAME.fullmatch(str(stage)):
            yield Fault(
                where=where,
                found=repr(stage),
                expected="letters, digits, _ and -, the first a letter",
                fix="stages: {sft: [...]}",
            )
        if not isinstance(words, list) or not words:
            yield Fault(
                where=where,
                found=repr(words),
                expected="a list of words as they are typed",
                fix=f"{stage}: {EXAMPLE}",
            )
        if isinstance(words, list):
            for word in words:
                yield from _find_word_faults(where, stage, word)


def _find_word_faults(where: str, stage: object, word: object) -> Iterator[Fault]:
    is_word = isinstance(word, str) and re.match(r"~?[+\w]", word)
    if not isinstance(word, str) or not is_word or not ("=" in word or word.startswith("~")):
        yield Fault(
            where=where,
            found=repr(word),
            expected="key=value",
            fix=f"{stage}: {EXAMPLE}",
        )
    elif dotted_key(word).startswith(("hydra", "stages")):
        yield Fault(
            where=where,
            found=repr(word),
            expected="a key of the run",
            fix="leave it out",
        )
