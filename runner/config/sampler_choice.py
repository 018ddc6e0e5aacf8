"""The settings of sampling that a configuration leaves to the runner."""

from collections.abc import Iterator, Mapping

from runner.config.sampler import LIBRARY, RUNNER, SAMPLER, VLLM, SamplerChoice
from runner.schema.literal import to_text
from runner.schema.source import Definition, find_definition
from runner.schema.text import Config, select, short_text
from runner.schema.upstream.sampling import is_sampled_by_runner
from runner.schema.upstream.steps import config_fields

WHY = "the same distribution; on a CPU sampling takes a third to two thirds of the time"
# The values of other keys with which the runner samples as transformers would.
NEEDS: Mapping[str, list[object]] = {
    "trainer.rollout_func": [None],
    "trainer.args.use_transformers_continuous_batching": [None, False],
    "trainer.args.use_transformers_paged": [None, False],
    "trainer.args.cache_implementation": [None],
    "trainer.args.repetition_penalty": [None, 1],
    "trainer.args.deepspeed": [None],
    "trainer.args.torch_compile": [None, False],
    "model.vision_config": [None],
}


def choose_sampler(cfg: Config) -> SamplerChoice | None:
    """Settle ``trainer.sampler`` where it is auto; None for a trainer that has no such key.

    It becomes runner where that samples as transformers would, else transformers, and is left out
    where ``use_vllm`` is set. In its turn vllm sets ``use_vllm``. Episodes of several turns are
    sampled by the runner or not at all.
    """
    trainer = cfg.get("trainer")
    args = select(cfg, "trainer.args")
    if not isinstance(args, dict) or not isinstance(args.get("_target_"), str):
        return None
    if not isinstance(trainer, dict) or not trainer.get(SAMPLER):
        return None
    sampler = trainer[SAMPLER]
    if sampler == VLLM and "use_vllm" in config_fields(args):
        args.setdefault("use_vllm", True)
    if sampler != "auto":
        return SamplerChoice(sampler, "as it was set", is_automatic=False)
    if args.get("use_vllm") is True:
        del trainer[SAMPLER]  # which says it already
        return SamplerChoice(VLLM, "as use_vllm was set", is_automatic=True)
    choice = SamplerChoice(RUNNER, WHY, is_automatic=True)
    lack = next(find_sampler_lacks(cfg), "")
    if lack and not has_several_turns(select(cfg, "environment._target_")):
        choice = SamplerChoice(LIBRARY, lack, is_automatic=True)
    trainer[SAMPLER] = choice.value
    return choice


def has_several_turns(target: object) -> bool:
    """True for a class of the environment that does not speak of episodes of one turn."""
    if not isinstance(target, str):
        return False
    definition = find_definition(target)
    return isinstance(definition, Definition) and "single_turn" not in definition.module.text


def pass_on_dynamic_sampling(cfg: Config) -> None:
    """Put ``trainer.dynamic_sampling`` into the arguments of a trainer that has such a field."""
    trainer = cfg.get("trainer")
    args = select(cfg, "trainer.args")
    if not isinstance(trainer, dict) or not isinstance(args, dict):
        return
    if "dynamic_sampling" in trainer and "dynamic_sampling" in config_fields(args):
        args.setdefault("dynamic_sampling", trainer.pop("dynamic_sampling"))


def find_sampler_lacks(cfg: Config) -> Iterator[str]:
    """In words, each value that keeps the runner from sampling as transformers would."""
    for key, wanted in NEEDS.items():
        value = select(cfg, key)
        if value not in wanted:
            options = " or ".join(map(to_text, wanted))
            yield f"{key} is {short_text(value)}, but it needs {options}"
    settings = select(cfg, "trainer.args.generation_kwargs")
    for name, value in settings.items() if isinstance(settings, dict) else ():
        if not is_sampled_by_runner(name, value):
            yield (
                f"trainer.args.generation_kwargs.{name} is {short_text(value)}, which only "
                "transformers heeds"
            )
