"""Parts that a library builds late, built once with stand-ins before rows load: optimizer, schedule, sampling, adapter.

So a value that it refuses ends the run at its start, and under its key.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig, Trainer, TrainingArguments, get_scheduler

from runner.config.build import asked_for, build, locate, serve
from runner.errors import RunnerError, own_place
from runner.io.hub import is_of_network
from runner.model.adapter import OWN
from runner.run import Run
from runner.run.adjustments import is_out_of_memory
from runner.run.blame import find_refused_keys
from runner.schema import upstream
from runner.schema.text import Config, Node

STEPS = 100  # of the schedule that is tried


@contextlib.contextmanager
def blaming(run: Run, *parts: str) -> Iterator[None]:
    """Inside, where only values of these parts are used, an exception of a library is raised as a fault of theirs."""
    try:
        yield
    except (RunnerError, ImportError, OSError):
        raise
    except Exception as error:
        if own_place(error) or is_out_of_memory(error) or is_of_network(error):
            raise
        if refused := find_refused_keys(run, error, parts):
            raise refused from error
        raise


def rehearse_components(run: Run, args: TrainingArguments) -> None:
    """Build what the trainer will build of the configuration alone; ConfigError for a value that a library refuses."""
    cfg = run.cfg
    generation = getattr(args, upstream.GENERATION_KWARGS, None)
    if generation and not getattr(args, upstream.USE_VLLM, False):
        with blaming(run, f"trainer.args.{upstream.GENERATION_KWARGS}"):
            GenerationConfig(**generation).validate()
    if args.gradient_checkpointing_kwargs:
        with blaming(run, "trainer.args.gradient_checkpointing_kwargs"):
            weight = torch.ones(1, requires_grad=True)
            checkpoint(torch.sin, weight, **args.gradient_checkpointing_kwargs).backward()
    peft = cfg["peft"]
    if peft and str(peft["_target_"]).startswith("peft.") and "model" not in asked_for(peft["_target_"]):
        settings = {key: value for key, value in peft.items() if key not in OWN}
        with blaming(run, "peft"):
            serve(settings, task_type="SEQ_CLS" if cfg["trainer"]["head"] == "score" else "CAUSAL_LM")
    _rehearse_optimizer(run, cfg, args)


def _rehearse_optimizer(run: Run, cfg: Config, args: TrainingArguments) -> None:
    node: Node = cfg.get("optimizer") or {}
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer: torch.optim.Optimizer = torch.optim.SGD([weight], lr=args.learning_rate)
    if node:
        target = node["_target_"]
        settings = {key: value for key, value in node.items() if key not in ("_target_", "groups", "scheduler")}
        takes_rate = settings.get("lr") is None and "lr" in asked_for(target)
        settings = build(settings | ({"lr": args.learning_rate} if takes_rate else {}))
        if str(target).startswith(("torch.optim.", "transformers.")) and "named_parameters" not in asked_for(target):
            with blaming(run, "optimizer"):
                optimizer = locate(target)([weight], **settings)
            for pattern, own in (node.get("groups") or {}).items():
                given = {key: value for key, value in own.items() if key != "lr_ratio"}
                with blaming(run, f"optimizer.groups.{pattern}", "optimizer.groups"):
                    group = {"params": [nn.Parameter(torch.zeros(2, 2))], **given}
                    locate(target)([group], **settings)
    elif not args.optim_target_modules:
        with blaming(run, f"trainer.args.{upstream.OPTIM}"):
            make, settings = Trainer.get_optimizer_cls_and_kwargs(args)
            if isinstance(make, type) and not {"model", "optimizer_dict"} & settings.keys():
                optimizer = make([weight], **settings)
    with blaming(run, "optimizer._target_" if node else f"trainer.args.{upstream.OPTIM}"):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    if scheduler := node.get("scheduler"):
        with blaming(run, "optimizer.scheduler"):
            serve(scheduler, optimizer=optimizer, num_training_steps=STEPS)
        return
    names = (upstream.LR_SCHEDULER_TYPE, upstream.LR_SCHEDULER_KWARGS, upstream.WARMUP_STEPS)
    with blaming(run, *(f"trainer.args.{name}" for name in names)):
        get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=args.get_warmup_steps(STEPS),
            num_training_steps=STEPS,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
