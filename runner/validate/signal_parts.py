"""``trainer.dynamic_sampling`` and ``trainer.curriculum`` against what trains and samples."""

from collections.abc import Iterator

from runner.config.sampler import VLLM
from runner.errors import Fault
from runner.schema import upstream
from runner.validate.context import ARGS, ValidationContext

# The keys by which the runner chooses prompts, each with the value that switches it off.
DYNAMIC_SAMPLING = "dynamic_sampling"
CURRICULUM = "curriculum"
OFF = {DYNAMIC_SAMPLING: "=0", CURRICULUM: "=null"}
# Keys by which somebody else writes the completions of a trainer.
ELSEWHERE = ("tools", "environment_factory", "rollout_func")


def find_signal_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each thing that keeps the runner from choosing the prompts of a trainer."""
    trainer = context.trainer
    for name in OFF:
        if trainer is None or not context.mapping("trainer").get(name):
            continue
        if upstream.samples_groups(trainer.name):
            yield from _find_faults_of_sampling(context, name)
        elif not context.has_field("num_ppo_epochs"):
            yield Fault(
                where=f"trainer.{name}",
                found=f"set, but {trainer.name} does not learn from groups of rewarded completions",
                expected="GRPO, RLOO or PPO",
                fix=OFF[name],
            )
        if context.mapping("dataset").get("streaming"):
            yield Fault(
                where=f"trainer.{name}",
                found="set, but it draws prompts from stored rows, and not from a stream",
                expected="dataset.streaming=false",
                fix="dataset.streaming=false",
            )


def _find_faults_of_sampling(context: ValidationContext, name: str) -> Iterator[Fault]:
    """A fault for each thing that keeps the runner from sampling for a trainer of TRL."""
    node = context.mapping("trainer")
    where = f"trainer.{name}"
    ppo = "trainer=ppo trainer.args.num_generations=8 "
    ppo += f"{ARGS}dynamic_sampling=3" if name == DYNAMIC_SAMPLING else f"{where}={node[name]}"
    if context.field("use_vllm") is True or node.get("sampler") == VLLM:
        yield Fault(
            where=where,
            found="set, but vLLM samples, which TRL asks by itself",
            expected="trainer.sampler=runner or transformers",
            fix=f"trainer.sampler=auto {ARGS}use_vllm=false",
        )
    users = [user for user in ELSEWHERE if node.get(user)]
    if context.cfg.get("environment"):
        users.append("environment")
    for user in users:
        yield Fault(
            where=where,
            found=f"set, but {user} answers the completions",
            expected="completions of one turn, or PPO, which does it with episodes as well",
            fix=f"{OFF[name]}, or {ppo}",
        )
    for field in ("fsdp", "deepspeed"):
        if context.args.get(field):
            yield Fault(
                where=where,
                found=f"set, but {ARGS}{field} shards the model, so that all processes sample "
                "together",
                expected="a model that each process has whole",
                fix=f"{OFF[name]}, or {ppo}",
            )
