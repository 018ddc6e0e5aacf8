"""The help of the verb ``report``, and its options."""

from dataclasses import dataclass

from runner.command import VERBS
from runner.schema.ranges import Count

HELP = (
    VERBS["report"] + ": a table here, a page, pictures and files beside the runs.",
    """\
python -m runner report                                    what there is under outputs/
python -m runner report outputs/<name>                     all runs of a name, side by side
python -m runner report outputs/<name> objective=eval_loss direction=min
python -m runner report outputs/<name> where='state=finished,kl_coef>0.1' sort=eval_loss top=50
python -m runner report outputs/<name>/<run>               one run""",
    {
        "objective=eval_loss": "the score that says which setting is best; direction=max or min, "
        "which way",
        "where=state=failed": "only runs that meet this, or all of several with commas between. "
        "With = != > < >= <= between a key and a value; a key is one that the report shows, a "
        "dotted key of the config or its end, the name of a score, or run, state, step, "
        "max_steps, started, updated, cause",
        "sort=kl_coef": "the order of the table, the page and the files: of a score the best "
        "first, of any other key the smallest; direction=max or min turns it. What is best is "
        "still said by objective",
        "top=50": "settings in the table and on the page; all are in summary.csv, .jsonl and "
        ".parquet",
        "output_root=outputs": "where names and keys of runs are looked up",
    },
)


@dataclass(frozen=True)
class Options:
    """The options of ``report``."""

    objective: str | None = None
    direction: str | None = None
    where: str | None = None
    sort: str | None = None
    top: Count | None = None
    output_root: str = "outputs"
