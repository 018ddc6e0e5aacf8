"""Fields of a trainer's config that are each right and cannot be meant together.

Most of them its constructor would refuse too, but only after the libraries are imported; the others it would take, and
learn nothing, or something else.
"""

from collections.abc import Iterator

from runner.errors import Fault
from runner.validate.context import ARGS, ValidationContext
from runner.validate.values import is_number, short_text

SCHEDULES_BY_SCORE = ("reduce_lr_on_plateau", "greedy")  # schedules that look at what was evaluated


def find_argument_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each pair of fields that contradict each other."""
    if context.signature(context.mapping("trainer.args")):
        yield from _steps(context)
        yield from _best_model(context)
        yield from _without(context)
        yield from _generation(context)
        yield from _mini_batches(context)


def _evaluates(context: ValidationContext) -> bool:
    return context.field("eval_strategy") not in ("no", False, None)


def _counts(context: ValidationContext, *names: str) -> list[int]:
    """The values of these fields, if all of them are whole numbers of at least 1; else an empty list."""
    values = [context.field(name) for name in names]
    return values if all(isinstance(value, int) and value >= 1 for value in values) else []


def _steps(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each number of steps or epochs that another one overrules, and each cadence of broken steps."""
    args = context.mapping("trainer.args")
    steps, warmup, epochs = args.get("max_steps"), args.get("warmup_steps"), f"{ARGS}num_train_epochs"
    if is_number(steps) and is_number(warmup) and 1 <= steps <= warmup:
        found = f"{warmup} of {steps} steps, so the learning rate would never be reached"
        cure = f"{ARGS}warmup_steps=0.1"
        yield Fault(f"{ARGS}warmup_steps", found, "fewer than max_steps, or a share below 1", cure)
    # Steps that nobody typed may have come with the model.
    if epochs in context.typed and is_number(steps) and steps > 0 and f"{ARGS}max_steps" not in context.typed:
        found = f"{args['num_train_epochs']}, overruled by max_steps={steps}"
        yield Fault(epochs, found, "no number of steps beside it", f"{ARGS}max_steps=-1")
    for name in ("logging_steps", "save_steps", "eval_steps"):
        value = context.field(name)
        if is_number(value) and value > 1 and value != int(value):
            expected, cure = "a whole number, or a share below 1", f"{ARGS}{name}={round(value)}"
            yield Fault(f"{ARGS}{name}", short_text(value), expected, cure)


def _best_model(context: ValidationContext) -> Iterator[Fault]:
    """A fault where the best model is to be loaded, and could not be: it is never looked for, or was not saved."""
    if context.field("load_best_model_at_end") is not True:
        return
    where = f"{ARGS}load_best_model_at_end"
    if not _evaluates(context):
        yield Fault(where, "true, but nothing is evaluated", "an eval_strategy", f"{ARGS}eval_strategy=steps")
        return
    saves, evaluates = context.field("save_strategy"), context.field("eval_strategy")
    if saves != "best" and isinstance(saves, str) and saves != evaluates:
        found = f"true, with save_strategy {saves} and eval_strategy {evaluates}"
        yield Fault(where, found, "what is evaluated to be saved too", f"{ARGS}save_strategy={evaluates}")
    each, step = context.field("save_steps"), context.field("eval_steps")
    if saves == evaluates == "steps" and all(is_number(one) and one >= 1 for one in (each, step)) and each % step:
        found = f"{each}, and evaluations every {step} steps, so that the best may not be saved"
        cure = f"{ARGS}save_steps={max(1, round(each / step)) * step}"
        yield Fault(f"{ARGS}save_steps", found, f"a multiple of eval_steps ({step})", cure)


def _without(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each field that means nothing without, or beside, another one."""
    args, parallelism = context.mapping("trainer.args"), context.field("parallelism_config")
    fetched, schedule = context.field("dataloader_prefetch_factor"), context.field("lr_scheduler_type")
    if args.get("fp16") is True and args.get("bf16") is True:
        yield Fault(f"{ARGS}fp16", "true beside bf16: true", "one of the two", f"{ARGS}fp16=false")
    if fetched and context.field("dataloader_num_workers") == 0:
        where, cure = f"{ARGS}dataloader_prefetch_factor", f"{ARGS}dataloader_num_workers=2"
        yield Fault(where, f"{fetched}, and no worker fetches", "workers", cure)
    if schedule in SCHEDULES_BY_SCORE and not _evaluates(context):
        where, found = f"{ARGS}lr_scheduler_type", f"{schedule}, and nothing is evaluated"
        yield Fault(where, found, "an eval_strategy", f"{ARGS}eval_strategy=steps")
    if isinstance(parallelism, dict) and "_target_" not in parallelism:
        where, kind = f"{ARGS}parallelism_config", "accelerate.ParallelismConfig"
        yield Fault(where, "a mapping", f"{kind}, built from it", f"{where}._target_={kind}")
    if context.field("packing") is True and "max_length" in args and args["max_length"] is None:
        found, cure = "null, and rows are to be packed up to it", f"{ARGS}max_length=1024"
        yield Fault(f"{ARGS}max_length", found, "a length", cure)


def _generation(context: ValidationContext) -> Iterator[Fault]:
    """A fault where a batch of completions does not hold whole groups of one prompt."""
    processes = context.mapping("launcher").get("num_processes")
    own, rounds = context.field("generation_batch_size"), context.field("steps_per_generation")
    if own and rounds:
        where, found = f"{ARGS}generation_batch_size", f"{own} beside steps_per_generation={rounds}"
        yield Fault(where, found, "one of the two, which makes the other", f"{ARGS}steps_per_generation=null")
        return
    names = ("per_device_train_batch_size", "num_generations")
    counts = _counts(context, *names, "steps_per_generation" if rounds else "gradient_accumulation_steps")
    if not counts:
        return
    size, group, rounds = counts
    batch = own or size * rounds * (processes if isinstance(processes, int) and processes > 0 else 1)
    if isinstance(batch, int) and group > 1 and batch % group:
        found = f"{group} completions a prompt, in batches of {batch}"
        expected = "a batch that holds whole groups: batch size x accumulation x processes"
        yield Fault(f"{ARGS}num_generations", found, expected, f"{ARGS}per_device_train_batch_size={group}")


def _mini_batches(context: ValidationContext) -> Iterator[Fault]:
    """A fault where the rollout of a process cannot be cut into equal mini-batches."""
    counts = _counts(context, "per_device_train_batch_size", "gradient_accumulation_steps", "num_mini_batches")
    if counts and counts[0] * counts[1] % counts[2]:
        found = f"{counts[2]} for {counts[0] * counts[1]} prompts per process"
        expected = "a divisor of batch size x accumulation"
        yield Fault(f"{ARGS}num_mini_batches", found, expected, f"{ARGS}num_mini_batches=1")
