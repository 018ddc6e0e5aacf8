"""Faults of a run whose rows hold media beside text, as to its trainer and its model."""

from collections.abc import Iterator

from runner.errors import Fault
from runner.schema import upstream
from runner.schema.modality import Modality
from runner.schema.text import Node


def find_media_faults(
    cfg: Node, modality: Modality, *, is_read: bool, column: str = ""
) -> Iterator[Fault]:
    """Faults of a run whose rows have media of a kind, in this column of their source.

    The trainer and the model must take them, and nothing may ask for tokens, which only a batch of
    them has. ``is_read`` says that the model comes with a processor.
    """
    many = modality.many
    column = column or modality.column
    without = f"dataset.without=[{column}]  (to train on the text alone)"
    trainer = cfg["trainer"]
    if not modality.is_taken_by(trainer):
        kind = str(trainer["_target_"]).rpartition(".")[2]
        yield Fault(
            where="trainer",
            found=f"rows with {many}, for {kind}",
            expected=f"text; TRL has no way to learn from {many} by it, and they would be lost",
            fix=f"trainer=<{modality.trainers}>, or {without}",
        )
    elif not is_read:
        name = cfg["model"].get("path") or cfg["model"].get("model_type")
        yield Fault(
            where="model",
            found=f"rows with {many}, for {name}, which comes without a processor of {many}",
            expected=f"a model of {many} and text",
            fix=f"model=<one that {modality.verb}>, or {without}",
        )
    if cfg.get("weight"):
        yield Fault(
            where="weight",
            found=f"rows with {many}, whose tokens are made batch by batch",
            expected=f"no token weights together with {many}",
            fix="weight=none trainer.args.assistant_only_loss=true  (of chats it trains the same "
            "tokens as weight=answers)",
        )
    order = "train_sampling_strategy"
    if trainer["args"].get(order) in upstream.OTHER_STEPS[order]:
        yield Fault(
            where=f"trainer.args.{order}",
            found=f"rows with {many} are to be grouped by length, which only a batch of them has",
            expected="rows in any order",
            fix="=random",
        )
