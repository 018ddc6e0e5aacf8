"""The notes on runs that a command is about to start, as they are printed."""

from collections.abc import Iterator

from runner.config.machines import rank_of, rendezvous_of
from runner.config.resolution import Composed
from runner.dataset.request import split_words
from runner.generate.budget import evaluation_budget
from runner.launch.plan import Plan
from runner.run.disk import describe_lone_locks


def print_notes(plan: Plan) -> None:
    """Print, each once, the notes on runs that are not finished.

    The jobs of a sweep have most notes in common; a line that several runs say is printed where it
    comes first.
    """
    all_runs = [task.composed for task in plan.tasks]
    runs = plan.unfinished
    # Those that go on with the learning rate that they began with.
    begun = [run for run in all_runs if run.rate and run.rate.begun]
    # A line on a stage of a chain begins with its name.
    stages = {run.stage for run in all_runs}
    titles = {stage: f"{stage}: " if stage else "" for stage in stages}
    lines = [f"note      {titles[run.stage]}{run.note}" for run in runs if run.note]
    for run in [*begun, *runs]:
        title = titles[run.stage]
        lines += _describe_choices(run, title)
    for run in runs:
        title = titles[run.stage]
        lines += [f"start     {title}{line}" for line in run.starts]
        lines += [f"speed     {title}{line}" for line in run.speed]
    lines += [_describe_machine(run) for run in runs if run.machines > 1]
    roots = dict.fromkeys(run.experiment.root for run in runs)
    for root in roots:
        place = describe_lone_locks(root)
        if place:
            lines.append(
                f"note      {place}: other machines may not see that a run is in use; start it "
                "from one machine only"
            )
    datasets = [run.experiment.dataset.node for run in runs]
    # A stream has no length, of which a share could be held out.
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
    """A line on the part that this machine takes in a run on several."""
    launcher = run.experiment.launcher
    rank, _ = rank_of(launcher.node)
    meeting_place = rendezvous_of(launcher.node)
    return (
        f"note      machine {rank} of {run.machines}, with {launcher.num_processes} of "
        f"{launcher.all_processes} processes; they meet at {meeting_place}"
    )
