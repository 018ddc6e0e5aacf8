"""Functions that rows of a dialect's table name under ``by``, for what no rule can describe."""

from collections.abc import Callable

from runner.config.conversion import to_number, to_weights, to_whole_number, to_words
from runner.dataset.conversation import SPEAKERS
from runner.importers.draft import MAPPED, SAME, Draft, is_unset

# The weights of the critic, by their names in a policy with a critic.
CRITIC = r"^value_|\.critic\."


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
    "divide_rollout": divide_rollout,
    "split_betas": split_betas,
    "split_bounds": split_bounds,
    "rate_critic": rate_critic,
    "compare_reference": compare_reference,
    "repeat_prompts": repeat_prompts,
    "divide_answers": divide_answers,
    "multiply_steps": multiply_steps,
}
