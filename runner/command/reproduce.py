"""Trains a finished run again and compares the two."""

import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.command import CommandLine, read_options
from runner.config import differences
from runner.config.build import serve
from runner.errors import ConfigError, DataError, Fault, SickRun
from runner.io.files import write_json
from runner.io.secrets import hidden_source
from runner.io.terminal import print_visible
from runner.launch.worker import launch
from runner.report.compare import deviations
from runner.report.facts import split_command, words_of
from runner.run import CHANGES, installed_version, open_run, run_git, write_manifest
from runner.run.record import RunRecord, check_finished, check_whole, find_runs, read_run
from runner.schema.literal import number
from runner.schema.text import flatten
from runner.validate import find_dangers, find_frozen_faults
from runner.validate.stray import is_folder_name


def main(line: CommandLine) -> int:
    """Train the run that the command line names again and compare; returns the training's exit code if that failed."""
    options = read_options(line.overrides, "reproduce")
    (run,) = find_runs(line.runs, "reproduce", 1, Path(options.get("output_root", "outputs")))
    check_finished(run, "reproduce")
    faults = []
    if not is_folder_name(options.get("name", "name")):
        faults.append(
            Fault(
                "name", options["name"], "a plain folder name, up to 100 characters", "name=<word>"
            )
        )
    if not options.get("trust"):
        fix = (
            f"python -m runner reproduce {run} trust=true  (if you trust who wrote its config.yaml)"
        )
        faults += find_dangers(dict(run.cfg), fix)
    ConfigError.refuse(faults)
    check_whole(run)
    ConfigError.refuse(find_frozen_faults(run.cfg, f"{run}/config.yaml"))
    unmatched = list(obstacles(run))
    for text in unmatched:
        print_visible(f"not alike {text}")
    cfg = dict(run.cfg) | {"name": options.get("name") or f"{run.folder.parent.name}-again"}
    cfg["output_root"] = str(run.folder.parent.parent)
    compare_data(run, cfg)
    again = open_run(cfg, split_command(words_of(run) or [])[0], ["reproduce", str(run)])
    if again.folder.resolve() == run.folder.resolve():
        raise ConfigError(
            Fault("name", cfg["name"], "another name than that of the run", "leave name out")
        )
    if again.status()["state"] == "finished":
        print(f"finished  {again} already; it is compared as it is")
    else:
        print(f"run       {again}", flush=True)
        # which may not be kept here, or by now
        write_manifest(again, reference=run.manifest.get("reference"))
        if code := launch(again, line.debug):
            return code
    print_visible(
        judge_reproduction(run, read_run(again.folder), unmatched, options.get("tolerance", 0.0))
    )
    return 0


def obstacles(run: RunRecord) -> Iterator[str]:
    """Everything that is no longer as it was when the run was made, a line each, with the fix where that is known."""
    then = run.manifest
    if then.get("python") not in (None, platform.python_version()):
        yield f"python {then['python']}, here {platform.python_version()}"
    versions = {
        name: (version, installed_version(name))
        for name, version in (then.get("versions") or {}).items()
    }
    if changed := {name: pair for name, pair in versions.items() if pair[0] != pair[1]}:
        pinned = shlex.join(
            f"{name}=={str(old).partition('+')[0]}" for name, (old, _) in changed.items() if old
        )
        listed = ", ".join(
            f"{name} {old or 'none'} (here {new or 'none'})" for name, (old, new) in changed.items()
        )
        yield listed + (f"; pip install {pinned}" if pinned else "")
    git, now = then.get("git"), run_git("rev-parse", "HEAD")
    commit = str(git.get("commit")) if isinstance(git, Mapping) else ""
    if not isinstance(git, Mapping):
        yield "code: the run was made outside a git repository, so its version is unknown"
    elif now is None:
        yield f"code: commit {commit[:12]}, but there is no git repository here"
    elif now != commit:
        is_here = run_git("cat-file", "-e", f"{commit}^{{commit}}") is not None
        fix = f"git worktree add ../at-{commit[:8]} {commit[:12]}" if is_here else "git fetch"
        yield f"code: commit {commit[:12]}, here {now[:12]}; {fix}"
    elif hidden_source(run_git(*CHANGES) or "") != (git.get("diff") or ""):
        yield "code: the same commit with other uncommitted changes; those of then are in manifest.json, under git.diff"
    for key, folder in (then.get("uses") or {}).items():
        if not (Path(folder) / "model").is_dir():
            yield f"{key}: the run {folder} is gone"


def compare_data(run: RunRecord, cfg: Mapping[str, Any]) -> None:
    """Load the rows as a training would, and raise DataError with every set that is no longer the same."""
    if not run.manifest.get("data"):
        return
    from runner.training.components.token_weights import build_rules, columns_asked_for
    from runner.training.run_facts import describe_rows

    keep = columns_asked_for(build_rules(cfg.get("weight")))
    rows, held_out = serve(cfg["dataset"], to=cfg["trainer"]["form"], seed=cfg["seed"], keep=keep)
    then = flatten(run.manifest["data"])
    now = flatten({"train": describe_rows(rows), "eval": describe_rows(held_out)})
    faults = []
    for key in dict.fromkeys(key for key in (*then, *now) if key.endswith(".fingerprint")):
        old, new, name = then.get(key), now.get(key), key.removesuffix(".fingerprint")
        if old != new:
            found = f"{now[f'{name}.rows']} rows, {new[:12]}" if new else "no such rows"
            expected = (
                f"the {then.get(f'{name}.rows')} rows of the run, {old[:12]}"
                if old
                else "none, as in the run"
            )
            faults.append(
                Fault(
                    where=f"dataset, {name}",
                    found=f"{found}",
                    expected=f"{expected}",
                    fix="the data of the run: dataset.path and its files, or its revision",
                )
            )
    DataError.refuse(faults)


def judge_reproduction(
    run: RunRecord, again: RunRecord, unmatched: Sequence[str], tolerance: float = 0.0
) -> str:
    """Compare, and keep the verdict beside the new run; raises SickRun where the two are not equal enough."""
    found = deviations(run, again)
    sizes = [entry.size for entry in found if entry.what != "model"]
    largest = max((size for size in sizes if size is not None), default=0.0)
    # which only a started run knows
    then, now = (each.manifest.get("hardware") or {} for each in (run, again))
    unmatched = [
        *unmatched,
        *(f"{key}: {old}, here {new}" for key, old, new in differences(then, now)),
    ]
    close = tolerance > 0 and None not in sizes and largest <= tolerance
    verdict: dict[str, Any] = {
        "of": str(run),
        "equal": not found,
        "within_tolerance": not found or close,
    }
    verdict |= {
        "tolerance": tolerance,
        "differences": len(found),
        "first": str(found[0]) if found else None,
    }
    write_json(
        again.folder / "reproduction.json", verdict | {"largest": largest, "unmatched": unmatched}
    )
    if not found:
        return f"bit-equal {len(run.lines)} logged steps, {len(run.after)} scores and the weights"
    if close:
        return f"close     nothing is more than {number(100 * largest, 2)} % apart; the first: {found[0]}"
    count = (
        "1 difference"
        if len(found) == 1
        else f"{len(found)} differences, by up to {number(100 * largest, 2)} %"
    )
    reason = f", but these differ: {'; '.join(unmatched)}" if unmatched else ""
    fix = (
        f"tolerance={number(largest * 1.01, 2)}, if that much may differ"
        if largest
        else "python -m runner diff"
    )
    raise SickRun(
        Fault(str(again), f"{count}; the first in {found[0]}", f"the same to the bit{reason}", fix)
    )
