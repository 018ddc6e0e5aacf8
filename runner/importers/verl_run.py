"""Steps, schedule and devices of verl, for reinforcement learning and for demonstrations.

One step of verl's is a sampling with all its optimizer steps. The trainer of TRL counts the latter,
so each number of steps is multiplied with them: the length, the warm-up, and the cadence of saves
and evaluations. Shares of all steps stay as they are.
"""

from runner.config.conversion import to_whole_number
from runner.config.dialect import OFF, is_wanted
from runner.importers.draft import MAPPED, SAME, Draft, is_unset

BATCH = "data.train_batch_size"

# --- Steps and schedule ---------------------------------------------------------------------------


def read_steps(draft: Draft, steps: int) -> None:
    """Write the length and the cadence of a training, of whose steps ours takes so many for one."""
    product = "" if steps == 1 else f"x {steps} optimizer steps for each of theirs"
    # Their loop over epochs ends at this number of steps, or before.
    total = "trainer.total_training_steps"
    epochs = "trainer.total_epochs"
    if is_wanted(draft.keys.get(total), "enabled") and not is_unset(draft.keys[total]):
        count = draft.read(total, to_whole_number, 1)
        draft.write(total, "trainer.args.max_steps", count * steps, product)
        if epochs not in draft.implied:
            draft.note(SAME, epochs, why=f"{total} counts, unless the epochs end before")
        draft.handled.add(epochs)
    else:
        draft.write(epochs, "trainer.args.num_train_epochs", draft.keys.get(epochs))
    why_never = "a run is saved at the default cadence, so that it can go on"
    saves = _every(draft, "trainer.save_freq", why_never)
    if saves:
        draft.write("trainer.save_freq", "trainer.args.save_steps", saves * steps, product)
    read_evaluation(draft, steps, product)


def read_evaluation(draft: Draft, steps: int, product: str) -> None:
    """Write how often held-out rows are evaluated.

    Theirs evaluates before the first step, too, unless val_before_train is false.
    """
    start = "trainer.val_before_train"
    if not draft.has_held_out:
        for key in ("trainer.test_freq", start):
            if draft.keys.get(key) is not None:
                draft.note(SAME, key, why="no rows are held out")
        return
    every = _every(draft, "trainer.test_freq", "nothing is evaluated on the way")
    if every:
        draft.put("trainer.args.eval_strategy", "steps")
        draft.write("trainer.test_freq", "trainer.args.eval_steps", every * steps, product)
        draft.imply({start: True})
    if draft.keys.get(start) is None:
        return
    draft.write(start, "trainer.args.eval_on_start", draft.keys[start])


def _every(draft: Draft, key: str, why_never: str) -> int:
    """The number of steps between two of something; 0, with a note, where it is never done.

    Theirs says never by -1.
    """
    value = draft.keys.get(key)
    if value is None:
        return 0
    if is_unset(value):
        why = f"{value} is set by the shell, and not in this file"
        draft.no_equivalent(key, why)
        return 0
    every = draft.read(key, to_whole_number, -1)
    if every < 1:
        draft.note(SAME, key, why=why_never)
        return 0
    return every


def read_schedule(draft: Draft, group: str, steps: int) -> None:
    """Write the warm-up and the schedule below a group of keys; ``steps`` of ours are one."""
    warmup = read_warmup(draft, group, steps)
    path = "trainer.args.lr_scheduler_type"
    floor_key = f"{group}.min_lr_ratio"
    floor = draft.keys.get(floor_key) or 0
    written = ""
    for name in ("warmup_style", "lr_scheduler_type", "lr_scheduler", "lr_decay_style"):
        key = f"{group}.{name}"
        style = draft.keys.get(key)
        if style in (None, *OFF):
            continue
        if written:
            draft.note(SAME, key, why=f"{written} counts")
            continue
        written = key
        schedule = str(style)
        if schedule == "constant" and warmup:
            schedule = "constant_with_warmup"
        elif schedule == "cosine" and floor:
            schedule = "cosine_with_min_lr"
        elif schedule == "wsd":
            draft.no_equivalent(key, "its stable and falling parts", f"{path}=warmup_stable_decay")
            continue
        draft.write(key, path, schedule)
    if floor and written and draft.keys[written] == "cosine":
        draft.write(floor_key, "trainer.args.lr_scheduler_kwargs.min_lr_rate", floor)
    elif draft.keys.get(floor_key) is not None:
        draft.note(SAME, floor_key, why="it ends at 0, or is constant")


def read_warmup(draft: Draft, group: str, steps: int) -> bool:
    """Write the warm-up; true where there is one."""
    path = "trainer.args.warmup_steps"
    count_key = f"{group}.lr_warmup_steps"
    count = draft.keys.get(count_key)
    has_count = isinstance(count, int) and count >= 0
    if has_count and count:
        product = "" if steps == 1 else f"x {steps} optimizer steps for each of theirs"
        draft.write(count_key, path, count * steps, product)
    elif is_unset(count):
        draft.no_equivalent(count_key, f"{count} is set by the shell", f"{path}=<steps>")
    elif count is not None:
        draft.note(SAME, count_key, why="no warm-up" if has_count else "the ratio says it")
    warms = has_count and bool(count)
    for name in ("lr_warmup_steps_ratio", "warmup_steps_ratio"):
        key = f"{group}.{name}"
        share = draft.keys.get(key)
        if share is None:
            continue
        if has_count:
            draft.note(SAME, key, why=f"{count_key} counts")
        elif share:
            warms = draft.write(key, path, share, "below 1 it is a share of all steps")
        else:
            draft.note(SAME, key, why="no warm-up")
    return warms


# --- Devices --------------------------------------------------------------------------------------


def read_sharding(draft: Draft, key: str, offload_key: str) -> None:
    """Have FSDP typed, which is theirs wherever there is more than one device.

    Not beside the exchange of prompts, which samples where each process has the whole model.
    """
    if draft.reading.devices == 1 or draft.keys.get(key) == "megatron":
        return
    if is_wanted(draft.values.get("trainer", {}).get("dynamic_sampling"), "enabled"):
        draft.imply({key: "fsdp"})
        draft.no_equivalent(key, "prompts are exchanged where each process has the whole model")
        return
    option = "fsdp2"
    if is_wanted(draft.keys.get(offload_key), "enabled"):
        option = "fsdp2_offload"
        draft.note(MAPPED, offload_key, f"strategy={option}", "typed")
    words = draft.spread or [word for word in draft.overrides if word.startswith("launcher.")]
    draft.spread = [f"strategy={option}", *words]
    draft.imply({key: "fsdp"})
    draft.note(MAPPED, key, f"strategy={option}", "typed, where there are several GPUs")
