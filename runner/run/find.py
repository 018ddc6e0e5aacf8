"""The run that a word of the command line means: a folder, a name with one run, ``<name>/<run>``, or a run's key."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner.config.menu import GROUPS, OPTIONAL
from runner.errors import ConfigError, Fault, FolderError
from runner.run import Run
from runner.run.read import RunRecord, find_folders, is_run, read_run
from runner.schema.text import nearest

NEEDED = ("name", "output_root", "seed", "trainer", "model", "dataset", "launcher")  # in each configuration


def find_runs(words: Sequence[str], verb: str, count: int, root: Path = Path("outputs")) -> list[RunRecord]:
    """The runs that a verb was given, all faults at once; ConfigError where they are not ``count`` words."""
    if len(words) != count:
        given = f"{len(words)} of them: {' '.join(words)}" if words else "none"
        expected = "one run" if count == 1 else f"{count} runs"
        fix = f"python -m runner {verb} {' '.join([str(root / '<name>/<run>')] * count)}"
        raise ConfigError(Fault("RUN", given, expected, fix))
    found = [find_run(word, " ".join([verb, *words[:number]]), root) for number, word in enumerate(words)]
    for number, each in enumerate(found):  # a command has the others, too
        if isinstance(each, Fault) and (others := words[number + 1 :]) and not each.fix.endswith(")"):
            found[number] = replace(each, fix=" ".join([each.fix, *others]))
    folders = [each for each in found if isinstance(each, Path)]
    faults = [each for each in found if isinstance(each, Fault)]
    runs = [read_run(folder) for folder in folders]
    FolderError.refuse(faults + [fault for run in runs for fault in run.faults])
    return runs


def find_run(word: str, verb: str, root: Path) -> Path | Fault:
    """The folder of the run that a word means, or the fault of a word that means none or several."""
    places = [path for path in (Path(word), root / word) if path.is_dir()]
    inner = next((path for path in places if is_run(path)), None)
    groups = {path: find_folders(path) for path in places}
    runs = next((found for found in groups.values() if found), [])
    if inner or len(runs) == 1:
        return inner or runs[0]
    keyed = [] if places else [path for path in sorted(root.glob(f"*/*-{word}")) if word and is_run(path)]
    if len(keyed) == 1:
        return keyed[0]
    if runs or keyed:
        several = runs or keyed
        return Fault(word, f"{len(several)} runs", "one of them", f"python -m runner {verb} {Run(several[-1])}")
    folders = [path for group in sorted(root.glob("[!.]*")) if group.is_dir() for path in find_folders(group)]
    named = {str(path.relative_to(root)): path for path in folders} | {path.parent.name: path for path in folders}
    tail = "/".join(Path(word).parts[-2:])
    near = [name for each in (tail, Path(word).name) for name in nearest(each, named, 0.65)[:1]]
    reason = "no run is in it" if places else "no such folder"
    fix = f"python -m runner {verb} {Run(named[near[0]])}" if near else "python -m runner report  (lists the runs)"
    return Fault(word, reason, f"the folder of a run, such as {root}/<name>/<run>", fix)


def check_whole(run: RunRecord) -> None:
    """Raise FolderError where the configuration of a run lacks what that of every run has."""
    lacking = [key for key in NEEDED if run.cfg.get(key) in (None, "", {})]
    if lacking := [*lacking, *(group for group in GROUPS if group not in {*run.cfg, *lacking, *OPTIONAL})]:
        found, fix = f"it lacks {', '.join(lacking)}", "the command that made the run, with another name="
        raise FolderError(Fault(str(run.folder / "config.yaml"), found, "the configuration of a run", fix))


def check_finished(run: RunRecord, verb: str) -> None:
    """Raise FolderError where a run is not finished, or its configuration cannot be read."""
    if not run.cfg:
        raise FolderError(Fault(str(run), "config.yaml is missing or torn", "the folder of a whole run"))
    if run.state != "finished":
        found = run.standing + (f": {run.cause}" if run.cause else "")
        fix = f"python -m runner.launch {run}  (to finish it)"
        raise FolderError(Fault(str(run), found, f"a finished run to {verb}", fix))
