"""The help of the verb ``why``."""

from runner.command import VERBS

HELP = (
    "python -m runner why KEY [RUN | overrides]",
    VERBS["why"] + ": the file and line, the word of the command line, what the runner decides "
    "for this machine, or the default of what takes it, with its line in the installed source. "
    "The first line is what counts, the lines below it are what it overrode, and references such "
    "as ${learning_rate} are followed.",
    {
        "python -m runner why trainer.args.learning_rate trainer=dpo experiment=toy_dpo": "",
        "python -m runner why max_steps": "the end of a key is enough where only one key has it",
        "python -m runner why trainer trainer=grpo": "every key of a node",
        "python -m runner why ppo.kl_coef experiment=toy_rlhf": "of one stage",
        "python -m runner why learning_rate outputs/NAME/RUN": "of a run: its command is composed "
        "again, and what has changed since is said",
    },
)
