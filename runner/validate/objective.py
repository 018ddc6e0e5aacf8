"""Losses and token weights of the user's own: which trainers take them, by their names, and what goes with them."""

from collections.abc import Iterator, Sequence

from runner.config.menu import read_options
from runner.errors import Fault, fault
from runner.schema import upstream
from runner.schema.read import Signature, read_signature
from runner.schema.text import Node, nearest, read_tables, short_text
from runner.schema.type import shortened
from runner.validate.context import ValidationContext

WHOLE_BATCH = ("outputs", "labels", "num_items_in_batch")
_TABLES = read_tables(__file__)  # each is described where it stands
GIVES: dict[str, list[str]] = _TABLES["gives"]
NEEDS: dict[str, tuple[str, str]] = _TABLES["needs"]
ALSO_GIVES: dict[str, list[str]] = _TABLES["also_gives"]
NOT_WEIGHED: dict[str, str] = _TABLES["not_weighed"]
WEIGHED = upstream.WEIGHED


def find_objective_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each loss or weight that this trainer cannot use, or that something else makes vain."""
    trainer = context.trainer
    loss, weight, args = context.mapping("loss"), context.mapping("weight"), context.args
    if not trainer or not trainer.parameters or not (loss or weight):
        return
    kind, signature = upstream.loss_interface(trainer, context.signature(args)), context.signature(loss)
    why = "it computes its loss in a way of its own"
    why = "its loss is the distance to a teacher" if upstream.TEACHER_MODEL in trainer.parameters else why
    why = "it learns from rewards, and has no labels" if upstream.REWARD_FUNCS in trainer.parameters else why
    if loss and kind:
        yield from _not_given(loss, signature, kind, trainer.name)
        overruled = [name for name, off in upstream.OWN_LOSS.items() if args.get(name, off) != off]
        if args.get(upstream.LOSS_TYPE, "nll") not in upstream.PLAIN_LOSS_TYPES:
            overruled.append(upstream.LOSS_TYPE)
        for name in overruled:  # settings of TRL's own loss, which this one replaces
            yield fault("validate.beside_a_loss", field=name, value=short_text(args[name]))
    elif loss and upstream.COMPUTE_LOSS_FUNC not in trainer.parameters:
        yield _unusable("loss", trainer.name, why, tuple(GIVES))
    if not weight:
        return
    if kind not in WEIGHED:
        yield _unusable("weight", trainer.name, NOT_WEIGHED.get(kind or "", why), WEIGHED)
        return
    for name, (right, why) in upstream.UNWEIGHABLE.items():  # under which they would be wrong or without effect
        if name in args and args[name] != right:
            value = short_text(args[name])
            yield fault("validate.beside_weights", field=name, value=value, right=short_text(right), reason=why)
    if args.get(upstream.LOSS_TYPE) == "dft":
        yield fault("validate.weighs_itself")
    if signature and set(signature.parameters) & set(WHOLE_BATCH):
        yield fault("validate.whole_batch", loss=signature.name)
    if args.get(upstream.PACKING) and context.mapping("dataset").get("streaming"):
        yield Fault("weight", "streamed rows that are packed", "rows on disk", "dataset.streaming=false")


def _unusable(group: str, trainer: str, why: str, kinds: Sequence[str]) -> Fault:
    able: dict[str | None, list[str]] = {}
    for name, option in read_options("trainer").items():
        node = option["trainer"]
        kind = upstream.loss_interface(read_signature(node["_target_"]), read_signature(node["args"]["_target_"]))
        able.setdefault(kind, []).append(name)
    expected = f"one of these trainers: {', '.join(name for kind in kinds for name in able.get(kind, ()))}"
    return Fault(group, f"set, but {trainer} takes none: {why}", expected, "=none")


def _not_given(loss: Node, signature: Signature | None, kind: str, trainer: str) -> Iterator[Fault]:
    if signature is None:
        return
    given = (*GIVES[kind], *ALSO_GIVES.get(kind, ()))
    if "Module" in signature.lineage and kind != "tokens":
        yield Fault("loss", f"{signature.name} takes logits and targets", shortened(GIVES[kind]), "trainer=sft")
    if signature.lineage:  # a class: what its instances are called with is not its signature
        return
    needed, why = NEEDS.get(kind, ("", ""))
    if needed and needed not in signature.parameters and not signature.is_open:
        yield Fault("loss", f"{signature.name} does not ask for {needed}", f"a loss of {why}", "loss=none")
    for name in signature.required:
        if name not in given and name not in loss:
            near = nearest(name, given)
            fix = f"call the argument {near[0]}, or give it: loss.{name}=<value>" if near else "loss=none"
            listed = ", ".join(GIVES[kind])
            yield fault("validate.not_given", loss=signature.name, name=name, trainer=trainer, given=listed, fix=fix)
