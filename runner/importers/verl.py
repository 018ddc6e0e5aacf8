"""verl: what follows from several of its keys.

It counts prompts where TRL counts completions, and steps of sampling where TRL counts those of the
optimizer. With P prompts a sampling (``data.train_batch_size``), M of them a mini-batch
(``ppo_mini_batch_size``), n completions of each and E epochs (``ppo_epochs``):

                              theirs    GRPO and its kin here             PPO here
    completions sampled       P n       generation_batch_size = P n       batch = P n
    completions of a step     M n       batch = M n                       num_mini_batches = P / M
    passes over them          E         num_iterations = E                num_ppo_epochs = E
    steps that are counted    1         E P / M                           1

Both ``batch`` and ``generation_batch_size`` are of all devices together, so that any number of them
takes the same steps. Micro-batches only limit the memory.

The rest stands in ``verl_loss``, ``verl_rewards`` and ``verl_run``, which ``verl_sft``
shares.
"""

from dataclasses import dataclass

from runner.config.conversion import to_plain_text, to_whole_number
from runner.config.menu import read_options
from runner.errors import ConfigError, Fault
from runner.importers.dataset_entries import find_nodes, hold_out_files, write_rows
from runner.importers.draft import IGNORED, MAPPED, SAME, Draft, is_unset
from runner.importers.verl_loss import (
    ESTIMATOR,
    find_surrogate,
    read_critic,
    read_kl_of_ppo,
    read_loss,
    read_policy_loss_of_ppo,
)
from runner.importers.verl_rewards import read_filter_groups, read_rewards_of_verl
from runner.importers.verl_run import BATCH, read_schedule, read_sharding, read_steps

TRAIN_FILES = "data.train_files"
VAL_FILES = "data.val_files"
MINI_BATCH = "actor_rollout_ref.actor.ppo_mini_batch_size"
EPOCHS = "actor_rollout_ref.actor.ppo_epochs"
COMPLETIONS = "actor_rollout_ref.rollout.n"
MICRO_BATCH = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
MICRO_BATCH_OF_ALL = "actor_rollout_ref.actor.ppo_micro_batch_size"
SHARDING = "actor_rollout_ref.actor.strategy"
OFFLOAD = "actor_rollout_ref.actor.fsdp_config.param_offload"


@dataclass(frozen=True)
class PromptBatch:
    """The sizes of a step of theirs, in which prompts are sampled once and trained on."""

    prompts: int
    mini_prompts: int  # of an optimizer step
    completions: int  # of each prompt
    epochs: int  # over what was sampled

    @property
    def steps(self) -> int:
        """The optimizer steps of one epoch over what was sampled."""
        return max(1, self.prompts // self.mini_prompts)


def read_verl(draft: Draft) -> None:
    """Write the trainer, the datasets, the batch, the steps, the loss and the rewards."""
    choose_trainer(draft)
    nodes = find_nodes(draft, TRAIN_FILES) or [{"path": "???", "form": draft.form}]
    hold_out_files(draft, nodes, VAL_FILES)
    write_rows(draft, nodes)
    batch = read_prompt_batch(draft)
    steps = 1
    if draft.trainer != "ppo":
        steps = batch.steps * batch.epochs
    read_steps(draft, steps)
    read_schedule(draft, "actor_rollout_ref.actor.optim", steps)
    if draft.trainer == "ppo":
        read_critic(draft)
        read_policy_loss_of_ppo(draft)
        read_kl_of_ppo(draft)
    else:
        read_loss(draft)
    read_filter_groups(draft, batch.prompts)
    read_rewards_of_verl(draft)
    read_sharding(draft, SHARDING, OFFLOAD)


# --- The trainer and the rows ---------------------------------------------------------------------


def choose_trainer(draft: Draft) -> None:
    """Choose the trainer by the estimator of advantages, or the one that was typed."""
    estimator = draft.read(ESTIMATOR, to_plain_text, "gae")
    is_typed = draft.reading.command in read_options("trainer")
    if is_typed:
        trainer = draft.reading.command
    elif is_unset(estimator):
        raise ConfigError(
            Fault(
                where=f"{draft.reading.path}: {ESTIMATOR}",
                found=f"{estimator} is set by the shell, and not in this file",
                expected="an estimator of advantages, such as grpo or gae",
                fix=f"python -m runner import {draft.reading.path} trainer=grpo",
            )
        )
    elif estimator == "gae":
        trainer = "ppo"
    else:
        trainer = find_surrogate(draft).get("trainer", "grpo")
    draft.choices["trainer"] = trainer
    if trainer == "ppo":
        why = "advantages by a critic" if estimator == "gae" else f"{estimator}; PPO has a critic"
        draft.note(MAPPED, ESTIMATOR, "trainer=ppo", why)


# --- The batch ------------------------------------------------------------------------------------


def read_prompt_batch(draft: Draft) -> PromptBatch:
    """Write the completions of a sampling and of an optimizer step, from theirs in prompts."""
    sizes: dict[str, int] = {}
    unknown = []
    for key in (BATCH, MINI_BATCH, COMPLETIONS, EPOCHS):
        if is_unset(draft.keys.get(key)):
            unknown.append(key)
            sizes[key] = 1
        else:
            sizes[key] = max(1, draft.read(key, to_whole_number, 1))
    for key in unknown:
        why = f"{draft.keys[key]} is set by the shell, and not in this file"
        nearest = "batch=<prompts of an optimizer step x completions of each>"
        draft.no_equivalent(key, why, nearest)
    # verl itself refuses a mini-batch that is larger than the batch, which is the default of many.
    prompts = sizes[BATCH]
    mini_prompts = min(prompts, sizes[MINI_BATCH])
    batch = PromptBatch(prompts, mini_prompts, sizes[COMPLETIONS], sizes[EPOCHS])
    note_completions(draft, batch)
    if unknown:
        return PromptBatch(1, 1, 1, 1)
    if draft.trainer == "ppo":
        write_batch_of_ppo(draft, batch)
    else:
        write_batch_of_groups(draft, batch)
    if prompts % mini_prompts:
        why = f"the last {prompts % mini_prompts} of {prompts} prompts are a smaller step in theirs"
        draft.replace_note(MINI_BATCH, why, f"batch: {draft.values['batch']}, which is written")
    write_micro_batch(draft)
    return batch


def note_completions(draft: Draft, batch: PromptBatch) -> None:
    """Write the number of completions of a prompt; one alone has nothing to be compared with."""
    if COMPLETIONS in draft.handled:
        return
    number = batch.completions
    if draft.trainer != "ppo" and number == 1:
        draft.unset.add(COMPLETIONS)
        draft.put("trainer.args.num_generations", "${shell.n}")
        why = f"{draft.trainer} compares completions of a prompt, and one has no other"
        nearest = "trainer.args.num_generations=<2 or more>"
        draft.no_equivalent(COMPLETIONS, why, nearest)
        return
    draft.write(COMPLETIONS, "trainer.args.num_generations", number)


def write_batch_of_groups(draft: Draft, batch: PromptBatch) -> None:
    """Write the batch of a trainer whose steps are those of the optimizer."""
    step_rows = batch.mini_prompts * batch.completions
    draft.put("batch", step_rows)
    product = f"{batch.mini_prompts} prompts x {batch.completions} completions a step"
    draft.note(MAPPED, MINI_BATCH, f"batch: {step_rows}", product)
    product = f"{batch.prompts} prompts x {batch.completions} completions are sampled at a time"
    if batch.steps > 1:
        path = "trainer.args.generation_batch_size"
        why = f"{product}, for {batch.steps} steps"
        draft.write(BATCH, path, step_rows * batch.steps, why)
    else:
        draft.note(SAME, BATCH, why=f"{product}, for 1 step")
    draft.write(EPOCHS, "trainer.args.num_iterations", batch.epochs)


def write_batch_of_ppo(draft: Draft, batch: PromptBatch) -> None:
    """Write the batch of PPO, whose steps are those of the sampling, as theirs."""
    rows = batch.prompts * batch.completions
    draft.put("batch", rows)
    product = f"{batch.prompts} prompts x {batch.completions} completions"
    draft.note(MAPPED, BATCH, f"batch: {rows}", product)
    why = f"{batch.prompts} prompts / {batch.mini_prompts}"
    draft.write(MINI_BATCH, "trainer.args.num_mini_batches", batch.steps, why)
    draft.write(EPOCHS, "trainer.args.num_ppo_epochs", batch.epochs)


def write_micro_batch(draft: Draft) -> None:
    """Write the rows that a device passes at a time, which only memory decides."""
    path = "trainer.args.per_device_train_batch_size"
    is_written = False
    for key, devices in ((MICRO_BATCH, 1), (MICRO_BATCH_OF_ALL, draft.reading.devices)):
        value = draft.keys.get(key)
        if value is None:
            continue
        if is_unset(value) or is_written:
            draft.note(IGNORED, key, why="only memory decides how many rows are in a micro-batch")
            continue
        # The older key counts those of all devices.
        rows = max(1, draft.take(key, to_whole_number, 1) // devices)
        why = "completions of a micro-batch"
        is_written = draft.write(key, path, rows, why)
