"""Run folder -> every part of the run, laid on a tray; and the trainer, served what its signature names.

What is not here: how a part is made (its own room), what a valid key is (``check``), how the loop runs (the Trainer).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from runner.config import build, serve
from runner.errors import ConfigError, Fault
from runner.resume.amendment import read_amendments
from runner.run import Run
from runner.terminal import mute_libraries
from runner.tray.argument import build_args
from runner.tray.callback import add_callbacks, build_callbacks, for_callbacks, set_amendments, set_health
from runner.tray.judge import build_rewards, load_named, name_rewards
from runner.tray.loss import (
    build_collator,
    build_loss,
    build_rules,
    columns_asked_for,
    packed_later,
    set_collator,
    set_weights,
)
from runner.tray.model import build_model
from runner.tray.trainer import build_sharing, set_optimizer

log = logging.getLogger(__name__)


def lay_out(run: Run, stop: Any) -> dict[str, Any]:
    """Build every part of a run, in the order in which they need each other, ending with ``trainer``."""
    import transformers

    from runner.model.chat import check_template
    from runner.tracker.callback import tell_trackers

    cfg = run.cfg
    mute_libraries()
    transformers.set_seed(cfg["seed"])
    with _told("trainer.args"):
        args = build_args(run)
    tokenizer = build(cfg["model"]["tokenizer"])
    rules = build_rules(cfg.get("weight"))
    rows, held_out = serve(cfg["dataset"], to=cfg["trainer"]["form"], seed=cfg["seed"], keep=columns_asked_for(rules))
    if (
        cfg["trainer"]["form"] == "preference"
        and cfg["trainer"]["head"] != "score"
        and "margin" in next(iter(rows), {})
    ):
        log.warning("the column `margin` is not used: of margins only the loss of a reward model knows")
    # Only a trainer that knows where steps end can use a reward for each.
    how = {"random_head": bool((cfg.get("tolerate") or {}).get("random_head"))}
    rewards, weights, panel = build_rewards(cfg["reward"], per_step=hasattr(args, "step_separator"), **how)
    further = load_named(args, **how)
    if weights:
        args.reward_weights = [*weights, *[1.0] * len(further)]
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
        "reward_funcs": [*rewards, *further],
        "callbacks": build_callbacks(run, args, stop, peft_config, served),
        "peft_config": peft_config,
        "compute_loss_func": build_loss(cfg.get("loss")),
        "weight_rules": rules,
        "amendments": read_amendments(run.folder),
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
    set_health(trainer, panel)
    set_amendments(trainer, tray["amendments"])
    trainer.evaluates = cfg["trainer"].get("evaluates", True)
    return tray | {"trainer": trainer}


@contextlib.contextmanager
def _told(where: str) -> Iterator[None]:
    """Tell what a constructor of TRL refuses as what it is: a configuration that cannot work."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(Fault(where, str(error).splitlines()[0], "values that go together")) from error


def _are_chats(rows: Any) -> bool:
    """Whether the rows hold conversations, which need a template, rather than text."""
    row = next(iter(rows), {})
    return any(isinstance(row.get(name), list) for name in ("messages", "prompt", "completion", "chosen"))


def _call_tools(rows: Any) -> bool:
    """Whether one of the first rows has a turn that calls a tool."""
    parts = (part for row in itertools.islice(rows, 100) for part in row.values() if isinstance(part, list))
    return any(isinstance(turn, Mapping) and turn.get("tool_calls") for part in parts for turn in part)
