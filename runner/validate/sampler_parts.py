"""The sampler of a trainer against the trainer, and against what it would have to sample."""

from collections.abc import Iterator

from runner.config.sampler import LIBRARY, RUNNER, SAMPLER, SAMPLER_KEY, VLLM
from runner.config.sampler_choice import find_sampler_lacks, has_several_turns
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.read import Signature
from runner.validate.context import ARGS, ValidationContext


def find_sampler_faults(context: ValidationContext) -> Iterator[Fault]:
    """The fault of a sampler that the trainer cannot have, or that would sample something else."""
    sampler = context.mapping("trainer").get(SAMPLER)
    trainer = context.trainer
    if sampler not in (RUNNER, LIBRARY, VLLM) or trainer is None:
        return
    if not upstream.calls_generate(upstream.config_fields(context.args)):
        yield _not_taken(context, trainer, sampler)
        return
    plays_episodes = has_several_turns(context.mapping("environment").get("_target_"))
    use_vllm = context.field("use_vllm")
    if sampler == VLLM and not context.has_field("use_vllm"):
        yield Fault(
            where=SAMPLER_KEY,
            found=f"{VLLM}, which {trainer.name} cannot use",
            expected=f"{RUNNER} or {LIBRARY}",
            fix=f"={RUNNER}",
        )
    elif use_vllm is not None and use_vllm != (sampler == VLLM):
        yield Fault(
            where=SAMPLER_KEY,
            found=f"{sampler}, but use_vllm is {str(use_vllm).lower()}",
            expected="one of the two",
            fix=f"leave {ARGS}use_vllm out",
        )
    elif plays_episodes and sampler != RUNNER:
        yield Fault(
            where=SAMPLER_KEY,
            found=f"{sampler}, but the runner samples episodes of several turns",
            expected=RUNNER,
            fix=f"={RUNNER}",
        )
    elif sampler == RUNNER:
        for lack in find_sampler_lacks(context.cfg):
            yield Fault(
                where=SAMPLER_KEY,
                found=f"{RUNNER}, which cannot sample this: {lack}",
                expected="what it can sample" if plays_episodes else f"auto or {LIBRARY}",
                fix="leave that key out" if plays_episodes else f"={LIBRARY}",
            )


def _not_taken(context: ValidationContext, trainer: Signature, sampler: str) -> Fault:
    found = f"set, but {trainer.name} does not train on what a model samples"
    expected = "a trainer that does"
    fix = f"leave {SAMPLER_KEY} out"
    if context.has_field("rollout_engine"):
        engines = {RUNNER: "auto", LIBRARY: "generate", VLLM: "vllm"}
        found = f"set, but {trainer.name} samples by its rollout_engine"
        expected = f"{ARGS}rollout_engine"
        fix = f"{ARGS}rollout_engine={engines[sampler]} in place of it"
    elif context.has_field("vllm_server_base_url"):
        found = f"set, but {trainer.name} samples from a server of vLLM"
        expected = "none"
    return Fault(
        where=SAMPLER_KEY,
        found=found,
        expected=expected,
        fix=fix,
    )
