"""The trainer's config object: its own defaults, the runner's for this machine and run folder, then the YAML."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import TrainingArguments

from runner.config.build import asked_for, build
from runner.config.sharding import find_gpu_faults, shards_on_cpu
from runner.errors import ConfigError, EnvironmentFault, Fault
from runner.io.files import SHIPPED, shipped
from runner.run import Run
from runner.schema import upstream
from runner.schema.text import Config, nodes, read_tables
from runner.tracker.variable import find_foreign_variables, set_variables

BY_DEFAULT, ALWAYS, ON_CPU = read_tables(__file__).values()
ALIASES = {upstream.GRADIENT_CHECKPOINTING: upstream.ACTIVATION_CHECKPOINTING}  # the old name, where the new is not set
ANYWHERE = ("cpu", "disk", "meta", "auto", "balanced", "balanced_low_0", "sequential")  # on any machine, by accelerate


def build_args(run: Run, adjustments: Sequence[Mapping[str, Any]] = ()) -> TrainingArguments:
    """The trainer's config object; EnvironmentFault for devices, precisions, kernels, shards that are not here."""
    cfg = run.cfg
    adjusted = {name: value for each in adjustments for name, value in each.get("args", {}).items()}
    named = {name: value for name, value in cfg["trainer"]["args"].items() if str(value).startswith(SHIPPED)}
    node = cfg["trainer"]["args"] | {name: shipped(value) for name, value in named.items()} | adjusted
    ConfigError.refuse(find_foreign_variables(cfg["tracker"]))
    set_variables(cfg["tracker"], run.folder, cfg["name"])
    own = {"seed": cfg["seed"], upstream.RUN_NAME: run.folder.name, "report_to": cfg["tracker"]["report_to"]}
    defaults, fixed = BY_DEFAULT | own, ALWAYS | {upstream.OUTPUT_DIR: str(run.checkpoints)}
    check_devices(cfg)
    # What TRL assumes of a GPU is turned off where there is none: it would refuse to start, or run slower.
    if not torch.accelerator.is_available():
        EnvironmentFault.refuse(find_gpu_faults(node))
        known, typed = asked_for(node["_target_"]), {ALIASES.get(name) for name in node if node[name] is not None}
        defaults |= {name: value for name, value in ON_CPU.items() if name in known and name not in typed}
    elif torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        defaults[upstream.BF16] = False
    args = build(defaults | _selection(cfg) | node | fixed)
    shards_on_cpu()
    return args


def _selection(cfg: Config) -> dict[str, Any]:
    """The figure that chooses the best checkpoint, and its direction, where nobody says them."""
    given, figure = cfg["trainer"]["args"], upstream.ranking_figure(cfg)
    wanted = given.get(upstream.METRIC_FOR_BEST_MODEL)
    by_score = given.get(upstream.LR_SCHEDULER_TYPE) in upstream.SCHEDULES_BY_SCORE
    if wanted is None and figure != "loss" and (given.get(upstream.LOAD_BEST_MODEL_AT_END) or by_score):
        wanted = figure
    if wanted is None:
        return {}
    is_lower_better = str(wanted).endswith((upstream.CROSS_ENTROPY, "loss"))
    return {upstream.METRIC_FOR_BEST_MODEL: wanted, upstream.GREATER_IS_BETTER: not is_lower_better}


def check_devices(cfg: Config) -> None:
    """Raise EnvironmentFault for each model, or part of one, that is to lie on a device which is not here."""
    numbers = range(torch.accelerator.device_count())
    kind = torch.accelerator.current_accelerator().type if numbers else "cpu"
    here = {*ANYWHERE, kind, *map(str, numbers), *(f"{kind}:{number}" for number in numbers)}
    faults = []
    for path, node in nodes(cfg):
        for key in ("device_map", *(("device",) if node["_target_"].startswith("runner.") else ())):
            devices = node.get(key)
            devices = devices.values() if isinstance(devices, Mapping) else [devices]
            if absent := [str(one) for one in devices if one is not None and str(one) not in here]:
                found, where = f"{', '.join(absent)}, and there is no such device here", f"{path}.{key}"
                faults.append(Fault(where, found, ", ".join(sorted(here - {*ANYWHERE}) or ["cpu"]), f"{where}=null"))
    EnvironmentFault.refuse(faults)
