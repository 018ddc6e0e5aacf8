"""The user's callbacks and ours, in the order in which they must come."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.config import asked_for, serve
from runner.dataset.convert import fits
from runner.errors import ConfigError, Fault
from runner.resume.amendment import HALVING, ROLLBACK, amended_share, count_of
from runner.run import Run
from runner.signature import read_signature
from runner.tray.judge import named
from runner.tray.row import held_out_sets


def build_callbacks(run: Run, args: Any, stop: Any, peft_config: Any, served: Mapping[str, Any]) -> list[Any]:
    """The user's callbacks as they are listed, and then ours; the seal comes last, when it is decided what a step
    will save.
    """
    from runner.callback import Progress, Record, StopAtStep
    from runner.checkpoint import Seal, cycle_steps

    theirs = named(run.cfg["callback"] or {}, "callback")
    cycle = cycle_steps(args)
    keep = run.cfg["trainer"]["args"].get("save_total_limit") or 2
    return [
        *(_callback(name, node, served) for name, node in theirs.items() if not _wants_trainer(node)),
        StopAtStep(stop, cycle),
        Record(run.metrics, run.set_status),
        _build_health(run.cfg, args, peft_config),
        Progress(),
        Seal(keep, cycle, run.set_status),
    ]


def _build_health(cfg: Mapping[str, Any], args: Any, peft_config: Any) -> Any:
    """The alarms that fit this kind of training."""
    from runner.health import Health, build_alarms
    from runner.model.adapter import moves_start

    asked = asked_for(cfg["trainer"]["_target_"])
    rounding = 5e-2 if args.bf16 or args.fp16 else 1e-4
    lengths = ("max_completion_length", "response_length", "max_new_tokens")
    kind = {
        "online": "reward_funcs" in asked,
        "anchored": "ref_model" in asked,
        "pairs": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        # A prompt or prefix starts elsewhere by nature, with a right reference.
        "rounding": rounding if "ref_model" in asked and not moves_start(peft_config) else None,
        "length": next((getattr(args, name) for name in lengths if hasattr(args, name)), None),
    }
    return Health(lambda resumed: build_alarms(cfg.get("tolerate"), **kind, resumed=resumed))


def set_health(trainer: Any, panel: Any) -> None:
    """Let the alarms hear each loss, what the trainer notes for its log, and what completions earn."""
    from runner.health import Health

    health = next(one for one in trainer.callback_handler.callbacks if isinstance(one, Health))
    trainer.hear_loss = health.hear_loss
    health.rewards = panel.spread if panel else None
    if any(hasattr(trainer, name) for name in NOTES):
        health.notes = functools.partial(_notes, trainer)


# Where trainers keep what they will log: ours and online DPO openly, the others of TRL not. It is only read, so that
# every step can be judged, however seldom it is logged; of a trainer without it what it logs is judged. The runs of
# ``tests/test_sick_runs`` log every 100 steps, and miss their alarms where upstream renames them.
NOTES = ("metrics", "stats", "_stored_metrics", "_metrics")


def _notes(trainer: Any) -> Mapping[str, Any]:
    notes = next(getattr(trainer, name) for name in NOTES if hasattr(trainer, name))
    return notes.get("train", {}) if isinstance(next(iter(notes.values()), None), Mapping) else notes


def set_amendments(trainer: Any, amendments: Sequence[Mapping[str, Any]]) -> None:
    """Have the steps taken and logged as the run has amended itself."""
    from runner.callback import Slower

    share = functools.partial(amended_share, amendments)
    if count_of(amendments, ROLLBACK):
        trainer.add_callback(Slower(share))

    def amend(logs: dict[str, Any], step: int) -> None:
        rates = [name for name in ("learning_rate", "lr") if name in logs]
        logs |= {name: logs[name] * share(step - 1) for name in rates}
        counts = {f"{kind}s": count_of(amendments, kind) for kind in (ROLLBACK, HALVING)}
        logs |= {name: count for name, count in counts.items() if rates and count}

    trainer.amend_logs = amend if amendments else None


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

    ``generate(model, prompts, max_new_tokens=...)`` gives completions as texts, ``prompts()`` the held-out ones anew,
    and ``folder`` is that of the run; there where the model writes, and the rows have prompts.
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
        served["prompts"] = functools.partial(_held_out_prompts, cfg)
    return served


def _generate(tokenizer: Any, model: Any, prompts: Any, **how: Any) -> list[str]:
    """Completions of the policy, which PPO keeps beside its critic."""
    from runner.model.generate import generate

    return generate(getattr(model, "policy", model), tokenizer, prompts, **how)


def _held_out_prompts(cfg: Mapping[str, Any]) -> Iterator[Any]:
    """The prompts of the held-out rows of every set, read when somebody asks for the first."""
    for rows in held_out_sets(cfg, "prompt").values():
        yield from (row["prompt"] for row in rows)


def _callback(name: str, node: Mapping[str, Any], served: Mapping[str, Any], **more: Any) -> Any:
    """One callback; what its config says comes before what it would be served, of the prompts each has its own."""
    from transformers import TrainerCallback

    more |= {"callback_name": name} | ({"prompts": served["prompts"]()} if "prompts" in served else {})
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
