"""The trainer's config object: the runner's defaults for this machine and run, then the YAML."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from runner.config.build import asked_for, build
from runner.config.experiment import Experiment, LossPart
from runner.config.sharding import find_gpu_faults, shards_on_cpu
from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.io.files import SHIPPED, JsonObject, shipped
from runner.run.folder import Run
from runner.schema import upstream
from runner.schema.text import Node, nodes
from runner.tracker.variable import find_foreign_variables, set_variables

if TYPE_CHECKING:
    from transformers import TrainingArguments

# Fields that the runner itself gives a trainer's config. ``config.provenance`` reads these tables
# from the source, because ``why`` shows them with their lines; a text with a blank or a reference
# stands for what only a run knows, and ``build_args`` fills it in.

# Where no YAML says otherwise.
BY_DEFAULT: JsonObject = {
    "seed": "${seed}",
    "run_name": "the name of the run's folder",
    "report_to": "${tracker.report_to}",
    "project": "runner",  # in trackio; tracker.project names another
    "logging_nan_inf_filter": False,  # a loss that is not finite must be seen, not averaged away
    "restore_callback_states_from_checkpoint": True,  # early stopping goes on counting
}
# Always.
ALWAYS: JsonObject = {
    "output_dir": "checkpoints/ in the run's folder",
    "disable_tqdm": True,  # callback.progress has a bar
    "save_total_limit": None,  # checkpoint.Seal rotates after sealing, the Trainer before
    "push_to_hub": False,  # at the end, without the pickled arguments
}
# On a machine without a GPU, where the config has the field and no YAML says otherwise. Measured
# there: activation checkpointing 1.25 times slower, bf16 autocast 1.28 times slower for a small
# model.
ON_CPU: JsonObject = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}
# Old names, where the new one is not set.
ALIASES = {"gradient_checkpointing": "activation_checkpointing"}
# Devices that accelerate knows on any machine.
ANYWHERE = {"cpu", "disk", "meta", "auto", "balanced", "balanced_low_0", "sequential"}


def build_args(run: Run, adjustments: Sequence[JsonObject] = ()) -> "TrainingArguments":
    """The trainer's config object.

    Raises EnvironmentFault for devices, precisions, kernels and shards that are not here.
    """
    experiment = run.experiment
    node: JsonObject = dict(experiment.trainer.args)
    for name, value in node.items():
        if str(value).startswith(SHIPPED):
            node[name] = shipped(value)
    for adjustment in adjustments:
        node |= adjustment.get("args", {})
    ConfigError.refuse(find_foreign_variables(experiment.tracker))
    set_variables(experiment.tracker, run.folder, str(experiment.name))
    check_devices(experiment)
    defaults = {
        **BY_DEFAULT,
        "seed": experiment.seed,
        "run_name": run.folder.name,
        "report_to": experiment.tracker.report_to,
        "project": experiment.tracker.project or BY_DEFAULT["project"],
    }
    # What TRL assumes of a GPU is turned off where there is none: it would refuse to start, or run
    # slower.
    if not torch.accelerator.is_available():
        EnvironmentFault.refuse(find_gpu_faults(node))
        defaults |= _defaults_on_cpu(node)
    elif torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        defaults["bf16"] = False
    always = {**ALWAYS, "output_dir": str(run.checkpoints)}
    node |= _settings_of_loss(experiment.loss, asked_for(node["_target_"]))
    args: TrainingArguments = build(defaults | _selection(experiment) | node | always)
    shards_on_cpu()
    if getattr(args, "use_vllm", False):
        # Before TRL starts it, which on a CPU could not give it new weights otherwise.
        import runner.generate.vllm_worker  # noqa: F401
        from runner.generate.vllm_engine import set_meeting_point

        set_meeting_point()
    return args


def _defaults_on_cpu(node: Node) -> JsonObject:
    """The defaults of a machine without a GPU, for the fields that the trainer's config has."""
    fields = asked_for(node["_target_"])
    set_by_alias = {ALIASES.get(name) for name, value in node.items() if value is not None}
    defaults = {}
    for name, value in ON_CPU.items():
        if name in fields and name not in set_by_alias:
            defaults[name] = value
    return defaults


def _settings_of_loss(loss: LossPart | None, fields: Collection[str]) -> JsonObject:
    """The fields for which a loss stands: by them the trainer makes advantages and counts clips."""
    settings: JsonObject = {}
    if loss and "scale_rewards" in fields:
        settings["loss_type"] = upstream.LOSS_TYPES[loss.average]
    if loss and loss.advantage:
        settings["scale_rewards"] = upstream.SCALES[loss.advantage]
    if loss and loss.target == "runner.loss.policy_gradient":
        if loss.node.get("clip"):
            low, high = loss.node["clip"]
            settings |= {"epsilon": low, "epsilon_high": high, "cliprange": high}
        if loss.node.get("ratio", "token") != "token":
            settings["importance_sampling_level"] = "sequence"
    return {name: value for name, value in settings.items() if name in fields}


def _selection(experiment: Experiment) -> JsonObject:
    """The figure that chooses the best checkpoint, with its direction, unless the config has it."""
    args = experiment.trainer.args
    figure = upstream.ranking_figure(experiment.node)
    wanted = args.get("metric_for_best_model")
    by_score = args.get("lr_scheduler_type") in upstream.SCHEDULES_BY_SCORE
    if wanted is None and figure != "loss" and (args.get("load_best_model_at_end") or by_score):
        wanted = figure
    if wanted is None:
        return {}
    is_lower_better = str(wanted).endswith((upstream.CROSS_ENTROPY, "loss"))
    return {"metric_for_best_model": wanted, "greater_is_better": not is_lower_better}


def check_devices(experiment: Experiment) -> None:
    """Raise EnvironmentFault for models and their parts on devices that are not here."""
    here = _devices_here()
    faults = []
    for path, node in nodes(experiment.node):
        keys = ["device_map"]
        if node["_target_"].startswith("runner."):
            keys.append("device")
        for key in keys:
            placed = node.get(key)
            devices = list(placed.values()) if isinstance(placed, Mapping) else [placed]
            absent = []
            for device in devices:
                if device is not None and str(device) not in here | ANYWHERE:
                    absent.append(str(device))
            if absent:
                where = f"{path}.{key}"
                faults.append(
                    Fault(
                        where=where,
                        found=f"{', '.join(absent)}, but there is no such device here",
                        expected=", ".join(sorted(here) or ["cpu"]),
                        fix=f"{where}=null",
                    )
                )
    EnvironmentFault.refuse(faults)


def _devices_here() -> set[str]:
    """The names of this machine's accelerators: their kind, their numbers, and both together."""
    count = torch.accelerator.device_count()
    if not count:
        return set()
    kind = torch.accelerator.current_accelerator().type
    devices = {kind}
    for number in range(count):
        devices |= {str(number), f"{kind}:{number}"}
    return devices
