"""The environment of an experiment against its trainer, its rows and its rewards.

A source among the runner's own may say more of its settings (``find_faults``), without its package.
"""

from collections.abc import Iterator

from runner.config.sampler_choice import has_several_turns
from runner.dataset.form import fits
from runner.errors import Fault
from runner.generate import ENVIRONMENT_ROWS
from runner.schema.source import find_definition, has_method
from runner.validate.context import ValidationContext, is_given

OURS = "runner.generate.environment."
# Arguments of a trainer in whose place the environment stands.
PLACES = ("environment_factory", "rollout_func")


def find_episode_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each part that does not go together with the environment."""
    environment = context.mapping("environment")
    target = environment.get("_target_")
    has_its_rows = context.mapping("dataset").get("_target_") == ENVIRONMENT_ROWS
    if not isinstance(target, str):
        if has_its_rows:
            yield Fault(
                where="environment",
                found="none, but dataset=environment takes its rows from one",
                expected="an environment that makes rows",
                fix=f"=<{' | '.join(context.options('environment'))}>, or dataset=<another>",
            )
        return
    if find_definition(target) is None:
        return
    name = target.rpartition(".")[2]
    makes_rows = has_method(target, "make")
    if makes_rows and not has_its_rows:
        yield Fault(
            where="dataset",
            found=f"rows of their own, but {name} makes its rows",
            expected="one of them",
            fix="dataset=environment, or environment=none",
        )
    elif has_its_rows and not makes_rows:
        yield Fault(
            where="environment",
            found=f"{name} makes no rows",
            expected="a class with rows and make, or rows of a dataset",
            fix="dataset=<option>",
        )
    yield from _find_trainer_faults(context, target, name)


def find_source_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each setting of an environment of ours that its package does not take."""
    environment = context.mapping("environment")
    target = environment.get("_target_")
    if not isinstance(target, str) or not target.startswith(OURS):
        return
    if has_method(target, "find_faults"):
        from runner.config.build import locate

        yield from locate(target).find_faults(environment)


def _find_trainer_faults(context: ValidationContext, target: str, name: str) -> Iterator[Fault]:
    """The faults of a trainer that cannot play episodes, or was given some to play."""
    trainer = context.trainer
    if trainer is None:
        return
    node = context.mapping("trainer")
    plays = "environment_factory" in trainer.parameters
    if not plays and "reward_funcs" not in trainer.parameters:
        # It may learn from the answers that the rows hold.
        is_demonstrated = fits("prompt_completion", node.get("form"))
        if not is_demonstrated or context.mapping("dataset").get("form") != "prompt_completion":
            yield Fault(
                where="environment",
                found=f"set, but {trainer.name} learns from no rewards",
                expected="a trainer that samples",
                fix="trainer=grpo, or environment=none",
            )
    elif not plays and has_several_turns(target):
        yield Fault(
            where="environment",
            found=f"{trainer.name} samples one turn, but episodes of {name} have several",
            expected="a trainer that plays episodes",
            fix="trainer=grpo",
        )
    elif has_several_turns(target) and context.field("use_vllm") is True:
        yield Fault(
            where="trainer.args.use_vllm",
            found="true, but the runner samples episodes of several turns",
            expected="false",
            fix="=false",
        )
    for key in PLACES:
        if is_given(node.get(key)):
            yield Fault(
                where=f"trainer.{key}",
                found="set, beside environment",
                expected="one environment",
                fix=f"leave trainer.{key} out, or environment=none",
            )
    if context.args.get("reward_weights"):
        yield Fault(
            where="trainer.args.reward_weights",
            found="set, but the environment has rewards, too",
            expected="the weights of each by their names",
            fix="environment.weights.<name>=<weight>, reward.<name>.weight=<weight>",
        )
