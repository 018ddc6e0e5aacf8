"""The notes on runs that a command is about to start, as they are printed."""

from collections.abc import Iterator, Sequence

from runner.config.machines import rank_of, rendezvous_of
from runner.config.resolution import Composed
from runner.dataset.request import split_words
from runner.generate.budget import evaluation_budget
from runner.launch.plan import Task, state_of
from runner.run.disk import describe_lone_locks


def print_notes(tasks: Sequence[Task]) -> None:
    """Print, each once, the notes on runs that are not finished."""
    runs = [task.composed for task in tasks if state_of(task.folder) != "finished"]
    stages = {task.composed.stage for task in tasks}
    titles = {stage: f"{stage}: " if stage else "" for stage in stages}
    lines = [f"note      {titles[run.stage]}{run.note}" for run in runs if run.note]
    begun = [task.composed for task in tasks if task.composed.rate and task.composed.rate.begun]
    for run in [*begun, *runs]:
        lines += _describe_choices(run, titles[run.stage])
    for run in runs:
        lines += [f"start     {titles[run.stage]}{line}" for line in run.starts]
        lines += [f"speed     {titles[run.stage]}{line}" for line in run.speed]
    lines += [_describe_machine(run) for run in runs if run.machines > 1]
    for root in dict.fromkeys(run.experiment.root for run in runs):
        place = describe_lone_locks(root)
        if place:
            lines.append(
                f"note      {place}: other machines may not see that a run is in use; start it "
                "from one machine only"
            )
    datasets = [run.experiment.dataset.node for run in runs]
    splits = [dataset.get("split") for dataset in datasets if not dataset.get("streaming")]
    if {"train": "train", "eval": None} in splits:
        lines.append(f"note      no rows are held out; {split_words(share=80)}")
    for run in runs:
        budget = evaluation_budget(run.experiment)
        if budget:
            lines += budget.lines()
    for line in dict.fromkeys(lines):
        print(line)


def _describe_choices(run: Composed, title: str) -> Iterator[str]:
    """A line on each value that no file and no word has set for a run."""
    if run.rate:
        yield f"rate      {title}{run.rate}"
    if run.sampler and run.sampler.begun:
        yield f"sampler   {title}{run.sampler}"


def _describe_machine(run: Composed) -> str:
    launcher = run.experiment.launcher
    rank, _ = rank_of(launcher.node)
    return (
        f"note      machine {rank} of {run.machines}, with {launcher.num_processes} of "
        f"{launcher.all_processes} processes; they meet at {rendezvous_of(launcher.node)}"
    )
