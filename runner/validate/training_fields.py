"""Fields of the trainer's config that are each right and do not go together.

Most of these the trainer's constructor would refuse too, but only after the libraries are imported;
the rest it would take, and learn nothing, or something else.
"""

import math
from collections.abc import Iterator

from runner.config.machines import processes_of
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.schema.text import short_text
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import is_plain_number


def _is_evaluated(context: ValidationContext) -> bool:
    return context.field("eval_strategy") not in ("no", False, None)


def find_step_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each number of steps or epochs that another one overrules."""
    args = context.args
    steps = args.get("max_steps")
    warmup = args.get("warmup_steps")
    if is_plain_number(steps) and is_plain_number(warmup) and 1 <= steps <= warmup:
        yield Fault(
            where="trainer.args.warmup_steps",
            found=f"{warmup} of {steps} steps, so the learning rate would never be reached",
            expected="fewer than max_steps, or a share below 1",
            fix="=0.1",
        )
    # Steps that nobody typed may have come with the model.
    are_epochs_typed = f"{ARGS}num_train_epochs" in context.typed
    are_steps_typed = f"{ARGS}max_steps" in context.typed
    if are_epochs_typed and not are_steps_typed and is_plain_number(steps) and steps > 0:
        epochs = args.get("num_train_epochs")
        yield Fault(
            where="trainer.args.num_train_epochs",
            found=f"{epochs}, overruled by max_steps={steps}",
            expected="no number of steps in addition",
            fix="trainer.args.max_steps=-1",
        )
    for name in ("logging_steps", "save_steps", "eval_steps"):
        value = context.field(name)
        if is_plain_number(value) and value > 1 and value != int(value):
            yield Fault(
                where=f"{ARGS}{name}",
                found=short_text(value),
                expected="a whole number, or a share below 1",
                fix=f"={round(value)}",
            )
    schedule = context.field("lr_scheduler_type")
    if schedule in upstream.SCHEDULES_BY_SCORE and not _is_evaluated(context):
        yield Fault(
            where="trainer.args.lr_scheduler_type",
            found=f"{schedule}, but nothing is evaluated",
            expected="an eval_strategy",
            fix="trainer.args.eval_strategy=steps",
        )


def find_precision_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each choice of model, precision, optimizer or devices that cannot train."""
    args = context.args
    target = str(context.mapping("model").get("_target_"))
    head = context.mapping("trainer").get("head")
    if head == "lm" and "ForSequenceClassification" in target:
        yield Fault(
            where="model._target_",
            found=f"{target}, a classifier of texts, which no trainer here learns",
            expected="a model that writes, or trainer=reward, which gives a text one score",
            fix="model=hub",
        )
    if args.get("fp16") is True and args.get("bf16") is True:
        yield Fault(
            where="trainer.args.fp16",
            found="true, with bf16: true",
            expected="one of the two",
            fix="=false",
        )
    optimizer = str(args.get("optim"))
    if optimizer.startswith(("galore", "apollo")) and not args.get("optim_target_modules"):
        yield Fault(
            where="trainer.args.optim_target_modules",
            found=f"null, but {optimizer} must know which layers it projects",
            expected="names of layers, or a regular expression",
            fix="=all-linear",
        )
    parallelism = context.field("parallelism_config")
    if isinstance(parallelism, dict) and "_target_" not in parallelism:
        yield Fault(
            where="trainer.args.parallelism_config",
            found="a mapping",
            expected="accelerate.ParallelismConfig, built from it",
            fix="trainer.args.parallelism_config._target_=accelerate.ParallelismConfig",
        )


def find_loading_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each way of loading rows that nobody carries out, or that rows do not allow."""
    args = context.args
    prefetched = context.field("dataloader_prefetch_factor")
    if prefetched and context.field("dataloader_num_workers") == 0:
        yield Fault(
            where="trainer.args.dataloader_prefetch_factor",
            found=f"{prefetched}, but no worker fetches",
            expected="workers",
            fix="trainer.args.dataloader_num_workers=2",
        )
    sampling = context.field("train_sampling_strategy")
    form = context.mapping("trainer").get("form")
    asks_for_lengths = sampling in upstream.OTHER_STEPS["train_sampling_strategy"]
    if asks_for_lengths and form in ("messages", "prompt"):
        yield Fault(
            where="trainer.args.train_sampling_strategy",
            found=f"{sampling}, but rows of {form} are tokenised only in a batch",
            expected="an order that does not depend on length",
            fix="=random",
        )
    is_unbounded = "max_length" in args and args["max_length"] is None
    if is_unbounded and context.field("packing") is True:
        yield Fault(
            where="trainer.args.max_length",
            found="null, but rows are packed up to it",
            expected="a length",
            fix="=1024",
        )


def find_batch_faults(context: ValidationContext) -> Iterator[Fault]:
    """The fault of a batch that does not hold whole groups of completions."""
    count = context.field("num_generations")
    size = context.field("per_device_train_batch_size")
    rounds = context.field("steps_per_generation")
    rounds = rounds or context.field("gradient_accumulation_steps")
    for number in (count, size, rounds):
        if not isinstance(number, int) or number < 1:
            return
    processes = processes_of(context.cfg)
    generated = context.field("generation_batch_size")
    batch = generated or size * rounds * processes
    if not isinstance(batch, int) or count == 1 or batch % count == 0:
        return
    if generated:
        unit = math.lcm(count, size * processes)
        yield Fault(
            where="trainer.args.generation_batch_size",
            found=f"{generated}, of {count} completions a prompt",
            expected="a multiple of num_generations and of the rows of a step",
            fix=f"={math.ceil(generated / unit) * unit}",
        )
    else:
        yield Fault(
            where="trainer.args.num_generations",
            found=f"{count} completions a prompt, in batches of {batch}",
            expected="a batch that holds whole groups: batch size x accumulation x processes",
            fix=f"trainer.args.per_device_train_batch_size={count}",
        )


# --- The best checkpoint --------------------------------------------------------------------------
def find_best_model_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each setting by which another checkpoint than the best would be chosen."""
    wanted = str(context.args.get("metric_for_best_model") or "")
    figure = upstream.ranking_figure(context.cfg)
    if figure != "loss" and wanted.endswith("loss"):
        for field in upstream.misleading_fields(context.args):
            value = short_text(context.args[field])
            yield Fault(
                where="trainer.args.metric_for_best_model",
                found=f"{wanted}, which {field}={value} may raise while the model learns",
                expected="a held-out figure that tells how well the model does",
                fix=f"=eval_{figure}",
            )
    is_evaluated = _is_evaluated(context)
    loads_best = context.field("load_best_model_at_end") is True
    if _stops_early(context):
        if not is_evaluated:
            yield Fault(
                where="trainer.args.eval_strategy",
                found="no, but a training should stop early",
                expected="evaluations",
                fix="=steps trainer.args.eval_steps=20",
            )
        if not wanted and not loads_best:
            yield Fault(
                where="trainer.args.metric_for_best_model",
                found="none, but a training should stop early",
                expected="a held-out figure",
                fix=f"=eval_{figure}",
            )
    if loads_best and is_evaluated:
        yield from _find_cadence_faults(context)
    elif loads_best:
        yield Fault(
            where="trainer.args.load_best_model_at_end",
            found="true, but nothing is evaluated",
            expected="an eval_strategy",
            fix="trainer.args.eval_strategy=steps",
        )


def find_direction_faults(context: ValidationContext) -> Iterator[Fault]:
    """The fault of a metric whose worst value would be chosen."""
    wanted = str(context.args.get("metric_for_best_model") or "")
    chooses_highest = context.args.get("greater_is_better", not wanted.endswith("loss"))
    for path, entry in context.entries("metric").items():
        name = path.removeprefix("metric.")
        better = entry.get("better") if isinstance(entry, dict) else None
        is_wanted = wanted == name or wanted.endswith(f"_{name}")
        if not better or not is_wanted or chooses_highest is (better == "higher"):
            continue
        chosen = "higher" if chooses_highest else "lower"
        right = to_text(better == "higher")
        yield Fault(
            where="trainer.args.greater_is_better",
            found=f"{wanted} is better when it is {better}, but {chosen} would be chosen",
            expected=right,
            fix=f"={right}",
        )


def _stops_early(context: ValidationContext) -> bool:
    for callback in context.entries("callback").values():
        signature = context.signature(callback)
        if signature and "EarlyStoppingCallback" in signature.lineage:
            return True
    return False


def _find_cadence_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault where a checkpoint that is evaluated as the best may not have been saved."""
    saves = context.field("save_strategy")
    evaluates = context.field("eval_strategy")
    if isinstance(saves, str) and saves not in ("best", evaluates):
        yield Fault(
            where="trainer.args.load_best_model_at_end",
            found=f"true, with save_strategy {saves} and eval_strategy {evaluates}",
            expected="checkpoints of the evaluated steps",
            fix=f"trainer.args.save_strategy={evaluates}",
        )
    if not saves == evaluates == "steps":
        return
    save_steps = context.field("save_steps")
    eval_steps = context.field("eval_steps")
    for steps in (save_steps, eval_steps):
        if not is_plain_number(steps) or steps < 1:
            return
    if save_steps % eval_steps:
        multiple = max(1, round(save_steps / eval_steps)) * eval_steps
        yield Fault(
            where="trainer.args.save_steps",
            found=f"{save_steps}, but evaluations every {eval_steps} steps, so the best may not "
            "be saved",
            expected=f"a multiple of eval_steps ({eval_steps})",
            fix=f"={multiple}",
        )
