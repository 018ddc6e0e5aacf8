"""The names of TRL and transformers that our code relies on, beside the fields in ``trainer_args``.

By subject: ``constructor`` (arguments of trainers and parts), ``idle_fields`` (that nothing reads),
``libraries`` (that fields need), ``losses``, ``resumable_fields``, ``sampling``, ``schedules`` and
``steps``. What one more trainer of TRL may need is in ``sampling``, where it samples, and in
``losses``, for losses of the user's own. ``training.health`` looks in NOTES for what a trainer
notes between logged steps.
"""

from runner.schema.upstream.constructor import (
    ASCENDING,
    FROM_GROUP,
    FROM_TOP,
    FUNCTIONS,
    NEEDED_FIELDS,
    PASSED_ON,
    SERVED,
    takes_path,
)
from runner.schema.upstream.idle_fields import (
    DONE_BY_RUNNER,
    LOADED_BY_GROUP,
    NEWER_NAMES,
    READ_BESIDE,
    REPLACED_BY,
)
from runner.schema.upstream.libraries import (
    BESIDE_ROWS,
    ELSEWHERE,
    ON_A_GPU,
    RAISED_IN,
    WITHOUT_NOTE,
)
from runner.schema.upstream.losses import (
    CROSS_ENTROPY,
    FIGURES,
    IGNORED,
    LOSS_INTERFACES,
    OWN_LOSS,
    PLAIN_LOSS_TYPES,
    SORTED_LOSSES,
    UNWEIGHABLE,
    WEIGHED,
    loss_interface,
    misleading_fields,
    ranking_figure,
)
from runner.schema.upstream.resumable_fields import (
    CALLBACK_VISIBLE,
    EXTENDABLE,
    LOGGED,
    LONGER,
    MACHINE_DEFAULTS,
    MAP_STYLE_ONLY,
    OF_LOG_PROBS,
    OTHER_STEPS,
)
from runner.schema.upstream.sampling import (
    COMPLETION_LENGTHS,
    SAMPLED_BY,
    UNSAMPLED,
    completion_length,
    samples_by_library,
)
from runner.schema.upstream.schedules import (
    GIVEN_TO_SCHEDULES,
    OPTIMIZER_ARGS,
    SCHEDULE_BOUNDS,
    SCHEDULES,
    SCHEDULES_BY_SCORE,
    USUAL_OPTIMIZER,
)
from runner.schema.upstream.steps import (
    batch_size,
    config_fields,
    cycle_steps,
    passes,
    setting,
)

__all__ = [
    "ASCENDING",
    "BESIDE_ROWS",
    "CALLBACK_VISIBLE",
    "COMPLETION_LENGTHS",
    "CROSS_ENTROPY",
    "DONE_BY_RUNNER",
    "ELSEWHERE",
    "EXTENDABLE",
    "FIGURES",
    "FROM_GROUP",
    "FROM_TOP",
    "FUNCTIONS",
    "GIVEN_TO_SCHEDULES",
    "IGNORED",
    "LOADED_BY_GROUP",
    "LOGGED",
    "LONGER",
    "LOSS_INTERFACES",
    "MACHINE_DEFAULTS",
    "MAP_STYLE_ONLY",
    "NEEDED_FIELDS",
    "NEWER_NAMES",
    "OF_LOG_PROBS",
    "ON_A_GPU",
    "OPTIMIZER_ARGS",
    "OTHER_STEPS",
    "OWN_LOSS",
    "PASSED_ON",
    "PLAIN_LOSS_TYPES",
    "RAISED_IN",
    "READ_BESIDE",
    "REPLACED_BY",
    "SAMPLED_BY",
    "SCHEDULES",
    "SCHEDULES_BY_SCORE",
    "SCHEDULE_BOUNDS",
    "SERVED",
    "SORTED_LOSSES",
    "UNSAMPLED",
    "UNWEIGHABLE",
    "USUAL_OPTIMIZER",
    "WEIGHED",
    "WITHOUT_NOTE",
    "batch_size",
    "completion_length",
    "config_fields",
    "cycle_steps",
    "loss_interface",
    "misleading_fields",
    "passes",
    "ranking_figure",
    "samples_by_library",
    "setting",
    "takes_path",
]
