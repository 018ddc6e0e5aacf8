"""Composed runs, or a sweep's overrides -> checked and started: one in this process, stages, a sweep, or a plugin's.

Each function returns an exit code of ``errors``. ``--dry-run`` ends after the check, with the plan.
"""

import contextlib
import errno
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner import config
from runner.config import Composed
from runner.config.build import asked_for, build
from runner.config.machines import processes_here, processes_of, rank_of, rendezvous_of
from runner.config.override import latest, parse
from runner.dataset.request import split_words
from runner.errors import ConfigError, EnvironmentFault, RunnerError, code_of, fault, read_error
from runner.generate.budget import evaluation_budget
from runner.io.files import display_path, read_json
from runner.io.terminal import print_error, print_visible
from runner.launch import axis, stages
from runner.launch.grid import compose_jobs
from runner.launch.plan import LiveProgress, Plan, Stages, Task, state_of, tasks_of
from runner.launch.pool import Pool, confine, idle_devices, settings_of
from runner.launch.queue import Submission
from runner.launch.worker import is_finished, launch
from runner.report.objective import choose_objective
from runner.run import Run, open_run
from runner.run.continuation import find_offer
from runner.run.disk import describe_lone_locks, full, is_full
from runner.run.key import folder_of
from runner.run.read import finished, one_line, read_run
from runner.run.seal import sealed_checkpoints
from runner.validate.context import OWN
from runner.validate.start import HERE, check_ahead, settle_hub

# The errors of a place where no folder can be made, however much room there is.
NO_FOLDER = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
Report = Callable[[Path], str]  # turns the folder that holds the runs of a sweep into the text that ends it


def start_runs(runs: Sequence[Composed], *, dry_run: bool = False, debug: bool = False) -> int:
    """Train one run here, unless it is finished; or stages, and what has a time limit, like the jobs of a sweep."""
    tasks = tasks_of([runs])
    check_ahead([runs])
    launcher = runs[0].cfg["launcher"]
    settings = settings_of(launcher | {"jobs": 1}, runs, attached=True, debug=debug)
    queue = _queue_of(runs)
    pooled = "stages" if runs[0].stage else "launcher.timeout_seconds" if launcher.get("timeout_seconds") else ""
    if pooled or queue:
        _refuse_several_processes(pooled or "launcher", runs[0].machines)
    _print_notes(tasks)
    if dry_run:
        return _show(Plan(tasks), queue)
    _settle_hub(runs)
    with _folder_errors(runs[0]):
        print(idle_devices(settings, runs[0].cfg), end="")
        if pooled or queue:
            show = LiveProgress(Plan(tasks), 1) if queue and queue.wait else Stages(tasks)
            return _exit_code(*(Submission(tasks, queue, show) if queue else Pool(tasks, settings, show)).run())
        # The number of this machine is no part of the run, whose folder all of them open.
        one = {"machine_rank": None} if "machine_rank" in launcher else {}
        run = open_run(runs[0].cfg | {"launcher": launcher | one}, runs[0].overrides, runs[0].command, runs[0].choices)
        if is_finished(run):
            print(finished(run))
            return 0
        if offer := find_offer(run.cfg, run.folder) if not sealed_checkpoints(run.checkpoints) else "":
            print(f"note      {offer}")
        print(f"run       {run}", flush=True)
        confine(0, settings, run.cfg)
        code = launch(run, settings.debug, launcher)
        if code == 0 and config.world_size() == 1:
            _check_objective([run.folder])
        return code


def start_sweep(
    overrides: Sequence[str], folders: Sequence[Path], report: Report, *, dry_run: bool = False, debug: bool = False
) -> int:
    """Check every job of a sweep before the first one starts, print the plan, and train what is left of it."""
    _refuse_several_processes("a sweep")
    typed = latest(overrides)
    axes, plugins = axis.read_sweep(overrides, folders)
    untyped = axis.untyped_keys(axes, typed)
    if axis.SWEEPER in plugins:  # it chooses the jobs, of which only the first is known before
        runs = stages.compose_runs(axis.first_of([*axes, *typed]), folders, untyped)
        _queue_of(runs, plugins)
        check_ahead([runs], elsewhere=True)
        if dry_run:
            raise ConfigError(fault("launch.unknown_jobs"))
        group, job = folder_of(runs[0].cfg, []).parent, Job(folders, debug, typed=tuple(typed))
        return _start_plugin(job, typed, lambda: [path.parent for path in group.glob("*/status.json")], report)
    overrides = [each.input_line for each in parse(latest([*axes, *typed])) if not each.is_hydra_override()]
    jobs = compose_jobs(overrides, folders, untyped)
    tasks = tasks_of(jobs)
    _refuse_several_processes("a sweep", max(run.machines for runs in jobs for run in runs))
    check_ahead(jobs, elsewhere=bool(plugins))
    settings = settings_of(jobs[0][0].cfg["launcher"], [run for runs in jobs for run in runs], debug=debug)
    queue = _queue_of([run for runs in jobs for run in runs], plugins)
    plan = Plan(tasks, axis.axes(overrides))
    print(plan)
    _print_notes(tasks)
    if dry_run:
        return _show(plan, queue)
    ends = [folder_of(runs[-1].cfg, runs[-1].overrides) for runs in jobs]
    if plugins:
        return _start_plugin(Job(folders, debug, False, tuple(typed)), typed, lambda: ends, report)
    _settle_hub([run for runs in jobs for run in runs])
    with _folder_errors(jobs[0][0]):
        print(idle_devices(settings, jobs[0][0].cfg), end="")
        show = LiveProgress(plan, settings.jobs)
        codes, signals = (Submission(tasks, queue, show) if queue else Pool(tasks, settings, show)).run()
    if signals or not queue or len(codes) == len(tasks):
        count = sum(codes.get(folder) == 0 for folder in ends)
        _print_end(ends, count, report, "staged runs" if jobs[0][0].stage else "runs")
    if signals:
        print("next      the same command, which goes on with what is not finished")
    return _exit_code(codes, signals)


def _queue_of(runs: Sequence[Composed], plugins: Sequence[str] = ()) -> Any:
    queued = [run.cfg["launcher"] for run in runs if "wait" in run.cfg["launcher"]]
    if queued and (plugins or len({run.cfg["launcher"]["_target_"] for run in runs}) > 1):
        raise ConfigError(fault("launch.other_launcher", other=plugins[0] if plugins else "another launcher"))
    strange = {key for each in queued for key in {*each} & {*OWN["launcher"]} - asked_for(each["_target_"])}
    ConfigError.refuse(fault("launch.of_the_pool", key=key) for key in sorted(strange))
    return next(iter([build(launcher) for launcher in queued]), None)


def _settle_hub(runs: Sequence[Composed]) -> None:
    here = [run for run in runs if run.choices.get("launcher", "local") in HERE]
    folders = [(run, folder_of(run.cfg, run.overrides).absolute()) for run in here]
    settle_hub([run.cfg for run, folder in folders if Run(folder).status()["state"] != "finished"])


def _print_notes(tasks: Sequence[Task]) -> None:
    runs = [task.composed for task in tasks if state_of(task.folder) != "finished"]
    lines = [f"note      {run.stage and f'{run.stage}: '}{run.note}" for run in runs if run.note]
    lines += [f"speed     {run.stage and f'{run.stage}: '}{line}" for run in runs for line in run.speed]
    for each in (run for run in runs if run.machines > 1):
        cfg, launcher = each.cfg, each.cfg["launcher"]
        part = f"{processes_here(cfg)} of {processes_of(cfg)} processes; they meet at {rendezvous_of(launcher)}"
        lines.append(f"note      machine {rank_of(launcher)[0]} of {each.machines}, with {part}")
    places = map(describe_lone_locks, map(Path, dict.fromkeys(str(run.cfg["output_root"]) for run in runs)))
    for place in filter(None, places):
        lines.append(f"note      {place}: other machines may not see that a run is in use; start it from one")
    rows = [run.cfg["dataset"] for run in runs if not run.cfg["dataset"].get("streaming")]
    if {"train": "train", "eval": None} in [each.get("split") for each in rows]:
        lines.append(f"note      no rows are held out; {split_words(share=80)}")
    lines += [line for run in runs if (budget := evaluation_budget(run.cfg)) for line in budget.lines()]
    print("".join(f"{line}\n" for line in dict.fromkeys(lines)), end="")


def _show(plan: Plan, queue: Any = None) -> int:
    # Asked at a real start alone: the hub for a repository to push to, which makes it; torch for the names of devices,
    # which wakes them; the disk for the size of checkpoints, and the weights and rows themselves, which are loaded.
    for task in plan.tasks:
        is_finished(Run(task.folder.absolute()))
    print("\n".join(plan.lines()))
    there = ("finished", "queued", "running")
    if queue and (new := [task for task in plan.tasks if state_of(task.folder) not in there]):
        print(queue.preview(new), end="")
    return 0


def _print_end(ends: Sequence[Path], count: int, report: Report, runs: str = "runs") -> None:
    for group in filter(Path.is_dir, dict.fromkeys(folder.parent for folder in ends)):
        print_visible(report(group))
    print(f"{count} of {len(ends)} {runs} finished")
    if count == len(ends):
        _check_objective(ends)


def _check_objective(folders: Sequence[Path]) -> None:
    """Raise ConfigError where finished runs lack the figure that their configuration is to be ranked by.

    Only their logs tell: nobody knows before what a trainer, a reward or a callback will log.
    """
    runs = [run for run in map(read_run, folders) if run.state == "finished"]
    name = next((run.cfg["objective"] for run in runs if run.cfg.get("objective")), None)
    try:
        if name is not None:
            choose_objective(runs, name)
    except ConfigError as error:
        (missing,) = error.faults
        group = display_path(runs[0].folder.parent)
        raise ConfigError(replace(missing, fix=f"python -m runner report {group} {missing.fix}")) from error


@dataclass(frozen=True)
class Job:
    """The function that Hydra calls for each job, perhaps in another process: trains the run, returns its objective.

    That is the score of the finished run that a search looks at, None where none is named; ConfigError where it has no
    such number. What is finished is skipped, so that a search that draws the same values finds their results there.
    ``tells`` is for a search, which must hear of a run that has failed; Hydra would give up a grid because of it.
    ``typed`` are the words of the command line: Hydra makes others of what any file says to its sweeper.
    """

    folders: Sequence[Path] = ()
    debug: bool = False
    tells: bool = True
    typed: Sequence[str] = ()

    def __call__(self, cfg: object) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        try:
            words = list(HydraConfig.get().overrides.task)
            runs = stages.compose_runs(words, self.folders, axis.untyped_keys(words, self.typed))
            tasks = tasks_of([runs])
            settings = settings_of(runs[0].cfg["launcher"] | {"jobs": 1}, runs, attached=True, debug=self.debug)
            codes, signals = Pool(tasks, settings, Stages(tasks)).run()
            if signals:
                raise KeyboardInterrupt
            if any(codes.values()):
                if not self.tells:
                    return None
                raise ChildProcessError(f"{tasks[-1].folder} has failed")
            if (name := runs[-1].cfg.get("objective")) is None:
                return None
            scores = (read_json(tasks[-1].folder / "scores.json") or {}).get("after") or {}
            if not isinstance(score := scores.get(name), int | float) or not math.isfinite(score):
                known = ", ".join(sorted(scores)) or "nothing"
                raise ConfigError(fault("launch.no_objective", run=tasks[-1].folder, name=name, known=known))
            return float(score)
        except RunnerError as error:
            print_error(error)  # Hydra tells it late, or not at all
            raise


def _start_plugin(job: Job, overrides: Sequence[str], find_ends: Callable[[], list[Path]], report: Report) -> int:
    began, code = time.time(), 0
    try:
        config.call_hydra(job, ["--multirun"], overrides, job.folders)
    except KeyboardInterrupt:
        code = 130
    ends = sorted(find_ends())
    states = {folder: Run(folder.absolute()).status() for folder in ends}
    for folder, status in states.items():
        if status["state"] == "failed" and (folder / "status.json").stat().st_mtime >= began:
            cause = str(status["cause"])
            print(f"failed    {Run(folder.absolute())}: {one_line(cause, heading=False)}")
            code = code or type(read_error(cause, 1)).code
    _print_end(ends, [status["state"] for status in states.values()].count("finished"), report)
    return code


def _exit_code(codes: Mapping[Path, int], signals: Sequence[int]) -> int:
    return code_of(signals[0]) if signals else next((code for code in codes.values() if code), 0)


def _refuse_several_processes(what: str, machines: int = 1) -> None:
    if (world := config.world_size()) > 1:
        raise ConfigError(fault("launch.several_processes", where=what, world=world))
    if machines > 1:
        fix = "launcher.num_machines=1 launcher.rendezvous=null  (on each machine: they share the runs)"
        fix = f"{what}=null" if what.startswith("launcher.") else fix
        raise ConfigError(fault("launch.several_machines", where=what, machines=machines, fix=fix))


@contextlib.contextmanager
def _folder_errors(composed: Composed) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{composed.cfg['output_root']}/{composed.cfg['name']}"
        if error.errno not in NO_FOLDER and is_full(error, Path(where)):
            raise full(Run(Path(where)), error) from error
        raise EnvironmentFault(fault("launch.no_place", where=where, error=error)) from error
