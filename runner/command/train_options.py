"""The help of the verb ``train``."""

from runner.command import VERBS

HELP = (
    VERBS["train"] + ".",
    """\
  python -m runner                                    a toy, offline, on CPU
  python -m runner trainer=dpo dataset=ultrafeedback model=qwen3_0_6b peft=lora
  python -m runner dataset=rows.jsonl model=org/name  your own rows, any model
  python -m runner -m kl_coef=0.05,0.1 seed=0,1       a sweep
  python -m runner experiment=toy_dpo                 a checked-in experiment
  python -m runner own.yaml seed=1                    your file, another tool's""",
    """\
The same command again continues what was interrupted, and leaves alone what is
finished. Runs are in outputs/<name>/.""",
    """\
Verbs; more on each: python -m runner VERB --help
{verbs}""",
    """\
Groups; all options of each: python -m runner options [GROUP]
{groups}""",
    """\
Keys
  learning_rate=1e-6 kl_coef=0.05    of every trainer that has them
  trainer.args.max_steps=50          any field of TRL's config for the trainer;
                                     all: python -m runner why trainer.args
  model.path= dataset.path= peft.r=  any argument of what an option builds
  launcher.num_processes=2           processes, each with a device of its own
  name=mine seed=0 output_root=outputs""",
    """\
Flags
  -m                a sweep, over each key that has several values
  --dry-run         check what needs no loading, print the plan, start nothing
  --cfg job         print the configuration
  --config-dir DIR  your own groups and options; without it those in conf/ here
  --debug           tracebacks
  --version         of the runner and its libraries
  --shell-completion bash  a script that completes words; zsh and fish, too""",
)
