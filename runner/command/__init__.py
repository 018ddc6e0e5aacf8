"""The verbs, one file each, whose function ``main`` does the work. Only here do the parts meet.

Beside a verb, ``<verb>_options`` holds its help, and its options as a dataclass. Files that begin
with an underscore hold what several verbs need.

A new verb is a line in ``VERBS``, and these two files: ``main(line: CommandLine) -> int`` in one,
in the other ``HELP``, a tuple of texts and of mappings from an example to what it does, and
``Options``, which extends ``AskOptions`` where a model is asked. A verb that loads a model stands
in ``WORKING`` too.
"""

from dataclasses import dataclass, field
from pathlib import Path

# The verbs with the first words of their help.
VERBS = {
    "cancel": "Takes runs out of the queue of a cluster",
    "chat": "Talks with a trained model in the terminal",
    "clean": "Deletes runs, or a part of them, after it has listed them",
    "diff": "Tells in what two runs differ",
    "evaluate": "Measures a trained model on held-out rows",
    "export": "Writes the model of a finished run for others",
    "import": "Somebody else's configuration -> an experiment of ours",
    "options": "Lists every option of the groups, with what it is",
    "predict": "Has a trained model answer",
    "preview": "Shows some rows as the model will see them",
    "rehearse": "Plays a run through in seconds before it takes days",
    "report": "Shows runs, side by side or one by one",
    "reproduce": "Trains a finished run again and compares",
    "schema": "Writes JSON Schemas for editors",
    "serve": "Serves a trained model to programs that speak OpenAI's interface",
    "sync": "Sends runs that are over to a tracker",
    "train": "Trains one language model, or sweeps over many, from options that go together",
    "watch": "Shows runs in a browser while they train",
    "why": "Tells where the value of a key comes from",
}
# Verbs that begin a training or load a model. Faults of the environment's variables, which the
# libraries would only notice later, are reported before these begin; ``train`` looks by itself.
WORKING = frozenset(
    {"chat", "evaluate", "export", "predict", "preview", "rehearse", "reproduce", "serve"}
)

OF_ROWS = ("dataset", "metric", "reward", "quant")  # groups that verbs of a trained model take
# Flags with which Hydra only prints something; others of that kind take a value.
PRINTING = (
    ("--help", "-h"),
    ("--hydra-help",),
    ("--version",),
    ("--resolve",),
)
CFG = ("job", "hydra", "all")


@dataclass(frozen=True)
class CommandLine:
    """The words of a command, sorted."""

    verb: str
    overrides: list[str]
    runs: list[str] = field(default_factory=list)  # words that are neither overrides nor flags
    folders: list[Path] = field(default_factory=list)  # of ``--config-dir``, or the one found here
    # Lines that say which files of the user's are read besides those that were typed, and how.
    notes: list[str] = field(default_factory=list)
    multirun: bool = False
    dry_run: bool = False
    debug: bool = False
    inspect: list[str] = field(default_factory=list)  # flags with which Hydra only prints something
