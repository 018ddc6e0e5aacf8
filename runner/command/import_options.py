"""The help of the verb ``import``, and its options."""

from dataclasses import dataclass

HELP = (
    """\
Somebody else's configuration -> an experiment of ours; and what became of
each of its keys.""",
    """\
python -m runner import axolotl.yml
python -m runner import train.sh name=mine         conf/experiment/mine.yaml
python -m runner import notebook.ipynb
python -m runner import train.sh to=my/experiment/mine.yaml force=true
python -m runner import recipes/                   all files of a folder
python -m runner import dpo.yaml dialect=trl trainer=dpo""",
    """\
Reads YAML, JSON and shell scripts of Axolotl, LLaMA-Factory, ms-swift, verl,
OpenRLHF, torchtune, open-instruct, Unsloth, TRL's command line, and recipes for
it (alignment-handbook, open-r1, SimPO); and Python scripts and notebooks that
call TRL's trainers or Unsloth, of which nothing is run. Whose it is follows from
its keys and calls, or from dialect=axolotl, llama_factory, llama_factory_v1,
open_instruct, openrlhf, swift, torchtune, trl, trl_script, unsloth, verl or
verl_sft; trainer= is for files that do not say. Of a script those branches are
taken that its variables decide; branch=1,0 chooses among others.""",
    """\
It is written into conf/experiment/ of this folder (to=none only prints it), and
printed with the command that trains it. Of a folder all files that train are
written, and a table says how much of each came over. Nothing that is there is
overwritten without force=true. Each key is listed as mapped, as the same by
default, as without equivalent, or as being of the machine and not of the
experiment. Files of DeepSpeed and accelerate, and the keys of FSDP, become
words to type.""",
)


@dataclass(frozen=True)
class Options:
    """The options of ``import``."""

    to: str | None = None
    name: str | None = None
    dialect: str | None = None
    trainer: str | None = None
    branch: str | None = None
    force: bool = False
