"""Functions that rows of a dialect's table name under ``by``, for what no rule can describe."""

import re
from collections.abc import Callable

from runner.config.conversion import to_number, to_plain_text, to_whole_number, to_words
from runner.config.dialect import is_wanted
from runner.dataset.conversation import SPEAKERS
from runner.importers.draft import MAPPED, Draft

# The end of a name on the hub of weights that are kept in 4 bits.
BITS = re.compile(r"(-unsloth)?-bnb-4bit$")


def divide_batch(draft: Draft, key: str) -> None:
    """Write the whole batch, divided by the micro-batch, as the number of accumulated steps."""
    micro_batch = max(1, draft.read("micro_batch_size", to_whole_number, 1))
    batch = draft.take(key, to_whole_number, 1)
    steps = max(1, batch // micro_batch)
    why = "the whole batch by the small one"
    draft.write(key, "trainer.args.gradient_accumulation_steps", steps, why)


def pair_rows(draft: Draft, key: str) -> None:
    """Write micro-batches of two rows, and half as many of them in a step."""
    count_key = "gradient_accumulation_steps"
    single_row_steps = draft.take(count_key, to_whole_number, 1)
    steps = max(1, single_row_steps // 2)
    # It may stand first in their file.
    draft.notes = [note for note in draft.notes if note.key != count_key]
    why = "rows of a micro-batch are compared with each other"
    draft.write(key, "trainer.args.per_device_train_batch_size", 2, why)
    draft.write(count_key, f"trainer.args.{count_key}", steps, "of two rows")


def divide_epoch(draft: Draft, key: str) -> None:
    """Write how often an epoch is interrupted as a share of all steps."""
    prefix = "eval" if key.startswith("evals") else "save"
    strategy_key = f"trainer.args.{prefix}_strategy"
    epochs = draft.read("num_epochs", to_number, 1.0)
    times_per_epoch = draft.take(key, to_number, 1.0)
    times = times_per_epoch * epochs
    share = round(1 / times, 6) if times else 1
    if share >= 1:
        draft.put(strategy_key, "epoch")
        draft.note(MAPPED, key, f"{strategy_key}: epoch")
    else:
        draft.put(strategy_key, "steps")
        why = f"a share of all steps: {draft.keys[key]} in each of {epochs:g}"
        draft.write(key, f"trainer.args.{prefix}_steps", share, why)


def pair_betas(draft: Draft, key: str) -> None:
    """Write both betas of Adam as one argument of an optimizer of ours."""
    first = draft.read("adam_beta1", to_number, 0.9)
    second = draft.read("adam_beta2", to_number, 0.999)
    draft.write(key, "optimizer.betas", [first, second])


def compare_speakers(draft: Draft, key: str) -> None:
    """Note a role of a dataset whose speakers are not those that ours reads in this role."""
    _, _, role = key.rpartition(".")
    speakers = draft.take(key, to_words, [])
    for speaker in speakers:
        if SPEAKERS.get(speaker.lower()) != role:
            draft.no_equivalent(key, "", "dataset.map._target_=<function of a row>")
            return


def fill_groups(draft: Draft, key: str) -> None:
    """Write the micro-batch, as large as a group where no whole groups make up a step.

    Unsloth makes it so when it starts, on one device; TRL refuses such a batch.
    """
    micro_batch = draft.take(key, to_whole_number, 1)
    steps = draft.read("gradient_accumulation_steps", to_whole_number, 1)
    group = draft.read("num_generations", to_whole_number, 8)
    why = ""
    if group > 0 and (micro_batch * steps) % group:
        micro_batch = group
        why = "a whole group, which Unsloth makes of it"
    draft.write(key, f"trainer.args.{key}", micro_batch, why)


def name_weights(draft: Draft, key: str) -> None:
    """Write the model; for weights of 4 bits that are not wanted, those that they were made of."""
    name = draft.take(key, to_plain_text, "???")
    stem = BITS.sub("", name)
    why = ""
    if stem != name and not is_wanted(draft.keys.get("load_in_4bit"), "enabled"):
        name = stem
        why = "without load_in_4bit the weights of 16 bits are loaded"
    draft.write(key, "model.path", name, why)


FUNCTIONS: dict[str, Callable[[Draft, str], None]] = {
    "divide_batch": divide_batch,
    "pair_rows": pair_rows,
    "divide_epoch": divide_epoch,
    "pair_betas": pair_betas,
    "compare_speakers": compare_speakers,
    "fill_groups": fill_groups,
    "name_weights": name_weights,
}
