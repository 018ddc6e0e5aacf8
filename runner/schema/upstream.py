"""The names of TRL and transformers that our code relies on: upstream.yaml says what to do where one changes."""

import ast
import math
from collections.abc import Mapping
from typing import Any

from runner.schema.read import Parameter, Signature, read_signature
from runner.schema.source import public_names
from runner.schema.text import read_tables

_TABLES = read_tables(__file__)  # each is described where it stands
NAMES = frozenset(name for names in _TABLES["names"].values() for name in names)
COMPLETION_LENGTHS: list[str] = _TABLES["completion_lengths"]
LOSS_INTERFACES: dict[str, list[str]] = _TABLES["loss_interfaces"]
OWN_LOSS: dict[str, Any] = _TABLES["own_loss"]
PLAIN_LOSS_TYPES: list[Any] = _TABLES["plain_loss_types"]
UNWEIGHABLE: dict[str, tuple[Any, str]] = _TABLES["unweighable"]
WEIGHED = ("tokens", "pairs", "labels")  # kinds of losses, by loss_interface, whose tokens may have weights
NUMERIC_FIELDS: dict[str, list[str]] = _TABLES["numeric_fields"]
READ_BESIDE: dict[str, dict[str, tuple[str, object] | None]] = _TABLES["read_beside"]
NEWER_NAMES: dict[str, str] = _TABLES["newer_names"]
NEEDED_FIELDS: dict[str, list[str]] = _TABLES["needed_fields"]
DONE_BY_RUNNER: dict[str, tuple[str, str | None]] = _TABLES["done_by_runner"]
LOADED_BY_GROUP: dict[str, str] = _TABLES["loaded_by_group"]
RAISED_IN: dict[str, list[str]] = _TABLES["raised_in"]
REPLACED_BY: dict[str, list[str]] = _TABLES["replaced_by"]
PASSED_ON: dict[str, dict[str, Any]] = _TABLES["passed_on"]
SCHEDULES: dict[str, list[Any]] = _TABLES["schedules"]
SCHEDULE_BOUNDS: dict[str, str] = _TABLES["schedule_bounds"]
GIVEN_TO_SCHEDULES: list[str] = _TABLES["given_to_schedules"]
OPTIMIZER_ARGS: dict[str, list[str]] = _TABLES["optimizer_args"]
UNSAMPLED: dict[str, tuple[str, Any]] = _TABLES["unsampled"]
SAMPLED_BY: dict[str, str] = _TABLES["sampled_by"]
ASCENDING: list[tuple[str, str]] = _TABLES["ascending"]
OTHER_STEPS: dict[str, list[Any]] = _TABLES["other_steps"]
SORTED_LOSSES: list[str] = _TABLES["sorted_losses"]
SCHEDULES_BY_SCORE: list[str] = _TABLES["schedules_by_score"]
NO_MEASURE: dict[str, list[Any]] = _TABLES["no_measure"]
RANKED_BY: dict[str | None, str] = _TABLES["ranked_by"]
FROM_GROUP: dict[str, str] = _TABLES["from_group"]
FUNCTIONS: list[str] = _TABLES["functions"]
SERVED: dict[str, list[str]] = _TABLES["served"]
WANTED: dict[str, list[list[str]]] = _TABLES["wanted"]
OTHER_VALUES: dict[str, str] = _TABLES["other_values"]
FROM_TOP: dict[str, str] = _TABLES["from_top"]
TRACKERS = tuple(_TABLES["trackers"])
TRACKER_LIBRARIES: dict[str, tuple[str, str, str]] = _TABLES["tracker_libraries"]
TRACKER_VARIABLES: dict[str, str] = _TABLES["tracker_variables"]
FIGURES = frozenset(_TABLES["figures"])
ELSEWHERE, ON_A_GPU = _TABLES["elsewhere"], _TABLES["on_a_gpu"]
BESIDE_ROWS, WITHOUT_NOTE = _TABLES["beside_rows"], _TABLES["without_note"]
MACHINE_DEFAULTS, OF_LOG_PROBS = (frozenset(_TABLES[name]) for name in ("machine_defaults", "of_log_probs"))
_SETS = (frozenset(_TABLES[name]) for name in ("logged", "callback_visible", "map_style_only", "longer"))
LOGGED, CALLBACK_VISIBLE, MAP_STYLE_ONLY, LONGER = _SETS
EXTENDABLE = frozenset(_TABLES["read_by_no_step"]) | LOGGED | CALLBACK_VISIBLE | MAP_STYLE_ONLY | LONGER
CROSS_ENTROPY = "cross_entropy"  # our own, of held-out answers
USUAL_OPTIMIZER = "adamw_torch_fused"  # which TrainingArguments takes where the config says none
IGNORED = -100  # the label of a token that no loss counts


def __getattr__(constant: str) -> str:
    """One of NAMES, which is a constant in capitals: ``upstream.MAX_STEPS`` is max_steps."""
    if not constant.isupper() or constant.lower() not in NAMES:
        raise AttributeError(f"{constant}: no such name in upstream.yaml")
    return constant.lower()


def loss_interface(trainer: Signature | None, config: Signature | None) -> str | None:
    """The key in LOSS_INTERFACES of a trainer with this config; None for one that computes its loss in another way."""
    own = trainer is not None and "policy_loss" in trainer.parameters
    if trainer is None or (not own and {"reward_funcs", "teacher_model"} & set(trainer.parameters)):
        return None
    names = {*trainer.parameters, *(config.parameters if config else ()), *public_names(trainer.target)}
    return next((kind for kind, needed in LOSS_INTERFACES.items() if names.issuperset(needed)), None)


def ranking_figure(cfg: Mapping[str, Any]) -> str:
    """The held-out figure, without its set, that tells whether a model of this configuration is better than another.

    The loss, unless it does not measure how well a model knows held-out answers: a loss of the user's own, one with
    weights or smoothed labels, one that a model which learns may raise, and any loss of sampled completions.
    """
    trainer = cfg.get("trainer")
    args = trainer.get("args") if isinstance(trainer, Mapping) else None
    if not isinstance(trainer, Mapping) or not isinstance(args, Mapping):
        return "loss"
    asked = read_signature(str(trainer.get("_target_")))
    config = read_signature(str(args.get("_target_")))
    if asked is None or config is None:
        return "loss"
    kind = loss_interface(asked, config)
    if kind == "policy":
        return "objective/scores"
    if "reward_funcs" in asked.parameters and not any(name.startswith("distill") for name in config.parameters):
        return "reward"
    smooths = kind == "tokens" and args.get("label_smoothing_factor")
    if kind in RANKED_BY and (cfg.get("loss") or cfg.get("weight") or smooths or misleading_fields(args)):
        return RANKED_BY[kind]
    return "loss"


def misleading_fields(args: Mapping[str, Any]) -> list[str]:
    """The fields of a trainer's config by which its loss may rise while the model learns, so that it ranks none."""
    fields = []
    for name, values in NO_MEASURE.items():
        given = args.get(name)
        if any(value in values for value in (given if isinstance(given, list | tuple) else [given])):
            fields.append(name)
    return fields


def takes_path(trainer: Signature | None) -> bool:
    """True for a trainer that loads the weights in a way of its own, from the path that it asks for."""
    asked = trainer.parameters.get("model") if trainer else None
    return asked is not None and isinstance(asked.annotation, ast.Name) and asked.annotation.id == "str"


def samples_by_library(trainer: str, fields: Mapping[str, Parameter]) -> bool:
    """True for a trainer, by its target and the fields of its config, that samples by transformers or vLLM."""
    return trainer.startswith("trl.") and any(name in fields for name in COMPLETION_LENGTHS)


def completion_length(args: Mapping[str, Any]) -> int | None:
    """The most tokens of a completion that a trainer's arguments allow; None where they know no such thing."""
    return next(filter(None, map(args.get, COMPLETION_LENGTHS)), None)


def cycle_steps(args: Mapping[str, Any]) -> int:
    """Optimizer steps from one generation to the next, of a trainer that uses more than once what it generates."""
    accumulated = args["gradient_accumulation_steps"]
    micro_steps = (args.get("steps_per_generation") or accumulated) * (args.get("num_iterations") or 1)
    return math.lcm(micro_steps, accumulated) // accumulated


def passes(args: Mapping[str, Any], rows: float, processes: int) -> float:
    """The number of times that a training reads each of its rows, from its arguments, of which none is a default."""
    if args["max_steps"] <= 0:
        return float(args["num_train_epochs"])
    return args["max_steps"] * batch_size(args) * args["gradient_accumulation_steps"] * processes / max(1, rows)


def config_fields(args: Mapping[str, Any]) -> Mapping[str, Parameter]:
    """The fields of a trainer's config object by name."""
    return signature.parameters if (signature := read_signature(args["_target_"])) else {}


def setting(args: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    """The value of a field of the trainer's config: as it is set, or its default where that is written down."""
    if args.get(name) is not None:
        return args[name]
    field = config_fields(args).get(name)
    return field.default if field and isinstance(field.default, bool | int | float | str) else otherwise


def batch_size(args: Mapping[str, Any]) -> int:
    """Rows of a micro-batch."""
    return int(setting(args, "per_device_train_batch_size", 8))
