"""Run folder -> every part of the run, laid on a tray; and the trainer, served what its signature names.

What is not here: how a part is made (its own room), what a valid key is (``check``), how the loop runs (the Trainer).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config import asked_for, build, locate, serve
from runner.errors import ConfigError, Fault
from runner.run import Run

NOT_FOR_THE_TRAINER = ("_target_", "form", "head", "evaluates", "args")


def lay_out(run: Run, stop: Any) -> dict[str, Any]:
    """Build every part of a run, in the order in which they need each other, ending with ``trainer``."""
    import transformers

    from runner.model.chat import check_template

    cfg = run.cfg
    _quieten()
    transformers.set_seed(cfg["seed"])
    with _told("trainer.args"):
        args = build_args(run)
    tokenizer = build(cfg["model"]["tokenizer"])
    rows, held_out = serve(cfg["dataset"], to=cfg["trainer"]["form"], seed=cfg["seed"])
    rewards, weights = build_rewards(cfg["reward"])
    if weights:
        args.reward_weights = weights
    check_template(tokenizer, chats=_are_chats(rows))
    model, peft_config, reference = build_model(cfg, tokenizer, args)
    tray = {
        "model": model,
        "ref_model": reference,
        "args": args,
        "processing_class": tokenizer,
        "train_dataset": rows,
        "eval_dataset": held_out if cfg["trainer"].get("evaluates", True) else None,
        "data_collator": build_collator(cfg["collator"], tokenizer),
        "reward_funcs": rewards,
        "callbacks": build_callbacks(run, args, stop, peft_config),
        "peft_config": peft_config,
        "compute_loss_func": build(dict(cfg["loss"]) | {"_partial_": True}) if cfg.get("loss") else None,
    }
    with _told("trainer"):
        trainer = build_trainer(cfg["trainer"], tray, tokenizer)
    set_optimizer(trainer, cfg.get("optimizer"))
    return tray | {"trainer": trainer}


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """Tell what a constructor of TRL refuses as what it is: a configuration that cannot work."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(Fault(where, str(error).splitlines()[0], "values that go together")) from error


def _quieten() -> None:
    """Send what the libraries say to the log of the run, and keep their bars off the terminal; ours stays."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_default_handler()
    transformers.utils.logging.enable_propagation()


def build_args(run: Run) -> Any:
    """The trainer's config object: its own defaults, ours where the machine or the run folder
    decides, then the YAML.
    """
    cfg = run.cfg
    node = cfg["trainer"]["args"]
    known_words = {"{folder}": str(run.folder), "{name}": cfg["name"], "{key}": run.folder.name[-10:]}
    for name, value in (cfg["tracker"].get("environment") or {}).items():
        if not name.startswith(TRACKER_VARIABLES):
            raise ConfigError(foreign_variable(name))
        for word, meaning in known_words.items():
            value = str(value).replace(word, meaning)
        os.environ[name] = value
    ours = {
        "seed": cfg["seed"],
        "run_name": run.folder.name,
        "report_to": cfg["tracker"]["report_to"],
        # A loss that is not finite must be seen, not averaged away.
        "logging_nan_inf_filter": False,
        # Early stopping must not begin to count anew.
        "restore_callback_states_from_checkpoint": True,
    }
    kept_back = {
        "output_dir": str(run.checkpoints),
        "disable_tqdm": True,  # the bar is ours
        "save_total_limit": None,  # ours rotate after sealing, the Trainer's before
        "push_to_hub": False,  # at the end, without the pickled arguments
    }
    known = asked_for(node["_target_"])
    return build(ours | _for_this_machine(known) | node | kept_back)


def _for_this_machine(known: set[str]) -> dict[str, Any]:
    """What TRL assumes of a GPU, taken back where there is none: on CPU it would refuse to start, or run slower."""
    import torch

    if not torch.accelerator.is_available():
        return {name: value for name, value in ON_CPU.items() if name in known}
    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        return {"bf16": False}
    return {}


# Any other variable could change what other programs do: git, the loader, the hub client.
TRACKER_VARIABLES = ("WANDB_", "TRACKIO_", "MLFLOW_", "TENSORBOARD_")


def foreign_variable(name: str) -> Fault:
    expected = f"one that begins with {', '.join(TRACKER_VARIABLES)}"
    return Fault(f"tracker.environment.{name}", "not a variable of a tracker", expected, "leave it out")


# Measured on CPU: activation checkpointing 1.25 times slower, bf16 autocast 1.28 times slower for a small model.
ON_CPU = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}


def build_model(cfg: Mapping[str, Any], tokenizer: Any, args: Any) -> tuple[Any, Any, Any]:
    """The policy, the adapter that the trainer puts on it once, and its reference where the trainer takes one."""
    from runner.model.adapter import check_adapter
    from runner.model.load import check_quantization
    from runner.model.reference import copy_reference, needs_reference

    check_quantization(cfg["quant"])
    head, peft = cfg["trainer"]["head"], cfg["peft"]
    node = {key: value for key, value in cfg["model"].items() if key != "tokenizer"} | path_of(cfg)
    quantization = build(cfg["quant"])
    model = serve(node, tokenizer=tokenizer, head=head, quantization_config=quantization, seed=cfg["seed"])
    peft_config = None
    if peft and "model" in asked_for(peft["_target_"]):
        model = serve(peft, model=model)
    elif peft:
        peft_config = serve(peft, task_type="SEQ_CLS" if head == "score" else "CAUSAL_LM")
    check_adapter(model, peft_config)
    precomputed = getattr(args, "precompute_ref_log_probs", False)
    takes_one = "ref_model" in asked_for(cfg["trainer"]["_target_"])
    unwanted = not getattr(args, "penalises_kl", True)
    if takes_one and not unwanted and needs_reference(model, peft_config, precomputed=precomputed):
        return model, peft_config, copy_reference(model)
    return model, peft_config, None


def path_of(cfg: Mapping[str, Any]) -> dict[str, str]:
    """Where the policy's weights are, if anywhere: PPO's own argument for it comes before ``model.path``."""
    path = cfg["trainer"]["args"].get("sft_model_path") or cfg["model"].get("path")
    return {"path": path} if path else {}


def build_rewards(node: Mapping[str, Any] | None) -> tuple[list[Any], list[float] | None]:
    """The rewards as TRL takes them, each under its own name, and their weights unless all are 1."""
    if not node:
        return [], None
    entries = {"reward": node} if "_target_" in node else node
    rewards = [build_scorer(name, {k: v for k, v in entry.items() if k != "weight"}) for name, entry in entries.items()]
    weights = [float(entry.get("weight", 1.0)) for entry in entries.values()]
    return rewards, weights if set(weights) != {1.0} else None


def build_scorer(name: str, node: Mapping[str, Any]) -> Any:
    """A function of prompts and completions under its config name, given only the columns that it takes.

    A loader or a class is called first, and what comes back scores.
    """
    target, taken = locate(node["_target_"]), asked_for(node["_target_"])
    if not (inspect.isfunction(target) and "completions" in taken):
        return build(node)
    bound = build(dict(node) | {"_partial_": True})
    if inspect.iscoroutinefunction(target):
        return bound
    takes_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(target).parameters.values())

    def scorer(**given: Any) -> Any:
        return bound(**{key: value for key, value in given.items() if takes_all or key in taken})

    scorer.__name__ = name
    return scorer


def build_collator(node: Mapping[str, Any] | None, tokenizer: Any) -> Any:
    """The configured collator, served with the tokenizer under whatever name it takes it; None is the trainer's own."""
    if node is None:
        return None
    served = {"tokenizer": tokenizer, "processing_class": tokenizer, "pad_token_id": tokenizer.pad_token_id}
    return serve(node, **{name: part for name, part in served.items() if name not in node})


def build_callbacks(run: Run, args: Any, stop: Any, peft_config: Any) -> list[Any]:
    """The user's callbacks and then ours; the seal comes last, when it is decided what a step will save."""
    from runner.callback import Finite, FirstMargin, Progress, Record, StopAtStep
    from runner.checkpoint import Seal, cycle_steps
    from runner.model.adapter import moves_start

    theirs = run.cfg["callback"] or {}
    theirs = build({"callback": theirs} if "_target_" in theirs else theirs)
    cycle = cycle_steps(args)
    keep = run.cfg["trainer"]["args"].get("save_total_limit") or 2
    rounding = 5e-2 if args.bf16 or args.fp16 else 1e-4
    # A prompt or prefix starts elsewhere by nature, with a right reference.
    compared = "ref_model" in asked_for(run.cfg["trainer"]["_target_"]) and not moves_start(peft_config)
    first = [FirstMargin(rounding)] if compared else []
    return [
        *theirs.values(),
        StopAtStep(stop, cycle),
        Record(run.metrics, run.set_status),
        Finite(),
        Progress(),
        *first,
        Seal(keep, cycle),
    ]


def build_trainer(node: Mapping[str, Any], tray: Mapping[str, Any], tokenizer: Any) -> Any:
    """The trainer, served what its constructor names, with evaluations that keep their names and random state."""
    from transformers import PrinterCallback

    from runner.model.reference import match_reference

    wanted = asked_for(node["_target_"])
    own = {key: value for key, value in node.items() if key not in NOT_FOR_THE_TRAINER}
    own = {key: serve(value, tokenizer=tokenizer) if _is_call(value) else value for key, value in own.items()}
    served = {name: part for name, part in tray.items() if name in wanted and not _empty(part)}
    trainer = _extended(locate(node["_target_"]))(**served | own)
    trainer.remove_callback(PrinterCallback)
    match_reference(trainer)
    return trainer


@functools.cache
def _extended(trainer: type) -> type:
    """The same trainer, under the same name, with our additions between it and transformers' Trainer."""
    from runner.trainer.evaluation import Evaluation
    from runner.trainer.optimization import Optimization

    return type(trainer.__name__, (trainer, Evaluation, Optimization), {"__module__": trainer.__module__})


def set_optimizer(trainer: Any, node: Mapping[str, Any] | None) -> None:
    """Have the trainer make the configured optimizer and schedule, once it knows its weights and steps."""
    if not node:
        return
    from runner.optimizer import build_optimizer

    settings = {key: value for key, value in node.items() if key not in ("_target_", "groups", "scheduler")}
    if settings.get("lr") is None and "lr" in asked_for(node["_target_"]):
        settings["lr"] = trainer.args.learning_rate
    trainer.make_optimizer = lambda trainer: build_optimizer(
        locate(node["_target_"]),
        trainer.model.named_parameters(),
        settings=settings,
        groups=node.get("groups") or {},
        decayed=trainer.get_decay_parameter_names(trainer.model),
    )
    if schedule := node.get("scheduler"):
        trainer.make_schedule = lambda optimizer, steps: serve(schedule, optimizer=optimizer, num_training_steps=steps)


def policy_of(trainer: Any) -> Any:
    """The language model that a trainer trains, without what distributes it or stands beside it, such as a critic."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return getattr(model, "policy", model)


def _are_chats(rows: Any) -> bool:
    """Whether the rows hold conversations, which need a template, rather than text."""
    row = next(iter(rows), {})
    return any(isinstance(row.get(name), list) for name in ("messages", "prompt", "completion", "chosen"))


def _is_call(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def _empty(part: Any) -> bool:
    return part is None or (isinstance(part, list) and not part)
