"""Functions that rows of a dialect's table name under ``by``, for what no rule can describe."""

import re
from collections.abc import Callable

from runner.config.conversion import (
    to_number,
    to_plain_text,
    to_weights,
    to_whole_number,
    to_words,
)
from runner.config.dialect import is_wanted, to_single_line
from runner.config.menu import read_options
from runner.dataset.conversation import SPEAKERS
from runner.importers.draft import IGNORED, MAPPED, SAME, Draft, is_unset

# The weights of the critic, by their names in a policy with a critic.
CRITIC = r"^value_|\.critic\."

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


def scale_margin(draft: Draft, key: str) -> None:
    """Write the margin of SimPO, of which theirs is the share of beta."""
    beta = draft.read("beta", to_number, 2.0)
    ratio = draft.take(key, to_number, 0.0)
    draft.put("trainer.args.loss_type", "simpo")
    draft.put("trainer.args.cpo_alpha", draft.take("sft_weight", to_number, 0.0))
    if draft.keys.get("sft_weight") is not None:
        draft.note(MAPPED, "sft_weight", "trainer.args.cpo_alpha")
    why = f"times beta, {beta:g}; loss_type: simpo, cpo_alpha: 0 but for an sft_weight"
    draft.write(key, "trainer.args.simpo_gamma", round(ratio * beta, 12), why)


def count_minibatches(draft: Draft, key: str) -> None:
    """Write after how many micro-batches theirs samples anew."""
    minibatches = draft.take(key, to_whole_number, 1)
    accumulated = draft.read("gradient_accumulation_steps", to_whole_number, 1)
    steps = minibatches * accumulated
    why = "minibatches, each of the accumulated steps"
    draft.write(key, "trainer.args.steps_per_generation", steps, why)


def count_nodes(draft: Draft, key: str) -> None:
    """Note that the processes are those of each node; of a cluster's nodes, not all may train."""
    nodes = draft.take(key, to_whole_number, 1)
    processes = draft.keys.get("num_processes")
    if processes is None:
        draft.note(IGNORED, key, why="nodes of the cluster")
        return
    draft.note(MAPPED, "num_processes", "launcher.num_processes", f"on each of {nodes} nodes")
    del draft.keys["num_processes"]
    draft.imply({"nnodes": nodes, "nproc_per_node": processes})
    draft.note(MAPPED, key, "launcher.num_machines", f"each with {processes} processes")


def count_learners(draft: Draft, key: str) -> None:
    """Note how many processes train; others only sample."""
    counts = draft.take(key, to_weights, [])
    learners = int(sum(counts))
    draft.imply({"num_processes": learners})
    draft.note(MAPPED, key, "launcher.num_processes", f"{learners} train, others sample")


def continue_adapter(draft: Draft, key: str) -> None:
    """Write an adapter as the model: the last one goes on training, or a new one is put on top.

    The others are merged before. Quantised weights are never merged with one, so that the last one
    goes on there also where a new one is asked for.
    """
    *merged, last = draft.take(key, to_words, []) or [""]
    wants_new = is_wanted(draft.keys.get("create_new_adapter"), "enabled")
    is_quantised = is_wanted(draft.keys.get("quantization_bit"), "enabled")
    if merged:
        nearest = "python -m runner export, and model.path=<the merged model>"
        draft.no_equivalent(key, f"{', '.join(merged)}: merged before", nearest)
    if wants_new and not is_quantised:
        draft.put("model.merge", True)
        why = "it is merged, and a new adapter is trained on top; its base is found from it"
        draft.write(key, "model.path", last, why)
        return
    draft.imply({"adapter_goes_on": True})
    why = "training goes on with this adapter, whose base is found from it"
    draft.write(key, "model.path", last, why)
    if draft.trainer in ("dpo", "kto", "ppo"):
        reason = "their reference is the base without the adapter, ours the adapter as it was"
        draft.no_equivalent(key, reason)


def choose_trackers(draft: Draft, key: str) -> None:
    """Choose the trackers of ours that a list names; others are noted."""
    options = read_options("tracker")
    names = [name for name in draft.take(key, to_words, []) if name != "none"]
    trackers = [name for name in names if name in options]
    if len(trackers) == 1:
        draft.choices["tracker"] = trackers[0]
    elif trackers:
        draft.choices["tracker"] = trackers
    if trackers:
        draft.note(MAPPED, key, f"tracker={to_single_line(trackers)}")
    others = ", ".join(name for name in names if name not in options)
    if others:
        draft.no_equivalent(key, f"{others}: no tracker of ours", "tracker=[<name>,<name>]")


def divide_rollout(draft: Draft, key: str) -> None:
    """Write the answers of a rollout, from its prompts, and those of a step of all devices."""
    step_key = "train_batch_size"
    names = (key, step_key, "n_samples_per_prompt")
    if any(is_unset(draft.keys.get(name)) for name in names):
        for name in (key, step_key):
            why = "prompts, answers and steps make each other's numbers; the shell sets one"
            draft.no_equivalent(name, why, "batch=<answers of a step, or of a rollout for PPO>")
        return
    batch = max(1, draft.read(step_key, to_whole_number, 1))
    answers = draft.read("n_samples_per_prompt", to_whole_number, 1)
    prompts = draft.read(key, to_whole_number, 1)
    rollout = prompts * answers
    product = f"{prompts} prompts x {answers} answers"
    if draft.trainer == "ppo":
        steps = max(1, rollout // batch)
        draft.write(key, "batch", rollout, f"{product}: the answers of a rollout")
        why = f"{rollout} / {batch} steps of a rollout"
        if rollout % batch:
            draft.no_equivalent(step_key, f"it does not divide {product}")
        else:
            draft.write(step_key, "trainer.args.num_mini_batches", steps, why)
        return
    draft.write(step_key, "batch", batch, "answers a step of all devices")
    if rollout == batch:
        draft.note(SAME, key, why=f"{product}, which are those of a step")
    else:
        path = "trainer.args.generation_batch_size"
        draft.write(key, path, rollout, f"{product}: the answers of a rollout")


def split_betas(draft: Draft, key: str) -> None:
    """Write both betas of Adam, which are one value there."""
    betas = draft.take(key, to_weights, [0.9, 0.999])
    if draft.choices.get("optimizer") == "adamw":
        draft.write(key, "optimizer.betas", betas)
        return
    draft.put("trainer.args.adam_beta1", betas[0])
    draft.put("trainer.args.adam_beta2", betas[-1])
    draft.note(MAPPED, key, f"trainer.args.adam_beta1: {betas[0]}, adam_beta2: {betas[-1]}")


def split_bounds(draft: Draft, key: str) -> None:
    """Write both bounds of the ratio of probabilities, which are one value there."""
    bounds = draft.take(key, to_weights, [])
    if len(bounds) != 2:
        draft.no_equivalent(key, "not two bounds")
        return
    if draft.trainer != "ppo":
        draft.put("trainer.args.epsilon", bounds[0])
        draft.put("trainer.args.epsilon_high", bounds[1])
        target = f"trainer.args.epsilon: {bounds[0]}, epsilon_high: {bounds[1]}"
        draft.note(MAPPED, key, target)
        return
    draft.put("trainer.args.cliprange", bounds[0])
    if bounds[0] == bounds[1]:
        draft.note(MAPPED, key, f"trainer.args.cliprange: {bounds[0]}")
    else:
        why = f"PPO has one bound, of which {bounds[0]} is written"
        draft.no_equivalent(key, why, "trainer=grpo, which has two")


def rate_critic(draft: Draft, key: str) -> None:
    """Write a learning rate of the critic's own, by the names of its weights."""
    rate = draft.read(key, to_number, 0.0)
    if rate == draft.keys.get("actor_learning_rate"):
        draft.note(SAME, key, why="that of the policy")
        return
    draft.choices["optimizer"] = "adamw"
    draft.put("optimizer.groups", {CRITIC: {"lr": rate}})
    draft.note(MAPPED, key, f"optimizer=adamw optimizer.groups: {CRITIC}")


def compare_reference(draft: Draft, key: str) -> None:
    """Note a reference, which is the start model here."""
    why = "the reference is the start model"
    if draft.keys[key] == draft.keys.get("pretrain"):
        draft.note(SAME, key, why=why)
    else:
        draft.no_equivalent(key, why)


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


def repeat_prompts(draft: Draft, key: str) -> None:
    """Write the answers of a device from its prompts, each with as many as are sampled of one."""
    answers = draft.read("grpo_samples", to_whole_number, 1)
    prompts = draft.take(key, to_whole_number, 1)
    path = "trainer.args.per_device_train_batch_size"
    draft.write(key, path, prompts * answers, f"{prompts} prompts x {answers} answers")


def divide_answers(draft: Draft, key: str) -> None:
    """Write the steps of a rollout, and the micro-batches of a step."""
    answers = draft.read("batch_size", to_whole_number, 1)
    answers_a_step = max(1, draft.take(key, to_whole_number, 1))
    steps = max(1, answers // answers_a_step)
    why = f"{answers} / {answers_a_step} steps of a rollout"
    draft.write(key, "trainer.args.num_mini_batches", steps, why)
    parts = max(1, draft.read("gradient_accumulation_steps", to_whole_number, 1))
    draft.put("trainer.args.per_device_train_batch_size", max(1, answers_a_step // parts))


def multiply_steps(draft: Draft, key: str) -> None:
    """Write the steps of all epochs, each of which ends after a number of them."""
    steps_key = "max_steps_per_epoch"
    if is_unset(draft.keys.get(steps_key)):
        draft.write(key, "trainer.args.num_train_epochs", draft.keys[key])
        return
    steps_an_epoch = draft.read(steps_key, to_whole_number, 1)
    epochs = draft.take(key, to_whole_number, 1)
    why = f"{epochs} x {steps_an_epoch} at most; theirs ends an epoch with its rows as well"
    draft.write(key, "trainer.args.max_steps", epochs * steps_an_epoch, why)


FUNCTIONS: dict[str, Callable[[Draft, str], None]] = {
    "divide_batch": divide_batch,
    "pair_rows": pair_rows,
    "divide_epoch": divide_epoch,
    "pair_betas": pair_betas,
    "compare_speakers": compare_speakers,
    "scale_margin": scale_margin,
    "choose_trackers": choose_trackers,
    "count_minibatches": count_minibatches,
    "count_nodes": count_nodes,
    "count_learners": count_learners,
    "continue_adapter": continue_adapter,
    "divide_rollout": divide_rollout,
    "split_betas": split_betas,
    "split_bounds": split_bounds,
    "rate_critic": rate_critic,
    "compare_reference": compare_reference,
    "fill_groups": fill_groups,
    "name_weights": name_weights,
    "repeat_prompts": repeat_prompts,
    "divide_answers": divide_answers,
    "multiply_steps": multiply_steps,
}
