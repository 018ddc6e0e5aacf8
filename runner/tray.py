"""Run folder -> every part of the run, laid on a tray; and the trainer, served what its signature names.

What is not here: how a part is made (its own room), what a valid key is (``check``), how the loop runs (the Trainer).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from runner.config import asked_for, build, locate, serve
from runner.dataset.convert import fits
from runner.errors import ConfigError, Fault
from runner.run import Run
from runner.signature import read_signature
from runner.tracker.variable import check_installed, set_variables

NOT_FOR_THE_TRAINER = ("_target_", "form", "head", "evaluates", "args")


def lay_out(run: Run, stop: Any) -> dict[str, Any]:
    """Build every part of a run, in the order in which they need each other, ending with ``trainer``."""
    import transformers

    from runner.model.chat import check_template
    from runner.tracker.callback import tell_trackers

    cfg = run.cfg
    _quieten()
    transformers.set_seed(cfg["seed"])
    with _told("trainer.args"):
        args = build_args(run)
    tokenizer = build(cfg["model"]["tokenizer"])
    rules = build_rules(cfg.get("weight"))
    rows, held_out = serve(cfg["dataset"], to=cfg["trainer"]["form"], seed=cfg["seed"], keep=columns_asked_for(rules))
    # Only a trainer that knows where steps end can use a reward for each.
    rewards, weights, panel = build_rewards(cfg["reward"], per_step=hasattr(args, "step_separator"))
    if weights:
        args.reward_weights = weights
    answers_only = getattr(args, "assistant_only_loss", False)
    check_template(tokenizer, chats=_are_chats(rows), calls=_call_tools(rows), answers_only=answers_only)
    model, peft_config, reference = build_model(cfg, tokenizer, args)
    served = for_callbacks(run, tokenizer, rows, held_out)
    tray = {
        "model": model,
        "ref_model": reference,
        "args": args,
        "processing_class": tokenizer,
        "train_dataset": rows,
        "eval_dataset": held_out,
        "data_collator": build_collator(cfg["collator"], tokenizer),
        "reward_funcs": rewards,
        "callbacks": build_callbacks(run, args, stop, peft_config, served),
        "peft_config": peft_config,
        "compute_loss_func": build_loss(cfg.get("loss")),
        "weight_rules": rules,
    }
    with _told("trainer"), packed_later(args if rules else None) as pack:
        trainer = build_sharing(cfg["trainer"], tray, tokenizer)
    set_collator(trainer, cfg["collator"], tokenizer)
    if rules:
        set_weights(trainer, rules, pack)
    set_optimizer(trainer, cfg.get("optimizer"))
    add_callbacks(trainer, cfg["callback"], served)
    tell_trackers(trainer, cfg, run.folder)
    name_rewards(trainer, cfg["reward"])
    trainer.reward_means = panel.take_means if panel else None
    trainer.evaluates = cfg["trainer"].get("evaluates", True)
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
    for name in cfg["tracker"].get("environment") or {}:
        if not name.startswith(TRACKER_VARIABLES):
            raise ConfigError(foreign_variable(name))
    check_installed(cfg["tracker"]["report_to"])
    set_variables(cfg["tracker"], run.folder, cfg["name"])
    ours = {
        "seed": cfg["seed"],
        "run_name": run.folder.name,
        "report_to": cfg["tracker"]["report_to"],
        "project": "runner",  # in trackio
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
    model, peft_config = build_tuner(peft, model, head)
    check_adapter(model, peft_config)
    check_merged(cfg, peft_config, args)
    precomputed = getattr(args, "precompute_ref_log_probs", False)
    takes_one = "ref_model" in asked_for(cfg["trainer"]["_target_"])
    unwanted = not getattr(args, "penalises_kl", True)
    if takes_one and not unwanted and needs_reference(model, peft_config, precomputed=precomputed):
        return model, peft_config, copy_reference(model)
    return model, peft_config, None


def build_tuner(node: Mapping[str, Any] | None, model: Any, head: str) -> tuple[Any, Any]:
    """The model, perhaps changed by a function that asks for it, and the adapter for the trainer to put on, if any."""
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

    from runner.model.adapter import OWN, train_beside

    if not node:
        return model, None
    arguments = {key: value for key, value in node.items() if key not in OWN}
    made = serve(arguments, model=model, task_type="SEQ_CLS" if head == "score" else "CAUSAL_LM")
    if isinstance(made, PeftConfig):
        if node.get("full"):
            train_beside(model, made, node["full"])
        return model, made
    if not isinstance(made, PreTrainedModel | PeftModel):
        found = f"{node['_target_']} gave {type(made).__name__}"
        raise ConfigError(Fault("peft", found, "the model, or a PeftConfig", "return model"))
    return made, None


def check_merged(cfg: Mapping[str, Any], peft_config: Any, args: Any) -> None:
    """Raise ConfigError where an adapter on a merged model could not be saved: that model is nowhere on disk."""
    if not cfg["model"].get("merge") or peft_config is None:
        return
    faults = []
    if peft_config.is_prompt_learning:
        found = f"{type(peft_config).__name__} on a merged model, which is nowhere on disk, and it cannot be merged"
        faults.append(Fault("peft", found, "an adapter inside the layers", "peft=lora"))
    if getattr(args, "critic", None) in ("auto", "adapter"):
        found = f"{args.critic}: a second adapter on a merged model, which is nowhere on disk"
        faults.append(Fault("trainer.args.critic", found, "a model of its own", "trainer.args.critic=model"))
    if faults:
        raise ConfigError(faults)


def path_of(cfg: Mapping[str, Any]) -> dict[str, str]:
    """Where the policy's weights are, if anywhere: PPO's own argument for it comes before ``model.path``."""
    path = cfg["trainer"]["args"].get("sft_model_path") or cfg["model"].get("path")
    return {"path": path} if path else {}


def build_rewards(
    node: Mapping[str, Any] | None, *, per_step: bool = False
) -> tuple[list[Any], list[float] | None, Any]:
    """The rewards as TRL takes them, each checked and under its own name, their weights unless all are 1, and the
    panel that they make.
    """
    if not node:
        return [], None, None
    from runner.reward.panel import TIMEOUT, Panel, to_scorer

    panel = Panel()
    entries = named(node, "reward")
    rewards = [
        to_scorer(name, build_scorer(entry), timeout=entry.get("timeout", TIMEOUT), per_step=per_step, panel=panel)
        for name, entry in entries.items()
    ]
    weights = [float(entry.get("weight", 1.0)) for entry in entries.values()]
    return rewards, weights if set(weights) != {1.0} else None, panel


def build_scorer(node: Mapping[str, Any], own: Collection[str] = ("weight", "timeout")) -> Any:
    """A function of completions, or of answers that were read, with its arguments bound but for the columns.

    A loader or a class is called first, and what comes back scores. The keys in ``own`` are not the target's.
    """
    from runner.metric import READ, SAMPLED

    arguments = {key: value for key, value in node.items() if key not in own}
    target = locate(node["_target_"])
    scores = inspect.isfunction(target) and {*SAMPLED, *READ} & asked_for(node["_target_"])
    return build(arguments | {"_partial_": True}) if scores else build(arguments)


def build_metrics(node: Mapping[str, Any] | None, tokenizer: Any) -> list[Any]:
    """The configured metrics, each ready to be asked about held-out rows."""
    from torch import nn

    from runner.metric import kind_of
    from runner.metric.ask import OWN, SAMPLES, Metric
    from runner.reward.panel import Scorer

    metrics = []
    for name, entry in named(node or {}, "metric").items():
        call = build_scorer(entry, own=OWN)
        if isinstance(call, nn.Module):
            cure = f"metric.{name}._target_=runner.reward.outcome.Classifier"
            raise ConfigError(Fault(f"metric.{name}", "a model, which cannot be asked as it is", "a function", cure))
        own = {key: entry[key] for key in OWN if key in entry and key != "preprocess"}
        arguments = inspect.signature(call).parameters
        own.setdefault("limit", SAMPLES if kind_of(arguments) == "sampled" else None)
        preprocess = entry.get("preprocess")
        preprocess = serve(dict(preprocess) | {"_partial_": True}, tokenizer=tokenizer) if preprocess else None
        scorer = Scorer(name, call, timeout=None, group="metric")
        metrics.append(Metric(name, scorer.ask, kind_of(arguments), preprocess, "logits" in arguments, **own))
    return metrics


def named(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The entries of a group whose parts have names; a single part has the given one."""
    return {name: node} if "_target_" in node else node


def name_rewards(trainer: Any, node: Mapping[str, Any] | None) -> None:
    """Have the trainer log each reward under its name in the config; TRL and PPO call a model by its folder."""
    names = list(named(node or {}, "reward"))
    logged = getattr(getattr(trainer, "rewards", None), "names", None) or getattr(trainer, "reward_func_names", [])
    logged[: len(names)] = names


def build_collator(node: Mapping[str, Any] | None, tokenizer: Any) -> Any:
    """The configured collator, served with the tokenizer under whatever name it takes it.

    None is the trainer's own, also where the configured one asks for that as ``inner``, to come around it later.
    """
    if node is None or "inner" in asked_for(node["_target_"]):
        return None
    return _collator(node, tokenizer)


def _collator(node: Mapping[str, Any], tokenizer: Any, **more: Any) -> Any:
    served = {"tokenizer": tokenizer, "processing_class": tokenizer, "pad_token_id": tokenizer.pad_token_id} | more
    return serve(node, **{name: part for name, part in served.items() if name not in node})


def set_collator(trainer: Any, node: Mapping[str, Any] | None, tokenizer: Any) -> None:
    """Put a collator that asks for the trainer's own around it."""
    if node is not None and "inner" in asked_for(node["_target_"]):
        trainer.data_collator = _collator(node, tokenizer, inner=trainer.data_collator)


def build_loss(node: Mapping[str, Any] | None) -> Any:
    """The configured loss: a function with its settings bound, or an instance of a class that is called.

    One of torch's own averages nothing unless it is told to, because batches are averaged by their tokens.
    """
    if not node:
        return None
    if not inspect.isclass(locate(node["_target_"])):
        return build(dict(node) | {"_partial_": True})
    unaveraged = {"reduction": "none"} if "reduction" in asked_for(node["_target_"]) else {}
    return build(unaveraged | dict(node))


def build_rules(node: Mapping[str, Any] | None) -> list[Any]:
    """The configured rules of token weights, which multiply."""
    return [build(dict(entry) | {"_partial_": True}) for entry in named(node or {}, "weight").values() if entry]


def columns_asked_for(rules: list[Any]) -> list[str] | None:
    """The columns that rules read, as datasets are told of them; None where they read none."""
    if not rules:
        return None
    from runner.dataset.detect import EVERY
    from runner.dataset.weigh import columns_of

    names = set().union(*map(columns_of, rules))
    return [EVERY] if "row" in names else sorted(names) or None


@contextlib.contextmanager
def packed_later(args: Any) -> Iterator[dict[str, Any] | None]:
    """Have a trainer that packs rows leave that to us while it is built, and say how it would have done it.

    Its own packing keeps token ids and labels only, and the weights would be lost.
    """
    if not getattr(args, "packing", False):
        yield None
        return
    pack = {"seq_length": args.max_length, "strategy": args.packing_strategy}
    ours = {"packing": False, "max_length": None, "padding_free": args.padding_free or pack["strategy"] != "wrapped"}
    theirs = {name: getattr(args, name) for name in ours}
    vars(args).update(ours)
    try:
        yield pack | {"shuffle": args.shuffle_dataset}
    finally:
        vars(args).update(theirs)


def set_weights(trainer: Any, rules: list[Any], pack: Mapping[str, Any] | None) -> None:
    """Give every token of the trainer's rows its weight, and have the trainer's batches carry them."""
    from runner.dataset.weigh import Weigher, WeightCollator, pack_rows, rotate_weights, weigh_rows
    from runner.files import source_hash

    args, weigher = trainer.args, Weigher(rules, trainer.processing_class)
    key = str([(source_hash(rule), sorted(rule.keywords.items())) for rule in rules])

    def weighed(rows: Any) -> Any:
        rows = weigh_rows(rows, weigher, key, args.dataset_num_proc)
        if getattr(trainer, "calculate_KL", False):
            rows = rotate_weights(rows, args.per_device_train_batch_size)
        return pack_rows(rows, args.seed, **pack) if pack else rows

    with args.main_process_first(desc="weights of tokens"):
        trainer.train_dataset, held_out = weighed(trainer.train_dataset), trainer.eval_dataset
        if isinstance(held_out, Mapping):
            trainer.eval_dataset = {name: weighed(rows) for name, rows in held_out.items()}
        elif held_out is not None:
            trainer.eval_dataset = weighed(held_out)
    trainer.data_collator = WeightCollator(trainer.data_collator)
    args.remove_unused_columns = False  # or the weights would be among them


def build_callbacks(run: Run, args: Any, stop: Any, peft_config: Any, served: Mapping[str, Any]) -> list[Any]:
    """The user's callbacks as they are listed, and then ours; the seal comes last, when it is decided what a step
    will save.
    """
    from runner.callback import Finite, FirstMargin, Progress, Record, StopAtStep
    from runner.checkpoint import Seal, cycle_steps
    from runner.model.adapter import moves_start

    theirs = named(run.cfg["callback"] or {}, "callback")
    cycle = cycle_steps(args)
    keep = run.cfg["trainer"]["args"].get("save_total_limit") or 2
    rounding = 5e-2 if args.bf16 or args.fp16 else 1e-4
    # A prompt or prefix starts elsewhere by nature, with a right reference.
    compared = "ref_model" in asked_for(run.cfg["trainer"]["_target_"]) and not moves_start(peft_config)
    first = [FirstMargin(rounding)] if compared else []
    return [
        *(_callback(name, node, served) for name, node in theirs.items() if not _wants_trainer(node)),
        StopAtStep(stop, cycle),
        Record(run.metrics, run.set_status),
        Finite(),
        Progress(),
        *first,
        Seal(keep, cycle),
    ]


def add_callbacks(trainer: Any, node: Mapping[str, Any] | None, served: Mapping[str, Any]) -> None:
    """Put the callbacks that ask for the trainer behind the user's others, and tell them that it is there."""
    from runner.callback import StopAtStep

    late = {name: entry for name, entry in named(node or {}, "callback").items() if _wants_trainer(entry)}
    callbacks = trainer.callback_handler.callbacks
    place = next((place for place, one in enumerate(callbacks) if isinstance(one, StopAtStep)), len(callbacks))
    for name, entry in reversed(late.items()):
        callback = _callback(name, entry, served, trainer=trainer)
        callbacks.insert(place, callback)
        callback.on_init_end(trainer.args, trainer.state, trainer.control)


def for_callbacks(run: Run, tokenizer: Any, rows: Any, held_out: Any) -> dict[str, Any]:
    """What the constructor of a callback gets when it names it.

    ``generate(model, prompts, max_new_tokens=...)`` gives completions as texts, ``prompts`` are the held-out ones, and
    ``folder`` is that of the run; there where the model writes, and the rows have prompts.
    """
    served = {
        "tokenizer": tokenizer,
        "processing_class": tokenizer,
        "folder": run.folder,
        "train_dataset": rows,
        "eval_dataset": held_out,
    }
    cfg = run.cfg
    if cfg["trainer"]["head"] == "lm":
        served["generate"] = functools.partial(_generate, tokenizer)
    if fits(cfg["dataset"].get("form"), "prompt") and held_out is not None:
        served["prompts"] = _held_out_prompts(cfg)
    return served


def _generate(tokenizer: Any, model: Any, prompts: Any, **how: Any) -> list[str]:
    """Completions of the policy, which PPO keeps beside its critic."""
    from runner.model.generate import generate

    return generate(getattr(model, "policy", model), tokenizer, prompts, **how)


def _held_out_prompts(cfg: Mapping[str, Any]) -> Iterator[Any]:
    """The prompts of the held-out rows of every set, read when somebody asks for the first."""
    node = dict(cfg["dataset"])
    if node["_target_"] == "runner.dataset.load.load_rows" and isinstance(node.get("split"), Mapping):
        node["split"] = dict(node["split"]) | {"train": None}
    _, held_out = serve(node, to="prompt", seed=cfg["seed"], keep=None)
    for rows in held_out.values() if isinstance(held_out, Mapping) else [held_out]:
        yield from (row["prompt"] for row in rows)


def _callback(name: str, node: Mapping[str, Any], served: Mapping[str, Any], **more: Any) -> Any:
    """One callback; what its config says comes before what it would be served."""
    from transformers import TrainerCallback

    callback = serve(node, **{key: part for key, part in {**served, **more}.items() if key not in node})
    if not isinstance(callback, TrainerCallback):
        found, expected = f"a {type(callback).__name__}, which hears of no event", "a transformers.TrainerCallback"
        raise ConfigError(Fault(f"callback.{name}", found, expected, f"class {type(callback).__name__}({expected}):"))
    return callback


def _wants_trainer(node: Mapping[str, Any]) -> bool:
    return "trainer" in asked_for(node["_target_"]) and "trainer" not in node


def find_callback_faults(cfg: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each callback that needs what this run does not have; read from the configuration alone."""
    node, rows = cfg["callback"] or {}, cfg["dataset"]
    for name, entry in named(node, "callback").items():
        signature = read_signature(entry["_target_"])
        needed = set(signature.required) - set(entry) if signature else set()
        where = "callback" if entry is node else f"callback.{name}"
        off = f"{where}=null, or callback=none"
        if "generate" in needed and cfg["trainer"]["head"] == "score":
            found = "it samples completions, and a reward model writes none"
            yield Fault(where, found, "a trainer of a language model", off)
        elif "prompts" in needed and not fits(rows.get("form"), "prompt"):
            found = f"{rows['form']} rows ({rows.get('path')}), which have no prompts"
            yield Fault(f"{where}.prompts", found, "prompts", f"{where}.prompts=[<text>, ...], or {off}")
        elif "prompts" in needed and "split" in rows and not (rows["split"] or {}).get("eval"):
            cure = f"dataset.split.eval=<split>, or {where}.prompts=[<text>, ...]"
            yield Fault(f"{where}.prompts", "none, and there are no held-out rows", "prompts", cure)


def build_sharing(node: Mapping[str, Any], tray: Mapping[str, Any], tokenizer: Any) -> Any:
    """The trainer, with a precomputed reference that other runs find again."""
    from runner.trainer.precompute import drop_filled, is_shared, shared

    if not is_shared(tray):
        return build_trainer(node, tray, tokenizer)
    with shared(tray) as given:
        trainer = build_trainer(node, given, tokenizer)
    drop_filled(trainer)
    return trainer


def build_trainer(node: Mapping[str, Any], tray: Mapping[str, Any], tokenizer: Any) -> Any:
    """The trainer, served what its constructor names, with evaluations that keep their names and random state."""
    from transformers import PrinterCallback

    from runner.model.reference import match_reference

    wanted = asked_for(node["_target_"])
    own = {key: value for key, value in node.items() if key not in NOT_FOR_THE_TRAINER}
    own = {key: serve(value, tokenizer=tokenizer) if _is_call(value) else value for key, value in own.items()}
    served = {name: part for name, part in tray.items() if name in wanted and not _empty(part)}
    cls, loss = locate(node["_target_"]), tray["compute_loss_func"]
    objective = _objective(cls) if loss or tray["weight_rules"] else None
    if objective:
        served.pop("compute_loss_func", None)
    trainer = _extended(cls, objective)(**served | own)
    if objective:
        trainer.loss_function = loss
    trainer.remove_callback(PrinterCallback)
    match_reference(trainer)
    return trainer


def _objective(trainer: type) -> type | None:
    from runner.trainer.objective import objective_of

    return objective_of(trainer)


@functools.cache
def _extended(trainer: type, objective: type | None = None) -> type:
    """The same trainer, under the same name, with our additions between it and transformers' Trainer.

    An ``objective`` comes before it, where its public ``compute_loss`` is asked.
    """
    from runner.trainer.evaluation import Evaluation, Measurement
    from runner.trainer.optimization import Optimization

    bases = (Measurement, *([objective] if objective else []), trainer, Evaluation, Optimization)
    return type(trainer.__name__, bases, {"__module__": trainer.__module__})


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


def _call_tools(rows: Any) -> bool:
    """Whether one of the first rows has a turn that calls a tool."""
    parts = (part for row in itertools.islice(rows, 100) for part in row.values() if isinstance(part, list))
    return any(isinstance(turn, Mapping) and turn.get("tool_calls") for part in parts for turn in part)


def _is_call(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def _empty(part: Any) -> bool:
    return part is None or (isinstance(part, list) and not part)
