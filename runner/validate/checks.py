"""The checks of a whole configuration, whose keys are each right: one function a subject."""

from collections.abc import Callable, Iterator

from runner.errors import Fault
from runner.validate import adapter_parts, effect, parts, passed_on, strategy, training_fields
from runner.validate.context import ValidationContext
from runner.validate.environment_parts import find_episode_faults, find_source_faults
from runner.validate.environments import find_environment_id_faults
from runner.validate.loss_parts import find_objective_faults
from runner.validate.optimizer_parts import find_expression_faults, find_optimizer_faults
from runner.validate.policy_loss import find_policy_loss_faults
from runner.validate.sampler_parts import find_sampler_faults
from runner.validate.signal_parts import find_signal_faults

Check = Callable[[ValidationContext], Iterator[Fault]]

# Parts against the trainer, whose constructor can be read, and against each other.
PART_CHECKS: list[Check] = [
    parts.find_parts_not_taken,
    parts.find_missing_reward,
    parts.find_weighting_faults,
    parts.find_missing_teacher,
    find_episode_faults,
    adapter_parts.find_quantised_faults,
    adapter_parts.find_pattern_value_faults,
    adapter_parts.find_useless_adapter_faults,
    adapter_parts.find_adapter_kind_faults,
    adapter_parts.find_unseen_model_keys,
    strategy.find_sharded_adapter_faults,
    strategy.find_split_quantised_faults,
    strategy.find_spread_faults,
    strategy.find_group_size_faults,
    find_optimizer_faults,
    find_expression_faults,
    find_sampler_faults,
    find_signal_faults,
    training_fields.find_direction_faults,
    training_fields.find_best_model_faults,
]
# The environment, also where nothing is trained.
ENVIRONMENT_CHECKS: list[Check] = [find_source_faults, find_environment_id_faults]
# Fields of the trainer's config against each other.
FIELD_CHECKS: list[Check] = [
    training_fields.find_step_faults,
    training_fields.find_precision_faults,
    training_fields.find_loading_faults,
    training_fields.find_batch_faults,
]
# Fields of the trainer's config against what takes them.
PASSED_ON_CHECKS: list[Check] = [
    passed_on.find_passed_on_faults,
    passed_on.find_generation_faults,
    passed_on.find_schedule_faults,
    passed_on.find_optimizer_argument_faults,
]
# Typed fields without an effect, and bounds out of order.
EFFECT_CHECKS: list[Check] = [
    effect.find_idle_adapter_fields,
    effect.find_idle_fields,
    effect.find_bounds_out_of_order,
    effect.find_unread_tracker_keys,
]


def find_combination_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each two things that are right by themselves and do not go together."""
    trainer = context.trainer
    if trainer and trainer.parameters:
        for check in PART_CHECKS:
            yield from check(context)
        if context.signature(context.args):
            for check in FIELD_CHECKS:
                yield from check(context)
    for check in ENVIRONMENT_CHECKS:
        yield from check(context)
    yield from find_objective_faults(context)
    yield from find_policy_loss_faults(context)


def find_useless_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each field that its taker would refuse, or that nothing reads."""
    if context.signature(context.args):
        for check in PASSED_ON_CHECKS:
            yield from check(context)
    for check in EFFECT_CHECKS:
        yield from check(context)
