"""Composed runs, or the overrides of a sweep -> checked and started, in this process or in others.

Each function returns an exit code of ``errors``. ``--dry-run`` ends after the check, with the plan.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from runner.config.machines import world_size
from runner.config.override import latest, parse
from runner.config.resolution import Composed
from runner.errors import ConfigError, Fault, code_of
from runner.launch.by_launcher import launch
from runner.launch.compose import stages, sweep_axes
from runner.launch.compose.grid import compose_jobs
from runner.launch.ends import Report, check_ranking_score, print_end
from runner.launch.hydra_plugin import Job, start_plugin
from runner.launch.notes import print_notes
from runner.launch.plan import Plan, share_name, state_of, tasks_of
from runner.launch.pool import Pool
from runner.launch.pool_settings import Settings, confine, idle_devices, settings_of
from runner.launch.progress import LiveProgress, Stages
from runner.launch.queue import ClusterQueue, Submission, queue_of
from runner.run import Run, open_run
from runner.run.completion import finished, is_finished
from runner.run.continuation import find_offer
from runner.run.disk import folder_errors
from runner.run.key import folder_of, folders_of
from runner.run.record import read_run
from runner.run.seal import sealed_checkpoints
from runner.validate.hub_names import settle_hub_here
from runner.validate.start import check_ahead


def start_runs(runs: Sequence[Composed], *, dry_run: bool = False, debug: bool = False) -> int:
    """Train one run here, unless it is finished.

    Stages, and a run with a time limit, are trained like the jobs of a sweep.
    """
    tasks = tasks_of([runs])
    check_ahead([runs])
    launcher = runs[0].experiment.launcher
    settings = settings_of(launcher, runs, attached=True, debug=debug)
    queue = queue_of(runs)
    why_pooled = ""
    if runs[0].stage:
        why_pooled = "stages"
    elif launcher.timeout_seconds:
        why_pooled = "launcher.timeout_seconds"
    if why_pooled or queue:
        _refuse_several_processes(why_pooled or "launcher", runs[0].machines)
    plan = Plan(tasks)
    print_notes(plan)
    if dry_run:
        return _show(plan, queue)
    settle_hub_here(runs)
    with folder_errors(_group_of(runs[0])):
        print(idle_devices(settings, runs[0].experiment.model), end="")
        if not queue and not why_pooled:
            return _train_here(runs[0], settings)
        if queue:
            show = LiveProgress(plan, 1) if queue.wait else Stages(tasks)
            codes, signals = Submission(tasks, queue, show).run()
        else:
            codes, signals = Pool(tasks, settings, Stages(tasks)).run()
        last = tasks[-1].folder
        if not signals and codes.get(last) == 0:
            check_ranking_score([read_run(last)])
        return _exit_code(codes, signals)


def _train_here(composed: Composed, settings: Settings) -> int:
    """Train a run by its launcher, without a pool around it."""
    launcher = composed.experiment.launcher
    frozen = dict(launcher.node)
    if "machine_rank" in frozen:  # it is no part of the run, whose folder all machines open
        frozen["machine_rank"] = None
    run = open_run(
        composed.cfg | {"launcher": frozen}, composed.overrides, composed.command, composed.choices
    )
    if is_finished(run):
        print(finished(run))
        return 0
    if not sealed_checkpoints(run.checkpoints):
        offer = find_offer(run.experiment, run.folder)
        if offer:
            print(f"note      {offer}")
    print(f"run       {run}", flush=True)
    confine(0, settings, run.experiment)
    code = launch(run, settings.debug, launcher)
    if code == 0 and world_size() == 1:
        check_ranking_score([read_run(run.folder)])
    return code


def start_sweep(
    overrides: Sequence[str],
    folders: Sequence[Path],
    report: Report,
    *,
    dry_run: bool = False,
    debug: bool = False,
) -> int:
    """Check every job of a sweep before the first starts, print the plan, and train the rest."""
    _refuse_several_processes("a sweep")
    typed = latest(overrides)
    sweep = sweep_axes.read_sweep(overrides, folders)
    untyped = sweep_axes.untyped_keys(sweep.axes, typed)
    if sweep_axes.SWEEPER in sweep.plugins:
        words = sweep_axes.first_of([*sweep.axes, *typed])
        first_job = stages.compose_runs(words, folders, untyped)
        queue_of(first_job, sweep.plugins)  # refuses one
        check_ahead([first_job], elsewhere=True)
        if dry_run:
            raise ConfigError(
                Fault(
                    where="--dry-run",
                    found="a plugin chooses the jobs while they run",
                    expected="a sweep of ours",
                )
            )
        search_job = Job(folders, debug, typed=tuple(typed))
        find_ends = partial(_find_group_runs, folder_of(first_job[0].cfg, []).parent)
        return start_plugin(search_job, typed, find_ends, report)

    parsed = parse(latest([*sweep.axes, *typed]))
    words = [str(word.input_line) for word in parsed if not word.is_hydra_override()]
    jobs = compose_jobs(words, folders, untyped)
    # Plugins compose each job by itself.
    folders_by_run = folders_of(jobs) if sweep.plugins else share_name(jobs)
    runs = list(chain.from_iterable(jobs))
    tasks = tasks_of(jobs, folders_by_run)
    _refuse_several_processes("a sweep", max(run.machines for run in runs))
    check_ahead(jobs, elsewhere=bool(sweep.plugins), folders=folders_by_run)
    settings = settings_of(runs[0].experiment.launcher, runs, debug=debug)
    queue = queue_of(runs, sweep.plugins)
    plan = Plan(tasks, sweep_axes.axes(words))
    print(plan)
    print_notes(plan)
    if dry_run:
        return _show(plan, queue)
    if sweep.plugins:
        plugin_job = Job(folders, debug, tells=False, typed=tuple(typed))
        return start_plugin(plugin_job, typed, partial(_find_ends, jobs), report)
    ends = [folders_by_run[id(runs_of_job[-1])] for runs_of_job in jobs]
    settle_hub_here(runs)
    with folder_errors(_group_of(runs[0])):
        print(idle_devices(settings, runs[0].experiment.model), end="")
        show = LiveProgress(plan, settings.jobs)
        if queue:
            codes, signals = Submission(tasks, queue, show).run()
        else:
            codes, signals = Pool(tasks, settings, show).run()
    # A queue that is not waited for has no end to tell.
    if signals or not queue or len(codes) == len(tasks):
        count = sum(codes.get(folder) == 0 for folder in ends)
        print_end(ends, count, report, "staged runs" if runs[0].stage else "runs")
    if signals:
        print("next      the same command, which continues with what is not finished")
    return _exit_code(codes, signals)


def _find_ends(jobs: Sequence[Sequence[Composed]]) -> list[Path]:
    """The folder of the last run of each job."""
    return [folder_of(runs[-1].cfg, runs[-1].overrides) for runs in jobs]


def _find_group_runs(group: Path) -> list[Path]:
    """The folders of all runs in a group."""
    return [path.parent for path in group.glob("*/status.json")]


def _show(plan: Plan, queue: ClusterQueue | None = None) -> int:
    """Print the state of each run, and what would be submitted to a queue.

    Asked at a real start alone: the hub for a repository to push to, which makes it; torch for the
    names of devices, which wakes them; the disk for the size of checkpoints, and the weights and
    rows themselves, which are loaded.
    """
    for task in plan.tasks:
        is_finished(Run(task.folder.absolute()))  # refuses a damaged model
    print("\n".join(plan.lines()))
    if queue:
        started = ("finished", "queued", "running")
        new = [task for task in plan.tasks if state_of(task.folder) not in started]
        if new:
            print(queue.preview(new), end="")
    return 0


def _exit_code(codes: Mapping[Path, int], signals: Sequence[int]) -> int:
    """The code of the first signal, or else of the first run that has failed."""
    if signals:
        return code_of(signals[0])
    return next(filter(None, codes.values()), 0)


def _refuse_several_processes(what: str, machines: int = 1) -> None:
    """Raise ConfigError where several processes or machines have been given the same command."""
    world = world_size()
    if world > 1:
        raise ConfigError(
            Fault(
                where=what,
                found=f"in each of {world} processes that torchrun or a similar launcher started",
                expected="one process, which starts the processes of each run",
                fix=f"python -m runner <the same words> launcher.num_processes={world}",
            )
        )
    if machines > 1:
        fix = (
            "launcher.num_machines=1 launcher.rendezvous=null  (on each machine: they share the "
            "runs)"
        )
        if what.startswith("launcher."):
            fix = f"{what}=null"
        raise ConfigError(
            Fault(
                where=what,
                found=f"on {machines} machines together",
                expected="one run, or one machine for each",
                fix=fix,
            )
        )


def _group_of(composed: Composed) -> str:
    """The folder of the runs of one name, as it is written."""
    return f"{composed.experiment.output_root}/{composed.experiment.name}"
