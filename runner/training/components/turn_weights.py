"""The weights that turns of the rows carry, as in OpenAI's files for fine-tuning."""

import logging
from collections.abc import Mapping, Sequence

from datasets import Dataset
from transformers import TrainingArguments

from runner.config.experiment import Experiment, TrainerPart
from runner.dataset.loaded_rows import Rows, list_columns
from runner.errors import ConfigError, DataError, Fault
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.schema.modality import modalities_of
from runner.schema.text import short_text
from runner.schema.upstream.losses import Unweighable
from runner.training.components.trainer_parts import loss_interface_of

log = logging.getLogger(__name__)

BY_MESSAGE = "runner.dataset.weigh.by_message"
FOUND = "turns of the rows have a weight"


def with_turn_weights(experiment: Experiment, args: TrainingArguments, rows: Rows) -> Experiment:
    """The experiment with a rule for the weights that turns carry, beside its own rules.

    The assistant's turns alone are trained, and of them no turn of weight 0. Raises ConfigError or
    DataError where this trainer cannot weigh them.
    """
    trainer = experiment.trainer
    rules = dict(experiment.weights)
    if trainer.form == "prompt":
        log.warning("not used: the weights of turns, because only sampled answers are trained")
        return experiment
    if any(rule and rule.get("_target_") == BY_MESSAGE for rule in rules.values()):
        return experiment
    if loss_interface_of(trainer) not in upstream.WEIGHED:
        if not experiment.tolerate.turn_weights:
            raise DataError(_no_weights_in(trainer))
        log.warning("not used: the weights of turns, because of tolerate.turn_weights")
        return experiment
    for modality in modalities_of(list_columns(rows)):
        raise DataError(
            Fault(
                where="dataset",
                found=f"{FOUND}, but there are {modality.many}",
                expected=f"rows with weights or with {modality.many}, not both",
                fix="leave the weights out by dataset.map",
            )
        )
    streams = bool(experiment.dataset.node.get("streaming")) or not isinstance(rows, Dataset)
    packs = getattr(args, "packing", False)
    ConfigError.refuse(_find_unweighable(trainer.args, packs_stream=streams and packs))
    if hasattr(args, "assistant_only_loss"):
        args.assistant_only_loss = False  # the weights leave the same tokens, but for those of 0
    log.warning(
        f"{FOUND}: only the assistant's turns are trained, each by its weight (weight=message)"
    )
    rules["of_turns"] = {"_target_": BY_MESSAGE}
    return Experiment.read({**experiment.node, "weight": rules})


def _no_weights_in(trainer: TrainerPart) -> Fault:
    trainer_class = trainer.target.rpartition(".")[2]
    return Fault(
        where="dataset",
        found=f"{FOUND}, but {trainer_class} does not weight tokens",
        expected="a trainer that weights tokens",
        fix="trainer=sft, dpo or kto, or tolerate.turn_weights=true, which trains as if they had "
        "none",
    )


def _find_unweighable(args: Mapping[str, object], *, packs_stream: bool) -> Sequence[Fault]:
    """A fault for each value of a trainer's config with which no weights of tokens work."""
    needed = dict(upstream.UNWEIGHABLE)
    needed["loss_type"] = Unweighable("nll", "dft weighs each token by itself")
    if packs_stream:
        needed["packing"] = Unweighable(False, "streamed rows with weights are not packed")
    faults = []
    for name, (right, reason) in needed.items():
        value = args.get(name, right)
        is_right = value == right or (name == "loss_type" and value != "dft")
        if not is_right and name != "assistant_only_loss":
            faults.append(
                Fault(
                    where=f"trainer.args.{name}",
                    found=f"{short_text(value)}, and {FOUND}",
                    expected=reason,
                    fix=f"={to_text(right)}",
                )
            )
    return faults
