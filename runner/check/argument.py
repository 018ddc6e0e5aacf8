"""Fields of a trainer's config that are each right and cannot be meant together.

Most of them its constructor would refuse too, but only after the libraries are imported; the others it would take, and
learn nothing, or something else.
"""

from collections.abc import Iterator
from typing import Any

from runner.check.known import Asked, Node, is_number
from runner.check.value import shown
from runner.errors import Fault
from runner.signature import Signature

A = "trainer.args."
NEVER = ("no", False, None)
BY_SCORE = ("reduce_lr_on_plateau", "greedy")  # schedules that look at what was evaluated


class Fields:
    """The fields of a trainer's config: what was given, or else their defaults."""

    def __init__(self, args: Node, signature: Signature):
        self.args, self.signature = args, signature

    def __getitem__(self, name: str) -> Any:
        known = self.signature.parameters.get(name)
        return self.args.get(name, known.default if known else None)

    def numbers(self, *names: str) -> list[int | float] | None:
        """The values of these fields, if all of them are numbers above 0."""
        values = [self[name] for name in names]
        return values if all(is_number(value) and value > 0 for value in values) else None

    @property
    def evaluates(self) -> bool:
        return self["eval_strategy"] not in NEVER


def find_argument_faults(asked: Asked, args: Node, signature: Signature) -> Iterator[Fault]:
    """A fault for each pair of fields that contradict each other."""
    fields, processes = Fields(args, signature), _processes(asked.cfg)
    yield from _warmup(args)
    yield from _epochs(asked, args)
    yield from _whole_steps(fields)
    yield from _best_model(fields)
    yield from _without(fields)
    yield from _generation(fields, processes)
    yield from _mini_batches(fields)


def _warmup(args: Node) -> Iterator[Fault]:
    steps, warmup = args.get("max_steps"), args.get("warmup_steps")
    if is_number(steps) and is_number(warmup) and 1 <= steps <= warmup:
        yield Fault(
            f"{A}warmup_steps",
            f"{warmup} of {steps} steps, so the learning rate would never be reached",
            "fewer than max_steps, or a share below 1",
            f"{A}warmup_steps=0.1",
        )


def _epochs(asked: Asked, args: Node) -> Iterator[Fault]:
    """A fault where epochs were typed and a number of steps, which the model may have brought, overrules them."""
    typed, steps = f"{A}num_train_epochs" in asked.typed, args.get("max_steps")
    if typed and is_number(steps) and steps > 0 and f"{A}max_steps" not in asked.typed:
        found, cure = f"{args['num_train_epochs']}, overruled by max_steps={steps}", f"{A}max_steps=-1"
        yield Fault(f"{A}num_train_epochs", found, "no number of steps beside it", cure)


def _whole_steps(fields: Fields) -> Iterator[Fault]:
    """A fault for each cadence that is neither a share of the training nor a whole number of steps."""
    for name in ("logging_steps", "save_steps", "eval_steps"):
        value = fields[name]
        if is_number(value) and value > 1 and value != int(value):
            yield Fault(f"{A}{name}", shown(value), "a whole number, or a share below 1", f"{A}{name}={round(value)}")


def _best_model(fields: Fields) -> Iterator[Fault]:
    """A fault where the best model is to be loaded, and could not be: it is never looked for, or was not saved."""
    if fields["load_best_model_at_end"] is not True:
        return
    where = f"{A}load_best_model_at_end"
    if not fields.evaluates:
        yield Fault(where, "true, but nothing is evaluated", "an eval_strategy", f"{A}eval_strategy=steps")
        return
    saves, evaluates = fields["save_strategy"], fields["eval_strategy"]
    if saves != "best" and isinstance(saves, str) and saves != evaluates:
        found = f"true, with save_strategy {saves} and eval_strategy {evaluates}"
        yield Fault(where, found, "what is evaluated to be saved too", f"{A}save_strategy={evaluates}")
    numbers = fields.numbers("save_steps", "eval_steps")
    if saves == evaluates == "steps" and numbers and min(numbers) >= 1 and numbers[0] % numbers[1]:
        found = f"{numbers[0]}, and evaluations every {numbers[1]} steps, so that the best may not be saved"
        cure = f"{A}save_steps={max(1, round(numbers[0] / numbers[1])) * numbers[1]}"
        yield Fault(f"{A}save_steps", found, f"a multiple of eval_steps ({numbers[1]})", cure)


def _without(fields: Fields) -> Iterator[Fault]:
    """A fault for each field that means nothing without, or beside, another one."""
    if fields.args.get("fp16") is True and fields.args.get("bf16") is True:
        yield Fault(f"{A}fp16", "true beside bf16: true", "one of the two", f"{A}fp16=false")
    if fields["dataloader_prefetch_factor"] and fields["dataloader_num_workers"] == 0:
        where, cure = f"{A}dataloader_prefetch_factor", f"{A}dataloader_num_workers=2"
        yield Fault(where, f"{fields['dataloader_prefetch_factor']}, and no worker fetches", "workers", cure)
    if fields["lr_scheduler_type"] in BY_SCORE and not fields.evaluates:
        found = f"{fields['lr_scheduler_type']}, and nothing is evaluated"
        yield Fault(f"{A}lr_scheduler_type", found, "an eval_strategy", f"{A}eval_strategy=steps")
    if isinstance(fields["parallelism_config"], dict) and "_target_" not in fields["parallelism_config"]:
        where, kind = f"{A}parallelism_config", "accelerate.ParallelismConfig"
        yield Fault(where, "a mapping", f"{kind}, built from it", f"{where}._target_={kind}")
    if fields["packing"] is True and "max_length" in fields.args and fields.args["max_length"] is None:
        yield Fault(f"{A}max_length", "null, and rows are to be packed up to it", "a length", f"{A}max_length=1024")


# --- Generation -----------------------------------------------------------------------------------


def _generation(fields: Fields, processes: int) -> Iterator[Fault]:
    """A fault where a batch of completions does not hold whole groups of one prompt."""
    own = [name for name in ("generation_batch_size", "steps_per_generation") if fields[name]]
    if len(own) == 2:
        where, found = f"{A}generation_batch_size", f"{fields[own[0]]} beside steps_per_generation={fields[own[1]]}"
        yield Fault(where, found, "one of the two, which makes the other", f"{A}steps_per_generation=null")
        return
    size, group = fields["per_device_train_batch_size"], fields["num_generations"]
    rounds = fields["steps_per_generation"] or fields["gradient_accumulation_steps"]
    if not all(isinstance(number, int) and number >= 1 for number in (size, group, rounds)):
        return
    batch = fields["generation_batch_size"] or size * processes * rounds
    if isinstance(batch, int) and group > 1 and batch % group:
        yield Fault(
            f"{A}num_generations",
            f"{group} completions a prompt, in batches of {batch}",
            "a batch that holds whole groups: batch size x accumulation x processes",
            f"{A}per_device_train_batch_size={group}",
        )


def _mini_batches(fields: Fields) -> Iterator[Fault]:
    """A fault where the rollout of a process cannot be dealt into equal mini-batches."""
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_mini_batches")
    if not all(name in fields.signature.parameters for name in names):
        return
    size, rounds, parts = (fields[name] for name in names)
    if all(isinstance(number, int) and number >= 1 for number in (size, rounds, parts)) and size * rounds % parts:
        found = f"{parts} for {size * rounds} prompts per process"
        expected = "a divisor of batch size x accumulation"
        yield Fault(f"{A}num_mini_batches", found, expected, f"{A}num_mini_batches=1")


def _processes(cfg: Node) -> int:
    launcher = cfg.get("launcher") if isinstance(cfg.get("launcher"), dict) else {}
    count = launcher.get("num_processes")
    return count if isinstance(count, int) and count > 0 else 1
