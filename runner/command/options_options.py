"""The help of the verb ``options``."""

from runner.command import VERBS

HELP = (
    "python -m runner options [GROUP | OPTION | KEY ...]",
    VERBS["options"] + ". One word of a command chooses it, as in trainer=dpo. The options in "
    "folders that --config-dir names are among them. The name of an option, or of a key such as "
    "learning_rate, is found in all of them: what to type, and with which trainers.",
)
