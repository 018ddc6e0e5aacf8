"""Run folder -> trained model. The parts are laid on a tray, and the trainer is served what its
signature names.

What is not here: how a part is made (its own room), what a valid key is (``check``), how the loop
runs (the Trainer).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config import Options, asked_for, build, locate, serve
from runner.dataset.convert import FORMS_FOR, fits
from runner.errors import ConfigError, DataError, Fault, FolderError
from runner.files import files_of, read_json, replace_rows, seal, shipped, write_json
from runner.run import Run, last_checkpoint, write_manifest

log = logging.getLogger("runner")

HELD_OUT_PROMPTS = 200
NOT_FOR_THE_TRAINER = ("_target_", "form", "head", "evaluates", "args")


def train(run: Run, stop: Any) -> None:
    """Train, or go on training, until the run is finished; raises Interrupted when a signal came first."""
    from runner.checkpoint import resume

    began = time.monotonic()
    parts = lay_out(run, stop)
    trainer = parts["trainer"]
    _start(run, parts)
    newest = last_checkpoint(run, clean=trainer.is_world_process_zero())
    resume(trainer, newest, lambda path: trainer.train(resume_from_checkpoint=path))
    if stop.number is not None:
        raise stop.error()
    if trainer.state.global_step == 0:
        raise DataError(_no_steps(parts["args"], len(parts["train_dataset"])))
    _finish(run, parts, time.monotonic() - began)


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
            raise ConfigError(_foreign_variable(name))
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


def _foreign_variable(name: str) -> Fault:
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


def held_out_scores(run: Run, parts: Mapping[str, Any]) -> dict[str, float]:
    """What the model reaches on held-out rows now: the trainer's own evaluation, and metrics of sampled completions."""
    scores: dict[str, float] = {}
    trainer = parts["trainer"]
    if parts["eval_dataset"] is not None:
        scores |= trainer.evaluate()
    if run.cfg["metric"] and run.cfg["trainer"]["head"] == "lm":
        scores |= _generated_scores(run, parts)
    clock = ("_runtime", "_per_second", "_time", "epoch", "num_tokens")
    return {name: value for name, value in scores.items() if not name.endswith(clock) and isinstance(value, float)}


def _generated_scores(run: Run, parts: Mapping[str, Any]) -> dict[str, float]:
    """Each configured metric, averaged over completions sampled for held-out prompts."""
    from runner.model.generate import generate

    cfg, trainer = run.cfg, parts["trainer"]
    _, held_out = serve(cfg["dataset"], to="prompt", seed=cfg["seed"])
    if held_out is None:
        return {}
    scores = {}
    for name, rows in (held_out if isinstance(held_out, Mapping) else {"": held_out}).items():
        first = list(rows.take(HELD_OUT_PROMPTS))
        columns = {column: [row[column] for row in first] for column in first[0]}
        completions = generate(
            policy_of(trainer),
            parts["processing_class"],
            columns["prompt"],
            max_new_tokens=_completion_length(parts["args"]),
        )
        if trainer.is_world_process_zero():
            _write_completions(run, columns["prompt"], completions, trainer.state.global_step)
        columns["prompts"] = columns.pop("prompt")
        for metric, node in cfg["metric"].items():
            values = build_scorer(metric, node)(completions=completions, **columns)
            numbers = [value for value in values if value is not None]
            if numbers:
                scores["_".join(filter(None, ("eval", name, metric)))] = sum(numbers) / len(numbers)
    return scores


def policy_of(trainer: Any) -> Any:
    """The language model that a trainer trains, without what distributes it or stands beside it, such as a critic."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return getattr(model, "policy", model)


def _completion_length(args: Any) -> int:
    """Most tokens of a completion, under the name that the trainer has for it."""
    names = ("max_completion_length", "response_length", "max_new_tokens")
    return next(filter(None, (getattr(args, name, None) for name in names)), 64)


def mismatches(cfg: Mapping[str, Any], menu: Options) -> list[Fault]:
    """Parts that are each right and do not go together; read from the configuration alone, before anything loads."""
    rows, args = cfg["dataset"], cfg["trainer"]["args"]
    form, wanted = rows.get("form"), cfg["trainer"]["form"]
    faults = []
    if not fits(form, wanted):
        found = f"{form} rows ({rows.get('path')})"
        expected = f"rows that can become {wanted} rows: {', '.join(FORMS_FOR[wanted])}"
        faults.append(Fault("dataset", found, expected, f"dataset=<{' | '.join(_datasets_for(wanted, menu))}>"))
    if cfg["metric"] and not fits(form, "prompt"):
        found = f"{', '.join(cfg['metric'])} of completions, and {form} rows have no prompt"
        faults.append(Fault("metric", found, "rows with prompts, or none", "metric=none"))
    variables = cfg["tracker"].get("environment") or {}
    faults += [_foreign_variable(name) for name in variables if not name.startswith(TRACKER_VARIABLES)]
    evaluates = args.get("eval_strategy", "no") not in ("no", False)
    if evaluates and "split" in rows and not (rows["split"] or {}).get("eval"):
        where = "trainer.args.eval_strategy"
        faults.append(Fault(where, str(args["eval_strategy"]), "held-out rows", "dataset.split.eval=<split>"))
    if rows.get("streaming") and int(args.get("max_steps") or -1) < 1:
        where, cure = "dataset.streaming", "trainer.args.max_steps=<steps>"
        faults.append(Fault(where, "a stream, whose length nobody knows", "a number of steps", cure))
    return faults


def _datasets_for(wanted: str, menu: Options) -> list[str]:
    """The options of the dataset group whose rows can feed a trainer."""
    import yaml

    from runner.config import MENU

    names = []
    for name in menu.get("dataset", []):
        path = MENU / "dataset" / f"{name}.yaml"
        node = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        form = (node.get("dataset") or node).get("form")
        if form and fits(form, wanted):
            names.append(name)
    return names


def _start(run: Run, parts: Mapping[str, Any]) -> None:
    """Check that there is something to train on, record the start, and have the start model measured."""
    from runner.callback import AtStart

    args, trainer, rows = parts["args"], parts["trainer"], parts["train_dataset"]
    if hasattr(rows, "__len__") and len(rows) < _rows_per_step(args):
        raise DataError(_no_steps(args, len(rows)))
    if trainer.is_world_process_zero():
        facts, before = _facts(parts), read_json(run.folder / "manifest.json") or {"data": None}
        if before["data"] not in (None, facts["data"]) and last_checkpoint(run, clean=False):
            found = "the rows are not those that its checkpoints were trained on"
            raise FolderError(Fault(str(run), found, "the same rows", "name=<another name>, to start anew"))
        write_manifest(run, **facts, starts=before.get("starts", 0) + 1)
    trainer.add_callback(AtStart(lambda: _measure_before(run, parts)))


def _measure_before(run: Run, parts: Mapping[str, Any]) -> None:
    """Write the held-out scores of the start model, once in the life of a run."""
    path = run.folder / "scores.json"
    if "before" not in (read_json(path) or {}):
        before = held_out_scores(run, parts)
        if parts["trainer"].is_world_process_zero():
            write_json(path, {"before": before})


def _finish(run: Run, parts: Mapping[str, Any], seconds: float) -> None:
    """Measure again, save what others can load, draw the curves, and only then say finished."""
    from runner.report.plot import write_plots

    trainer = parts["trainer"]
    scores = (read_json(run.folder / "scores.json") or {}) | {"after": held_out_scores(run, parts)}
    save_model(run, trainer)
    if not trainer.is_world_process_zero():
        return
    write_json(run.folder / "scores.json", scores)
    write_plots(run.metrics, run.folder / "plots", title=run.folder.parent.name)
    write_manifest(run, files=files_of(run.model))
    _push(run)
    run.set_status("finished", step=trainer.state.global_step, cause=None)
    print(_closing(run, scores, trainer.state.global_step, seconds))


def save_model(run: Run, trainer: Any) -> None:
    """Put into ``model/`` what ``from_pretrained`` or PeftModel loads, whole or not at all, without any pickle."""
    from peft import PeftModel

    new = run.folder / ".model.new"
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.is_world_process_zero():
        shutil.rmtree(new, ignore_errors=True)
    if not isinstance(model, PeftModel):
        trainer.save_model(str(new))
    if isinstance(policy_of(trainer), PeftModel) and trainer.is_world_process_zero():
        _save_adapter(run, policy_of(trainer), new)
        trainer.processing_class.save_pretrained(new)
    if trainer.is_world_process_zero():
        (new / "training_args.bin").unlink(missing_ok=True)
        seal(new)
        shutil.rmtree(run.model, ignore_errors=True)
        new.rename(run.model)


def _save_adapter(run: Run, model: Any, folder: Path) -> None:
    """Write the adapter with the base that the config names, so that it loads wherever that can be found."""
    from runner.model.adapter import write_adapter
    from runner.model.load import read_adapter

    path, revision = path_of(run.cfg)["path"], run.cfg["model"].get("revision")
    loaded = read_adapter(path, revision)
    base = loaded.base_model_name_or_path if loaded else path
    write_adapter(model, folder, base=shipped(base), revision=loaded.revision if loaded else revision)


def _push(run: Run) -> None:
    """Upload ``model/`` where ``push_to_hub`` was asked for; private unless the config says otherwise."""
    args = run.cfg["trainer"]["args"]
    if not args.get("push_to_hub"):
        return
    from huggingface_hub import HfApi

    hub = HfApi()
    private = args.get("hub_private_repo")
    name = args.get("hub_model_id") or run.folder.parent.name
    repository = hub.create_repo(name, private=True if private is None else private, exist_ok=True)
    hub.upload_folder(repo_id=repository.repo_id, folder_path=run.model, ignore_patterns=["*.bin", "seal.json"])
    print(f"pushed to {repository}")


def _facts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of the data, the model and the machine."""
    import platform

    import torch

    model = parts["model"]
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in parts["trainer"].model.parameters()]
    return {
        "data": {
            "train": _data_facts(parts["train_dataset"]),
            "eval": _data_facts(parts["eval_dataset"]),
        },
        "model": {
            "path": model.config._name_or_path,
            "commit": getattr(model.config, "_commit_hash", None),
            "parameters": sum(count for count, _ in counts),
            "trainable": sum(count for count, trainable in counts if trainable),
            "dtype": str(model.dtype),
        },
        "hardware": {
            "machine": platform.platform(),
            "processors": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
            "processes": parts["args"].world_size,
        },
    }


def _data_facts(rows: Any) -> Any:
    if rows is None:
        return None
    if isinstance(rows, Mapping):
        return {name: _data_facts(part) for name, part in rows.items()}
    from runner.dataset.load import fingerprint

    return {
        "rows": len(rows) if hasattr(rows, "__len__") else None,
        "fingerprint": fingerprint(rows),
    }


def _rows_per_step(args: Any) -> int:
    """Rows that one optimizer step draws over all processes; fewer rows than that and some trainers do nothing."""
    generated = getattr(args, "generation_batch_size", None)
    if generated:
        return generated // args.num_generations
    return 1


def _no_steps(args: Any, rows: int) -> Fault:
    return Fault(
        "dataset",
        f"{rows} training rows",
        f"at least the {_rows_per_step(args)} that one step needs",
        "dataset.limit.train=null, or a smaller trainer.args.per_device_train_batch_size",
    )


def _are_chats(rows: Any) -> bool:
    """Whether the rows hold conversations, which need a template, rather than text."""
    row = next(iter(rows), {})
    return any(isinstance(row.get(name), list) for name in ("messages", "prompt", "completion", "chosen"))


def _write_completions(run: Run, prompts: list[Any], completions: list[str], step: int) -> None:
    """Add a step's held-out samples to completions.jsonl, in place of those of an earlier try at the same step."""
    pairs = zip(prompts, completions, strict=True)
    rows = [{"step": step, "prompt": prompt, "completion": completion} for prompt, completion in pairs]
    replace_rows(run.folder / "completions.jsonl", rows, same=["step"])


def _closing(run: Run, scores: Mapping[str, Mapping[str, float]], steps: int, seconds: float) -> str:
    """The last words of a run: what changed, where it is, and what to type next."""
    before, after = scores["before"], scores["after"]
    shown = [name for name in after if not any(word in name for word in DETAILS)]
    width = max(map(len, [*shown, "held out"]))
    table = [f"  {'held out':<{width}}    before     after"] if shown else []
    for name in shown:
        start = f"{before[name]:8.3f}" if name in before else f"{'-':>8}"
        table.append(f"  {name:<{width}}  {start}  {after[name]:8.3f}")
    model = f"{run}/model"
    lines = [
        f"finished  {steps} steps in {seconds:.0f} s",
        *table,
        f"model     {model}",
        f"curves    {run}/plots",
        _next(run, model),
    ]
    return "\n".join(filter(None, lines))


# Held-out figures that stay in scores.json, because they say little about whether something was learned.
DETAILS = ("logits/", "logps/", "_length", "clip", "min_reward", "max_reward", "frac_reward", "/std", "_std")


def _next(run: Run, model: str) -> str:
    """The stage that usually follows this one, or where to read what the model writes now."""
    cfg = run.cfg
    if cfg["trainer"]["form"] == "prompt":
        written = [path for path in (run.folder, run.checkpoints) if (path / "completions.jsonl").exists()]
        return f"samples   {run}/{(written[0] / 'completions.jsonl').relative_to(run.folder)}" if written else ""
    if cfg["trainer"]["head"] == "score":
        return f"next      python -m runner trainer=ppo reward=model reward.model.path={model}"
    follower = "dpo" if cfg["trainer"]["form"] == "demonstration" else "grpo"
    like = "" if str(cfg["model"].get("path")).startswith("runner://") else " model=hub"
    return f"next      python -m runner trainer={follower}{like} {shlex.quote(f'model.path={model}')}"


def _is_call(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def _empty(part: Any) -> bool:
    return part is None or (isinstance(part, list) and not part)
